"""The tabular sets: where they are, what the papers reached, and a PUBLIC map of each example to about [-1, 1]^d.

No statistic of the rows enters a map: constants are ends of documented scales, or powers of ten. What a source did
to its file before publishing is stated, not undone: ADBench ships magic.gamma, skin and yeast standardised and
campaign and donors scaled to [0, 1], by their own rows; the table on scikit-learn's page of breast cancer, minima
and maxima of all rows, is used as the documented scale of that set.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]
Labels = NDArray[np.int64]
Metric = Literal["auroc", "accuracy"]


@dataclass(frozen=True)
class TabularSet:
    """A set, its budget, and the figures of its paper in per cent.

    Args:
        name: of the file.
        folder: it lies in; empty: from scikit-learn.
        clipped, clipless: the paper's DP-SGD, and its method without clipping.
        unit: the public map.
    """

    name: str
    folder: str
    epsilon: float
    delta: float
    metric: Metric
    clipped: float
    clipless: float
    unit: Callable[[Array], Array]

    @property
    def target(self) -> float:
        """What is to be reached, in per cent: of the AUROC tables the better column, of the others Lip-DP-SGD."""
        return max(self.clipped, self.clipless) if self.metric == "auroc" else self.clipless


def roots(x: Array) -> Array:
    """Return square roots of what lies in [0, 1]: shares and indicators."""
    unit: Array = np.sqrt(np.clip(x, 0.0, 1.0))
    return unit


def standard(x: Array) -> Array:
    """Return what was standardised at its source over 5, cut to [-1, 1]."""
    unit: Array = np.clip(x / 5.0, -1.0, 1.0)
    return unit


def sensors(x: Array) -> Array:
    """Return readings over 128, cut to [-1, 1]: whole numbers of some seven bits, with rare ones far beyond."""
    unit: Array = np.clip(x / 128.0, -1.0, 1.0)
    return unit


def _logarithm(x: Array, top: float) -> Array:
    unit: Array = np.log1p(np.maximum(x, 0.0)) / np.log1p(top)
    return unit


def adult(x: Array) -> Array:
    """Ages and hours over 100, years of education over 16, amounts by logarithm."""
    unit = x.copy()
    unit[:, [0, 65]] /= 100.0
    unit[:, 27] /= 16.0
    unit[:, 10] = _logarithm(x[:, 10], 2e6)
    unit[:, 63] = _logarithm(x[:, 63], 1e5)
    unit[:, 64] = _logarithm(x[:, 64], 1e4)
    return unit


def credit_default(x: Array) -> Array:
    """Amounts by logarithm with the sign; the scale of repayment, -2 to 8, as a number and as indicators."""
    unit = x.copy()
    unit[:, 0] = np.sqrt(np.clip(x[:, 0] / 1e6, 0.0, 1.0))
    unit[:, 14] /= 100.0
    unit[:, 21:33] = np.arcsinh(x[:, 21:33] / 1000.0) / np.arcsinh(1000.0)
    unit[:, 15:21] /= 9.0
    repayment = (x[:, 15:21, None] == np.arange(-2, 9)).reshape(len(x), -1)
    return np.concatenate([unit, repayment], axis=1)


def student_dropout(x: Array) -> Array:
    """Grades over 200 or 20, units over 20, age over 100, rates over 20, 5 and 5."""
    unit = x.copy()
    unit[:, 24] /= 9.0
    unit[:, [60, 223]] /= 200.0
    unit[:, 230] /= 100.0
    unit[:, 232:245] /= 20.0
    unit[:, 245:247] /= 5.0
    return np.clip(unit, -1.0, 1.0)


def german_credit(x: Array) -> Array:
    """Months over 72, ages over 100, the amount by logarithm, scales of four over 4."""
    unit = x.copy()
    unit[:, 4] /= 72.0
    unit[:, 20] = _logarithm(x[:, 20], 2e4)
    unit[:, [31, 39, 51]] /= 4.0
    unit[:, 44] /= 100.0
    unit[:, 56] /= 2.0
    return unit


def breast_cancer(x: Array) -> Array:
    """Square roots of positions in the ranges that the page of the set documents."""
    from sklearn.datasets import load_breast_cancer

    page = load_breast_cancer().DESCR
    ranges = re.findall(r"^[a-z ]+\([a-z ]+\):\s+([\d.]+)\s+([\d.]+)$", page, re.MULTILINE)
    low, high = np.array(ranges, dtype=np.float64).T
    return roots((x - low) / (high - low))


def _auroc(name: str, delta: float, clipped: float, clipless: float, unit: Callable[[Array], Array]) -> TabularSet:
    return TabularSet(name, "tabular", 1.0, delta, "auroc", clipped, clipless, unit)


def _accuracy(
    name: str, rows: int, epsilon: float, clipped: float, clipless: float, unit: Callable[[Array], Array]
) -> TabularSet:
    folder = "weightclip" if name != "breast_cancer" else ""
    return TabularSet(name, folder, epsilon, 1.0 / rows, "accuracy", clipped, clipless, unit)


SETS = (
    _auroc("ALOI", 1e-5, 56.5, 56.2, roots),
    _auroc("campaign", 1e-5, 90.0, 82.2, roots),
    _auroc("celeba", 1e-6, 96.6, 96.5, roots),
    _auroc("donors", 1e-6, 100.0, 100.0, roots),
    _auroc("magic.gamma", 1e-5, 90.7, 89.7, standard),
    _auroc("shuttle", 1e-5, 98.3, 99.4, sensors),
    _auroc("skin", 1e-6, 100.0, 99.8, standard),
    _auroc("yeast", 1e-4, 66.8, 75.1, standard),
    _accuracy("adult", 48842, 0.414, 82.4, 83.1, adult),
    _accuracy("breast_cancer", 569, 1.672, 81.3, 92.4, breast_cancer),
    _accuracy("credit_default", 30000, 1.442, 80.9, 81.6, credit_default),
    _accuracy("student_dropout", 4424, 1.326, 76.3, 81.9, student_dropout),
    _accuracy("german_credit", 1000, 3.852, 73.5, 74.6, german_credit),
    _accuracy("nursery", 12960, 1.432, 91.9, 93.1, roots),
)


def load(which: TabularSet, data: Path) -> tuple[Array, Labels]:
    """Return public maps [N, d] of all rows, and labels [N]."""
    if not which.folder:
        from sklearn.datasets import load_breast_cancer

        x, y = load_breast_cancer(return_X_y=True)
    else:
        arrays = np.load(data / which.folder / f"{which.name}.npz", allow_pickle=False)
        x, y = arrays["X"], arrays["y"]
    return which.unit(x.astype(np.float64)), y.astype(np.int64)


def load_table(which: TabularSet, data: Path) -> tuple[Array, Labels]:
    """Return the columns as a file would have them, texts [N, c], and labels [N]; of the sets in `weightclip`."""
    path = data / which.folder / f"{which.name}.npz"
    names = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))["columns"]
    arrays = np.load(path, allow_pickle=False)
    groups: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        groups.setdefault(name.split("=")[0], []).append(place)
    columns = []
    for name, places in groups.items():
        x = arrays["X"][:, places]
        values = np.array([f"is {names[place].partition('=')[2]}" for place in places])
        columns.append(
            np.where(x.any(axis=1), values[x.argmax(axis=1)], "")
            if f"{name}=" in names[places[0]]
            else x[:, 0].astype(str)
        )
    return np.column_stack(columns), arrays["y"].astype(np.int64)

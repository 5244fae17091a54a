"""Does an emitted module compute what its original computes? Measured on random inputs inside the domain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, isfinite, prod, sqrt
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .module import LipschitzModule

Array = NDArray[Any]

# How far examples go, as shares of the norm bound; every other one has few entries that are not 0, and large ones.
_SCALES = (1.0, 1.0, 0.3, 0.3, 0.1, 0.1, 0.01, 0.01)
_INSIDE = 1 - 2**-10  # what rounding does to a norm must not make the module clip an example
_NONZERO = 4
# A difference counts where it is above this share of the largest output of the example, or more digits than the
# original's numbers have; or a hundred times what float32 costs the emitted module, by its own result in float64.
_TOLERANCE, _ULPS, _ROUNDING = 1e-4, 32.0, 100.0
_EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


class ShapeError(ValueError):
    """The outputs of the two have different shapes."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """What was measured.

    examples: how many. absolute, relative: the largest difference of an entry, and the largest as a share of the
    largest output of its example. tolerance: what `relative` may be. excess: the largest difference as a multiple
    of what is allowed, the rounding of the example included: above 1 the two compute something else.
    """

    examples: int
    absolute: float
    relative: float
    tolerance: float
    excess: float

    @property
    def agrees(self) -> bool:
        """Whether every difference may be rounding; never for outputs that are no numbers."""
        return self.excess <= 1


def measure(
    program: type[LipschitzModule],
    original: Callable[[Array], Array],
    *,
    batch: int | None = None,
    precision: str = "float32",
    vocabulary: int | None = None,
    log_probabilities: bool = False,
    seed: int = 0,
) -> Agreement:
    """Compare an emitted class of modules with its original: at imported weights, unprojected, without dropout.

    Args:
        program: built without arguments.
        original: maps examples [B, *input_shape] to outputs [B, …].
        batch: the only B that `original` takes.
        precision: of `original`.
        vocabulary: how many tokens there are, if examples are tokens.
        log_probabilities: the original ends in a log-softmax, which the module leaves to its loss.

    Raises ShapeError.
    """
    module = _unprojected(program).eval()
    x = _examples(module, vocabulary, np.random.default_rng(seed), batch or len(_SCALES))
    rounded = torch.from_numpy(x) if vocabulary else torch.from_numpy(x).to(getattr(torch, precision))
    fed = rounded if vocabulary else rounded.double()
    wanted = np.concatenate([original(part.numpy()) for part in torch.split(fed, batch or len(fed))])
    single = _output(module, fed if vocabulary else fed.float(), log_probabilities)
    double = _output(module.double(), fed, log_probabilities)
    if wanted.shape != double.shape:
        raise ShapeError(f"the original puts out {list(wanted.shape)}, the module {list(double.shape)}")
    return compared(wanted, double, single, max(_TOLERANCE, _ULPS * _EPSILON[precision]))


def _unprojected(program: type[LipschitzModule]) -> LipschitzModule:
    """Build a module whose weights stay as they were imported, outside of their constraints or not."""
    free = type("Unprojected", (program,), {"project_": lambda _: None})
    module: LipschitzModule = free()
    return module


def _examples(module: LipschitzModule, vocabulary: int | None, rng: np.random.Generator, batch: int) -> Array:
    """Return random examples: at least one of each scale, and whole batches."""
    count = -(-len(_SCALES) // batch) * batch
    shape = (count, *module.input_shape)
    if vocabulary:
        return rng.integers(vocabulary, size=shape)
    size = prod(module.input_shape)
    norm = module.input_norm * _INSIDE if isfinite(module.input_norm) else sqrt(size)
    rows = rng.standard_normal((count, size))
    for row in rows[1::2]:
        row[rng.permutation(size)[_NONZERO:]] = 0
    scales = np.resize(_SCALES, count) * norm
    rows *= (scales / np.maximum(np.linalg.norm(rows, axis=1), 1e-30))[:, None]
    return rows.reshape(shape)


def _output(module: LipschitzModule, x: torch.Tensor, log_probabilities: bool) -> Array:
    with torch.no_grad():
        output = module(x)
        output = torch.log_softmax(output, dim=-1) if log_probabilities else output
    return np.asarray(output.double().numpy())


def compared(
    wanted: Array, found: Array, single: Array, tolerance: float, floor: float = _EPSILON["float32"]
) -> Agreement:
    """Compare what two put out for the same examples, row by row, and every row with its own rounding.

    `found` is computed in float64, and `single` by the same in float32. Differences below `tolerance` of a row's
    largest entry count as rounding, and those below `floor` of the largest of all.
    """
    rows = [array.reshape(len(array), -1) for array in (wanted, found, single)]
    wanted, found, single = rows
    with np.errstate(all="ignore"):
        difference = np.abs(wanted - found).max(axis=1, initial=0)
        size = np.abs(wanted).max(axis=1, initial=0)
        rounding = np.abs(single - found).max(axis=1, initial=0)
        allowed = tolerance * size + floor * size.max(initial=0) + _ROUNDING * rounding
        excess = np.where(difference == 0, 0, difference / np.maximum(allowed, 1e-300))
        relative = np.where(difference == 0, 0, difference / np.maximum(size, 1e-300))
    return Agreement(len(wanted), _largest(difference), _largest(relative), tolerance, _largest(excess))


def _largest(values: Array) -> float:
    """Return the largest entry, infinity if one is no number."""
    found = float(values.max(initial=0))
    return found if isfinite(found) else inf

"""A linear head on public features, behind a standardisation that is paid from ε: all by the library.

Three steps. The means of features, of their squares and of labels are ONE step of a compiled module with the
Kantorovich–Rubinstein loss: from weights 0 and the target 1 for every example, its weights after a full batch are
the mean of its inputs, with the noise that the ledger counts. Each example is then standardised by these public
numbers, and mapped to features of a norm that is known: itself cut to a ball, or random Fourier features, cos and
sin in pairs, of norm 1 exactly (Rahimi and Recht 2007), which are not trained. Then a linear head is trained: its
bound is the loss's times that norm, as tight as clipping the gradient of every example would be. All steps are
full batches, whose Gaussian mechanisms compose exactly: 1/σ² adds up.
"""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lipcompile_torch import PrivacyEngine
from lipcompile_torch.accounting import gaussian_noise
from torch.utils.data import TensorDataset

from benchmarks.utility.sets import Array, Labels
from benchmarks.utility.study import LogUniform, Score, Settings, Space
from benchmarks.utility.training import Budget, Recipe, compiled, outputs, train

MODELS = Path(__file__).parent / "models.lip"
MARGIN = 1.0005
# One space for all sets. `agitation` is the standard deviation that the noise of one step gives a weight: the rate
# follows from it, so that sets of a thousand rows and of half a million look in one range.
SPACE: Space = {
    "standardise": ("none", "scale", "scale"),
    "share": (0.05, 0.15),
    "floor": (0.03, 0.1),
    "features": ("plain", "both", "both"),
    "radius": (0.5, 1.0),
    "directions": ("all", "few"),
    "frequency": LogUniform(0.15, 1.5),
    "width": (64, 256),
    "loss_clip": (1.0, 0.3, 0.1),
    "agitation": LogUniform(0.015, 0.15),
    "steps": (100,),
    "momentum": (0.9,),
    "average": (0.5,),
    "constant": (0.1,),
}


@dataclass(frozen=True)
class Parts:
    """Examples to train on and to look at: [N, d] and [N], [M, d] and [M]."""

    x: Array
    y: Labels
    x_seen: Array
    y_seen: Labels

    @property
    def classes(self) -> int:
        """K: labels are 0 to K - 1."""
        return int(max(self.y.max(), self.y_seen.max())) + 1


@dataclass(frozen=True)
class Moments:
    """What was released of the training part: means [d], scales [d], and shares of classes [K - 1]."""

    mean: Array
    scale: Array
    shares: Array

    def __call__(self, x: Array) -> Array:
        """Standardise."""
        return (x - self.mean) / self.scale


def release(engine: PrivacyEngine, parts: Parts, settings: Settings, budget: Budget, seed: int) -> Moments:
    """Release the moments for the share of the budget that the settings say, in squares of 1/σ."""
    width = parts.x.shape[1]
    labels = np.eye(parts.classes)[parts.y][:, 1:]
    table = np.concatenate([parts.x, parts.x**2, labels], axis=1)
    radius = round(0.6 * float(np.sqrt(2 * width + 1)), 3)
    module = compiled(MODELS, {"features": table.shape[1], "radius": radius}, "moments")
    torch.nn.init.zeros_(module.get_parameter("dense.weight"))
    examples = TensorDataset(_tensor(table), torch.ones(len(table), 1))
    sigma = _full_batch_noise(budget, settings["share"], 1)
    train(engine, module, examples, Recipe(1, 1.0, momentum=0.0), budget, 2 * seed + 1_000_001, sigma=sigma)
    released = module.get_parameter("dense.weight").detach().numpy()[0].astype(np.float64)
    mean, squares, shares = np.split(released, [width, 2 * width])
    deviation = np.sqrt(np.maximum(squares - mean**2, 0.0))
    by = settings["standardise"] == "scale"
    scale = np.maximum(deviation, settings["floor"]) if by else np.full(width, 0.5)
    return Moments(mean, scale, np.clip(shares, 1e-3, 1 - 1e-3))


def featurise(x: Array, settings: Settings) -> Array:
    """Return features [N, D] of norm at most √(1 + constant²), example by example."""
    x = x.astype(np.float32) / math.sqrt(x.shape[1])
    norms = np.linalg.norm(x, axis=1, keepdims=True)
    kind, constant = settings["features"], np.full((len(x), 1), settings["constant"], dtype=np.float32)
    if kind in ("plain", "hidden"):
        return np.concatenate([x / np.maximum(norms, settings["radius"]), constant], axis=1)
    half = settings["width"] // 2
    phases = x @ (np.float32(3.0 * settings["frequency"]) * _directions(x.shape[1], half, settings["directions"]))
    waves = np.concatenate([np.cos(phases), np.sin(phases)], axis=1) / math.sqrt(half)
    if kind == "fourier":
        return np.concatenate([waves, constant], axis=1)
    plain = 0.5 * x / np.maximum(norms, 1.0)
    return np.concatenate([np.concatenate([waves, plain], axis=1) / math.sqrt(1.25), constant], axis=1)


def _directions(width: int, number: int, kind: str) -> Array:
    """Return normal directions [d, D], of length √d on average, on `all` coordinates, or 1, 2, 3 and d in turn."""
    source = np.random.default_rng(0)
    found = source.standard_normal((width, number), dtype=np.float32)
    if kind == "all":
        return found
    for column, among in zip(found.T, itertools.cycle((1, 2, 3, width)), strict=False):
        among = min(among, width)
        column[source.permutation(width)[among:]] = 0.0
        column *= math.sqrt(width / among)
    return found


def fit(parts: Parts, settings: Settings, budget: Budget, seed: int, *, audit: bool) -> tuple[Array, Score]:
    """Train on the one part; return outputs [M] or [M, K] on the other, and ε and seconds.

    Args:
        audit: ask the ledger what was spent.
    """
    began = time.process_time()
    engine = PrivacyEngine()
    moments = None
    if settings["standardise"] != "none":
        moments = release(engine, parts, settings, budget, seed)
    seen, x = (featurise(moments(z) if moments else 2 * z, settings) for z in (parts.x_seen, parts.x))
    radius = round(float(np.sqrt(1 + settings["constant"] ** 2)) + 1e-5, 6)
    table = _tensor(x)
    if not bool((table.norm(dim=1) <= radius).all()):  # as by construction; NaN fails too
        raise ValueError(f"features exceed their norm {radius}")
    module = _head(parts.classes, x.shape[1], radius, settings["constant"], moments)
    sigma = _full_batch_noise(budget, 1.0 - settings["share"] if moments else 1.0, settings["steps"])
    recipe = Recipe(
        settings["steps"],
        settings["agitation"] * len(table) / (sigma * radius * settings["loss_clip"]),
        momentum=settings["momentum"],
        average=settings["average"],
        how={"loss_clip": settings["loss_clip"]},
    )
    y = torch.from_numpy(parts.y)
    examples = TensorDataset(table, y[:, None].float() if parts.classes == 2 else y)
    train(engine, module, examples, recipe, budget, 2 * seed + 7, sigma=sigma)
    output = outputs(module, _tensor(seen)).numpy()
    seconds = time.process_time() - began
    spent = engine.get_epsilon(budget.delta) if audit else None
    return output[:, 0] if parts.classes == 2 else output, Score(0.0, spent, seconds)


def _full_batch_noise(budget: Budget, share: float, steps: int) -> float:
    """Return σ of full batches that spend a share of the budget, counted in 1/σ².

    The factor makes room for the accountant, which rounds losses up; the ledger has the last word.
    """
    alone = float(gaussian_noise("analytic", budget.epsilon, budget.delta))
    return MARGIN * alone * math.sqrt(steps / share)


def _head(classes: int, width: int, radius: float, constant: float, moments: Moments | None) -> Any:
    """Return the head, at weights 0 but for the log-odds of the released shares."""
    sizes = {"features": width, "radius": radius}
    if classes == 2:
        module = compiled(MODELS, sizes, "binary")
    else:
        module = compiled(MODELS, sizes | {"classes": classes}, "multiclass")
    weight = module.get_parameter("dense.weight")
    with torch.no_grad():
        weight.zero_()
        if moments is not None:
            shares = moments.shares
            rest = max(1e-3, 1.0 - float(shares.sum()))
            odds = np.log(shares / rest)
            weight[-len(odds) :, -1] = torch.from_numpy(odds / constant).float()
    return module


def _tensor(x: Array) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32))

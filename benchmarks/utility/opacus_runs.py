"""DP-SGD by Opacus, for comparison: its gradients of every example, its clipping and its noise.

Batches are drawn as tensors, by Poisson sampling, since its loader collates example by example; gradients of
examples are taken in pieces, so that memory is that of a piece. Of tables, inputs are the same public maps, and
the same random features are among the choices; a network of two layers is another. Trials are calibrated by its
RDP accountant, which is fast; what is reported by PLD, as ours, which is tighter than its accountants.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from lipcompile_torch.accounting import Mechanism, NeighbouringRelation, calibrate_noise_multiplier, epsilon
from lipcompile_torch.averaging import LastWeights
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (its name everywhere in this field)

from benchmarks.utility import heads
from benchmarks.utility.parts import Parts
from benchmarks.utility.sets import Array
from benchmarks.utility.study import LogUniform, Score, Settings, Space
from benchmarks.utility.training import Budget, Recipe, optimizer_of, outputs
from lipcompile.learn.features import Features
from lipcompile.learn.recipe import Recipe as TableRecipe

# The space of `heads`, less what it has no use for. Inputs are not standardised, so frequencies reach further;
# networks are added, whose weights bear less noise, and sizes of batches.
SPACE: Space = {
    "kind": ("plain", "waves", "waves", "hidden"),
    "width": heads.SPACE["width"],
    "frequency": LogUniform(0.2, 3.0),
    "hidden": (16, 32),
    "clipping": heads.SPACE["loss_clip"],
    "agitation": heads.SPACE["agitation"],
    "expected_batch": (1024, 4096),
    "steps": (100, 200),
}
_CONSTANT = TableRecipe()
_PIECE = 512  # examples at once

Loss = Callable[[Tensor, Tensor], Tensor]


def _features(x: Array, settings: Settings) -> Tensor:
    """Return the features of the library, of rows that are not standardised, [N, D] in float32."""
    recipe = TableRecipe(
        kind="waves" if settings["kind"] == "waves" else "plain",
        width=settings["width"],
        frequency=settings["frequency"],
    )
    return torch.from_numpy(Features.of(x.shape[1], recipe)(2 * x)).float()


@lru_cache(maxsize=256)
def _trial_noise(budget: Budget, rate: float, steps: int) -> tuple[float, None]:
    """Return σ; what it spends was not asked."""
    from opacus.accountants.utils import get_noise_multiplier

    target = {"target_epsilon": budget.epsilon, "target_delta": budget.delta, "epsilon_tolerance": 0.001}
    return float(get_noise_multiplier(**target, sample_rate=rate, steps=steps, accountant="rdp")), None


@lru_cache(maxsize=256)
def noise(budget: Budget, rate: float, steps: int) -> tuple[float, float]:
    """Return σ and the ε that it spends."""
    relation = NeighbouringRelation("add_remove")
    sigma = calibrate_noise_multiplier(
        budget.epsilon, budget.delta, lambda sigma: Mechanism(rate, sigma), steps, relation, "pld"
    )
    return sigma, epsilon([(Mechanism(rate, sigma), steps)], budget.delta, relation, "pld")


def _network(inputs: int, outputs_: int, hidden: int) -> nn.Module:
    if not hidden:
        head = nn.Linear(inputs, outputs_, bias=False)
        nn.init.zeros_(head.weight)
        return head
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs_))


def train(
    model: nn.Module, x: Tensor, y: Tensor, recipe: Recipe, sigma: float, loss: Loss = F.cross_entropy
) -> nn.Module:
    """Train by DP-SGD; return the module with the averaged weights.

    Args:
        recipe: `how` has `clipping`, the norm that gradients are clipped to.
        loss: of outputs and labels, the mean over a batch.
    """
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    rate = sampling_rate(recipe, len(x))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module: Any = GradSampleModule(model)
    inner = optimizer_of(recipe, module)
    optimizer: Any = DPOptimizer(
        inner,
        noise_multiplier=sigma,
        max_grad_norm=recipe.how["clipping"],
        expected_batch_size=round(rate * len(x)),
    )
    last = LastWeights(module, recipe.steps, recipe.average)
    for step in range(recipe.steps):
        inner.param_groups[0]["lr"] = recipe.rate * (1 - step / recipe.steps)
        _step(module, optimizer, x, y, torch.nonzero(torch.rand(len(x)) < rate)[:, 0], loss)
        last.after(step)
    last.load()
    wrapped: nn.Module = module
    return wrapped


def sampling_rate(recipe: Recipe, size: int) -> float:
    """Return q, for so many examples."""
    return min(1.0, (recipe.batch or size) / size)


def _step(module: Any, optimizer: Any, x: Tensor, y: Tensor, drawn: Tensor, loss: Loss = F.cross_entropy) -> None:
    """Sum clipped gradients piece by piece, and step after the last; a batch of none is one example, times 0."""
    pieces = torch.split(drawn, _PIECE) if len(drawn) else (torch.zeros(1, dtype=torch.long),)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, piece in enumerate(pieces, start=1):
            optimizer.zero_grad()
            value = loss(module(x[piece]), y[piece])
            (value if len(drawn) else 0.0 * value).backward()  # type: ignore[no-untyped-call]
            optimizer.signal_skip_step(do_skip=number < len(pieces))
            optimizer.step()


def fit(parts: Parts, settings: Settings, budget: Budget, seed: int, *, audit: bool) -> tuple[Array, Score]:
    """As `heads.fit`, by Opacus."""
    began = time.process_time()
    torch.manual_seed(seed)
    seen, x = (_features(z, settings) for z in (parts.x_seen, parts.x))
    hidden = settings["hidden"] if settings["kind"] == "hidden" else 0
    how = {"clipping": settings["clipping"]}
    recipe = Recipe(settings["steps"], 0.0, settings["expected_batch"], _CONSTANT.momentum, _CONSTANT.average, how)
    rate = sampling_rate(recipe, len(x))
    sigma, spent = (noise if audit else _trial_noise)(budget, rate, recipe.steps)
    lr = settings["agitation"] * round(rate * len(x)) / (sigma * settings["clipping"]) / (3 if hidden else 1)
    model = _network(x.shape[1], 1 if parts.classes == 2 else parts.classes, hidden)
    module = train(model, x, torch.from_numpy(parts.y), replace(recipe, rate=lr), sigma, _loss)
    output = outputs(module, seen).numpy()
    seconds = time.process_time() - began
    return output[:, 0] if parts.classes == 2 else output, Score(0.0, spent, seconds)


def _loss(output: Tensor, target: Tensor) -> Tensor:
    if output.shape[1] == 1:
        return F.binary_cross_entropy_with_logits(output[:, 0], target.float())
    return F.cross_entropy(output, target)

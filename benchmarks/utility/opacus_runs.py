"""DP-SGD by Opacus, for comparison: its gradients of every example, its clipping and its noise.

Batches are drawn as tensors, by Poisson sampling, since its loader collates example by example. Inputs are the
same public maps, and the same random features are among the choices; a network of two layers is another. Trials
are calibrated by its RDP accountant, which is fast; what is reported by PLD, as ours, which is tighter than its
accountants.
"""

from __future__ import annotations

import time
import warnings
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
from benchmarks.utility.training import Budget, outputs
from lipcompile.learn.features import Features
from lipcompile.learn.recipe import Recipe

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
_CONSTANT = Recipe()


def _features(x: Array, settings: Settings) -> Tensor:
    """Return the features of the library, of rows that are not standardised, [N, D] in float32."""
    recipe = Recipe(
        kind="waves" if settings["kind"] == "waves" else "plain",
        width=settings["width"],
        frequency=settings["frequency"],
    )
    return torch.from_numpy(Features.of(x.shape[1], recipe)(2 * x)).float()


@lru_cache(maxsize=256)
def _trial_noise(budget: Budget, rate: float, steps: int) -> float:
    from opacus.accountants.utils import get_noise_multiplier

    return float(
        get_noise_multiplier(
            target_epsilon=budget.epsilon,
            target_delta=budget.delta,
            sample_rate=rate,
            steps=steps,
            accountant="rdp",
            epsilon_tolerance=0.001,
        )
    )


@lru_cache(maxsize=256)
def _noise(budget: Budget, rate: float, steps: int) -> tuple[float, float]:
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


def fit(parts: Parts, settings: Settings, budget: Budget, seed: int, *, audit: bool) -> tuple[Array, Score]:
    """As `heads.fit`, by Opacus."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    began = time.process_time()
    torch.manual_seed(seed)
    seen, x = (_features(z, settings) for z in (parts.x_seen, parts.x))
    y = torch.from_numpy(parts.y)
    rate, steps = min(1.0, settings["expected_batch"] / len(x)), settings["steps"]
    batch = round(rate * len(x))
    hidden = settings["hidden"] if settings["kind"] == "hidden" else 0
    sigma, spent = _noise(budget, rate, steps) if audit else (_trial_noise(budget, rate, steps), None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module: Any = GradSampleModule(_network(x.shape[1], 1 if parts.classes == 2 else parts.classes, hidden))
    lr = settings["agitation"] * batch / (sigma * settings["clipping"]) / (3 if hidden else 1)
    inner = torch.optim.SGD(module.parameters(), lr=lr, momentum=_CONSTANT.momentum)
    optimizer: Any = DPOptimizer(
        inner, noise_multiplier=sigma, max_grad_norm=settings["clipping"], expected_batch_size=batch
    )
    last = LastWeights(module, steps, _CONSTANT.average)
    for step in range(steps):
        inner.param_groups[0]["lr"] = lr * (1 - step / steps)
        drawn = torch.nonzero(torch.rand(len(x)) < rate)[:, 0]
        if len(drawn):
            optimizer.zero_grad()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                _loss(module(x[drawn]), y[drawn]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        last.after(step)
    last.load()
    output = outputs(module, seen).numpy()
    seconds = time.process_time() - began
    return output[:, 0] if parts.classes == 2 else output, Score(0.0, spent, seconds)


def _loss(output: Tensor, target: Tensor) -> Tensor:
    if output.shape[1] == 1:
        return F.binary_cross_entropy_with_logits(output[:, 0], target.float())
    return F.cross_entropy(output, target)

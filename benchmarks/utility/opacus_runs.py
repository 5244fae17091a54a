"""DP-SGD by Opacus, for comparison: its gradients of every example, its clipping, its noise, its accountant.

Batches are drawn as tensors, by Poisson sampling, since its loader collates example by example. Inputs are the
same public maps, and the same random features are among the choices; a network of two layers is another. Trials
are calibrated by its RDP accountant, which is fast, and what is reported by its PRV accountant, which is tighter.
"""

from __future__ import annotations

import time
import warnings
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (its name everywhere in this field)

from benchmarks.utility.heads import Parts, featurise
from benchmarks.utility.sets import Array
from benchmarks.utility.study import LogUniform, Score, Settings, Space
from benchmarks.utility.training import Budget, outputs

SPACE: Space = {
    "features": ("plain", "fourier", "both", "hidden"),
    "radius": (0.3, 0.6, 1.0, 1.5),
    "frequency": LogUniform(0.1, 3.0),
    "width": (64, 128, 256),
    "constant": (0.1, 0.5),
    "hidden": (16, 32),
    "clipping": (1.0, 0.5, 0.3, 0.1, 0.03),
    "expected_batch": (512, 2048),
    "steps": (50, 100, 200),
    "rate": LogUniform(0.5, 200.0),
    "momentum": (0.0, 0.9),
    "average": (0.0, 0.3, 0.6),
}


@lru_cache(maxsize=256)
def _noise(budget: Budget, rate: float, steps: int, accountant: str) -> float:
    from opacus.accountants.utils import get_noise_multiplier

    return float(
        get_noise_multiplier(
            target_epsilon=budget.epsilon,
            target_delta=budget.delta,
            sample_rate=rate,
            steps=steps,
            accountant=accountant,
            epsilon_tolerance=0.001,
        )
    )


def _spent(budget: Budget, sigma: float, rate: float, steps: int) -> float:
    from opacus.accountants import PRVAccountant

    accountant = PRVAccountant()
    accountant.history = [(sigma, rate, steps)]
    return float(accountant.get_epsilon(budget.delta, eps_error=0.001))


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
    seen, x = (torch.from_numpy(featurise(2 * z, settings)).float() for z in (parts.x_seen, parts.x))
    y = torch.from_numpy(parts.y)
    rate, steps = min(1.0, settings["expected_batch"] / len(x)), settings["steps"]
    batch = round(rate * len(x))
    sigma, hidden = (
        _noise(budget, rate, steps, "prv" if audit else "rdp"),
        settings["hidden"] if settings["features"] == "hidden" else 0,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module: Any = GradSampleModule(_network(x.shape[1], 1 if parts.classes == 2 else parts.classes, hidden))
    lr = settings["rate"] / settings["clipping"] / (10 if hidden else 1)
    inner = torch.optim.SGD(module.parameters(), lr=lr, momentum=settings["momentum"])
    optimizer: Any = DPOptimizer(
        inner, noise_multiplier=sigma, max_grad_norm=settings["clipping"], expected_batch_size=batch
    )
    averaged = [torch.zeros_like(p) for p in module.parameters()]
    first, taken = steps - max(1, round(settings["average"] * steps)), 0
    for step in range(steps):
        inner.param_groups[0]["lr"] = lr * (1 - step / steps)
        drawn = torch.nonzero(torch.rand(len(x)) < rate)[:, 0]
        if len(drawn):
            optimizer.zero_grad()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                _loss(module(x[drawn]), y[drawn]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        if step >= first:
            taken += 1
            for mean, parameter in zip(averaged, module.parameters(), strict=True):
                mean += (parameter.detach() - mean) / taken
    with torch.no_grad():
        for mean, parameter in zip(averaged, module.parameters(), strict=True):
            parameter.copy_(mean)
    output = outputs(module, seen).numpy()
    seconds = time.process_time() - began
    spent = _spent(budget, sigma, rate, steps) if audit else None
    return output[:, 0] if parts.classes == 2 else output, Score(0.0, spent, seconds)


def _loss(output: Tensor, target: Tensor) -> Tensor:
    if output.shape[1] == 1:
        return F.binary_cross_entropy_with_logits(output[:, 0], target.float())
    return F.cross_entropy(output, target)

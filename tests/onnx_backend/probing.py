"""A quick attack on the bounds of every module that a case becomes, at the weights of the case, in float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

ROUNDING = 1e-9
EXAMPLES, STEPS = 3, 2


def exceeded(module: Any, example: Tensor | None) -> str:
    """Return which bound is exceeded, the empty string if none was; `example` are tokens, None for reals.

    Cotangents of the norm of the loss's constant are sent back from the output, first at random, then in the
    direction in which the output moves when the input follows its gradient: powers of the Jacobian.
    """
    module = module.double().eval()
    random = torch.Generator().manual_seed(0)
    for x in (example,) * EXAMPLES if example is not None else _inputs(module, random):
        found = _at(module, x, random)
        if found:
            return found
    return ""


def _inputs(module: Any, random: torch.Generator) -> Iterator[Tensor]:
    """Yield examples inside the ball, near its border and far from it, one of them with few entries."""
    for index in range(EXAMPLES):
        x = torch.randn(module.input_shape, generator=random, dtype=torch.float64)
        x = x * (torch.rand(x.shape, generator=random) < 0.3) if index == 1 else x
        yield x * (module.input_norm * (0.99, 0.5, 1e-2)[index] / x.norm().clamp_min(1e-9))


def _at(module: Any, x: Tensor, random: torch.Generator) -> str:
    limits, trained = module.bounds, {name: p for name, p in module.named_parameters() if p.requires_grad}
    start = x.clone().requires_grad_(x.is_floating_point())
    output = module(start[None])
    if not output.requires_grad:
        return ""
    wanted = [start] * start.requires_grad + list(trained.values())
    step = torch.randn(output.shape, generator=random, dtype=torch.float64)
    for _ in range(STEPS):
        cotangent = step * (module.loss_lipschitz / step.norm().clamp_min(1e-300))
        back = torch.autograd.grad(
            output, wanted, cotangent, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        slope = float(back[0].norm()) / module.loss_lipschitz if start.requires_grad else 0.0
        norms = {
            name: float(g.norm()) for name, g in zip(trained, back[len(wanted) - len(trained) :], strict=True)
        }
        if slope > module.lipschitz * (1 + ROUNDING):
            return f"the slope {slope:g} exceeds its bound {module.lipschitz:g}"
        over = [name for name, norm in norms.items() if not norm <= limits[name] * (1 + ROUNDING)]
        if over:
            return f"the gradient of {over[0]} exceeds its bound: {norms[over[0]]:g} > {limits[over[0]]:g}"
        step = _moved(module, start, back[0]) if start.requires_grad else torch.randn_like(step)
    return ""


def _moved(module: Any, x: Tensor, direction: Tensor) -> Tensor:
    step = direction * (1e-5 * module.input_norm / direction.norm().clamp_min(1e-300))
    with torch.no_grad():
        return torch.as_tensor(module((x + step)[None]) - module((x - step)[None]))

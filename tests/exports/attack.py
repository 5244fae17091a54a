"""An attack on the bounds of an emitted module at the weights that it was imported with.

It shares nothing with the compiler: true gradients of one example at a time, in float64, for many kinds of inputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# What rounding in float64 may add to a ratio of a gradient and its bound.
ROUNDING = 1e-9
STEPS = 3


@dataclass(frozen=True)
class Attained:
    """The largest shares of the bounds that were seen: of any parameter, of the whole gradient, of the slope."""

    parameter: float
    total: float
    slope: float

    @property
    def sound(self) -> bool:
        """Whether no bound was exceeded; a number that is not finite exceeds it."""
        return all(share <= 1 + ROUNDING for share in (self.parameter, self.total, self.slope))


def inputs(shape: tuple[int, ...], norm: float, count: int, seed: int) -> Iterator[Tensor]:
    """Yield examples inside the ball and beyond it, where the module clips: dense, sparse, flat, tiny, zero."""
    random = torch.Generator().manual_seed(seed)
    kinds = (_dense, _sparse, _flat, _signs, _one_slice)
    yield torch.zeros(shape, dtype=torch.float64)
    for index in range(count):
        x = kinds[index % len(kinds)](shape, random)
        radius = norm * (1, 1, 1, 0.3, 1e-3, 50)[index % 6]
        yield x * (radius / max(float(x.norm()), 1e-12))


def _dense(shape: tuple[int, ...], random: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=random, dtype=torch.float64)


def _sparse(shape: tuple[int, ...], random: torch.Generator) -> Tensor:
    x = torch.zeros(math.prod(shape), dtype=torch.float64)
    x[int(torch.randint(len(x), (1,), generator=random))] = 1
    return x.reshape(shape)


def _flat(shape: tuple[int, ...], random: torch.Generator) -> Tensor:
    return torch.randn(shape[0], *(1 for _ in shape[1:]), generator=random, dtype=torch.float64).expand(shape)


def _signs(shape: tuple[int, ...], random: torch.Generator) -> Tensor:
    return _dense(shape, random).sign()


def _one_slice(shape: tuple[int, ...], random: torch.Generator) -> Tensor:
    x = _dense(shape, random)
    return x * (torch.arange(shape[-1]) == int(torch.randint(shape[-1], (1,), generator=random)))


def attack(module: Any, count: int = 12, seed: int = 0) -> Attained:
    """Attack a module, which becomes float64, in evaluation mode; its targets are class indices."""
    module = module.double().eval()
    limits = _limits(module)
    random = torch.Generator().manual_seed(seed + 1)
    found = Attained(0.0, 0.0, 0.0)
    for index, x in enumerate(inputs(tuple(module.input_shape), module.input_norm, count, seed)):
        found = _larger(found, _of_weights(module, limits, x, _target(module, x, random)))
        found = _larger(found, Attained(0.0, 0.0, _slope(module, x, random)))
        if index % 4 == 1:
            for uphill, target in _ascent(module, x, random):
                found = _larger(found, _of_weights(module, limits, uphill, target))
    return found


def _larger(one: Attained, other: Attained) -> Attained:
    """Join what was seen; what is no number counts as infinite."""

    def joined(a: float, b: float) -> float:
        return math.inf if math.isnan(a) or math.isnan(b) else max(a, b)

    return Attained(
        joined(one.parameter, other.parameter), joined(one.total, other.total), joined(one.slope, other.slope)
    )


def _target(module: Any, x: Tensor, random: torch.Generator) -> Tensor:
    """Return the least likely class of each output, or any."""
    with torch.no_grad():
        logits = module(x[None])
    if int(torch.randint(2, (1,), generator=random)):
        return torch.as_tensor(logits.argmin(-1))
    return torch.randint(logits.shape[-1], logits.shape[:-1], generator=random)


def _gradient(module: Any, x: Tensor, y: Tensor, *, differentiable: bool = False) -> dict[str, Tensor]:
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    loss = module.per_example_loss(module(x[None]), y)[0]
    found = torch.autograd.grad(
        loss, list(trained.values()), allow_unused=True, materialize_grads=True, create_graph=differentiable
    )
    return dict(zip(trained, found, strict=True))


def _limits(module: Any) -> dict[str, float]:
    """Return the bounds that a module was emitted with, or those at its weights where these are smaller."""
    at_weights = module.gradient_bounds()
    return {name: min(bound, at_weights[name]) for name, bound in module.bounds.items()}


def _of_weights(module: Any, limits: Mapping[str, float], x: Tensor, y: Tensor) -> Attained:
    """Compare a gradient with its bounds."""
    norms = {name: float(g.norm()) for name, g in _gradient(module, x, y).items()}
    assert limits.keys() == norms.keys()
    shares = [_share(norm, limits[name]) for name, norm in norms.items()]
    return Attained(max(shares), _share(math.hypot(*norms.values()), math.hypot(*limits.values())), 0.0)


def _share(norm: float, bound: float) -> float:
    return norm / bound if bound > 0 else (0.0 if norm == 0 else math.inf)


def _slope(module: Any, x: Tensor, random: torch.Generator) -> float:
    """Return the share of the Lipschitz constant that is seen inside the ball, from near to far."""
    radius = min(float(x.norm()), module.input_norm) / max(float(x.norm()), 1e-12)
    x = x * radius
    other = _dense(tuple(x.shape), random)
    other = other * (module.input_norm / other.norm())
    with torch.no_grad():
        chord = float((module(x[None]) - module(other[None])).norm()) / float((x - other).norm())
    return float(max(_steepest(module, 0.999 * x, random), chord) / module.lipschitz)


def _steepest(module: Any, x: Tensor, random: torch.Generator) -> float:
    """Return the slope at a point along the steepest direction, found by powers of the Jacobian."""
    start = x.clone().requires_grad_()
    output = module(start[None])
    step, slope = _dense(tuple(output.shape), random), 0.0
    for _ in range(STEPS):
        cotangent = step / max(float(step.norm()), 1e-300)
        (back,) = torch.autograd.grad(output, start, cotangent, retain_graph=True)
        slope = max(slope, float(back.norm()))
        moved = back * (5e-5 * module.input_norm / max(float(back.norm()), 1e-300))
        with torch.no_grad():
            step = module((x + moved)[None]) - module((x - moved)[None])
    return slope


def _ascent(module: Any, x: Tensor, random: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """Go uphill with the input on the norm of the whole gradient."""
    for _ in range(STEPS):
        x = x.detach().requires_grad_()
        y = _target(module, x.detach(), random)
        squares = [(g**2).sum() for g in _gradient(module, x, y, differentiable=True).values()]
        (uphill,) = torch.autograd.grad(torch.stack(squares).sum(), x, allow_unused=True, materialize_grads=True)
        x = (x + module.input_norm * uphill / uphill.norm().clamp_min(1e-300)).detach()
        yield x, y

"""Where ascents of an audit start: random points, and points with the structure that bounds are attained at."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from ..certify.operators import Convolution, Operator
from .moves import Domain, unit
from .points import Point, Terrain

Start = Literal["identity", "smooth", "random", "corner"]

STARTS: tuple[Start, ...] = get_args(Start)
_NOISE = 0.05  # what structured starts get of a random one: no slope is exactly 0 there


def draw(terrain: Terrain, start: Start) -> Point:
    """Return a start.

    identity: weights that hand on equal entries, kernels by as many taps as their stride; an example of such.
    smooth: kernels of equal taps, orthogonal weights, an example of equal entries.
    random: everything random.
    corner: as identity, with the first tap of a kernel; an example that is random.
    """
    domains, generator = terrain.domains, terrain.generator
    parameters = dict(terrain.module.named_parameters())
    weights = {name: _weight(domains[name], tuple(p.shape), start, generator) for name, p in parameters.items()}
    x = _example(terrain, start)
    mask = int(torch.randint(2**31, (), generator=generator))
    with torch.no_grad():
        output = terrain.output(Point(x, torch.zeros(()), weights, mask))
    return Point(x, next(terrain.targets(output, 1)), weights, mask)


def _normal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def _example(terrain: Terrain, start: Start) -> Tensor:
    shape, generator = (1, *terrain.module.input_shape), terrain.generator
    entries = terrain.admissible.vocabulary
    if entries is not None:
        free = start in ("random", "corner")
        return torch.randint(entries, shape if free else (1,), generator=generator).expand(shape).clone()
    equal = unit(torch.ones(shape, dtype=torch.float64))
    noise = unit(_normal(shape, generator))
    return terrain.bounded_input(noise if start in ("random", "corner") else equal + _NOISE * noise)


def _weight(domain: Domain, shape: tuple[int, ...], start: Start, generator: torch.Generator) -> Tensor:
    noise = _normal(shape, generator)
    if len(shape) < 2:
        return domain.into(unit(noise if start == "random" else 1 + _NOISE * noise))
    pattern = _PATTERNS[start](shape, noise, domain.operator)
    return domain.into(_spread(pattern, shape) + _NOISE * _spread(noise, shape))


def _spread(weight: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return ``weight`` at the Frobenius norm of an orthogonal matrix of its size."""
    return math.sqrt(min(shape[:2])) * unit(weight)


def _diagonal(shape: tuple[int, ...], taps: tuple[slice, ...]) -> Tensor:
    """Return channel i to channel i, through the same taps."""
    rows, columns = shape[:2]
    weight = torch.zeros(shape, dtype=torch.float64)
    for entry in range(max(rows, columns)):
        weight[entry % rows, entry % columns][taps] = 1.0
    return weight


def _identity(shape: tuple[int, ...], _: Tensor, operator: Operator) -> Tensor:
    if not isinstance(operator, Convolution):
        return _diagonal(shape, tuple(slice(k // 2, k // 2 + 1) for k in shape[2:]))
    firsts = [low // d for (low, _), d in zip(operator.padding, operator.dilation, strict=True)]
    return _diagonal(shape, tuple(slice(t, t + s) for t, s in zip(firsts, operator.stride, strict=True)))


def _corner(shape: tuple[int, ...], _: Tensor, __: Operator) -> Tensor:
    return _diagonal(shape, tuple(slice(1) for _ in shape[2:]))


def _smooth(shape: tuple[int, ...], noise: Tensor, _: Operator) -> Tensor:
    matrix = noise.flatten(2).select(2, 0) if len(shape) > 2 else noise
    return _orthogonal(matrix).reshape(*shape[:2], *(1,) * len(shape[2:])).expand(shape)


def _random(shape: tuple[int, ...], noise: Tensor, _: Operator) -> Tensor:
    return _orthogonal(noise.flatten(1)).reshape(shape)


def _orthogonal(matrix: Tensor) -> Tensor:
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    product: Tensor = left @ right
    return product


_PATTERNS = {"identity": _identity, "smooth": _smooth, "random": _random, "corner": _corner}

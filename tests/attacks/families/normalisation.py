"""Attacks of centring and of norms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from lipcompile.core.record import Shape
from lipcompile.ops.normalisation.local_response import LocalResponse
from lipcompile.ops.normalisation.rules import Center, GroupNorm, InstanceNorm, OverAxes

from ..draw import Draw, Drawn
from ..family import Attack, Witness, unary
from ..harness import unit
from ..points import normal
from ..witness import HALF, at

# Groups, by definition


def _all(_: Any, rank: int) -> Sequence[int]:
    return range(rank)


def _given(attributes: Any, rank: int) -> Sequence[int]:
    return [axis % rank for axis in attributes.axes] or range(rank)


def _spatial(_: Any, rank: int) -> Sequence[int]:
    return range(1, rank)


def groups(attributes: Any, shape: Shape) -> Tensor:
    """The flat indices of the entries of each group, [groups, n], in the order of the example."""
    entries = torch.arange(torch.Size(shape).numel())
    if isinstance(attributes, GroupNorm):
        return entries.reshape(attributes.groups, -1)
    axes = (_spatial if isinstance(attributes, InstanceNorm) else _given)(attributes, len(shape))
    grid = entries.reshape(shape).permute([a for a in range(len(shape)) if a not in axes] + sorted(axes))
    return grid.reshape(-1, torch.Size(shape[axis] for axis in axes).numel())


def by_group(attributes: Any, x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply a function to each group."""
    index, flat = groups(attributes, tuple(x.shape)), x.reshape(-1)
    results = torch.cat([function(flat[group]) for group in index])
    return results[torch.argsort(index.reshape(-1))].reshape(x.shape)


def centred(values: Tensor) -> Tensor:
    return values - values.sum() / len(values)


def divided(attributes: Any, values: Tensor) -> Tensor:
    """Divide by max(floor, root mean square), or by √(mean square + ε)."""
    square = (values**2).sum() / len(values)
    if attributes.eps is not None:
        return values / torch.sqrt(square + float(attributes.eps))
    floor = float(attributes.floor)
    return values / torch.sqrt(square) if square.item() > floor**2 else values / floor


def center(attributes: Any, x: Tensor) -> Tensor:
    return by_group(attributes, x, centred)


def norm(attributes: Any, x: Tensor) -> Tensor:
    return by_group(attributes, x, lambda values: divided(attributes, centred(values)))


def rms_norm(attributes: Any, x: Tensor) -> Tensor:
    return by_group(attributes, x, lambda values: divided(attributes, values))


def local_response(a: Any, x: Tensor) -> Tensor:
    """torch's window: size//2 channels before, (size-1)//2 behind."""
    made = []
    for channel, values in enumerate(x):
        window = x[max(0, channel - a.size // 2) : channel + (a.size - 1) // 2 + 1]
        mean = (window**2).sum(dim=0) / a.size
        made.append(values / (float(a.k) + float(a.alpha) * mean) ** float(a.beta))
    return torch.stack(made)


# Uses


def _floor(draw: Draw) -> dict[str, Fraction]:
    return {draw.rng.choice(("floor", "eps")): draw.fraction()}


def _axes(draw: Draw, rank: int) -> tuple[int, ...]:
    return tuple(draw.rng.sample(range(-rank, 0), draw.rng.randint(1, rank)))


def _center(draw: Draw) -> Drawn:
    shape = draw.any_shape()
    return Center(draw.rng.choice(((), _axes(draw, len(shape))))), [shape], {}


def _over_axes(draw: Draw) -> Drawn:
    shape = draw.any_shape()
    return OverAxes(axes=_axes(draw, len(shape)), **_floor(draw)), [shape], {}


def _group_norm(draw: Draw) -> Drawn:
    count, shape = draw.rng.randint(1, 3), draw.any_shape()
    return GroupNorm(count, **_floor(draw)), [(count * shape[0], *shape[1:])], {}


def _instance_norm(draw: Draw) -> Drawn:
    return InstanceNorm(**_floor(draw)), [draw.shape(draw.rng.randint(2, 3))], {}


def _local_response(draw: Draw) -> Drawn:
    beta = Fraction(draw.rng.randint(0, 8), 8)
    attributes = LocalResponse(draw.rng.randint(1, 5), draw.fraction(), beta, draw.fraction())
    return attributes, [(draw.rng.randint(1, 6), *draw.shape(1, 3))], {}


# Witnesses

# Along which a centred entry is largest; an entry against opposite ones; a centred pair; a single entry.
_FORMS: Mapping[str, Callable[[int], list[float]]] = {
    "spike": lambda n: [1 - 1 / n] + [-1 / n] * (n - 1),
    "against": lambda n: [1.0] + [-1.0] * (n - 1),
    "pair": lambda n: [1.0, -1.0] + [0.0] * (n - 2),
    "single": lambda n: [1.0] + [0.0] * (n - 1),
}


def _formed(attributes: Any, shape: Shape, form: str, *, everywhere: bool) -> Tensor:
    """The form in the first group, or in all of them."""
    index = groups(attributes, shape)
    x = torch.zeros(index.numel(), dtype=torch.float64)
    for group in index if everywhere else index[:1]:
        x[group] = torch.tensor(_FORMS[form](len(group)), dtype=torch.float64)
    return x.reshape(shape)


def _points(attributes: Any, shape: Shape) -> list[Tensor]:
    forms = [_formed(attributes, shape, form, everywhere=e) for form in _FORMS for e in (False, True)]
    full = by_group(attributes, normal(shape, torch.Generator().manual_seed(0)), lambda v: unit(centred(v)))
    return [*forms, full]


def _witnesses(op: str, uses: Sequence[tuple[Any, Shape]], scales: Sequence[float]) -> list[Witness]:
    return [
        at(op, attributes, scale * x)
        for attributes, shape in uses
        for x in _points(attributes, shape)
        for scale in scales
    ]


def _norm_witnesses(
    op: str, make: Callable[..., Any], uses: Sequence[tuple[dict[str, Any], Shape]]
) -> list[Witness]:
    """Deviations far below the floor, and far above: groups within rows, across rows, and of whole rows."""
    floors = ({"floor": HALF}, {"eps": Fraction(1, 16)})
    chosen = [(make(**arguments, **floor), shape) for arguments, shape in uses for floor in floors]
    return _witnesses(op, chosen, (1e-3, 1e3))


_OVER_AXES: list[tuple[dict[str, Any], Shape]] = [
    ({}, (2, 4)),
    ({"axes": (0,)}, (4, 3)),
    ({"axes": (0, 1)}, (2, 3)),
]


def _local_response_witnesses() -> list[Witness]:
    uses = [LocalResponse(5, Fraction(1), k=k) for k in (Fraction(1), Fraction(2))]
    xs = [_formed(Center(), (8, 2), form, everywhere=True) for form in ("single", "pair")]
    return [at("lrn", attributes, 1e-4 * x) for attributes in uses for x in xs]


ATTACKS: Mapping[str, Attack] = {
    "center": Attack(
        _center,
        unary(center),
        lambda: _witnesses(
            "center", [(Center((-1,)), (2, 4)), (Center((0,)), (4, 3)), (Center(), (2, 3))], (1.0,)
        ),
    ),
    "layer_norm": Attack(_over_axes, unary(norm), lambda: _norm_witnesses("layer_norm", OverAxes, _OVER_AXES)),
    "group_norm": Attack(
        _group_norm,
        unary(norm),
        lambda: _norm_witnesses(
            "group_norm", GroupNorm, [({"groups": 2}, (8,)), ({"groups": 2}, (8, 1)), ({"groups": 1}, (2, 3))]
        ),
    ),
    "instance_norm": Attack(
        _instance_norm,
        unary(norm),
        lambda: _norm_witnesses("instance_norm", InstanceNorm, [({}, (2, 4)), ({}, (2, 4, 1)), ({}, (2, 2, 3))]),
    ),
    "rms_norm": Attack(_over_axes, unary(rms_norm), lambda: _norm_witnesses("rms_norm", OverAxes, _OVER_AXES)),
    "lrn": Attack(_local_response, unary(local_response), _local_response_witnesses),
}

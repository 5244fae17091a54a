"""What an attack needs to know of an op: how to draw uses, what it computes, where its rules are attained."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from lipcompile.core.record import Site

from .draw import Instance
from .harness import Case, Point

Tensors = Sequence[Tensor]
Theta = Mapping[str, Tensor]
Oracle = Callable[[Site[Any], Tensors, Theta], Tensor]
Witness = tuple[Case, Point]


@dataclass(frozen=True)
class Attack:
    """instance: a random use. oracle: the op on one example, from its definition, with no code of the compiler or
    the runtime. witnesses: uses, inputs and weights on which each constant of the op's rules is attained.
    """

    instance: Instance
    oracle: Oracle
    witnesses: Callable[[], list[Witness]]


def unary(function: Callable[[Any, Tensor], Tensor]) -> Oracle:
    """The oracle of an op of one operand without parameters, from its attributes and the operand."""
    return lambda site, xs, _: function(site.attributes, xs[0])


def split_axis(x: Tensor, axis: int, sizes: Sequence[int]) -> Tensor:
    """Return `x` with one axis split into several."""
    return x.reshape(*x.shape[:axis], *sizes, *x.shape[axis + 1 :])


def windows(x: Tensor, attributes: Any, fill: float = 0.0, mode: str = "zeros") -> Tensor:
    """Gather [channels, *outputs, *kernel] from [channels, *sizes]."""
    axes = zip(attributes.kernel, attributes.stride, attributes.dilation, attributes.padding, strict=True)
    for axis, (kernel, stride, dilation, (low, high)) in enumerate(axes, start=1):
        size = x.shape[axis]
        outputs = range((size + low + high - dilation * (kernel - 1) - 1) // stride + 1)
        entries = torch.tensor([o * stride + t * dilation - low for o in outputs for t in range(kernel)])
        if mode != "zeros":
            line = torch.arange(size, dtype=torch.float64)[None, None]
            entries = F.pad(line, (low, high), mode)[0, 0].long()[entries + low]
        else:
            before, after = list(x.shape), list(x.shape)
            before[axis], after[axis] = low, high
            x = torch.cat((x.new_full(before, fill), x, x.new_full(after, fill)), dim=axis)
            entries = entries + low
        x = split_axis(x.index_select(axis, entries), axis, (len(outputs), kernel)).movedim(axis + 1, -1)
    return x


def feature_axis(attributes: Any, x: Tensor) -> int:
    default = -1 if x.dim() <= 2 else 0
    return int((default if attributes.axis is None else attributes.axis) % x.dim())

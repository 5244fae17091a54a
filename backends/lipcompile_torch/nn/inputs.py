"""What a network is called with: one input or several, which may become one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import Any

import torch
from torch import Tensor


def joined(
    parts: Mapping[str, tuple[int, ...]],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    tokens: bool,
    views: bool = False,
) -> Tensor:
    """Return the entries [B, n] of inputs [B, *shape], in the order of `parts`; [B, V, n] of views.

    Args:
        parts: name and shape of each input of one example.
        args, kwargs: the inputs by position, then by name; or all of them in one mapping.
        tokens: inputs are whole numbers, or truth values; the entries are of type int64.
        views: inputs have an axis of views behind that of the batch.

    Raises:
        TypeError: an input is missing, given twice, or unknown; or no tensor.
        ValueError: another shape, batches of different sizes, another kind of numbers, or whole numbers that the
            real ones beside them round.

    Formal guarantees: row i is made of row i of each input.
    """
    if not kwargs and len(args) == 1 and isinstance(args[0], Mapping):
        (kwargs,), args = args, ()
    given = dict(zip(parts, args, strict=False))
    if len(args) > len(parts) or given.keys() & kwargs.keys() or {*given, *kwargs} != {*parts}:
        raise TypeError(f"the inputs are {', '.join(parts)}, in this order or by name; got {_told(args, kwargs)}")
    given |= kwargs
    leading = 2 if views else 1
    rows, sizes = [], {}
    mixed = any(isinstance(x, Tensor) and x.is_floating_point() for x in given.values())
    for name, shape in parts.items():
        x = given[name]
        if not isinstance(x, Tensor):
            raise TypeError(f"`{name}` is no tensor, but of type {type(x).__name__}")
        if x.dim() != leading + len(shape) or tuple(x.shape[leading:]) != shape:
            expected = ", ".join(map(str, ("B", "V", *shape) if views else ("B", *shape)))
            raise ValueError(f"expected `{name}` of shape [{expected}], got {tuple(x.shape)}")
        if tokens and (x.is_floating_point() or x.is_complex()):
            raise ValueError(f"expected `{name}` as tokens of an integer dtype, got {x.dtype}")
        # Else joining would convert it unasked; categories beside real numbers are meant to be.
        if not tokens and not x.is_floating_point() and (x.dtype == torch.uint8 or not mixed):
            raise ValueError(f"expected `{name}` as floating point numbers, got {x.dtype}: convert and scale it")
        sizes[name] = x.shape[:leading]
        # The size is said, since of an empty batch it cannot be inferred.
        rows.append((x.long() if tokens else x).reshape(*sizes[name], prod(shape)))
    if len({*sizes.values()}) > 1:
        shown = ", ".join(f"{name} {' × '.join(map(str, size))}" for name, size in sizes.items())
        raise ValueError(f"the inputs have batches of different sizes: {shown}")
    return torch.cat(rows if tokens else _of_one_kind(parts, rows), leading)


def _of_one_kind(names: Iterable[str], rows: Sequence[Tensor]) -> list[Tensor]:
    """Return inputs as they are, or whole numbers beside real ones as real numbers.

    Raises:
        ValueError: the real numbers do not hold one of the whole numbers, which would become another.
    """
    kind = reduce(torch.promote_types, (row.dtype for row in rows))
    for name, row in zip(names, rows, strict=True):
        if not row.is_floating_point() and bool((row.to(kind).to(row.dtype) != row).any()):
            raise ValueError(f"`{name}` holds whole numbers that {kind} rounds: give the real inputs as float32")
    return [row.to(kind) for row in rows]


def _told(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    kinds = [f"{len(args)} by position"] if all(isinstance(x, Tensor) for x in args) else [_kinds(args)]
    return ", ".join([*kinds * bool(args), *kwargs]) or "nothing"


def _kinds(args: Sequence[Any]) -> str:
    return f"{len(args)} by position ({', '.join(type(x).__name__ for x in args)})"


@dataclass(frozen=True, slots=True)
class Given:
    """What a module is called with: tensors [B, V, …], or a row for each view [B·V, …]; V is 1 without views."""

    args: tuple[Tensor, ...]
    kwargs: dict[str, Tensor]

    @staticmethod
    def of(inputs: Tensor | Sequence[Tensor] | Mapping[str, Tensor], *, views: bool) -> Given:
        """Return one input or several, by position or by name; raises ValueError if they do not fit."""
        if isinstance(inputs, Mapping):
            found = Given((), dict(inputs))
        else:
            found = Given((inputs,) if isinstance(inputs, Tensor) else tuple(inputs), {})
        shapes = ", ".join(str(list(x.shape)) for x in found.tensors()) or "nothing"  # as they were given
        found = found if views else found.each(lambda x: x[:, None])
        sizes = {tuple(x.shape[:2]) for x in found.tensors()}
        if len(sizes) != 1 or len(size := sizes.pop()) < 2 or not size[1]:
            expected = "views [B, V, …]" if views else "inputs [B, …]"
            raise ValueError(f"expected {expected} of one B, got {shapes}")
        return found

    def each(self, function: Callable[[Tensor], Tensor]) -> Given:
        """Return what a function makes of each tensor."""
        return Given(tuple(map(function, self.args)), {name: function(x) for name, x in self.kwargs.items()})

    def tensors(self) -> tuple[Tensor, ...]:
        """Return the inputs without their names."""
        return (*self.args, *self.kwargs.values())

    def __len__(self) -> int:
        return len(self.tensors()[0])

    @property
    def views(self) -> int:
        """V."""
        return int(self.tensors()[0].shape[1])

    def __getitem__(self, chunk: slice) -> Given:
        return self.each(lambda x: x[chunk])

    def rows(self) -> Given:
        """Return a row for each view."""
        return self.each(lambda x: x.flatten(0, 1))

    def rolled(self) -> Given:
        """Return each row in the place behind its own."""
        return self.each(lambda x: x.roll(1, 0))

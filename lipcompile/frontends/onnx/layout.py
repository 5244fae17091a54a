"""Where the batch stands among the axes of a tensor, and what reshapes and permutations make of it.

The importer sees the tensors of one example. In the file, each has one axis more: usually the first. Exporters
also move it (sequences before the batch, as recurrent layers want them) and merge it with its neighbours (the
heads of an attention, the tokens before a linear layer). A `Layout` tells exactly where it is, so that an
operator that would mix examples is known from one that merely counts its axes differently.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeVar

from lipcompile.core.graph import Value
from lipcompile.core.record import Shape
from lipcompile.diagnostics import Refusal
from lipcompile.frontends.onnx.sizes import BATCH, multiple, shown

T = TypeVar("T")

MIXES = "keep the batch axis apart from the other axes, so that no output depends on two examples"


@dataclass(frozen=True, slots=True)
class Layout:
    """The batch stands before axis `axis` of the example.

    outer, inner: it is one axis with the axis before it, with that behind it, in row-major order.
    """

    axis: int = 0
    outer: bool = False
    inner: bool = False

    @property
    def place(self) -> int:
        """The file's axis that is, or contains, the batch."""
        return self.axis - self.outer

    def rank(self, example: Shape) -> int:
        """Number of axes in the file."""
        return len(example) + 1 - self.outer - self.inner

    def of_example(self, axis: int) -> int:
        """Return the example's axis of an axis of the file other than `place`."""
        return axis if axis < self.place else axis + self.outer + self.inner - 1

    def sizes(self, example: Shape) -> tuple[int, ...]:
        """Return the sizes in the file, the batch's as a formal number."""
        merged = prod(example[self.place : self.axis + self.inner])
        return (*example[: self.place], merged * BATCH, *example[self.axis + self.inner :])


FIRST = Layout()
IN_FIRST = Layout(inner=True)


@dataclass(frozen=True, slots=True)
class Placed:
    """A tensor of one example whose batch is not the first axis of the file's tensor."""

    value: Value
    layout: Layout


def placed(value: Value, layout: Layout) -> Placed | Value:
    """Return a tensor with its layout, where that is not the usual one."""
    return value if layout == FIRST or value.shape is None else Placed(value, layout)


def unplaced(item: T | Placed) -> T | Value:
    """Return the tensor of one example, wherever its batch stands; any other item as it is."""
    return item.value if isinstance(item, Placed) else item


def reshaped(layout: Layout, example: Shape, target: Sequence[int], batch: int | None) -> tuple[Shape, Layout]:
    """Return the example's new shape and the new layout; raises Refusal if entries of examples would mix.

    `target` may hold one -1, no zeros. The entries of a tensor are, in order: P·B·S with P those before the batch.
    An axis of size m·B, behind axes of C entries in all, holds the batch in the middle if P = C·o and o divides m:
    then it is o·B·(m/o).
    """
    before, found = prod(example[: layout.axis]), _readings(target, prod(example), batch)
    if batch == 1 and found:
        return _alone(before, target, prod(example))
    for place, sizes in found:
        front, factor = prod(sizes[:place]), sizes[place]
        if before % front == 0 and factor % (before // front) == 0:
            outer, inner = before // front, factor * front // before
            parts = [size for size in (outer, inner) if size > 1]
            shape = (*sizes[:place], *parts, *sizes[place + 1 :])
            return shape, Layout(place + (outer > 1), outer > 1, inner > 1)
    listed = f"{shown(layout.sizes(example))} to {shown(target)}"
    if not found and (batch is not None or any(map(multiple, target))):
        raise Refusal("LIP102", f"the entries do not fit: reshaping {listed}")
    raise Refusal("LIP108", f"reshaping {listed} merges or moves the batch axis", MIXES)


def _alone(before: int, target: Sequence[int], entries: int) -> tuple[Shape, Layout]:
    """Return the shape and the layout for a batch of one, which may be thought of anywhere.

    Best is an axis of its own, with as many entries before it as there were; else it is part of the first.
    """
    full = _filled([multiple(size) or size for size in target], entries)
    assert full is not None
    own = [axis for axis, size in enumerate(full) if size == 1]
    if not own:
        return full, IN_FIRST
    place = next((axis for axis in own if prod(full[:axis]) == before), own[0])
    return (*full[:place], *full[place + 1 :]), Layout(place)


def _readings(target: Sequence[int], entries: int, batch: int | None) -> list[tuple[int, Shape]]:
    """Return every (place, sizes): the axis that may hold the batch and all sizes, its own divided by the batch's.

    The likeliest come first: a size that the file computes from the batch, an axis that is the batch alone.
    """
    formal = [axis for axis, size in enumerate(target) if multiple(size)]
    plain = [multiple(size) or size for size in target]
    if formal:
        found = [(formal[0], _filled(plain, entries))] if len(formal) == 1 else []
    elif batch is None:
        place = plain.index(-1) if -1 in plain else -1
        found = [(place, _filled(plain, entries))] if place >= 0 else []
    else:
        full = _filled(plain, entries * batch) or ()
        places = sorted(
            (axis for axis, size in enumerate(full) if size % batch == 0), key=lambda a: full[a] != batch
        )
        found = [(place, (*full[:place], full[place] // batch, *full[place + 1 :])) for place in places]
    return [(place, sizes) for place, sizes in found if sizes is not None]


def _filled(sizes: Sequence[int], entries: int) -> Shape | None:
    """Return the sizes with -1 replaced by what remains, None if they do not hold this number of entries."""
    known, open_axes = prod(size for size in sizes if size != -1), list(sizes).count(-1)
    if known < 1 or any(size < 1 and size != -1 for size in sizes) or open_axes > 1:
        return None
    if entries % known if open_axes else entries != known:
        return None
    return tuple(entries // known if size == -1 else size for size in sizes)


def permuted(layout: Layout, order: Sequence[int], batch: int | None) -> tuple[list[int], Layout]:
    """Return the permutation of the example's axes and the new layout; a batch of one stays part of the first."""
    axes: list[int] = []
    place = 0
    for axis in order:
        if axis == layout.place:
            axes += [layout.place] * layout.outer
            place = len(axes)
            axes += [layout.axis] * layout.inner
        else:
            axes.append(layout.of_example(axis))
    if batch == 1 and layout == IN_FIRST:
        return axes, layout
    return axes, Layout(place, layout.outer, layout.inner)

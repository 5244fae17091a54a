"""How a part of a tensor that is written over becomes a concatenation: torch's exporter scatters its entries.

It also lets runtimes find the axes of size 1, of which a batch of one is one more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lipcompile.ops.recurrent.torch_read import operators

_ENDLESS = 2**31 - 1


def translations() -> Mapping[Callable[..., Any], Callable[..., Any]]:
    """Return what translates writing over parts, by the operator."""
    import torch

    aten = torch.ops.aten
    return {
        aten.slice_scatter.default: _slice,
        aten.select_scatter.default: _select,
        aten.squeeze.default: _squeezed,
        aten.squeeze.dim: _squeezed_along,
        aten.squeeze.dims: _squeezed_along,
    }


def _squeezed(self: Any) -> Any:
    """Translate `squeeze(self)`: the batch, whose size is unknown, keeps its axis."""
    axes = [axis for axis, size in enumerate(self.shape) if size == 1]
    return operators().Squeeze(self, axes) if axes else operators().Identity(self)


def _squeezed_along(self: Any, dim: int | list[int]) -> Any:
    """Translate `squeeze(self, dim)`, which keeps axes of other sizes than 1."""
    axes = [
        axis for axis in ([dim] if isinstance(dim, int) else dim) if self.shape and _may_be_one(self.shape[axis])
    ]
    return operators().Squeeze(self, axes) if axes else operators().Identity(self)


def _may_be_one(size: Any) -> bool:
    """Whether an axis has one entry, or as many as the batch, of which the importer says what it means."""
    return not isinstance(size, int) or size == 1


def _slice(
    self: Any, src: Any, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Any:
    """Translate `slice_scatter(self, src, dim, start, end, step)`."""
    if not start and (end is None or end >= _ENDLESS) and step == 1:
        return operators().Identity(src)
    size = self.shape[dim]
    if not isinstance(size, int):  # the batch: slices of it are refused as such
        return _between(self, src, dim, start or 0, _ENDLESS if end is None else end)
    places = range(size)[start:end:step]
    if step == 1 and places:
        return _between(self, src, dim, places[0], places[-1] + 1)
    order = [size + places.index(place) if place in places else place for place in range(size)]
    return operators().Gather(operators().Concat(self, src, axis=dim), order, axis=dim)


def _select(self: Any, src: Any, dim: int, index: int) -> Any:
    """Translate `select_scatter(self, src, dim, index)`."""
    stop = index + 1 if index != -1 else _ENDLESS
    return _slice(self, operators().Unsqueeze(src, [dim]), dim, index, stop)


def _between(whole: Any, part: Any, axis: int, start: int, stop: int) -> Any:
    """Put a part where the entries from `start` to `stop` of an axis were."""
    op, size = operators(), whole.shape[axis]
    before = [op.Slice(whole, [0], [start], [axis])] if start else []
    after = [op.Slice(whole, [stop], [_ENDLESS], [axis])] if not isinstance(size, int) or stop < size else []
    pieces = [*before, part, *after]
    return op.Concat(*pieces, axis=axis) if len(pieces) > 1 else op.Identity(part)

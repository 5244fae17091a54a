"""Texts that torch packs by their lengths: recurrent layers read them padded, and each ends at its length.

Packed texts are in an order and of sizes that depend on the numbers of all of them, which no trace can follow.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn, Self
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import Module, RNNBase
from torch.nn.functional import dropout, pad
from torch.nn.utils import rnn

from lipcompile.diagnostics import Location
from lipcompile.frontends.torch.find import caller
from lipcompile.frontends.torch.untraceable import untraceable


@dataclass(frozen=True, slots=True)
class _Packed:
    """Texts [B, T, width] and their lengths [B]; what stands behind the end of a text is never read."""

    rows: Tensor
    lengths: Tensor

    def __getitem__(self, _: Any) -> NoReturn:
        message = "packed texts are read by something else than a recurrent layer: their order is that of lengths"
        raise untraceable("LIP110", message, "compute with the padded texts, before or behind", caller())

    data = batch_sizes = sorted_indices = unsorted_indices = property(lambda self: self[0])


@dataclass(slots=True)
class Longer:
    """All texts are as long as can be, and `rows` of padding follow where no total_length says how many.

    places: where that was.
    """

    rows: int
    places: list[Location | None] = field(default_factory=list)


@contextmanager
def padded_to_lengths(module: Module, longer: Longer | None = None) -> Iterator[None]:
    """Let texts stay padded meanwhile where a module packs them: in its own code, and in that of its parts."""
    instead: dict[Any, Any] = {rnn.pack_padded_sequence: _packed, rnn.pad_packed_sequence: _unpacked}
    if longer is not None:
        instead = {function: partial(other, longer=longer) for function, other in instead.items()}
    parts = [*module.modules()]
    homes = {kind.__module__ for part in parts for kind in type(part).__mro__} | {rnn.__name__}
    with ExitStack() as stack:
        for home in (vars(sys.modules[name]) for name in homes if name in sys.modules):
            found = {name: instead[value] for name, value in home.items() if _is_among(value, instead)}
            stack.enter_context(patch.dict(home, found))
        for part in parts:
            if isinstance(part, RNNBase):
                stack.enter_context(patch.object(part, "forward", partial(_forward, part, part.forward)))
        yield


def _is_among(value: Any, functions: Any) -> bool:
    return any(value is function for function in functions)


def _packed(
    input: Tensor,  # noqa: A002
    lengths: Any,
    batch_first: bool = False,
    enforce_sorted: bool = True,  # noqa: ARG001
    longer: Longer | None = None,
) -> _Packed:
    """Do what `pack_padded_sequence` does."""
    rows, given = input if batch_first else input.transpose(0, 1), torch.as_tensor(lengths)
    return _Packed(rows, given if longer is None else torch.full_like(given, rows.shape[1]))


def _unpacked(
    sequence: _Packed,
    batch_first: bool = False,
    padding_value: float = 0.0,
    total_length: int | None = None,
    longer: Longer | None = None,
) -> tuple[Tensor, Tensor]:
    """Do what `pad_packed_sequence` does for a batch of which one text is as long as can be."""
    rows = sequence.rows
    if total_length is None and longer is not None:
        longer.places.append(caller())
        total_length = rows.shape[1] + longer.rows
    if total_length is not None:
        rows = pad(rows, (0, 0, 0, total_length - rows.shape[1]))
    there = (torch.arange(rows.shape[1]) < sequence.lengths.unsqueeze(1)).unsqueeze(2)
    filled = torch.where(there, rows, padding_value)
    return filled if batch_first else filled.transpose(0, 1), sequence.lengths


def _forward(layer: RNNBase, own: Callable[..., Any], given: Any, hx: Any = None) -> Any:
    """Do what a recurrent layer does: backward it begins at the end of each text."""
    if not isinstance(given, _Packed):
        return own(given, hx)
    rows, last = given.rows, (given.lengths - 1).unsqueeze(1)
    places = torch.arange(rows.shape[1])
    turned = (places.unsqueeze(1) + places == last.unsqueeze(2)).to(rows.dtype)
    there = (places <= last).unsqueeze(2).to(rows.dtype)
    ends = (places == last).unsqueeze(1).to(rows.dtype)
    states, directions = list[Tensor](), 2 if layer.bidirectional else 1
    for place, weights in enumerate(layer.all_weights):
        if place % directions == 0:
            outputs, inputs = list[Tensor](), rows
        made = _one_direction(layer, place, weights, turned @ inputs if place % directions else inputs, hx)
        states.append((ends @ made).squeeze(1))
        outputs.append(turned @ made if place % directions else made * there)
        rows = torch.cat(outputs, -1)
        if len(outputs) == directions and place + 1 < len(layer.all_weights):
            rows = dropout(rows, layer.dropout, layer.training)
    state = torch.stack(states)
    return _Packed(rows, given.lengths), ((state, _Cells()) if layer.mode == "LSTM" else state)


def _one_direction(layer: RNNBase, place: int, weights: Any, rows: Tensor, hx: Any) -> Tensor:
    """Return the states of one direction of one layer."""
    if hx is None:
        zeros = torch.zeros(1, rows.shape[0], layer.hidden_size, dtype=rows.dtype)
        own: Any = (zeros, zeros) if layer.mode == "LSTM" else zeros
    else:
        own = tuple(one[place : place + 1] for one in hx) if layer.mode == "LSTM" else hx[place : place + 1]
    run = getattr(torch, layer.mode.lower())
    made: Tensor = run(rows, own, weights, layer.bias, 1, 0.0, layer.training, False, True)[0]
    return made


# They move numbers, and compute nothing of them.
_MOVES = ("contiguous", "permute", "reshape", "squeeze", "transpose", "unsqueeze", "view")


class _Cells:
    """The cells of an LSTM at the ends of texts, which are not known: only the states of all steps are.

    They may be moved, as by modules that sort texts by their lengths and back; nothing may be computed of them.
    """

    def __getattr__(self, name: str) -> Any:
        if name in _MOVES:
            return lambda *_, **__: self
        raise untraceable(
            "LIP110",
            "the cell of an LSTM at the end of a packed text is not yet supported",
            "use the state h of (h, c), or a GRU",
            None,
        )

    def __getitem__(self, _: Any) -> Self:
        return self

    def __iter__(self) -> Any:
        return self.__getattr__("unbind")

    @classmethod
    def __torch_function__(cls, function: Any, *_: Any) -> Any:
        return getattr(cls(), function.__name__)()

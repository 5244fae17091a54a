"""Texts that a module packs by their lengths: each recurrent layer ends, or begins backward, where a text ends.

Oracle: the module itself, by torch alone, as in `test_computed_parameters`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import lipcompile
from lipcompile import InputError
from tests.frontends.torch.test_computed_parameters import held_to_torch, private
from tests.nights import by_day

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:the output does not depend on")]
# Numbers of words: 5, 3, 1 and 4. Words within a text, and behind its end, are 0 as well.
TEXTS = torch.tensor([[3, 5, 0, 1, 5], [4, 1, 7, 0, 0], [8, 0, 0, 0, 0], [2, 0, 3, 1, 0]])


def lengths_of(x: Tensor) -> Tensor:
    """Return how many words a text has: up to the last that is not 0, and at least 1."""
    return ((x != 0) * torch.arange(1, 6)).amax(1).clamp(min=1)


class Packed(nn.Module):
    """A recurrent layer of packed texts, and a layer of its states at all steps and at the ends."""

    def __init__(
        self,
        kind: Callable[..., nn.Module],
        layers: int = 1,
        both: bool = True,
        first: bool = True,
        lengths: Callable[[Tensor], Tensor] = lengths_of,
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.lengths, self.words = first, lengths, nn.Embedding(10, 3)
        self.cell = kind(3, 2, layers, bias=False, batch_first=first, bidirectional=both)
        self.head = nn.Linear(2 * (1 + both) * 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        rows, lengths = self.words(x if self.first else x.t()), self.lengths(x).cpu()
        packed = pack_padded_sequence(rows, lengths, self.first, enforce_sorted=False)
        packed, state = self.cell(packed)
        states, counted = pad_packed_sequence(packed, self.first, padding_value=-0.5, total_length=6)
        mean = (states if self.first else states.transpose(0, 1)).sum(1) / counted.unsqueeze(1)
        h = state[0] if isinstance(state, tuple) else state
        ends = h[-2:].transpose(0, 1).flatten(1) if self.cell.bidirectional else h[-1]
        return self.head(torch.cat([mean, ends], 1))  # type: ignore[no-any-return]


NETS: dict[str, Callable[[], Packed]] = {
    "GRU": lambda: Packed(nn.GRU),
    "LSTM of one direction": lambda: Packed(nn.LSTM, both=False),
    "RNN of two layers": lambda: Packed(nn.RNN, 2),
    "LSTM of two layers, steps first": lambda: Packed(nn.LSTM, 2, first=False),
}


@pytest.mark.parametrize("name", by_day(("GRU", "LSTM of two layers, steps first"), NETS))
def test_packed_texts_are_clipped_example_by_example(name: str) -> None:
    net = NETS[name]()
    module: Any = private(net, TEXTS)
    with torch.no_grad():
        torch.testing.assert_close(module.eval()(TEXTS), net(TEXTS))
    held_to_torch(net, module.train(), TEXTS)


class Given(Packed):
    """The layer begins in states that are computed from the text."""

    def forward(self, x: Tensor) -> Tensor:
        rows, lengths = self.words(x), self.lengths(x)
        state = rows.mean(1).tanh()[None, :, :2]
        _, state = self.cell(pack_padded_sequence(rows, lengths, True, enforce_sorted=False), state)
        return self.head(torch.cat([state[0], state[0]], 1))  # type: ignore[no-any-return]


def test_packed_texts_may_begin_in_a_state() -> None:
    net = Given(nn.GRU, both=False)
    held_to_torch(net, private(net, TEXTS), TEXTS)


@pytest.mark.filterwarnings("ignore:the import could not be checked")
def test_lengths_may_be_an_input() -> None:
    class Two(Packed):
        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:  # type: ignore[override]
            packed = pack_padded_sequence(self.words(x), lengths, True, enforce_sorted=False)
            return self.head(self.cell(packed)[1].transpose(0, 1).flatten(1).repeat(1, 2))  # type: ignore[no-any-return]

    net, lengths = Two(nn.GRU), torch.tensor([5, 3, 1, 4])
    module = lipcompile.private(net, {"x": TEXTS, "lengths": lengths}, bounds="clip")
    torch.testing.assert_close(module(TEXTS, lengths), net(TEXTS, lengths))


@pytest.mark.parametrize(
    "lengths", [lambda x: lengths_of(x).flip(0), lambda x: lengths_of(x).amax(0, keepdim=True).expand(x.shape[0])]
)
def test_lengths_of_other_texts_are_refused(lengths: Any) -> None:
    with pytest.raises(InputError) as refused:
        lipcompile.private(Packed(nn.GRU, lengths=lengths), TEXTS, bounds="clip")
    assert {found.code for found in refused.value.diagnostics} & {"LIP108", "LIP110"}


class Longest(Packed):
    """A function of the states of all steps, of which there are as many as the longest text has."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__(nn.GRU, both=False)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        rows, lengths = self.words(x), lengths_of(x)
        packed, _ = self.cell(pack_padded_sequence(rows, lengths, True, enforce_sorted=False))
        return self.head(self.function(pad_packed_sequence(packed, True)[0], lengths).repeat(1, 2))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "function",
    [
        lambda states, _: states.mean(1),
        lambda states, _: states[:, -1],
        lambda states, _: states.amax(1),
        lambda states, _: (states.softmax(1) * states).sum(1),
    ],
)
def test_what_depends_on_the_longest_text_is_refused_with_its_line(function: Any) -> None:
    with pytest.raises(InputError, match="depends on the longest text of the batch") as refused:
        lipcompile.private(Longest(function), TEXTS, bounds="clip")
    (found,) = refused.value.diagnostics
    assert found.code == "LIP108"
    assert found.location is not None
    assert found.location.file.endswith("test_lengths.py")


def test_padding_up_to_the_longest_text_that_changes_nothing_is_accepted() -> None:
    net = Longest(lambda states, lengths: states.sum(1) / lengths.unsqueeze(1))
    held_to_torch(net, private(net, TEXTS), TEXTS)


class Sorted(Packed):
    """As ABSA-PyTorch: texts are sorted by length and put back, cells too, whether they are read or not."""

    def __init__(self, reads: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__(nn.LSTM)
        self.reads = reads

    def forward(self, x: Tensor) -> Tensor:
        lengths = lengths_of(x)
        order = torch.sort(-lengths)[1]
        back = torch.sort(order)[1]
        _, ends = self.cell(pack_padded_sequence(self.words(x)[order], lengths[order], True))
        state, cells = (torch.transpose(torch.transpose(end, 0, 1)[back], 0, 1) for end in ends)
        return self.head(self.reads(state, cells.contiguous()).repeat(1, 2))  # type: ignore[no-any-return]


def test_cells_that_are_only_put_in_order_are_no_hindrance() -> None:
    net = Sorted(lambda state, _: torch.cat([*state], 1))
    held_to_torch(net, private(net, TEXTS), TEXTS)


@pytest.mark.filterwarnings("ignore:the module is computed one example at a time", "ignore:torch.vmap cannot run")
@pytest.mark.parametrize(
    "reads",
    [
        lambda _, cells: torch.cat([cells[0], cells[1]], 1),
        lambda _, cells: torch.cat([*cells], 1),
        lambda state, cells: torch.cat([*(state + cells)], 1),
        lambda state, cells: torch.cat([state[0], cells[1].tanh()], 1),
    ],
)
def test_cells_that_are_read_are_computed_alone(reads: Any) -> None:
    net = Sorted(reads)
    module = private(net, TEXTS)
    with torch.no_grad():
        torch.testing.assert_close(module.eval()(TEXTS), net(TEXTS))


def test_cells_at_the_ends_are_refused_with_a_reason() -> None:
    class Cells(Packed):
        def forward(self, x: Tensor) -> Tensor:
            packed = pack_padded_sequence(self.words(x), lengths_of(x), True, enforce_sorted=False)
            _, (_, cell) = self.cell(packed)
            return self.head(cell.transpose(0, 1).flatten(1).repeat(1, 2))  # type: ignore[no-any-return]

    with pytest.warns(UserWarning, match="the cell of an LSTM at the end of a packed text is not yet supported"):
        lipcompile.private(Cells(nn.LSTM), TEXTS, bounds="clip", verify_import=False)


@pytest.mark.parametrize("read", [lambda packed: packed.data, lambda packed: packed[0], lambda packed: [*packed]])
def test_packed_rows_that_are_read_apart_are_refused_with_their_line(read: Any) -> None:
    class Apart(Packed):
        def forward(self, x: Tensor) -> Tensor:
            packed = pack_padded_sequence(self.words(x), lengths_of(x), True, enforce_sorted=False)
            return self.head(self.words(x).mean(1).repeat(1, 3)[:, :8] * read(self.cell(packed)[0])[0].mean())  # type: ignore[no-any-return]

    with pytest.raises(InputError, match="something else than a recurrent layer") as refused:
        lipcompile.private(Apart(nn.GRU), TEXTS, bounds="clip")
    assert refused.value.diagnostics[0].location is not None


def test_torch_packs_again() -> None:
    net = Packed(nn.GRU)
    private(net, TEXTS)
    assert pack_padded_sequence is nn.utils.rnn.pack_padded_sequence
    assert type(net.cell).forward is type(nn.GRU(1, 1)).forward
    assert "forward" not in vars(net.cell)
    assert isinstance(pack_padded_sequence(torch.ones(2, 3, 1), [3, 2], True), nn.utils.rnn.PackedSequence)

"""Models that look for sequences packed into one row, as those of transformers do: by numbers, but for traces."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

import lipcompile
from lipcompile import InputError

WORDS, PLACES = 9, 5
IDS = torch.tensor([[3, 5, 2, 8, 8], [4, 1, 7, 2, 6], [8, 0, 0, 1, 1]])

Positions = Callable[[Tensor], Tensor]


@pytest.fixture
def masks(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module of transformers that makes masks, as far as it matters here; tests have no transformers."""
    home = ModuleType("transformers.masking_utils")

    def find_packed_sequence_indices(positions: Tensor) -> Tensor | None:
        steps = torch.diff(positions, prepend=positions[:, :1] - 1, dim=-1)
        found = (steps != 1).cumsum(-1)
        known = not isinstance(found, torch._subclasses.FakeTensor)
        return None if known and bool((found[:, -1] == 0).all()) else found

    home.find_packed_sequence_indices = find_packed_sequence_indices  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, home.__name__, home)
    return home


class Causal(nn.Module):
    """Words read those before them in their own sequence; `positions` says where sequences begin."""

    def __init__(self, masks: ModuleType, positions: Positions) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.masks, self.positions = masks, positions
        self.words, self.head = nn.Embedding(WORDS, 4), nn.Linear(4, WORDS)
        self.drop = nn.Dropout(0.5)

    def forward(self, ids: Tensor) -> Tensor:
        positions = self.positions(ids)
        if ids.shape[0] != positions.shape[0]:
            positions = positions.expand(ids.shape[0], -1)
        packed = self.masks.find_packed_sequence_indices(positions)
        places = torch.arange(PLACES)
        mask = places[:, None] >= places
        if packed is not None:
            rows = torch.arange(ids.shape[0])[:, None, None]
            mask = mask & (packed[rows, places[:, None]] == packed[rows, places])
        h = self.words(ids)
        mixed = torch.softmax((h @ h.mT).masked_fill(~mask, -1e9), -1) @ h
        found: Tensor = self.head(self.drop(mixed))
        return found

    def __deepcopy__(self, memo: object) -> Causal:
        twin = Causal(self.masks, self.positions)
        twin.load_state_dict(self.state_dict())
        return twin.train(self.training)


def in_order(_: Tensor) -> Tensor:
    return torch.arange(PLACES)[None]


def test_a_model_in_which_nothing_is_packed_is_imported(masks: ModuleType) -> None:
    module = Causal(masks, in_order)
    before = masks.find_packed_sequence_indices
    private = lipcompile.private(module, {"ids": IDS}, bounds="clip", loss="token_cross_entropy").eval()
    assert masks.find_packed_sequence_indices is before
    for ids in (IDS, IDS[:1]):
        torch.testing.assert_close(private(ids), module.eval()(ids))


@pytest.mark.parametrize(
    "positions",
    [
        lambda ids: torch.arange(PLACES) + ids * 0,
        lambda ids: (ids != 0).long().cumsum(1),
        lambda ids: torch.arange(PLACES)[None] + torch.zeros_like(ids[:1]).copy_(ids[:1] * 0),
        lambda _: torch.tensor([[0, 1, 2, 0, 1]]),
        lambda ids: torch.arange(PLACES)[None] + int(ids.max()) * 0,
    ],
)
def test_positions_that_inputs_reach_or_that_are_packed_are_not_taken_for_others(
    masks: ModuleType, positions: Positions
) -> None:
    """The first four examples say nothing of others; it is refused, as before, or computes the same, if alone."""
    warnings.filterwarnings("ignore", ".*one example at a time")
    module = Causal(masks, positions)
    try:
        private = lipcompile.private(module, {"ids": IDS}, bounds="clip", loss="token_cross_entropy").eval()
    except InputError as error:
        codes = {found.code for found in error.diagnostics}
    else:
        codes = set()
        torch.testing.assert_close(private(IDS), module.eval()(IDS))
    assert codes <= {"LIP100", "LIP108", "LIP120"}

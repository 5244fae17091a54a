"""Entries at places that each example computes: the largest k, masks of them, and what is put or added there.

Each network computes what torch computes, and its clipped gradients are those of torch, example by example.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import lipcompile
from lipcompile import InputError
from tests.frontends.torch.test_computed_parameters import TOKENS, WIDTH, Net, examples, held_to_torch
from tests.nights import by_day

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:the output does not depend on")]


def experts(h: Tensor) -> Tensor:
    """Weights of the three largest, zero for the others."""
    values, places = h.topk(3, -1)
    return torch.zeros_like(h).scatter(-1, places, values.softmax(-1)) * h


def hidden(h: Tensor) -> Tensor:
    """An attention to the three largest scores."""
    values, places = h.topk(3, -1)
    return torch.full_like(h, float("-inf")).scatter(-1, places, values).softmax(-1)


def written_over(h: Tensor) -> Tensor:
    mask = torch.zeros_like(h)
    mask.scatter_(-1, h.topk(2, -1).indices, 1.0)
    return h * mask


def smallest(h: Tensor) -> Tensor:
    places = h.topk(2, -1, largest=False).indices
    return h * h.square().gather(-1, places).sum(-1, keepdim=True)


def neighbours(h: Tensor, step: int = TOKENS, more: int = 0) -> Tensor:
    """As DGCNN: the three nearest rows, among those of all examples."""
    nearest = (-torch.cdist(h, h)).topk(3, -1)[1] + more
    places = (nearest + torch.arange(0, h.shape[0]).view(-1, 1, 1) * step).view(-1)
    rows = h.tanh().reshape(h.shape[0] * TOKENS, -1)[places, :].view(h.shape[0], TOKENS, 3, WIDTH)
    return (rows - h.unsqueeze(2)).amax(2)


def chosen_row(h: Tensor) -> Tensor:
    """The row of the largest sum, by its number among all."""
    own = h.sum(-1).argmax(1, keepdim=True)
    return h.reshape(-1, WIDTH)[(torch.arange(len(h)).unsqueeze(1) * TOKENS + own).squeeze(1)].unsqueeze(1) * h


USES: dict[str, Callable[[Tensor], Tensor]] = {
    "experts": experts,
    "hidden": hidden,
    "written over": written_over,
    "smallest": smallest,
    "over others": lambda h: h.square().scatter(-1, h.topk(2, -1).indices, h[..., :2].exp()),
    "added": lambda h: h.scatter_add(-1, h.topk(2, -1).indices, h[..., :2]),
    "added twice": lambda h: h.scatter_add(-1, (h[..., :2] > 0).long(), h[..., :2].exp()),
    "in another order": lambda h: h.gather(-1, h.square().argsort(-1)),
    "sorted with another": lambda h: (h * 2).tanh().gather(-1, h.sort(-1, descending=True).indices),
    "of another axis": lambda h: h + (2 * h).tanh().gather(1, h.square().argmax(1, keepdim=True)),
    "one written": lambda h: h * torch.zeros(h.size()).scatter_(-1, h.argmax(-1, keepdim=True), 1),
    "neighbours": neighbours,
    "chosen row": chosen_row,
    "chosen rows": lambda h: h[torch.arange(len(h))[:, None], h.sum(-1).topk(3).indices],
    "halves of places": lambda h: h * (h.argmax(-1, keepdim=True) // 2 + h.topk(2, -1).indices[..., 1:] // 2),
    "one hot": lambda h: h * F.one_hot(h.argmax(-1), WIDTH).float(),
}


@pytest.mark.parametrize(
    "name", by_day(("experts", "hidden", "one written", "added twice", "in another order"), USES)
)
def test_entries_at_computed_places_are_clipped_example_by_example(name: str) -> None:
    net, x = Net(lambda _, h: USES[name](h)), examples(TOKENS, WIDTH)
    held_to_torch(net, lipcompile.private(net, x, bounds="clip"), x)


class Chosen(nn.Module):
    """The two largest entries as a mask, and a layer that begins as nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        nn.init.zeros_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x).scatter(-1, x.topk(2, -1).indices, 1.0) + self.layer(x)  # type: ignore[no-any-return]


def test_of_equal_entries_as_many_are_chosen_as_there_are_places() -> None:
    """Torch says nothing of their order; here the first ones are taken."""
    module = lipcompile.private(Chosen(), (WIDTH,), bounds="clip")
    x = torch.tensor([[0.0, 0, 0, 0, 0, 0], [1, 2, 1, 1, 0, 0], [3, 3, 5, 3, 3, 5], [-1, 0, -1, -1, -1, -1]])
    wanted = torch.tensor([[1.0, 1, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0], [0, 0, 1, 0, 0, 1], [1, 1, 0, 0, 0, 0]])
    torch.testing.assert_close(module(x).detach(), wanted, rtol=0, atol=0)


@pytest.mark.parametrize(
    "function",
    [
        lambda h: h.scatter(-1, (h[..., :2] > 0).long(), h[..., :2]),  # both may be put at one place
        lambda h: h.gather(0, h.topk(2, 0).indices[:1].expand_as(h)),
        lambda h: neighbours(h, TOKENS - 1),  # rows of the example before
        lambda h: neighbours(h, TOKENS + 1),
        lambda h: h.reshape(-1, WIDTH)[torch.arange(len(h)).flip(0) * TOKENS].unsqueeze(1) * h,
        lambda h: h.scatter(0, torch.zeros_like(h).long(), h),
        lambda h: h.scatter_reduce(-1, h.topk(2, -1).indices, h[..., :2], "amax"),
    ],
)
def test_what_has_no_one_meaning_or_crosses_the_batch_is_refused(function: Any) -> None:
    with pytest.raises((InputError, UserWarning), match=r"LIP1\d\d"):  # or it is computed alone, with a warning
        lipcompile.private(Net(lambda _, h: function(h)), examples(TOKENS, WIDTH), bounds="clip")


@pytest.mark.filterwarnings("ignore:the import could not be checked")
def test_places_of_the_next_example_are_none() -> None:
    """A place behind the last row of an example is a row of the next one in torch, and no row here.

    The module fails on the last example of each batch, so nothing compares it.
    """
    x = examples(TOKENS, WIDTH)
    module = lipcompile.private(Net(lambda _, h: neighbours(h, more=1)), x, bounds="clip")
    other = torch.cat([x[:1], 2 * x[1:]])
    torch.testing.assert_close(module(x)[0], module(other)[0], rtol=0, atol=0)


def test_theorems_do_not_cross_places() -> None:
    with pytest.raises(InputError, match="LIP110"):
        lipcompile.private(Net(lambda _, h: experts(h)), examples(TOKENS, WIDTH), bounds="theorem")


class Last(nn.Module):
    """The state of a text at its last token, whose place is an input, as recommenders of sessions take it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.cell, self.head = (
            nn.Embedding(9, 4),
            nn.GRU(4, WIDTH, batch_first=True),
            nn.Linear(WIDTH, 3),
        )

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        states, _ = self.cell(self.words(x))
        places = (lengths - 1).view(-1, 1, 1).expand(-1, -1, WIDTH)
        return self.head(states.gather(1, places).squeeze(1))  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("ignore:the import could not be checked")
def test_a_place_of_the_tokens_may_be_an_input() -> None:
    net, words, lengths = Last(), torch.arange(20).view(4, 5) % 9, torch.tensor([1, 5, 3, 2])
    module = lipcompile.private(net, {"x": words, "lengths": lengths}, bounds="clip")
    torch.testing.assert_close(module(words, lengths), net(words, lengths), rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        module.get_parameter("head.weight").mul_(2)
    with pytest.warns(UserWarning, match="could not be compared: the module fails"):
        lipcompile.load_trained(net, module, {"x": words, "lengths": lengths})
    torch.testing.assert_close(module(words, lengths), net(words, lengths), rtol=1e-5, atol=1e-6)


class Fields(nn.Module):
    """One table for several columns, whose categories begin at offsets of their own: DeepFM and its kind."""

    def __init__(self, offsets: tuple[int, ...]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.offsets: Tensor
        self.register_buffer("offsets", torch.tensor(offsets))
        self.table, self.head = nn.Embedding(12, 4), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.table(x + self.offsets).flatten(1))  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("ignore:the weights were loaded, but could not be compared")
@pytest.mark.filterwarnings("ignore:the import could not be checked")
@pytest.mark.parametrize(("offsets", "largest"), [((0, 3, 9), 3), ((-1, 1, 4), 8)])
def test_columns_may_share_a_table_at_offsets(offsets: tuple[int, ...], largest: int) -> None:
    """Whole numbers are known to exist up to where the table ends, also those from which something is taken."""
    net, x = Fields(offsets), torch.tensor([[1, 2, 1], [2, 1, 2], [1, 1, 1], [2, 2, 2]])
    module = lipcompile.private(net, x, bounds="clip")
    last = torch.full((1, 3), largest) - torch.tensor([0, 0, largest - 2])
    torch.testing.assert_close(module(last), net(last), rtol=1e-5, atol=1e-6)
    held_to_torch(net, module, x)


class Columns(Fields):
    """The columns are put beside one another, or a word that is the same for all beside two of them."""

    def __init__(self, more: bool) -> None:
        super().__init__((0, 3, 9))
        self.more = more

    def forward(self, x: Tensor) -> Tensor:
        words = torch.cat([x[:, 0].unsqueeze(1), x[:, 1:2], x[:, 2:]], 1) + self.offsets
        if self.more:
            words = torch.cat([torch.full((len(x), 1), 11), words[:, 1:]], 1)
        return self.head(self.table(words).flatten(1))  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("ignore:the weights were loaded, but could not be compared")
@pytest.mark.parametrize("more", [False, True])
def test_columns_that_are_put_together_may_share_a_table(more: bool) -> None:
    net, x = Columns(more), torch.tensor([[1, 2, 0], [2, 1, 1], [1, 5, 2], [0, 0, 1]])
    module = lipcompile.private(net, x, bounds="clip")
    torch.testing.assert_close(module(x), net(x), rtol=1e-5, atol=1e-6)
    held_to_torch(net, module, x)


class Shown(nn.Module):
    """As RecBole's SHAN: which words are padding, and a first place that is never hidden."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Embedding(9, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.cat([torch.zeros(len(x), 1).eq(1), x.eq(0)], 1)
        rows = torch.cat([self.table(x).mean(1, keepdim=True), self.table(x)], 1)
        scores = rows.sum(-1).masked_fill(hidden, float("-inf")).softmax(-1)
        return self.head((scores.unsqueeze(-1) * rows).sum(1))  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("ignore:the weights were loaded, but could not be compared")
def test_truths_may_stand_beside_those_of_an_example() -> None:
    net, x = Shown(), torch.tensor([[1, 2, 0, 0], [3, 0, 0, 0], [4, 5, 6, 7], [8, 8, 1, 0]])
    module = lipcompile.private(net, x, bounds="clip")
    torch.testing.assert_close(module(x), net(x), rtol=1e-5, atol=1e-6)
    held_to_torch(net, module, x)

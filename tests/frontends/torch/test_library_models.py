"""What models of transformers and timm are written with, in small modules: experts, stacks, the batch anywhere.

Oracle: the module itself, by torch, one example after the other.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
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
EXPERTS = 3


def private(net: nn.Module, x: Tensor) -> Any:
    return lipcompile.private(net, x, bounds="clip")


# Experts


class Experts(nn.Module):
    """Experts as transformers has them: a loop over those that some token of the batch chose."""

    def __init__(self, *, gated: bool, turned: bool, biased: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.num_experts, self.has_gate, self.is_transposed, self.has_bias = EXPERTS, gated, turned, biased
        self.has_post_expert_norm = self._is_expert_parallel = False
        self.act_fn, made = nn.Tanh(), 8 if gated else 4
        shapes = {"gate_up_proj" if gated else "up_proj": (made, WIDTH), "down_proj": (WIDTH, 4)}
        for name, (rows, columns) in shapes.items():
            matrix = torch.randn(EXPERTS, columns, rows) if turned else torch.randn(EXPERTS, rows, columns)
            self.register_parameter(name, nn.Parameter(matrix / 2))
            if biased:
                self.register_parameter(f"{name}_bias", nn.Parameter(torch.randn(EXPERTS, rows) / 2))

    def _apply_gate(self, both: Tensor) -> Tensor:
        gate, up = both.chunk(2, dim=-1)
        return self.act_fn(gate) * up  # type: ignore[no-any-return]

    def _layer(self, name: str, place: int, tokens: Tensor) -> Tensor:
        weight = getattr(self, name)[place]
        bias = getattr(self, f"{name}_bias")[place] if self.has_bias else None
        return F.linear(tokens, weight.T if self.is_transposed else weight, bias)

    def of_chosen(self, tokens: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        """Each expert for the tokens that chose it."""
        total = torch.zeros_like(tokens)
        for place in sorted(set(index.flatten().tolist())):
            row, choice = torch.where(index == place)
            first = self._layer("gate_up_proj" if self.has_gate else "up_proj", place, tokens[row])
            made = self._layer("down_proj", place, (self._apply_gate if self.has_gate else self.act_fn)(first))
            total = total.index_add(0, row, made * weights[row, choice, None])
        return total

    def forward(self, tokens: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        table = sys.modules["transformers.integrations.moe"].ALL_EXPERTS_FUNCTIONS
        return table.get_interface("grouped_mm", None)(self, tokens, index, weights)  # type: ignore[no-any-return]


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table of transformers by which modules of experts compute; tests have no transformers."""

    class Interface:
        def get_interface(self, name: str, default: Any) -> Any:
            assert (name, default) == ("grouped_mm", None)
            return Experts.of_chosen

    home = ModuleType("transformers.integrations.moe")
    home.ALL_EXPERTS_FUNCTIONS = Interface()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, home.__name__, home)


class Routed(nn.Module):
    """Tokens of all examples in a row, each to two experts."""

    def __init__(self, experts: nn.Module) -> None:
        super().__init__()
        self.router, self.experts, self.head = nn.Linear(WIDTH, EXPERTS), experts, nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.reshape(-1, WIDTH)
        weights, index = self.router(tokens).softmax(-1).topk(2, -1)
        mixed = self.experts(tokens, index, weights / weights.sum(-1, keepdim=True))
        return self.head(mixed.reshape(x.shape).mean(1))  # type: ignore[no-any-return]


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(("gated", "turned", "biased"), [(True, False, False), (False, True, True)])
def test_each_token_reaches_the_experts_that_it_chose(gated: bool, turned: bool, biased: bool) -> None:
    net, x = Routed(Experts(gated=gated, turned=turned, biased=biased)), examples(TOKENS, WIDTH)
    held_to_torch(net, private(net, x), x)


@pytest.mark.usefixtures("library")
def test_experts_that_are_shared_among_machines_are_not_read_as_all() -> None:
    net = Routed(Experts(gated=True, turned=False, biased=False))
    net.experts._is_expert_parallel = True  # type: ignore[assignment]
    found = lipcompile.from_module(net, examples(TOKENS, WIDTH), loss="cross_entropy", bounds="clip").diagnostics
    assert "LIP129" in {one.code for one in found}


class Stacked(nn.Module):
    """The matrix of each expert by its number; shares at the places that a token chose, in tokens in a row."""

    def __init__(self) -> None:
        super().__init__()
        self.matrices = nn.Parameter(torch.randn(EXPERTS, WIDTH, WIDTH) / 2)

    def forward(self, tokens: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        shares = (F.one_hot(index, EXPERTS) * weights.unsqueeze(-1)).sum(1)
        made = (shares[:, place, None] * (tokens @ self.matrices[place]) for place in range(EXPERTS))
        total: Tensor = sum(made, torch.zeros(()))
        return total * shares.gather(-1, index[:, 1:]).exp()


def test_entries_of_a_stack_are_matrices_of_their_own() -> None:
    torch.manual_seed(0)
    net, x = Routed(Stacked()), examples(TOKENS, WIDTH)
    module = private(net, x)
    assert sum(parameter.shape == (WIDTH, WIDTH) for parameter in module.parameters()) == EXPERTS
    held_to_torch(net, module, x)


# The batch among other axes, or behind them


def in_sequences(net: Any, h: Tensor) -> Tensor:
    """As in XLNet: the batch is the second letter, and then the first."""
    first = h.transpose(0, 1)
    keys = torch.einsum("ibh,hd->ibd", first, net.w)
    scores = torch.einsum("ibd,jbd->bij", first, keys).softmax(-1)
    return torch.einsum("bij,jbd->ibd", scores, first).transpose(0, 1)


def by_stacks(net: Any, h: Tensor) -> Tensor:
    """As in RecurrentGemma: a matrix for each block of features, the tokens of all examples in a row."""
    blocks = h.reshape(-1, 2, 3).permute(1, 0, 2)
    return torch.baddbmm(net.p.view(2, 1, 3), blocks, net.w[:, :3].view(2, 3, 3)).permute(1, 0, 2).reshape(h.shape)


def by_stacks_of_one(net: Any, h: Tensor) -> Tensor:
    """The batch alone in the place of the rows."""
    made = h.mean(1).view(-1, 2, 3).transpose(0, 1) @ net.w[:, :3].view(2, 3, 3)
    return h * made.transpose(0, 1).reshape(-1, 1, WIDTH)  # type: ignore[no-any-return]


def directions(_: Any, h: Tensor) -> Tensor:
    """As in YOSO: norms that are copied along features, heads and batch one axis."""
    heads = h.view(-1, TOKENS, 2, 3).transpose(1, 2).reshape(-1, TOKENS, 3)
    return F.normalize(heads, dim=-1).view(-1, 2, TOKENS, 3).transpose(1, 2).reshape(h.shape)


def chosen_in_sequences(_: Any, h: Tensor) -> Tensor:
    first = h.transpose(0, 1)
    return torch.where(first > first.mean(-1, keepdim=True), first.exp(), first.square()).transpose(0, 1)


# Attention


def one_head_of_keys(_: Any, h: Tensor) -> Tensor:
    """As in Falcon, with what an example hides."""
    q = h.view(-1, TOKENS, 2, 3).transpose(1, 2)
    keys, seen = q[:, :1], h[:, None, None, :, 0] > h[:, None, None, :, 1].mean(-1, keepdim=True) - 0.5
    scores = (q @ keys.mT).masked_fill(~seen, -1e9)
    return (scores.softmax(-1) @ keys).transpose(1, 2).reshape(h.shape)


def biased_by_place(_: Any, h: Tensor) -> Tensor:
    """As in BLOOM: numbers of each head and place, repeated for each example."""
    heads = h.view(-1, TOKENS, 2, 3).transpose(1, 2).reshape(-1, TOKENS, 3)
    slopes = torch.tensor([0.5, 0.25])[:, None, None] * torch.arange(TOKENS)
    scores = torch.baddbmm(slopes.repeat(len(h), 1, 1), heads, heads.mT, alpha=0.5)
    return (scores.softmax(-1) @ heads).view(-1, 2, TOKENS, 3).transpose(1, 2).reshape(h.shape)


def viewed(net: Any, h: Tensor) -> Tensor:
    """As in BEiT: what torch believes to be a view of the output of an attention."""
    q, k, v = (torch.cat([h, h @ net.w, h], -1)).reshape(-1, TOKENS, 3, 2, 3).permute(2, 0, 3, 1, 4).unbind(0)
    bias = torch.eye(TOKENS).expand(1, 2, TOKENS, TOKENS)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).reshape(len(h), TOKENS, -1)


# The rest


def of_one_class(net: Any, h: Tensor) -> Tensor:
    return h * (h @ net.p[:, None]).softmax(-1) + (h @ net.p[:, None]).log_softmax(-1)  # type: ignore[no-any-return]


def rows_of_all(net: Any, h: Tensor) -> Tensor:
    """As in LayoutLM: rows of one table at places that all examples have, twice."""
    places = torch.zeros(len(h), TOKENS, 2, dtype=torch.long) + torch.tensor([1, 3])
    left, right = (F.embedding(places[..., index], net.table).sum(-1, keepdim=True) for index in (0, 1))
    return h * left + right.exp()


def cut_places(net: Any, h: Tensor) -> Tensor:
    """As in ProphetNet."""
    places = torch.ones(len(h), TOKENS, dtype=torch.long).cumsum(1).clamp(0, 2).repeat(1, 2)[:, 1 : TOKENS + 1]
    return h * net.table.mean() + F.embedding(places, net.table).sum(-1, keepdim=True).tanh()  # type: ignore[no-any-return]


def hidden_by_numbers(_: Any, h: Tensor) -> Tensor:
    """As in XLNet: a real number minus whole ones."""
    return h * (1.0 - (h > 0).long())


USES: dict[str, Callable[[Any, Tensor], Tensor]] = {
    function.__name__: function
    for function in (
        *(in_sequences, by_stacks, by_stacks_of_one, directions, chosen_in_sequences),
        *(one_head_of_keys, biased_by_place, viewed, of_one_class, rows_of_all, cut_places, hidden_by_numbers),
    )
}


@pytest.mark.parametrize("name", by_day(("in_sequences", "by_stacks", "biased_by_place", "rows_of_all"), USES))
def test_examples_are_clipped_by_themselves(name: str) -> None:
    net, x = Net(USES[name]), examples(TOKENS, WIDTH)
    held_to_torch(net, private(net, x), x)


def summed_over_examples(_: Any, h: Tensor) -> Tensor:
    return h + torch.einsum("ibd,jcd->bij", h.transpose(0, 1), h.transpose(0, 1)).mean(-1, keepdim=True)


def without_batch(_: Any, h: Tensor) -> Tensor:
    return h + torch.einsum("ibd,ibd->id", h.transpose(0, 1), h.transpose(0, 1))


def other_rows(net: Any, h: Tensor) -> Tensor:
    """The rows of a product are features, its columns examples."""
    return h + (net.w @ h.mean(1).T).softmax(-1).T[:, None]  # type: ignore[no-any-return]


def in_another_order(_: Any, h: Tensor) -> Tensor:
    """Numbers of each example's place, beside heads: the copies of one are not the rows of an example."""
    slopes = torch.arange(2.0)[:, None, None].repeat_interleave(len(h), 0)
    return h + (h.view(-1, TOKENS, 2, 3).transpose(1, 2).reshape(-1, TOKENS, 3) + slopes).mean()


@pytest.mark.parametrize("function", [summed_over_examples, without_batch, other_rows, in_another_order])
def test_what_mixes_examples_is_refused(function: Any) -> None:
    with pytest.raises(InputError) as refused:
        private(Net(function), examples(TOKENS, WIDTH))
    assert "LIP108" in {found.code for found in refused.value.diagnostics}


# Traces


class Cast(nn.Module):
    """A layer that is told the kind of its numbers in each pass, as the router of Switch transformers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.layer = self.layer.to(torch.float32)
        return self.layer(x)  # type: ignore[no-any-return]


def test_a_layer_that_has_its_kind_of_numbers_stays() -> None:
    net, x = Cast(), examples(WIDTH)
    held_to_torch(net, private(net, x), x)


def test_sizes_that_depend_on_numbers_are_told_where_they_stand() -> None:
    class Chosen(Cast):
        def forward(self, x: Tensor) -> Tensor:
            made = torch.zeros_like(x)
            made[x > 0] = x[x > 0].exp()
            return self.layer(made)  # type: ignore[no-any-return]

    (found,) = lipcompile.from_module(Chosen(), examples(WIDTH), loss="cross_entropy", bounds="clip").diagnostics
    assert (found.code, "depends on the numbers in the input" in found.message) == ("LIP129", True)
    assert found.location is not None
    assert found.location.file == __file__


class Places(nn.Embedding):
    """Rows at places that are counted, as in ProphetNet: `forward` takes a shape."""

    def forward(self, shape: tuple[int, int]) -> Tensor:  # type: ignore[override]
        return super().forward(torch.arange(shape[1])[None].expand(shape) + 1)


class Placed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.places, self.head = Places(5, WIDTH, padding_idx=0), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((x + self.places((x.shape[0], TOKENS))).tanh().mean(1))  # type: ignore[no-any-return]


def test_padding_of_a_table_with_a_forward_of_its_own() -> None:
    """What such a `forward` takes is no row: the rows are those that torch looks up."""
    net, x = Placed(), examples(TOKENS, WIDTH)
    held_to_torch(net, private(net, x), x)

"""Constants that each example has, and that a module computes with: learned queries, convolutions of positions.

Each network computes what torch computes. The gradient of a batch is the sum of clipped gradients that torch.func
finds example by example, those of the constants included. What crosses the batch is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import lipcompile
from lipcompile import InputError
from lipcompile.pipeline import from_module
from tests.frontends.torch.test_padded_texts import attacked, compiled
from tests.torch.clip_nets import clipped

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:the output does not depend on")]
TOKENS, WIDTH, QUERIES = 5, 4, 3


class Learned(nn.Module):
    """Examples [5, 4], queries [1, 3, 4], what uses both, and a layer."""

    def __init__(self, function: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.queries, self.function = nn.Parameter(torch.randn(1, QUERIES, WIDTH)), function
        self.register_buffer("places", torch.rand(1, QUERIES, WIDTH))
        self.keys, self.values = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.heads = nn.MultiheadAttention(WIDTH, 2) if function is sequence_first else None
        self.asked, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.function(self, x))  # type: ignore[no-any-return]


def pooled(net: Any, x: Tensor) -> Tensor:
    """One matrix from the left, for all examples."""
    scores = net.queries @ net.keys(x).mT
    return (scores.softmax(-1) @ net.values(x)).mean(1)  # type: ignore[no-any-return]


def expanded(net: Any, x: Tensor) -> Tensor:
    """Queries that a layer maps, and that are added again, attend without an axis of heads."""
    q = net.queries.expand(len(x), -1, -1)
    q = q + F.scaled_dot_product_attention(net.asked(q), net.keys(x), net.values(x))
    return q.tanh().mean(1)  # type: ignore[no-any-return]


def repeated(net: Any, x: Tensor) -> Tensor:
    q = net.keys(net.queries.repeat(x.shape[0], 1, 1))
    return q.amax(1) + x.mean(1)  # type: ignore[no-any-return]


def sequence_first(net: Any, x: Tensor) -> Tensor:
    """The batch is the second axis, as `nn.MultiheadAttention` has it by default."""
    q = net.queries.squeeze(0).unsqueeze(1).expand(-1, len(x), -1)
    keys = x.transpose(0, 1)
    return (q + net.heads(net.asked(q), keys, keys)[0]).mean(0)  # type: ignore[no-any-return]


def of_one(net: Any, x: Tensor) -> Tensor:
    """A norm of a constant whose first axis is no batch yet, as positions in XCiT."""
    normed = F.layer_norm(net.queries, (WIDTH,), eps=0.5).repeat(len(x), 1, 1)
    return x[:, :QUERIES].mul(normed).mean(1)


def frozen_places(net: Any, x: Tensor) -> Tensor:
    """A layer of a buffer, as relative positions in ConViT."""
    return (x[:, :QUERIES] + net.keys(net.places.expand(len(x), -1, -1))).tanh().mean(1)  # type: ignore[no-any-return]


def causal(net: Any, x: Tensor) -> Tensor:
    """A triangle that is made for each example, as Informer and its relatives have it."""
    mask = torch.triu(torch.ones(len(x), QUERIES, TOKENS, dtype=torch.bool), diagonal=1)
    scores = (net.queries @ net.keys(x).mT).masked_fill(mask, -torch.inf)
    return (scores.softmax(-1) @ net.values(x)).mean(1)  # type: ignore[no-any-return]


def of_each_row(net: Any, x: Tensor) -> Tensor:
    """A matrix for each row of each example, as the attention of a cross in an image hides its own place."""
    hidden = -torch.eye(WIDTH).mul(2.0).repeat(len(x) * TOKENS, 1, 1) + 1
    rows = x.reshape(-1, 1, WIDTH) * net.queries[:, :1].tanh()
    return ((rows + hidden.exp()) * hidden).mean(1).view(-1, TOKENS, WIDTH).mean(1) + net.queries.mean(1)  # type: ignore[no-any-return]


def means_of_those_before(net: Any, x: Tensor) -> Tensor:
    """Attention without scores, as the bag of words of makemore."""
    scores = torch.zeros(len(x), TOKENS, TOKENS).masked_fill(torch.ones(TOKENS, TOKENS).triu(1) == 1, -torch.inf)
    return (scores.softmax(-1) @ net.keys(x)).tanh().mean(1) + net.queries.mean(1)  # type: ignore[no-any-return]


FUNCTIONS = (
    *(pooled, expanded, repeated, sequence_first, of_one, frozen_places, causal, of_each_row),
    means_of_those_before,
)


def mean_of_copies(net: Any, x: Tensor) -> Tensor:
    """Of equal ones, so that examples stay apart; but no rule sees that."""
    q = net.keys(net.queries.expand(len(x), -1, -1))
    return x.mean(1) + q.mean(0).mean(0)  # type: ignore[no-any-return]


def softmax_over_copies(net: Any, x: Tensor) -> Tensor:
    return x.mean(1) + net.keys(net.queries.expand(len(x), -1, -1)).softmax(0).mean(1)  # type: ignore[no-any-return]


def numbered_copies(net: Any, x: Tensor) -> Tensor:
    numbers = torch.arange(len(x))[:, None, None].float()
    return x.mean(1) + net.keys(net.queries.expand(len(x), -1, -1) * numbers).mean(1)  # type: ignore[no-any-return]


def copies_of_examples(net: Any, x: Tensor) -> Tensor:
    return net.keys(x.repeat(len(x), 1, 1)).view(len(x), len(x), TOKENS, WIDTH).mean((0, 2))  # type: ignore[no-any-return]


def attention_among_examples(net: Any, x: Tensor) -> Tensor:
    q = net.queries.expand(len(x), -1, -1)
    return F.scaled_dot_product_attention(q.transpose(0, 1), x.transpose(0, 1)[:QUERIES], q.transpose(0, 1)).mean(
        0
    )


def triangle_of_examples(net: Any, x: Tensor) -> Tensor:
    """The place of an example in its batch says how many of its tokens count."""
    return (torch.tril(torch.ones(len(x), TOKENS))[..., None] * x).mean(1) + net.queries.mean(1)  # type: ignore[no-any-return]


ALONE = (mean_of_copies, copies_of_examples, attention_among_examples)
MIXING = (
    triangle_of_examples,
    softmax_over_copies,
    numbered_copies,
)


def examples() -> Tensor:
    return torch.randn(4, TOKENS, WIDTH, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_constants_are_clipped_example_by_example(function: Any, tmp_path: Path) -> None:
    net = Learned(function).eval()
    module = compiled(net, (TOKENS, WIDTH), tmp_path)
    module.normaliser = 1.0
    trained = sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
    unused = 0 if function is not frozen_places else QUERIES * WIDTH
    assert trained >= net.head.weight.numel() + QUERIES * WIDTH - unused
    attacked(net, module, examples())
    found = from_module(net, (TOKENS, WIDTH), bounds="clip", loss="cross_entropy").diagnostics
    assert "LIP122" not in {diagnostic.code for diagnostic in found}  # what is computed with is trained as it is


@pytest.mark.parametrize("function", [pooled, repeated])
def test_theorems_hold_for_them(function: Any, tmp_path: Path) -> None:
    """No example moves the gradient of a parameter by more than its bound."""
    net = Learned(function).eval()
    module = compiled(net, (TOKENS, WIDTH), tmp_path, "theorem", constraint="keep", input_norm=1)
    x = F.normalize(examples().flatten(1)).view(4, TOKENS, WIDTH)
    torch.testing.assert_close(module(x), net(x), rtol=1e-4, atol=1e-5)
    for index in range(len(x)):
        one = clipped(module, x[index : index + 1], torch.tensor([index % 3]))
        for name, bound in module.bounds.items():
            assert float(one[name].double().norm()) * module.normaliser <= bound * (1 + 1e-6)


@pytest.mark.parametrize("function", MIXING)
def test_what_crosses_the_batch_is_refused(function: Any) -> None:
    with pytest.raises(InputError) as refused:
        lipcompile.private(Learned(function), (TOKENS, WIDTH), bounds="clip")
    assert "LIP108" in {found.code for found in refused.value.diagnostics}


@pytest.mark.filterwarnings("ignore:the module is computed one example at a time")
@pytest.mark.parametrize("function", ALONE)
def test_what_only_looks_like_mixing_is_accepted(function: Any) -> None:
    """From the trace of one example, or one example at a time."""
    net = Learned(function).eval()
    module = lipcompile.private(net, (TOKENS, WIDTH), bounds="clip")
    torch.testing.assert_close(module(examples()), net(examples()), rtol=1e-4, atol=1e-5)


class Positions(nn.Module):
    """Positions go through activations before an example is met."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Parameter(torch.randn(TOKENS, WIDTH)), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        places = F.selu(F.gelu(F.hardswish(F.mish(self.table))))
        return self.head((x + places).tanh().mean(1))  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("ignore:.*is trained itself, without that computation")
def test_activations_of_parameters_are_computed_while_importing() -> None:
    """What is made of them is trained by itself, as is told."""
    net = Positions()
    module = lipcompile.private(net, (TOKENS, WIDTH), bounds="clip")
    torch.testing.assert_close(module(examples()), net(examples()), rtol=1e-4, atol=1e-5)
    found = from_module(net, (TOKENS, WIDTH), bounds="clip", loss="cross_entropy").diagnostics
    assert "LIP122" in {diagnostic.code for diagnostic in found}


class Resized(nn.Module):
    """Positions made for one size of images, as they fit another; a table of angles; kinds of tokens at places."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.positions, self.head = nn.Parameter(torch.randn(1, WIDTH, 2, 2)), nn.Linear(WIDTH, 3)
        self.register_buffer("rates", torch.rand(WIDTH))
        self.kinds: Tensor
        self.register_buffer("kinds", torch.arange(24.0).view(2, 12).roll(5))

    def forward(self, x: Tensor) -> Tensor:
        positions = F.interpolate(self.positions, size=(3, 3), mode="bicubic", antialias=True)
        angles = torch.einsum("i,j->ij", torch.arange(9.0), self.rates)
        kinds = self.kinds.gather(1, torch.arange(9)[None] * 0 + torch.tensor([[3, 0, 1, 2, 5, 4, 11, 7, 6]]))
        moved = x + positions.flatten(2).transpose(1, 2) + angles.sin()
        return self.head((moved * kinds[0, :, None]).tanh().mean(1))  # type: ignore[no-any-return]


def test_constants_are_resized_and_taken_apart() -> None:
    """The module itself says what the numbers are; what is resized is trained itself, and told."""
    net, x = Resized(), torch.randn(4, 9, WIDTH, generator=torch.Generator().manual_seed(1))
    with pytest.warns(UserWarning, match="the weight that Resize computes from `positions`"):
        module = lipcompile.private(net, x, bounds="clip")
    torch.testing.assert_close(module(x), net(x), rtol=1e-4, atol=1e-5)


class OneHead(nn.Module):
    """Two heads of queries attend to one head of keys and values, which is broadcast, as in Falcon."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.queries, self.keys, self.values = (nn.Linear(WIDTH, n) for n in (6, 3, 3))
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        q = self.queries(x).view(-1, TOKENS, 2, 3).transpose(1, 2)
        scores = q @ self.keys(x).unsqueeze(1).mT / 3**0.5
        mixed = scores.softmax(-1) @ self.values(x).unsqueeze(1)
        return self.head(mixed.transpose(1, 2).reshape(-1, TOKENS, 6).mean(1))  # type: ignore[no-any-return]


@pytest.mark.parametrize("bounds", ["clip", "theorem"])
def test_heads_may_share_keys_that_are_broadcast(bounds: Any) -> None:
    net, x = OneHead(), torch.randn(4, TOKENS, WIDTH, generator=torch.Generator().manual_seed(1))
    options = {"bounds": bounds, "input_norm": 9.0, "constraint": "keep"}
    module = lipcompile.private(net, x, **options)
    torch.testing.assert_close(module(x), net(x), rtol=1e-4, atol=1e-5)

"""Masks, positions and other functions of an example without a Lipschitz constant.

Each network computes what torch computes. The gradient of a batch is the sum of clipped gradients that torch.func
finds example by example. What crosses the batch is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import lipcompile
from lipcompile import InputError
from lipcompile.core.backend import instantiate
from tests.torch.clip_nets import clipped, expected, whole

pytestmark = pytest.mark.slow

TEXTS = torch.tensor([[3, 5, 2, 0, 0, 0], [4, 1, 7, 2, 9, 6], [8, 0, 0, 0, 0, 0], [2, 2, 3, 1, 0, 0]])
WIDTH, WORDS = 4, 10


class Text(nn.Module):
    """An embedding, a function of tokens and embedded tokens, and a layer."""

    def __init__(self, function: Callable[[Any, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.head, self.function = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 3), function
        if function is padding_mask:
            self.encoder = nn.TransformerEncoderLayer(WIDTH, 2, 6, 0.0, batch_first=True)
        if function in (positions, halves, columns):
            self.places = nn.Embedding(8, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.function(self, x, self.words(x)))  # type: ignore[no-any-return]


def mean_of_words(_: Any, x: Tensor, e: Tensor) -> Tensor:
    mask = (x != 0).float().unsqueeze(-1)
    return (e * mask).sum(1) / mask.sum(1)


def padding_mask(net: Any, x: Tensor, e: Tensor) -> Tensor:
    return net.encoder(e, src_key_padding_mask=x == 0)[:, 0]  # type: ignore[no-any-return]


def boolean_mask(_: Any, x: Tensor, e: Tensor) -> Tensor:
    e = e.unsqueeze(1)
    return F.scaled_dot_product_attention(e, e, e, attn_mask=(x != 0)[:, None, None, :]).mean((1, 2))


def positions(net: Any, x: Tensor, e: Tensor) -> Tensor:
    mask = x.ne(0).int()
    return (e + net.places((mask.cumsum(1) * mask).long() + 1)).mean(1)  # type: ignore[no-any-return]


def halves(net: Any, x: Tensor, e: Tensor) -> Tensor:
    return (e + net.places((x + 1) // 2)).mean(1)  # type: ignore[no-any-return]


def last_word(_: Any, x: Tensor, e: Tensor) -> Tensor:
    last = (x != 0).sum(1, keepdim=True) - 1
    return (e * (torch.arange(6)[None] == last).unsqueeze(-1)).sum(1)


def hidden_words(_: Any, x: Tensor, e: Tensor) -> Tensor:
    return e.masked_fill(((x == 3) | ((x > 5) & ~(x >= 8))).unsqueeze(-1), -2.0).amax(1)


def columns(net: Any, x: Tensor, _: Tensor) -> Tensor:
    """A table for each column, as of categories; the second has fewer entries."""
    return net.words(x[:, 0]) * net.places(x[:, 5:]).squeeze(1)  # type: ignore[no-any-return]


def _last(x: Tensor) -> Tensor:
    """The place of the last word that is no padding, as transformers finds it."""
    return ((x != 0).int() * torch.arange(6)).argmax(-1)


def state_of_last(_: Any, x: Tensor, e: Tensor) -> Tensor:
    """As models that classify texts by their last word, and as recurrent ones by the length of the text."""
    return e[torch.arange(len(x)), _last(x)] + e.tanh()[torch.arange(x.shape[0]), (x != 0).sum(1) - 1]


def _numbers(x: Tensor) -> Tensor:
    return torch.arange(x.shape[0])[:, None]


def masks_by_number(_: Any, x: Tensor, e: Tensor) -> Tensor:
    """As transformers takes the mask of an example: by the number of the example, and by places."""
    mask = (x != 0)[_numbers(x), torch.arange(6)[None]]
    return (e * mask.unsqueeze(-1)).mean(1) + e[torch.arange(x.shape[0]), 1]


TEXT = (
    mean_of_words,
    padding_mask,
    boolean_mask,
    positions,
    halves,
    last_word,
    hidden_words,
    masks_by_number,
    columns,
)
BY_THEOREM = (positions, last_word, hidden_words, state_of_last)


def batch_length(_: Any, x: Tensor, e: Tensor) -> Tensor:
    longest = (x != 0).sum(1).max()
    return (e * (torch.arange(6)[None] < longest).unsqueeze(-1)).mean(1)


def batch_positions(_: Any, x: Tensor, e: Tensor) -> Tensor:
    return (e * (x != 0).float().cumsum(0).unsqueeze(-1)).mean(1)


def same_words(_: Any, x: Tensor, e: Tensor) -> Tensor:
    return (e * (x[:, None] == x[None]).float().mean((1, 2))[:, None, None]).mean(1)


def mask_of_another(_: Any, x: Tensor, e: Tensor) -> Tensor:
    return (e * (x != 0).flip(0).unsqueeze(-1)).mean(1)


def masks_of_the_last(_: Any, x: Tensor, e: Tensor) -> Tensor:
    numbers = torch.arange(x.shape[0] - 1, -1, -1)[:, None]
    return (e * (x != 0)[numbers, torch.arange(6)[None]].unsqueeze(-1)).mean(1)


def masks_of_the_largest(_: Any, x: Tensor, e: Tensor) -> Tensor:
    numbers = torch.maximum(_numbers(x), torch.tensor([[2]]))
    return (e * (x != 0)[numbers, torch.arange(6)[None]].unsqueeze(-1)).mean(1)


def masks_of_one(_: Any, x: Tensor, e: Tensor) -> Tensor:
    return (e * (x != 0)[_numbers(x)[:1], torch.arange(6)[None]].unsqueeze(-1)).mean(1)


def words_by_number(net: Any, x: Tensor, e: Tensor) -> Tensor:
    return e.mean(1) + net.words(torch.arange(x.shape[0]))  # type: ignore[no-any-return]


def places_by_number(_: Any, x: Tensor, e: Tensor) -> Tensor:
    numbers = torch.arange(x.shape[0])
    return e[numbers, numbers]


def plus_number(_: Any, x: Tensor, e: Tensor) -> Tensor:
    return e.mean(1) + _numbers(x)


def some_numbers(_: Any, x: Tensor, e: Tensor) -> Tensor:
    return e.mean(1) * (_numbers(x) > 1)


def twice_by_number(_: Any, x: Tensor, e: Tensor) -> Tensor:
    numbers = torch.arange(x.shape[0])
    return e[torch.stack([numbers, numbers], 1)].mean((1, 2))


def columns_of_others(net: Any, x: Tensor, _: Tensor) -> Tensor:
    return net.words(x.flip(0)[:, 0])  # type: ignore[no-any-return]


def state_of_another(_: Any, x: Tensor, e: Tensor) -> Tensor:
    return e[torch.arange(len(x)).flip(0), _last(x)]


def state_of_any(_: Any, x: Tensor, e: Tensor) -> Tensor:
    return e[_last(x), _last(x)]


def state_by_number(_: Any, x: Tensor, e: Tensor) -> Tensor:
    numbers = torch.arange(len(x))
    return e[numbers, _last(x) + numbers]


def largest_of_batch(_: Any, __: Tensor, e: Tensor) -> Tensor:
    return e.mean(1) * (e.mean(1).argmax(0, keepdim=True) + 1)


MIXING = (
    *(state_of_another, state_of_any, state_by_number, largest_of_batch),
    *(batch_length, batch_positions, same_words, mask_of_another),
    *(masks_of_the_last, masks_of_the_largest, masks_of_one),
    *(words_by_number, places_by_number, plus_number, some_numbers, columns_of_others),
)


class Numbers(nn.Module):
    """A function of the outputs of a layer, and a layer."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.head, self.function = nn.Linear(6, 4), nn.Linear(4, 3), function

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.function(self.first(x)))  # type: ignore[no-any-return]


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "exp": lambda h: torch.exp(-h * h),
    "power": lambda h: h.clamp(min=0.01) ** 0.7 + 2.0**h,
    "root and log": lambda h: (h * h + 1).log() + h.abs().sqrt(),
    "quotient": lambda h: h / (h.norm(dim=-1, keepdim=True) + 0.01) + 1 / (1 + h * h),
    "select": lambda h: torch.where((h > 0.1) & (h <= 2), h * h, h - 1) + F.softshrink(h),
    "jumps": lambda h: h * (torch.floor(h) + torch.ceil(h) + torch.round(h)) + torch.nan_to_num(h),
    "place": lambda h: h * (h.relu().argmax(-1, keepdim=True) + h.view(-1, 2, 2).argmin(1).repeat(1, 2)),
    "truth": lambda h: h * ((h > 0) ^ (h < 1)),
}


def compiled(net: nn.Module, example: Any, folder: Path, bounds: Any = "clip", **options: Any) -> Any:
    """Compile, which compares with the original; return the module."""
    options |= {"example": example, "loss": "cross_entropy", "bounds": bounds}
    path = lipcompile.compile(net, folder / "net.py", **options)
    return instantiate(path, path.read_text(encoding="utf-8"))


def attacked(net: nn.Module, module: Any, x: Tensor) -> None:
    """Hold outputs and clipped gradients against those of torch, and leave each example out."""
    y = torch.arange(len(x)) % 3
    torch.testing.assert_close(module(x), net(x), rtol=1e-4, atol=1e-5)
    found, wanted = clipped(module, x, y), expected(module, x, y)
    for key, gradient in wanted.items():
        assert torch.allclose(found[key].double(), gradient, rtol=2e-4, atol=2e-6 * whole(wanted)), key
    for left_out in range(len(x)):
        rest = [index for index in range(len(x)) if index != left_out]
        fewer = clipped(module, x[rest], y[rest])
        moved = whole({name: found[name].double() - fewer[name].double() for name in found})
        assert moved * module.normaliser <= 1 + 1e-5


@pytest.mark.parametrize("function", TEXT)
def test_texts_with_padding_are_clipped_example_by_example(function: Any, tmp_path: Path) -> None:
    net = Text(function).eval()
    module = compiled(net, TEXTS, tmp_path)
    module.normaliser = 1.0
    attacked(net, module, TEXTS)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_without_a_constant_are_clipped_example_by_example(name: str, tmp_path: Path) -> None:
    net = Numbers(FUNCTIONS[name]).eval()
    module = compiled(net, (6,), tmp_path)
    module.normaliser = 1.0
    attacked(net, module, torch.randn(5, 6, generator=torch.Generator().manual_seed(1)))


@pytest.mark.parametrize("function", BY_THEOREM)
def test_theorems_hold_behind_masks_and_positions(function: Any, tmp_path: Path) -> None:
    """No example moves the gradient of a parameter by more than its bound."""
    net = Text(function).eval()
    module = compiled(net, TEXTS, tmp_path, "theorem", constraint="keep")
    torch.testing.assert_close(module(TEXTS), net(TEXTS), rtol=1e-4, atol=1e-5)
    y = torch.tensor([0, 1, 2, 0])
    for index in range(len(TEXTS)):
        one = clipped(module, TEXTS[index : index + 1], y[index : index + 1])
        for name, bound in module.bounds.items():
            assert float(one[name].double().norm()) * module.normaliser <= bound * (1 + 1e-6)
    assert all(math.isfinite(bound) for bound in module.bounds.values())


@pytest.mark.parametrize("function", MIXING)
def test_masks_that_cross_the_batch_are_refused(function: Any) -> None:
    with pytest.raises(InputError) as refused:
        lipcompile.private(Text(function), TEXTS, bounds="clip")
    assert {found.code for found in refused.value.diagnostics} <= {"LIP108", "LIP100", "LIP102", "LIP110"}


def test_an_example_that_is_read_twice_is_read_from_the_trace_of_one() -> None:
    net = Text(twice_by_number).eval()
    module = lipcompile.private(net, TEXTS, bounds="clip")
    torch.testing.assert_close(module(TEXTS), net(TEXTS), rtol=1e-4, atol=1e-5)


OF_BATCH: dict[str, Callable[[Tensor], Tensor]] = {
    "compared": lambda h: torch.where(h > h.shape[0], h, -h),
    "base": lambda h: torch.pow(h.shape[0], h),
    "chosen": lambda h: torch.where(h > 0, h, h.shape[0]),
    "quotient": lambda h: h.shape[0] / (1 + h * h),
    "sum": lambda h: h / (h.sum() ** 2 + 1),
    "rows": lambda h: h / (h + h.flip(0)),
    "aligned": lambda h: torch.where(h[:, 0].roll(1) > 0, h.T[:4], h.T[:4] * 2).T,
}


@pytest.mark.parametrize("name", OF_BATCH)
def test_functions_of_the_batch_are_refused(name: str) -> None:
    with pytest.raises(InputError) as refused:
        lipcompile.private(Numbers(OF_BATCH[name]), (6,), bounds="clip")
    assert {found.code for found in refused.value.diagnostics} <= {"LIP108", "LIP100", "LIP110", "LIP120"}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_theorem_crosses_them(name: str) -> None:
    with pytest.raises(InputError, match=r"unsupported|not Lipschitz|discontinuous"):
        lipcompile.private(Numbers(FUNCTIONS[name]), (6,), bounds="theorem", input_norm=1)

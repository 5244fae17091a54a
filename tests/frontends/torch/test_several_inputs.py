"""Modules of several inputs, called as the reader's own: texts with masks and kinds of words, and numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from lipcompile_verify import verify
from torch import Tensor, nn

import lipcompile
from lipcompile import InputError
from lipcompile.analysis.tokens import vocabulary
from lipcompile.pipeline import from_module
from tests.frontends.torch.test_padded_texts import compiled
from tests.torch.clip_nets import clipped, expected, whole

WORDS, KINDS, WIDTH = 9, 2, 4
LENGTHS = torch.tensor([3, 5, 1, 4])
MASK = (torch.arange(5) < LENGTHS[:, None]).long()
IDS = torch.tensor([[3, 5, 2, 8, 8], [4, 1, 7, 2, 6], [8, 0, 0, 1, 1], [2, 2, 3, 1, 0]])
KIND = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 0, 0, 0], [0, 1, 1, 0, 1], [1, 1, 1, 1, 0]])


class Text(nn.Module):
    """As the encoders of transformers are: words, kinds of words, a mask of padding, and a mean over words."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.kinds = nn.Embedding(WORDS, WIDTH), nn.Embedding(KINDS, WIDTH)
        self.encoder = nn.TransformerEncoderLayer(WIDTH, 2, 6, 0.0, batch_first=True)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, ids: Tensor, mask: Tensor, kinds: Tensor) -> Tensor:
        padded = ~mask if mask.dtype == torch.bool else mask == 0
        h = self.encoder(self.words(ids) + self.kinds(kinds), src_key_padding_mask=padded)
        shown = (~padded)[:, :, None].float()
        found: Tensor = self.head((h * shown).sum(1) / shown.sum(1))
        return found


class Numbers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 3), nn.Linear(6, 3)

    def forward(self, image: Tensor, other: Tensor) -> Tensor:
        found: Tensor = self.left(image) + self.right(other.flatten(1))
        return found


class Truths(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, has: Tensor, shown: Tensor) -> Tensor:
        found: Tensor = self.layer(has.float()) * shown.float().mean(1, keepdim=True)
        return found


class Cached(Text):
    """As models of language are: beside the logits it returns what it keeps, unless it is told not to."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(use_cache=True)

    def forward(self, ids: Tensor, mask: Tensor, kinds: Tensor) -> Any:
        logits = super().forward(ids, mask, kinds)
        return (logits, SimpleNamespace(keys=logits)) if self.config.use_cache else (logits,)


def text(mask: Tensor = MASK) -> dict[str, Tensor]:
    return {"ids": IDS, "mask": mask, "kinds": KIND}


@pytest.mark.parametrize("mask", [MASK, MASK.bool()], ids=["whole numbers", "truths"])
def test_texts_with_masks_are_clipped_example_by_example(mask: Tensor, tmp_path: Path) -> None:
    net, inputs = Text().eval(), text(mask)
    module = compiled(net, inputs, tmp_path)
    module.normaliser = 1.0
    torch.testing.assert_close(module(**inputs), net(**inputs))
    x, y = torch.cat([part.long() for part in inputs.values()], 1), torch.tensor([0, 1, 2, 0])
    found, wanted = clipped(module, x, y), expected(module, x, y)
    for name, gradient in wanted.items():
        assert torch.allclose(found[name].double(), gradient, rtol=2e-4, atol=2e-6 * whole(wanted)), name


class Apart(nn.Module):
    """Words of two inputs in one table, of one alone and of both together."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, title: Tensor, text: Tensor) -> Tensor:
        alone = torch.tanh(self.words(title).mean(1))
        return self.head(alone * self.words(torch.cat([title, text], 1)).sum(1))  # type: ignore[no-any-return]


def test_a_table_is_shared_by_an_input_and_by_joined_ones(tmp_path: Path) -> None:
    given = {"title": IDS[:, :2], "text": IDS[:, 2:]}
    net = Apart().eval()
    module = compiled(net, given, tmp_path)
    module.normaliser = 1.0
    torch.testing.assert_close(module(**given), net(**given))
    x, y = torch.cat([*given.values()], 1), torch.tensor([0, 1, 2, 0])
    found, wanted = clipped(module, x, y), expected(module, x, y)
    assert {name.rpartition(".")[2] for name in wanted} == {"table", "weight", "bias"}
    for name, gradient in wanted.items():
        assert torch.allclose(found[name].double(), gradient, rtol=2e-4, atol=2e-6 * whole(wanted)), name


def test_what_a_model_of_language_keeps_is_left_out() -> None:
    net = Cached().eval()
    module = lipcompile.private(net, text(), bounds="clip")
    torch.testing.assert_close(module(**text()), net(**text())[0])
    assert net.config.use_cache


CALLS: Mapping[str, Callable[[Any, dict[str, Tensor]], Tensor]] = {
    "by position": lambda module, given: module(*given.values()),
    "by name": lambda module, given: module(**dict(reversed(given.items()))),
    "the last by name": lambda module, given: module(given["ids"], given["mask"], kinds=given["kinds"]),
    "in a mapping": lambda module, given: module(given),
    "as one": lambda module, given: module(torch.cat([*given.values()], 1)),
}


@pytest.fixture(scope="module")
def private() -> Any:
    return lipcompile.private(Text().eval(), text(), bounds="clip")


@pytest.mark.parametrize("way", CALLS)
def test_inputs_are_given_as_the_module_takes_them(way: str, private: Any) -> None:
    torch.testing.assert_close(CALLS[way](private, text()), Text().eval()(**text()))


WRONG: Mapping[str, tuple[Callable[[Any], Tensor], str]] = {
    "missing": (
        lambda module: module(IDS, MASK),
        r"ids, mask, kinds, in this order or by name; got 2 by position",
    ),
    "unknown": (lambda module: module(IDS, MASK, labels=KIND), "got 2 by position, labels"),
    "twice": (lambda module: module(IDS, MASK, KIND, kinds=KIND), "got 3 by position, kinds"),
    "too many": (lambda module: module(IDS, MASK, KIND, KIND), "got 4 by position"),
    "a shape": (lambda module: module(IDS, MASK[:, :4], KIND), r"expected `mask` of shape \[B, 5\], got \(4, 4\)"),
    "a batch": (lambda module: module(IDS, MASK[:3], KIND), "different sizes: ids 4, mask 3, kinds 4"),
    "real numbers": (lambda module: module(IDS, MASK.float(), KIND), "`mask` as tokens of an integer dtype"),
    "one of several": (lambda module: module(ids=IDS), r"ids, mask, kinds, in this order or by name; got ids$"),
    "a list": (lambda module: module([IDS, MASK, KIND]), r"got 1 by position \(list\)"),
    "no tensor": (lambda module: module(IDS, None, KIND), "`mask` is no tensor, but of type NoneType"),
}


@pytest.mark.parametrize("way", WRONG)
def test_other_inputs_are_refused(way: str, private: Any) -> None:
    call, reason = WRONG[way]
    with pytest.raises((TypeError, ValueError), match=reason):
        call(private)


def test_truth_values_alone_are_tokens() -> None:
    """Features that an example has or has not, as the module was traced."""
    net, given = Truths(), (torch.eye(4) > 0, torch.ones(4, 2) > 0)
    module = lipcompile.private(net, given, bounds="clip")
    torch.testing.assert_close(module(*given), net(*given))
    torch.testing.assert_close(module(*(x.to(torch.uint16) for x in given)), net(*given))


def test_whole_numbers_are_not_joined_to_real_ones() -> None:
    """As of images that were not scaled; alone they are refused as well."""
    module = lipcompile.private(Numbers(), (torch.randn(5, 4), torch.randn(5, 2, 3)), bounds="clip")
    with pytest.raises(ValueError, match=r"expected `other` as floating point numbers, got torch.uint8"):
        module(torch.randn(5, 4), torch.ones(5, 2, 3, dtype=torch.uint8))


def test_views_are_as_many_in_each_input() -> None:
    module = lipcompile.private(Numbers(), (torch.randn(5, 4), torch.randn(5, 2, 3)), bounds="clip")
    with module.on_views(), pytest.raises(ValueError, match="different sizes: image 5 × 2, other 5 × 3"):
        module(torch.randn(5, 2, 4), torch.randn(5, 3, 2, 3))


def test_views_of_several_inputs() -> None:
    """Two equal views are one: the output of each, and the loss of their mean."""
    given = (torch.randn(5, 4), torch.randn(5, 2, 3))
    module = lipcompile.private(Numbers(), given, bounds="clip")
    with module.on_views():
        found = module(*(torch.stack([x, x], 1) for x in given))
    torch.testing.assert_close(found, module(*given)[:, None].expand(5, 2, 3))


@pytest.mark.parametrize("kind", ["texts", "numbers"])
def test_a_batch_without_examples_is_one(kind: str, private: Any) -> None:
    """Poisson sampling draws them. A loss of nothing has no gradient, and no size of it can be inferred."""
    given = [*text().values()] if kind == "texts" else [torch.randn(2, 4), torch.randn(2, 2, 3)]
    module = private if kind == "texts" else lipcompile.private(Numbers(), tuple(given), bounds="clip")
    found = clipped(module, torch.cat([x[:0].flatten(1) for x in given], 1), torch.zeros(0).long())
    assert module(*(x[:0] for x in given)).shape == (0, 3)
    assert not any(gradient.any() for gradient in found.values())


def test_shapes_may_stand_for_examples(private: Any) -> None:
    """Shapes alone mean real numbers, unless the module takes none."""
    shapes = dict.fromkeys(text(), (5,))
    torch.testing.assert_close(lipcompile.private(Text().eval(), shapes)(**text()), private(**text()))
    numbers = lipcompile.private(Numbers(), {"image": (4,), "other": [2, 3]}, bounds="clip")
    assert numbers.input_parts == {"image": (4,), "other": (2, 3)}


def test_each_entry_has_the_tokens_of_the_tables_that_read_it() -> None:
    """A mask that no table reads may hold as many as the largest: what it is compared with is not known."""
    analysis = from_module(Text().eval(), text(), bounds="clip", loss="cross_entropy").analysis
    assert analysis is not None
    assert vocabulary(analysis.graph) == (*[WORDS] * 5, *[WORDS] * 5, *[KINDS] * 5)


class Towers(nn.Module):
    """A number of a user and one of an item, each with a table of its own, and a shift of one number."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.users, self.items, self.shift = nn.Embedding(5, 3), nn.Embedding(7, 3), nn.Parameter(torch.ones(1))

    def forward(self, ids: Tensor) -> Tensor:
        return self.both(ids[:, 0], ids[:, 1])

    def both(self, user: Tensor, item: Tensor) -> Tensor:
        found: Tensor = (self.users(user) * self.items(item)).sum(-1) + self.shift
        return found


class Pairs(Towers):
    def forward(self, user: Tensor, item: Tensor) -> Tensor:  # type: ignore[override]
        return self.both(user, item)


@pytest.mark.parametrize("kind", [Towers, Pairs])
def test_a_token_of_each_column_selects_a_row_and_all_is_clipped(kind: type[Towers]) -> None:
    """The gradients are those of torch, one example at a time; the shift is a parameter without axes."""
    ids, wanted = torch.tensor([[4, 6], [0, 2], [4, 2]]), torch.tensor([3.0, -2.0, 0.5])
    given = (ids,) if kind is Towers else tuple(ids.T)
    example = ids if kind is Towers else {"user": ids[:, 0], "item": ids[:, 1]}
    module, loss = kind(), nn.MSELoss()
    private = lipcompile.private(module, example, loss=loss, bounds="clip", clip_length=0.5)
    torch.testing.assert_close(private(*given), module(*given))
    private.guard_layers()
    private.gate.reset()
    private.criterion(private(*given), wanted).backward()
    sums = [torch.zeros_like(one) for one in module.parameters()]
    for row, target in zip(ids, wanted, strict=True):
        value = (module.users.weight[row[0]] * module.items.weight[row[1]]).sum() + module.shift[0]
        gradients = torch.autograd.grad((value - target) ** 2, list(module.parameters()))
        norm = torch.stack([one.norm() for one in gradients]).norm()
        for total, one in zip(sums, gradients, strict=True):
            total += one * min(1.0, 0.5 / float(norm))
    found = {one.shape.numel(): one.grad for one in private.parameters()}
    for total in sums:
        torch.testing.assert_close(found[total.numel()].reshape(total.shape), total)


def test_a_column_of_tokens_reads_its_table_alone() -> None:
    analysis = from_module(Towers(), (2,), bounds="clip", loss="mean_squared_error").analysis
    assert analysis is not None
    assert vocabulary(analysis.graph) == (5, 7)
    assert [node.op.name for node in analysis.graph.nodes].count("embedding") == 2


class Search(nn.Module):
    """A query and a text of other lengths, whose words have one table."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.left, self.right = nn.Embedding(5, 3), nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, query: Tensor, words: Tensor) -> Tensor:
        return torch.cat([self.left(self.words(query).mean(1)), self.right(self.words(words).sum(1))], 1)


QUERY, WORDS_OF = torch.tensor([[0, 0], [3, 1]]), torch.tensor([[0, 0, 0, 0, 0], [1, 2, 2, 4, 0]])


@pytest.mark.filterwarnings("ignore:.*it will be scaled down")
def test_tokens_of_several_lengths_share_a_table() -> None:
    """If all tokens are alike, a row gets the gradient of the mean once and that of the sum five times.

    Weights of norm 1 hand on the whole gradient of the loss, √2 at most: √2·√(1 + 25) in all, which no loss
    of both halves reaches. Two logits of the sum alone do reach 5·√2.
    """
    proved = lipcompile.private(Search(), {"query": QUERY, "words": WORDS_OF}, bounds="theorem")
    table = next(name for name in proved.bounds if "words" in name)
    assert 50**0.5 <= proved.bounds[table] <= 52**0.5 * (1 + 1e-6)
    assert not verify(proved.certificate).problems


def test_uses_of_a_table_by_several_lengths_are_clipped_as_one() -> None:
    module = Search()
    private = lipcompile.private(module, {"query": QUERY, "words": WORDS_OF}, bounds="clip", clip_length=0.5)
    assert not verify(private.certificate).problems
    x, y = torch.cat([QUERY, WORDS_OF], 1), torch.tensor([1, 3])
    torch.testing.assert_close(private(QUERY, WORDS_OF), module(QUERY, WORDS_OF))
    found, wanted = clipped(private, x, y), expected(private, x, y)
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name].double(), gradient)


def test_numbers_beside_tokens_are_refused() -> None:
    with pytest.raises(
        InputError, match=r"whole numbers, `ids`, `kinds`, beside .*, `mask`, are not yet supported"
    ):
        lipcompile.private(Text(), text(MASK.float()), bounds="clip", input_norm=9)


@pytest.mark.filterwarnings("ignore:a fixed seed makes")
def test_training_takes_the_inputs_by_their_names(tmp_path: Path) -> None:
    """A mapping, and the examples as one array, give the same weights."""
    inputs, y = {name: np.tile(part.numpy(), (4, 1)) for name, part in text().items()}, np.tile([0, 1, 2, 0], 4)
    whole_input = np.concatenate([*inputs.values()], 1)
    options: dict[str, Any] = {"epsilon": 9, "delta": 1e-2, "epochs": 1, "batch_size": 4, "loss": "cross_entropy"}
    options |= {"example": text(), "bounds": "clip", "how": {"seed": 0}}
    found = [
        lipcompile.train(Text().eval(), (x, y, x, y), tmp_path / name, **options)
        for name, x in (("mapping", inputs), ("array", whole_input))
    ]
    assert found[0].steps == found[1].steps == 4
    saved = [torch.load(tmp_path / name / "checkpoint.pt")["states"]["module"] for name in ("mapping", "array")]
    assert all(torch.equal(saved[0][name], saved[1][name]) for name in saved[0])


class Named(nn.Module):
    """Inputs with the names that files and data sets have for other things."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.left, self.right = nn.Linear(2, 3), nn.Linear(1, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        found: Tensor = self.left(x) + self.right(y[:, None])
        return found


class Items(torch.utils.data.Dataset[Any]):
    def __init__(self, inputs: Mapping[str, Any], labels: Any) -> None:
        self.inputs, self.labels = inputs, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Any:
        return {name: array[index] for name, array in self.inputs.items()}, self.labels[index]


@pytest.mark.filterwarnings("ignore:a fixed seed makes")
def test_an_input_called_y_is_not_the_labels(tmp_path: Path) -> None:
    """Mappings, data sets, and the examples as one array give the same weights."""
    draws, labels = np.random.default_rng(0), np.arange(16) % 3
    inputs = {"x": draws.normal(size=(16, 2)), "y": draws.normal(size=16)}  # in float64, as numpy draws them
    ways: dict[str, Any] = {
        "mappings": (inputs, labels, inputs, labels),
        "data sets": (Items(inputs, labels), Items(inputs, labels)),
        "arrays": (joined := np.column_stack([*inputs.values()]), labels, joined, labels),
    }
    options: dict[str, Any] = {"epsilon": 9, "delta": 1e-2, "epochs": 1, "batch_size": 4, "loss": "cross_entropy"}
    saved = {}
    for name, data in ways.items():
        more: Any = {"example": {"x": (2,), "y": ()}} if name == "arrays" else {}
        lipcompile.train(Named(), data, tmp_path / name, bounds="clip", how={"seed": 0}, **options, **more)
        saved[name] = torch.load(tmp_path / name / "checkpoint.pt")["states"]["module"]
    for weights in saved.values():
        assert all(torch.equal(weights[name], value) for name, value in saved["arrays"].items())


class Weighted(nn.Module):
    """Two inputs of one size, which are not to be confused."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, 3)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        found: Tensor = self.last(first - 2 * second.flatten(1))
        return found


def test_several_inputs_are_given_one_by_one_in_the_order_of_forward() -> None:
    first, second = torch.randn(5, 4), torch.randn(5, 2, 2)
    module = Weighted()
    wanted = module(first, second)
    for example in ((first, second), {"first": first, "second": second}, {"second": second, "first": first}):
        made = lipcompile.private(module, example)
        torch.testing.assert_close(made(first, second), wanted)
        torch.testing.assert_close(made(torch.cat([first, second.flatten(1)], 1)), wanted)

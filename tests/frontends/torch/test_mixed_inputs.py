"""Whole numbers beside real ones: categories through tables, and numbers of a table, in one module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lipcompile_privacy.errors import DataError
from torch import Tensor, nn

import lipcompile
from lipcompile import InputError
from lipcompile.analysis.tokens import places
from lipcompile.pipeline import from_module
from tests.torch.clip_nets import clipped, expected, whole

CATEGORIES = torch.tensor([[0, 3], [6, 0], [2, 1], [5, 2]])
NUMBERS = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
KNOWN = NUMBERS > 0


class Columns(nn.Module):
    """As models of tables are."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Embedding(7, 3), nn.Embedding(4, 2)
        self.hidden, self.head = nn.Linear(3 + 2 + 5, 8), nn.Linear(8, 3)

    def forward(self, categories: Tensor, numbers: Tensor) -> Tensor:
        rows = [self.first(categories[:, 0]), self.second(categories[:, 1]), numbers]
        found: Tensor = self.head(self.hidden(torch.cat(rows, 1)).relu())
        return found


class Missing(Columns):
    """Some numbers are not known."""

    def forward(self, categories: Tensor, numbers: Tensor, known: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(categories, torch.where(known, numbers, 0.0))


def compiled(module: nn.Module, *inputs: Tensor, **options: Any) -> Any:
    names = ("categories", "numbers", "known")
    return lipcompile.private(module, dict(zip(names, inputs, strict=False)), bounds="clip", **options).eval()


@pytest.mark.parametrize(("kind", "inputs"), [(Columns, 2), (Missing, 3)])
def test_a_module_of_both_kinds_is_called_as_before(kind: type[Columns], inputs: int) -> None:
    given = (CATEGORIES, NUMBERS, KNOWN)[:inputs]
    module = kind().eval()
    before = type(module), {name: value.clone() for name, value in module.state_dict().items()}
    private = compiled(module, *given)
    torch.testing.assert_close(private(*given), module(*given))
    torch.testing.assert_close(
        private(numbers=NUMBERS, **dict(zip(("categories", "known"), given[::2], strict=False))), module(*given)
    )
    assert type(module) is before[0]
    assert module.state_dict().keys() == before[1].keys()
    assert all(torch.equal(value, before[1][name]) for name, value in module.state_dict().items())


def test_each_gradient_is_clipped_as_one() -> None:
    private = compiled(Columns(), CATEGORIES, NUMBERS, clip_length=0.1).train()
    x = torch.cat([CATEGORIES.to(NUMBERS.dtype), NUMBERS], 1)
    y = torch.tensor([0, 1, 2, 1])
    found = clipped(private, x, y)
    wanted = expected(private, x, y)
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name].double(), gradient.double())
    assert whole(found) <= 0.1 * len(x) * (1 + 1e-6)


def test_whole_numbers_that_real_ones_would_round_are_refused() -> None:
    private = compiled(Columns(), CATEGORIES, NUMBERS)
    with pytest.raises(ValueError, match=r"`categories` holds whole numbers that torch\.float16 rounds"):
        private(CATEGORIES + 2048, NUMBERS.half())


@pytest.mark.parametrize("options", [{"bounds": "theorem", "input_norm": 1}, {"bounds": "clip", "input_norm": 1}])
def test_where_examples_are_scaled_both_kinds_are_refused(options: dict[str, Any]) -> None:
    """A norm is clipped by a factor, which would make other categories."""
    with pytest.raises(InputError) as refused:
        lipcompile.private(Columns(), {"categories": CATEGORIES, "numbers": NUMBERS}, **options)
    assert "LIP105" in {found.code for found in refused.value.diagnostics}


def test_a_table_of_both_kinds_is_trained_on(tmp_path: Path) -> None:
    x = {"categories": CATEGORIES.repeat(16, 1).numpy(), "numbers": NUMBERS.repeat(16, 1).numpy()}
    y = CATEGORIES[:, 0].remainder(3).repeat(16).numpy()
    how = {"accountant": "rdp"}
    result = lipcompile.train(
        Columns(), (x, y, x, y), tmp_path / "run", loss="cross_entropy", epsilon=8, delta=1e-3, epochs=1, how=how
    )
    assert result.epsilon <= 8


def test_data_of_categories_that_would_be_rounded_are_refused(tmp_path: Path) -> None:
    """2²⁴ + 1 is no float32."""
    x = {"categories": CATEGORIES.numpy() + 2**24, "numbers": NUMBERS.numpy()}
    y = CATEGORIES[:, 0].remainder(3).numpy()
    with pytest.raises(DataError, match="the entries of categories are whole numbers that float32 rounds"):
        lipcompile.train(
            Columns(), (x, y, x, y), tmp_path / "run", loss="cross_entropy", epsilon=8, delta=1e-3, epochs=1
        )


def test_bytes_of_data_are_categories_where_the_example_says_so(tmp_path: Path) -> None:
    y = CATEGORIES[:, 0].remainder(3).repeat(16).numpy()
    trained = []
    for kind in (np.uint8, np.int64):
        x = {"categories": CATEGORIES.repeat(16, 1).numpy().astype(kind), "numbers": NUMBERS.repeat(16, 1).numpy()}
        example = {"categories": CATEGORIES, "numbers": NUMBERS}
        torch.manual_seed(0)
        with pytest.warns(UserWarning, match="seed"):
            lipcompile.train(
                *(Columns(), (x, y, x, y), tmp_path / kind.__name__),
                loss="cross_entropy",
                epsilon=8,
                delta=1e-3,
                epochs=1,
                example=example,
                how={"accountant": "rdp", "seed": 1},
            )
        trained.append(torch.load(tmp_path / kind.__name__ / "checkpoint.pt", weights_only=False))
    bytes_, whole = (one["states"]["module"] for one in trained)
    assert all(torch.equal(bytes_[name], whole[name]) for name in whole)


def test_places_without_names_are_computed_alone() -> None:
    class Places(Columns):
        def forward(self, *given: Tensor) -> Tensor:
            return super().forward(*given)

    module = Places()
    with pytest.warns(UserWarning, match="one example at a time"):
        private = lipcompile.private(module, (CATEGORIES, NUMBERS), bounds="clip")
    torch.testing.assert_close(private(CATEGORIES, NUMBERS), module(CATEGORIES, NUMBERS))


def test_bytes_beside_real_numbers_are_no_categories() -> None:
    """Images of bytes would be joined without being divided by 255."""
    private = compiled(Columns(), CATEGORIES, NUMBERS)
    with pytest.raises(ValueError, match=r"expected `categories` as floating point numbers, got torch\.uint8"):
        private(CATEGORIES.to(torch.uint8), NUMBERS)


class Shifted(Columns):
    """One table for both columns: the rows of the second begin behind those of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Embedding(11, 4)
        self.hidden = nn.Linear(8 + 5, 8)

    def forward(self, categories: Tensor, numbers: Tensor) -> Tensor:
        rows = self.both(categories + torch.tensor([0, 7])).flatten(1)
        found: Tensor = self.head(self.hidden(torch.cat([rows, numbers], 1)).relu())
        return found


class Cast(Columns):
    """One tensor of real numbers, of which the first two are categories."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x[:, :2].long(), x[:, 2:])


@pytest.mark.parametrize("kind", [Columns, Shifted, Cast])
@pytest.mark.filterwarnings("ignore:the output does not depend")
def test_trained_weights_go_back(kind: type[Columns]) -> None:
    given = (torch.cat([CATEGORIES, NUMBERS], 1),) if kind is Cast else (CATEGORIES, NUMBERS)
    example = given[0] if kind is Cast else dict(zip(("categories", "numbers"), given, strict=True))
    private = lipcompile.private(kind(), example, bounds="clip").eval()
    with torch.no_grad():
        for place, parameter in enumerate(one for one in private.parameters() if one.requires_grad):
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(place)))
    mine = lipcompile.load_trained(kind(), private, example)
    torch.testing.assert_close(mine(*given), private(*given))


@pytest.mark.parametrize(
    ("kind", "rows"), [(Columns, (7, 4)), (Shifted, (4, 4)), (Cast, (7, 4))], ids=["columns", "shifted", "cast"]
)
@pytest.mark.filterwarnings("ignore:the output does not depend")
def test_imports_are_compared_at_categories_that_exist(kind: type[Columns], rows: tuple[int, ...]) -> None:
    """Of one table of 11 rows, in which categories are moved by 7 at most, four are reached from any place."""
    example: Any = torch.zeros(2, 7) if kind is Cast else {"categories": CATEGORIES, "numbers": NUMBERS}
    analysis = from_module(kind(), example, bounds="clip", loss="cross_entropy").analysis
    assert analysis is not None
    assert [len(one) for one in places(analysis.graph)] == [*rows, 0, 0, 0, 0, 0]


class Lengths(nn.Module):
    """Attention to as many tokens as a length says, and the state at the last of them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attention, self.head = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 3)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        hidden = torch.arange(5).expand(len(tokens), 5) >= lengths.unsqueeze(1)
        made = self.attention(tokens, tokens, tokens, key_padding_mask=hidden, need_weights=False)[0]
        return self.head(made[torch.arange(len(made)), lengths - 1])  # type: ignore[no-any-return]


def test_lengths_are_compared_with_places() -> None:
    """The check of the import draws lengths from 1 to 5: torch attends to nothing where all is hidden."""
    given = {"tokens": torch.randn(4, 5, 4), "lengths": torch.tensor([1, 5, 3, 2])}
    net = Lengths().eval()
    module: Any = lipcompile.private(net, given, loss="cross_entropy", bounds="clip").eval()
    with torch.no_grad():
        assert torch.allclose(module(given), net(**given), atol=1e-6)


def test_places_may_count_from_the_end() -> None:
    """An index of torch that is negative does; lengths of 0 take the last state."""

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = nn.Embedding(7, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor, length: Tensor) -> Tensor:
            return self.head(self.words(x)[torch.arange(x.size(0)), length - 1])  # type: ignore[no-any-return]

    torch.manual_seed(0)
    given = {"x": torch.randint(7, (4, 5)), "length": torch.tensor([0, 5, 1, 3])}
    net = Last()
    module: Any = lipcompile.private(net, given, loss="cross_entropy", bounds="clip").eval()
    with torch.no_grad():
        assert torch.allclose(module(given), net(**given), atol=1e-6)

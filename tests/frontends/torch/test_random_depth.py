"""What drops entries at random and is written out by torch: each example must draw for itself."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from lipcompile.pipeline import from_module
from tests.emitters.test_emit import build

pytestmark = pytest.mark.slow

KEPT = 0.75
Drop = Callable[[Tensor], Tensor]


class Residual(nn.Module):
    """x + drop(relu(A·x)), then a head: [B, 6] -> [B, 3]; of an image [B, 2, 3, 3] with convolutions."""

    def __init__(self, drop: Drop, *, image: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Conv2d(2, 2, 3, padding=1) if image else nn.Linear(6, 6)
        self.head = nn.Linear(18 if image else 6, 3)
        self.drop = drop

    def forward(self, x: Tensor) -> Any:
        h = torch.relu(self.body(x))
        return self.head((x + (self.drop(h) if self.training else h)).flatten(1))


def one_each(x: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], *(1 for _ in x.shape[1:])).bernoulli_(KEPT)


def random_depth(x: Tensor) -> Tensor:
    """As torchvision's StochasticDepth and timm's DropPath draw."""
    return x * one_each(x).div_(KEPT)


def floored(x: Tensor) -> Tensor:
    """As transformers draws."""
    kept = KEPT + torch.rand((x.shape[0], *(1 for _ in x.shape[1:])))
    return x.div(KEPT) * kept.floor_()


def in_place(x: Tensor) -> Tensor:
    return F.dropout(x, 1 - KEPT, training=True, inplace=True)


def unscaled(x: Tensor) -> Tensor:
    return one_each(x) * x


def compared(x: Tensor) -> Tensor:
    return x * (torch.rand_like(x) > 1 - KEPT)


def compared_below(x: Tensor) -> Tensor:
    return x * (torch.rand_like(x) < KEPT).float() / KEPT


def compared_at_most(x: Tensor) -> Tensor:
    return x * (torch.rand_like(x) <= KEPT) / KEPT


def coins(x: Tensor) -> Tensor:
    return x * torch.bernoulli(torch.full_like(x, KEPT)) / KEPT


def coins_of_examples(x: Tensor) -> Tensor:
    return x / KEPT * torch.bernoulli(KEPT * torch.ones(len(x), 1))


def chosen(x: Tensor) -> Tensor:
    return torch.where(torch.rand_like(x) < KEPT, x / KEPT, torch.zeros_like(x))


def masked(x: Tensor) -> Tensor:
    return x.masked_fill(torch.rand_like(x) >= KEPT, 0.0) / KEPT


ACCEPTED: dict[str, tuple[Drop, bool, str, tuple[Any, ...]]] = {
    "random depth": (random_depth, False, "grouped_dropout", (Fraction(1, 4), 0)),
    "random depth of images": (random_depth, True, "grouped_dropout", (Fraction(1, 4), 0)),
    "random depth by a floor": (floored, False, "grouped_dropout", (Fraction(1, 4), 0)),
    "random depth without a factor": (unscaled, False, "grouped_dropout", (Fraction(1, 4), 0)),
    "channels": (nn.Dropout2d(1 - KEPT), True, "grouped_dropout", (Fraction(1, 4), 1)),
    "channels in place": (nn.Dropout2d(1 - KEPT, inplace=True), True, "grouped_dropout", (Fraction(1, 4), 1)),
    "entries above a number": (compared, False, "dropout", (Fraction(1, 4),)),
    "entries of images below a number": (compared_below, True, "dropout", (Fraction(1, 4),)),
    "entries at most a number": (compared_at_most, False, "dropout", (Fraction(1, 4),)),
    "coins": (coins, False, "dropout", (Fraction(1, 4),)),
    "coins of examples": (coins_of_examples, False, "grouped_dropout", (Fraction(1, 4), 0)),
    "entries that are chosen": (chosen, False, "dropout", (Fraction(1, 4),)),
    "entries that are masked": (masked, False, "dropout", (Fraction(1, 4),)),
    "entries in place": (in_place, False, "dropout", (Fraction(1, 4),)),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_noise_of_each_example_is_understood(name: str) -> None:
    drop, image, op, attributes = ACCEPTED[name]
    found = from_module(
        Residual(drop, image=image), (2, 3, 3) if image else (6,), input_norm=1, loss="cross_entropy"
    )
    assert found.ok, found.diagnostics
    assert found.analysis is not None
    (made,) = [node for node in found.analysis.graph.nodes if "dropout" in node.op.name]
    assert made.op.name == op
    values = [getattr(made.attributes, field) for field in ("probability", "axes")[: len(attributes)]]
    assert values == list(attributes)


def test_examples_draw_for_themselves_and_stay_below_the_bound(tmp_path: Path) -> None:
    """Gradients of one example at a time, by torch alone, with a draw each."""
    found = from_module(Residual(random_depth), (6,), input_norm=1, loss="cross_entropy")
    assert found.analysis is not None
    bound = float(found.analysis.total.value or 0)
    module = build(found, tmp_path).train()
    x = F.normalize(torch.randn(1000, 6, dtype=torch.float64))
    y = torch.randint(3, (1000,))
    weights = [p for p in module.parameters() if p.requires_grad]
    for one, label in zip(x[:200], y, strict=False):
        gradient = torch.autograd.grad(F.cross_entropy(module(one[None]), label[None]), weights)
        assert torch.cat([part.flatten() for part in gradient]).norm() <= bound
    torch.manual_seed(1)
    before = module(x)
    other = x.clone()
    other[7] = -other[7]
    torch.manual_seed(1)
    changed = (module(other) != before).any(dim=1)
    assert changed.nonzero().flatten().tolist() == [7]
    skipped = (module(x) - module(x)).abs().amax(dim=1) > 0  # 2·p·(1 - p) = 0.375 of a thousand, 8 deviations wide
    assert 250 <= int(skipped.sum()) <= 500


def for_the_batch(x: Tensor) -> Tensor:
    return x * x.new_empty(*(1 for _ in x.shape)).bernoulli_(KEPT).div_(KEPT)


def shared(x: Tensor) -> Tensor:
    kept = one_each(x)
    return x * kept + x.tanh() * kept


def uniform(x: Tensor) -> Tensor:
    return x * torch.rand(x.shape[0], 1)


def normal(x: Tensor) -> Tensor:
    return x + torch.randn_like(x)


def compared_twice(x: Tensor) -> Tensor:
    kept = (torch.rand_like(x) < KEPT).float()
    return x * kept + x.tanh() * kept


def compared_of_others(x: Tensor) -> Tensor:
    return x * (torch.rand_like(x[:, :1]) < KEPT)


def along_rows(x: Tensor) -> Tensor:
    return x.reshape(-1, 2, 3).mul(x.new_empty(x.shape[0], 1, 3).bernoulli_(KEPT)).reshape(-1, 6)


@pytest.mark.parametrize("drop", [shared, uniform, normal, along_rows, compared_twice, compared_of_others])
def test_other_noise_is_refused(drop: Drop) -> None:
    found = from_module(Residual(drop), (6,), input_norm=1, loss="cross_entropy")
    assert {d.code for d in found.diagnostics if d.severity == "error"} == {"LIP110"}


def test_a_draw_for_the_batch_is_one_for_each_example() -> None:
    """A batch of one has no other."""
    found = from_module(Residual(for_the_batch), (6,), input_norm=1, loss="cross_entropy")
    assert found.ok
    assert found.analysis is not None
    (made,) = [node for node in found.analysis.graph.nodes if "dropout" in node.op.name]
    assert (made.op.name, made.attributes.axes) == ("grouped_dropout", 0)


def test_a_mask_that_depends_on_the_batch_is_refused() -> None:
    """The largest example of a batch decides: with the same kind of nodes, examples meet."""

    def largest(x: Tensor) -> Tensor:
        return x * (x < x.amax(dim=0, keepdim=True)).float()

    found = from_module(Residual(largest), (6,), input_norm=1, loss="cross_entropy")
    assert not found.ok
    assert "LIP108" in {d.code for d in found.diagnostics}


# Dropout in place: what it writes over may be read again


def read_again(h: Tensor, drop: nn.Module) -> Any:
    return drop(h) + h


def read_whole(h: Tensor, drop: nn.Module) -> Tensor:
    drop(h.view(-1, 2, 3))
    return h


def read_before(h: Tensor, drop: nn.Module) -> Any:
    doubled = 2 * h
    return doubled + drop(input=h)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("use", "possible", "kept"), [(read_again, {0, 4}, 2), (read_whole, {0, 2}, 1), (read_before, {2, 4}, 3)]
)
def test_dropout_in_place_changes_what_is_read_after_it(
    use: Callable[[Tensor, nn.Module], Any], possible: set[int], kept: int, training: bool, tmp_path: Path
) -> None:
    """By hand, for an entry that is dropped or doubled: what was read before it stays."""

    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.drop = nn.Linear(6, 6), nn.Dropout(0.5, inplace=True)

        def forward(self, x: Tensor) -> Any:
            return use(self.body(x), self.drop)

    module = InPlace().train(training)
    found = from_module(module, (6,), input_norm=100, loss="absolute_error", constraint="keep")
    assert found.ok, found.diagnostics
    module, emitted = module.double(), build(found, tmp_path).train(training)
    x = torch.randn(64, 6, dtype=torch.float64)
    ratios = [net(x) / module.body(x) for net in (module, emitted)]
    for ratio in ratios:
        assert set(ratio.detach().mul(1000).round().div(1000).abs().unique().tolist()) == (
            possible if training else {kept}
        )
    assert module.drop.inplace
    assert not module.drop._forward_hooks


# Draws in evaluation mode, where emitted modules make none


def always(h: Tensor) -> Tensor:
    return F.dropout(h, 0.5, training=True)


def by_default(h: Tensor) -> Tensor:
    return F.dropout(h)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("drop", [always, by_default, random_depth, in_place])
def test_draws_in_evaluation_mode_are_refused(drop: Drop, training: bool) -> None:
    class Always(Residual):
        def forward(self, x: Tensor) -> Any:
            return self.head(self.drop(self.body(x)))

    found = from_module(Always(drop).train(training), (6,), input_norm=1, loss="cross_entropy")
    (error,) = [one for one in found.diagnostics if one.severity == "error"]
    assert error.code == "LIP110"
    assert "evaluation mode" in error.message
    assert "self.training" in error.help
    assert error.location is not None
    line = Path(error.location.file).read_text().splitlines()[(error.location.line or 0) - 1]
    assert "self.drop(" in line


def test_torchs_own_modules_draw_in_training_alone() -> None:
    class Several(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1, batch_first=True)
            self.head, self.drop = nn.Linear(12, 2), nn.Dropout(0.1)

        def forward(self, x: Tensor) -> Any:
            h = F.dropout(self.encoder(x), 0.1, training=self.training)
            return self.head(self.drop(h.flatten(1)))

    for training in (True, False):
        found = from_module(Several().train(training), (3, 4), bounds="clip", loss="cross_entropy")
        assert found.ok, found.diagnostics


@pytest.mark.parametrize("drop", [random_depth, floored])
def test_random_depth_may_follow_functions_without_a_constant(drop: Drop) -> None:
    """Products of two tensors of an example, whose rows are moved: how a window of attention ends."""

    class Products(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Any:
            h = (x @ x.mT @ x).view(-1, 4, 1, 2).transpose(2, 3).reshape(-1, 4, 2)
            return self.head((x + (drop(h) if self.training else h)).flatten(1))

    analysis = from_module(Products(), (4, 2), loss="cross_entropy", bounds="clip").analysis
    assert analysis is not None
    assert [node.op.name for node in analysis.graph.nodes].count("grouped_dropout") == 1

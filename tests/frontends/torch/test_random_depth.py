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
        return self.head((x + self.drop(torch.relu(self.body(x)))).flatten(1))


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


ACCEPTED: dict[str, tuple[Drop, bool, str, tuple[Any, ...]]] = {
    "random depth": (random_depth, False, "grouped_dropout", (Fraction(1, 4), 0)),
    "random depth of images": (random_depth, True, "grouped_dropout", (Fraction(1, 4), 0)),
    "random depth by a floor": (floored, False, "grouped_dropout", (Fraction(1, 4), 0)),
    "random depth without a factor": (unscaled, False, "grouped_dropout", (Fraction(1, 4), 0)),
    "channels": (nn.Dropout2d(1 - KEPT), True, "grouped_dropout", (Fraction(1, 4), 1)),
    "channels in place": (nn.Dropout2d(1 - KEPT, inplace=True), True, "grouped_dropout", (Fraction(1, 4), 1)),
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


def along_rows(x: Tensor) -> Tensor:
    return x.reshape(-1, 2, 3).mul(x.new_empty(x.shape[0], 1, 3).bernoulli_(KEPT)).reshape(-1, 6)


@pytest.mark.parametrize("drop", [for_the_batch, shared, uniform, normal, along_rows])
def test_other_noise_is_refused(drop: Drop) -> None:
    found = from_module(Residual(drop), (6,), input_norm=1, loss="cross_entropy")
    assert {d.code for d in found.diagnostics if d.severity == "error"} == {"LIP110"}


def test_a_mask_that_depends_on_the_batch_is_refused() -> None:
    """The largest example of a batch decides: with the same kind of nodes, examples meet."""

    def largest(x: Tensor) -> Tensor:
        return x * (x < x.amax(dim=0, keepdim=True)).float()

    found = from_module(Residual(largest), (6,), input_norm=1, loss="cross_entropy")
    assert not found.ok
    assert "LIP108" in {d.code for d in found.diagnostics}

"""Products of matrices that are no attention: each example multiplies its own, or the model is refused."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from lipcompile.pipeline import from_module
from tests.emitters.test_emit import build
from tests.nights import by_day

TOKENS, HEADS, WIDTH = 3, 2, 2


class Scores(nn.Module):
    """Attention [B, 3, 4] -> [B, 3] with a trained bias of its scores, as in Swin; `across`: examples meet."""

    def __init__(self, across: str = "") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.parts, self.head = nn.Linear(4, 12), nn.Linear(12, 3)
        self.bias, self.across = nn.Parameter(torch.randn(HEADS, TOKENS, TOKENS)), across

    def forward(self, x: Tensor) -> Any:
        size = x.shape[0]
        q, k, v = self.parts(x).reshape(size, TOKENS, 3, HEADS, WIDTH).permute(2, 0, 3, 1, 4).unbind(0)
        if self.across == "tokens":  # scores of [heads, tokens, batch, batch]
            q, k, v = (part.permute(1, 2, 0, 3) for part in (q, k, v))
            return self.head(((q @ k.mT) @ v).permute(2, 1, 0, 3).reshape(size, 12))
        if self.across == "heads":  # all tokens of all examples
            q, k, v = (part.transpose(0, 1).reshape(HEADS, -1, WIDTH) for part in (q, k, v))
            return self.head(((q @ k.mT) @ v).reshape(HEADS, size, -1).transpose(0, 1).reshape(size, 12))
        scores = (q @ k.mT + self.bias).softmax(-1)
        return self.head((scores @ v).transpose(1, 2).reshape(size, 12))


@pytest.mark.parametrize("bounds", ["theorem", "clip"])
def test_scores_with_a_bias_are_understood(bounds: str, tmp_path: Path) -> None:
    found = from_module(Scores(), (TOKENS, 4), input_norm=1, loss="cross_entropy", bounds=bounds)  # type: ignore[arg-type]
    assert found.ok
    assert found.analysis is not None
    assert [node.op.name for node in found.analysis.graph.nodes].count("matmul") == 2
    module = build(found, tmp_path)
    x = F.normalize(torch.randn(8, TOKENS, 4, dtype=torch.float64).flatten(1)).reshape(8, TOKENS, 4)
    before, other = module(x), x.clone()
    other[5] = -other[5]
    assert (module(other) != before).any(dim=1).nonzero().flatten().tolist() == [5]
    if bounds == "theorem":
        bound = float(found.analysis.total.value or 0)
        weights = [p for p in module.parameters() if p.requires_grad]
        for one, label in zip(x, torch.randint(3, (8,)), strict=True):
            gradient = torch.autograd.grad(F.cross_entropy(module(one[None]), label[None]), weights)
            assert torch.cat([part.flatten() for part in gradient]).norm() <= bound


@pytest.mark.parametrize(
    ("bounds", "across"),
    by_day([("theorem", "tokens"), ("clip", "heads")], product(("theorem", "clip"), ("tokens", "heads"))),
)
def test_products_across_the_batch_are_refused(across: str, bounds: str) -> None:
    module, x = Scores(across), torch.randn(4, TOKENS, 4)
    other = x.clone()
    other[1] = 0
    assert (module(other) != module(x))[0].any()  # it does mix
    found = from_module(module, (TOKENS, 4), input_norm=1, loss="cross_entropy", bounds=bounds)  # type: ignore[arg-type]
    assert {d.code for d in found.diagnostics if d.severity == "error"} == {"LIP108"}

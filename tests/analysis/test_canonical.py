"""The canonical form: the same loss with a better bound."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from lipcompile.core.derivation import Analysis
from lipcompile.pipeline import check
from tests.emitters.test_emit import build, derive

BODY = "input x: tensor[4], norm <= 1\n dense(6) relu dense(5)\n"


def analysed(folder: Path, body: str) -> Analysis:
    analysis = derive(folder, body).analysis
    assert analysis is not None
    return analysis


def test_nll_of_a_last_log_softmax_is_cross_entropy_of_the_logits(tmp_path: Path) -> None:
    fused = analysed(tmp_path, BODY + "log_softmax loss nll")
    plain = analysed(tmp_path, BODY + "loss cross_entropy")
    assert [layer.name for layer in fused.layers] == ["dense", "relu", "dense_2"]
    assert fused.total.value == plain.total.value
    assert fused.loss_lipschitz.value is not None
    assert fused.loss_lipschitz.value <= math.sqrt(2)


@pytest.mark.parametrize("loss", ["cross_entropy", "cross_entropy(temperature=3)"])
def test_cross_entropy_does_not_see_a_log_softmax(tmp_path: Path, loss: str) -> None:
    fused, plain = (analysed(tmp_path, BODY + layers + loss) for layers in ("log_softmax loss ", "loss "))
    assert fused.total.value == plain.total.value
    logits, target = torch.randn(8, 5, dtype=torch.double), torch.arange(8) % 5
    tau = 3.0 if "3" in loss else 1.0
    cross_entropy = torch.nn.functional.cross_entropy
    with_shift = cross_entropy(tau * torch.log_softmax(logits, 1), target)
    torch.testing.assert_close(with_shift, cross_entropy(tau * logits, target))


def test_the_loss_of_every_example_stays_the_same(tmp_path: Path) -> None:
    derivation = derive(tmp_path, BODY + "log_softmax loss nll")
    assert [found.code for found in derivation.diagnostics] == ["LIP215"]
    model = build(derivation, tmp_path)
    x, target = torch.randn(8, 4, dtype=torch.double), torch.arange(8) % 5
    logits = model(x)
    expected = -torch.log_softmax(logits, 1)[torch.arange(8), target]
    torch.testing.assert_close(model.per_example_loss(logits, target), expected)


@pytest.mark.parametrize(
    "end",
    [
        "log_softmax loss squared_error(target_norm=1)",
        "log_softmax dense(5) loss nll",
        "reshape(5, 1) reshape(5) loss nll",
    ],
)
def test_what_is_not_a_log_softmax_before_its_loss_stays(tmp_path: Path, end: str) -> None:
    path = tmp_path / "m.lip"
    path.write_text(f"model m {{ {BODY} {end} }}")
    derivation = check(str(path))
    assert derivation.ok
    assert "LIP215" not in {found.code for found in derivation.diagnostics}

"""`start=zero`: weights that begin at zero."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lipcompile.pipeline import check
from tests.emitters.test_emit import build, derive


def text(layers: str) -> str:
    return f"input x: tensor[1, 6, 6], norm <= 2\n {layers} loss cross_entropy"


def test_weights_begin_at_zero(tmp_path: Path) -> None:
    layers = (
        "conv2d(2, kernel=3, bias=1, start=zero) flatten dense(5) dense(3, constraint=frobenius(9), start=zero)"
    )
    model = build(derive(tmp_path, text(layers)), tmp_path)
    zero = {name for name, parameter in model.named_parameters() if not parameter.any()}
    assert {"conv2d.weight", "dense_2.weight"} <= zero
    assert "dense.weight" not in zero
    assert model(torch.ones(1, 1, 6, 6, dtype=torch.float64)).abs().max() == 0


def test_it_changes_no_bound(tmp_path: Path) -> None:
    found = [derive(tmp_path, text(f"flatten dense(3{start})")).analysis for start in ("", ", start=zero")]
    values = [[bound.value for bound in one.parameters.values()] for one in found if one is not None]
    assert values[0] == values[1]


REFUSED = {
    "flatten dense(3, start=one)": "LIP012",
    "flatten dense(3, constraint=orthogonal, start=zero)": "LIP012",
    "flatten bias(1, start=zero) dense(3)": "LIP012",
    "conv2d(3, kernel=9, start=zero) flatten dense(3)": "LIP103",
    "flatten conv2d(3, kernel=2, start=zero) flatten dense(3)": "LIP102",
    "flatten dense(9999999999, start=zero)": "LIP018",
}


@pytest.mark.parametrize("layers", REFUSED)
def test_refusals(tmp_path: Path, layers: str) -> None:
    path = tmp_path / "m.lip"
    path.write_text(f"model m {{ {text(layers)} }}")
    assert [found.code for found in check(str(path)).diagnostics] == [REFUSED[layers]]

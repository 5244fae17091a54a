"""Concat of tensors and constants: class tokens, prompts, registers, and what cannot be put beside an example."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from lipcompile.diagnostics import Severity
from lipcompile.frontends.onnx import model as onnx_model
from tests.frontends.onnx.onnx_models import Array, floats, ints, model, node, save
from tests.frontends.onnx.test_onnx_semantics import KEEP, agree

FLAT = node("Flatten", "h", "y")
FRONT, BACK = floats(1, 2, 3), floats(1, 1, 3, seed=1)


def copies(name: str, source: str) -> list[onnx.NodeProto]:
    """Nodes that copy a constant for each example, as exporters write `expand`."""
    return [
        node("Shape", "x", "sizes"),
        node("Gather", "sizes zero", "batch", axis=0),
        node("Concat", f"batch rest_{name}", f"target_{name}", axis=0),
        node("Expand", f"{source} target_{name}", name),
    ]


@pytest.mark.parametrize("order", ["c x", "x c", "c x d", "x c x", "c d x", "c x x d"])
def test_constants_beside_a_tensor(order: str, tmp_path: Path) -> None:
    weights: dict[str, Array] = {"front": FRONT, "back": BACK, "zero": ints(0)}
    weights |= {"rest_c": ints(2, 3), "rest_d": ints(1, 3)}
    nodes = copies("c", "front")
    if "d" in order:
        nodes += copies("d", "back")[2:]
    made = model([*nodes, node("Concat", order, "h", axis=1), FLAT], ("n", 4, 3), weights)
    loaded = agree(made, tmp_path)
    assert loaded.graph is not None
    stored = {name: p for name, p in loaded.graph.parameters.items() if name.endswith(".tokens")}
    assert set(stored) == {"front.tokens", *(["back.tokens"] if "d" in order else [])}
    assert all(parameter.trainable for parameter in stored.values())


def test_a_constant_beside_a_batch_of_a_fixed_size(tmp_path: Path) -> None:
    weights = {"c": np.repeat(FRONT, 3, axis=0)}
    loaded = agree(model([node("Concat", "c x", "h", axis=1), FLAT], (3, 4, 3), weights), tmp_path)
    assert loaded.graph is not None
    assert [p.shape for p in loaded.graph.parameters.values()] == [(2, 3)]


def test_a_constant_without_entries_is_nothing(tmp_path: Path) -> None:
    weights = {"c": np.zeros((1, 0, 3), np.float32)}
    loaded = agree(model([node("Concat", "c x", "h", axis=1), FLAT], (1, 4, 3), weights), tmp_path, batch=1)
    assert loaded.graph is not None
    assert not loaded.graph.parameters


REFUSED: dict[str, tuple[str, tuple[int | str, ...], Array]] = {
    "one constant for a batch of any size": ("c x", ("n", 4, 3), FRONT),
    "one constant for a batch of two": ("c x", (2, 4, 3), FRONT),
    "a constant that differs from example to example": ("c x", (2, 4, 3), floats(2, 2, 3)),
    "a constant without an axis for the batch": ("c x", (2, 4, 3), floats(2, 3)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_differs_from_example_to_example_is_refused(name: str, tmp_path: Path) -> None:
    order, shape, constant = REFUSED[name]
    made = model([node("Concat", order, "h", axis=1), FLAT], shape, {"c": constant})
    loaded = onnx_model.load(save(made, tmp_path), KEEP)
    errors = [found for found in loaded.diagnostics if found.severity == Severity.ERROR]
    assert [(found.code, found.node) for found in errors] == [("LIP108", "Concat_h")]


def test_constants_are_not_put_along_the_batch(tmp_path: Path) -> None:
    made = model([node("Concat", "c x", "h", axis=0), FLAT], ("n", 4, 3), {"c": floats(1, 4, 3)})
    loaded = onnx_model.load(save(made, tmp_path), KEEP)
    assert [found.code for found in loaded.diagnostics] == ["LIP108"]

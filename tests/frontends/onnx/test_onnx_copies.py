"""Constants that a file copies for each example: followed while nothing but copies meets their axis, else refused.

The oracle is the reference implementation at several sizes of the batch: accepted files agree at all of them, and
no example there changes what another one gets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from lipcompile.frontends.onnx import model as onnx_model
from tests.frontends.onnx.onnx_models import Array, floats, ints, model, node, save
from tests.frontends.onnx.test_onnx_semantics import KEEP, agree, emitted, reference

Case = tuple[Sequence[onnx.NodeProto], Mapping[str, Array]]
SHAPE = (3, 4)
ADD = [node("Add", "x c", "h"), node("Flatten", "h", "y")]
SIZES = [node("Shape", "x", "sizes"), node("Gather", "sizes zero", "batch", axis=0)]
MASK = np.tri(3, 4, dtype=bool)[None]
ROWS = np.array([[2, 0, 2]], np.int64)


def copied(name: str, source: str, before: str = "", behind: str = "") -> list[onnx.NodeProto]:
    """Nodes that copy a constant along an axis of the batch's size, between other axes."""
    return [
        *SIZES,
        node("Concat", f"{before} batch {behind}", f"target_{name}", axis=0),
        node("Expand", f"{source} target_{name}", name),
    ]


def case(nodes: Sequence[onnx.NodeProto], **weights: Array) -> Case:
    return nodes, {"zero": ints(0), "four": ints(4), "shape": ints(3, 4), **weights}


CONDITION = copied("seen", "mask", behind="shape")
ROW = copied("rows", "index", behind="three")
THREE = {"three": ints(3)}
ACCEPTED: dict[str, Case] = {
    "a mask chooses numbers": case(
        [*CONDITION, node("Where", "seen one low", "c"), *ADD],
        mask=MASK,
        one=np.ones((), np.float32),
        low=floats(4),
    ),
    "a mask and its opposite": case(
        [
            *CONDITION,
            node("Not", "seen", "not"),
            node("And", "seen not", "none"),
            node("Cast", "none", "c", to=1),
            *ADD,
        ],
        mask=MASK,
    ),
    "turned": case(
        [*copied("t", "w", before="four", behind="three"), node("Transpose", "t", "c", perm=[1, 2, 0]), *ADD],
        w=floats(4, 1, 3),
        **THREE,
    ),
    "rows of a table": case(
        [*ROW, node("Gather", "table rows", "c", axis=0), *ADD], table=floats(5, 4), index=ROWS, **THREE
    ),
    "columns of a table": case(
        [
            *copied("rows", "index", behind="four"),
            node("Gather", "table rows", "t", axis=1),
            node("Transpose", "t", "c", perm=[1, 0, 2]),
            *ADD,
        ],
        table=floats(3, 5),
        index=np.array([[2, 0, 2, 4]], np.int64),
    ),
    "reshaped": case(
        [*copied("flat", "w", behind="twelve"), node("Reshape", "flat target", "c"), *ADD],
        w=floats(1, 12),
        twelve=ints(12),
        target=ints(-1, 3, 4),
    ),
    "their shape": case(
        [*CONDITION, node("Shape", "seen", "whole"), node("Expand", "w whole", "c"), *ADD],
        mask=MASK,
        w=floats(3, 1),
    ),
    "copied twice": case(
        [
            *copied("once", "w", behind="one four"),
            node("Concat", "batch shape", "whole", axis=0),
            node("Expand", "once whole", "c"),
            *ADD,
        ],
        w=floats(1, 1, 4),
        one=ints(1),
    ),
    "beside one another": case(
        [
            *copied("left", "w", behind="three one"),
            *copied("right", "w3", behind="three three")[2:],
            node("Concat", "left right", "c", axis=2),
            *ADD,
        ],
        w=floats(1, 3, 1),
        w3=floats(1, 3, 3),
        one=ints(1),
        **THREE,
    ),
    "one of them": case(
        [*copied("many", "w", behind="shape"), node("Slice", "many zero one zero", "c"), *ADD],
        w=floats(1, 3, 4),
        one=ints(1),
    ),
    "running sums": case(
        [*copied("many", "w", behind="shape"), node("CumSum", "many last", "c"), *ADD],
        w=floats(1, 3, 4),
        last=np.array(-1),
    ),
    "an axis made and dropped": case(
        [
            *copied("many", "w", behind="shape"),
            node("Unsqueeze", "many zero", "more"),
            node("Squeeze", "more zero", "c"),
            *ADD,
        ],
        w=floats(1, 3, 4),
    ),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_copies_are_followed(name: str, tmp_path: Path) -> None:
    nodes, weights = ACCEPTED[name]
    made = model(nodes, ("n", *SHAPE), weights)
    for batch in (1, 2, 4):
        agree(made, tmp_path, batch)
    x = floats(4, *SHAPE, seed=5)
    other = x.copy()
    other[1] += 1
    changed = (reference(made, x) != reference(made, other)).any(axis=1)
    assert changed.tolist() == [False, True, False, False]


COLUMN = copied("column", "w", behind="one one")
ACROSS: dict[str, Case] = {
    "an axis of the example": case([*copied("c", "w"), *ADD], w=floats(1)),
    "copies along two axes": case(
        [*COLUMN, node("Transpose", "column", "row", perm=[1, 2, 0]), node("Mul", "column row", "c"), *ADD],
        w=floats(1, 1, 1),
        one=ints(1),
    ),
    "a row for each example": case(
        [*COLUMN, node("Mul", "column four_rows", "c"), *ADD],
        w=floats(1, 1, 1),
        one=ints(1),
        four_rows=floats(4, 1, 1),
    ),
    "merged with the tokens": case(
        [*CONDITION, node("Where", "seen one low", "t"), node("Reshape", "t target", "c"), *ADD],
        mask=MASK,
        one=np.ones((), np.float32),
        low=floats(4),
        target=ints(-1, 4),
    ),
    "one of them, by its number": case(
        [*copied("many", "w", behind="shape"), node("Gather", "many zero", "c", axis=0), *ADD],
        w=floats(1, 3, 4),
    ),
    "cut by the size of the batch": case(
        [*copied("many", "w", behind="shape"), node("Slice", "many zero batch two", "c"), *ADD],
        w=floats(1, 3, 4),
        two=ints(2),
    ),
    "counted": case(
        [*copied("ones", "w", behind="one one"), node("ReduceSum", "ones zero", "c"), *ADD],
        w=np.ones((1, 1, 1), np.float32),
        one=ints(1),
    ),
    "running sums of them": case(
        [*copied("many", "w", behind="shape"), node("CumSum", "many first", "c"), *ADD],
        w=floats(1, 3, 4),
        first=np.array(0),
    ),
    "from before them": case(
        [*copied("many", "w", behind="shape"), node("Slice", "many one end zero", "c"), *ADD],
        w=floats(1, 3, 4),
        one=ints(1),
        end=ints(2**40),
    ),
    "joined": case(
        [*copied("many", "w", behind="shape"), node("Concat", "many many", "c", axis=0), *ADD], w=floats(1, 3, 4)
    ),
}


@pytest.mark.parametrize("name", ACROSS)
def test_copies_that_meet_anything_else_are_refused(name: str, tmp_path: Path) -> None:
    nodes, weights = ACROSS[name]
    shape = (3, 1) if name in ("an axis of the example", "copies along two axes") else SHAPE
    made = model(nodes, ("n", *shape), weights)
    found = onnx_model.load(save(made, tmp_path), KEEP)
    assert found.graph is None
    assert {d.code for d in found.diagnostics if d.severity == "error"} == {"LIP108"}


def test_copies_do_not_stand_for_a_fixed_batch_axis(tmp_path: Path) -> None:
    """[n, 1, 4] + [1, n, 4]: each example would get a row for every other one."""
    nodes = [*copied("t", "w", behind="one four"), node("Transpose", "t", "c", perm=[1, 0, 2]), *ADD]
    weights = case(nodes, w=floats(1, 1, 4), one=ints(1))[1]
    found = onnx_model.load(save(model(nodes, ("n", 1, 4), weights), tmp_path), KEEP)
    assert {d.code for d in found.diagnostics if d.severity == "error"} == {"LIP108"}


def test_the_size_of_the_batch_does_not_become_a_real_number(tmp_path: Path) -> None:
    """x / [n, 1][0]: joined with a real number, the formal size would pass for a number that the file holds."""
    nodes = [
        *SIZES,
        node("Cast", "batch", "real", to=onnx.TensorProto.FLOAT),
        node("Concat", "real one", "both", axis=0),
        node("Gather", "both zero", "first", axis=0),
        node("Div", "x first", "h"),
        node("Flatten", "h", "y"),
    ]
    made = model(nodes, ("n", *SHAPE), {"zero": ints(0), "one": np.ones(1, np.float32)})
    found = onnx_model.load(save(made, tmp_path), KEEP)
    assert {d.code for d in found.diagnostics if d.severity == "error"} == {"LIP108"}


def test_a_layer_of_copies_where_the_batch_is_the_second_axis(tmp_path: Path) -> None:
    nodes = [
        *(node("Shape", "x", "n", start=1, end=2), node("Concat", "a n b", "t", axis=0)),
        *(node("Expand", "q t", "e"), node("MatMul", "e w", "k"), node("Slice", "x z a z", "h")),
        *(node("Add", "k h", "u"), node("ReduceMean", "u", "y", axes=[0], keepdims=0)),
    ]
    weights = {"a": ints(3), "b": ints(4), "z": ints(0), "q": floats(3, 1, 4), "w": floats(4, 4)}
    made = model(nodes, (5, "n", 4), weights, opset=15)
    module = emitted(onnx_model.load(save(made, tmp_path), KEEP), tmp_path)
    x = floats(5, 6, 4, seed=1)
    found = module(torch.from_numpy(x.transpose(1, 0, 2).copy())).detach().numpy()
    wanted = weights["q"][:, 0] @ weights["w"] + x[:3].transpose(1, 0, 2)
    np.testing.assert_allclose(found, wanted.mean(1), rtol=1e-5, atol=1e-6)

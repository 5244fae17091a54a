"""Files that look like something that is supported, and compute something else: they are refused.

Each was once taken for what it resembles. Had it been accepted, the emitted module would have computed another
function, or examples of one batch would have met.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from lipcompile.diagnostics import InputError
from lipcompile.frontends.onnx import model as onnx_model
from lipcompile.frontends.onnx.sizes import BATCH
from tests.frontends.onnx.onnx_models import Array, floats, ints, model, node, save
from tests.frontends.onnx.test_onnx_semantics import KEEP, agree

Case = tuple[Sequence[onnx.NodeProto], tuple[int, ...], Mapping[str, Array]]


def number(value: float) -> Array:
    return np.array(value, np.float32)


def whole(value: int) -> Array:
    return np.array(value, np.int64)


# Numbers that are the size of the batch

SIZE = [node("Shape", "x", "shape"), node("Gather", "shape zero", "batch")]
REAL = [*SIZE, node("Cast", "batch", "real", to=1)]
ZERO = {"zero": whole(0)}
MASKED = node("Where", "mask x zeros", "y")
MASK = ZERO | {"zeros": np.zeros(4, np.float32)}
BATCH_AS_NUMBER: dict[str, Case] = {
    "factor": ([*REAL, node("Mul", "x real", "y")], (4,), ZERO),
    "divisor": ([*REAL, node("Div", "x real", "y")], (4,), ZERO),
    "shift": ([*REAL, node("Mean", "x real", "y")], (4,), ZERO),
    "limit": ([*REAL, node("Clip", "x _ real", "y")], (4,), ZERO),
    "padding": (
        [*REAL, node("Pad", "x pads real", "y")],
        (1, 3, 3),
        ZERO | {"pads": ints(0, 0, 1, 1, 0, 0, 1, 1)},
    ),
    "scale": (
        [
            *REAL,
            node("Unsqueeze", "real front", "one"),
            node("Concat", "ones one one", "scales", axis=0),
            node(
                "Resize",
                "x _ scales",
                "y",
                mode="nearest",
                coordinate_transformation_mode="asymmetric",
                nearest_mode="floor",
            ),
        ],
        (1, 3, 3),
        ZERO | {"front": ints(0), "ones": np.ones(2, np.float32)},
    ),
    "diagonal": ([*SIZE, node("Trilu", "x batch", "y")], (4, 4), ZERO),
    "truth": (
        [*SIZE, node("Sub", "batch three", "rest"), node("Cast", "rest", "mask", to=9), MASKED],
        (4,),
        MASK | {"three": whole(3)},
    ),
    "equality from above": (
        [*SIZE, node("Sub", "five batch", "rest"), node("Equal", "rest three", "mask"), MASKED],
        (4,),
        MASK | {"five": whole(5), "three": whole(3)},
    ),
    "equality from below": (
        [*SIZE, node("Sub", "batch five", "rest"), node("Equal", "rest minus", "mask"), MASKED],
        (4,),
        MASK | {"five": whole(5), "minus": whole(-1)},
    ),
    "quotient": (
        [
            *SIZE,
            node("Add", "batch one", "more"),
            node("Div", "more most", "eight"),
            node("Unsqueeze", "eight front", "width"),
            node("Concat", "open width", "target", axis=0),
            node("Reshape", "x target", "y"),
        ],
        (8,),
        ZERO | {"one": whole(1), "most": whole((BATCH + 1) // 8), "front": ints(0), "open": ints(-1)},
    ),
}

# Constants that are copied for each example, and meet another axis than the batch

COPIES = [*SIZE, node("Unsqueeze", "batch front", "copies")]
FRONT = ZERO | {"front": ints(0), "three": ints(3), "four": ints(4)}
TWO = onnx.numpy_helper.from_array(np.array([2], np.float32))
ZEROS = node("ConstantOfShape", "copies", "zeros", value=TWO)
COPIED: dict[str, Case] = {
    "added across": ([*COPIES, ZEROS, node("Add", "x zeros", "y")], (1,), FRONT),
    "multiplied across": ([*COPIES, ZEROS, node("Mul", "x zeros", "y")], (1,), FRONT),
    "in a spelling": (
        [
            *COPIES,
            ZEROS,
            node("Sigmoid", "x", "gate"),
            node("Mul", "x gate", "silu"),
            node("Mul", "silu zeros", "y"),
        ],
        (1,),
        FRONT,
    ),
    "columns of a matrix": (
        [
            *COPIES,
            node("Concat", "four copies", "sizes", axis=0),
            node("ConstantOfShape", "sizes", "matrix", value=TWO),
            node("MatMul", "x matrix", "y"),
        ],
        (4,),
        FRONT,
    ),
    "beside": (
        [
            *COPIES,
            node("Concat", "three copies", "sizes", axis=0),
            node("ConstantOfShape", "sizes", "zeros"),
            node("Concat", "x zeros", "y", axis=1),
        ],
        (4,),
        FRONT,
    ),
}

# Spellings of which a part is another one

SQUARES = [node("ReduceMean", "squares", "variance", axes=[2]), node("Add", "variance eps", "more")]
ROOT = [*SQUARES, node("Sqrt", "more", "root")]
MEANS = [
    *(node("ReduceMean", "x", f"mean{axis}", axes=[axis]) for axis in (1, 2)),
    *(node("Sub", f"x mean{axis}", f"centred{axis}") for axis in (1, 2)),
]
EPS = {"eps": number(1e-3)}
POWERS = [
    *(node("ReduceMax", "x", f"largest{axis}", axes=[axis]) for axis in (1, 2)),
    *(node("Sub", f"x largest{axis}", f"less{axis}") for axis in (1, 2)),
    *(node("Exp", f"less{axis}", f"power{axis}") for axis in (1, 2)),
    node("Exp", "x", "power"),
]
AXIS = {"axis": ints(2)}
SPELLED: dict[str, Case] = {
    "layer norm, centred along another axis": (
        [*MEANS, node("Mul", "centred2 centred2", "squares"), *ROOT, node("Div", "centred1 root", "y")],
        (3, 4),
        EPS,
    ),
    "layer norm, a covariance": (
        [*MEANS, node("Mul", "centred1 centred2", "squares"), *ROOT, node("Div", "centred2 root", "y")],
        (3, 4),
        EPS,
    ),
    "softmax, only the sum is shifted": (
        [*POWERS, node("ReduceSum", "power2 axis", "sum"), node("Div", "power sum", "y")],
        (3, 4),
        AXIS,
    ),
    "softmax, only the powers are shifted": (
        [*POWERS, node("ReduceSum", "power axis", "sum"), node("Div", "power2 sum", "y")],
        (3, 4),
        AXIS,
    ),
    "softmax, two shifts": (
        [*POWERS, node("ReduceSum", "power2 axis", "sum"), node("Div", "power1 sum", "y")],
        (3, 4),
        AXIS,
    ),
    "projection on the larger of two balls": (
        [
            node("ReduceL2", "x", "norm", axes=[1]),
            node("Max", "norm one five", "radius"),
            node("Div", "x radius", "y"),
        ],
        (4,),
        {"one": number(1), "five": number(5)},
    ),
    "silu, times a number with more axes": (
        [
            node("Sigmoid", "x", "gate"),
            node("Mul", "x gate", "silu"),
            node("Mul", "silu one", "more"),
            node("ReduceMean", "more", "y", axes=[1], keepdims=0),  # of the examples
        ],
        (4,),
        {"one": np.ones((1, 1, 1), np.float32)},
    ),
}


def attention(mask: Array, *, cut: int = 3) -> Case:
    """softmax(x·xᵀ + mask)·x of three tokens, of which the first `cut` ask."""
    nodes = [
        node("Slice", "x start stop axis", "q"),
        node("Transpose", "x", "kt", perm=[0, 2, 1]),
        node("MatMul", "q kt", "scores"),
        node("Add", "scores mask", "masked"),
        node("Softmax", "masked", "weights"),
        node("MatMul", "weights x", "y"),
    ]
    return nodes, (3, 4), {"mask": mask, "start": ints(0), "stop": ints(cut), "axis": ints(1)}


LATER = np.where(np.tri(3, dtype=bool), 0, -np.inf).astype(np.float32)
MASKS: dict[str, Case] = {
    "a mask with more axes": attention(LATER[None, None]),
    "no mask, for five examples": attention(np.zeros((5, 1, 1), np.float32)),
    "a mask that repeats the only row": attention(LATER, cut=1),
}

# Tensors whose batch stands elsewhere

MOVED = node("Transpose", "x", "moved", perm=[1, 0, 2])
STEPS = {"start": ints(0), "second": ints(1), "end": ints(2**31 - 1), "axis": ints(2), "two": ints(2)}
LAYOUTS: dict[str, Case] = {
    "MaxMin of pairs": (
        [
            MOVED,
            node("ReduceMax", "moved", "high", axes=[2]),
            node("ReduceMin", "moved", "low", axes=[2]),
            node("Concat", "high low", "y", axis=2),
        ],
        (3, 2),
        {},
    ),
    "MaxMin of neighbours": (
        [
            MOVED,
            node("Slice", "moved start end axis two", "even"),
            node("Slice", "moved second end axis two", "odd"),
            node("Max", "even odd", "high"),
            node("Min", "even odd", "low"),
            node("Concat", "high low", "y", axis=2),
        ],
        (3, 4),
        STEPS,
    ),
    "a mean of two axes before the batch": (
        [
            node("Transpose", "x", "moved", perm=[1, 2, 0, 3]),
            node("ReduceMean", "moved", "mean", axes=[0, 1], keepdims=0),
            node("Transpose", "mean", "y", perm=[1, 0]),
        ],
        (2, 3, 5),
        {},
    ),
}

RANKS: dict[str, Case] = {
    "a choice between tensors of different ranks": (
        [node("Squeeze", "x one", "less"), node("Where", "mask less x", "y")],
        (1, 4),
        {"one": ints(1), "mask": np.array([True, True, False, False])},
    ),
}

CASES = {**RANKS, **BATCH_AS_NUMBER, **COPIED, **SPELLED, **MASKS, **LAYOUTS}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_it_is_not_what_it_looks_like(case: Case, tmp_path: Path) -> None:
    nodes, shape, weights = case
    made = model(nodes, ("n", *shape), weights)
    assert onnx_model.load(save(made, tmp_path), KEEP).graph is None


FLAT = node("Flatten", "h", "y")
GENUINE: dict[str, Case] = {
    "layer norm, centred twice": (
        [
            node("ReduceMean", "x", "mean", axes=[2]),
            node("Sub", "x mean", "a"),
            node("ReduceMean", "x", "again", axes=[2]),
            node("Sub", "x again", "b"),
            node("Mul", "b b", "squares"),
            *ROOT,
            node("Div", "a root", "y"),
        ],
        (3, 4),
        EPS,
    ),
    "a mean of two axes before the batch, which is left in front": (
        [
            node("Transpose", "x", "moved", perm=[1, 2, 0, 3]),
            node("ReduceMean", "moved", "y", axes=[0, 1], keepdims=0),
        ],
        (2, 3, 5),
        {},
    ),
    "a causal mask": attention(LATER),
    "no mask, that repeats the only row": (
        [*attention(np.zeros((5, 1), np.float32), cut=1)[0][:-1], node("MatMul", "weights x", "h"), FLAT],
        *attention(np.zeros((5, 1), np.float32), cut=1)[1:],
    ),
    "the largest and smallest of pairs, moved and back": (
        [
            MOVED,
            node("ReduceMax", "moved", "high", axes=[2]),
            node("ReduceMin", "moved", "low", axes=[2]),
            node("Concat", "high low", "pairs", axis=2),
            node("Transpose", "pairs", "back", perm=[1, 0, 2]),
            node("MatMul", "back w", "y"),
        ],
        (3, 2),
        {"w": floats(2, 3)},
    ),
}

GENUINE["a convolution whose kernel is read by another one that nothing reads"] = (
    [node("Conv", "x w", "unread", strides=[3]), node("Conv", "x w", "h", pads=[1, 1]), node("Flatten", "h", "y")],
    (2, 5),
    {"w": np.abs(floats(2, 2, 3))},
)


@pytest.mark.parametrize("case", GENUINE.values(), ids=GENUINE.keys())
def test_what_is_near_them_is_still_understood(case: Case, tmp_path: Path) -> None:
    nodes, shape, weights = case
    agree(model(nodes, ("n", *shape), weights), tmp_path)


# Operator sets


def test_two_versions_of_the_operators_are_refused(tmp_path: Path) -> None:
    made = model([node("Relu", "x", "y")], ("n", 4), opset=13)
    made.opset_import.append(onnx.helper.make_opsetid("ai.onnx", 11))
    with pytest.raises(InputError, match="two versions"):
        onnx_model.load(save(made, tmp_path), KEEP)


def test_softmax_of_constants_as_it_once_was_is_not_evaluated_as_it_is_now(tmp_path: Path) -> None:
    nodes = [node("Softmax", "w", "shares"), node("Add", "x shares", "y")]
    made = model(nodes, ("n", 2, 3, 4), {"w": floats(2, 3, 4)}, opset=11)
    assert onnx_model.load(save(made, tmp_path), KEEP).graph is None


# The axis that the file calls a batch


def test_the_axis_that_is_called_a_batch_is_one_behind_an_open_first_axis_too(tmp_path: Path) -> None:
    options = replace(KEEP, input_shape={"": (5, 3)})
    kept = model([node("Transpose", "x", "y", perm=[1, 0, 2])], ("steps", "batch", 3))
    assert onnx_model.load(save(kept, tmp_path), options).graph is not None
    mixed = model([node("ReduceMean", "x", "y", axes=[1])], ("steps", "batch", 3))
    assert onnx_model.load(save(mixed, tmp_path), options).graph is None


@pytest.mark.parametrize("first", ["n", "batch_dim", "bs"])
def test_a_first_axis_that_is_called_one_as_well_is_the_batch(first: str, tmp_path: Path) -> None:
    options = replace(KEEP, input_shape={"": (5, 3)})
    made = model([node("ReduceMean", "x", "y", axes=[1])], (first, "batch", 3))
    assert onnx_model.load(save(made, tmp_path), options).graph is not None


# A constant that is trained in one place and used as it is in another

TRAINED = node("Mul", "h w", "y")
AS_IT_IS = {
    "divisor": [node("Div", "x w", "h")],
    "limit": [node("Max", "x w", "h")],
    "filling": [node("Where", "mask x w", "h")],
}


@pytest.mark.parametrize("first", [True, False], ids=["held first", "trained first"])
@pytest.mark.parametrize("nodes", AS_IT_IS.values(), ids=AS_IT_IS.keys())
def test_a_weight_is_not_trained_here_and_held_there(
    nodes: Sequence[onnx.NodeProto], first: bool, tmp_path: Path
) -> None:
    weights = {"w": np.array([1, 2, 3, 4], np.float32), "mask": np.array([True, False, True, False])}
    held = onnx.NodeProto()
    held.CopyFrom(nodes[0])
    chain = [held, TRAINED]
    if not first:
        held.input[list(held.input).index("x")] = "h"
        held.output[0] = "y"
        chain = [node("Mul", "x w", "h"), held]
    loaded = onnx_model.load(save(model(chain, ("n", 4), weights), tmp_path), KEEP)
    assert [d.code for d in loaded.diagnostics] == ["LIP308"]

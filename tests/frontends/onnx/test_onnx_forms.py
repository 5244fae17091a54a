"""Forms of operators that real files use beside the usual ones: what is imported computes the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto

from lipcompile.diagnostics import InputError
from lipcompile.frontends.onnx import model as onnx_model
from lipcompile.frontends.options import ModelOptions
from tests.frontends.onnx.onnx_models import Array, floats, ints, model, node, save
from tests.frontends.onnx.test_onnx_semantics import KEEP, agree, emitted

FLAT = node("Flatten", "h", "y")
Case = tuple[Sequence[onnx.NodeProto], tuple[int, ...], Mapping[str, Array]]


def number(value: float) -> Array:
    return np.array(value, np.float32)


def chequered(*shape: int) -> Array:
    """A condition that holds at every second entry."""
    return np.asarray(np.arange(np.prod(shape)) % 2 == 0).reshape(shape)


HALVES = node("Split", "x s", "a b", axis=1)
PADDED: Mapping[str, Array] = {"p": ints(0, 1, 0, 2, 0, 0, 1, 1)}
CROPPED: Mapping[str, Array] = {"p": ints(0, 0, -1, 2, 0, 0, -2, 0)}
STEPS: Mapping[str, Array] = {"a": ints(0), "e": ints(9), "b": ints(1), "c": ints(3)}
BACKWARDS: Mapping[str, Array] = {"a": ints(-1), "e": ints(-(2**63)), "b": ints(2), "c": ints(-1)}
TWO_AXES: Mapping[str, Array] = {"a": ints(5, 1), "e": ints(0, 9), "b": ints(1, 2), "c": ints(-2, 1)}
SLICED = node("Slice", "x a e b c", "h")

CASES: dict[str, Case] = {
    "a constant longer than the example": ([node("Add", "x c", "h"), FLAT], (3, 1), {"c": floats(3, 4)}),
    "factors longer than the example": ([node("Mul", "x c", "h"), FLAT], (3, 1), {"c": floats(1, 3, 4)}),
    "tensors that are both copied": (
        [node("Transpose", "x", "t", perm=[0, 2, 1]), node("Add", "x t", "h"), FLAT],
        (3, 1),
        {},
    ),
    "a product of tensors that are both copied": (
        [node("Transpose", "x", "t", perm=[0, 2, 1]), node("Mul", "x t", "h"), FLAT],
        (3, 1),
        {},
    ),
    "a maximum of tensors of different shapes": (
        [HALVES, node("Max", "a b", "y")],
        (5,),
        {"s": ints(1, 4)},
    ),
    "divided entry by entry": ([node("Div", "x c", "y")], (4,), {"c": number(2) + np.abs(floats(4))}),
    "divided channel by channel": (
        [node("Div", "x c", "h"), FLAT],
        (2, 3),
        {"c": number(2) + np.abs(floats(1, 2, 1))},
    ),
    "a sum with constants": ([node("Sum", "c x d x", "y")], (4,), {"c": floats(4), "d": floats(1)}),
    "a mean with constants": ([node("Mean", "x c", "y")], (4,), {"c": floats(4)}),
    "a maximum with constants": ([node("Max", "x c", "y")], (4,), {"c": floats(4)}),
    "a maximum of tensors and a number": ([node("Max", "x c d", "y")], (4,), {"c": number(0.1), "d": floats(4)}),
    "a maximum with what hides": ([node("Max", "x c", "y")], (4,), {"c": number(float(np.finfo(np.float32).min))}),
    "a minimum with the largest number": (
        [node("Min", "x c", "y")],
        (4,),
        {"c": number(float(np.finfo(np.float32).max))},
    ),
    "a maximum with equal numbers": ([node("Max", "x c", "y")], (4,), {"c": np.full(4, -65504, np.float32)}),
    "a minimum with a number": ([node("Min", "c x", "y")], (4,), {"c": number(-0.2)}),
    "chosen from a constant": ([node("Where", "c x d", "y")], (4,), {"c": chequered(4), "d": floats(4)}),
    "masked by a number": ([node("Where", "c d x", "h"), FLAT], (2, 3), {"c": chequered(3), "d": number(-5)}),
    "a lower triangle": ([node("Trilu", "x", "h", upper=0), FLAT], (3, 4), {}),
    "an upper triangle, shifted": ([node("Trilu", "x k", "h"), FLAT], (2, 3, 3), {"k": np.array(1)}),
    "squares": ([node("Pow", "x c", "y")], (4,), {"c": number(2)}),
    "cubes": ([node("Pow", "x c", "y")], (4,), {"c": ints(3)}),
    "sums of squares": ([node("ReduceSumSquare", "x", "y", axes=[2], keepdims=0)], (3, 4), {}),
    "tiles": ([node("Tile", "x r", "h"), FLAT], (2, 3), {"r": ints(1, 3, 2)}),
    "tiles once": ([node("Tile", "x r", "y")], (3,), {"r": ints(1, 1)}),
    "compressed": ([node("Compress", "x c", "y", axis=1)], (4,), {"c": np.array([True, False, True])}),
    "slices in steps": ([SLICED, FLAT], (8, 2), STEPS),
    "slices backwards": ([SLICED, FLAT], (2, 5), BACKWARDS),
    "slices of two axes in steps": ([SLICED, FLAT], (6, 3), TWO_AXES),
    "every second entry": ([SLICED, FLAT], (6,), {**STEPS, "c": ints(2)}),
    "the largest entries": ([node("TopK", "x k", "y i")], (6,), {"k": ints(3)}),
    "the smallest entries": ([node("TopK", "x k", "h i", axis=1, largest=0), FLAT], (6, 2), {"k": ints(2)}),
    "channels padded": ([node("Pad", "x p", "h"), FLAT], (2, 3, 4), PADDED),
    "padded by a number": ([node("Pad", "x p c", "h"), FLAT], (2, 3, 4), {**PADDED, "c": number(0.7)}),
    "vectors padded": ([node("Pad", "x p", "y")], (4,), {"p": ints(0, 2, 0, 1)}),
    "channels reflected": ([node("Pad", "x p", "h", mode="reflect"), FLAT], (3, 3, 4), PADDED),
    "selu with other numbers": ([node("Selu", "x", "y", alpha=2.0, gamma=0.5)], (4,), {}),
    "soft shrinkage": ([node("Shrink", "x", "y", lambd=0.3, bias=0.3)], (9,), {}),
}
OLD: dict[str, tuple[int, Case]] = {
    "sums of squares, axes as an operand": (
        18,
        ([node("ReduceSumSquare", "x a", "y", keepdims=0)], (3, 4), {"a": ints(-1)}),
    ),
    "swish with a factor": (24, ([node("Swish", "x", "y", alpha=1.7)], (4,), {})),
    "swish with the factor 0": (24, ([node("Swish", "x", "y", alpha=0.0)], (4,), {})),
    "as another tensor": (19, ([node("CastLike", "x c", "y")], (4,), {"c": number(1)})),
}


LENGTH = node("ReduceL2", "x a", "n")
LONGER = [LENGTH, node("Clip", "n e _", "m"), node("Shape", "x", "s"), node("Expand", "m s", "l")]
DIRECTION = [*LONGER, node("Div", "x l", "h"), FLAT]


def test_directions_with_a_floor(tmp_path: Path) -> None:
    weights = {"a": ints(-1), "e": number(1.5)}
    loaded = agree(model(DIRECTION, ("n", 3, 4), weights, opset=18), tmp_path)
    assert loaded.graph is not None
    assert [made.op.name for made in loaded.graph.nodes] == ["rms_norm", "add", "flatten"]
    assert loaded.graph.nodes[0].attributes.floor == Fraction(3, 4)  # 1.5/√4


def test_directions_of_a_whole_example(tmp_path: Path) -> None:
    weights = {"a": ints(1, 2), "e": number(1.5)}
    nodes = [LENGTH, node("Clip", "n e", "m"), node("Div", "x m", "h"), FLAT]
    loaded = agree(model(nodes, ("n", 3, 4), weights, opset=18), tmp_path)
    assert loaded.graph is not None
    assert loaded.graph.nodes[0].op.name == "clip_norm"


@pytest.mark.parametrize("change", ["a ceiling", "wider copies"])
def test_what_is_not_quite_a_direction_is_refused(change: str, tmp_path: Path) -> None:
    weights = {"a": ints(-1), "e": number(1.5), "c": number(2), "w": ints(1, 2, 3, 4)}
    cut, wide = node("Clip", "n e c", "m"), node("Expand", "m w", "l")
    nodes = [cut if change == "a ceiling" and made.op_type == "Clip" else made for made in DIRECTION]
    nodes = [wide if change == "wider copies" and made.op_type == "Expand" else made for made in nodes]
    shape = ("n", 3, 4) if change == "a ceiling" else ("n", 1, 3, 4)
    found = onnx_model.load(save(model(nodes, shape, weights, opset=18), tmp_path), ModelOptions()).diagnostics
    assert [(d.code, d.node) for d in found if d.severity == "error"] == [("LIP100", "Div_h")]


EQUATIONS: dict[str, tuple[str, tuple[int, ...], Mapping[str, Array]]] = {
    "a permutation": ("bij->bji", (2, 3), {}),
    "a sum": ("bijk->bkj", (2, 3, 4), {}),
    "an implied result": ("acbd", (2, 3, 4), {}),
    "a dense layer": ("bi,oi->bo", (3,), {"w": floats(4, 3)}),
    "a dense layer, transposed": ("bti,io->bto", (2, 3), {"w": floats(3, 4)}),
    "a layer of the axis in the middle": ("bci,oc->boi", (3, 2), {"w": floats(4, 3)}),
    "two axes contracted": ("bhtd,hdo->bto", (2, 3, 4), {"w": floats(2, 4, 5)}),
    "two axes made": ("btd,hdo->bhto", (2, 3), {"w": floats(2, 3, 4)}),
    "an ellipsis": ("...d,dk->...k", (2, 3), {"w": floats(3, 4)}),
    "factors": ("bij,j->bji", (2, 3), {"w": floats(3)}),
    "factors of two axes, turned": ("bij,ji->bij", (2, 3), {"w": floats(3, 2)}),
    "an outer product": ("bi,j->bij", (2,), {"w": floats(3)}),
    "an inner product": ("bi,i->b", (3,), {"w": floats(3)}),
    "a matrix for each entry": ("bik,cidk->bcid", (2, 3), {"w": floats(4, 2, 5, 3)}),
    "a row for each entry": ("bi,ij->bij", (3,), {"w": floats(3, 4)}),
    "matrices between axes": ("bsihk,hks->bhsi", (2, 3, 4, 5), {"w": floats(4, 5, 2)}),
    "sums of both": ("bij,ko->bio", (2, 3), {"w": floats(2, 4)}),
}


@pytest.mark.parametrize("case", EQUATIONS)
def test_einsum(case: str, tmp_path: Path) -> None:
    equation, shape, weights = EQUATIONS[case]
    operands = " ".join(["x", *weights])
    agree(model([node("Einsum", operands, "y", equation=equation)], ("n", *shape), weights), tmp_path)


@pytest.mark.parametrize(
    ("code", "equation", "operands"),
    [
        ("LIP108", "bi->i", "x"),
        ("LIP108", "bi->ib", "x"),
        ("LIP108", "bi,ob->bo", "x w"),
        ("LIP108", "bi,ci->bc", "x x"),
        ("LIP108", "bi,bj->ij", "x x"),
        ("LIP108", "bi,ib->bi", "x x"),
        ("LIP108", "bi,bi", "x x"),
        ("LIP110", "bi,bj,bk->bijk", "x x x"),
        ("LIP110", "bi,ij,jk->bk", "x w w"),
        ("LIP110", "bi,ii->bi", "x w"),
        ("LIP102", "bi,ij->bj", "x v"),
        ("LIP102", "bi,oik->bo", "x w"),
        ("LIP102", "bi->bo", "x"),
    ],
)
def test_einsum_refused(code: str, equation: str, operands: str, tmp_path: Path) -> None:
    weights = {"w": floats(3, 3), "v": floats(2, 3)}
    made = model([node("Einsum", operands, "y", equation=equation)], ("n", 3), weights)
    found = onnx_model.load(save(made, tmp_path), ModelOptions()).diagnostics
    assert [d.code for d in found if d.severity == "error"] == [code]


OF_TWO: dict[str, tuple[int, ...]] = {
    "bi,bj->bij": (3,),
    "bi,bi->b": (3,),
    "bi,bi->bi": (3,),
    "bi,bj->bj": (3,),
    "bcij,bckj->bkci": (2, 3, 4),
    "bijk,bmjn->bjimkn": (2, 3, 4),
    "...ni,...nj->...ji": (2, 3),
}


@pytest.mark.parametrize("equation", OF_TWO)
def test_einsum_of_two_tensors(equation: str, tmp_path: Path) -> None:
    nodes = [node("Tanh", "x", "h"), node("Einsum", "x h", "y", equation=equation)]
    agree(model(nodes, ("n", *OF_TWO[equation]), {}), tmp_path)


def test_a_letter_of_two_sizes_is_refused(tmp_path: Path) -> None:
    nodes = [node("Gather", "x i", "h", axis=1), node("Einsum", "x h", "y", equation="bi,bi->bi")]
    found = onnx_model.load(save(model(nodes, ("n", 3), {"i": ints(0)}), tmp_path), ModelOptions()).diagnostics
    assert [(d.code, d.message[-15:]) for d in found if d.severity == "error"] == [("LIP102", "different sizes")]


def test_a_matrix_of_einsum_is_the_weight_itself(tmp_path: Path) -> None:
    weights = {"w": floats(3, 3)}
    nodes = [node("Einsum", "x w", "h", equation="bi,io->bo"), node("Gemm", "h w", "y")]
    loaded = agree(model(nodes, ("n", 3), weights), tmp_path)
    assert loaded.graph is not None
    assert len(loaded.graph.parameters) == 1


FOURIER: dict[str, tuple[int, tuple[int, ...], Mapping[str, object], Mapping[str, Array]]] = {
    "of real numbers": (17, (5, 1), {"axis": 1}, {}),
    "of complex numbers, backwards": (17, (3, 5, 2), {"axis": 2, "inverse": 1}, {}),
    "half of it, along the axis before": (17, (5, 3, 1), {"axis": 1, "onesided": 1}, {}),
    "by default along the last axis but one": (20, (3, 5, 2), {}, {}),
    "of another length": (20, (3, 5, 1), {}, {"l": np.array(7), "a": np.array(-2)}),
}


@pytest.mark.parametrize("case", FOURIER)
def test_fourier_transforms_are_matrices(case: str, tmp_path: Path) -> None:
    opset, shape, attributes, weights = FOURIER[case]
    nodes = [node("DFT", " ".join(["x", *weights]), "h", **attributes), FLAT]
    agree(model(nodes, ("n", *shape), weights, opset=opset), tmp_path)


@pytest.mark.parametrize(("code", "axis"), [("LIP108", 0), ("LIP102", 2), ("LIP102", 3)])
def test_fourier_transforms_of_parts_or_examples_are_refused(code: str, axis: int, tmp_path: Path) -> None:
    made = model([node("DFT", "x", "h", axis=axis), FLAT], ("n", 4, 2), {}, opset=17)
    found = onnx_model.load(save(made, tmp_path), ModelOptions()).diagnostics
    assert [d.code for d in found if d.severity == "error"] == [code]


# What the reference implementation gets wrong or does not do, and onnxruntime does.
UNLIKE_REFERENCE: dict[str, tuple[int, Case]] = {
    "softmax of all axes": (11, ([node("Softmax", "x", "h"), FLAT], (2, 3), {})),
    "log-softmax of the last axes": (11, ([node("LogSoftmax", "x", "h", axis=2), FLAT], (2, 3, 4), {})),
    "cut and padded": (17, ([node("Pad", "x p", "h"), FLAT], (2, 5, 3), CROPPED)),
}


@pytest.mark.parametrize("case", CASES)
def test_forms(case: str, tmp_path: Path) -> None:
    nodes, shape, weights = CASES[case]
    agree(model(nodes, ("n", *shape), weights), tmp_path)


@pytest.mark.parametrize("case", OLD)
def test_forms_of_one_operator_set(case: str, tmp_path: Path) -> None:
    opset, (nodes, shape, weights) = OLD[case]
    agree(model(nodes, ("n", *shape), weights, opset=opset), tmp_path)


@pytest.mark.parametrize("case", UNLIKE_REFERENCE)
def test_forms_beside_the_reference(case: str, tmp_path: Path) -> None:
    opset, (nodes, shape, weights) = UNLIKE_REFERENCE[case]
    made = model(nodes, ("n", *shape), weights, opset=opset)
    module = emitted(onnx_model.load(save(made, tmp_path), KEEP), tmp_path)
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    x = np.random.default_rng(1).standard_normal((3, *shape)).astype(np.float32)
    (expected,) = session.run(None, {"x": x})
    np.testing.assert_allclose(module(torch.from_numpy(x)).detach().numpy(), expected, rtol=2e-5, atol=2e-6)


def test_a_withdrawn_operator_is_told(tmp_path: Path) -> None:
    made = model([node("GroupNormalization", "x s s", "y", num_groups=2)], ("n", 4, 5), {"s": floats(2)}, opset=18)
    with pytest.raises(InputError) as raised:
        onnx_model.load(save(made, tmp_path), ModelOptions())
    assert [(d.code, d.message) for d in raised.value.diagnostics] == [
        ("LIP007", "operator set 18 has no GroupNormalization: the standard has withdrawn it")
    ]


def test_what_a_constant_does_is_not_trained(tmp_path: Path) -> None:
    nodes = [node("Where", "c x d", "h"), node("Max", "h d", "g"), node("Div", "g e", "y")]
    weights = {"c": chequered(4), "d": floats(4), "e": number(2) + np.abs(floats(4))}
    loaded = agree(model(nodes, ("n", 4), weights), tmp_path)
    assert loaded.graph is not None
    assert len(loaded.graph.parameters) == 5  # a mask, what fills it, twice the limit, the divisors
    assert not any(parameter.trainable for parameter in loaded.graph.parameters.values())


def test_the_number_of_entries_is_folded(tmp_path: Path) -> None:
    nodes = [
        node("Size", "x", "n"),
        node("Shape", "x", "s"),
        node("Gather", "s i", "b"),
        node("Div", "n b", "c"),
        node("CastLike", "c x", "f"),
        node("ReduceSum", "x a", "t", keepdims=0),
        node("Div", "t f", "y"),
    ]
    weights = {"i": np.array(0), "a": ints(1)}
    agree(model(nodes, (3, 4, 2), weights), tmp_path)


def test_the_number_of_entries_of_a_batch_of_large_examples_is_no_constant(tmp_path: Path) -> None:
    # Beyond 2^20 entries an example, a multiple of the formal batch size could not be told from other numbers.
    nodes = [node("Size", "x", "s"), node("CastLike", "s x", "f"), node("Mul", "x f", "y")]
    found = onnx_model.load(save(model(nodes, ("n", 2**11, 2**10), {}), tmp_path), ModelOptions()).diagnostics
    assert [d.code for d in found if d.severity == "error"] == ["LIP102"]


def test_the_tokens_themselves_are_no_output(tmp_path: Path) -> None:
    made = model([node("Identity", "x", "y")], ("n", 4), kind=TensorProto.INT64)
    found = onnx_model.load(save(made, tmp_path), ModelOptions()).diagnostics
    assert [(d.code, d.message) for d in found] == [("LIP204", "the output is the tokens themselves")]


def test_a_changed_operator_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lipcompile.frontends.onnx import operators

    monkeypatch.setattr(operators, "NEWEST", {**operators.NEWEST, "ReduceSum": 11})
    nodes = [node("Mul", "x x", "s"), node("ReduceSum", "s a", "t", keepdims=0), node("Sqrt", "t", "y")]
    found = onnx_model.load(save(model(nodes, ("n", 4), {"a": ints(1)}), tmp_path), ModelOptions()).diagnostics
    assert [(d.code, d.node) for d in found if d.severity == "error"] == [("LIP007", "ReduceSum_t")]
    assert "operator set 13" in found[0].message


def test_norms_over_no_axis_are_refused(tmp_path: Path) -> None:
    made = model([node("ReduceL1", "x", "y", noop_with_empty_axes=1)], ("n", 4), opset=18)
    found = onnx_model.load(save(made, tmp_path), ModelOptions()).diagnostics
    assert [(d.code, d.help) for d in found] == [("LIP110", "name the axes")]


def test_a_softmax_of_the_batch_behind_the_last_axis_is_refused(tmp_path: Path) -> None:
    nodes = [node("Transpose", "x", "t", perm=[1, 0]), node("Softmax", "t", "s", axis=0), node("Relu", "s", "y")]
    found = onnx_model.load(save(model(nodes, ("n", 4), opset=11), tmp_path), ModelOptions()).diagnostics
    assert next((d.code, d.node) for d in found if d.severity == "error") == ("LIP108", "Softmax_s")

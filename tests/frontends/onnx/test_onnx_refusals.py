"""What the ONNX front end refuses, in which words, and all of it in one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from lipcompile.diagnostics import Diagnostic, Severity
from lipcompile.frontends.onnx import model as onnx_model
from lipcompile.frontends.options import Loaded, ModelOptions
from tests.frontends.onnx.onnx_models import Array, floats, ints, model, node, save


def load(made: onnx.ModelProto, folder: Path) -> Loaded:
    return onnx_model.load(save(made, folder), ModelOptions(input_norm=Fraction(1)))


def errors(loaded: Loaded) -> list[Diagnostic]:
    return [d for d in loaded.diagnostics if d.severity == Severity.ERROR]


# A code and a word of the reason, for each way to be refused.
BN = {"g": np.ones(6, np.float32), "e": floats(6), "m": floats(6), "v": np.ones(6, np.float32)}
SQUARE = {"w": floats(6, 6)}
TURNED = SQUARE | {"i": np.arange(6)[::-1].copy()}
SHAPE = [node("Shape", "x", "s")]
# The number of each example, twice.
NUMBERS = [
    *(*SHAPE, node("Gather", "s z", "b"), node("Range", "z b d", "n")),
    *(node("Unsqueeze", "n o", "u"), node("Concat", "u u", "p", axis=1)),
]
CAST = node("Cast", "i", "y", to=1)
CEIL = {"ceil_mode": 1, "auto_pad": "VALID"}
FOREIGN_ADD = node("Add", "h b", "y", domain="com.example")
TWO_LAYERS = [node("Gemm", "x v", "h"), node("Gemm", "h w", "y")]
ONE_AXIS_TWICE = {"a": ints(0, 1), "e": ints(9, 9), "b": ints(1, -1)}
EVERY_SECOND = {"a": ints(0), "e": ints(9), "b": ints(1), "c": ints(2)}
MASK = np.array([True, False] * 3)
SPLIT = node("Split", "x s", "a b", axis=1)
TOTAL = node("ReduceSum", "x o", "r", keepdims=0)
Case = tuple[str, str, Sequence[onnx.NodeProto], Sequence[int | str | None], Mapping[str, Array]]

REFUSED: list[Case] = [
    ("LIP100", "did you mean `Relu`", [node("Rely", "x", "y")], ("n", 6), {}),
    ("LIP100", "unbounded", [node("Exp", "x", "y")], ("n", 6), {}),
    ("LIP100", "not Lipschitz", [node("Div", "w x", "y")], ("n", 6), SQUARE),
    ("LIP108", "batch axis", [node("LayerNormalization", "x w", "y", axis=0)], ("n", 6), {"w": floats(6)}),
    ("LIP102", "expected [6]", [node("LayerNormalization", "x w", "y")], ("n", 6), {"w": floats(3)}),
    ("LIP104", "`eps` must be", [node("LayerNormalization", "x w", "y", epsilon=0.0)], ("n", 6), {"w": floats(6)}),
    ("LIP110", "odd size", [node("LRN", "x", "y", size=2)], ("n", 6, 3), {}),
    ("LIP100", "deviation without", [node("MeanVarianceNormalization", "x", "y", axes=[1])], ("n", 6), {}),
    ("LIP100", "F.normalize(x", [node("ReduceL2", "x", "r", axes=[1]), node("Div", "x r", "y")], ("n", 6), {}),
    ("LIP100", "F.normalize(x", [node("LpNormalization", "x", "y", axis=1)], ("n", 6), {}),
    ("LIP109", "com.example", [node("Mystery", "x", "y", domain="com.example")], ("n", 6), {}),
    ("LIP101", "mixes", [node("BatchNormalization", "x g e m v", "y _ _", training_mode=1)], ("n", 6), BN),
    ("LIP101", "mixes", [node("BatchNormalization", "x g e m v", "y a b", training_mode=1)], ("n", 6), BN),
    ("LIP102", "statistics", [node("BatchNormalization", "x g e m v", "y")], ("n", 5, 2), BN),
    ("LIP214", "the loss contains it", [node("Softmax", "x", "y")], ("n", 6), {}),
    ("LIP214", "--loss nll", [node("LogSoftmax", "x", "y")], ("n", 6), {}),
    ("LIP108", "batch axis", [node("Softmax", "x", "h", axis=0), node("Relu", "h", "y")], ("n", 6), {}),
    ("LIP108", "mixes", [node("Gemm", "x w", "y", transA=1)], (6, 6), SQUARE),
    ("LIP108", "mixes", [node("Gemm", "w x", "y")], (6, 6), SQUARE),
    ("LIP108", "mixes", [node("MatMul", "w x", "y")], (6, 6), SQUARE),
    ("LIP110", "two tensors", [node("MatMul", "x x", "y")], ("n", 6), {}),
    ("LIP108", "differs from example", [node("MatMul", "x w", "y")], (2, 3, 6), {"w": floats(2, 6, 6)}),
    ("LIP110", "constant matrices", [node("MatMul", "x w", "y")], ("n", 1, 3, 6), {"w": floats(2, 6, 6)}),
    ("LIP108", "other examples", [node("ReduceSum", "x a", "r", keepdims=0), node("Gemm", "x w r", "y")], ("n", 6),
     SQUARE | {"a": ints(1)}),
    ("LIP108", "example to example", [node("Gemm", "x w b", "y")], ("n", 6), {**SQUARE, "b": floats(3, 6)}),
    ("LIP108", "example to example", [node("Add", "x b", "y")], ("n", 6), {"b": floats(3, 6)}),
    ("LIP108", "batch axis", [node("Flatten", "x", "y", axis=0)], ("n", 2, 3), {}),
    ("LIP108", "batch axis", [node("Flatten", "x", "y", axis=2)], ("n", 2, 3), {}),
    ("LIP108", "batch axis", [node("Reshape", "x s", "y")], ("n", 6), {"s": ints(-1, 3)}),
    ("LIP108", "batch axis", [node("Reshape", "x s", "y")], ("n", 6), {"s": ints(6, -1)}),
    ("LIP108", "batch axis", [node("Reshape", "x s", "y")], (4, 6), {"s": ints(6, 4)}),
    ("LIP108", "batch axis", [node("Reshape", "x s", "y")], (1, 6), {"s": ints(6)}),
    ("LIP108", "batch axis", [node("Reshape", "x s", "y", allowzero=1)], ("n", 6), {"s": ints(0, 6)}),
    ("LIP102", "do not fit", [node("Reshape", "x s", "y")], ("n", 6), {"s": ints(0, 4, -1)}),
    ("LIP108", "batch", [*SHAPE, node("Mul", "s s", "t"), node("Reshape", "x t", "y")], ("n", 1), {}),
    ("LIP108", "batch axis", [node("Transpose", "x", "y")], ("n", 6), {}),
    ("LIP108", "batch axis", [node("Concat", "x x", "y", axis=0)], ("n", 6), {}),
    ("LIP108", "batch axis", [node("Concat", "x x", "y", axis=-2)], ("n", 6), {}),
    ("LIP108", "batch axis", [node("Split", "x", "y z", axis=0)], (4, 6), {}),
    ("LIP108", "batch axis", [node("Squeeze", "x a", "y")], (1, 6), {"a": ints(0)}),
    ("LIP108", "batch of one", [node("Squeeze", "x", "y")], (1, 6), {}),
    ("LIP108", "batch axis", [node("Unsqueeze", "x a", "y")], ("n", 6), {"a": ints(0)}),
    ("LIP108", "batch axis", [node("Slice", "x a b a", "y")], ("n", 6), {"a": ints(0), "b": ints(1)}),
    ("LIP108", "batch axis", [node("Gather", "x a", "y")], ("n", 6), {"a": ints(0)}),
    ("LIP102", "no such places", [*NUMBERS, TOTAL, node("GatherND", "r p", "y")], ("n", 6),
     {"z": np.array(0), "o": np.array([1]), "d": np.array(1)}),
    ("LIP108", "batch axis", [node("TopK", "x k", "y i", axis=0)], (6, 6), {"k": ints(6)}),
    ("LIP108", "batch axis", [node("ReduceMean", "x", "y", axes=[0])], ("n", 6), {}),
    ("LIP108", "batch axis", [node("ReduceMean", "x", "y")], ("n", 6), {}),
    ("LIP108", "to the batch", [node("Pad", "x p", "y")], ("n", 2, 3), {"p": ints(1, 0, 0, 0, 0, 0)}),
    ("LIP108", "mixes", [node("Unsqueeze", "x a", "u"), node("Add", "u x", "y")], ("n", 6), {"a": ints(1)}),
    ("LIP102", "do not fit", [node("Mul", "x b", "y")], ("n", 5), {"b": floats(6)}),
    ("LIP108", "example to example", [node("Mul", "x b", "y")], ("n", 6), {"b": floats(3, 6)}),
    ("LIP108", "mixes", [node("Unsqueeze", "x a", "u"), node("Mul", "u x", "y")], ("n", 6), {"a": ints(1)}),
    ("LIP102", "do not fit", [SPLIT, node("Mul", "a b", "y")], ("n", 6), {"s": ints(4, 2)}),
    ("LIP104", "zero", [node("Div", "x c", "y")], ("n", 6), {"c": np.array(0, np.float32)}),
    ("LIP304", "NaN", [node("Mul", "x c", "y")], ("n", 6), {"c": np.array(np.inf, np.float32)}),
    ("LIP304", "NaN", [node("Gemm", "x w", "y")], ("n", 6), {"w": np.full((6, 6), np.nan, np.float32)}),
    ("LIP304", "NaN", [node("Gemm", "x w b", "y")], ("n", 6), {**SQUARE, "b": np.full(6, np.inf, np.float32)}),
    ("LIP303", "shape", [node("Gemm", "x w", "y")], ("n", 5), SQUARE),
    ("LIP110", "ceil_mode", [node("MaxPool", "x", "y", kernel_shape=[2], **CEIL)], ("n", 1, 5), {}),
    ("LIP103", "padding", [node("MaxPool", "x", "y", kernel_shape=[1], pads=[1, 0])], ("n", 1, 6), {}),
    ("LIP102", "0-norm", [node("LpPool", "x", "y", kernel_shape=[2], p=0)], ("n", 1, 6), {}),
    ("LIP102", "spatial", [node("GlobalMaxPool", "x", "y")], ("n", 6), {}),
    ("LIP108", "batch axis", [node("ReduceLogSumExp", "x", "y", axes=[-2])], ("n", 6), {}),
    ("LIP102", "do not fit", [SPLIT, node("Max", "a b", "y")], ("n", 6), {"s": ints(4, 2)}),
    ("LIP108", "example to example", [node("Max", "x c", "y")], ("n", 6), {"c": floats(3, 6)}),
    ("LIP110", "limits that differ, one of which is -3.4e", [node("Max", "x c", "y")], ("n", 6),
     {"c": np.where(MASK, 0, np.finfo(np.float32).min)}),
    ("LIP100", "it jumps", [node("Where", "x x x", "y")], ("n", 6), {}),
    ("LIP108", "example to example", [node("Where", "c x x", "y")], ("n", 6), {"c": np.tile(MASK, (3, 1))}),
    ("LIP102", "does not fit", [node("Where", "c x x", "y")], ("n", 6), {"c": MASK[:4]}),
    ("LIP304", "NaN", [node("Where", "c x f", "y")], ("n", 6), {"c": MASK, "f": np.array(-np.inf, np.float32)}),
    ("LIP108", "batch axis", [node("ReduceMax", "x", "h", axes=[0]), node("Relu", "h", "y")], (2, 3), {}),
    ("LIP102", "step of 0", [node("Slice", "x a e b c", "y")], ("n", 6), EVERY_SECOND | {"c": ints(0)}),
    ("LIP102", "no entry", [node("Slice", "x a e b c", "y")], ("n", 6), EVERY_SECOND | {"c": ints(-2)}),
    ("LIP110", "order", [node("TopK", "x k", "y i", sorted=0)], ("n", 6), {"k": ints(3)}),
    ("LIP102", "not have 7 entries", [node("TopK", "x k", "y i")], ("n", 6), {"k": ints(7)}),
    ("LIP110", "second output", [node("MaxPool", "x", "h i", kernel_shape=[2]), CAST], ("n", 1, 6), {}),
    ("LIP102", "no entry", [node("Gather", "x i", "y", axis=1)], ("n", 6), {"i": ints()}),
    ("LIP104", "finite", [node("Pad", "x p c", "y")], ("n", 3), {"p": ints(0, 1, 0, 1), "c": np.array(np.inf)}),
    ("LIP308", "another way", [node("Gather", "w i", "v"), *TWO_LAYERS], ("n", 6), TURNED),
    ("LIP308", "another way", [node("Mul", "w c", "v"), *TWO_LAYERS], ("n", 6), SQUARE | {"c": floats(1)}),
    ("LIP109", "com.example", [node("MatMul", "x w", "h"), FOREIGN_ADD], ("n", 6), SQUARE | {"b": floats(6)}),
    ("LIP102", "twice", [node("Slice", "x a e b", "y")], ("n", 6), ONE_AXIS_TWICE),
    ("LIP102", "twice", [node("Unsqueeze", "x a", "y")], ("n", 6), {"a": ints(1, 1)}),
    ("LIP102", "twice", [node("Unsqueeze", "x a", "y")], ("n", 6), {"a": ints(1, -3)}),
    ("LIP107", "does not depend", [node("Abs", "w", "y")], ("n", 6), SQUARE),
    ("LIP106", "axis 2", [node("Relu", "x", "y")], ("n", 3, "length"), {}),
    ("LIP106", "no batch axis", [node("Relu", "x", "y")], (), {}),
]  # fmt: skip


@pytest.mark.parametrize("case", REFUSED, ids=[f"{code} {nodes[-1].op_type}" for code, _, nodes, _, _ in REFUSED])
def test_refusals(case: Case, tmp_path: Path) -> None:
    code, word, nodes, shape, weights = case
    loaded = load(model(nodes, shape, weights), tmp_path)
    assert loaded.graph is None
    found = errors(loaded)
    assert [d.code for d in found] == [code]
    assert word in f"{found[0].message} {found[0].help}"
    assert found[0].location is not None
    assert found[0].location.file.endswith("model.onnx")


def test_a_trained_dropout_is_a_dropout(tmp_path: Path) -> None:
    weights = {"r": np.array(0.25, np.float32), "t": np.array(True)}
    graph = load(model([node("Dropout", "x r t", "y")], ("n", 6), weights), tmp_path).graph
    assert graph is not None
    assert graph.nodes[0].attributes.probability == Fraction(1, 4)


RATIO = {"r": np.array(0.25, np.float32), "t": np.array(True), "o": np.ones((1, 6), np.float32)}
COPIED = [node("Shape", "x", "s"), node("Expand", "o s", "e")]
SEEDED = {
    "a dropout": ([node("Dropout", "x r t", "y", seed=0)], "Dropout"),
    "a dropout of ones": ([*COPIED, node("Dropout", "e r t", "d", seed=0), node("Mul", "x d", "y")], "Dropout"),
    "draws": (
        [
            *COPIED,
            node("RandomUniformLike", "e", "u", seed=1.0),
            node("Less", "u r", "l"),
            node("Cast", "l", "c", to=1),
            node("Mul", "x c", "y"),
        ],
        "RandomUniformLike",
    ),
}


@pytest.mark.parametrize("name", SEEDED)
def test_draws_with_a_seed_in_the_file_are_no_dropout(name: str, tmp_path: Path) -> None:
    """The same file without the seed is dropout."""
    nodes, op_type = SEEDED[name]
    (error,) = load(model(nodes, ("n", 6), RATIO), tmp_path).diagnostics
    assert (error.code, error.op) == ("LIP110", op_type)
    assert "fixed seed" in error.message
    for one in nodes:
        kept = [attribute for attribute in one.attribute if attribute.name != "seed"]
        del one.attribute[:]
        one.attribute.extend(kept)
    graph = load(model(nodes, ("n", 6), RATIO), tmp_path).graph
    assert graph is not None
    assert [made.op.name for made in graph.nodes if "dropout" in made.op.name] == ["dropout"]


def test_a_seed_draws_nothing_at_inference(tmp_path: Path) -> None:
    loaded = load(model([node("Dropout", "x", "d", seed=0), node("Relu", "d", "y")], ("n", 6)), tmp_path)
    assert loaded.graph is not None
    assert [made.op.name for made in loaded.graph.nodes] == ["relu"]


def test_all_problems_in_one_run_with_names_and_paths(tmp_path: Path) -> None:
    """The shape behind each refused node is inferred, so that the next problem is found."""
    nodes = [
        node("Conv", "x conv1.weight", "c", pads=[1, 1, 1, 1]),
        node("BatchNormalization", "c bn1.weight bn1.bias bn1.mean bn1.var", "b _ _", training_mode=1),
        node("ThresholdedRelu", "b", "g"),
        node("Exp", "g", "e"),
        node("GlobalAveragePool", "e", "y"),
    ]
    ones = np.ones(2, np.float32)
    weights = {"conv1.weight": floats(2, 1, 3, 3), **{f"bn1.{k}": ones for k in ("weight", "bias", "mean", "var")}}
    loaded = load(model(nodes, ("n", 1, 4, 4), weights, opset=20), tmp_path)
    assert [(d.code, d.node, d.op) for d in errors(loaded)] == [
        ("LIP101", "bn1", "BatchNormalization"),
        ("LIP100", "ThresholdedRelu_g", "ThresholdedRelu"),
        ("LIP100", "Exp_e", "Exp"),
    ]
    assert errors(loaded)[0].path == ("x", "conv1")


def test_what_hangs_off_an_unknown_operator_is_skipped_unless_nothing_could_fix_it(tmp_path: Path) -> None:
    unknown, norm = node("Mystery", "x", "h", domain="com.example"), "r bn1.g bn1.e bn1.m bn1.v"
    nodes = [
        unknown,
        node("Relu", "h", "r"),
        node("BatchNormalization", norm, "b _ _", training_mode=1),
        node("ThresholdedRelu", "b", "y"),
    ]
    weights = {f"bn1.{name}": value for name, value in BN.items()}
    found = load(model(nodes, ("n", 6), weights), tmp_path).diagnostics
    assert [d.code for d in found] == ["LIP109", "LIP101", "LIP100"]


def test_all_operators_without_a_bound_are_told(tmp_path: Path) -> None:
    """Also those behind one another, as long as no spelling accounts for them."""
    nodes = [node("Relu", "x", "a"), node("Exp", "a", "b"), node("Abs", "b", "c"), node("Exp", "c", "d")]
    nodes += [node("Log", "x", "e"), node("Add", "d e", "y")]
    found = load(model(nodes, ("n", 6)), tmp_path).diagnostics
    assert [(d.code, d.node) for d in found] == [("LIP100", "Exp_b"), ("LIP100", "Exp_d"), ("LIP100", "Log_e")]


def test_several_outputs(tmp_path: Path) -> None:
    made = model([node("Relu", "x", "y"), node("Abs", "x", "z")], ("n", 6), outputs=("y", "z"))
    found = load(made, tmp_path).diagnostics
    assert [d.code for d in found] == ["LIP107"]
    assert "`y`, `z`" in found[0].message


def test_weights_listed_as_inputs_are_weights(tmp_path: Path) -> None:
    made = model([node("Gemm", "x w", "y")], ("n", 6), SQUARE)
    made.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, (6, 6)))
    assert load(made, tmp_path).graph is not None


def test_tokens_are_no_vectors(tmp_path: Path) -> None:
    made = model([node("Cast", "x", "y", to=TensorProto.FLOAT)], ("n", 6), kind=TensorProto.INT64)
    loaded = onnx_model.load(save(made, tmp_path), ModelOptions())
    assert [d.message for d in loaded.diagnostics] == ["tokens are cast to numbers"]


def test_tokens_have_no_norm(tmp_path: Path) -> None:
    made = model([node("Gather", "w x", "y")], ("n", 6), SQUARE, kind=TensorProto.INT64)
    assert [(d.code, d.message) for d in load(made, tmp_path).diagnostics] == [("LIP204", "tokens have no norm")]


def test_truth_values_are_no_input(tmp_path: Path) -> None:
    made = model([node("Not", "x", "y")], ("n", 6), kind=TensorProto.BOOL)
    assert [d.code for d in load(made, tmp_path).diagnostics] == ["LIP105"]


def test_a_function_of_the_file_is_inlined(tmp_path: Path) -> None:
    body = [node("Relu", "a", "r"), node("Neg", "r", "b")]
    function = helper.make_function("com.example", "Twist", ["a"], ["b"], body, [helper.make_opsetid("", 17)])
    made = model([node("Twist", "x", "y", domain="com.example")], ("n", 6))
    made.functions.append(function)
    graph = load(made, tmp_path).graph
    assert graph is not None
    assert [n.op.name for n in graph.nodes] == ["relu", "add"]


@pytest.mark.parametrize("attributes", [{"dilations": [2, 2], "strides": [1, 1]}, {"strides": [3, 3]}])
def test_automatic_pads_that_runtimes_read_differently_are_refused(
    tmp_path: Path, attributes: dict[str, list[int]]
) -> None:
    pool = node("MaxPool", "x", "y", kernel_shape=[2, 2], auto_pad="SAME_UPPER", **attributes)
    (found,) = errors(load(model([pool], ("n", 1, 6, 6)), tmp_path))
    assert (found.code, found.help) == ("LIP110", "export the model with explicit pads")


def test_operands_that_are_missing_or_no_numbers_are_refused(tmp_path: Path) -> None:
    """Found by fuzzing: a product of one operand below a spelling, and the difference to a truth value."""
    gelu = [node("Mystery", "x", "m"), node("Mul", "x", "h"), node("Erf", "h", "e"), node("Mul", "x e", "z")]
    gelu.append(node("Add", "z m", "y"))
    assert load(model(gelu, ("n", 6)), tmp_path).graph is None
    truth = model([node("Sub", "x t", "y")], ("n", 6), {"t": np.array([True])})
    assert load(truth, tmp_path).graph is None


def test_nothing_is_computed_from_refused_tensors(tmp_path: Path) -> None:
    nodes = [node("Mystery", "x", "m"), node("Equal", "m m", "e"), node("And", "e e", "y")]
    assert load(model(nodes, ("n", 6)), tmp_path).graph is None


@pytest.mark.parametrize("front", [0, 1])
@pytest.mark.parametrize("second", list(product("ab", repeat=3))[1:-1], ids="".join)
def test_attention_among_tensors_whose_batches_stand_at_different_axes(
    second: tuple[str, ...], front: int, tmp_path: Path
) -> None:
    """For b, the batch is the second axis: heads of one example would meet those of another by broadcasting."""
    turned = {"a": (0, 1, 3, 2), "b": (1, 0, 3, 2)}[second[1]]
    moved = [node("Transpose", "x", "xb", perm=(1, 0, 2, 3)), node("Identity", "x", "xa")]
    nodes = [*moved, node("Transpose", "x", "kt", perm=turned), node("MatMul", f"x{second[0]} kt", "s")]
    nodes += [node("Softmax", "s", "w"), node("MatMul", f"w x{second[2]}", "h")]
    nodes += [node("ReduceMean", "h", "m", axes=[front], keepdims=0), node("Flatten", "m", "y")]
    assert errors(load(model(nodes, ["batch", 1, 4, 4]), tmp_path))


def test_a_comparison_with_tokens_of_which_no_table_says_how_many_there_are(tmp_path: Path) -> None:
    """As a mask of lengths is made: positions below the length."""
    nodes = [
        node("Unsqueeze", "x axes", "length"),
        node("Less", "places length", "seen"),
        node("Cast", "seen", "mask", to=1),
        node("Gemm", "mask w", "y"),
    ]
    stored = {"axes": np.array([1]), "places": np.arange(6), "w": floats(6, 3)}
    found = load(model(nodes, ("n",), stored, kind=TensorProto.INT64), tmp_path).diagnostics
    assert {one.code for one in found} == {"LIP204", "LIP100"}  # a norm is given, and a comparison has none

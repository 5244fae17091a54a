"""An imported model computes what the file computes: emitted modules against the ONNX reference implementation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx.reference import ReferenceEvaluator

from lipcompile.core.backend import instantiate
from lipcompile.emitters.torch.emit import emit
from lipcompile.frontends.onnx import model as onnx_model
from lipcompile.frontends.options import Loaded, ModelOptions, parse_loss
from lipcompile.pipeline import derive
from tests.frontends.onnx.onnx_models import Array, floats, ints, model, node, save

KEEP = ModelOptions(input_norm=Fraction(100), constraint="keep")


def emitted(loaded: Loaded, folder: Path) -> Any:
    """Emit, import and build the module; the loss is whichever fits, for it is not looked at."""
    assert loaded.graph is not None, loaded.diagnostics
    graph = replace(loaded.graph, loss=parse_loss("cosine:floor=1"))
    derivation = derive(replace(loaded, graph=graph), KEEP)
    return instantiate(folder / "emitted.py", emit(derivation)).eval()


def reference(made: onnx.ModelProto, x: Array) -> Array:
    results: Any = ReferenceEvaluator(made).run(None, {made.graph.input[0].name: x})
    return np.asarray(results[0])


def agree(made: onnx.ModelProto, folder: Path, batch: int = 3) -> Loaded:
    """Assert that the emitted module and the reference agree on random examples; return what was loaded."""
    loaded = onnx_model.load(save(made, folder), KEEP)
    module = emitted(loaded, folder)
    x = np.random.default_rng(1).standard_normal((batch, *module.input_shape)).astype(np.float32)
    expected = reference(made, x)
    found = module(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)
    return loaded


# One line a model: nodes, input shape behind the batch, weights. What comes out must be a vector.
Case = tuple[Sequence[onnx.NodeProto], tuple[int, ...], Mapping[str, Array]]
FLAT = node("Flatten", "h", "y")
IMAGE = (2, 5, 6)
COUNTED = {"ceil_mode": 1, "count_include_pad": 1}
W, B = floats(4, 6), floats(4, seed=1)
KERNEL = floats(4, 2, 3, 3)

CASES: dict[str, Case] = {
    "gemm, transB": ([node("Gemm", "x w b", "y", transB=1)], (6,), {"w": W, "b": B}),
    "gemm, no bias": ([node("Gemm", "x w", "y")], (6,), {"w": W.T.copy()}),
    "gemm, alpha and beta": (
        [node("Gemm", "x w b", "y", transB=1, alpha=0.5, beta=-3.0)],
        (6,),
        {"w": W, "b": B},
    ),
    "gemm, row bias": ([node("Gemm", "x w b", "y", transB=1)], (6,), {"w": W, "b": B[None]}),
    "gemm, scalar bias": (
        [node("Gemm", "x w b", "y", transB=1)],
        (6,),
        {"w": W, "b": np.array([0.5], np.float32)},
    ),
    "gemm, the bias made of the example": (
        [node("Relu", "x", "r"), node("Gemm", "x w r", "y", alpha=0.5, beta=-3.0)],
        (4,),
        {"w": floats(4, 4)},
    ),
    "gemm, one number made of the example": (
        [node("ReduceSum", "x a", "r"), node("Gemm", "x w r", "y")],
        (4,),
        {"w": floats(4, 4), "a": ints(1)},
    ),
    **{op: ([node(op, "x", "y")], (6,), {}) for op in ("Sin", "Cos", "Atan", "Asinh", "Erf")},
    "matmul": ([node("MatMul", "x w", "y")], (6,), {"w": W.T.copy()}),
    "matmul with a vector": ([node("MatMul", "x w", "y")], (3, 6), {"w": floats(6)}),
    "matmul of vectors with a vector": (
        [node("MatMul", "x w", "u"), node("Unsqueeze", "u a", "y")],
        (6,),
        {"w": floats(6), "a": ints(1)},
    ),
    "matmul with a matrix for each head": (
        [node("MatMul", "x w", "h"), FLAT],
        (2, 3, 5),
        {"w": floats(2, 5, 4)},
    ),
    "matmul with a matrix for each of two axes": (
        [node("MatMul", "x w", "h"), FLAT],
        (2, 3, 1, 5),
        {"w": floats(1, 2, 3, 5, 4)},
    ),
    "matmul and add": (
        [node("MatMul", "x w", "h"), node("Add", "b h", "y")],
        (6,),
        {"w": W.T.copy(), "b": B},
    ),
    "matmul over positions": (
        [node("MatMul", "x w", "m"), node("Add", "m b", "h"), FLAT],
        (3, 6),
        {"w": W.T.copy(), "b": B},
    ),
    "bias per position": (
        [node("MatMul", "x w", "m"), node("Add", "m b", "h"), FLAT],
        (3, 6),
        {"w": W.T.copy(), "b": floats(3, 4)},
    ),
    "matmul of a transposed weight": (
        [node("Transpose", "w", "v", perm=[1, 0]), node("MatMul", "x v", "y")],
        (6,),
        {"w": W},
    ),
    "float16 weights": (
        [node("Cast", "w", "v", to=1), node("Gemm", "x v", "y", transB=1)],
        (6,),
        {"w": W.astype(np.float16)},
    ),
    "conv": ([node("Conv", "x w b", "h"), FLAT], IMAGE, {"w": KERNEL, "b": B}),
    "conv, stride, dilation, pads": (
        [node("Conv", "x w", "h", strides=[2, 1], dilations=[1, 2], pads=[0, 1, 2, 1]), FLAT],
        IMAGE,
        {"w": KERNEL},
    ),
    "conv, groups": ([node("Conv", "x w", "h", group=2), FLAT], IMAGE, {"w": floats(4, 1, 3, 3)}),
    "conv, same upper": (
        [node("Conv", "x w", "h", auto_pad="SAME_UPPER", strides=[2, 2]), FLAT],
        IMAGE,
        {"w": KERNEL},
    ),
    "conv, same lower": (
        [node("Conv", "x w", "h", auto_pad="SAME_LOWER"), FLAT],
        (2, 5, 6),
        {"w": floats(4, 2, 2, 4)},
    ),
    "conv, valid": ([node("Conv", "x w", "h", auto_pad="VALID"), FLAT], IMAGE, {"w": KERNEL}),
    "conv 1d": ([node("Conv", "x w", "h"), FLAT], (2, 7), {"w": floats(4, 2, 3)}),
    "conv 3d": ([node("Conv", "x w b", "h"), FLAT], (2, 3, 4, 3), {"w": floats(4, 2, 2, 2, 2), "b": B}),
    "conv and batch normalisation": (
        [node("Conv", "x w b", "c"), node("BatchNormalization", "c g e m v", "h", epsilon=0.1), FLAT],
        IMAGE,
        {"w": KERNEL, "b": B, "g": floats(4, seed=2), "e": floats(4, seed=3), "m": B, "v": np.abs(B) + 0.1},
    ),
    "gemm and batch normalisation": (
        [node("Gemm", "x w", "h", transB=1), node("BatchNormalization", "h g e m v", "y")],
        (6,),
        {"w": W, "g": floats(4, seed=2), "e": floats(4, seed=3), "m": B, "v": np.abs(B) + 0.1},
    ),
    "leaky relu": ([node("LeakyRelu", "x", "y", alpha=0.2)], (6,), {}),
    "elementwise": (
        [node("Tanh", "x", "a"), node("Softplus", "a", "b"), node("Sigmoid", "b", "c"), node("Abs", "c", "y")],
        (6,),
        {},
    ),
    "max pool": (
        [node("MaxPool", "x", "h", kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 0]), FLAT],
        IMAGE,
        {},
    ),
    "max pool, ceil mode that changes nothing": (
        [node("MaxPool", "x", "h", kernel_shape=[3, 2], strides=[2, 2], ceil_mode=1), FLAT],
        IMAGE,
        {},
    ),
    "average pool": ([node("AveragePool", "x", "h", kernel_shape=[2, 3], strides=[1, 2]), FLAT], IMAGE, {}),
    "average pool, padding counted": (
        [node("AveragePool", "x", "h", kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1), FLAT],
        IMAGE,
        {},
    ),
    "max pool, ceil mode": (
        [node("MaxPool", "x", "h", kernel_shape=[2, 3], strides=[2, 2], ceil_mode=1), FLAT],
        IMAGE,
        {},
    ),
    "average pool, padding not counted": (
        [node("AveragePool", "x", "h", kernel_shape=[3, 2], strides=[1, 2], pads=[1, 0, 2, 1]), FLAT],
        IMAGE,
        {},
    ),
    "average pool, ceil mode": (
        [node("AveragePool", "x", "h", kernel_shape=[2, 3], strides=[2, 2], ceil_mode=1), FLAT],
        IMAGE,
        {},
    ),
    "average pool, ceil mode and padding counted": (
        [node("AveragePool", "x", "h", kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2], **COUNTED), FLAT],
        (2, 6, 5),
        {},
    ),
    "l1 pool": ([node("LpPool", "x", "h", kernel_shape=[2, 2], p=1, pads=[1, 0, 0, 1]), FLAT], IMAGE, {}),
    "l3 pool": ([node("LpPool", "x", "h", kernel_shape=[2, 3], strides=[1, 2], p=3), FLAT], IMAGE, {}),
    "l2 pool": ([node("LpPool", "x", "h", kernel_shape=[2, 2], p=2), FLAT], IMAGE, {}),
    "global average pool": ([node("GlobalAveragePool", "x", "h"), FLAT], IMAGE, {}),
    "global max pool": ([node("GlobalMaxPool", "x", "h"), FLAT], IMAGE, {}),
    "mean over the image": ([node("ReduceMean", "x", "y", axes=[2, -1], keepdims=0)], IMAGE, {}),
    "mean of features": ([node("ReduceMean", "x", "h", axes=[1]), FLAT], IMAGE, {}),
    "sum of nothing": (
        [node("ReduceSum", "x a", "h", noop_with_empty_axes=1), FLAT],
        (2, 3),
        {"a": ints()},
    ),
    "sum": ([node("ReduceSum", "x a", "h", keepdims=0), FLAT], IMAGE, {"a": ints(1, -1)}),
    "sum of magnitudes": ([node("ReduceL1", "x", "h", axes=[2]), FLAT], IMAGE, {}),
    "euclidean norm": ([node("ReduceL2", "x", "h", axes=[-1], keepdims=0), FLAT], IMAGE, {}),
    "logsumexp": ([node("ReduceLogSumExp", "x", "h", axes=[2, 3]), FLAT], IMAGE, {}),
    "maximum of an axis": ([node("ReduceMax", "x", "h", axes=[1]), FLAT], IMAGE, {}),
    "minimum of everything": ([node("ReduceMin", "x", "h", axes=[1, 2, 3], keepdims=1), FLAT], IMAGE, {}),
    "maximum alone, then a concatenation": (
        [node("ReduceMax", "x", "m", axes=[1]), node("Concat", "m x", "h", axis=1), FLAT],
        (2, 3),
        {},
    ),
    "maximum and minimum of two tensors": (
        [
            node("Relu", "x", "r"),
            node("ReduceMax", "x", "c", axes=[1]),
            node("ReduceMin", "r", "d", axes=[1]),
            node("Concat", "c d", "h", axis=1),
            FLAT,
        ],
        (2, 3),
        {},
    ),
    "reshape, 0 and -1": ([node("Reshape", "x s", "y")], IMAGE, {"s": ints(0, -1)}),
    "reshape, -1 for the batch": ([node("Reshape", "x s", "y")], IMAGE, {"s": ints(-1, 60)}),
    "reshape, zeros copy sizes": (
        [node("Reshape", "x s", "r"), node("MatMul", "r w", "h"), FLAT],
        IMAGE,
        {"s": ints(0, 0, -1), "w": floats(30, 2)},
    ),
    "shape arithmetic": (
        [
            node("Shape", "x", "s"),
            node("Constant", "", "zero", value_int=0),
            node("Gather", "s zero", "b", axis=0),
            node("Unsqueeze", "b axes", "bs"),
            node("Constant", "", "rest", value_ints=[-1]),
            node("Concat", "bs rest", "t", axis=0),
            node("Reshape", "x t", "y"),
        ],
        IMAGE,
        {"axes": ints(0)},
    ),
    "shape arithmetic with products": (
        [
            node("Shape", "x", "s"),
            node("Slice", "s one end", "sizes"),
            node("Slice", "s none one", "b"),
            node("ReduceProd", "sizes", "n", axes=[0], keepdims=1),
            node("Concat", "b n", "t", axis=0),
            node("Reshape", "x t", "y"),
        ],
        IMAGE,
        {"one": ints(1), "end": ints(9), "none": ints(0)},
    ),
    "squeeze and unsqueeze": (
        [node("Unsqueeze", "x a", "u"), node("Squeeze", "u b", "h"), FLAT],
        (2, 3),
        {"a": ints(-1, 1), "b": ints(1)},
    ),
    "transpose": (
        [node("Transpose", "x", "t", perm=[0, 3, 1, 2]), node("MatMul", "t w", "h"), FLAT],
        IMAGE,
        {"w": floats(5, 2)},
    ),
    "dropout is the identity": ([node("Dropout", "x", "y")], (6,), {}),
    "residual": ([node("Relu", "x", "r"), node("Add", "x r", "y")], (6,), {}),
    "difference": ([node("Relu", "x", "r"), node("Sub", "x r", "y")], (6,), {}),
    "sums": ([node("Relu", "x", "r"), node("Sum", "x r x", "s"), node("Mean", "s x", "y")], (6,), {}),
    "bias subtracted": ([node("Sub", "x c", "y")], (6,), {"c": floats(6)}),
    "subtracted from a bias": ([node("Sub", "c x", "y")], (6,), {"c": floats(1, 6)}),
    "numbers": (
        [node("Mul", "c x", "m"), node("Div", "m d", "q"), node("Neg", "q", "n"), node("Add", "n c", "y")],
        (6,),
        {"c": np.array(0.7, np.float32), "d": np.array([-3.0], np.float32)},
    ),
    "a gate": ([node("Sigmoid", "x", "g"), node("Mul", "x g", "y")], (6,), {}),
    "a gate for each channel": (
        [node("GlobalAveragePool", "x", "p"), node("Tanh", "p", "g"), node("Mul", "g x", "h"), FLAT],
        IMAGE,
        {},
    ),
    "extremes": (
        [node("Relu", "x", "r"), node("Tanh", "x", "t"), node("Max", "x t r", "a"), node("Min", "a t", "y")],
        (6,),
        {},
    ),
    "the larger half alone": (
        [node("Split", "x", "a b", axis=1), node("Max", "a b", "y")],
        (6,),
        {},
    ),
    "the smaller half beside another": (
        [node("Split", "x", "a b", axis=1), node("Min", "b a", "m"), node("Concat", "m a", "y", axis=1)],
        (6,),
        {},
    ),
    "a constant condition": (
        [node("Relu", "x", "r"), node("Where", "c x r", "h"), FLAT],
        (2, 3),
        {"c": np.array([[True], [False]])},
    ),
    "bias of an image": ([node("Add", "x c", "h"), FLAT], IMAGE, {"c": floats(2, 1, 1)}),
    "concat": ([node("Relu", "x", "r"), node("Concat", "x r", "h", axis=-1), FLAT], (2, 3), {}),
    "concat, an empty state of each example in front": (
        [
            node("Shape", "x", "n"),
            node("Gather", "n first", "b", axis=0),
            node("Concat", "b state", "t", axis=0),
            node("ConstantOfShape", "t", "e"),
            node("Concat", "e x", "h", axis=2),
            FLAT,
        ],
        (2, 3),
        {"first": ints(0), "state": ints(2, 0)},
    ),
    "split": ([node("Split", "x s", "a b", axis=1), node("Concat", "b a", "y", axis=1)], (7,), {"s": ints(3, 4)}),
    "slices": (
        [node("Slice", "x lo hi ax", "h"), FLAT],
        IMAGE,
        {"lo": ints(-3, 1), "hi": ints(2**40, -1), "ax": ints(-1, 2)},
    ),
    "gather one entry": ([node("Gather", "x i", "h", axis=2), FLAT], IMAGE, {"i": np.array(-2)}),
    "gather a run": ([node("Gather", "x i", "h", axis=1), FLAT], (5, 2), {"i": ints(1, 2, 3)}),
    "pad": ([node("Pad", "x p", "h"), FLAT], IMAGE, {"p": ints(0, 0, 1, 0, 0, 0, 2, 3)}),
    "sort, ascending": ([node("TopK", "x k", "y i", axis=-1, largest=0)], (6,), {"k": ints(6)}),
    "sort, descending": ([node("TopK", "x k", "h i", axis=1), FLAT], (4, 3), {"k": ints(4)}),
    "maxmin of halves": (
        [
            node("Split", "x", "a b", axis=1),
            node("Max", "a b", "c"),
            node("Min", "b a", "d"),
            node("Concat", "c d", "h", axis=1),
            FLAT,
        ],
        (6, 2),
        {},
    ),
    "minmax of even and odd": (
        [
            node("Slice", "x zero end one two", "a"),
            node("Slice", "x one end one two", "b"),
            node("Min", "a b", "c"),
            node("Max", "a b", "d"),
            node("Unsqueeze", "c two", "e"),
            node("Unsqueeze", "d two", "f"),
            node("Concat", "e f", "h", axis=2),
            FLAT,
        ],
        (6,),
        {"zero": ints(0), "one": ints(1), "two": ints(2), "end": ints(2**62 - 1)},
    ),
    "maxmin by reductions": (
        [
            node("Reshape", "x s", "p"),
            node("ReduceMax", "p", "c", axes=[-1], keepdims=1),
            node("ReduceMin", "p", "d", axes=[2], keepdims=1),
            node("Concat", "c d", "h", axis=-1),
            FLAT,
        ],
        (6,),
        {"s": ints(0, 3, 2)},
    ),
    "maxmin by reductions, joined": (
        [
            node("ReduceMax", "x", "c", axes=[1], keepdims=0),
            node("ReduceMin", "x", "d", axes=[1], keepdims=0),
            node("Concat", "c d", "h", axis=-1),
            FLAT,
        ],
        (2, 3, 4),
        {},
    ),
    "tied layers": (
        [node("Gemm", "x w b", "h", transB=1), node("Relu", "h", "r"), node("Gemm", "r w b", "y", transB=1)],
        (6,),
        {"w": floats(6, 6), "b": floats(6, seed=1)},
    ),
    "one bias for two layers": (
        [node("Gemm", "x v b", "h", transB=1), node("Relu", "h", "r"), node("Gemm", "r w b", "y", transB=1)],
        (4,),
        {"v": floats(6, 4), "w": floats(6, 6), "b": floats(6, seed=1)},
    ),
}


@pytest.mark.parametrize("case", CASES, ids=list(CASES))
def test_the_emitted_module_computes_what_the_file_computes(case: str, tmp_path: Path) -> None:
    nodes, shape, weights = CASES[case]
    agree(model(nodes, ("batch", *shape), weights), tmp_path)


@pytest.mark.parametrize("opset", [7, 9, 11, 13, 18, 21])
def test_operator_sets_old_and_new(opset: int, tmp_path: Path) -> None:
    """Attributes of old sets became operands of new ones."""
    old = opset < 13
    tail = [node("Squeeze", "p", "y", axes=[2, 3])] if old else [node("Squeeze", "p axes", "y")]
    pads = [0, 0, 1, 1, 0, 0, 1, 1]
    head = [node("Pad", "x", "q", pads=pads)] if opset < 11 else [node("Pad", "x pads", "q")]
    nodes = [*head, node("Conv", "q w", "c"), node("Relu", "c", "r"), node("GlobalAveragePool", "r", "p"), *tail]
    weights = {"w": KERNEL, "axes": ints(2, 3), "pads": ints(*pads)}
    agree(model(nodes, (None, *IMAGE), weights, opset=opset), tmp_path)


def test_a_batch_of_fixed_size_may_be_spelt_out(tmp_path: Path) -> None:
    agree(model([node("Reshape", "x s", "y")], (3, *IMAGE), {"s": ints(3, -1)}), tmp_path)


@pytest.mark.parametrize("name", ["mlp", "convnet"])
def test_examples(name: str, tmp_path: Path) -> None:
    path = Path(__file__).parents[3] / "examples" / f"{name}.onnx"
    loaded = onnx_model.load(path, ModelOptions())
    assert loaded.diagnostics == ()
    module = emitted(loaded, tmp_path)
    x = np.random.default_rng(0).standard_normal((4, *module.input_shape)).astype(np.float32)
    x /= 2 * np.linalg.norm(x.reshape(4, -1), axis=1).reshape(4, *(1 for _ in module.input_shape))
    expected = reference(onnx.load(path), x)
    np.testing.assert_allclose(module(torch.from_numpy(x)).detach().numpy(), expected, atol=1e-5)

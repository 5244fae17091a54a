"""Operators that files spell out: recognised in every tree that means the same, and in none that does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import pi, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from lipcompile.frontends.onnx import model as onnx_model
from tests.frontends.onnx.onnx_models import Array, floats, ints, model, node, save
from tests.frontends.onnx.test_onnx_semantics import KEEP, agree

Text = str | Sequence[str]


def num(value: float) -> Array:
    """A number of a file."""
    return np.array(value, np.float32)


NUMBERS: Mapping[str, Array] = {
    "zero": num(0), "one": num(1), "two": num(2), "three": num(3), "six": num(6), "half": num(0.5),
    "minus": num(-1), "sixth": num(1 / 6), "root2": num(sqrt(2)), "iroot2": num(sqrt(0.5)), "cube": num(0.044715),
    "gate": num(sqrt(2 / pi)), "eps": num(1e-2), "floor": num(0.5), "a": num(1.702), "nine": num(9),
    "mhalf": num(-0.5),
    "neginf": num(-np.inf), "low": num(-3e38),
    "causal": np.where(np.tri(4, dtype=bool), 0, -np.inf).astype(np.float32), "seen": np.tri(4, dtype=bool),
    "open": np.zeros((4, 4), np.float32), "window": np.where(np.eye(4, dtype=bool), 0, -np.inf).astype(np.float32),
    "zeros": np.zeros((1, 6), np.float32), "row": np.zeros(6, np.float32), "wide": np.zeros((1, 2, 6), np.float32),
    "ones": np.ones((1, 6), np.float32), "twenty": num(20), "ten": num(10), "hidden": ~np.tri(4, dtype=bool),
    "axes1": ints(1), "last": ints(-1), "last2": ints(-2),
}  # fmt: skip


def nodes(text: str) -> list[onnx.NodeProto]:
    """Nodes from lines such as `Mul x half -> y axis=1`."""
    made = []
    for line in filter(None, (line.strip() for line in text.splitlines())):
        left, right = line.split("->")
        op_type, *operands = left.split()
        result, *attributes = right.split()
        named: dict[str, Any] = {
            key: [int(v) for v in value.split(",")] if "," in value else _value(value)
            for key, value in (attribute.split("=") for attribute in attributes)
        }
        for key in ("axes", "kernel_shape", "strides"):
            if key in named and isinstance(named[key], int):
                named[key] = [named[key]]
        made.append(node(op_type, " ".join(operands), result, **named))
    return made


def _value(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def built(text: str, shape: tuple[int, ...], opset: int = 17) -> onnx.ModelProto:
    """A model of the nodes and of the numbers that they read."""
    made = nodes(text)
    read = {name for proto in made for name in proto.input}
    weights = {name: array for name, array in NUMBERS.items() if name in read}
    return model(made, ("n", *shape), weights, opset=opset)


GELU = "Div x root2 -> d\nErf d -> e\nAdd e one -> p\n"
CENTRED = "ReduceMean x -> m axes=-1\nSub x m -> c\n"
SQUARES = "Pow c two -> s\nReduceMean s -> v axes=-1\n"
LAYER = CENTRED + SQUARES + "Add v eps -> w\nSqrt w -> r\n"
TANH = "Tanh g -> e\nAdd e one -> p\n"
POWER = "Pow x three -> t\nMul t cube -> k\n"
CUBED = "Mul x x -> s\nMul s x -> t\nMul cube t -> k\n"
FACTORED = "Mul x x -> s\nMul s cube -> k\nAdd k one -> f\n"
MEAN = "ReduceMean s -> v axes=-1\n"
TWICE = "ReduceMean x -> m2 axes=-1\nSub x m2 -> c2\nPow c2 two -> s\n"
SUM = "Mul x x -> s\nReduceSum s last -> v\n"
SQUARE_POOL = "AveragePool s -> p kernel_shape=3,3 strides=3,3\n"
SIGNED = "Sign p -> g\nAbs p -> b\nRelu b -> r\nMul g r -> m\n"
LIMITED = "Mul x one -> b\nGreater b twenty -> g\nSoftplus b -> s\nWhere g x s -> p\n"
SHIFTED = "ReduceMax x -> m axes=-1\nSub x m -> d\nExp d -> e\n"
AGAIN = "ReduceMax x -> m2 axes=-1\nSub x m2 -> d2\nExp d2 -> e2\n"
SPELT: Sequence[tuple[str, str, tuple[int, ...]]] = (
    ("gelu", GELU + "Mul x p -> q\nMul q half -> y", (6,)),
    ("gelu", GELU + "Mul x half -> h\nMul h p -> y", (6,)),
    ("gelu", GELU + "Mul half p -> h\nMul x h -> y", (6,)),
    ("gelu", GELU + "Mul p x -> q\nDiv q two -> y", (6,)),
    ("gelu", "Mul x iroot2 -> d\nErf d -> e\nAdd one e -> p\nMul x p -> y", (6,)),
    ("gelu", f"{POWER}Add x k -> u\nMul u gate -> g\n{TANH}Mul x half -> h\nMul h p -> y", (6,)),
    ("gelu", f"{CUBED}Add k x -> u\nMul gate u -> g\n{TANH}Mul p x -> q\nMul half q -> y", (6,)),
    ("gelu", f"{FACTORED}Mul gate x -> g0\nMul g0 f -> g\n{TANH}Mul x p -> q\nMul q half -> y", (6,)),
    ("silu", "Sigmoid x -> s\nMul x s -> y", (6,)),
    ("silu", "Mul x a -> b\nSigmoid b -> s\nMul x s -> y", (6,)),
    ("mish", "Softplus x -> s\nTanh s -> t\nMul t x -> y", (6,)),
    ("mish", "Exp x -> e\nAdd e one -> f\nLog f -> s\nTanh s -> t\nMul x t -> y", (6,)),
    ("softplus", "Exp x -> e\nAdd e one -> f\nLog f -> y", (6,)),
    ("hard_swish", "HardSigmoid x -> s alpha=0.16666667 beta=0.5\nMul x s -> y", (6,)),
    ("hard_swish", "Add x three -> u\nClip u zero six -> c\nMul x c -> q\nDiv q six -> y", (6,)),
    ("hard_swish", "Add x three -> u\nClip u zero six -> c\nMul c sixth -> q\nMul q x -> y", (6,)),
    ("softsign", "Abs x -> b\nAdd b one -> p\nDiv x p -> y", (6,)),
    ("relu", "Greater x zero -> g\nCast g -> c to=1\nMul x c -> y", (6,)),
    ("relu", "LessOrEqual zero x -> g\nCast g -> c to=1\nMul c x -> d\nMul d three -> y", (6,)),
    ("relu", "Greater x zero -> g\nWhere g x zero -> y", (6,)),
    ("relu", "Less x zero -> g\nWhere g zero x -> y", (6,)),
    ("relu", "Greater x zero -> g\nWhere g x zeros -> y", (6,)),
    ("relu", "Greater x row -> g\nShape x -> s\nExpand zero s -> z\nWhere g x z -> y", (6,)),
    ("relu", "LessOrEqual x zeros -> g\nShape x -> s\nConstantOfShape s -> z\nWhere g z x -> y", (6,)),
    ("leaky_relu", "Less x zeros -> g\nMul x sixth -> s\nWhere g s x -> y", (6,)),
    ("elu", "Greater x zero -> g\nExp x -> e\nSub e one -> d\nMul d sixth -> m\nWhere g x m -> y", (6,)),
    ("elu", "Less x zero -> g\nExp x -> e\nSub e one -> d\nWhere g d x -> y", (6,)),
    ("softplus", "Greater x twenty -> g\nSoftplus x -> s\nWhere g x s -> y", (6,)),
    ("softplus", "Sigmoid x -> s\nLog s -> y", (6,)),
    ("mish", LIMITED + "Tanh p -> t\nMul x t -> y", (6,)),
    ("silu", "Neg x -> n\nExp n -> e\nAdd e one -> p\nDiv x p -> y", (6,)),
    ("leaky_relu", "GreaterOrEqual x zero -> g\nMul x sixth -> s\nWhere g x s -> y", (6,)),
    ("leaky_relu", "Greater zero x -> g\nMul minus x -> s\nWhere g s x -> y", (6,)),
    ("sigmoid", "Neg x -> n\nExp n -> e\nAdd e one -> p\nDiv one p -> y", (6,)),
    ("sigmoid", "Neg x -> n\nExp n -> e\nAdd e one -> p\nReciprocal p -> y", (6,)),
    ("layer_norm", LAYER + "Div c r -> y", (4, 6)),
    ("layer_norm", f"{CENTRED}Mul c c -> s\n{MEAN}Add v eps -> w\nPow w mhalf -> r\nMul c r -> y", (4, 6)),
    ("layer_norm", LAYER + "Reciprocal r -> i\nMul i c -> y", (6,)),
    ("layer_norm", f"{CENTRED}{TWICE}{MEAN}Add v eps -> w\nSqrt w -> r\nDiv c r -> y", (4, 6)),
    ("layer_norm", CENTRED + SQUARES + "Sqrt v -> r\nMax r floor -> g\nDiv c g -> y", (4, 6)),
    ("layer_norm", CENTRED + SQUARES + "Sqrt v -> r\nClip r floor -> g\nDiv c g -> y", (4, 6)),
    ("layer_norm", CENTRED + SQUARES + "Mul v three -> u\nAdd u eps -> w\nSqrt w -> r\nDiv c r -> y", (4, 6)),
    ("rms_norm", "Mul x x -> s\nReduceMean s -> v axes=-1\nAdd v eps -> w\nSqrt w -> r\nDiv x r -> y", (4, 6)),
    ("rms_norm", f"{SUM}Add v eps -> w\nSqrt w -> r\nDiv x r -> y", (4, 6)),
    ("rms_norm", f"{SUM}Add v eps -> w\nSqrt w -> r\nReciprocal r -> i\nMul i x -> y", (6,)),
    ("rms_norm", "ReduceSumSquare x -> v axes=1\nAdd v eps -> w\nPow w mhalf -> i\nMul x i -> y", (4, 6)),
    ("rms_norm", f"{SUM}Sqrt v -> r\nMax r floor -> g\nDiv x g -> y", (4, 6)),
    ("clip_norm", f"{SUM}Sqrt v -> r\nClip r floor -> g\nDiv x g -> y", (6,)),
    ("l2_pool", f"Pow x two -> s\n{SQUARE_POOL}Mul p nine -> q\nSqrt q -> y", (2, 6, 6)),
    ("l2_pool", f"Mul x x -> s\n{SQUARE_POOL}Sqrt p -> y", (2, 6, 6)),
    ("l2_pool", f"Pow x two -> s\n{SQUARE_POOL}{SIGNED}Mul m nine -> q\nPow q half -> y", (2, 6, 6)),
    ("reduce_l2", "Mul x x -> s\nReduceSum s axes1 -> p keepdims=0\nSqrt p -> y", (4, 6)),
    ("reduce_l2", "ReduceSumSquare x -> p axes=1 keepdims=1\nPow p half -> y", (4, 6)),
    ("reduce_l2", "Mul x x -> s\nReduceMean s -> p axes=2 keepdims=0\nSqrt p -> y", (4, 6)),
    ("softmax", "ReduceMax x -> m axes=-1\nSub x m -> d\nExp d -> e\nReduceSum e last -> s\nDiv e s -> y", (4, 6)),
    ("softmax", "Exp x -> e\nReduceSum e last -> s keepdims=1\nDiv e s -> y", (4, 6)),
    ("softmax", f"{SHIFTED}{AGAIN}ReduceSum e2 last -> s\nDiv e s -> y", (4, 6)),
)  # fmt: skip


@pytest.mark.parametrize("case", SPELT, ids=[f"{index}-{op}" for index, (op, _, _) in enumerate(SPELT)])
def test_spellings(case: tuple[str, str, tuple[int, ...]], tmp_path: Path) -> None:
    op, text, shape = case
    ends = text if len(shape) == 1 else text.replace("-> y", "-> h") + "\nFlatten h -> y"
    graph = agree(built(ends, shape), tmp_path).graph
    assert graph is not None
    assert [n.op.name for n in graph.nodes if n.op.name not in ("add", "flatten")] == [op]


# Below the root, a number: the root of y² + eps is the norm of (y, √eps).
ROOTED: Sequence[tuple[list[str], str, tuple[int, ...]]] = (
    (["l2_pool"], f"Mul x x -> s\n{SQUARE_POOL}Add p eps -> q\nSqrt q -> y", (2, 6, 6)),
    (["l2_pool"], f"Pow x two -> s\n{SQUARE_POOL}Mul p nine -> m\nAdd eps m -> q\nPow q half -> y", (2, 6, 6)),
    (["reduce_l2"], "ReduceSumSquare x -> p axes=1 keepdims=1\nAdd p eps -> q\nSqrt q -> y", (4, 6)),
    ([], "Mul x x -> s\nAdd s eps -> q\nSqrt q -> r\nMul r three -> y", (6,)),
)  # fmt: skip


@pytest.mark.parametrize("case", ROOTED, ids=range(len(ROOTED)))
def test_roots_of_squares_and_a_number(case: tuple[list[str], str, tuple[int, ...]], tmp_path: Path) -> None:
    ops, text, shape = case
    ends = text if len(shape) == 1 else text.replace("-> y", "-> h") + "\nFlatten h -> y"
    graph = agree(built(ends, shape), tmp_path).graph
    assert graph is not None
    found = [n.op.name for n in graph.nodes if n.op.name not in ("add", "flatten", "reshape")]
    assert found == [*ops, "pad", "bias", "reduce_l2"]


QK = "Transpose x -> xt perm=0,1,3,2\nMatMul x xt -> s\n"
HALVED = "Mul x half -> u\nTranspose x -> xt perm=0,1,3,2\nMul xt half -> ut\n"
ATTENTION: Sequence[tuple[bool, str]] = (
    (False, QK + "Mul s half -> t\nSoftmax t -> w axis=-1\nMatMul w x -> h"),
    (False, QK + "Softmax s -> w axis=3\nMatMul w x -> h"),
    (False, HALVED + "MatMul u ut -> s\nSoftmax s -> w axis=-1\nMatMul w x -> h"),
    (False, QK + "Add s open -> t\nSoftmax t -> w axis=-1\nMatMul w x -> h"),
    (True, QK + "Div s two -> d\nAdd d causal -> t\nSoftmax t -> w axis=-1\nMatMul w x -> h"),
    (True, QK + "Where seen s neginf -> t\nSoftmax t -> w axis=-1\nMatMul w x -> h"),
    (True, QK + "Where hidden neginf s -> t\nSoftmax t -> w axis=-1\nMatMul w x -> h"),
    (True, QK + "Add s causal -> t\nSoftmax t -> w axis=-1\nIsNaN w -> n\nWhere n zero w -> z\nMatMul z x -> h"),
)  # fmt: skip


@pytest.mark.parametrize("case", ATTENTION, ids=range(len(ATTENTION)))
def test_attention(case: tuple[bool, str], tmp_path: Path) -> None:
    causal, text = case
    loaded = agree(built(text + "\nFlatten h -> y", (2, 4, 6)), tmp_path)
    assert loaded.graph is not None
    found = [n for n in loaded.graph.nodes if n.op.name == "dot_product_attention"]
    assert [n.attributes.causal for n in found] == [causal]


def test_attention_of_heads_that_are_merged_with_the_batch(tmp_path: Path) -> None:
    """torch's own multi-head attention multiplies matrices of [batch·heads, n, d]."""
    text = (
        "Reshape x merge -> u\nTranspose u -> ut perm=0,2,1\nMatMul u ut -> s\nSoftmax s -> w axis=-1\n"
        "MatMul w u -> v\nReshape v apart -> h\nFlatten h -> y"
    )
    weights = {"merge": ints(-1, 4, 6), "apart": ints(-1, 2, 4, 6)}
    graph = agree(model(nodes(text), ("n", 2, 4, 6), weights), tmp_path).graph
    assert graph is not None
    assert "dot_product_attention" in [n.op.name for n in graph.nodes]


def test_a_softmax_over_the_queries_is_no_attention(tmp_path: Path) -> None:
    made = built(QK + "Softmax s -> w axis=2\nMatMul w x -> h\nFlatten h -> y", (2, 4, 6))
    graph = agree(made, tmp_path).graph
    assert graph is not None
    assert [n.op.name for n in graph.nodes] == ["transpose", "matmul", "softmax", "matmul", "flatten"]


@pytest.mark.parametrize(
    "text",
    [
        GELU.replace("root2", "two") + "Mul x p -> y",
        "Div x root2 -> d\nErf d -> e\nAdd e half -> p\nMul x p -> y",
    ],
)
def test_what_is_nearly_a_gelu_is_a_product(text: str, tmp_path: Path) -> None:
    graph = agree(built(text, (6,)), tmp_path).graph
    assert graph is not None
    assert [n.op.name for n in graph.nodes] == ["add", "erf", "bias", "multiply"]


# Near misses: what they mean has no bound, or another one, so the part to blame is refused.
OTHER_AXIS = "ReduceMean x -> m axes=-1\nPow x two -> s\nReduceMean s -> v axes=1\nMul m m -> k\n"
MISSES: Sequence[tuple[str, str, tuple[int, ...]]] = (
    ("Sqrt", OTHER_AXIS + "Sub v k -> d\nAdd d eps -> w\nSqrt w -> r\nDiv x r -> y", (6, 6)),
    ("Sqrt", "Sqrt x -> y", (6,)),
    ("Sqrt", "Sqrt x -> r\nRelu r -> y", (6,)),
    ("Div", "Abs x -> b\nAdd b half -> p\nDiv x p -> y", (6,)),
    ("Sqrt", f"{SUM}Add v zero -> w\nSqrt w -> r\nDiv x r -> y", (6,)),
    ("Div", "ReduceL2 x -> r axes=-1\nAdd r eps -> w\nDiv x w -> y", (6,)),
    ("Div", f"Mul x x -> s\n{MEAN}Sqrt v -> r\nDiv x r -> y", (6,)),
    ("MatMul", QK + "Add s window -> t\nSoftmax t -> w axis=-1\nMatMul w x -> h\nFlatten h -> y", (2, 4, 6)),
    ("Greater", "Greater x half -> g\nCast g -> c to=1\nMul x c -> y", (6,)),
    ("Greater", "Abs x -> b\nGreater b zero -> g\nCast g -> c to=1\nMul x c -> y", (6,)),
    ("Greater", "Greater x zero -> g\nWhere g x one -> y", (6,)),
    ("Greater", "Greater x zero -> g\nWhere g zero one -> y", (6,)),
    ("Less", "Less x zero -> g\nAdd x one -> s\nWhere g s x -> y", (6,)),
    ("Less", "Less x zero -> g\nCast g -> y to=1", (6,)),
    ("Greater", "Greater x zero -> g\nWhere g x ones -> y", (6,)),
    ("Greater", "Greater x zero -> g\nWhere g x wide -> y", (1, 6)),
    ("Greater Exp", "Greater x zero -> g\nExp x -> e\nSub e half -> d\nWhere g x d -> y", (6,)),
    ("Greater", "Greater x ten -> g\nSoftplus x -> s\nWhere g x s -> y", (6,)),
    ("Exp", f"{SHIFTED}Exp x -> e2\nReduceSum e2 last -> s\nDiv e s -> y", (4, 6)),
    ("Sqrt", "Mul x x -> s\nSqrt s -> y", (6,)),
    ("Sqrt", "Mul x x -> s\nAdd s zero -> w\nSqrt w -> y", (6,)),
    ("Sqrt", "Mul x x -> s\nSub s eps -> w\nSqrt w -> y", (6,)),
    ("Exp", "Exp x -> e\nReduceSum e last -> s keepdims=1\nAdd s one -> t\nDiv e t -> y", (6,)),
)  # fmt: skip


@pytest.mark.parametrize("case", MISSES, ids=[f"{index}-{op}" for index, (op, _, _) in enumerate(MISSES)])
def test_near_misses(case: tuple[str, str, tuple[int, ...]], tmp_path: Path) -> None:
    op, text, shape = case
    loaded = onnx_model.load(save(built(text, shape), tmp_path), KEEP)
    assert loaded.graph is None
    assert {d.op for d in loaded.diagnostics} <= {
        *op.split(),
        "Pow",
        "Div",
    }  # the first without a bound
    assert {d.code for d in loaded.diagnostics} <= {"LIP100", "LIP110"}


def test_a_norm_over_another_axis_than_the_mean(tmp_path: Path) -> None:
    """Entries are centred along one axis and divided by their root mean square along the other."""
    text = CENTRED + "Pow c two -> s\nReduceMean s -> v axes=1\nAdd v eps -> w\nSqrt w -> r\nDiv c r -> y"
    graph = agree(built(text.replace("-> y", "-> h") + "\nFlatten h -> y", (6, 6)), tmp_path).graph
    assert graph is not None
    assert [n.op.name for n in graph.nodes] == ["center", "rms_norm", "flatten"]


def test_another_gate_is_a_product(tmp_path: Path) -> None:
    """x·σ(x + 1) is no SiLU: two tensors of which each changes the product by the other's size."""
    graph = agree(built("Add x one -> u\nSigmoid u -> s\nMul x s -> y", (6,)), tmp_path).graph
    assert graph is not None
    assert [n.op.name for n in graph.nodes] == ["bias", "sigmoid", "multiply"]


def test_a_part_that_something_else_reads_is_refused(tmp_path: Path) -> None:
    """Powers of e inside a softmax are one thing, the same powers as an output another."""
    text = "Exp x -> e\nReduceSum e last -> s keepdims=1\nDiv e s -> z\nAdd z e -> y"
    loaded = onnx_model.load(save(built(text, (4, 6)), tmp_path), KEEP)
    assert loaded.graph is None
    assert [(d.code, d.op) for d in loaded.diagnostics] == [("LIP100", "Exp")]


def test_a_root_that_something_else_reads_is_a_root(tmp_path: Path) -> None:
    """The root inside a layer norm is one thing, the same root as an output another, with a slope of its own."""
    graph = agree(built(LAYER + "Div c r -> z\nAdd z r -> h\nFlatten h -> y", (4, 6)), tmp_path).graph
    assert graph is not None
    assert {"layer_norm", "reduce_l2"} <= {n.op.name for n in graph.nodes}


def test_long_chains_are_not_searched_for_ever(tmp_path: Path) -> None:
    """A chain of a thousand signs before a product: patterns look a few steps back, no further."""
    signs = "\n".join(f"Neg {'x' if index == 0 else f'n{index - 1}'} -> n{index}" for index in range(1000))
    graph = onnx_model.load(save(built(f"{signs}\nMul n999 n998 -> y", (6,)), tmp_path), KEEP).graph
    assert graph is not None
    assert graph.nodes[-1].op.name == "multiply"


def test_weights_that_are_transposed_at_run_time(tmp_path: Path) -> None:
    """A matrix from the left acts on the rows of each example."""
    weights = {"w": floats(5, 4)}
    graph = agree(model(nodes("MatMul w x -> h\nFlatten h -> y"), ("n", 4, 6), weights), tmp_path).graph
    assert graph is not None
    assert "dense" in [n.op.name for n in graph.nodes]

"""What is changed: the examples, models of all families of ops, what `explain` shows, files that once crashed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from lipcompile.codes import codes
from tests.frontends.onnx import (
    test_onnx_activation,
    test_onnx_normalisation,
    test_onnx_pool,
    test_onnx_refusals,
    test_onnx_resample,
    test_onnx_semantics,
)
from tests.frontends.onnx.onnx_models import floats, model, node
from tests.fuzz.cases import Seed

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
# Larger files would be changed in their weights, nearly always.
LARGEST = 2**16


def seeds() -> list[Seed]:
    """Return all of them, in an order that only a change of them changes."""
    found = [*_files(), *_explained(), *_onnx_models()]
    return [seed for seed in found if len(seed.content) <= LARGEST]


def _files() -> Iterator[Seed]:
    folders = (ROOT / "examples", ROOT / "tests" / "golden", HERE / "crashers")
    for path in sorted(path for folder in folders for path in folder.iterdir()):
        if path.suffix in (".lip", ".onnx"):
            yield Seed(path.name, path.suffix, path.read_bytes())


def _explained() -> Iterator[Seed]:
    for code, entry in codes().items():
        if entry.language == "lip":
            yield Seed(f"{code} wrong", ".lip", entry.wrong.encode())
            yield Seed(f"{code} right", ".lip", entry.right.encode())


def _onnx_models() -> Iterator[Seed]:
    for name, made in _models():
        loss = {"lipcompile.loss": "cross_entropy", "lipcompile.input_norm": "1"}
        helper.set_model_props(made, loss)
        yield Seed(name, ".onnx", made.SerializeToString())


def _models() -> Iterator[tuple[str, onnx.ModelProto]]:
    for name, (nodes, shape, weights) in test_onnx_semantics.CASES.items():
        yield name, model(nodes, ("n", *shape), weights)
    for name, (single, opset, weights) in test_onnx_activation.CASES.items():
        yield name, model([single, test_onnx_activation.FLAT], ("n", 4, 5, 6), weights, opset=opset)
    for name, (nodes, shape, weights, opset) in test_onnx_normalisation.CASES.items():
        yield name, model(nodes, ("n", *shape), weights, opset=opset)
    for name, (op_type, attributes) in test_onnx_pool.POOLS.items():
        pool = node(op_type, "x", "h", **attributes)
        yield name, model([pool, test_onnx_semantics.FLAT], ("n", 2, 5, 6), opset=18)
    for name, (nodes, shape, weights) in test_onnx_resample.CASES.items():
        yield name, model(nodes, ("n", *shape), weights, opset=18)
    for _, word, nodes, sizes, weights in test_onnx_refusals.REFUSED:
        yield word, model(nodes, sizes, weights)
    yield "functions", with_functions()
    yield "subgraphs", with_subgraphs()


def with_functions() -> onnx.ModelProto:
    """A model of two functions, of which one calls the other."""
    made = model([node("Outer", "x w", "y", domain="com.example", slope=0.5)], ("n", 6), {"w": floats(6, 6)})
    leaky = helper.make_node("LeakyRelu", ["g"], ["r"])
    leaky.attribute.append(helper.make_attribute_ref("alpha", onnx.AttributeProto.FLOAT, ref_attr_name="slope"))
    body = [helper.make_node("Inner", ["a", "b"], ["g"], domain="com.example"), leaky]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
    gemm = [helper.make_node("Gemm", ["p", "q"], ["s"])]
    made.functions.extend(
        [
            helper.make_function("com.example", "Outer", ["a", "b"], ["r"], body, opsets, ["slope"]),
            helper.make_function("com.example", "Inner", ["p", "q"], ["s"], gemm, opsets),
        ]
    )
    return made


def with_subgraphs() -> onnx.ModelProto:
    """A model with control flow, which is refused."""
    then = helper.make_graph([node("Relu", "h", "r")], "then", [], [_value("r")])
    other = helper.make_graph([node("Tanh", "h", "t")], "else", [], [_value("t")])
    cond = helper.make_node("Constant", [], ["c"], value=helper.make_tensor("c", TensorProto.BOOL, [], [True]))
    branch = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    return model([node("Gemm", "x w", "h"), cond, branch], ("n", 6), {"w": floats(6, 6)})


def _value(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, None)

"""Attention in ONNX: what the file computes, heads that share keys, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from lipcompile.frontends.onnx import model as onnx_model
from tests.frontends.onnx.onnx_models import Array, floats, ints, model, node, save
from tests.frontends.onnx.test_onnx_semantics import KEEP, agree

WIDTHS = (12, 6, 8)  # of queries, keys and values: four heads of queries, two of keys and values
WEIGHTS: dict[str, Array] = {
    f"w{name}": floats(5, width, seed=width) for name, width in zip("qkv", WIDTHS, strict=True)
}
PROJECT = [node("MatMul", f"x w{name}", name) for name in "qkv"]
FLAT = node("Flatten", "h", "y")


def heads(name: str, count: int, width: int) -> tuple[list[onnx.NodeProto], dict[str, Array]]:
    """[B, n, count·width] -> [B, count, n, width]."""
    shape = f"s{name}"
    nodes = [
        node("Reshape", f"{name} {shape}", f"{name}r"),
        node("Transpose", f"{name}r", f"{name}h", perm=(0, 2, 1, 3)),
    ]
    return nodes, {shape: ints(0, 0, count, width)}


def attention(operands: str = "q k v", outputs: str = "h", opset: int = 23, **attributes: Any) -> onnx.ModelProto:
    """Attention of three projections of x [B, 4, 5], as tokens or as heads."""
    nodes, weights = list(PROJECT), dict(WEIGHTS)
    for name, count, width in (("q", 4, 3), ("k", 2, 3), ("v", 2, 4)):
        made, shapes = heads(name, count, width)
        nodes, weights = [*nodes, *made], weights | shapes
    nodes = [*nodes, node("Attention", operands, outputs, **attributes), FLAT]
    return model(nodes, ["batch", 4, 5], weights, opset=opset)


TOKENS = {"q_num_heads": 4, "kv_num_heads": 2}


@pytest.mark.parametrize("opset", [23, 24])
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("scale", [{}, {"scale": 0.3}])
@pytest.mark.parametrize(("operands", "cut"), [("q k v", TOKENS), ("qh kh vh", {})])
def test_attention_computes_what_the_file_does(
    operands: str, cut: dict[str, int], scale: dict[str, float], causal: int, opset: int, tmp_path: Path
) -> None:
    """Four heads of queries, two of keys and values."""
    attributes: dict[str, Any] = {**cut, **scale}
    agree(attention(operands, opset=opset, is_causal=causal, **attributes), tmp_path)


def test_causal_attention_with_fewer_keys_than_queries(tmp_path: Path) -> None:
    """The mask stands at the upper left: row i sees the keys up to i, if there are so many."""
    nodes = [*PROJECT, node("Slice", "k a b c", "k2"), node("Slice", "v a b c", "v2")]
    nodes += [node("Attention", "q k2 v2", "h", is_causal=1, **TOKENS), FLAT]
    bounds = {"a": ints(0), "b": ints(2), "c": ints(1)}
    agree(model(nodes, ["batch", 4, 5], WEIGHTS | bounds, opset=23), tmp_path)


def test_heads_of_one_tensor_are_not_merged(tmp_path: Path) -> None:
    """Self-attention without projections; what comes out has one axis for the heads and one for their entries."""
    nodes = [node("Attention", "x x x", "h", q_num_heads=5, kv_num_heads=5), FLAT]
    loaded = agree(model(nodes, ["batch", 4, 5], {}, opset=23), tmp_path)
    assert loaded.graph is not None
    assert [n.op.name for n in loaded.graph.nodes].count("dot_product_attention") == 1


MASK = {"m": floats(4, 4)}


@pytest.mark.parametrize(
    ("operands", "outputs", "attributes", "message"),
    [
        ("qh kh vh m", "h", {}, "Attention with a mask is not yet supported"),
        ("qh kh vh _ kh vh", "h", {}, "with cached keys"),
        ("qh kh vh", "h _ _ s", {}, "that puts out its scores"),
        ("qh kh vh", "h p", {}, "that puts out its keys"),
        ("qh kh vh", "h", {"softcap": 2.0}, "softcap of Attention"),
        ("qh kh vh", "h", {"scale": -1.0}, "must not be negative"),
        ("q k v", "h", {"q_num_heads": 5, "kv_num_heads": 2}, "5 heads do not divide the 12 features"),
        ("q k v", "h", {}, "0 heads do not divide"),
        ("q k v", "h", {"q_num_heads": 3, "kv_num_heads": 2}, "3 heads of queries, 2 of keys and 2 of values"),
        ("q kh vh", "h", TOKENS, "must have shape [heads, n, d] or [n, features]"),
        ("qh vh vh", "h", {}, "do not fit each other"),
    ],
)
def test_what_no_rule_covers_is_refused(
    operands: str, outputs: str, attributes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    made = attention(operands, outputs, **attributes)
    made.graph.initializer.extend([onnx.numpy_helper.from_array(array, name) for name, array in MASK.items()])
    assert_refused(made, tmp_path, [message])


def assert_refused(made: onnx.ModelProto, folder: Path, messages: Sequence[str]) -> None:
    loaded = onnx_model.load(save(made, folder), KEEP)
    assert loaded.graph is None
    found = [diagnostic.message for diagnostic in loaded.diagnostics if diagnostic.severity == "error"]
    assert len(found) == len(messages), found
    for message, said in zip(messages, found, strict=True):
        assert message in said


def test_a_window_is_refused(tmp_path: Path) -> None:
    """Operator set 25 lets rows see some keys around their own place only."""
    made = attention("qh kh vh", opset=24)
    made.graph.node[-2].attribute.append(onnx.helper.make_attribute("left_window_size", 1))
    made.opset_import[0].version = onnx.defs.onnx_opset_version()
    assert_refused(made, tmp_path, ["left_window_size of Attention is not yet supported"])


def test_the_reference_repeats_heads_next_to_each_other() -> None:
    """What the tests above compare with: head h of the queries meets head h // 2 of the keys."""
    q, k, v = floats(1, 4, 3, 2), floats(1, 2, 3, 2, seed=1), floats(1, 2, 3, 2, seed=2)
    made = onnx.helper.make_model(
        onnx.helper.make_graph(
            [node("Attention", "q k v", "y")],
            "one",
            [onnx.helper.make_tensor_value_info(name, 1, None) for name in "qkv"],
            [onnx.helper.make_tensor_value_info("y", 1, None)],
        ),
        opset_imports=[onnx.helper.make_opsetid("", 23)],
    )
    results: Any = onnx.reference.ReferenceEvaluator(made).run(None, {"q": q, "k": k, "v": v})
    for head in range(4):
        scores = q[0, head] @ k[0, head // 2].T / np.sqrt(2)
        weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        np.testing.assert_allclose(results[0][0, head], weights @ v[0, head // 2], rtol=1e-5, atol=1e-7)

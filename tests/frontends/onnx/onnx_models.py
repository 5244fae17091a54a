"""Small ONNX models for tests: nodes written in one line each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[Any]
Line = tuple[Any, ...]


def node(op_type: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    """A node; operands are separated by blanks, `_` is one left out."""
    operands, results = ([("" if name == "_" else name) for name in side.split()] for side in (inputs, outputs))
    domain = str(attributes.pop("domain", ""))
    made = helper.make_node(op_type, operands, results, domain=domain, **attributes)
    made.name = f"{op_type}_{results[0]}"
    return made


def model(
    nodes: Sequence[onnx.NodeProto],
    shape: Sequence[int | str | None],
    weights: Mapping[str, Array] | None = None,
    *,
    opset: int = 17,
    outputs: Sequence[str] = ("y",),
    metadata: Mapping[str, str] | None = None,
    kind: int = TensorProto.FLOAT,
) -> onnx.ModelProto:
    """A model from `x` to `y`."""
    graph = helper.make_graph(
        list(nodes),
        "test",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.example", 1)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    helper.set_model_props(made, dict(metadata or {}))
    return made


def save(made: onnx.ModelProto, folder: Path, name: str = "model.onnx") -> Path:
    """Write a model."""
    path = folder / name
    path.write_bytes(made.SerializeToString())
    return path


def floats(*shape: int, seed: int = 0, scale: float = 0.3) -> Array:
    """Random float32 entries."""
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def ints(*values: int) -> Array:
    """A vector of int64."""
    return np.array(values, dtype=np.int64)

"""An .onnx file as something that computes: by onnxruntime, or by ONNX's own reference implementation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper

from lipcompile.core.record import Shape
from lipcompile.frontends.onnx.file.read import first_line
from lipcompile.frontends.onnx.inputs import Source, sources
from lipcompile.frontends.onnx.refused import DRAWS
from lipcompile.frontends.options import OriginalError
from lipcompile.frontends.silence import silence_native

Array = NDArray[Any]
Run = Callable[[Mapping[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class Session:
    """A model that runs: see `Original`."""

    runner: str
    batch: int | None
    precision: str
    _inputs: Sequence[Source]
    _kinds: Mapping[str, Any]
    _run: Run

    def __call__(self, x: Array) -> Array:
        """Map examples to outputs; raises OriginalError."""
        feeds = {
            source.name: np.ascontiguousarray(np.moveaxis(part, 0, source.layout.place)).astype(
                self._kinds[source.name]
            )
            for source, part in zip(self._inputs, parts(x, [source.shape for source in self._inputs]), strict=True)
        }
        try:
            with silence_native():
                return np.asarray(self._run(feeds)).astype(np.float64)
        except Exception as error:
            raise OriginalError(f"{self.runner}: {first_line(error)}") from None


def parts(x: Array, shapes: Sequence[Shape]) -> list[Array]:
    """Return the inputs [B, *shape] of examples whose input is one, or consists of consecutive parts."""
    if len(shapes) == 1:
        return [x]
    found, start = [], 0
    for shape in shapes:
        stop = start + prod(shape)
        found.append(x[:, start:stop].reshape(len(x), *shape))
        start = stop
    return found


def opened(path: Path, model: ModelProto, given: Mapping[str, Shape]) -> Session:
    """Open a file that was read before as `model`; raises OriginalError if nothing runs it.

    The GPU is tried if torch sees one, then the processor, then the reference, for what onnxruntime does not take.
    """
    if any(node.op_type in DRAWS for node in model.graph.node):
        raise OriginalError("the file draws random numbers in each run, and has no mode without them")
    found = sources(model.graph, given)
    types = {value.name: value.type.tensor_type.elem_type for value in model.graph.input}
    kinds = {source.name: helper.tensor_dtype_to_np_dtype(types[source.name]) for source in found}
    calm, reasons = _in_evaluation(model), []
    source = str(path) if calm is model else calm.SerializeToString()
    for runner, start in _starts():
        try:
            with silence_native():
                run = start(source, calm)
            session = Session(runner, found[0].batch, _precision(model, kinds), found, kinds, run)
            session(_zeros(found))
        except Exception as error:
            reasons.append(str(error) if isinstance(error, OriginalError) else f"{runner}: {first_line(error)}")
            continue
        return session
    raise OriginalError("; ".join(reasons))


def on_processor(path: Path, model: ModelProto, *, optimised: bool) -> Session:
    """Open a file of ours on the processor, as it is written or as onnxruntime rewrites it by default.

    Raises OriginalError if onnxruntime does not take it.
    """
    found = sources(model.graph, {})
    kinds = {
        value.name: helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        for value in model.graph.input
    }
    try:
        with silence_native():
            session = _session(str(path), ["CPUExecutionProvider"], optimised=optimised)
    except Exception as error:
        raise OriginalError(f"onnxruntime: {first_line(error)}") from None
    return Session("onnxruntime", None, "float32", found, kinds, lambda feeds: session.run(None, feeds)[0])


def _precision(model: ModelProto, kinds: Mapping[str, Any]) -> str:
    """Return the coarsest kind of numbers among inputs and weights."""
    stored = {tensor.data_type for tensor in model.graph.initializer}
    names = {str(kind) for kind in kinds.values()}
    names |= {str(helper.tensor_dtype_to_np_dtype(kind)) for kind in stored if kind != TensorProto.UNDEFINED}
    return next((name for name in ("bfloat16", "float16", "float32") if name in names), "float64")


def _zeros(found: Sequence[Source]) -> Array:
    batch = found[0].batch or 2
    if len(found) == 1:
        return np.zeros((batch, *found[0].shape))
    return np.zeros((batch, sum(prod(source.shape) for source in found)))


def _starts() -> list[tuple[str, Callable[[str | bytes, ModelProto], Run]]]:
    """Return who may run a model, in the order to be tried."""
    import torch  # here, because files are read faster without it

    gpu = [("onnxruntime", _on_gpu)] if torch.cuda.is_available() else []
    return [*gpu, ("onnxruntime", _on_processor), ("the ONNX reference", _by_reference)]


def _in_evaluation(model: ModelProto) -> ModelProto:
    """Return a model that drops nothing out: what is dropped in training is random."""
    if not any(_drops(node) for node in model.graph.node):
        return model
    calm = type(model)()
    calm.CopyFrom(model)
    for node in filter(_drops, calm.graph.node):
        del node.input[2:]
    return calm


def _drops(node: NodeProto) -> bool:
    """Whether a node is a Dropout that may be in training mode."""
    return node.op_type == "Dropout" and len(node.input) > 2


def _on_gpu(source: str | bytes, _: ModelProto) -> Run:
    """Run on the GPU with all the digits of float32; raises OriginalError where onnxruntime falls back."""
    session = _session(source, [("CUDAExecutionProvider", {"use_tf32": "0"})])
    if "CUDAExecutionProvider" not in session.get_providers():
        raise OriginalError("onnxruntime does not reach the GPU")
    return lambda feeds: session.run(None, feeds)[0]


def _on_processor(source: str | bytes, _: ModelProto) -> Run:
    session = _session(source, ["CPUExecutionProvider"])
    return lambda feeds: session.run(None, feeds)[0]


def _session(source: str | bytes, providers: list[Any], *, optimised: bool = False) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if not optimised:  # as it is written: fused into a max pool, the zeros of a Pad count as no entries at all
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(source, options, providers=providers)


def _by_reference(_: str | bytes, model: ModelProto) -> Run:
    from onnx.reference import ReferenceEvaluator

    evaluator: Any = ReferenceEvaluator(model)
    return lambda feeds: evaluator.run(None, dict(feeds))[0]

"""Files of `lipcompile export`, read back exactly.

ONNX has no words for constraints, for what is not trained and for clips of gradients, and spells ops out whose
rules are better than those of their parts. But such a file holds its certificate: if the compiler, given the graph
of that certificate and the file's weights, writes this very file, then that graph is what the file computes. What
the certificate derives is not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, numpy_helper

from lipcompile.certificates.read import document_of, graph_of
from lipcompile.core.graph import Graph
from lipcompile.diagnostics import InputError
from lipcompile.frontends.options import ModelOptions

Array = NDArray[Any]
_LARGEST = 2**26  # entries of a tensor of one example
# Ops that are written window by window, or tap by tap, and how many of these.
_ONE_BY_ONE, _LONGEST = ("avg_pool", "scaled_avg_pool", "adaptive_avg_pool", "lrn"), 2**14


def exported(model: ModelProto, name: str, options: ModelOptions) -> Graph | None:
    """Return the model that a file of `export` was written from, with its weights; None for any other file.

    Options that change the model leave it to the importer.
    """
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    if "lipcompile.certificate" not in metadata or options != _unchanged(options):
        return None
    try:
        graph = graph_of(document_of(metadata["lipcompile.certificate"]))
        weights = _weights(model, graph)
        if weights is None or _costs_much(graph) or not _same(model, graph, weights, metadata):
            return None
    except InputError:  # no certificate of this version, or of ops that are not written
        return None
    parameters = {key: replace(p, initial=weights[key]) for key, p in graph.parameters.items()}
    return replace(graph, name=name, parameters=parameters)


def _costs_much(graph: Graph) -> bool:
    """Whether writing the graph may take long, or much memory: files may come from anywhere."""
    wide = any(prod(node.shape) > _LARGEST for node in graph.nodes)
    counted = [size for node in graph.nodes if node.op.name in _ONE_BY_ONE for size in node.shape]
    taps = [node.attributes.size for node in graph.nodes if node.op.name == "lrn"]
    return wide or max((*counted, *taps), default=0) > _LONGEST


def _unchanged(options: ModelOptions) -> ModelOptions:
    return ModelOptions(freeze=options.freeze, limits=options.limits)


def _weights(model: ModelProto, graph: Graph) -> Mapping[str, Array] | None:
    """Return the stored tensors, if they are the finite parameters of the graph."""
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    fits = stored.keys() == graph.parameters.keys() and all(
        array.shape == graph.parameters[name].shape and array.dtype == np.float32 and np.isfinite(array).all()
        for name, array in stored.items()
    )
    return stored if fits else None


def _same(model: ModelProto, graph: Graph, weights: Mapping[str, Array], metadata: Mapping[str, str]) -> bool:
    """Whether the compiler writes this file for the graph: what it computes, and what it declares."""
    from lipcompile.emitters.onnx.emit import to_onnx

    written = to_onnx(graph, weights, clip_input=True)
    declared = {entry.key: entry.value for entry in written.metadata_props}
    parts = ("node", "input", "output")
    return (
        all(list(getattr(written.graph, part)) == list(getattr(model.graph, part)) for part in parts)
        and list(written.opset_import) == list(model.opset_import)
        and not (model.functions or model.graph.sparse_initializer or model.training_info)
        and declared == {key: value for key, value in metadata.items() if key in declared}
    )

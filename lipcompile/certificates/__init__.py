"""Certificates: a derivation as a document that a program which shares no code with the compiler can check.

`docs/certificates.md` describes the format, schema `lipcompile.certificate/1` (`certificate.schema.json` among the
reports), and says what one proves.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from lipcompile.analysis.bounds import Bounds
from lipcompile.analysis.open_numbers import complete
from lipcompile.certificates.write import graph_document, steps, totals
from lipcompile.core.derivation import Derivation, Source
from lipcompile.core.graph import Graph
from lipcompile.numbers.certified import Interval
from lipcompile.ops.table import OP_BY_NAME
from lipcompile.version import __version__

SCHEMA = "lipcompile.certificate/1"
Json = dict[str, Any]


def certificate(derivation: Derivation, training: Mapping[str, Any] | None = None) -> Json:
    """Return the certificate of a derivation; `training` is what the model plans, as `planned_training` has it.

    Formal guarantees: equal models give equal documents. Every bound is one that `derive` found in interval
    arithmetic, rounded up to a double.

    Raises InputError if the model is rejected, or leaves a number open.
    """
    analysis = complete(derivation, "a certificate")
    return document(derivation.source, analysis.graph, analysis.numbers, training)


def document(
    source: Source, graph: Graph, numbers: Bounds[Interval], training: Mapping[str, Any] | None = None
) -> Json:
    """Return the certificate of a graph without open numbers that has a loss, and of its bounds.

    `user_ops` lists the ops that users have registered, if any: nobody but their authors vouches for them.
    """
    written = graph_document(graph)
    user_ops = sorted({node.op.name for node in graph.nodes} - OP_BY_NAME.keys())
    return {
        "schema": SCHEMA,
        "versions": {"lipcompile": __version__},
        "source": {"name": source.name, "format": source.format, "sha256": source.sha256},
        "graph": written,
        "graph_sha256": hash_of(written),
        "steps": steps(graph, numbers),
        "totals": totals(graph, numbers),
        **({"user_ops": user_ops} if user_ops else {}),
        **({} if training is None else {"training": dict(training)}),
    }


def hash_of(graph: Mapping[str, Any]) -> str:
    """Return the SHA-256, in hexadecimal, of the canonical bytes of a graph."""
    return hashlib.sha256(_dumped(graph)).hexdigest()


def encode(document: Mapping[str, Any]) -> bytes:
    """Return the canonical bytes of a certificate."""
    return _dumped(document) + b"\n"


def listed(document: Mapping[str, Any]) -> str:
    """Return a certificate as JSON with a line for each step, and for each node and parameter of the graph."""
    return _listed(document, depth=0)


def _listed(value: Any, depth: int) -> str:
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    nested = [isinstance(item, Mapping | list) for item in items]
    if depth > 2 or not nested or not (any(nested) if depth < 2 else all(nested)):
        return json.dumps(value)
    margin, below = " " * depth, [_listed(item, depth + 1) for item in items]
    if isinstance(value, Mapping):
        below = [f"{json.dumps(name)}: {text}" for name, text in zip(value, below, strict=True)]
    start, end = "{}" if isinstance(value, Mapping) else "[]"
    return "\n".join([start, ",\n".join(f"{margin} {text}" for text in below), f"{margin}{end}"])


def _dumped(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()

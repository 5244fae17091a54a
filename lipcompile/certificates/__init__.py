"""Certificates: a derivation as a document that a program which shares no code with the compiler can check.

`docs/certificates.md` describes the format, schema `lipcompile.certificate/1` (`certificate.schema.json` among the
reports), and says what one proves.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from lipcompile import __version__
from lipcompile.certificates.graph import graph_document
from lipcompile.certificates.steps import steps, totals
from lipcompile.derivation import Derivation, complete

SCHEMA = "lipcompile.certificate/1"
Json = dict[str, Any]


def certificate(derivation: Derivation, training: Mapping[str, Any] | None = None) -> Json:
    """Return the certificate of a derivation; `training` is what the model plans, as `planned_training` has it.

    Formal guarantees: equal models give equal documents. Every bound is one that `derive` found in interval
    arithmetic, rounded up to a double.

    Raises InputError if the model is rejected, or leaves a number open.
    """
    analysis = complete(derivation, "a certificate")
    graph = graph_document(analysis.graph)
    source = derivation.source
    return {
        "schema": SCHEMA,
        "versions": {"lipcompile": __version__},
        "source": {"name": source.name, "format": source.format, "sha256": source.sha256},
        "graph": graph,
        "graph_sha256": hashlib.sha256(_dumped(graph)).hexdigest(),
        "steps": steps(analysis),
        "totals": totals(analysis),
        **({} if training is None else {"training": dict(training)}),
    }


def encode(document: Mapping[str, Any]) -> bytes:
    """Return the canonical bytes of a certificate."""
    return _dumped(document) + b"\n"


def _dumped(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()

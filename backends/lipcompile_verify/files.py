"""Certificates that files carry, and whether a file is the model of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from mpmath import libmp

from . import emitted, onnx_file
from .check import Problem
from .derive import Derivation
from .disjoint_parts import bound
from .document import ForeignError, MalformedError, require
from .document import read as read_document
from .emitted import Derived
from .intervals import INFINITE, Real

MOST_BYTES = 2**31


def read_certificate(path: Path) -> dict[str, Any]:
    """Return the certificate in a file: of JSON, or carried by an emitted .py or an .onnx file.

    Raises MalformedError if there is none, and OSError.
    """
    if path.suffix not in (".py", ".onnx"):
        return read_document(path)
    try:
        data = _bytes(path)
        onnx = path.suffix == ".onnx"
        found = onnx_file.certificate(onnx_file.read(data)) if onnx else emitted.certificate(data)
    except ForeignError as error:
        raise MalformedError(str(error)) from None
    require(found is not None, f"`{path.name}` carries no certificate")
    return dict(found or {})


def check_module(path: Path, document: Mapping[str, Any]) -> list[Problem]:
    """Return why an emitted file is not the model of a certificate that is verified; nothing if it is.

    Raises OSError, and MalformedError for a file of more than 2 GiB.
    """
    return _problems(path, emitted.check, document, partial(derived, document))


def check_model(path: Path, document: Mapping[str, Any]) -> list[Problem]:
    """Return why an ONNX file does not go with a certificate that is verified; errors as `check_module`."""
    return _problems(path, onnx_file.check, document)


def _problems(path: Path, check: Callable[..., None], *arguments: Any) -> list[Problem]:
    try:
        check(_bytes(path), *arguments)
    except ForeignError as error:
        return [Problem(path.name, "model", str(error))]
    return []


def _bytes(path: Path) -> bytes:
    require(path.stat().st_size <= MOST_BYTES, f"the file is larger than {MOST_BYTES} bytes")
    return path.read_bytes()


def derived(document: Mapping[str, Any], graph: Mapping[str, Any]) -> Derived:
    """Derive the bounds of a graph, with what the certificate claims of squared norms, which is checked."""
    steps = document["steps"]["forward"]
    found = Derivation(graph, {step["node"]: step["conditions"] for step in steps})
    return Derived(
        gradient={name: _upper(k) for name, k in found.gradient.items()},
        unclipped={name: _upper(k) for name, k in found.gradient_unclipped.items()},
        loss=_upper(found.loss),
        lipschitz=_upper(bound(found.slope[graph["input"]["name"]])),
        conditions={name: node.site.C for name, node in found.nodes.items()},
    )


def _upper(number: Real) -> Fraction | float:
    return inf if number.hi == INFINITE else Fraction(*libmp.to_rational(number.hi))

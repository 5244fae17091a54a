"""Certified gradient bounds and private training modules for Lipschitz networks.

Importing this package loads neither torch nor onnx: public names are looked up when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lipcompile.version import __version__

if TYPE_CHECKING:
    from lipcompile.calls import compile, fix, load_trained, private, train  # noqa: A004
    from lipcompile.core.derivation import Derivation
    from lipcompile.core.graph import Graph, GraphBuilder
    from lipcompile.diagnostics import Diagnostic, InputError, Severity
    from lipcompile.exporting import export_onnx
    from lipcompile.frontends.options import ModelOptions
    from lipcompile.ops.registry import register
    from lipcompile.pipeline import check, from_module
    from lipcompile.reports.json_report import report

__all__ = [
    "Derivation",
    "Diagnostic",
    "Graph",
    "GraphBuilder",
    "InputError",
    "ModelOptions",
    "Severity",
    "__version__",
    "check",
    "compile",
    "export_onnx",
    "fix",
    "from_module",
    "load_trained",
    "private",
    "register",
    "report",
    "train",
]

_HOMES = {
    "Derivation": "core.derivation",
    "Diagnostic": "diagnostics",
    "Graph": "core.graph",
    "GraphBuilder": "core.graph",
    "InputError": "diagnostics",
    "ModelOptions": "frontends.options",
    "Severity": "diagnostics",
    "check": "pipeline",
    "compile": "calls",
    "export_onnx": "exporting",
    "fix": "calls",
    "from_module": "pipeline",
    "load_trained": "calls",
    "private": "calls",
    "register": "ops.registry",
    "report": "reports.json_report",
    "train": "calls",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

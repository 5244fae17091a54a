"""Certified gradient bounds and private training modules for Lipschitz networks.

Importing this package loads neither torch nor onnx: public names are looked up when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lipcompile.version import __version__ as __version__

if TYPE_CHECKING:
    from lipcompile.calls import compile as compile  # noqa: A004
    from lipcompile.calls import fix as fix
    from lipcompile.calls import load_trained as load_trained
    from lipcompile.calls import private as private
    from lipcompile.calls import train as train
    from lipcompile.core.derivation import Derivation as Derivation
    from lipcompile.core.graph import Graph as Graph
    from lipcompile.core.graph import GraphBuilder as GraphBuilder
    from lipcompile.diagnostics import Diagnostic as Diagnostic
    from lipcompile.diagnostics import InputError as InputError
    from lipcompile.diagnostics import Severity as Severity
    from lipcompile.exporting import export_onnx as export_onnx
    from lipcompile.frontends.options import ModelOptions as ModelOptions
    from lipcompile.ops.registry import register as register
    from lipcompile.pipeline import check as check
    from lipcompile.pipeline import from_module as from_module
    from lipcompile.reports.json_report import report as report

# Public names by the module that they come from.
_NAMES = {
    "calls": ("compile", "fix", "load_trained", "private", "train"),
    "core.derivation": ("Derivation",),
    "core.graph": ("Graph", "GraphBuilder"),
    "diagnostics": ("Diagnostic", "InputError", "Severity"),
    "exporting": ("export_onnx",),
    "frontends.options": ("ModelOptions",),
    "ops.registry": ("register",),
    "pipeline": ("check", "from_module"),
    "reports.json_report": ("report",),
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names}
__all__ = sorted(["__version__", *_HOMES])


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__

"""The machine-readable report, schema `lipcompile.report/1` (`report.schema.json` beside this file)."""

from __future__ import annotations

from typing import Any

from lipcompile.derivation import Analysis, Block, Bound, Derivation, LayerBounds, Requirement
from lipcompile.diagnostics import Diagnostic, Location
from lipcompile.graph import Node, Parameter
from lipcompile.numbers.symbolic import Definition
from lipcompile.reports.formulas import latex, text

SCHEMA = "lipcompile.report/1"
Json = dict[str, Any]

_UNKNOWN: Json = {"formula": None, "latex": None, "value": None}
_ZERO: Json = {"formula": "0", "latex": "0", "value": 0.0}


def report(derivation: Derivation) -> Json:
    """Return the report of a derivation: every key is present, what is unknown is null.

    Of a rejected model there are diagnostics and requirements, but no layers, parameters or totals.
    """
    analysis = derivation.analysis
    return {
        "schema": SCHEMA,
        "model": _model(derivation),
        "ok": derivation.ok,
        "requirements": {
            "lipschitz_loss": _requirement(derivation.requirements.lipschitz_loss),
            "bounded_input": _requirement(derivation.requirements.bounded_input),
            "lipschitz_layers": _requirement(derivation.requirements.lipschitz_layers),
        },
        "diagnostics": [_diagnostic(found) for found in derivation.diagnostics],
        "symbols": [_symbol(definition) for definition in analysis.definitions] if analysis else [],
        "layers": _layers(analysis) if analysis else [],
        "parameters": _parameters(analysis) if analysis else [],
        "total": {
            "lipschitz": _bound(analysis.lipschitz) if analysis else _UNKNOWN,
            "gradient_bound": _bound(analysis.total) if analysis else _UNKNOWN,
        },
        "depth": _depth(analysis),
    }


def _model(derivation: Derivation) -> Json:
    source, analysis = derivation.source, derivation.analysis
    return {
        "name": source.name,
        "source": source.path,
        "format": source.format,
        "sha256": source.sha256,
        "parameters": sum(p.size for p in analysis.graph.parameters.values()) if analysis else None,
    }


def _requirement(requirement: Requirement) -> Json:
    return {"ok": requirement.ok, "detail": requirement.detail}


def _diagnostic(found: Diagnostic) -> Json:
    return {
        "code": found.code,
        "severity": found.severity.value,
        "node": found.node,
        "op": found.op,
        "message": found.message,
        "help": found.help or None,
        "location": _location(found.location),
    }


def _location(location: Location | None) -> Json | None:
    if location is None:
        return None
    return {"file": location.file, "line": location.line, "column": location.column}


def _symbol(definition: Definition) -> Json:
    return {"name": definition.name, "meaning": definition.meaning, "value": definition.upper}


def _layers(analysis: Analysis) -> list[Json]:
    return [_layer(node, found) for node, found in zip(analysis.graph.nodes, analysis.layers, strict=True)]


def _layer(node: Node, found: LayerBounds) -> Json:
    return {
        "name": node.name,
        "op": node.op.name,
        "shape": list(node.shape),
        "output_norm": _bound(found.output_norm),
        "cotangent": _bound(found.cotangent),
        "lipschitz": _bound(found.lipschitz),
    }


def _parameters(analysis: Analysis) -> list[Json]:
    # A shared parameter is named after the first layer that uses it.
    layers: dict[str, str] = {}
    for node in analysis.graph.nodes:
        for name in node.parameters.values():
            layers.setdefault(name, node.name)
    return [
        _parameter(parameter, layers[name], analysis.parameters.get(name))
        for name, parameter in analysis.graph.parameters.items()
    ]


def _parameter(parameter: Parameter, layer: str, bound: Bound | None) -> Json:
    return {
        "name": parameter.name,
        "layer": layer,
        "shape": list(parameter.shape),
        "trainable": parameter.trainable,
        "constraint": str(parameter.constraint),
        **({"certified_by": parameter.constraint.method} if parameter.constraint.method else {}),
        "gradient_bound": _ZERO if bound is None else _bound(bound),
    }


def _bound(bound: Bound) -> Json:
    return {"formula": text(bound.expression), "latex": latex(bound.expression), "value": bound.value}


def _depth(analysis: Analysis | None) -> Json:
    depth = analysis.depth if analysis else None
    total = depth.gradient_bound if depth else None
    return {
        "regime": depth.regime if depth else None,
        "blocks": [_block(block) for block in depth.blocks] if depth else [],
        "formula": text(total.expression) if total else None,
        "growth": depth.growth if depth else None,
    }


def _block(block: Block) -> Json:
    first = block.layers[0]
    return {"layers": list(first), "repeats": block.repeats, "lipschitz": text(block.lipschitz.expression)}

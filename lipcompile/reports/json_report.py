"""The machine-readable report, schema `lipcompile.report/1` (`report.schema.json` beside this file)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from lipcompile.codes import codes
from lipcompile.core.derivation import (
    NOT_REACHED,
    Analysis,
    Block,
    Bound,
    Depth,
    Derivation,
    LayerBounds,
    Requirement,
    Requirements,
    Source,
)
from lipcompile.core.graph import ClipGroup, Node, Parameter
from lipcompile.diagnostics import Diagnostic, Location
from lipcompile.numbers import text as scalar_text
from lipcompile.numbers.known import Definition, needed
from lipcompile.numbers.rounding import finite
from lipcompile.reports.formulas import latex, text
from lipcompile.reports.messages import command

if TYPE_CHECKING:
    from lipcompile.analysis.changes import Change, Share
    from lipcompile.reports.document import Curve, Document, Privacy
    from lipcompile.reports.rows import Measured

SCHEMA = "lipcompile.report/1"
Json = dict[str, Any]
# So many names of the total are defined twice: among all symbols, and beside the total.
_MOST_NAMES = 32

_NO_FORMULA: Json = {"formula": None, "latex": None}
_UNKNOWN: Json = {**_NO_FORMULA, "value": None}
_ZERO: Json = {"formula": "0", "latex": "0", "value": 0.0}


def render(document: Document) -> str:
    """Return the text of a JSON file: the report, and what the document adds to the derivation."""
    added: Json = {
        "dominating": [_share(share) for share in document.dominating.shown],
        "suggestions": [_suggestion(change) for change in document.suggestions.shown],
        "privacy": None if document.privacy is None else _privacy(document.privacy),
        "signal": None if document.signal is None else _signal(document.signal.measured),
    }
    whole = {**report(document.derivation), **added}
    return json.dumps(whole, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def report(derivation: Derivation) -> Json:
    """Return the report of a derivation: every key is present, what is unknown is null.

    Of a rejected model there are diagnostics and requirements, but no layers, parameters or totals.

    Args:
        derivation: of `check` or `from_module`.

    Returns:
        A dictionary of what JSON has, by the schema `lipcompile.report/1`.

    Raises:
        Nothing: a derivation always has a report.

    Examples:
        >>> import lipcompile
        >>> found = lipcompile.report(lipcompile.check("model.lip"))
        >>> found["ok"], [parameter["name"] for parameter in found["parameters"]]
        (True, ['dense.weight'])
    """
    analysis = derivation.analysis
    return {
        "schema": SCHEMA,
        "model": _model(derivation),
        "ok": derivation.ok,
        "requirements": asdict(derivation.requirements),
        "diagnostics": [_diagnostic(found) for found in derivation.diagnostics],
        "symbols": [_symbol(definition) for definition in analysis.definitions] if analysis else [],
        "layers": list(map(_layer, analysis.graph.nodes, analysis.layers)) if analysis else [],
        "parameters": _parameters(analysis) if analysis else [],
        "total": {
            "lipschitz": _bound(analysis.lipschitz) if analysis else _UNKNOWN,
            "gradient_bound": _bound(analysis.total) if analysis else _UNKNOWN,
            "symbols": _names_of_total(analysis) if analysis else [],
        },
        "depth": _depth(analysis),
    }


def unreadable(diagnostics: Sequence[Diagnostic]) -> Json:
    """Return the report of what is not a model at all: the same keys, and diagnostics of errors alone."""
    missed = Requirement(False, NOT_REACHED)
    nothing = Derivation(Source("", "", "", ""), Requirements(missed, missed, missed), tuple(diagnostics), None)
    return {**report(nothing), "model": None}


def _names_of_total(analysis: Analysis) -> list[Json] | None:
    """Return the names in the formulas of the total, and those that these rest on; None if they are too many."""
    formulas = (analysis.lipschitz.expression, analysis.total.expression)
    found = needed(formulas, analysis.definitions)
    return [_symbol(definition) for definition in found] if len(found) <= _MOST_NAMES else None


def _model(derivation: Derivation) -> Json:
    source, analysis = derivation.source, derivation.analysis
    size = analysis.graph.size() if analysis else None
    return {
        "name": source.name,
        "source": source.path,
        "format": source.format,
        "sha256": source.sha256,
        "parameters": size.numerator if isinstance(size, Fraction) else None,
    }


def _diagnostic(found: Diagnostic) -> Json:
    return {
        "code": found.code,
        "severity": found.severity.value,
        "node": found.node,
        "op": found.op,
        "path": list(found.path),
        "kind": codes()[found.code].kind,
        "message": found.message,
        "help": found.help or None,
        "command": command(found) or None,
        "location": _location(found.location),
    }


def _location(location: Location | None) -> Json | None:
    if location is None:
        return None
    end = None if location.column is None else location.column + max(location.length, 1)
    return {"file": location.file, "line": location.line, "column": location.column, "end_column": end}


def _symbol(definition: Definition) -> Json:
    formula = _NO_FORMULA if definition.expression is None else _formula(definition.expression)
    return {"name": definition.name, "meaning": definition.meaning, **formula, "value": definition.upper}


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
    owners = analysis.graph.owners()
    return [_parameter(analysis, one, owners[one.name].name) for one in analysis.graph.parameters.values()]


def _parameter(analysis: Analysis, parameter: Parameter, layer: str) -> Json:
    bound, clip = analysis.parameters.get(parameter.name), analysis.graph.clip_of(parameter.name)
    return {
        "name": parameter.name,
        "layer": layer,
        "shape": list(parameter.shape),
        **({} if parameter.copies == 1 else {"copies": scalar_text(parameter.copies)}),
        "trainable": parameter.trainable,
        "constraint": str(parameter.constraint),
        **({"certified_by": parameter.constraint.method} if parameter.constraint.method else {}),
        "gradient_bound": _ZERO if bound is None else _bound(bound),
        "source": None if bound is None else "theorem" if clip is None else "clip",
        **({} if clip is None else {"clip": _clip(clip)}),
    }


def _clip(group: ClipGroup) -> Json:
    regulariser = None if group.regulariser is None else float(group.regulariser)
    return {"group": group.name, "length": float(group.length), "regulariser": regulariser}


def _bound(bound: Bound) -> Json:
    return {**_formula(bound.expression), "value": bound.value}


def _formula(expression: Any) -> Json:
    return {"formula": text(expression), "latex": latex(expression)}


def _depth(analysis: Analysis | None) -> Json:
    depth = analysis.depth if analysis else Depth(None)
    total = depth.gradient_bound
    return {
        "regime": depth.regime,
        "blocks": [_block(block) for block in depth.blocks],
        "unsolved": [{"copies": list(map(list, one.layers)), "reason": one.reason} for one in depth.unsolved],
        "symbols": [_symbol(definition) for definition in depth.definitions],
        **(_formula(total.expression) if total else _NO_FORMULA),
        "growth": depth.growth,
        "advice": list(depth.advice),
    }


def _block(block: Block) -> Json:
    return {
        "name": block.name,
        "layers": list(block.layers[0]),
        "copies": list(map(list, block.layers)),
        "repeats": block.repeats,
        "count": text(block.count),
        "index": text(block.index),
        "regime": block.regime,
        "exact": block.exact,
        "rate": _bound(block.rate),
        "offset": _bound(block.offset),
        "lipschitz": text(block.lipschitz.expression),
        "lipschitz_bound": _bound(block.lipschitz),
        "input_norm": _formula(block.input_norm),
        "cotangent": _formula(block.cotangent),
        "gradient": {name: _formula(bound) for name, bound in block.gradient.items()},
        "gradient_bound": _formula(block.total),
        "curve": [{"copies": copies, "gradient_bound": bound} for copies, bound in block.curve],
    }


def _suggestion(change: Change) -> Json:
    return {
        "description": change.description,
        "kind": change.kind,
        "place": change.place,
        "gradient_bound": change.total,
        "factor": change.factor,
        "gain": change.gain,
    }


def _signal(found: Measured) -> Json:
    return {
        "noise_multiplier": found.noise_multiplier,
        "batch": found.batch,
        "parameters": [{"name": name, **_norms(one)} for name, one in found.signals.parameters.items()],
        "total": _norms(found.signals.total),
    }


def _norms(row: Any) -> Json:
    norms = {"gradient_bound": row.bound, "typical": row.typical, "mean": row.mean, "noise": row.noise}
    return {name: finite(norm) for name, norm in norms.items()}


def _share(share: Share) -> Json:
    return {"parameters": list(share.names), "gradient_bound": share.bound, "share": share.share}


def _privacy(privacy: Privacy) -> Json:
    return {
        "noise_multiplier": privacy.noise_multiplier,
        "sampling_rate": privacy.sampling_rate,
        "steps": privacy.steps,
        "delta": privacy.delta,
        "neighbours": privacy.neighbours,
        "target_epsilon": privacy.target,
        "accountants": {curve.accountant: _curve(curve) for curve in privacy.curves},
    }


def _curve(curve: Curve) -> Json:
    return {"curve": [{"steps": steps, "epsilon": value} for steps, value in curve.points], "note": curve.note}

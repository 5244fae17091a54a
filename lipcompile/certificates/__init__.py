"""Certificates: a derivation as a document that a program which shares no code with the compiler can check.

`docs/certificates.md` describes the format, schema `lipcompile.certificate/1` (`certificate.schema.json` among the
reports), and says what one proves. The graph is what the model computes, with everything that depends on a
convention spelt out. A step is a bound of a derivation, beside the rule and the proof that it rests on.

Imports: lipcompile.analysis, lipcompile.core, lipcompile.diagnostics, lipcompile.limits, lipcompile.numbers,
lipcompile.ops, lipcompile.version.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from fractions import Fraction
from typing import Any

from lipcompile.analysis.bounds import Bounds, derive, linear_in_loss, reads_profile
from lipcompile.analysis.open_numbers import complete
from lipcompile.core.derivation import Derivation, Source
from lipcompile.core.graph import ClipGroup, Graph, Input, LossUse, Node, Parameter
from lipcompile.core.record import Site
from lipcompile.numbers import Scalar
from lipcompile.numbers.certified import Certified, Interval
from lipcompile.ops.normalisation import rules as normalisation
from lipcompile.ops.reduce import rules as reduce
from lipcompile.ops.resample.rules import Expand
from lipcompile.ops.rules import feature_axis
from lipcompile.ops.shape import rules as shape
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


# The graph

# Attributes of which several values mean the same, by their record: all are written as the one that says most.
_SPELT_OUT: Mapping[type[Any], Mapping[str, Callable[[Site[Any]], Any]]] = {
    shape.Reshape: {"shape": lambda site: site.output},
    shape.Transpose: {"axes": lambda site: shape.permutation(site.attributes, site.inputs[0])},
    Expand: {"shape": lambda site: site.output},
    reduce.Reduce: {"axes": lambda site: site.attributes.over(site.inputs[0])},
    normalisation.Center: {"axes": lambda site: normalisation.axes_of(site.attributes.axes, site.inputs[0])},
    normalisation.OverAxes: {"axes": lambda site: normalisation.axes_of(site.attributes.axes, site.inputs[0])},
}


def graph_document(graph: Graph) -> Json:
    """Return the canonical form of a graph without open numbers that has a loss."""
    assert graph.loss is not None
    return {
        "input": _input(graph.input),
        "nodes": [_node(node) for node in graph.nodes],
        "parameters": {name: _parameter(parameter) for name, parameter in graph.parameters.items()},
        "output": graph.output,
        "loss": _loss(graph.loss),
        **({"clips": [_clip(group) for group in graph.clips]} if graph.clips else {}),
    }


def written(scalar: Scalar) -> str:
    """Return an exact number in lowest terms: `3`, `-1/10`."""
    assert isinstance(scalar, Fraction)
    return str(scalar)


def value(attribute: Any) -> Any:
    """Return an attribute as JSON: exact numbers as text, whole ones as such, tuples as lists."""
    if isinstance(attribute, Fraction):
        return written(attribute)
    if isinstance(attribute, tuple):
        return [value(item) for item in attribute]
    assert attribute is None or isinstance(attribute, bool | int | str), attribute
    return attribute


def _input(source: Input) -> Json:
    return {
        "name": source.name,
        "shape": list(source.shape),
        "norm": None if source.norm is None else written(source.norm),
        "trusted": source.trusted,
        "tokens": source.tokens,
    }


def _node(node: Node) -> Json:
    return {
        "name": node.name,
        "op": node.op.name,
        "attributes": _attributes(node.op.attributes, node.site),
        "inputs": list(node.inputs),
        "shape": list(node.shape),
        "parameters": dict(node.parameters),
    }


def _attributes(record: type[Any], site: Site[Any]) -> Json:
    spelt_out = _SPELT_OUT.get(record, {})
    return {
        field.name: value(spelt_out[field.name](site) if field.name in spelt_out else _plain(field.name, site))
        for field in fields(record)
    }


def _plain(name: str, site: Site[Any]) -> Any:
    given = getattr(site.attributes, name)
    return feature_axis(given, site.inputs[0]) if name == "axis" else given


def _parameter(parameter: Parameter) -> Json:
    constraint = parameter.constraint
    return {
        "shape": list(parameter.shape),
        "constraint": constraint.kind,
        "bound": None if constraint.kind == "free" else written(constraint.bound),
        "trainable": parameter.trainable,
    }


def _clip(group: ClipGroup) -> Json:
    return {
        "name": group.name,
        "parameters": list(group.parameters),
        "length": written(group.length),
        "regulariser": None if group.regulariser is None else written(group.regulariser),
    }


def _loss(use: LossUse) -> Json:
    attributes = {field.name: value(getattr(use.attributes, field.name)) for field in fields(use.loss.attributes)}
    return {"name": use.loss.name, "attributes": attributes}


# Steps


def steps(graph: Graph, numbers: Bounds[Interval]) -> Json:
    """Return the steps forward, of the loss, backward and of the parameters."""
    unclipped = numbers if linear_in_loss(graph) else derive(graph, Certified(), through_clips=False)
    profile = reads_profile(graph)
    assert graph.loss is not None
    loss = graph.loss.loss
    return {
        "forward": [_forward(node, numbers, profile=profile) for node in graph.nodes],
        "loss": {"rule": loss.name, "proof": loss.proof, "lipschitz": _upper(numbers.loss_lipschitz)},
        "backward": _backward(graph, numbers, unclipped),
        "parameters": _parameters(graph, numbers, unclipped),
    }


def totals(graph: Graph, numbers: Bounds[Interval]) -> Json:
    """Return √ΣK², and the Lipschitz constant of the output in the input."""
    return {"gradient": _upper(numbers.total), "lipschitz": _upper(numbers.slope[graph.input.name])}


def _upper(number: Interval) -> str:
    """Return a double not below a number, in hexadecimal; `inf` where nothing is known."""
    return number.upper.hex()


def _uppers(numbers: Mapping[str, Interval]) -> dict[str, str]:
    return {name: _upper(number) for name, number in numbers.items()}


def _forward(node: Node, numbers: Bounds[Interval], *, profile: bool) -> Json:
    extent = numbers.extent[node.name]
    rows = {"row": _upper(extent.row), "entry": _upper(extent.entry)} if profile else {}
    return {
        "node": node.name,
        "rule": node.op.name,
        "proof": node.op.proof,
        "conditions": _conditions(node),
        "theta": _uppers(_read(node, numbers)),
        "norm": _upper(extent.norm),
        **rows,
        "lipschitz": [_upper(gain) for gain in numbers.gain[node.name]],
        "kappa": _uppers(numbers.kappa[node.name]),
    }


def _conditions(node: Node) -> Json:
    found = node.op.conditions(node.site) if node.op.conditions else {}
    return {name: value(condition) for name, condition in found.items()}


def _read(node: Node, numbers: Bounds[Interval]) -> dict[str, Interval]:
    """Return the bounds that rules read; of a weight that nothing constrains it is infinite."""
    return {
        role: bound for role, bound in numbers.theta[node.name].items() if node.op.parameter(role).is_constrained
    }


def _backward(graph: Graph, numbers: Bounds[Interval], unclipped: Bounds[Interval]) -> list[Json]:
    return [
        {
            "value": name,
            "cotangent": _upper(numbers.cotangent[name]),
            "unclipped": _upper(unclipped.cotangent[name]),
            "slope": _upper(numbers.slope[name]),
        }
        for name in (*(node.name for node in reversed(graph.nodes)), graph.input.name)
    ]


def _parameters(graph: Graph, numbers: Bounds[Interval], unclipped: Bounds[Interval]) -> list[Json]:
    uses: dict[str, list[list[str]]] = {}
    for node in graph.nodes:
        for role, name in node.parameters.items():
            uses.setdefault(name, []).append([node.name, role])
    return [
        {
            "name": name,
            "uses": uses[name],
            "gradient": _upper(bound),
            "unclipped": _upper(unclipped.gradient[name]),
        }
        for name, bound in numbers.gradient.items()
    ]

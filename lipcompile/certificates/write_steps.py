"""The steps of a certificate: every bound of a derivation, beside the rule and the proof that it rests on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lipcompile.analysis.bounds import Bounds, derive, linear_in_loss, reads_profile
from lipcompile.certificates.write_graph import value
from lipcompile.core.graph import Graph, Node
from lipcompile.numbers.certified import Certified, Interval

Json = dict[str, Any]


def steps(graph: Graph, numbers: Bounds[Interval]) -> Json:
    """Return the steps forward, of the loss, backward and of the parameters."""
    unclipped = numbers if linear_in_loss(graph) else derive(graph, Certified(), through_clips=False)
    profile = reads_profile(graph)
    return {
        "forward": [_forward(node, numbers, profile=profile) for node in graph.nodes],
        "loss": _loss(graph, numbers),
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


def _loss(graph: Graph, numbers: Bounds[Interval]) -> Json:
    assert graph.loss is not None
    loss = graph.loss.loss
    return {"rule": loss.name, "proof": loss.proof, "lipschitz": _upper(numbers.loss_lipschitz)}


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

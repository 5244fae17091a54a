"""Biases as layers of their own, where a weight and its bias are shared with different layers.

A `share` label of .lip is for all parameters of a layer.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from lipcompile.core.graph import Graph, Node, Parameter
from lipcompile.core.names import Names
from lipcompile.core.record import Site
from lipcompile.ops.linear.rules import BIAS, BiasShape


def with_separate_biases(graph: Graph) -> Graph:
    """Return an equal graph whose nodes share all their parameters with the same nodes, biases moved for that."""
    uses = Counter(name for node in graph.nodes for name in node.parameters.values())
    mixed = {node.name for node in graph.nodes if _is_mixed(node, uses)}
    mixed |= {node.name for node in graph.nodes if _biases(graph, mixed) & set(node.parameters.values())}
    if not mixed:
        return graph
    names = Names({graph.input.name, *(node.name for node in graph.nodes)})
    nodes: list[Node] = []
    parameters, behind = dict(graph.parameters), dict[str, str]()
    for node in graph.nodes:
        read = replace(node, inputs=tuple(behind.get(name, name) for name in node.inputs))
        if node.name not in mixed or "bias" not in node.parameters or node.op is BIAS:
            nodes.append(read)
            continue
        without, bias = _parted(read, names.fresh(f"{node.name}_bias"))
        nodes += [without, bias]
        behind[node.name] = bias.name
        parameters |= {name: _shaped(parameters[name], bias) for name in bias.parameters.values()}
    return replace(graph, nodes=tuple(nodes), parameters=parameters, output=behind.get(graph.output, graph.output))


def _is_mixed(node: Node, uses: Counter[str]) -> bool:
    return "bias" in node.parameters and len({uses[name] > 1 for name in node.parameters.values()}) > 1


def _biases(graph: Graph, nodes: set[str]) -> set[str]:
    """Return the biases of some nodes: where one of them is a layer of its own, so are its other uses."""
    return {node.parameters["bias"] for node in graph.nodes if node.name in nodes and "bias" in node.parameters}


def _parted(node: Node, name: str) -> tuple[Node, Node]:
    """Return a layer without its bias, and the bias."""
    weights = {role: own for role, own in node.parameters.items() if role != "bias"}
    per_feature = node.op.parameter("bias").shape(node.attributes, node.site.inputs)
    spatial = 0 if node.op.name == "dense" else len(node.shape) - 1
    attributes = BiasShape((*per_feature, *(1,) * spatial))
    site = Site(attributes, (node.shape,), node.shape)
    bias = Node(name, BIAS, attributes, (node.name,), site, {"bias": node.parameters["bias"]}, node.location)
    return replace(node, parameters=weights), bias


def _shaped(parameter: Parameter, bias: Node) -> Parameter:
    return replace(parameter, shape=bias.attributes.size, initial=None)

"""What the graph calls its nodes: after the modules of torch that they come from, where the file tells.

Most modules become several nodes. The one that the module is known for gets its name: a layer with weights, or the
last node, which an activation that is spelled out ends in. The others have their operator behind it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from lipcompile.frontends.onnx.node import OnnxNode

# What torch.onnx.export(dynamo=False) calls a node: /layer1/layer1.0/conv1/Conv, of modules and an operator.
_PATH = re.compile(r"(?:/\w+(?:\.\w+)*)*/[A-Za-z]\w*", re.ASCII)
_WORDS = re.compile(r"(?<=[a-z])(?=[A-Z])")
_LAYERS = frozenset(("BatchNormalization", "Conv", "ConvTranspose", "GRU", "Gemm", "LSTM", "RNN"))


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a node stands: in which module, empty for the whole model, in which call of it, and as what."""

    node: OnnxNode
    module: str
    call: str
    called: str


def named(nodes: Sequence[OnnxNode]) -> list[OnnxNode]:
    """Give the nodes their names; those that read weights of a module have that of the module already."""
    places = [_place(node) for node in nodes]
    known = [place for place in places if place is not None]
    weighted = [node.name for node in nodes if node.reads]
    composite = {outer for module in (*weighted, *(place.module for place in known)) for outer in _around(module)}
    heads = {id(place) for place in _heads([place for place in known if not place.node.reads])}
    return [
        node
        if place is None or node.reads
        else replace(node, name=_name(place, is_head=id(place) in heads and place.module not in composite))
        for node, place in zip(nodes, places, strict=True)
    ]


def _around(module: str) -> Iterator[str]:
    """Yield the modules that a module is a part of."""
    while "." in module:
        module = module.rpartition(".")[0]
        yield module


def _place(node: OnnxNode) -> _Place | None:
    """Return where a node stands, None if the file does not say."""
    operator, path = _snake(node.op_type), node.proto.name
    if node.group:
        return _Place(node, node.group, node.call, operator)
    if _PATH.fullmatch(path):
        return _Place(node, module_of_path(path), "", _snake(path.rpartition("/")[2]))
    return None


def _snake(operator: str) -> str:
    return _WORDS.sub("_", operator).lower()


def module_of_path(path: str) -> str:
    """Return the qualified name of the module that a node stands in; containers stand before their entries."""
    parts: list[str] = []
    for part in path.split("/")[1:-1]:
        if parts and part.startswith(f"{parts[-1]}."):
            parts.pop()
        parts.append(part)
    return ".".join(parts)


def _heads(places: Sequence[_Place]) -> list[_Place]:
    """Return the node that each module is known for; several, if the module was called again."""
    last: dict[str, _Place] = {}
    calls: defaultdict[str, dict[str, _Place]] = defaultdict(dict)
    for place in places:
        known = last.get(place.module)
        if known is None or known.node.op_type not in _LAYERS or place.node.op_type in _LAYERS:
            last[place.module] = place
        calls[place.module][place.call] = place
    again = [list(ends.values()) for ends in calls.values() if len(ends) > 1]
    alike = [ends for ends in again if len({end.node.op_type for end in ends}) == 1]
    return [*last.values(), *(end for ends in alike for end in ends)]


def _name(place: _Place, *, is_head: bool) -> str:
    if place.module and is_head:
        return place.module
    return f"{place.module}.{place.called}" if place.module else place.called

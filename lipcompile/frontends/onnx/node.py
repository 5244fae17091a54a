"""One node of an ONNX graph, with its attributes decoded, and what the graph calls it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from onnx import NodeProto, helper

from lipcompile.diagnostics import Location, Refusal

# How torch names the tensors of a module: features.0.weight belongs to features.0.
_OF_MODULE = re.compile(
    r"^(\w+(?:\.\w+)*)(?:\.(?:weight|bias|running_mean|running_var)|(?<=\.in_proj)_(?:weight|bias))$", re.ASCII
)


def module_of(tensor: str) -> str | None:
    """Return the module that a stored tensor belongs to, if its name says so."""
    found = _OF_MODULE.match(tensor)
    return found.group(1) if found else None


@dataclass(frozen=True, slots=True)
class OnnxNode:
    """A node. `label` is what diagnostics call it, `name` what the graph calls it.

    shown: what diagnostics call its operator: the class of a torch module, or the ONNX operator.
    layer: the layer of torch that it is, if the file says so: it reads no weights but its own.
    group: that layer, or the function that was called, if the file says so. call: the function, in either case.
    reads: whether `name` is of weights that it reads.
    traced: the line of Python that it was exported from, as the file says: show it for a trusted source only.
    """

    proto: NodeProto
    label: str
    name: str
    attributes: Mapping[str, Any]
    shown: str
    layer: str = ""
    group: str = ""
    call: str = ""
    reads: bool = False
    traced: Location | None = None

    @property
    def op_type(self) -> str:
        """The operator."""
        return self.proto.op_type

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs; the empty name is one that is not asked for."""
        return tuple(self.proto.output)

    def integer(self, name: str, default: int) -> int:
        """Return an integer attribute; raises Refusal if it is something else."""
        value = self.attributes.get(name, default)
        if not isinstance(value, int):
            raise Refusal("LIP102", f"the attribute {name} of {self.op_type} must be an integer")
        return value

    def integers(self, name: str) -> tuple[int, ...] | None:
        """Return a list attribute, None if it is absent; raises Refusal if it is something else."""
        value = self.attributes.get(name)
        if value is None:
            return None
        if not isinstance(value, list | tuple) or not all(isinstance(item, int) for item in value):
            raise Refusal("LIP102", f"the attribute {name} of {self.op_type} must be a list of integers")
        return tuple(value)

    def number(self, name: str, default: Fraction) -> Fraction:
        """Return a number attribute, exactly; raises Refusal if it is not finite."""
        value = self.attributes.get(name, default)
        try:
            return Fraction(value)
        except (TypeError, ValueError, OverflowError):
            raise Refusal("LIP102", f"the attribute {name} of {self.op_type} must be a finite number") from None

    def text(self, name: str, default: str) -> str:
        """Return a string attribute."""
        value = self.attributes.get(name, default)
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def describe(proto: NodeProto, stored: Collection[str]) -> OnnxNode:
    """Decode a node; `stored` are the names of stored tensors, whose module gives the node its name."""
    scope = scope_of(proto)
    modules = [module for tensor in proto.input if tensor in stored and (module := module_of(tensor))]
    inside = [module for module in modules if scope.holds(module)]
    parts = [module for module in inside if module.startswith(f"{scope.layer}.")] if scope.layer else inside
    group = scope.layer or scope.function
    module = parts[0] if parts else group
    first = next((output for output in proto.output if output), proto.op_type)
    attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in proto.attribute}
    label = module or proto.name or first
    name = module or proto.name.strip("/") or proto.op_type.lower()
    reads = bool(parts) or scope.layer in inside
    shown = scope.shown or proto.op_type
    return OnnxNode(proto, label, name, attributes, shown, scope.layer, group, scope.function, reads, scope.traced)


# What torch.onnx.export(dynamo=True) says of a node

_QUOTED = re.compile(r"'([^']*)'")
_FRAME = re.compile(r'File "([^"\n]+)", line (\d{1,9})')
_LIBRARY = re.compile(r"[/\\](?:site|dist)-packages[/\\]|^<")
_TORCH = re.compile(r"[/\\]torch[/\\]|^<")
_LAYERS = "torch.nn.modules."
# Into these the exporter merges a batch normalisation behind them, and calls them by its name.
_MERGING = frozenset(("Conv", "ConvTranspose", "Gemm"))


@dataclass(frozen=True, slots=True)
class Scope:
    """Where in a torch module a node comes from; all empty for a file that does not say.

    module: its qualified name. layer: the same, if it is one of torch's own layers. function: what it calls there.
    """

    module: str = ""
    layer: str = ""
    function: str = ""
    shown: str = ""
    traced: Location | None = None

    def holds(self, module: str) -> bool:
        """Whether a module lies in this one, or is it."""
        return f"{module}.".startswith(f"{self.module}." if self.module else "")


def scope_of(proto: NodeProto) -> Scope:
    """Return where in a torch module a node comes from."""
    told = {entry.key.removeprefix("pkg.torch.onnx."): entry.value for entry in proto.metadata_props}
    scopes, classes = (_QUOTED.findall(told.get(key, "")) for key in ("name_scopes", "class_hierarchy"))
    if len(scopes) < 2 or len(classes) != len(scopes):
        return Scope()
    module, kind = scopes[-2], classes[-2]
    merged = proto.op_type in _MERGING and "batchnorm" in kind
    is_layer = kind.startswith(_LAYERS) and not merged
    return Scope(
        module.rpartition(".")[0] if merged else module,
        layer=module if is_layer else "",
        function=f"{module}.{scopes[-1]}" if module else scopes[-1],
        shown=kind.rpartition(".")[2] if is_layer else "",
        traced=traced_line(told.get("stack_trace", "")),
    )


def traced_line(stack: str) -> Location | None:
    """Return the innermost line of the user's own code, or else of a library that is not torch."""
    frames = [Location(file, int(line)) for file, line in _FRAME.findall(stack)]
    for foreign in (_LIBRARY, _TORCH):
        own = [frame for frame in frames if not foreign.search(frame.file)]
        if own:
            return own[-1]
    return None


# Names: after the modules of torch that nodes come from, where the file tells. Most modules become several nodes.
# The one that the module is known for gets its name: a layer with weights, or the last node, which an activation
# that is spelled out ends in. The others have their operator behind it.

# What torch.onnx.export(dynamo=False) calls a node: /layer1/layer1.0/conv1/Conv, of modules and an operator.
_PATH = re.compile(r"(?:/\w+(?:\.\w+)*)*/[A-Za-z]\w*", re.ASCII)
_WORDS = re.compile(r"(?<=[a-z])(?=[A-Z])")
_WEIGHTED = frozenset(("BatchNormalization", "Conv", "ConvTranspose", "GRU", "Gemm", "LSTM", "RNN"))


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
        if known is None or known.node.op_type not in _WEIGHTED or place.node.op_type in _WEIGHTED:
            last[place.module] = place
        calls[place.module][place.call] = place
    again = [list(ends.values()) for ends in calls.values() if len(ends) > 1]
    alike = [ends for ends in again if len({end.node.op_type for end in ends}) == 1]
    return [*last.values(), *(end for ends in alike for end in ends)]


def _name(place: _Place, *, is_head: bool) -> str:
    if place.module and is_head:
        return place.module
    return f"{place.module}.{place.called}" if place.module else place.called

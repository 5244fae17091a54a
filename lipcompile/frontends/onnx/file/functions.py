"""Functions that a model defines: written out where they are called, once it is known that this ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from onnx import AttributeProto, FunctionProto, ModelProto, NodeProto

from lipcompile import limits
from lipcompile.diagnostics import Location, Refusal

# Domain, name and overload, by which a node calls a function.
Key = tuple[str, str, str]


def inlined(model: ModelProto, at: Location) -> ModelProto:
    """Replace calls by the bodies of the functions.

    Raises Refusal (LIP003, LIP109, LIP110) where it is not clear what a call means, InputError (LIP018) where the
    result is too large.
    """
    if not model.functions:
        return model
    from onnx.inliner import inline_local_functions

    expansion = Expansion(dict(_defined(model)))
    _fill_defaults(model, expansion.functions, at)
    for key in expansion.functions:
        expansion.check(key)
    nodes, size = expansion.of(model.graph.node)
    limits.demand("nodes", nodes, "the graph, with its functions written out, has", at)
    limits.demand("file_size", size, "the graph, with its functions written out, holds", at)
    try:
        written = inline_local_functions(model)
    except Exception:  # the importer then names the functions as operators it does not know
        return model
    for node in nodes_within(written.graph.node):
        if key_of(node) in expansion.functions:
            _refuse_other_sets(model, expansion.functions[key_of(node)])
    return written


def _refuse_other_sets(model: ModelProto, function: FunctionProto) -> None:
    """Raise Refusal (LIP110) if a function that is not written out is one of another operator set."""
    own = {_domain(entry.domain): entry.version for entry in model.opset_import}
    for entry in function.opset_import:
        domain = _domain(entry.domain)
        if own.get(domain, entry.version) != entry.version:
            of = f" of `{domain}`" * bool(domain)
            message = (
                f"the function `{function.name}` is written for operator set {entry.version}{of}, and the model "
                f"for {own[domain]}: not yet supported"
            )
            raise Refusal("LIP110", message, "export the model and its functions with one opset_version")


def key_of(node: NodeProto) -> Key:
    """Return what a node calls."""
    return _domain(node.domain), node.op_type, node.overload


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _defined(model: ModelProto) -> Iterator[tuple[Key, FunctionProto]]:
    seen = set[Key]()
    for function in model.functions:
        key = (_domain(function.domain), function.name, function.overload)
        if key in seen:
            raise Refusal("LIP003", f"the function `{function.name}` is defined twice", "export the model again")
        if not key[0]:
            message = f"the function `{function.name}` redefines a standard operator: which counts is not defined"
            raise Refusal("LIP109", message, "put the function into a domain of its own")
        seen.add(key)
        yield key, function


def _fill_defaults(model: ModelProto, functions: dict[Key, FunctionProto], at: Location) -> None:
    """Write the default values of attributes into the calls without them, which the inliner does not.

    Raises Refusal (LIP110) where a call hands on an attribute that may be missing.
    """
    bodies = [model.graph.node, *(function.node for function in model.functions)]
    calls = [node for body in bodies for node in nodes_within(body) if key_of(node) in functions]
    missing = [_missing(call, functions[key_of(call)]) for call in calls]
    size = sum(attribute.ByteSize() for attributes in missing for attribute in attributes)
    limits.demand("file_size", size, "the graph, with the default attributes of its functions, holds", at)
    for call, attributes in zip(calls, missing, strict=True):
        call.attribute.extend(attributes)


def _missing(call: NodeProto, function: FunctionProto) -> list[AttributeProto]:
    """Return the attributes of a function with a default value that a call does not give."""
    given = {attribute.name: attribute.ref_attr_name for attribute in call.attribute}
    for attribute in function.attribute_proto:
        if given.get(attribute.name):
            message = f"the attribute `{attribute.name}` of the function `{function.name}` is handed on to it"
            raise Refusal("LIP110", f"{message}, and has a default value: not yet supported", "give it a value")
    return [attribute for attribute in function.attribute_proto if attribute.name not in given]


@dataclass(slots=True)
class Expansion:
    """How large bodies are, written out: nodes and bytes."""

    functions: dict[Key, FunctionProto]
    _sizes: dict[Key, tuple[int, int]] = field(default_factory=dict)

    def check(self, key: Key) -> None:
        """Find the sizes of a function, those that it calls first; raises Refusal (LIP003) if it calls itself."""
        path: dict[Key, Iterator[Key]] = {key: self._called(key)}
        while path:
            current, calls = next(reversed(path.items()))
            called = next((call for call in calls if call not in self._sizes), None)
            if called is None:
                self._sizes[current] = self.of(self.functions[current].node)
                del path[current]
            elif called in path:
                raise Refusal("LIP003", f"the function `{called[1]}` calls itself", "ONNX allows no recursion")
            else:
                path[called] = self._called(called)

    def of(self, nodes: Iterable[NodeProto]) -> tuple[int, int]:
        """Return the number of nodes and bytes of a body whose functions have sizes."""
        count = size = 0
        for node in nodes_within(nodes):
            key, own = key_of(node), node.ByteSize()
            more, larger = self._sizes.get(key, (1, 0))
            given = own * _references(self.functions[key]) if key in self.functions else own
            count, size = count + more, size + given + larger
        return count, size

    def _called(self, key: Key) -> Iterator[Key]:
        return (k for node in nodes_within(self.functions[key].node) if (k := key_of(node)) in self.functions)


def _references(function: FunctionProto) -> int:
    """How often a body mentions attributes of its call, which are copied to each of those places."""
    nodes = nodes_within(function.node)
    return 1 + sum(bool(attribute.ref_attr_name) for node in nodes for attribute in node.attribute)


def nodes_within(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Yield the nodes and those of the graphs in their attributes."""
    pending = [iter(nodes)]
    while pending:
        node = next(pending[-1], None)
        if node is None:
            pending.pop()
            continue
        yield node
        for attribute in node.attribute:
            pending += [iter(attribute.g.node)] if attribute.HasField("g") else []
            pending += [iter(graph.node) for graph in attribute.graphs]

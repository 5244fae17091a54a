"""The graph of a certificate, read back: `lipcompile.certificate/1` -> Graph.

Nothing is taken on trust: ops, shapes, constraints and the loss pass through the builder and the rules that any
front end uses, and whatever the format does not have is refused. Derived numbers are not read: they are
derived again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal, TypeVar, get_args, get_origin

from lipcompile import limits
from lipcompile.certificates import SCHEMA, graph_document, hash_of
from lipcompile.core.graph import ClipGroup, Graph, GraphBuilder, LossUse, ParameterChoice, Value
from lipcompile.core.record import AnyOp, Constraint, ConstraintKind, Shape
from lipcompile.diagnostics import InputError, input_error
from lipcompile.numbers import Scalar
from lipcompile.ops.registry import registered
from lipcompile.ops.schema import Axis, Extra, Index, Label, Padding, PerAxis, fields_of
from lipcompile.ops.table import LOSS_BY_NAME, OP_BY_NAME

Json = Mapping[str, Any]
T = TypeVar("T")
_PARTS = ("schema", "versions", "source", "graph", "graph_sha256", "steps", "totals")
_OPTIONAL = ("user_ops", "training")


def document_of(text: str) -> Json:
    """Return the certificate that a text holds; raises InputError (LIP520) for anything else."""
    try:
        found = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise _unreadable(f"it is not JSON: {error}") from None
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise _unreadable(f"its schema is not `{SCHEMA}`")
    return found


def graph_of(document: Json) -> Graph:
    """Return the model that a certificate is about, with the names that it has there.

    Weights have no values in a certificate, and nodes no places in a file.

    Formal guarantees: the graph of the certificate of the result is that of `document`, byte for byte.

    Raises:
        InputError: LIP520, a part that is missing, unknown, of the wrong kind, or that has another hash than is
            claimed; other codes, what the rules refuse.
    """
    absent = dict.fromkeys(_OPTIONAL)
    found = _checked({**absent, **document}, (*_PARTS, *_OPTIONAL), "the certificate")
    parts = ("input", "nodes", "parameters", "output", "loss")
    whole = found["graph"]
    graph = _checked(whole, (*parts, "clips") if "clips" in whole else parts, "`graph`")
    if found["graph_sha256"] != hash_of(graph):
        raise _unreadable("`graph_sha256` is not the hash of its graph")
    source = _checked(found["source"], ("name", "format", "sha256"), "`source`")
    made = _Reader(graph, GraphBuilder(_text(source["name"], "the name of its source"))).read()
    if graph_document(made) != graph:
        raise _unreadable("its graph is not in canonical form, or has unused parts")
    return made


def _unreadable(reason: str) -> InputError:
    return input_error("LIP520", f"the certificate cannot be read: {reason}", "emit the module again")


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key occurs twice in one object")
    return found


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is not a JSON number")


class _Reader:
    """Gives the parts of a graph's document to a builder, one by one."""

    def __init__(self, document: Json, builder: GraphBuilder) -> None:
        self.document, self.builder = document, builder
        self.values: dict[str, Value] = {}
        self.parameters = _parameters(document)

    def read(self) -> Graph:
        self._input()
        for node in _list(self.document["nodes"], "`nodes`"):
            self._node(node)
        output = self.document["output"]
        if not isinstance(output, str) or output not in self.values:
            raise _unreadable("its output is not one of its values")
        for group in _list(self.document.get("clips", []), "`clips`"):
            self.builder.clip(_clip(group))
        graph = self.builder.finish(self.values[output], self._loss())
        if graph is None:
            raise InputError(tuple(self.builder.diagnostics))
        return graph

    def _input(self) -> None:
        entry = _checked(self.document["input"], ("name", "shape", "norm", "trusted", "tokens"), "`input`")
        tokens, trusted = (_boolean(entry[key], f"`{key}` of the input") for key in ("tokens", "trusted"))
        if tokens and entry["norm"] is not None:
            raise _unreadable("its input holds tokens, which have no norm")
        unknown = tokens or (trusted and entry["norm"] is None)
        norm = None if unknown else _scalar(entry["norm"], "`norm` of the input")
        name, shape = _text(entry["name"], "the name of the input"), _shape(entry["shape"], "the input")
        self._add(name, self.builder.input(name, shape, norm, trusted, None, tokens=tokens))

    def _add(self, name: str, value: Value) -> None:
        """Note what was built; raises InputError for what is refused, or has another name."""
        errors = tuple(found for found in self.builder.diagnostics if found.severity == "error")
        if errors:
            raise InputError(errors)
        if value.name != name:
            raise _unreadable(f"`{name}` is not a valid name of a node, or several nodes have this name")
        self.values[name] = value

    def _node(self, entry: Any) -> None:
        keys = ("name", "op", "attributes", "inputs", "shape", "parameters")
        found = _checked(entry, keys, "a node")
        name, where = _text(found["name"], "the name of a node"), f"`{found['name']}`"
        op = _op(found["op"], where)
        operands = [self._operand(operand, where) for operand in _list(found["inputs"], f"`inputs` of {where}")]
        low, high = op.operands
        if not low <= len(operands) <= (len(operands) if high is None else high):
            raise _unreadable(f"{where} has {len(operands)} operands")
        attributes = attributes_of(op.attributes, found["attributes"], where)
        chosen = self._choices(op, found["parameters"], where)
        self._add(name, self.builder.add(op, attributes, operands, name=name, parameters=chosen))

    def _operand(self, name: Any, where: str) -> Value:
        if not isinstance(name, str) or name not in self.values:
            raise _unreadable(f"{where} reads `{name}`, which is not computed before it")
        return self.values[name]

    def _choices(self, op: AnyOp, entry: Any, where: str) -> dict[str, ParameterChoice]:
        if not isinstance(entry, dict):
            raise _unreadable(f"`parameters` of {where} is not an object")
        roles = {rule.role: rule.optional for rule in op.parameters}
        missing = [role for role, optional in roles.items() if not optional and role not in entry]
        if missing or not entry.keys() <= roles.keys():
            raise _unreadable(f"{where} does not have the parameters of `{op.name}`")
        if any(not isinstance(name, str) or name not in self.parameters for name in entry.values()):
            raise _unreadable(f"{where} has a parameter that is not declared")
        return {role: self.parameters[name] for role, name in entry.items()}

    def _loss(self) -> LossUse:
        entry = _checked(self.document["loss"], ("name", "attributes"), "`loss`")
        if not isinstance(entry["name"], str) or entry["name"] not in LOSS_BY_NAME:
            raise _unreadable(f"unknown loss `{entry['name']}`")
        loss = LOSS_BY_NAME[entry["name"]]
        return LossUse(loss, attributes_of(loss.attributes, entry["attributes"], f"the loss `{loss.name}`"))


def _clip(entry: Any) -> ClipGroup:
    found = _checked(entry, ("name", "parameters", "length", "regulariser"), "a group of clips")
    where = f"the clip `{found['name']}`"
    names = tuple(_text(name, f"a parameter of {where}") for name in _list(found["parameters"], where))
    length, regulariser = (
        None if value is None else _scalar(value, f"a number of {where}")
        for value in (found["length"], found["regulariser"])
    )
    if not length or length < 0 or (regulariser is not None and regulariser <= 0):
        raise _unreadable(f"{where} has no positive length")
    return ClipGroup(_text(found["name"], "the name of a clip"), names, length, regulariser)


def _op(name: Any, where: str) -> AnyOp:
    known = {**OP_BY_NAME, **registered()}
    if not isinstance(name, str) or name not in known:
        raise _unreadable(f"{where} has the unknown op `{name}`")
    return known[name]


def _parameters(document: Json) -> dict[str, ParameterChoice]:
    entries = document["parameters"]
    if not isinstance(entries, dict):
        raise _unreadable("`parameters` is not an object")
    return {name: _parameter(name, entry) for name, entry in entries.items()}


def _parameter(name: str, entry: Any) -> ParameterChoice:
    where = f"the parameter `{name}`"
    found = _checked(entry, ("shape", "constraint", "bound", "trainable"), where)
    kind = found["constraint"]
    if kind not in get_args(ConstraintKind):
        raise _unreadable(f"{where} has an unknown constraint, `{kind}`")
    bound = Fraction(0) if kind == "free" else _scalar(found["bound"], f"the bound of {where}")
    try:
        constraint = Constraint(kind, bound)
    except ValueError as error:
        raise _unreadable(f"{where}: {error}") from None
    return ParameterChoice(constraint, _boolean(found["trainable"], f"`trainable` of {where}"), shared=name)


# Attributes


def attributes_of(record: Any, entry: Any, where: str) -> Any:
    """Return a record of attributes from a document that has every field, and no other; raises InputError."""
    kinds = {name: kind for name, (kind, _) in fields_of(record).items()}
    found = _checked(entry, list(kinds), f"`attributes` of {where}")
    values = {name: _attribute(kind, found[name], f"`{name}` of {where}") for name, kind in kinds.items()}
    if len({len(values[name]) for name, kind in kinds.items() if kind in (PerAxis, Extra, Padding)}) > 1:
        raise _unreadable(f"`attributes` of {where} have different numbers of axes")
    return record(**values)


def _attribute(kind: Any, value: Any, where: str) -> Any:
    if get_origin(kind) is Literal:
        if type(value) not in (int, str) or value not in get_args(kind):
            raise _unreadable(f"{where} is not one of {', '.join(map(str, get_args(kind)))}")
        return value
    for known, read in _KINDS:
        if kind == known:
            return read(value, where)
    raise _unreadable(f"{where} has a type that certificates cannot represent")


def _of_kind(kind: type[T], otherwise: str) -> Callable[[Any, str], T]:
    """Return what reads values of a kind of JSON's, and says of others what they are."""

    def read(value: Any, where: str) -> T:
        if type(value) is not kind:
            raise _unreadable(f"{where} is {otherwise}")
        return value

    return read


_text, _boolean = _of_kind(str, "not a text"), _of_kind(bool, "neither true nor false")
_integer, _list = _of_kind(int, "not an integer"), _of_kind(list, "not a list")


def _natural(value: Any, where: str) -> int:
    """An integer from 0; what the rules demand beyond that they ask themselves."""
    if _integer(value, where) < 0:
        raise _unreadable(f"{where} is negative")
    return int(value)


def _positive(value: Any, where: str) -> int:
    if _integer(value, where) < 1:
        raise _unreadable(f"{where} is not positive")
    return int(value)


def _scalar(value: Any, where: str) -> Fraction:
    """An exact number."""
    try:
        return limits.exact(_text(value, where), where)
    except (ValueError, ZeroDivisionError):
        raise _unreadable(f"{where} is not an exact number") from None


def _shape(value: Any, where: str) -> Shape:
    sizes = tuple(_natural(size, f"a size of {where}") for size in _list(value, f"the shape of {where}"))
    if 0 in sizes:
        raise _unreadable(f"{where} has no entries")
    return sizes


def _pair(value: Any, where: str) -> tuple[int, int]:
    if len(_list(value, where)) != 2:
        raise _unreadable(f"{where} does not give padding before and after each axis")
    return _natural(value[0], where), _natural(value[1], where)


Read = Callable[[Any, str], Any]


def _optional(read: Read) -> Read:
    return lambda value, where: None if value is None else read(value, where)


def _several(read: Read) -> Read:
    return lambda value, where: tuple(read(item, where) for item in _list(value, where))


_KINDS: Sequence[tuple[Any, Read]] = (
    (PerAxis, _several(_positive)),
    (Extra, _several(_natural)),
    (Padding, _several(_pair)),
    (Axis, _natural),
    (Index, _natural),
    (Label, _optional(_integer)),
    (int, _positive),
    (bool, _boolean),
    (Scalar, _scalar),
    (Scalar | None, _optional(_scalar)),
    (tuple[Scalar, ...], _several(_scalar)),
    (tuple[int, ...], _several(_natural)),
    (tuple[bool, ...], _several(_boolean)),
)


# Objects


def _checked(entry: Any, keys: Sequence[str], where: str) -> Json:
    """Return an object that has exactly these keys."""
    if not isinstance(entry, dict):
        raise _unreadable(f"{where} is not an object")
    for key in keys:
        if key not in entry:
            raise _unreadable(f"{where} has no `{key}`")
    for key in entry:
        if key not in keys:
            raise _unreadable(f"{where} has the unknown key `{key}`")
    return entry

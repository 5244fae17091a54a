"""Whether an ONNX file goes with a certificate: its hash or its metadata, and the geometry of its windows.

Reads the wire format of protocol buffers (protobuf.dev/programming-guides/encoding) as far as that takes.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import inf, nan
from typing import Any

from .document import ForeignError, MalformedError, canonical, parse

MOST_FIELDS = 2**20
_NUMBER = re.compile(r"\d{1,400}(/0*[1-9]\d{0,400}|(\.\d{1,400})?(e[+-]?\d{1,3})?)", re.ASCII)
_POOLS = ("max_pool", "l2_pool", "lp_pool", "avg_pool")  # `fix` puts one in the place of another
_KINDS = {
    "Conv": ("conv",),
    "ConvTranspose": ("conv_transpose",),
    **dict.fromkeys(("MaxPool", "AveragePool", "LpPool"), _POOLS),
}
Wire = int | memoryview
Message = dict[int, list[Wire]]


@dataclass(slots=True)
class Node:
    """An operator: what it reads and makes, and its attributes that are whole numbers or text."""

    kind: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, Any]


@dataclass(slots=True)
class Model:
    """The parts of a file that are read; `shapes` are those of its stored tensors."""

    nodes: list[Node] = field(default_factory=list)
    shapes: dict[str, list[int]] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    metadata: dict[str, str] = field(default_factory=dict)


def check(data: bytes, document: Mapping[str, Any]) -> None:
    """Raise ForeignError unless a file goes with a certificate, which is verified already."""
    model, graph = read(data), document["graph"]
    carried = certificate(model)
    if carried is not None and canonical(carried) != canonical(document):
        raise ForeignError("metadata", "the file carries another certificate")
    if carried is None and hashlib.sha256(data).hexdigest() != document["source"]["sha256"]:
        raise ForeignError("file", "its hash is not the certified one, and it carries no certificate")
    _check_metadata(model.metadata, document)
    if carried is None:
        _check_windows(model, graph)
    else:
        _check_wiring(model, graph)


def _check_metadata(metadata: Mapping[str, str], document: Mapping[str, Any]) -> None:
    """Compare what the file declares of its domain, its loss and its Lipschitz constant."""
    wanted = document["graph"]["input"]["norm"], document["graph"]["loss"]["name"], document["totals"]["lipschitz"]
    norm, loss, lipschitz = (metadata.get(f"lipcompile.{name}") for name in ("input_norm", "loss", "lipschitz"))
    agree = [
        None in (norm, wanted[0]) or _number(norm) == Fraction(wanted[0]),
        loss is None or loss.partition(":")[0] == wanted[1],
        lipschitz is None or _number(lipschitz) >= float.fromhex(wanted[2]),
    ]
    if not all(agree):
        raise ForeignError("metadata", f"the file says {norm}, {loss}, {lipschitz}, the certificate {wanted}")


def _number(text: str | None) -> Fraction | float:
    """Return a decimal or a fraction, not a number for anything else."""
    if text == "inf" or not _NUMBER.fullmatch(text or ""):
        return inf if text == "inf" else nan
    return Fraction(text or "")


def certificate(model: Model) -> dict[str, Any] | None:
    """Return the certificate that a file carries, if it does; raises ForeignError."""
    text = model.metadata.get("lipcompile.certificate")
    try:
        return None if text is None else parse(text.encode())
    except MalformedError as error:
        raise ForeignError("metadata", str(error)) from None


# Files that the compiler read: the windows of their operators, as many of each


def _check_windows(model: Model, graph: Mapping[str, Any]) -> None:
    """Find for each window of the file a node of the certificate with the same one, each used once."""
    left = [node for node in graph["nodes"] if any(node["op"] in ops for ops in _KINDS.values())]
    for node in _living(model):
        if node.kind in _KINDS:
            found = next((one for one in left if _alike(model, node, graph, one)), None)
            if found is None:
                raise ForeignError(node.outputs[0], f"the certificate has no {node.kind} with {node.attributes}")
            left.remove(found)


def _alike(model: Model, node: Node, graph: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether a node of the file may be this node of the certificate."""
    wanted, said, rank = other["attributes"], node.attributes, len(other["shape"]) - 1
    if other["op"] not in _KINDS[node.kind]:
        return False
    stored = model.shapes.get(node.inputs[1]) if len(node.inputs) > 1 else None
    weight = graph["parameters"].get(other["parameters"].get("weight"), {"shape": stored})["shape"]
    before, after = ([pair[side] for pair in wanted["padding"]] for side in (0, 1))
    none, one, zero = [0] * 2 * rank, [1] * rank, [0] * rank
    # Where something else than zeros is put around an image, an operator before does so.
    pads = before + after if wanted.get("padding_mode", "zeros") == "zeros" else none
    padded = said.get("pads", none) == pads or str(said.get("auto_pad", "")).startswith("SAME")
    return padded and all(
        (
            said.get("kernel_shape", wanted["kernel"]) == wanted["kernel"],
            said.get("strides", one) == wanted["stride"],
            said.get("dilations", one) == wanted["dilation"],
            said.get("group", 1) == wanted.get("groups", 1),
            said.get("output_padding", zero) == wanted.get("output_padding", zero),
            stored in (None, weight),
        )
    )


def _living(model: Model) -> list[Node]:
    """Return the nodes on a way from an input that is not stored to an output."""
    moving = set(model.inputs) - model.shapes.keys()
    for node in model.nodes:
        if moving & set(node.inputs):
            moving |= set(node.outputs)
    read, kept = set(model.outputs), []
    for node in reversed(model.nodes):
        if read & set(node.outputs) and moving & set(node.inputs):
            read |= set(node.inputs)
            kept.append(node)
    return kept


# Files that the compiler wrote: what makes a node of the certificate is called like it


def _check_wiring(model: Model, graph: Mapping[str, Any]) -> None:
    """Check what each node reads, which parameters it has, and their shapes."""
    source, parameters = graph["input"]["name"], graph["parameters"]
    makers = {output: node for node in model.nodes for output in node.outputs}
    if len(makers) < sum(len(node.outputs) for node in model.nodes) or makers.keys() & {source, *model.shapes}:
        raise ForeignError("file", "two tensors have the same name")
    kernels = defaultdict[str, list[Node]](list)
    for one in model.nodes:
        kernels[one.outputs[0].partition(".")[0]] += [one] if one.kind in _KINDS else []
    known = {source, *(node["name"] for node in graph["nodes"]), *parameters}
    for node in graph["nodes"]:
        wanted = {*node["inputs"], *node["parameters"].values()}
        found = _sources(makers, node["name"], known) & known
        if node["name"] not in makers or found != wanted:
            raise ForeignError(node["name"], f"in the file it reads {sorted(found)}, not {sorted(wanted)}")
        own = kernels[node["name"]]
        if node["op"] in ("conv", "conv_transpose") and [_alike(model, one, graph, node) for one in own] != [True]:
            raise ForeignError(node["name"], f"in the file it is {[one.attributes for one in own]}")
    for name, parameter in parameters.items():
        if model.shapes.get(name) != parameter["shape"]:
            raise ForeignError(name, f"in the file it has the shape {model.shapes.get(name)}")
    ends = [source], [graph["output"] if graph["nodes"] else f"{source}.same"]
    if (model.inputs, model.outputs) != ends:
        raise ForeignError("file", f"it maps {model.inputs} to {model.outputs}")


def _sources(makers: Mapping[str, Node], name: str, known: Collection[str]) -> set[str]:
    """Return the nearest known tensors that a tensor is made of."""
    found, left = set[str](), [*(makers[name].inputs if name in makers else ())]
    while left:
        tensor = left.pop()
        if tensor not in found:
            found.add(tensor)
            left += makers[tensor].inputs if tensor in makers and tensor not in known else ()
    return found


# The wire format. A message becomes its fields by number, each a list of whole numbers or of bytes.


def read(data: bytes) -> Model:
    """Return the part of an ONNX file that is compared; raises ForeignError."""
    try:
        return _model(_Reader(MOST_FIELDS), memoryview(data))
    except (LookupError, TypeError, ValueError) as error:
        raise ForeignError("file", f"this is not an ONNX file: {error}") from None


@dataclass(slots=True)
class _Reader:
    """Reads messages, of so many fields in all."""

    left: int

    def fields(self, data: memoryview) -> Message:
        """Return the fields of a message; raises ValueError or IndexError."""
        found, at = defaultdict[int, list[Wire]](list), 0
        while at < len(data):
            self.left -= 1
            key, at = _varint(data, at)
            if self.left < 0 or key & 7 not in (0, 1, 2, 5):
                raise ValueError("too many fields, or an unknown kind of field")
            value: Wire
            value, at = _varint(data, at) if key & 7 in (0, 2) else ({1: 8, 5: 4}[key & 7], at)
            if key & 7:
                at, value = at + value, data[at : at + value]
            if at > len(data):
                raise ValueError("a field extends past the end of its message")
            found[key >> 3].append(value)
        return found

    def messages(self, parts: Sequence[Wire]) -> Iterator[Message]:
        """Yield messages that stand in one field."""
        return (self.fields(_bytes(part)) for part in parts)


def _model(reader: _Reader, data: memoryview) -> Model:
    top, model = reader.fields(data), Model()
    for entry in reader.messages(top[14]):
        key = _text(entry[1])
        if key in model.metadata:
            raise ValueError(f"the metadata define `{key}` twice")
        model.metadata[key] = _text(entry[2])
    for graph in reader.messages(top[7]):
        model.nodes += [_node(reader, node) for node in reader.messages(graph[1])]
        model.shapes |= {_text(one[8]): _integers(one[1]) for one in reader.messages(graph[5])}
        model.inputs += [_text(one[1]) for one in reader.messages(graph[11])]
        model.outputs += [_text(one[1]) for one in reader.messages(graph[12])]
    return model


def _node(reader: _Reader, node: Message) -> Node:
    attributes: dict[str, Any] = {}
    for one in reader.messages(node[5]):
        name, kind = _text(one[1]), _integers(one[20])[-1:]
        if name in attributes:
            raise ValueError(f"an attribute `{name}` occurs twice in one operator")
        if kind == [7]:
            attributes[name] = _integers(one[8])
        elif kind == [2]:
            attributes[name] = (_integers(one[3]) or [0])[-1]
        elif kind == [3]:
            attributes[name] = _text(one[4])
    operands, made = ([_text([part]) for part in node[number]] for number in (1, 2))
    if not made:
        raise ValueError("an operator has no output")
    return Node(_text(node[4]), operands, made, attributes)


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for place in range(10):
        byte = data[at + place]
        value |= (byte & 127) << 7 * place
        if byte < 128:
            return value, at + place + 1
    raise ValueError("a whole number of more than ten bytes")


def _bytes(part: Wire) -> memoryview:
    if isinstance(part, int):
        raise ValueError("a whole number stands where a message or a text is required")
    return part


def _text(parts: Sequence[Wire]) -> str:
    """Return the last text of a field; the empty one without any."""
    return str(_bytes(parts[-1]), "utf-8") if parts else ""


def _integers(parts: Sequence[Wire]) -> list[int]:
    """Return signed whole numbers, one to a field or many."""
    found: list[int] = []
    for part in parts:
        at, packed = 0, isinstance(part, memoryview)
        while packed and at < len(_bytes(part)):
            value, at = _varint(_bytes(part), at)
            found.append(value)
        found += [] if packed else [int(part)]
    return [value - 2**64 if value >= 2**63 else value for value in found]

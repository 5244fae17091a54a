"""What an importer of one operator sees: its node, its operands, and the graph under construction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from lipcompile.core.graph import GraphBuilder, Value
from lipcompile.core.record import AnyOp, NoAttributes, Shape
from lipcompile.diagnostics import Refusal
from lipcompile.frontends.onnx.file.read import OFFICIAL_DOMAINS
from lipcompile.frontends.onnx.layout import FIRST, MIXES, Layout, Placed, placed, unplaced
from lipcompile.frontends.onnx.node import OnnxNode, module_of
from lipcompile.frontends.onnx.parameters import Parameters
from lipcompile.frontends.onnx.sizes import BATCH, multiple
from lipcompile.frontends.onnx.values import Extreme, Item, Known, OwnPlaces, Strided, Unfinished, accepted
from lipcompile.ops.embedding.rules import Embedding
from lipcompile.ops.shape.rules import Reshape, Slice
from lipcompile.ops.table import OP_BY_NAME

# What hands on all tokens.
_ALL_TOKENS = ("Cast", "CastLike", "Gather", "Identity", "Reshape", "Shape", "Size")
# What tokens pass as they are; to everything else they are numbers.
_READ_TOKENS = (*_ALL_TOKENS, "Slice", "Split", "Squeeze", "Unsqueeze")
# What takes some of them, or puts them beside others.
_PART_TOKENS = (*_READ_TOKENS, "Concat", "Transpose")

# Also for the importers, which name it with what they refuse.
__all__ = ["MIXES", "Blamed", "Context", "Importer", "as_tensor", "shape_of"]


class Blamed(Refusal):
    """Another operator than the one that is visited is the reason to refuse: one that an operand comes from."""

    def __init__(self) -> None:
        super().__init__("LIP100", "an operand has no bound")


@dataclass(slots=True)
class Context:
    """The state of an import.

    items: what each ONNX tensor is. readers: the nodes that read it, once a reading. outputs: of the graph.
    loss: its name, if one is declared.
    batch: the declared size of the batch, if it is fixed. absorbed: tensors that an earlier node has computed.
    parts: which slice of which tensor a value is. views: tensors reshaped for a MaxMin, by tensor and shape.
    layout: where the tensors that the current node reads have their batch. makers: the node that puts out a
    tensor. alone: products of two tensors that have turned out to be part of no spelling. numbered: tokens as
    numbers, once something has computed with them. single: tensors that are one constant in the file.
    inputs: the values that the file's inputs are. truths: those whose tokens are 0 and 1.
    """

    builder: GraphBuilder
    parameters: Parameters
    version: int
    batch: int | None
    readers: Mapping[str, Sequence[OnnxNode]]
    makers: Mapping[str, OnnxNode]
    outputs: frozenset[str]
    loss: str | None = None
    items: dict[str, Item] = field(default_factory=dict)
    absorbed: set[str] = field(default_factory=set)
    parts: dict[str, tuple[Value, Slice]] = field(default_factory=dict)
    views: dict[tuple[str, Shape], Value] = field(default_factory=dict)
    layout: Layout = FIRST
    alone: set[str] = field(default_factory=set)
    numbered: dict[str, Value] = field(default_factory=dict)
    single: set[str] = field(default_factory=set)
    inputs: frozenset[str] = frozenset()
    truths: frozenset[str] = frozenset()

    # Operands

    def item(self, node: OnnxNode, index: int) -> Item | None:
        """Return an operand, None if it is left out; raises Refusal if nothing supported computes it."""
        name = node.proto.input[index] if index < len(node.proto.input) else ""
        if not name:
            return None
        if name not in self.items:
            raise Refusal("LIP110", f"`{name}`, a second output, is not supported", "use the first output only")
        found = self.items[name]
        return own(node, found) if isinstance(found, Known) else found

    def tensor(self, node: OnnxNode, index: int = 0) -> Value:
        """Return an operand that depends on the example; raises Refusal for anything else, or PoisonedError."""
        item = self.item(node, index)
        if isinstance(item, Placed) and item.layout == self.layout:
            return item.value
        if isinstance(item, Value | Placed) and self.layout != FIRST:
            raise Refusal("LIP108", f"{node.op_type} meets tensors whose batch stands at different axes", MIXES)
        value = accepted(as_tensor(item, node.op_type))
        return value if node.op_type in _READ_TOKENS else self.numbers(value)

    def numbers(self, value: Value) -> Value:
        """Return tokens as numbers, by a frozen embedding whose row t is the number t; any other value as it is.

        Tokens without an embedding that says how many there are stay tokens.
        """
        if not self.builder.holds_tokens(value) or value.shape is None:
            return value
        if value.name not in self.numbered and (entries := self._vocabulary(value)) is not None:
            name = "numbers" if self.builder.made(value) is None else f"numbers_{value.name}"
            table = Known(np.arange(entries, dtype=np.float32)[:, None])
            op, attributes = OP_BY_NAME["embedding"], Embedding(entries, 1)
            made = self.parameters.add(op, attributes, value, [("table", table)], name, frozen=True)
            kind, target = (
                (OP_BY_NAME["flatten"], NoAttributes())
                if len(value.shape) == 1
                else (OP_BY_NAME["reshape"], Reshape(value.shape))
            )
            self.numbered[value.name] = accepted(self.builder.add(kind, target, [made], name=f"{name}_row"))
        return self.numbered.get(value.name, value)

    def _vocabulary(self, value: Value) -> int | None:
        """Return how many tokens a value may hold: as many as the smallest table that all of its input select rows
        of has; if there is none, as the largest that a part of them does, and then as the largest of all, or as
        select rows where constants were added to them; or as they are compared with, as F.one_hot does.
        """
        if (source := self._source(value)) in self.truths:
            return 2
        whole, parts, others, moved = list[int](), list[int](), list[int](), list[int]()
        for node in self.makers.values():
            table = self.items.get(node.proto.input[0]) if node.op_type == "Gather" else None
            if isinstance(table, Known) and table.array.ndim == 2:
                name, entries = node.proto.input[1], len(table.array)
                of = self._tokens_of(name, _PART_TOKENS)
                whole += [entries] * (self._tokens_of(name, _ALL_TOKENS) == source)
                parts += [entries] * (of == source)
                others += [entries] * (of is not None)
                moved += [] if (least := self._added(name)) is None else [entries + max(-least, 0)]
        compared = [entries for node in self.makers.values() if (entries := self._compared(node, source))]
        largest = (max(found, default=None) for found in (parts, others, moved, compared))
        return min(whole, default=None) or next(filter(None, largest), None)

    def _compared(self, node: OnnxNode, source: str) -> int:
        """Return n where a node compares these tokens with 0 to n - 1, and 0 for any other node."""
        if node.op_type != "Equal" or all(
            self._tokens_of(one, _PART_TOKENS) != source for one in node.proto.input
        ):
            return 0
        known = [item for one in node.proto.input if isinstance(item := self.items.get(one), Known)]
        arrays = [one.array.reshape(-1) for one in known if one.array.dtype.kind in "iu" and one.array.size > 1]
        return next((array.size for array in arrays if (array == np.arange(array.size)).all()), 0)

    def _added(self, name: str) -> int | None:
        """Return the least whole number that is added to tokens, None if places are no such sum."""
        found = (self._least(self.makers.get(end)) for end in self._ends(name, _PART_TOKENS))
        return min((least for least in found if least is not None), default=None)

    def _least(self, maker: OnnxNode | None) -> int | None:
        """Return the least whole number that a node adds to tokens, None if it does anything else."""
        if maker is None or maker.op_type not in ("Add", "Sub") or len(maker.proto.input) != 2:
            return None
        known = [item for each in maker.proto.input if isinstance(item := self.items.get(each), Known)]
        held = [each for each in maker.proto.input if self._tokens_of(each, _PART_TOKENS) is not None]
        if len(known) != 1 or len(held) != 1 or known[0].array.dtype.kind not in "iu" or not known[0].array.size:
            return None
        array = known[0].array
        return int(array.min()) if maker.op_type == "Add" else -int(array.max())

    def _tokens_of(self, name: str, through: Sequence[str]) -> str | None:
        """Return the input whose tokens a tensor holds, as these operators hand them on; None if it holds none."""
        for end in self._ends(name, through):
            value = unplaced(self.items.get(end))
            if isinstance(value, Value) and self.builder.holds_tokens(value):
                return self._source(value)
        return None

    def _ends(self, name: str, through: Sequence[str]) -> list[str]:
        """Return the tensors that these operators hand on: each its first operand, and Concat all of its own."""
        waiting, seen, found = [name], set[str](), list[str]()
        while waiting:
            one = waiting.pop()
            maker = self.makers.get(one)
            if maker is None or maker.op_type not in through:
                found.append(one)
            elif one not in seen:
                waiting += reversed(maker.proto.input if maker.op_type == "Concat" else maker.proto.input[:1])
            seen.add(one)
        return found

    def _source(self, value: Value) -> str:
        """Return the input that tokens are of, or are some entries of."""
        while value.name not in self.inputs and (made := self.builder.made(value)) is not None:
            value = Value(made.inputs[0], ())
        return value.name

    def shape(self, node: OnnxNode, index: int = 0) -> Shape:
        """Return the shape of such an operand, the batch axis left out."""
        return shape_of(self.tensor(node, index))

    def known(self, node: OnnxNode, index: int, what: str) -> Known | None:
        """Return a constant operand, None if it is left out; raises Refusal if it depends on the example."""
        found = self.item(node, index)
        if found is not None and not isinstance(found, Known):
            raise Refusal("LIP110", f"{what} of {node.op_type} depends on the example", f"{what} must be constant")
        return found

    # Axes

    def axis(self, node: OnnxNode, axis: int, rank: int) -> int:
        """Return the example's axis of an ONNX axis; refuse the batch axis.

        `rank`: of the tensor with an axis for the batch, as if that were an axis of its own.
        """
        rank -= self.layout.outer + self.layout.inner
        if not -rank <= axis < rank:
            raise Refusal("LIP102", f"axis {axis} does not exist among {rank} axes")
        if axis % rank == self.layout.place:
            raise Refusal("LIP108", f"{node.op_type} acts on the batch axis: it mixes examples", MIXES)
        return self.layout.of_example(axis % rank)

    def is_batch(self, size: int) -> bool:
        """Whether a size is that of the batch, unknown or declared."""
        return size == BATCH or (self.batch is not None and size == self.batch)

    def is_single(self, value: Value) -> bool:
        """Whether a tensor is made of such constants alone: its first axis has one entry in the file."""
        waiting, seen = [value], set[str]()
        while waiting:
            one = waiting.pop()
            if one.name in self.single | seen:
                continue
            seen.add(one.name)
            made = self.builder.made(one)
            if made is None:
                return False
            waiting += [Value(name, ()) for name in made.inputs]
        return True

    def of_one_example(self, known: Known, example: Shape) -> Known:
        """Return a constant that meets a tensor, without the axis of the batch; refuse one that varies along it.

        The result has at most the axes of the example; a number has an axis of its own where the example has one.
        """
        array = known.array
        from_end = self.layout.rank(example) - self.layout.place
        of_each = multiple(self.layout.sizes(example)[self.layout.place])
        if known.copies is not None and (known.times != of_each or array.ndim - known.copies != from_end):
            message = f"a constant of shape {list(array.shape)}, copied for each example, meets another axis"
            raise Refusal("LIP108", message, MIXES)
        if array.ndim >= from_end:
            place = array.ndim - from_end
            if array.shape[place] != 1:
                message = f"a constant of shape {list(array.shape)} differs from example to example"
                raise Refusal("LIP108", message, MIXES)
            parts = self.layout.outer + self.layout.inner
            array = array.reshape((*array.shape[:place], *(1,) * parts, *array.shape[place + 1 :]))
        if array.ndim == 0 and example:
            array = array.reshape(1)
        if array.ndim > len(example):
            raise Refusal("LIP102", f"a constant of shape {list(known.array.shape)} does not fit {list(example)}")
        entries = None if known.entries is None else known.entries.reshape(array.shape)
        return replace(known, array=array, copies=None, entries=entries)

    def resized(self, axis: int, by: int) -> None:
        """Note that the result has `by` axes more than the operand, at or behind axis `axis` of the example."""
        if axis < self.layout.axis:
            self.layout = replace(self.layout, axis=self.layout.axis + by)

    # Results

    def add(
        self, node: OnnxNode, op: AnyOp, attributes: Any, operands: Sequence[Value], suffix: str = ""
    ) -> Value:
        """Add a node without parameters; those that it computes with are numbers. Raises PoisonedError."""
        values = operands if op.takes != "reals" else [self.numbers(operand) for operand in operands]
        return accepted(self.builder.add(op, attributes, values, name=node.name + suffix))

    def unary(self, node: OnnxNode, op: str, attributes: Any, suffix: str = "") -> Value:
        """Add the op of this name on the first operand."""
        return self.add(node, OP_BY_NAME[op], attributes, [self.tensor(node)], suffix)

    def follower(self, node: OnnxNode, op_type: str) -> OnnxNode | None:
        """Return the only reader of a node's output, if it is an `op_type` and nothing else sees the output."""
        output = node.outputs[0]
        readers = self.readers.get(output, ())
        if len(readers) != 1 or output in self.outputs or readers[0].proto.domain not in OFFICIAL_DOMAINS:
            return None
        return readers[0] if readers[0].op_type == op_type else None

    def absorb(self, node: OnnxNode, value: Value) -> None:
        """Give the output of a later node, which need not be visited again."""
        self.items[node.outputs[0]] = placed(value, self.layout)
        self.absorbed.add(node.outputs[0])


# What makes a node: an item for each of its outputs, one for the first, or nothing.
Importer = Callable[[Context, OnnxNode], Item | Sequence[Item | None] | None]


def own(node: OnnxNode, known: Known) -> Known:
    """Return a stored tensor as the layer's own, where the file holds it under the name of another layer's.

    Exporters store equal tensors once. Weights that begin as ones or zeros are equal without being tied.
    """
    if not is_merged(node, known):
        return known
    (source,) = known.sources
    return replace(known, sources=frozenset([f"{node.layer}.{source.rpartition('.')[2]}"]), reused=False)


def is_merged(node: OnnxNode, known: Known) -> bool:
    """Whether a constant tensor has the name of another layer than the one that reads it."""
    modules = [module_of(source) for source in known.sources]
    if not node.layer or len(modules) != 1 or modules[0] is None or known.array.size == 0:
        return False
    if f"{modules[0]}.".startswith(f"{node.layer}."):
        return False
    return bool((known.array == known.array.flat[0]).all())


def as_tensor(item: Item | None, op_type: str) -> Value:
    """Return the tensor of an item; raises Refusal if it is none."""
    match item:
        case Value():
            return item
        case Known():
            raise Refusal("LIP110", f"this operand of {op_type} is constant, not yet supported", "fold constants")
        case Extreme():
            raise Refusal(
                "LIP110",
                f"{op_type} of a maximum or minimum: supported only as MaxMin, where both are concatenated",
                "use MaxMin (GroupSort with groups of 2), or relu",
            )
        case Unfinished():
            raise Blamed
        case Placed():
            merged = " among others" if item.layout.outer or item.layout.inner else ""
            message = (
                f"{op_type} needs the batch axis in front; here it stands at axis {item.layout.place}{merged}"
            )
            raise Refusal("LIP108", message, MIXES)
        case OwnPlaces():
            message = f"{op_type} computes with the numbers of the examples: they differ from batch to batch"
            raise Refusal("LIP108", message, MIXES)
        case Strided():
            raise Refusal("LIP110", "slices with steps are not yet supported", "reshape, then slice with step 1")
        case None:
            raise Refusal("LIP102", f"an operand of {op_type} is missing")


def shape_of(value: Value) -> Shape:
    """Return the shape of a value that is not poisoned: importers see no others."""
    assert value.shape is not None
    return value.shape

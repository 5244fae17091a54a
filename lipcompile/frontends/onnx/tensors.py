"""Parameters that a model computes with become tensors, one for each example.

A function of a parameter is folded, and its value is trained in its place. Where a model uses two functions of one
parameter, or a parameter where no op has one, that would train another model. There the parameter becomes zeros of
each example plus a bias: a tensor like any other. Its functions are ops, its gradient is the sum over all uses.
A constant of a file has no axis for the batch. The file is rewritten so that it has one, the first, from the
parameter to where a tensor of the example is met.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from string import ascii_letters
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from lipcompile.core.graph import Value
from lipcompile.core.record import Shape
from lipcompile.diagnostics import Refusal
from lipcompile.frontends.onnx.constants import broadcast
from lipcompile.frontends.onnx.layout import IN_FIRST, Layout, Placed, unplaced
from lipcompile.frontends.onnx.shape_after_refusal import outputs as shapes
from lipcompile.frontends.onnx.values import Item, Known, Unfinished

Array = NDArray[Any]
# Entries of a parameter of which each example may have a copy: 4 MB.
MOST_ENTRIES = 2**20

_OF_ENTRIES = frozenset(
    (
        *("Abs", "Add", "And", "Cast", "Ceil", "Clip", "Cos", "Cosh", "Div", "Elu", "Equal", "Erf"),
        *("Exp", "Floor", "Greater", "GreaterOrEqual", "Identity", "LeakyRelu", "Less", "LessOrEqual", "Log"),
        *("Max", "Mean", "Min", "Mul", "Neg", "Not", "Or", "Pow", "Reciprocal", "Relu", "Round", "Sigmoid"),
        *("Sign", "Sin", "Sinh", "Softplus", "Sqrt", "Sub", "Sum", "Tan", "Tanh", "Where", "Xor"),
    )
)
# The operator set from which on a reduction reads its axes as an operand.
_OTHERS = ("ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSumSquare")
_REDUCTIONS = {"ReduceSum": 13, **dict.fromkeys(_OTHERS, 18)}


class _NoFormError(Exception):
    """A node has no form for tensors that were constants."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A model whose initializers `tensors` are read as if they had one more axis, the first, for the batch.

    sizes: the names of the initializers that were added.
    """

    model: ModelProto
    tensors: frozenset[str]
    sizes: frozenset[str]


def rewritten(
    model: ModelProto, wanted: Collection[str], items: Mapping[str, Item], version: int
) -> Rewritten | None:
    """Return a model in which as many of the wanted initializers as can be are tensors; None if none can.

    items: what the tensors of the model are. version: of its operator set.
    """
    sizes = {tensor.name: prod(tensor.dims) for tensor in model.graph.initializer}
    known = {name for name in wanted if isinstance(items.get(name), Known)}
    left = frozenset(name for name in known if 1 <= sizes.get(name, 0) <= MOST_ENTRIES)
    while left:
        rewriting = _Rewriting(dict(items), version)
        failed = rewriting.run(model, left)
        if not failed:
            made = type(model)()
            made.CopyFrom(model)
            del made.graph.node[:]
            made.graph.node.extend(rewriting.nodes)
            made.graph.initializer.extend(rewriting.sizes)
            return Rewritten(made, left, frozenset(tensor.name for tensor in rewriting.sizes))
        left -= failed
    return None


@dataclass(frozen=True, slots=True)
class _Lifted:
    """A constant that is a tensor [B, *shape] now, made of some parameters. A single number has the shape [1]."""

    shape: Shape
    sources: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Batch:
    """Where tensors have their batch: the number of their axes in the file, and which one is the batch.

    rows: how many of each example stand one behind another along that axis, the first if they are more than 1.
    """

    rank: int
    place: int
    rows: int = 1


@dataclass(slots=True)
class _Rewriting:
    """The nodes of a model, as they are written again; `items` gets what intermediate results are, too."""

    items: dict[str, Item]
    version: int
    lifted: dict[str, _Lifted] = field(default_factory=dict)
    nodes: list[NodeProto] = field(default_factory=list)
    sizes: list[TensorProto] = field(default_factory=list)

    def run(self, model: ModelProto, wanted: frozenset[str]) -> frozenset[str]:
        """Rewrite the nodes of a model; return those of the wanted initializers that cannot be tensors."""
        self.lifted = {name: _Lifted(self._shape(name) or (1,), frozenset([name])) for name in wanted}
        for node in model.graph.node:
            try:
                self._rewrite(node)
            except _NoFormError:
                return self._sources(node.input)
            self._guess(node)
        return self._sources(value.name for value in model.graph.output)

    def _rewrite(self, node: NodeProto) -> None:
        read = [name for name in node.input if name]
        sources = self._sources(read)
        if not sources:
            self.nodes.append(node)
            return
        copied = self._batch(node.output[0]) if node.op_type == "Expand" else None
        met = {batch for name in read if name not in self.lifted and (batch := self._batch(name)) is not None}
        if copied is not None:
            self._spread(node, copied)
        elif node.op_type in ("Shape", "Size"):
            self._measure(node)
        elif met:
            self._meet(node, met)
        else:
            self._compute(node, sources)

    # What is known

    def _guess(self, node: NodeProto) -> None:
        """Note the shapes of what the import left open: parts of spellings, and what follows a refused node."""
        found = [self.items.get(name) for name in node.output]
        if any(isinstance(item, Unfinished) or (isinstance(item, Value) and item.shape is None) for item in found):
            made = self._broadcast(node) if node.op_type in _OF_ENTRIES else shapes(node, self.items, self.version)
            self.items |= {name: Value(name, shape) for name, shape in made.items()}

    def _broadcast(self, node: NodeProto) -> dict[str, Shape]:
        """Return the shape of an example of a function of entries; none where an operand is no ordinary tensor."""
        try:
            (_, *example) = broadcast([self._shape(name) for name in node.input if name])
        except (_NoFormError, Refusal, ValueError):
            return {}
        return {node.output[0]: tuple(example)}

    def _sources(self, names: Iterable[str]) -> frozenset[str]:
        return frozenset[str]().union(*(self.lifted[name].sources for name in names if name in self.lifted))

    def _shape(self, name: str) -> Shape:
        """Return the shape in the file of a constant, or of what became a tensor for another reason."""
        if name in self.lifted:
            return self.lifted[name].shape
        match self.items.get(name):
            case Known(copies=None, array=array):
                return tuple(map(int, array.shape))
            case Value(shape=tuple(shape)):
                return (1, *shape)
        raise _NoFormError

    def _array(self, node: NodeProto, index: int) -> Array | None:
        """Return a constant operand, None if it is left out."""
        name = node.input[index] if index < len(node.input) else ""
        item = self.items.get(name)
        if name and (not isinstance(item, Known) or item.copies is not None or name in self.lifted):
            raise _NoFormError
        return item.array if isinstance(item, Known) else None

    def _batch(self, name: str) -> _Batch | None:
        """Return where a tensor has its batch in the file; None for a constant."""
        match self.items.get(name):
            case Known(copies=None):
                return None
            case Known(copies=int(place), array=array, times=1):
                return _Batch(array.ndim, place)
            case Value(shape=tuple(shape)):
                return _Batch(len(shape) + 1, 0)
            case Placed(value=Value(shape=tuple(shape)), layout=Layout(outer=False, inner=False, axis=place)):
                return _Batch(len(shape) + 1, place)
            case Placed(value=Value(shape=tuple(shape)), layout=layout) if layout == IN_FIRST:
                return _Batch(len(shape), 0, shape[0])
        raise _NoFormError

    def _example(self, name: str) -> Shape:
        """Return the shape of one example of a tensor whose batch is in front."""
        item = self.items.get(name)
        if not isinstance(item, Value) or item.shape is None:
            raise _NoFormError
        return item.shape

    # What is written

    def _node(self, like: NodeProto, op_type: str, inputs: Sequence[str], output: str, **given: Any) -> NodeProto:
        """Return a node that stands where `like` does."""

        made = helper.make_node(op_type, inputs, [output], name=like.name, **given)
        made.metadata_props.extend(like.metadata_props)
        return made

    def _fresh(self, name: str) -> str:
        """Return a name like this one that no tensor of the model has."""
        return self._fresh(f"{name}/") if name in self.items else name

    def _write(self, like: NodeProto, op_type: str, inputs: Sequence[str], output: str = "", **given: Any) -> str:
        """Add a node, and return its output."""
        output = output or self._fresh(f"{like.output[0]}/{len(self.nodes)}")
        self.nodes.append(self._node(like, op_type, inputs, output, **given))
        return output

    def _again(self, node: NodeProto, inputs: Sequence[str], output: str = "", **given: Any) -> str:
        """Add a node once more, with other operands and some other attributes."""
        kept = _attributes(node) | given
        return self._write(node, node.op_type, inputs, output or node.output[0], **kept)

    def _size(self, numbers: Iterable[int]) -> str:
        """Add whole numbers as a constant, and return its name."""

        return self._constant(np.array([*numbers], dtype=np.int64))

    def _constant(self, array: Array) -> str:
        name = self._fresh(f"sizes/{len(self.sizes)}")
        self.sizes.append(numpy_helper.from_array(array, name))
        return name

    def _shaped(self, like: NodeProto, name: str, shape: Sequence[int], output: str = "") -> str:
        """Reshape a tensor with the batch in front to [B, *shape]."""
        if 0 in shape:
            raise _NoFormError
        if not output and name in self.lifted and self.lifted[name].shape == tuple(shape):
            return name
        return self._write(like, "Reshape", [name, self._size((-1, *shape))], output)

    def _padded(self, like: NodeProto, name: str, rank: int) -> str:
        """Give a lifted operand axes of size 1 in front, up to a rank; return any other as it is."""
        if name not in self.lifted:
            return name
        shape = self.lifted[name].shape
        return self._shaped(like, name, (1,) * (rank - len(shape)) + shape)

    def _aligned(self, like: NodeProto, name: str, batch: _Batch) -> str:
        """Bring a lifted operand to where other tensors have their batch; return any other as it is."""
        if name not in self.lifted:
            return name
        shape, rank, place = self.lifted[name].shape, batch.rank, batch.place
        full = (1,) * (rank - len(shape)) + shape
        if len(full) != rank or full[place] != 1:
            raise _NoFormError
        if batch.rows > 1:
            column = self._shaped(like, name, full)
            copies = self._write(like, "Expand", [column, self._size((1, batch.rows, *full[1:]))])
            return self._shaped(like, copies, full[1:])
        made = self._shaped(like, name, (*full[:place], *full[place + 1 :]))
        perm = [*range(1, place + 1), 0, *range(place + 1, rank)]
        return self._write(like, "Transpose", [made], perm=perm) if place else made

    def _in_front(self, like: NodeProto, name: str) -> str:
        """Give a constant operand an axis of size 1 for the batch; return a lifted one as it is."""
        if name in self.lifted:
            return name
        return self._write(like, "Reshape", [name, self._size((1, *self._shape(name)))])

    def _copied(self, like: NodeProto, name: str, lifted: str) -> str:
        """Copy a constant operand for each example, of which a lifted operand has as many."""
        sizes = self._write(like, "Shape", [lifted])
        batch = self._write(like, "Slice", [sizes, self._size([0]), self._size([1])])
        wanted = self._write(like, "Concat", [batch, self._size(self._shape(name))], axis=0)
        return self._write(like, "Expand", [self._in_front(like, name), wanted])

    def _measure(self, node: NodeProto) -> None:
        """A size of a constant, which stays what it was."""
        item = self.items.get(node.output[0])
        if not isinstance(item, Known):
            raise _NoFormError
        self.sizes.append(numpy_helper.from_array(item.array, node.output[0]))

    # Where an example is met

    def _meet(self, node: NodeProto, met: set[_Batch]) -> None:
        """A node that reads tensors of the example as well."""
        batch, *others = met
        place, is_apart = batch.place, batch.rows == 1
        if node.op_type == "Gemm":
            self._affine(node)
        elif node.op_type == "Einsum":
            self._einsum(node)
        elif node.op_type in ("LayerNormalization", "RMSNormalization") and not others and place == 0 and is_apart:
            self._normalised(node, batch)
        elif node.op_type == "Gather" and not others:
            self._rows(node, batch)
        elif node.op_type == "MatMul" and not others:
            self._multiply_examples(node, batch)
        elif node.op_type == "PRelu" and not others and node.input[0] not in self.lifted:
            self._slope(node, self._aligned(node, node.input[1], batch))
        elif node.op_type in _OF_ENTRIES and not others:
            self._again(node, [self._aligned(node, name, batch) for name in node.input])
        else:
            raise _NoFormError

    def _spread(self, node: NodeProto, batch: _Batch) -> None:
        """Copies for each example, which the tensor consists of already, and along other axes."""
        item = self.items[node.output[0]]
        if not isinstance(item, Known):
            raise _NoFormError
        made = self._aligned(node, node.input[0], batch)
        self._write(node, "Expand", [made, self._size(item.array.shape)], node.output[0])

    def _multiply_examples(self, node: NodeProto, batch: _Batch) -> None:
        """Matrices of an example by matrices of it. A vector is a matrix of one row, or of one column."""
        (left, right), rank, place = node.input, batch.rank, batch.place
        shape = self.lifted[right].shape if right in self.lifted else ()
        if batch.rows > 1:
            self._multiply_rows(node, batch, shape)
            return
        is_vector = len(shape) == 1
        if place or rank < 2 or (left in self.lifted and (rank == 2 or len(self.lifted[left].shape) == 1)):
            raise _NoFormError
        if rank > 2 and not is_vector:
            self._again(node, [self._aligned(node, name, batch) for name in node.input])
            return
        *before, _ = self._example(left)
        rows = left if before else self._shaped(node, left, (1, shape[0]))
        columns = self._shaped(node, right, (1,) * (max(rank, 3) - 3) + ((*shape, 1) if is_vector else shape))
        made = self._write(node, "MatMul", [rows, columns])
        self._shaped(node, made, (*before, *shape[1:]), node.output[0])

    def _multiply_rows(self, node: NodeProto, batch: _Batch, shape: Shape) -> None:
        """Rows of all examples by a matrix of each."""
        if batch.rank != 2 or len(shape) != 2:
            raise _NoFormError
        rows = self._shaped(node, node.input[0], (batch.rows, shape[0]))
        self._shaped(node, self._write(node, "MatMul", [rows, node.input[1]]), (shape[1],), node.output[0])

    def _einsum(self, node: NodeProto) -> None:
        """Sums of products: what became a tensor has the letter of the batch in front."""
        equation = _attributes(node)["equation"].decode().replace(" ", "")
        left, arrow, right = equation.partition("->")
        terms = [*zip(node.input, left.split(","), strict=True)]
        places = [(term, self._batch(name)) for name, term in terms if name not in self.lifted]
        if any(found is not None and found.rows > 1 for _, found in places):
            raise _NoFormError
        batches = {term[found.place] for term, found in places if found is not None}
        free = next((letter for letter in ascii_letters if letter not in equation), "")
        letter = batches.pop() if batches else free
        if not arrow or "." in equation or not letter:
            raise _NoFormError
        kept = ",".join(letter * (name in self.lifted) + term for name, term in terms)
        result = letter * (node.output[0] in self.lifted) + right
        self._again(node, node.input, equation=f"{kept}->{result}")

    def _normalised(self, node: NodeProto, batch: _Batch) -> None:
        """A norm, and its factors and its shift as nodes of their own."""
        operand, scale, *shift = node.input
        if operand in self.lifted:
            raise _NoFormError
        ones, output = np.ones(self._shape(scale), np.float32), node.output[0]
        made = self._again(node, [operand, self._constant(ones)], self._fresh(f"{output}/norm"))
        if shift:
            made = self._write(node, "Mul", [made, self._aligned(node, scale, batch)])
            self._write(node, "Add", [made, self._aligned(node, shift[0], batch)], output)
        else:
            self._write(node, "Mul", [made, self._aligned(node, scale, batch)], output)

    def _rows(self, node: NodeProto, batch: _Batch) -> None:
        """Rows of a table at places that are copied for each example, or that it computes."""
        places, table = self.items[node.input[1]], self.lifted.get(node.input[0])
        if table is None or _attributes(node).get("axis", 0) % len(table.shape):
            raise _NoFormError
        if not isinstance(places, Known) and len(table.shape) == 2:
            self._rows_at(node, batch, table.shape)
            return
        if not isinstance(places, Known) or batch.place:
            raise _NoFormError
        chosen = self._size(places.array.reshape(-1).tolist())
        made = self._write(node, "Gather", [node.input[0], chosen], axis=-len(table.shape))
        self._shaped(node, made, (*places.array.shape[1:], *table.shape[1:]), node.output[0])

    def _rows_at(self, node: NodeProto, batch: _Batch, table: Shape) -> None:
        """Places, one hot, times the table. Negative places, which no tokens have, take none."""
        rank, place = batch.rank, batch.place
        value, output = unplaced(self.items[node.input[1]]), node.output[0]
        if not isinstance(value, Value) or value.shape is None:
            raise _NoFormError
        example, others = value.shape, [*range(place), *range(place + 1, rank)]
        front = self._write(node, "Transpose", [node.input[1]], perm=[place, *others]) if place else node.input[1]
        column = self._write(node, "Reshape", [front, self._size((-1, prod(example), 1))])
        hot = self._write(node, "Equal", [column, self._constant(np.arange(table[0]).reshape(1, 1, -1))])
        shares = self._write(node, "Cast", [hot], to=TensorProto.FLOAT)
        made = self._write(node, "MatMul", [shares, node.input[0]])
        apart = example[1:] if batch.rows > 1 else example
        rows = self._shaped(node, made, (*apart, table[1]), "" if place else output)
        if place:
            perm = [*range(1, place + 1), 0, *range(place + 1, rank + 1)]
            self._write(node, "Transpose", [rows], output, perm=perm)

    def _slope(self, node: NodeProto, slope: str) -> None:
        """relu(x) - slope·relu(-x)."""
        above = self._write(node, "Relu", [node.input[0]])
        below = self._write(node, "Relu", [self._write(node, "Neg", [node.input[0]])])
        self._write(node, "Sub", [above, self._write(node, "Mul", [below, slope])], node.output[0])

    def _affine(self, node: NodeProto) -> None:
        """A·B + C as nodes of their own."""
        given, (left, right, *added) = _attributes(node), node.input
        output, product = node.output[0], self._fresh(f"{node.output[0]}/product")
        if given.get("transA", 0) or given.get("alpha", 1) != 1 or given.get("beta", 1) != 1:
            raise _NoFormError
        if given.get("transB", 0):
            turned = self._fresh(f"{output}/turned")
            self.items[turned] = Known(self._array_of(right).T)
            self._rewrite(self._node(node, "Transpose", [right], turned, perm=[1, 0]))
            right = turned
        self.items[product] = self.items[output]
        self._rewrite(self._node(node, "MatMul", [left, right], product if added else output))
        for name in added:
            self._rewrite(self._node(node, "Add", [product, name], output))

    def _array_of(self, name: str) -> Array:
        item = self.items.get(name)
        if not isinstance(item, Known) or item.copies is not None:
            raise _NoFormError
        return item.array

    # Where there are only constants

    def _compute(self, node: NodeProto, sources: frozenset[str]) -> None:
        """A node that reads constants, of which some are tensors now."""
        if node.op_type == "Gemm":
            self._affine(node)
            return
        write = _FORMS.get(node.op_type, _Rewriting._of_entries if node.op_type in _OF_ENTRIES else None)
        if write is None:
            raise _NoFormError
        for output in filter(None, node.output):
            self.lifted[output] = _Lifted(self._shape(output) or (1,), sources)
        write(self, node)

    def _of_entries(self, node: NodeProto) -> None:
        rank = len(self.lifted[node.output[0]].shape)
        self._again(node, [self._padded(node, name, rank) for name in node.input])

    def _reshaped(self, node: NodeProto) -> None:
        self._shaped(node, node.input[0], self.lifted[node.output[0]].shape, node.output[0])

    def _transposed(self, node: NodeProto) -> None:
        rank = len(self.lifted[node.input[0]].shape)
        perm = _attributes(node).get("perm", range(rank)[::-1])
        self._again(node, node.input, perm=[0, *(axis + 1 for axis in perm)])

    def _along(self, node: NodeProto) -> None:
        """Along an axis, which is counted from the end now: Concat has one, a softmax the last."""
        rank = len(self.lifted[node.output[0]].shape)
        axis = _attributes(node).get("axis", -1)
        first = next(name for name in node.input if name in self.lifted)
        parts = [name if name in self.lifted else self._copied(node, name, first) for name in node.input]
        self._again(node, parts, axis=axis if axis < 0 else axis - rank)

    def _gathered(self, node: NodeProto) -> None:
        """Entries of an axis, one after another, and then in the shape that they have."""
        chosen = self._array(node, 1)
        rank, axis = len(self.lifted[node.input[0]].shape), _attributes(node).get("axis", 0)
        if chosen is None:
            raise _NoFormError
        places = self._size(chosen.reshape(-1).tolist())
        made = self._write(node, "Gather", [node.input[0], places], axis=axis if axis < 0 else axis - rank)
        self._shaped(node, made, self.lifted[node.output[0]].shape, node.output[0])

    def _entries(self, node: NodeProto) -> None:
        """Places among the first axes, which become one."""
        places, shape = self._array(node, 1), self.lifted[node.input[0]].shape
        if places is None or places.ndim == 0 or _attributes(node).get("batch_dims", 0):
            raise _NoFormError
        first, rest = shape[: places.shape[-1]], shape[places.shape[-1] :]
        wrapped = np.moveaxis(places % np.array(first), -1, 0).reshape(len(first), -1)
        merged = self._shaped(node, node.input[0], (prod(first), *rest))
        chosen = self._size(np.ravel_multi_index(tuple(wrapped), first).tolist())
        made = self._write(node, "Gather", [merged, chosen], axis=1)
        self._shaped(node, made, self.lifted[node.output[0]].shape, node.output[0])

    def _sliced(self, node: NodeProto) -> None:
        starts, axes = self._array(node, 1), self._array(node, 3)
        if starts is None:  # an attribute, in old operator sets
            raise _NoFormError
        rank = len(self.lifted[node.input[0]].shape)
        along = range(starts.size) if axes is None else axes.reshape(-1).tolist()
        counted = self._size(axis if axis < 0 else axis - rank for axis in along)
        self._again(node, [*node.input[:3], counted, *node.input[4:]])

    def _split(self, node: NodeProto) -> None:
        rank, axis = len(self.lifted[node.input[0]].shape), _attributes(node).get("axis", 0)
        start, along = 0, self._size([axis if axis < 0 else axis - rank])
        for output in node.output:
            stop = start + self._shape(output)[axis]
            self._write(node, "Slice", [node.input[0], self._size([start]), self._size([stop]), along], output)
            start = stop

    def _framed(self, node: NodeProto) -> None:
        """Padding: numbers before and behind each axis, or each of some axes."""
        sides, axes = self._array(node, 1), self._array(node, 3)
        if sides is None or node.input[0] not in self.lifted:
            raise _NoFormError
        rank, filling = len(self.lifted[node.input[0]].shape), [*node.input[2:3], ""][0]
        if axes is None:
            low, high = np.split(sides.reshape(-1), 2)
            self._again(node, [node.input[0], self._size((0, *low.tolist(), 0, *high.tolist())), filling])
            return
        counted = self._size(axis if axis < 0 else axis - rank for axis in axes.reshape(-1).tolist())
        self._again(node, [*node.input[:2], filling, counted])

    def _expanded(self, node: NodeProto) -> None:
        shape = self.lifted[node.output[0]].shape
        made = self._padded(node, node.input[0], len(shape))
        self._write(node, "Expand", [made, self._size((1, *shape))], node.output[0])

    def _tiled(self, node: NodeProto) -> None:
        repeats = self._array(node, 1)
        if repeats is None:
            raise _NoFormError
        self._again(node, [node.input[0], self._size((1, *repeats.reshape(-1).tolist()))])

    def _reduced(self, node: NodeProto) -> None:
        given, rank = _attributes(node), len(self.lifted[node.input[0]].shape)
        operand, found = self._array(node, 1), given.get("axes")
        axes = operand.reshape(-1).tolist() if operand is not None else found
        if axes is None and given.get("noop_with_empty_axes"):
            raise _NoFormError
        counted = [axis if axis < 0 else axis - rank for axis in (range(rank) if axes is None else axes)]
        as_operand = self.version >= _REDUCTIONS[node.op_type]
        inputs = [node.input[0], *([self._size(counted)] if as_operand else [])]
        kept: dict[str, Any] = {} if as_operand else {"axes": counted}
        made = self._write(node, node.op_type, inputs, keepdims=1, **kept)
        self._shaped(node, made, self.lifted[node.output[0]].shape, node.output[0])

    def _multiplied(self, node: NodeProto) -> None:
        """Matrices by matrices; a vector is a row from the left, and a column from the right."""
        left, right = (self._shape(name) for name in node.input)
        if min(len(left), len(right)) > 1:
            self._again(node, [self._padded(node, name, max(len(left), len(right))) for name in node.input])
            return
        shapes = (1, *left) if len(left) == 1 else left, (*right, 1) if len(right) == 1 else right
        rank, output = max(map(len, shapes)), node.output[0]
        parts = [
            self._shaped(node, self._in_front(node, name), (1,) * (rank - len(shape)) + shape)
            for name, shape in zip(node.input, shapes, strict=True)
        ]
        self._shaped(node, self._write(node, "MatMul", parts), self.lifted[output].shape, output)


def _attributes(node: NodeProto) -> dict[str, Any]:
    return {one.name: helper.get_attribute_value(one) for one in node.attribute}


_FORMS: Mapping[str, Callable[[_Rewriting, NodeProto], None]] = {
    **dict.fromkeys(("Flatten", "Reshape", "Squeeze", "Unsqueeze"), _Rewriting._reshaped),
    **dict.fromkeys(("Concat", "LogSoftmax", "Softmax"), _Rewriting._along),
    **dict.fromkeys(_REDUCTIONS, _Rewriting._reduced),
    "Einsum": _Rewriting._einsum,
    "Expand": _Rewriting._expanded,
    "Gather": _Rewriting._gathered,
    "GatherND": _Rewriting._entries,
    "MatMul": _Rewriting._multiplied,
    "Pad": _Rewriting._framed,
    "Slice": _Rewriting._sliced,
    "Split": _Rewriting._split,
    "Tile": _Rewriting._tiled,
    "Transpose": _Rewriting._transposed,
}

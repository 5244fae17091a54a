"""The inputs of a file: real numbers or tokens, one or several, with sizes that are declared, open or given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from onnx import GraphProto, TensorProto, ValueInfoProto

from lipcompile.core.graph import GraphBuilder, Value
from lipcompile.core.record import NoAttributes, Shape
from lipcompile.diagnostics import Location, Refusal
from lipcompile.frontends.onnx.layout import Layout, Placed, placed
from lipcompile.numbers import Scalar
from lipcompile.ops.shape.rules import Reshape, Slice
from lipcompile.ops.table import OP_BY_NAME

# What exporters and people call the axis of the batch.
_BATCH_NAMES = ("batch", "batch_size", "bs", "b", "n")


@dataclass(frozen=True, slots=True)
class Source:
    """One input: the shape of an example, where its batch stands, its size if it is fixed.

    truths: its tokens are 0 and 1.
    """

    name: str
    shape: Shape
    layout: Layout
    batch: int | None
    tokens: bool
    truths: bool = False


def sources(graph: GraphProto, given: Mapping[str, Shape]) -> list[Source]:
    """Return the inputs that are no weights; `given` are shapes of examples, by name. Raises Refusal."""
    weights = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in weights]
    if not inputs:
        raise Refusal("LIP105", "the model has no input: nothing depends on an example", "export it with an input")
    shapes = _named(inputs, given)
    found = [_source(value, shapes.get(value.name), len(inputs)) for value in inputs]
    if len({source.batch for source in found}) > 1:
        raise Refusal("LIP105", "the inputs have batches of different sizes", "export them with one batch size")
    if len({source.tokens for source in found}) > 1:
        whole, reals = ([source.name for source in found if source.tokens == kind] for kind in (True, False))
        shown = [", ".join(f"`{name}`" for name in names) for names in (whole, reals)]
        message = f"whole numbers, {shown[0]}, beside inputs of real numbers, {shown[1]}, are not yet supported"
        help_line = "a torch module may have both under bounds by clip, without an input norm"
        raise Refusal("LIP105", message, help_line)
    return found


def _named(inputs: Sequence[ValueInfoProto], given: Mapping[str, Shape]) -> Mapping[str, Shape]:
    """Give the shape without a name to the only input; raises Refusal where names do not fit."""
    names = [value.name for value in inputs]
    unknown = [name for name in given if name and name not in names]
    if unknown or (len(names) > 1 and "" in given):
        wrong = f"there is no input `{unknown[0]}`" if unknown else "the model has several inputs"
        raise Refusal("LIP106", f"--input-shape: {wrong}", f"name one of {', '.join(names)}: NAME=3,32,32")
    return {name or names[0]: shape for name, shape in given.items()}


def _source(value: ValueInfoProto, given: Shape | None, inputs: int) -> Source:
    """Read the declaration of one input."""
    if not value.type.HasField("tensor_type"):
        message = f"the input `{value.name}` is no tensor, but a {value.type.WhichOneof('value') or 'mystery'}"
        raise Refusal("LIP105", message.removesuffix("_type"), "give the model one tensor")
    dims = list(value.type.tensor_type.shape.dim)
    if not dims and given is None:
        message = f"the input `{value.name}` has no batch axis: its shape is not declared, or it is one number"
        raise Refusal("LIP106", message, "export it with the shape [batch, …], or give --input-shape")
    place = _batch_axis([str(dim.dim_param) for dim in dims], [int(dim.dim_value) for dim in dims])
    declared = [int(dim.dim_value) for axis, dim in enumerate(dims) if axis != place]
    shape = tuple(declared) if given is None else given
    if dims and (
        len(shape) != len(declared) or any(d > 0 and d != s for d, s in zip(declared, shape, strict=True))
    ):
        message = f"--input-shape {list(shape)} does not fit the input `{value.name}` {_shown(value)}"
        raise Refusal("LIP106", message, "give the shape of one example, without the batch axis")
    if any(size < 1 for size in shape):
        message = (
            f"the input `{value.name}` {_shown(value)} leaves the size of axis {_open_axis(dims, place)} open"
        )
        raise Refusal("LIP106", message, f"give the shape of one example: --input-shape {_example(declared)}")
    batch = int(dims[place].dim_value) if dims else 0
    truths = inputs > 1 and _kind(value) == "BOOL"
    return Source(value.name, shape, Layout(place), batch or None, truths or _holds_tokens(value), truths)


def _batch_axis(names: Sequence[str], sizes: Sequence[int]) -> int:
    """The first axis, unless one other axis is called a batch, by its full name or where the first is fixed."""
    called = [axis for axis, name in enumerate(names) if name.lower() in _BATCH_NAMES]
    if len(called) != 1:
        return 0
    plainly = names[called[0]].lower() in ("batch", "batch_size") and "batch" not in names[0].lower()
    return called[0] if sizes[0] > 0 or plainly else 0


def _open_axis(dims: Sequence[object], place: int) -> int:
    return next(
        (axis for axis, dim in enumerate(dims) if axis != place and getattr(dim, "dim_value", 0) < 1), place
    )


def _example(declared: Sequence[int]) -> str:
    """Return sizes to suggest: those declared, 224 or so for the open ones."""
    return ",".join(str(size) if size > 0 else "32" for size in declared)


def _shown(value: ValueInfoProto) -> str:
    dims = value.type.tensor_type.shape.dim
    return f"[{', '.join(str(dim.dim_value or dim.dim_param or '?') for dim in dims)}]"


def _kind(value: ValueInfoProto) -> str:
    kind = value.type.tensor_type.elem_type
    return TensorProto.DataType.Name(kind) if kind in TensorProto.DataType.values() else str(kind)


def _holds_tokens(value: ValueInfoProto) -> bool:
    """Whether an input holds whole numbers, which select rows of an embedding; raises Refusal for other kinds."""
    kind = _kind(value)
    if kind in ("INT64", "INT32"):
        return True
    if kind in ("FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16"):
        return False
    message = f"the input `{value.name}` holds {kind}, not real numbers: it has no norm to bound"
    raise Refusal("LIP105", message, "begin the model behind the cast")


def declare(
    builder: GraphBuilder, found: Sequence[Source], norm: Scalar | None, at: Location | None
) -> dict[str, Value | Placed]:
    """Declare the input of the graph, and return what each input of the file is.

    Several inputs are consecutive parts of one: the norm bounds them together.
    """
    tokens = found[0].tokens
    if tokens and norm is not None:
        refusal = Refusal("LIP204", "tokens have no norm", "leave --input-norm out: the table bounds its rows")
        builder.refuse(refusal, name=found[0].name, op="input", location=at)
    if len(found) == 1:
        (only,) = found
        value = builder.input(only.name, only.shape, norm, False, at, tokens=tokens)
        return {only.name: placed(value, only.layout)}
    total = sum(prod(source.shape) for source in found)
    parts = tuple((source.name, source.shape) for source in found)
    joined = builder.input("inputs", (total,), norm, False, at, tokens=tokens, parts=parts)
    values: dict[str, Value | Placed] = {}
    start = 0
    for source in found:
        stop = start + prod(source.shape)
        values[source.name] = placed(_part(builder, joined, source, Slice(0, start, stop)), source.layout)
        start = stop
    return values


def _part(builder: GraphBuilder, joined: Value, source: Source, part: Slice) -> Value:
    value = builder.add(OP_BY_NAME["slice"], part, [joined], name=source.name)
    if value.shape in (None, source.shape):
        return value
    if not source.shape:
        return builder.add(OP_BY_NAME["reshape"], Reshape(()), [value], name=f"{source.name}_shaped")
    kind = OP_BY_NAME["flatten"] if len(source.shape) == 1 else OP_BY_NAME["reshape"]
    attributes = NoAttributes() if len(source.shape) == 1 else Reshape(source.shape)
    return builder.add(kind, attributes, [value], name=f"{source.name}_shaped")

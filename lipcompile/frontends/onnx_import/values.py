"""What the tensors of an ONNX file are to the importer: constants, tensors of one example, half a MaxMin.

Shape arithmetic is folded. The batch size is unknown: it stands in a shape as the marker `BATCH`, which operators
that only move entries may carry along, and with which nothing may compute.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import TYPE_CHECKING, Any

from lipcompile.diagnostics import Refusal
from lipcompile.graph import Value

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from onnx import NodeProto

    Array = NDArray[Any]

# No size, index or weight of a real model; `checked` refuses a file that holds it.
BATCH = -(2**62)
MOVES = frozenset(
    ("Identity", "Cast", "Unsqueeze", "Squeeze", "Concat", "Gather", "Slice", "Reshape", "Transpose", "Flatten")
)
ARITHMETIC = frozenset(
    (
        *("Add", "Sub", "Mul", "Div", "Neg", "Abs", "Sqrt", "Reciprocal", "Pow", "Floor", "Ceil", "Min", "Max"),
        *("ReduceProd", "ReduceSum", "ReduceMean", "ReduceL2", "Constant", "ConstantOfShape", "Shape", "Equal"),
        *("Where", "Split", "MatMul"),
    )
)
_LARGEST_CONSTANT = 2**27


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """A constant. Two constants of equal `sources` and `moves` are the same tensor.

    sources: the stored tensors it was computed from. moves: how. reused: whether any of it is used elsewhere too.
    """

    array: Array
    sources: frozenset[str] = frozenset()
    moves: tuple[Hashable, ...] = ()
    reused: bool = False


@dataclass(frozen=True, slots=True)
class Strided:
    """Every other entry of an axis: a quarter of a MaxMin, which nothing else can use."""

    source: Value
    axis: int
    offset: int


@dataclass(frozen=True, slots=True)
class Extreme:
    """The maximum or minimum over `axis`, of size 2, of `base`: half of a MaxMin, which its other half completes.

    `made` is an axis of size 1 that the result has in its place, if it has one.
    """

    largest: bool
    base: Value
    axis: int
    made: int | None = None


Item = Known | Value | Strided | Extreme


def checked(array: Array) -> Array:
    """Return the array if it does not hold the marker of the batch size."""
    if array.dtype.kind in "iu" and has_batch(array):
        raise Refusal("LIP102", f"a constant holds {BATCH}, which is no size")
    return array


def has_batch(array: Array) -> bool:
    """Whether an entry is the unknown batch size."""
    return array.dtype.kind == "i" and bool((array == BATCH).any())


def integers(known: Known, what: str) -> tuple[int, ...]:
    """Return the entries of an integer constant, in which `BATCH` may occur."""
    if known.array.dtype.kind not in "iu":
        raise Refusal("LIP102", f"{what} must hold integers, not {known.array.dtype}")
    return tuple(int(entry) for entry in known.array.reshape(-1))


def scalar(known: Known) -> Fraction:
    """Return the exact value of a constant of one entry; raises Refusal."""
    import math

    if known.array.size != 1:
        raise Refusal("LIP102", f"expected one number, not an array of shape {list(known.array.shape)}")
    value = float(known.array.reshape(-1)[0])
    if not math.isfinite(value):
        raise Refusal("LIP304", "a constant is NaN or infinite", "export the model again before training diverged")
    return Fraction(value)


def floats(array: Array, what: str) -> Array:
    """Return a stored tensor in float32 or float64, exactly; raises Refusal for other kinds of numbers."""
    import numpy as np

    if array.dtype in (np.dtype(np.float32), np.dtype(np.float64)):
        return array
    if array.dtype == np.dtype(np.float16) or array.dtype.name == "bfloat16":
        return array.astype(np.float32)
    raise Refusal(
        "LIP110", f"{what} holds numbers of type {array.dtype}, not yet supported", "export it in float32"
    )


def fold(proto: NodeProto, operands: Sequence[Known | None], version: int) -> list[Known]:
    """Evaluate a node whose operands are constants; raises Refusal where that is not possible."""
    given = [operand for operand in operands if operand is not None]
    op_type = proto.op_type
    if op_type not in MOVES | ARITHMETIC:
        raise Refusal(
            "LIP100", f"unsupported op {op_type} on constants", "simplify the file: fold constants while exporting"
        )
    moved = [has_batch(operand.array) for operand in given]
    if op_type == "Cast" and any(moved):
        return given
    if any(moved) and (op_type not in MOVES or (op_type != "Concat" and any(moved[1:]))):
        raise Refusal("LIP108", f"{op_type} computes with the batch size", "keep the batch axis as it is: use -1")
    arrays = _evaluate(proto, operands, version)
    if op_type not in MOVES:
        arrays = [checked(array) for array in arrays]
    sources = frozenset[str]().union(*(operand.sources for operand in given))
    reused = any(operand.reused for operand in given if operand.sources)
    moves = _moves(proto, given)
    return [Known(array, sources, (*moves, *_which(index, arrays)), reused) for index, array in enumerate(arrays)]


def _which(index: int, arrays: Sequence[Array]) -> tuple[Hashable, ...]:
    return (("output", index),) if len(arrays) > 1 else ()


def _moves(proto: NodeProto, operands: Sequence[Known]) -> tuple[Hashable, ...]:
    """How the result comes from its sources; a transposition undoes itself."""
    moves = operands[0].moves if operands else ()
    weights = [operand for operand in operands if operand.sources]
    if proto.op_type in ("Identity", "Cast"):
        return moves
    if proto.op_type == "Transpose" and weights and weights[0].array.ndim == 2 and _swaps(proto):
        return toggled(weights[0])
    return (*moves, tuple(proto.output))


def _swaps(proto: NodeProto) -> bool:
    """Whether a transposition of a matrix swaps its axes."""
    return all(list(attribute.ints) == [1, 0] for attribute in proto.attribute if attribute.name == "perm")


def toggled(known: Known) -> tuple[Hashable, ...]:
    """Return the moves of the transposed matrix."""
    return known.moves[:-1] if known.moves[-1:] == ("transposed",) else (*known.moves, "transposed")


def _evaluate(proto: NodeProto, operands: Sequence[Known | None], version: int) -> list[Array]:
    """Run the reference implementation of one operator."""
    import numpy as np
    from onnx import helper
    from onnx.reference import ReferenceEvaluator

    feeds = _feeds(proto, operands)
    _check_size(proto, feeds)
    inputs = [helper.make_empty_tensor_value_info(name) for name in feeds]
    outputs = [helper.make_empty_tensor_value_info(name) for name in proto.output if name]
    graph = helper.make_graph([proto], "constant", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)])
    try:
        with np.errstate(all="ignore"):
            found: Any = ReferenceEvaluator(model).run(None, feeds)
    except Exception as error:
        text = (str(error).splitlines() or [type(error).__name__])[0][:120]
        raise Refusal("LIP102", f"{proto.op_type} of constants cannot be evaluated: {text}") from None
    return [np.asarray(array) for array in found]


def _feeds(proto: NodeProto, operands: Sequence[Known | None]) -> dict[str, Array]:
    return {
        name: operand.array
        for name, operand in zip(proto.input, operands, strict=True)
        if name and operand is not None
    }


def _check_size(proto: NodeProto, feeds: Mapping[str, Array]) -> None:
    if (
        proto.op_type == "ConstantOfShape"
        and prod(map(int, next(iter(feeds.values())).reshape(-1))) > _LARGEST_CONSTANT
    ):
        raise Refusal("LIP102", "a constant of this model is too large to be built")

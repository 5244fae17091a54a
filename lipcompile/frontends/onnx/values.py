"""What the tensors of an ONNX file are to the importer: constants, tensors of one example, half a MaxMin.

Shape arithmetic is folded. The batch size is unknown: it stands in a shape as a formal number (`sizes`).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper

from lipcompile.core.graph import Value
from lipcompile.diagnostics import Refusal
from lipcompile.frontends.onnx import copies, sizes
from lipcompile.frontends.onnx.copies import KEEP
from lipcompile.frontends.onnx.file import memory
from lipcompile.frontends.onnx.layout import Placed
from lipcompile.frontends.onnx.node import OnnxNode
from lipcompile.frontends.onnx.refused import DRAWS, refusal_of, seeded
from lipcompile.frontends.onnx.sizes import BATCH, OF_OWN, OWN, checked, has_batch, multiple, of_own
from lipcompile.ops.activation.write import WRITTEN

Array = NDArray[Any]
MOVES = frozenset(
    ("Identity", "Cast", "Unsqueeze", "Squeeze", "Concat", "Gather", "Slice", "Reshape", "Transpose", "Flatten")
)
# Their results consist of entries of their operands, or of these negated.
OF_ENTRIES = MOVES | {"CastLike", "Expand", "GatherElements", "GatherND", "Neg", "Split", "Tile"}
# They leave the numbers of the examples what they are.
_KEEPS_STEP = ("Identity", "Squeeze", "Transpose", "Unsqueeze")
# Deterministic, and no larger than `memory.expect` says, as activations are: everything else is refused on
# constants as well.
_ARITHMETIC = """
    Acos Acosh Add And Asin Atanh BatchNormalization BitwiseAnd BitwiseNot BitwiseOr BitwiseXor CastLike
    Ceil Clip Constant ConstantOfShape Cosh CumSum DequantizeLinear Div Einsum Equal Exp Expand EyeLike
    Floor GatherElements GatherND Gelu Gemm Greater GreaterOrEqual IsInf IsNaN Less LessOrEqual Log
    LogSoftmax MatMul Max Mean Min Mod Mul Neg NonZero Not Or PRelu Pad Pow Range Reciprocal ReduceL1
    ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum
    ReduceSumSquare Resize Round ScatterElements ScatterND Shape Sinh Size Softmax Split Sqrt Sub Sum Tan
    Tile Trilu Where Xor
"""
ARITHMETIC = frozenset(_ARITHMETIC.split()) | {one.operator for one in WRITTEN.values() if one.operator}
# What stands for the infinite numbers of masks: behind a softmax it is as good as they are.
LARGEST = 2.0**127
DIFFERS = "a number is computed from the batch size: it differs from batch to batch"
OF_BATCH = "write a number of your own in its place: training divides by the expected size of a batch"


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """A constant. Two constants of equal `sources` and `moves` are the same tensor.

    sources: the stored tensors it was computed from. moves: how. reused: whether any of it is used elsewhere too.
    copies: the axis of size 1 that stands for the batch, along which it was copied; None for no copies.
    times: how many copies there are for each example; of several, nothing is known but that they are equal.
    step: by what the numbers of the examples are multiplied that it consists of; 0 for anything else.
    entries: which entries of its sources it consists of, see `entries`; None for each of them once, in some order.
    computed: sources whose entries it does not consist of, each with the operator that computed others from them.
    """

    array: Array
    sources: frozenset[str] = frozenset()
    moves: tuple[Hashable, ...] = ()
    reused: bool = False
    copies: int | None = None
    entries: Array | None = None
    computed: Mapping[str, str] = field(default_factory=dict)
    times: int = 1
    step: int = 0


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


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A tensor that no rule bounds: a part of a spelling of something that has one, or else the reason to refuse.

    node, operands: of the operator that is to blame.
    """

    node: OnnxNode
    refusal: Refusal
    operands: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class OwnPlaces:
    """Places among the axes of a batch [B, …]: the number of each example, and whole numbers that it computes.

    places: these, a tensor [..., depth]. size: 0; or how many rows of each example stand one behind another in a
    tensor [B·size, …], of which the number of the example times the size, plus the places, is one.
    """

    places: Value | Placed
    size: int = 0


Item = Known | Value | Placed | Strided | Extreme | OwnPlaces | Unfinished


class PoisonedError(Exception):
    """A node was refused, and is reported: of what follows from it nothing is known."""


def accepted(value: Value) -> Value:
    """Return what a node puts out; raises PoisonedError if the node was refused."""
    if value.shape is None:
        raise PoisonedError
    return value


def integers(known: Known, what: str) -> tuple[int, ...]:
    """Return the entries of an integer constant, in which `BATCH` may occur."""
    if known.array.dtype.kind not in "iu":
        raise Refusal("LIP102", f"{what} must hold integers, not {known.array.dtype}")
    if known.copies is not None:
        raise Refusal("LIP108", f"{what} are copies for each example", KEEP)
    return tuple(int(entry) for entry in known.array.reshape(-1))


def scalar(known: Known) -> Fraction:
    """Return the exact value of a constant of one entry; raises Refusal."""
    if known.array.size != 1:
        raise Refusal("LIP102", f"expected one number, not an array of shape {list(known.array.shape)}")
    if has_batch(known.array):
        raise Refusal("LIP108", DIFFERS, OF_BATCH)
    value = float(known.array.reshape(-1)[0])
    if not math.isfinite(value):
        raise Refusal("LIP304", "a constant is NaN or infinite", "export the model again before training diverged")
    return Fraction(value)


def is_floating(array: Array) -> bool:
    """Whether an array holds real numbers."""
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


def floats(array: Array, what: str) -> Array:
    """Return a stored tensor in float32 or float64, exactly; raises Refusal for other kinds of numbers."""
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
    if op_type in (*DRAWS, "Dropout") and any(attribute.name == "seed" for attribute in proto.attribute):
        raise seeded(op_type)
    if op_type in DRAWS:
        raise refusal_of(op_type, [], standard=True)
    if op_type not in MOVES | ARITHMETIC:
        raise Refusal(
            "LIP100", f"unsupported op {op_type} on constants", "simplify the file: fold constants while exporting"
        )
    if op_type in ("Softmax", "LogSoftmax") and version < 13:
        message = f"{op_type} on constants, as before operator set 13, is not yet supported"
        raise Refusal("LIP110", message, "fold constants while exporting")
    if any(operand.copies is not None for operand in given):
        return _fold_copies(proto, operands, version)
    if any(has_batch(operand.array) for operand in given):
        return _fold_formal(proto, operands, version)
    return _results(proto, given, [checked(array) for array in evaluate(proto, operands, version)])


def _fold_copies(proto: NodeProto, operands: Sequence[Known | None], version: int) -> list[Known]:
    """Evaluate a node of which an operand was copied for each example; raises Refusal where copies would meet."""
    given = [operand for operand in operands if operand is not None]
    first, axes, times = given[0], [one.copies for one in given], max(one.times for one in given)
    alike = {one.times for one in given if one.copies is not None} == {times}
    if times > 1 and not (alike and proto.op_type in copies.ENTRYWISE | {"CastLike", "Slice"}):
        raise Refusal("LIP108", f"{proto.op_type} computes with several copies for each example", KEEP)
    if proto.op_type == "Shape" and first.copies is not None:
        return [_shape_of_copies(proto, first.array, first.copies)]
    if proto.op_type in ("Reshape", "Expand") and first.copies is not None and axes[1:] == [None]:
        return _resized_copies(proto, first, given[1])
    if (step := _step(proto, given)) > 1:
        (known,) = (one for one in given if one.copies is not None)
        return [replace(known, array=np.full_like(known.array, OF_OWN), step=step)]
    place = copies.copies_of(proto, [one.array for one in given], axes)
    if times > 1 and place is None:
        raise Refusal("LIP108", f"{proto.op_type} takes some of the copies for each example", KEEP)
    arrays = evaluate(proto, operands, version)
    if any(of_own(one.array).any() for one in given):
        arrays = copies.results_of_own(proto, arrays, place)
    else:
        arrays = [checked(array) for array in arrays]
    step = first.step if proto.op_type in _KEEPS_STEP else 0
    return [replace(one, copies=place, times=times, step=step) for one in _results(proto, given, arrays)]


def _step(proto: NodeProto, given: Sequence[Known]) -> int:
    """Return by what a node multiplies the numbers of the examples, 0 if it does anything else."""
    own = [one for one in given if one.copies is not None and not one.step and bool((one.array == OWN).all())]
    others = [one.array for one in given if one.copies is None]
    if proto.op_type != "Mul" or len(own) != 1 or len(others) != 1:
        return 0
    (factor,) = others
    is_whole = factor.size == 1 and factor.dtype.kind == "i" and factor.ndim <= own[0].array.ndim
    return int(factor.reshape(-1)[0]) if is_whole and not has_batch(factor) else 0


def _shape_of_copies(proto: NodeProto, array: Array, axis: int) -> Known:
    limits = {attribute.name: attribute.i for attribute in proto.attribute}
    sizes_in_file = copies.sizes_of(array, axis)
    return Known(np.array(sizes_in_file[slice(limits.get("start", 0), limits.get("end"))], dtype=np.int64))


def _resized_copies(proto: NodeProto, known: Known, target: Known) -> list[Known]:
    assert known.copies is not None
    shape, axis = copies.resized(proto, known.array, known.copies, integers(target, "the shape"))
    memory.expect_array(shape)
    made = known.array.reshape(shape) if proto.op_type == "Reshape" else np.broadcast_to(known.array, shape)
    return [replace(one, copies=axis, step=known.step) for one in _results(proto, [known, target], [made])]


def _fold_formal(proto: NodeProto, operands: Sequence[Known | None], version: int) -> list[Known]:
    """Evaluate a node of which an operand contains the batch size; raises Refusal where that is not exact."""
    given = [operand for operand in operands if operand is not None]
    op_type, arrays = proto.op_type, [operand.array for operand in given]
    if op_type == "Cast" and not _to_truth(proto):
        return given
    if op_type in ("Expand", "ConstantOfShape", "Tile"):
        return _copies(proto, given, version)
    if op_type == "Range" and [array.reshape(-1).tolist() for array in arrays] == [[0], [BATCH], [1]]:
        return [Known(np.array([OWN]), copies=0)]
    sizes_move = op_type == "Concat" or not any(has_batch(array) for array in arrays[1:])
    moves = op_type in MOVES - {"Cast"} and sizes_move
    if not moves and not sizes.allowed(op_type, arrays):
        raise Refusal("LIP108", f"{op_type} computes with the batch size", KEEP)
    return _results(proto, given, [sizes.check(array) for array in evaluate(proto, operands, version)])


def _to_truth(proto: NodeProto) -> bool:
    """Whether a Cast asks which numbers are 0, as a number computed from the batch size may be or not be."""
    return any(attribute.name == "to" and attribute.i == TensorProto.BOOL for attribute in proto.attribute)


def _copies(proto: NodeProto, given: Sequence[Known], version: int) -> list[Known]:
    """Evaluate a node that copies a constant for each example: one copy stands for all of them."""
    target = given[-1].array
    own = [multiple(size) > 0 for size in target.reshape(-1).tolist()]
    if sum(own) != 1 or has_batch(np.where(own, 1, target)) or any(has_batch(known.array) for known in given[:-1]):
        raise Refusal("LIP108", f"{proto.op_type} computes with the batch size", KEEP)
    single = replace(given[-1], array=np.where(own, 1, target))
    (array,) = evaluate(proto, [*given[:-1], single], version)
    if array.ndim != target.size or array.shape[own.index(True)] != 1:
        raise Refusal("LIP108", f"{proto.op_type} makes examples that differ", KEEP)
    place = own.index(True)
    times = multiple(int(target.reshape(-1)[place]))
    return [replace(known, copies=place, times=times) for known in _results(proto, given, [checked(array)])]


def _results(proto: NodeProto, given: Sequence[Known], arrays: Sequence[Array]) -> list[Known]:
    given = given[:1] if proto.op_type == "CastLike" else given  # of the second, the kind of numbers counts
    weights = [operand for operand in given if operand.array.dtype.kind not in "iub"] or given  # no axes, no sizes
    found = _sources(proto, frozenset[str]().union(*(operand.sources for operand in weights)))
    reused = any(operand.reused for operand in weights if operand.sources)
    moves, by = _moves(proto, given), dict[str, str]()
    for known in weights:
        by |= {source: op for source, op in known.computed.items() if source in found and source not in by}
    if proto.op_type not in OF_ENTRIES and not _is_neutral(proto, given, arrays):
        by |= dict.fromkeys(sorted(found - by.keys()), proto.op_type)
    return [
        Known(array, found, (*moves, *_which(index, arrays)), reused, computed=by)
        for index, array in enumerate(arrays)
    ]


def _is_neutral(proto: NodeProto, given: Sequence[Known], arrays: Sequence[Array]) -> bool:
    """Whether a node multiplies or divides a weight by ones, or adds zeros, of which none is a weight."""
    neutral = {"Mul": 1, "Div": 1, "Add": 0, "Sub": 0}.get(proto.op_type)
    weights = [known for known in given if known.sources]
    others = [known for known in given if not known.sources]
    return (
        neutral is not None
        and len(weights) == len(others) == 1
        and (weights[0] is given[0] or proto.op_type in ("Mul", "Add"))
        and bool((others[0].array == neutral).all())
        and arrays[0].shape == weights[0].array.shape
    )


def _sources(proto: NodeProto, found: frozenset[str]) -> frozenset[str]:
    """Return what a result is made of: no weight of its shape; two fillings of one shape are two weights."""
    if proto.op_type in ("Shape", "Size"):
        return frozenset()
    return frozenset(proto.output) if proto.op_type == "ConstantOfShape" and found else found


def _which(index: int, arrays: Sequence[Array]) -> tuple[Hashable, ...]:
    return (("output", index),) if len(arrays) > 1 else ()


def _moves(proto: NodeProto, operands: Sequence[Known]) -> tuple[Hashable, ...]:
    """How the result comes from its sources; a transposition undoes itself.

    Nodes that compute the same of the same come to the same, as where a module is called twice.
    """
    moves = operands[0].moves if operands else ()
    weights = [operand for operand in operands if operand.sources]
    if proto.op_type in ("Identity", "Cast"):
        return moves
    if proto.op_type == "Transpose" and weights and weights[0].array.ndim == 2 and _swaps(proto):
        return toggled(weights[0])
    made = sha256(repr([bool(name) for name in proto.input]).encode())
    for attribute in sorted(one.SerializeToString(deterministic=True) for one in proto.attribute):
        made.update(b"attribute" + attribute)
    for operand in operands:
        made.update(repr(_identity(operand)).encode())
    return (*moves, (proto.op_type, made.hexdigest()))


def _identity(known: Known) -> tuple[Any, ...]:
    """Return what two constants have in common that are the same: how they are made, or their numbers."""
    if known.sources:
        return sorted(known.sources), known.moves, known.copies
    return known.array.dtype.str, known.array.shape, sha256(known.array.tobytes()).digest(), known.copies


def _swaps(proto: NodeProto) -> bool:
    """Whether a transposition of a matrix swaps its axes."""
    return all(list(attribute.ints) == [1, 0] for attribute in proto.attribute if attribute.name == "perm")


def toggled(known: Known) -> tuple[Hashable, ...]:
    """Return the moves of the transposed matrix."""
    return known.moves[:-1] if known.moves[-1:] == ("transposed",) else (*known.moves, "transposed")


# Operators that the reference has from these sets on. Earlier versions mean the same, of fewer kinds of numbers.
_FIRST = {"DequantizeLinear": 19}


def evaluate(proto: NodeProto, operands: Sequence[Known | None], version: int) -> list[Array]:
    """Run the reference implementation of one operator."""
    from onnx.reference import ReferenceEvaluator

    feeds = _feeds(proto, operands)
    memory.expect(proto, list(feeds.values()))
    if proto.op_type == "GatherElements":
        return [_gathered(proto, *feeds.values())]
    inputs = [helper.make_empty_tensor_value_info(name) for name in feeds]
    outputs = [helper.make_empty_tensor_value_info(name) for name in proto.output if name]
    graph = helper.make_graph([proto], "constant", inputs, outputs)
    known = max(version, _FIRST.get(proto.op_type, version))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", known)])
    try:
        with np.errstate(all="ignore"):
            found: Any = ReferenceEvaluator(model).run(None, feeds)
    except Exception as error:
        text = (str(error).splitlines() or [type(error).__name__])[0][:120]
        raise Refusal("LIP102", f"{proto.op_type} of constants cannot be evaluated: {text}") from None
    results = [np.asarray(array) for array in found]
    memory.count(results, feeds)
    return results


def _gathered(proto: NodeProto, array: Array, places: Array) -> Array:
    """Return entries of an array at places along an axis; the reference fails where other sizes differ."""
    axis = memory.axis_of(proto)
    try:
        cut = tuple(slice(None if i == axis % array.ndim else size) for i, size in enumerate(places.shape))
        made: Array = np.take_along_axis(array[cut], places, axis)
    except (IndexError, ValueError, ZeroDivisionError) as error:
        raise Refusal("LIP102", f"GatherElements of constants cannot be evaluated: {error}") from None
    return made


def _feeds(proto: NodeProto, operands: Sequence[Known | None]) -> dict[str, Array]:
    return {
        name: operand.array
        for name, operand in zip(proto.input, operands, strict=True)
        if name and operand is not None
    }

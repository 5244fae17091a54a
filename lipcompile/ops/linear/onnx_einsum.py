"""The importer of Einsum: sums and permutations of one tensor, and its products with one constant.

The letters of an equation are the axes; the batch is one letter of the tensor's term and of the result, and
occurs nowhere else. Letters that the tensor shares with the constant and that the result lacks are
contracted: that is a dense layer. Letters that all three share are factors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from string import ascii_letters

from lipcompile.core.graph import Value
from lipcompile.core.record import NoAttributes, Shape
from lipcompile.diagnostics import Refusal
from lipcompile.frontends.onnx.context import MIXES, Context, as_tensor, shape_of
from lipcompile.frontends.onnx.layout import Layout, Placed
from lipcompile.frontends.onnx.node import OnnxNode
from lipcompile.frontends.onnx.values import Known, accepted, toggled
from lipcompile.ops.linear.onnx_read import Affine, by_heads, parametric, then
from lipcompile.ops.linear.rules import DENSE, Dense
from lipcompile.ops.merge.rules import MATMUL
from lipcompile.ops.normalisation.onnx_read import factored
from lipcompile.ops.reduce.rules import Reduce
from lipcompile.ops.shape.onnx_read import permute, reshape_to
from lipcompile.ops.table import OP_BY_NAME


@dataclass(frozen=True, slots=True)
class Axes:
    """A tensor of one example and the letters of its axes."""

    value: Value
    letters: str

    def sizes(self) -> dict[str, int]:
        """Return the size of each letter."""
        return dict(zip(self.letters, shape_of(self.value), strict=True))


def einsum(context: Context, node: OnnxNode) -> Value:
    """Sum products over the letters that the result does not have."""
    items = [context.item(node, index) for index in range(len(node.proto.input))]
    if len(items) > 2:
        raise Refusal("LIP110", "Einsum of three operands is not yet supported")
    ranks = [
        item.array.ndim if isinstance(item, Known) else _rank(*_placed(context, node, index))
        for index, item in enumerate(items)
    ]
    tensors, constants, terms, result, layout = _operands(context, node, _terms(node, ranks))
    wanted = [set(result + "".join(terms[:index] + terms[index + 1 :])) for index in range(len(terms))]
    kept = [_summed(context, node, one, wanted[index], f"_{index}") for index, one in tensors.items()]
    made = kept[0] if len(kept) == 1 else _product(context, node, kept[0], kept[1], result)
    for index, known in constants.items():
        made = _multiplied(context, node, made, known, terms[index], result)
    context.layout = layout
    return permute(context, node, made.value, [made.letters.index(letter) for letter in result], "_ordered")


def _placed(context: Context, node: OnnxNode, index: int) -> tuple[Value, Layout]:
    """Return an operand that depends on the example, and where its batch stands; raises Refusal."""
    item = context.item(node, index)
    if isinstance(item, Placed):
        return item.value, item.layout
    return accepted(as_tensor(item, node.op_type)), Layout()


def _rank(value: Value, layout: Layout) -> int:
    return layout.rank(shape_of(value))


def _operands(
    context: Context, node: OnnxNode, spelled: Sequence[str]
) -> tuple[dict[int, Axes], dict[int, Known], list[str], str, Layout]:
    """Return the tensors and the constants by their places, the letters of each operand and of the result for one
    example, and where the result has the batch; raises Refusal.

    The letter of the batch goes; the axes that are one with it get letters of their own, the same for all.
    """
    *terms, result = spelled
    tensors, constants, batch, beside = dict[int, Axes](), dict[int, Known](), set[str](), set[tuple[int, int]]()
    before, behind = [letter for letter in ascii_letters if letter not in "".join(spelled)][:2]
    for index, term in enumerate(terms):
        item = context.item(node, index)
        if isinstance(item, Known):
            constants[index] = item
            continue
        value, layout = _placed(context, node, index)
        batch.add(term[layout.place])
        beside.add(_beside(layout, shape_of(value)))
        parts = before * layout.outer + behind * layout.inner
        terms[index] = term[: layout.place] + parts + term[layout.place + 1 :]
        tensors[index] = Axes(context.numbers(value), terms[index])
    if len(batch) != 1 or batch & set("".join(terms)) or not batch <= set(result) or len(beside) != 1:
        raise Refusal("LIP108", "Einsum acts on the batch axis: it mixes examples", MIXES)
    if any(known.copies is not None for known in constants.values()):
        raise Refusal("LIP108", "Einsum multiplies by a constant with a batch axis", MIXES)
    place = result.index(batch.pop())
    result = result[:place] + parts + result[place + 1 :]
    return tensors, constants, terms, result, Layout(place + layout.outer, layout.outer, layout.inner)


def _beside(layout: Layout, example: Shape) -> tuple[int, int]:
    """Return how many entries of an example stand before and behind the batch in its axis: these must agree."""
    outer = example[layout.axis - 1] if layout.outer else 1
    return outer, example[layout.axis] if layout.inner else 1


def _terms(node: OnnxNode, ranks: Sequence[int]) -> list[str]:
    """Return the letters of each operand and of the result, those of an ellipsis written out; raises Refusal."""
    equation = node.text("equation", "").replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    free = [letter for letter in ascii_letters if letter not in equation]
    if len(terms) != len(ranks):
        raise Refusal("LIP102", f"the equation `{equation}` does not fit {len(ranks)} operands")
    hidden = [rank - len(term.replace("...", "")) for term, rank in zip(terms, ranks, strict=True)]
    most = max((count for term, count in zip(terms, hidden, strict=True) if "..." in term), default=0)
    if not arrow:
        letters = left.replace(",", "").replace(".", "")
        right = ("..." if most else "") + "".join(sorted({c for c in letters if letters.count(c) == 1}))
    spelled = [
        term.replace("...", "".join(free[most - count : most])) for term, count in zip(terms, hidden, strict=True)
    ]
    made = [*spelled, right.replace("...", "".join(free[:most]))]
    _refuse_odd(equation, made, ranks)
    return made


def _refuse_odd(equation: str, terms: Sequence[str], ranks: Sequence[int]) -> None:
    """Refuse terms that do not fit their operands, and letters that occur twice in one; raises Refusal."""
    *operands, result = terms
    fits = all(len(term) == rank for term, rank in zip(operands, ranks, strict=True))
    if not fits or not set(result) <= set("".join(operands)) or not all(map(str.isalpha, operands)):
        raise Refusal("LIP102", f"the equation `{equation}` does not fit operands of {list(ranks)} axes")
    if any(len(set(term)) != len(term) for term in terms):
        raise Refusal("LIP110", f"diagonals, as in `{equation}`, are not yet supported", "name each axis once")


def _summed(context: Context, node: OnnxNode, tensor: Axes, wanted: set[str], suffix: str) -> Axes:
    """Sum over the letters that nothing else has."""
    gone = tuple(axis for axis, letter in enumerate(tensor.letters) if letter not in wanted)
    if not gone:
        return tensor
    value = context.add(
        node, OP_BY_NAME["reduce_sum"], Reduce(gone, keep=False), [tensor.value], f"{suffix}_summed"
    )
    return Axes(value, "".join(letter for letter in tensor.letters if letter in wanted))


def _by_shared(context: Context, node: OnnxNode, tensor: Axes, known: Known, letters: str, result: str) -> Axes:
    """Multiply by a constant matrix of its own for each entry of the letters that both and the result have."""
    sizes = {**tensor.sizes(), **dict(zip(letters, known.array.shape, strict=True))}
    shared = [letter for letter in letters if letter in result and letter in tensor.letters]
    inner = [letter for letter in letters if letter not in result]
    new = [letter for letter in letters if letter not in tensor.letters]
    rest = [letter for letter in tensor.letters if letter not in (*shared, *inner)]
    left = _grouped(context, node, tensor, (shared, rest, inner), "_left")
    order = tuple(letters.index(letter) for letter in (*shared, *inner, *new))
    shape = (*shape_of(left)[:-2], shape_of(left)[-1], prod(sizes[letter] for letter in new))
    array, moves = known.array.transpose(order).reshape(shape), then(known, "einsum", order, shape)
    made = by_heads(context, node, left, replace(known, array=array, moves=moves))
    kept = "".join((*shared, *rest, *new))
    return Axes(reshape_to(context, node, made, tuple(sizes[letter] for letter in kept), "_whole"), kept)


def _product(context: Context, node: OnnxNode, left: Axes, right: Axes, result: str) -> Axes:
    """Multiply two tensors: matrices for each entry of the letters that both and the result have."""
    sizes = {**left.sizes(), **right.sizes()}
    if any(sizes[letter] != size for letter, size in left.sizes().items()):
        raise Refusal("LIP102", "the operands of Einsum give one letter different sizes")
    heads = [letter for letter in left.letters if letter in right.letters and letter in result]
    inner = [letter for letter in left.letters if letter in right.letters and letter not in result]
    rows = [letter for letter in left.letters if letter not in right.letters]
    columns = [letter for letter in right.letters if letter not in left.letters]
    a = _grouped(context, node, left, (heads, rows, inner), "_left")
    b = _grouped(context, node, right, (heads, inner, columns), "_right")
    made = context.add(node, MATMUL, NoAttributes(), [a, b])
    letters = "".join((*heads, *rows, *columns))
    apart = tuple(sizes[letter] for letter in letters)
    return Axes(reshape_to(context, node, made, apart, "_apart"), letters)


def _grouped(
    context: Context, node: OnnxNode, tensor: Axes, groups: Sequence[Sequence[str]], suffix: str
) -> Value:
    """Return a tensor with an axis for each letter of the first group, and one for all letters of each other."""
    heads, *others = groups
    order = [tensor.letters.index(letter) for group in groups for letter in group]
    moved = permute(context, node, tensor.value, order, f"{suffix}_moved")
    sizes = tensor.sizes()
    shape = (*(sizes[letter] for letter in heads), *(prod(sizes[letter] for letter in group) for group in others))
    return reshape_to(context, node, moved, shape, f"{suffix}_flat")


def _multiplied(context: Context, node: OnnxNode, tensor: Axes, known: Known, letters: str, result: str) -> Axes:
    """Multiply by a constant: a dense layer from the contracted letters to the new ones, or factors."""
    known, letters = _constant_sum(known, letters, set(tensor.letters + result))
    sizes = {**tensor.sizes(), **dict(zip(letters, known.array.shape, strict=True))}
    if any(
        tensor.sizes().get(letter, size) != size for letter, size in zip(letters, known.array.shape, strict=True)
    ):
        raise Refusal("LIP102", "the operands of Einsum give one letter different sizes")
    contracted = [letter for letter in letters if letter not in result]
    shared = [letter for letter in letters if letter in result and letter in tensor.letters]
    new = [letter for letter in letters if letter not in tensor.letters]
    if not contracted and not new:
        return replace(tensor, value=_factors(context, node, tensor, known, letters))
    if shared:
        return _by_shared(context, node, tensor, known, letters, result)
    rest = [letter for letter in tensor.letters if letter not in contracted]
    order = [tensor.letters.index(letter) for letter in (*rest, *contracted)]
    moved = permute(context, node, tensor.value, order, "_moved")
    inner = tuple(sizes[letter] for letter in rest)
    flat = reshape_to(context, node, moved, (*inner, prod(sizes[letter] for letter in contracted)), "_flat")
    matrix = _matrix(known, [letters.index(letter) for letter in (*new, *contracted)], len(new))
    made = parametric(context, node, Affine(DENSE, Dense(matrix.array.shape[0]), flat, matrix, None))
    outer = (*inner, *(sizes[letter] for letter in new))
    return Axes(reshape_to(context, node, made, outer, "_apart"), "".join((*rest, *new)))


def _constant_sum(known: Known, letters: str, wanted: set[str]) -> tuple[Known, str]:
    """Sum a constant over the letters that nothing else has."""
    gone = tuple(axis for axis, letter in enumerate(letters) if letter not in wanted)
    if not gone:
        return known, letters
    summed = replace(known, array=known.array.sum(axis=gone), moves=then(known, "summed", gone))
    return summed, "".join(letter for letter in letters if letter in wanted)


def _matrix(known: Known, order: Sequence[int], new: int) -> Known:
    """Return a constant as a matrix [new, contracted]; one of two axes stays the same weight, or its transpose."""
    array = known.array.transpose(order)
    if array.ndim == 2 and new == 1:
        return known if list(order) == [0, 1] else replace(known, array=array, moves=toggled(known))
    flat = array.reshape(prod(array.shape[:new]), -1)
    return replace(known, array=flat, moves=then(known, "einsum", tuple(order), new))


def _factors(context: Context, node: OnnxNode, tensor: Axes, known: Known, letters: str) -> Value:
    """Multiply entry by entry."""
    places = sorted(letters, key=tensor.letters.index)
    array = known.array.transpose([letters.index(letter) for letter in places])
    sizes = tensor.sizes()
    spread = array.reshape([sizes[letter] if letter in letters else 1 for letter in tensor.letters])
    moves = known.moves if "".join(places) == letters else then(known, "einsum", letters)
    return factored(context, node, tensor.value, replace(known, array=spread, moves=moves))

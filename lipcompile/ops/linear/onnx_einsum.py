"""The importer of Einsum: sums and permutations of one tensor, and its products with one constant.

The letters of an equation are the axes; the batch is the first letter of the tensor's term and of the result,
and occurs nowhere else. Letters that the tensor shares with the constant and that the result lacks are
contracted: that is a dense layer. Letters that all three share are factors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from string import ascii_letters

from lipcompile.core.graph import Value
from lipcompile.diagnostics import Refusal
from lipcompile.frontends.onnx.context import MIXES, Context, shape_of
from lipcompile.frontends.onnx.node import OnnxNode
from lipcompile.frontends.onnx.values import Known, toggled
from lipcompile.ops.linear.onnx_read import Affine, parametric, then
from lipcompile.ops.linear.rules import DENSE, Dense
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
    places = [index for index, item in enumerate(items) if not isinstance(item, Known)]
    if len(places) != 1 or len(items) > 2:
        message = "Einsum of several tensors that depend on the example is not yet supported"
        raise Refusal("LIP110", message if len(places) > 1 else "Einsum of three operands is not yet supported")
    ranks = [
        item.array.ndim if isinstance(item, Known) else len(shape_of(context.tensor(node, index))) + 1
        for index, item in enumerate(items)
    ]
    *terms, result = _terms(node, ranks)
    tensor, batch = Axes(context.tensor(node, places[0]), terms[places[0]][1:]), terms[places[0]][0]
    others = "".join(terms).replace(batch, "", 1)
    if batch in others or result[:1] != batch or batch in result[1:]:
        raise Refusal("LIP108", "Einsum acts on the batch axis: it mixes examples", MIXES)
    known = items[1 - places[0]] if len(items) == 2 else None
    if isinstance(known, Known) and known.copies is not None:
        raise Refusal("LIP108", "Einsum multiplies by a constant with a batch axis", MIXES)
    kept = _summed(context, node, tensor, set(result + (terms[1 - places[0]] if len(items) == 2 else "")))
    if kept.value.shape is None:
        return kept.value
    if isinstance(known, Known):
        kept = _multiplied(context, node, kept, known, terms[1 - places[0]], result[1:])
    if kept.value.shape is None:
        return kept.value
    return permute(context, node, kept.value, [kept.letters.index(letter) for letter in result[1:]], "_ordered")


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


def _summed(context: Context, node: OnnxNode, tensor: Axes, wanted: set[str]) -> Axes:
    """Sum over the letters that nothing else has."""
    gone = tuple(axis for axis, letter in enumerate(tensor.letters) if letter not in wanted)
    if not gone:
        return tensor
    value = context.add(node, OP_BY_NAME["reduce_sum"], Reduce(gone, keep=False), [tensor.value], "_summed")
    return Axes(value, "".join(letter for letter in tensor.letters if letter in wanted))


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
        raise Refusal("LIP110", "Einsum with a separate matrix for each entry of an axis is not yet supported")
    rest = [letter for letter in tensor.letters if letter not in contracted]
    order = [tensor.letters.index(letter) for letter in (*rest, *contracted)]
    moved = permute(context, node, tensor.value, order, "_moved")
    inner = tuple(sizes[letter] for letter in rest)
    flat = reshape_to(context, node, moved, (*inner, prod(sizes[letter] for letter in contracted)), "_flat")
    matrix = _matrix(known, [letters.index(letter) for letter in (*new, *contracted)], len(new))
    made = parametric(context, node, Affine(DENSE, Dense(matrix.array.shape[0]), flat, matrix, None))
    if made.shape is None:
        return Axes(made, "")
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

"""Patterns over the arithmetic of a file, whatever way it is written in.

Exporters write 0.5·x·(1 + erf(x/√2)) as any tree of products, quotients and constants. Here a tensor is taken
apart into products c·t₁^e₁·t₂^e₂… and sums a + Σ cᵢ·tᵢ of a given number of other tensors, with exact
coefficients; a pattern is matched against every way to do so. What a pattern binds are names of tensors, nodes
and numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import permutations
from typing import Protocol

import numpy as np

from lipcompile.frontends.onnx.context import Context
from lipcompile.frontends.onnx.file.read import OFFICIAL_DOMAINS
from lipcompile.frontends.onnx.node import OnnxNode
from lipcompile.frontends.onnx.refused import DRAWS
from lipcompile.frontends.onnx.sizes import has_batch
from lipcompile.frontends.onnx.values import Known
from lipcompile.ops.shape.onnx_read import is_copy

ONE, HALF = Fraction(1), Fraction(1, 2)
# Constants of files are rounded to float32, or to float16.
TOLERANCE = Fraction(1, 10**6)

# Constants and signs between two operators of a pattern: exporters write a few.
DEEPEST = 6

_OF_TWO = frozenset(("Add", "Div", "Mul", "Pow", "Sub"))

Found = Mapping[str, "str | OnnxNode | Fraction"]
Number = Fraction | str
# A tensor and its exponent: 1, -1, 1/2 or -1/2.
Power = tuple[str, Fraction]
Products = Iterator[tuple[Fraction, tuple[Power, ...]]]
Sums = Iterator[tuple[Fraction, tuple[tuple[Fraction, str], ...]]]


class Pattern(Protocol):
    """What a tensor may be; yields the bindings of every way in which it is that."""

    def match(self, context: Context, name: str, found: Found, /) -> Iterator[Found]:
        """Yield `found` with the bindings of each match of the tensor `name`."""
        ...


# Reading the file


def origin(context: Context, name: str) -> str:
    """Return the tensor that a tensor is a copy or a cast of."""
    while (node := context.makers.get(name)) is not None and is_copy(node):
        if isinstance(context.items.get(name), Known):
            break
        name = node.proto.input[0]
    return name


def maker(context: Context, name: str) -> OnnxNode | None:
    """Return the standard operator that computes a tensor from the example, if it has its operands."""
    node = context.makers.get(origin(context, name))
    if node is None or node.proto.domain not in OFFICIAL_DOMAINS:
        return None
    return node if len(node.proto.input) >= (2 if node.op_type in _OF_TWO else 1) else None


def number(context: Context, name: str) -> Fraction | None:
    """Return the value of a constant of one finite entry, which gives no tensor an axis that it does not have.

    A number that clips can train is none.
    """
    item = context.items.get(name)
    if not isinstance(item, Known) or item.array.size != 1 or item.array.dtype.kind not in "fiu":
        return None
    if context.parameters.will_train(item):
        return None
    if item.array.ndim > 1 or item.copies is not None or has_batch(item.array):
        return None
    value = float(item.array.reshape(-1)[0])
    return Fraction(value) if abs(value) < float("inf") else None


def equal(left: Fraction, right: Fraction) -> bool:
    """Whether two numbers are one, rounded in different ways."""
    return abs(left - right) <= TOLERANCE * max(abs(left), abs(right))


def _bound(found: Found, key: str, value: Fraction) -> Iterator[Found]:
    old = found.get(key)
    if old is None or (isinstance(old, Fraction) and equal(old, value)):
        yield {**found, key: value}


def _fits(wanted: Number, value: Fraction, found: Found) -> Iterator[Found]:
    """A number equals what is wanted, or is given the name that is wanted."""
    if isinstance(wanted, str):
        yield from _bound(found, wanted, value)
    elif equal(wanted, value):
        yield found


# Products and sums


def products(context: Context, name: str, count: int, deep: int = DEEPEST) -> Products:
    """Yield every way to write a tensor as a number times the powers of `count` tensors."""
    if count == 1:
        yield ONE, ((origin(context, name), ONE),)
    node = maker(context, name)
    if node is None or not deep:
        return
    deep -= 1
    names = list(node.proto.input)
    match node.op_type:
        case "Mul":
            yield from _multiplied(context, names[0], names[1], count, deep)
        case "Div":
            yield from _divided(context, names[0], names[1], count, deep)
        case "Neg":
            yield from ((-factor, powers) for factor, powers in products(context, names[0], count, deep))
        case "Reciprocal":
            yield from _raised(context, names[0], Fraction(-1), count, deep)
        case "Sqrt":
            yield from _raised(context, names[0], HALF, count, deep)
        case "Pow":
            exponent = number(context, names[1])
            if exponent is not None:
                yield from _raised(context, names[0], exponent, count, deep)


def _multiplied(context: Context, left: str, right: str, count: int, deep: int) -> Products:
    for constant, other in ((left, right), (right, left)):
        value = number(context, constant)
        if value is not None:
            yield from ((value * factor, powers) for factor, powers in products(context, other, count, deep))
            return
    for part in range(1, count):
        for first, powers in products(context, left, part, deep):
            yield from (
                (first * second, powers + more) for second, more in products(context, right, count - part, deep)
            )


def _divided(context: Context, left: str, right: str, count: int, deep: int) -> Products:
    divisor, dividend = number(context, right), number(context, left)
    if divisor:
        yield from ((factor / divisor, powers) for factor, powers in products(context, left, count, deep))
    elif dividend is not None:
        yield from (
            (dividend * factor, powers) for factor, powers in _raised(context, right, Fraction(-1), count, deep)
        )
    else:
        for part in range(1, count):
            for first, powers in products(context, left, part, deep):
                inverse = _raised(context, right, Fraction(-1), count - part, deep)
                yield from ((first * second, powers + more) for second, more in inverse)


def _raised(context: Context, name: str, exponent: Fraction, count: int, deep: int) -> Products:
    """Powers: whole ones repeat the factors; roots and inverses are of one tensor, a root inside an inverse."""
    if exponent.denominator == 1 and exponent > 0:
        if count % exponent == 0:
            whole = int(exponent)
            for factor, powers in products(context, name, count // whole, deep):
                yield factor**whole, powers * whole
        return
    if count != 1 or abs(exponent) not in (ONE, HALF):
        return
    yield ONE, ((origin(context, name), exponent),)
    node = maker(context, name)
    if exponent == -1 and node is not None:
        root = node.op_type == "Sqrt" or (node.op_type == "Pow" and number(context, node.proto.input[1]) == HALF)
        if root:
            yield ONE, ((origin(context, node.proto.input[0]), -HALF),)


def sums(context: Context, name: str, count: int, deep: int = DEEPEST) -> Sums:
    """Yield every way to write a tensor as a number plus multiples of `count` tensors."""
    if count == 1:
        yield Fraction(0), ((ONE, origin(context, name)),)
    node = maker(context, name)
    if node is None or not deep:
        return
    deep -= 1
    names = list(node.proto.input)
    match node.op_type:
        case "Add" | "Sub":
            yield from _added(context, names[0], names[1], -1 if node.op_type == "Sub" else 1, count, deep)
        case "Neg":
            yield from _scaled(context, names[0], -ONE, count, deep)
        case "Mul" | "Div":
            value, of = number(context, names[1]), names[0]
            if value is None and node.op_type == "Mul":
                value, of = number(context, names[0]), names[1]
            if value:
                yield from _scaled(context, of, value if node.op_type == "Mul" else 1 / value, count, deep)


def _scaled(context: Context, name: str, factor: Fraction, count: int, deep: int) -> Sums:
    for offset, terms in sums(context, name, count, deep):
        yield factor * offset, tuple((factor * weight, term) for weight, term in terms)


def _added(context: Context, left: str, right: str, sign: int, count: int, deep: int) -> Sums:
    first, second = number(context, left), number(context, right)
    if second is not None:
        yield from ((offset + sign * second, terms) for offset, terms in sums(context, left, count, deep))
    elif first is not None:
        yield from (
            (first + offset, terms) for offset, terms in _scaled(context, right, Fraction(sign), count, deep)
        )
    else:
        for part in range(1, count):
            for offset, terms in sums(context, left, part, deep):
                others = _scaled(context, right, Fraction(sign), count - part, deep)
                yield from ((offset + more, terms + rest) for more, rest in others)


# Patterns


@dataclass(frozen=True, slots=True)
class Tensor:
    """Any tensor that depends on the example; the same one wherever the name occurs."""

    key: str

    def match(self, context: Context, name: str, found: Found, /) -> Iterator[Found]:
        """Bind the tensor."""
        name = origin(context, name)
        if not isinstance(context.items.get(name), Known) and found.get(self.key, name) == name:
            yield {**found, self.key: name}


@dataclass(frozen=True, slots=True)
class Constant:
    """A stored tensor of any shape."""

    key: str

    def match(self, context: Context, name: str, found: Found, /) -> Iterator[Found]:
        """Bind the constant."""
        if isinstance(context.items.get(name), Known) and found.get(self.key, name) == name:
            yield {**found, self.key: name}


@dataclass(frozen=True, slots=True)
class Op:
    """The result of an operator; further operands, such as axes, are left to who reads the node bound to `key`.

    Where a key is bound twice, the nodes do the same, if perhaps to different tensors.
    """

    op_type: str
    operands: tuple[Pattern, ...]
    key: str = ""
    commutes: bool = False

    def match(self, context: Context, name: str, found: Found, /) -> Iterator[Found]:
        """Match the operands in order, or in any order."""
        node = maker(context, name)
        if node is None or node.op_type != self.op_type or not self._takes(context, node, found):
            return
        bound: Found = {**found, self.key: node} if self.key else found
        count = len(self.operands)
        orders = permutations(range(count)) if self.commutes else [tuple(range(count))]
        for order in orders:
            names = [node.proto.input[index] for index in order]
            yield from _all(context, self.operands, names, bound)

    def _takes(self, context: Context, node: OnnxNode, found: Found) -> bool:
        """Whether a node has the operands, no others that count, and agrees with what the key is bound to."""
        old, count = found.get(self.key), len(self.operands)
        given = len(node.proto.input)
        return (given == count if self.commutes else given >= count) and (
            not isinstance(old, OnnxNode) or _do_the_same(context, old, node, count)
        )


def _do_the_same(context: Context, left: OnnxNode, right: OnnxNode, first: int) -> bool:
    """Whether two nodes have the same attributes and the same operands from one on."""
    if left.outputs == right.outputs:
        return True
    operands = [[context.items.get(name) for name in node.proto.input[first:]] for node in (left, right)]
    return (
        left.attributes == right.attributes
        and len(operands[0]) == len(operands[1])
        and all(
            isinstance(a, Known) and isinstance(b, Known) and np.array_equal(a.array, b.array)
            for a, b in zip(*operands, strict=True)
        )
    )


@dataclass(frozen=True, slots=True)
class Same:
    """What a pattern matches, and everywhere the same tensor, which may be computed several times."""

    key: str
    pattern: Pattern

    def match(self, context: Context, name: str, found: Found, /) -> Iterator[Found]:
        """Match the pattern, unless the name is bound to another tensor."""
        name = origin(context, name)
        if _is_same(context, str(found.get(self.key, name)), name):
            yield from self.pattern.match(context, name, {**found, self.key: name})


def _is_same(context: Context, left: str, right: str, deep: int = DEEPEST) -> bool:
    """Whether two tensors are one, or the same computation of the same tensors, of which none draws anew."""
    left, right = origin(context, left), origin(context, right)
    if left == right:
        return True
    stored, again = context.items.get(left), context.items.get(right)
    if isinstance(stored, Known) and isinstance(again, Known):
        return _is_sizes(stored, again)
    one, other = maker(context, left), maker(context, right)
    if (
        one is None
        or other is None
        or not deep
        or one.op_type != other.op_type
        or one.op_type in (*DRAWS, "Dropout")
    ):
        return False
    place, given = one.outputs.index(left), len(one.proto.input)
    return (
        other.outputs.index(right) == place
        and given == len(other.proto.input)
        and one.attributes == other.attributes
        and all(_is_same(context, a, b, deep - 1) for a, b in zip(one.proto.input, other.proto.input, strict=True))
    )


def _is_sizes(left: Known, right: Known) -> bool:
    """Whether two constants hold the same axes or sizes, or are one number: others may be two weights."""
    return np.array_equal(left.array, right.array) and (left.array.dtype.kind in "iub" or left.array.ndim == 0)


@dataclass(frozen=True, slots=True)
class Product:
    """A number times powers of tensors, in any order."""

    factor: Number
    powers: tuple[tuple[Pattern, Fraction], ...]

    def match(self, context: Context, name: str, found: Found, /) -> Iterator[Found]:
        """Match the factors in any order."""
        for factor, powers in products(context, name, len(self.powers)):
            for bound in _fits(self.factor, factor, found):
                for order in permutations(powers):
                    pairs = list(zip(self.powers, order, strict=True))
                    if all(wanted == exponent for (_, wanted), (_, exponent) in pairs):
                        patterns = [pattern for (pattern, _), _ in pairs]
                        yield from _all(context, patterns, [term for term, _ in order], bound)


@dataclass(frozen=True, slots=True)
class Sum:
    """A number plus multiples of tensors, in any order."""

    offset: Number
    terms: tuple[tuple[Number, Pattern], ...]

    def match(self, context: Context, name: str, found: Found, /) -> Iterator[Found]:
        """Match the terms in any order."""
        for offset, terms in sums(context, name, len(self.terms)):
            for bound in _fits(self.offset, offset, found):
                for order in permutations(terms):
                    yield from self._ordered(context, order, bound)

    def _ordered(self, context: Context, terms: Sequence[tuple[Fraction, str]], found: Found) -> Iterator[Found]:
        bindings = [found]
        for (wanted, _), (weight, _) in zip(self.terms, terms, strict=True):
            bindings = [more for bound in bindings for more in _fits(wanted, weight, bound)]
        for bound in bindings:
            yield from _all(context, [pattern for _, pattern in self.terms], [name for _, name in terms], bound)


@dataclass(frozen=True, slots=True)
class AnyOf:
    """One of several patterns."""

    patterns: tuple[Pattern, ...]

    def match(self, context: Context, name: str, found: Found, /) -> Iterator[Found]:
        """Match each in turn."""
        for pattern in self.patterns:
            yield from pattern.match(context, name, found)


@dataclass(frozen=True, slots=True)
class Single:
    """A constant of one entry."""

    value: Number

    def match(self, context: Context, name: str, found: Found, /) -> Iterator[Found]:
        """Compare or bind the number."""
        value = number(context, name)
        if value is not None:
            yield from _fits(self.value, value, found)


@dataclass(frozen=True, slots=True)
class Filled:
    """A constant of one number, repeated; who reads it sees to it that it makes no tensor longer."""

    key: str
    value: Fraction

    def match(self, context: Context, name: str, found: Found, /) -> Iterator[Found]:
        """Bind the constant."""
        item = context.items.get(name)
        if not isinstance(item, Known) or context.parameters.will_train(item):
            return
        if item.array.size and bool((item.array == float(self.value)).all()):
            yield {**found, self.key: name}


def _all(context: Context, patterns: Sequence[Pattern], names: Sequence[str], found: Found) -> Iterator[Found]:
    """Match each pattern with its tensor, with the bindings of those before it."""
    if not patterns:
        yield found
        return
    for bound in patterns[0].match(context, names[0], found):
        yield from _all(context, patterns[1:], names[1:], bound)

"""Traced numbers: each operation becomes Python text, so that emitted modules can evaluate the rules.

The program that a trace yields calls only `sqrt`, `exp`, `expm1`, `log`, `minimum`, `maximum`, `max_over`
and `supremum`, which the runtime supplies for intervals. Operations on exact numbers are done here, exactly. A
literal is an integer, or the nearest double of an exact number: no constant is rounded more than once.
"""

from __future__ import annotations

import ast
import math
import operator
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import reduce

from lipcompile.numbers import Count, Step
from lipcompile.numbers.scalar import Arithmetic, Scalar, Symbol

# Sums of more terms are written in halves.
LONGEST_SUM = 64
_EXACTLY: Mapping[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


Operation = Callable[["Expression", "Expression | int"], "Expression"]


def _operations(sign: type[ast.operator]) -> tuple[Operation, Operation]:
    """Return the operation of an expression with what stands behind it, and with what stands before it."""
    return lambda own, other: _binary(own, sign(), other), lambda own, other: _binary(other, sign(), own)


@dataclass(frozen=True, slots=True)
class Expression:
    """A Python expression that computes a number; of a literal, the exact number that it stands for."""

    tree: ast.expr
    exact: Fraction | None = None

    __add__, __radd__ = _operations(ast.Add)
    __sub__, __rsub__ = _operations(ast.Sub)
    __mul__, __rmul__ = _operations(ast.Mult)
    __truediv__, __rtruediv__ = _operations(ast.Div)

    def __str__(self) -> str:
        return ast.unparse(self.tree)


def reference(program: str) -> Expression:
    """Return a Python expression, given as text, as a traced number."""
    return Expression(ast.parse(program, mode="eval").body)


class UnboundSymbolError(ValueError):
    """A program was asked for a number that the model leaves open."""


@dataclass(slots=True)
class Traced:
    """The domain of programs. `assigned` holds the variables that traced expressions rely on, in order."""

    assigned: dict[str, Expression] = field(default_factory=dict)
    memo: dict[object, object] = field(default_factory=dict)

    def program(self, *results: Expression) -> list[str]:
        """Return the assignments that `results` need, in order."""
        needed = {name for result in results for name in _names(result)}
        kept: list[str] = []
        for name, value in reversed(self.assigned.items()):
            if name in needed:
                needed |= _names(value)
                kept.append(f"{name} = {value}")
        return kept[::-1]

    def of(self, value: Scalar | int) -> Expression:
        """Write an exact scalar as the nearest double; raises UnboundSymbolError if it is symbolic."""
        if isinstance(value, Symbol | Arithmetic):
            raise UnboundSymbolError(f"a program needs a number for {value}")
        return _constant(Fraction(value))

    def symbol(self, name: str, value: Scalar | None, meaning: str) -> Expression:
        return Expression(ast.Name(name))

    def unbounded(self) -> Expression:
        return Expression(ast.Constant(math.inf))

    def let(self, name: str, value: Expression, meaning: str) -> Expression:
        """Assign `value` to a variable, unless it is one already."""
        if isinstance(value.tree, ast.Name | ast.Constant):
            return value
        assert name not in self.assigned, f"{name} would be assigned twice"
        self.assigned[name] = value
        return Expression(ast.Name(name))

    def sum(self, *xs: Expression) -> Expression:
        """Write a sum, of many terms in halves: Python nests no deeper than a few hundred parentheses."""
        if len(xs) <= LONGEST_SUM:
            return reduce(operator.add, xs)
        half = len(xs) // 2
        return self.sum(*xs[:half]) + self.sum(*xs[half:])

    def sqrt(self, x: Expression | Fraction | int) -> Expression:
        value = x if isinstance(x, Expression) else self.of(Fraction(x))
        return value if _is(value, 1) else self._call("sqrt", value)

    def exp(self, x: Expression) -> Expression:
        return self._call("exp", x)

    def expm1(self, x: Expression) -> Expression:
        return self._call("expm1", x)

    def log(self, x: int) -> Expression:
        return self._call("log", self.of(x))

    def minimum(self, *xs: Expression) -> Expression:
        return xs[0] if len(xs) == 1 else self._call("minimum", *xs)

    def maximum(self, *xs: Expression) -> Expression:
        return xs[0] if len(xs) == 1 else self._call("maximum", *xs)

    def max_over(self, start: int, stop: int, term: Callable[[Expression], Expression]) -> Expression:
        """Write a maximum over an integer range as a call with a lambda."""
        body = term(Expression(ast.Name("m"))).tree
        return self._call("max_over", _constant(start), _constant(stop), _function("m", body))

    def supremum(
        self,
        value: Callable[[Expression], Expression],
        slope: Callable[[Expression], Expression],
        of: tuple[object, ...] = (),
    ) -> Expression:
        """Write a supremum as a call with two lambdas, in which nothing is computed twice."""
        point = Expression(ast.Name("s"))
        return self._call("supremum", *(_function("s", _once(of(point).tree)) for of in (value, slope)))

    def power(self, step: Step[Expression], count: Count, name: str) -> Step[Expression]:
        """Refuse: a program is written of a graph that is unrolled, since it needs every copy's parameters."""
        raise UnboundSymbolError(f"a program needs the copies of {name} one by one")

    def _call(self, function: str, *arguments: Expression) -> Expression:
        return Expression(ast.Call(ast.Name(function), [argument.tree for argument in arguments], []))


def _function(argument: str, body: ast.expr) -> Expression:
    parameters = ast.arguments(
        posonlyargs=[], args=[ast.arg(argument)], kwonlyargs=[], kw_defaults=[], defaults=[]
    )
    return Expression(ast.Lambda(parameters, body))


def _once(tree: ast.expr) -> ast.expr:
    """Assign what stands in several places of a tree to a variable, in the first of them."""
    places: Counter[int] = Counter()
    variables: dict[int, str] = {}

    def count(node: ast.AST) -> None:
        places[id(node)] += 1
        if places[id(node)] == 1:
            for child in ast.iter_child_nodes(node):
                count(child)

    def written(node: ast.expr) -> ast.expr:
        if id(node) in variables:
            return ast.Name(variables[id(node)])
        if isinstance(node, ast.BinOp):
            computed: ast.expr = ast.BinOp(written(node.left), node.op, written(node.right))
        elif isinstance(node, ast.Call):
            computed = ast.Call(node.func, [written(argument) for argument in node.args], [])
        else:
            return node
        if places[id(node)] == 1:
            return computed
        variables[id(node)] = f"v{len(variables)}"
        return ast.NamedExpr(ast.Name(variables[id(node)]), computed)

    count(tree)
    return written(tree)


def _constant(value: Fraction | int) -> Expression:
    exact = Fraction(value)
    return Expression(ast.Constant(int(exact) if exact.denominator == 1 else float(exact)), exact)


def _binary(left: Expression | int, sign: ast.operator, right: Expression | int) -> Expression:
    """Write an operation; factors of 1 and terms of 0 are left out, and exact numbers are computed."""
    first, second = (x if isinstance(x, Expression) else _constant(x) for x in (left, right))
    if first.exact is not None and second.exact is not None and not (isinstance(sign, ast.Div) and _is(second, 0)):
        return _constant(_EXACTLY[type(sign)](first.exact, second.exact))
    if isinstance(sign, ast.Mult) and (_is(first, 0) or _is(second, 0)):
        return _constant(0)
    neutral = 1 if isinstance(sign, ast.Mult | ast.Div) else 0
    if _is(second, neutral):
        return first
    if _is(first, neutral) and isinstance(sign, ast.Mult | ast.Add):
        return second
    return Expression(ast.BinOp(first.tree, sign, second.tree))


def _is(value: Expression, number: int) -> bool:
    return value.exact == number


def _names(value: Expression) -> set[str]:
    return {node.id for node in ast.walk(value.tree) if isinstance(node, ast.Name)}

"""Names and numbers of a .lip model: parameters in scope, expressions evaluated, problems collected."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

from lipcompile import limits
from lipcompile.core.graph import Value
from lipcompile.diagnostics import Diagnostic, Location
from lipcompile.frontends.lip import syntax as ast
from lipcompile.numbers import Arithmetic, Scalar, Symbol, combine, size, symbols_of
from lipcompile.ops.schema import Argument


class Problem(Exception):  # noqa: N818
    """A mistake in the source; carries its diagnostic."""

    def __init__(self, code: str, message: str, at: Location, help: str = "", node: str | None = None) -> None:  # noqa: A002
        super().__init__(message)
        self.diagnostic = Diagnostic(code, message, help, location=at, node=node)


class Unknowable(Problem):
    """What rests on a number whose declaration was refused: everything is said there."""

    def __init__(self, name: ast.Name) -> None:
        super().__init__("LIP011", f"`{name.text}` has no value, for its declaration was refused", name.at)


@dataclass(frozen=True, slots=True)
class Scope:
    """What names mean at one point of a model. Inner scopes see outer names, never the other way round.

    numbers: parameters; None is one whose declaration was refused.
    hidden: tensors outside of a repetition whose count is open: its copies see what the copy before hands on.
    """

    numbers: Mapping[str, Scalar | None] = field(default_factory=dict)
    values: ChainMap[str, Value] = field(default_factory=ChainMap)
    frozen: bool = False
    path: tuple[str, ...] = ()
    hidden: frozenset[str] = frozenset()

    def inner(self) -> Scope:
        """Return a scope with room for names of its own."""
        return replace(self, values=self.values.new_child())

    def define(self, name: str, value: Value) -> None:
        """Let `name` be a tensor from here on: a copy for each of many names would take quadratic time."""
        self.values[name] = value

    def with_number(self, name: str, value: Scalar | None) -> Scope:
        """Return the scope in which `name` is a parameter."""
        return replace(self, numbers={**self.numbers, name: value})

    def argument(self, expression: ast.Expression) -> Argument:
        """Evaluate an argument; a name that is no parameter stays a word (`circular`, `mean`)."""
        if isinstance(expression, ast.Constant):
            return expression.value
        if isinstance(expression, ast.Tuple):
            return tuple(self.argument(item) for item in expression.items)
        if isinstance(expression, ast.Name):
            return self._named(expression)
        if isinstance(expression, ast.Binary):
            return self._arithmetic(expression)
        raise Problem("LIP012", f"`{expression.name.text}(…)` is no value here", expression.at)

    def scalar(self, expression: ast.Expression, *, open_names: bool = False) -> Scalar:
        """Evaluate a number; with `open_names`, an unknown name is a symbol of its own."""
        value = self.argument(expression)
        if isinstance(value, str) and open_names and isinstance(expression, ast.Name):
            return Symbol(value, f"parameter {value}")
        if isinstance(value, bool | str | tuple):
            none = "write a number; in a model `param n: int = 3` gives one a name"
            known = f"known parameters: {', '.join(self.numbers)}" if self.numbers else none
            raise Problem("LIP011", f"`{_shown(expression)}` is not a number", expression.at, known)
        return value

    def integer(self, expression: ast.Expression, what: str) -> int:
        """Evaluate a positive integer."""
        value = self.scalar(expression)
        if isinstance(value, Symbol | Arithmetic):
            name = next(symbols_of(value)).name
            raise Problem(
                "LIP014", f"{what} must be known, but `{name}` has no value", expression.at, f"add --set {name}=…"
            )
        if value.denominator != 1 or value < 1:
            raise Problem(
                "LIP012",
                f"{what} must be a positive integer, not {value if value.denominator == 1 else float(value)}",
                expression.at,
            )
        return int(value)

    def _named(self, name: ast.Name) -> Scalar | str:
        value = self.numbers.get(name.text, name.text)
        if value is None:
            raise Unknowable(name)
        return value

    def _arithmetic(self, expression: ast.Binary) -> Scalar:
        left, right = self.scalar(expression.left), self.scalar(expression.right)
        if expression.operator == "/" and right == Fraction(0):
            raise Problem("LIP012", "division by zero", expression.at)
        value = combine(expression.operator, left, right)
        limits.demand("digits", size(value), "the value of this has", expression.at)
        return value


def _shown(expression: ast.Expression) -> str:
    if isinstance(expression, ast.Name):
        return expression.text
    return str(expression.value) if isinstance(expression, ast.Constant) else "this"

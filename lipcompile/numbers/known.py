"""Names of formulas that stand for numbers, directly or through others, as numbers of many digits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import sympy

DIGITS = 200
# Numbers that differ by less, relatively, may be the same.
CLOSE = sympy.Float(10) ** -150


@dataclass(frozen=True, slots=True)
class Definition:
    """A name that formulas use: an input of the analysis (`expression` None) or a bound subterm.

    `upper` is a certified double not below the number it stands for, None where that is unknown.
    """

    name: str
    meaning: str
    expression: Any = None
    value: Fraction | None = None
    upper: float | None = None


def names_in(expressions: Iterable[Any]) -> set[str]:
    """Return the names in formulas; None is a formula without any."""
    return {symbol.name for one in expressions if one is not None for symbol in one.free_symbols}


def needed(
    formulas: Iterable[Any],
    definitions: Iterable[Definition],
    follows: Callable[[Any], bool] = lambda expression: True,
) -> list[Definition]:
    """Return the definitions that formulas rest on, in their order; they rest on earlier ones only.

    follows: whether the names in the formula of a definition count, too.
    """
    used = names_in(formulas)
    found: list[Definition] = []
    for definition in reversed(list(definitions)):
        if definition.name in used:
            found.append(definition)
            if definition.expression is not None and follows(definition.expression):
                used |= names_in([definition.expression])
    return found[::-1]


@dataclass(frozen=True, slots=True)
class Known:
    """The numbers of names. Each is found once, so that formulas are never written out."""

    definitions: Mapping[str, Definition]
    _numbers: dict[Any, Any] = field(default_factory=dict)

    def number(self, expression: Any) -> Any:
        """Return an expression as a number, None if it depends on what is open."""
        waiting = [expression]
        while waiting:
            current = waiting[-1]
            parts = self._parts(current)
            unseen = [symbol for symbol in parts if symbol not in self._numbers]
            if unseen:
                waiting += unseen
                continue
            self._numbers[waiting.pop()] = self._evaluated(current, parts)
        return self._numbers[expression]

    def _parts(self, expression: Any) -> set[Any]:
        """Return the names that an expression, or the definition of a name, is made of."""
        defined = self._defined(expression) if expression.is_Symbol else expression
        found: set[Any] = set() if defined is None else defined.free_symbols
        return found

    def _defined(self, symbol: Any) -> Any:
        """Return what a name stands for, None if it is open."""
        definition = self.definitions.get(symbol.name)
        if definition is None:
            return None
        value = definition.value
        return definition.expression if value is None else sympy.Rational(value.numerator, value.denominator)

    def _evaluated(self, expression: Any, parts: set[Any]) -> Any:
        defined = self._defined(expression) if expression.is_Symbol else expression
        numbers = {symbol: self._numbers[symbol] for symbol in parts}
        if defined is None or None in numbers.values():
            return None
        found = defined.evalf(DIGITS, subs=numbers)
        return found if found.is_Number else None

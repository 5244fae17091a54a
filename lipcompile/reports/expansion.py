"""Formulas with the names in them written out, as far as the result can still be read.

Sizes are counted before anything is substituted: what would be exponential is never built.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sympy import Max, Min, preorder_traversal

from lipcompile.numbers.known import Definition
from lipcompile.numbers.symbolic import Formula, Symbolic

# The most operations that a formula may have after a name in it is written out.
LONGEST_EXPANSION = 200


@dataclass(frozen=True, slots=True)
class Expansion:
    """Formulas with names written out; `names` are those left in them that stand for a formula, written out too.

    inputs: the names left that stand for a number, given or not.
    """

    expressions: tuple[Any, ...]
    names: tuple[Definition, ...]
    inputs: tuple[Definition, ...]


def expand(
    expressions: Iterable[Any], definitions: Iterable[Definition], longest: int = LONGEST_EXPANSION
) -> Expansion:
    """Write out names, the innermost first; `definitions` rest on earlier ones only.

    A name is kept where writing it out would make a formula of more than `longest` operations.
    """
    known = {definition.name: definition for definition in definitions}
    roots = tuple(expressions)
    written: dict[Any, Any] = {}
    for definition in _needed(roots, known):
        if definition.expression is not None:
            written[definition.name] = _written(definition.expression, written, longest)
    results = tuple(_written(root, written, longest) for root in roots)
    left = _left(results, written)
    return Expansion(
        results,
        names=tuple(_with(known[name], written[name]) for name in known if name in left and name in written),
        inputs=tuple(known[name] for name in known if name in left and name not in written),
    )


def _needed(roots: Iterable[Any], known: Mapping[str, Definition]) -> list[Definition]:
    """Return the definitions that formulas rest on, in their order."""
    used = _names(roots)
    needed: list[Definition] = []
    for definition in reversed(list(known.values())):
        if definition.name in used:
            needed.append(definition)
            used |= _names([definition.expression])
    return needed[::-1]


def _names(expressions: Iterable[Any]) -> set[str]:
    return {
        str(symbol) for expression in expressions if expression is not None for symbol in expression.free_symbols
    }


def _left(results: Iterable[Any], written: Mapping[str, Any]) -> set[str]:
    """Return the names that are left in formulas, and in what these stand for."""
    left: set[str] = set()
    waiting = list(results)
    while waiting:
        new = _names([waiting.pop()]) - left
        left |= new
        waiting += [written[name] for name in new if name in written]
    return left


def _with(definition: Definition, expression: Any) -> Definition:
    return Definition(definition.name, definition.meaning, expression, definition.value, definition.upper)


def _written(expression: Any, written: Mapping[str, Any], longest: int) -> Any:
    """Write out names, short ones first, while the formula stays short enough."""
    counts = Counter(part for part in preorder_traversal(expression) if part.is_Symbol)
    costs = {s: n * int(written[s.name].count_ops()) for s, n in counts.items() if s.name in written}
    size, chosen = int(expression.count_ops()), {}
    for symbol in sorted(costs, key=lambda found: (costs[found], found.name)):
        size += costs[symbol]
        if size > longest:
            break
        chosen[symbol] = written[symbol.name]
    return substituted(expression, chosen) if chosen else expression


def substituted(expression: Any, values: Mapping[Any, Any]) -> Any:
    """Replace symbols; extremes are written by the symbolic domain, since sympy's own factor every pair."""
    if expression in values:
        return values[expression]
    if not expression.args or not expression.free_symbols & values.keys():
        return expression
    parts = [substituted(part, values) for part in expression.args]
    if isinstance(expression, Max | Min):
        domain = Symbolic()
        extreme = domain.maximum if isinstance(expression, Max) else domain.minimum
        return extreme(*map(Formula, parts)).expression
    return expression.func(*parts)

"""Long formulas: in pieces that have names, and under a number at the end of a document."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from sympy import Add, Dummy, Symbol, cse

from lipcompile.numbers.known import names_in
from lipcompile.reports.formulas import concise, is_longer, rounded

# Formulas of more operations are taken apart; parts of fewer are not worth a name.
LONGEST_WHOLE, _LONGEST_INLINE = 12, 3
# In longer ones nobody looks for what occurs twice.
_LONGEST_SHARED = 1000
# A sum below a root cannot be broken into lines.
_LONGEST_BELOW_ROOT = 20


@dataclass(frozen=True, slots=True)
class Pieces:
    """A formula over names of parts; each part rests on earlier ones, and on what a maximum runs over."""

    whole: Any
    parts: tuple[tuple[Any, Any], ...] = ()


def is_short(expression: Any) -> bool:
    """Whether a formula can stand in a line of text."""
    return not is_longer(expression, LONGEST_WHOLE)


def pieces(expression: Any) -> Pieces:
    """Take a formula apart. Constants are rounded up; what is still too long is left out as by `concise`."""
    if is_short(expression):
        return Pieces(rounded(expression))
    shown = concise(expression) if is_longer(expression, _LONGEST_SHARED) else rounded(expression)
    found, [whole] = cse([shown], symbols=_temporary())
    parts: dict[Any, Any] = {}
    trivial: dict[Any, Any] = {}
    for name, part in found:
        written = part.xreplace(trivial)
        (parts if is_longer(written, _LONGEST_INLINE) else trivial)[name] = written
    whole = whole.xreplace(trivial)
    for root, name in zip(sorted(whole.find(_is_long_root), key=str), _temporary(), strict=False):
        parts[name] = root.base
        whole = whole.xreplace({root.base: name})
    return _named(concise(whole), {name: concise(part) for name, part in parts.items()})


def _temporary() -> Iterator[Any]:
    while True:
        yield Dummy(positive=True)


def _named(whole: Any, parts: dict[Any, Any]) -> Pieces:
    """Give parts names that the formula does not have for anything else."""
    taken = names_in((whole, *parts.values()))
    free = (name for name in map("c_{}".format, count(1)) if name not in taken)
    names = {old: Symbol(next(free), positive=True) for old in parts}
    return Pieces(whole.xreplace(names), tuple((names[old], part.xreplace(names)) for old, part in parts.items()))


def _is_long_root(part: Any) -> bool:
    return bool(
        part.is_Pow
        and part.exp.is_Rational
        and not part.exp.is_Integer
        and isinstance(part.base, Add)
        and is_longer(part.base, _LONGEST_BELOW_ROOT)
    )


@dataclass(slots=True)
class NumberedFormulas:
    """Collects the long formulas of one document; the first one has number 1, and equal ones have one number."""

    _numbers: dict[Any, int] = field(default_factory=dict)

    def number(self, expression: Any) -> int | None:
        """Return the number of a long formula, None if it is short."""
        return None if is_short(expression) else self._numbers.setdefault(expression, len(self._numbers) + 1)

    def entries(self) -> list[Pieces]:
        """Return the formulas so far, by their numbers, in pieces."""
        return [pieces(expression) for expression in self._numbers]

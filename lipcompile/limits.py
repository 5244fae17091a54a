"""What reading one model may take: a hostile file ends in a diagnostic (LIP018), not in a full memory or a hang.

The limits in force are of the context: rules and parsers ask for them by `demand`, which knows how to raise them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from fractions import Fraction

from lipcompile.diagnostics import InputError, Location, Refusal, input_error

# Frames of Python that one level of nesting takes, and those for the rest of a command.
_FRAMES, _BASE = 12, 1000
_SUFFIXES = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_SIZE = re.compile(r"(\d{1,18})([kmgt]?)b?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that reading one model may take; no network in use comes near, other than by its weights.

    file_size: bytes of an ONNX file and of the tensors that it keeps in other files, together.
    text_size: bytes of a .lip file and of those it imports, together.
    nodes: of the graph, with blocks, functions and repetitions written out.
    depth: of blocks, brackets, subgraphs and functions inside one another.
    constants: bytes of tensors that an ONNX file has computed, beside four times those that it stores.
    counts: positions times taps of a window, or 32 for each entry of an interpolated axis: gone through in turn.
    digits: decimal digits of a number, its exponent written out, or operations in a formula that has symbols.
    entries: of a tensor or a weight.
    terms: of the formulas of one derivation, all that it writes on the way counted.
    """

    file_size: int = 2**31
    text_size: int = 2**18
    nodes: int = 50_000
    depth: int = 64
    constants: int = 2**28
    counts: int = 2**20
    digits: int = 400
    entries: int = 2**40
    terms: int = 4_000_000

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Let these be the limits of what is done inside."""
        token, spent, frames = _current.set(self), _spent.set({}), sys.getrecursionlimit()
        sys.setrecursionlimit(max(frames, _BASE + _FRAMES * self.depth))
        try:
            yield
        finally:
            sys.setrecursionlimit(frames)
            _spent.reset(spent)
            _current.reset(token)


_current: ContextVar[Limits] = ContextVar("limits", default=Limits())  # noqa: B039  # it is frozen


# What was spent of the limits that are set to a sum.
_spent: ContextVar[dict[str, int]] = ContextVar("spent")


def current() -> Limits:
    """Return the limits in force."""
    return _current.get()


def demand(name: str, amount: int, what: str, at: Location | None = None) -> None:
    """Raise InputError (LIP018) if `amount` is above the limit `name`; `what` says of what, as `the graph has`."""
    most = getattr(current(), name)
    if amount > most:
        raise exceeded(name, what, at)


def refuse_above(name: str, amount: int, what: str) -> None:
    """As `demand`, for the rules of an op: raises Refusal (LIP018), which finds its place by itself."""
    if amount > getattr(current(), name):
        found = exceeded(name, what).diagnostics[0]
        raise Refusal(found.code, found.message, found.help)


def spent(name: str) -> int:
    """Return how much of a limit was spent since the limits came into force."""
    return (_spent.get(None) or {}).get(name, 0)


def spend(name: str, amount: int, what: str) -> None:
    """Add to what was spent, and raise InputError (LIP018) if that is above the limit; below 0 it makes room."""
    total, sums = spent(name) + amount, _spent.get(None)
    demand(name, total, what)
    if sums is not None:  # limits are in force
        sums[name] = total


def exceeded(name: str, what: str, at: Location | None = None) -> InputError:
    """Return the error of a limit that is exceeded."""
    most: int = getattr(current(), name)
    option = name.replace("_", "-")
    message = f"{what} more than {_shown(name, most)}"
    help_line = f"if the model is meant to be so, raise the limit: --limit {option}={_written(name, 4 * most)}"
    return input_error("LIP018", message, help_line, at)


def exact(text: str, what: str, at: Location | None = None) -> Fraction:
    """Return the value of a decimal number; raises ValueError, ZeroDivisionError, or InputError if it is long.

    The exponent is looked at first: written out, 1e999999999 would fill the memory.
    """
    _, _, exponent = text.strip().lower().partition("e")
    whole = len(exponent) < 18 and re.fullmatch(r"[+-]?\d+", exponent)
    digits = len(text) + (abs(int(exponent)) if whole else len(exponent))
    demand("digits", digits, f"{what} has", at)
    return Fraction(text)


def parse_limits(texts: Sequence[str]) -> Limits:
    """Read `name=value` with sizes such as 4G; raises InputError (LIP005)."""
    names = [field.name.replace("_", "-") for field in fields(Limits)]
    chosen: dict[str, int] = {}
    for text in texts:
        name, _, value = text.partition("=")
        size = _SIZE.fullmatch(value.strip().lower())
        if name.strip() not in names or size is None:
            help_line = f"for example --limit nodes=50000 or --limit file-size=4G; there are {', '.join(names)}"
            raise input_error("LIP005", f"--limit: `{text}` is no limit", help_line)
        chosen[name.strip().replace("-", "_")] = int(size[1]) * _SUFFIXES[size[2]]
    return replace(Limits(), **chosen)


_UNITS = {
    "file_size": "bytes",
    "text_size": "bytes",
    "nodes": "nodes",
    "depth": "levels",
    "constants": "bytes",
    "counts": "places",
    "digits": "digits or operations",
    "entries": "entries",
    "terms": "terms",
}


def _shown(name: str, most: int) -> str:
    unit = _UNITS[name]
    if unit == "bytes" and most % 2**20 == 0:
        return f"{most // 2**20} MiB"
    return f"{most} {unit}"


def _written(name: str, most: int) -> str:
    if _UNITS[name] != "bytes":
        return str(most)
    suffix, unit = next(((s, u) for s, u in (("G", 2**30), ("M", 2**20), ("K", 2**10)) if most % u == 0), ("", 1))
    return f"{most // unit}{suffix}"

"""Reads certificates: JSON of bounded size in which no name stands twice, and values of known kinds only."""

from __future__ import annotations

import json
import re
from contextvars import ContextVar
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

MOST_BYTES, MOST_VALUES, MOST_ENTRIES, MOST_NODES = 2**26, 2**22, 2**40, 100_000
WHOLE = {"n": 1, "i": 0, "z": -MOST_ENTRIES}  # kinds of whole numbers, with the least of each
TYPES = {"flag": bool, "text": str, "object": dict}
EXACT = {"q+": 1, "q0": 0, "q": -1}  # kinds of exact numbers, with the least sign of each
_EXACT = re.compile(r"-?(?:0|[1-9]\d{0,999})(?:/[1-9]\d{0,999})?", re.ASCII)
MOST_WORK = 2**22  # of about a microsecond each, in one derivation
_work_left = ContextVar("_work_left", default=MOST_WORK)


class MalformedError(ValueError):
    """The document is no certificate of this schema, or its graph no model that the rules hold for."""


class ForeignError(ValueError):
    """A file does not go with a certificate: where, and why."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where}: {reason}")


def require(condition: object, reason: str) -> None:
    """Raise MalformedError unless the condition holds."""
    if not condition:
        raise MalformedError(reason)


def begin_work() -> None:
    """Let a derivation do as much as one may."""
    _work_left.set(MOST_WORK)


def spend(work: int) -> None:
    """Count work that grows with the numbers of a document; raises MalformedError if it is too much in all."""
    left = _work_left.get() - work
    require(left >= 0, "its sizes are too large or too many to check in reasonable time")
    _work_left.set(left)


def read(path: Path) -> dict[str, Any]:
    """Return the document in a file; raises MalformedError, or OSError."""
    require(path.stat().st_size <= MOST_BYTES, f"the file is larger than {MOST_BYTES} bytes")
    return parse(path.read_bytes())


def parse(data: bytes) -> dict[str, Any]:
    """Return the document in these bytes; raises MalformedError."""
    require(
        sum(map(data.count, (b"[", b"{", b",", b":"))) <= MOST_VALUES, f"it has more than {MOST_VALUES} values"
    )
    try:
        text = data.decode("ascii")
        document = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse, parse_float=_refuse)
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"this is not a certificate: {str(error) or type(error).__name__}") from None
    require(isinstance(document, dict), "this is not a certificate: not an object")
    return dict(document)


def canonical(value: object) -> bytes:
    """Return the bytes of which a graph is the hash; raises MalformedError for what JSON cannot hold."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise MalformedError(f"this is not JSON: {str(error) or type(error).__name__}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    require(len(dict(pairs)) == len(pairs), "a name stands twice in one object")
    return dict(pairs)


def _refuse(text: str) -> Any:
    raise MalformedError(f"`{text}` is not a whole number")


def fields(value: Any, kinds: str, optional: str = "") -> SimpleNamespace:
    """Return the fields of an object, `name:kind` each; all must be there, and no others but optional ones."""
    needed, known = (dict(item.split(":") for item in text.split()) for text in (kinds, f"{kinds} {optional}"))
    require(isinstance(value, dict), "an object is expected")
    require(needed.keys() <= value.keys() <= known.keys(), f"the fields must be {[*known]}, not {[*value]}")
    return SimpleNamespace(**{name: of_kind(value.get(name), kind, name in value) for name, kind in known.items()})


def of_kind(value: Any, kind: str, there: bool = True) -> Any:
    """Return a value of a kind above, of lists of it (`kind*`), or of a choice (`a|b`); raises MalformedError."""
    if not there or (kind.endswith("?") and value is None):
        return None
    kind, what = kind.rstrip("?"), f"{value!r:.99} does not have the type `{kind}`"
    if kind == "pads":
        require(isinstance(value, list) and len(value) == 2, what)
        return tuple(of_kind(side, "i") for side in value)
    if kind.endswith("*"):
        require(isinstance(value, list), what)
        return tuple(of_kind(item, kind[:-1]) for item in value)
    if kind in WHOLE:
        require(type(value) is int and WHOLE[kind] <= value <= MOST_ENTRIES, what)
    elif kind in TYPES:
        require(type(value) is TYPES[kind], what)
    elif kind in EXACT:
        require(isinstance(value, str) and _EXACT.fullmatch(value), what)
        number = Fraction(value)
        require(str(number) == value and (number > 0) - (number < 0) >= EXACT[kind], what)
        return number
    elif kind == "bound":
        try:
            found = float.fromhex(value)
        except (TypeError, ValueError, OverflowError):
            raise MalformedError(what) from None
        require(found >= 0 and value == found.hex(), what)
        return found
    else:
        require(isinstance(value, str) and value in kind.split("|"), what)
    return value

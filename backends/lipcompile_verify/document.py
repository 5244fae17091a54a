"""Reads certificates: JSON of bounded size in which no name stands twice, and values of known kinds only."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

MOST_BYTES, MOST_ENTRIES, MOST_NODES = 2**28, 2**40, 100_000
_RATIONAL = re.compile(r"-?(?:0|[1-9]\d{0,999})(?:/[1-9]\d{0,999})?", re.ASCII)


class MalformedError(ValueError):
    """The document is no certificate of this schema, or its graph no model that the rules hold for."""


def require(condition: object, reason: str) -> None:
    """Raise MalformedError unless the condition holds."""
    if not condition:
        raise MalformedError(reason)


def read(path: Path) -> dict[str, Any]:
    """Return the document in a file; raises MalformedError, or OSError."""
    require(path.stat().st_size <= MOST_BYTES, f"the file is larger than {MOST_BYTES} bytes")
    return parse(path.read_bytes())


def parse(data: bytes) -> dict[str, Any]:
    """Return the document in these bytes; raises MalformedError."""
    try:
        text = data.decode("ascii")
        document = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse, parse_float=_refuse)
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"this is no certificate: {str(error) or type(error).__name__}") from None
    require(isinstance(document, dict), "this is no certificate: not an object")
    return dict(document)


def canonical(value: object) -> bytes:
    """Return the bytes of which a graph is the hash; raises MalformedError for what JSON cannot hold."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise MalformedError(f"this is no JSON: {str(error) or type(error).__name__}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    require(len(dict(pairs)) == len(pairs), "a name stands twice in one object")
    return dict(pairs)


def _refuse(text: str) -> Any:
    raise ValueError(f"`{text}` is no whole number")


def fields(value: Any, kinds: str, optional: str = "") -> SimpleNamespace:
    """Return the fields of an object, `name:kind` each; all must be there, and no others but optional ones."""
    require(isinstance(value, Mapping), "an object is expected")
    known = dict(item.split(":") for item in [*kinds.split(), *optional.split()])
    needed = {item.split(":")[0] for item in kinds.split()}
    require(
        needed <= set(value) <= set(known), f"the fields must be {sorted(known)}, not {sorted(map(str, value))}"
    )
    found = SimpleNamespace(**dict.fromkeys(known))
    for name, entry in value.items():
        try:
            setattr(found, name, of_kind(entry, known[name]))
        except MalformedError as error:
            raise MalformedError(f"{name}: {error}") from None
    return found


def of_kind(value: Any, kind: str) -> Any:
    """Return a value of one of the kinds below, of lists of one (`kind*`), or one of a choice (`a|b`)."""
    if kind.endswith("?"):
        return None if value is None else of_kind(value, kind[:-1])
    if kind.endswith("*"):
        require(isinstance(value, list) and len(value) <= MOST_NODES, "a list is expected")
        return tuple(of_kind(item, kind[:-1]) for item in value)
    if kind in KINDS:
        return KINDS[kind](value)
    require(isinstance(value, str) and value in kind.split("|"), f"{value!r:.99} is none of {kind}")
    return value


def _whole(low: int) -> Callable[[Any], int]:
    def convert(value: Any) -> int:
        require(
            type(value) is int and low <= value <= MOST_ENTRIES, f"{value!r:.99} is no whole number from {low} on"
        )
        return int(value)

    return convert


def _typed(kind: type) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        require(type(value) is kind, f"{value!r:.99} is no {kind.__name__}")
        return value

    return convert


def _rational(test: Callable[[Fraction], bool]) -> Callable[[Any], Fraction]:
    def convert(value: Any) -> Fraction:
        require(isinstance(value, str) and _RATIONAL.fullmatch(value), f"{value!r:.99} is no exact number")
        number = Fraction(value)
        require(str(number) == value and test(number), f"{value:.99} is not in lowest terms, or out of range")
        return number

    return convert


def _bound(value: Any) -> float:
    try:
        number = float.fromhex(value) if value != "inf" else float("inf")
    except (TypeError, ValueError, OverflowError):
        number = -1.0
    require(number >= 0 and value in ("inf", number.hex()), f"{value!r:.99} is no bound")
    return number


def _pair(value: Any) -> tuple[int, int]:
    require(isinstance(value, list) and len(value) == 2, "a pair is expected")
    return KINDS["i"](value[0]), KINDS["i"](value[1])


KINDS: dict[str, Callable[[Any], Any]] = {
    "n": _whole(1),
    "i": _whole(0),
    "z": _whole(-MOST_ENTRIES),
    "flag": _typed(bool),
    "text": _typed(str),
    "object": _typed(dict),
    "q": _rational(lambda number: number == number),
    "q0": _rational(lambda number: number >= 0),
    "q+": _rational(lambda number: number > 0),
    "bound": _bound,
    "pads": _pair,
}

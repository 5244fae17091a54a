"""Reads a certificate: JSON of bounded size and depth, in which no name stands twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MOST_BYTES = 2**28


class MalformedError(ValueError):
    """The document is no certificate of this schema; the message says where and why."""


def read(path: Path) -> dict[str, Any]:
    """Return the document in a file; raises MalformedError, or OSError."""
    if path.stat().st_size > MOST_BYTES:
        raise MalformedError(f"the file is larger than {MOST_BYTES} bytes")
    return parse(path.read_bytes())


def parse(data: bytes) -> dict[str, Any]:
    """Return the document in these bytes; raises MalformedError."""
    try:
        document = json.loads(
            data.decode("ascii"), object_pairs_hook=_unique, parse_constant=_refuse, parse_float=_refuse
        )
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"this is no certificate: {str(error) or type(error).__name__}") from None
    if not isinstance(document, dict):
        raise MalformedError("this is no certificate: not an object")
    return document


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a name stands twice in one object")
    return dict(pairs)


def _refuse(text: str) -> Any:
    raise ValueError(f"`{text}` is no whole number")

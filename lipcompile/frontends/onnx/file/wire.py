"""The wire format of protobuf, looked through before it is decoded: two bytes can become a hundred in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

# Protobuf's description of a kind of message, which has no typed home.
Descriptor = Any

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LONG = 128  # from here on, a number takes several bytes
_WIDTHS = {_FIXED64: 8, _FIXED32: 4}
# What protobuf itself decodes at most.
DEEPEST = 100


class MalformedError(ValueError):
    """The bytes are no message."""


def count_fields(content: bytes, kind: Descriptor, most: int) -> int:
    """Return how many fields the message `content` holds, in all of its messages: more than `most` if it is more.

    Raises `MalformedError` where it is no message of this kind, and RecursionError where it is nested too deep.
    """
    found = 0
    inside = {number: _messages(kind) for number, kind in _kinds(kind).items()}
    pending = [(0, len(content), kind.full_name, 0)]
    while pending:
        start, end, name, depth = pending.pop()
        if depth > DEEPEST:
            raise RecursionError
        for number, first, last in _fields(content, start, end):
            found += 1
            if number in inside[name] and first >= 0:
                pending.append((first, last, inside[name][number], depth + 1))
            if found > most:
                return found
    return found


def _kinds(root: Descriptor) -> dict[str, Descriptor]:
    """Return the kinds of messages that may occur, by name."""
    found = {root.full_name: root}
    pending = [root]
    while pending:
        for field in pending.pop().fields:
            kind = field.message_type
            if kind is not None and kind.full_name not in found:
                found[kind.full_name] = kind
                pending.append(kind)
    return found


def _messages(kind: Descriptor) -> dict[int, str]:
    """Return the numbers of the fields that hold messages, and their kinds."""
    return {field.number: field.message_type.full_name for field in kind.fields if field.message_type is not None}


def _fields(content: bytes, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield number and bounds of the fields between two places; the first bound is -1 where there are none."""
    at = start
    while at < end:
        key, at = (content[at], at + 1) if content[at] < _LONG else _varint(content, at, end)
        number, wire = key >> 3, key & 7
        if wire == _BYTES:
            short = at < end and content[at] < _LONG
            length, at = (content[at], at + 1) if short else _varint(content, at, end)
            yield number, at, at + length
            at += length
        elif wire == _VARINT:
            _, at = _varint(content, at, end)
            yield number, -1, -1
        elif wire in _WIDTHS:
            at += _WIDTHS[wire]
            yield number, -1, -1
        else:  # groups, which ONNX has none of
            raise MalformedError
    if at != end:
        raise MalformedError


def _varint(content: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 70:
        byte = content[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < _LONG:
            return value, at
        shift += 7
    raise MalformedError

"""Attribute records from arguments: the fields of an op's attribute dataclass are its argument list.

The annotations below are the value kinds of the language. Errors are `ArgumentError`s that name the argument.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from lipcompile.numbers import Arithmetic, Scalar, Symbol, symbols_of

A = TypeVar("A")

# One integer per spatial axis; a single integer serves all axes.
PerAxis = Annotated[tuple[int, ...], "per axis"]
# The same, and it may be zero.
Extra = Annotated[tuple[int, ...], "extra per axis"]
# Zeros (or wrapped entries) before and after each spatial axis; an integer serves all sides.
Padding = Annotated[tuple[tuple[int, int], ...], "padding"]
# An axis of one example, counted from 0, or from the end if negative; None is the axis of the features.
Axis = Annotated[int | None, "axis"]
# A place along an axis, counted from 0.
Index = Annotated[int, "index"]
# A label of a target, of either sign; None is no label.
Label = Annotated[int | None, "label"]

_SUGGESTION = re.compile(r"did you mean `(\w+)`\?")

Argument = Scalar | bool | str | tuple[Any, ...]


class ArgumentError(ValueError):
    """An argument that the op does not take, or a value of the wrong kind. `argument` is its name or index."""

    def __init__(self, argument: str | int, message: str, help: str = "") -> None:  # noqa: A002
        super().__init__(message)
        self.argument, self.message, self.help = argument, message, help


def bind(
    record: type[A],
    positional: Sequence[Argument],
    named: Mapping[str, Argument],
    rank: int,
    also: Sequence[str] = (),
) -> A:
    """Build the attribute record `record` of an op with `rank` spatial axes; raises `ArgumentError`.

    `also` lists arguments that the caller takes itself: they are offered when a name is misspelt.
    """
    fields = fields_of(record)  # type: ignore[arg-type]  # mypy: classes have a hash
    names = list(fields)
    if len(positional) > len(names):
        plural = "" if len(names) == 1 else "s"
        raise ArgumentError(len(names), f"takes at most {len(names)} argument{plural}", signature(record))
    given: dict[str, Argument] = dict(zip(names, positional, strict=False))
    check_names(record, list(named), also)
    for name, value in named.items():
        if name in given:
            raise ArgumentError(name, f"argument `{name}` is given twice")
        given[name] = value
    values = {name: _convert(name, fields[name][0], value, rank) for name, value in given.items()}
    for name, (_, default) in fields.items():
        if name not in values:
            if default is dataclasses.MISSING:
                raise ArgumentError(name, f"needs the argument `{name}`", signature(record))
            values[name] = default_of(record, name, values, rank)
    return record(**values)


def check_names(record: type[Any], named: Sequence[str], also: Sequence[str] = ()) -> None:
    """Raise `ArgumentError` at the first name that is no argument of `record`."""
    known = [field.name for field in dataclasses.fields(record)]
    for name in named:
        if name not in known:
            near = suggest(name, [*known, *also])
            raise ArgumentError(name, f"has no argument `{name}`", near or signature(record, also))


def signature(record: type[Any], also: Sequence[str] = ()) -> str:
    """Return the argument list as a line of help; `also` lists arguments that are given by name only."""
    parts = [
        f.name if f.default is dataclasses.MISSING else f"{f.name}={_show(f.default)}"
        for f in dataclasses.fields(record)
    ]
    parts += [f"{name}=…" for name in also]
    return f"the arguments are ({', '.join(parts)})" if parts else "it takes no arguments"


def suggest(name: str, known: Sequence[str]) -> str:
    """Return `did you mean …?` for the nearest known name, or the empty string."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean `{near[0]}`?" if near else ""


def suggested(help_line: str) -> str | None:
    """Return the name that a line of `suggest` proposes, None for another line."""
    found = _SUGGESTION.fullmatch(help_line)
    return found[1] if found else None


@functools.cache  # the hints of a class are read from their text, which takes longer than all else here
def fields_of(record: Any) -> dict[str, tuple[Any, Any]]:
    """Return the kind and the default of each field of a record, MISSING for none."""
    hints = get_type_hints(record, include_extras=True)
    return {f.name: (hints[f.name], f.default) for f in dataclasses.fields(record)}


def default_of(record: Any, name: str, values: Mapping[str, Any], rank: int) -> Any:
    """Return the default of a field for `rank` spatial axes, given the values of earlier ones; MISSING if none."""
    kind, default = fields_of(record)[name]
    if isinstance(default, _Like):
        return values[default]
    return _convert(name, kind, default, rank) if isinstance(default, _Every) else default


class _Like(str):
    __slots__ = ()


class _Every(int):
    pass


like: Any = _Like
"""The default `same value as that earlier field` (a pool's stride is its kernel)."""

every: Any = _Every
"""The default `this value on every axis`."""


def _convert(name: str, kind: Any, value: Any, rank: int) -> Any:
    if get_origin(kind) is Literal:
        return _choice(name, get_args(kind), value)
    for expected, converter in _CONVERTERS:
        if kind == expected:
            return converter(name, value, rank)
    raise AssertionError(f"no argument kind {kind}")


def _choice(name: str, choices: tuple[Any, ...], value: Any) -> Any:
    if value in choices:
        return choices[choices.index(value)]  # 1, say, for the Fraction 1
    listed = ", ".join(str(choice) for choice in choices)
    raise ArgumentError(name, f"`{name}` must be one of {listed}", suggest(str(value), [str(c) for c in choices]))


def _positive(name: str, value: Any, _rank: int) -> int:
    number = _integer(name, value, _rank)
    if number < 1:
        raise ArgumentError(name, f"`{name}` must be at least 1, not {number}")
    return number


def _integer(name: str, value: Any, _rank: int) -> int:
    if isinstance(value, Symbol | Arithmetic):
        first = next(symbols_of(value)).name
        raise ArgumentError(name, f"`{name}` must have a value, but `{first}` has none", f"add --set {first}=…")
    if isinstance(value, bool) or not isinstance(value, int | Fraction) or Fraction(value).denominator != 1:
        raise ArgumentError(name, f"`{name}` must be an integer")
    return int(value)


def _boolean(name: str, value: Any, _rank: int) -> bool:
    if not isinstance(value, bool):
        raise ArgumentError(name, f"`{name}` must be true or false")
    return value


def _scalar(name: str, value: Any, _rank: int) -> Scalar:
    if isinstance(value, bool | str | tuple):
        raise ArgumentError(name, f"`{name}` must be a number")
    return Fraction(value) if isinstance(value, int) else value


def _several(convert: Callable[[str, Any, int], A]) -> Callable[[str, Any, int], tuple[A, ...]]:
    """Convert each entry of a tuple; a value by itself is one of one entry."""
    return lambda name, value, rank: tuple(
        convert(name, item, rank) for item in (value if isinstance(value, tuple) else (value,))
    )


def _per_axis(name: str, value: Any, rank: int) -> tuple[int, ...]:
    items = value if isinstance(value, tuple) else (value,) * rank
    if len(items) != rank:
        raise ArgumentError(name, f"`{name}` needs {rank} numbers, one per spatial axis, not {len(items)}")
    return tuple(_positive(name, item, rank) for item in items)


def _extra(name: str, value: Any, rank: int) -> tuple[int, ...]:
    sides = _padding(name, value, rank)
    if any(low != high for low, high in sides):
        raise ArgumentError(name, f"`{name}` needs one number per spatial axis")
    return tuple(low for low, _ in sides)


def _padding(name: str, value: Any, rank: int) -> tuple[tuple[int, int], ...]:
    items = value if isinstance(value, tuple) else (value,) * rank
    if len(items) != rank:
        raise ArgumentError(name, f"`{name}` needs {rank} entries, one per spatial axis, not {len(items)}")
    pairs = [item if isinstance(item, tuple) else (item, item) for item in items]
    if any(len(pair) != 2 for pair in pairs):
        raise ArgumentError(name, f"an entry of `{name}` is a number or a pair (before, after)")
    sides = [(_integer(name, low, rank), _integer(name, high, rank)) for low, high in pairs]
    if any(low < 0 or high < 0 for low, high in sides):
        raise ArgumentError(name, f"`{name}` must not be negative")
    return tuple(sides)


_CONVERTERS = (
    (PerAxis, _per_axis),
    (Extra, _extra),
    (Padding, _padding),
    (Axis, _integer),
    (Index, _integer),
    (Label, _integer),
    (int, _positive),
    (bool, _boolean),
    (Scalar, _scalar),
    (Scalar | None, _scalar),
    (tuple[Scalar, ...], _several(_scalar)),
    (tuple[int, ...], _several(_integer)),
)


def _show(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

"""The `train` block: a flat table of settings, checked for names and kinds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from lipcompile.core.graph import ClipGroup
from lipcompile.diagnostics import Diagnostic
from lipcompile.frontends.lip import syntax as ast
from lipcompile.frontends.lip.scope import Problem, Scope
from lipcompile.frontends.options import Setting, TrainingPlan
from lipcompile.ops.schema import suggest

NEIGHBOURS = ("add_remove", "replace_one")
SAMPLINGS = ("poisson", "fixed_size", "shuffle", "balls_in_bins", "fixed_order")
NOISES = ("global", "per_layer", "optimal")
# How noise is correlated over the steps, and the number that says how much, which may be left out.
CORRELATIONS: Mapping[str, str] = {"correlated": "bands", "blt": "buffers"}
OPTIMIZERS: Mapping[str, tuple[str, ...]] = {"sgd": ("lr", "momentum"), "adam": ("lr",)}
SCHEDULES = ("constant", "cosine", "linear")
SOURCES = ("theorem", "clip", "auto")
CLIP_GROUPS = ("flat", "layers", "blocks")
_ABOVE_0 = lambda x: x > 0, "a number above 0"
_COUNT = lambda x: x.denominator == 1 and x >= 1, "a whole number of at least 1"
# What numbers may be, beside at least 0.
_RANGES: Mapping[str, tuple[Callable[[Fraction], bool], str]] = {
    **dict.fromkeys(("epsilon", "noise_multiplier", "lr"), _ABOVE_0),
    **dict.fromkeys(("epochs", "batch", "dataset", *CORRELATIONS.values()), _COUNT),
    "delta": (lambda x: 0 < x < 1, "a number between 0 and 1"),
    "momentum": (lambda x: x < 1, "a number from 0 to below 1"),
}
CHANGES = ("flip", "shift", "views")  # of images: a word, and two whole numbers


def training_plan(lines: Sequence[ast.TrainLine]) -> tuple[TrainingPlan | None, tuple[Diagnostic, ...]]:
    """Return the settings of a `train` block (None without one) and what is wrong with them."""
    settings: dict[str, Setting] = {}
    problems: list[Diagnostic] = []
    for line in lines:
        try:
            for name, value in _READERS[line.key.text](line):
                if name in settings:
                    raise Problem("LIP013", f"`{name}` is set twice", line.key.at)
                settings[name] = value
        except Problem as problem:
            problems.append(problem.diagnostic)
    return (TrainingPlan(settings) if lines else None), tuple(problems)


def _word(line: ast.TrainLine, choices: Sequence[str]) -> str:
    value = line.values[0].value
    if len(line.values) == 1 and isinstance(value, ast.Name) and value.text in choices:
        return value.text
    near = (
        suggest(value.text, choices) if isinstance(value, ast.Name | ast.Call) and hasattr(value, "text") else ""
    )
    raise Problem("LIP404", f"`{line.key.text}` is one of {', '.join(choices)}", value.at, near)


def _numbers(
    arguments: Sequence[ast.Argument], names: Sequence[str], line: ast.TrainLine
) -> Iterator[tuple[str, Fraction]]:
    """Yield named numbers; raises `Problem` at an unknown name or a value that is no number."""
    for argument in arguments:
        name = argument.name.text if argument.name else ""
        at = argument.name.at if argument.name else argument.value.at
        if name not in names:
            help_line = suggest(name, names) if name else f"write the name: {names[0]}=…"
            raise Problem("LIP404", f"`{line.key.text}` takes {', '.join(names)}", at, help_line)
        value = Scope().scalar(argument.value)
        fits, said = _RANGES.get(name, (lambda _: True, "a number of at least 0"))
        if not isinstance(value, Fraction) or value < 0 or not fits(value):
            raise Problem("LIP404", f"`{name}` must be {said}", at)
        yield name, value


def _neighbours(line: ast.TrainLine) -> Iterator[tuple[str, Setting]]:
    yield "neighbours", _word(line, NEIGHBOURS)


def _noise(line: ast.TrainLine) -> Iterator[tuple[str, Setting]]:
    """Read how noise is shared, and how it is correlated over the steps; either may be left out."""
    for argument in line.values:
        value = argument.value
        if isinstance(value, ast.Name) and value.text in NOISES and not argument.name:
            yield "noise", value.text
            continue
        call = _called(replace(line, values=(argument,)), tuple(CORRELATIONS), NOISES)
        yield "correlation", _correlation(line, call)


def _correlation(line: ast.TrainLine, call: ast.Call) -> Setting:
    kind = call.name.text
    count = CORRELATIONS[kind]
    numbers = list(_numbers(call.arguments, (count,), line))
    if len(numbers) > 1:
        raise Problem("LIP013", f"`{count}` is set twice", call.at)
    return {"kind": kind, **dict(numbers)}


def _schedule(line: ast.TrainLine) -> Iterator[tuple[str, Setting]]:
    """Read how the rate falls, and over which share of the steps weights are averaged: `linear, average=0.25`."""
    first, *more = line.values
    yield "schedule", _word(replace(line, values=(first,)), SCHEDULES)
    for name, share in _numbers(more, ("average",), line):
        if share > 1:
            raise Problem("LIP404", "`average` is a number from 0 to 1", line.key.at)
        yield name, share


# Of numbers beside a source of bounds: what they may be.
_OF_CLIPS: Mapping[str, tuple[Callable[[Fraction], bool], str]] = {
    "length": (ClipGroup.has_length, "a number from 1e-9 to 1e9"),
    "quantile": (lambda x: x <= 1, "a number from 0 to 1"),
}


def _bounds(line: ast.TrainLine) -> Iterator[tuple[str, Setting]]:
    """Read the source of bounds, and how gradients are clipped: `bounds clip, groups=layers, length=0.5`."""
    first, *more = line.values
    yield "bounds", _word(replace(line, values=(first,)), SOURCES)
    for argument in more:
        name = argument.name.text if argument.name is not None else ""
        if argument.name is None or name not in ("groups", *_OF_CLIPS):
            message = "`bounds` takes a source, groups, a length and a quantile"
            raise Problem("LIP404", message, argument.value.at, "write groups=layers, or length=0.5")
        if name in _OF_CLIPS:
            ((_, number),), (fits, said) = _numbers((argument,), (name,), line), _OF_CLIPS[name]
            if not fits(number):
                raise Problem("LIP404", f"`{name}` is {said}", argument.value.at)
            yield f"clip_{name}", number
            continue
        yield "clip_groups", _word(replace(line, key=argument.name, values=(argument,)), CLIP_GROUPS)


def _budget(line: ast.TrainLine) -> Iterator[tuple[str, Setting]]:
    yield from _numbers(line.values, ("epsilon", "delta", "epochs", "noise_multiplier"), line)


def _physical_batch(line: ast.TrainLine) -> Iterator[tuple[str, Setting]]:
    value = Scope().integer(line.values[0].value, "`physical_batch`")
    yield "physical_batch", Fraction(value)


def _augment(line: ast.TrainLine) -> Iterator[tuple[str, Setting]]:
    """Read how images are changed at random, and how many views each has: `flip, shift=4, views=2`."""
    given: dict[str, int] = {}
    for argument in line.values:
        name, number = _change(argument)
        if name in given:
            raise Problem("LIP013", f"`{name}` is set twice", argument.value.at)
        given[name] = number
    changes = {"flip": "flip", "shift": f"shift:{given.get('shift')}"}
    text = ",".join(change for name, change in changes.items() if name in given)
    if not text:
        raise Problem("LIP404", "`augment` names a change: flip, shift=PIXELS, or both", line.key.at)
    yield "augment", text
    if "views" in given:
        yield "views", Fraction(given["views"])


def _change(argument: ast.Argument) -> tuple[str, int]:
    """Return what an argument of `augment` is about, and its number; that of `flip` is 1."""
    value = argument.value
    named = argument.name or (value if isinstance(value, ast.Name) else None)
    name = named.text if named else ""
    if name not in CHANGES or (name == "flip") != (argument.name is None):
        message = "`augment` takes flip, shift=PIXELS and views=NUMBER"
        raise Problem("LIP404", message, value.at, "" if name in CHANGES else suggest(name, CHANGES))
    return name, 1 if name == "flip" else Scope().integer(value, f"`{name}`")


def _sampling(line: ast.TrainLine) -> Iterator[tuple[str, Setting]]:
    call = _called(line, SAMPLINGS)
    yield "sampling", call.name.text
    sizes = dict(_numbers(call.arguments, ("batch", "dataset"), line))
    if sizes.get("batch", 0) > sizes.get("dataset", math.inf):
        raise Problem("LIP404", "`batch` is larger than `dataset`, the number of examples", call.at)
    yield from sizes.items()


def _optimizer(line: ast.TrainLine) -> Iterator[tuple[str, Setting]]:
    call = _called(line, tuple(OPTIMIZERS))
    yield "optimizer", call.name.text
    yield from _numbers(call.arguments, OPTIMIZERS[call.name.text], line)


def _called(line: ast.TrainLine, choices: Sequence[str], words: Sequence[str] = ()) -> ast.Call:
    """Return the call; `words` are other values that the line may have, for the message."""
    value = line.values[0].value
    call = ast.Call(value, ()) if isinstance(value, ast.Name) else value
    if len(line.values) == 1 and isinstance(call, ast.Call) and call.name.text in choices:
        return call
    known = (*words, *choices)
    near = suggest(call.name.text, known) if isinstance(call, ast.Call) else ""
    raise Problem("LIP404", f"`{line.key.text}` is one of {', '.join(known)}", value.at, near)


_READERS: Mapping[str, Callable[[ast.TrainLine], Iterator[tuple[str, Setting]]]] = {
    "neighbours": _neighbours,
    "noise": _noise,
    "schedule": _schedule,
    "budget": _budget,
    "physical_batch": _physical_batch,
    "bounds": _bounds,
    "augment": _augment,
    "sampling": _sampling,
    "optimizer": _optimizer,
}

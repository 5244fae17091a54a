"""The words of .lip and what may be written in brackets behind them: of the grammar, and of the records of ops."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args, get_origin

from lipcompile.core.record import NoAttributes
from lipcompile.frontends.lip.layers import CONSTRAINTS, SUGAR, parameter_arguments
from lipcompile.frontends.lip.training import (
    CHANGES,
    CLIP_GROUPS,
    CORRELATIONS,
    NEIGHBOURS,
    NOISES,
    OPTIMIZERS,
    SAMPLINGS,
    SCHEDULES,
    SOURCES,
)
from lipcompile.ops.recurrent.cells import CELLS
from lipcompile.ops.recurrent.lip_layers import Recurrence
from lipcompile.ops.registry import layers
from lipcompile.ops.schema import fields_of
from lipcompile.ops.table import LOSS_BY_NAME, OP_BY_NAME

# Words that begin a declaration of a file or of a model, and statements with bodies.
OF_FILES = ("import", "block", "model", "train")
OF_MODELS = ("param", "input", "loss")
STATEMENTS = ("residual", "branch", "repeat", "frozen")
# Words with a meaning inside of a declaration.
OTHERS = ("norm", "trusted", "true", "false")
# The settings of `train`, and the words that each takes.
SETTINGS: Mapping[str, Sequence[str]] = {
    "neighbours": NEIGHBOURS,
    "sampling": SAMPLINGS,
    "noise": (*NOISES, *CORRELATIONS),
    "budget": ("epsilon", "delta", "epochs", "noise_multiplier"),
    "optimizer": tuple(OPTIMIZERS),
    "schedule": (*SCHEDULES, "average"),
    "physical_batch": (),
    "bounds": (*SOURCES, "groups", "length", "quantile"),
    "augment": CHANGES,
}
KEYWORDS = (*OF_FILES, *OF_MODELS, *STATEMENTS, *OTHERS, *SETTINGS)

# What merges branches, and a residual with the value above it.
MERGES = ("add", "mean", "maximum", "minimum", "multiply", "concat")
RESIDUALS = ("add", "mean", "convex")
KINDS = ("tensor", "tokens")
NUMBERS = ("int", "real")

# Words that arguments of parameters take; others take numbers.
_OF_PARAMETERS: Mapping[str, Sequence[str]] = {
    "constraint": tuple(CONSTRAINTS),
    "clip": ("automatic",),
    "start": ("zero",),
    "bias": ("true", "false"),
}


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument; `default` is None where it has to be given, `words` are those that it may be."""

    name: str
    default: str | None = None
    words: Sequence[str] = ()

    def __str__(self) -> str:
        return self.name if self.default is None else f"{self.name}={self.default}"


@dataclass(frozen=True, slots=True)
class Callable:
    """A layer, a loss or a setting that takes arguments; `text` says what it does."""

    name: str
    arguments: tuple[Argument, ...]
    text: str = ""

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.arguments))})" if self.arguments else self.name


@cache
def losses() -> Mapping[str, Callable]:
    """Return the losses by name."""
    return {
        name: Callable(name, _of_record(loss.attributes), _first_sentence(loss.attributes))
        for name, loss in LOSS_BY_NAME.items()
    }


def known_layers() -> Mapping[str, Callable]:
    """Return every layer by its spelling, those of registered ops too."""
    found = {}
    for name, (op, spelling) in layers().items():
        preset = {argument for argument, _ in spelling.preset}
        own = [argument for argument in _of_record(op.attributes) if argument.name not in preset]
        more = [Argument(argument, "…", _OF_PARAMETERS.get(argument, ())) for argument in parameter_arguments(op)]
        found[name] = Callable(name, (*own, *more), _first_sentence(op.attributes))
    return {**found, **{name: _sugar(name) for name in SUGAR}}


def calls_of_settings() -> Mapping[str, Callable]:
    """Return what may be called in the `train` block."""
    arguments = {
        **dict.fromkeys(SAMPLINGS, ("batch", "dataset")),
        **OPTIMIZERS,
        **{name: (number,) for name, number in CORRELATIONS.items()},
    }
    return {name: Callable(name, tuple(map(Argument, names))) for name, names in arguments.items()}


def words_of_setting(argument: str) -> Sequence[str]:
    """Return the words that a named argument of a setting takes."""
    return CLIP_GROUPS if argument == "groups" else ()


def _sugar(name: str) -> Callable:
    """Return a layer that stands for several nodes."""
    if name in CELLS:
        more = [argument for argument in parameter_arguments(OP_BY_NAME["dense"]) if argument != "start"]
        own = (*_of_record(Recurrence), *(Argument(one, "…", _OF_PARAMETERS.get(one, ())) for one in more))
        return Callable(name, own, _first_sentence(Recurrence))
    if name == "split":
        return Callable(
            name, (Argument("parts"), Argument("axis", "…")), "Equal parts along an axis, a name each."
        )
    return Callable(name, (Argument("file"),), "The layers of an ONNX file, not trained.")


def _of_record(record: Any) -> tuple[Argument, ...]:
    known = fields_of(record).items()
    return tuple(Argument(name, _default(default), _words(kind)) for name, (kind, default) in known)


def _default(value: object) -> str | None:
    if value is dataclasses.MISSING:
        return None
    return "…" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _words(kind: Any) -> tuple[str, ...]:
    if kind is bool:
        return ("true", "false")
    return tuple(str(word) for word in get_args(kind)) if get_origin(kind) is Literal else ()


def _first_sentence(record: type[Any]) -> str:
    """Return the first paragraph of what a record says of itself; nothing for one without attributes."""
    text = "" if record is NoAttributes else record.__doc__ or ""
    return " ".join(text.partition("\n\n")[0].split())

"""What the command line may say of any model, whatever its format, and what a front end returns."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, Protocol

from lipcompile import limits
from lipcompile.core.derivation import Source
from lipcompile.core.graph import ClipGroup, Graph, LossUse
from lipcompile.core.record import Constraint, Shape
from lipcompile.diagnostics import Diagnostic, InputError, input_error
from lipcompile.frontends.repairs import BatchNorm, Repairs
from lipcompile.limits import Limits
from lipcompile.numbers import Scalar
from lipcompile.ops.loss.names import loss_attributes, unknown_loss
from lipcompile.ops.schema import Argument, ArgumentError
from lipcompile.ops.table import LOSS_BY_NAME

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]


class OriginalError(Exception):
    """The original cannot be run, and the message says why."""


class Original(Protocol):
    """What a model was imported from, as something that computes without dropout: an import is held against it."""

    @property
    def runner(self) -> str:
        """Who computes it, for people."""

    @property
    def batch(self) -> int | None:
        """The only size of a batch that it takes; None if it takes any."""

    @property
    def precision(self) -> str:
        """The numbers that it computes with: float64, float32, float16 or bfloat16."""

    def __call__(self, x: Array) -> Array:
        """Map examples [B, *shape of the graph's input] to outputs [B, …]; raises OriginalError."""


# `keep`: the constraint of each imported weight is its own certified norm.
Keep = Literal["keep"]


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Options that override what a model file says; None means `as the file says`.

    input_shape: shapes of one example by the name of the input; the empty name stands for the only input. They fix
    sizes that an ONNX file leaves open, and are the examples that a torch module is traced with. torchs_reduction:
    that of a loss of torch, which counts classes along the first of several axes of outputs; empty for a named
    loss. repairs: how `fix` replaces refused layers. bounds: their source; clip_groups: what one clip bounds;
    clip_length: C; see `analysis.clips`.
    """

    input_norm: Scalar | None = None
    loss: str | None = None
    torchs_reduction: str = ""
    constraint: Constraint | Keep | None = None
    bias_bound: Fraction | None = None
    freeze: tuple[str, ...] = ()
    bindings: Mapping[str, Fraction] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    input_shape: Mapping[str, Shape] = field(default_factory=dict)
    repairs: Repairs | None = field(default=None, compare=False)
    bounds: Literal["theorem", "clip", "auto"] | None = None
    clip_groups: Literal["flat", "layers", "blocks"] | None = None
    clip_length: Fraction | Literal["automatic"] | None = None

    @property
    def clips_all(self) -> bool:
        """Whether all gradients are clipped of a model that declares no norm of its input, as torch modules do."""
        return self.bounds == "clip" or (self.bounds == "auto" and self.input_norm is None)

    @property
    def is_repaired(self) -> bool:
        """Whether something of the model was replaced, so that it does not compute what its original computes."""
        return self.repairs is not None and bool(self.repairs.made)

    def loss_of(self, output: Shape | None, text: str) -> LossUse:
        """Return the loss that a text declares of outputs of this shape; raises InputError (LIP210, LIP005)."""
        if self.torchs_reduction and len(output or ()) > 1 and text.startswith("cross_entropy"):
            total = f"{',' if ':' in text else ':'}reduce=sum" if self.torchs_reduction == "sum" else ""
            text = f"pixel_{text}{total}"
        return parse_loss(text)

    def apart(self) -> ModelOptions:
        """Return the same options with a list of fixes of its own, as an import fills in what it has fixed."""
        return replace(self, repairs=self.repairs and replace(self.repairs, made=[]))


Setting = str | Fraction | Mapping[str, str | Fraction]


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """The `train` block of a model: numbers by name, all optional (see the language reference).

    `correlation`, of the noise, is a mapping: its `kind`, and the numbers that were given with it.
    """

    settings: Mapping[str, Setting]


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a front end makes of a file. `graph` is None exactly if a diagnostic is an error.

    original: gives what was imported, as something that computes; None for a `.lip` file, and for a model of which
        something was replaced.
    computed: the stored tensors of which the model trains what an operator computes from them, and this operator.
    """

    source: Source
    graph: Graph | None
    diagnostics: tuple[Diagnostic, ...]
    training: TrainingPlan | None = None
    original: Callable[[], Original] | None = None
    computed: Mapping[str, str] = field(default_factory=dict)


def model_options(
    *,
    input_norm: Scalar | float | None = None,
    loss: str | None = None,
    constraint: str | None = None,
    bias_bound: float | Fraction | None = None,
    freeze: Sequence[str] = (),
    bounds: Literal["theorem", "clip", "auto"] | None = None,
    clip_groups: Literal["flat", "layers", "blocks"] | None = None,
    clip_length: float | Fraction | Literal["automatic"] | None = None,
    batch_norm: BatchNorm | None = None,
) -> ModelOptions:
    """Return the options of the command line, from values of Python.

    Args:
        input_norm: bound of the norm of one example, clipped to; read as the decimal that Python prints.
        loss, constraint, bias_bound, freeze, bounds, clip_groups, clip_length: as on the command line:
            "cross_entropy:temperature=10", "keep", "auto", "layers".
        batch_norm: what takes the place of batch normalisation in training mode: "group_norm", "center" or "fold";
            None: it is refused, as it mixes examples.

    Raises InputError (LIP005) for a value that means nothing.
    """
    options = ModelOptions(
        input_norm=None if input_norm is None else parse_number(str(input_norm), "input_norm"),
        loss=loss,
        constraint=None if constraint is None else parse_constraint(constraint),
        bias_bound=None if bias_bound is None else parse_number(str(bias_bound), "bias_bound"),
        freeze=tuple(freeze),
        bounds=bounds,
        clip_groups=clip_groups,
        clip_length=None if clip_length is None else parse_length(str(clip_length)),
    )
    return (
        options
        if batch_norm is None
        else replace(options, repairs=Repairs(batch_norm, with_eps=options.clips_all, unties=False))
    )


def parse_length(text: str) -> Fraction | Literal["automatic"]:
    """Read the length of a clip: `automatic` or a number; raises InputError (LIP005)."""
    if text == "automatic":
        return "automatic"
    length = None
    with suppress(InputError):
        length = parse_number(text, "--clip-length")
    if length is None or not ClipGroup.has_length(length):
        message = f"--clip-length {text}: gradients are clipped to a length from 1e-9 to 1e9"
        raise input_error("LIP005", message, "use a number such as 0.5, or automatic")
    return length


def parse_constraint(text: str) -> Constraint | Keep:
    """Read `spectral:1.0`, `orthogonal`, `frobenius:2` or `keep`; raises InputError (LIP005)."""
    kind, _, bound = text.partition(":")
    if text == "keep":
        return "keep"
    if kind == "orthogonal" and not bound:
        return Constraint("orthogonal", Fraction(1))
    if kind == "spectral" or (kind == "frobenius" and bound):
        return Constraint(
            "spectral" if kind == "spectral" else "frobenius", parse_number(bound or "1", "--constraint")
        )
    raise input_error(
        "LIP005", f"`{text}` is no constraint", "use spectral:1.0, orthogonal, frobenius:2.0 or keep"
    )


def parse_number(text: str, option: str) -> Fraction:
    """Read a non-negative decimal number exactly; raises InputError (LIP005)."""
    try:
        value = limits.exact(text, option)
    except (ValueError, ZeroDivisionError):
        raise input_error("LIP005", f"{option}: `{text}` is not a number") from None
    if value < 0:
        raise input_error("LIP005", f"{option}: `{text}` is negative")
    return value


def parse_shape(text: str) -> tuple[str, Shape]:
    """Read `3,32,32` or `name=3,32,32`: the input, empty if it is not named, and its shape; raises InputError."""
    name, equals, sizes = text.rpartition("=")
    parts = [part.strip() for part in sizes.removesuffix(",").split(",")]
    if (equals and not name.strip()) or not all(_SIZE.fullmatch(part) for part in parts):
        help_line = "give the sizes of one example, without the batch: --input-shape 3,32,32"
        raise input_error("LIP005", f"--input-shape: `{text}` is no shape", help_line)
    return name.strip(), tuple(map(int, parts))


_SIZE = re.compile(r"0*[1-9]\d{0,9}", re.ASCII)


def parse_loss(text: str) -> LossUse:
    """Read `name` or `name:argument=value,…`, tuples in parentheses; raises InputError (LIP210, LIP005)."""
    name, _, rest = text.partition(":")
    if name not in LOSS_BY_NAME:
        raise input_error("LIP210", f"unknown loss `{name}`", unknown_loss(name))
    loss = LOSS_BY_NAME[name]
    pairs = [part.partition("=") for part in _arguments(rest)]
    try:
        named = {key.strip(): _loss_argument(value.strip()) for key, _, value in pairs}
        return LossUse(loss, loss_attributes(loss, (), named))
    except ArgumentError as error:
        raise input_error("LIP005", f"loss `{name}`: {error.message}", error.help) from None


def _arguments(text: str) -> list[str]:
    """Split at the commas outside of parentheses, which do not nest."""
    parts: list[str] = []
    for index, piece in enumerate(re.split(r"(\([^()]*\))", text)):
        first, *rest = [piece] if index % 2 else piece.split(",")
        parts = [*parts[:-1], parts[-1] + first, *rest] if parts else [first, *rest]
    return [part for part in parts if part]


def _loss_argument(text: str) -> Argument:
    if text in ("true", "false"):
        return text == "true"
    if text.startswith("(") and text.endswith(")"):
        return tuple(_entry(part.strip()) for part in text[1:-1].split(",") if part.strip())
    return _entry(text)


def _entry(text: str) -> Argument:
    if text.startswith("-"):
        return -parse_number(text[1:], "--loss")
    return text if text.isidentifier() else parse_number(text, "--loss")


__all__ = [
    "InputError",
    "Keep",
    "Loaded",
    "ModelOptions",
    "TrainingPlan",
    "model_options",
    "parse_constraint",
    "parse_loss",
    "parse_shape",
]

"""The record of an op: everything the compiler may know about it. Every field is required.

Shapes are those of one example: the batch axis does not exist here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import prod
from typing import Any, Generic, Literal, Protocol, TypeVar

from lipcompile.diagnostics import Refusal
from lipcompile.numbers import N, Numbers, Scalar, text

A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)
A_contra = TypeVar("A_contra", contravariant=True)
Shape = tuple[int, ...]
ConstraintKind = Literal["spectral", "orthogonal", "frobenius", "ball", "box", "rows", "free"]
Measure = Literal["row", "entry"]
Takes = Literal["reals", "tokens", "any", "either"]
# Numbers of tokens: one, or one for each entry of an example, in order.
Vocabulary = int | tuple[int, ...]
AxisOrder = Literal["kept", "channels", "placed"]


@dataclass(frozen=True, slots=True)
class Constraint:
    """A set of allowed values of one parameter.

    spectral: certified operator norm of the layer's linear map <= bound. orthogonal: as spectral(1), and the
    projection drives the singular values towards 1. frobenius: root sum of squares of the stored tensor <= bound.
    ball: the same for a bias. box: every entry within ±bound. rows: every row (last axis) of norm <= bound.
    free: any finite tensor; its bound is read by no rule. `method` says of what description of an imported map the
    bound was certified, where the weights gave it.
    """

    kind: ConstraintKind
    bound: Scalar
    method: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        """Raise ValueError for an orthogonal constraint of another radius: no projection enforces it."""
        if self.kind == "orthogonal" and self.bound != 1:
            raise ValueError("an orthogonal constraint has bound 1")

    def __str__(self) -> str:
        if self.kind in ("orthogonal", "free"):
            return self.kind
        return f"{_MEASURED.get(self.kind, self.kind)}<={text(self.bound)}"


FREE = Constraint("free", Fraction(0))

# What a constraint's bound bounds, where the kind does not say it.
_MEASURED = {"ball": "norm", "box": "max entry", "rows": "max row norm"}


@dataclass(frozen=True, slots=True)
class Extent(Generic[N]):
    """What is known of a tensor: bounds of its norm X, of its largest row norm R and of its largest entry |M|.

    A row is a vector along the last axis. Always M <= R <= X for the bounded quantities, so X may stand for all
    three; R and M are derived only in graphs with an op that `reads` them.
    """

    norm: N
    row: N
    entry: N


@dataclass(frozen=True, slots=True)
class Site(Generic[A_co]):
    """One use of an op: its attributes and the shapes around it."""

    attributes: A_co
    inputs: tuple[Shape, ...]
    output: Shape

    @property
    def entries(self) -> int:
        """Number of entries of the output."""
        return prod(self.output)


# What rules take beside the site: the extents of the inputs, in order, and the bounds of the parameters, by role.
Inputs = Sequence[Extent[N]]
Theta = Mapping[str, N]


class ShapeRule(Protocol[A_contra]):
    """Output shape from input shapes; raises `Refusal` where the op does not apply."""

    def __call__(self, attributes: A_contra, inputs: tuple[Shape, ...], /) -> Shape: ...


class NormRule(Protocol[A_contra]):
    """X_out: a bound of ‖output‖ from the extents `x` of the inputs and the bounds `theta` of the parameters.

    The rules of R_out (largest row norm), M_out (largest entry) and κ have the same form.
    """

    def __call__(self, num: Numbers[N], site: Site[A_contra], x: Inputs[N], theta: Theta[N], /) -> N: ...


class LipschitzRule(Protocol[A_contra]):
    """l_i: a Lipschitz constant per input, on the domain that `x` describes."""

    def __call__(self, num: Numbers[N], site: Site[A_contra], x: Inputs[N], theta: Theta[N], /) -> Sequence[N]: ...


class CotangentRule(Protocol[A_contra]):
    """G_in: what the backward pass hands to each input, given G_out and the Lipschitz constants."""

    def __call__(
        self, num: Numbers[N], site: Site[A_contra], cotangent: N, lipschitz: Sequence[N], /
    ) -> Sequence[N]: ...


class OperatorNormRule(Protocol[A_contra]):
    """The bound that a constraint on the stored tensor puts on what the rules call u (weights) or B (biases)."""

    def __call__(self, num: Numbers[N], site: Site[A_contra], constraint: Constraint, /) -> N: ...


KappaRule = NormRule
"""κ: ‖∂ℓ/∂parameter‖ <= κ · ‖∂ℓ/∂output‖."""

# Counts and squared norms, exact: a number, or one for each axis or operand.
Condition = int | Fraction | tuple[int | Fraction, ...]


class ConditionsRule(Protocol[A_contra]):
    """The exact numbers that the rules rest on at a site, by name, so that people can follow a derivation."""

    def __call__(self, site: Site[A_contra], /) -> Mapping[str, Condition]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterRule(Generic[A]):
    """A trainable tensor of an op.

    `argument` is the argument of a .lip layer that declares the constraint: "constraint" (a set), "bias" or
    "bound" (a number: the radius of the first kind); None for a `free` parameter. An optional parameter exists
    only if its argument is given; the others have radius 1 by default.

    is_matrix: whether the op reads the stored tensor as a matrix alone, so that other ops may read it as well.
    """

    role: str
    argument: Literal["constraint", "bias", "bound"] | None
    shape: Callable[[A, tuple[Shape, ...]], Shape]
    constraints: tuple[ConstraintKind, ...]
    operator_norm: OperatorNormRule[A]
    kappa: KappaRule[A]
    optional: bool
    is_matrix: bool = False

    def may_share(self, other: ParameterRule[Any], kind: ConstraintKind) -> bool:
        """Whether one stored tensor with this constraint may be this parameter and that of another op."""
        return all(rule.is_matrix and kind in (*rule.constraints, "free") for rule in (self, other))

    @property
    def is_constrained(self) -> bool:
        """Whether rules read a bound of this parameter, which a constraint gives."""
        return self.constraints != ("free",)


def scaled_by_lipschitz(num: Numbers[N], site: Site[Any], cotangent: N, lipschitz: Sequence[N]) -> Sequence[N]:
    """G_in = l·G_out, the chain rule: ‖Jᵀg‖ <= ‖J‖‖g‖."""
    return [factor * cotangent for factor in lipschitz]


def draws_nothing(attributes: object) -> bool:
    """Whether an op draws random numbers: most ops never do."""
    return False


@dataclass(frozen=True, slots=True)
class Spelling:
    """A name of an op in .lip; `rank` spatial axes, where the name fixes them; `preset` arguments it fills in."""

    name: str
    rank: int | None = None
    preset: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Op(Generic[A]):
    """An op and all its rules. `proof` is `file.md#anchor` beside the rules. The last three may be left out.

    takes: what its operands hold: tokens are whole numbers that select rows, of the model's input or of a part of
        it. An op that takes any moves entries about, and its output holds what its operand holds. One that takes
        either makes real numbers of both.
    norm, row, entry: bounds of the output. None where nothing better than the norm is known.
    reads: the measures beside the norm that its norm, Lipschitz and κ rules read of the operands.
    lipschitz: None if the op is not Lipschitz: then no trainable parameter may stand upstream of it (R3).
    parts: whether the cotangents of the operands are parts of the output's: Σ‖g_i/l_i‖² <= ‖g‖².
    conditions: what certificates say of how the rules came by their constants; None for nothing.
    draws: whether it draws random numbers in training, with these attributes.
    axes: which axis of the output is which: as in the operand, the channels first, or as the op places them.
    any_size: whether its layer serves operands of several sizes, where its parameters have no constraint, or one
        that holds at any size.
    """

    name: str
    attributes: type[A]
    operands: tuple[int, int | None]
    takes: Takes
    shape: ShapeRule[A]
    norm: NormRule[A]
    row: NormRule[A] | None
    entry: NormRule[A] | None
    reads: tuple[Measure, ...]
    lipschitz: LipschitzRule[A] | None
    cotangent: CotangentRule[A]
    parts: bool
    parameters: tuple[ParameterRule[A], ...]
    dsl: tuple[Spelling, ...]
    proof: str
    conditions: ConditionsRule[A] | None = None
    draws: Callable[[A], bool] = draws_nothing
    axes: AxisOrder = "kept"
    any_size: bool = False

    def parameter(self, role: str) -> ParameterRule[A]:
        """Return the rule of the parameter with this role; raises KeyError."""
        for rule in self.parameters:
            if rule.role == role:
                return rule
        raise KeyError(role)


AnyOp = Op[Any]


class LossLipschitzRule(Protocol[A_contra]):
    """L: a Lipschitz constant of the loss of one example in its logits, of this shape and extent."""

    def __call__(self, num: Numbers[N], attributes: A_contra, shape: Shape, logits: Extent[N], /) -> N: ...


@dataclass(frozen=True, slots=True)
class Loss(Generic[A]):
    """A loss of one example and its rule. `check` raises `Refusal` if the logits have the wrong shape.

    reads: the measures beside the norm that the rule reads of the logits; none by default.
    """

    name: str
    attributes: type[A]
    check: Callable[[A, Shape], None]
    lipschitz: LossLipschitzRule[A]
    target: str
    proof: str
    reads: tuple[Measure, ...] = ()


AnyLoss = Loss[Any]


@dataclass(frozen=True, slots=True)
class NoAttributes:
    """The attributes of an op that has none."""


CLASS_OF_TOKEN = "a class index a token"
CLASS_OF_PIXEL = "a class index a pixel"


def class_axis(loss: AnyLoss) -> int:
    """Return the axis of an example's logits that the classes are along."""
    return 0 if loss.target == CLASS_OF_PIXEL else -1


def refuse_channels_first(loss: AnyLoss, logits: Shape, by: AnyOp | None) -> None:
    """Refuse a table of logits whose first axis has the classes; by: the op that decided its axes."""
    if loss.target != CLASS_OF_TOKEN or by is None or by.axes != "channels":
        return
    message = f"this loss reads classes from the last axis of {list(logits)}, but `{by.name}` has channels first"
    raise Refusal("LIP211", message, "use pixel_cross_entropy, which reads them from the first axis")

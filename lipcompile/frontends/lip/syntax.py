"""The syntax tree of .lip, as the parser yields it: what was written and where, nothing resolved."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from lipcompile.diagnostics import Location
from lipcompile.numbers.scalar import Operator


@dataclass(frozen=True, slots=True)
class Name:
    """An identifier."""

    text: str
    at: Location


@dataclass(frozen=True, slots=True)
class Constant:
    """A number, a truth value or a string."""

    value: Fraction | bool | str
    at: Location


@dataclass(frozen=True, slots=True)
class Tuple:
    """Several expressions in parentheses."""

    items: tuple[Expression, ...]
    at: Location


@dataclass(frozen=True, slots=True)
class Binary:
    """An operation on two expressions."""

    operator: Operator
    left: Expression
    right: Expression
    at: Location


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a call; `name` is None for a positional one."""

    name: Name | None
    value: Expression


@dataclass(frozen=True, slots=True)
class Call:
    """A name with arguments: a layer, a constraint, a loss, a setting."""

    name: Name
    arguments: tuple[Argument, ...]

    @property
    def at(self) -> Location:
        """Where the name stands."""
        return self.name.at


Expression = Name | Constant | Tuple | Binary | Call


@dataclass(frozen=True, slots=True)
class Residual:
    """The value above, merged with what the body makes of it."""

    merge: Call
    body: tuple[Statement, ...]
    at: Location


@dataclass(frozen=True, slots=True)
class Branch:
    """Several bodies on the value above, merged."""

    bodies: tuple[tuple[Statement, ...], ...]
    merge: Call
    at: Location


@dataclass(frozen=True, slots=True)
class Repeat:
    """A body applied `count` times, with parameters of its own each time."""

    count: Expression
    body: tuple[Statement, ...]
    at: Location


@dataclass(frozen=True, slots=True)
class Frozen:
    """A body whose parameters are not trained."""

    body: tuple[Statement, ...]
    at: Location


Layer = Call | Residual | Branch | Repeat | Frozen


@dataclass(frozen=True, slots=True)
class Statement:
    """A layer, with the names that its results get."""

    targets: tuple[Name, ...]
    layer: Layer


@dataclass(frozen=True, slots=True)
class Param:
    """`param name: kind = value`."""

    name: Name
    kind: Name
    value: Expression | None


@dataclass(frozen=True, slots=True)
class InputLine:
    """`input name: kind[shape], norm <= bound, trusted`; the kind is tensor or tokens."""

    name: Name
    kind: Name
    shape: tuple[Expression, ...]
    norm: Expression | None
    trusted: bool


@dataclass(frozen=True, slots=True)
class LossLine:
    """`loss name(arguments)`."""

    call: Call


Item = Param | InputLine | LossLine | Statement


@dataclass(frozen=True, slots=True)
class Block:
    """A template of layers."""

    name: Name
    parameters: tuple[tuple[Name, Expression | None], ...]
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Model:
    """A model."""

    name: Name
    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class TrainLine:
    """One line of the `train` block."""

    key: Name
    values: tuple[Argument, ...]


@dataclass(frozen=True, slots=True)
class File:
    """A source file."""

    models: tuple[Model, ...]
    blocks: tuple[Block, ...]
    training: tuple[TrainLine, ...]
    imports: tuple[Constant, ...]

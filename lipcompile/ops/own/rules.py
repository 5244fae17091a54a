"""A network that is a function of Python, of one example and its copies of the parameters. Proofs: own.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lipcompile.core.record import AnyOp, Shape
from lipcompile.ops.rules import plain, unbounded


@dataclass(frozen=True, slots=True)
class Zeros:
    """The shape of the output, whatever the operand has: zeros, which a bias makes a copy of a parameter."""

    size: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OwnNetwork:
    """The shape of the output, and what the first operands hold: n of whole numbers below n, 0 of real numbers."""

    size: tuple[int, ...]
    tokens: tuple[int, ...]


def given_shape(attributes: Zeros | OwnNetwork, inputs: tuple[Shape, ...]) -> Shape:
    """The shape that the attributes say."""
    return attributes.size


def always(attributes: OwnNetwork) -> bool:
    """Nobody knows what a function draws."""
    return True


def _record(name: str, attributes: type[Any], operands: tuple[int, int | None], **others: Any) -> AnyOp:
    return plain(
        name,
        attributes,
        given_shape,
        f"own.md#{name.replace('_', '-')}",
        takes="either",
        norm=unbounded,
        lipschitz=None,
        operands=operands,
        dsl=(),
        axes="placed",
        **others,
    )


ZEROS = _record("zeros", Zeros, (1, 1))
OWN_NETWORK = _record("own_network", OwnNetwork, (1, None), draws=always)
OPS: tuple[AnyOp, ...] = (ZEROS, OWN_NETWORK)

"""The model that is asked about: what of it can be written differently, and how much each parameter matters."""

from __future__ import annotations

import decimal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

from lipcompile.analysis.changes.edit import Edit
from lipcompile.core.graph import Graph, Node, Parameter
from lipcompile.core.record import AnyOp, Constraint, ParameterRule
from lipcompile.numbers import Scalar, combine, text
from lipcompile.ops.merge.rules import SUM

HALF = Fraction(1, 2)
# A suggested number is as long as its source, or of so many digits, rounded down.
_DIGITS = 4


@dataclass(frozen=True)
class Subject:
    """A graph, K/√ΣK² of each trained parameter, and the constant L of its loss, infinite where it is unknown."""

    graph: Graph
    relative: Mapping[str, float]
    loss_lipschitz: float

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """Nodes that a model's author wrote one by one: not loops, nor what one recurrent layer stands for."""
        ops: dict[object, set[str]] = {}
        for node in self.graph.nodes:
            ops.setdefault(place_of(node), set()).add(node.op.name)
        return tuple(node for node in self.graph.nodes if node.op.name != "loop" and len(ops[place_of(node)]) == 1)

    @cached_property
    def skips(self) -> Mapping[str, int]:
        """Residual sums, by name: which of the two operands is what every path to the sum passes."""
        pairs = [node for node in self.nodes if node.op is SUM and len(set(node.inputs)) == 2]
        if not pairs:
            return {}
        import networkx as nx  # here, because most models need it nowhere

        above = nx.immediate_dominators(self.graph.networkx(), self.graph.input.name)
        return {
            node.name: node.inputs.index(above[node.name]) for node in pairs if above[node.name] in node.inputs
        }

    @cached_property
    def owners(self) -> Mapping[str, Node]:
        """The first node that uses each parameter."""
        return self.graph.owners()

    def trained(self, *arguments: str) -> Iterator[tuple[Node, list[tuple[Parameter, ParameterRule[Any]]]]]:
        """Yield the trained parameters that these arguments constrain, with the first node that uses them."""
        found: dict[str, list[tuple[Parameter, ParameterRule[Any]]]] = {}
        for name, parameter in self.graph.parameters.items():
            owner = self.owners[name]
            rule = owner.op.parameter(next(role for role, own in owner.parameters.items() if own == name))
            if parameter.trainable and rule.argument in arguments:
                found.setdefault(owner.name, []).append((parameter, rule))
        for node in self.graph.nodes:
            if node.name in found:
                yield node, found[node.name]

    def place(self, edit: Edit) -> object:
        """Return where an edit is made: that of the first node that it touches, None if it touches none."""
        return next((place_of(node) for node in self._touched(edit)), None)

    def rank(self, edit: Edit) -> int:
        """Return the place of an edit's node in `layers`, or their number if it has no trained parameters."""
        last = len(self._ranks)
        return min((self._ranks.get(node.name, last) for node in self._touched(edit)), default=last)

    def _touched(self, edit: Edit) -> Iterator[Node]:
        for name in edit.patch.nodes:
            yield self._named[name]
        for name in edit.patch.parameters:
            yield self.owners[name]

    @cached_property
    def _ranks(self) -> Mapping[str, int]:
        return {name: rank for rank, name in enumerate(self.layers)}

    @cached_property
    def _named(self) -> Mapping[str, Node]:
        return {node.name: node for node in self.graph.nodes}

    @cached_property
    def layers(self) -> Mapping[str, float]:
        """The share of each layer's parameters in ΣK², the largest first."""
        found: dict[str, float] = {}
        for name, relative in self.relative.items():
            layer = self.owners[name].name
            found[layer] = found.get(layer, 0.0) + relative**2
        return dict(sorted(found.items(), key=lambda item: -item[1]))


def halved(value: Scalar) -> Scalar:
    """Return half of a number; rounded down to a few digits where it has many."""
    half = combine("*", value, HALF)
    return rounded_down(half) if isinstance(half, Fraction) and not _is_short(half) else half


def rounded_down(value: Fraction, digits: int = _DIGITS) -> Fraction:
    """Return the largest decimal of so many digits that is not above a non-negative number."""
    return Fraction(_decimal(value, digits, decimal.ROUND_DOWN))


def shown(value: Scalar) -> str:
    """Return a number for the eye, long ones to four digits."""
    if not isinstance(value, Fraction) or _is_short(value):
        return text(value)
    return f"{_decimal(value, _DIGITS, decimal.ROUND_HALF_EVEN):g}"


def _decimal(value: Fraction, digits: int, rounding: str) -> decimal.Decimal:
    return decimal.Context(prec=digits, rounding=rounding).divide(value.numerator, value.denominator)


def _is_short(value: Fraction) -> bool:
    return len(text(value)) <= _DIGITS + 2


def in_lip(constraint: Constraint) -> str:
    """Return a constraint of a weight as .lip spells it."""
    return "orthogonal" if constraint.kind == "orthogonal" else f"{constraint.kind}({shown(constraint.bound)})"


def per_axis(values: tuple[int, ...]) -> str:
    """Return one number where all axes have the same, else a tuple."""
    return str(values[0]) if len(set(values)) == 1 else str(values)


def layer_in_lip(op: AnyOp, axes: int) -> str:
    """Return the name of a layer in .lip; `axes` are its spatial ones."""
    names = [spelling.name for spelling in op.dsl if spelling.rank in (None, axes)]
    return names[0] if names else op.name


def place_of(node: Node) -> object:
    """Return where a layer is written: copies of a `repeat`, and of a block, are written in one place."""
    at = node.location
    return node.name if at is None or at.line is None else (at.file, at.line, at.column)

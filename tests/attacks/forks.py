"""Small graphs of linear blocks that fork and meet again."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from lipcompile.core.graph import Graph, GraphBuilder, LossUse, ParameterChoice, Value
from lipcompile.core.record import Constraint
from lipcompile.ops.linear.rules import Dense
from lipcompile.ops.loss.rules import Hinge
from lipcompile.ops.merge.rules import Concat, Sum
from lipcompile.ops.shape.rules import ClipGradient, Slice
from lipcompile.ops.table import LOSS_BY_NAME, OP_BY_NAME

WIDTH = 4


@dataclass
class Net:
    """Values of a graph on x [4], ‖x‖ <= 1; every block is dense, of its own weight with a given norm."""

    builder: GraphBuilder = field(default_factory=lambda: GraphBuilder("net"))
    x: Value = field(init=False)

    def __post_init__(self) -> None:
        self.x = self.builder.input("x", (WIDTH,), Fraction(1), False, None)

    def add(self, op: str, attributes: Any, *inputs: Value, **parameters: ParameterChoice) -> Value:
        return self.builder.add(OP_BY_NAME[op], attributes, inputs, name=op, parameters=parameters)

    def block(self, x: Value, norm: float = 1, features: int = WIDTH, shared: str | None = None) -> Value:
        choice = ParameterChoice(Constraint("spectral", Fraction(norm)), shared=shared)
        return self.add("dense", Dense(features), x, weight=choice)

    def concat(self, *inputs: Value) -> Value:
        return self.add("concat", Concat(0), *inputs)

    def plus(self, *inputs: Value) -> Value:
        return self.add("add", Sum((Fraction(1),) * len(inputs)), *inputs)

    def clip(self, x: Value, bound: float) -> Value:
        return self.add("clip_gradient", ClipGradient(Fraction(bound)), x)

    def pieces(self, x: Value, *stops: int) -> list[Value]:
        """Disjoint slices that end at `stops`."""
        starts = (0, *stops[:-1])
        return [self.add("slice", Slice(0, a, b), x) for a, b in zip(starts, stops, strict=True)]

    def graph(self, output: Value, *, one: bool = False) -> Graph:
        """With `one`, a last dense layer of norm 1 makes one logit of it, for a loss of constant 1."""
        if not one:
            found = self.builder.finish(output, None)
        else:
            found = self.builder.finish(self.block(output, features=1), LossUse(LOSS_BY_NAME["hinge"], Hinge()))
        assert found is not None, self.builder.diagnostics
        return found

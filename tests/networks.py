"""Networks that several tests build, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from lipcompile.analysis.bounds import Bounds, derive
from lipcompile.core.graph import Graph, GraphBuilder, LossUse, ParameterChoice, Value
from lipcompile.core.record import Constraint, NoAttributes, Shape
from lipcompile.numbers import Scalar
from lipcompile.numbers.certified import Certified, Interval
from lipcompile.ops.activation.rules import GroupSort
from lipcompile.ops.conv.rules import Conv
from lipcompile.ops.linear.rules import Dense
from lipcompile.ops.loss.rules import CrossEntropy
from lipcompile.ops.merge.rules import Sum
from lipcompile.ops.pool.rules import Pool
from lipcompile.ops.table import LOSS_BY_NAME, OP_BY_NAME

ONE = Fraction(1)
UNIT = Constraint("spectral", ONE)


@dataclass
class Network:
    """Builds a chain; every method adds to the tensor that the one before it made, and returns it."""

    shape: Shape
    norm: Scalar | None = ONE
    bias: Fraction | None = None
    weight: Constraint = UNIT
    builder: GraphBuilder = field(default_factory=lambda: GraphBuilder("network"))
    end: Value = field(init=False)

    def __post_init__(self) -> None:
        self.end = self.builder.input("x", self.shape, self.norm, False, None)

    def add(self, op: str, attributes: Any, *inputs: Value, **parameters: ParameterChoice) -> Value:
        self.end = self.builder.add(
            OP_BY_NAME[op], attributes, inputs or (self.end,), name=op, parameters=parameters
        )
        return self.end

    def weights(self, shared: str | None = None) -> dict[str, ParameterChoice]:
        chosen = {"weight": ParameterChoice(self.weight, shared=shared)}
        if self.bias is not None:
            chosen["bias"] = ParameterChoice(Constraint("ball", self.bias))
        return chosen

    def dense(self, features: int, shared: str | None = None) -> Value:
        return self.add("dense", Dense(features), **self.weights(shared))

    def conv(self, channels: int, stride: int = 1) -> Value:
        """A 3×3 convolution with one zero around the image."""
        pair = (stride, stride)
        return self.add("conv", Conv(channels, (3, 3), pair, ((1, 1), (1, 1)), (1, 1)), **self.weights())

    def sort(self) -> Value:
        return self.add("groupsort", GroupSort(2))

    def pool(self) -> Value:
        return self.add("l2_pool", Pool((2, 2), (2, 2), ((0, 0), (0, 0)), (1, 1)))

    def flatten(self) -> Value:
        return self.add("flatten", NoAttributes())

    def residual(self, features: int) -> Value:
        """x + GroupSort2(dense(x))."""
        start = self.end
        self.dense(features)
        return self.add("add", Sum((ONE, ONE)), start, self.sort())

    def finish(self, loss: str | None = "cross_entropy", attributes: Any = None) -> Graph:
        use = None if loss is None else LossUse(LOSS_BY_NAME[loss], attributes or CrossEntropy())
        graph = self.builder.finish(self.end, use)
        assert graph is not None, self.builder.diagnostics
        return graph


def certified(graph: Graph) -> Bounds[Interval]:
    return derive(graph, Certified())


def gradient_bounds(graph: Graph) -> list[float]:
    """K of every parameter, in the order of their first use."""
    return [bound.upper for bound in certified(graph).gradient.values()]

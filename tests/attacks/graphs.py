"""Random small graphs, and an interpreter of graphs that shares no code with the compiler's rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import prod
from random import Random
from typing import Any

from torch import Tensor

from lipcompile.core.graph import Graph, GraphBuilder, LossUse, ParameterChoice, Value
from lipcompile.core.record import Constraint, NoAttributes
from lipcompile.ops.activation.rules import GroupSort, LeakyReLU
from lipcompile.ops.conv.rules import Conv
from lipcompile.ops.counting import Mode
from lipcompile.ops.linear.rules import BiasShape, Dense
from lipcompile.ops.merge.rules import Concat, Sum, Where
from lipcompile.ops.pool.rules import AveragePool
from lipcompile.ops.reduce.rules import GlobalPool
from lipcompile.ops.shape.rules import ClipGradient, ClipNorm, Dropout, Reshape, Slice
from lipcompile.ops.table import LOSS_BY_NAME, OP_BY_NAME

from .catalogue import ATTACKS, LOSS_ATTACKS
from .draw import Draw
from .families.losses import image, one, table

NO = NoAttributes()


@dataclass
class Maker:
    """Grows one random graph."""

    draw: Draw
    builder: GraphBuilder = field(default_factory=lambda: GraphBuilder("random"))

    def add(self, op: str, attributes: Any, *inputs: Value, **parameters: ParameterChoice) -> Value:
        return self.builder.add(OP_BY_NAME[op], attributes, inputs, name=op, parameters=parameters)

    def parameters(self, shared: str | None = None) -> dict[str, ParameterChoice]:
        """Choose constraints around 1, so that depth neither kills nor blows up the gradients."""
        rng = self.draw.rng
        weight = Constraint(rng.choice(("spectral", "orthogonal", "frobenius")), Fraction(1))
        if weight.kind != "orthogonal":
            weight = Constraint(weight.kind, Fraction(rng.randint(4, 12), 8))
        bias = Constraint("ball", Fraction(rng.randint(1, 8), 8))
        chosen = {"weight": ParameterChoice(weight, trainable=rng.random() < 0.9, shared=shared)}
        return chosen | ({"bias": ParameterChoice(bias)} if rng.random() < 0.5 else {})

    def dense(self, x: Value, features: int) -> Value:
        return self.add("dense", Dense(features), x, **self.parameters())

    def conv(self, x: Value) -> Value:
        modes: tuple[Mode, ...] = ("zeros", "circular", "reflect", "replicate")
        mode = self.draw.rng.choice(modes)
        attributes = Conv(2, (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), padding_mode=mode)
        return self.add("conv", attributes, x, **self.parameters())

    def activation(self, x: Value) -> Value:
        name = self.draw.rng.choice(("groupsort", "relu", "tanh", "sigmoid", "softplus", "abs", "leaky_relu"))
        attributes = {"groupsort": GroupSort(2, 0), "leaky_relu": LeakyReLU(Fraction(-3, 2))}.get(name, NO)
        return self.add(name, attributes, x)

    def clip(self, x: Value) -> Value:
        if self.draw.rng.random() < 0.5:
            return self.add("clip_norm", ClipNorm(self.draw.fraction()), x)
        return self.add("clip_gradient", ClipGradient(self.draw.fraction()), x)

    def residual(self, x: Value) -> Value:
        """α·x + β·block(x)."""
        weights = tuple(Fraction(self.draw.rng.choice((-4, 2, 3, 4)), 4) for _ in range(2))
        return self.add("add", Sum(weights), x, self.activation(self.dense(x, size(x))))

    def branches(self, x: Value) -> Value:
        half = size(x) // 2
        return self.add("concat", Concat(0), self.dense(x, half), self.activation(self.dense(x, half)))

    def nested(self, x: Value) -> Value:
        """A fork in a fork; one of its branches may be read twice."""
        first, second = self.dense(x, 2), self.activation(self.dense(x, 2))
        inner = self.add("concat", Concat(0), first, second)
        last = inner if self.draw.rng.random() < 0.3 else self.activation(self.dense(x, 2))
        joined = self.add("concat", Concat(0), *((inner, last) if self.draw.rng.random() < 0.5 else (last, inner)))
        again = joined if self.draw.rng.random() < 0.5 else self.add("concat", Concat(0), joined, first)
        return self.dense(again, 4)

    def extremes(self, x: Value) -> Value:
        """The largest or smallest of branches, of which one may be the fork itself."""
        others = [self.activation(self.dense(x, size(x))) for _ in range(self.draw.rng.randint(1, 2))]
        first = x if self.draw.rng.random() < 0.3 else self.dense(x, size(x))
        return self.add(self.draw.rng.choice(("maximum", "minimum")), NO, first, *others)

    def selection(self, x: Value) -> Value:
        mask = tuple(self.draw.rng.random() < 0.5 for _ in range(size(x)))
        return self.add("where", Where(mask), self.activation(x), self.dense(x, size(x)))

    def gate(self, x: Value) -> Value:
        """A product with a gate per entry or for all of them; or the square of a bounded value."""
        if self.draw.rng.random() < 0.2:
            bounded = self.add("tanh", NO, self.dense(x, size(x)))
            return self.add("multiply", NO, bounded, bounded)
        gate = self.add("sigmoid", NO, self.dense(x, self.draw.rng.choice((1, size(x)))))
        value = x if self.draw.rng.random() < 0.5 else self.activation(self.dense(x, size(x)))
        return self.add("multiply", NO, *((value, gate) if self.draw.rng.random() < 0.5 else (gate, value)))

    def pieces(self, x: Value) -> Value:
        """Blocks on two or more disjoint slices, which come together in one merge or one after the other."""
        count = self.draw.rng.randint(2, min(size(x), 4))
        width = size(x) // count
        slices = [self.add("slice", Slice(0, i * width, (i + 1) * width), x) for i in range(count)]
        blocks = [self.activation(self.dense(piece, 2)) for piece in slices]
        merge = self.draw.rng.choice(("concat", "concat", "add", "maximum"))
        if self.draw.rng.random() < 0.5:
            blocks = [self.merged(merge, blocks[:2]), *blocks[2:]]
            merge = "concat"
        return self.dense(self.merged(merge, blocks), 4)

    def merged(self, merge: str, values: Sequence[Value]) -> Value:
        if len(values) == 1:
            return values[0]
        attributes = {"concat": Concat(0), "add": Sum((Fraction(1),) * len(values))}.get(merge, NO)
        return self.add(merge, attributes, *values)

    def slices(self, x: Value) -> Value:
        """Slices, disjoint or not, a block on one, concatenated; the tensor itself may be read again."""
        half, overlap = size(x) // 2, self.draw.rng.randint(0, 1)
        first = self.add("slice", Slice(0, 0, half + overlap), x)
        second = self.add("slice", Slice(0, half, 2 * half), x)
        joined = self.add("concat", Concat(0), self.dense(first, half), second)
        if self.draw.rng.random() < 0.5:
            return joined
        return self.add("add", Sum((Fraction(1, 2), Fraction(1))), joined, x)

    def tied(self, x: Value) -> Value:
        """One weight used twice."""
        parameters = self.parameters(self.builder.fresh("tied"))
        first = self.add("dense", Dense(size(x)), x, **parameters)
        return self.add("dense", Dense(size(x)), self.activation(first), **parameters)

    def shift(self, x: Value) -> Value:
        ball = ParameterChoice(Constraint("ball", Fraction(3, 4)))
        return self.add("bias", BiasShape((self.draw.rng.choice((1, size(x))),)), x, bias=ball)

    def drop(self, x: Value) -> Value:
        return self.add("dropout", Dropout(Fraction(1, 4)), x)

    def image(self) -> Value:
        x = self.builder.input("x", (2, 4, 4), self.draw.fraction(), False, None)
        x = self.activation(self.conv(x))
        pool = self.draw.rng.choice(("max_pool", "l2_pool", "avg_pool", "scaled_avg_pool", "global_avg_pool"))
        window = AveragePool((3, 2), (1, 2), ((1, 1), (0, 0)), (1, 1), count_include_pad=False)
        x = self.add(pool, GlobalPool() if pool == "global_avg_pool" else window, x)
        return self.dense(self.add("flatten", NO, x), 4)


def size(x: Value) -> int:
    assert x.shape is not None
    return prod(x.shape)


def random_graph(seed: int) -> Graph:
    """Return a graph of two to five random parts and a random loss."""
    maker = Maker(Draw(Random(f"graph {seed}")))
    rng = maker.draw.rng
    x = maker.image() if rng.random() < 0.3 else maker.builder.input("x", (4,), maker.draw.fraction(), False, None)
    steps: Sequence[Callable[[Value], Value]] = (
        maker.residual,
        maker.branches,
        maker.nested,
        maker.extremes,
        maker.selection,
        maker.gate,
        maker.pieces,
        maker.slices,
        maker.tied,
        maker.activation,
        maker.clip,
        maker.shift,
        maker.drop,
    )
    for _ in range(rng.randint(2, 5)):
        x = rng.choice(steps)(x)
    name = rng.choice(list(LOSS_ATTACKS))
    if LOSS_ATTACKS[name].shape in (table, image):
        x = maker.add("reshape", Reshape((2, size(x) // 2)), x)
    x = maker.dense(x, 1 if LOSS_ATTACKS[name].shape is one else rng.randint(2, 4))
    assert x.shape is not None
    attributes = LOSS_ATTACKS[name].attributes(maker.draw, x.shape)
    graph = maker.builder.finish(x, LossUse(LOSS_BY_NAME[name], attributes))
    assert graph is not None, maker.builder.diagnostics
    return graph


def interpret(graph: Graph, x: Tensor, theta: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return every value of the graph on one example. A dropout keeps everything, its worst case."""
    values = {graph.input.name: x}
    for node in graph.nodes:
        own = {role: theta[name] for role, name in node.parameters.items()}
        operands = [values[operand] for operand in node.inputs]
        values[node.name] = ATTACKS[node.op.name].oracle(node.site, operands, own)
    return values

"""Random linear graphs of blocks, forks, concatenations, slices and sums, against the worst weights of an ascent.

The slope of such a graph bounds the operator norm of the whole map, for all weights in Θ; so does the norm of the
output, for ‖x‖ <= 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

import pytest
import torch
from torch import Tensor

from lipcompile.analysis.bounds import derive
from lipcompile.core.graph import Graph, Value
from lipcompile.numbers.certified import Certified
from lipcompile.ops.shape.rules import Slice

from . import points
from .forks import WIDTH, Net
from .graphs import interpret
from .harness import SLACK, jacobian, spectral

STEPS = 12
SMALL, DEEP = 30, 4_000


@dataclass
class Grower:
    """Grows one random graph; every value that it returns has the width of x."""

    generator: torch.Generator
    net: Net = field(default_factory=Net)

    def below(self, count: int) -> int:
        return int(torch.randint(count, (), generator=self.generator))

    def grow(self, x: Value, depth: int) -> Value:
        if depth == 0:
            return x if self.below(3) == 0 else self.net.block(x, (0.5, 1, 2)[self.below(3)])
        makers = (self.fork, self.fork, self.total, self.slices, self.slices, self.chain, self.nested)
        return makers[self.below(len(makers))](x, depth - 1)

    def branches(self, x: Value, depth: int) -> list[Value]:
        return [self.grow(x, self.below(depth + 1)) for _ in range(2 + self.below(2))]

    def fork(self, x: Value, depth: int) -> Value:
        return self.net.block(self.net.concat(*self.branches(x, depth)))

    def total(self, x: Value, depth: int) -> Value:
        return self.net.plus(*self.branches(x, depth))

    def chain(self, x: Value, depth: int) -> Value:
        return self.grow(self.grow(x, depth), depth)

    def nested(self, x: Value, depth: int) -> Value:
        """One value in two concatenations, one of which is read by the other, also through a block."""
        common = self.grow(x, depth)
        inner = self.net.concat(common, self.grow(x, depth))
        return self.net.block(self.net.concat(inner, common, self.net.block(inner)))

    def slices(self, x: Value, depth: int) -> Value:
        """What starts from two slices, disjoint or not, of a value that may be read as a whole beside them."""
        stop = 1 + self.below(3)
        low, high = self.net.pieces(x, stop, WIDTH)
        if self.below(4) == 0:
            high = self.net.add("slice", Slice(0, stop - 1, WIDTH), x)
        starts = [self.net.block(low), self.net.block(high)]
        grown = [self.grow(start, self.below(depth + 1)) for start in starts]
        if self.below(3) == 0:
            grown.append(self.net.plus(*starts))
        joined = self.net.plus(*grown) if self.below(3) == 0 else self.net.concat(*grown)
        if self.below(3) == 0:
            joined = self.net.concat(joined, self.grow(x, 0))
        return self.net.block(joined)


def steepest(graph: Graph, generator: torch.Generator) -> float:
    """Return the largest operator norm of the whole map that an ascent over its weights finds."""
    theta = {
        name: _stretched(points.normal(p.shape, generator), points.number(p.constraint.bound))
        for name, p in graph.parameters.items()
    }
    best = 0.0
    for _ in range(STEPS):
        found, slopes = _norm_and_slopes(graph, theta, generator)
        best = max(best, found)
        for name, slope in slopes.items():
            if float(slope.norm()) > 0:
                theta[name] = _stretched(slope, points.number(graph.parameters[name].constraint.bound))
    return best


def _norm_and_slopes(
    graph: Graph, theta: Mapping[str, Tensor], generator: torch.Generator
) -> tuple[float, dict[str, Tensor]]:
    weights = {name: value.detach().requires_grad_() for name, value in theta.items()}

    def whole(x: Tensor) -> Tensor:
        return interpret(graph, x, weights)[graph.output]

    matrix = jacobian(whole, points.normal((WIDTH,), generator))
    worst = torch.linalg.svd(matrix)[2][0]
    found = torch.autograd.grad(
        whole(worst).norm(), list(weights.values()), allow_unused=True, materialize_grads=True
    )
    return spectral(matrix), dict(zip(weights, found, strict=True))


def _stretched(matrix: Tensor, norm: float) -> Tensor:
    """Put all singular values at `norm`: the farthest point of the constraint set in this direction."""
    left, _, right = torch.linalg.svd(matrix.detach(), full_matrices=False)
    stretched: Tensor = norm * left @ right
    return stretched


def attack(count: int) -> list[float]:
    """Return attained over claimed for each of `count` graphs."""
    shares = []
    for seed in range(count):
        generator = torch.Generator().manual_seed(seed)
        grower = Grower(generator)
        graph = grower.net.graph(grower.net.block(grower.grow(grower.net.x, 1 + seed % 3)))
        found, attained = derive(graph, Certified()), steepest(graph, generator)
        assert attained <= found.slope["x"].upper * (1 + SLACK), seed
        assert attained <= found.norm[graph.output].upper * (1 + SLACK), seed
        shares.append(attained / found.slope["x"].upper)
    print(f"attained / slope over {count} graphs: median {median(shares):.3f}, smallest {min(shares):.3f}")
    return shares


def test_no_weights_of_a_random_linear_graph_exceed_its_slope() -> None:
    shares = attack(SMALL)
    assert max(shares) > 0.999
    assert median(shares) > 0.8  # the attack is not idle


@pytest.mark.nightly
def test_no_weights_of_a_random_linear_graph_exceed_its_slope_nightly() -> None:
    attack(DEEP)

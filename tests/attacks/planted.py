"""Random graphs in which blocks stand several times in a row, alike or almost alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from random import Random

from lipcompile.core.graph import Graph, LossUse, Parameter, Value
from lipcompile.ops.linear.rules import Dense
from lipcompile.ops.merge.rules import Sum
from lipcompile.ops.table import LOSS_BY_NAME

from .catalogue import LOSS_ATTACKS
from .draw import Draw
from .families.losses import image, one, table
from .graphs import Maker, size

LOSSES = [name for name, attack in LOSS_ATTACKS.items() if attack.shape not in (one, table, image)]
LARGEST = 250
ONE = Fraction(1)


@dataclass
class Planter(Maker):
    """Grows a graph of blocks; a block is the same whenever its seed is."""

    def block(self, seed: int, x: Value, depth: int = 0) -> Value:
        before, self.draw = self.draw, Draw(Random(f"block {seed}"))
        features = size(x)
        for index in range(self.draw.rng.randint(1, 3)):
            x = self.part(f"{seed}_{index}", x, depth)
        x = x if size(x) == features else self.dense(x, features)
        self.draw = before
        return x

    def part(self, label: str, x: Value, depth: int) -> Value:
        """Blocks in the block, a weight of all copies, one that a copy uses twice, or any random part."""
        rng = self.draw.rng
        kind = rng.random()
        if kind < 0.2 and depth < 2:
            seed = rng.randrange(10**6)
            for _ in range(rng.randint(1, 3)):
                x = self.block(seed, x, depth + 1)
            return x
        if kind < 0.3:
            return self.add("dense", Dense(size(x)), x, **self.parameters(f"tied_{label}"))
        if kind < 0.4:
            own = self.parameters(self.builder.fresh("twice"))
            inner = self.activation(self.add("dense", Dense(size(x)), x, **own))
            return self.add("add", Sum((ONE, ONE / 2)), self.add("dense", Dense(size(x)), inner, **own), x)
        return self.any_part(x)

    def any_part(self, x: Value) -> Value:
        parts: Sequence[Callable[[Value], Value]] = (
            self.residual,
            self.branches,
            self.nested,
            self.extremes,
            self.selection,
            self.gate,
            self.pieces,
            self.slices,
            self.tied,
            self.activation,
            self.clip,
            self.shift,
            self.drop,
        )
        return self.draw.rng.choice(parts)(x)

    def run(self, x: Value) -> Value:
        """Copies of a block; now and then a value skips one of them, so that it is no bottleneck."""
        rng, seed = self.draw.rng, self.draw.rng.randrange(10**6)
        earlier = None
        for _ in range(rng.randint(1, 5)):
            before = x
            x = self.block(seed, x)
            if earlier is not None and rng.random() < 0.1:
                x = self.add("add", Sum((ONE, ONE)), x, earlier)
            earlier = before if rng.random() < 0.2 else None
        return x


def planted(seed: int) -> Graph | None:
    """Return a random graph, or None if it became too large."""
    rng = Random(f"planted {seed}")
    planter = Planter(Draw(rng))
    x = planter.builder.input("x", (4,), planter.draw.fraction(), False, None)
    for _ in range(rng.randint(1, 3)):
        x = planter.run(planter.any_part(x) if rng.random() < 0.3 else x)
    x = planter.dense(x, rng.randint(2, 3))
    name = rng.choice(LOSSES)
    assert x.shape is not None
    attributes = LOSS_ATTACKS[name].attributes(planter.draw, x.shape)
    graph = planter.builder.finish(x, LossUse(LOSS_BY_NAME[name], attributes))
    assert graph is not None, planter.builder.diagnostics
    if len(graph.nodes) > LARGEST:
        return None
    graph = _tied(_changed(graph, rng), rng)
    return permuted(graph, rng) if rng.random() < 0.5 else graph


def _changed(graph: Graph, rng: Random) -> Graph:
    """Freeze or train one parameter, and give one another bound, now and then."""
    parameters = dict(graph.parameters)
    if rng.random() < 0.3:
        chosen = rng.choice(list(parameters.values()))
        parameters[chosen.name] = replace(chosen, trainable=not chosen.trainable)
    if rng.random() < 0.3:
        chosen = rng.choice(list(parameters.values()))
        if chosen.constraint.kind != "orthogonal":
            parameters[chosen.name] = replace(chosen, constraint=replace(chosen.constraint, bound=ONE * 2))
    return replace(graph, parameters=parameters)


def _tied(graph: Graph, rng: Random) -> Graph:
    """Make one parameter of two, now and then."""
    if rng.random() < 0.7:
        return graph
    alike: dict[object, list[Parameter]] = {}
    for p in graph.parameters.values():
        alike.setdefault((p.shape, p.constraint, p.trainable), []).append(p)
    several = [found for found in alike.values() if len(found) > 1]
    if not several:
        return graph
    kept, other = rng.sample(rng.choice(several), 2)
    nodes = tuple(
        replace(node, parameters={r: kept.name if p == other.name else p for r, p in node.parameters.items()})
        for node in graph.nodes
    )
    parameters = {name: p for name, p in graph.parameters.items() if name != other.name}
    return replace(graph, nodes=nodes, parameters=parameters)


def permuted(graph: Graph, rng: Random) -> Graph:
    """Return the graph with its nodes in another topological order."""
    defined, left, ordered = {graph.input.name}, list(graph.nodes), []
    while left:
        ready = [node for node in left if defined.issuperset(node.inputs)]
        chosen = rng.choice(ready)
        left.remove(chosen)
        ordered.append(chosen)
        defined.add(chosen.name)
    return replace(graph, nodes=tuple(ordered))

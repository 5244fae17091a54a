"""What emitted programs compute is never below what the rules say, and not above it by more than rounding.

Every op and every loss, at norms from 1e-300 to 1e300 and where differences nearly cancel, against the same rules
in floats of 1500 bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import chain
from random import Random

import pytest
from lipcompile_torch.certify import intervals

from lipcompile.core.graph import Graph
from lipcompile.core.record import NoAttributes
from lipcompile.ops.activation.rules import GELU
from lipcompile.ops.loss.rules import CrossEntropy
from lipcompile.ops.rules import unbounded
from tests.attacks.graphs import random_graph
from tests.certified import losses, uses
from tests.networks import Network
from tests.precise import REAL, below, claims, faults

ORDINARY = (1e-17, 3.7e-15, 5e-9, 1e-3, 0.5, 1.0, 3.0, 30.0, 800.0)
EXTREME = (0.0, 1e-300, 1e-200, *ORDINARY, 1e5, 1e17, 1e200, 1e300)
CLIPS = (math.inf, 1.0, 1e-5)

Drawn = tuple[Graph, dict[str, float], float]


def drawn(graphs: Iterator[Graph], values: Sequence[float], seed: int) -> Iterator[Drawn]:
    """Each graph with a norm of its input, norms of its weights, and a clip of the loss's gradient."""
    rng = Random(seed)
    for graph in graphs:
        source = graph.input
        if source.norm is not None:
            source = replace(source, norm=Fraction(rng.choice([value for value in values if value])))
        norms = {name: rng.choice(values) for name in graph.parameters}
        yield replace(graph, input=source), norms, rng.choice(CLIPS)


def everything(each: int, seed: int) -> Iterator[Graph]:
    return chain(uses(each, seed), losses(each, seed))


def names(found: Iterator[Drawn], check: Callable[..., list[str]]) -> Iterator[tuple[str, list[str]]]:
    wrong = ((graph, norms, clip, check(graph, norms, clip)) for graph, norms, clip in found)
    return ((f"{[n.op.name for n in g.nodes]} {g.loss} {u} {c} {g.input.norm}", w) for g, u, c, w in wrong if w)


@pytest.mark.slow
def test_no_number_of_any_rule_is_below_it() -> None:
    assert not list(names(drawn(everything(1, 0), EXTREME, 0), below))


def has_slope(graph: Graph) -> bool:
    """And no infinite number, which stands for any number in a program."""
    unsteady = ("sign", "hard_shrink")
    return all(node.op.name not in unsteady and node.op.norm is not unbounded for node in graph.nodes)


@pytest.mark.slow
def test_numbers_of_ordinary_size_are_as_large_as_rounding_makes_them() -> None:
    continuous = filter(has_slope, everything(1, 1))
    assert not list(names(drawn(continuous, ORDINARY, 1), faults))


@pytest.mark.parametrize("seed", range(10))
def test_random_graphs(seed: int) -> None:
    graph = random_graph(seed)
    assert not list(names(drawn(iter([graph] * 3), EXTREME, seed), below))


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(20))
def test_many_uses(seed: int) -> None:
    assert not list(names(drawn(everything(8, seed), EXTREME, seed), below))
    continuous = filter(has_slope, everything(8, seed))
    assert not list(names(drawn(continuous, ORDINARY, seed), faults))


def activated(op: str, attributes: object, norm: float) -> Graph:
    """The gradient of the last weight is as long as what the activation makes of one entry of this norm: L = 1."""
    net = Network((1,), norm=Fraction(norm))
    net.add(op, attributes)
    net.dense(1)
    return net.finish("kr", NoAttributes())


@pytest.mark.parametrize("size", [1e-300, 1e-17, 3.7e-15, 5e-9, 1e-3, 1.0])
def test_selu_of_one_entry_does_not_cancel(size: float) -> None:
    """max(λX, λα(1 - e^-X)); doubles take the second for 0 at 1e-17, and for 1 % too little at 3.7e-15."""
    graph = activated("selu", NoAttributes(), size)
    scale, alpha, x = REAL.mpf("1.0507009873554804934"), REAL.mpf("1.6732632423543772848"), REAL.mpf(size)
    expected = max(scale * x, -scale * alpha * REAL.expm1(-x))
    assert expected <= claims(graph, {"dense.weight": 1.0})["dense.weight"] <= expected * (1 + REAL.mpf(1e-12))


@pytest.mark.parametrize("size", [1e-150, 1e-17, 5e-9, 1e-3, 1.0])
def test_gelu_near_0_does_not_cancel(size: float) -> None:
    """X·(1 + √(1 - e^(-2X²/π)))/2; doubles take the root for 0 at 5e-9, which is 4e-9 too little."""
    graph, x = activated("gelu", GELU(), size), REAL.mpf(size)
    expected = x * (1 + REAL.sqrt(-REAL.expm1(-2 * x * x / REAL.pi))) / 2
    assert expected <= claims(graph, {"dense.weight": 1.0})["dense.weight"] <= expected * (1 + REAL.mpf(1e-7))


def classifier(classes: int, smoothing: str) -> Graph:
    net = Network((4,))
    net.dense(classes)
    return net.finish("cross_entropy", CrossEntropy(label_smoothing=Fraction(smoothing)))


@pytest.mark.parametrize("classes", [2, 3, 10, 1000])
@pytest.mark.parametrize("smoothing", ["0", "0.1", "0.9999999999"])
def test_losses_of_few_and_of_many_classes(classes: int, smoothing: str) -> None:
    """1 - 0.9999999999 is 8e-8 off, relatively, where it is computed in doubles.

    For logits near 0 and that target, p - q is 1e-4 of p at most, so that its square keeps fewer digits.
    """
    graph = classifier(classes, smoothing)
    for norm in (1e-3, 1.0, 30.0, 800.0):
        margin = 1e-6 if norm < 1 and smoothing == "0.9999999999" else 1e-9
        assert not faults(graph, {"dense.weight": norm}, margin=margin)


def test_what_is_0_stays_0() -> None:
    """A parameter whose bound is 0 gets no noise: the smallest double in its place would get some."""
    net = Network((4,), bias=Fraction(1))
    net.dense(4)
    net.sort()
    net.dense(3)
    graph = net.finish()
    first, *_, last = graph.parameters
    norms = dict.fromkeys(graph.parameters, 0.0)
    assert claims(graph, norms)[first] == 0
    assert claims(graph, norms)[last] > 0


def test_rounding_to_nearest_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutation: without the steps outward, numbers are below the rules."""
    monkeypatch.setattr(intervals, "nextafter", lambda x, _: x)
    assert any(names(drawn(everything(1, 0), ORDINARY, 0), below))

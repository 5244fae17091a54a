"""The bounds pass on random graphs: no choice of input, label and weights in Θ exceeds any bound.

The deep run attacks 3,000 graphs: `pytest -m nightly tests/attacks/test_graphs.py`. With `-s` it prints how
near the attacks come to the bound of the whole gradient.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

import pytest
import torch

from lipcompile.analysis.bounds import Bounds, derive
from lipcompile.core.graph import Graph
from lipcompile.numbers.certified import Certified, Interval

from .adversary import Adversary, Choice, gradients
from .graphs import interpret, random_graph
from .harness import SLACK

SMALL, DEEP = 25, 3_000
STEPS = 8


def exceeded(graph: Graph, bounds: Bounds[Interval], choice: Choice) -> Iterator[str]:
    """Yield every bound that `choice` breaks."""
    values, found = gradients(graph, choice)
    norms = {name: float(gradient.norm()) for name, gradient in found.items()}
    yield from _over("X", bounds.norm, {name: float(value.detach().norm()) for name, value in values.items()})
    yield from _over("G", bounds.cotangent, {name: norms[name] for name in values})
    yield from _over("K", bounds.gradient, {name: norms[name] for name in bounds.gradient})
    yield from _over("total", {"K": bounds.total}, {"K": _length(bounds, norms)})
    yield from _over("L", {"L": bounds.loss_lipschitz}, {"L": norms[graph.output]})


def _length(bounds: Bounds[Interval], norms: Mapping[str, Any]) -> float:
    return math.hypot(*(float(norms[name]) for name in bounds.gradient))


def _over(kind: str, bounds: Mapping[str, Interval], found: Mapping[str, float]) -> Iterator[str]:
    for name, value in found.items():
        if not value <= bounds[name].upper * (1 + SLACK):  # NaN is a fault as well
            yield f"{kind}({name}): attained {value!r}, claimed {bounds[name].upper!r}"


def check(seed: int) -> float:
    """Attack one graph; return the largest share of the total that was attained."""
    graph = random_graph(seed)
    bounds = derive(graph, Certified())
    path = list(Adversary(graph, torch.Generator().manual_seed(seed)).path(STEPS))
    faults = [fault for choice in path for fault in exceeded(graph, bounds, choice)]
    assert not faults, (seed, faults)
    check_slope(graph, bounds, path)
    lengths = [_length(bounds, {k: g.norm() for k, g in gradients(graph, c)[1].items()}) for c in path]
    return max(lengths) / bounds.total.upper if bounds.total.upper > 0 else 0.0


def check_slope(graph: Graph, bounds: Bounds[Interval], path: Sequence[Choice]) -> None:
    """Two inputs, the weights of the end: the logits differ by no more than the Lipschitz constant allows."""
    slope = bounds.slope[graph.input.name].upper
    first, second = path[0].x.detach(), path[-1].x.detach()
    for other in (second, -first, first * 0.999):
        one, two = (interpret(graph, x, path[-1].theta)[graph.output].detach() for x in (first, other))
        allowed = slope * float((first - other).norm())
        assert float((one - two).norm()) <= allowed * (1 + SLACK) + 1e-12


def attack(count: int) -> None:
    shares = [check(seed) for seed in range(count)]
    print(f"attained / total over {count} graphs: median {median(shares):.3f}, largest {max(shares):.3f}")
    assert max(shares) > 0.5  # the attack is not idle


def test_no_choice_exceeds_a_bound_of_its_graph() -> None:
    attack(SMALL)


@pytest.mark.nightly
def test_no_choice_exceeds_a_bound_of_its_graph_nightly() -> None:
    attack(DEEP)

"""Regimes of repeated blocks, orders of growth against certified totals, and advice against what it promises."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import mpmath
import pytest
import sympy

from lipcompile import ModelOptions, pipeline
from lipcompile.analysis.bounds import derive
from lipcompile.analysis.depth.loops import loops, with_count
from lipcompile.analysis.depth.regimes import _root
from lipcompile.numbers.certified import Certified
from tests.analysis.test_theorem1 import analysed

# The halves of half of a block's input are split again: the norm rule loses √2 there, the cotangent rule does not.
UNEVEN = """p, q = split(2, axis=0) a = dense(p, 4, constraint=spectral({u})) p1, p2 = split(a, 2, axis=0)
    b = dense(p1, 4) c = dense(p2, 4) d = concat(b, c, axis=0) e = dense(q, 4, constraint=spectral({u}))
    concat(d, e, axis=0)"""


@dataclass(frozen=True)
class Case:
    """A body, or several loops, and what follows by hand: regime, and order rate^T·T^power of the whole bound."""

    body: str
    regime: str
    order: str
    rate: str = "1"
    power: float = 0


# Bodies of [8, 4] -> [8, 4]. By hand: K² of a block is Σ l^(2(T-t))·κ²(X_t) with X_t = aX_{t-1} + c; where copies
# share a weight, K is Σ l^(T-t)·κ(X_t).
BLOCKS = {
    "chain": Case("dense(4) groupsort(2)", "critical", "O(sqrt(depth))", power=0.5),
    "chain with biases": Case("dense(4, bias=0.5) relu", "critical", "O(depth**(3/2))", power=1.5),
    "shrinking chain": Case(
        "dense(4, constraint=spectral(0.9)) relu", "contractive", "O(0.9**depth * sqrt(depth))", "0.9", 0.5
    ),
    "shrinking chain with biases": Case("dense(4, constraint=spectral(0.9), bias=1) relu", "contractive", "O(1)"),
    "growing chain": Case(
        "dense(4, constraint=spectral(1.1)) relu", "expansive", "O(1.1**depth * sqrt(depth))", "1.1", 0.5
    ),
    "growing chain with biases": Case(
        "dense(4, constraint=spectral(1.1), bias=1) relu", "expansive", "O(1.1**depth * sqrt(depth))", "1.1", 0.5
    ),
    "residual add": Case(
        "residual(add) { dense(4, constraint=spectral(0.1), bias=0.5) relu }",
        "expansive",
        "O(1.1**depth * sqrt(depth))",
        "1.1",
        0.5,
    ),
    "residual mean": Case("residual(mean) { dense(4) groupsort(2) }", "critical", "O(sqrt(depth))", power=0.5),
    "residual mean with biases": Case(
        "residual(mean) { dense(4, bias=0.5) relu }", "critical", "O(depth**(3/2))", power=1.5
    ),
    "tied": Case('dense(4, share="w") groupsort(2)', "critical", "O(depth)", power=1),
    "tied with biases": Case('dense(4, bias=0.5, share="w") groupsort(2)', "critical", "O(depth**2)", power=2),
    "tied and growing": Case(
        'dense(4, constraint=spectral(1.1), share="w") relu', "expansive", "O(1.1**depth * depth)", "1.1", 1
    ),
    "norms grow, gradients shrink": Case(
        UNEVEN.format(u="0.9"), "expansive", "O((9*sqrt(2)/10)**depth)", "0.9*sqrt(2)"
    ),
    "norms shrink, gradients grow": Case(
        "hard_swish dense(4, constraint=spectral(0.72))", "expansive", "O(1.08**depth)", "1.08"
    ),
    "norms forgotten": Case("dense(4, constraint=spectral(1.1)) tanh", "expansive", "O(1.1**depth)", "1.1"),
}
ROWS = "model net {{ param depth: int input x: tensor[8, 4], norm <= 1 {body} flatten dense(1) loss kr }}"


def in_a_loop(body: str) -> str:
    return ROWS.format(body=f"repeat depth {{ {body} }}")


@pytest.mark.parametrize("name", BLOCKS)
def test_regimes_and_orders_of_blocks(name: str, tmp_path: Path) -> None:
    case = BLOCKS[name]
    depth = analysed(in_a_loop(case.body), tmp_path).depth
    assert (depth.regime, depth.growth) == (case.regime, case.order)


def test_loops_in_loops_count_all_copies(tmp_path: Path) -> None:
    """T·T copies in a row: T² instead of T in O(T^(3/2))."""
    depth = analysed(in_a_loop("repeat depth { dense(4, bias=0.5) relu }"), tmp_path).depth
    assert (depth.regime, depth.growth) == ("critical", "O(depth**3)")


def test_the_larger_rate_decides(tmp_path: Path) -> None:
    [block] = analysed(in_a_loop(UNEVEN.format(u="0.9")), tmp_path).depth.blocks
    assert block.lipschitz.value == pytest.approx(0.9)
    assert block.rate.value == pytest.approx(0.9 * math.sqrt(2))
    assert block.regime == "expansive"
    [block] = analysed(in_a_loop(UNEVEN.format(u="0.7")), tmp_path).depth.blocks
    assert block.regime == "contractive"


SEVERAL = {
    "critical and expansive": Case(
        "repeat depth { dense(4) relu } repeat depth { residual(add) { dense(4, constraint=spectral(0.1)) } }",
        "expansive",
        "O(1.1**depth * sqrt(depth))",
        "1.1",
        0.5,
    ),
    "both expansive": Case(
        """repeat depth { dense(4, constraint=spectral(1.02)) }
           repeat depth { dense(4, constraint=spectral(1.05)) }""",
        "expansive",
        "O(1.071**depth * sqrt(depth))",
        "1.071",
        0.5,
    ),
    "mixed": Case(
        "repeat depth { dense(4, constraint=spectral(1.1)) } repeat depth { dense(4, constraint=spectral(0.5)) }",
        "mixed",
        "O(0.55**depth * sqrt(depth))",
        "0.55",
        0.5,
    ),
    "mixed with biases": Case(
        """repeat depth { dense(4, constraint=spectral(1.1), bias=1) }
           repeat depth { dense(4, constraint=spectral(0.5), bias=1) }""",
        "mixed",
        "O(1)",
    ),
    "not yet supported together": Case(
        """branch { repeat depth { dense(4, constraint=spectral(1.1)) } }
                  { repeat depth { dense(4, constraint=spectral(1.05)) } } -> add""",
        "expansive",
        "O(1.1**depth * sqrt(depth))",
        "1.1",
        0.5,
    ),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_regimes_and_orders_of_several_loops(name: str, tmp_path: Path) -> None:
    case = SEVERAL[name]
    depth = analysed(ROWS.format(body=case.body), tmp_path).depth
    assert (depth.regime, depth.growth) == (case.regime, case.order)


FITTED = {name: (in_a_loop(case.body), case) for name, case in BLOCKS.items()} | {
    name: (ROWS.format(body=case.body), case) for name, case in SEVERAL.items()
}


@pytest.mark.parametrize("name", FITTED)
def test_orders_are_those_of_certified_totals(name: str, tmp_path: Path) -> None:
    """The slope of log K - T·log(rate) in log T between 2000 and 4000 copies is the power within 0.005.

    Lower orders are smaller by a factor T at least, which leaves thousandths; fewer than from 1000 to 2000.
    """
    source, case = FITTED[name]
    rate = mpmath.mpf(sympy.sympify(case.rate, rational=True).evalf(40))
    logarithms = [log_total(source, depth, tmp_path) - depth * mpmath.log(rate) for depth in (1000, 2000, 4000)]
    slopes = [(after - before) / math.log(2) for before, after in pairwise(logarithms)]
    assert abs(slopes[1] - case.power) < 0.005
    assert abs(slopes[1] - case.power) <= abs(slopes[0] - case.power) + 1e-9


def log_total(source: str, depth: int, folder: Path) -> Any:
    """The logarithm of the certified total: some are larger or smaller than any double."""
    path = folder / "net.lip"
    path.write_text(source)
    graph = pipeline.load(str(path), ModelOptions()).graph
    assert graph is not None
    for node in loops(graph):
        graph = with_count(graph, node.attributes, depth)
    with mpmath.workdps(40):
        return mpmath.log(mpmath.mpf(derive(graph, Certified()).total.ends.b._mpi_[1]))


# A body, what is advised, and the body with that change.
ADVISED = {
    "add": (
        "residual(add) { dense(4) relu }",
        "critical with residual(mean) instead of residual(add)",
        "residual(mean) { dense(4) relu }",
    ),
    "shrinking": (
        "dense(4, constraint=spectral(0.9), bias=1) relu",
        "critical with spectral(1) for its weight",
        "dense(4, constraint=spectral(1), bias=1) relu",
    ),
    "steep activation": (
        "dense(4, constraint=spectral(0.5)) leaky_relu(1.7)",
        "critical with spectral(10/17) for its weight",
        "dense(4, constraint=spectral(10/17)) leaky_relu(1.7)",
    ),
    "three layers": (
        """dense(4, constraint=frobenius(2)) leaky_relu(27) dense(4, constraint=frobenius(2))
           dense(4, constraint=frobenius(2))""",
        "critical with frobenius(1/3) for each of its 3 weights",
        """dense(4, constraint=frobenius(1/3)) leaky_relu(27) dense(4, constraint=frobenius(1/3))
           dense(4, constraint=frobenius(1/3))""",
    ),
    "norms grow": (
        UNEVEN.format(u="0.9").replace("dense(p1, 4)", "relu(p1)").replace("dense(p2, 4)", "relu(p2)"),
        "critical to 6 digits with spectral(0.7071064) for each of its 2 weights",
        UNEVEN.format(u="0.7071064").replace("dense(p1, 4)", "relu(p1)").replace("dense(p2, 4)", "relu(p2)"),
    ),
    "mean of less": (
        "residual(mean) { dense(4, constraint=spectral(0.5)) }",
        "critical with spectral(1) for its weight",
        "residual(mean) { dense(4, constraint=spectral(1)) }",
    ),
    "sum of less": (
        "residual(add) { dense(4, constraint=spectral(0.5)) }",
        "critical with spectral(1) for its weight, and residual(mean) instead of residual(add)",
        "residual(mean) { dense(4, constraint=spectral(1)) }",
    ),
}


@pytest.mark.parametrize("name", ADVISED)
def test_what_is_advised_makes_a_block_critical(name: str, tmp_path: Path) -> None:
    body, advice, changed = ADVISED[name]
    depth = analysed(in_a_loop(body), tmp_path).depth
    assert depth.regime in ("contractive", "expansive")
    assert depth.advice == (f"repeat_1 becomes {advice}",)
    after = analysed(in_a_loop(changed), tmp_path).depth
    if "digits" not in advice:
        assert (after.regime, after.advice) == ("critical", ())
        return
    [block] = after.blocks
    assert block.rate.value is not None
    assert block.lipschitz.value is not None
    assert 1 - 1e-6 < max(block.rate.value, block.lipschitz.value) <= 1


def test_what_no_bound_of_weights_fixes_is_named(tmp_path: Path) -> None:
    depth = analysed(in_a_loop("residual(mean) { dense(4, constraint=orthogonal) } sigmoid"), tmp_path).depth
    assert depth.regime == "contractive"
    assert depth.advice == ("repeat_1 is contractive because Lipschitz constants in it are below 1: sigmoid",)


def test_squares_in_many_symbols_are_left_as_they_are() -> None:
    """Their factors took minutes: a block of HGNet-V2 has the norms of a dozen weights."""
    norms = sympy.symbols("a:9", positive=True)
    many, few = (sympy.expand(sum(some) ** 2) for some in (norms, norms[:8]))
    assert _root(many) == sympy.sqrt(many)
    assert _root(few) == sum(norms[:8])

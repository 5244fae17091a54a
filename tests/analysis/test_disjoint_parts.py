"""Forks that meet again: forms of cotangents and spreads of slices against numbers derived by hand.

A fork of linear branches of norm 1 has Lipschitz constant √2 under concatenation, 2 under addition; blocks on
disjoint slices have the largest of their constants.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch

from lipcompile.analysis.bounds import Bounds, derive
from lipcompile.analysis.disjoint_parts import (
    MOST_TERMS,
    Part,
    PartwiseBound,
    bound,
    disjoint,
    limited,
    settled,
    total,
)
from lipcompile.core.graph import Graph, Value
from lipcompile.core.record import NoAttributes
from lipcompile.numbers.certified import Certified, Interval
from lipcompile.numbers.matrices import operator_norm
from lipcompile.numbers.symbolic import Symbolic
from lipcompile.numbers.traced import Traced
from lipcompile.ops.shape.rules import Slice
from tests.attacks.forks import Net
from tests.attacks.harness import SLACK, spectral

NO = NoAttributes()
NUM = Certified()


def slope(graph: Graph) -> float:
    return certified(graph).slope[graph.input.name].upper


def certified(graph: Graph) -> Bounds[Interval]:
    return derive(graph, Certified())


def _fork(net: Net, x: Value, *norms: float) -> Value:
    return net.concat(*(net.block(x, norm) for norm in norms))


def _nested(net: Net, x: Value) -> Value:
    return net.concat(_fork(net, x, 1, 2), net.block(x, 3))


def _through_nested(net: Net, x: Value) -> Value:
    """Of the outer parts, the first is split again and the second joins one of its parts."""
    middle = net.block(x)
    first = net.concat(net.block(middle), net.block(x))
    return net.concat(first, net.block(middle))


def _blocks_on_slices(net: Net, x: Value) -> Value:
    low, middle, high = net.pieces(x, 1, 2, 4)
    return net.concat(net.block(low, 2), net.block(middle, 3), net.block(high, 1))


def _nested_blocks_on_slices(net: Net, x: Value) -> Value:
    low, middle, high = net.pieces(x, 1, 2, 4)
    return net.concat(net.concat(net.block(low, 2), net.block(middle, 3)), net.block(high, 1))


def _crossed_slices(net: Net, x: Value) -> Value:
    """[[1, 2], [3, 0]] in the two slices: rows 3 and 3, columns 4 and 2, √(3·4) < √14."""
    low, high = net.pieces(x, 2, 4)
    mixed = net.plus(net.block(low, 1), net.block(high, 2))
    return net.concat(mixed, net.block(low, 3))


def _overlapping(net: Net, x: Value) -> Value:
    first, second = net.add("slice", Slice(0, 0, 3), x), net.add("slice", Slice(0, 2, 4), x)
    return net.plus(net.block(first), net.block(second))


def _same_slice_twice(net: Net, x: Value) -> Value:
    first, second = (net.add("slice", Slice(0, 0, 2), x) for _ in range(2))
    return net.plus(net.block(first), net.block(second))


# What is made of x, and the Lipschitz constant of the result in x.
CASES: dict[str, tuple[Callable[[Net, Value], Value], float]] = {
    "a fork": (lambda net, x: _fork(net, x, 1, 1), math.sqrt(2)),
    "a fork of unequal branches": (lambda net, x: _fork(net, x, 3, 4), 5),
    "a fork that is added": (lambda net, x: net.plus(net.block(x, 3), net.block(x, 4)), 7),
    "an operand twice": (lambda net, x: net.concat(x, x), math.sqrt(2)),
    "an operand three times": (lambda net, x: net.concat(x, x, x), math.sqrt(3)),
    "a fork with the identity": (lambda net, x: net.concat(x, net.block(x, 2)), math.sqrt(5)),
    "nested concatenations": (_nested, math.sqrt(1 + 4 + 9)),
    "parts that meet at different depths": (_through_nested, math.sqrt(1 + 1 + 1)),
    "a concatenation of a fork, merged again": (lambda net, x: net.block(_fork(net, x, 3, 4), 2), 10),
    "two forks in a row": (lambda net, x: _fork(net, _fork(net, x, 1, 1), 1, 1), 2),
    "a fork of forks": (
        lambda net, x: net.concat(_fork(net, net.block(x, 2), 1, 1), _fork(net, x, 1, 1)),
        math.sqrt(10),
    ),
    "a fork whose concatenations are added": (
        lambda net, x: net.plus(_fork(net, x, 1, 1), _fork(net, x, 1, 1)),
        2 * math.sqrt(2),
    ),
    "a maximum of a fork": (
        lambda net, x: net.add("maximum", NO, net.block(x, 3), net.block(x, 4)),
        5,
    ),
    "a minimum with the fork itself": (lambda net, x: net.add("minimum", NO, x, net.block(x, 2)), math.sqrt(5)),
    "blocks on disjoint slices": (_blocks_on_slices, 3),
    "nested blocks on disjoint slices": (_nested_blocks_on_slices, 3),
    "slices in two branches": (_crossed_slices, math.sqrt(12)),
    "slices that are added": (
        lambda net, x: net.plus(*(net.block(piece) for piece in net.pieces(x, 2, 4))),
        math.sqrt(2),
    ),
    "slices that overlap": (_overlapping, 2),
    "one slice twice": (_same_slice_twice, 2),
    "a slice alone": (lambda net, x: net.block(net.pieces(x, 2)[0], 2), 2),
}


@pytest.mark.parametrize("name", CASES)
def test_a_fork_that_meets_again(name: str) -> None:
    """The slope is as derived by hand; the norm is not larger, for ‖x‖ <= 1 and zero is kept."""
    make, expected = CASES[name]
    net = Net()
    graph = net.graph(make(net, net.x))
    found = certified(graph)
    assert found.slope["x"].upper == pytest.approx(expected, rel=1e-12)
    assert found.norm[graph.output].upper <= expected * (1 + 1e-12)


@pytest.mark.parametrize("name", CASES)
def test_gradients_cross_a_fork_as_differences_do(name: str) -> None:
    """Below a trained layer of norm 1, with a loss of constant 1, K of the layer is the slope: the same sweep."""
    make, expected = CASES[name]
    net = Net()
    graph = net.graph(make(net, net.block(net.x)), one=True)
    assert certified(graph).gradient["dense.weight"].upper == pytest.approx(expected, rel=1e-12)


def test_slices_beside_the_whole() -> None:
    """The slices count √2 as parts of x, the whole 1 more: under addition nothing more is known."""
    net = Net()
    low, high = net.pieces(net.x, 2, 4)
    assert slope(net.graph(net.plus(net.block(low), net.block(high), net.block(net.x)))) == pytest.approx(
        1 + math.sqrt(2)
    )


def test_norms_of_blocks_on_slices_are_the_largest_and_offsets_add_as_squares() -> None:
    """Sigmoids on the halves of x: slope 1/4 and value √2/2 at 0 each: 1/4 + √(1/2 + 1/2)."""
    net = Net()
    graph = net.graph(net.concat(*(net.add("sigmoid", NO, piece) for piece in net.pieces(net.x, 2, 4))))
    assert certified(graph).norm[graph.output].upper == pytest.approx(1 / 4 + 1, rel=1e-12)


def test_added_slices_have_the_norm_of_a_row() -> None:
    """3·ξ_1 + 4·ξ_2 <= 5, where each alone may be 3 and 4."""
    net = Net()
    low, high = net.pieces(net.x, 2, 4)
    graph = net.graph(net.plus(net.block(low, 3), net.block(high, 4)))
    assert certified(graph).norm[graph.output].upper == pytest.approx(5, rel=1e-12)


def test_a_product_with_itself_receives_both_cotangents() -> None:
    """The square of a block of norm 3: slope 2·3·3, and norm 3·3."""
    net = Net()
    value = net.block(net.x, 3)
    graph = net.graph(net.add("multiply", NO, value, value))
    assert slope(graph) == 18
    assert certified(graph).norm[graph.output].upper == 9


def test_a_clip_in_a_branch_ends_its_part() -> None:
    """Into the concatenation goes 1. The clipped branch hands back at most 1/4, the other its whole part, 1."""
    net = Net()
    start = net.block(net.x)
    joined = net.concat(net.clip(net.block(start), 0.25), net.block(start))
    found = certified(net.graph(joined, one=True))
    assert found.gradient["dense.weight"].upper == pytest.approx(1.25, rel=1e-12)
    assert found.slope["dense"].upper == pytest.approx(math.sqrt(2), rel=1e-12)


def test_a_weight_shared_by_both_parts_is_used_by_a_cotangent_once() -> None:
    """Siamese: κ = 1 at both uses, √2 under concatenation and 2 under addition."""
    for merge, expected in (("concat", math.sqrt(2)), ("plus", 2.0)):
        net = Net()
        halves = net.pieces(net.x, 2, 4)
        twins = [net.block(half, shared="twin.weight") for half in halves]
        found = certified(net.graph(getattr(net, merge)(*twins), one=True))
        assert found.gradient["twin.weight"].upper == pytest.approx(expected, rel=1e-12)


def test_the_output_may_be_a_part_of_nothing() -> None:
    net = Net()
    assert slope(net.graph(net.x)) == 1


def _dense_net(depth: int) -> Graph:
    """Every block reads the concatenation of all values before it: 2^depth paths."""
    net = Net()
    values = [net.x]
    for _ in range(depth):
        values.append(net.block(net.concat(*values) if len(values) > 1 else net.x))
    return net.graph(net.concat(*values), one=True)


def test_densely_connected_networks_are_analysed_in_time_and_not_above_the_sum() -> None:
    """Without parts each value has the sum of its consumers, 2^depth; with them 2^(depth/2) but for folding."""
    assert slope(_dense_net(3)) == pytest.approx(math.sqrt(2) ** 3, rel=1e-12)
    assert math.sqrt(2) ** 20 <= slope(_dense_net(20)) < 2**20


def test_doubling_concatenations_stay_small_forward() -> None:
    net = Net()
    low, high = net.pieces(net.x, 2, 4)
    value = net.concat(low, high)
    for _ in range(20):
        value = net.concat(value, value)
    graph = net.graph(value)
    assert certified(graph).norm[graph.output].upper == pytest.approx(2**10, rel=1e-12)


def test_the_domains_agree_on_forms() -> None:
    for make, expected in CASES.values():
        net = Net()
        graph = net.graph(make(net, net.x))
        program = Traced()
        traced = derive(graph, program).slope["x"]
        names: dict[str, Any] = {"sqrt": math.sqrt, "minimum": min, "maximum": max, "X_0": 1.0}
        exec("\n".join(program.program(traced)), names)
        assert eval(str(traced), names) == pytest.approx(expected, rel=1e-12)
        symbolic = Symbolic()
        formula: Any = derive(graph, symbolic).slope["x"].expression
        for definition in reversed(symbolic.definitions.values()):
            if definition.expression is not None:
                formula = formula.subs(
                    {s: definition.expression for s in formula.free_symbols if s.name == definition.name}
                )
        assert float(formula) == pytest.approx(expected, rel=1e-12)


# The algebra of forms


def _form(**terms: float) -> PartwiseBound[Interval]:
    """Terms by path: `a0b1` is part 1 of b within part 0 of a; `_` is the number 1. All wholes have two parts."""
    return PartwiseBound({_path(path): NUM.of(Fraction(value)) for path, value in terms.items()})


def _path(text: str) -> tuple[Part, ...]:
    return tuple(Part(text[i], int(text[i + 1]), 2) for i in range(0, len(text), 2)) if text != "_" else ()


def _shown(form: PartwiseBound[Interval]) -> dict[str, float]:
    name = {path: "".join(f"{part.whole}{part.operand}" for part in path) or "_" for path in form.terms}
    return {name[path]: term.upper for path, term in form.terms.items()}


def test_inner_parts_fold_before_outer_ones() -> None:
    """(3² + 4²) at a0, then with 12 at a1: 13; 1 outside."""
    form = _form(a0b0=3, a0b1=4, a1=12, _=1)
    assert bound(NUM, form).upper == 14
    assert _shown(settled(NUM, form)) == {"_": 14}


def test_what_has_not_arrived_is_waited_for() -> None:
    assert _shown(settled(NUM, _form(a0=3, _=1))) == {"a0": 3, "_": 1}
    assert _shown(settled(NUM, _form(a0b0=3, a1=4))) == {"a0b0": 3, "a1": 4}
    assert _shown(settled(NUM, _form(a0b0=3, a0b1=4, _=1))) == {"a0": 5, "_": 1}


def test_the_same_whole_under_two_outer_parts_stays_apart() -> None:
    form = _form(a0c0=3, a0c1=4, b0c0=1)
    assert _shown(settled(NUM, form)) == {"a0": 5, "b0c0": 1}
    assert bound(NUM, form).upper == 6


def test_many_terms_are_folded_early_and_the_value_is_kept() -> None:
    parts: dict[tuple[Part, ...], Interval] = {(Part("w", index, 200),): NUM.of(1) for index in range(100)}
    many = total(NUM, [PartwiseBound(parts), _form(_=1)])
    kept = limited(NUM, many)
    assert len(kept.terms) <= MOST_TERMS
    assert bound(NUM, kept).upper == bound(NUM, many).upper == 11


def test_slices_of_one_part_stay_its_slices() -> None:
    """What is common to all paths is factored out, whether the rests are numbers, parts or mixed."""
    assert _shown(disjoint(NUM, [_form(a0=3), _form(a0=4)])) == {"a0": 5}
    assert _shown(disjoint(NUM, [_form(a0b0=3), _form(a0b1=4)])) == {"a0": 4}
    assert _shown(disjoint(NUM, [_form(a0b0=3), _form(a0=4)])) == {"a0": 5}
    assert _shown(disjoint(NUM, [_form(a0b0=3), _form(a0b1=2), _form(a1=4)])) == {"_": 4}
    assert _shown(disjoint(NUM, [_form(a0b0=3), _form(a0c1=4)])) == {"a0": 5}
    assert _shown(disjoint(NUM, [_form(a0=3), _form(b0=4)])) == {"_": 5}
    assert _shown(disjoint(NUM, [_form(a0=3), _form(a1=4)])) == {"_": 4}
    assert _shown(disjoint(NUM, [_form(a0=3, _=1), _form(a1=3)])) == {"_": 5}


def _value(form: PartwiseBound[Interval], fractions: dict[Part, float]) -> float:
    return sum(term.upper * math.prod(fractions[part] for part in path) for path, term in form.terms.items())


@pytest.mark.parametrize("seed", range(200))
def test_no_choice_of_parts_exceeds_a_fold(seed: int) -> None:
    """Random forms over nested wholes, random lengths of parts: what folds them is above their values."""
    generator = torch.Generator().manual_seed(seed)

    def number(low: float = 0, high: float = 1) -> float:
        return low + (high - low) * float(torch.rand((), generator=generator, dtype=torch.float64))

    paths = [_path(text) for text in ("_", "a0", "a1", "b0", "a0b0", "a0b1", "a1b0", "a1b1", "a0b0c0", "b1c1")]

    def drawn() -> PartwiseBound[Interval]:
        chosen = [path for path in paths if number() < 0.5] or [paths[0]]
        return PartwiseBound({path: NUM.of(Fraction(number(0.1, 3))) for path in chosen})

    forms = [drawn() for _ in range(1 + seed % 3)]
    joint, together = disjoint(NUM, forms), total(NUM, forms)
    for _ in range(20):
        fractions: dict[Part, float] = {}
        for whole in "abc":
            angle = number(0, math.pi / 2)
            fractions |= {Part(whole, 0, 2): math.cos(angle), Part(whole, 1, 2): math.sin(angle)}
        assert _value(together, fractions) <= _value(settled(NUM, together), fractions) * (1 + SLACK)
        assert _value(together, fractions) <= bound(NUM, together).upper * (1 + SLACK)
        assert math.hypot(*(_value(form, fractions) for form in forms)) <= _value(joint, fractions) * (1 + SLACK)


@pytest.mark.parametrize("seed", range(100))
def test_the_norm_of_a_matrix_is_not_above_its_bound(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.rand(4, 5, generator=generator, dtype=torch.float64)
    matrix *= torch.rand(4, 5, generator=generator) < 0.4
    matrix[:, 0] += matrix.sum(1) == 0
    rows = [{j: NUM.of(Fraction(float(x))) for j, x in enumerate(row) if x > 0} for row in matrix]
    found = operator_norm(NUM, rows).upper
    assert spectral(matrix) <= found * (1 + SLACK)
    assert found <= float(matrix.norm()) * (1 + SLACK)

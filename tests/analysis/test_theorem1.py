"""Theorem 1 of Béthune et al. (ICLR 2024), derived by the compiler, against the recurrence and actual gradients.

The network of the theorem: T + 1 affine layers, ‖W_t‖ <= U and ‖b_t‖ <= B, an S-Lipschitz activation that keeps 0
after each but the last, inputs of norm X, a loss that is L-Lipschitz in the output; α = SU. The expected bound is

    K² = L²·Σ_{t=1}^{T+1} α^(2(T+1-t))·(1 + X_{t-1}²),   X_0 = X,   X_t = αX_{t-1} + SB.
"""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import mpmath
import pytest
import sympy
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lipcompile import ModelOptions, check, pipeline
from lipcompile.analysis.bounds import derive
from lipcompile.analysis.depth.loops import loops, with_count
from lipcompile.core.derivation import Analysis
from lipcompile.numbers.certified import Certified
from tests.analysis.test_closed_forms import evaluated

THEOREM = """
model theorem {
    param depth: int
    param U: real
    param S: real
    param B: real
    input x: tensor[4]
    repeat depth { dense(4, constraint=spectral(U), bias=B) relu frozen { scale(S) } }
    dense(4, constraint=spectral(U), bias=B)
}
"""
# S = 1, where the rate is the norm of the weights.
WITH_ALPHA = """
model theorem {
    param depth: int
    param alpha: real
    param B: real
    input x: tensor[4]
    repeat depth { dense(4, constraint=spectral(alpha), bias=B) relu }
    dense(1, constraint=spectral(alpha), bias=B)
}
"""


def analysed(source: str, folder: Path, **bindings: Fraction) -> Analysis:
    path = folder / "net.lip"
    path.write_text(source)
    analysis = check(str(path), ModelOptions(bindings=bindings)).analysis
    assert analysis is not None
    return analysis


def square_of_theorem(
    depth: int, u: Fraction, s: Fraction, b: Fraction, x: Fraction, lipschitz: Fraction
) -> Fraction:
    """K², by the recurrence."""
    total, norm = Fraction(0), x
    for t in range(1, depth + 2):
        total += (s * u) ** (2 * (depth + 1 - t)) * (1 + norm**2)
        norm = s * u * norm + s * b
    return lipschitz**2 * total


def closed_form_in_theory(
    depth: int, u: Fraction, s: Fraction, b: Fraction, x: Fraction, lipschitz: Fraction
) -> Fraction:
    """K² as docs/theory.md has it."""
    n, alpha = depth + 1, s * u
    if alpha == 1:
        cubic = Fraction(depth * n * (2 * depth + 1), 6)
        return lipschitz**2 * (n * (1 + x**2) + s * b * x * depth * n + (s * b) ** 2 * cubic)
    beta = s * b / (1 - alpha)
    squares = (1 + beta**2) * (1 - alpha ** (2 * n)) / (1 - alpha**2)
    mixed = 2 * beta * (x - beta) * alpha**depth * (1 - alpha**n) / (1 - alpha)
    return lipschitz**2 * (squares + mixed + n * alpha ** (2 * depth) * (x - beta) ** 2)


def root(square: Fraction) -> Any:
    with mpmath.workdps(60):
        return mpmath.sqrt(mpmath.mpf(square.numerator) / square.denominator)


def same(found: Any, expected: Any) -> bool:
    with mpmath.workdps(60):
        return bool(abs(found / expected - 1) < mpmath.mpf(10) ** -50)


# (a) The theorem is what the compiler derives.

rationals = st.fractions(min_value=Fraction(1, 8), max_value=4, max_denominator=12)
# Pairs with product 1 that binary numbers hold exactly.
reciprocal = st.sampled_from(
    [(Fraction(1), Fraction(1)), (Fraction(1, 2), Fraction(2)), (Fraction(4), Fraction(1, 4))]
)


@pytest.fixture(scope="module")
def theorem(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    return analysed(THEOREM, tmp_path_factory.mktemp("theorem"))


def assert_is_theorem(
    theorem: Analysis, depth: int, u: Fraction, s: Fraction, b: Fraction, x: Fraction, lipschitz: Fraction
) -> None:
    names = {"depth": depth, "U": u, "S": s, "B": b, "X_0": x, "L": lipschitz}
    expected = root(square_of_theorem(depth, u, s, b, x, lipschitz))
    assert same(evaluated(theorem.total.expression, theorem.definitions, **names), expected)
    of_depth = theorem.depth.gradient_bound
    assert of_depth is not None
    assert same(evaluated(of_depth.expression, theorem.depth.definitions, **names), expected)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(depth=st.integers(1, 40), u=rationals, s=rationals, b=rationals, x=rationals, lipschitz=rationals)
def test_the_bound_is_the_sum_of_the_theorem(
    theorem: Analysis, depth: int, u: Fraction, s: Fraction, b: Fraction, x: Fraction, lipschitz: Fraction
) -> None:
    if s * u != 1:
        assert_is_theorem(theorem, depth, u, s, b, x, lipschitz)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(depth=st.integers(1, 40), pair=reciprocal, b=rationals, x=rationals, lipschitz=rationals)
def test_the_bound_is_the_sum_of_the_theorem_at_rate_one(
    theorem: Analysis, depth: int, pair: tuple[Fraction, Fraction], b: Fraction, x: Fraction, lipschitz: Fraction
) -> None:
    s, u = pair
    assert_is_theorem(theorem, depth, u, s, b, x, lipschitz)


@given(depth=st.integers(1, 40), u=rationals, s=rationals, b=rationals, x=rationals, lipschitz=rationals)
def test_the_closed_form_in_theory_is_the_sum_of_the_theorem(
    depth: int, u: Fraction, s: Fraction, b: Fraction, x: Fraction, lipschitz: Fraction
) -> None:
    for weight in (u, 1 / s):
        assert closed_form_in_theory(depth, weight, s, b, x, lipschitz) == square_of_theorem(
            depth, weight, s, b, x, lipschitz
        )


def test_the_only_cases_of_the_theorem_are_rate_one_and_the_rest(theorem: Analysis) -> None:
    rate = sympy.Symbol("a_repeat_1", positive=True)
    assert {d.name: str(d.expression) for d in theorem.definitions}["a_repeat_1"] == "S*U"
    expressions = [
        theorem.total.expression,
        *(d.expression for d in theorem.definitions if d.expression is not None),
    ]
    cases = [case for expression in expressions for case in expression.atoms(sympy.Piecewise)]
    assert cases
    assert all([condition for _, condition in case.args] == [sympy.Eq(rate, 1), sympy.true] for case in cases)


def test_norms_of_the_theorem_are_those_of_its_closed_form(theorem: Analysis) -> None:
    """X_t = α^t·(X - β) + β with β = SB/(1 - α), and X + tSB for α = 1."""
    rate, s, b, x = sympy.symbols("a_repeat_1 S B X_0", positive=True)
    t = sympy.Symbol("depth", positive=True)
    beta = s * b / (1 - rate)
    [(special, condition), (general, _)] = sympy.piecewise_fold(
        next(d.expression for d in theorem.definitions if d.name == "X_repeat_1")
    ).args
    assert condition == sympy.Eq(rate, 1)
    assert sympy.simplify(general - (rate**t * (x - beta) + beta)) == 0
    assert sympy.simplify(special.subs(rate, 1) - (x + t * s * b)) == 0


def test_with_one_rate_the_orders_of_the_theorem_are_told_apart_by_it(tmp_path: Path) -> None:
    depth = analysed(WITH_ALPHA, tmp_path).depth
    assert depth.regime is None
    assert depth.growth == (
        "O(1) if alpha < 1, O(depth**(3/2)) if alpha = 1, O(alpha**depth * sqrt(depth)) if alpha > 1"
    )


@pytest.mark.parametrize("alpha", ["1/2", "0.9", "1", "1.1", "2"])
@pytest.mark.parametrize("depth", [1, 2, 7, 1000])
def test_certified_numbers_of_the_theorem_are_next_above_it(alpha: str, depth: int, tmp_path: Path) -> None:
    source = WITH_ALPHA.replace("tensor[4]", "tensor[4], norm <= 2")
    path = tmp_path / "net.lip"
    path.write_text(source)
    bindings = {"alpha": Fraction(alpha), "B": Fraction(1, 3)}
    graph = pipeline.load(str(path), ModelOptions(loss="kr", bindings=bindings)).graph
    assert graph is not None
    [node] = loops(graph)
    found = derive(with_count(graph, node.attributes, depth), Certified()).total.upper
    square = square_of_theorem(depth, Fraction(alpha), Fraction(1), Fraction(1, 3), Fraction(2), Fraction(1))
    assert Fraction(found) ** 2 >= square
    assert Fraction(math.nextafter(found, 0)) ** 2 <= square


# (b) The first version's bound at K = 1, and the second's at α = 1.


def gradient_norm(layers: int, x: float, bias: bool) -> float:
    """‖∇‖ of identity weights, biases 0 and GroupSort: ‖h_t‖ = ‖x‖, and cotangents of norm 1 everywhere."""
    weights = [torch.eye(2, dtype=torch.float64, requires_grad=True) for _ in range(layers)]
    biases = [torch.zeros(2, dtype=torch.float64, requires_grad=bias) for _ in range(layers)]
    h = torch.tensor([0.0, x], dtype=torch.float64)
    for weight, shift in zip(weights, biases, strict=True):
        h = (weight @ h + shift).sort().values
    torch.autograd.backward(h[1])
    found = [p.grad for p in [*weights, *biases] if p.grad is not None]
    return math.sqrt(sum(float((gradient**2).sum()) for gradient in found))


def first_version(layers: int, x: float, b: float) -> float:
    """What stands in the O of Theorem 1, case K = 1, of the first version: X_0 + √D + √(B·X_0·D) + B·D^(3/2)."""
    return x + math.sqrt(layers) + math.sqrt(b * x * layers) + b * math.pow(layers, 1.5)


def second_version(layers: int, x: float, b: float) -> float:
    """What stands in the O of (38) in the second version: √T + X√T + √(BX)·T + B·T^(3/2), for T + 1 layers."""
    t = layers - 1
    return math.sqrt(t) + x * math.sqrt(t) + math.sqrt(b * x) * t + b * math.pow(t, 1.5)


def ours(layers: int, x: float, b: Fraction, folder: Path) -> float:
    bias = f", bias={b}" if b else ""
    source = f"""model net {{ param depth: int input x: tensor[2], norm <= {x}
        repeat depth {{ dense(2{bias}) groupsort(2) }} dense(1{bias}) loss kr }}"""
    path = folder / "net.lip"
    path.write_text(source)
    graph = pipeline.load(str(path), ModelOptions()).graph
    assert graph is not None
    [node] = loops(graph)
    return derive(with_count(graph, node.attributes, layers - 1), Certified()).total.upper


DEPTHS = (4, 16, 64, 256, 1024)


def test_the_first_version_is_no_upper_bound_at_rate_one(tmp_path: Path) -> None:
    """Without biases it says O(L(X_0 + √D)). At X_0 = √D, weights 1 have the gradient √D·X_0 = D, beyond 2√D·C."""
    ratios = []
    for layers in DEPTHS:
        x = math.sqrt(layers)
        actual = gradient_norm(layers, x, bias=False)
        assert actual == pytest.approx(layers)
        ratios.append(actual / first_version(layers, x, 0))
        assert actual <= second_version(layers, x, 0) * math.sqrt(4 / 3)  # its √T is √(T + 1)
        assert actual <= ours(layers, x, Fraction(0), tmp_path) <= actual * (1 + 1e-12)
    assert ratios == pytest.approx([math.sqrt(layers) / 2 for layers in DEPTHS])


def test_the_first_version_is_no_upper_bound_with_small_biases(tmp_path: Path) -> None:
    """With biases up to B = 1/D² its two other terms stay small: the missing √D·X_0 is what counts."""
    ratios = []
    for layers in DEPTHS:
        x, b = math.sqrt(layers), Fraction(1, layers**2)
        actual = gradient_norm(layers, x, bias=True)
        assert actual == pytest.approx(math.sqrt(layers * (1 + x**2)))
        ratios.append(actual / first_version(layers, x, float(b)))
        assert actual <= second_version(layers, x, float(b)) * math.sqrt(4 / 3)
        assert actual <= ours(layers, x, b, tmp_path)
    assert all(later > 1.8 * before for before, later in pairwise(ratios))


def test_at_fixed_input_norms_the_first_version_is_off_by_that_norm() -> None:
    """As an order in D alone it would do; its constant is X_0, which it claims to show."""
    for x in (10.0, 100.0):
        ratios = [gradient_norm(layers, x, bias=False) / first_version(layers, x, 0) for layers in DEPTHS]
        assert ratios == sorted(ratios)
        limit = gradient_norm(4096, x, bias=False) / first_version(4096, x, 0)
        assert 0.35 * x < limit < x


# (c) Lemma 1 at US = 1 and S < 1.


def halved(layers: int, x: float) -> tuple[list[float], list[float], float]:
    """‖z_t‖, ‖h_t‖ and ‖∇‖ of W_t = 2, b_t = 0 and σ(z) = z/2, which keeps 0: α = 1."""
    weights = [torch.full((1, 1), 2.0, dtype=torch.float64, requires_grad=True) for _ in range(layers)]
    biases = [torch.zeros(1, dtype=torch.float64, requires_grad=True) for _ in range(layers)]
    h = torch.full((1,), x, dtype=torch.float64)
    before, after = [], []
    for weight, shift in zip(weights, biases, strict=True):
        z = weight @ h + shift
        h = z / 2
        before.append(float(z.detach().norm()))
        after.append(float(h.detach().norm()))
    torch.autograd.backward(z)  # the last layer has no activation
    gradients = [p.grad for p in [*weights, *biases] if p.grad is not None]
    return before, after, math.sqrt(sum(float((gradient**2).sum()) for gradient in gradients))


def test_lemma_1_is_wrong_at_rate_one_for_activations_that_shrink(theorem: Analysis) -> None:
    s, u, x, layers = Fraction(1, 2), Fraction(2), 3.0, 20
    before, after, actual = halved(layers, x)
    lemma_z, lemma_h = x, float(s) * x  # X + tB and SX + tSB with B = 0
    assert before == [2 * x] * layers  # not <= lemma_z
    assert after == [x] * layers  # not <= lemma_h
    assert before[0] > lemma_z
    assert after[0] > lemma_h
    # (69) of the second version inherits it: what it prints for K² is below an actual gradient.
    t = layers - 1
    printed = 1 + x**2 + t * (1 + float(s) ** 2 * x**2)
    assert actual**2 > 2 * printed
    # The recurrence gives X_t = X, and with it exactly this gradient.
    names = {"depth": t, "U": u, "S": s, "B": Fraction(0), "X_0": Fraction(3), "L": Fraction(1)}
    assert actual == pytest.approx(
        float(evaluated(theorem.total.expression, theorem.definitions, **names)), rel=1e-12
    )

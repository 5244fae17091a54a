"""Formulas of the Gaussian mechanism, against the figures of the literature and against the exact δ."""

from __future__ import annotations

import math
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lipcompile_privacy.accounting import (
    COMPARISONS,
    BudgetError,
    Comparison,
    Formula,
    Mechanism,
    NeighbouringRelation,
    RandomAllocation,
    Run,
    WithoutReplacement,
    comparison_epsilon,
    comparison_noise,
    comparison_steps,
    epsilon,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_noise,
)
from scipy.special import log_ndtr

ADD, REPLACE = NeighbouringRelation.ADD_REMOVE, NeighbouringRelation.REPLACE_ONE


# The mean salary of 10000 employees with at most 1000000 each moves by 100: the example of a tutorial.
@pytest.mark.parametrize(
    ("formula", "expected"),
    [("tail", 1051.3), ("padded", 1070.2), ("refined", 1025.5), ("analytic", 805.8), ("classical", 1059.8)],
)
def test_the_salary_example(formula: Formula, expected: float) -> None:
    assert 100 * gaussian_noise(formula, 0.5, 1e-6) == pytest.approx(expected, abs=0.05)


@given(
    st.sampled_from(["analytic", "refined", "padded", "tail", "classical"]),
    st.floats(-4, 4),
    st.floats(-30, math.log10(0.4)),
)
@settings(max_examples=60, deadline=None)
def test_every_formula_gives_a_private_mechanism_where_it_claims_to(
    formula: Formula, log_epsilon: float, log_delta: float
) -> None:
    eps, delta = 10**log_epsilon, 10**log_delta
    try:
        sigma = gaussian_noise(formula, eps, delta)
    except BudgetError:
        assert formula in ("tail", "classical")
        assert eps >= 1
        return
    assert gaussian_delta(sigma, eps) <= delta * (1 + 1e-12)
    assert gaussian_noise("analytic", eps, delta) <= sigma * (1 + 1e-9)
    back = gaussian_epsilon(formula, sigma, delta)
    assert back == pytest.approx(eps, rel=1e-6)


@pytest.mark.parametrize(("sigma", "eps"), [(1.0, 1.0), (0.3, 20.0), (50.0, 0.01), (2.0, 5.0)])
def test_the_exact_delta_agrees_with_another_library(sigma: float, eps: float) -> None:
    upper, lower = 0.5 / sigma - eps * sigma, -0.5 / sigma - eps * sigma
    expected = math.exp(log_ndtr(upper)) - math.exp(eps + log_ndtr(lower))
    assert gaussian_delta(sigma, eps) == pytest.approx(expected, rel=1e-8)


def test_formulas_say_where_they_hold() -> None:
    for formula, eps, delta in (("classical", 1.0, 1e-5), ("tail", 1.4, 1e-5), ("classical", 0.5, 0.5)):
        with pytest.raises(BudgetError, match=f"the {formula} formula is proved for epsilon"):
            gaussian_noise(formula, eps, delta)  # type: ignore[arg-type]
    with pytest.raises(BudgetError, match="needs more noise"):
        gaussian_epsilon("classical", 1.0, 1e-5)
    assert gaussian_epsilon("refined", 0.0, 1e-5) == math.inf


def test_advanced_composition_is_the_formula_of_the_textbook() -> None:
    steps, delta = 100, 1e-5
    one = gaussian_epsilon("analytic", 50.0, delta / (2 * steps))
    expected = one * math.sqrt(2 * steps * math.log(2 / delta)) + steps * one * math.expm1(one)
    assert comparison_epsilon("advanced", [(Mechanism(1.0, 50.0), steps)], delta) == pytest.approx(expected)
    # Sampling at rate q: (ε, δ) of a step become ln(1 + q (e^ε - 1)) and qδ.
    one = math.log1p(0.1 * math.expm1(gaussian_epsilon("analytic", 50.0, delta / (2 * steps * 0.1))))
    expected = one * math.sqrt(2 * steps * math.log(2 / delta)) + steps * one * math.expm1(one)
    assert comparison_epsilon("advanced", [(Mechanism(0.1, 50.0), steps)], delta) == pytest.approx(expected)


@pytest.mark.parametrize("comparison", COMPARISONS)
def test_comparisons_are_above_the_accountants(comparison: Comparison) -> None:
    runs: list[Run] = [
        (Mechanism(0.05, 60.0), 30),
        (WithoutReplacement(5, 100, 90.0), 20),
        (RandomAllocation(10, 50.0), 1),
    ]
    assert comparison_epsilon(comparison, runs, 1e-5) >= epsilon(runs, 1e-5, ADD, "rdp")
    assert comparison_epsilon(comparison, [], 1e-5) == 0
    assert comparison_epsilon(comparison, [(Mechanism(1.0, 0.0), 1)], 1e-5) == math.inf


@pytest.mark.parametrize("comparison", COMPARISONS)
@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_noise_and_steps_invert_the_comparison(comparison: Comparison, relation: NeighbouringRelation) -> None:
    at = partial(Mechanism, 1.0)
    sigma = comparison_noise(comparison, 0.9, 1e-5, at, 10, relation)
    assert comparison_epsilon(comparison, [(at(sigma), 10)], 1e-5, relation) == pytest.approx(0.9, rel=1e-3)
    assert comparison_steps(comparison, 0.9, 1e-5, at(sigma * 1.001), relation) == 10


def test_advanced_composition_knows_no_poisson_sampling_under_replace_one() -> None:
    with pytest.raises(BudgetError, match="no amplification by Poisson sampling"):
        comparison_epsilon("advanced", [(Mechanism(0.1, 5.0), 10)], 1e-5, REPLACE)

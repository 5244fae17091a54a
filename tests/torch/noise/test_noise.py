"""Allocation against formulas written by hand, and the noise that is really drawn."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lipcompile_torch.certify.precision import rounding_slack
from lipcompile_torch.noise.mechanism import (
    Allocation,
    NoiseSource,
    allocate,
    effective_multiplier,
    zero_gradient_,
)
from torch import nn

ALLOCATIONS: tuple[Allocation, ...] = ("global", "per_layer", "optimal")
BOUNDS = {"a": 3.0, "b": 4.0, "c": 0.0}
SIZES = {"a": 100, "b": 1, "c": 7}


def test_formulas_by_hand() -> None:
    # √(3² + 4²) = 5; two active parameters; Σ K√n = 3·10 + 4·1 = 34.
    assert allocate("global", BOUNDS, SIZES, 2.0) == pytest.approx({"a": 10, "b": 10})
    layered = allocate("per_layer", BOUNDS, SIZES, 2.0)
    assert layered == pytest.approx({"a": 6 * math.sqrt(2), "b": 8 * math.sqrt(2)})
    optimal = allocate("optimal", BOUNDS, SIZES, 2.0)
    assert optimal == pytest.approx({"a": 2 * math.sqrt(3 / 10 * 34), "b": 2 * math.sqrt(4 * 34)})


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.tuples(st.floats(1e-12, 1e12), st.integers(1, 10**9)), min_size=1, max_size=40),
    st.floats(0.05, 1e6),
    st.sampled_from(ALLOCATIONS),
)
def test_the_step_has_at_least_the_noise_multiplier(
    parts: list[tuple[float, int]], sigma: float, allocation: Allocation
) -> None:
    bounds = {str(i): bound for i, (bound, _) in enumerate(parts)}
    sizes = {str(i): size for i, (_, size) in enumerate(parts)}
    stds = allocate(allocation, bounds, sizes, sigma)
    assert sigma <= effective_multiplier(bounds, stds) <= sigma * (1 + 1e-9)
    distance = sum((Fraction(bound) / Fraction(stds[name])) ** 2 for name, bound in bounds.items())
    assert distance * Fraction(sigma) ** 2 <= 1  # in exact arithmetic too


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.floats(1e-6, 1e6), st.integers(1, 10**6)), min_size=1, max_size=20))
def test_optimal_has_the_least_noise_energy(parts: list[tuple[float, int]]) -> None:
    bounds = {str(i): bound for i, (bound, _) in enumerate(parts)}
    sizes = {str(i): size for i, (_, size) in enumerate(parts)}

    def energy(allocation: Allocation) -> float:
        return math.fsum(sizes[n] * s**2 for n, s in allocate(allocation, bounds, sizes, 1.0).items())

    assert energy("optimal") <= min(energy("global"), energy("per_layer")) * (1 + 1e-9)


def test_trap_07_per_layer_noise_at_sigma_each_would_be_a_weaker_mechanism() -> None:
    # Trap 7: P parameters with noise σ·K_p each make one mechanism of multiplier σ/√P.
    bounds = {str(i): float(i + 1) for i in range(9)}
    assert effective_multiplier(bounds, bounds) == pytest.approx(1 / 3)
    stds = allocate("per_layer", bounds, dict.fromkeys(bounds, 1), 1.0)
    assert all(std == pytest.approx(3 * bounds[name]) for name, std in stds.items())


def test_weights_by_hand() -> None:
    # w = (1, 2): √((3/1)² + (4/2)²) = √13. The frozen-out c needs a weight too, and gets no noise.
    stds = allocate({"a": 1.0, "b": 2.0, "c": 1.0}, BOUNDS, SIZES, 2.0)
    assert stds == pytest.approx({"a": 2 * math.sqrt(13), "b": 4 * math.sqrt(13)})
    assert allocate({"*": 10.0, "b": 20.0}, BOUNDS, SIZES, 2.0) == pytest.approx(stds)  # only ratios matter
    assert allocate({"[ac]": 0.5, "b": 1.0}, BOUNDS, SIZES, 2.0) == pytest.approx(stds)


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.tuples(st.floats(1e-12, 1e12), st.floats(1e-12, 1e12)), min_size=1, max_size=40),
    st.floats(0.05, 1e6),
)
def test_weights_give_the_noise_multiplier_and_their_own_ratios(
    parts: list[tuple[float, float]], sigma: float
) -> None:
    bounds = {str(i): bound for i, (bound, _) in enumerate(parts)}
    weights = {str(i): weight for i, (_, weight) in enumerate(parts)}
    stds = allocate(weights, bounds, dict.fromkeys(bounds, 1), sigma)
    assert sigma <= effective_multiplier(bounds, stds) <= sigma * (1 + 1e-9)
    for name, std in stds.items():
        assert std / stds["0"] == pytest.approx(weights[name] / weights["0"], rel=1e-9)


def test_weights_contain_the_rules() -> None:
    sizes = {"a": 100, "b": 1}
    bounds = {"a": 3.0, "b": 4.0}
    for rule, weights in (
        ("global", {"*": 1.0}),
        ("per_layer", bounds),
        ("optimal", {"a": math.sqrt(3 / 10), "b": math.sqrt(4 / 1)}),
    ):
        expected = allocate(rule, bounds, sizes, 1.5)  # type: ignore[arg-type]
        assert allocate(weights, bounds, sizes, 1.5) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"a": 1.0, "b": 1.0}, "parameter c has no noise weight"),
        ({"*": 1.0, "[ab]": 1.0}, "parameter a has several noise weights"),
        ({"*": 1.0, "d": 1.0}, "'d' matches no parameter; the parameters are a, b, c"),
        ({"*": 0.0}, "weight of '\\*' is 0.0"),
        ({"*": -1.0}, "finite and positive"),
        ({"*": math.nan}, "finite and positive"),
        ({"*": math.inf}, "finite and positive"),
        ({"*": 1.0, "A": 1.0}, "'A' matches no parameter"),
        ({}, "parameter a has no noise weight"),
    ],
)
def test_weights_that_say_nothing_clear_are_refused(weights: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        allocate(weights, BOUNDS, SIZES, 1.0)


def test_extreme_bounds_do_not_leave_the_range_of_doubles() -> None:
    bounds, sizes = {"a": 1e-200, "b": 3e-200}, {"a": 10, "b": 10**9}
    for allocation in ALLOCATIONS:
        assert effective_multiplier(bounds, allocate(allocation, bounds, sizes, 1.0)) >= 1.0


@pytest.mark.parametrize("bound", [math.inf, math.nan, -1.0])
def test_bounds_that_are_none_are_refused(bound: float) -> None:
    with pytest.raises(ValueError, match="gradient bound of a"):
        allocate("global", {"a": bound}, {"a": 1}, 1.0)


def test_unknown_allocation_is_refused_and_no_bounds_need_no_noise() -> None:
    with pytest.raises(ValueError, match="unknown noise allocation"):
        allocate("uniform", {"a": 1.0}, {"a": 1}, 1.0)  # type: ignore[arg-type]
    assert allocate("optimal", {"a": 0.0}, {"a": 5}, 1.0) == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_noise_has_the_stated_standard_deviation(dtype: torch.dtype) -> None:
    # The sample variance of n normals lies within 5·√(2/n) of the truth but for 6e-7 of all cases.
    n = 200_000
    parameter = nn.Parameter(torch.zeros(n, dtype=dtype))
    NoiseSource(seed=1).perturb_({"w": parameter}, {"w": 6.0}, normaliser=3.0)
    assert parameter.grad is not None
    expected = 2.0 * (1 + rounding_slack(dtype))
    variance = float(parameter.grad.double().square().mean()) / expected**2
    assert parameter.grad.dtype == dtype
    assert abs(variance - 1) < 5 * math.sqrt(2 / n) + (1e-3 if dtype == torch.bfloat16 else 0)


def test_noise_is_normal_into_the_tails() -> None:
    # Kolmogorov distance of 2^20 draws: above 3/√n in 3e-8 of all cases. Float32 normals end at 5.77.
    parameter = nn.Parameter(torch.zeros(2**20, dtype=torch.float64))
    NoiseSource(seed=2).perturb_({"w": parameter}, {"w": 1.0}, normaliser=1.0)
    assert parameter.grad is not None
    ordered = parameter.grad.sort().values
    steps = torch.arange(1, len(ordered) + 1, dtype=torch.float64) / len(ordered)
    assert float((torch.special.ndtr(ordered) - steps).abs().max()) < 3 / math.sqrt(len(ordered))


def test_noise_is_added_to_the_gradient_wherever_it_comes_from() -> None:
    # Trap 23: no gradient, and a sparse one.
    dense, absent, sparse = (nn.Parameter(torch.zeros(4, 3, dtype=torch.float64)) for _ in range(3))
    dense.grad = torch.full((4, 3), 5.0, dtype=torch.float64)
    sparse.grad = torch.sparse_coo_tensor(
        torch.tensor([[1]]), torch.full((1, 3), 5.0, dtype=torch.float64), (4, 3), check_invariants=True
    )
    for parameter in (dense, absent, sparse):
        NoiseSource(seed=3).perturb_({"w": parameter}, {"w": 1.0}, normaliser=2.0)
    assert dense.grad is not None
    assert absent.grad is not None
    assert bool((absent.grad != 0).all())
    assert sparse.grad.layout is torch.strided
    torch.testing.assert_close(dense.grad - absent.grad, torch.full_like(absent.grad, 5.0))
    expected = torch.zeros_like(absent.grad)
    expected[1] = 5.0
    torch.testing.assert_close(sparse.grad - absent.grad, expected)


def test_a_gradient_without_bound_becomes_exactly_zero() -> None:
    parameter = nn.Parameter(torch.ones(3))
    parameter.grad = torch.full((3,), 1e-9)
    zero_gradient_(parameter)
    assert torch.equal(parameter.grad, torch.zeros(3))


def draws(source: NoiseSource) -> torch.Tensor:
    parameter = nn.Parameter(torch.zeros(20, dtype=torch.float64))
    source.perturb_({"w": parameter}, {"w": 1.0}, 1.0)
    assert parameter.grad is not None
    return parameter.grad


def test_unseeded_noise_never_repeats_and_seeded_noise_does() -> None:
    source = NoiseSource()
    seen = [draws(source)]
    for _ in range(3):
        source.begin_step(0)
        seen.append(draws(source))
    seen.append(draws(NoiseSource()))
    assert all(not torch.equal(one, other) for one, other in pairwise(seen))
    torch.manual_seed(0)
    global_seed = draws(NoiseSource())
    torch.manual_seed(0)
    assert not torch.equal(draws(NoiseSource()), global_seed)
    assert torch.equal(draws(NoiseSource(seed=5)), draws(NoiseSource(seed=5)))

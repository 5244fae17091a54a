"""Every release, relation and accountant: against dp-accounting itself, and against exact integrals."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from dp_accounting import (
    DpEvent,
    GaussianDpEvent,
    NeighboringRelation,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    TruncatedSubsampledGaussianDpEvent,
)
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from lipcompile_privacy.accounting import (
    Accountant,
    BudgetError,
    Mechanism,
    NeighbouringRelation,
    RandomAllocation,
    Release,
    WithoutReplacement,
    calibrate_batch_size,
    calibrate_noise_multiplier,
    calibrate_steps,
    check_supported,
    epsilon,
    release_from,
)
from lipcompile_privacy.accounting.pld import fixed_size_pld
from scipy.optimize import brentq
from scipy.stats import norm

from tests.nights import by_day

pytestmark = pytest.mark.slow

ADD, REPLACE = NeighbouringRelation.ADD_REMOVE, NeighbouringRelation.REPLACE_ONE
THEIRS = {ADD: NeighboringRelation.ADD_OR_REMOVE_ONE, REPLACE: NeighboringRelation.REPLACE_ONE}
DELTA = 1e-5


def gaussian_delta(distance: float, eps: float) -> float:
    """Balle and Wang 2018, Theorem 8."""
    upper, lower = distance / 2 - eps / distance, -distance / 2 - eps / distance
    return float(norm.cdf(upper) - math.exp(eps) * norm.cdf(lower))


# --- the same events, composed by dp-accounting ---


def poisson(rate: float, sigma: float) -> DpEvent:
    return PoissonSampledDpEvent(rate, GaussianDpEvent(sigma))


def fixed(batch: int, size: int, sigma: float) -> DpEvent:
    return SampledWithoutReplacementDpEvent(size, batch, GaussianDpEvent(sigma))


# Batch, noise and scheme change on the way. Noise is std/K in ours; in theirs it is what each accountant takes.
COMPOSED: dict[str, tuple[Accountant, NeighbouringRelation, list[tuple[Release, int, DpEvent]]]] = {
    "rdp add": (
        "rdp",
        ADD,
        [
            (Mechanism(0.01, 1.2), 300, poisson(0.01, 1.2)),
            (Mechanism(0.02, 1.2), 100, poisson(0.02, 1.2)),
            (Mechanism(0.02, 2.0), 50, poisson(0.02, 2.0)),
            (Mechanism(1.0, 30.0), 7, GaussianDpEvent(30.0)),
            (WithoutReplacement(5, 100, 4.0), 20, poisson(0.05, 2.0)),
            (RandomAllocation(50, 20.0), 3, GaussianDpEvent(20.0)),
        ],
    ),
    "pld add": (
        "pld",
        ADD,
        [
            (Mechanism(0.01, 1.2), 300, poisson(0.01, 1.2)),
            (Mechanism(0.02, 2.0), 50, poisson(0.02, 2.0)),
            (Mechanism(1.0, 30.0), 7, GaussianDpEvent(30.0)),
            (WithoutReplacement(5, 100, 12.0), 20, poisson(0.05, 6.0)),
        ],
    ),
    "rdp replace": (
        "rdp",
        REPLACE,
        [
            (WithoutReplacement(5, 500, 4.0), 300, fixed(5, 500, 2.0)),
            (WithoutReplacement(50, 500, 9.0), 10, fixed(50, 500, 4.5)),
            (WithoutReplacement(500, 500, 60.0), 2, GaussianDpEvent(30.0)),
            (Mechanism(1.0, 30.0), 7, GaussianDpEvent(15.0)),
            (RandomAllocation(50, 40.0), 3, GaussianDpEvent(20.0)),
        ],
    ),
    "pld replace": (
        "pld",
        REPLACE,
        [
            (Mechanism(0.01, 3.0), 300, poisson(0.01, 3.0)),
            (Mechanism(0.03, 6.0), 50, poisson(0.03, 6.0)),
            (Mechanism(1.0, 30.0), 7, GaussianDpEvent(30.0)),
            (RandomAllocation(50, 40.0), 3, GaussianDpEvent(40.0)),
            (WithoutReplacement(500, 500, 60.0), 2, GaussianDpEvent(60.0)),
        ],
    ),
}


def theirs(accountant: Accountant, relation: NeighbouringRelation, events: list[tuple[DpEvent, int]]) -> float:
    made: Any = {"rdp": RdpAccountant, "pld": PLDAccountant}[accountant](neighboring_relation=THEIRS[relation])
    for event, count in events:
        made.compose(event, count)
    return float(made.get_epsilon(DELTA))


@pytest.mark.parametrize("case", COMPOSED)
def test_composed_releases_cost_what_dp_accounting_says_of_the_same_events(case: str) -> None:
    accountant, relation, lines = COMPOSED[case]
    ours = epsilon([(release, count) for release, count, _ in lines], DELTA, relation, accountant)
    expected = theirs(accountant, relation, [(event, count) for _, count, event in lines])
    assert ours == pytest.approx(expected, rel=1e-9)


def test_the_noise_of_an_event_means_two_things_under_replace_one() -> None:
    # The trap: dp-accounting's PLD takes std/K and doubles the sensitivity, its RDP takes std over 2K.
    event = [(GaussianDpEvent(2.0), 1)]
    assert theirs("pld", REPLACE, event) == pytest.approx(4.377, abs=1e-3)
    assert theirs("rdp", REPLACE, event) == pytest.approx(2.166, abs=1e-3)
    exact = brentq(lambda eps: gaussian_delta(1.0, eps) - DELTA, 0, 20)
    for accountant in ("pld", "rdp"):
        assert exact <= epsilon([(Mechanism(1.0, 2.0), 1)], DELTA, REPLACE, accountant) <= 1.1 * exact


# --- what is refused, and what is not ---

RELEASES: dict[str, Callable[[float], Release]] = {
    "poisson": partial(Mechanism, 0.1),
    "plain": partial(Mechanism, 1.0),
    "fixed_size": partial(WithoutReplacement, 10, 100),
    "all": partial(WithoutReplacement, 100, 100),
    "allocation": partial(RandomAllocation, 10),
    "one batch": partial(RandomAllocation, 1),
}


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize("name", RELEASES)
def test_all_combinations_have_an_analysis_but_one(
    name: str, relation: NeighbouringRelation, accountant: Accountant
) -> None:
    runs = [(RELEASES[name](3.0), 2)]
    if (name, relation, accountant) == ("poisson", REPLACE, "rdp"):
        with pytest.raises(BudgetError, match=r"no theorem .* use accountant='pld'"):
            epsilon(runs, DELTA, relation, accountant)
        return
    # One example moves the sum by at most 2K, whatever the scheme: two plain mechanisms dominate.
    most = brentq(lambda eps: gaussian_delta(math.sqrt(2) * 2 / 3, eps) - DELTA, 0, 50)
    assert 0 < epsilon(runs, DELTA, relation, accountant) <= 1.1 * most
    for least in (0.0, 1e-200, 1e-4):  # of the last RDP still says 10^8 and more
        assert epsilon([(RELEASES[name](least), 10)], DELTA, relation, accountant) >= 1e8


@pytest.mark.parametrize(("rate", "steps", "most"), [(1e-6, 1000, 1e4), (1e-9, 1000, 0.0)])
def test_little_noise_costs_little_of_what_is_hardly_sampled(rate: float, steps: int, most: float) -> None:
    """Of 1000 steps at 1e-9 an example is in none, but for a chance of 1e-6, below δ."""
    assert epsilon([(Mechanism(rate, 0.01), steps)], DELTA) <= most


def test_without_the_package_random_allocation_names_the_extra_and_keeps_its_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lipcompile_privacy.accounting.composition.available", lambda: False)
    release = RandomAllocation(100, 2.0)
    with pytest.raises(BudgetError, match=r"install lipcompile\[allocation\], or use accountant='rdp'"):
        check_supported({release: 1}, DELTA, ADD, "pld")
    gaussian = epsilon([(Mechanism(1.0, 2.0), 1)], DELTA, ADD, "rdp")
    assert epsilon([(release, 1)], DELTA, ADD, "rdp") == gaussian


def test_impossible_releases_are_refused() -> None:
    for make in (
        partial(WithoutReplacement, 0, 10, 1.0),
        partial(WithoutReplacement, 11, 10, 1.0),
        partial(WithoutReplacement, 1, 10, -1.0),
        partial(RandomAllocation, 0, 1.0),
        partial(RandomAllocation, 3, math.inf),
    ):
        with pytest.raises(BudgetError):
            make()


def test_releases_are_read_back_from_their_fields() -> None:
    assert Mechanism(0.1, 2.0).fields() == {"sampling_rate": 0.1, "noise_multiplier": 2.0}
    for make in RELEASES.values():
        assert release_from(json.loads(json.dumps({**make(1.5).fields(), "kind": "step"}))) == make(1.5)
    for fields in (
        {"sampling": "shuffle", "noise_multiplier": 1.0},
        {"sampling_rate": 0.1},
        {"sampling": "allocation", "steps": 2.5, "noise_multiplier": 1.0},
        {"sampling": "fixed_size", "batch_size": True, "dataset_size": 3, "noise_multiplier": 1.0},
    ):
        with pytest.raises(BudgetError):
            release_from(fields)


# --- batches of fixed size ---


def amplified(rate: float, distance: float, eps: float) -> float:
    """δ of sampling without replacement: Balle, Barthe and Gaboardi 2018, from the Gaussian profile."""
    return rate * gaussian_delta(distance, math.log1p(math.expm1(eps) / rate))


@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize(("batch", "sigma"), [(5, 1.0), (50, 3.0), (99, 10.0)])
def test_one_batch_of_fixed_size_has_the_amplified_profile(
    relation: NeighbouringRelation, batch: int, sigma: float
) -> None:
    pld = fixed_size_pld(WithoutReplacement(batch, 100, sigma), relation, 1e-4)
    for eps in (0.0, 0.01, 0.3, 1.0):
        exact = amplified(batch / 100, 2 / sigma, eps)
        assert exact * (1 - 1e-9) - 1e-15 <= pld.get_delta_for_epsilon(eps) <= exact * 1.001 + 1e-12


def test_the_pld_of_replacement_is_its_own_reverse() -> None:
    pld = fixed_size_pld(WithoutReplacement(10, 100, 2.0), REPLACE, 1e-4)
    for eps in (0.01, 0.1, 0.5):
        reverse = 1 - math.exp(-eps) + math.exp(-eps) * amplified(0.1, 1.0, eps)
        assert pld.get_delta_for_epsilon(-eps) == pytest.approx(reverse, abs=1e-7)
        assert pld.get_delta_for_epsilon(-eps) >= reverse - 1e-14


@pytest.mark.parametrize(("batch", "size", "sigma", "steps"), [(256, 60000, 2.2, 2000), (30, 100, 12.0, 50)])
def test_composed_batches_of_fixed_size_lie_between_what_is_possible_and_what_is_published(
    batch: int, size: int, sigma: float, steps: int
) -> None:
    runs = [(WithoutReplacement(batch, size, sigma), steps)]
    found = epsilon(runs, DELTA, REPLACE, "pld")
    # Below: all examples but one at -K, that one at K or replaced by -K. Above: Poisson sampling of rate 1,
    # truncated to the batch, is the same sampling, and dp-accounting bounds it.
    possible = theirs("pld", ADD, [(poisson(batch / size, sigma / 2), steps)])
    published = theirs("pld", REPLACE, [(TruncatedSubsampledGaussianDpEvent(size, 1.0, batch, sigma), steps)])
    assert possible <= found <= published
    assert possible <= found <= epsilon(runs, DELTA, REPLACE, "rdp")


@pytest.mark.parametrize("sigma", by_day({1e-3, 1e3, 1e12}, [1e-3, 0.05, 1e3, 1e6, 1e9, 1e12]))
def test_extreme_noise_without_replacement_is_no_error(sigma: float) -> None:
    runs = [(WithoutReplacement(10, 100, sigma), 5)]
    found = epsilon(runs, DELTA, REPLACE, "rdp")
    assert 0 <= found < math.inf
    assert found >= epsilon([(WithoutReplacement(10, 100, 2 * sigma), 5)], DELTA, REPLACE, "rdp")


# --- random allocation ---


def two_batches(sigma: float, eps: float) -> float:
    """δ of one epoch of two batches, one of which holds the example: a double integral over both outputs."""
    x = np.linspace(-9, 10 + 1 / sigma, 1201)
    density = norm.pdf(x)
    shifted = np.exp(x / sigma - 0.5 / sigma**2)  # of N(1/σ, 1) to N(0, 1)
    ratio = (shifted[:, None] + shifted[None, :]) / 2
    weights = density[:, None] * density[None, :] * (x[1] - x[0]) ** 2
    removed = np.sum(weights * np.maximum(ratio - math.exp(eps), 0))
    added = np.sum(weights * np.maximum(1 - math.exp(eps) * ratio, 0))
    return float(max(removed, added))


@pytest.mark.parametrize("sigma", [1.0, 3.0])
def test_an_epoch_of_two_batches_costs_its_double_integral_from_above(sigma: float) -> None:
    exact = brentq(lambda eps: two_batches(sigma, eps) - 1e-4, 0.01, 10, xtol=1e-3)
    found = epsilon([(RandomAllocation(2, sigma), 1)], 1e-4, ADD, "pld")
    assert exact - 2e-3 <= found <= 1.05 * exact


def test_random_allocation_amplifies_and_composes_with_other_releases() -> None:
    epoch = RandomAllocation(20, 2.0)
    one = epsilon([(epoch, 1)], DELTA)
    assert one < 0.3 * epsilon([(Mechanism(1.0, 2.0), 1)], DELTA)
    ten = epsilon([(epoch, 10)], DELTA)
    assert one < ten < 10 * one
    step = (Mechanism(0.05, 1.0), 10)
    assert max(ten, epsilon([step], DELTA)) < epsilon([(epoch, 10), step], DELTA) < ten + 10 * one
    # About as much as Poisson sampling at the same rate (Feldman and Shenfeld 2026), by PLDs of two packages.
    assert ten == pytest.approx(epsilon([(Mechanism(1 / 20, 2.0), 200)], DELTA), rel=0.15)


def test_replacement_in_random_allocation_is_a_removal_and_an_addition() -> None:
    epoch, count = RandomAllocation(20, 2.0), 3
    found = epsilon([(epoch, count)], DELTA, REPLACE)
    # (ε, δ) under add/remove is (2ε, (1 + e^ε) δ) under replace-one: with these numbers, more than a third less.
    once = epsilon([(epoch, count)], DELTA / (1 + math.exp(found / 2)), ADD)
    assert found == pytest.approx(2 * once, rel=1e-2)
    assert found < 0.6 * epsilon([(epoch, count)], DELTA, REPLACE, "rdp")
    # Where that does not help, one Gaussian mechanism of sensitivity 2K bounds the epoch.
    one = epsilon([(Mechanism(1.0, 0.01), 1)], DELTA, REPLACE)
    assert epsilon([(RandomAllocation(100, 0.01), 1)], DELTA, REPLACE) == one


def test_what_the_package_cannot_compute_names_the_bound_that_holds() -> None:
    with pytest.raises(BudgetError, match=r"PLD_accounting cannot compute .* use accountant='rdp'"):
        epsilon([(RandomAllocation(100, 0.01), 1)], DELTA)


# --- calibration ---


@pytest.mark.parametrize(
    ("release", "relation", "accountant", "charges"),
    [
        (partial(WithoutReplacement, 500, 1000), REPLACE, "rdp", 1),
        pytest.param(partial(WithoutReplacement, 500, 1000), REPLACE, "pld", 1000, marks=pytest.mark.nightly),
        (partial(WithoutReplacement, 100, 100), ADD, "rdp", 10),
        pytest.param(partial(RandomAllocation, 2), ADD, "pld", 1000, marks=pytest.mark.nightly),
        (partial(RandomAllocation, 4), REPLACE, "rdp", 2),
    ],
)
def test_noise_is_calibrated_for_every_release(
    release: Callable[[float], Release], relation: NeighbouringRelation, accountant: Accountant, charges: int
) -> None:
    sigma = calibrate_noise_multiplier(2.0, DELTA, release, charges, relation, accountant)
    assert 1.99 <= epsilon([(release(sigma), charges)], DELTA, relation, accountant) <= 2.0


def test_charges_and_batches_are_calibrated() -> None:
    epoch = RandomAllocation(10, 40.0)
    most = calibrate_steps(1.0, DELTA, epoch, REPLACE, "rdp")
    assert (
        epsilon([(epoch, most)], DELTA, REPLACE, "rdp")
        <= 1.0
        < epsilon([(epoch, most + 1)], DELTA, REPLACE, "rdp")
    )

    def run(batch: int) -> tuple[Release, int]:
        return Mechanism(batch / 6000, 4.0), 200

    batch = calibrate_batch_size(1.0, DELTA, run, 6000, ADD, "rdp")
    assert epsilon([run(batch)], DELTA, ADD, "rdp") <= 1.0 < epsilon([run(batch + 1)], DELTA, ADD, "rdp")
    assert calibrate_batch_size(1.0, DELTA, run, 10, ADD, "rdp") == 10
    assert calibrate_batch_size(0.001, DELTA, lambda _: (Mechanism(1.0, 1.0), 100), 60000, ADD, "rdp") == 0

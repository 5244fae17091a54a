"""Accounting against published figures, and against the closed form of the Gaussian mechanism."""

from __future__ import annotations

import logging
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from unittest.mock import Mock

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss
from dp_accounting.rdp import RdpAccountant
from lipcompile_privacy.accounting import (
    Accountant,
    BudgetError,
    Mechanism,
    NeighbouringRelation,
    calibrate_noise_multiplier,
    calibrate_steps,
    check_supported,
    composition,
    epsilon,
    rdp,
)
from lipcompile_privacy.accounting.composition import smallest
from lipcompile_privacy.accounting.pld import gaussian_deltas, pld_epsilon
from scipy.optimize import brentq
from scipy.stats import norm

ADD, REPLACE = NeighbouringRelation.ADD_REMOVE, NeighbouringRelation.REPLACE_ONE
MNIST = (Mechanism(256 / 60000, 1.1), 14062)


def gaussian_epsilon(sigma: float, steps: int, delta: float, sensitivity: float) -> float:
    """Balle and Wang 2018, Theorem 8, for a composition of Gaussians: mu = sensitivity·√steps/σ."""
    mu = sensitivity * math.sqrt(steps) / sigma

    def gap(eps: float) -> float:
        return float(norm.cdf(mu / 2 - eps / mu) - math.exp(eps) * norm.cdf(-mu / 2 - eps / mu)) - delta

    return float(brentq(gap, 0, 100))


@pytest.mark.parametrize(
    ("accountant", "relation", "expected"), [("rdp", ADD, 2.597), ("pld", ADD, 2.382), ("pld", REPLACE, 4.221)]
)
def test_epsilon_reproduces_known_figures(
    accountant: Accountant, relation: NeighbouringRelation, expected: float
) -> None:
    assert epsilon([MNIST], 1e-5, relation, accountant) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(("accountant", "expected"), [("rdp", 4.126), ("pld", 3.813)])
def test_calibration_reproduces_known_figures_and_certifies(accountant: Accountant, expected: float) -> None:
    began = time.monotonic()
    sigma = calibrate_noise_multiplier(1.0, 1e-5, 0.01, 10000, accountant=accountant)
    assert time.monotonic() - began < 20
    assert sigma == pytest.approx(expected, abs=1e-3)
    assert epsilon([(Mechanism(0.01, sigma), 10000)], 1e-5, ADD, accountant) <= 1.0
    assert epsilon([(Mechanism(0.01, sigma * 0.999), 10000)], 1e-5, ADD, accountant) > 1.0


@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_without_sampling_pld_is_the_closed_form_from_above(relation: NeighbouringRelation) -> None:
    exact = gaussian_epsilon(20.0, 100, 1e-5, 1 if relation is ADD else 2)
    assert exact <= epsilon([(Mechanism(1.0, 20.0), 100)], 1e-5, relation, "pld") <= exact * 1.001


@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_without_sampling_rdp_is_an_upper_bound_under_both_relations(relation: NeighbouringRelation) -> None:
    exact = gaussian_epsilon(20.0, 100, 1e-5, 1 if relation is ADD else 2)
    assert exact <= epsilon([(Mechanism(1.0, 20.0), 100)], 1e-5, relation, "rdp") <= exact * 1.15


@pytest.mark.parametrize("kind", AdjacencyType, ids=str)
@pytest.mark.parametrize("rate", [1e-6, 0.01, 0.3, 0.999, 1.0])
@pytest.mark.parametrize("sigma", [0.1, 0.4, 1.0, 8.0, 100.0])
def test_deltas_at_many_epsilons_are_those_of_the_library(kind: AdjacencyType, rate: float, sigma: float) -> None:
    """Which takes them one by one; at the losses where sampling bends the curve, too."""
    loss = GaussianPrivacyLoss(sigma, sampling_prob=rate, adjacency_type=kind)
    bounds, bend = loss.connect_dots_bounds(), math.log1p(-min(rate, 0.999))
    corners = [0, bend, -bend, math.nextafter(bend, 1), math.nextafter(bend, -1)]
    epsilons = np.append(np.linspace(bounds.epsilon_lower, min(bounds.epsilon_upper, 600), 200), corners)
    assert gaussian_deltas(loss, sigma, epsilons) == pytest.approx(
        loss.get_delta_for_epsilon(epsilons), rel=1e-10, abs=5e-16
    )


@pytest.mark.parametrize(
    ("target", "rate", "steps", "relation"),
    [(3.0, 1 / 8, 24, ADD), (10.0, 0.1, 1, ADD), (50.0, 0.25, 20, ADD), (1.0, 0.01, 7000, REPLACE)],
)
def test_calibration_asks_for_a_precise_epsilon_three_times_at_most(
    target: float,
    rate: float,
    steps: int,
    relation: NeighbouringRelation,
    monkeypatch: pytest.MonkeyPatch,
    forgetting: Callable[[], None],
) -> None:
    precise = Mock(wraps=pld_epsilon)
    monkeypatch.setattr(composition, "pld_epsilon", precise)
    forgetting()
    sigma = calibrate_noise_multiplier(target, 1e-5, rate, steps, relation)
    assert precise.call_count <= 3
    assert 0.9999 * target <= epsilon([(Mechanism(rate, sigma), steps)], 1e-5, relation) <= target
    assert calibrate_noise_multiplier(target, 1e-5, rate, steps, relation) == sigma
    assert precise.call_count <= 3  # what was computed is remembered


@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_calibration_without_sampling_inverts_the_closed_form(relation: NeighbouringRelation) -> None:
    sigma = calibrate_noise_multiplier(1.0, 1e-5, 1.0, 100, relation, "pld")
    exact = gaussian_epsilon(sigma, 100, 1e-5, 1 if relation is ADD else 2)
    assert 0.998 <= exact <= 1.0


def test_replace_one_costs_more_than_add_remove_at_one_noise_multiplier() -> None:
    # Feeding std/K of a replace-one analysis to an add-remove accountant would report the smaller number.
    run = (Mechanism(0.1, 2.0), 100)
    assert epsilon([run], 1e-5, REPLACE) > 1.5 * epsilon([run], 1e-5, ADD)


def test_runs_of_different_mechanisms_compose_in_any_order() -> None:
    runs = [(Mechanism(0.01, 2.0), 300), (Mechanism(0.02, 3.0), 200)]
    both = epsilon(runs, 1e-5)
    assert both == pytest.approx(epsilon(runs[::-1], 1e-5), rel=1e-6)
    assert both > max(epsilon([run], 1e-5) for run in runs)
    assert epsilon([runs[0], runs[0]], 1e-5) == epsilon([(runs[0][0], 600)], 1e-5)


def test_past_steps_count_against_the_target() -> None:
    past = [(Mechanism(0.05, 2.0), 50)]
    fresh = calibrate_noise_multiplier(2.0, 1e-5, 0.05, 50, accountant="rdp")
    after = calibrate_noise_multiplier(2.0, 1e-5, 0.05, 50, accountant="rdp", past=past)
    assert after > fresh
    assert epsilon([*past, (Mechanism(0.05, after), 50)], 1e-5, ADD, "rdp") <= 2.0
    with pytest.raises(BudgetError, match="already taken cost"):
        calibrate_noise_multiplier(0.01, 1e-5, 0.05, 50, accountant="rdp", past=past)


def test_steps_are_the_most_that_the_budget_allows() -> None:
    mechanism = Mechanism(0.01, 4.13)
    steps = calibrate_steps(1.0, 1e-5, mechanism, ADD, "rdp")
    assert epsilon([(mechanism, steps)], 1e-5, ADD, "rdp") <= 1.0
    assert epsilon([(mechanism, steps + 1)], 1e-5, ADD, "rdp") > 1.0
    assert calibrate_steps(1.0, 1e-5, mechanism, ADD, "rdp", past=[(mechanism, steps)]) == 0


@pytest.mark.parametrize(
    ("target", "delta", "steps", "said"),
    [
        (0.0, 1e-5, 10, "not a positive number"),
        (-1.0, 1e-5, 10, "not a positive number"),
        (math.nan, 1e-5, 10, "not a positive number"),
        (1.0, 0.0, 10, "strictly between 0 and 1"),
        (1.0, 1.0, 10, "strictly between 0 and 1"),
        (1.0, 1e-5, 0, "at least one step"),
        (1e-9, 1e-5, 10**6, "noise multiplier above"),
    ],
)
def test_impossible_targets_are_refused_in_one_line(target: float, delta: float, steps: int, said: str) -> None:
    with pytest.raises(BudgetError, match=said) as caught:
        calibrate_noise_multiplier(target, delta, 0.5, steps, accountant="rdp")
    assert "\n" not in str(caught.value)


def test_rdp_under_replace_one_names_the_fix() -> None:
    with pytest.raises(BudgetError, match="use accountant='pld'"):
        epsilon([MNIST], 1e-5, REPLACE, "rdp")


def test_delta_below_what_pld_resolves_is_refused() -> None:
    # dp-accounting 0.6 reports a NEGATIVE δ for 10^6 steps where the truth is 5e-13.
    run = (Mechanism(0.01, 100.0), 10**6)
    with pytest.raises(BudgetError, match="use accountant='rdp'"):
        epsilon([run], 1e-12, ADD, "pld")
    assert math.isfinite(epsilon([run], 1e-12, ADD, "rdp"))


def test_unknown_accountants_and_bad_mechanisms_are_refused() -> None:
    with pytest.raises(BudgetError, match="unknown accountant"):
        check_supported({}, 0.5, ADD, "gdp")
    for rate, sigma in ((0.0, 1.0), (1.1, 1.0), (0.1, -1.0), (0.1, math.nan), (math.nan, 1.0)):
        with pytest.raises(BudgetError):
            Mechanism(rate, sigma)
    with pytest.raises(BudgetError, match="cannot be negative"):
        epsilon([(Mechanism(0.1, 1.0), -1)], 1e-5)


def test_every_epoch_asks_for_the_same_divergences_once(
    monkeypatch: pytest.MonkeyPatch, forgetting: Callable[[], None]
) -> None:
    """Those of a step, whatever the number of steps; and ε of n steps is that of n equal runs of one."""
    forgetting()
    event = Mock(wraps=rdp._event)
    monkeypatch.setattr(rdp, "_event", event)
    mechanism = Mechanism(0.01, 1.3)
    found = [epsilon([(mechanism, epochs * 100)], 1e-5, ADD, "rdp") for epochs in range(1, 10)]
    assert event.call_count == 1
    assert found == sorted(found)
    accountant = RdpAccountant()
    for _ in range(3):
        accountant.compose(PoissonSampledDpEvent(0.01, GaussianDpEvent(1.3)), 100)
    assert found[2] == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-12)


def test_no_steps_cost_nothing_and_no_noise_costs_everything() -> None:
    assert epsilon([], 1e-5) == 0
    assert epsilon([(Mechanism(0.1, 1.0), 0)], 1e-5) == 0
    assert epsilon([(Mechanism(0.1, 0.0), 1)], 1e-5) == math.inf


def test_large_budgets_stay_small_in_memory_and_sound() -> None:
    run = (Mechanism(1.0, 0.5), 100)  # ε in the hundreds: a fine grid would take gigabytes
    mu = math.sqrt(100) / 0.5
    found = epsilon([run], 1e-5)
    exact = mu**2 / 2 + mu * norm.isf(1e-5)  # δ(ε) ≤ Φ(mu/2 - ε/mu), tight to a few per cent here
    assert 0.95 * exact <= found <= 1.02 * exact


def test_ten_million_steps_are_composed() -> None:
    # dp-accounting alone would raise the number of points of one step to this power, which does not end.
    found = epsilon([(Mechanism(0.01, 100.0), 10**7)], 1e-5)
    limit = gaussian_epsilon(100.0, 10**7, 1e-5, 0.01)  # of the central limit theorem
    assert limit <= found <= 1.1 * limit


def test_warnings_of_dp_accounting_are_silenced_only_here(caplog: pytest.LogCaptureFixture) -> None:
    calibrate_noise_multiplier(50.0, 1e-5, 0.5, 10, accountant="rdp")
    assert not caplog.records
    filters = list(logging.getLogger("absl").filters)
    epsilon([MNIST], 1e-5, ADD, "rdp")
    assert logging.getLogger("absl").filters == filters


@pytest.fixture
def forgetting() -> Iterator[Callable[[], None]]:
    """Return what empties the caches of answers; they are emptied after the test, too."""

    def forget() -> None:
        composition._epsilon.cache_clear()
        rdp._divergences.cache_clear()

    yield forget
    forget()


def test_negative_renyi_divergence_is_not_taken_for_perfect_privacy(
    monkeypatch: pytest.MonkeyPatch, forgetting: Callable[[], None]
) -> None:
    from dp_accounting.rdp import rdp_privacy_accountant as theirs

    true = theirs._compute_rdp_poisson_subsampled_gaussian

    def cancelled(q: float, noise_multiplier: float, orders: list[float]) -> object:
        rdp = true(q, noise_multiplier, orders)
        return [-1e-18 if order == 1.5 else value for order, value in zip(orders, rdp, strict=True)]

    honest = epsilon([MNIST], 1e-5, ADD, "rdp")
    monkeypatch.setattr(theirs, "_compute_rdp_poisson_subsampled_gaussian", lambda **k: _array(cancelled(**k)))
    forgetting()
    assert epsilon([MNIST], 1e-5, ADD, "rdp") == pytest.approx(honest)


def _array(values: object) -> object:
    import numpy as np

    return np.array(values)


def test_importing_loads_neither_torch_nor_dp_accounting() -> None:
    code = (
        "import sys, lipcompile_privacy.accounting; "
        "sys.exit(any(m.split('.')[0] in ('torch', 'dp_accounting', 'scipy') for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("guess", [1e-3, 0.3, 3.0, 1e5])
def test_a_search_for_the_noise_ends_near_the_root_and_takes_no_nan_for_enough(guess: float) -> None:
    """ε = 2/σ² is 0.5 at σ = 2. Below 1 the accountant fails, and says so or overflows."""

    def spent(sigma: float) -> float:
        return 2 / sigma**2 if sigma >= 1 else math.nan if sigma < 0.5 else math.inf

    assert 2 <= smallest(spent, guess, 0.5, 1e-5) <= 2 * (1 + 1e-4)
    with pytest.raises(BudgetError, match="would need a noise multiplier above"):
        smallest(lambda _: math.nan, guess, 0.5, 1e-5)

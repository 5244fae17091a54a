"""Batches of fixed size without replacement: their privacy loss distribution under both relations.

Let q = B/N, and let μ1 and μ0 be the laws of a step's output when the example z in question is in the batch, and
when it is not. Exchanging z for any other example carries one into the other and moves the sum by at most 2K. So

- removing z leaves exactly μ0, of M(D) = (1 - q) μ0 + q μ1: dominated by Poisson sampling at rate q of a Gaussian
  whose sensitivity is 2K (Zhu, Dong and Wang 2022, Theorem 11);
- replacing z by z' gives (1 - q) μ0 + q μ1'. By advanced joint convexity (Balle, Barthe and Gaboardi 2018), for
  e^ε = 1 + q (e^ε' - 1), ε >= 0, the hockey-stick divergence of order e^ε between M(D) and M(D') is at most
  q times that of order e^ε' between μ1 and a mixture of μ0 and μ1', each 2K away from μ1: the profile of
  removal again. It holds in both directions; orders below 1 follow from H_α(P‖Q) = 1 - α + α H_{1/α}(Q‖P).

Formal guarantees: what is returned dominates one step, and so its composition with itself and with others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .guarantee import NeighbouringRelation
from .releases import WithoutReplacement

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution


def fixed_size_pld(
    release: WithoutReplacement, relation: NeighbouringRelation, interval: float
) -> PrivacyLossDistribution:
    """Return the PLD of one step, for a batch smaller than the data set and σ > 0."""
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    if relation is NeighbouringRelation.REPLACE_ONE:
        return _symmetric(release, interval)
    return from_gaussian_mechanism(
        release.noise_multiplier / 2,
        value_discretization_interval=interval,
        sampling_prob=release.sampling_rate,
    )


def _symmetric(release: WithoutReplacement, interval: float) -> PrivacyLossDistribution:
    """Return the PLD whose profile at ε >= 0 is that of removal, and which is its own reverse."""
    import numpy as np
    from dp_accounting.pld.pld_pmf import create_pmf_pessimistic_connect_dots_fixed_gap
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
    from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss

    removal = GaussianPrivacyLoss(
        release.noise_multiplier / 2, sampling_prob=release.sampling_rate, adjacency_type=AdjacencyType.REMOVE
    )
    last = max(1, int(np.ceil(removal.connect_dots_bounds().epsilon_upper / interval)))
    losses = interval * np.arange(last + 1)
    above = removal.get_delta_for_epsilon(losses)
    below = -np.expm1(-losses[1:]) + np.exp(-losses[1:]) * above[1:]  # δ(-ε) = 1 - e^-ε + e^-ε δ(ε)
    deltas = np.concatenate([below[::-1], above])
    return PrivacyLossDistribution(create_pmf_pessimistic_connect_dots_fixed_gap(interval, -last, last, deltas))

"""Sums over all examples that are no gradients: counts and moments, released with noise and charged as a step."""

from __future__ import annotations

import warnings
from hashlib import sha256

import torch
from lipcompile_privacy.accounting import Mechanism, check_supported
from lipcompile_privacy.errors import BudgetError
from lipcompile_privacy.ledger import warn_of
from torch import Tensor

from ..certify.precision import rounding_slack, sum_slack
from ..distributed import check_same
from ..noise.mechanism import NoiseSource
from .engine import PrivacyEngine, SeededWarning

_ON_ALL = {
    "sums": "every process must give that of all examples",
    "norms": "they must agree",
    "noise multipliers": "they must agree",
}


def release_sum(
    engine: PrivacyEngine,
    total: Tensor,
    norm: float,
    noise_multiplier: float,
    examples: int,
    seed: int | None = None,
) -> Tensor:
    """Return a sum over the examples, plus noise of standard deviation σ·norm in each entry.

    Formal guarantees: the ledger counts one use of the Gaussian mechanism with noise multiplier σ, before noise is
    drawn. That is what it costs if every example adds a vector of norm at most `norm` to the sum, and if the sum
    was made in float64, in any order: noise has room for the rounding of it. The CALLER promises the norm; nothing
    here can see it. Of several processes, which all give the same sum, rank 0 alone draws noise, for all of them.

    Args:
        engine: whose ledger counts the release.
        total: [n], float64: the sum.
        norm: K > 0, an upper bound of what one example adds, in the Euclidean norm.
        noise_multiplier: σ > 0.
        examples: N, all of which went into the sum.
        seed: makes the noise repeatable, and NOT private; warns.

    Raises:
        BudgetError: σ is no noise multiplier.
        LedgerError: the ledger is damaged, in use, or belongs to other data.
        RankError: another process has another sum, norm or σ.
        ValueError: the sum is not finite, not in float64 or not a vector, or the norm is no positive number.
    """
    if total.dtype != torch.float64 or total.dim() != 1 or not bool(total.isfinite().all()):
        raise ValueError("a sum must be a vector of finite numbers in float64")
    if not 0 < norm < float("inf"):
        raise ValueError(f"norm = {norm} is not a positive number")
    if noise_multiplier == 0:
        raise BudgetError("the noise multiplier must be positive; got 0")
    release = Mechanism(1.0, noise_multiplier)
    check_supported({release: 1}, 0.5, engine.relation, engine.accountant)
    ledger, noise = engine.open_ledger(examples), NoiseSource(seed)
    digest = sha256(total.detach().cpu().numpy().tobytes()).digest()
    facts = {"sums": digest, "norms": norm, "noise multipliers": noise_multiplier}
    ledger.world.check_current()
    check_same(ledger.world.each("release a sum", lambda: facts), _ON_ALL)
    generators = noise.generators([total])
    ledger.declare(release, noise.is_seeded, generators)
    if noise.is_seeded:
        warnings.warn("a fixed seed makes the noise predictable: this run is NOT private", SeededWarning, 2)
    else:
        warn_of(generators, 2)
    # One number after the other: the deepest order of summation there is.
    slack = sum_slack(total.dtype, float(examples), len(total), norm, depth=examples)
    scale = norm * noise_multiplier * (1 + slack) * (1 + rounding_slack(total.dtype))
    ledger.record_step(release)
    noise.begin_step(0)
    return ledger.world.first("release a sum", lambda: noise.added("sum", total / scale) * scale)

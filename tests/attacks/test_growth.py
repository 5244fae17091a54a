"""How much faster than its operands a bound grows: what the runtime counts on when it follows rounding errors.

The norm of an operand, of its rows and of its entries are stretched together.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from itertools import islice

import pytest
from lipcompile_torch.certify.precision import _BY_OPERANDS, _FASTER, _PRODUCTS, CONVENTIONS

from lipcompile.numbers.certified import Certified
from lipcompile.ops.table import OPS

from . import harness, instances
from .harness import Bound, Case

STRETCHED = (Fraction(1001, 1000), Fraction(3, 2), Fraction(30))


def growth(case: Case, by: Fraction) -> dict[str, float]:
    """Return d with claim(by·x) = by^d·claim(x), for every claim that is not 0."""
    bounds = tuple(Bound(by * bound.norm, by * bound.row, by * bound.entry) for bound in case.bounds)
    plain, more = (harness.claims(one, Certified()) for one in (case, replace(case, bounds=bounds)))
    return {name: math.log(more[name].upper / plain[name].upper, by) for name in plain if plain[name].upper > 0}


@pytest.mark.parametrize("name", [op.name for op in OPS if op.name not in CONVENTIONS])
def test_bounds_grow_no_faster_than_is_counted(name: str) -> None:
    """Outputs: with the power 1, or that of the op; gradients of parameters: 1; derivatives: 0, or 1."""
    output = 2.0 if name in _PRODUCTS else 1 + _FASTER.get(name, 0.0)
    most = {"kappa": 1.0, "lipschitz": float(name in _BY_OPERANDS), "cotangent": float(name in _BY_OPERANDS)}
    for case in islice(instances.cases(name, 0), 25):
        for by in STRETCHED:
            for claim, degree in growth(case, by).items():
                assert degree <= most.get(claim.partition(":")[0], output) + 1e-9, (claim, case)


@pytest.mark.parametrize("name", _FASTER)
def test_what_is_counted_is_attained(name: str) -> None:
    """But for a tenth."""
    scales = [Fraction(2) ** (i // 4) * (4 + i % 4) / 4 for i in range(-20, 24)]
    cases = [
        replace(case, bounds=tuple(Bound(scale, scale, scale) for _ in case.bounds))
        for case in islice(instances.cases(name, 0), 6)
        for scale in scales
    ]
    assert max(growth(case, Fraction(1001, 1000))["norm"] - 1 for case in cases) >= 0.9 * _FASTER[name]

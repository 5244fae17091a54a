"""Intervals of the verifier hold the numbers that they stand for, to the last of their 200 bits."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from random import Random
from typing import Any

import mpmath
import pytest
from lipcompile_verify.check import Claims, Verdict
from lipcompile_verify.intervals import FARTHEST, Real, decay, least, log, most, real, root
from lipcompile_verify.scattering import Bank, energy
from lipcompile_verify.spelling import rounded

from lipcompile.ops.scattering import rules as scattering

FINE = mpmath.mp.clone()
FINE.prec = 600


def ends(x: Real) -> tuple[Fraction, Fraction]:
    """Both ends, exactly."""
    low, high = ((-1) ** s * int(m) * Fraction(2) ** e for s, m, e, _ in (x.lo, x.hi))
    return low, high


def numbers(seed: int) -> list[Fraction]:
    chance = Random(seed)
    return [Fraction(chance.randint(1, 10**30), chance.randint(1, 10**30) * 3 + 1) for _ in range(2)]


OPERATIONS: list[Callable[[Any, Any], Any]] = [
    lambda x, y: x + y,
    lambda x, y: x * y,
    lambda x, y: x / y,
    lambda x, y: (x + y) - y,
]


@pytest.mark.parametrize("seed", range(30))
def test_operations_round_outward(seed: int) -> None:
    """Results of 200 bits that are not exact lie strictly within, and both ends are neighbours of the truth."""
    x, y = numbers(seed)
    for operation in OPERATIONS:
        low, high = ends(operation(real(x), real(y)))
        exact = operation(x, y)
        assert low < exact < high
        assert high - low <= exact * Fraction(16, 2**200) * (1 + y / x)


@pytest.mark.parametrize("seed", range(30))
def test_functions_round_outward(seed: int) -> None:
    x, _ = numbers(seed)
    fine = FINE.mpf(x.numerator) / x.denominator
    cases = [(root(x), FINE.sqrt(fine)), (decay(real(x)), FINE.exp(-fine))]
    cases += [(log(1 + x), FINE.log(1 + fine)), (root(real(x)), FINE.sqrt(fine))]
    for found, exact in cases:
        low, high = (FINE.mpf(end.numerator) / end.denominator for end in ends(found))
        assert low < exact < high
        assert high - low < exact * FINE.mpf(2) ** -190


def test_one_rounding_of_an_exact_operand_is_outward() -> None:
    """An operand of 200 bits: what is rounded is the operation, not what it is given."""
    x, y = (real(Fraction(2**199 + k)) for k in (1, 3))
    a, b = Fraction(2**199 + 1), Fraction(2**199 + 3)
    seven = real(7)
    cases = [(x + real(Fraction(1, 4)), a + Fraction(1, 4)), (x * y, a * b), (x / seven, a / 7)]
    cases += [(real(2**220) - x, 2**220 - a), (x / y, a / b)]
    for found, exact in cases:
        low, high = ends(found)
        assert low < exact < high
        assert high - low <= exact * Fraction(3, 2**200) * 2**22
    low, high = ends(root(x))
    assert low**2 < a < high**2


@pytest.mark.parametrize("exponent", [-FARTHEST - 5, FARTHEST + 5])
def test_numbers_that_are_too_far_are_rounded_outward(exponent: int) -> None:
    found = real(Fraction(2) ** exponent)
    if exponent > 0:
        assert found.upper() == math.inf
        assert ends(Real(found.lo, real(1).hi))[0] <= Fraction(2) ** exponent
    else:
        assert ends(found)[0] == 0
        assert ends(found)[1] >= Fraction(2) ** exponent
    assert ends(real(Fraction(2) ** (exponent // 2)))[0] == Fraction(2) ** (exponent // 2)


@pytest.mark.parametrize(
    "value", [Fraction(1, 3), Fraction(1, 3 * 2**1073), Fraction(1, 2**1080), Fraction(10**300, 3)]
)
def test_doubles_are_rounded_up(value: Fraction) -> None:
    found = real(value).upper()
    assert Fraction(found) >= value
    assert Fraction(math.nextafter(found, 0)) < value


def test_extremes_are_those_of_both_ends() -> None:
    wide, narrow = Real(real(1).lo, real(4).hi), Real(real(2).lo, real(3).hi)
    for first, second in ((wide, narrow), (narrow, wide)):
        assert [*ends(least(first, second)), *ends(most(first, second))] == [1, 3, 2, 4]


def test_a_claim_that_is_equal_is_neither_exceeded_nor_loose() -> None:
    three = real(3)
    assert not three.exceeds(3.0)
    assert not three.falls_below(3.0)
    assert three.exceeds(math.nextafter(3.0, 0))
    assert three.falls_below(math.nextafter(3.0, 4))


@pytest.mark.parametrize(("side", "sign"), [("b", -1), ("a", 1)])
def test_numbers_of_programs_are_rounded_to_their_side(side: str, sign: int) -> None:
    for value in (Fraction(1, 3), Fraction(2, 3), Fraction(1, 10), Fraction(3, 10), Fraction(1, 2), Fraction(5)):
        found = Fraction(float(rounded(str(value), side)))
        assert sign * (found - value) >= 0
        assert abs(found - value) <= value * Fraction(1, 2**52)
        assert found == value or value.denominator not in (1, 2)  # a double stays what it is


def test_a_claim_is_loose_from_a_billionth_above_on() -> None:
    claims = Claims.__new__(Claims)
    claims.verdict, claims.count = Verdict(), 0
    for claimed in (3.0, 3 * (1 + 9e-10), 3 * (1 + 2e-9), math.nextafter(3.0, 0)):
        claims._least("step", "rule", "it", claimed, real(3))
    assert len(claims.verdict.loose) == len(claims.verdict.problems) == 1
    assert claims.verdict.ok is False


@pytest.mark.parametrize(("scales", "angles"), [(1, 1), (2, 3), (3, 8)])
def test_the_energy_of_filters_is_enlarged_by_what_doubles_round(
    scales: int, angles: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proof allows (1 + JL)(1 + L)8^J·2^-34 where frequencies are off by 2^-44, twice what they are here."""
    monkeypatch.setattr(Bank, "__init__", lambda *_: None)
    monkeypatch.setattr(Bank, "energy", lambda *_: 1.0)
    least = 1 + Fraction((1 + scales * angles) * (1 + angles) * 8**scales, 2 * 2**34)
    assert energy(scales, angles, 1, (8, 8)) >= least


@pytest.mark.parametrize(("scales", "angles", "order"), [(1, 1, 1), (1, 3, 1), (2, 3, 2), (2, 4, 1)])
def test_the_energy_of_filters_is_that_of_the_compiler(scales: int, angles: int, order: int) -> None:
    """Which computes it in arrays; both within what the proof allows for rounding."""
    found = float(energy(scales, angles, order, (8, 12)))
    expected = scattering.energy(scattering.Scattering2d(scales, angles, order), (8, 12), 0, 0, order)
    assert expected <= found <= expected * (1 + 1e-6)

"""Numbers rounded to one side: exact ones to doubles or decimals, and steps that pay for operations on doubles."""

from __future__ import annotations

import decimal
import math
from decimal import Decimal
from fractions import Fraction

_EXACT = decimal.Context(prec=1200, rounding=decimal.ROUND_CEILING)
_SMALLEST_FIXED, _LARGEST_FIXED = 1e-4, 1e9  # numbers between them are shown without an exponent

UNIT = 2.0**-53
"""u: an operation on doubles gives (a∘b)(1 + d), |d| <= u, unless it under- or overflows (IEEE 754)."""

UP = 1.0 + 2.0**-48
"""Covers 30 operations on positive doubles, and the product with it: (1 - u)^31·(1 + 32u) >= 1 + u - 992u² > 1."""


def below(exact: Fraction) -> float:
    """Return the largest double not above an exact number."""
    rounded = float(exact)
    return rounded if Fraction(rounded) <= exact else math.nextafter(rounded, -math.inf)


def above(exact: Fraction) -> float:
    """Return the smallest double not below an exact number."""
    return -below(-exact)


def finite(upper: float) -> float | None:
    """Return a certified upper end, or None where it says nothing."""
    return upper if math.isfinite(upper) else None


def round_up(value: Fraction, digits: int) -> Fraction:
    """Return the least decimal of about so many significant digits that is not below `value` >= 0."""
    if value == 0:
        return value
    places = digits - 1 - math.floor(math.log10(value.numerator) - math.log10(value.denominator))
    shift, back = 10 ** max(places, 0), 10 ** max(-places, 0)
    steps = -(-value.numerator * shift // (value.denominator * back))
    return Fraction(steps * back, shift)


def upward(value: float, digits: int = 7) -> str:
    """Return the smallest decimal with `digits` decimals that is not below the double `value`.

    Very small and very large numbers are given in scientific notation, with `digits` decimals of their mantissa.
    `digits` is at least 0, and `value` finite and not negative.
    """
    exact = Decimal(value)
    if value == 0 or _SMALLEST_FIXED <= value < _LARGEST_FIXED:
        return f"{_EXACT.quantize(exact, Decimal(1).scaleb(-digits)):f}"
    mantissa = _EXACT.scaleb(exact, -exact.adjusted())
    rounded = _EXACT.quantize(mantissa, Decimal(1).scaleb(-digits))
    return f"{_EXACT.scaleb(rounded, exact.adjusted()):.{digits}e}"

"""Exact numbers rounded up to decimals that people can read."""

from __future__ import annotations

import math
from fractions import Fraction


def round_up(value: Fraction, digits: int) -> Fraction:
    """Return the least decimal of about so many significant digits that is not below `value` >= 0."""
    if value == 0:
        return value
    shift = Fraction(10) ** (digits - 1 - math.floor(_log10(value)))
    return Fraction(math.ceil(value * shift)) / shift


def _log10(value: Fraction) -> float:
    return math.log10(value.numerator) - math.log10(value.denominator)

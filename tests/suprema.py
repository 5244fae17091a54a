"""Suprema over 0 <= s <= 1 by a grid and golden sections: an oracle for what the number types bound from above."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

_GOLDEN = 0.6180339887498949
_PLACES = 64


def supremum(value: Callable[[Any], Any], number: Callable[[Any], Any] = float, sections: int = 40) -> Any:
    """The largest value that is found; with s made by `number`, of a function with few maxima all digits but one.

    The grid is as fine as the peaks are wide; between neighbours of its best place the function has one maximum,
    which is met to 1e-10: what is missed is of the order of the square.
    """
    places = [number(i) / _PLACES for i in range(_PLACES + 1)]
    values = [value(s) for s in places]
    best = max(range(len(places)), key=values.__getitem__)
    low, high = places[max(best - 1, 0)], places[min(best + 1, _PLACES)]
    left, right = high - (high - low) * _GOLDEN, low + (high - low) * _GOLDEN
    at_left, at_right = value(left), value(right)
    found = max(values[best], at_left, at_right)
    for _ in range(sections):  # one of both places is the other's of the section before
        if at_left > at_right:
            high, right, at_right = right, left, at_left
            left = high - (high - low) * _GOLDEN
            at_left = value(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + (high - low) * _GOLDEN
            at_right = value(right)
        found = max(found, at_left, at_right)
    return found


Case = tuple[Callable[[Any], Any], Callable[[Any], Any], Fraction]
# Functions on intervals, their derivatives, and their suprema by hand.
SUPREMA: tuple[Case, ...] = (
    (lambda s: s * (1 - s), lambda s: 1 - 2 * s, Fraction(1, 4)),  # at 1/2
    (lambda s: s * (2 - 3 * s), lambda s: 2 - 6 * s, Fraction(1, 3)),  # at 1/3, which no bisection meets
    (lambda s: 1 + s * s, lambda s: 2 * s, Fraction(2)),  # at the end
    (lambda s: 3 - s, lambda s: s * 0 - 1, Fraction(3)),  # at the start
    (lambda s: s * 0 + 7, lambda s: s * 0, Fraction(7)),
    # 2 + T_4(2s - 1), of three equal peaks: at 0, 1/2 and 1.
    (
        lambda s: 3 + 8 * (2 * s - 1) * (2 * s - 1) * ((2 * s - 1) * (2 * s - 1) - 1),
        lambda s: 32 * (2 * s - 1) * (2 * (2 * s - 1) * (2 * s - 1) - 1),
        Fraction(3),
    ),
    # 27·s²(1 - s) at 2/3, beside a lower peak at the start.
    (lambda s: 1 + 27 * s * s * (1 - s), lambda s: 27 * s * (2 - 3 * s), Fraction(5)),
)

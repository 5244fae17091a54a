"""The slopes of smooth activations, proved: branch and bound over intervals with outward rounding.

φ is written once, over truncated Taylor series with interval coefficients, so that enclosures of φ' and φ'' follow
from the formula of φ alone. What happens outside [-20, 20] is in activation.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import factorial
from typing import Any

import pytest
from mpmath.ctx_iv import MPIntervalContext

from lipcompile.core.record import Extent, NoAttributes, Site
from lipcompile.numbers.symbolic import Symbolic
from lipcompile.ops.activation.rules import GELU
from lipcompile.ops.table import OP_BY_NAME

IV: Any = MPIntervalContext()
IV.prec = 80
END, GAP = 20, Fraction(1, 10**6)


def exact(value: Fraction | str) -> Any:
    """An interval that holds a fraction."""
    fraction = Fraction(value)
    return IV.mpf(fraction.numerator) / fraction.denominator


@dataclass(frozen=True)
class Series:
    """φ(t), φ'(t) and φ''(t) for all t of an interval."""

    value: Any
    first: Any
    second: Any

    def __add__(self, other: Series | int) -> Series:
        right = lifted(other)
        return Series(self.value + right.value, self.first + right.first, self.second + right.second)

    __radd__ = __add__

    def __mul__(self, other: Series | int) -> Series:
        a, b = self, lifted(other)
        second = a.second * b.value + 2 * a.first * b.first + a.value * b.second
        return Series(a.value * b.value, a.first * b.value + a.value * b.first, second)

    __rmul__ = __mul__

    def __neg__(self) -> Series:
        return self * -1

    def inverse(self) -> Series:
        """1/φ."""
        value = 1 / self.value
        square = value * value
        second = 2 * self.first * self.first * square * value - self.second * square
        return Series(value, -self.first * square, second)

    def exp(self) -> Series:
        """e^φ."""
        value = IV.exp(self.value)
        return Series(value, value * self.first, value * (self.second + self.first * self.first))


def lifted(value: Series | int) -> Series:
    return value if isinstance(value, Series) else Series(IV.mpf(value), IV.mpf(0), IV.mpf(0))


def constant(value: Any) -> Series:
    return Series(value, IV.mpf(0), IV.mpf(0))


def silu(t: Series) -> Series:
    return t * (1 + (-t).exp()).inverse()


def mish(t: Series) -> Series:
    """tanh(ln(1 + e^t)) = (w² - 1)/(w² + 1) with w = 1 + e^t."""
    w = 1 + t.exp()
    return t * (1 + -2 * (1 + w * w).inverse())


def tanh_gelu(t: Series) -> Series:
    """(1 + tanh u)/2 = 1/(1 + e^(-2u))."""
    u = constant(IV.sqrt(2 / IV.pi)) * (t + constant(exact("0.044715")) * t * t * t)
    return t * (1 + (-2 * u).exp()).inverse()


def derivative(function: Callable[[Series], Series], low: Fraction, high: Fraction) -> Any:
    """Enclose φ' on [low, high] by its value in the middle and an enclosure of φ''."""
    whole = function(Series(IV.mpf([exact(low).a, exact(high).b]), IV.mpf(1), IV.mpf(0)))
    middle = function(Series(exact((low + high) / 2), IV.mpf(1), IV.mpf(0)))
    radius = exact((high - low) / 2).b
    return middle.first + whole.second * IV.mpf([-radius, radius])


def slope(op: str, attributes: Any) -> Fraction:
    """The constant that the rule brings in."""
    num, record = Symbolic(), OP_BY_NAME[op]
    assert record.lipschitz is not None
    one = Extent(num.of(1), num.of(1), num.of(1))
    (found,) = record.lipschitz(num, Site(attributes, ((),), ()), [one], {})
    return Fraction(int(found.expression.p), int(found.expression.q))


# φ, the op that it belongs to, and about where it is steepest.
SMOOTH: list[tuple[Callable[[Series], Series], str, Any, Fraction]] = [
    (silu, "silu", NoAttributes(), Fraction("2.39936")),
    (mish, "mish", NoAttributes(), Fraction("1.49057")),
    (tanh_gelu, "gelu", GELU("tanh"), Fraction("1.41850")),
]


@pytest.mark.parametrize(("function", "op", "attributes", "at"), SMOOTH)
def test_no_slope_exceeds_the_constant_and_one_comes_near(
    function: Callable[[Series], Series], op: str, attributes: Any, at: Fraction
) -> None:
    claimed = slope(op, attributes)
    pieces = [(Fraction(-END), Fraction(END))]
    while pieces:
        low, high = pieces.pop()
        found = derivative(function, low, high)
        if not (found.b <= exact(claimed).a and -found.a <= exact(claimed).a):
            assert high - low > GAP, (low, high)
            pieces += [(low, (low + high) / 2), ((low + high) / 2, high)]
    assert derivative(function, at, at).a >= exact(claimed - GAP).b
    assert 1 + END * IV.exp(-END) < exact(claimed)


def test_the_slope_of_gelu_at_the_root_of_two() -> None:
    """(1 + erf(1))/2 + 1/(e√π), erf(1) = 2/√π·Σ(-1)^k/(k!(2k + 1)): partial sums lie on both sides."""
    terms = [Fraction((-1) ** k, factorial(k) * (2 * k + 1)) for k in range(30)]
    low, high = sorted((sum(terms[:-1], Fraction(0)), sum(terms, Fraction(0))))
    series = IV.mpf([exact(low).a, exact(high).b])
    root = IV.sqrt(IV.pi)
    steepest = (1 + 2 / root * series) / 2 + 1 / (IV.exp(1) * root)
    claimed = slope("gelu", GELU())
    assert steepest.b <= exact(claimed).a
    assert steepest.a >= exact(claimed - GAP).b


ALPHA = Fraction("1.6732632423543772848170429916717")


def test_the_slope_of_selu() -> None:
    """The product of the constants of Klambauer et al., as torch writes them."""
    product = Fraction("1.0507009873554804934193349852946") * ALPHA
    assert 0 <= slope("selu", NoAttributes()) - product < Fraction(1, 10**15)


def test_how_far_selu_bends() -> None:
    """α²(1 - e^(-u))² - u² is concave in s = u²: below its tangent on [0, 1], falling beyond if it falls at 1."""
    claimed, alpha, at = exact("0.2195457"), exact(ALPHA), exact("0.6999205732")

    def value(u: Any) -> Any:
        return alpha**2 * (1 - IV.exp(-u)) ** 2 - u**2

    def tangent(u: Any) -> Any:
        return alpha**2 * (1 - IV.exp(-u)) * IV.exp(-u) / u - 1

    assert tangent(IV.mpf(1)).b < 0
    assert (value(at) + abs(tangent(at))).b <= claimed.a
    assert value(at).a >= (claimed - exact(GAP)).b

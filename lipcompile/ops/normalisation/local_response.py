"""Local response normalisation across channels. Proof: normalisation.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from mpmath.ctx_iv import MPIntervalContext

from lipcompile.core.record import AnyOp, Inputs, Shape, Site, Theta
from lipcompile.diagnostics import Refusal
from lipcompile.numbers import N, Numbers, Scalar
from lipcompile.numbers.certified import Interval
from lipcompile.numbers.rounding import round_up
from lipcompile.ops.rules import homogeneous

_DIGITS = 12


@dataclass(frozen=True, slots=True)
class LocalResponse:
    """x_c/(k + alpha/size·Σx²)^beta, Σ over the `size` channels c - size//2 … c + (size-1)//2, as in torch."""

    size: int
    alpha: Scalar = Fraction(1, 10000)
    beta: Scalar = Fraction(3, 4)
    k: Scalar = Fraction(1)

    def known(self) -> tuple[Fraction, Fraction, Fraction]:
        """Return alpha, beta and k; raises Refusal if one is a symbol."""
        values = (self.alpha, self.beta, self.k)
        numbers = tuple(value for value in values if isinstance(value, Fraction))
        if len(numbers) != len(values):
            raise Refusal(
                "LIP102", "alpha, beta and k of lrn must be numbers", "give each open parameter a value with --set"
            )
        return numbers[0], numbers[1], numbers[2]


def local_response_shape(local: LocalResponse, inputs: tuple[Shape, ...]) -> Shape:
    """The input's shape."""
    alpha, beta, k = local.known()
    if alpha < 0 or not 0 <= beta <= 1 or k <= 0:
        raise Refusal("LIP104", "lrn needs alpha >= 0, beta from 0 to 1 and k > 0")
    if len(inputs[0]) < 2:
        raise Refusal("LIP102", f"lrn needs an example [channels, *spatial], not {list(inputs[0])}")
    return inputs[0]


def largest_factor(local: LocalResponse) -> Fraction:
    """k^-β, rounded up."""
    _, beta, k = local.known()
    if k == 1 or beta == 0:
        return Fraction(1)
    interval = MPIntervalContext()
    interval.prec = 113
    logarithm = interval.log(interval.mpf(k.numerator) / k.denominator)
    power = interval.exp(logarithm * -interval.mpf(beta.numerator) / beta.denominator)
    return round_up(Fraction(Interval(power).upper), _DIGITS)


def response_gain(num: Numbers[N], site: Site[LocalResponse]) -> N:
    """k^-β, of X, R and M."""
    return num.of(largest_factor(site.attributes))


def local_response_slope(num: Numbers[N], site: Site[LocalResponse], x: Inputs[N], theta: Theta[N]) -> Sequence[N]:
    """l = k^-β·√(1 + β(m-1)/(2β + 1 + 4·√((2β+1)(β+1)/3))), m the windows that one channel is in."""
    beta = num.of(site.attributes.known()[1])
    others = min(site.attributes.size, site.output[0]) - 1
    slack = 2 * beta + 1 + 4 * num.sqrt((2 * beta + 1) * (beta + 1) / 3)
    return [response_gain(num, site) * num.sqrt(1 + others * beta / slack)]


OPS: tuple[AnyOp, ...] = (
    homogeneous(
        "lrn",
        LocalResponse,
        local_response_shape,
        "normalisation.md#local-response",
        response_gain,
        also=("row", "entry"),
        lipschitz=local_response_slope,
        axes="channels",
    ),
)

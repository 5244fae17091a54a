"""Softmax and its logarithm inside a network. Proofs: softmax.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from lipcompile.core.record import AnyOp, Extent, Inputs, Shape, Site, Theta
from lipcompile.diagnostics import Refusal
from lipcompile.numbers import N, Numbers, Scalar
from lipcompile.ops.rules import MANY, feature_axis, plain
from lipcompile.ops.schema import Axis


@dataclass(frozen=True, slots=True)
class Softmax:
    """softmax(temperature·x) along `axis`."""

    temperature: Scalar = Fraction(1)
    axis: Axis = -1


@dataclass(frozen=True, slots=True)
class LogSoftmax:
    """log softmax(x) along `axis`."""

    axis: Axis = -1


def softmax_shape(attributes: Softmax, inputs: tuple[Shape, ...]) -> Shape:
    """The input's shape."""
    if isinstance(attributes.temperature, Fraction) and attributes.temperature <= 0:
        raise Refusal("LIP104", "the temperature of a softmax must be positive")
    return _several(attributes.axis, inputs[0])


def log_softmax_shape(attributes: LogSoftmax, inputs: tuple[Shape, ...]) -> Shape:
    """The input's shape."""
    return _several(attributes.axis, inputs[0])


def _several(axis: int | None, example: Shape) -> Shape:
    along = feature_axis(axis, example)
    if example[along] < 2:
        raise Refusal(
            "LIP102", f"a softmax over axis {along} of {list(example)} has only one class, so it is constant"
        )
    return example


def classes(site: Site[Softmax] | Site[LogSoftmax]) -> int:
    """K: how many entries one softmax is over."""
    return site.output[feature_axis(site.attributes.axis, site.output)]


def along_rows(site: Site[Softmax] | Site[LogSoftmax]) -> bool:
    """Whether each row is one softmax."""
    return feature_axis(site.attributes.axis, site.output) == len(site.output) - 1


def own_norm(site: Site[Softmax] | Site[LogSoftmax], x: Extent[N]) -> N:
    """Y, a bound of the norm of the logits of one softmax."""
    return x.row if along_rows(site) else x.norm


def gap(num: Numbers[N], own: N) -> N:
    """√2·Y: how far two logits of this norm can lie apart."""
    return num.sqrt(2) * own


def span(num: Numbers[N], site: Site[Softmax] | Site[LogSoftmax], x: Extent[N]) -> N:
    """min(2M, √2·Y): how far two logits can lie apart."""
    return num.minimum(2 * x.entry, gap(num, own_norm(site, x)))


def longest(num: Numbers[N], count: int, ratio: N) -> N:
    """S: the largest ‖p‖ of K probabilities with q·p_i <= p_j: m are the largest, the others q times that.

    With very many classes it is 1.
    """

    def vertex(m: N) -> N:
        total = m + (count - m) * ratio
        return (m + (count - m) * ratio * ratio) / (total * total)

    if count > MANY:
        return num.of(1)
    return num.sqrt(num.minimum(num.of(1), num.max_over(1, count, vertex)))


# Softmax


def least_ratio(num: Numbers[N], site: Site[Softmax], x: Extent[N]) -> N:
    """q = e^{-λ·min(2M, √2·Y)}: no probability is smaller than q times another."""
    return num.exp(0 - num.of(site.attributes.temperature) * span(num, site, x))


def softmax_norm(num: Numbers[N], site: Site[Softmax], x: Inputs[N], theta: Theta[N]) -> N:
    """X_out = √rows·S."""
    count = classes(site)
    return num.sqrt(site.entries // count) * longest(num, count, least_ratio(num, site, x[0]))


def softmax_row(num: Numbers[N], site: Site[Softmax], x: Inputs[N], theta: Theta[N]) -> N:
    """R_out = S; √d·M_out where the d entries of a row belong to different softmaxes."""
    if along_rows(site):
        return longest(num, classes(site), least_ratio(num, site, x[0]))
    return num.sqrt(site.output[-1]) * softmax_entry(num, site, x, theta)


def softmax_entry(num: Numbers[N], site: Site[Softmax], x: Inputs[N], theta: Theta[N]) -> N:
    """M_out = 1/(1 + (K-1)·e^{-λ·min(2M, √(K/(K-1))·Y)})."""
    count = classes(site)
    above = num.minimum(2 * x[0].entry, num.sqrt(Fraction(count, count - 1)) * own_norm(site, x[0]))
    return 1 / (1 + (count - 1) * num.exp(0 - num.of(site.attributes.temperature) * above))


def softmax_slope(num: Numbers[N], site: Site[Softmax], x: Inputs[N], theta: Theta[N]) -> Sequence[N]:
    """l = λ·min(1/(2 + (K-2)·q), M_out), never more than λ/2."""
    pair = 1 / (2 + (classes(site) - 2) * least_ratio(num, site, x[0]))
    return [num.of(site.attributes.temperature) * num.minimum(pair, softmax_entry(num, site, x, theta))]


# Its logarithm


def log_softmax_norm(num: Numbers[N], site: Site[LogSoftmax], x: Inputs[N], theta: Theta[N]) -> N:
    """X_out = √K·X + √n·ln K."""
    count = classes(site)
    return num.sqrt(count) * x[0].norm + num.sqrt(site.entries) * num.log(count)


def log_softmax_row(num: Numbers[N], site: Site[LogSoftmax], x: Inputs[N], theta: Theta[N]) -> N:
    """R_out = √K·(R + ln K); √d·ln K + min(√2·X, 2√d·M) where a row meets d of them in one entry each."""
    count = classes(site)
    if along_rows(site):
        return num.sqrt(count) * (x[0].row + num.log(count))
    met = num.sqrt(site.output[-1])
    return met * num.log(count) + num.minimum(gap(num, x[0].norm), met * (2 * x[0].entry))


def log_softmax_entry(num: Numbers[N], site: Site[LogSoftmax], x: Inputs[N], theta: Theta[N]) -> N:
    """M_out = ln K + min(2M, √2·Y)."""
    return num.log(classes(site)) + span(num, site, x[0])


def log_softmax_slope(num: Numbers[N], site: Site[LogSoftmax], x: Inputs[N], theta: Theta[N]) -> Sequence[N]:
    """l = √K·S, never more than √K."""
    count = classes(site)
    return [num.sqrt(count) * longest(num, count, num.exp(0 - span(num, site, x[0])))]


OPS: tuple[AnyOp, ...] = (
    plain(
        "softmax",
        Softmax,
        softmax_shape,
        "softmax.md#softmax",
        norm=softmax_norm,
        row=softmax_row,
        entry=softmax_entry,
        reads=("row", "entry"),
        lipschitz=softmax_slope,
    ),
    plain(
        "log_softmax",
        LogSoftmax,
        log_softmax_shape,
        "softmax.md#log-softmax",
        norm=log_softmax_norm,
        row=log_softmax_row,
        entry=log_softmax_entry,
        reads=("row", "entry"),
        lipschitz=log_softmax_slope,
    ),
)

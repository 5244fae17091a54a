"""Pooling over windows. Proofs: pool.md. Pools over all positions are reductions: `ops/reduce`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from math import prod
from typing import Any

from lipcompile.core.record import AnyOp, Condition, Inputs, NormRule, Shape, ShapeRule, Site, Theta
from lipcompile.diagnostics import Refusal
from lipcompile.numbers import N, Numbers
from lipcompile.ops import counting
from lipcompile.ops.averaging import adaptive, averages, averaging_gram, sums
from lipcompile.ops.rules import entry_of_input, homogeneous
from lipcompile.ops.schema import Padding, PerAxis, every, like


@dataclass(frozen=True, slots=True)
class Pool:
    """A window of `kernel` entries per axis of an example [channels, *spatial], moved by its size by default.

    With `ceil_mode` a last window may stick out of the padding, if it starts before the padding behind.
    """

    kernel: PerAxis
    stride: PerAxis = like("kernel")
    padding: Padding = every(0)
    dilation: PerAxis = every(1)
    ceil_mode: bool = False


@dataclass(frozen=True, slots=True)
class AveragePool(Pool):
    """Windows whose taps in the padding may be left out of the divisor; what sticks out of it never counts."""

    count_include_pad: bool = True


@dataclass(frozen=True, slots=True)
class LpPool:
    """The `p`-norm of windows, p >= 1."""

    p: int
    kernel: PerAxis
    stride: PerAxis = like("kernel")
    padding: Padding = every(0)
    dilation: PerAxis = every(1)
    ceil_mode: bool = False


@dataclass(frozen=True, slots=True)
class AdaptivePool:
    """As many outputs an axis as `size` says, each of the entries nearest to it."""

    size: PerAxis


def windows(site: Site[Any]) -> tuple[counting.Window, ...]:
    """Return the window of each spatial axis; what ceil_mode adds is padding behind."""
    return _windows(site.attributes, site.inputs[0])


def _windows(pool: Pool | LpPool, example: Shape) -> tuple[counting.Window, ...]:
    _check_rank(len(pool.kernel), example)
    padding = pool.padding
    if pool.ceil_mode:
        axes = zip(example[1:], pool.kernel, pool.stride, pool.dilation, padding, strict=True)
        padding = tuple(_behind(*axis) for axis in axes)
    return counting.windows_of(example[1:], pool.kernel, pool.stride, pool.dilation, padding)


def _check_rank(axes: int, example: Shape) -> None:
    if not 1 <= axes <= 3:
        raise Refusal(
            "LIP102", f"a pool needs one to three spatial axes, but the example has shape {list(example)}"
        )
    if len(example) != axes + 1:
        raise Refusal(
            "LIP102",
            f"a pool over {axes} axes needs an example of {axes + 1} axes, channels first, not {list(example)}",
        )


def _behind(size: int, kernel: int, stride: int, dilation: int, padding: tuple[int, int]) -> tuple[int, int]:
    """Return the padding up to the end of the last window of ceil_mode, which starts before the padding behind."""
    low, high = padding
    span = dilation * (kernel - 1) + 1
    last = -((span - size - low - high) // stride)
    if last * stride >= size + low:
        last -= 1
    return low, max(0, last * stride + span - size - low)


def pool_shape(pool: Pool | LpPool, inputs: tuple[Shape, ...]) -> Shape:
    """[channels, *spatial] -> [channels, *spatial']; a window wholly in the padding is refused."""
    found = _windows(pool, inputs[0])
    if any(counting.count_axis(window).fewest_taps == 0 for window in found):
        raise Refusal(
            "LIP103",
            "a window of this pool lies wholly in the padding, which has no entries to pool",
            "use less padding than the size of the kernel",
        )
    return (inputs[0][0], *(window.outputs for window in found))


def lp_shape(pool: LpPool, inputs: tuple[Shape, ...]) -> Shape:
    """As `pool_shape`; a p-norm has p >= 1."""
    if pool.p < 1:
        raise Refusal("LIP102", f"there is no {pool.p}-norm", "p must be at least 1")
    return pool_shape(pool, inputs)


def average_shape(pool: Pool, inputs: tuple[Shape, ...]) -> Shape:
    """As `pool_shape`; averages have no dilation."""
    if any(step != 1 for step in pool.dilation):
        raise Refusal("LIP102", "an average pool has no dilation")
    return pool_shape(pool, inputs)


def adaptive_shape(pool: AdaptivePool, inputs: tuple[Shape, ...]) -> Shape:
    """[channels, *spatial] -> [channels, *size]."""
    _check_rank(len(pool.size), inputs[0])
    for axis, (size, outputs) in enumerate(zip(inputs[0][1:], pool.size, strict=True)):
        counting.refuse_long(size + 2 * outputs, f"a pool of axis {axis}, of size {size}, to {outputs} entries")
    return (inputs[0][0], *pool.size)


def overlap(num: Numbers[N], site: Site[Any]) -> N:
    """√m, m the largest number of windows that an entry is in."""
    return num.sqrt(counting.reads(windows(site)))


def counted(site: Site[AveragePool]) -> tuple[tuple[int, int], ...]:
    """Return the padding, before and after each axis, that the divisors count."""
    pool = site.attributes
    return pool.padding if pool.count_include_pad else ((0, 0),) * len(pool.padding)


def squares_of_averages(site: Site[AveragePool]) -> tuple[Fraction, ...]:
    """‖A_axis‖², axis by axis: windows and divisors are products over the axes."""
    axes = zip(windows(site), counted(site), strict=True)
    return tuple(averaging_gram(averages(*axis)) for axis in axes)


def squares_of_sums(site: Site[Any]) -> tuple[Fraction, ...]:
    """‖S_axis‖², axis by axis, S of zeros and ones: the windows' sums."""
    return tuple(averaging_gram(sums(window)) for window in windows(site))


def squares_of_adaptive(site: Site[AdaptivePool]) -> tuple[Fraction, ...]:
    """‖A_axis‖², axis by axis."""
    axes = zip(site.inputs[0][1:], site.output[1:], strict=True)
    return tuple(averaging_gram(adaptive(*axis)) for axis in axes)


def lp_gain(num: Numbers[N], site: Site[LpPool]) -> N:
    """√m for p >= 2; ‖S‖ = Π‖S_axis‖ for p = 1, the sum of magnitudes."""
    return num.sqrt(prod(squares_of_sums(site), start=1)) if site.attributes.p == 1 else overlap(num, site)


def taps(site: Site[Any]) -> int:
    """T: the most entries that a window holds."""
    return prod(counting.count_axis(window).taps for window in windows(site))


def entry_of_sum(num: Numbers[N], site: Site[Any], x: Inputs[N], theta: Theta[N]) -> N:
    """M_out = min(T·M, √T·X)."""
    return num.minimum(taps(site) * x[0].entry, num.sqrt(taps(site)) * x[0].norm)


def entry_of_l2(num: Numbers[N], site: Site[Any], x: Inputs[N], theta: Theta[N]) -> N:
    """M_out = min(√T·M, X)."""
    return num.minimum(num.sqrt(taps(site)) * x[0].entry, x[0].norm)


def entry_of_lp(num: Numbers[N], site: Site[LpPool], x: Inputs[N], theta: Theta[N]) -> N:
    """M_out = min(T^(1/p)·M, X) for p >= 2; as a sum for p = 1."""
    if site.attributes.p == 1:
        return entry_of_sum(num, site, x, theta)
    return num.minimum(num.exp(num.log(taps(site)) / site.attributes.p) * x[0].entry, x[0].norm)


def window_reads(site: Site[Any]) -> Mapping[str, Condition]:
    """m."""
    return {"reads": counting.reads(windows(site))}


def lp_counts(site: Site[LpPool]) -> Mapping[str, Condition]:
    """‖S_axis‖² of sums of magnitudes, m of other norms."""
    return {"squared_gain": squares_of_sums(site)} if site.attributes.p == 1 else window_reads(site)


WINDOWS = "pool.md#windows"

pooling = partial(homogeneous, axes="channels")


def averaging(
    name: str,
    attributes: type[Any],
    shape: ShapeRule[Any],
    squares: Callable[[Site[Any]], tuple[Fraction, ...]],
    entry: NormRule[Any],
) -> AnyOp:
    """Return the record of a pool that is a matrix on each axis, with these squared norms."""

    def gain(num: Numbers[N], site: Site[Any]) -> N:
        """‖A‖ = Π‖A_axis‖, the norm of the Kronecker product."""
        return num.sqrt(prod(squares(site), start=1))

    def counts(site: Site[Any]) -> Mapping[str, Condition]:
        """‖A_axis‖², axis by axis."""
        return {"squared_gain": squares(site)}

    return pooling(name, attributes, shape, "pool.md#averages", gain, entry=entry, conditions=counts)


OPS: tuple[AnyOp, ...] = (
    pooling("max_pool", Pool, pool_shape, WINDOWS, overlap, entry=entry_of_input, conditions=window_reads),
    pooling("l2_pool", Pool, pool_shape, WINDOWS, overlap, entry=entry_of_l2, conditions=window_reads),
    pooling("lp_pool", LpPool, lp_shape, "pool.md#p-norms", lp_gain, entry=entry_of_lp, conditions=lp_counts),
    averaging("avg_pool", AveragePool, average_shape, squares_of_averages, entry_of_input),
    averaging("scaled_avg_pool", Pool, average_shape, squares_of_sums, entry_of_sum),
    averaging("adaptive_avg_pool", AdaptivePool, adaptive_shape, squares_of_adaptive, entry_of_input),
)

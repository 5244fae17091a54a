"""Pooling over windows. Proofs: pool.md."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from lipcompile.diagnostics import Refusal
from lipcompile.numbers import N, Numbers
from lipcompile.ops import counting
from lipcompile.ops.record import AnyOp, Shape, Site
from lipcompile.ops.rules import entry_of_input, homogeneous
from lipcompile.ops.schema import Padding, PerAxis, every, like


@dataclass(frozen=True, slots=True)
class Pool:
    """A window of `kernel` entries per axis of an example [channels, *spatial], moved by its size by default."""

    kernel: PerAxis
    stride: PerAxis = like("kernel")
    padding: Padding = every(0)
    dilation: PerAxis = every(1)


@dataclass(frozen=True, slots=True)
class GlobalPool:
    """A window over all spatial entries; `keep` leaves axes of size 1 in their place."""

    keep: bool = False


def windows(site: Site[Pool]) -> tuple[counting.Window, ...]:
    """Return the window of each spatial axis."""
    return _windows(site.attributes, site.inputs[0])


def _windows(pool: Pool, example: Shape) -> tuple[counting.Window, ...]:
    if len(example) != len(pool.kernel) + 1:
        raise Refusal(
            "LIP102",
            f"a pool over {len(pool.kernel)} axes needs an example of {len(pool.kernel) + 1} axes, channels "
            f"first, not {list(example)}",
        )
    return counting.windows_of(example[1:], pool.kernel, pool.stride, pool.dilation, pool.padding)


def pool_shape(pool: Pool, inputs: tuple[Shape, ...]) -> Shape:
    """[channels, *spatial] -> [channels, *spatial']; a window wholly in the padding is refused."""
    found = _windows(pool, inputs[0])
    if any(counting.count_axis(window).fewest_taps == 0 for window in found):
        raise Refusal(
            "LIP103",
            "a window of this pool lies wholly in the padding, where a maximum is minus infinity",
            "pad by less than the kernel",
        )
    return (inputs[0][0], *(window.outputs for window in found))


def average_shape(pool: Pool, inputs: tuple[Shape, ...]) -> Shape:
    """As `pool_shape`; averages have no dilation."""
    if any(step != 1 for step in pool.dilation):
        raise Refusal("LIP102", "an average pool has no dilation")
    return pool_shape(pool, inputs)


def global_shape(attributes: GlobalPool, inputs: tuple[Shape, ...]) -> Shape:
    """[channels, *spatial] -> [channels] or [channels, 1, …]."""
    if len(inputs[0]) < 2:
        raise Refusal("LIP102", f"a global pool needs spatial axes, but the example has shape {list(inputs[0])}")
    return (inputs[0][0], *(1 for _ in inputs[0][1:] if attributes.keep))


def overlap(num: Numbers[N], site: Site[Pool]) -> N:
    """√m, m the largest number of windows that an entry is in."""
    return num.sqrt(counting.reads(windows(site)))


def average(num: Numbers[N], site: Site[Pool]) -> N:
    """‖A‖ = Π‖S_axis‖/k_axis: the averaging matrix is a Kronecker product over axes."""
    gram = prod((counting.averaging_gram(window) for window in windows(site)), start=1)
    return num.sqrt(gram) / prod(site.attributes.kernel)


def scaled(num: Numbers[N], site: Site[Pool]) -> N:
    """‖k·A‖ with k the number of taps: the window's sum."""
    return num.sqrt(prod((counting.averaging_gram(window) for window in windows(site)), start=1))


def global_average(num: Numbers[N], site: Site[GlobalPool]) -> N:
    """1/√n, n the number of entries averaged."""
    return 1 / num.sqrt(prod(site.inputs[0][1:]))


OPS: tuple[AnyOp, ...] = (
    homogeneous("max_pool", Pool, pool_shape, "pool.md#windows", overlap, entry=entry_of_input, onnx=("MaxPool",)),
    homogeneous("l2_pool", Pool, pool_shape, "pool.md#windows", overlap, onnx=("LpPool",)),
    homogeneous(
        "avg_pool", Pool, average_shape, "pool.md#averages", average, entry=entry_of_input, onnx=("AveragePool",)
    ),
    homogeneous("scaled_avg_pool", Pool, average_shape, "pool.md#averages", scaled),
    homogeneous(
        "global_avg_pool",
        GlobalPool,
        global_shape,
        "pool.md#global-average",
        global_average,
        entry=entry_of_input,
        onnx=("GlobalAveragePool",),
    ),
)

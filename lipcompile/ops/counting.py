"""Exact counts of a sliding window, by enumerating (output position, tap) pairs axis by axis.

Windows are products of intervals, so the largest count over a grid is the product of the largest counts
over its axes. Nothing here is a formula that could be applied outside its conditions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Literal

from lipcompile import limits
from lipcompile.diagnostics import Refusal

Mode = Literal["zeros", "circular", "reflect", "replicate"]


def source(position: int, size: int, mode: Mode) -> int | None:
    """Return which of an axis' `size` entries stands at a position of the padded axis, entry 0 being at 0.

    None where a zero stands. Reflection leaves the border itself out; replication repeats nothing else.
    """
    if 0 <= position < size:
        return position
    if mode == "circular":
        return position % size
    if mode == "replicate":
        return 0 if position < 0 else size - 1
    if mode == "reflect":
        return -position if position < 0 else 2 * (size - 1) - position
    return None


def copies(size: int, padding: tuple[int, int], mode: Mode) -> int:
    """Return how often the padded axis holds the entry that it holds most often: ‖padding‖² as a map."""
    low, high = padding
    held = Counter(source(position, size, mode) for position in range(-low, size + high))
    return max(count for entry, count in held.items() if entry is not None)


def refuse_padding(size: int, padding: tuple[int, int], mode: Mode, axis: int) -> None:
    """Refuse what no padding mode defines: wrapping around or reflecting more than once; raises `Refusal`."""
    refuse_long(size + sum(padding), f"axis {axis} of size {size}, padded,")
    if mode == "circular" and max(padding) > size:
        raise Refusal(
            "LIP103",
            f"circular padding {padding} wraps around axis {axis} of size {size} more than once",
            "use at most as much padding as the size of the axis",
        )
    if mode == "reflect" and max(padding) >= size:
        raise Refusal(
            "LIP103",
            f"reflection padding {padding} is too large for axis {axis} of size {size}",
            "use less padding than the size of the axis",
        )


def refuse_long(places: int, what: str) -> None:
    """Refuse an axis that is too long to be gone through place by place; raises `Refusal` (LIP018)."""
    limits.refuse_above("counts", places, f"{what} has")


@dataclass(frozen=True, slots=True)
class Window:
    """A window of `kernel` taps, `dilation` apart, moved by `stride` over an axis of `size` padded entries."""

    size: int
    kernel: int
    stride: int
    dilation: int
    padding: tuple[int, int]
    mode: Mode = "zeros"

    @property
    def outputs(self) -> int:
        """Number of output positions (0 if the window does not fit)."""
        span = self.dilation * (self.kernel - 1) + 1
        room = self.size + sum(self.padding) - span
        return room // self.stride + 1 if room >= 0 else 0

    def pairs(self) -> Iterator[tuple[int, int, int]]:
        """Yield every (output position, tap, input entry) that is read, entries of the padding left out."""
        for output in range(self.outputs):
            for tap in range(self.kernel):
                position = output * self.stride + tap * self.dilation - self.padding[0]
                entry = source(position, self.size, self.mode)
                if entry is not None:
                    yield output, tap, entry


@dataclass(frozen=True, slots=True)
class Counts:
    """The largest counts of a window; `fewest_taps` is the smallest number of entries that an output reads."""

    reads: int
    taps: int
    repeats: int
    fewest_taps: int


@lru_cache(maxsize=4096)
def count_axis(window: Window) -> Counts:
    """Count on one axis.

    reads (m): pairs that read one entry. taps (v): entries that one output reads. repeats (r): outputs that
    read one entry through the same tap (1 if the padding is zeros).
    """
    by_entry, by_output, by_tap = Counter[int](), Counter[int](), Counter[tuple[int, int]]()
    for output, tap, entry in window.pairs():
        by_entry[entry] += 1
        by_output[output] += 1
        if window.mode != "zeros":
            by_tap[tap, entry] += 1
    return Counts(
        reads=max(by_entry.values(), default=0),
        taps=max(by_output.values(), default=0),
        repeats=max(by_tap.values(), default=1 if by_entry else 0),
        fewest_taps=min((by_output[output] for output in range(window.outputs)), default=0),
    )


def reads(windows: tuple[Window, ...]) -> int:
    """m: the largest number of (output position, tap) pairs that read one input entry."""
    return prod(count_axis(window).reads for window in windows)


def taps(windows: tuple[Window, ...]) -> int:
    """r·v: most outputs reading one entry through one tap, times most taps that one output uses."""
    return prod(count_axis(window).repeats * count_axis(window).taps for window in windows)


def overlap(windows: tuple[Window, ...]) -> int:
    """M = min(m, r·v): ‖∇kernel‖ <= √M·‖input‖·‖cotangent‖."""
    return min(reads(windows), taps(windows))


def windows_of(
    sizes: tuple[int, ...],
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
    mode: Mode = "zeros",
) -> tuple[Window, ...]:
    """Return the window of each axis; raises `Refusal` if one does not fit its axis."""
    windows = tuple(Window(*axis, mode) for axis in zip(sizes, kernel, stride, dilation, padding, strict=True))
    for axis, window in enumerate(windows):
        if window.outputs < 1:
            raise Refusal(
                "LIP103",
                f"a window of {window.kernel} taps with dilation {window.dilation} does not fit axis {axis} "
                f"of size {window.size} with padding {window.padding}",
                "use a smaller kernel or more padding",
            )
        refuse_long(window.outputs * window.kernel, f"a window of {window.kernel} taps along axis {axis}")
        refuse_padding(window.size, window.padding, mode, axis)
    return windows

"""Exact counts of a sliding window, by enumerating (output position, tap) pairs axis by axis.

Windows are products of intervals, so the largest count over a grid is the product of the largest counts
over its axes. Nothing here is a formula that could be applied outside its conditions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any, Literal

from lipcompile import limits
from lipcompile.diagnostics import Refusal
from lipcompile.numbers.rounding import round_up

Mode = Literal["zeros", "circular", "reflect", "replicate"]
Pair = tuple[int, int]  # an output position, and the entry that it reads through some tap

# Longer axes, of more outputs times entries, are bounded by counts: what borders leave out is little there.
_MOST_PLACES = 400
# The shares, of so many parts, that are tried; and how often the weights of Schur's test are improved.
_SHARES, _PARTS, _STEPS = (8, 6, 4, 2, 1, 0), 16, 24


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


def overlap(windows: tuple[Window, ...]) -> Fraction:
    """M, the product over the axes: ‖∇kernel‖ <= √M·‖input‖·‖cotangent‖."""
    return prod(map(overlap_axis, windows), start=Fraction(1))


@lru_cache(maxsize=4096)
def overlap_axis(window: Window) -> Fraction:
    """M on one axis, at least Σ_t ⟨g, S_t x⟩² for all unit x and g; S_t x is what tap t reads of x.

    It is min(m, r·v), and less where the axis is short: the borders leave out pairs, and not the same of x and g.
    """
    count = count_axis(window)
    found = [Fraction(min(count.reads, count.repeats * count.taps))]
    if found[0] > 1 and window.outputs * window.size <= _MOST_PLACES:
        pairs: dict[int, list[Pair]] = {}
        for output, tap, entry in window.pairs():
            pairs.setdefault(tap, []).append((output, entry))
        found += [bound for share in _SHARES for bound in _schur([*pairs.values()], window, share)]
    return min(found)


def _schur(taps: Sequence[Sequence[Pair]], window: Window, share: int) -> Iterator[Fraction]:
    """Yield bounds of ⟨W, A W⟩/‖W‖² by Schur's test: the largest (A V)/V, of V = 1 and of what A makes of it."""
    places = product(range(window.outputs), range(window.size))
    start = dict.fromkeys(places, 1)
    yield _largest_ratio(taps, start, share)
    weights: Mapping[Pair, float] = start
    for _ in range(_STEPS):
        mapped = _mixed(taps, weights, share)
        largest = max(mapped.values())
        weights = {place: weight / largest for place, weight in mapped.items() if weight}
    exact = {place: int(weight * 2.0**200) + 1 for place, weight in weights.items()}
    # Up to five digits with a margin, as the verifier does: the last bits of weights may differ between the two.
    yield round_up(_largest_ratio(taps, exact, share) * Fraction(1.0 + 2.0**-30), 5)


def _largest_ratio(taps: Sequence[Sequence[Pair]], weights: Mapping[Pair, int], share: int) -> Fraction:
    mapped = _mixed(taps, weights, share)
    return max(Fraction(mapped[place], _PARTS * weight) for place, weight in weights.items())


def _mixed(taps: Sequence[Sequence[Pair]], weights: Mapping[Pair, Any], share: int) -> dict[Pair, Any]:
    """Return 16·A V: `share` parts of Σ_t ⟨S_t, V⟩·S_t, the rest of Σ_t S_t·Vᵀ·S_t."""
    mapped = dict.fromkeys(weights, 0)
    for pairs in taps:
        whole = share * sum(weights[pair] for pair in pairs) if share else 0
        for output, entry in pairs:
            if share:
                mapped[output, entry] += whole
            for other, place in pairs:
                mapped[output, place] += (_PARTS - share) * weights[other, entry]
    return mapped


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

"""Counts of windows against windows of an image whose entries are numbered, padded by torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from itertools import product
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from lipcompile.diagnostics import Refusal
from lipcompile.ops import counting
from lipcompile.ops.counting import (
    Counts,
    Mode,
    Window,
    copies,
    count_axis,
    overlap,
    overlap_axis,
    reads,
    refuse_padding,
    taps,
    windows_of,
)
from tests.overlaps import attained, image, line

MODES: tuple[Mode, ...] = ("zeros", "circular", "reflect", "replicate")


def numbered(windows: tuple[Window, ...], mode: Mode) -> torch.Tensor:
    """The image's numbers from 1 on, padded; 0 is padding."""
    sizes = [window.size for window in windows]
    image = torch.arange(1.0, 1 + sizes[0] * sizes[1]).reshape(1, 1, *sizes)
    sides = [side for window in reversed(windows) for side in window.padding]
    return F.pad(image, sides, "constant" if mode == "zeros" else mode)[0, 0].long()


def pairs(windows: tuple[Window, ...], mode: Mode) -> list[tuple[int, int, int]]:
    """Every (output, tap, entry) of the image."""
    image = numbered(windows, mode)
    found = []
    outputs, kernels = ([getattr(w, name) for w in windows] for name in ("outputs", "kernel"))
    for (o, p), (s, t) in product(product(*map(range, outputs)), product(*map(range, kernels))):
        y = o * windows[0].stride + s * windows[0].dilation
        x = p * windows[1].stride + t * windows[1].dilation
        found.append((o * outputs[1] + p, s * kernels[1] + t, int(image[y, x])))
    return [(output, tap, entry) for output, tap, entry in found if entry]


@pytest.mark.parametrize("mode", MODES)
def test_counts_of_an_image_are_products_over_its_axes(mode: Mode) -> None:
    rng, done = Random(f"windows {mode}"), 0
    while done < 60:
        axes = [
            (
                rng.randint(1, 4),
                rng.randint(1, 3),
                rng.randint(1, 3),
                rng.randint(1, 2),
                (rng.randint(0, 3), rng.randint(0, 3)),
            )
            for _ in range(2)
        ]
        try:
            sizes, kernel, stride, dilation, padding = zip(*axes, strict=True)
            windows = windows_of(sizes, kernel, stride, dilation, padding, mode)
        except Refusal:
            continue
        found = pairs(windows, mode)
        m = max(Counter(entry for _, _, entry in found).values(), default=0)
        r = max(Counter((tap, entry) for _, tap, entry in found).values(), default=0)
        v = max(Counter(output for output, _, _ in found).values(), default=0)
        assert (reads(windows), taps(windows)) == (m, r * v)
        read = np.zeros([1 + max(numbers) for numbers in zip(*found, strict=True)] if found else (1, 1, 1))
        for output, tap, entry in found:
            read[output, tap, entry] = 1
        assert attained(read.transpose(1, 0, 2), starts=2) <= overlap(windows) * (1 + 1e-12)
        assert overlap(windows) <= min(m, r * v)
        image = numbered(windows, mode)
        held = torch.bincount(image[image > 0])
        assert copies(windows[0].size, windows[0].padding, mode) * copies(
            windows[1].size, windows[1].padding, mode
        ) == int(held.max())
        done += 1


def test_counts_made_by_hand() -> None:
    """Three taps on eight entries, one padded at each end.

    Reflection puts entry 1 before entry 0: it is read once more, by output 0 through tap 0, as output 2 does.
    Replication puts entry 0 there: outputs 0 and 1 read it through tap 0, output 0 through tap 1.
    """
    found = {mode: count_axis(Window(8, 3, 1, 1, (1, 1), mode)) for mode in MODES}
    assert found["zeros"] == Counts(3, 3, 1, 2)
    assert found["circular"] == Counts(3, 3, 1, 3)
    assert found["reflect"] == Counts(4, 3, 2, 3)
    assert found["replicate"] == Counts(3, 3, 2, 3)


@pytest.mark.parametrize(("mode", "padding"), [("reflect", (0, 3)), ("reflect", (3, 0)), ("circular", (0, 4))])
def test_no_axis_is_padded_by_more_than_it_has(mode: Mode, padding: tuple[int, int]) -> None:
    with pytest.raises(Refusal):
        windows_of((3,), (2,), (1,), (1,), (padding,), mode)


SHORT = [
    (2, 3, 1, 1),
    (3, 3, 1, 1),
    (4, 3, 1, 1),
    (8, 3, 1, 1),
    (4, 3, 2, 1),
    (8, 3, 2, 1),
    (7, 5, 1, 2),
    (14, 5, 1, 0),
]


@pytest.mark.parametrize(("size", "kernel", "stride", "padding"), SHORT)
def test_what_borders_leave_out(size: int, kernel: int, stride: int, padding: int) -> None:
    """The bound is at most 4.5 % above what ascents find; two axes have the product of both, and attain it."""
    window = Window(size, kernel, stride, 1, (padding, padding))
    read = line(size, kernel, stride, padding)
    best = attained(read)
    assert best * (1 - 1e-12) <= overlap_axis(window) <= 1.045 * best
    assert overlap((window, window)) == overlap_axis(window) ** 2
    if size <= 4:
        assert attained(image(read, read)) == pytest.approx(best**2, rel=1e-6)


def test_what_borders_leave_out_by_hand() -> None:
    """Two entries: h = (g·x)² + g_1²x_2² + g_2²x_1² <= 3/2. One entry that is replicated: nine pairs read it."""
    assert overlap_axis(Window(2, 3, 1, 1, (1, 1))) == Fraction(3, 2)
    assert overlap_axis(Window(1, 3, 1, 1, (2, 2), "replicate")) == 9
    assert overlap_axis(Window(6, 3, 1, 1, (1, 1), "circular")) == 3
    assert overlap_axis(Window(224, 3, 1, 1, (1, 1))) == 3


def test_long_axes_are_bounded_by_counts_alone() -> None:
    """Of more than 400 pairs of an output and an entry. By strides of 2, three taps read an entry twice."""
    assert attained(line(20, 3, padding=1)) <= overlap_axis(Window(20, 3, 1, 1, (1, 1))) < 3
    assert overlap_axis(Window(21, 3, 1, 1, (1, 1))) == 3
    assert overlap_axis(Window(64, 3, 2, 1, (0, 0))) == 2


def test_circular_padding_may_hold_every_entry_once_more_on_each_side() -> None:
    refuse_padding(3, (3, 3), "circular", 0)
    assert copies(3, (3, 3), "circular") == 3
    with pytest.raises(Refusal, match="more than once"):
        refuse_padding(3, (0, 4), "circular", 0)


@pytest.mark.parametrize(
    "change",
    [
        lambda mixed: lambda taps, weights, share: mixed(taps[1:], weights, share),
        lambda mixed: (
            lambda taps, weights, share: {
                place: Fraction(19, 20) * weight for place, weight in mixed(taps, weights, share).items()
            }
        ),
    ],
    ids=["a tap is left out", "5 % too small"],
)
def test_too_small_a_bound_of_what_borders_leave_out_is_seen(
    change: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "_mixed", change(counting._mixed))
    for kernel, padding in ((3, 1), (5, 2)):
        found = counting.overlap_axis.__wrapped__(Window(2, kernel, 1, 1, (padding, padding)))
        assert found < attained(line(2, kernel, padding=padding))

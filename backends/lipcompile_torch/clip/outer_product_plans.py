"""Plans of :mod:`.outer_products`: how positions, channels and taps are laid out, and cut into runs and units."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise, product

import numpy as np

from .outer_products import Integers, Places, Plan, Role, Shape, Sizes, Tile

_BY_LANE = 1.3
"""Cost of a product lane by lane, over that of one with a number for all lanes."""


@lru_cache(maxsize=256)
def plan(sizes: Sizes, tile: Tile, *, are_side_by_side: bool) -> Plan:
    """Return the plan that takes the fewest products.

    Args:
        tile: of the processor.
        are_side_by_side: whether the channels of what was read lie side by side.
    """
    costs = _costs(sizes, tile.lanes)
    role = min(costs, key=lambda some: costs[some])
    if role == "windows":
        return _by_windows(sizes, tile)
    if role == "groups":
        return _by_groups(sizes, tile)
    return _by_panels(sizes, tile) if are_side_by_side and _is_dense(sizes) else _by_filters(sizes, tile)


@lru_cache(maxsize=256)
def depth(sizes: Sizes) -> int:
    """Return how often a product is rounded to float32 at most on its way into the gradient of an example.

    With n positions in the longest of m runs that is n + m - 1: on the way into its run, and with the runs before
    or after it. No plan changes that.
    """
    segments = _Read(sizes, sizes.channels).segments(1)
    runs = np.diff(np.cumsum(segments[:, 2])[segments[:, 3].nonzero()[0]], prepend=0)
    return int(runs.max(initial=0)) + max(len(runs) - 1, 0)


def _costs(sizes: Sizes, lanes: int) -> dict[Role, float]:
    """Return how many products of vectors each position takes."""
    windows, (channels, filters) = sizes.windows, sizes.group
    taps, row = math.prod(windows.kernel), channels * windows.taps_in_row
    return {
        "filters": windows.groups * -(-filters // lanes) * taps * channels,
        "windows": windows.groups * filters * (taps * channels // row) * -(-row // lanes),
        "groups": -(-windows.groups // lanes) * filters * channels * taps * _BY_LANE,
    }


def _is_dense(sizes: Sizes) -> bool:
    """Whether every position reads itself alone."""
    windows = sizes.windows
    ones, zeros = (1,) * len(windows.kernel), (0,) * len(windows.kernel)
    same = (windows.kernel, windows.stride, windows.padding) == (ones, ones, zeros)
    return same and windows.groups == 1 and sizes.inputs == sizes.outputs


# --- positions ---


class _Read:
    """What a convolution read, with zeros around, of so many numbers a position."""

    def __init__(self, sizes: Sizes, numbers: int) -> None:
        windows, rank = sizes.windows, len(sizes.inputs)
        reached = [
            (out - 1) * step + (taps - 1) * gap + 1
            for out, step, taps, gap in zip(
                sizes.outputs, windows.stride, windows.kernel, windows.dilation, strict=True
            )
        ]
        given = [low + size for low, size in zip(windows.padding, sizes.inputs, strict=True)]
        extents = [max(pair) for pair in zip(reached, given, strict=True)]
        self.sizes, self.numbers = sizes, numbers
        self.size = math.prod(extents) * numbers
        self._pitches = [math.prod(extents[axis + 1 :]) * numbers for axis in range(rank)]

    def offsets(self, counts: Sequence[int], steps: Sequence[int], starts: Shape | None = None) -> Integers:
        """Return where positions starts + steps·index lie, for indices below counts, the last axis fastest; axes
        that are left out stay at 0.
        """
        found = np.zeros(1, np.int64)
        for axis, count in enumerate(counts):
            start = 0 if starts is None else starts[axis]
            along = (np.arange(count, dtype=np.int64) * steps[axis] + start) * self._pitches[axis]
            found = (found[:, None] + along).reshape(-1)
        return found

    def places(self) -> Integers:
        """Return where the positions lie that are given."""
        return self.offsets(self.sizes.inputs, (1,) * len(self.sizes.inputs), self.sizes.windows.padding)

    def rows(self) -> Integers:
        """Return where the first taps lie of those that lie side by side."""
        windows = self.sizes.windows
        kernel = windows.kernel if windows.taps_in_row == 1 else windows.kernel[:-1]
        return self.offsets(kernel, windows.dilation)

    def segments(self, made_step: int, *, has_lanes: bool = False) -> Integers:
        """Return the positions of the output, cut into runs: [segments, 4], see `kernels/outer_products.h`.

        Args:
            made_step: numbers from a position of what was made to the next one.
            has_lanes: whether the lanes are of what was read.
        """
        found: list[list[int]] = []
        done, room = 0, 0
        for start, step, length in self._even_rows():
            pieces = -(-length // self.sizes.run)
            for begin, end in pairwise(length * piece // pieces for piece in range(pieces + 1)):
                if end - begin > room:
                    _end_run(found)
                    room = self.sizes.run
                where = start + begin * step, (done + begin) * made_step
                found.append([*(where if has_lanes else where[::-1]), end - begin, 0])
                room -= end - begin
            done += length
        _end_run(found)
        return np.array(found, np.int64).reshape(-1, 4)

    def _even_rows(self) -> list[tuple[int, int, int]]:
        """Return beginning, step and length of rows of windows that lie evenly: of one axis, or of several."""
        *outer, last = self.sizes.outputs
        step = self.sizes.windows.stride[-1] * self.numbers
        found: list[tuple[int, int, int]] = []
        for start in self.offsets(outer, self.sizes.windows.stride).tolist():
            if found and found[-1][0] + found[-1][2] * step == start:
                found[-1] = found[-1][0], step, found[-1][2] + last
            else:
                found.append((start, step, last))
        return [some for some in found if some[2] > 0]


def _end_run(segments: list[list[int]]) -> None:
    for last in segments[-1:]:
        last[3] = 1


# --- lanes ---


def _blocks(count: int, lanes: int, width: int) -> list[tuple[int, int, int]]:
    """Return where blocks of lanes begin, how many vectors they have, and how many lanes are there."""
    left = [(begin, min(count - begin, width)) for begin in range(0, count, width)]
    return [(begin, -(-rest // lanes), rest) for begin, rest in left]


def _width(count: int, tile: Tile) -> int:
    return tile.lanes if count <= tile.lanes else tile.lanes * tile.vectors


def _table(rows: Sequence[Sequence[int]]) -> Integers:
    return np.array(rows, np.int64)


def _panels(sizes: Sizes, width: int) -> tuple[Places, list[tuple[int, int, int]]]:
    """Return where filters lie in panels [groups][panels][positions][width], and of each panel where it begins,
    its group, and how many filters it has.
    """
    (_, filters), positions, groups = sizes.group, math.prod(sizes.outputs), sizes.windows.groups
    begins = range(0, filters, width)
    numbered = list(enumerate(product(range(groups), begins)))
    spans = [
        (group * filters + begin, number * positions * width, min(width, filters - begin))
        for number, (group, begin) in numbered
    ]
    places = np.arange(positions, dtype=np.int64) * width
    return Places(_table(spans), 1, places, len(numbered) * positions * width), [
        (number * positions * width, group, min(width, filters - begin)) for number, (group, begin) in numbered
    ]


# --- plans ---


def _by_filters(sizes: Sizes, tile: Tile) -> Plan:
    windows, (channels, filters) = sizes.windows, sizes.group
    are_planes = channels < tile.lanes and windows.taps_in_row > 1  # few channels are slow to put side by side
    planes, numbers = (channels, 1) if are_planes else (1, channels)
    read, width = _Read(sizes, numbers), _width(filters, tile)
    made, units = _panels(sizes, width)
    sets = windows.groups * planes
    spans = [(number * numbers, number * read.size, numbers) for number in range(sets)]
    group = planes * read.size
    rows = np.arange(planes, dtype=np.int64)[:, None] * read.size + read.rows()
    return Plan(
        role="filters",
        read=Places(_table(spans), 1, read.places(), sets * read.size),
        made=made,
        lanes_step=width,
        entries_step=windows.stride[-1] * numbers,
        entry_step=1,
        width=width,
        segments=read.segments(width),
        units=_table([(at, number * group, -(-own // tile.lanes), own) for at, number, own in units]),
        rows=rows.reshape(-1),
        row_width=windows.taps_in_row * numbers,
        sizes=sizes,
        are_planes=are_planes,
    )


def _by_panels(sizes: Sizes, tile: Tile) -> Plan:
    """Where every position reads itself alone: entries lie in panels as wide as a tile, with zeros at the end."""
    positions, width = math.prod(sizes.inputs), _width(sizes.filters, tile)
    made, units = _panels(sizes, width)
    row = -(-sizes.channels // -(-sizes.channels // tile.entries))
    begins = range(0, sizes.channels, row)
    spans = [(begin, begin * positions, min(row, sizes.channels - begin)) for begin in begins]
    places = np.arange(positions, dtype=np.int64) * row
    return Plan(
        role="filters",
        read=Places(_table(spans), 1, places, len(begins) * row * positions),
        made=made,
        lanes_step=width,
        entries_step=row,
        entry_step=1,
        width=width,
        segments=_Read(sizes, row).segments(width),
        units=_table([(at, 0, -(-own // tile.lanes), own) for at, _, own in units]),
        rows=np.arange(len(begins), dtype=np.int64) * positions * row,
        row_width=row,
        sizes=sizes,
    )


def _by_windows(sizes: Sizes, tile: Tile) -> Plan:
    windows, (channels, filters) = sizes.windows, sizes.group
    read, row = _Read(sizes, channels), windows.taps_in_row * channels
    width = _width(row, tile)
    cases = product(range(windows.groups), read.rows().tolist(), _blocks(row, tile.lanes, width))
    spans = [(group * channels, group * read.size, channels) for group in range(windows.groups)]
    positions = math.prod(sizes.outputs)
    return Plan(
        role="windows",
        read=Places(_table(spans), 1, read.places(), windows.groups * read.size + width),
        made=Places(
            _table([(0, 0, sizes.filters)]),
            1,
            np.arange(positions, dtype=np.int64) * sizes.filters,
            positions * sizes.filters,
        ),
        lanes_step=windows.stride[-1] * channels,
        entries_step=sizes.filters,
        entry_step=1,
        width=width,
        segments=read.segments(sizes.filters, has_lanes=True),
        units=_table([(group * read.size + at + own[0], group * filters, *own[1:]) for group, at, own in cases]),
        rows=np.zeros(1, np.int64),
        row_width=filters,
        sizes=sizes,
    )


def _by_groups(sizes: Sizes, tile: Tile) -> Plan:
    windows, (channels, filters) = sizes.windows, sizes.group
    groups, read, positions = windows.groups, _Read(sizes, sizes.channels), math.prod(sizes.outputs)
    cases = product(range(filters), range(channels), _blocks(groups, tile.lanes, tile.lanes))
    return Plan(
        role="groups",
        read=Places(
            _table([(channel, channel * groups, groups) for channel in range(channels)]),
            channels,
            read.places(),
            read.size + tile.lanes,
        ),
        made=Places(
            _table([(own, own * groups, groups) for own in range(filters)]),
            filters,
            np.arange(positions, dtype=np.int64) * sizes.filters,
            positions * sizes.filters + tile.lanes,
        ),
        lanes_step=sizes.filters,
        entries_step=windows.stride[-1] * sizes.channels,
        entry_step=windows.dilation[-1] * sizes.channels,
        width=tile.lanes,
        segments=read.segments(sizes.filters),
        units=_table([(f * groups + own[0], c * groups + own[0], *own[1:]) for f, c, own in cases]),
        rows=read.offsets(windows.kernel[:-1], windows.dilation),
        row_width=windows.kernel[-1],
        sizes=sizes,
    )

"""How the kernels of :mod:`..native` go about weight gradients of examples: which numbers lie where.

The gradient of the weight of a convolution is Σ_t g_t·w_tᵀ, over positions t, of cotangents g_t [F] and of
windows w_t [taps·C] of what was read. Both are copied to where products read them: all channels of a position
side by side, with zeros around, so that the entries of neighbouring taps of the last axis lie side by side too.
Vectors of the processor hold lanes: filters, entries of windows, or groups, whichever leaves the fewest lanes
empty.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Shape = tuple[int, ...]
Integers = NDArray[np.int64]
Role = Literal["filters", "windows", "groups"]

RUN = 64
"""Positions whose products are added in a row, where that makes no more runs than positions of one."""


@dataclass(frozen=True, slots=True)
class Windows:
    """Where a convolution reads, with one integer an axis.

    Args:
        padding: zeros before the first entry; those behind the last one follow from the size of the output.

    Raises:
        ValueError: not one integer an axis, or one that is too small.
    """

    kernel: Shape
    stride: Shape
    padding: Shape
    dilation: Shape
    groups: int = 1

    def __post_init__(self) -> None:
        rank = len(self.kernel)
        if rank == 0 or {len(self.stride), len(self.padding), len(self.dilation)} != {rank}:
            raise ValueError(f"{self}: expected one integer for each axis of the kernel")
        if min(*self.kernel, *self.stride, *self.dilation, self.groups) < 1 or min(self.padding) < 0:
            raise ValueError(f"{self}: expected positive integers, and non-negative padding")

    @property
    def are_entries(self) -> bool:
        """Whether each window is one entry, and all entries are read in a row."""
        return {*self.kernel, *self.stride} == {1} and not any(self.padding)

    def outputs(self, inputs: Sequence[int]) -> Shape:
        """Return how many windows each axis has if it is padded behind the last entry as before the first."""
        axes = zip(inputs, self.kernel, self.stride, self.padding, self.dilation, strict=True)
        return tuple((size + 2 * low - gap * (taps - 1) - 1) // step + 1 for size, taps, step, low, gap in axes)

    @property
    def taps_in_row(self) -> int:
        """How many taps of the last axis lie side by side."""
        return self.kernel[-1] if self.dilation[-1] == 1 else 1


@dataclass(frozen=True, slots=True)
class Sizes:
    """Channels and positions of what a convolution read, and of what it made."""

    windows: Windows
    channels: int
    inputs: Shape
    filters: int
    outputs: Shape

    @property
    def group(self) -> tuple[int, int]:
        """Channels and filters of a group."""
        return self.channels // self.windows.groups, self.filters // self.windows.groups

    @property
    def run(self) -> int:
        """The most positions whose products are added in a row; the number of runs enters the error as well."""
        return max(RUN, math.isqrt(max(math.prod(self.outputs) - 1, 0)) + 1)


@dataclass(frozen=True, slots=True)
class Tile:
    """What fits into the registers of a processor: vectors of so many lanes, for each of so many entries."""

    lanes: int
    vectors: int
    entries: int


@dataclass(frozen=True, slots=True)
class Places:
    """Where channels and positions of an operand are copied to, below ``room``: channel source + step·i at
    position p to target + i + places[p], for spans (source, target, count) and i below their count.
    """

    spans: Integers
    step: int
    places: Integers
    room: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What `kernels/example_gradients.h` asks for.

    Attributes:
        role: what its lanes are. The other operand has the entries; lanes are those of ``read`` for windows.
        are_planes: whether entries are those of one channel after the other, not of one tap after the other.
    """

    role: Role
    read: Places
    made: Places
    lanes_step: int
    entries_step: int
    entry_step: int
    width: int
    segments: Integers
    units: Integers
    rows: Integers
    row_width: int
    sizes: Sizes
    are_planes: bool = False

    @property
    def size(self) -> int:
        """Numbers of a result, with lanes that are not there."""
        return len(self.units) * len(self.rows) * self.row_width * self.width

    def restored(self, result: Tensor) -> Tensor:
        """Return a result as a weight, [F, C/groups, *kernel]."""
        windows, (channels, filters) = self.sizes.windows, self.sizes.group
        kernel, groups = windows.kernel, windows.groups
        taps = math.prod(kernel)
        if self.role == "filters":
            lanes = result.reshape(groups, -1, len(self.rows) * self.row_width, self.width).mT.flatten(1, 2)
            own = lanes[:, :filters, : taps * channels]
            if self.are_planes:
                own = torch.unflatten(own, 2, (channels, taps)).mT
            own = own.reshape(groups, filters, taps, channels)
        elif self.role == "windows":
            row = channels * windows.taps_in_row
            lanes = result.reshape(groups, taps * channels // row, -1, filters, self.width).movedim(3, 1)
            own = lanes.flatten(-2)[..., :row].reshape(groups, filters, taps, channels)
        else:
            lanes = result.reshape(filters, channels, -1, taps, self.width).movedim((2, 4), (0, 1))
            own = lanes.flatten(0, 1)[:groups].transpose(2, 3)
        return own.reshape(-1, *kernel, channels).movedim(-1, 1).contiguous()

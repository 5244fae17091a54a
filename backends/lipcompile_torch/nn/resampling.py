"""Copies, interpolation and selection: operations whose outputs are fixed combinations of a few entries.

All work on [B, *example] with any B, zero included, and never reach across the batch. The stated constants are
those of the exact map.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from math import prod
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  (its name everywhere in this field)

Mode = Literal["zeros", "circular", "reflect", "replicate"]
Interpolation = Literal["nearest", "bilinear", "bicubic"]
Pairs = tuple[tuple[int, int], ...]
Taps = tuple[tuple[int, ...], tuple[float, ...]]
"""One entry and one weight for each output."""


def pad(x: Tensor, padding: Pairs, mode: Mode = "zeros") -> Tensor:
    """Pad the last ``len(padding)`` axes, (lo, hi) an axis, as torch's layers do.

    Formal guarantees: √c-Lipschitz, c the number of times that the most repeated entry stands in the result
    (1 for zeros).

    Raises:
        ValueError: an axis is too short to be wrapped around or mirrored so far.
    """
    if mode == "zeros":
        return F.pad(x, [side for pair in reversed(padding) for side in pair])
    for axis, (low, high) in enumerate(padding, start=x.dim() - len(padding)):
        size = x.shape[axis]
        if max(low, high) > {"circular": size, "reflect": size - 1}.get(mode, max(low, high)):
            raise ValueError(f"{mode} padding {low, high} does not fit an axis of {size} entries")
        before, after = _edges(x, axis, low, high, mode)
        x = torch.cat((before, x, after), dim=axis)
    return x


def _edges(x: Tensor, axis: int, low: int, high: int, mode: Mode) -> tuple[Tensor, Tensor]:
    size = x.shape[axis]
    if mode == "circular":
        return x.narrow(axis, size - low, low), x.narrow(axis, 0, high)
    if mode == "reflect":
        return x.narrow(axis, 1, low).flip(axis), x.narrow(axis, size - 1 - high, high).flip(axis)
    first, last = x.narrow(axis, 0, 1), x.narrow(axis, size - 1, 1)
    return first.repeat_interleave(low, dim=axis), last.repeat_interleave(high, dim=axis)


def upsample(x: Tensor, factor: Sequence[int], mode: Interpolation, align_corners: bool = False) -> Tensor:
    """Enlarge the last ``len(factor)`` axes of [B, C, *spatial] by whole factors, as torch's ``interpolate`` does.

    Weights are exact up to one rounding in the dtype of ``x``, where torch's own coordinates lose digits on long
    axes. Any number of axes can be interpolated, one after the other.

    Formal guarantees: nearest is √Π factor-Lipschitz; the others have the norm of the product of their axes'
    matrices, which the compiler certifies.
    """
    for axis, times in enumerate(factor, start=x.dim() - len(factor)):
        if times > 1:
            x = _enlarged(x, axis, times, mode, align_corners)
    return x


def _enlarged(x: Tensor, axis: int, times: int, mode: Interpolation, align_corners: bool) -> Tensor:
    if mode == "nearest":
        return x.repeat_interleave(times, dim=axis)
    shape = (-1, *(1,) * (x.dim() - axis - 1))
    terms = []
    for entries, weights in _taps(x.shape[axis], times, mode, align_corners):
        picked = x.index_select(axis, torch.tensor(entries, device=x.device))
        terms.append(picked * torch.tensor(weights, dtype=x.dtype, device=x.device).reshape(shape))
    return sum(terms[1:], start=terms[0])


@lru_cache(maxsize=256)
def _taps(size: int, times: int, mode: Interpolation, align_corners: bool) -> tuple[Taps, ...]:
    """Return, tap by tap, which entry and weight each output uses: Python numbers, for tensors made under
    ``inference_mode`` must not be kept.
    """
    outputs = [_place(output, size, times, align_corners) for output in range(size * times)]
    weigh = _linear if mode == "bilinear" else _cubic
    columns = []
    for tap in range(-1, 3) if mode == "bicubic" else range(2):
        entries = tuple(min(max(place.__floor__() + tap, 0), size - 1) for place in outputs)
        columns.append((entries, tuple(float(weigh(abs(place - place.__floor__() - tap))) for place in outputs)))
    return tuple(columns)


def _place(output: int, size: int, times: int, align_corners: bool) -> Fraction:
    """Where an output lies between the entries."""
    if align_corners:
        return Fraction(output * (size - 1), size * times - 1)
    return Fraction(2 * output + 1, 2 * times) - Fraction(1, 2)


def _linear(distance: Fraction) -> Fraction:
    return 1 - distance


def _cubic(distance: Fraction) -> Fraction:
    """Keys' kernel with A = -3/4, which torch uses."""
    a, d = Fraction(-3, 4), distance
    if d <= 1:
        return ((a + 2) * d - (a + 3)) * d * d + 1
    return ((d - 5) * d + 8) * d * a - 4 * a


def gather(x: Tensor, indices: Sequence[int], axis: int) -> Tensor:
    """Take entries ``indices`` of ``axis`` of each example, an entry as often as it is named.

    Formal guarantees: √c-Lipschitz, c the largest number of times that an entry is named.

    Raises:
        ValueError: there is no such axis in an example.
        IndexError: there is no such entry.
    """
    if not 0 <= axis < x.dim() - 1:
        raise ValueError(f"axis {axis} is outside an example of shape {tuple(x.shape[1:])}")
    return x.index_select(axis + 1, torch.tensor(indices, device=x.device))


def expand(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Broadcast the example of [B, *example] to ``shape``, aligned at the last axis.

    Formal guarantees: √P-Lipschitz, P the number of copies of each entry.

    Raises:
        RuntimeError: the shapes do not broadcast.
    """
    missing = len(shape) - (x.dim() - 1)
    return x.reshape(x.shape[0], *(1,) * missing, *x.shape[1:]).expand(x.shape[0], *shape)


@lru_cache(maxsize=256)
def _decoded(mask: str, shape: tuple[int, ...]) -> Tensor:
    """Return the truth values [*shape] that ``mask`` lists, in row-major order."""
    entries = prod(shape)
    bits = f"{int(mask, 16):b}".zfill(entries)
    if len(bits) > entries:
        raise ValueError(f"a mask of {len(bits)} bits does not fit examples of shape {shape}")
    with torch.inference_mode(mode=False):  # it is kept, and backward passes may need it
        return torch.tensor([bit == "1" for bit in bits], dtype=torch.bool).reshape(shape)


def where(first: Tensor, second: Tensor, mask: str) -> Tensor:
    """Take the entries of ``first`` [B, *example] where ``mask`` says 1, those of ``second`` [B, *example] where
    it says 0: one bit per entry of an example in row-major order, as a hexadecimal number.

    Formal guarantees: each cotangent entry goes to one of both, so 1-Lipschitz in each, and ‖output‖² is at most
    the sum of both squares.

    Raises:
        ValueError: the operands have different shapes, or the mask more bits than an example entries.
    """
    if first.shape != second.shape:
        raise ValueError(f"cannot select between tensors of shapes {tuple(first.shape)} and {tuple(second.shape)}")
    return torch.where(_decoded(mask, tuple(first.shape[1:])).to(first.device), first, second)

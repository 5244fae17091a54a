"""The norm of each example of a batch."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .. import native


def example_norms(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return the norm of each example of [B, …], [B], accumulated in float64.

    Args:
        x: of any floating dtype.
        dtype: the dtype that the entries came from, if x is a copy in a wider one.

    Formal guarantees: the norm of n entries is off by a relative (n/2 + 1)·2⁻⁵³ at most, up to terms of second
    order, and by 2⁻¹⁰⁷⁵ where it is subnormal in float64; infinity where it is beyond the largest float64. A sum
    of n squares has n roundings on the way of each, of which a root keeps half, and adds its own (Higham, section
    3.1). No square of a narrower dtype under- or overflows in float64. Nor does it matter in float64 if the
    measured norm is within [2⁻⁴⁰⁰, 2⁴⁰⁰]: what underflows is below n·2⁻²⁷⁵ of the sum. Other examples are first
    multiplied by a power of two that brings their largest entry into [2⁻⁴⁷⁴, 2⁴²⁴]: n·2⁻¹²⁵ of the sum.
    """
    rows, wide = as_rows(x), (dtype or x.dtype) == torch.float64
    found = None if torch.is_grad_enabled() and x.requires_grad else native.row_norms(rows)
    if found is not None:
        return found
    if rows.device.type != "cpu" or torch.compiler.is_compiling():
        return _row_norms(rows, wide)
    parts = torch.split(rows, max(_AT_ONCE // max(rows.shape[1], 1), 1))
    return torch.cat([_row_norms(part.to(torch.float64), wide) for part in parts])


def _row_norms(rows: Tensor, wide: bool) -> Tensor:
    """Return the norms of rows [B, n]; ``wide``: of entries whose squares may under- or overflow in float64."""
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    if not wide or rows.shape[1] == 0:
        return norms
    may_ask = rows.device.type == "cpu" and native.is_eager()  # elsewhere it would wait for a device
    if may_ask and bool(((norms > 2.0**-400) & (norms < 2.0**400)).all()):
        return norms
    largest = torch.linalg.vector_norm(rows.detach(), math.inf, dim=1)
    power = torch.ones_like(largest).masked_fill(largest > 2.0**400, 2.0**-600)
    power = power.masked_fill(largest < 2.0**-400, 2.0**600)
    scaled: Tensor = torch.linalg.vector_norm(rows * power[:, None], dim=1)
    return scaled / power


_AT_ONCE = 2**18  # entries whose copies in float64, which processors make, stay in a cache


def as_rows(x: Tensor) -> Tensor:
    """Return each example as a row, [B, entries]."""
    return x.flatten(1) if x.dim() > 1 else x[:, None]

"""What examples are scaled by, and sums of rows of numbers, one of each example, that are scaled so.

Formal guarantees: rows in float64 are added in float64. Of rows in float32, which are long ones, and those of
other devices than processors, factors are rounded to float32 and so are the products, which are added as
:mod:`..certify.sums` says; :func:`products_room` pays for that. There an example whose factor is below the normal
numbers adds nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..certify.precision import single_is_kept
from ..certify.sums import sum_of_products


@dataclass(frozen=True)
class Factors:
    """What examples are scaled by.

    Args:
        values: [B] in float64.
        has_zeros: whether there may be an example with factor 0, whose gradient need not be finite.
    """

    values: Tensor
    has_zeros: bool

    @staticmethod
    def of(values: Tensor) -> Factors:
        """Return factors after a look at them, for which it waits for their device."""
        return Factors(values, not bool((values > 0).all()))

    def of_some(self, some: slice | Tensor) -> Factors:
        """Return those of some examples."""
        if isinstance(some, slice) and some == slice(None):
            return self
        return Factors(self.values[some], self.has_zeros)

    def kept(self, rows: Tensor) -> Tensor:
        """Return [B, n] with the rows of factor 0 set to 0."""
        return rows.masked_fill((self.values == 0)[:, None], 0.0) if self.has_zeros else rows

    def sum(self, rows: Tensor) -> Tensor:
        """Return Σ factor_i·row_i [n], of [B, n] in float32 or float64; a row of factor 0 adds nothing."""
        kept = self.kept(rows)
        if rows.dtype == torch.float64:
            return self.values @ kept
        return sum_of_products(self._single[:, None], kept).flatten()

    def sum_of_few(self, rows: Tensor) -> Tensor:
        """Return the same in float64, of rows of few entries."""
        step = max(_COPIED // max(rows.shape[1], 1), 1)
        parts = (slice(start, start + step) for start in range(0, len(rows), step))
        found = rows.new_zeros(rows.shape[1], dtype=torch.float64)
        for some in parts:
            found += self.of_some(some).sum(rows[some].double())
        return found

    @cached_property
    def _single(self) -> Tensor:
        """The factors in float32, [B], less what rounding takes; one below the normal numbers is 0."""
        scale, range_ = self.values * products_room(torch.float32, self.values.device), torch.finfo(torch.float32)
        return scale.clamp_max(range_.max).masked_fill(scale < range_.tiny, 0.0).float()


def products_room(dtype: torch.dtype, device: torch.device) -> float:
    """Return the factor, below 1, that pays for the rounding of products of matrices of a dtype on a device."""
    is_kept = dtype == torch.float64 or single_is_kept(device, convolutions=False)
    return _ROUNDED if is_kept else _COARSE


_ROUNDED = 1 - 2.0**-21
"""Covers the rounding of scales, of scaled vectors and of their products, four times by 2⁻²⁴ of an entry."""

_COPIED = 2**17
"""Entries that are copied into float64 at once, where they stay in a cache."""

_COARSE = 1 - 2.0**-7
"""Covers the rounding of both operands to bfloat16, by 2⁻⁹ of an entry each, or to TF32."""

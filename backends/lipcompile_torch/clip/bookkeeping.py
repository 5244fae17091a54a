"""Uses of a parameter by a batch: gradients of its examples, their norms, and their scaled sum.

There is a class for each kind of parameter. How gradients of examples are clipped: :mod:`.clipping`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import add
from typing import Protocol

import torch
from torch import Tensor

from ..certify.sums import example_norms, sum_of_each, sum_of_products, working_dtype
from ..devices import is_processor
from .example_gradients import ExampleGradients, by_example
from .factors import Factors, products_room
from .native_gradients import HeldGradients

_AT_ONCE = 2**22
"""Entries of gradients of examples that are held at once where a parameter has several uses."""


class Use(Protocol):
    """One use of a parameter by a batch: the gradients P_i in it, example by example.

    Attributes:
        examples: B.
    """

    @property
    def examples(self) -> int:
        """B."""

    def norms(self) -> Tensor:
        """Return ‖P_i‖, [B] in float64; not finite where P_i is not."""

    def total(self, factors: Factors) -> Tensor:
        """Return Σ factor_i·P_i, flat; an example with factor 0 adds nothing, not even NaN."""

    def rows(self, some: slice) -> Tensor:
        """Return P_i of some examples, [c, entries] in float64."""


class LayerUse(Use, Protocol):
    """A use as a layer makes it, of which each example is a row."""

    def kept(self, views: int) -> Use:
        """Return the use by examples of which each is so many rows, one after the other, as it is kept until the
        norms of all uses are known. Of several rows P_i is the sum.
        """


@dataclass(frozen=True, slots=True)
class Summed:
    """A use whose gradients are held: of a parameter that is added or multiplied at every position, or of a small
    kernel.

    Args:
        gradients: [B, *parameter] in float64 or float32; [B, 1] of a parameter without axes.
    """

    gradients: Tensor

    @staticmethod
    def of_spread(cotangent: Tensor, shape: Sequence[int]) -> Summed:
        """Return the use of a parameter of this shape, broadcast to the examples of a cotangent [B, *example]."""
        lead = cotangent.dim() - len(shape)
        wide = [lead + axis for axis, own in enumerate(shape) if own == 1 != cotangent.shape[lead + axis]]
        axes, sizes = [*range(1, lead), *wide], (len(cotangent), *(shape or (1,)))
        if not axes and cotangent.dtype == torch.float32 and is_processor(cotangent.device):
            return Narrow(cotangent.contiguous().reshape(sizes))
        return Summed(sum_of_each(cotangent, tuple(axes)).reshape(sizes))

    def kept(self, views: int) -> Summed:
        """Return the use by examples of so many rows each."""
        return self if views == 1 else Summed(sum_of_each(by_example(self.gradients, views), (1,)))

    @property
    def examples(self) -> int:
        """B."""
        return len(self.gradients)

    def norms(self) -> Tensor:
        """Return ‖P_i‖, [B]."""
        return example_norms(self.gradients)

    @property
    def entries(self) -> int:
        """Of the parameter."""
        return math.prod(self.gradients.shape[1:])

    def total(self, factors: Factors) -> Tensor:
        """Return Σ factor_i·P_i, flat."""
        return factors.sum(self.wide())

    def wide(self) -> Tensor:
        """Return P_i [B, entries] in the dtype in which they may be added."""
        return self.gradients.flatten(1)

    def rows(self, some: slice) -> Tensor:
        """Return P_i of some examples, [c, entries]."""
        return self.gradients[some].flatten(1).double()


@dataclass(frozen=True, slots=True)
class Narrow(Summed):
    """A use whose gradients came in float32, and are held so on a processor. There gradients of up to
    :data:`SMALL` entries are added in float64.
    """

    def total(self, factors: Factors) -> Tensor:
        """Return Σ factor_i·P_i, flat."""
        rows = self.gradients.flatten(1)
        return factors.sum_of_few(rows) if self.entries <= SMALL else factors.sum(rows)

    def wide(self) -> Tensor:
        """Return P_i [B, entries] in float64."""
        return self.gradients.flatten(1).double()


@dataclass(frozen=True)
class Outer:
    """The use of a matrix by vectors: P_i = g_i·x_iᵀ, whose norm is ‖g_i‖·‖x_i‖.

    Formal guarantees: a matrix of at most :data:`SMALL` entries is added in float64, if the vectors are in less.
    Of another one products are rounded to float32 and added as :mod:`..certify.sums` says, which is faster. There
    g_i is scaled by s_i where ‖x_i‖ is between 2⁻⁴⁰ and 2⁴⁰. Elsewhere g_i is scaled by s_i·‖x_i‖ and x_i to 1, so
    that no entry overflows, and where s_i is below the normal numbers of float32; which of the two depends on the
    example alone. On other devices than processors all are scaled in this second way. First s_i is rounded to
    float32, by 2⁻²⁴ of it; in the second way vectors are scaled in float64. Each entry is rounded to float32, by
    2⁻²⁴ of it or by 2⁻¹⁵⁰, and products of entries are rounded again. :func:`.factors.products_room` pays for
    that, as C/b is at least :data:`.clipping._LEAST`.

    Args:
        read: x, [B, d].
        made: g, [B, p].
    """

    read: Tensor
    made: Tensor

    def kept(self, views: int) -> Use:
        """Return the use by examples of so many rows each: these are tokens."""
        if views == 1:
            return self
        rows = by_example(self.read, views), by_example(self.made, views)
        return Products(ExampleGradients.of_tokens(*rows)).kept(1)

    @property
    def examples(self) -> int:
        """B."""
        return len(self.read)

    @cached_property
    def _length(self) -> Tensor:
        """‖x_i‖, [B]."""
        return example_norms(self.read)

    def norms(self) -> Tensor:
        """Return ‖P_i‖, [B]."""
        return self._length * example_norms(self.made)

    def total(self, factors: Factors) -> Tensor:
        """Return Σ factor_i·P_i, flat."""
        small = self.made.shape[1] * self.read.shape[1] <= SMALL
        narrow = torch.float64 not in (self.made.dtype, self.read.dtype)
        return (self._in_double(factors) if small and narrow else self._by_runs(factors.values)).flatten()

    def _in_double(self, factors: Factors) -> Tensor:
        scaled = factors.kept(self.made) * factors.values[:, None]  # in float64, as the factors are
        return scaled.mT @ factors.kept(self.read).double()

    def _by_runs(self, factors: Tensor) -> Tensor:
        dtype = working_dtype(self.read, self.made)
        room, length = products_room(dtype, self.read.device), self._length
        if not is_processor(self.read.device):  # which of them are plain is not known here
            return sum_of_products(*_in_units(self.made, self.read, factors * length * room, length, dtype))
        is_plain = (length >= 1 / _LONG) & (length <= _LONG)
        unit = torch.where(is_plain, 1.0, length)
        scale = factors * unit * room
        narrow, range_ = scale.to(dtype), torch.finfo(dtype)
        made, read = self.made * narrow[:, None], self.read
        rest = torch.nonzero(~(is_plain & (narrow >= range_.tiny) & (narrow <= range_.max)))[:, 0]
        if len(rest):
            made[rest], others = _in_units(self.made[rest], read[rest], scale[rest], unit[rest], dtype)
            read = read.to(dtype, copy=True).index_copy_(0, rest, others)
        return sum_of_products(made, read)

    def rows(self, some: slice) -> Tensor:
        """Return P_i of some examples, [c, entries]."""
        return (self.made[some].double()[:, :, None] * self.read[some].double()[:, None, :]).flatten(1)


def _in_units(
    made: Tensor, read: Tensor, scale: Tensor, unit: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return [B, p] times scales [B] and [B, d] over units [B], computed in float64 and rounded to the dtype."""
    scale, unit = scale[:, None], unit[:, None]
    used = torch.minimum(scale, unit) >= _VANISHED
    pair = torch.where(used, made * scale, 0.0), torch.where(used, read / unit, 0.0)
    return pair[0].to(dtype), pair[1].to(dtype)


SMALL = 2**16

_VANISHED = 2.0**-1000
"""What is scaled or divided by less adds nothing: a subnormal scale or length would not be exact to 2⁻²¹."""

_LONG = 2.0**40


@dataclass(frozen=True, slots=True)
class Products:
    """The use of a kernel, or of a matrix by tokens.

    Args:
        gradients: of examples, or what they are made of.
    """

    gradients: ExampleGradients | HeldGradients

    def kept(self, views: int) -> Products | Summed:
        """Return the use by examples of so many rows each. Gradients are computed now, and once, where they are
        small: then what the layer read need not be kept.
        """
        if isinstance(self.gradients, HeldGradients):
            return self
        gradients = self.gradients.by_example(views)
        held = gradients.held()
        if isinstance(held, Tensor):
            return Summed(held)
        return Products(gradients if held is None else held)

    @property
    def examples(self) -> int:
        """B."""
        return self.gradients.examples

    def norms(self) -> Tensor:
        """Return ‖P_i‖, [B]."""
        return self.gradients.norms()

    def total(self, factors: Factors) -> Tensor:
        """Return Σ factor_i·P_i, flat."""
        return self.gradients.scaled(factors).flatten()

    def rows(self, some: slice) -> Tensor:
        """Return P_i of some examples, [c, entries]."""
        return self.gradients.rows(some)


@dataclass(frozen=True, slots=True)
class Selected:
    """The use of a table of which each token selects a row: P_i is the sum of cotangents by row.

    Args:
        tokens: [B, n], whole numbers.
        made: [B, n, width].
        entries: of the table.
    """

    tokens: Tensor
    made: Tensor
    entries: int

    def kept(self, views: int) -> Selected:
        """Return the use by examples of so many rows each, with the tokens of all."""
        tokens, made = (by_example(rows, views).flatten(1, 2) for rows in (self.tokens, self.made))
        return Selected(tokens, made, self.entries)

    @property
    def examples(self) -> int:
        """B."""
        return len(self.tokens)

    def _by_row(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the rows that examples use: the example and the place of each, and the sum of its cotangents."""
        examples = torch.arange(len(self.tokens), device=self.tokens.device)[:, None]
        keys, place = torch.unique(self.tokens + examples * self.entries, return_inverse=True)
        width = self.made.shape[-1]
        sums = torch.zeros(len(keys), width, dtype=torch.float64, device=self.made.device)
        made = self.made.reshape(-1, width).double()
        if is_processor(made.device):
            sums.index_add_(0, place.flatten(), made)
        else:  # there `index_add_` adds in any order: the norm and the sum would be those of two roundings
            sums.index_put_((place.flatten(),), made, accumulate=True)
        return keys // self.entries, keys % self.entries, sums

    def norms(self) -> Tensor:
        """Return ‖P_i‖, [B]."""
        examples, _, sums = self._by_row()
        found = torch.zeros(len(self.tokens), dtype=torch.float64, device=self.made.device)
        return found.index_add_(0, examples, sums.square().sum(1)).sqrt_()

    def total(self, factors: Factors) -> Tensor:
        """Return Σ factor_i·P_i, flat."""
        examples, rows, sums = self._by_row()
        found = torch.zeros(self.entries, self.made.shape[-1], dtype=torch.float64, device=self.made.device)
        own = factors.of_some(examples)
        scaled = own.kept(sums) * own.values[:, None]
        return found.index_add_(0, rows, scaled).flatten()

    def rows(self, some: slice) -> Tensor:
        """Return P_i of some examples, [c, entries]."""
        part = Selected(self.tokens[some], self.made[some], self.entries)
        examples, rows, sums = part._by_row()
        found = torch.zeros(part.examples, self.entries, self.made.shape[-1], dtype=torch.float64)
        found = found.to(self.made.device)
        found[examples, rows] = sums
        return found.flatten(1)


@dataclass(frozen=True, slots=True)
class Several:
    """Several uses of one parameter, whose gradients of an example add up: shared weights, recurrent cells.

    Args:
        uses: of the same examples and the same entries.
        entries: of the parameter.
    """

    uses: tuple[Use, ...]
    entries: int

    @property
    def examples(self) -> int:
        """B."""
        return self.uses[0].examples

    def rows(self, some: slice) -> Tensor:
        """Return P_i of some examples, [c, entries]."""
        return reduce(add, (use.rows(some) for use in self.uses))

    def _chunks(self) -> list[slice]:
        step = max(_AT_ONCE // max(self.entries, 1), 1)
        return [slice(start, start + step) for start in range(0, self.examples, step)]

    def norms(self) -> Tensor:
        """Return ‖P_i‖, [B]."""
        parts = [torch.linalg.vector_norm(self.rows(some), dim=1) for some in self._chunks()]
        return torch.cat(parts) if parts else self.uses[0].norms()

    def total(self, factors: Factors) -> Tensor:
        """Return Σ factor_i·P_i, flat."""
        parts = (factors.of_some(some).sum(self.rows(some)) for some in self._chunks())
        return reduce(add, parts, torch.zeros(self.entries, dtype=torch.float64, device=factors.values.device))


def joined(uses: Sequence[Use], entries: int) -> Use | None:
    """Return all uses of a parameter as one; None if there are none."""
    if len(uses) < 2:
        return uses[0] if uses else None
    if all(isinstance(use, Summed) for use in uses):
        return Summed(reduce(add, (use.wide() for use in uses if isinstance(use, Summed))))
    return Several(tuple(uses), entries)

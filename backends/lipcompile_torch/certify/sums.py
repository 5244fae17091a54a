"""Sums that gradients of parameters are made of, added in a known order; and norms of examples.

The gradient of a parameter is a sum over the examples of a batch and over the positions of each example. In
float32 a sum of n terms may be off by n·2⁻²⁴ of the sum of their lengths; where terms are alike it is off by a
good part of that. Here at most :data:`RUN` terms are added in float32, then at most :data:`RUNS` of these sums,
and the rest in float64. Half precision is added in float32.

Formal guarantees: of a sum Σ_t v_t of products v_t with ‖v_t‖ ≤ w_t, the result is off by at most DEPTH·u/(1 -
DEPTH·u)·Σ_t w_t, with DEPTH = RUN + RUNS + 2 and u = 2⁻²⁴, or 2⁻⁵³ in float64, if torch's operations on float32
round to nearest, in any order. *Proof.* A term is rounded once as a product, at most RUN - 1 times in the sum of
its run, at most RUNS - 1 times in a sum of runs, and once as a part of the result. Up to 2²⁸ additions in float64
add less than one unit u. So each entry of v_t is multiplied by a factor between (1 - u)^DEPTH and (1 + u)^DEPTH
(Higham, "Accuracy and stability of numerical algorithms", 2002, section 4.2). ∎
"""

from __future__ import annotations

import math
from functools import reduce
from operator import add

import torch
from torch import Tensor

from .. import native
from ..devices import is_processor

RUN = 64
RUNS = 8
DEPTH = RUN + RUNS + 2

_BLOCK_ENTRIES = 2**24  # of products of runs that are held at once, where runs are multiplied at once


def working_dtype(*tensors: Tensor) -> torch.dtype:
    """Return the dtype in which runs of these tensors are added: float32, or float64 if one of them has it."""
    dtype = torch.float32
    for tensor in tensors:
        if tensor.dtype != dtype:  # to ask torch takes as long as an operation
            dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype


# --- sums of entries ---------------------------------------------------------------------------------------------


def sum_to(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return the sum of [B, *example] over the batch, and over the axes that broadcast ``shape`` to an example, in
    float64.

    Args:
        x: the terms.
        shape: aligned with the trailing axes of an example; each size is that of the axis, or 1.
    """
    lead = x.dim() - len(shape)
    sizes = x.shape[lead:]
    spread = [lead + axis for axis, own in enumerate(shape) if own == 1 != sizes[axis]]
    dims = [*range(lead), *spread]
    lengths = [x.shape[dim] for dim in dims]
    total = _sum_along(x, dims[lengths.index(max(lengths))]).sum(dims)
    return total.reshape(shape)


def sum_of_each(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Return the sum over axes of each example of [B, *example]: in float64, but on other devices than processors,
    where that would take a copy of all terms, in float32 at least.

    Args:
        x: the terms.
        axes: of x, not 0, in rising order.
    """
    dtype = torch.float64 if is_processor(x.device) else working_dtype(x)
    if not axes or dtype == x.dtype or not is_processor(x.device) or torch.compiler.is_compiling():
        return x.sum(axes, dtype=dtype) if axes else x.to(dtype)
    found = native.sum_of_each(x, axes)
    if found is not None:
        return found
    if _is_half(x):
        return torch.cat([sum_of_each(part.float(), axes) for part in _pieces(x)])
    return torch.cat([part.sum(axes, dtype=torch.float64) for part in _pieces(x)])


def _is_half(x: Tensor) -> bool:
    """Whether entries are in half precision: native code wants them in float32, which holds them exactly."""
    return x.dtype in (torch.bfloat16, torch.float16)


def _pieces(x: Tensor) -> tuple[Tensor, ...]:
    """Return some examples at a time, whose copies in a wider dtype stay in a cache."""
    return torch.split(x, max(_COPIED // max(x[:1].numel(), 1), 1))


_COPIED = 2**17  # entries


def _sum_along(x: Tensor, dim: int) -> Tensor:
    """Return sums of runs along an axis, in float64: all of them along that axis add up to the sum of ``x``."""
    whole = x.shape[dim] // RUN * RUN
    runs = torch.unflatten(x.narrow(dim, 0, whole), dim, (-1, RUN)) if whole else None
    rest = x.narrow(dim, whole, x.shape[dim] - whole).sum(dim, keepdim=True, dtype=working_dtype(x)).double()
    return rest if runs is None else torch.cat([runs.sum(dim + 1, dtype=working_dtype(x)).double(), rest], dim)


# --- sums of products --------------------------------------------------------------------------------------------


def sum_of_products(left: Tensor, right: Tensor) -> Tensor:
    """Return Σ_t left_t·right_tᵀ, [*groups, p, d], of rows [*groups, n, p] and [*groups, n, d], in the dtype that
    runs are added in, or in float64. Autocast, in a backward pass within it, would round the sums of runs.
    """
    with torch.autocast(left.device.type, enabled=False):
        return _sum_of_products(left, right)


def _sum_of_products(left: Tensor, right: Tensor) -> Tensor:
    dtype = working_dtype(left, right)
    left, right = left.to(dtype), right.to(dtype)
    if left.shape[-2] <= RUN or dtype == torch.float64:
        return left.mT @ right
    by_run = left.dim() == 2 and is_processor(left.device) and not torch.compiler.is_compiling()
    return _run_by_run(left, right) if by_run else _all_runs(left, right)


def _run_by_run(left: Tensor, right: Tensor) -> Tensor:
    """Return the sum, in float64 if runs are many, run by run: best where a product of matrices starts at once.

    A product is made by itself before it is added: `addmm_` may add its terms to the sum one by one, and did.
    """
    total: Tensor | None = None
    product = left.new_empty(left.shape[1], right.shape[1])
    for rows, columns in zip(torch.split(left, RUN * RUNS), torch.split(right, RUN * RUNS), strict=True):
        runs = zip(torch.split(rows, RUN), torch.split(columns, RUN), strict=True)
        row, column = next(runs)
        part = row.mT @ column
        for row, column in runs:
            part += torch.mm(row.mT, column, out=product)
        if len(left) <= RUN * RUNS:
            return part
        total = part.double() if total is None else total.add_(part)
    assert total is not None
    return total


def _all_runs(left: Tensor, right: Tensor) -> Tensor:
    """Return the sum in float64, of as many runs at once as memory allows."""
    whole = left.shape[-2] // RUN * RUN
    rows, columns = (torch.unflatten(half[..., :whole, :], -2, (-1, RUN)) for half in (left, right))
    entries = math.prod(left.shape[:-2]) * left.shape[-1] * right.shape[-1]
    at_once = max(_BLOCK_ENTRIES // max(entries, 1), 1)
    pairs = zip(torch.split(rows, at_once, -3), torch.split(columns, at_once, -3), strict=True)
    parts = [(row.mT @ column).sum(-3, dtype=torch.float64) for row, column in pairs]
    if whole < left.shape[-2]:
        parts.append((left[..., whole:, :].mT @ right[..., whole:, :]).double())
    return reduce(add, parts)


# --- norms of examples -------------------------------------------------------------------------------------------


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
    if not is_processor(rows.device) or torch.compiler.is_compiling():
        return _row_norms(rows, wide)
    if _is_half(rows):
        return torch.cat([example_norms(part.float()) for part in _pieces(rows)])
    return torch.cat([_row_norms(part.to(torch.float64), wide) for part in _pieces(rows)])


def _row_norms(rows: Tensor, wide: bool) -> Tensor:
    """Return the norms of rows [B, n]; ``wide``: of entries whose squares may under- or overflow in float64."""
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    if not wide or rows.shape[1] == 0:
        return norms
    may_ask = is_processor(rows.device) and native.is_eager()  # elsewhere it would wait for a device
    if may_ask and bool(((norms > 2.0**-400) & (norms < 2.0**400)).all()):
        return norms
    largest = torch.linalg.vector_norm(rows.detach(), math.inf, dim=1)
    power = torch.ones_like(largest).masked_fill(largest > 2.0**400, 2.0**-600)
    power = power.masked_fill(largest < 2.0**-400, 2.0**600)
    scaled: Tensor = torch.linalg.vector_norm(rows * power[:, None], dim=1)
    return scaled / power


def per_example(numbers: Tensor, x: Tensor) -> Tensor:
    """Return numbers of examples, [B], at the rank of x, [B, …]."""
    return numbers.reshape(-1, *(1,) * (x.dim() - 1))


def as_rows(x: Tensor) -> Tensor:
    """Return each example as a row, [B, entries]."""
    return x.flatten(1) if x.dim() > 1 else x[:, None]

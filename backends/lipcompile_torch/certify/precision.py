"""What rounding in the training dtype may add to the certified numbers."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

import torch

from ..nn.sums import DEPTH
from .roundings import additions

_SLACK = {torch.float64: 1e-9, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}


def rounding_slack(dtype: torch.dtype) -> float:
    """Return the relative amount by which computation in ``dtype`` may exceed a gradient bound derived for
    real numbers.

    The noise must be calibrated to K_p·(1 + slack). The certified norms already hold for the weights as
    stored and the input clip lands inside its ball, so only forward and backward arithmetic are left.

    This is a measured number with room to spare, not a theorem. What grows with the length of sums is bounded
    apart, by `long_sum_slack` and `sum_slack`. Measured where the bound is tight, on chains of 4 to 16 orthogonal
    dense layers of width 64 to 512 with GroupSort, as the largest excess of a per-example gradient norm over
    float64: float32 2.4e-7, float16 6.6e-4, bfloat16 3.0e-3, the same under autocast; others saw 1e-7, 4e-4 and
    3e-3 (docs/theory.md, trap 22). The slack is at least fifteen times that. Rounding grows with depth: beyond a
    few hundred layers measure again.

    Raises:
        ValueError: a dtype that nobody measured.
    """
    if dtype not in _SLACK:
        raise ValueError(f"no rounding slack is known for {dtype}: train in float32, float64, float16 or bfloat16")
    return _SLACK[dtype]


_TF32_SLACK = 5e-3  # ten times the largest excess measured with operands rounded to ten bits: 4.9e-4


def working_slack(output: torch.Tensor) -> float:
    """Return the rounding slack of the precision that computes now: that of ``output``, of autocast, of TF32.

    Parameters in float32 say nothing of the products they enter: autocast rounds operands to its own dtype, and
    on NVIDIA devices TF32 to ten bits of mantissa; on processors oneDNN may do either, where it is told to.
    """
    device = output.device.type
    slacks = [rounding_slack(output.dtype)]
    if torch.is_autocast_enabled(device):
        slacks.append(rounding_slack(torch.get_autocast_dtype(device)))
    if device == "cuda" and _tf32():
        slacks.append(_TF32_SLACK)
    if device == "cpu":
        slacks += [_REDUCED.get(precision, 0.0) for precision in _onednn()]
    return max(slacks)


def long_sum_slack(graph: Mapping[str, Any] | None, dtype: torch.dtype) -> float:
    """Return what long sums of a forward and a backward pass add to `rounding_slack`, see :mod:`.roundings`.

    Torch adds the products of half precision in float32.

    Args:
        graph: of the module's certificate; None: nothing is known of it, and nothing is added.
        dtype: of the parameters.
    """
    unit = torch.finfo(torch.promote_types(dtype, torch.float32)).eps / 2
    return 0.0 if graph is None else math.expm1(additions(graph) * unit)


def most_examples(expected: float) -> float:
    """Return how many examples a batch is counted on to have, see `sum_slack`."""
    return expected + 8 * math.sqrt(expected) + 16


def sum_slack(
    dtype: torch.dtype, normaliser: float, entries: int, bound: float, depth: int = DEPTH, roundings: int = 1
) -> float:
    """Return by how much rounding moves the sums of two neighbouring batches apart, over one example's bound K.

    Let a sum of B gradients of length K be rounded to the dtype of its parameter in the end, and be off by at most
    a·u·B·K before that, where a is the depth of the sum and u the unit roundoff of float32 (float64 for
    float64); :mod:`.sums` proves it. Its neighbour may be off by as much the other way. So the two are apart by
    K·(1 + 2a·u·B + 2u'·B) at most, with u' of the dtype, and by the smallest number η of the dtype in each of n
    entries: η·√n. Where all gradients agree the rounding comes to that order: removing one of 4096 examples was
    seen to move a sum in bfloat16 by 5.9 K.

    Of batches that vary in size, B = b + 8·√b + 16 examples are counted on: as noise must not depend on the size,
    this is fixed; Poisson sampling exceeds it with probability below 1e-14.

    It is the price of half precision: for parameters in bfloat16 and batches of 512 noise is six times that of
    float32. In float32, and at a depth of 90, it is 0.8 % at 512 and 5 % at 4096.

    Args:
        dtype: of the parameter.
        normaliser: b.
        entries: n, of the sum.
        bound: K > 0.
        depth: a.
        roundings: how often the sum, or every part of it, is rounded to the dtype, if that is less than float32.
    """
    most = most_examples(normaliser)
    kind, working = torch.finfo(dtype), torch.finfo(torch.promote_types(dtype, torch.float32))
    last = (1 + kind.eps) ** roundings - 1 if kind.eps != working.eps else 0.0
    least = roundings * kind.smallest_normal * kind.eps
    rounded = (depth * working.eps + last) * most
    return rounded * (1 + 1e-3) + least * math.sqrt(entries) * normaliser / bound


class RoundedSumsWarning(UserWarning):
    """Sums of gradients are rounded so coarsely that it takes much more noise."""


def warn_of_sums(share: float, normaliser: float) -> None:
    """Say by how much noise grows for the rounding of sums, if that is more than a tenth.

    Args:
        share: the largest `sum_slack` of a parameter.
        normaliser: b.
    """
    if share <= _QUIET:
        return
    warnings.warn(
        f"the rounding of sums of gradients takes {1 + share:.2g} times the noise at an expected batch of "
        f"{normaliser:g}: keep parameters in float32 (autocast and TF32 cost nothing here), or use smaller "
        "batches; see docs/noise.md",
        RoundedSumsWarning,
        stacklevel=2,
    )


_QUIET = 0.1


# By what torch calls it: for all products (`set_float32_matmul_precision`), and for those of a kind.
_REDUCED = {
    "high": _TF32_SLACK,
    "tf32": _TF32_SLACK,
    "medium": _SLACK[torch.bfloat16],
    "bf16": _SLACK[torch.bfloat16],
}


def _onednn() -> list[str]:
    """Return what processors are told of products of float32."""
    kinds = (getattr(torch.backends.mkldnn, kind, None) for kind in ("matmul", "conv", "rnn"))
    said = [getattr(kind, "fp32_precision", "none") for kind in kinds]
    try:
        return [*said, torch.get_float32_matmul_precision()]
    except RuntimeError:  # set by the newer interface, for each kind
        return said


def single_is_kept(device: torch.device) -> bool:
    """Whether products of float32 are computed in float32, not in TF32 or bfloat16."""
    if device.type == "cuda":
        return not _tf32()
    return device.type == "cpu" and not any(said in _REDUCED for said in _onednn())


def _tf32() -> bool:
    """Whether products may use TF32; torch refuses to say if both of its interfaces were used: then, yes."""
    try:
        return bool(torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32)
    except RuntimeError:
        return True

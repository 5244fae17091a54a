"""What rounding in the training dtype may add to the certified numbers."""

from __future__ import annotations

import torch

_SLACK = {torch.float64: 1e-9, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}


def rounding_slack(dtype: torch.dtype) -> float:
    """Return the relative amount by which computation in ``dtype`` may exceed a gradient bound derived for
    real numbers.

    The noise must be calibrated to K_p·(1 + slack). The certified norms already hold for the weights as
    stored and the input clip lands inside its ball, so only forward and backward arithmetic are left.

    This is a measured number with room to spare, not a theorem: a worst-case analysis grows with layer width
    and is thousands of times too large. Measured as the largest excess of per-example gradient norms over the
    same computation in float64, dense and convolutional networks of up to 16 layers, width up to 512,
    gradients driven to their bound: float32 6e-7, float16 5e-4, bfloat16 4e-3; others have seen 1e-7, 4e-4
    and 3e-3 (design notes, trap 22). The slack is about ten times that.

    Raises:
        ValueError: a dtype that nobody measured.
    """
    if dtype not in _SLACK:
        raise ValueError(f"no rounding slack is known for {dtype}: train in float32, float64, float16 or bfloat16")
    return _SLACK[dtype]

"""Losses of one example over real targets, as in :mod:`.losses`.

Outputs and targets are [B, …], K numbers an example, the losses [B], r = ŷ - t the residuals. A target that is
not finite, or longer than the norm that the constant was derived for, is refused.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  (its name everywhere in this field)

from ..certify.precision import rounding_slack

Reduce = Literal["mean", "sum"]


def in_rows(values: Tensor) -> Tensor:
    """Return values [B, …] as [B, K]; K = 1 for one number an example, [B]."""
    return values.flatten(1) if values.dim() > 1 else values[:, None]


def over_outputs(values: Tensor, reduce: Reduce) -> Tensor:
    """Return the mean or sum of values [B, K] over the outputs.

    Raises:
        ValueError: another reduction.
    """
    if reduce not in ("mean", "sum"):
        raise ValueError(f"`reduce` must be 'mean' or 'sum'; got {reduce!r}")
    return values.mean(dim=1) if reduce == "mean" else values.sum(dim=1)


def squared_error(output: Tensor, target: Tensor, target_norm: float | None = None) -> Tensor:
    """Return ½‖r‖², [B]. (X + target_norm)-Lipschitz; not Lipschitz without ``target_norm``.

    Raises:
        ValueError: another shape, a target that is not finite, or one outside the ball.
    """
    residuals = output - _targets(output, target, target_norm)
    return in_rows(residuals * residuals).sum(dim=1) / 2


def mean_squared_error(output: Tensor, target: Tensor, target_norm: float | None = None) -> Tensor:
    """Return the mean of r² over the K outputs, [B]. 2(X + target_norm)/K-Lipschitz; not Lipschitz without
    ``target_norm``.

    Raises:
        ValueError: another shape, a target that is not finite, or one outside the ball.
    """
    residuals = output - _targets(output, target, target_norm)
    return in_rows(residuals * residuals).mean(dim=1)


def absolute_error(output: Tensor, target: Tensor, reduce: Reduce = "mean") -> Tensor:
    """Return the mean or sum of |r| over the K outputs, [B]. 1/√K- or √K-Lipschitz.

    Raises:
        ValueError: another shape, or a target that is not finite.
    """
    return over_outputs(in_rows((output - _targets(output, target, None)).abs()), reduce)


def huber(
    output: Tensor, target: Tensor, delta: float = 1.0, target_norm: float | None = None, reduce: Reduce = "mean"
) -> Tensor:
    """Return the mean or sum over the K outputs of ½r² up to ``delta``, delta·(|r| - ½delta) beyond, [B].

    The sum is min(delta·√K, X + target_norm)-Lipschitz, delta·√K without ``target_norm``; the mean 1/K of that.

    Raises:
        ValueError: another shape, a target that is not finite, or one outside the ball.
    """
    values = F.huber_loss(output, _targets(output, target, target_norm), reduction="none", delta=delta)
    return over_outputs(in_rows(values), reduce)


def smooth_l1(
    output: Tensor, target: Tensor, beta: float = 1.0, target_norm: float | None = None, reduce: Reduce = "mean"
) -> Tensor:
    """Return the mean or sum over the K outputs of ½r²/beta up to ``beta``, |r| - ½beta beyond, [B].

    The sum is min(√K, (X + target_norm)/beta)-Lipschitz, √K without ``target_norm``; the mean 1/K of that.

    Raises:
        ValueError: another shape, a target that is not finite, or one outside the ball.
    """
    values = F.smooth_l1_loss(output, _targets(output, target, target_norm), reduction="none", beta=beta)
    return over_outputs(in_rows(values), reduce)


def _targets(output: Tensor, target: Tensor, norm: float | None) -> Tensor:
    """Check targets, of the shape of the outputs [B, …]; return them in the dtype of the outputs."""
    if target.shape != output.shape or output.dim() < 1 or not target.is_floating_point():
        raise ValueError(
            f"targets must be floats of shape {tuple(output.shape)}, not {target.dtype} {tuple(target.shape)}"
        )
    if norm is None and not bool(torch.isfinite(target).all()):
        raise ValueError("a target is NaN or infinite: drop or replace such examples")
    if norm is not None:
        lengths = torch.linalg.vector_norm(in_rows(target), dim=1, dtype=torch.float64)
        if not bool((lengths <= norm * (1 + rounding_slack(output.dtype) / 10)).all()):
            raise ValueError(
                f"the norm of a target exceeds target_norm = {norm}: scale or clip the targets, or raise "
                "target_norm"
            )
    return target.to(output.dtype)

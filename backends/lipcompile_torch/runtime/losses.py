"""Losses of one example: each exactly the formula whose Lipschitz constant the compiler used.

All return [B], one number for each example, and never reduce over the batch. Targets are checked in every
call, with one
reduction: a soft, scaled, weighted or out-of-range target has another constant, so it is refused (design
    notes, trap 17).
K is the number of classes, X a bound of the logits.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  (its name everywhere in this field)

from .precision import rounding_slack

Reduce = Literal["mean", "sum"]


def _classes(output: Tensor, target: Tensor) -> Tensor:
    """Check integer targets [B] against logits [B, K]; return them as int64.

    Raises:
        ValueError: of another shape, dtype or range.
    """
    if output.dim() != 2:
        raise ValueError(f"this loss needs logits of shape [B, K], not {tuple(output.shape)}")
    if target.is_floating_point() or target.is_complex() or target.dtype == torch.bool:
        raise ValueError(
            f"targets must be class indices, not {target.dtype}: use target.argmax(1) for one-hot rows"
        )
    if target.shape != output.shape[:1]:
        raise ValueError(
            f"targets of shape {tuple(target.shape)}: give one class index an example, {tuple(output.shape[:1])}"
        )
    if not bool(((target >= 0) & (target < output.shape[1])).all()):
        raise ValueError(f"a class index is outside 0 … {output.shape[1] - 1}: drop such examples or add classes")
    return target.long()


def _logit(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return logit and target as [B], the target in the dtype of the logit.

    Raises:
        ValueError: not one logit and one target an example.
    """
    if output.shape[1:] not in ((), (1,)):
        raise ValueError(f"this loss needs one logit an example, [B] or [B, 1], not {tuple(output.shape)}")
    if target.shape not in (output.shape, output.shape[:1]):
        raise ValueError(
            f"targets of shape {tuple(target.shape)}: give one number an example, {tuple(output.shape[:1])}"
        )
    return output.flatten(), target.flatten().to(output.dtype)


def _signs(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return logit and target as [B], every target checked to be -1 or 1.

    Raises:
        ValueError: otherwise.
    """
    logit, sign = _logit(output, target)
    if not bool((target.abs() == 1).all()) or target.is_complex():
        raise ValueError("targets must be -1 or 1: map labels 0 and 1 by 2 * target - 1")
    return logit, sign


def _one_against_all(output: Tensor, target: Tensor) -> Tensor:
    """Return y_k·ŷ_k, [B, K], with y_k = 1 for the target class and -1 for the others."""
    signs = 2 * F.one_hot(_classes(output, target), output.shape[1]) - 1
    return output * signs.to(output.dtype)


def _over_classes(values: Tensor, reduce: Reduce) -> Tensor:
    if reduce not in ("mean", "sum"):
        raise ValueError(f"reduce over the classes by 'mean' or 'sum', not {reduce!r}")
    return values.mean(dim=1) if reduce == "mean" else values.sum(dim=1)


def _hinge(agreement: Tensor, margin: float) -> Tensor:
    return F.relu(margin - agreement)


def cross_entropy(output: Tensor, target: Tensor, temperature: float = 1.0, normalise: bool = True) -> Tensor:
    """Return CE(τ·ŷ, y)/τ, [B], for logits [B, K] and class indices [B]; CE(τ·ŷ, y) without ``normalise``.

    Formal guarantees: √2-Lipschitz in ŷ, less on bounded logits; τ times that without ``normalise``.
    """
    loss = F.cross_entropy(temperature * output, _classes(output, target), reduction="none")
    return loss / temperature if normalise else loss


def binary_cross_entropy(
    output: Tensor, target: Tensor, temperature: float = 1.0, normalise: bool = True
) -> Tensor:
    """Return BCE(σ(τ·ŷ), y)/τ, [B], for one logit and targets in [0, 1]; undivided without ``normalise``.

    Formal guarantees: 1-Lipschitz (τ without ``normalise``).

    Raises:
        ValueError: a target outside [0, 1].
    """
    logit, probability = _logit(output, target)
    if not bool(((target >= 0) & (target <= 1)).all()):
        raise ValueError("targets must lie in [0, 1]: map labels -1 and 1 by (target + 1) / 2")
    loss = F.binary_cross_entropy_with_logits(temperature * logit, probability, reduction="none")
    return loss / temperature if normalise else loss


def hinge(output: Tensor, target: Tensor, margin: float = 1.0) -> Tensor:
    """Return max(0, margin - y·ŷ), [B], for one logit and y = ±1. 1-Lipschitz."""
    logit, sign = _signs(output, target)
    return _hinge(sign * logit, margin)


def kr(output: Tensor, target: Tensor) -> Tensor:
    """Return -y·ŷ, [B], for one logit and y = ±1 (Kantorovich–Rubinstein dual, unit weights). 1-Lipschitz."""
    logit, sign = _signs(output, target)
    return -sign * logit


def hkr(output: Tensor, target: Tensor, alpha: float, margin: float = 1.0) -> Tensor:
    """Return -y·ŷ + α·max(0, margin - y·ŷ), [B] (Serrurier et al., CVPR 2021). (1 + α)-Lipschitz."""
    logit, sign = _signs(output, target)
    return -sign * logit + alpha * _hinge(sign * logit, margin)


def multiclass_hinge(output: Tensor, target: Tensor, margin: float = 1.0, reduce: Reduce = "mean") -> Tensor:
    """Return the mean or sum over k of max(0, margin - y_k·ŷ_k), [B], for class indices. 1/√K- or
    √K-Lipschitz.
    """
    return _over_classes(_hinge(_one_against_all(output, target), margin), reduce)


def multiclass_kr(output: Tensor, target: Tensor, reduce: Reduce = "mean") -> Tensor:
    """Return the mean or sum over k of -y_k·ŷ_k, [B], for class indices. 1/√K- or √K-Lipschitz."""
    return _over_classes(-_one_against_all(output, target), reduce)


def multiclass_hkr(
    output: Tensor, target: Tensor, alpha: float, margin: float = 1.0, reduce: Reduce = "mean"
) -> Tensor:
    """Return the mean or sum over k of the hinge-KR terms, [B], for class indices. (1 + α)/√K- or (1 +
    α)√K-Lipschitz.
    """
    agreement = _one_against_all(output, target)
    return _over_classes(-agreement + alpha * _hinge(agreement, margin), reduce)


def squared_error(output: Tensor, target: Tensor, target_norm: float) -> Tensor:
    """Return ½‖ŷ - t‖², [B], for outputs and targets [B, …] with ‖t‖ ≤ ``target_norm``. (X +
    target_norm)-Lipschitz.

    Raises:
        ValueError: another shape, or a target outside the ball.
    """
    if target.shape != output.shape or output.dim() < 2 or not target.is_floating_point():
        raise ValueError(
            f"targets must be floats of shape {tuple(output.shape)}, not {target.dtype} {tuple(target.shape)}"
        )
    norms = torch.linalg.vector_norm(target.flatten(1), dim=1, dtype=torch.float64)
    if not bool((norms <= target_norm * (1 + rounding_slack(output.dtype) / 10)).all()):
        raise ValueError(
            f"a target is longer than target_norm = {target_norm}: scale or clip the targets, or raise it"
        )
    difference = (output - target.to(output.dtype)).flatten(1)
    return (difference * difference).sum(dim=1) / 2


def cosine(output: Tensor, target: Tensor, floor: float) -> Tensor:
    """Return -ŷ_y/max(‖ŷ‖, floor), [B], for outputs [B, K] and class indices. 1/floor-Lipschitz."""
    chosen = output.gather(1, _classes(output, target)[:, None]).squeeze(1)
    norms: Tensor = torch.linalg.vector_norm(output, dim=1)
    return -chosen / norms.clamp_min(floor)

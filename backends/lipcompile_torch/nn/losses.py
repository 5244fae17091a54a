"""Losses of one example: each exactly the formula whose Lipschitz constant the compiler used.

All return [B], one number for each example, and never reduce over the batch. Targets are checked in every
call: a soft, scaled, weighted or out-of-range target has another constant, so it is refused
(docs/theory.md, trap 17). K is the number of classes, n that of tokens, X a bound of the logits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  (its name everywhere in this field)

from .own_losses import MixingWarning as MixingWarning
from .own_losses import own
from .regression import (
    Reduce,
    absolute_error,
    huber,
    in_rows,
    mean_squared_error,
    over_outputs,
    smooth_l1,
    squared_error,
)

__all__ = [
    "absolute_error",
    "binary_cross_entropy",
    "cosine",
    "cross_entropy",
    "hinge",
    "hkr",
    "huber",
    "kr",
    "mean_squared_error",
    "multi_margin",
    "multiclass_hinge",
    "multiclass_hkr",
    "multiclass_kr",
    "multilabel_bce",
    "nll",
    "own",
    "pixel_cross_entropy",
    "smooth_l1",
    "squared_error",
    "token_cross_entropy",
]


def _labels(output: Tensor, target: Tensor, ignore: int | None = None) -> Tensor:
    """Check integer targets, one for each vector of logits [..., K]; return them as int64."""
    if target.is_floating_point() or target.is_complex() or target.dtype == torch.bool:
        help_line = "call target.long()"
        if target.shape == output.shape:
            help_line = "use target.argmax(-1) for one-hot rows; probabilities need a function as the loss"
        raise ValueError(f"targets must be class indices, not {target.dtype}: {help_line}")
    if target.shape != output.shape[:-1]:
        what = "an example" if output.dim() == 2 else "a token"
        raise ValueError(
            f"targets of shape {tuple(target.shape)}: give one class index {what}, {tuple(output.shape[:-1])}"
        )
    labels = target.long()
    counted = labels if ignore is None else labels.masked_fill(labels == ignore, 0)
    least, most = torch.stack(counted.aminmax()).tolist() if counted.numel() else (0, 0)  # in one transfer
    if least < 0 or most >= output.shape[-1]:
        help_line = "name the label to `ignore`"
        if output.dim() == 2:
            help_line = "count classes from 0, drop such examples or add classes"
        raise ValueError(f"a class index is outside 0 … {output.shape[-1] - 1}: {help_line}")
    return labels


def _classes(output: Tensor, target: Tensor) -> Tensor:
    """Check integer targets [B] against logits [B, K]; return them as int64."""
    if output.dim() != 2:
        raise ValueError(f"this loss needs logits of shape [B, K]; got {tuple(output.shape)}")
    return _labels(output, target)


def _logit(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Check that there is one logit an example; return logit and target as [B], in the dtype of the logit."""
    if output.shape[1:] not in ((), (1,)):
        raise ValueError(f"this loss needs one logit for each example, [B] or [B, 1]; got {tuple(output.shape)}")
    if target.shape not in (output.shape, output.shape[:1]):
        raise ValueError(
            f"targets of shape {tuple(target.shape)}: give one number for each example, {tuple(output.shape[:1])}"
        )
    return output.flatten(), target.flatten().to(output.dtype)


def _signs(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return logit and target as [B], every target checked to be -1 or 1."""
    logit, sign = _logit(output, target)
    if not bool((target.abs() == 1).all()) or target.is_complex():
        raise ValueError("targets must be -1 or 1: map labels 0 and 1 by 2 * target - 1")
    return logit, sign


def _one_against_all(output: Tensor, target: Tensor) -> Tensor:
    """Return y_k·ŷ_k, [B, K], with y_k = 1 for the target class and -1 for the others."""
    signs = 2 * F.one_hot(_classes(output, target), output.shape[1]) - 1
    return output * signs.to(output.dtype)


def _hinge(agreement: Tensor, margin: float) -> Tensor:
    return F.relu(margin - agreement)


def cross_entropy(
    output: Tensor,
    target: Tensor,
    temperature: float = 1.0,
    normalise: bool = True,
    label_smoothing: float = 0.0,
    class_weights: Sequence[float] = (),
) -> Tensor:
    """Return w_y·CE(τ·ŷ, y)/τ, [B], for logits [B, K] and class indices [B]; without ``normalise``, times τ.

    With ``label_smoothing`` ε the target is (1 - ε)·e_y + ε/K. The weights are not normalised by their sum over
    the batch.

    Formal guarantees: √2·max w-Lipschitz in ŷ, less on bounded logits or with ε > 0; τ times that without
    ``normalise``.

    Raises:
        ValueError: targets or weights of another kind, or both weights and label smoothing.
    """
    labels = _classes(output, target)
    return _entropies(output, labels, temperature, normalise, label_smoothing, class_weights)


def token_cross_entropy(
    output: Tensor,
    target: Tensor,
    temperature: float = 1.0,
    normalise: bool = True,
    label_smoothing: float = 0.0,
    class_weights: Sequence[float] = (),
    reduce: Reduce = "mean",
    ignore: int | None = None,
) -> Tensor:
    """Return the sum of :func:`cross_entropy` over an example's tokens, [B], divided by n for the mean.

    Logits [B, n, K] (or more axes of tokens), class indices [B, n]. A token labelled ``ignore`` counts 0, and the
    mean still divides by n: divided by the number of the others, it would have a constant √n times as large.

    Formal guarantees: L/√n-Lipschitz for the mean and L·√n for the sum, L the constant of one token.

    Raises:
        ValueError: targets or weights of another kind, or both weights and label smoothing.
    """
    if output.dim() < 3:
        raise ValueError(f"this loss needs logits of shape [B, n, K], not {tuple(output.shape)}")
    labels = _labels(output, target, ignore)
    ignored = torch.zeros_like(labels, dtype=torch.bool) if ignore is None else labels == ignore
    flat = labels.masked_fill(ignored, 0).flatten()
    each = _entropies(output.flatten(0, -2), flat, temperature, normalise, label_smoothing, class_weights)
    return over_outputs(each.reshape(labels.shape).masked_fill(ignored, 0).flatten(1), reduce)


def pixel_cross_entropy(
    output: Tensor,
    target: Tensor,
    temperature: float = 1.0,
    normalise: bool = True,
    label_smoothing: float = 0.0,
    class_weights: Sequence[float] = (),
    reduce: Reduce = "mean",
    ignore: int | None = None,
) -> Tensor:
    """Return :func:`token_cross_entropy` of logits [B, K, H, W] (or other axes of positions), for class indices
    [B, H, W].

    Formal guarantees: those of tokens.

    Raises:
        ValueError: targets or weights of another kind, or both weights and label smoothing.
    """
    if output.dim() < 3:
        raise ValueError(f"this loss needs logits of shape [B, K, H, W], not {tuple(output.shape)}")
    rows = output.movedim(1, -1)
    return token_cross_entropy(
        rows, target, temperature, normalise, label_smoothing, class_weights, reduce, ignore
    )


def _entropies(
    output: Tensor,
    labels: Tensor,
    temperature: float,
    normalise: bool,
    label_smoothing: float,
    class_weights: Sequence[float],
) -> Tensor:
    if not 0 <= label_smoothing < 1 or (label_smoothing > 0 and len(class_weights) > 0):
        raise ValueError("label smoothing must be in [0, 1), and cannot be combined with class weights")
    scaled = output if temperature == 1 else temperature * output
    loss = F.cross_entropy(scaled, labels, reduction="none", label_smoothing=label_smoothing)
    if len(class_weights) > 0:
        loss = loss * _weights(class_weights, output.shape[-1], loss)[labels]
    return loss / temperature if normalise and temperature != 1 else loss


def _weights(class_weights: Sequence[float], classes: int, like: Tensor) -> Tensor:
    if len(class_weights) != classes or not all(0 <= weight < math.inf for weight in class_weights):
        raise ValueError(f"class weights must be {classes} finite non-negative numbers, one for each class")
    return torch.tensor(class_weights, dtype=like.dtype, device=like.device)


def nll(output: Tensor, target: Tensor) -> Tensor:
    """Return -output[y], [B], for log-probabilities [B, K] and class indices [B]. 1-Lipschitz."""
    return -output.gather(1, _classes(output, target)[:, None]).squeeze(1)


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


def multilabel_bce(
    output: Tensor, target: Tensor, temperature: float = 1.0, normalise: bool = True, reduce: Reduce = "mean"
) -> Tensor:
    """Return the mean or sum of :func:`binary_cross_entropy` over the n logits of an example, [B].

    Logits [B, …], and targets in [0, 1] of the same shape, such as the pixels of a mask.

    Formal guarantees: 1/√n-Lipschitz for the mean, √n-Lipschitz for the sum; times τ without ``normalise``.

    Raises:
        ValueError: targets of another shape, or outside [0, 1].
    """
    if output.dim() < 1 or target.shape != output.shape:
        raise ValueError(f"targets of shape {tuple(target.shape)}: give one number a logit, {tuple(output.shape)}")
    loss = binary_cross_entropy(output.flatten(), target.flatten(), temperature, normalise)
    return over_outputs(in_rows(loss.reshape(output.shape)), reduce)


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
    return over_outputs(_hinge(_one_against_all(output, target), margin), reduce)


def multiclass_kr(output: Tensor, target: Tensor, reduce: Reduce = "mean") -> Tensor:
    """Return the mean or sum over k of -y_k·ŷ_k, [B], for class indices. 1/√K- or √K-Lipschitz."""
    return over_outputs(-_one_against_all(output, target), reduce)


def multiclass_hkr(
    output: Tensor, target: Tensor, alpha: float, margin: float = 1.0, reduce: Reduce = "mean"
) -> Tensor:
    """Return the mean or sum over k of the hinge-KR terms, [B], for class indices. (1 + α)/√K- or (1 +
    α)√K-Lipschitz.
    """
    agreement = _one_against_all(output, target)
    return over_outputs(-agreement + alpha * _hinge(agreement, margin), reduce)


def multi_margin(output: Tensor, target: Tensor, margin: float = 1.0, p: float = 1) -> Tensor:
    """Return the sum over k ≠ y of max(0, margin - ŷ_y + ŷ_k)^p, divided by K, [B], for class indices; p = 1 or 2.

    √((K - 1)/K)-Lipschitz for p = 1, 2·margin·√((K - 1)/K) + 2X for p = 2.
    """
    if p not in (1, 2):
        raise ValueError(f"the power of the multi-margin loss must be 1 or 2; got {p}")
    labels = _classes(output, target)[:, None]
    violations = _hinge(output.gather(1, labels) - output, margin)
    others = violations.scatter(1, labels, 0)
    return (others if p == 1 else others * others).mean(dim=1)


def cosine(output: Tensor, target: Tensor, floor: float) -> Tensor:
    """Return -ŷ_y/max(‖ŷ‖, floor), [B], for outputs [B, K] and class indices. 1/floor-Lipschitz."""
    chosen = output.gather(1, _classes(output, target)[:, None]).squeeze(1)
    norms: Tensor = torch.linalg.vector_norm(output, dim=1)
    return -chosen / norms.clamp_min(floor)

"""Norms along axes of an example. Names are re-exported by :mod:`.functional`."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["l2_norm"]


def l2_norm(x: Tensor, axes: tuple[int, ...], keep: bool = False) -> Tensor:
    """Return √Σx² over ``axes`` of each example of [B, *example], which go, or stay with size 1 with ``keep``.

    Formal guarantees: 1-Lipschitz; ‖output‖ = ‖x‖. The gradient is that of :func:`p_norm`.

    Raises:
        ValueError: no axes, or one that an example does not have.
    """
    rank = x.dim() - 1
    if not axes or not all(-rank <= axis < rank for axis in axes):
        raise ValueError(f"axes {axes} are not those of an example of shape {tuple(x.shape[1:])}")
    return p_norm(x, 2, tuple(axis % rank + 1 for axis in axes), keep)


def p_norm(x: Tensor, p: int, dimensions: tuple[int, ...], keep: bool = False) -> Tensor:
    """Return (Σ|x|^p)^(1/p) over ``dimensions`` of x, none of which is the batch's, for p >= 2.

    Formal guarantees: 1-Lipschitz. Entries are divided by the largest of their group first, so that no power
    leaves the range of the dtype. The value and the gradient are 0 where the largest is below tiny/eps (1e-31 in
    float32), where quotients could not be trusted. Half precision is computed in float32.
    """
    working = x.to(torch.promote_types(x.dtype, torch.float32))
    largest = working.detach().abs().amax(dimensions, keepdim=True)
    live = largest > torch.finfo(working.dtype).tiny / torch.finfo(working.dtype).eps
    powers = (working / torch.where(live, largest, 1)).abs().pow(p).sum(dimensions, keepdim=True)
    norms = torch.where(live, largest * torch.where(live, powers, 1).pow(1 / p), 0).to(x.dtype)
    return norms if keep else norms.squeeze(dimensions)

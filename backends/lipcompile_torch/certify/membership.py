"""Whether weights that come from elsewhere lie in the constraint sets of a module, certified.

Projection would put them there silently, and the module would compute something else than what was saved.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ..nn.constrained import constraints_of
from ..train.sharding import whole
from .constraints import Free

# Weights that a drift kept within their set may be certified at a little more than its radius, and half precision
# rounds them by more: what is above it by no more than this share was in the set when it was saved.
_LEAST_SHARE = 1e-3


class OutsideWarning(UserWarning):
    """Loaded weights lay outside of their constraint sets, and were projected into them."""


@torch.no_grad()
def outside(module: nn.Module, weights: Mapping[str, Tensor]) -> list[str]:
    """Return which weights lie outside of their sets, by name, with their certified norms: none, as a rule.

    What is not among the weights is passed over. Of sharded weights all processes call this.

    Raises:
        ValueError: an entry is not finite.
    """
    found = []
    for name, (constraint, operator) in constraints_of(module).items():
        if name not in weights or isinstance(constraint, Free):
            continue
        weight = whole(weights[name].detach())
        share = max(_LEAST_SHARE, 8 * torch.finfo(weight.dtype).eps)
        norm = constraint.norm(weight, operator)
        if not norm.at_most(constraint.bound * (1 + share)):
            found.append(f"{name} (norm up to {norm.bound:.4g}, allowed {constraint.bound:.4g})")
    return found

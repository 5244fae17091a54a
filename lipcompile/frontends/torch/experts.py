"""Mixtures of experts of transformers, each token through all experts instead of through those that it chose.

The library sorts the tokens of a whole batch by their experts, or loops over the experts that some token chose:
either way what is done depends on numbers of all examples. An expert that a token did not choose has the share 0
in its output, and gets no gradient from it, so the module computes the same function.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from torch import Tensor
from torch.nn.functional import linear

_HOME, _TABLE = "transformers.integrations.moe", "ALL_EXPERTS_FUNCTIONS"
# What the library stores in a module of experts, to tell its functions for them what it is.
_SAID = ("has_gate", "has_bias", "is_transposed", "has_post_expert_norm", "_apply_gate", "num_experts")


@contextmanager
def with_all_experts() -> Iterator[None]:
    """Let modules of experts of transformers send each token through all of them meanwhile."""
    table = getattr(sys.modules.get(_HOME), _TABLE, None)
    if table is None:
        yield
        return
    choose = table.get_interface

    def chosen(name: str, default: Callable[..., Any]) -> Callable[..., Any]:
        own = choose(name, default)
        return lambda self, *args, **kwargs: (_through_all if _is_known(self) else own)(self, *args, **kwargs)

    with patch.object(type(table), "get_interface", lambda _, name, default: chosen(name, default)):
        yield


def _is_known(experts: Any) -> bool:
    """Whether a module of experts says all that `_through_all` asks, and has all experts."""
    return all(hasattr(experts, name) for name in _SAID) and not getattr(experts, "_is_expert_parallel", True)


def _through_all(experts: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """Return Σ_e share_e(t)·expert_e(t) of tokens t [S, d], which chose experts [S, k] with weights [S, k]."""
    total: Any = 0
    for place in range(experts.num_experts):
        share = (top_k_weights * (top_k_index == place)).sum(-1, keepdim=True)
        total = total + share * _expert(experts, place, hidden_states)
    made: Tensor = total
    return made.to(hidden_states.dtype)


def _expert(experts: Any, place: int, tokens: Tensor) -> Tensor:
    """Return what one expert makes of tokens [S, d]."""
    first = "gate_up_proj" if experts.has_gate else "up_proj"
    activate = experts._apply_gate if experts.has_gate else experts.act_fn
    made: Tensor = _linear(experts, "down_proj", place, activate(_linear(experts, first, place, tokens)))
    return experts.post_expert_norm(made) if experts.has_post_expert_norm else made


def _linear(experts: Any, name: str, place: int, tokens: Tensor) -> Tensor:
    """Apply the matrix of one expert, and its bias, to tokens."""
    weight = getattr(experts, name)[place]
    bias = getattr(experts, f"{name}_bias")[place] if experts.has_bias else None
    return linear(tokens, weight.T if experts.is_transposed else weight, bias)

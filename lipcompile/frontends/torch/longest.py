"""What depends on the longest text of a batch: `pad_packed_sequence` pads to its length if nothing else is said.

In a trace all texts are padded alike. So a module is run with more rows of padding: do they change anything?
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, RNNBase
from torch.utils._pytree import tree_leaves

from lipcompile.frontends.silence import silence
from lipcompile.frontends.torch.lengths import Longer, padded_to_lengths
from lipcompile.frontends.torch.tracing import Example, batch, evaluating, without_cache
from lipcompile.frontends.torch.untraceable import untraceable

_MORE = 3


def refuse_longest(module: Module, examples: Sequence[Example]) -> None:
    """Raise Untraceable (LIP108) if the output of a text depends on how long the longest of its batch is."""
    if not any(isinstance(part, RNNBase) for part in module.modules()):
        return
    plain = Longer(0)
    try:
        wanted = _outputs(module, examples, plain)
    except Exception:  # the trace will say why
        return
    if not plain.places:
        return
    try:
        found = _outputs(module, examples, Longer(_MORE))
        same = all(map(_agree, wanted, found))
    except Exception:
        same = False
    if not same:
        message = "the output depends on the longest text of the batch, to which pad_packed_sequence pads"
        raise untraceable("LIP108", message, "say total_length=x.shape[1]", plain.places[0])


def _outputs(module: Module, examples: Sequence[Example], longer: Longer) -> list[Tensor]:
    args, kwargs = batch(module, examples, 2)
    with (
        silence(),
        evaluating(module),
        without_cache(module),
        padded_to_lengths(module, longer),
        torch.no_grad(),
        torch.random.fork_rng(devices=[]),
    ):
        torch.manual_seed(0)
        found: Any = module(*map(_filled, args), **{name: _filled(one) for name, one in kwargs.items()})
    return [leaf for leaf in tree_leaves(found) if isinstance(leaf, Tensor)]


def _filled(zeros: Tensor) -> Tensor:
    """Return an input of random numbers, or of tokens that are no padding."""
    return torch.randn_like(zeros) if zeros.is_floating_point() else torch.ones_like(zeros)


def _agree(one: Tensor, other: Tensor) -> bool:
    """Whether outputs agree, up to rows that one of them has more."""
    return torch.allclose(one, other[tuple(map(slice, one.shape))], rtol=1e-3, atol=1e-5)

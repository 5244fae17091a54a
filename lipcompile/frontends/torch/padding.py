"""Rows of padding: torch hands them no gradient, so they stay the zeros that they begin as."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

from torch import Tensor
from torch.nn import Embedding, Module, functional


def padded(module: Module) -> dict[str, Embedding]:
    """Return the embeddings, by name, whose row of padding is zero and whose table nothing else uses."""
    uses = Counter(id(parameter) for _, parameter in module.named_parameters(remove_duplicate=False))
    return {
        name: part
        for name, part in module.named_modules()
        if isinstance(part, Embedding)
        and part.padding_idx is not None
        and part.weight.requires_grad
        and uses[id(part.weight)] == 1
        and not bool(part.weight[part.padding_idx].any())
    }


@contextmanager
def without_rows_of_padding(parts: Mapping[str, Embedding]) -> Iterator[None]:
    """Trace these rows of embeddings as zeros meanwhile: what is stored for them gets noise in training, which
    nothing reads.
    """
    original = functional.embedding

    @wraps(original)
    def looked_up(tokens: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        rows = original(tokens, weight, *args, **kwargs)
        padding = next((part.padding_idx for part in parts.values() if part.weight is weight), None)
        return rows if padding is None else rows * tokens.ne(padding).unsqueeze(-1)

    with patch.object(functional, "embedding", looked_up):
        yield

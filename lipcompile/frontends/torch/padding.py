"""Rows of padding: torch hands them no gradient, so they stay the zeros that they begin as."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from torch import Tensor
from torch.nn import Embedding, Module


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
    hooks = [part.register_forward_hook(_hidden, with_kwargs=True) for part in parts.values()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _hidden(part: Embedding, args: Sequence[Tensor], kwargs: Mapping[str, Tensor], rows: Tensor) -> Tensor:
    tokens = args[0] if args else kwargs["input"]
    return rows * tokens.ne(part.padding_idx or 0).unsqueeze(-1)

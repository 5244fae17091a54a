"""Several inputs of a network as one: their entries, one after another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def joined(
    parts: Mapping[str, tuple[int, ...]], args: Sequence[Any], kwargs: Mapping[str, Any], *, views: bool = False
) -> Tensor:
    """Return the entries [B, n] of inputs [B, *shape], in the order of `parts`; [B, V, n] of views.

    Args:
        parts: name and shape of each input of one example.
        args, kwargs: the inputs by position, then by name; or all of them in one mapping.
        views: inputs have an axis of views behind that of the batch.

    Raises:
        TypeError: an input is missing, given twice, or unknown.
        ValueError: another shape, or batches of different sizes.

    Formal guarantees: row i is made of row i of each input.
    """
    if not kwargs and len(args) == 1 and isinstance(args[0], Mapping):
        (kwargs,), args = args, ()
    given = dict(zip(parts, args, strict=False))
    if len(args) > len(parts) or given.keys() & kwargs.keys() or {*given, *kwargs} != {*parts}:
        raise TypeError(f"the inputs are {', '.join(parts)}, in this order or by name; got {_told(args, kwargs)}")
    given |= kwargs
    leading = 2 if views else 1
    for name, shape in parts.items():
        if given[name].dim() != leading + len(shape) or tuple(given[name].shape[leading:]) != shape:
            expected = ", ".join(map(str, ("B", "V", *shape) if views else ("B", *shape)))
            raise ValueError(f"expected `{name}` of shape [{expected}], got {tuple(given[name].shape)}")
    if len({given[name].shape[:leading] for name in parts}) > 1:
        sizes = ", ".join(f"{name} {len(given[name])}" for name in parts)
        raise ValueError(f"the inputs have batches of different sizes: {sizes}")
    return torch.cat([given[name].reshape(*given[name].shape[:leading], -1) for name in parts], leading)


def _told(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    return ", ".join([*[f"{len(args)} by position"] * bool(args), *kwargs]) or "nothing"

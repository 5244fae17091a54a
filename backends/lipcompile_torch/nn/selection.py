"""Selection by masks that are part of the model. Names are re-exported by :mod:`.functional`."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

__all__ = ["where"]


@lru_cache(maxsize=256)
def _decoded(mask: str, shape: tuple[int, ...]) -> Tensor:
    """Return the truth values [*shape] that ``mask`` lists, in row-major order.

    Raises:
        ValueError: there are more of them than entries.
    """
    entries = 1
    for size in shape:
        entries *= size
    bits = f"{int(mask, 16):b}".zfill(entries)
    if len(bits) > entries:
        raise ValueError(f"a mask of {len(bits)} bits does not fit examples of shape {shape}")
    with torch.inference_mode(mode=False):  # it is kept, and backward passes may need it
        return torch.tensor([bit == "1" for bit in bits], dtype=torch.bool).reshape(shape)


def where(first: Tensor, second: Tensor, mask: str) -> Tensor:
    """Take the entries of ``first`` [B, *example] where ``mask`` says 1, those of ``second`` [B, *example] where
    it says 0: one bit per entry of an example in row-major order, as a hexadecimal number.

    Formal guarantees: each cotangent entry goes to one of both, so 1-Lipschitz in each, and ‖output‖² is at most
    the sum of both squares.

    Raises:
        ValueError: the operands have different shapes, or the mask more bits than an example entries.
    """
    if first.shape != second.shape:
        raise ValueError(f"cannot choose between shapes {tuple(first.shape)} and {tuple(second.shape)}")
    return torch.where(_decoded(mask, tuple(first.shape[1:])).to(first.device), first, second)

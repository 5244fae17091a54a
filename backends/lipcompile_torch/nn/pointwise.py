"""Functions of the entries of examples that have no Lipschitz constant. Re-exported by :mod:`.functional`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

_WITH_NUMBER: Mapping[str, Callable[[Tensor, float], Tensor]] = {
    "equal": lambda x, number: x == number,
    "greater": lambda x, number: x > number,
    "at_least": lambda x, number: x >= number,
    "constant": lambda x, number: x.new_full((), number).expand_as(x),
    "power": lambda x, number: x**number,
}
_WITHOUT: Mapping[str, Callable[..., Tensor]] = {
    "is_nan": torch.isnan,
    "is_infinite": torch.isinf,
    "truncated": torch.trunc,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "round": torch.round,
    "exp": torch.exp,
    "log": torch.log,
    "quotient": torch.div,
    "select": lambda mask, x, y: torch.where(mask != 0, x, y),
}


def pointwise(function: str, *operands: Tensor, number: float = 0.0) -> Tensor:
    """Apply a function to the entries of tensors at one place.

    Args:
        function: a key of the tables above. What is true is 1, what is not is 0.
        operands: each [B, *example], of one shape.
        number: what a comparison compares with, the exponent of a power, the constant.

    Formal guarantees: [B, *example]; no entry depends on another place, so no example on another. No Lipschitz
    constant.

    Raises:
        ValueError: the operands have different shapes, which would be broadcast.
    """
    if any(operand.shape != operands[0].shape for operand in operands):
        raise ValueError(f"`{function}` of shapes {', '.join(str(tuple(operand.shape)) for operand in operands)}")
    if function in _WITH_NUMBER:
        return _WITH_NUMBER[function](operands[0], number).to(operands[0].dtype)
    return _WITHOUT[function](*operands).to(operands[-1].dtype)

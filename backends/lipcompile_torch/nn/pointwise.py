"""Functions of entries that have no Lipschitz constant, and colour spaces. Re-exported by :mod:`.functional`."""

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


def noise(x: Tensor, training: bool) -> Tensor:
    """Return standard normal numbers of the shape [B, *example] of x in training; in evaluation their mean, 0.

    Formal guarantees: no value of x is read, every entry is drawn by itself, and no gradient flows.
    """
    return torch.randn_like(x) if training else torch.zeros_like(x)


# --- what red, green and blue of every pixel become ---

_LUMA = (0.299, 0.587, 0.114)
_MATRICES = {
    "grayscale": (_LUMA,),
    "yiq": (_LUMA, (0.59590059, -0.27455667, -0.32134392), (0.21153661, -0.52273617, 0.31119955)),
    "yuv": (_LUMA, (-0.14714119, -0.28886916, 0.43601035), (0.61497538, -0.51496512, -0.10001026)),
}
_LEAST = 1e-6  # what smaller divisors are replaced by


def colour_space(x: Tensor, space: str) -> Tensor:
    """Apply the matrix of a colour space to every pixel.

    Args:
        x: [B, 3, height, width].
        space: `grayscale`, `yiq` or `yuv`, with the coefficients of TensorFlow.

    Formal guarantees: [B, 1, height, width] of grayscale, else the shape of x; linear, of norm at most √0.446966
    or √0.734641. No pixel depends on another.
    """
    red, green, blue = x.unbind(1)
    return torch.stack([r * red + g * green + b * blue for r, g, b in _MATRICES[space]], dim=1)


def hsv(x: Tensor) -> Tensor:
    """Return hue, saturation and value of every pixel, each from 0 to 1, as `colorsys` has them.

    Args:
        x: [B, 3, height, width], cut to [0, 1].

    Formal guarantees: every entry is in [0, 1]. Hue jumps, so there is no Lipschitz constant. A grey pixel has hue
    0, and where the colours differ by less than 1e-6 it falls to 0 with them.
    """
    x = x.clamp(0.0, 1.0)
    red, green, blue = x.unbind(1)
    value = x.amax(dim=1)
    spread = value - x.amin(dim=1)
    divisor = spread.clamp(min=_LEAST)
    others = torch.where(value == green, (blue - red) / divisor + 2, (red - green) / divisor + 4)
    sector = torch.where(value == red, (green - blue) / divisor, others) / 6
    return torch.stack((sector - sector.floor(), spread / value.clamp(min=_LEAST), value), dim=1)

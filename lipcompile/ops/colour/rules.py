"""Red, green and blue of every pixel in other coordinates. Proofs: colour.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from lipcompile.core.record import AnyOp, Inputs, NoAttributes, Shape, Site, Theta
from lipcompile.diagnostics import Refusal
from lipcompile.numbers import N, Numbers
from lipcompile.ops.rules import homogeneous, one, plain

Matrix = tuple[tuple[Fraction, ...], ...]


def _matrix(*rows: str) -> Matrix:
    return tuple(tuple(map(Fraction, row.split())) for row in rows)


_LUMA = "0.299 0.587 0.114"
MATRICES: Mapping[str, Matrix] = {
    "grayscale": _matrix(_LUMA),
    "yiq": _matrix(_LUMA, "0.59590059 -0.27455667 -0.32134392", "0.21153661 -0.52273617 0.31119955"),
    "yuv": _matrix(_LUMA, "-0.14714119 -0.28886916 0.43601035", "0.61497538 -0.51496512 -0.10001026"),
}
# Upper bounds of the squares of their operator norms.
SQUARES: Mapping[str, Fraction] = {
    "grayscale": Fraction("0.446966"),
    "yiq": Fraction("0.734641"),
    "yuv": Fraction("0.734641"),
}


@dataclass(frozen=True, slots=True)
class ColourSpace:
    """A matrix that is applied to red, green and blue of every pixel."""

    space: Literal["grayscale", "yiq", "yuv"]


def colour_shape(attributes: ColourSpace, inputs: tuple[Shape, ...]) -> Shape:
    """[3, h, w] -> [1, h, w] of grayscale, else [3, h, w]."""
    return (len(MATRICES[attributes.space]), *hsv_shape(attributes, inputs)[1:])


def hsv_shape(attributes: Any, inputs: tuple[Shape, ...]) -> Shape:
    """[3, h, w] -> [3, h, w]."""
    if len(inputs[0]) != 3 or inputs[0][0] != 3:
        message = f"colours need an image [3, height, width] of red, green and blue, not {list(inputs[0])}"
        raise Refusal("LIP102", message)
    return inputs[0]


def matrix_norm(num: Numbers[N], site: Site[ColourSpace]) -> N:
    """√c, c·I - MᵀM positive."""
    return num.sqrt(SQUARES[site.attributes.space])


def hsv_norm(num: Numbers[N], site: Site[Any], x: Inputs[N], theta: Theta[N]) -> N:
    """X_out = √n: n numbers from 0 to 1."""
    return num.sqrt(site.entries)


def hsv_row(num: Numbers[N], site: Site[Any], x: Inputs[N], theta: Theta[N]) -> N:
    """R_out = √w."""
    return num.sqrt(site.output[-1])


OPS: tuple[AnyOp, ...] = (
    homogeneous("colour_space", ColourSpace, colour_shape, "colour.md#linear-colour-spaces", matrix_norm),
    plain("hsv", NoAttributes, hsv_shape, "colour.md#hsv", norm=hsv_norm, row=hsv_row, entry=one, lipschitz=None),
)

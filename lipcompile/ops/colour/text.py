"""Colour spaces."""

from __future__ import annotations

from collections.abc import Mapping

from lipcompile.emitters.torch.pieces import Expression

EXPRESSIONS: Mapping[str, Expression] = {
    "colour_space": lambda node, x: f"functional.colour_space({x[0]}, {node.attributes.space!r})",
    "hsv": lambda _, x: f"functional.hsv({x[0]})",
}

"""How the angle of a vector becomes quotients: what torch's exporter writes is wrong on the axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from lipcompile.ops.recurrent.torch_read import operators


def translations() -> Mapping[Callable[..., Any], Callable[..., Any]]:
    """Return what translates the angles of vectors, by the operator."""
    import torch

    return {torch.ops.aten.atan2.default: _angle}


def _angle(self: Any, other: Any) -> Any:
    """Translate `atan2(self, other)`: the arc of the shorter side over the longer one, and turns by quarters.

    No quotient is infinite, nor is its slope. At 0 all are 0, as in torch.
    """
    op, y, x = operators(), self, other
    is_steep = op.Greater(op.Abs(y), op.Abs(x))
    short, long = op.Where(is_steep, x, y), op.Where(is_steep, y, x)
    is_none = op.Equal(long, 0.0)
    arc = op.Atan(op.Div(op.Where(is_none, 0.0, short), op.Where(is_none, 1.0, long)))
    half = op.Where(op.Less(y, 0.0), -math.pi, math.pi)
    flat = op.Add(arc, op.Where(op.Less(x, 0.0), half, 0.0))
    return op.Where(is_steep, op.Sub(op.Mul(half, 0.5), arc), flat)

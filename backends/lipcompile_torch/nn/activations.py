"""Layers of activations with trainable numbers; import them from :mod:`~.layers`."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..certify.constraints import Box, Constraint, Free
from ..certify.operators import Entries
from .constrained import ConstrainedLayer, check_broadcast
from .functional import householder
from .reading import spread


class PReLU(ConstrainedLayer):
    """x ↦ x where x > 0, slope·x elsewhere; ``slope`` broadcasts from the trailing axes and starts at 1/4.

    Formal guarantees: max(1, bound)-Lipschitz, and norms grow by at most that.

    Args:
        shape: of ``slope``, aligned with the last axes of an example.
        bound: of the absolute value of each slope.
    """

    slope: Tensor

    def __init__(self, shape: tuple[int, ...], bound: float | Constraint) -> None:
        super().__init__()
        constraint = bound if isinstance(bound, Constraint) else Box(bound)
        self._constrain("slope", torch.full(shape, 0.25), constraint, Entries())

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, …] to [B, …].

        Raises:
            ValueError: the slopes do not broadcast into an example, or would meet the batch axis.
        """
        check_broadcast("slope", self.slope, x)
        return torch.where(x > 0, x, spread(self.slope, x.shape) * x)

    def extra_repr(self) -> str:
        """Return the shape of the slopes."""
        return f"{tuple(self.slope.shape)}"


class Scale(ConstrainedLayer):
    """x ↦ gain·x; ``gain`` broadcasts from the trailing axes and starts at 1, or at the bound if that is smaller.

    Formal guarantees: bound-Lipschitz, and norms grow by at most that.

    Args:
        shape: of ``gain``, aligned with the last axes of an example.
        bound: of the absolute value of each gain.
    """

    gain: Tensor

    def __init__(self, shape: tuple[int, ...], bound: float | Constraint) -> None:
        super().__init__()
        constraint = bound if isinstance(bound, Constraint) else Box(bound)
        self._constrain("gain", torch.ones(shape), constraint, Entries())

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, …] to [B, …].

        Raises:
            ValueError: the gains do not broadcast into an example, or would meet the batch axis.
        """
        check_broadcast("gain", self.gain, x)
        return spread(self.gain, x.shape) * x

    def extra_repr(self) -> str:
        """Return the shape of the gains."""
        return f"{tuple(self.gain.shape)}"


class Householder(ConstrainedLayer):
    """:func:`~.functional.householder` with one trainable ``angle`` per pair; all start at π/2, which is MaxMin.

    Formal guarantees: 1-Lipschitz and norm-preserving for every angle; ‖∂/∂angle‖ is at most ‖x‖.

    Args:
        shape: of ``angle``: the number of pairs, then ones, aligned with the last axes of an example.
        axis: of the example, along which entries 2k and 2k + 1 are a pair.
    """

    angle: Tensor

    def __init__(self, shape: tuple[int, ...], axis: int = 0) -> None:
        super().__init__()
        self.axis = axis
        self._constrain("angle", torch.full(shape, math.pi / 2), Free(), Entries())

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, …] to [B, …].

        Raises:
            ValueError: the axis does not hold as many pairs as there are angles.
        """
        return householder(x, self.angle, self.axis)

    def extra_repr(self) -> str:
        """Return the shape of the angles and the axis."""
        return f"{tuple(self.angle.shape)}, axis={self.axis}"

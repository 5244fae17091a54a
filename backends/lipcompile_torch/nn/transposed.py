"""Transposed convolutions."""

from __future__ import annotations

from torch import Tensor

from ..certify.constraints import Constraint
from ..certify.operators import Convolution, Padding
from .constrained import BiasBound, ConstrainedLayer
from .convolving import Geometry, convolve


class _ConvTranspose(ConstrainedLayer):
    """Transposed convolution of the rank that a subclass sets: the adjoint of a convolution, whose norm it has.

    Args:
        in_channels, out_channels: C and F; ``weight`` is [C, F/groups, *kernel_size].
        kernel_size, input_size, stride, dilation: one integer an axis; stride and dilation default to 1.
        reads, taps: counts of the convolution that it is the adjoint of, made by the compiler.
        padding: (lo, hi) an axis, cut off the output; default none.
        output_padding: what is added to the output behind, below the stride; default none.
        bias: ‖bias‖ ≤ this, the F numbers that every position adds; None for none.
        constraint: of the kernel, in the norm of the map at ``input_size``. The kernel starts orthogonal as a
            matrix [C, F·k], scaled so that the certified norm of the map is the bound.

    Raises:
        ValueError: the geometry is not that of a transposed convolution.
    """

    rank: int
    weight: Tensor
    bias: Tensor | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: tuple[int, ...],
        input_size: tuple[int, ...],
        reads: int,
        taps: int,
        stride: tuple[int, ...] | None = None,
        padding: Padding | None = None,
        dilation: tuple[int, ...] | None = None,
        groups: int = 1,
        output_padding: tuple[int, ...] | None = None,
        bias: BiasBound = None,
        constraint: Constraint | None = None,
    ) -> None:
        super().__init__()
        if len(kernel_size) != self.rank or in_channels % groups or out_channels % groups:
            raise ValueError(
                f"{type(self).__name__}: kernel {kernel_size}, {in_channels}→{out_channels}, {groups} groups"
            )
        self.input_size, self.output_padding = input_size, output_padding or (0,) * self.rank
        stride, dilation = stride or (1,) * self.rank, dilation or (1,) * self.rank
        padding = padding or ((0, 0),) * self.rank
        axes = zip(input_size, stride, dilation, kernel_size, self.output_padding, padding, strict=True)
        outputs = tuple((n - 1) * s + d * (k - 1) + 1 + e - sum(sides) for n, s, d, k, e, sides in axes)
        self.operator = Convolution(kernel_size, outputs, reads, taps, stride, padding, dilation, groups)
        if self.operator.output_size != input_size:
            raise ValueError(f"an output padding of {self.output_padding} is not below the stride {stride}")
        self._constrain_kernel((in_channels, out_channels // groups, *kernel_size), self.operator, constraint)
        self._constrain_bias((out_channels,), bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, C, *input_size] to [B, F, *output_size].

        Raises:
            ValueError: another size, for which the certified norm would not hold.
        """
        if tuple(x.shape[2:]) != self.input_size:
            raise ValueError(f"compiled for inputs of size {self.input_size}, got {tuple(x.shape[2:])}")
        op, extra = self.operator, self.output_padding
        even = all(low == high for low, high in op.padding)
        both = tuple(low if even else 0 for low, _ in op.padding)
        x = convolve(x, self.weight, self.bias, Geometry(op.stride, both, op.dilation, op.groups, True, extra))
        if even:
            return x
        for axis, ((low, _), size) in enumerate(zip(op.padding, op.input_size, strict=True), start=2):
            x = x.narrow(axis, low, size)
        return x

    def extra_repr(self) -> str:
        """Return the geometry of the convolution that this is the adjoint of."""
        return repr(self.operator)


class ConvTranspose1d(_ConvTranspose):
    """One-dimensional transposed convolution of [B, C, W]."""

    rank = 1


class ConvTranspose2d(_ConvTranspose):
    """Two-dimensional transposed convolution of [B, C, H, W]."""

    rank = 2


class ConvTranspose3d(_ConvTranspose):
    """Three-dimensional transposed convolution of [B, C, D, H, W]."""

    rank = 3

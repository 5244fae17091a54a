"""Layers whose weights live in a constraint set, and know it, see :mod:`.constrained`.

Parameters are called ``weight`` and ``bias``. A layer works on [B, …]; positions and channels are as in torch.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ..certify.constraints import Box, Constraint, Free, Spectral
from ..certify.operators import Convolution, Entries, Padding, PaddingMode
from ..certify.operators import Dense as DenseMap
from ..sharding import is_away
from .constrained import BiasBound, check_broadcast
from .constrained import ConstrainedLayer as ConstrainedLayer
from .functional import householder
from .reading import Geometry, convolve, linear, spread
from .resampling import pad
from .token_layers import Attention as Attention
from .token_layers import ClassToken as ClassToken
from .token_layers import Embedding as Embedding
from .whitening import MirroredScattering2d as MirroredScattering2d
from .whitening import WhitenedPatches as WhitenedPatches
from .whitening import WhitenedScattering2d as WhitenedScattering2d


class Dense(ConstrainedLayer):
    """x ↦ x·Wᵀ + b on the trailing axis, at every position of the others.

    Args:
        in_features, out_features: sizes; ``weight`` is [out_features, in_features].
        bias: ‖bias‖ ≤ this; None for none.
        constraint: of the weight. It starts semi-orthogonal, scaled to the bound.
    """

    weight: Tensor
    bias: Tensor | None
    _is_transposed = False

    def __init__(
        self, in_features: int, out_features: int, bias: BiasBound = None, constraint: Constraint | None = None
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        constraint, operator = constraint or Spectral(), DenseMap()
        start = nn.init.orthogonal_(torch.empty(out_features, in_features))
        start = start.mT.contiguous() if self._is_transposed else start
        self._constrain("weight", constraint.fill(start, operator), constraint, operator)
        self._constrain_bias((out_features,), bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, …, in_features] to [B, …, out_features]."""
        return linear(x, self.weight, self.bias, self._is_transposed)

    def extra_repr(self) -> str:
        """Return the sizes."""
        return f"{self.in_features}, {self.out_features}"


class DenseTranspose(Dense):
    """x ↦ x·W + b on the trailing axis: a dense layer whose ``weight`` is [in_features, out_features]."""

    _is_transposed = True


class TiedDense(ConstrainedLayer):
    """x ↦ x·Wᵀ, x·W if transposed, on the trailing axis, by a matrix W that another layer holds."""

    takes_matrix = True

    def __init__(self, transposed: bool = False) -> None:
        super().__init__()
        self.transposed = transposed

    def forward(self, x: Tensor, matrix: Tensor) -> Tensor:
        """Map [B, …, in] to [B, …, out], by a matrix [out, in], or [in, out] if transposed.

        Raises:
            RuntimeError: FSDP shards the layer of the matrix by itself, and has put its shards away.
        """
        if is_away(matrix):
            raise RuntimeError(
                "a matrix that two layers use is sharded with one of them: remove fully_shard(layer) for that "
                "layer, and call fully_shard(module)"
            )
        return linear(x, matrix, transposed=self.transposed)

    def extra_repr(self) -> str:
        """Return which way the matrix is used."""
        return f"transposed={self.transposed}"


class _Kernel(ConstrainedLayer):
    """What convolutions and transposed ones share: a rank, and a kernel whose norm holds at one size of inputs.

    A kernel without a constraint has no norm to hold, and is used at any size.
    """

    rank: int
    operator: Convolution
    weight: Tensor
    bias: Tensor | None

    def _check_channels(
        self, kernel_size: tuple[int, ...], in_channels: int, out_channels: int, groups: int
    ) -> None:
        if len(kernel_size) != self.rank or in_channels % groups or out_channels % groups:
            raise ValueError(
                f"{type(self).__name__}: kernel {kernel_size}, {in_channels}→{out_channels}, {groups} groups"
            )

    def _check_size(self, x: Tensor, size: tuple[int, ...]) -> None:
        if tuple(x.shape[2:]) != size and not isinstance(self.constraints["weight"][0], Free):
            raise ValueError(f"compiled for inputs of size {size}, got {tuple(x.shape[2:])}")

    def extra_repr(self) -> str:
        """Return the geometry of the convolution, or of the one that this is the adjoint of."""
        return repr(self.operator)


class _Conv(_Kernel):
    """Convolution of the rank that a subclass sets.

    Args:
        in_channels, out_channels: C and F; ``weight`` is [F, C/groups, *kernel_size].
        kernel_size, input_size, stride, dilation: one integer an axis; stride and dilation default to 1.
        reads, taps: counts of the geometry, see :class:`~..certify.operators.Convolution`; made by the compiler.
        padding: (lo, hi) an axis; default none.
        padding_mode: "zeros", "circular", "reflect" or "replicate".
        bias: ‖bias‖ ≤ this, the F numbers that every position adds; None for none.
        constraint: of the kernel, in the norm of the convolution at ``input_size``. The kernel starts
            orthogonal as a matrix [F, C·k], scaled so that the certified norm of the convolution is the
            bound.

    Raises:
        ValueError: the geometry is not that of a convolution.
    """

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
        padding_mode: PaddingMode = "zeros",
        bias: BiasBound = None,
        constraint: Constraint | None = None,
    ) -> None:
        super().__init__()
        self._check_channels(kernel_size, in_channels, out_channels, groups)
        ones = (1,) * self.rank
        padding = padding or ((0, 0),) * self.rank
        self.operator = Convolution(
            kernel_size, input_size, reads, taps, stride or ones, padding, dilation or ones, groups, padding_mode
        )
        self._constrain_kernel((out_channels, in_channels // groups, *kernel_size), self.operator, constraint)
        self._constrain_bias((out_channels,), bias)

    def _padded(self, x: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        """Pad as far as the convolution itself cannot; return what it must still add on both sides."""
        pairs = self.operator.padding
        if self.operator.padding_mode == "zeros" and all(low == high for low, high in pairs):
            return x, tuple(low for low, _ in pairs)
        return pad(x, pairs, self.operator.padding_mode), (0,) * self.rank

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, C, *input_size] to [B, F, *output_size].

        Raises:
            ValueError: another size, for which the certified norm of a constrained kernel would not hold.
        """
        self._check_size(x, self.operator.input_size)
        x, padding = self._padded(x)
        op = self.operator
        return convolve(x, self.weight, self.bias, Geometry(op.stride, padding, op.dilation, op.groups))


class Conv1d(_Conv):
    """One-dimensional convolution of [B, C, W]."""

    rank = 1


class Conv2d(_Conv):
    """Two-dimensional convolution of [B, C, H, W]."""

    rank = 2


class Conv3d(_Conv):
    """Three-dimensional convolution of [B, C, D, H, W]."""

    rank = 3


class _ConvTranspose(_Kernel):
    """Transposed convolution of the rank that a subclass sets: the adjoint of a convolution, whose norm it has.

    Args: as of a convolution, but for
        in_channels, out_channels: C and F; ``weight`` is [C, F/groups, *kernel_size], orthogonal as [C, F·k].
        reads, taps: counts of the convolution that it is the adjoint of, made by the compiler.
        padding: (lo, hi) an axis, cut off the output; default none.
        output_padding: what is added to the output behind, below the stride; default none.

    Raises:
        ValueError: the geometry is not that of a transposed convolution.
    """

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
        self._check_channels(kernel_size, in_channels, out_channels, groups)
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
            ValueError: another size, for which the certified norm of a constrained kernel would not hold.
        """
        self._check_size(x, self.input_size)
        op, extra = self.operator, self.output_padding
        even = all(low == high for low, high in op.padding)
        both = tuple(low if even else 0 for low, _ in op.padding)
        x = convolve(x, self.weight, self.bias, Geometry(op.stride, both, op.dilation, op.groups, True, extra))
        if even:
            return x
        for axis, (low, high) in enumerate(op.padding, start=2):
            x = x.narrow(axis, low, x.shape[axis] - low - high)
        return x


class ConvTranspose1d(_ConvTranspose):
    """One-dimensional transposed convolution of [B, C, W]."""

    rank = 1


class ConvTranspose2d(_ConvTranspose):
    """Two-dimensional transposed convolution of [B, C, H, W]."""

    rank = 2


class ConvTranspose3d(_ConvTranspose):
    """Three-dimensional transposed convolution of [B, C, D, H, W]."""

    rank = 3


class Bias(ConstrainedLayer):
    """x ↦ x + bias, broadcast from the trailing axes.

    Args:
        shape: of ``bias``, aligned with the last axes of an example.
        bound: ‖bias‖ ≤ this, over the stored entries, not over the positions that share them.
    """

    bias: Tensor

    def __init__(self, shape: tuple[int, ...], bound: float | Constraint) -> None:
        super().__init__()
        self._constrain_bias(shape, bound)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, …] to [B, …].

        Raises:
            ValueError: the bias does not broadcast into an example, or would meet the batch axis.
        """
        check_broadcast("bias", self.bias, x)
        return x + spread(self.bias, x.shape)


# --- activations with trainable numbers ---


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

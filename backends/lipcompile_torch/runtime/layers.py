"""Layers whose weights live in a constraint set, and know it.

A :class:`ConstrainedLayer` names, for each of its own parameters, the constraint set and the linear map that
the parameter stands for. Parameters are called ``weight`` and ``bias``. A layer works on [B, …]; positions
and channels are as in torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from .constraints import Ball, Constraint, Frobenius, Spectral
from .convolving import Geometry, convolve
from .operators import Convolution, Operator, Padding, PaddingMode, Translation
from .operators import Dense as DenseMap
from .projection import Amortised
from .reading import linear, spread
from .resampling import pad
from .sharding import replace_, whole

BiasBound = float | Constraint | None
"""‖bias‖ ≤ a float, or a constraint of its own, or no bias."""


class Gate(Protocol):
    """What a layer needs to know of its module."""

    running: int
    aside: bool


class ConstrainedLayer(nn.Module):
    """Base of layers with constrained parameters.

    Attributes:
        gate: set by the engine; while its ``running`` is 0, calls that build gradients are refused.
    """

    _is_apart = False

    def __init__(self) -> None:
        super().__init__()
        self._constraints: dict[str, tuple[Constraint, Operator]] = {}
        self._amortised: dict[str, Amortised] = {}
        self.gate: Gate | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run ``forward``.

        Raises:
            RuntimeError: called outside the module's own forward pass, by something that differentiates.
        """
        if self.gate is not None and not self.gate.running and torch.is_grad_enabled():
            raise RuntimeError(
                "a layer was called outside its module's forward pass: a gradient from there is not bounded; use "
                "the module as a whole, or torch.no_grad()"
            )
        if self._is_apart and torch.compiler.is_compiling():
            return _run_apart(self, *args, **kwargs)
        return super().__call__(*args, **kwargs)

    @property
    def is_apart(self) -> bool:
        """Whether this layer runs as it is within a module that is compiled."""
        return self._is_apart

    def keep_apart(self) -> None:
        """Let this layer run as it is within a module that is compiled: what it notes of uses cannot be traced."""
        global _run_apart
        self._is_apart = True
        if _run_apart is _run:  # torch's compiler is slow to import
            _run_apart = torch.compiler.disable(_run)  # type: ignore[no-untyped-call]

    @property
    def constraints(self) -> Mapping[str, tuple[Constraint, Operator]]:
        """Constraint and linear map of each parameter, by its name in this layer."""
        return MappingProxyType(self._constraints)

    def _constrain(self, name: str, value: Tensor, constraint: Constraint, operator: Operator) -> None:
        """Add a parameter that starts at ``value``, projected."""
        start = constraint.project(value, operator)
        self.register_parameter(name, nn.Parameter(start, requires_grad=constraint.trainable))
        self._constraints[name] = (constraint, operator)
        self._amortised[name] = Amortised(constraint, operator)

    def _constrain_bias(self, shape: tuple[int, ...], bound: BiasBound) -> None:
        if bound is None:
            self.register_parameter("bias", None)
            return
        constraint = bound if isinstance(bound, Constraint) else Ball(bound)
        self._constrain("bias", torch.zeros(shape), constraint, Translation())

    def _constrain_kernel(self, shape: tuple[int, ...], operator: Convolution, given: Constraint | None) -> None:
        """Add a kernel that starts orthogonal as a matrix, scaled to the bound."""
        constraint, start = given or Spectral(), torch.empty(shape)
        start = _orthogonal(operator.matrix(start)).reshape(shape)
        self._constrain("weight", constraint.fill(start, operator), constraint, operator)

    def amortised(self) -> list[tuple[nn.Parameter, Amortised]]:
        """Return every parameter with its constraint and what is known of where it stands."""
        return [(self.get_parameter(name), known) for name, known in self._amortised.items()]

    @torch.no_grad()
    def project_(self) -> None:
        """Put every parameter back into its constraint set on a full certificate; those inside keep their bits.

        Raises:
            ValueError: a parameter is not finite.
        """
        for name, (constraint, operator) in self._constraints.items():
            replace_(self.get_parameter(name), partial(constraint.project, operator=operator))

    @torch.no_grad()
    def fill_(self) -> None:
        """Scale every trained weight whose norm is constrained, up or down, to the bound of its constraint.

        Biases stay as they are: their bounds say how far they may go, not how long they should be.

        Raises:
            ValueError: a parameter is not finite.
        """
        for name, (constraint, operator) in self._constraints.items():
            if isinstance(constraint, Spectral | Frobenius) and not isinstance(constraint, Ball):
                parameter = self.get_parameter(name)
                if parameter.requires_grad:
                    replace_(parameter, partial(constraint.fill, operator=operator))

    def certified_norms(self) -> dict[str, float]:
        """Return a certified bound of the current norm of each parameter: operator norm of a weight, length
        of a bias.
        """
        return {
            name: operator.norm(whole(self.get_parameter(name))).bound
            for name, (_, operator) in self._constraints.items()
        }


def _run(layer: ConstrainedLayer, *args: Any, **kwargs: Any) -> Any:
    return nn.Module.__call__(layer, *args, **kwargs)


_run_apart = _run


def constraints_of(module: nn.Module) -> dict[str, tuple[Constraint, Operator]]:
    """Return constraint and linear map of each parameter that layers constrain, by its name in the module."""
    return {
        f"{prefix}.{role}" if prefix else role: constrained
        for prefix, layer in module.named_modules()
        if isinstance(layer, ConstrainedLayer)
        for role, constrained in layer.constraints.items()
    }


def _orthogonal(blocks: Tensor) -> Tensor:
    """Return a random matrix with orthonormal rows or columns, one for each block of [groups, rows, columns]."""
    return torch.stack([nn.init.orthogonal_(torch.empty_like(block)) for block in blocks])


class Dense(ConstrainedLayer):
    """x ↦ x·Wᵀ + b on the trailing axis, at every position of the others.

    Args:
        in_features, out_features: sizes; ``weight`` is [out_features, in_features].
        bias: ‖bias‖ ≤ this; None for none.
        constraint: of the weight. It starts semi-orthogonal, scaled to the bound.
    """

    weight: Tensor
    bias: Tensor | None

    def __init__(
        self, in_features: int, out_features: int, bias: BiasBound = None, constraint: Constraint | None = None
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        constraint, operator = constraint or Spectral(), DenseMap()
        start = nn.init.orthogonal_(torch.empty(out_features, in_features))
        self._constrain("weight", constraint.fill(start, operator), constraint, operator)
        self._constrain_bias((out_features,), bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, …, in_features] to [B, …, out_features]."""
        return linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        """Return the sizes."""
        return f"{self.in_features}, {self.out_features}"


class _Conv(ConstrainedLayer):
    """Convolution of the rank that a subclass sets.

    Args:
        in_channels, out_channels: C and F; ``weight`` is [F, C/groups, *kernel_size].
        kernel_size, input_size, stride, dilation: one integer an axis; stride and dilation default to 1.
        reads, taps: counts of the geometry, see :class:`~.operators.Convolution`; made by the compiler.
        padding: (lo, hi) an axis; default none.
        padding_mode: "zeros", "circular", "reflect" or "replicate".
        bias: ‖bias‖ ≤ this, the F numbers that every position adds; None for none.
        constraint: of the kernel, in the norm of the convolution at ``input_size``. The kernel starts
            orthogonal as a matrix [F, C·k], scaled so that the certified norm of the convolution is the
            bound.

    Raises:
        ValueError: the geometry is not that of a convolution.
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
        padding_mode: PaddingMode = "zeros",
        bias: BiasBound = None,
        constraint: Constraint | None = None,
    ) -> None:
        super().__init__()
        if len(kernel_size) != self.rank or in_channels % groups or out_channels % groups:
            raise ValueError(
                f"{type(self).__name__}: kernel {kernel_size}, {in_channels}→{out_channels}, {groups} groups"
            )
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
            ValueError: another size, for which the certified norm would not hold.
        """
        if tuple(x.shape[2:]) != self.operator.input_size:
            raise ValueError(f"compiled for inputs of size {self.operator.input_size}, got {tuple(x.shape[2:])}")
        x, padding = self._padded(x)
        op = self.operator
        return convolve(x, self.weight, self.bias, Geometry(op.stride, padding, op.dilation, op.groups))

    def extra_repr(self) -> str:
        """Return the geometry."""
        return repr(self.operator)


class Conv1d(_Conv):
    """One-dimensional convolution of [B, C, W]."""

    rank = 1


class Conv2d(_Conv):
    """Two-dimensional convolution of [B, C, H, W]."""

    rank = 2


class Conv3d(_Conv):
    """Three-dimensional convolution of [B, C, D, H, W]."""

    rank = 3


def check_broadcast(what: str, value: Tensor, x: Tensor) -> None:
    """Check that a parameter broadcasts from the trailing axes of the examples in ``x``.

    Raises:
        ValueError: it would change their shape, or meet the batch axis.
    """
    shape = tuple(value.shape)
    tail = tuple(x.shape[1:])[-len(shape) :] if shape else ()
    if len(tail) != len(shape) or any(own not in (1, size) for own, size in zip(shape, tail, strict=True)):
        raise ValueError(f"a {what} of shape {shape} does not fit examples of shape {tuple(x.shape[1:])}")


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


from .activations import Householder as Householder  # noqa: E402  (their base class stands above)
from .activations import PReLU as PReLU  # noqa: E402
from .activations import Scale as Scale  # noqa: E402
from .token_layers import Attention as Attention  # noqa: E402
from .token_layers import ClassToken as ClassToken  # noqa: E402
from .token_layers import Embedding as Embedding  # noqa: E402
from .transposed import ConvTranspose1d as ConvTranspose1d  # noqa: E402
from .transposed import ConvTranspose2d as ConvTranspose2d  # noqa: E402
from .transposed import ConvTranspose3d as ConvTranspose3d  # noqa: E402

"""Linear maps that a weight stands for, and their certified norms.

A weight alone has no operator norm: a kernel becomes a map only with its input size, stride, dilation and
padding. An :class:`Operator` holds these and answers three questions: what is the certified norm, what is the
matrix whose singular values orthogonalisation should even out, and how far can rounding of the entries move
the norm.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from .norms import (
    EuclideanNorm,
    GramStack,
    LargestNorm,
    Norm,
    OperatorNorm,
    gram_stack,
    matrix_norm,
    normalised,
    times,
)
from .precision import single_is_kept
from .rounding import DOUBLE, UP_MANY
from .single_precision import Transform, spectral_bound, transform_bound

PaddingMode = Literal["zeros", "circular", "reflect", "replicate"]
Padding = tuple[tuple[int, int], ...]

FREQUENCY_FLOPS = 4e9
"""Above this many floating point operations for the Gram matrices over all frequencies, the reshape bounds
are used.
"""

_EXACT_SIZE = 64  # up to here float64 costs no more than float32
_PHASE_ERROR = 128 * DOUBLE  # of cos and sin of at most three summed fractions of a turn, computed in float64


class Operator(ABC):
    """How a parameter acts on its input."""

    @property
    def factor(self) -> float | None:
        """f, for which ‖map of W‖ ≤ f·‖W‖ for every W, ‖W‖ the largest spectral norm among the blocks of `matrix`;
        None where the map is not linear in W, or its norm is read off in one pass.
        """
        return None

    @abstractmethod
    def norm(self, weight: Tensor) -> Norm:
        """Return the certified norm of the map that ``weight`` stands for."""

    def quick_bound(self, weight: Tensor) -> float:
        """Return a certified bound of the norm, which may be a few per cent too large to be cheap; no finite one,
        or ValueError, if an entry is not finite.
        """
        return self.norm(weight).bound

    @abstractmethod
    def matrix(self, weight: Tensor) -> Tensor:
        """Return the entries as matrices [groups, rows, columns] whose singular values orthogonalisation
        evens out.
        """


@dataclass(frozen=True)
class Dense(Operator):
    """A matrix [out, in] applied to the trailing axis, at any number of positions."""

    @property
    def factor(self) -> float:
        """1: the map is the matrix."""
        return 1.0

    def norm(self, weight: Tensor) -> OperatorNorm:
        """Return the spectral norm."""
        return matrix_norm(weight)

    def quick_bound(self, weight: Tensor) -> float:
        """Return a bound of the spectral norm, of large matrices in float32."""
        if weight.dtype == torch.float32 and min(weight.shape) > _EXACT_SIZE and single_is_kept(weight.device):
            return spectral_bound(weight)
        return self.norm(weight).bound

    def matrix(self, weight: Tensor) -> Tensor:
        """Return the matrix itself, as a stack of one."""
        return weight[None]


@dataclass(frozen=True)
class Translation(Operator):
    """A bias, added to its input: only its Euclidean norm matters."""

    def norm(self, weight: Tensor) -> EuclideanNorm:
        """Return the Euclidean norm."""
        return EuclideanNorm(weight)

    def matrix(self, weight: Tensor) -> Tensor:
        """Return the entries as one row."""
        return weight.reshape(1, 1, -1)


@dataclass(frozen=True)
class Entries(Operator):
    """A parameter whose largest entry matters: a scale of every entry, a slope."""

    def norm(self, weight: Tensor) -> LargestNorm:
        """Return the largest absolute entry."""
        return LargestNorm(weight.detach().reshape(-1, 1))

    def matrix(self, weight: Tensor) -> Tensor:
        """Return the entries as one row."""
        return weight.reshape(1, 1, -1)


@dataclass(frozen=True)
class Rows(Operator):
    """A table [rows, width] whose longest row matters: an embedding."""

    def norm(self, weight: Tensor) -> LargestNorm:
        """Return the largest norm of a row."""
        return LargestNorm(weight)

    def matrix(self, weight: Tensor) -> Tensor:
        """Return the table, as a stack of one."""
        return weight[None]


class _Axis(NamedTuple):
    """One axis of the polyphase form: ``phases`` sub-grids, a circular ``grid``, outputs or inputs repeated at
    most ``repeats`` times.
    """

    phases: int
    grid: int
    repeats: int


@dataclass(frozen=True)
class Convolution(Operator):
    """A convolution (cross-correlation, as in torch) of any rank with kernel [F, C/groups, *kernel_size].

    Along each axis output o reads the input entries stride·o + dilation·t - lo, t = 0 … kernel-1, where
    entries outside the input are zero (``padding_mode="zeros"``), wrap around (``"circular"``), are mirrored
    at the border entry (``"reflect"``) or equal to it (``"replicate"``).

    Args:
        kernel_size, input_size, stride, dilation: one integer an axis.
        padding: (lo, hi) an axis.
        reads: m, the largest number of (output position, tap) pairs that read one input entry, counted by the
            compiler.
        taps: r·v, v the most taps one output uses, r the most outputs that read one entry through the same
            tap.

    Formal guarantees: ``norm(K).bound`` is at least the operator norm, by the smallest of

    1. √reads·‖reshape(K, F × C·k)‖: the map is reshape(K) after the gathering of patches, which copies each
       entry at most ``reads`` times;
    2. √taps·‖reshape(K, C × F·k)‖;
    3. the frequency bound. Split input entry i + lo = s·q + φ and tap position d·t = s·a + φ: the output at o
       is Σ_φ Σ_a K_φ[a]·x_φ[o + a], a convolution of stride one with C·s channels, ⌊d(k-1)/s⌋ + 1 = A
       positions of the kernel, O outputs and Q positions q of the input. On a circular grid of min(O, Q) + A
       - 1 no two of its terms alias: if O is the smaller, the O outputs read at most O + A - 1 consecutive
       positions; else the Q inputs reach at most Q + A - 1 consecutive outputs. So the map is (restriction) ∘
       (circulant) ∘ (embedding), both with norm ≤ 1, and the norm of a circulant is the largest norm among
       the matrices K̂(ω), F × C·s, of its Fourier transform. With circular padding the grid is the input
       itself, n/s positions when s divides n, else n positions of which the stride keeps some; O outputs on a
       grid of N are each repeated at most ⌈O/N⌉ times, which costs the root of that. Reflection and
       replication are the convolution without padding of the padded input, which holds each entry at most c
       times an axis: a map of norm √c per axis. (Singular values of circulants: Sedghi, Gupta, Long, ICLR
       2019; bounds for zero padding: Delattre et al., ICML 2023.)

    Each holds per group; the map is block diagonal over groups, so its norm is the largest among them.
    """

    kernel_size: tuple[int, ...]
    input_size: tuple[int, ...]
    reads: int
    taps: int
    stride: tuple[int, ...]
    padding: Padding
    dilation: tuple[int, ...]
    groups: int = 1
    padding_mode: PaddingMode = "zeros"

    def __post_init__(self) -> None:
        """Refuse geometries that do not describe a convolution."""
        rank = len(self.kernel_size)
        if {len(self.input_size), len(self.stride), len(self.padding), len(self.dilation)} != {rank}:
            raise ValueError(
                f"kernel {self.kernel_size}: input size, stride, padding and dilation need {rank} entries"
            )
        along = (*self.kernel_size, *self.input_size, *self.stride, *self.dilation)
        if min(*along, self.reads, self.taps, self.groups) < 1:
            raise ValueError("the sizes, strides, dilations and counts of a convolution must be positive")
        if min(min(pair) for pair in self.padding) < 0 or min(self.output_size) < 1:
            raise ValueError(f"padding {self.padding} is negative, or leaves no output")
        modes = get_args(PaddingMode)
        if self.padding_mode not in modes:
            raise ValueError(f"unknown padding mode {self.padding_mode!r}: {', '.join(modes)}")
        most = [max(p) - n for p, n in zip(self.padding, self.input_size, strict=True)]
        if max(most) > {"circular": 0, "reflect": -1}.get(self.padding_mode, max(most)):
            raise ValueError(
                f"{self.padding_mode} padding {self.padding} wraps more than once around the input size "
                f"{self.input_size}"
            )

    @property
    def factor(self) -> float:
        """√reads, see 1."""
        return math.sqrt(self.reads) * UP_MANY

    def _span(self, axis: int) -> int:
        """Distance between the first and the last tap."""
        return self.dilation[axis] * (self.kernel_size[axis] - 1)

    def _outputs(self, axis: int, stride: int) -> int:
        return (self.input_size[axis] + sum(self.padding[axis]) - self._span(axis) - 1) // stride + 1

    @property
    def output_size(self) -> tuple[int, ...]:
        """Number of outputs along each axis."""
        return tuple(self._outputs(axis, stride) for axis, stride in enumerate(self.stride))

    def _axis(self, axis: int) -> _Axis:
        size, stride, low = self.input_size[axis], self.stride[axis], self.padding[axis][0]
        if self.padding_mode == "circular":
            phases = stride if size % stride == 0 else 1
            return _Axis(phases, size // phases, math.ceil(self._outputs(axis, phases) * phases / size))
        copies = 1
        if self.padding_mode != "zeros":
            copies = _copies(size, self.padding[axis], self.padding_mode)
            size, low = size + sum(self.padding[axis]), 0
        positions = (low + size - 1) // stride - low // stride + 1
        return _Axis(stride, min(self._outputs(axis, stride), positions) + self._span(axis) // stride, copies)

    @property
    def _axes(self) -> list[_Axis]:
        return [self._axis(axis) for axis in range(len(self.kernel_size))]

    def _frequencies_pay(self, weight: Tensor) -> bool:
        """Whether the Gram matrices over all frequencies stay within the budget."""
        filters = weight.shape[0] // self.groups
        channels = weight.shape[1] * math.prod(a.phases for a in self._axes)
        grid = math.prod(a.grid for a in self._axes) / 2
        return 8.0 * grid * self.groups * filters * channels * min(filters, channels) <= FREQUENCY_FLOPS

    def _frequencies_win(self) -> bool:
        """Whether the frequency bound is never above the two others, by the triangle inequality over taps."""
        per_phase = math.prod(
            -(-k * math.gcd(axis.phases, d) // axis.phases)
            for k, axis, d in zip(self.kernel_size, self._axes, self.dilation, strict=True)
        )
        repeated = any(axis.repeats > 1 for axis in self._axes)
        return not repeated and self.reads >= per_phase and self.taps >= math.prod(self.kernel_size)

    def _grouped(self, kernel: Tensor) -> Tensor:
        """Return [groups, F/groups, C/groups, taps]."""
        return kernel.reshape(self.groups, -1, kernel.shape[1], math.prod(self.kernel_size))

    def matrix(self, weight: Tensor) -> Tensor:
        """Return the reshaped kernel [groups, F/groups, C/groups·taps]."""
        return self._grouped(weight).flatten(2)

    def norm(self, weight: Tensor) -> OperatorNorm:
        """Return the certified norm of the convolution on inputs of ``input_size``."""
        kernel, scale = normalised(weight)
        frobenius = EuclideanNorm(kernel).bound
        coarse = times(self.factor * frobenius, scale)  # the factor has enough to spare
        return OperatorNorm(self._stacks(kernel, scale, frobenius), coarse)

    def quick_bound(self, weight: Tensor) -> float:
        """Return a bound of the norm, in float32 where the frequency bound alone is used."""
        if weight.dtype != torch.float32 or not self._frequencies_pay(weight) or not self._frequencies_win():
            return self.norm(weight).bound
        if not single_is_kept(weight.device):
            return self.norm(weight).bound
        kernel, scale = normalised(weight)
        # In float32 from here on: a weight over a power of two has no more digits.
        transform, _, error = self._transform(kernel.to(torch.float32), EuclideanNorm(kernel).bound)
        bound = scale * self._repeats * (transform_bound(transform) + error) * UP_MANY
        return bound if bound < math.inf else self.norm(weight).bound

    def descriptions(self, weight: Tensor) -> Iterator[GramStack]:
        """Yield every description of the convolution that bounds its norm, those that :meth:`norm` spares
        included.
        """
        kernel, scale = normalised(weight)
        frobenius = EuclideanNorm(kernel).bound
        yield from self._reshaped(kernel, scale, frobenius)
        yield self._frequency_stack(kernel, scale, frobenius)

    def _stacks(self, kernel: Tensor, scale: float, frobenius: float) -> Iterator[GramStack]:
        frequencies = self._frequencies_pay(kernel)
        if not (frequencies and self._frequencies_win()):
            yield from self._reshaped(kernel, scale, frobenius)
        if frequencies:
            yield self._frequency_stack(kernel, scale, frobenius)

    def _reshaped(self, kernel: Tensor, scale: float, frobenius: float) -> Iterator[GramStack]:
        grouped, up = self._grouped(kernel), scale * UP_MANY
        yield gram_stack(grouped.flatten(2), math.sqrt(self.reads) * up, frobenius, name="kernel, F × C·k")
        by_channel = grouped.transpose(1, 2).flatten(2)
        yield gram_stack(by_channel, math.sqrt(self.taps) * up, frobenius, name="kernel, C × F·k")

    def _polyphase(self, kernel: Tensor) -> Tensor:
        """Return [groups·F/groups·(C/groups·phases), positions]: the kernel of the stride-one form."""
        axes = self._axes
        positions = [self._span(i) // axis.phases + 1 for i, axis in enumerate(axes)]
        sizes = [p * axis.phases for p, axis in zip(positions, axes, strict=True)]
        spread = kernel.new_zeros(*kernel.shape[:2], *sizes)
        every = [slice(None), slice(None)]
        spread[(*every, *(slice(0, self._span(i) + 1, d) for i, d in enumerate(self.dilation)))] = kernel
        pairs = [n for p, axis in zip(positions, axes, strict=True) for n in (p, axis.phases)]
        rank = len(axes)
        order = [0, 1, *(3 + 2 * i for i in range(rank)), *(2 + 2 * i for i in range(rank))]
        return spread.reshape(*kernel.shape[:2], *pairs).permute(order).reshape(-1, math.prod(positions))

    @property
    def _repeats(self) -> float:
        """The norm of the map that repeats outputs, or inputs."""
        return math.sqrt(math.prod(axis.repeats for axis in self._axes))

    def _frequency_stack(self, kernel: Tensor, scale: float, frobenius: float) -> GramStack:
        transform, largest, error = self._transform(kernel, frobenius)
        return gram_stack(transform.maps(), scale * self._repeats * UP_MANY, largest, error, "frequencies")

    def at_frequencies(self, kernel: Tensor) -> Tensor:
        """Return K̂(ω), [frequencies·groups, rows, columns], see 3., ω over half the grid; differentiable."""
        return self._transform(kernel, 0.0)[0].maps()

    def _transform(self, kernel: Tensor, frobenius: float) -> tuple[Transform, float, float]:
        """Return the matrices K̂(ω) of the stride-one circular form, ω over half the grid, since K is real; a bound
        of the Frobenius norm of each, and of how far it is from the exact one.

        The transform is a plain product with cosines and sines in the dtype of the kernel, whose rounding is a
        line to bound: each entry is off by at most ε·Σ_t|K_t| with ε = γ_taps + phase error, so each matrix by
        ε·√taps·‖K‖_F. In float32 cosines and sines are rounded once more, of which γ_taps has enough to spare.
        """
        axes, taps = self._axes, math.prod(self.kernel_size)
        kernels = self._polyphase(kernel)
        angles = _angles(axes, [self._span(i) // axis.phases + 1 for i, axis in enumerate(axes)], kernel.device)
        channels = kernel.shape[1] * math.prod(axis.phases for axis in axes)
        transform = Transform(kernels.reshape(self.groups, -1, channels, kernels.shape[1]), angles)
        largest = math.sqrt(taps) * frobenius * UP_MANY
        unit = torch.finfo(kernel.dtype).eps / 2
        return transform, largest, largest * (8 * (kernels.shape[1] + 2) * unit + _PHASE_ERROR)


def _copies(size: int, padding: tuple[int, int], mode: PaddingMode) -> int:
    """How often the most repeated of ``size`` entries stands in the axis padded by reflection or replication."""
    low, high = padding
    before, after = range(-low, 0), range(size, size + high)
    if mode == "reflect":
        outside = [-i for i in before] + [2 * (size - 1) - i for i in after]
    else:
        outside = [0 for _ in before] + [size - 1 for _ in after]
    return 1 + max(Counter(outside).values(), default=0)


def _angles(axes: list[_Axis], positions: list[int], device: torch.device) -> Tensor:
    """Return 2π·Σ_axis ω·position/grid, [frequencies, positions], the last axis of ω over half its grid.

    The fractions are reduced modulo one in integers, so the error of an angle is a few roundings of at most
    6π.
    """
    total = torch.zeros(1, 1, dtype=torch.float64, device=device)
    for index, (axis, count) in enumerate(zip(axes, positions, strict=True)):
        last = index == len(axes) - 1
        frequency = torch.arange(axis.grid // 2 + 1 if last else axis.grid, device=device)
        turns = (frequency[:, None] * torch.arange(count, device=device)) % axis.grid
        turns_of_grid = turns.to(torch.float64) / axis.grid
        total = (total[:, None, :, None] + turns_of_grid[None, :, None, :]).flatten(2).flatten(0, 1)
    return 2 * math.pi * total

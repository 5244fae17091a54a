"""Weight gradients of single examples: their norms, and sums of them scaled one by one, held or not.

The weight gradient of example i is P_i = Σ_t g_t·w_tᵀ over positions t, of the cotangents g_t of what a layer
made, and of the windows w_t of what it read: one bilinear function for dense layers on tokens, convolutions of
any rank and any groups, and, with the two exchanged, transposed convolutions.

Formal guarantees, in float32 and but for underflow: what is computed is P̃_i with

    ‖P̃_i - P_i‖ ≤ γ·Σ_t ‖g_t‖·‖w_t‖ ≤ γ·√m·‖g_i‖·‖x_i‖,    γ = k·u/(1 - k·u),  u = 2⁻²⁴,

where k is :attr:`ExampleGradients.depth` and m windows read one entry at most (proof:
`kernels/example_gradients.c`). Without native code processors compute in float64, and the same holds with u = 2⁻⁵³
and k the number of positions, since torch's order of summation is not known; so it is on other devices with u =
2⁻²⁴. The norm of P̃_i is off by a relative (n + 4)·2⁻⁵³ at most, with n entries. A sum over B examples is added in
float64, and off by at most 2·B·2⁻⁵³·Σ_i |s_i|·‖P̃_i‖.

With native code the bits of P̃_i, of its norm and of its factor depend on x_i, g_i and the geometry alone: not
on the batch, the number of threads or the processor, and P̃_i is the same in norms and in sums. So
‖factor_i·P̃_i‖ ≤ C holds exactly, for these floating point numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  (its name everywhere in this field)

from ..certify.sums import working_dtype
from ..devices import at_once, is_processor
from .factors import Factors
from .native_gradients import HeldGradients, NativeGradients, Scaling, native_gradients
from .outer_product_plans import depth
from .outer_products import Sizes, Windows

_AT_ONCE = 2**22, 2**26
"""Entries of gradients or windows that torch's operations hold at once: what caches and memory like."""


@dataclass(frozen=True, slots=True)
class Clip:
    """How the gradient of an example is scaled to at most a length C.

    Args:
        length: C.
        regulariser: None for min(1, C/n) of a gradient of norm n; γ for C/(n + γ), "automatic" (Bu et al. 2022).

    Raises:
        ValueError: C or γ is not positive and finite.
    """

    length: float
    regulariser: float | None = None

    def __post_init__(self) -> None:
        for value in (self.length, 1.0 if self.regulariser is None else self.regulariser):
            if not 0 < value < math.inf:
                raise ValueError(f"{self}: length and regulariser must be positive and finite")

    def scaling(self, entries: int, beside: Tensor | None) -> Scaling:
        """Return it for gradients of e entries, with room for rounding.

        With u = 2⁻⁵³, the norm that is computed, with what is beside it and γ, is at least 1 - (e + 6)·u of what
        it should be. So factor·norm ≤ room·(1 + u)/(1 - (e + 6)·u), which is at most C with room = C·(1 - 2·(e +
        8)·u), itself rounded twice.
        """
        room = self.length * (1.0 - (entries + 8) * 2.0**-52)
        return Scaling(room if self.regulariser is None else -1.0, room, self.regulariser or 0.0, beside)


@dataclass(frozen=True, slots=True)
class Clipped:
    """Clipped gradients of a batch.

    Attributes:
        total: Σ_i factor_i·P_i in float64, in the shape of the weight.
        factors: [B] in float64; 0 for an example that is not finite, which adds nothing, not even NaN.
        norms: √(‖P_i‖² + beside_i), [B] in float64.
    """

    total: Tensor
    factors: Tensor
    norms: Tensor


@dataclass(frozen=True, slots=True)
class ExampleGradients:
    """Weight gradients P_i of the examples of a batch, each [F, C/groups, *kernel]; [p, d] of a dense layer.

    Results are not differentiable.

    Args:
        read: what the layer read, [B, C, *inputs].
        made: the cotangent of what it made, [B, F, *outputs].
        windows: where it reads.
        is_dense: whether results lose the axis of the kernel.

    Raises:
        ValueError: shapes or devices that do not belong together.
    """

    read: Tensor
    made: Tensor
    windows: Windows
    is_dense: bool = False

    def __post_init__(self) -> None:
        rank, groups = len(self.windows.kernel), self.windows.groups
        shapes = f"operands {list(self.read.shape)} and {list(self.made.shape)}"
        if {self.read.dim(), self.made.dim()} != {rank + 2} or len(self.read) != len(self.made):
            raise ValueError(f"{shapes}: want [B, C, *inputs] and [B, F, *outputs] with {rank} axes of positions")
        if self.read.shape[1] % groups or self.made.shape[1] % groups:
            raise ValueError(f"{shapes}: the channels do not divide into {groups} groups")
        if self.read.device != self.made.device:
            raise ValueError(f"operands on {self.read.device} and {self.made.device}: move both to one device")

    @staticmethod
    def of_tokens(x: Tensor, cotangent: Tensor) -> ExampleGradients:
        """Return those of a dense layer on the last axis of x [B, …, d], each [p, d].

        Args:
            cotangent: [B, …, p].
        """
        read, made = (t.reshape(len(t), math.prod(t.shape[1:-1]), t.shape[-1]).mT for t in (x, cotangent))
        return ExampleGradients(read, made, Windows((1,), (1,), (0,), (1,)), is_dense=True)

    def by_example(self, views: int) -> ExampleGradients:
        """Return the gradients of examples of which each is so many rows, one after the other: their sums.

        Rows are tokens of a dense layer. Of a convolution they are positions along one more axis, on which the
        kernel has one tap.
        """
        if views == 1:
            return self
        read, made = (by_example(rows, views).transpose(1, 2) for rows in (self.read, self.made))
        if self.is_dense:
            return replace(self, read=read.flatten(2), made=made.flatten(2))
        own = self.windows
        windows = Windows((1, *own.kernel), (1, *own.stride), (0, *own.padding), (1, *own.dilation), own.groups)
        return replace(self, read=read, made=made, windows=windows)

    @property
    def examples(self) -> int:
        """B."""
        return len(self.read)

    @property
    def is_native(self) -> bool:
        """Whether native code computes them, so that the bits of P̃_i depend on its example alone."""
        return self._native() is not None

    @property
    def depth(self) -> int:
        """How often a product is rounded to float32 at most on its way into P̃_i."""
        return depth(self._sizes()) if self.is_native else math.prod(self.made.shape[2:])

    def total(self) -> Tensor:
        """Return Σ_i P_i in float64."""
        return self.scaled(None)

    @torch.no_grad()
    def norms(self) -> Tensor:
        """Return ‖P_i‖, [B] in float64; infinity or NaN where P_i is not finite."""
        native = self._native()
        return native.norms() if native else self._norms()

    @torch.no_grad()
    def scaled(self, factors: Factors | Tensor | None) -> Tensor:
        """Return Σ_i factor_i·P_i, of factors [B]; with factor 0 an example adds nothing, not even NaN. In float64
        on processors; elsewhere it may be in float32.
        """
        own, native = Factors(factors, has_zeros=True) if isinstance(factors, Tensor) else factors, self._native()
        if own is not None:
            own = replace(own, values=self._per_example(own.values))
        total = native.scaled(None if own is None else own.values) if native else self._sum(own)
        return self._shaped(total)

    @torch.no_grad()
    def clipped(self, clip: Clip, beside: Tensor | None = None) -> Clipped:
        """Return gradients scaled to at most ``clip.length``, together with what else belongs to the same group.

        Args:
            beside: squared norms, [B], of gradients of other parameters, as of a bias, that get the same factors.
        """
        beside = None if beside is None else self._per_example(beside)
        scaling, native = clip.scaling(self._entries(), beside), self._native()
        total, factors, norms = native.clipped(scaling) if native else self._clip(scaling)
        return Clipped(self._shaped(total), factors, norms)

    @torch.no_grad()
    def held(self) -> HeldGradients | Tensor | None:
        """Return all P_i where that takes no more memory than what they are made of, on other devices than
        processors twice as much: there as rows [B, entries]. Else None.
        """
        native, operands = self._native(), self.read.numel() + self.made.numel()
        if native is not None:
            return native.held() if native.size * len(self.read) <= operands else None
        if is_processor(self.read.device) or not 0 < self._entries() * len(self.read) <= 2 * operands:
            return None
        return _joined([rows for _, rows in self._chunks()])

    @torch.no_grad()
    def at_once(self) -> Tensor | None:
        """Return all P_i as rows [B, entries], where no native code computes them and they are made in one piece;
        else None.
        """
        if not len(self.read) or self._most_at_once() < len(self.read) or self.is_native:
            return None
        ((_, rows),) = self._chunks()
        return rows

    def rows(self, some: slice) -> Tensor:
        """Return P_i of some examples, [c, entries] in float64."""
        return _gradients(self.read[some], self.made[some], self.windows).double()

    def _native(self) -> NativeGradients | None:
        return native_gradients(self._sizes(), self.read, self.made)

    def _sizes(self) -> Sizes:
        (_, channels, *inputs), (_, filters, *outputs) = self.read.shape, self.made.shape
        return Sizes(self.windows, channels, tuple(inputs), filters, tuple(outputs))

    def _entries(self) -> int:
        return self.made.shape[1] * self.read.shape[1] // self.windows.groups * math.prod(self.windows.kernel)

    def _per_example(self, given: Tensor) -> Tensor:
        if given.shape != self.read.shape[:1]:
            raise ValueError(
                f"expected one number for each of {len(self.read)} examples; got shape {list(given.shape)}"
            )
        return given.detach().to(self.read.device, torch.float64).contiguous()

    def _shaped(self, total: Tensor) -> Tensor:
        shape = self.made.shape[1], self.read.shape[1] // self.windows.groups, *self.windows.kernel
        return total.reshape(shape[:2] if self.is_dense else shape)

    # --- by torch's operations ---

    def _chunks(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield gradients of some examples, [c, entries] in float32 or float64."""
        most = self._most_at_once()
        if 0 < len(self.read) <= most:  # then nothing is cut
            yield slice(None), _gradients(self.read, self.made, self.windows)
            return
        for start in range(0, len(self.read), most):
            some = slice(start, start + most)
            yield some, _gradients(self.read[some], self.made[some], self.windows)

    def _most_at_once(self) -> int:
        unfolded = math.prod(self.made.shape[2:]) * self.read.shape[1] * math.prod(self.windows.kernel)
        return max(at_once(self.read.device, *_AT_ONCE) // max(unfolded, self._entries(), 1), 1)

    def _zeros(self, count: int) -> Tensor:
        return torch.zeros(count, dtype=torch.float64, device=self.read.device)

    def _norms(self) -> Tensor:
        parts = [torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64) for _, rows in self._chunks()]
        return _joined(parts) if parts else self._zeros(0)

    def _sum(self, factors: Factors | None) -> Tensor:
        parts = (_combined(rows, factors and factors.of_some(some)) for some, rows in self._chunks())
        total = next(parts, None)
        if total is None:
            return self._zeros(self._entries())
        return reduce(lambda found, part: found.double().add_(part), parts, total)

    def _clip(self, scaling: Scaling) -> tuple[Tensor, Tensor, Tensor]:
        examples = len(self.read)
        norms, factors, total = self._zeros(examples), self._zeros(examples), self._zeros(self._entries())
        for some, rows in self._chunks():
            squares = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).square()
            norm = (squares if scaling.beside is None else squares + scaling.beside[some]).sqrt()
            factors[some], norms[some] = scaling.factors(norm), norm
            total += _combined(rows, Factors(factors[some], has_zeros=True))
        return total, factors, norms


def by_example(rows: Tensor, views: int) -> Tensor:
    """Return rows [B·views, …] as [B, views, …]."""
    return rows.reshape(len(rows) // views, views, *rows.shape[1:])


def _combined(rows: Tensor, factors: Factors | None) -> Tensor:
    """Return Σ factor·row, without the rows whose factor is 0."""
    return rows.sum(0, dtype=torch.float64) if factors is None else factors.sum(rows)


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _gradients(read: Tensor, made: Tensor, windows: Windows) -> Tensor:
    """Return gradients [B, F·C/groups·taps]."""
    dtype = torch.float64 if is_processor(made.device) else working_dtype(read, made)
    groups = windows.groups
    if 0 in made.shape:  # torch cuts no windows where there are none
        return made.new_zeros(len(made), made.shape[1] * read.shape[1] // groups * math.prod(windows.kernel))
    made, columns = made.to(dtype).flatten(2), _columns(read.to(dtype), made.shape[2:], windows)
    if groups == 1:
        return torch.bmm(made, columns.mT).flatten(1)
    grouped, own = (torch.unflatten(operand, 1, (groups, -1)) for operand in (made, columns))
    return torch.flatten(grouped @ own.mT, 1)


def _columns(read: Tensor, outputs: torch.Size, windows: Windows) -> Tensor:
    """Return the window of each position, [B, C·taps, positions]."""
    if windows.are_entries and read.shape[2:] == outputs:
        return read.flatten(2)
    rank = len(windows.kernel)
    if rank == 2 and windows.outputs(read.shape[2:]) == tuple(outputs):  # one operation
        return F.unfold(read, windows.kernel, windows.dilation, windows.padding, windows.stride)
    return unfolded(read, outputs, windows).flatten(2 + rank).flatten(2, 1 + rank).mT.flatten(1, 2)


def unfolded(read: Tensor, outputs: torch.Size, windows: Windows) -> Tensor:
    """Return all windows, [B, C, *outputs, *kernel]."""
    axes = list(zip(windows.kernel, windows.stride, windows.padding, windows.dilation, outputs, strict=True))
    sides = [
        (low, (out - 1) * step + (taps - 1) * gap + 1 - low - size)
        for size, (taps, step, low, gap, out) in zip(read.shape[2:], axes, strict=True)
    ]
    padding = [side for pair in reversed(sides) for side in pair]
    found = F.pad(read, padding) if any(padding) else read
    for axis, (taps, step, _, gap, _) in enumerate(axes, start=2):
        found = found.unfold(axis, (taps - 1) * gap + 1, step)[..., ::gap]
    return found

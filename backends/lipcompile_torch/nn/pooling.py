"""Pooling over windows. Names are re-exported by :mod:`.functional`.

Padding is (lo, hi) zeros an axis, or -∞ for maxima, of any size. The gradient of y = √Σx² in x is x/y: it takes
the input and the output of the forward pass and nothing else. Sums over windows, and their transposes, go axis by
axis, tap by tap, on views, in the memory format of the input.
"""

from __future__ import annotations

from functools import reduce
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  (its name everywhere in this field)

from ..autograd import apply, in_place, instances_first, write
from ..certify.sums import working_dtype
from .normalisation import p_norm


class Axis(NamedTuple):
    """A window along one axis."""

    axis: int  # from the end: negative
    kernel: int
    stride: int
    dilation: int

    def taps(self, x: Tensor) -> list[Tensor]:
        """View what each tap sees of ``x``.

        Raises:
            ValueError: the window is larger than the axis.
        """
        size = x.shape[self.axis]
        steps = (size - self.dilation * (self.kernel - 1) - 1) // self.stride
        if steps < 0:
            raise ValueError(
                f"a window of {self.kernel} taps with dilation {self.dilation} is longer than an axis of "
                f"{size} entries"
            )
        index: list[Any] = [slice(None)] * x.dim()
        views = []
        for start in range(0, self.dilation * self.kernel, self.dilation):
            index[self.axis] = slice(start, start + steps * self.stride + 1, self.stride)
            views.append(x[tuple(index)])
        return views

    def tiles(self, x: Tensor) -> bool:
        """Whether each entry of the axis is in one window."""
        return self.stride == self.kernel and self.dilation == 1 and x.shape[self.axis] % self.kernel == 0

    def sums(self, x: Tensor) -> Tensor:
        """Sum each window."""
        return reduce(torch.add, self.taps(x))

    def spread(self, totals: Tensor, like: Tensor) -> Tensor:
        """Give each entry the sum of ``totals`` over the windows that it is in: the transpose of :meth:`sums`.
        Size of the axis and memory format are those of ``like``.
        """
        for place in range(-like.dim(), self.axis):
            like = like.narrow(place, 0, totals.shape[place])
        if self.tiles(like):
            result = torch.empty_like(like)
            for tap in self.taps(result):
                tap.copy_(totals)
            return result
        result = torch.zeros_like(like)
        for tap in self.taps(result):
            tap.add_(totals)
        return result


Axes = tuple[Axis, ...]


class _Norms(torch.autograd.Function):
    """√Σx² of each window."""

    @staticmethod
    def forward(x: Tensor, axes: Axes) -> Tensor:
        first, *others = axes[0].taps(x)
        total = first * first
        for tap in others:
            total.addcmul_(tap, tap)
        for axis in axes[1:]:
            total = axis.sums(total)
        return in_place(total, "sqrt")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Axes], output: Tensor) -> None:
        x, ctx.axes = inputs
        ctx.save_for_backward(x, output)
        tiny, eps = torch.finfo(x.dtype).tiny, torch.finfo(x.dtype).eps
        ctx.floor = (prod([axis.kernel for axis in ctx.axes]) * tiny / eps) ** 0.5

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, None]:
        x, norms = ctx.saved_tensors
        quotients = cotangents[0] / F.threshold(norms, ctx.floor, torch.inf)  # 0 up to the floor, derivatives too
        return apply(_Scaled, x, quotients, ctx.axes), None

    @staticmethod
    def vmap(info: Any, dimensions: Any, x: Tensor, axes: Axes) -> tuple[Any, int]:
        return apply(_Norms, *instances_first(info.batch_size, dimensions, x), axes), 0


class _Scaled(torch.autograd.Function):
    """Multiply each entry by the sum of ``factors`` over the windows that it is in."""

    @staticmethod
    def forward(x: Tensor, factors: Tensor, axes: Axes) -> Tensor:
        for axis in reversed(axes[1:]):
            factors = axis.spread(factors, x)
        if not axes[0].tiles(x):
            return in_place(axes[0].spread(factors, x), "mul", x)
        result = torch.empty_like(x)
        for tap, place in zip(axes[0].taps(x), axes[0].taps(result), strict=True):
            write(place, torch.mul, tap, factors)
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Axes], output: Tensor) -> None:  # noqa: ARG004
        x, factors, ctx.axes = inputs
        ctx.save_for_backward(x, factors)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, Tensor, None]:
        x, factors = ctx.saved_tensors
        products = x * cotangents[0]
        for axis in ctx.axes:
            products = axis.sums(products)
        return apply(_Scaled, cotangents[0], factors, ctx.axes), products, None

    @staticmethod
    def vmap(info: Any, dimensions: Any, x: Tensor, factors: Tensor, axes: Axes) -> tuple[Any, int]:
        return apply(_Scaled, *instances_first(info.batch_size, dimensions, x, factors), axes), 0


def window_norms(x: Tensor, axes: Axes) -> Tensor:
    """Return √Σx² over windows of the last axes of ``x``, float32 or float64.

    The gradient is x/√Σx², and 0 where Σx² < T·tiny/eps, T the number of taps.

    Raises:
        ValueError: a window is larger than its axis.
    """
    norms: Tensor = apply(_Norms, x, axes)
    return norms


Sizes = tuple[int, ...]
Pairs = tuple[tuple[int, int], ...]


def padded(x: Tensor, padding: Pairs, value: float) -> Tensor:
    """Pad the last ``len(padding)`` axes with ``value``, (lo, hi) an axis."""
    if not any(low or high for low, high in padding):
        return x
    return F.pad(x, [side for pair in reversed(padding) for side in pair], value=value)


def _windows(x: Tensor, kernel: Sizes, stride: Sizes | None, padding: Pairs | None) -> tuple[Sizes, Pairs]:
    """Check the rank of ``x``; fill in the defaults of a pooling: stride = kernel, no padding."""
    if x.dim() != len(kernel) + 2:
        raise ValueError(f"pooling with {kernel} needs examples of rank {len(kernel) + 1}, not {x.dim() - 1}")
    return stride or kernel, padding or ((0, 0),) * len(kernel)


def _sum_pool(x: Tensor, kernel: Sizes, stride: Sizes, dilation: Sizes | None = None) -> Tensor:
    """Sum each window of the last one to three axes of [B, C, *spatial]."""
    if dilation and max(dilation) > 1:
        convolve = (F.conv1d, F.conv2d, F.conv3d)[len(kernel) - 1]
        ones = x.new_ones(x.shape[1], 1, *kernel)
        return convolve(x, ones, None, stride, (0,) * len(kernel), dilation, x.shape[1])
    if len(kernel) == 1:
        return F.avg_pool2d(x.unsqueeze(-2), (1, *kernel), (1, *stride), divisor_override=1).squeeze(-2)
    pool = F.avg_pool2d if len(kernel) == 2 else F.avg_pool3d
    return pool(x, kernel, stride, divisor_override=1)


def max_pool(
    x: Tensor,
    kernel: Sizes,
    stride: Sizes | None = None,
    padding: Pairs | None = None,
    dilation: Sizes | None = None,
) -> Tensor:
    """Take the maximum of each window of [B, C, *spatial]; padding counts as -∞.

    Formal guarantees: √m-Lipschitz, m = the most windows that one entry is in (each output passes its
    cotangent to one entry).
    """
    stride, padding = _windows(x, kernel, stride, padding)
    pool = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[len(kernel) - 1]
    return pool(padded(x, padding, -torch.inf), kernel, stride, 0, dilation or (1,) * len(kernel))


def avg_pool(
    x: Tensor,
    kernel: Sizes,
    stride: Sizes | None = None,
    padding: Pairs | None = None,
    counted: Pairs | None = None,
) -> Tensor:
    """Average each window of [B, C, *spatial]. The divisor is the number T of taps; with ``counted``, that of the
    taps on the axis or on its first ``counted`` = (lo, hi) paddings (none: torch's count_include_pad=False).

    Formal guarantees: √(m/T)-Lipschitz, m = the most windows that one entry is in, if no tap is left out of a
    divisor; else ‖A‖-Lipschitz, A the matrix of the averages.
    """
    stride, padding = _windows(x, kernel, stride, padding)
    totals = scaled_avg_pool(x, kernel, stride, padding)
    if counted is None:
        return totals / prod(kernel)
    divisors = torch.ones((), device=x.device)
    for size, outputs, *axis in zip(x.shape[2:], totals.shape[2:], kernel, stride, padding, counted, strict=True):
        taps = torch.tensor(_counted(size, outputs, *axis), device=x.device)
        divisors = divisors[..., None] * taps
    return (totals / divisors).to(totals.dtype)


def _counted(
    size: int, outputs: int, kernel: int, stride: int, padding: tuple[int, int], counted: tuple[int, int]
) -> list[int]:
    """Count the taps of each position of a window within -lo <= i < size + hi, where (lo, hi) is ``counted``."""
    starts = [output * stride - padding[0] for output in range(outputs)]
    return [min(start + kernel, size + counted[1]) - max(start, -counted[0]) for start in starts]


def scaled_avg_pool(x: Tensor, kernel: Sizes, stride: Sizes | None = None, padding: Pairs | None = None) -> Tensor:
    """Return :func:`avg_pool` times the product of the kernel, i.e. the sum of each window. √(m·T)-Lipschitz."""
    stride, padding = _windows(x, kernel, stride, padding)
    return _sum_pool(padded(x, padding, 0.0), kernel, stride)


def global_avg_pool(x: Tensor, keep: bool = False) -> Tensor:
    """Average [B, C, *spatial] over all P positions: [B, C], with ``keep`` [B, C, 1, …]. 1/√P-Lipschitz."""
    return x.mean(dim=tuple(range(2, x.dim())), keepdim=keep)


def l2_pool(
    x: Tensor,
    kernel: Sizes,
    stride: Sizes | None = None,
    padding: Pairs | None = None,
    dilation: Sizes | None = None,
) -> Tensor:
    """Return √Σx² of each window of [B, C, *spatial]: the plain operator, without an ε.

    Formal guarantees: √m-Lipschitz and ‖output‖ ≤ √m·‖x‖, m = the most windows that one entry is in. The
    gradient x/y is defined as 0 at 0, and wherever Σx² < T·tiny/eps, where squares lost to underflow could
    make |x/y| exceed 1 (below 1e-14 in float32: no gradient worth having is lost). Half precision is computed
    in float32.
    """
    stride, padding = _windows(x, kernel, stride, padding)
    working = padded(x.to(working_dtype(x)), padding, 0.0)
    axes = zip(range(-len(kernel), 0), kernel, stride, dilation or (1,) * len(kernel), strict=True)
    pooled = window_norms(working, tuple([Axis(*axis) for axis in axes]))
    return pooled.to(x.dtype)


def lp_pool(
    x: Tensor,
    p: int,
    kernel: Sizes,
    stride: Sizes | None = None,
    padding: Pairs | None = None,
    dilation: Sizes | None = None,
) -> Tensor:
    """Return (Σ|x|^p)^(1/p) of each window of [B, C, *spatial], p >= 1 an integer.

    Formal guarantees: √m-Lipschitz for p >= 2, m = the most windows that one entry is in; for p = 1 as
    :func:`scaled_avg_pool`. The gradient is 0 at 0, and on windows whose entries are all below tiny/eps.
    """
    stride, padding = _windows(x, kernel, stride, padding)
    if p == 1:
        return _sum_pool(padded(x.abs(), padding, 0.0), kernel, stride, dilation)
    if p == 2:
        return l2_pool(x, kernel, stride, padding, dilation)
    entries = padded(x, padding, 0.0)
    for axis, (taps, step, gap) in enumerate(zip(kernel, stride, dilation or (1,) * len(kernel), strict=True), 2):
        entries = entries.unfold(axis, gap * (taps - 1) + 1, step)[..., ::gap]
    return p_norm(entries, p, tuple(range(x.dim(), entries.dim())))

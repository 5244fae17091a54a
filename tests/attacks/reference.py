"""What every op and loss computes on one example, from its definition: the oracle of the attacks.

No code of the compiler's rules and none of the runtime is used: windows are gathered entry by entry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from lipcompile.ops.record import Site

Tensors = Sequence[Tensor]
Theta = Mapping[str, Tensor]


def _split(x: Tensor, axis: int, sizes: Sequence[int]) -> Tensor:
    """Return `x` with one axis split into several."""
    return x.reshape(*x.shape[:axis], *sizes, *x.shape[axis + 1 :])


def windows(x: Tensor, attributes: Any, fill: float = 0.0, mode: str = "zeros") -> Tensor:
    """Gather [channels, *outputs, *kernel] from [channels, *sizes]."""
    axes = zip(attributes.kernel, attributes.stride, attributes.dilation, attributes.padding, strict=True)
    for axis, (kernel, stride, dilation, (low, high)) in enumerate(axes, start=1):
        size = x.shape[axis]
        outputs = range((size + low + high - dilation * (kernel - 1) - 1) // stride + 1)
        entries = torch.tensor([o * stride + t * dilation - low for o in outputs for t in range(kernel)])
        if mode == "circular":
            entries = entries % size
        else:
            before, after = list(x.shape), list(x.shape)
            before[axis], after[axis] = low, high
            x = torch.cat((x.new_full(before, fill), x, x.new_full(after, fill)), dim=axis)
            entries = entries + low
        x = _split(x.index_select(axis, entries), axis, (len(outputs), kernel)).movedim(axis + 1, -1)
    return x


def conv(attributes: Any, x: Tensor, theta: Theta) -> Tensor:
    read = windows(x, attributes, mode=attributes.padding_mode)
    rank, groups = len(attributes.kernel), attributes.groups
    outputs = read.shape[1 : 1 + rank]
    read = _split(read.flatten(1 + rank).flatten(1, rank), 0, (groups, -1))
    kernel = _split(theta["weight"].flatten(2), 0, (groups, -1))
    result = torch.einsum("gcot,gfct->gfo", read, kernel).reshape(-1, *outputs)
    return result + theta["bias"].reshape(-1, *(1,) * rank) if "bias" in theta else result


def dense(x: Tensor, theta: Theta) -> Tensor:
    result = x @ theta["weight"].T
    return result + theta["bias"] if "bias" in theta else result


def _axis(attributes: Any, x: Tensor) -> int:
    default = -1 if x.dim() <= 2 else 0
    return int((default if attributes.axis is None else attributes.axis) % x.dim())


def group_sort(attributes: Any, x: Tensor) -> Tensor:
    axis = _axis(attributes, x)
    groups = _split(x, axis, (-1, attributes.size))
    return groups.sort(dim=axis + 1).values.reshape(x.shape)


def transpose(attributes: Any, x: Tensor) -> Tensor:
    return x.permute(attributes.axes) if attributes.axes else x.transpose(-1, -2)


def patches(attributes: Any, x: Tensor) -> Tensor:
    return F.pixel_unshuffle(x, attributes.size).flatten(1).T


def pad(attributes: Any, x: Tensor) -> Tensor:
    return F.pad(x, [side for sides in reversed(attributes.padding) for side in sides])


def clip_norm(attributes: Any, x: Tensor) -> Tensor:
    return x / torch.clamp(x.norm() / float(attributes.radius), min=1)


class _ClipGradient(torch.autograd.Function):
    """Identity forward; the cotangent of this example is projected on a ball."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bound: float) -> Tensor:
        ctx.bound = bound
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, None]:
        return cotangents[0] / torch.clamp(cotangents[0].norm() / ctx.bound, min=1), None


def clip_gradient(attributes: Any, x: Tensor) -> Tensor:
    clipped: Any = _ClipGradient.apply(x, float(attributes.bound))  # type: ignore[no-untyped-call]
    return clipped  # type: ignore[no-any-return]


def cut(attributes: Any, x: Tensor) -> Tensor:
    return x.narrow(attributes.axis, attributes.start, attributes.stop - attributes.start)


def add(attributes: Any, xs: Tensors) -> Tensor:
    terms = [float(weight) * x for weight, x in zip(attributes.weights, xs, strict=True)]
    return sum(terms[1:], start=terms[0])


UNARY: Mapping[str, Callable[[Any, Tensor], Tensor]] = {
    "relu": lambda _, x: x * (x > 0),
    "leaky_relu": lambda a, x: torch.where(x >= 0, x, float(a.slope) * x),
    "tanh": lambda _, x: torch.tanh(x),
    "sigmoid": lambda _, x: 1 / (1 + torch.exp(-x)),
    "softplus": lambda _, x: torch.logaddexp(x, torch.zeros_like(x)),
    "abs": lambda _, x: x.abs(),
    "groupsort": group_sort,
    "fullsort": lambda a, x: x.sort(dim=_axis(a, x)).values,
    "max_pool": lambda a, x: windows(x, a, fill=-torch.inf).flatten(1 + len(a.kernel)).amax(-1),
    "l2_pool": lambda a, x: torch.linalg.vector_norm(windows(x, a).flatten(1 + len(a.kernel)), dim=-1),
    "avg_pool": lambda a, x: windows(x, a).flatten(1 + len(a.kernel)).mean(-1),
    "scaled_avg_pool": lambda a, x: windows(x, a).flatten(1 + len(a.kernel)).sum(-1),
    "global_avg_pool": lambda a, x: x.mean(dim=tuple(range(1, x.dim())), keepdim=a.keep),
    "identity": lambda _, x: x.clone(),
    "flatten": lambda _, x: x.flatten(),
    "reshape": lambda a, x: x.reshape(a.shape),
    "transpose": transpose,
    "space_to_depth": lambda a, x: F.pixel_unshuffle(x, a.size),
    "depth_to_space": lambda a, x: F.pixel_shuffle(x, a.size),
    "patches": patches,
    "pad": pad,
    "slice": cut,
    "clip_norm": clip_norm,
    "clip_gradient": clip_gradient,
}


def apply(op: str, site: Site[Any], xs: Tensors, theta: Theta, kept: Tensor | None = None) -> Tensor:
    """Run op `op` on one example. `kept` is the 0/1 mask that a dropout draws (all ones if None)."""
    attributes = site.attributes
    if op in UNARY:
        return UNARY[op](attributes, xs[0])
    if op == "dense":
        return dense(xs[0], theta)
    if op == "conv":
        return conv(attributes, xs[0], theta)
    if op == "bias":
        return xs[0] + theta["bias"]
    if op == "dropout":
        return xs[0] * (1 if kept is None else kept) / (1 - float(attributes.probability))
    if op == "add":
        return add(attributes, xs)
    if op == "concat":
        return torch.cat(tuple(xs), dim=_axis(attributes, xs[0]))
    raise KeyError(op)


# Losses


def _signs(logits: Tensor, target: int) -> Tensor:
    signs = -torch.ones_like(logits)
    signs[target] = 1
    return signs


def _over(values: Tensor, reduce: str) -> Tensor:
    return values.mean() if reduce == "mean" else values.sum()


def _hkr(agreement: Tensor, alpha: Any, margin: Any) -> Tensor:
    return -agreement + float(alpha) * torch.relu(float(margin) - agreement)


def cross_entropy(a: Any, logits: Tensor, target: int) -> Tensor:
    scaled = float(a.temperature) * logits
    value = torch.logsumexp(scaled, dim=0) - scaled[target]
    return value / float(a.temperature) if a.normalise else value


def bce(a: Any, logits: Tensor, target: float) -> Tensor:
    scaled = float(a.temperature) * logits.reshape(())
    positive, negative = F.logsigmoid(scaled), F.logsigmoid(-scaled)
    value = -(target * positive + (1 - target) * negative)
    return value / float(a.temperature) if a.normalise else value


LOSS: Mapping[str, Callable[[Any, Tensor, Any], Tensor]] = {
    "cross_entropy": cross_entropy,
    "bce": bce,
    "hinge": lambda a, z, y: torch.relu(float(a.margin) - y * z).sum(),
    "kr": lambda _, z, y: (-y * z).sum(),
    "hkr": lambda a, z, y: _hkr(y * z, a.alpha, a.margin).sum(),
    "multiclass_hinge": lambda a, z, y: _over(torch.relu(float(a.margin) - _signs(z, y) * z), a.reduce),
    "multiclass_kr": lambda a, z, y: _over(-_signs(z, y) * z, a.reduce),
    "multiclass_hkr": lambda a, z, y: _over(_hkr(_signs(z, y) * z, a.alpha, a.margin), a.reduce),
    "squared_error": lambda _, z, y: ((z - y) ** 2).sum() / 2,
    "cosine": lambda a, z, y: -z[y] / torch.clamp(z.norm(), min=float(a.floor)),
}

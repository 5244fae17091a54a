"""Pooling over windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lipcompile.core.graph import Node
from lipcompile.emitters.torch.pieces import Expression, keywords
from lipcompile.ops.pool.rules import counted, windows


def _arguments(node: Node) -> list[str]:
    """Write the window: what ceil_mode adds is padding."""
    pool = node.attributes
    axes = len(pool.kernel)
    padding = tuple(window.padding for window in windows(node.site))
    optional = {
        "stride": (pool.stride, pool.kernel),
        "padding": (padding, ((0, 0),) * axes),
        "dilation": (pool.dilation, (1,) * axes),
    }
    return [f"{pool.kernel}", *keywords(optional)]


def _pool(name: str) -> Expression:
    return lambda node, x: f"functional.{name}({', '.join([x[0], *_arguments(node)])})"


def _average(node: Node, operands: Sequence[str]) -> str:
    """Write an average, and what its divisors count if that is not every tap."""
    sides = counted(node.site)
    pairs = zip(windows(node.site), sides, strict=True)
    whole = all(w.padding[0] <= low and w.padding[1] <= high for w, (low, high) in pairs)
    divisor = [] if whole else [f"counted={sides}"]
    return f"functional.avg_pool({', '.join([operands[0], *_arguments(node), *divisor])})"


def _adaptive(node: Node, operands: Sequence[str]) -> str:
    size = node.attributes.size
    return f"F.adaptive_avg_pool{len(size)}d({operands[0]}, {size})"


EXPRESSIONS: Mapping[str, Expression] = {
    "max_pool": _pool("max_pool"),
    "l2_pool": _pool("l2_pool"),
    "lp_pool": lambda node, operands: (
        f"functional.lp_pool({', '.join([operands[0], str(node.attributes.p), *_arguments(node)])})"
    ),
    "avg_pool": _average,
    "scaled_avg_pool": _pool("scaled_avg_pool"),
    "adaptive_avg_pool": _adaptive,
}

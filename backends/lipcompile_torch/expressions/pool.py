"""Pooling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lipcompile.graph import Node

from .text import Expression, keywords


def _pool(name: str, *, dilated: bool = False) -> Expression:
    def expression(node: Node, operands: Sequence[str]) -> str:
        pool = node.attributes
        optional = {"stride": (pool.stride, pool.kernel), "padding": (pool.padding, ((0, 0),) * len(pool.kernel))}
        if dilated:
            optional["dilation"] = (pool.dilation, (1,) * len(pool.kernel))
        return f"functional.{name}({', '.join([operands[0], f'{pool.kernel}', *keywords(optional)])})"

    return expression


def _global_average(node: Node, operands: Sequence[str]) -> str:
    dims = tuple(range(2, len(node.site.inputs[0]) + 1))
    return f"{operands[0]}.mean(dim={dims}{', keepdim=True' if node.attributes.keep else ''})"


EXPRESSIONS: Mapping[str, Expression] = {
    "max_pool": _pool("max_pool", dilated=True),
    "l2_pool": _pool("l2_pool", dilated=True),
    "avg_pool": _pool("avg_pool"),
    "scaled_avg_pool": _pool("scaled_avg_pool"),
    "global_avg_pool": _global_average,
}

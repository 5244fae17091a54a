"""How many additions a forward and a backward pass make in a row, which bounds what long sums lose to rounding.

A bound K_p is a product of bounds of operator norms. Computed in floating point, each linear map stretches a
little more. Let y = Wx be a sum of n products in every entry, added in any order, the same for all entries. Its
rounding error is the sum, over the n - 1 additions, of the rounding of partial sums W_S·x_S over subsets S of the
columns, and of the rounding of n products w_k·x_k. With ‖W_S·x_S‖ ≤ ‖W‖·‖x‖ and Σ_k |x_k|·‖w_k‖ ≤ √n·‖x‖·‖W‖,

    ‖fl(Wx) - Wx‖ ≤ (n - 1 + √n)·u·‖W‖·‖x‖·(1 + u)ⁿ,    u = 2⁻²⁴ in float32.

Torch's kernels may add in up to four different orders, at the edges of blocks; entries of each order obey this by
themselves, so the whole is off by at most twice as much. The norm bound of a convolution does not hold for a part
of its taps, but √m times it does, where m taps read one entry, since every kernel that is cut to some taps has at
most the norm of the whole kernel as a matrix. The sums that gradients of parameters are made of are those of
:mod:`.sums`.

The terms of the longest sum of each node are counted, forward and backward, over all nodes that matter: a clip of
the norm ends in its ball whatever came before, and nothing flows back into frozen nodes. Nodes that are not linear
are counted as 4·n for n entries that one result may depend on. For those this is a convention and not a theorem.
The share of elementwise operations is in `precision.rounding_slack`, which is measured. The sums that gradients of
parameters are made of are those of :mod:`.sums`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

Shape = tuple[int, ...]
Node = Mapping[str, Any]
Pair = tuple[float, float]
"""Terms of the longest sum, forward and backward."""

_ORDERS = 2.0  # the root of four orders of summation
_NONLINEAR = 4.0


def additions(graph: Mapping[str, Any]) -> float:
    """Return the number of additions in a row, forward and backward, of the graph of a certificate.

    Times u it bounds, relatively, what their rounding adds to a gradient bound.

    Raises:
        LookupError, TypeError, ValueError: the graph is damaged.
    """
    nodes = {node["name"]: node for node in graph["nodes"]}
    shapes = {name: tuple(node["shape"]) for name, node in nodes.items()}
    shapes[graph["input"]["name"]] = tuple(graph["input"]["shape"])
    counts = {name: _of_node(node, shapes, graph) for name, node in nodes.items()}
    trained = _trained(graph)
    uses = [name for node in graph["nodes"] for name in node["inputs"]]
    forks = sum(uses.count(name) - 1 for name in trained & set(uses))
    losses: float = _NONLINEAR * math.prod(shapes[graph["output"]])
    forward = math.fsum(counts[name][0] for name in _unclipped(nodes, graph["output"]))
    return losses + forks + forward + math.fsum(counts[name][1] for name in trained)


def _trained(graph: Mapping[str, Any]) -> set[str]:
    """Return the nodes that something trained stands in, or before."""
    found: set[str] = set()
    for node in graph["nodes"]:  # in topological order
        own = (graph["parameters"][name]["trainable"] for name in node["parameters"].values())
        if any(own) or found & set(node["inputs"]):
            found.add(node["name"])
    return found


def _unclipped(nodes: Mapping[str, Node], output: str) -> set[str]:
    """Return the nodes from which a way leads to the output that no clip of the norm is on."""
    found, ahead = set(), [output]
    while ahead:
        name = ahead.pop()
        if name in nodes and name not in found:
            found.add(name)
            ahead += [] if nodes[name]["op"] == "clip_norm" else nodes[name]["inputs"]
    return found


def _of_node(node: Node, shapes: Mapping[str, Shape], graph: Mapping[str, Any]) -> Pair:
    sources = [shapes[name] for name in node["inputs"]]
    weights = [tuple(graph["parameters"][name]["shape"]) for name in node["parameters"].values()]
    return _COUNTS.get(node["op"], _everything)(node, sources, weights)


Count = Callable[[Node, list[Shape], list[Shape]], Pair]


def _everything(node: Node, sources: list[Shape], weights: list[Shape]) -> Pair:  # noqa: ARG001
    """Every result may depend on every entry of all operands, and every entry may enter every result."""
    return _NONLINEAR * sum(map(math.prod, sources)), _NONLINEAR * math.prod(node["shape"])


def _none(node: Node, sources: list[Shape], weights: list[Shape]) -> Pair:  # noqa: ARG001
    return 0.0, 0.0


def _linear(terms: int, amplification: float = 1.0) -> float:
    return _ORDERS * amplification * (terms + math.sqrt(terms))


def _dense(node: Node, sources: list[Shape], weights: list[Shape]) -> Pair:  # noqa: ARG001
    return _linear(sources[0][-1]), _linear(node["shape"][-1])


def _convolution(node: Node, sources: list[Shape], weights: list[Shape]) -> Pair:  # noqa: ARG001
    taps, groups = math.prod(node["attributes"]["kernel"]), node["attributes"]["groups"]
    forward, backward = (shape[0] // groups * taps for shape in (sources[0], node["shape"]))
    return _linear(forward, math.sqrt(taps)), _linear(backward, math.sqrt(taps))


def _window(node: Node, sources: list[Shape], weights: list[Shape]) -> Pair:  # noqa: ARG001
    taps = _linear(math.prod(node["attributes"]["kernel"]))
    return taps, taps


def _along_axes(node: Node, sources: list[Shape], weights: list[Shape]) -> Pair:  # noqa: ARG001
    """A mean, a deviation and what is made of them, over axes of an example."""
    shape = sources[0]
    axes = node["attributes"].get("axes") or range(len(shape))
    entries = 4 * _NONLINEAR * math.prod(shape[axis] for axis in axes)
    return entries, entries


def _attention(node: Node, sources: list[Shape], weights: list[Shape]) -> Pair:  # noqa: ARG001
    """Two products with matrices one after the other, the scores, their softmax, and sums over tokens."""
    tokens, widths = sum(source[-2] for source in sources), sum(source[-1] for source in sources)
    terms = 2 * _linear(max(widths, node["shape"][-1])) + 4 * _NONLINEAR * (tokens + widths)
    return terms, terms


def _of_operands(node: Node, sources: list[Shape], weights: list[Shape]) -> Pair:  # noqa: ARG001
    """Operands are added or multiplied, and may stand for several copies of themselves."""
    copies = max(math.prod(node["shape"]) // max(math.prod(source), 1) for source in sources)
    return _linear(len(sources)), _linear(copies)


# fmt: off
_ELEMENTWISE = (
    "relu", "leaky_relu", "tanh", "sigmoid", "softplus", "abs", "elu", "celu", "selu", "gelu", "silu", "mish",
    "hard_swish", "hard_sigmoid", "softsign", "hardtanh", "sign", "hard_shrink", "groupsort", "prelu", "scale",
    "bias", "householder", "fixed_householder", "identity", "flatten", "reshape", "transpose", "space_to_depth",
    "depth_to_space", "patches", "slice", "clip_norm", "clip_gradient", "dropout", "class_token", "embedding",
    "concat",
)
# fmt: on

_COUNTS: Mapping[str, Count] = {
    **dict.fromkeys(_ELEMENTWISE, _none),
    "dense": _dense,
    "conv": _convolution,
    "conv_transpose": _convolution,
    **dict.fromkeys(("avg_pool", "scaled_avg_pool", "max_pool", "l2_pool", "lp_pool"), _window),
    **dict.fromkeys(("layer_norm", "rms_norm", "center"), _along_axes),
    "attention": _attention,
    **dict.fromkeys(("add", "multiply", "maximum", "minimum", "where"), _of_operands),
}

"""The rounding error of the training dtype, as an addition to the certified numbers.

A bound K_p is made of bounds of nodes: of their outputs, from those of their operands, and of their derivatives.
Computed in floating point, each node stretches a little more. Let the computed operands of a node have norms, rows
and entries of at most e^(a·u) times what is claimed, u = 2⁻²⁴ in float32; `roundings` gives a number for its
output and for the cotangents that it hands back, node by node, and the largest for a gradient. The noise covers
e^(that·u) - 1, the `long_sum_slack`.

**Theorem.** Let operations round to nearest, in any order of additions, with no overflow or underflow, and let
:data:`LIBRARY` hold of functions. Without nodes in :data:`CONVENTIONS`, and with a loss whose cotangents have norm
at most L·e^(4n·u), n logits, the gradient of one example before it is summed is at most e^(`roundings`·u) times
its bound.

*Linear maps.* Let y = Wx be a sum of n products in every entry, added in any order, the same for all entries. Its
rounding error is the sum, over the n - 1 additions, of the rounding of partial sums W_S·x_S over subsets S of the
columns, and of the rounding of n products w_k·x_k. With ‖W_S·x_S‖ ≤ ‖W‖·‖x‖ and Σ_k |x_k|·‖w_k‖ ≤ √n·‖x‖·‖W‖,

    ‖fl(Wx) - Wx‖ ≤ (n - 1 + √n)·u·‖W‖·‖x‖·(1 + u)ⁿ.

Torch's kernels may add in up to four different orders, at the edges of blocks; entries of each order obey this by
themselves, so the whole is off by at most twice as much. The norm bound of a convolution does not hold for a part
of its taps, but √m times it does, where m taps read one entry, since every kernel that is cut to some taps has at
most the norm of the whole kernel as a matrix. With A = 1 or √m and N = n + √n it is 1 + 2A·N·u·(1 + u)ⁿ ≤
e^(2A·N·u), as 2y·e^y ≤ e^(2y) - 1 for y = A·N·u. Where no number of W is negative, partial sums are no longer than
sums, and 4·n for n entries is more; it is more, too, than the n/2 + 4 roundings of each entry of a Euclidean norm
and of its derivative x/‖x‖, and than 2n + 8 of the projection on a sphere, g - ⟨g, x⟩·x/‖x‖². Likewise 16·n is
more than n + 4 of a centred group, and than n/2 + 5 and n + 20 of one divided by r = max(α, ρ), and of (g - ⟨g,
y⟩·y/n)/r on the way back: with r̂ ≥ α·(1 - 4u) and ‖y‖² ≤ n·(1 + (n + 10)·u), whatever the error of y itself.

*Every entry by itself.* A sum with a bias, a product with a weight or a mask, a quotient by a count, and a
reflection of pairs round each entry, or the norm of each pair, at most :data:`_ROUNDINGS` times. A function φ has
a rule F for one entry, |φ(t)| ≤ F(|t|), whose rule for more entries bounds the norm of every such φ, and a
constant l. By :data:`LIBRARY`, |fl φ(t)| ≤ (1 + 8u)·F(|t|), and the factor that is handed back is at most
(1 + 8u)·l; its product with a cotangent, in whatever order factors are multiplied, rounds 8 times at most. What
only moves, copies, selects or sorts entries rounds nothing; but on the way back it may add up copies.

*From node to node.* A rule that is made of constants, +, max, min, √Σ² and multiples grows no faster than its
operands: F(e^a·X) ≤ e^a·F(X), for a ≥ 0. The same for bounds of derivatives, which are constants, but for
products: these have the bounds of both operands as factors, and derivatives those of the other operand. GELU, SiLU
and Mish have F = g(M)·X, where d ln g/d ln M is at most :data:`_FASTER` (0.298, 0.279 and 0.214; 0.303 for the
approximation of GELU), and 1/2 for hard swish, whose constant grows no faster than M. A clip of the norm gives
min(X, r), which may be X. Cotangents at a value that is read k times are added by k - 1 additions. The gradient of
a parameter is a bound of the cotangent times one of the operand. ∎

What is no theorem: :data:`LIBRARY` is tried, by enumeration. Nodes in :data:`CONVENTIONS` (softmax, attention,
layer normalisation and a few more, and ops of plugins) count 4·n for n entries that one result may depend on; so
does the loss, but what it hands back is measured at every step. Half precision, autocast and TF32 round operands
and results far more coarsely; for them `rounding_slack` was measured. The sums that gradients of parameters are
made of are those of :mod:`.sums`.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import torch

from ..devices import is_processor
from .sums import DEPTH

_SLACK = {torch.float64: 1e-9, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}


def rounding_slack(dtype: torch.dtype) -> float:
    """Return the relative amount by which computation in ``dtype`` may exceed a gradient bound derived for
    real numbers, beside what is counted for a network by `long_sum_slack` and `sum_slack`.

    The noise must be calibrated to K_p·(1 + slack). The certified norms already hold for the weights as
    stored and the input clip lands inside its ball, so only forward and backward arithmetic are left.

    In float32 and float64 it is room for what happens once: the node of a parameter rounds each product
    `_ROUNDINGS` times at most, and noise is rounded when it is added. 1e-5 are 168 units in float32.

    In half precision it is a measured number with room to spare, and no theorem: on chains of 4 to 16 orthogonal
    dense layers of width 64 to 512 with GroupSort, the largest excess of a per-example gradient norm over float64
    was 6.6e-4 in float16 and 3.0e-3 in bfloat16, the same under autocast, and 2.4e-7 in float32; others saw 4e-4,
    3e-3 and 1e-7 (docs/theory.md, trap 22). The slack is at least fifteen times that. Rounding grows with depth:
    beyond a few hundred layers in half precision measure again.

    Raises:
        ValueError: a dtype that nobody measured.
    """
    if dtype not in _SLACK:
        raise ValueError(f"no rounding slack is known for {dtype}: train in float32, float64, float16 or bfloat16")
    return _SLACK[dtype]


_TF32_SLACK = 5e-3  # ten times the largest excess measured with operands rounded to ten bits: 4.9e-4


def working_slack(output: torch.Tensor) -> float:
    """Return the rounding slack of the precision that computes now: that of ``output``, of autocast, of TF32.

    Parameters in float32 say nothing of the products they enter: autocast rounds operands to its own dtype, and
    on NVIDIA devices TF32 to ten bits of mantissa; on processors oneDNN may do either, where it is told to.
    """
    device = output.device.type
    slacks = [rounding_slack(output.dtype)]
    if torch.is_autocast_enabled(device):
        slacks.append(rounding_slack(torch.get_autocast_dtype(device)))
    if device == "cuda" and _tf32():
        slacks.append(_TF32_SLACK)
    if is_processor(output.device):
        slacks += [_REDUCED.get(precision, 0.0) for precision in _onednn()]
    return max(slacks)


def long_sum_slack(graph: Mapping[str, Any] | None, dtype: torch.dtype) -> float:
    """Return what the roundings of a forward and a backward pass add to `rounding_slack`.

    Torch adds the products of half precision in float32; that it rounds their sums to half precision is in
    `rounding_slack`.

    Args:
        graph: of the module's certificate; None: nothing is known of it, and nothing is added.
        dtype: of the parameters.
    """
    unit = torch.finfo(torch.promote_types(dtype, torch.float32)).eps / 2
    return 0.0 if graph is None else math.expm1(roundings(graph) * unit)


def most_examples(expected: float) -> float:
    """Return how many examples a batch is counted on to have, see `sum_slack`."""
    return expected + 8 * math.sqrt(expected) + 16


@lru_cache(2**12)
def sum_slack(
    dtype: torch.dtype, normaliser: float, entries: int, bound: float, depth: int = DEPTH, roundings: int = 1
) -> float:
    """Return by how much rounding moves the sums of two neighbouring batches apart, over one example's bound K.

    Let a sum of B gradients of length K be rounded to the dtype of its parameter in the end, and be off by at most
    a·u·B·K before that, where a is the depth of the sum and u the unit roundoff of float32 (float64 for
    float64); :mod:`.sums` proves it. Its neighbour may be off by as much the other way. So the two are apart by
    K·(1 + 2a·u·B + 2u'·B) at most, with u' of the dtype, and by the smallest number η of the dtype in each of n
    entries: η·√n. Where all gradients agree the rounding comes to that order: removing one of 4096 examples was
    seen to move a sum in bfloat16 by 5.9 K.

    Of batches that vary in size, B = b + 8·√b + 16 examples are counted on: as noise must not depend on the size,
    this is fixed; Poisson sampling exceeds it with probability below 1e-14.

    It is the price of half precision: for parameters in bfloat16 and batches of 512 noise is six times that of
    float32. In float32, and at a depth of 90, it is 0.8 % at 512 and 5 % at 4096.

    Args:
        dtype: of the parameter.
        normaliser: b.
        entries: n, of the sum.
        bound: K > 0.
        depth: a.
        roundings: how often the sum, or every part of it, is rounded to the dtype, if that is less than float32.
    """
    most = most_examples(normaliser)
    kind, working = torch.finfo(dtype), torch.finfo(torch.promote_types(dtype, torch.float32))
    last = (1 + kind.eps) ** roundings - 1 if kind.eps != working.eps else 0.0
    least = roundings * kind.smallest_normal * kind.eps
    rounded = (depth * working.eps + last) * most
    return rounded * (1 + 1e-3) + least * math.sqrt(entries) * normaliser / bound


class RoundedSumsWarning(UserWarning):
    """Sums of gradients are rounded so coarsely that it takes much more noise."""


def warn_of_sums(share: float, normaliser: float) -> None:
    """Say by how much noise grows for the rounding of sums, if that is more than a tenth.

    Args:
        share: the largest `sum_slack` of a parameter.
        normaliser: b.
    """
    if share <= _QUIET:
        return
    warnings.warn(
        f"covering the rounding error of gradient sums would multiply the noise by {1 + share:.2g} at an "
        f"expected batch size of {normaliser:g}: keep parameters in float32 (autocast and TF32 cost no "
        "noise), or use smaller batches; see docs/noise.md",
        RoundedSumsWarning,
        stacklevel=2,
    )


_QUIET = 0.1


# By what torch calls it: for all products (`set_float32_matmul_precision`), and for those of a kind.
_REDUCED = {
    "high": _TF32_SLACK,
    "tf32": _TF32_SLACK,
    "medium": _SLACK[torch.bfloat16],
    "bf16": _SLACK[torch.bfloat16],
}


def _onednn() -> list[str]:
    """Return what processors are told of products of float32."""
    kinds = (getattr(torch.backends.mkldnn, kind, None) for kind in ("matmul", "conv", "rnn"))
    said = [getattr(kind, "fp32_precision", "none") for kind in kinds]
    try:
        return [*said, torch.get_float32_matmul_precision()]
    except RuntimeError:  # set by the newer interface, for each kind
        return said


def single_is_kept(device: torch.device, convolutions: bool = True) -> bool:
    """Whether products of float32 are computed in float32, not in TF32 or bfloat16.

    Args:
        convolutions: those of convolutions too, and not of matrices alone.
    """
    if device.type == "cuda":
        return not _tf32(convolutions)
    return is_processor(device) and not any(said in _REDUCED for said in _onednn())


def _tf32(convolutions: bool = True) -> bool:
    """Whether products may use TF32; torch refuses to say if both of its interfaces were used: then, yes."""
    try:
        matrices = torch.backends.cuda.matmul.allow_tf32
        return bool(matrices or (convolutions and torch.backends.cudnn.allow_tf32))
    except RuntimeError:
        return True


Shape = tuple[int, ...]
Node = Mapping[str, Any]
Pair = tuple[float, float]
"""Roundings of a node, forward and backward."""

_ORDERS = 2.0  # the root of four orders of summation
_NONLINEAR = 4.0
LIBRARY = 8.0
"""In units u, by how much torch's function of one entry, or its derivative, may exceed its rule in float32: tests
find 2.5 on processors, and 4.1 on a GPU. They try numbers of every exponent from -100 to 59, and every night all
from 2⁻¹³ to 2⁷."""

_ROUNDINGS = 16.0  # of each entry, besides its sums
_FASTER = {"gelu": 0.31, "silu": 0.28, "mish": 0.22, "hard_swish": 0.5}


def roundings(graph: Mapping[str, Any]) -> float:
    """Return how often something is rounded in a row, forward and backward, in the graph of a certificate.

    Times u it bounds the logarithm of what their rounding makes of a gradient bound.

    Raises:
        LookupError, TypeError, ValueError: the graph is damaged.
    """
    shapes = {node["name"]: tuple(node["shape"]) for node in graph["nodes"]}
    shapes[graph["input"]["name"]] = tuple(graph["input"]["shape"])
    counts = {node["name"]: _of_node(node, shapes) for node in graph["nodes"]}
    forward = dict.fromkeys(shapes, 0.0)
    for node in graph["nodes"]:  # in topological order
        name = node["name"]
        forward[name] = _grown(node, [forward[source] for source in node["inputs"]]) + counts[name][0]
    uses = Counter([graph["output"], *(name for node in graph["nodes"] for name in node["inputs"])])
    backward = {graph["output"]: _NONLINEAR * math.prod(shapes[graph["output"]])}
    most = 0.0
    for node in reversed(graph["nodes"]):
        name, sources = node["name"], [forward[source] for source in node["inputs"]]
        arrived = backward.get(name, 0.0) + max(uses[name] - 1, 0) + counts[name][1]
        for source in node["inputs"]:
            passed = arrived + (max(sources) if node["op"] in _BY_OPERANDS else 0.0)
            backward[source] = max(backward.get(source, 0.0), passed)
        if any(graph["parameters"][own]["trainable"] for own in node["parameters"].values()):
            most = max(most, arrived + max(sources, default=0.0))
    return most


def _grown(node: Node, operands: list[float]) -> float:
    """Return what the rule of a node makes of the excess of its operands."""
    if node["op"] in _CLIPPED:
        return 0.0
    most = sum(operands) if node["op"] in _PRODUCTS else max(operands, default=0.0)
    return most * (1 + _FASTER.get(node["op"], 0.0))


def _of_node(node: Node, shapes: Mapping[str, Shape]) -> Pair:
    sources = [shapes[name] for name in node["inputs"]]
    forward, backward = _COUNTS.get(node["op"], _everything)(node, sources)
    own = 0.0 if node["op"] in _EXACT else _ROUNDINGS
    return forward + own, backward + own


Count = Callable[[Node, list[Shape]], Pair]


def _everything(node: Node, sources: list[Shape]) -> Pair:
    """Every result may depend on every entry of all operands, and every entry may enter every result."""
    return _NONLINEAR * sum(map(math.prod, sources)), _NONLINEAR * math.prod(node["shape"])


def _none(node: Node, sources: list[Shape]) -> Pair:  # noqa: ARG001
    return 0.0, 0.0


def _linear(terms: int, amplification: float = 1.0) -> float:
    return _ORDERS * amplification * (terms + math.sqrt(terms))


def _dense(node: Node, sources: list[Shape]) -> Pair:
    return _linear(sources[0][-1]), _linear(node["shape"][-1])


def _convolution(node: Node, sources: list[Shape]) -> Pair:
    taps, groups = math.prod(node["attributes"]["kernel"]), node["attributes"]["groups"]
    forward, backward = (shape[0] // groups * taps for shape in (sources[0], node["shape"]))
    return _linear(forward, math.sqrt(taps)), _linear(backward, math.sqrt(taps))


def _window(node: Node, sources: list[Shape]) -> Pair:  # noqa: ARG001
    taps = _linear(math.prod(node["attributes"]["kernel"]))
    return taps, taps


def _pixel(node: Node, sources: list[Shape]) -> Pair:
    return _linear(sources[0][0]), _linear(node["shape"][0])


def _along_axes(node: Node, sources: list[Shape]) -> Pair:
    """A mean, a deviation and what is made of them, over axes of an example."""
    shape = sources[0]
    axes = node["attributes"].get("axes") or range(len(shape))
    entries = 4 * _NONLINEAR * math.prod(shape[axis] for axis in axes)
    return entries, entries


def _attention(node: Node, sources: list[Shape]) -> Pair:
    """Two products with matrices one after the other, the scores, their softmax, and sums over tokens."""
    tokens, widths = sum(source[-2] for source in sources), sum(source[-1] for source in sources)
    terms = 2 * _linear(max(widths, node["shape"][-1])) + 4 * _NONLINEAR * (tokens + widths)
    return terms, terms


def _matrices(node: Node, sources: list[Shape]) -> Pair:
    """Sums over the columns of the first operand; on the way back, over the rows or the columns of the result."""
    return _linear(sources[0][-1]), _linear(max(node["shape"][-2:]))


def _of_operands(node: Node, sources: list[Shape]) -> Pair:
    """Operands are added or multiplied, and may stand for several copies of themselves."""
    copies = max(math.prod(node["shape"]) // max(math.prod(source), 1) for source in sources)
    return _linear(len(sources)), _linear(copies)


def _copies(node: Node, sources: list[Shape]) -> Pair:  # noqa: ARG001
    """What is copied is added up on the way back."""
    return 0.0, _NONLINEAR * math.prod(node["shape"])


# What ends in a ball that is all that is claimed: what was rounded before does not count.
_CLIPPED = ("whitened_scattering2d", "mirrored_scattering2d", "whitened_patches")
_PRODUCTS = ("multiply", "matmul")
CONVENTIONS = (
    *("softmax", "log_softmax", "logsumexp", "attention", "dot_product_attention", "scattering2d", "lp_pool"),
    *("layer_norm", "group_norm", "instance_norm", "lrn", "upsample"),
    "own_network",
)
# Whose derivatives are bounded by means of their operands.
_BY_OPERANDS = (*_PRODUCTS, "hard_swish", "softmax", "log_softmax", "attention", "dot_product_attention")
# Forward and backward no entry is rounded, or only in sums.
_EXACT = (
    *("relu", "abs", "sign", "hard_shrink", "groupsort", "fullsort", "hsv", *_CLIPPED),
    *("identity", "flatten", "reshape", "transpose", "space_to_depth", "depth_to_space", "patches", "slice"),
    *("embedding", "class_token", "concat", "where", "pad", "gather", "expand", "clip_gradient", "noise"),
    "zeros",
)
_ENTRYWISE = (
    *("sin", "cos", "atan", "asinh", "erf", "leaky_relu", "tanh", "sigmoid", "softplus", "elu", "celu", "selu"),
    *("gelu", "silu", "mish", "hard_swish", "hard_sigmoid", "hardtanh", "softsign", "prelu", "scale", "bias"),
    *("householder", "fixed_householder", "dropout", "grouped_dropout", "pointwise"),
)

_COUNTS: Mapping[str, Count] = {
    **dict.fromkeys((*_ENTRYWISE, *_EXACT), _none),
    "clip_norm": _copies,  # forward it ends in its ball
    **dict.fromkeys(("adaptive_avg_pool", "global_avg_pool", "global_max_pool", "global_l2_pool"), _everything),
    **dict.fromkeys((f"reduce_{kind}" for kind in ("mean", "sum", "max", "min", "l1", "l2")), _everything),
    **dict.fromkeys(("dense", "dense_transpose"), _dense),
    "conv": _convolution,
    "conv_transpose": _convolution,
    **dict.fromkeys(("avg_pool", "scaled_avg_pool", "max_pool", "l2_pool", "lp_pool"), _window),
    **dict.fromkeys(("layer_norm", "rms_norm", "center"), _along_axes),
    "colour_space": _pixel,
    "attention": _attention,
    "matmul": _matrices,
    **dict.fromkeys(("add", "multiply", "maximum", "minimum"), _of_operands),
    **dict.fromkeys(("pad", "gather", "expand"), _copies),
}

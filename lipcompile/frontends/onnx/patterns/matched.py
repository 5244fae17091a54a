"""What recognised spellings become: the graph's node for the bindings of a pattern, None where they do not fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lipcompile.core.graph import Value
from lipcompile.core.record import AnyOp, NoAttributes, Shape
from lipcompile.diagnostics import Refusal
from lipcompile.frontends.onnx.constants import broadcast, plus_entries, widened
from lipcompile.frontends.onnx.context import Context, shape_of
from lipcompile.frontends.onnx.file.memory import expect_array
from lipcompile.frontends.onnx.layout import FIRST, Placed, unplaced
from lipcompile.frontends.onnx.node import OnnxNode
from lipcompile.frontends.onnx.patterns.algebra import HALF, ONE, Found, equal
from lipcompile.frontends.onnx.values import Known
from lipcompile.ops.activation.onnx_read import clip_bounds
from lipcompile.ops.activation.rules import ELU, GELU, LeakyReLU
from lipcompile.ops.attention.dot_product import DotProduct
from lipcompile.ops.merge.rules import SUM, Sum
from lipcompile.ops.normalisation.rules import Center, OverAxes
from lipcompile.ops.pool.onnx_read import pool_of, reduced_axes
from lipcompile.ops.reduce.rules import Reduce
from lipcompile.ops.resample.rules import Pad
from lipcompile.ops.shape.onnx_read import drop_probability, permute, reshape_to
from lipcompile.ops.shape.rules import ClipNorm, Dropout, GroupedDropout
from lipcompile.ops.softmax.rules import Softmax
from lipcompile.ops.table import OP_BY_NAME

Array = NDArray[Any]
# Op, attributes and the factor in front of the pattern for which it is that op.
_ELEMENTWISE: Mapping[str, tuple[AnyOp, Any, Fraction]] = {
    "gelu": (OP_BY_NAME["gelu"], GELU("none"), HALF),
    "gelu_tanh": (OP_BY_NAME["gelu"], GELU("tanh"), HALF),
    **{
        name: (OP_BY_NAME[name], NoAttributes(), ONE)
        for name in ("relu", "silu", "mish", "softsign", "sigmoid", "softplus")
    },
    "hard_swish": (OP_BY_NAME["hard_swish"], NoAttributes(), Fraction(1, 6)),
}


# Above it, torch's softplus of x is x.
_STEEPEST = Fraction(20)

# Bindings


def _tensor(context: Context, found: Found, key: str) -> Value | None:
    """Return a bound tensor; the batch of the result stands where it stands in it."""
    item = context.items.get(str(found[key]))
    if isinstance(item, Placed):
        if context.layout not in (FIRST, item.layout):
            return None
        context.layout = item.layout
        return item.value
    return item if isinstance(item, Value) and item.shape is not None and context.layout == FIRST else None


def _number(found: Found, key: str, default: Fraction = ONE) -> Fraction:
    value = found.get(key, default)
    assert isinstance(value, Fraction)
    return value


def _node(found: Found, key: str) -> OnnxNode | None:
    value = found.get(key)
    return value if isinstance(value, OnnxNode) else None


def _times(context: Context, node: OnnxNode, value: Value, factor: Fraction, suffix: str = "_scaled") -> Value:
    """Multiply by a number, unless it is 1 but for rounding."""
    return value if equal(factor, ONE) else context.add(node, SUM, Sum((factor,)), [value], suffix)


# Activations


def elementwise(name: str) -> Callable[[Context, OnnxNode, Found], Value | None]:
    """Return the builder of an activation that a pattern with the factor `c` spells."""
    op, attributes, natural = _ELEMENTWISE[name]

    def build(context: Context, node: OnnxNode, found: Found) -> Value | None:
        factor, operand = _number(found, "c"), _tensor(context, found, "x")
        if operand is None or not _is_gate(context, found) or not _fills(context, found, operand):
            return None
        usual = ONE if "sixths" in found else natural
        return _times(context, node, context.add(node, op, attributes, [operand]), factor / usual)

    return build


def _is_gate(context: Context, found: Found) -> bool:
    """Whether a bound Clip or HardSigmoid has the constants of the hard swish, and a limit is that of softplus."""
    clip, sixths = _node(found, "clip"), _node(found, "sixths")
    if _number(found, "threshold", _STEEPEST) < _STEEPEST:
        return False
    if sixths is not None:
        slope, middle = sixths.number("alpha", Fraction(1, 5)), sixths.number("beta", HALF)
        return equal(slope, Fraction(1, 6)) and middle == HALF
    return clip is None or clip_bounds(context, clip) == (Fraction(0), Fraction(6))


def _fills(context: Context, found: Found, operand: Value) -> bool:
    """Whether bound constants of one number make the tensor no longer; raises Refusal if they are trained."""
    for key in {"limit", "filling"} & found.keys():
        known = context.items[str(found[key])]
        assert isinstance(known, Known)
        if (
            broadcast([context.of_one_example(known, shape_of(operand)).array.shape, shape_of(operand)])
            != operand.shape
        ):
            return False
        if context.parameters.is_trained(known):
            return False
        context.parameters.hold(known)
    return True


def log_sigmoid(context: Context, node: OnnxNode, found: Found) -> Value | None:
    """log σ(x) = -softplus(-x)."""
    operand = _tensor(context, found, "x")
    if operand is None:
        return None
    turned = _times(context, node, operand, -ONE, "_turned")
    return _times(context, node, context.add(node, OP_BY_NAME["softplus"], NoAttributes(), [turned]), -ONE)


def elu(context: Context, node: OnnxNode, found: Found) -> Value | None:
    """x above zero, α·(e^x - 1) below."""
    operand, alpha = _tensor(context, found, "x"), _number(found, "alpha")
    if operand is None or not equal(alpha, -_number(found, "offset")) or not _fills(context, found, operand):
        return None
    return context.add(node, OP_BY_NAME["elu"], ELU(alpha), [operand])


def quick_gelu(context: Context, node: OnnxNode, found: Found) -> Value | None:
    """c·x·σ(a·x) = (c/a)·silu(a·x)."""
    slope, operand = _number(found, "a"), _tensor(context, found, "x")
    if operand is None or slope == 0:
        return None
    inner = _times(context, node, operand, slope, "_steeper")
    value = context.add(node, OP_BY_NAME["silu"], NoAttributes(), [inner])
    return _times(context, node, value, _number(found, "c") / slope)


def leaky_relu(context: Context, node: OnnxNode, found: Found) -> Value | None:
    """x above zero, slope·x below."""
    operand = _tensor(context, found, "x")
    if operand is None or not _fills(context, found, operand):
        return None
    return context.add(node, OP_BY_NAME["leaky_relu"], LeakyReLU(_number(found, "slope")), [operand])


# Dropout


def dropped(context: Context, node: OnnxNode, found: Found) -> Value | None:
    """c·x times 1 or 0, drawn for each example by itself, for each entry or for several entries together."""
    draw, operand = _node(found, "draw"), _tensor(context, found, "x")
    if draw is None or operand is None or not _goes_to(context, draw, node) or "seed" in draw.attributes:
        return None
    axes, fate = _axes_of_draws(context, found, shape_of(operand)), _kept(context, draw, found)
    if axes is None or fate is None or not _fills(context, found, operand):
        return None
    (lost, factor), rank = fate, len(shape_of(operand))
    if axes == rank:
        made = context.add(node, OP_BY_NAME["dropout"], Dropout(lost), [operand])
    else:
        made = context.add(node, OP_BY_NAME["grouped_dropout"], GroupedDropout(lost, axes), [operand])
    return _times(context, node, made, _number(found, "c") * factor)


def _goes_to(context: Context, draw: OnnxNode, node: OnnxNode) -> bool:
    """Whether nothing but this node reads what was drawn: two readers would share their fate."""
    while draw.outputs != node.outputs:
        readers = context.readers.get(draw.outputs[0], ())
        if len(readers) != 1 or draw.outputs[0] in context.outputs:
            return False
        (draw,) = readers
    return True


def _axes_of_draws(context: Context, found: Found, example: Shape) -> int | None:
    """Return how many axes of the example have draws of their own, None unless each example has its own."""
    if "like" in found:
        return len(example) if _has_shape(context, str(found["like"]), example) else None
    known, layout = context.items[str(found["drawn"])], context.layout
    assert isinstance(known, Known)
    shape, place = known.array.shape, layout.place
    if layout.outer or layout.inner or known.times > 1 or len(shape) != layout.rank(example):
        return None
    if known.copies != place and (known.copies is not None or shape[place] != context.batch):
        return None
    own, rank = (*shape[:place], *shape[place + 1 :]), len(example)
    return next((axes for axes in range(rank + 1) if own == (*example[:axes], *(1,) * (rank - axes))), None)


def _has_shape(context: Context, name: str, example: Shape) -> bool:
    """Whether a tensor has this shape, and the batch where the operand has it."""
    item = context.items.get(name)
    value, layout = (item.value, item.layout) if isinstance(item, Placed) else (item, FIRST)
    return isinstance(value, Value) and value.shape == example and layout == context.layout


def _kept(context: Context, draw: OnnxNode, found: Found) -> tuple[Fraction, Fraction] | None:
    """Return the probability of a 0, and what the ones are times 1 minus that; None if the draws are others."""
    if draw.op_type in ("Bernoulli", "Dropout"):
        drawn = context.items[str(found["drawn"])]
        assert isinstance(drawn, Known)
        numbers = set(drawn.array.flat)
        if draw.op_type == "Dropout":
            return (drop_probability(context, draw), ONE) if numbers == {1} else None
        kept = Fraction(float(numbers.pop())) if len(numbers) == 1 else Fraction(0)
        return (1 - kept, kept) if 0 < kept <= 1 else None
    kept = 1 - _number(found, "lost") if "lost" in found else _number(found, "kept")
    if draw.number("low", Fraction(0)) != 0 or draw.number("high", ONE) != 1 or not 0 < kept <= 1:
        return None
    return 1 - kept, kept


# Norms, softmax and roots of sums


def _axes(context: Context, operand: Value, found: Found, *keys: str) -> tuple[int, ...] | None:
    """Return the axes that all bound reductions keep and agree on."""
    nodes = [node for key in keys if (node := _node(found, key)) is not None]
    axes = {reduced_axes(context, node, shape_of(operand)) for node in nodes}
    kept = all(node.integer("keepdims", 1) for node in nodes)
    return axes.pop() if kept and len(axes) == 1 else None


def _norm(op: str) -> Callable[[Context, OnnxNode, Found], Value | None]:
    def build(context: Context, node: OnnxNode, found: Found) -> Value | None:
        operand = _tensor(context, found, "x")
        axes = None if operand is None else _axes(context, operand, found, "mean", "variance")
        if operand is None or not axes or not _has_no_ceiling(found):
            return None
        limits = [limit if isinstance(limit := found.get(key), Fraction) else None for key in ("floor", "eps")]
        inside = _number(found, "k")  # x/√(k·σ² + eps) = 1/√k · x/√(σ² + eps/k), as of unbiased variances
        if not any(limits) or inside <= 0:
            return None
        root, eps = (
            (ONE, limits[1]) if equal(inside, ONE) else (Fraction(math.sqrt(inside)), (limits[1] or 0) / inside)
        )
        made = context.add(node, OP_BY_NAME[op], OverAxes(limits[0], eps, axes), [operand])
        return _times(context, node, made, _number(found, "c") / root)

    return build


layer_norm = _norm("layer_norm")
rms_norm = _norm("rms_norm")


def center(context: Context, node: OnnxNode, found: Found) -> Value | None:
    """x - μ over axes of the example."""
    operand = _tensor(context, found, "x")
    axes = None if operand is None else _axes(context, operand, found, "mean")
    return (
        None if operand is None or not axes else context.add(node, OP_BY_NAME["center"], Center(axes), [operand])
    )


def _has_no_ceiling(found: Found) -> bool:
    """Whether a bound Clip, if there is one, has a lower end only."""
    clipped = _node(found, "clipped")
    return clipped is None or not any(clipped.proto.input[2:])


def clip_norm(context: Context, node: OnnxNode, found: Found) -> Value | None:
    """c·x/max(r, ‖x‖) = c/r times the projection on the ball of radius r, the norm that of the whole example.

    The norm over n entries along some axes only is √n·ρ: then it is c/√n times the rms norm with the floor r/√n.
    """
    operand, radius = _tensor(context, found, "x"), _number(found, "floor")
    axes = None if operand is None else _axes(context, operand, found, "norm")
    if operand is None or not axes or radius <= 0 or not _has_no_ceiling(found):
        return None
    copies = _node(found, "copies")
    if copies is not None and _shape_made(context, copies) != shape_of(operand):
        return None
    if len(axes) != len(shape_of(operand)):
        root = Fraction(math.sqrt(_entries(operand, axes)))
        made = context.add(node, OP_BY_NAME["rms_norm"], OverAxes(radius / root, None, axes), [operand])
        return _times(context, node, made, _number(found, "c") / root)
    made = context.add(node, OP_BY_NAME["clip_norm"], ClipNorm(radius), [operand])
    return _times(context, node, made, _number(found, "c") / radius)


def direction(context: Context, node: OnnxNode, found: Found) -> Value | None:
    """c·x/√(Σx² + ε) = c/√n times the rms norm with ε/n, over n entries."""
    operand, eps = _tensor(context, found, "x"), _number(found, "eps")
    axes = None if operand is None else _axes(context, operand, found, "norm")
    if operand is None or not axes or eps <= 0:
        return None
    entries = _entries(operand, axes)
    made = context.add(node, OP_BY_NAME["rms_norm"], OverAxes(None, eps / entries, axes), [operand])
    return _times(context, node, made, _number(found, "c") / Fraction(math.sqrt(entries)))


def _entries(operand: Value, axes: Sequence[int]) -> int:
    """Return the number of entries along some axes."""
    return math.prod(shape_of(operand)[axis] for axis in axes)


def _shape_made(context: Context, node: OnnxNode) -> Shape | None:
    """Return the shape, of one example, of what a node has put out, if that is a tensor."""
    item = context.items.get(node.outputs[0])
    value = unplaced(item)
    return value.shape if isinstance(value, Value) else None


def softmax(context: Context, node: OnnxNode, found: Found) -> Value | None:
    """c·e^x/Σe^x along one axis, the largest entry subtracted or not."""
    operand = _tensor(context, found, "x")
    axes = None if operand is None else _axes(context, operand, found, "sum", "largest")
    if operand is None or axes is None or len(axes) != 1:
        return None
    made = context.add(node, OP_BY_NAME["softmax"], Softmax(axis=axes[0]), [operand])
    return _times(context, node, made, _number(found, "c"))


def pool_of_squares(context: Context, node: OnnxNode, found: Found) -> Value | None:
    """c·√(k·mean of squares over windows of T entries) = c·√(k/T) times the L2 pool."""
    pool, operand = _node(found, "pool"), _tensor(context, found, "x")
    if pool is None or operand is None or context.layout != FIRST:
        return None
    window = pool_of(pool, shape_of(operand))
    padded = any(map(any, window.padding)) or window.ceil_mode
    if (padded and not pool.integer("count_include_pad", 0)) or window.ceil_mode:
        return None
    entries = math.prod(window.kernel)
    made = context.add(node, OP_BY_NAME["l2_pool"], window, [operand])
    return _rooted(context, node, made, found, Fraction(1, entries))


def scaled_root(context: Context, node: OnnxNode, found: Found) -> Value | None:
    """c·√(k·Σx²) over axes, or of the mean; with an eps in the root, over none as well."""
    reduction, operand = _node(found, "sum"), _tensor(context, found, "x")
    if operand is None:
        return None
    if reduction is None:
        return _rooted(context, node, operand, found, ONE) if found.get("eps") else None  # √x² is |x|
    axes, keep = reduced_axes(context, reduction, shape_of(operand)), bool(reduction.integer("keepdims", 1))
    if not axes:
        return None
    entries = _entries(operand, axes)
    for axis in reversed(axes) if not keep else ():
        context.resized(axis, -1)
    made = context.add(node, OP_BY_NAME["reduce_l2"], Reduce(axes, keep=keep), [operand])
    share = Fraction(1, entries) if reduction.op_type == "ReduceMean" else ONE
    return _rooted(context, node, made, found, share)


def _rooted(context: Context, node: OnnxNode, made: Value, found: Found, share: Fraction) -> Value | None:
    """c·√(k·share·y² + eps): a multiple of y without eps, else c·√(z² + eps) of a multiple z."""
    inside, eps = _number(found, "k") * share, _number(found, "eps", Fraction(0))
    if inside <= 0 or eps < 0:
        return None
    root = ONE if equal(inside, ONE) else Fraction(math.sqrt(inside))
    if not eps:
        return _times(context, node, made, _number(found, "c") * root)
    inner = _times(context, node, made, root, "_inside")
    return _times(context, node, _softened(context, node, inner, eps), _number(found, "c"))


def _softened(context: Context, node: OnnxNode, operand: Value, eps: Fraction) -> Value:
    """√(y² + eps) of each entry: the norm of y beside √eps."""
    shape = shape_of(operand)
    entries = reshape_to(context, node, operand, (math.prod(shape), 1), "_entries")
    padded = context.add(node, OP_BY_NAME["pad"], Pad(((0, 1),)), [entries], "_beside")
    beside = plus_entries(context, node, padded, np.array([0, math.sqrt(eps)], np.float32), "_eps")
    norms = context.add(node, OP_BY_NAME["reduce_l2"], Reduce((1,), keep=False), [beside])
    return reshape_to(context, node, norms, shape, "_rooted")


# Attention


def attention(context: Context, node: OnnxNode, found: Found) -> Value | None:
    """softmax(scale·q·kᵀ + mask)·v, the mask a constant: nothing, or what comes later in a sequence."""
    q, kt, v = (_tensor(context, found, key) for key in ("q", "kt", "v"))
    weights = _node(found, "softmax")
    if q is None or kt is None or v is None or weights is None or not _over_keys(context, weights, v):
        return None
    if min(len(shape_of(value)) for value in (q, kt, v)) < 2:
        return None
    causal = _is_causal(context, found, (*shape_of(q)[:-1], shape_of(kt)[-1]))
    if causal is None:
        return None
    dropout = _node(found, "dropout")
    dropped = Fraction(0) if dropout is None else drop_probability(context, dropout)
    attributes = DotProduct(_number(found, "scale"), causal, dropped)
    keys, values = (
        widened(context, node, one, (*shape_of(q)[:-2], *shape_of(one)[-2:]), suffix)
        if len(shape_of(one)) == len(shape_of(q)) and set(shape_of(one)[:-2]) == {1}
        else one
        for one, suffix in ((_swapped(context, node, kt), "_key_copies"), (v, "_value_copies"))
    )
    return context.add(node, OP_BY_NAME["dot_product_attention"], attributes, [q, keys, values])


def _over_keys(context: Context, softmax: OnnxNode, values: Value) -> bool:
    """Whether the softmax runs over the last axis, and the batch is none of the last two."""
    rank = context.layout.rank(shape_of(values))
    axis = softmax.integer("axis", -1 if context.version >= 13 else 1)
    return axis in (-1, rank - 1) and context.layout.place < rank - 2


def _is_causal(context: Context, found: Found, scores: Shape) -> bool | None:
    """Return whether a row sees only the rows up to itself, False if it sees all, None for any other mask."""
    expect_array(scores)
    seen = _seen(context, found, scores)
    if seen is None:
        return None
    if bool(seen.all()):
        return False
    rows, columns = scores[-2:]
    return True if rows == columns and bool((seen == np.tri(rows, dtype=bool)).all()) else None


def _seen(context: Context, found: Found, scores: Shape) -> Array | None:
    """Return which scores of an example a mask leaves, None if it does anything else."""
    if "mask" in found:
        mask = _of_scores(context, found, "mask", scores)
        seen = mask == 0
        return seen if bool(((mask < -1e30) | seen).all()) else None
    if "low" in found:
        seen = _of_scores(context, found, "seen" if "seen" in found else "hidden", scores).astype(bool)
        is_low = bool((_of_scores(context, found, "low", scores) < -1e30).all())
        return (seen if "seen" in found else ~seen) if is_low else None
    return np.ones(scores, dtype=bool)


def _of_scores(context: Context, found: Found, key: str, scores: Shape) -> Array:
    """Return a constant for each score of an example; raises Refusal where it has more than those."""
    known = context.items[str(found[key])]
    assert isinstance(known, Known)
    aligned = context.of_one_example(known, scores).array
    try:
        return np.broadcast_to(aligned, scores)
    except ValueError:
        raise Refusal("LIP102", f"a mask of shape {list(aligned.shape)} does not fit {list(scores)}") from None


def _swapped(context: Context, node: OnnxNode, value: Value) -> Value:
    """Return the tensor with its last two axes swapped, which undoes a swap that made it."""
    made = context.builder.made(value)
    swap = (*range(len(shape_of(value)) - 2), len(shape_of(value)) - 1, len(shape_of(value)) - 2)
    if made is not None and made.op.name == "transpose" and made.attributes.axes == swap:
        return Value(made.inputs[0], made.site.inputs[0])
    if made is not None and made.op is SUM and len(made.inputs) == 1:
        inner = _swapped(context, node, Value(made.inputs[0], made.site.inputs[0]))
        return context.add(node, SUM, made.attributes, [inner], "_keys")
    return permute(context, node, value, swap, "_keys")

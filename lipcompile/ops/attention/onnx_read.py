"""The importer of Attention: softmax(scale·q·kᵀ)·v for each head."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from lipcompile.core.graph import Value
from lipcompile.diagnostics import Refusal
from lipcompile.frontends.onnx.context import Context, Importer, shape_of
from lipcompile.frontends.onnx.node import OnnxNode
from lipcompile.ops.attention.dot_product import DOT_PRODUCT, DotProduct
from lipcompile.ops.resample.rules import Expand
from lipcompile.ops.shape.onnx_read import permute, reshape_to
from lipcompile.ops.table import OP_BY_NAME

# Operands behind queries, keys and values, none of which a rule covers.
_EXTRA = ("a mask", "cached keys", "cached values", "lengths of padded sequences")
_EARLIER = ("keys", "values", "scores")  # outputs behind the first
# Attributes whose other values have no rule, with the value that changes nothing.
_NEUTRAL = {"softcap": 0, "left_window_size": -1, "right_window_size": -1}


def attention(context: Context, node: OnnxNode) -> Value:
    """Attention of heads [H, n, d], or of tokens [n, H·d] that `q_num_heads` and `kv_num_heads` cut."""
    _refuse_extras(context, node)
    operands = [context.tensor(node, index) for index in range(3)]
    ranks = {len(shape_of(operand)) for operand in operands}
    if len(ranks) != 1 or not ranks <= {2, 3}:
        listed = ", ".join(str(list(shape_of(operand))) for operand in operands)
        raise Refusal(
            "LIP102", f"one example of Attention must have shape [heads, n, d] or [n, features], not {listed}"
        )
    if ranks == {3}:
        return _attend(context, node, *operands)
    counts = [node.integer(f"{name}_num_heads", 0) for name in ("q", "kv", "kv")]
    q, k, v = (_split(context, node, *part) for part in zip(operands, counts, "qkv", strict=True))
    return _join(context, node, _attend(context, node, q, k, v))


def _refuse_extras(context: Context, node: OnnxNode) -> None:
    """Refuse what the op of the graph does not have; raises `Refusal`."""
    given = [what for index, what in enumerate(_EXTRA, start=3) if context.item(node, index) is not None]
    asked = [what for what, output in zip(_EARLIER, node.outputs[1:], strict=False) if output]
    if given or asked:
        fault = f"with {given[0]}" if given else f"that puts out its {asked[0]}"
        raise Refusal(
            "LIP110", f"Attention {fault} is not yet supported", "export the model without it, or with is_causal=1"
        )
    for name, neutral in _NEUTRAL.items():
        if node.number(name, Fraction(neutral)) != neutral:
            raise Refusal("LIP110", f"{name} of Attention is not yet supported", "export it without")
    scale = node.number("scale", Fraction(1))
    if scale < 0:
        raise Refusal("LIP102", f"the scale of Attention must not be negative; it is {float(scale)}")


def _attend(context: Context, node: OnnxNode, q: Value, k: Value, v: Value) -> Value:
    """Attend, with heads of keys and values repeated where several heads of queries share them."""
    scale = node.number("scale", Fraction(0)) if "scale" in node.attributes else None
    heads, shared = shape_of(q)[0], shape_of(k)[0]
    if shape_of(v)[0] != shared or heads % shared:
        message = f"Attention has {heads} heads of queries, {shared} of keys and {shape_of(v)[0]} of values"
        raise Refusal(
            "LIP102", message, "use as many value heads as key heads, and a multiple of that for queries"
        )
    keys, values = (_repeated(context, node, part, heads // shared, name) for part, name in ((k, "k"), (v, "v")))
    attributes = DotProduct(scale, causal=bool(node.integer("is_causal", 0)))
    return context.add(node, DOT_PRODUCT, attributes, [q, keys, values])


def _split(context: Context, node: OnnxNode, operand: Value, heads: int, name: str) -> Value:
    """[n, H·d] -> [H, n, d]."""
    rows, features = shape_of(operand)
    if heads < 1 or features % heads:
        raise Refusal("LIP102", f"{heads} heads do not divide the {features} features of Attention")
    parts = reshape_to(context, node, operand, (rows, heads, features // heads), f"_{name}_parts")
    return permute(context, node, parts, (1, 0, 2), f"_{name}")


def _join(context: Context, node: OnnxNode, made: Value) -> Value:
    """[H, n, e] -> [n, H·e]."""
    heads, rows, width = shape_of(made)
    moved = permute(context, node, made, (1, 0, 2), "_rows")
    return reshape_to(context, node, moved, (rows, heads * width), "_joined")


def _repeated(context: Context, node: OnnxNode, part: Value, times: int, name: str) -> Value:
    """Stand each head in the place of `times` neighbouring ones."""
    if times == 1:
        return part
    heads, *rest = shape_of(part)
    apart = reshape_to(context, node, part, (heads, 1, *rest), f"_{name}_apart")
    copied = Expand((heads, times, *rest))
    copies = context.add(node, OP_BY_NAME["expand"], copied, [apart], f"_{name}_copies")
    return reshape_to(context, node, copies, (heads * times, *rest), f"_{name}_repeated")


IMPORTERS: Mapping[str, Importer] = {"Attention": attention}

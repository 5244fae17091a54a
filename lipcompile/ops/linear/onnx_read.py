"""Importers of Gemm and MatMul, and of the BatchNormalization and Add that follow them or convolutions."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, helper

from lipcompile.core.graph import Value
from lipcompile.core.record import AnyOp, NoAttributes
from lipcompile.diagnostics import Refusal
from lipcompile.frontends.onnx.context import MIXES, Context, Importer, shape_of
from lipcompile.frontends.onnx.file.memory import expect_array
from lipcompile.frontends.onnx.layout import Placed
from lipcompile.frontends.onnx.node import OnnxNode, module_of
from lipcompile.frontends.onnx.values import Known, evaluate, floats, scalar, toggled
from lipcompile.ops.conv.rules import CONV, CONV_TRANSPOSE, Conv
from lipcompile.ops.linear.rules import BIAS, DENSE, DENSE_TRANSPOSE, BiasShape, Dense
from lipcompile.ops.merge.rules import MATMUL, SUM, Sum
from lipcompile.ops.resample.rules import Expand
from lipcompile.ops.shape.onnx_read import permute, reshape_to
from lipcompile.ops.table import OP_BY_NAME

Array = NDArray[Any]
ONE = Fraction(1)
_AXIS_IS_OPERAND = 20  # of DFT, from this operator set on


@dataclass(frozen=True, slots=True)
class Affine:
    """A layer with parameters; the bias is a vector or one number."""

    op: AnyOp
    attributes: Any
    operand: Value
    weight: Known
    bias: Known | None

    @property
    def outputs(self) -> int:
        """Number of features or channels that the layer puts out."""
        return int(self.attributes.features if self.op is DENSE else self.attributes.channels)

    def scaled(self, scale: Array) -> Array:
        """Return the weight with each output's part multiplied by its entry of `scale`, in float64."""
        array = self.weight.array.astype(np.float64)
        if self.op is not CONV_TRANSPOSE:
            return array * scale.reshape(-1, *(1,) * (array.ndim - 1))
        groups = self.attributes.groups  # [in, out / groups, *taps]: the inputs of a group meet its outputs only
        grouped = array.reshape(groups, -1, *array.shape[1:])
        return (grouped * scale.reshape(groups, 1, -1, *(1,) * (array.ndim - 2))).reshape(array.shape)


def gemm(context: Context, node: OnnxNode) -> Value:
    """alpha·A·B + beta·C with examples as rows of A."""
    _one_example_per_row(context, node)
    operand = context.tensor(node)
    if context.layout.rank(shape_of(operand)) != 2:
        raise Refusal("LIP102", f"Gemm needs vectors, but an example here has shape {list(shape_of(operand))}")
    weight = _matrix(context, node, "the matrix B", transposed=not node.integer("transB", 0))
    weight = times(weight, node.number("alpha", ONE))
    features = weight.array.shape[0]
    if isinstance(context.item(node, 2), Value | Placed):
        return _plus_tensor(context, node, Affine(DENSE, Dense(features), operand, weight, None))
    bias = context.known(node, 2, "the bias C")
    if bias is not None:
        bias = times(bias_vector(bias, features), node.number("beta", ONE))
    return normalised(context, node, Affine(DENSE, Dense(features), operand, weight, bias))


def _plus_tensor(context: Context, node: OnnxNode, layer: Affine) -> Value:
    """A layer plus beta·C, where C depends on the example."""
    added = context.tensor(node, 2)
    if len(shape_of(added)) != len(shape_of(layer.operand)):
        raise Refusal("LIP108", f"C of Gemm, {['batch', *shape_of(added)]}, would meet other examples", MIXES)
    value = parametric(context, replace(node, name=f"{node.name}_product"), layer)
    return context.add(node, SUM, Sum((ONE, node.number("beta", ONE))), [value, added])


def _one_example_per_row(context: Context, node: OnnxNode) -> None:
    if isinstance(context.item(node, 0), Known):
        raise Refusal("LIP108", f"{node.op_type} multiplies the batch from the left: it mixes examples", MIXES)
    transposed = bool(node.integer("transA", 0)) if node.op_type == "Gemm" else False
    if transposed or context.layout.place == context.layout.rank(context.shape(node)) - 1:
        raise Refusal("LIP108", f"{node.op_type} multiplies across the batch: it mixes examples", MIXES)


def _matrix(context: Context, node: OnnxNode, what: str, *, transposed: bool) -> Known:
    """Return a constant matrix as [out, in]."""
    weight = context.known(node, 1, what)
    if weight is None or weight.array.ndim != 2:
        raise Refusal("LIP110", f"{what} of {node.op_type} must be a constant matrix [in, out]")
    if not transposed:
        return weight
    return replace(weight, array=weight.array.T, moves=toggled(weight))


def bias_vector(bias: Known, features: int) -> Known:
    """Return the bias of `features` outputs as a vector, or as an array of one number that all outputs share."""
    shape = bias.array.shape
    if bias.array.ndim > 1 and shape[0] > 1:
        raise Refusal("LIP108", f"a bias of shape {list(shape)} differs from example to example", MIXES)
    if bias.array.size not in (1, features):
        raise Refusal("LIP102", f"a bias of shape {list(shape)} does not fit {features} outputs")
    return replace(bias, array=bias.array.reshape(-1))


def times(known: Known, factor: Fraction) -> Known:
    """Return a stored tensor times a number; the product of two float32 numbers is exact in float64."""
    if factor == ONE:
        return known
    array = floats(known.array, "a constant").astype(np.float64) * float(factor)
    computed = {**dict.fromkeys(known.sources, "Mul"), **known.computed}
    return replace(known, array=array, moves=then(known, "times", factor), computed=computed)


def then(known: Known, *move: Hashable) -> tuple[Hashable, ...]:
    """Return how a constant was computed, with one step more."""
    return (*known.moves, move) if known.sources else known.moves


def mat_mul(context: Context, node: OnnxNode) -> Value:
    """A·B with a constant A or B, on one of the last two axes; a bias added next becomes part of the layer."""
    if not isinstance(context.item(node, 0), Known) and not isinstance(context.item(node, 1), Known):
        return _of_two(context, node)
    if isinstance(context.item(node, 0), Known) and len(context.shape(node, 1)) > 1:
        return _from_left(context, node)
    _one_example_per_row(context, node)
    operand, right = context.tensor(node), context.item(node, 1)
    if isinstance(right, Known) and right.array.ndim == 1:
        return _by_vector(context, node, right)
    if isinstance(right, Known) and right.array.ndim > 2:
        return _by_stack(context, node, right)
    weight = _matrix(context, node, "the right operand", transposed=True)
    layer = Affine(DENSE, Dense(weight.array.shape[0]), operand, weight, None)
    adding = context.follower(node, "Add")
    bias = _added(context, node, adding, weight.array.shape[0]) if adding else None
    if adding is None or bias is None:
        return parametric(context, node, layer)
    name = _named_after(node, adding)
    value = parametric(context, name, replace(layer, bias=bias))
    context.absorb(adding, value)
    return value


def _by_vector(context: Context, node: OnnxNode, vector: Known) -> Value:
    """[…, n]·[n] -> […]: a layer of one output, whose axis is dropped."""
    operand = context.tensor(node)
    row = replace(vector, array=vector.array.reshape(1, -1), moves=then(vector, "row"))
    value = parametric(context, node, Affine(DENSE, Dense(1), operand, row, None))
    return reshape_to(context, node, value, shape_of(operand)[:-1], "_single")


def _by_stack(context: Context, node: OnnxNode, stack: Known) -> Value:
    """[*heads, t, n]·[*heads, n, m]: a convolution of one tap, the heads its groups of channels."""
    operand, layout = context.tensor(node), context.layout
    if layout.place == layout.rank(shape_of(operand)) - 2 and not layout.outer and stack.copies is None:
        return _of_rows(context, node, operand, stack)
    array = context.of_one_example(stack, shape_of(operand)).array
    *heads, _, width = shape_of(operand)
    if array.shape[:-1] != (*heads, width):
        message = (
            f"MatMul of {list(shape_of(operand))} with constant matrices {list(array.shape)} is not yet supported"
        )
        raise Refusal("LIP110", message, "give each matrix of an example its own constant one")
    return by_heads(context, node, operand, replace(stack, array=array, copies=None))


def _of_rows(context: Context, node: OnnxNode, operand: Value, stack: Known) -> Value:
    """[*heads, B·t, n]·[*heads, n, m], the batch among the rows, or alone in their place."""
    *first, width = shape_of(operand)
    heads, tokens = first[: context.layout.axis], first[context.layout.axis :]
    if stack.array.shape[:-1] != (*heads, width):
        listed = f"{list(shape_of(operand))} and {list(stack.array.shape)}"
        raise Refusal("LIP102", f"MatMul cannot multiply {listed} as stacks of matrices")
    apart = reshape_to(context, node, operand, (*heads, prod(tokens), width), "_rows")
    made = by_heads(context, node, apart, stack)
    return reshape_to(context, node, made, (*heads, *tokens, shape_of(made)[-1]), "_of_rows")


def by_heads(context: Context, node: OnnxNode, operand: Value, stack: Known) -> Value:
    """[*heads, t, n]·[*heads, n, m], the matrices constant and without an axis of the batch."""
    *heads, tokens, width = shape_of(operand)
    count, made = prod(heads), stack.array.shape[-1]
    kernel = stack.array.reshape(count, width, made).transpose(0, 2, 1).reshape(count * made, width, 1)
    weight = replace(stack, array=kernel, moves=then(stack, "stacked"))
    swap = (*range(len(heads)), len(heads) + 1, len(heads))
    turned = permute(context, node, operand, swap, "_t")
    channels = reshape_to(context, node, turned, (count * width, tokens), "_channels")
    layer = Affine(CONV, Conv(count * made, (1,), (1,), ((0, 0),), (1,), count), channels, weight, None)
    value = parametric(context, node, layer)
    apart = reshape_to(context, node, value, (*heads, made, tokens), "_apart")
    return permute(context, node, apart, swap, "_back")


def _of_two(context: Context, node: OnnxNode) -> Value:
    """A product of matrices for each head, unless it is a part of an attention, which knows more about it."""
    operands = [context.tensor(node), context.tensor(node, 1)]
    if node.outputs[0] not in context.alone:
        raise Refusal("LIP110", "a product of two tensors that depend on the example is a part of no attention")
    if context.layout.place >= context.layout.rank(shape_of(operands[0])) - 2:
        raise Refusal("LIP108", "MatMul multiplies across the batch: it mixes examples", MIXES)
    return context.add(node, MATMUL, NoAttributes(), _of_equal_heads(context, node, operands))


def _of_equal_heads(context: Context, node: OnnxNode, operands: Sequence[Value]) -> list[Value]:
    """Copy the only head of a tensor for each head of the other."""
    left, right = (shape_of(operand)[:-2] for operand in operands)
    if len(left) != len(right) or any(a != b and 1 not in (a, b) for a, b in zip(left, right, strict=True)):
        return [*operands]
    heads = (*map(max, left, right),)
    wide = [(*heads, *shape_of(operand)[-2:]) for operand in operands]
    return [
        operand
        if shape_of(operand) == shape
        else context.add(node, OP_BY_NAME["expand"], Expand(shape), [operand], f"_copies{index}")
        for index, (operand, shape) in enumerate(zip(operands, wide, strict=True))
    ]


def _from_left(context: Context, node: OnnxNode) -> Value:
    """W·X for each example: the layer acts on the last axis but one."""
    operand, matrix = context.tensor(node, 1), context.known(node, 0, "the matrix")
    rank = len(shape_of(operand))
    matrix = matrix and _rows_of_all(matrix, rank)
    if (
        matrix is not None
        and matrix.copies is None
        and 2 < matrix.array.ndim <= rank
        and prod(shape_of(operand)[:-2]) == 1
    ):
        return _stack_from_left(context, node, operand, matrix)
    if matrix is None or matrix.array.ndim != 2:
        raise Refusal("LIP110", "the left operand of MatMul must be a constant matrix [out, in]")
    context.axis(node, -2, rank + 1), context.axis(node, -1, rank + 1)
    order = (*range(rank - 2), rank - 1, rank - 2)
    layer = Affine(DENSE, Dense(matrix.array.shape[0]), permute(context, node, operand, order, "_t"), matrix, None)
    return permute(context, node, parametric(context, node, layer), order, "_back")


def _stack_from_left(context: Context, node: OnnxNode, operand: Value, stack: Known) -> Value:
    """[*heads, n, k]·[1, …, 1, k, m]: rows of all heads, one behind another, times one matrix."""
    *heads, k = stack.array.shape
    m, ones = shape_of(operand)[-1], (1,) * (len(shape_of(operand)) - stack.array.ndim)
    rows = replace(stack, array=stack.array.reshape(-1, k), moves=then(stack, "rows"))
    columns = reshape_to(context, node, operand, (k, m), "_columns")
    turned = permute(context, node, columns, (1, 0), "_t")
    value = parametric(context, node, Affine(DENSE, Dense(prod(heads)), turned, rows, None))
    return reshape_to(context, node, permute(context, node, value, (1, 0), "_back"), (*ones, *heads, m), "_heads")


def _rows_of_all(matrix: Known, rank: int) -> Known:
    """Return [1, …, out, in] as a matrix [out, in], the same for all examples and heads."""
    *others, rows, columns = matrix.array.shape
    if matrix.copies is not None or not 0 < len(others) < rank or prod(others) != 1:
        return matrix
    return replace(matrix, array=matrix.array.reshape(rows, columns), moves=then(matrix, "rows"))


def running_sum(context: Context, node: OnnxNode) -> Value:
    """Sums of all entries up to each one along an axis of the example: a product with a fixed triangle of ones."""
    operand, axis = context.tensor(node), context.known(node, 1, "the axis")
    if axis is None:
        raise Refusal("LIP102", "CumSum without an axis")
    along = context.axis(node, int(scalar(axis)), len(shape_of(operand)) + 1)
    size = shape_of(operand)[along]
    expect_array((size, size))
    ones = np.tril(np.ones((size, size), np.float32), -1 if node.integer("exclusive", 0) else 0)
    return fixed(context, node, operand, along, ones.T if node.integer("reverse", 0) else ones)


def fixed(context: Context, node: OnnxNode, operand: Value, axis: int, matrix: Array, suffix: str = "") -> Value:
    """Multiply along an axis of an example by a matrix [new, old] that is not trained."""
    swap = [*range(len(shape_of(operand)))]
    swap[axis], swap[-1] = swap[-1], swap[axis]
    turned = permute(context, node, operand, swap, f"{suffix}_t")
    layer, weight = Dense(len(matrix)), [("weight", Known(matrix))]
    made = context.parameters.add(DENSE, layer, turned, weight, f"{node.name}{suffix}", frozen=True)
    return permute(context, node, made, swap, f"{suffix}_back")


def fourier(context: Context, node: OnnxNode) -> Value:
    """A Fourier transform along an axis, whose numbers have one or two parts: a fixed matrix of both axes."""
    operand, axis = context.tensor(node), context.known(node, 2, "the axis")
    place = node.integer("axis", 1) if context.version < _AXIS_IS_OPERAND else -2 if axis is None else scalar(axis)
    example = shape_of(operand)
    along, last = context.axis(node, int(place), len(example) + 1), len(example) - 1
    if along == last:
        raise Refusal("LIP102", "DFT along the axis of real and imaginary parts")
    entries, length = example[along] * example[last], context.known(node, 1, "the length")
    expect_array((entries, 2 * max(example[along], 0 if length is None else int(scalar(length)))))
    units = np.eye(entries, dtype=np.float32).reshape(entries, example[along], example[last])
    (columns,) = evaluate(
        _transform(node, has_length=length is not None), [Known(units), length], _AXIS_IS_OPERAND
    )
    order = [*(at for at in range(last) if at != along), along, last]
    moved = permute(context, node, operand, order, "_moved")
    rest = tuple(example[at] for at in order[:-2])
    flat = reshape_to(context, node, moved, (*rest, entries), "_flat")
    made = fixed(context, node, flat, len(rest), columns.reshape(entries, -1).T)
    apart = reshape_to(context, node, made, (*rest, *columns.shape[1:]), "_apart")
    return permute(context, node, apart, [order.index(at) for at in range(last + 1)], "_back")


def _transform(node: OnnxNode, *, has_length: bool) -> NodeProto:
    """Return the same transform of rows [n, entries, parts]: operator set 20 takes the last axis but one."""
    given = ["x", "n" if has_length else ""]
    inverse, one_sided = node.integer("inverse", 0), node.integer("onesided", 0)
    return helper.make_node("DFT", given, ["y"], inverse=inverse, onesided=one_sided)


def _added(context: Context, node: OnnxNode, adding: OnnxNode, features: int) -> Known | None:
    """Return the constant of the following Add, if it is exactly one number per output."""
    index = 1 if adding.proto.input[0] == node.outputs[0] else 0
    found = context.item(adding, index) if adding.proto.input[index] in context.items else None
    return found if isinstance(found, Known) and found.array.shape == (features,) else None


def _named_after(node: OnnxNode, adding: OnnxNode) -> OnnxNode:
    """torch renames a transposed weight, but not the bias: take the module's name from there."""
    modules = [module for tensor in adding.proto.input if (module := module_of(tensor))]
    return replace(node, name=modules[0], label=modules[0]) if modules else node


# Batch normalisation


def refuse_training(node: OnnxNode) -> None:
    """Refuse a batch normalisation in training mode; raises `Refusal`."""
    if node.integer("training_mode", 0) or any(node.outputs[1:]):
        raise Refusal(
            "LIP101",
            "batch normalisation mixes the examples of a batch, so per-example gradients are undefined",
            "replace it, to train; in evaluation mode, a model that is trained already keeps its statistics",
        )


def normalised(context: Context, node: OnnxNode, layer: Affine) -> Value:
    """Add a layer, with the batch normalisation that follows it folded in."""
    following = context.follower(node, "BatchNormalization")
    folded = _folded(context, following, layer) if following else None
    if following is None or folded is None:
        return parametric(context, node, layer)
    value = parametric(context, node, folded)
    context.absorb(following, value)
    return value


def _folded(context: Context, node: OnnxNode, layer: Affine) -> Affine | None:
    """γ·(W·x + b - μ)/√(v + ε) + β = (s·W)·x + (s·(b - μ) + β) with s = γ/√(v + ε)."""
    if node.integer("training_mode", 0) or any(node.outputs[1:]) or node.integer("spatial", 1) != 1:
        return None
    found = [context.items.get(name) for name in node.proto.input[1:5]]
    if layer.weight.reused or (layer.bias is not None and layer.bias.reused):
        return None
    known = [item for item in found if isinstance(item, Known)]
    if len(known) != 4 or any(item.array.shape != (layer.outputs,) for item in known):
        return None
    if any(map(context.parameters.will_train, filter(None, (layer.weight, layer.bias, *known[:2])))):
        return None
    gamma, beta, mean, variance = (floats(item.array, "a statistic").astype(np.float64) for item in known)
    kind = floats(layer.weight.array, "the weight").dtype
    with np.errstate(all="ignore"):
        scale = gamma / np.sqrt(variance + float(node.number("epsilon", Fraction(1e-5))))
        weight = layer.scaled(scale)
        old = 0.0 if layer.bias is None else floats(layer.bias.array, "the bias").astype(np.float64)
        bias = (scale * (old - mean) + beta).astype(kind)
    for part in known[:2]:
        context.parameters.join(part)
    base = layer.bias or known[1]
    move = ("normalised", node.outputs[0])
    return replace(
        layer,
        weight=replace(layer.weight, array=weight.astype(kind), moves=then(layer.weight, *move)),
        bias=replace(base, array=bias, moves=then(base, *move)),
    )


# Parameters


def parametric(context: Context, node: OnnxNode, layer: Affine) -> Value:
    """Add a layer. Weight and bias become nodes of their own where either is shared, or the bias is one number."""
    weight, bias = layer.weight, layer.bias
    if bias is None:
        return _add(context, layer, [("weight", weight)], node.name)
    if bias.array.shape == (layer.outputs,) and not weight.reused and not bias.reused:
        return _add(context, layer, [("weight", weight), ("bias", bias)], node.name)
    value = _add(context, layer, [("weight", weight)], node.name)
    spatial = (1,) * (0 if layer.op is DENSE else len(shape_of(value)) - 1)
    aligned = replace(bias, array=bias.array.reshape(-1, *spatial))
    shape = BiasShape(tuple(aligned.array.shape))
    return context.parameters.add(BIAS, shape, value, [("bias", aligned)], f"{node.name}_bias")


def _add(context: Context, layer: Affine, tensors: list[tuple[str, Known]], name: str) -> Value:
    """Add a layer; one that uses the matrix of another layer the other way round takes it as that stores it."""
    if layer.op is DENSE and context.parameters.has_transpose(layer.weight):
        weight = replace(layer.weight, array=layer.weight.array.T, moves=toggled(layer.weight))
        layer, tensors = replace(layer, op=DENSE_TRANSPOSE), [("weight", weight), *tensors[1:]]
    return context.parameters.add(layer.op, layer.attributes, layer.operand, tensors, name)


IMPORTERS: Mapping[str, Importer] = {
    "CumSum": running_sum,
    "DFT": fourier,
    "Gemm": gemm,
    "MatMul": mat_mul,
}

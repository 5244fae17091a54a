"""Importers of Conv and ConvTranspose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from lipcompile.core.graph import Value
from lipcompile.diagnostics import Refusal
from lipcompile.frontends.onnx.context import Context, Importer, shape_of
from lipcompile.frontends.onnx.node import OnnxNode
from lipcompile.frontends.onnx.values import Known
from lipcompile.ops.conv.rules import CONV, CONV_TRANSPOSE, Conv, ConvTranspose
from lipcompile.ops.linear.onnx_read import Affine, bias_vector, normalised, parametric, then
from lipcompile.ops.pool.onnx_read import images_of, per_axis, window_padding
from lipcompile.ops.shape.onnx_read import permute, reshape_to


def conv(context: Context, node: OnnxNode) -> Value:
    """A convolution of an example [channels, *spatial]."""
    operand, weight = context.tensor(node), _kernel(context, node, "[out, in / groups, *taps]")
    groups, kernel = _groups(node), weight.array.shape[2:]
    stride, dilation = per_axis(node, "strides", len(kernel)), per_axis(node, "dilations", len(kernel))
    padding = window_padding(node, shape_of(operand)[-len(kernel) :], kernel, stride, dilation)
    attributes = Conv(weight.array.shape[0], kernel, stride, padding, dilation, groups)
    bias = _kernel_bias(context, node, attributes.channels)
    return _layer(context, node, Affine(CONV, attributes, operand, weight, bias))


def conv_transpose(context: Context, node: OnnxNode) -> Value:
    """A transposed convolution of an example [channels, *spatial], whose padding is given as such."""
    operand, weight = context.tensor(node), _kernel(context, node, "[in, out / groups, *taps]")
    groups, kernel = _groups(node), weight.array.shape[2:]
    if node.text("auto_pad", "NOTSET") not in ("NOTSET", "VALID") or node.integers("output_shape"):
        message = "runtimes disagree on the meaning of auto_pad and output_shape of ConvTranspose"
        raise Refusal("LIP110", message, "export the model with explicit pads")
    stride, dilation = per_axis(node, "strides", len(kernel)), per_axis(node, "dilations", len(kernel))
    padding = window_padding(node, shape_of(operand)[-len(kernel) :], kernel, stride, dilation)
    extra = node.integers("output_padding") or (0,) * len(kernel)
    if len(extra) != len(kernel) or min(extra) < 0:
        raise Refusal("LIP102", f"output_padding of ConvTranspose does not fit {len(kernel)} axes: {list(extra)}")
    channels = weight.array.shape[1] * groups
    attributes = ConvTranspose(channels, kernel, stride, padding, extra, dilation, groups)
    bias = _kernel_bias(context, node, channels)
    return _layer(context, node, Affine(CONV_TRANSPOSE, attributes, operand, weight, bias))


def _layer(context: Context, node: OnnxNode, layer: Affine) -> Value:
    """Add a layer; several images of an example are one of one more axis, along which the kernel has one tap."""
    images, example = images_of(context, node), shape_of(layer.operand)
    if not images:
        return normalised(context, node, layer)
    if len(layer.attributes.kernel) > 2:
        raise Refusal("LIP110", f"{node.op_type} of several volumes of an example is not yet supported")
    operand = reshape_to(context, node, layer.operand, (prod(example[:images]), *example[images:]), "_images")
    swap = (1, 0, *range(2, len(shape_of(operand))))
    operand = permute(context, node, operand, swap, "_moved")
    one = {"kernel": (1,), "stride": (1,), "padding": ((0, 0),), "dilation": (1,), "output_padding": (0,)}
    given = {name: getattr(layer.attributes, name, None) for name in one}
    longer = {name: (*one[name], *value) for name, value in given.items() if value is not None}
    weight = replace(layer.weight, array=layer.weight.array[:, :, None], moves=then(layer.weight, "of images"))
    attributes = replace(layer.attributes, **longer)
    made = parametric(context, node, replace(layer, attributes=attributes, operand=operand, weight=weight))
    made = permute(context, node, made, swap, "_back")
    return reshape_to(context, node, made, (*example[:images], *shape_of(made)[1:]), "_of_images")


def _kernel(context: Context, node: OnnxNode, shape: str) -> Known:
    """Return the kernel, of as many spatial axes as the example has."""
    weight, example = context.known(node, 1, "the kernel"), context.shape(node)
    if weight is None or weight.array.ndim < 3:
        raise Refusal("LIP102", f"the kernel of {node.op_type} must have the shape {shape}")
    kernel = weight.array.shape[2:]
    if node.integers("kernel_shape") not in (None, kernel):
        raise Refusal("LIP102", f"kernel_shape does not fit the kernel, {list(kernel)}")
    if len(example) != len(kernel) + 1 + images_of(context, node):
        raise Refusal("LIP102", f"a kernel of {len(kernel)} axes does not fit {list(example)}")
    return weight


def _groups(node: OnnxNode) -> int:
    groups = node.integer("group", 1)
    if groups < 1:
        raise Refusal("LIP102", f"a convolution cannot have {groups} groups")
    return groups


def _kernel_bias(context: Context, node: OnnxNode, channels: int) -> Known | None:
    bias = context.known(node, 2, "the bias")
    return None if bias is None else bias_vector(bias, channels)


IMPORTERS: Mapping[str, Importer] = {"Conv": conv, "ConvTranspose": conv_transpose}

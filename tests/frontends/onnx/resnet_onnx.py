"""A residual network of the shape of ResNet-18 as ONNX, without batch normalisation; its widths are free."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx

from tests.frontends.onnx.onnx_models import Array, model, node

# The widths of the four stages; two basic blocks each. Those of the original are eight times as large.
SMALL = (8, 16, 32, 64)


class _Net:
    """Adds layers to `end`, the value that the one before made."""

    def __init__(self, seed: int) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, Array] = {}
        self._random = np.random.default_rng(seed)

    def conv(self, name: str, source: str, channels: tuple[int, int], kernel: int, stride: int = 1) -> str:
        """A convolution that keeps the size of an image, or halves it; its matrix has a norm of about 1."""
        self.weights[f"{name}.weight"] = self._normal(*channels, kernel, kernel)
        self.weights[f"{name}.bias"] = self._normal(channels[0])
        around = {"strides": [stride] * 2, "pads": [kernel // 2] * 4}
        return self._add("Conv", f"{source} {name}.weight {name}.bias", name, **around)

    def relu(self, source: str) -> str:
        return self._add("Relu", source, f"{source}.relu")

    def block(self, name: str, source: str, before: int, width: int) -> str:
        """Two convolutions beside a skip path; where the width changes, a 1×1 convolution of stride 2 is on it."""
        stride, skip = (1, source) if before == width else (2, "")
        inner = self.relu(self.conv(f"{name}.conv1", source, (width, before), 3, stride))
        outer = self.conv(f"{name}.conv2", inner, (width, width), 3)
        skip = skip or self.conv(f"{name}.downsample", source, (width, before), 1, stride)
        return self.relu(self._add("Add", f"{outer} {skip}", f"{name}.sum"))

    def head(self, source: str, width: int, classes: int) -> None:
        flat = self._add("Flatten", self._add("GlobalAveragePool", source, "pool"), "flat")
        self.weights["fc.weight"] = self._normal(classes, width)
        self.weights["fc.bias"] = self._normal(classes)
        self.nodes.append(node("Gemm", f"{flat} fc.weight fc.bias", "y", transB=1))

    def _add(self, op_type: str, inputs: str, output: str, **attributes: object) -> str:
        self.nodes.append(node(op_type, inputs, output, **attributes))
        self.nodes[-1].name = output
        return output

    def _normal(self, *shape: int) -> Array:
        drawn = self._random.standard_normal(shape)
        return (drawn / np.linalg.norm(drawn)).astype(np.float32)


def _blocks(widths: tuple[int, ...]) -> Iterator[tuple[str, int, int]]:
    before = widths[0]
    for stage, width in enumerate(widths, start=1):
        for number in range(2):
            yield f"layer{stage}.{number}", before, width
            before = width


def resnet(widths: tuple[int, ...] = SMALL, image: int = 32, classes: int = 10, seed: int = 0) -> onnx.ModelProto:
    """A stem, four stages of two basic blocks, a global average, a linear layer: 20 convolutions in all."""
    net = _Net(seed)
    end = net.relu(net.conv("conv1", "x", (widths[0], 3), 3))
    for name, before, width in _blocks(widths):
        end = net.block(name, end, before, width)
    net.head(end, widths[-1], classes)
    said = {"lipcompile.input_norm": "1", "lipcompile.loss": "cross_entropy"}
    return model(net.nodes, ("n", 3, image, image), net.weights, metadata=said)

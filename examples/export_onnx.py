"""Export two networks of plain PyTorch to ONNX, with weights inside their constraints: mlp.onnx and convnet.onnx.

Run from anywhere: python examples/export_onnx.py [FOLDER]. The result depends on the seed alone.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import onnx
import torch
from torch import Tensor, nn

from lipcompile.ops import norms
from lipcompile.ops.counting import windows_of

METADATA = {"lipcompile.input_norm": "1.0", "lipcompile.loss": "cross_entropy"}
INSIDE = 0.999  # of the unit ball


class MaxMin(nn.Module):
    """The larger and the smaller of each pair of channels: GroupSort with groups of two, which preserves norms."""

    def forward(self, x: Tensor) -> Tensor:
        """Sort the pairs (i, i + channels/2)."""
        a, b = x.chunk(2, dim=1)
        return torch.cat([torch.maximum(a, b), torch.minimum(a, b)], dim=1)


class Perceptron(nn.Module):
    """Three dense layers on the 64 pixels of a digit."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(64, 128), nn.Linear(128, 64), nn.Linear(64, 10)
        self.sort = MaxMin()

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, 64] to logits [B, 10]."""
        logits: Tensor = self.fc3(self.sort(self.fc2(self.sort(self.fc1(x)))))
        return logits


class ConvNet(nn.Module):
    """Two convolutions and a dense layer on images of 28 by 28 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.fc = nn.Linear(16 * 7 * 7, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, 1, 28, 28] to logits [B, 10]."""
        h = self.pool(torch.relu(self.conv1(x)))
        h = self.pool(torch.relu(self.conv2(h)))
        logits: Tensor = self.fc(h.flatten(1))
        return logits


def operator_norm(layer: nn.Module, size: int) -> float:
    """Return a certified norm of a layer of the two networks, on images of `size` by `size` pixels."""
    weight = layer.get_parameter("weight").detach().numpy()
    if isinstance(layer, nn.Linear):
        return float(norms.spectral_norm(weight).bound)
    windows = windows_of((size, size), (3, 3), (1, 1), (1, 1), ((1, 1), (1, 1)))
    return float(norms.convolution_norm(weight, windows).bound)


def shrink(network: nn.Module, sizes: dict[str, int]) -> None:
    """Scale weights to operator norm 1 and biases to length 1, if they exceed it."""
    for name, layer in network.named_children():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            scale = max(operator_norm(layer, sizes.get(name, 1)), INSIDE)
            layer.weight.data.mul_(INSIDE / scale)
            bias = layer.get_parameter("bias").data
            bias.mul_(INSIDE / max(float(bias.norm()), INSIDE))


def export(network: nn.Module, example: Tensor, path: Path) -> None:
    """Write the network with an open batch axis, and declare its input norm and its loss."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tracing exporter needs nothing beside torch, and says it is old
        torch.onnx.export(
            network.eval(),
            (example,),
            str(path),
            dynamo=False,
            input_names=["image"],
            output_names=["logits"],
            dynamic_axes={"image": {0: "batch"}, "logits": {0: "batch"}},
        )
    model = onnx.load(str(path))
    onnx.helper.set_model_props(model, METADATA)
    onnx.save(model, str(path))
    sys.stdout.write(f"{path}: {path.stat().st_size} bytes\n")


def main(folder: Path) -> None:
    """Write both models."""
    torch.manual_seed(0)
    perceptron, convnet = Perceptron(), ConvNet()
    shrink(perceptron, {})
    shrink(convnet, {"conv1": 28, "conv2": 14})
    export(perceptron, torch.zeros(2, 64), folder / "mlp.onnx")
    export(convnet, torch.zeros(2, 1, 28, 28), folder / "convnet.onnx")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)

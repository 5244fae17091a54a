"""The networks that `fix` is for, as torch modules: residual with batch norms, and vision transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lipcompile.frontends.silence import silence_native


class BasicBlock(nn.Module):
    """torchvision's, of small width."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample: nn.Module | None = None
        if stride != 1 or before != width:
            self.downsample = nn.Sequential(nn.Conv2d(before, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Any:
        inner = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        inner += x if self.downsample is None else self.downsample(x)
        return self.relu(inner)


class ResNet(nn.Module):
    """torchvision's stem and head, two stages of two blocks."""

    def __init__(self, widths: tuple[int, ...] = (4, 8), classes: int = 5) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, widths[0], 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        blocks, before = [], widths[0]
        for stage, width in enumerate(widths):
            blocks += [BasicBlock(before, width, 2 if stage else 1), BasicBlock(width, width, 1)]
            before = width
        self.layers = nn.Sequential(*blocks)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(before, classes)

    def forward(self, x: Tensor) -> Any:
        x = self.layers(self.maxpool(self.relu(self.bn1(self.conv1(x)))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class ViT(nn.Module):
    """Patches, positions, blocks of attention and GELU with layer norms before them or behind; a class token."""

    def __init__(self, *, first: bool, token: bool, width: int = 8, depth: int = 2) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, width) * 0.02) if token else None
        self.position = nn.Parameter(torch.randn(1, 4 + token, width) * 0.02)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 2, 2 * width, 0.0, "gelu", batch_first=True, norm_first=first)
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Any:
        x = self.patch(x).flatten(2).transpose(1, 2)
        if self.token is not None:
            x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1)
        x = x + self.position
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        return self.head(x.mean(1) if self.token is None else x[:, 0])


def export(module: nn.Module, size: int, path: Path, *, dynamo: bool) -> Path:
    """Export a module in training mode, with an open batch."""
    options: dict[str, Any] = {"dynamic_axes": {"x": {0: "batch"}}, "training": torch.onnx.TrainingMode.TRAINING}
    if dynamo:
        options = {"dynamic_shapes": {"x": {0: torch.export.Dim("batch", min=2)}}, "external_data": False}
    else:
        options["do_constant_folding"] = False
    torch.manual_seed(0)
    example = torch.randn(2, 3, size, size)
    with silence_native():
        torch.onnx.export(module.train(), (example,), str(path), input_names=["x"], dynamo=dynamo, **options)
    return path

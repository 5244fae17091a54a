"""Networks of images, written the way people write them, with few channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


class LeNet(nn.Module):
    """LeCun et al. 1998, with functions between the layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 5, padding=2), nn.Conv2d(4, 8, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(32, 16), nn.Linear(16, 12), nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Any:
        x = F.avg_pool2d(torch.tanh(self.conv1(x)), 2)
        x = F.avg_pool2d(torch.tanh(self.conv2(x)), 2)
        x = x.view(x.size(0), -1)
        return self.fc3(torch.tanh(self.fc2(torch.tanh(self.fc1(x)))))


class VGG(nn.Module):
    """Simonyan and Zisserman 2014, with batch normalisation, as torchvision has it."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(*self._stage(3, 6), *self._stage(6, 8))
        self.avgpool = nn.AdaptiveAvgPool2d((2, 2))
        self.classifier = nn.Sequential(
            nn.Linear(32, 16),
            nn.ReLU(True),
            nn.Dropout(),
            nn.Linear(16, 16),
            nn.ReLU(True),
            nn.Dropout(),
            nn.Linear(16, 10),
        )

    @staticmethod
    def _stage(before: int, width: int) -> list[nn.Module]:
        convolutions = ((before, width), (width, width))
        layers = [
            layer
            for a, b in convolutions
            for layer in (nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(inplace=True))
        ]
        return [*layers, nn.MaxPool2d(2, 2)]

    def forward(self, x: Tensor) -> Any:
        x = self.avgpool(self.features(x))
        return self.classifier(torch.flatten(x, 1))


class BasicBlock(nn.Module):
    """Two convolutions beside a skip path, as in torchvision."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(before, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        changes = stride != 1 or before != width
        skip = nn.Sequential(nn.Conv2d(before, width, 1, stride, bias=False), nn.BatchNorm2d(width))
        self.downsample = skip if changes else None

    def forward(self, x: Tensor) -> Any:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    """He et al. 2015: stem, stages of basic blocks, global average, linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.relu, self.maxpool = nn.ReLU(inplace=True), nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.layer1 = nn.Sequential(BasicBlock(4, 4, 1), BasicBlock(4, 4, 1))
        self.layer2 = nn.Sequential(BasicBlock(4, 8, 2), BasicBlock(8, 8, 1))
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d((1, 1)), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Any:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer2(self.layer1(x))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class PreActivationBlock(nn.Module):
    """Normalisation and activation before each convolution."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(before), nn.Conv2d(before, width, 3, stride, 1, bias=False)
        self.bn2, self.conv2 = nn.BatchNorm2d(width), nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.shortcut = nn.Conv2d(before, width, 1, stride, bias=False) if before != width else None

    def forward(self, x: Tensor) -> Any:
        out = F.relu(self.bn1(x))
        shortcut = x if self.shortcut is None else self.shortcut(out)
        out = self.conv2(F.relu(self.bn2(self.conv1(out))))
        return out + shortcut


class PreActivationResNet(nn.Module):
    """He et al. 2016."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.layers = nn.Sequential(PreActivationBlock(4, 4, 1), PreActivationBlock(4, 8, 2))
        self.bn, self.linear = nn.BatchNorm2d(8), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Any:
        out = F.relu(self.bn(self.layers(self.conv1(x))))
        out = F.avg_pool2d(out, 4)
        return self.linear(out.view(out.size(0), -1))


class UNet(nn.Module):
    """Ronneberger et al. 2015: two levels down, two up, with what was on the way put beside; classes last."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.bottom = self._double(1, 4), self._double(4, 6), self._double(6, 8)
        self.pool = nn.MaxPool2d(2)
        self.up2, self.merge2 = nn.ConvTranspose2d(8, 6, 2, stride=2), self._double(12, 6)
        self.up1 = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
        self.merge1, self.head = self._double(10, 4), nn.Conv2d(4, 3, 1)

    @staticmethod
    def _double(before: int, width: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(before, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(inplace=True),
        )

    def forward(self, x: Tensor) -> Any:
        first = self.down1(x)
        second = self.down2(self.pool(first))
        x = self.bottom(self.pool(second))
        x = self.merge2(torch.cat([second, self.up2(x)], dim=1))
        x = self.merge1(torch.cat([first, self.up1(x)], dim=1))
        return self.head(x).permute(0, 2, 3, 1)


class DenseLayer(nn.Module):
    """Puts new channels behind those that it was given."""

    def __init__(self, before: int, growth: int) -> None:
        super().__init__()
        self.norm1, self.relu1 = nn.BatchNorm2d(before), nn.ReLU(inplace=True)
        self.conv1 = nn.Conv2d(before, 2 * growth, 1, bias=False)
        self.norm2, self.relu2 = nn.BatchNorm2d(2 * growth), nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(2 * growth, growth, 3, padding=1, bias=False)

    def forward(self, features: Sequence[Tensor]) -> Any:
        bottleneck = self.conv1(self.relu1(self.norm1(torch.cat(list(features), 1))))
        return self.conv2(self.relu2(self.norm2(bottleneck)))


class DenseBlock(nn.ModuleDict):
    """Every layer reads all before it."""

    def __init__(self, before: int, growth: int, layers: int) -> None:
        super().__init__()
        for i in range(layers):
            self[f"denselayer{i + 1}"] = DenseLayer(before + i * growth, growth)

    def forward(self, x: Tensor) -> Any:
        features = [x]
        for layer in self.values():
            features.append(layer(features))
        return torch.cat(features, 1)


class DenseNet(nn.Module):
    """Huang et al. 2016."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1, bias=False),
            DenseBlock(4, 2, 2),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
            nn.Conv2d(8, 4, 1, bias=False),
            nn.AvgPool2d(2, 2),
            DenseBlock(4, 2, 2),
            nn.BatchNorm2d(8),
        )
        self.classifier = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Any:
        out = F.relu(self.features(x), inplace=True)
        return self.classifier(torch.flatten(F.adaptive_avg_pool2d(out, (1, 1)), 1))


class SqueezeExcitation(nn.Module):
    """Channels weighted by gates that see the whole image."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1, self.fc2 = nn.Conv2d(channels, squeezed, 1), nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: Tensor) -> Any:
        return torch.sigmoid(self.fc2(F.silu(self.fc1(self.avgpool(x))))) * x


class MBConv(nn.Module):
    """Expansion, depthwise convolution, squeeze and excitation, projection."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        inner = 2 * before
        self.block = nn.Sequential(
            nn.Conv2d(before, inner, 1, bias=False),
            nn.BatchNorm2d(inner),
            nn.SiLU(inplace=True),
            nn.Conv2d(inner, inner, 3, stride, 1, groups=inner, bias=False),
            nn.BatchNorm2d(inner),
            nn.SiLU(inplace=True),
            SqueezeExcitation(inner, 2),
            nn.Conv2d(inner, width, 1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.skips = stride == 1 and before == width

    def forward(self, x: Tensor) -> Any:
        return x + self.block(x) if self.skips else self.block(x)


class EfficientNet(nn.Module):
    """Tan and Le 2019, in small."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1, bias=False), nn.BatchNorm2d(4), nn.SiLU(inplace=True)),
            MBConv(4, 4, 1),
            MBConv(4, 6, 2),
            nn.Sequential(nn.Conv2d(6, 12, 1, bias=False), nn.BatchNorm2d(12), nn.SiLU(inplace=True)),
        )
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(12, 10))

    def forward(self, x: Tensor) -> Any:
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))

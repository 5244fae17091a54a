"""The architectures that the table of docs/architectures.md is about, with weights as training leaves them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from tests.exports.images import VGG, DenseNet, EfficientNet, LeNet, PreActivationResNet, ResNet, UNet
from tests.exports.sequences import LSTM, MLP, ConvolutionOfSequences, EncoderOfTorch, Mixer, VisionTransformer


@dataclass(frozen=True)
class Architecture:
    """A network, the shape of its examples, a loss for its output, and what is to be said of it.

    code: of the error to expect, empty if it is to be accepted.
    """

    title: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    loss: str = "cross_entropy"
    training: bool = False
    code: str = ""

    def module(self) -> nn.Module:
        """Return the network, in the mode that it is exported in; the same weights at every call."""
        with torch.random.fork_rng():
            torch.manual_seed(0)
            module = self.make()
            _train(module)
        return module.train(self.training)


def _train(module: nn.Module) -> None:
    """Give what starts as a constant, or as a copy, numbers of its own: all weights, and statistics."""
    for weight in module.parameters():
        weight.data.add_(0.05 * torch.randn_like(weight))
    for part in module.modules():
        if isinstance(part, _BatchNorm):
            assert part.running_mean is not None
            assert part.running_var is not None
            nn.init.normal_(part.running_mean, std=0.2)
            nn.init.uniform_(part.running_var, 0.5, 1.5)
        if isinstance(part, _BatchNorm | nn.LayerNorm):
            nn.init.uniform_(part.weight, 0.5, 1.5)
            nn.init.normal_(part.bias, std=0.1)


IMAGE, SMALL_IMAGE = (3, 16, 16), (3, 8, 8)
ARCHITECTURES: dict[str, Architecture] = {
    "mlp": Architecture("MLP", MLP, (1, 6, 6)),
    "lenet": Architecture("LeNet", LeNet, (1, 16, 16)),
    "vgg": Architecture("VGG, batch norm", VGG, IMAGE),
    "resnet": Architecture("ResNet, batch norm evaluated", ResNet, IMAGE),
    "resnet_train": Architecture("ResNet, batch norm in training", ResNet, IMAGE, training=True, code="LIP101"),
    "preact_resnet": Architecture("pre-activation ResNet", PreActivationResNet, (3, 16, 16)),
    "mixer": Architecture("MLP-Mixer", Mixer, SMALL_IMAGE),
    "vit": Architecture("ViT, scaled_dot_product_attention", VisionTransformer, SMALL_IMAGE),
    "vit_spelled": Architecture(
        "ViT, attention written out", lambda: VisionTransformer(spelled=True), SMALL_IMAGE
    ),
    "vit_torch": Architecture("ViT, nn.TransformerEncoder", EncoderOfTorch, SMALL_IMAGE),
    "conv1d": Architecture("1-D convolutions", ConvolutionOfSequences, (2, 16)),
    "lstm": Architecture("LSTM", LSTM, (5, 4)),
    "unet": Architecture("U-Net", UNet, (1, 8, 8), loss="token_cross_entropy"),
    "densenet": Architecture("DenseNet", DenseNet, SMALL_IMAGE),
    "efficientnet": Architecture("EfficientNet-like", EfficientNet, IMAGE),
}

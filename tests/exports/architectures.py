"""The architectures that the table of docs/architectures.md is about, with weights as training leaves them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from tests.exports.images import VGG, DenseNet, EfficientNet, LeNet, PreActivationResNet, ResNet, UNet
from tests.exports.sequences import LSTM, MLP, ConvolutionOfSequences, EncoderOfTorch, Mixer, VisionTransformer

# Whether a model is accepted, and the codes of all that is said of it.
Said = tuple[bool, tuple[str, ...]]
ACCEPTED: Said = (True, ())
# An ordinary layer normalisation stretches by 1/√ε: its bounds are finite, and of no use.
VACUOUS: Said = (True, ("LIP112", "LIP310"))


@dataclass(frozen=True)
class Architecture:
    """A network, the shape of its examples, a loss for its output, and what is to be said of it.

    said: of its file by any exporter but those in `otherwise`. training: whether it is exported in training mode.
    """

    title: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    said: Said = ACCEPTED
    otherwise: Mapping[str, Said] = field(default_factory=dict)
    loss: str = "cross_entropy"
    training: bool = False

    def expected(self, exporter: str) -> Said:
        """Return what is to be said of its file."""
        return self.otherwise.get(exporter, self.said)

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
ARCHITECTURES: Mapping[str, Architecture] = {
    "mlp": Architecture("MLP", MLP, (1, 6, 6)),
    "lenet": Architecture("LeNet", LeNet, (1, 16, 16)),
    "vgg": Architecture("VGG with batch norm", VGG, IMAGE),
    "resnet": Architecture("ResNet, batch norm in eval mode", ResNet, IMAGE),
    "resnet_train": Architecture(
        "ResNet, batch norm in train mode",
        ResNet,
        IMAGE,
        said=(False, ("LIP101",)),
        otherwise={"dynamo": (True, ("LIP114",))},  # it writes the file as in eval mode
        training=True,
    ),
    "preact_resnet": Architecture("pre-activation ResNet", PreActivationResNet, IMAGE),
    "mixer": Architecture("MLP-Mixer", Mixer, SMALL_IMAGE, VACUOUS),
    "vit": Architecture("ViT, attention of torch.nn.functional", VisionTransformer, SMALL_IMAGE, VACUOUS),
    "vit_spelled": Architecture(
        "ViT, attention written out", lambda: VisionTransformer(spelled=True), SMALL_IMAGE, VACUOUS
    ),
    "vit_torch": Architecture("ViT of nn.TransformerEncoder", EncoderOfTorch, SMALL_IMAGE, VACUOUS),
    "conv1d": Architecture("1-D convolutions", ConvolutionOfSequences, (2, 16)),
    "lstm": Architecture("LSTM, 5 steps", LSTM, (5, 4)),
    "unet": Architecture("U-Net", UNet, (1, 8, 8), loss="token_cross_entropy"),
    "densenet": Architecture("DenseNet", DenseNet, SMALL_IMAGE),
    "efficientnet": Architecture("EfficientNet-like", EfficientNet, IMAGE),
}

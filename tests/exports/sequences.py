"""Networks of vectors, sequences and tokens, written the way people write them, with few features."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


class MLP(nn.Module):
    """Linear layers with two kinds of activation and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Flatten(),
            nn.Linear(36, 16),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(16, 16),
            nn.GELU(),
            nn.Linear(16, 10),
        )

    def forward(self, x: Tensor) -> Any:
        return self.net(x)


class ConvolutionOfSequences(nn.Module):
    """Convolutions along time, a maximum, the mean over time."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv1d(2, 6, 5, padding=2),
            nn.BatchNorm1d(6),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Conv1d(6, 8, 3, padding=2, dilation=2),
            nn.BatchNorm1d(8),
            nn.LeakyReLU(0.1),
        )
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Any:
        return self.fc(self.features(x).mean(dim=-1))


class LSTM(nn.Module):
    """A recurrent layer, of which the last state is classified."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.fc = nn.LSTM(4, 6, batch_first=True), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Any:
        out, _ = self.lstm(x)
        return self.fc(out[:, -1])


# Mixer


class FeedForward(nn.Module):
    """Two linear layers with GELU between them."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Any:
        return self.fc2(self.act(self.fc1(x)))


class MixerBlock(nn.Module):
    """One network over tokens, one over channels."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norm1, self.mlp_tokens = nn.LayerNorm(width), FeedForward(tokens, 8)
        self.norm2, self.mlp_channels = nn.LayerNorm(width), FeedForward(width, 12)

    def forward(self, x: Tensor) -> Any:
        x = x + self.mlp_tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.mlp_channels(self.norm2(x))


class Mixer(nn.Module):
    """Tolstikhin et al. 2021."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 4, stride=4)
        self.blocks = nn.Sequential(MixerBlock(4, 6), MixerBlock(4, 6))
        self.norm, self.head = nn.LayerNorm(6), nn.Linear(6, 10)

    def forward(self, x: Tensor) -> Any:
        x = self.stem(x).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.blocks(x)).mean(dim=1))


# Vision transformers


class Attention(nn.Module):
    """Several heads from one projection, with torch's own scaled product or written out."""

    def __init__(self, width: int, heads: int, *, spelled: bool) -> None:
        super().__init__()
        self.heads, self.spelled = heads, spelled
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Any:
        batch, tokens, width = x.shape
        qkv = self.qkv(x).reshape(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        if self.spelled:
            scores = (q * (width // self.heads) ** -0.5) @ k.transpose(-2, -1)
            out = scores.softmax(dim=-1) @ v
        else:
            out = F.scaled_dot_product_attention(q, k, v)
        return self.proj(out.transpose(1, 2).reshape(batch, tokens, width))


class TransformerBlock(nn.Module):
    """Attention and a feed-forward network, each behind a norm and beside a skip path."""

    def __init__(self, width: int, *, spelled: bool) -> None:
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(width), Attention(width, 2, spelled=spelled)
        self.norm2, self.mlp = nn.LayerNorm(width), FeedForward(width, 12)

    def forward(self, x: Tensor) -> Any:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    """Dosovitskiy et al. 2020, as timm has it: a class token, positions, and its own attention."""

    def __init__(self, *, spelled: bool = False) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(3, 6, 4, stride=4)
        self.cls_token = nn.Parameter(torch.randn(1, 1, 6) * 0.1)
        self.pos_embed = nn.Parameter(torch.randn(1, 5, 6) * 0.1)
        self.blocks = nn.Sequential(TransformerBlock(6, spelled=spelled), TransformerBlock(6, spelled=spelled))
        self.norm, self.head = nn.LayerNorm(6), nn.Linear(6, 10)

    def forward(self, x: Tensor) -> Any:
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), dim=1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])


class EncoderOfTorch(nn.Module):
    """The same around torch's own encoder layer, whose attention is nn.MultiheadAttention."""

    def __init__(self) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(3, 6, 4, stride=4)
        self.cls_token = nn.Parameter(torch.randn(1, 1, 6) * 0.1)
        self.pos_embed = nn.Parameter(torch.randn(1, 5, 6) * 0.1)
        layer = nn.TransformerEncoderLayer(6, 2, 12, activation="gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(6, 10)

    def forward(self, x: Tensor) -> Any:
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), dim=1) + self.pos_embed
        return self.head(self.encoder(x)[:, 0])

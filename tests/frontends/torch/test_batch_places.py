"""Operators whose batch is not the first axis by itself: frames of a video, sentences of a text, heads in front.

Oracle: the module itself, by torch alone, as in `test_computed_parameters`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import lipcompile
from lipcompile import InputError
from tests.frontends.torch.test_computed_parameters import examples, held_to_torch, private

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:the output does not depend on")]


class Frames(nn.Module):
    """A network of images on each frame of an example, which make one batch, and a layer on all of them."""

    def __init__(self, norm: nn.Module, frames_first: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.frames_first = frames_first
        self.images = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1),
            norm,
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(4, 6, 3, stride=2, groups=2),
            nn.ConvTranspose2d(6, 4, 2, 2, bias=False),
            nn.AvgPool2d(2),
            nn.AdaptiveAvgPool2d(1),
        )
        self.head = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        size, frames, *image = x.shape
        if self.frames_first:
            made = self.images(x.transpose(0, 1).reshape(frames * size, *image))
            return self.head(made.view(frames, size, 4).transpose(0, 1).flatten(1))  # type: ignore[no-any-return]
        return self.head(self.images(x.view(size * frames, *image)).view(size, -1))  # type: ignore[no-any-return]


class Document(nn.Module):
    """A recurrent layer on the words of each sentence, and one on the sentences."""

    def __init__(self, kind: Callable[..., nn.Module]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = kind(4, 3, bidirectional=True, batch_first=True, bias=False)
        self.sentences, self.head = kind(6, 3, batch_first=True, bias=False), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        size, sentences, words, width = x.shape
        states, _ = self.words(x.view(size * sentences, words, width))
        return self.head(self.sentences(states.mean(1).view(size, sentences, -1))[0].mean(1))  # type: ignore[no-any-return]


class Around(nn.Module):
    """A linear layer, a function of h [B, 3, 4], and a linear layer of the mean of what it makes."""

    def __init__(self, function: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.function, self.head = nn.Linear(4, 4), function, nn.Linear(4, 3)
        self.stack, self.cross = nn.Parameter(torch.randn(3, 4, 4)), nn.Parameter(torch.randn(2, 2))

    def forward(self, x: Tensor) -> Tensor:
        made = self.function(self, self.first(x))
        return self.head(made.reshape(len(x), -1, 4).mean(1))  # type: ignore[no-any-return]


def heads_in_front(_: Any, h: Tensor) -> Tensor:
    """As DeepCTR writes AutoInt."""
    heads = torch.stack(torch.split(h, 2, dim=2))
    scores = torch.einsum("hbik,hbjk->hbij", heads, heads.tanh()).softmax(-1)
    return torch.cat(torch.split(scores @ heads, 1), dim=-1).squeeze(0)


def moved_by_einsum(_: Any, h: Tensor) -> Tensor:
    return torch.einsum("tbd,bd->tbd", h.transpose(0, 1), h.tanh()[:, 0]).permute(1, 0, 2)


def einsum_of_windows(net: Any, h: Tensor) -> Tensor:
    """As MaxViT and axial attention: windows of an example, and heads before it, in one axis with the batch."""
    windows, heads = h.reshape(-1, 2, 2), h.view(-1, 3, 2, 2).permute(2, 0, 1, 3).reshape(-1, 3, 2)
    own = torch.einsum("nij,nkj->nik", windows, windows.tanh()) + torch.einsum("nij,jk->nik", windows, net.cross)
    scores = torch.einsum("nij,nkj->nik", heads, heads.tanh()).softmax(-1)
    made = torch.einsum("nik,nkj->inj", scores, heads).reshape(3, 2, -1, 2)
    return own.reshape(h.shape) + made.permute(2, 0, 1, 3).reshape(h.shape)


def shifted_rows(_: Any, h: Tensor) -> Tensor:
    """As relative positions are shifted, in heads that are one axis with the batch: zeros behind each row."""
    heads = h.view(-1, 3, 2, 2).transpose(1, 2).reshape(-1, 3, 2)
    wide = torch.cat([heads, torch.zeros(*heads.shape[:2], 1)], 2).flatten(1)
    return torch.cat([wide, torch.zeros(len(wide), 3)], 1).view(-1, 2, 4, 3)[..., :2].sum(2).reshape(-1, 1, 4) + h


def spread_in_front(_: Any, h: Tensor) -> Tensor:
    """As NetVLAD, and attention over the steps of a decoder."""
    wide = h[:, 0].expand(3, -1, -1).permute(1, 0, 2) * h
    return (
        wide + h[:, 1].repeat(3, 1, 1).permute(1, 0, 2) + h.transpose(0, 1)[:1].expand(3, -1, -1).transpose(0, 1)
    )


def compared(_: Any, h: Tensor) -> Tensor:
    turned = h.transpose(0, 1)
    return (turned * (turned > 0.1) + torch.where(turned.floor() == 0, turned, -turned)).transpose(0, 1)


def one_matrix_each(net: Any, h: Tensor) -> Tensor:
    """As TabM: a matrix for each member of an ensemble."""
    return (h.transpose(0, 1) @ net.stack).transpose(0, 1)  # type: ignore[no-any-return]


def padded(_: Any, h: Tensor) -> Tensor:
    wide = F.pad(h.transpose(0, 1), (1, 1)).transpose(0, 1)[..., 1:-1]
    return wide + F.pad(h.view(-1, 4), (2, 0)).view(-1, 3, 6)[..., :4]


def products(_: Any, h: Tensor) -> Tensor:
    """As transmittance in NeRF, and leaves of soft trees; of zeros and negative numbers, too."""
    h = h.relu() - 0.2 * (h > 0.3)
    return torch.cumprod(h, 1) + h.prod(1, keepdim=True) * h.prod(-1).unsqueeze(-1)


def pooled(_: Any, h: Tensor) -> Tensor:
    """As in fastText: torch takes the words [B, T, d] for the channels of one image."""
    return F.avg_pool2d(h, (3, 1)) + F.max_pool1d(h.flatten(1), 3, 3).unsqueeze(1)


def written_over(_: Any, h: Tensor) -> Tensor:
    """As PyG's dense graph convolution puts ones on the diagonal."""
    h, places, rows = h.clone(), torch.arange(3), torch.zeros(h.shape[0], 4, 4)
    h[:, places, places.flip(0)] = 0.5
    rows[:, [2, 0, 1]] = h.tanh()
    rows[:, [3, 1], 2] += h[:, 0, :2]
    rows[torch.arange(h.shape[0]), 3] = h[:, 1].sin()
    return rows * h.sum(1, keepdim=True)


def squeezed(_: Any, h: Tensor) -> Tensor:
    return h[:, :, :1].squeeze() @ torch.ones(3, 4) * h[:, 0]


FUNCTIONS = (
    pooled,
    written_over,
    squeezed,
    products,
    heads_in_front,
    moved_by_einsum,
    einsum_of_windows,
    shifted_rows,
    spread_in_front,
    compared,
    one_matrix_each,
    padded,
)


def held(net: nn.Module, x: Tensor) -> None:
    module: Any = private(net, x)
    with torch.no_grad():
        assert torch.allclose(module.eval()(x), net(x), atol=1e-6)
    held_to_torch(net, module.train(), x)


@pytest.mark.parametrize("frames_first", [False, True])
def test_images_of_an_example(frames_first: bool) -> None:
    held(Frames(nn.GroupNorm(2, 4), frames_first), examples(3, 1, 8, 8))


@pytest.mark.parametrize("norm", [nn.BatchNorm2d(4).eval(), nn.InstanceNorm2d(4)])
def test_norms_of_images_of_an_example(norm: nn.Module) -> None:
    held(Frames(norm), examples(3, 1, 8, 8))


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_sequences_of_an_example(kind: Any) -> None:
    held(Document(kind), examples(3, 2, 4))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_with_the_batch_elsewhere(function: Any) -> None:
    held(Around(function), examples(3, 4))


def over_examples(_: Any, h: Tensor) -> Tensor:
    return torch.einsum("tbd,tcd->tbd", h.transpose(0, 1), h.transpose(0, 1)).transpose(0, 1)


def over_windows(_: Any, h: Tensor) -> Tensor:
    """The windows of one tensor stand behind the batch, those of the other before it."""
    windows, turned = h.flatten(0, 1), h.transpose(0, 1).flatten(0, 1)
    return torch.einsum("nd,nd->nd", windows, turned).view(h.shape)


def product_of_examples(_: Any, h: Tensor) -> Tensor:
    return h * h.prod(0, keepdim=True)


def running_product(_: Any, h: Tensor) -> Tensor:
    return torch.cumprod(h, 0)


def product_of_copies(net: Any, h: Tensor) -> Tensor:
    """Its size is that of the batch, whatever the entries are."""
    return h + net.stack[0, 0].expand(len(h), 4).prod(0)  # type: ignore[no-any-return]


def running_product_of_copies(_: Any, h: Tensor) -> Tensor:
    """Each example gets another number."""
    return h + torch.full((len(h), 4), 0.5).cumprod(0)[:, None]


def next_example(_: Any, h: Tensor) -> Tensor:
    return F.pad(h, (0, 0, 0, 0, 1, 0))[:-1] * h


def next_frame(_: Any, h: Tensor) -> Tensor:
    """Frames of neighbouring examples are neighbours."""
    return F.pad(h.view(-1, 4), (0, 0, 1, 0))[:-1].view(-1, 3, 4) * h


def pooled_frames(_: Any, h: Tensor) -> Tensor:
    return F.max_pool1d(h.reshape(1, -1, 12).transpose(1, 2), 3, 1, 1).transpose(1, 2).reshape(-1, 3, 4)


def wrong_order(_: Any, h: Tensor) -> Tensor:
    """Frames that are taken for examples."""
    return h.reshape(3, -1, 4).transpose(0, 1) * h


def pooled_examples(_: Any, h: Tensor) -> Tensor:
    """The batch is the height of an image."""
    return F.avg_pool2d(F.pad(h.transpose(0, 1), (0, 0, 0, 1)), (2, 1), 1).transpose(0, 1)


def written_over_examples(_: Any, h: Tensor) -> Tensor:
    made = h.clone()
    made[torch.tensor([0, 1]), torch.tensor([0, 2])] = h[0, 0] * 2
    return made


MIXING = (
    pooled_examples,
    written_over_examples,
    product_of_examples,
    running_product,
    product_of_copies,
    running_product_of_copies,
    over_examples,
    over_windows,
    next_example,
    next_frame,
    pooled_frames,
    wrong_order,
)


@pytest.mark.parametrize("function", MIXING)
def test_what_mixes_is_refused(function: Any) -> None:
    with pytest.raises(InputError, match=r"LIP108|batch"):
        lipcompile.private(Around(function), examples(3, 4), loss="cross_entropy", bounds="clip")


def test_tokens_are_one_hot() -> None:
    """Nothing but the comparison says how many there are."""

    class Letters(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer, self.head = nn.Conv1d(5, 4, 3), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            hot = F.one_hot(x, 5).float().transpose(1, 2)
            return self.head(self.layer(hot).tanh().amax(2))  # type: ignore[no-any-return]

    held(Letters(), torch.randint(5, (4, 6), generator=torch.Generator().manual_seed(0)))


def test_states_of_other_sequences_are_refused() -> None:
    """The layer of the words begins in states that are those of other sentences."""

    class Crossed(Document):
        def forward(self, x: Tensor) -> Tensor:
            size, sentences, words, width = x.shape
            flat = x.view(size * sentences, words, width)
            _, state = self.words(flat)
            turned = state.view(2, size, sentences, 3).transpose(1, 2).reshape(2, sentences * size, 3)
            states, _ = self.words(flat, turned)
            return self.head(states.mean(1).view(size, sentences, -1).mean(1)[:, :3])  # type: ignore[no-any-return]

    with pytest.raises(InputError, match="LIP108"):
        lipcompile.private(Crossed(nn.GRU), examples(3, 2, 4), loss="cross_entropy", bounds="clip")

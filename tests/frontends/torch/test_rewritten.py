"""Functions of torch that its exporter has no words for, or writes in words that no theorem knows.

Each network computes what torch computes. The gradient of a batch is the sum of clipped gradients that torch.func
finds example by example. Variants that cross the batch are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

import lipcompile
from lipcompile import InputError
from lipcompile.pipeline import from_module
from tests.frontends.torch.test_padded_texts import TEXTS, Numbers, Text, attacked, compiled
from tests.nights import by_day

pytestmark = pytest.mark.slow

# Of the outputs [B, 4] of a layer.
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "a transposed operand": lambda h: h * torch.einsum("bi,ib->b", h, h.T).unsqueeze(-1),
    "distances": lambda h: torch.cdist(h, torch.eye(4)) + torch.cdist(h, torch.eye(4), p=1),
    "distances of rows": lambda h: torch.cdist(h.view(-1, 2, 2), h.view(-1, 2, 2).tanh()).flatten(1),
    "random slopes": lambda h: F.rrelu(h, 0.1, 0.5),
    "outer product": lambda h: torch.einsum("bi,bj->bij", h, h.tanh()).mean(1),
    "three factors": lambda h: torch.einsum("bi, bj, bi -> bj", h.relu(), h.tanh(), h),
    "four factors": lambda h: torch.einsum("bij,bj,bk,bk->bi", h.unsqueeze(2) * h.unsqueeze(1), h.tanh(), h, h),
    "diagonals": lambda h: (
        torch.einsum("bii,bi->bi", h[:, :, None] * h.tanh()[:, None], h)
        + torch.einsum("bi,ii->bi", h, torch.arange(16.0).view(4, 4))
        + torch.einsum("bii->b", h[:, None] - h[:, :, None].tanh()).unsqueeze(-1)
    ),
    "inner product": lambda h: h * torch.einsum("bi,bi->b", h, h.tanh()).unsqueeze(-1),
    "axes that are longer": lambda h: h.squeeze(1) * h.unsqueeze(1).squeeze((1, 2)).tanh(),
    "a whole limit and a real one": lambda h: h.clamp(-1, 0.5) + h.clamp(max=0.5),
    "columns": lambda h: torch.column_stack([h[:, 0], h[:, :2].tanh(), h.mean(1)]),
    "attention": lambda h: _attention(h.view(-1, 2, 1, 2)).flatten(1),
    "smaller": lambda h: F.interpolate(h.view(-1, 1, 4, 1), scale_factor=(0.5, 2), mode="bilinear").flatten(1),
    "resized": lambda h: F.interpolate(
        F.interpolate(h[:, None], scale_factor=1.6, mode="linear"), size=4, mode="nearest"
    )[:, 0],
    "hidden scores": lambda h: _hidden(h).softmax(-1).matmul(h.unsqueeze(-1)).squeeze(-1),
    "capsules": lambda h: (
        torch.einsum("bik,cidk->bcid", h.view(-1, 2, 2), torch.ones(2, 2, 2, 2)).mean(2).flatten(1)
    ),
    "Fourier": lambda h: torch.fft.fft2(h.view(-1, 2, 2)).real.flatten(1),
    "frequencies": lambda h: h * torch.cos(torch.fft.fftfreq(4, 0.1)) + h[:, :1] * torch.fft.rfftfreq(n=7, d=2.0),
    "windows that are added up": lambda h: F.fold(
        F.unfold(h.view(-1, 1, 2, 2).sin(), 2, padding=1), (2, 2), 2, padding=1
    ).flatten(1),
    "steps that are added up": lambda h: torch.nn.Fold((1, 4), (1, 2), stride=(1, 2), dilation=(2, 1))(
        h.view(-1, 2, 2)
    ).flatten(1),
    "a list of axes": lambda h: h - h.view(-1, 2, 2).mean(torch.arange(1, 3).tolist(), keepdim=True).flatten(1),
    "a distribution": lambda h: _density(h) * h,
    "angles": lambda h: torch.acos(h.tanh()) + torch.asin(0.9 * h.sin()) + torch.tan(h / 4),
    "hyperbolic": lambda h: torch.cosh(h) - torch.sinh(h / 2) + torch.atanh(h.tanh() * 0.8),
    "kernels of each": lambda h: _modulated(h, h),
    "kernels of each, with steps": lambda h: _modulated(h, h.sin(), stride=(2, 1), dilation=2),
    "data of a mask": lambda h: h * (h > 0).type_as((h > 1).data) + (h < 0).data,
    "places of an image": lambda h: _sampled(h, "bilinear", "zeros", False),
    "places of an image that ends": lambda h: _sampled(h, "bilinear", "border", True),
    "nearest places of an image": lambda h: _sampled(h, "nearest", "zeros", False),
    "transformed image": lambda h: F.grid_sample(
        h.view(-1, 1, 2, 2), F.affine_grid(_turn(h), [len(h), 1, 2, 2], False), align_corners=False
    ).flatten(1),
    "convolution": lambda h: torch.fft.irfft(torch.fft.rfft(h) * torch.fft.rfft(h.tanh())),
}


def _modulated(h: Tensor, kernels: Tensor, **named: Any) -> Tensor:
    """As StyleGAN2: two kernels for each example, of two channels with 2 × 1 entries."""
    image, own = torch.stack([h, h.tanh()], 1).reshape(1, -1, 2, 2), torch.cat([kernels, kernels.cos()], 1)
    made = F.conv2d(image, own.view(-1, 2, 2, 1), padding=1, groups=h.shape[0], **named)
    return made.view(h.shape[0], 2, -1).sum(1)[:, :4]


def _sampled(h: Tensor, mode: str, padding: str, corners: bool) -> Tensor:
    """Two channels of 3 × 2 entries at two places, some of them outside."""
    image = torch.cat([h, h.cos(), h[:, :1], h[:, 2:]], 1)[:, :12].repeat(1, 2)[:, :12].view(-1, 2, 3, 2)
    return F.grid_sample(image, 1.3 * h.view(-1, 2, 1, 2), mode, padding, corners).flatten(1)


def _density(h: Tensor) -> Tensor:
    """Torch looks whether the deviations are positive."""
    normal, standard = torch.distributions.Normal(h, h.exp()), torch.distributions.Normal(0.0, 1.0)
    scores: Tensor = normal.log_prob(h.flip(1)) + standard.log_prob(h)  # type: ignore[no-untyped-call]
    return scores + normal.entropy()  # type: ignore[no-untyped-call, no-any-return]


def _turn(h: Tensor) -> Tensor:
    return torch.cat([h, h[:, :2]], 1).view(-1, 2, 3)


def _attention(h: Tensor) -> Tensor:
    scores = torch.einsum("bqhd,bkhd->bhqk", h, h.tanh())
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), h)


def _hidden(h: Tensor) -> Tensor:
    """Scores of a graph attention, those between places that are not joined hidden."""
    scores = F.leaky_relu(h.unsqueeze(-1) + h.tanh().unsqueeze(-2), 0.2)
    return scores.masked_fill(torch.ones(4, 4).triu(2).bool(), float("-inf"))


def bags(mode: str, padding: int | None) -> Callable[[Any, Tensor, Tensor], Tensor]:
    return lambda net, x, _: F.embedding_bag(x, net.words.weight, mode=mode, padding_idx=padding)


BAGS = {(mode, padding): bags(mode, padding) for mode in ("sum", "mean", "max") for padding in (None, 0, -8)}
# The last example is padding alone, whose bag is zero.
WORDS = torch.cat([TEXTS, torch.zeros(1, 6, dtype=torch.long)])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_clipped_example_by_example(name: str, tmp_path: Path) -> None:
    net = Numbers(FUNCTIONS[name]).eval()
    module = compiled(net, (6,), tmp_path)
    module.normaliser = 1.0
    attacked(net, module, torch.randn(5, 6, generator=torch.Generator().manual_seed(1)))


@pytest.mark.parametrize("given", by_day({0, 2, 4, 7}, BAGS, whole=True))
def test_bags_are_clipped_example_by_example(given: Any, tmp_path: Path) -> None:
    net = Text(BAGS[given]).eval()
    module = compiled(net, WORDS, tmp_path)
    module.normaliser = 1.0
    attacked(net, module, WORDS)


def test_rows_of_a_parameter_at_words(tmp_path: Path) -> None:
    """As the bigrams of makemore: `logits[words]`, beside an embedding of the same table."""
    net = Text(lambda net, x, e: net.words.weight[x[:, 1:]].tanh().mean(1) + e.mean(1)).eval()
    module = compiled(net, TEXTS, tmp_path)
    module.normaliser = 1.0
    attacked(net, module, TEXTS)


def test_rows_at_computed_places_may_count_from_the_end() -> None:
    net = Text(lambda net, x, e: net.words.weight[x - 4].mean(1) + e.mean(1)).eval()
    with pytest.warns(UserWarning, match="one example at a time"):
        module = lipcompile.private(net, TEXTS, bounds="clip").eval()
    torch.testing.assert_close(module(TEXTS), net(TEXTS))


def test_weights_of_words_are_factors(tmp_path: Path) -> None:
    weights = torch.arange(6.0) / 8
    net = Text(
        lambda net, x, _: F.embedding_bag(
            x, net.words.weight, mode="sum", per_sample_weights=weights.expand(len(x), 6)
        )
    ).eval()
    module = compiled(net, TEXTS, tmp_path)
    module.normaliser = 1.0
    attacked(net, module, TEXTS)


OF_BATCH: dict[str, Callable[[Tensor], Tensor]] = {
    "distances of examples": lambda h: torch.cdist(h, h) @ h,
    "products of examples": lambda h: torch.einsum("bi,ci->bc", h, h) @ h,
    "a sum of examples": lambda h: h + torch.einsum("bi,bj->ij", h, h)[:1],
    "three factors, one of another example": lambda h: torch.einsum("bi,ci,bi->bi", h, h.tanh(), h),
    "squares of all examples": lambda h: h * torch.einsum("bi,bi->i", h, h),
    "resized batch": lambda h: F.interpolate(h.T[None], scale_factor=0.5)[0].mean(1) + h,
    "places of another image": lambda h: (
        F.grid_sample(h.view(-1, 1, 2, 2), h.flip(0).view(-1, 2, 1, 2), align_corners=False)
        .flatten(1)
        .repeat(1, 2)
    ),
    "kernels of another": lambda h: _modulated(h, h.flip(0)),
    "images of all": lambda h: (
        F.grid_sample(h.view(1, -1, 2, 2), h.view(1, -1, 2, 2), align_corners=False).mean(1).flatten(1)[:, :4] + h
    ),
    "transformed batch": lambda h: torch.fft.fft(h, dim=0).real,
    "slopes that are drawn": lambda h: F.rrelu(h, training=True),
}


@pytest.mark.parametrize("name", OF_BATCH)
def test_functions_of_the_batch_are_refused(name: str) -> None:
    with pytest.raises(InputError) as refused:
        lipcompile.private(Numbers(OF_BATCH[name]), (6,), bounds="clip")
    wanted = "LIP100" if "drawn" in name else "LIP108"
    assert wanted in {found.code for found in refused.value.diagnostics}


BAGS_OF_BATCH: dict[str, Callable[[Any, Tensor, Tensor], Tensor]] = {
    "bags of places": lambda net, x, e: e.mean(1) + F.embedding_bag(x.T, net.words.weight).mean(0),
    "bags of other bounds": lambda net, x, _: F.embedding_bag(
        x.flatten(), net.words.weight, torch.arange(x.shape[0]) * 5
    ),
    "bags that count the batch": lambda net, x, _: F.embedding_bag(x, net.words.weight, scale_grad_by_freq=True),
}


@pytest.mark.parametrize("name", BAGS_OF_BATCH)
def test_bags_of_the_batch_are_refused(name: str) -> None:
    with pytest.raises(InputError):
        lipcompile.private(Text(BAGS_OF_BATCH[name]), TEXTS, bounds="clip")


def test_torch_has_its_functions_again() -> None:
    """A trace leaves nothing behind, whether it fails or not."""
    before = torch.cdist, F.rrelu, F.embedding_bag
    for function in (FUNCTIONS["distances"], OF_BATCH["slopes that are drawn"]):
        from_module(Numbers(function).eval(), (6,), bounds="clip")
    assert (torch.cdist, F.rrelu, F.embedding_bag) == before


def test_an_instance_normalisation_by_stored_statistics_is_a_batch_normalisation() -> None:
    torch.manual_seed(0)
    norm = torch.nn.InstanceNorm2d(2, affine=True, track_running_stats=True)
    module = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), norm, torch.nn.Flatten(), torch.nn.Linear(18, 3))
    x = torch.randn(6, 1, 5, 5)
    module(x)
    with pytest.raises(InputError, match=r"`1` stores statistics of the examples.* leave track_running_stats out"):
        lipcompile.private(module, x, bounds="clip")
    torch.testing.assert_close(lipcompile.private(module.eval(), x, bounds="clip")(x), module(x))


class Continued(torch.nn.Module):
    """A language model of torch's encoder, which compares its mask with the causal one if it is given no hint."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layer = torch.nn.TransformerEncoderLayer(4, 2, 6, 0.0, batch_first=True)
        self.encoder = torch.nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        found: Tensor = self.encoder(x, mask=mask)
        return found


def test_a_causal_mask_without_a_hint_stays() -> None:
    x = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0))
    module = Continued()
    private = lipcompile.private(module, x, loss=lambda y, _: y.square().sum(), bounds="clip")
    torch.testing.assert_close(private(x), module(x))
    later = torch.cat([x[:, :4], x[:, 4:] + 1], 1)
    torch.testing.assert_close(private(later)[:, :4], private(x)[:, :4])


class Padded(Continued):
    """The same with a mask of padding: both masks hold infinite numbers, and are added."""

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        found: Tensor = self.encoder(x, mask=mask, src_key_padding_mask=x[:, :, 0] > 1)
        return found


@pytest.mark.filterwarnings("ignore:Support for mismatched")
def test_infinite_numbers_of_a_mask_that_is_added_are_large_ones() -> None:
    x = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0)).clamp(max=1)
    x[0, 2, 0] = x[1, 4, 0] = 2.0  # the first token is there, so no row is hidden as a whole
    module = Padded()
    private = lipcompile.private(module, x, loss=lambda y, _: y.square().sum(), bounds="clip")
    torch.testing.assert_close(private(x), module(x))


def test_a_weight_that_is_infinite_is_refused() -> None:
    class Shifted(torch.nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return x + self.bias

    module = Shifted(2, 2)
    torch.nn.init.constant_(module.bias, torch.inf)
    with pytest.raises(InputError, match="LIP304"):
        lipcompile.private(module, (2,), bounds="clip")

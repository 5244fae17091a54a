"""Whitened features: of one example, of length 1; their constants come from no data and stay with the module."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lipcompile_torch import layers
from lipcompile_torch.nn import whitening
from torch import Tensor, nn

KINDS = ("scattering", "mirrored", "patches")


def layer(kind: str, shape: tuple[int, int, int] = (1, 12, 16), **changes: Any) -> Any:
    if kind == "patches":
        return layers.WhitenedPatches(shape, 4, 3, **{"floor": 0.05, "power": 0.5, "images": 20} | changes)
    own: dict[str, Any] = {"source": "leaves", "floor": 0.01, "power": 0.25, "channels": 5, "images": 20} | changes
    made = layers.MirroredScattering2d if kind == "mirrored" else layers.WhitenedScattering2d
    return made(shape, 1, 4, **own)


def layer_shape(kind: str, shape: tuple[int, int, int]) -> tuple[int, int, int]:
    channels, height, width = shape
    if kind == "patches":
        return channels * 16, (height - 4) // 3 + 1, (width - 4) // 3 + 1
    return 5, height // 2, width // 4 if kind == "mirrored" else width // 2


def images(count: int, *shape: int) -> Tensor:
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(1, 12, 16), (3, 12, 12)])
def test_features_are_of_one_example_and_of_length_one(kind: str, shape: tuple[int, int, int]) -> None:
    found, x = layer(kind, shape), images(5, *shape)
    x[1], x[2] = 0, 1
    together = found(x)
    assert together.shape[1:] == layer_shape(kind, shape)
    assert together.double().flatten(1).norm(dim=1).max() <= 1 + 1e-6
    torch.testing.assert_close(together[[0, 3, 4]].flatten(1).norm(dim=1), torch.ones(3))
    torch.testing.assert_close(found(x[3:4]), together[3:4], rtol=1e-4, atol=1e-6)
    assert found(x[:0]).shape == (0, *together.shape[1:])


def test_an_image_and_its_mirror_image_have_common_features() -> None:
    """But for aliasing. Neither the image upside down nor an unrelated one has them."""
    held, plain = layer("mirrored", (3, 12, 17)), layer("scattering", (3, 12, 17))
    x = whitening._synthetic("leaves", 20, (3, 12, 17), 3)

    def apart(other: Tensor, to: nn.Module) -> float:
        return float((to(x) - to(other)).flatten(1).norm(dim=1).mean())

    assert held(x).shape[3] == 4
    others = apart(x.flip(2), held), apart(x.roll(1, 0), held), apart(x.flip(3), plain)
    assert apart(x.flip(3), held) < 0.2 * min(others)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_that_comes_in_or_stands_in_the_constants_makes_features_longer(kind: str) -> None:
    found, x = layer(kind), images(4, 1, 12, 16)
    x[0, 0, 0, 0], x[1, 0, 3, 3], x[2] = torch.nan, torch.inf, 1e30 * x[2]
    with torch.no_grad():
        found.matrix.mul_(1e6)
        found.mean.add_(3.0)
    lengths = found(x).flatten(1).norm(dim=1)
    assert lengths[:2].tolist() == [0.0, 0.0]
    assert lengths.max() <= 1 + 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_constants_are_the_same_each_time_and_stay_with_the_module(kind: str) -> None:
    first, x = layer(kind), images(2, 1, 12, 16)
    whitening._of_scattering.cache_clear()
    whitening._of_patches.cache_clear()
    again = layer(kind)
    torch.testing.assert_close(again.matrix, first.matrix)
    with torch.no_grad():
        again.matrix.copy_(again.matrix.flip(0))
    assert not torch.allclose(again(x), first(x))
    torch.testing.assert_close(layer(kind).matrix, first.matrix)  # not those of another module
    again.load_state_dict(first.state_dict())
    torch.testing.assert_close(again(x), first(x))


def test_the_most_variance_is_kept_and_made_alike() -> None:
    """With all of a whitening the features of synthetic images have nearly one variance in all directions."""
    found = layer("scattering", power=0.5, channels=5, images=60)
    drawn = whitening._synthetic("leaves", 60, (1, 12, 16), 1)
    entries = found.entries(drawn).flatten(2)
    white = found.matrix @ (entries - found.mean)
    covariance = torch.einsum("ncp,ndp->cd", white, white)
    diagonal = covariance.diagonal()
    assert (covariance - torch.diag(diagonal)).abs().max() < 1e-3 * diagonal.max()
    assert diagonal[-1] > 0.99 * diagonal.max()  # but for what is added to small ones
    assert diagonal.min() > 0.3 * diagonal.max()


@pytest.mark.parametrize("size", [3, 5])
def test_patches_that_are_not_whitened_are_patches_of_one_contrast(size: int) -> None:
    x = images(2, 1, 12, 16)
    found = layers.WhitenedPatches((1, 12, 16), size, 2, floor=0.2, power=0.0, images=20)(x)
    window = x[1, 0, 2 : 2 + size, 4 : 4 + size].flatten()
    expected = (window - window.mean()) / (window.var(correction=0) + 0.2**2).sqrt()
    seen = found[1, :, 1, 2]
    torch.testing.assert_close(seen / seen.norm(), expected / expected.norm(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions(dtype: torch.dtype) -> None:
    x = images(2, 1, 12, 16)
    wanted, found = layer("scattering")(x), layer("scattering").to(dtype)(x.to(dtype))
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), wanted, rtol=0, atol=0.02 if dtype != torch.float64 else 1e-5)


def test_a_layer_has_no_parameters() -> None:
    held = nn.Sequential(layer("scattering"), layer("patches"))
    assert list(held.parameters()) == []
    assert {name.rpartition(".")[2] for name, _ in held.named_buffers()} == {"mean", "matrix"}

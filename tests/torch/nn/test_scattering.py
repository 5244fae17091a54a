"""The scattering transform against kymatio's figures and its own invariances; gradients, batches and dtypes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from lipcompile_torch.nn import functional as lf
from lipcompile_torch.nn import scattering
from torch import Tensor


def images(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(0))


# Sum, norm, and the entries 0, 5, 17 and -1 of kymatio 0.3.0 (numpy) for the image below; its filters are float32.
KYMATIO = {
    (1, 3, 2): (16.1360606, 2.32383337, 0.20397783, 0.32417453, -0.08294056, 0.26097195),
    (2, 4, 2): (6.67556702, 1.02737176, 0.10934303, 0.22355771, 0.23463814, 0.01636701),
    (2, 4, 1): (5.47832104, 1.01585672, 0.10934303, 0.22355771, 0.23463814, 0.09230382),
}


@pytest.mark.parametrize("arguments", KYMATIO)
def test_it_is_kymatios(arguments: tuple[int, int, int]) -> None:
    image = torch.from_numpy(np.sin(np.arange(99.0) ** 2 * 0.1).reshape(1, 1, 9, 11))
    found = lf.scattering2d(image, *arguments).flatten()
    figures = [found.sum(), found.norm(), *found[[0, 5, 17, -1]]]
    torch.testing.assert_close(torch.stack(figures).tolist(), list(KYMATIO[arguments]), rtol=2e-6, atol=1e-7)


def test_shapes() -> None:
    assert lf.scattering2d(images(2, 3, 32, 32), 2, 8).shape == (2, 243, 8, 8)
    assert lf.scattering2d(images(2, 1, 28, 28), 3, 8).shape == (2, 217, 3, 3)
    assert lf.scattering2d(images(0, 2, 8, 9), 1, 4, 1).shape == (0, 10, 4, 4)


def test_channels_and_examples_are_treated_alike_and_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    x = images(5, 2, 9, 8)
    together = lf.scattering2d(x, 2, 3)
    alone = [lf.scattering2d(x[b : b + 1, c : c + 1], 2, 3) for b in range(5) for c in range(2)]
    torch.testing.assert_close(together, torch.cat(alone).reshape(together.shape))
    monkeypatch.setattr("lipcompile_torch.nn.scattering._ENTRIES", 3000)
    torch.testing.assert_close(lf.scattering2d(x, 2, 3), together)
    mapped = torch.func.vmap(lambda image: lf.scattering2d(image[None], 2, 3)[0])(x)
    torch.testing.assert_close(mapped, together)


def test_it_is_positively_homogeneous_and_even_beyond_the_mean() -> None:
    x = images(1, 1, 12, 12)
    found = lf.scattering2d(x, 2, 4)
    torch.testing.assert_close(lf.scattering2d(3 * x, 2, 4), 3 * found)
    torch.testing.assert_close(lf.scattering2d(-x, 2, 4)[:, 1:], found[:, 1:])
    torch.testing.assert_close(lf.scattering2d(-x, 2, 4)[:, :1], -found[:, :1])


def test_a_constant_image_has_a_mean_alone() -> None:
    """kymatio's low-pass sums to (π/3.1415)² / that of its integer samples: 1 up to 3e-5."""
    found = lf.scattering2d(torch.ones(1, 1, 16, 16, dtype=torch.float64), 2, 4)
    torch.testing.assert_close(found[:, 0], torch.ones_like(found[:, 0]), rtol=0, atol=1e-4)
    assert found[:, 1:].abs().max() < 1e-12


@pytest.mark.parametrize(("size", "pixels"), [(16, [1.5, 5.5, 9.5, 13.5]), (18, [2.5, 6.5, 10.5, 14.5])])
@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_centred_low_pass_takes_waves_at_places_around_the_middle(
    size: int, pixels: list[float], level: int
) -> None:
    """The middle of an image is at (size - 1)/2. Every 2^level-th position holds the wave."""
    bank = scattering._Bank(size, size, 2, 4, centred=True)
    low, frequency = bank.sides(size)[0], np.pi / 12  # of a period of all padded sizes, 24
    found = scattering._lowpass(bank, size, level) @ np.cos(frequency * (np.arange(0, 24, 2**level) - low) + 0.3)
    gain = np.exp(-((1.6 * frequency) ** 2) / 2)  # of a Gaussian of deviation 1.6 pixels
    np.testing.assert_allclose(found, gain * np.cos(frequency * np.array(pixels) + 0.3), atol=1e-4)


@pytest.mark.parametrize("shape", [(1, 16, 16), (3, 12, 17)])
@pytest.mark.parametrize(("scales", "angles"), [(1, 3), (2, 4), (2, 8), (3, 5)])
def test_a_mirrored_image_has_mirrored_coefficients(shape: tuple[int, int, int], scales: int, angles: int) -> None:
    x = images(6, *shape)
    found, other = (lf.scattering2d(u, scales, angles, centred=True) for u in (x, x.flip(3)))
    order = scattering.mirrored_order(found.shape[1], scales, angles)
    spread = (found - found.mean((0, 2, 3), keepdim=True)).norm()
    assert (other[:, order].flip(3) - found).norm() < 0.05 * spread
    assert (other.flip(3) - found).norm() > 0.2 * spread


def test_gradients() -> None:
    x = images(1, 1, 6, 7).requires_grad_()
    assert torch.autograd.gradcheck(lambda u: lf.scattering2d(u, 1, 2), x)
    nothing = torch.zeros(1, 1, 8, 8, requires_grad=True)
    (gradient,) = torch.autograd.grad(lf.scattering2d(nothing, 1, 2).sum(), nothing)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_lower_precisions(dtype: torch.dtype) -> None:
    x = images(2, 1, 8, 8)
    found = lf.scattering2d(x.to(dtype), 1, 4)
    assert found.dtype == dtype
    precision = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(
        found.double(), lf.scattering2d(x.to(dtype).double(), 1, 4), rtol=precision, atol=precision
    )


def test_what_it_refuses() -> None:
    for shape, arguments in [((1, 8, 8), (1, 4)), ((1, 1, 8, 8), (1, 4, 3)), ((1, 1, 8, 8), (0, 4))]:
        with pytest.raises(ValueError, match=r"a scattering .* cannot have"):
            lf.scattering2d(images(*shape), *arguments)
    with pytest.raises(ValueError, match="reflect padding"):
        lf.scattering2d(images(1, 1, 4, 8), 2, 4)

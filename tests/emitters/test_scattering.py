"""scattering2d from .lip to the emitted module; what it refuses; the compiler's filters are the runtime's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from lipcompile_torch.nn import functional as lf
from lipcompile_torch.nn import scattering as runtime

from lipcompile.ops.scattering import rules as scattering
from lipcompile.ops.scattering import write
from lipcompile.ops.scattering.rules import Scattering2d
from lipcompile.pipeline import check
from tests.emitters.test_emit import assert_within_bounds, build, derive


def model(layer: str, size: str = "1, 9, 11", head: str = "flatten dense(3)") -> str:
    return f"input x: tensor[{size}], norm <= 2\n {layer} {head} loss cross_entropy"


def test_the_emitted_module_scatters(tmp_path: Path) -> None:
    network = build(derive(tmp_path, model("scattering2d(2, 4)", "2, 9, 11")), tmp_path)
    seen: list[torch.Tensor] = []
    network.dense.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    x = torch.randn(3, 2, 9, 11, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x = x / x.flatten(1).norm(dim=1).reshape(-1, 1, 1, 1)
    network(x)
    torch.testing.assert_close(seen[0], lf.scattering2d(x, 2, 4).flatten(1))


def test_it_stands_behind_trained_layers(tmp_path: Path) -> None:
    body = model("conv2d(2, kernel=3, padding=1) groupsort(2) scattering2d(1, 3)", "1, 8, 8")
    assert_within_bounds(build(derive(tmp_path, body), tmp_path), "cross_entropy")


@pytest.mark.parametrize(
    ("layer", "size", "code"),
    [
        ("scattering2d(2, 8)", "9, 11", "LIP102"),
        ("scattering2d(4, 8)", "1, 9, 11", "LIP103"),
        ("scattering2d(1000000000, 8)", "1, 9, 11", "LIP103"),
        ("scattering2d(2, 8)", "1, 4, 8", "LIP103"),
        ("scattering2d(2, 8, 3)", "1, 9, 11", "LIP104"),
        ("scattering2d(2, 1000000)", "1, 9, 11", "LIP018"),
    ],
)
def test_refusals(tmp_path: Path, layer: str, size: str, code: str) -> None:
    path = tmp_path / "model.lip"
    path.write_text(f"model net {{ {model(layer, size)} }}")
    assert [diagnostic.code for diagnostic in check(str(path)).diagnostics] == [code]


@pytest.mark.parametrize("bank", [Scattering2d(2, 4), Scattering2d(1, 3), Scattering2d(3, 8)])
def test_both_have_the_same_filters(bank: Scattering2d) -> None:
    """Written twice, for the runtime knows nothing of the compiler."""
    sizes = (24, 17)
    own = runtime._Bank(*sizes, bank.scales, bank.angles)
    for level in range(bank.scales):
        at = scattering.frequencies(bank, sizes, level)
        down, along = (runtime._lowpass(own, size, level) for size in sizes)
        u = np.random.default_rng(0).standard_normal((at[0].size, at[1].size))
        filtered = np.fft.ifft2(np.fft.fft2(u) * scattering.lowpass(bank, at)).real
        step = 2 ** (bank.scales - level)
        np.testing.assert_allclose(down @ u @ along.T, filtered[::step, ::step][1:-1, 1:-1], atol=1e-12)
        for scale in range(level, bank.scales):
            expected = [scattering.wavelet(bank, at, scale, angle) for angle in range(bank.angles)]
            np.testing.assert_allclose(runtime._wavelets(own, level, scale), expected, atol=1e-13)


@pytest.mark.parametrize("bank", [Scattering2d(2, 4), Scattering2d(1, 3), Scattering2d(3, 8)])
@pytest.mark.parametrize("centred", [False, True])
def test_onnx_has_the_means_and_the_order_of_the_runtime(bank: Scattering2d, centred: bool) -> None:
    for size in (24, 17):
        own = runtime._Bank(size, size, bank.scales, bank.angles, centred)
        for level in range(bank.scales + 1):
            found = write.means(bank, size, level, centred=centred)
            np.testing.assert_allclose(found, runtime._lowpass(own, size, level), atol=1e-12)
    order = runtime.mirrored_order(bank.coefficients, bank.scales, bank.angles)
    assert order.tolist() == write.mirrored(bank).tolist()


def test_the_energy_of_one_filter_is_a_bound() -> None:
    """`kept` against the largest singular value of filtering and keeping every second position."""
    bank, sizes = Scattering2d(2, 4), (8, 8)
    at = scattering.frequencies(bank, sizes, 0)
    for response in (scattering.lowpass(bank, at), *(scattering.wavelet(bank, at, 1, n) for n in range(4))):
        basis = np.eye(response.size).reshape(-1, *response.shape)
        kept = np.fft.ifft2(np.fft.fft2(basis) * response)[:, ::2, ::2].reshape(response.size, -1)
        largest = np.linalg.svd(kept, compute_uv=False)[0] ** 2
        assert (
            0.9 * scattering.kept(response, 2).max() <= largest <= scattering.kept(response, 2).max() * (1 + 1e-9)
        )

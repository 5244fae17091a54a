"""What would run on a GPU, on processors: a device of which nothing is known takes the same steps, and gets noise.

There is no GPU to test on. `devices.PROCESSORS` is emptied, so that every choice falls as it does for another
device: torch's operations in the place of native code, torch's generator, transfers that are shared.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lipcompile_torch import PrivacyEngine, devices
from lipcompile_torch.certify.precision import single_is_kept
from lipcompile_torch.noise.normals import Normals, PlainNormals, SecureNormals
from torch import Tensor

from lipcompile import pipeline
from lipcompile.core.backend import find, instantiate
from lipcompile.frontends.options import ModelOptions

MLP = "input x: tensor[6], norm <= 2\n dense(8) groupsort(2) dense(8) groupsort(2) dense(3)\n loss cross_entropy"
CONVNET = (
    "input x: tensor[2, 6, 6], norm <= 2\n conv2d(4, kernel=3, padding=1) relu l2_pool(2) flatten dense(3)\n"
    " loss cross_entropy"
)
STEPS, BATCH = 3, 16


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return what takes processors for another device from now on."""
    return lambda: monkeypatch.setattr(devices, "PROCESSORS", frozenset())


def trained(body: str, folder: Path, bounds: Any) -> list[Tensor]:
    """Return the weights after some steps with next to no noise, from one start."""
    folder.mkdir()
    path = folder / "net.lip"
    path.write_text(f"model net {{ {body} }}")
    derivation = pipeline.check(str(path), ModelOptions(bounds=bounds))
    module = instantiate(folder / "net.py", find().emit(derivation))
    source = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape, generator=source) / 2
    module.project_()
    x = 3 * torch.randn(STEPS, BATCH, *module.input_shape, generator=source)
    y = torch.randint(0, 3, (STEPS, BATCH), generator=source)
    data = torch.utils.data.TensorDataset(x.flatten(0, 1), y.flatten())
    loader = torch.utils.data.DataLoader(data, batch_size=BATCH)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    engine = PrivacyEngine()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Philox, and of a seed
        private, steps, batches = engine.make_private(
            module=module,
            optimizer=optimizer,
            data_loader=loader,
            noise_multiplier=1e-7,
            seed=1,
        )
        for inputs, targets in batches:
            steps.zero_grad()
            private.criterion(private(inputs), targets).backward()
            steps.step()
    return [parameter.detach().clone() for parameter in module.parameters()]


@pytest.mark.parametrize("body", [MLP, CONVNET], ids=["mlp", "convnet"])
@pytest.mark.parametrize("bounds", ["theorem", "clip"])
def test_another_device_takes_the_same_steps(
    body: str, bounds: Any, tmp_path: Path, elsewhere: Callable[[], None]
) -> None:
    """Steps differ by rounding, by noise of 1e-7 of the bound, and by the distance of a projected weight from the
    edge of its set: 0.1 % where the certificate of a kernel may not rest on float32.
    """
    here = trained(body, tmp_path / "here", bounds)
    elsewhere()
    for one, other in zip(here, trained(body, tmp_path / "there", bounds), strict=True):
        torch.testing.assert_close(one, other, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("normals", [PlainNormals(), SecureNormals()])
def test_noise_of_another_device_is_normal(normals: Normals, elsewhere: Callable[[], None]) -> None:
    """The sample variance of n normals is within 5·√(2/n) = 3.2 % of 1 but for 6e-7 of runs."""
    elsewhere()
    first, second = torch.zeros(50_000), torch.zeros(50_000)
    normals.perturb_([(first, 2.0)])
    normals.refresh()
    normals.perturb_([(second, 2.0)])
    for found in (first, second):
        assert float(found.square().mean()) == pytest.approx(4, rel=0.032)
    # Of independent normals the mean product is within 5/√n = 0.022 of 0 but for 6e-7 of runs.
    assert abs(float((first * second).mean())) < 4 * 0.023


def test_precision_of_another_device_is_not_assumed(elsewhere: Callable[[], None]) -> None:
    """Certificates in float32 would rest on products that nobody vouches for."""
    assert single_is_kept(torch.device("cpu"))
    elsewhere()
    assert not single_is_kept(torch.device("cpu"))

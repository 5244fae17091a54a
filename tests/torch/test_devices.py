"""A GPU, and what would run on one: the same steps and clips as on processors, and noise that is normal.

Where there is no GPU, `devices.PROCESSORS` is emptied, so that every choice falls as it does for another device:
torch's operations in the place of native code, torch's generator, transfers that are shared.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lipcompile_privacy.errors import PrivacyError
from lipcompile_privacy.ledger import read_ledger
from lipcompile_torch import PrivacyEngine, devices
from lipcompile_torch.certify.norms import check_finite
from lipcompile_torch.certify.precision import single_is_kept
from lipcompile_torch.clip.bookkeeping import Selected
from lipcompile_torch.clip.clipping import clipped as clipped_sums
from lipcompile_torch.clip.example_gradients import Clip
from lipcompile_torch.noise.normals import Normals, PlainNormals, SecureNormals
from torch import Tensor

from lipcompile import pipeline
from lipcompile.core.backend import find, instantiate
from lipcompile.frontends.options import ModelOptions
from tests.torch.clip_nets import NETWORKS, batch, clipped, expected, model

MLP = "input x: tensor[6], norm <= 2\n dense(8) groupsort(2) dense(8) groupsort(2) dense(3)\n loss cross_entropy"
CONVNET = (
    "input x: tensor[2, 6, 6], norm <= 2\n conv2d(4, kernel=3, padding=1) relu l2_pool(2) flatten dense(3)\n"
    " loss cross_entropy"
)
MASKED = "input x: tensor[6], norm <= 2\n dense(8) dropout(0.5) dense(3)\n loss cross_entropy"
LEAVES = "scattering2d(4, source=leaves, scales=1, angles=4, floor=0.1, images=12)"
STEPS, BATCH = 3, 16
CPU = torch.device("cpu")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU")


@pytest.fixture(params=["another", pytest.param("cuda", marks=needs_gpu)])
def elsewhere(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[], torch.device]:
    """Return what takes work to another device from now on, and returns that device."""

    def move() -> torch.device:
        if request.param == "another":
            monkeypatch.setattr(devices, "PROCESSORS", frozenset())
        return CPU if request.param == "another" else torch.device(request.param)

    return move


class Training:
    """Some steps from one start, with next to no noise.

    Args:
        options: of `make_private`.
    """

    def __init__(self, body: str, folder: Path, bounds: Any, device: torch.device, **options: Any) -> None:
        folder.mkdir()
        path = folder / "net.lip"
        path.write_text(f"model net {{ {body} }}")
        module = instantiate(
            folder / "net.py", find().emit(pipeline.check(str(path), ModelOptions(bounds=bounds)))
        )
        source = torch.Generator().manual_seed(0)
        for parameter in module.parameters():
            parameter.data = torch.randn(parameter.shape, generator=source) / 2
        module.project_()
        x = 3 * torch.randn(STEPS, BATCH, *module.input_shape, generator=source)
        y = torch.randint(0, 3, (STEPS, BATCH), generator=source)
        data = torch.utils.data.TensorDataset(x.flatten(0, 1).to(device), y.flatten().to(device))
        self.ledger = folder / "ledger"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Philox, and of a seed
            self.module, self.optimizer, self.batches = PrivacyEngine(ledger=self.ledger).make_private(
                module=module.to(device),
                optimizer=torch.optim.SGD(module.parameters(), lr=0.5),
                data_loader=torch.utils.data.DataLoader(data, batch_size=BATCH),
                noise_multiplier=1e-7,
                **options,
            )

    def steps(self, around: Callable[[], Any] = contextlib.nullcontext) -> list[Tensor]:
        """Return the weights after an epoch.

        Args:
            around: makes what forward passes run under.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for inputs, targets in self.batches:
                self.optimizer.zero_grad()
                with around():
                    loss = self.module.criterion(self.module(inputs), targets)
                loss.backward()
                self.optimizer.step()
        return [parameter.detach().cpu().clone() for parameter in self.module.parameters()]


def trained(
    body: str, folder: Path, bounds: Any = "theorem", device: torch.device = CPU, **options: Any
) -> list[Tensor]:
    """Return the weights after some repeatable steps."""
    return Training(body, folder, bounds, device, seed=1, **options).steps()


@pytest.mark.parametrize("body", [MLP, CONVNET], ids=["mlp", "convnet"])
@pytest.mark.parametrize("bounds", ["theorem", "clip"])
def test_another_device_takes_the_same_steps(
    body: str, bounds: Any, tmp_path: Path, elsewhere: Callable[[], torch.device]
) -> None:
    """Steps differ by rounding, by noise of 1e-7 of the bound, and by the distance of a projected weight from the
    edge of its set: 0.1 % where the certificate of a kernel may not rest on float32.
    """
    here = trained(body, tmp_path / "here", bounds)
    for one, other in zip(here, trained(body, tmp_path / "there", bounds, elsewhere()), strict=True):
        torch.testing.assert_close(one, other, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize(
    "options",
    [
        {"noise": "per_layer"},
        {"sampling": "fixed_size"},
        {"max_physical_batch": 5},
        {"fixed_shape": True},
        {"correlation": {"kind": "correlated", "bands": 2}, "max_steps": STEPS},
        {"correlation": {"kind": "blt", "buffers": 2}, "max_steps": STEPS},
    ],
    ids=lambda options: next(iter(options)),
)
@pytest.mark.parametrize("bounds", ["theorem", "clip"])
def test_another_device_takes_the_same_steps_with_options(
    options: dict[str, Any], bounds: Any, tmp_path: Path, elsewhere: Callable[[], torch.device]
) -> None:
    here = trained(MLP, tmp_path / "here", bounds, **options)
    for one, other in zip(here, trained(MLP, tmp_path / "there", bounds, elsewhere(), **options), strict=True):
        torch.testing.assert_close(one, other, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("features", ["scattering2d(1, 4)", f"whitened_{LEAVES}", f"mirrored_{LEAVES}"])
def test_features_of_another_device_are_the_same(
    features: str, tmp_path: Path, elsewhere: Callable[[], torch.device]
) -> None:
    path, x = tmp_path / "net.lip", torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    frozen = f"frozen {{ {features} flatten }}"
    path.write_text(
        f"model net {{ input x: tensor[3, 8, 8], norm <= 14; {frozen}; dense(3); loss cross_entropy }}"
    )
    module = instantiate(tmp_path / "net.py", find().emit(pipeline.check(str(path), ModelOptions())))
    here, device = module.frozen_features(x), elsewhere()
    there = module.to(device).frozen_features(x.to(device)).cpu()
    torch.testing.assert_close(here, there, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("body", NETWORKS.values(), ids=NETWORKS)
def test_another_device_clips_alike(body: str, tmp_path: Path, elsewhere: Callable[[], torch.device]) -> None:
    """Clipped gradients are those that `torch.func` finds in float64, on processors. Nobody knows whether products
    of another device are those of bfloat16, so there clips are shorter by 2⁻⁷.
    """
    module = model(body, tmp_path)
    x, y = batch(module)
    wanted = expected(module, x, y)
    device = elsewhere()
    room = 2**-7 if device == CPU else 1e-4
    found = clipped(module.to(device), x.to(device), y.to(device))
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name].double().cpu(), gradient, rtol=room, atol=1e-6)


def test_rows_of_a_table_are_the_same_in_norms_and_in_sums(elsewhere: Callable[[], torch.device]) -> None:
    """Where cotangents of 10¹⁷·C cancel, another order of additions has another sum: C times 16, and no norm."""
    device = elsewhere()
    made = 1e17 * torch.randn(1, 4096, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    made = torch.cat([made, -made], 1)[:, torch.randperm(8192, generator=torch.Generator().manual_seed(1))]
    use = Selected(torch.zeros(1, 8192, dtype=torch.int64, device=device), made.to(device), 3)
    norm = float(use.norms())
    for _ in range(20):
        (total,) = clipped_sums([[use]], [3], Clip(1.0))
        assert float(total.norm()) <= 1
        assert float(use.norms()) == norm


@pytest.mark.parametrize(("value", "refused"), [(math.nan, True), (-math.inf, True), (3e38, False)])
def test_weights_that_are_not_finite_are_found_on_another_device(
    value: float, refused: bool, elsewhere: Callable[[], torch.device]
) -> None:
    """The sum of four finite weights of 3e38 is not finite."""
    device = elsewhere()
    weights = [torch.ones(3, device=device), torch.full((4,), value, device=device)]
    with pytest.raises(ValueError, match="NaN or infinity") if refused else contextlib.nullcontext():
        check_finite(weights)


@pytest.mark.parametrize("normals", [PlainNormals(), SecureNormals()])
def test_noise_of_another_device_is_normal(normals: Normals, elsewhere: Callable[[], torch.device]) -> None:
    """The sample variance of n normals is within 5·√(2/n) = 3.2 % of 1 but for 6e-7 of runs."""
    device = elsewhere()
    first, second = torch.zeros(50_000, device=device), torch.zeros(50_000, device=device)
    normals.perturb_([(first, 2.0)])
    normals.refresh()
    normals.perturb_([(second, 2.0)])
    for found in (first, second):
        assert float(found.square().mean()) == pytest.approx(4, rel=0.032)
    # Of independent normals the mean product is within 5/√n = 0.022 of 0 but for 6e-7 of runs.
    assert abs(float((first * second).mean())) < 4 * 0.023


def test_precision_of_another_device_is_not_assumed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Certificates in float32 would rest on products that nobody vouches for."""
    assert single_is_kept(CPU)
    monkeypatch.setattr(devices, "PROCESSORS", frozenset())
    assert not single_is_kept(CPU)


GPU = torch.device("cuda")


@needs_gpu
@pytest.mark.parametrize("bounds", ["theorem", "clip"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_on_a_gpu(bounds: Any, dtype: torch.dtype, tmp_path: Path) -> None:
    """Autocast rounds products to eight bits, or eleven: steps are the same but for 5 %."""
    here = trained(MLP, tmp_path / "here", bounds)
    there = Training(MLP, tmp_path / "there", bounds, GPU, seed=1)
    for one, other in zip(here, there.steps(lambda: torch.autocast("cuda", dtype)), strict=True):
        torch.testing.assert_close(one, other, rtol=0.05, atol=0.05)


@needs_gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch by itself
@pytest.mark.parametrize("bounds", ["theorem", "clip"])
def test_a_compiled_module_on_a_gpu(bounds: Any, tmp_path: Path) -> None:
    here = trained(MLP, tmp_path / "here", bounds)
    there = Training(MLP, tmp_path / "there", bounds, GPU, seed=1)
    there.module.compile()
    for one, other in zip(here, there.steps(), strict=True):
        torch.testing.assert_close(one, other, rtol=2e-3, atol=2e-4)


@needs_gpu
def test_masks_of_a_gpu_have_secret_seeds(tmp_path: Path) -> None:
    """The generator that dropout draws from is seeded for each batch; a seed that somebody knows is refused."""
    training = Training(MASKED, tmp_path / "net", "theorem", GPU)
    own, seeds = torch.cuda.default_generators[0], []
    for inputs, targets in training.batches:
        seeds.append(own.initial_seed())
        training.optimizer.zero_grad()
        training.module.criterion(training.module(inputs), targets).backward()
        training.optimizer.step()
    assert len(set(seeds)) == len(seeds) > 1
    inputs, _ = next(iter(training.batches))
    torch.cuda.manual_seed(0)
    with pytest.raises(PrivacyError, match="masks of dropout"):
        training.module(inputs)


@needs_gpu
@pytest.mark.parametrize(
    ("secure", "generator"), [(False, {"Philox of torch": False}), (True, {"ChaCha20": True})]
)
def test_the_ledger_names_the_generator_of_a_gpu(secure: bool, generator: dict[str, bool], tmp_path: Path) -> None:
    training = Training(MLP, tmp_path / "net", "theorem", GPU, secure=secure)
    training.steps()
    assert read_ledger(training.ledger).cryptographic == generator


@needs_gpu
def test_weights_of_a_gpu_are_certified_there(tmp_path: Path) -> None:
    """After the projection no singular value exceeds 1, by LAPACK in float64."""
    training = Training(MLP, tmp_path / "net", "theorem", GPU)
    for weight in training.steps():
        assert float(torch.linalg.matrix_norm(weight.double(), 2)) <= 1 + 1e-12

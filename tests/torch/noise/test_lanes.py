"""Normals on processors: their law, which of them is drawn where, and what is added to what."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from lipcompile_torch import PrivacyEngine, layers, native
from lipcompile_torch.native import memory_rows as flats
from lipcompile_torch.native.memory_rows import add_scaled_, flat, in_threads, stretches
from lipcompile_torch.nn import losses
from lipcompile_torch.noise import processor as sources
from lipcompile_torch.noise.mechanism import NoiseSource
from lipcompile_torch.noise.normals import SecureNormals
from lipcompile_torch.noise.processor import BLOCK, GENERATORS, STRETCH, Bits, Generators, adder
from lipcompile_torch.train.module import LipschitzModule
from numpy.random import SFC64
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import DataLoader, TensorDataset

COUNT = 2**21


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=["native AES", "AES of cryptography"])
def bits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the words of lanes without a seed come from."""
    if request.param == "native AES" and not native.has_aes():
        pytest.skip("no native code for AES")
    if request.param != "native AES":
        monkeypatch.setattr(native, "has_aes", lambda: False)


@pytest.fixture(params=["native", "by numpy", "by torch"])
def functions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose tangents and logarithms are taken, if any."""
    if request.param == "native":
        if native.kernels is None:
            pytest.skip("the package was installed without a compiler")
        return
    monkeypatch.setattr(native, "kernels", None)
    monkeypatch.setattr(sources, "_BY_NUMPY", request.param == "by numpy")


def filled(seed: int | None, count: int) -> Tensor:
    normals = torch.empty(count, dtype=torch.float64)
    Generators(seed).fill_(normals)
    return normals


# --- their law ---


class Words:
    """A generator of chosen words."""

    def __init__(self, *words: int) -> None:
        self.words = np.array(words, np.uint64)

    def fill_(self, words: NDArray[np.uint64]) -> None:
        words[:] = self.words


def words_of(lane: Bits, count: int) -> NDArray[np.uint64]:
    found = np.empty(count, np.uint64)
    lane.fill_(found)
    return found


def drawn(*words: int) -> list[float]:
    row = torch.zeros(len(words), dtype=torch.float64)
    adder([(row, 1.0)], 1, BLOCK)([(row, 1.0)], Words(*words))
    found: list[float] = row.tolist()
    return found


@pytest.mark.usefixtures("functions")
def test_a_pair_is_the_radius_of_one_word_at_the_angle_of_the_other() -> None:
    """ln U = -1 at 60 degrees: √2·(1/2, √3/2). With the other sign: the point opposite."""
    radius, angle = round(2**63 / math.e), 2**64 // 3
    expected = [math.sqrt(2) / 2, math.sqrt(1.5)]
    assert drawn(radius, angle) == pytest.approx(expected, rel=1e-12)
    assert drawn(2**64 - radius, angle) == pytest.approx([-value for value in expected], rel=1e-12)
    assert drawn(radius, 2**64 - angle) == pytest.approx([expected[0], -expected[1]], rel=1e-12)


@pytest.mark.usefixtures("functions")
@pytest.mark.parametrize("angle", [0, 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1])
@pytest.mark.parametrize("radius", [0, 1, 2**63 - 1, 2**63, 2**64 - 1])
def test_no_word_leads_out_of_the_finite(radius: int, angle: int) -> None:
    """The least odd word, ±1, gives the largest radius: √(2·63·ln 2)."""
    found = drawn(radius, angle)
    assert all(map(math.isfinite, found))
    largest = math.sqrt(2 * 63 * math.log(2))
    assert math.hypot(*found) == pytest.approx(largest if radius in (0, 1, 2**64 - 1) else 0.0, abs=1e-7)


@pytest.mark.usefixtures("bits")
def test_normals_are_normal() -> None:
    """Kolmogorov's distance of 2^21 draws exceeds 3/√n in 3e-8 of all cases; moments exceed 6 standard errors in
    2e-9 each.
    """
    z = filled(None, COUNT)
    ordered = z.sort().values
    steps = torch.arange(1, COUNT + 1, dtype=torch.float64) / COUNT
    assert float((torch.special.ndtr(ordered) - steps).abs().max()) < 3 / math.sqrt(COUNT)
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs(float(z.pow(power).mean()) - moment) < 6 * math.sqrt(variance / COUNT), power


@pytest.mark.usefixtures("bits")
def test_tails_have_the_mass_they_should() -> None:
    """Beyond t on either side: Poisson counts within 6 standard deviations, and 12 more, of what they should be.
    The smallest, 0.6 beyond 5, is above 17 in 1e-19 of cases; the others fail in 2e-9 each.
    """
    z = filled(None, COUNT)
    for t in (1, 2, 3, 4, 5):
        expected = COUNT * math.erfc(t / math.sqrt(2)) / 2
        for side in (z > t, z < -t):
            assert abs(int(side.sum()) - expected) < 6 * math.sqrt(expected) + 12, t


@pytest.mark.usefixtures("bits")
def test_pairs_are_independent() -> None:
    """The two halves of a block share radius and angle. In rings of radius the angle is uniform, by chi-square
    below 110 over 32 bins (1e-10); squares and products do not correlate, by 6 standard errors.
    """
    z = torch.cat([part.view(2, -1) for part in torch.split(filled(None, COUNT), BLOCK)], dim=1)
    angles, radii = torch.atan2(z[1], z[0]), z.square().sum(0)
    for low, high in ((0, 0.5), (0.5, 2), (2, 6), (6, math.inf)):
        counts = torch.histc(angles[(radii >= low) & (radii < high)], 32, -math.pi, math.pi)
        assert float(((counts - counts.mean()) ** 2 / counts.mean()).sum()) < 110
    n = z.shape[1]
    assert abs(float((z[0] * z[1]).mean())) < 6 / math.sqrt(n)
    assert abs(float(((z[0] ** 2 - 1) * (z[1] ** 2 - 1)).mean())) < 6 * 2 / math.sqrt(n)
    assert abs(float((z[0][1:] * z[1][:-1]).mean())) < 6 / math.sqrt(n)


# --- which is drawn where ---


@pytest.mark.slow
@pytest.mark.usefixtures("functions")
def test_a_seed_gives_the_same_whatever_the_number_of_threads(two_threads: None) -> None:  # noqa: ARG001
    """One and two share the operations of one lane after the other; five have a lane each."""
    count = (GENERATORS + 1) * STRETCH + BLOCK + 1
    several = filled(5, count)
    for threads in (1, 5):
        torch.set_num_threads(threads)
        assert torch.equal(several, filled(5, count))


@pytest.mark.usefixtures("functions")
def test_the_default_device_of_torch_does_not_matter() -> None:
    expected, row = filled(5, 1000), torch.zeros(1000)
    with torch.device("meta"):
        Generators(5).perturb_([(row, 1.0)])
    assert torch.equal(row, expected.float())


@pytest.mark.usefixtures("passes")
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_no_entry_is_passed_over_and_no_normal_is_used_twice(threads: int, two_threads: None) -> None:  # noqa: ARG001
    """Many gradients of odd sizes, over the ends of blocks and of stretches: all doubles differ."""
    torch.set_num_threads(threads)
    sizes = [1, 0, 3, BLOCK - 5, 2, 2 * BLOCK + 1, 77, STRETCH + 9, 1, 1, BLOCK, 5]
    rows = [torch.zeros(size, dtype=torch.float64) for size in sizes]
    Generators().perturb_([(row, 1.0) for row in rows])
    both = torch.cat(rows)
    assert both.all()
    assert len(torch.unique(both)) == len(both)


def test_words_that_were_not_made_are_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lazy:
        def update_into(self, _: object, __: object) -> int:
            return 8

    monkeypatch.setattr(native, "has_aes", lambda: False)
    monkeypatch.setattr("cryptography.hazmat.primitives.ciphers.Cipher.encryptor", lambda _: Lazy())
    with pytest.raises(RuntimeError, match="no gradient may be released"):
        filled(None, 4)


def test_lanes_and_seeds_differ() -> None:
    """No two of 34 stretches share one of the entries looked at: of 10^6 doubles two agree by chance in 1e-4 of
    cases.
    """
    both = torch.cat([filled(seed, 17 * STRETCH)[::16] for seed in (0, 2**32)])
    assert len(torch.unique(both)) == len(both)
    assert torch.equal(filled(2**64 + 3, 10), filled(3, 10))
    assert not torch.equal(filled(-3, 10), filled(3, 10))


def test_the_start_of_a_lane_is_what_the_documentation_says() -> None:
    lane = SFC64(0)
    lane.state = {
        "bit_generator": "SFC64",
        "state": {"state": np.array([7, 1, 0, 1], np.uint64)},
        "has_uint32": 0,
        "uinteger": 0,
    }
    lane.random_raw(16)
    expected = drawn(*lane.random_raw(BLOCK).tolist())
    assert filled(7, STRETCH + BLOCK)[STRETCH:].tolist() == expected


@pytest.mark.parametrize("code", ["native", "cryptography"])
def test_the_key_stream_is_that_of_the_standard(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """NIST SP 800-38A, F.5.1: AES-128 in counter mode; plain text and cipher text differ by the stream."""
    if code == "native" and not native.has_aes():
        pytest.skip("no native code for AES")
    if code == "cryptography":
        monkeypatch.setattr(native, "has_aes", lambda: False)
    key, counter = "2b7e151628aed2a6abf7158809cf4f3c", "f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff"
    plain = (
        "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51"
        "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710"
    )
    cipher = (
        "874d6191b620e3261bef6864990db6ce9806f66b7970fdff8617187bb9fffdff"
        "5ae4df3edbd5d35e5b4f09020db03eab1e031dda2fbe03d1792170a0f3009cee"
    )
    lane = sources.keyed(bytes.fromhex(key + counter))
    stream = words_of(lane, 2).tobytes() + words_of(lane, 6).tobytes()
    assert stream.hex() == f"{int(plain, 16) ^ int(cipher, 16):0128x}"


def test_a_seed_does_not_depend_on_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    seeded = filled(5, 100)
    monkeypatch.setattr(native, "has_aes", lambda: False)
    assert torch.equal(seeded, filled(5, 100))


def test_without_a_seed_and_a_cipher_there_is_no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other generator takes its place."""
    monkeypatch.setattr(native, "has_aes", lambda: False)
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers", None)
    with pytest.raises(ImportError, match="cryptography"):
        filled(None, 4)


@pytest.mark.usefixtures("bits")
def test_entropy_is_taken_anew_for_every_lane_of_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []
    entropy = os.urandom

    def noted(count: int) -> bytes:
        asked.append(entropy(count))
        return asked[-1]

    monkeypatch.setattr(os, "urandom", noted)
    lanes, normals = Generators(), torch.empty(3 * STRETCH, dtype=torch.float64)
    for _ in range(2):
        lanes.refresh()
        lanes.fill_(normals)
        lanes.fill_(normals)
    assert [len(words) for words in asked] == [32] * 6
    assert len(set(asked)) == len(asked)


# --- what is added to what ---


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("room", [0, 1001])
def test_sums_are_computed_in_doubles_and_rounded_once(dtype: torch.dtype, room: int) -> None:
    start = torch.linspace(-3, 5, 1001).to(dtype)
    values = torch.linspace(-1, 1, 1001, dtype=torch.float64)
    expected = (start.double() + 0.25 * values).to(dtype)
    found = start.clone()
    spare = torch.full((room,), math.nan, dtype=torch.float64) if room else None
    add_scaled_([(found[:400], 0.25), (found[400:], 0.25)], values, spare)
    assert torch.equal(found, expected)


def test_stretches_cut_and_put_together() -> None:
    rows = [torch.zeros(size) for size in (3, 0, 5, 9, 1)]
    cut = list(stretches([(row, float(k)) for k, row in enumerate(rows)], 4))
    assert [[(len(row), scale) for row, scale in stretch] for stretch in cut] == [
        [(3, 0.0), (1, 2.0)],
        [(4, 2.0)],
        [(4, 3.0)],
        [(4, 3.0)],
        [(1, 3.0), (1, 4.0)],
    ]
    for stretch in cut:
        for row, _ in stretch:
            row += 1
    assert all(bool((row == 1).all()) for row in rows)


def test_any_order_of_axes_is_a_row_and_gaps_are_none() -> None:
    base = torch.arange(120.0).reshape(2, 3, 4, 5)
    for view in (
        base,
        base.permute(3, 1, 0, 2),
        base.to(memory_format=torch.channels_last),
        base[:1],
        base[0, 0, 0, 0],
    ):
        row = flat(view)
        assert row is not None
        assert sorted(row.tolist()) == sorted(view.flatten().tolist())
        assert row.data_ptr() == view.data_ptr()
    assert flat(base[:, :2]) is None
    assert flat(torch.zeros(1, 3).expand(2, 3)) is None


@pytest.mark.parametrize("layout", ["channels last", "transposed", "expanded", "gaps"])
def test_every_entry_of_a_gradient_gets_noise_of_its_own(layout: str) -> None:
    gradients = {
        "channels last": torch.ones(4, 3, 5, 5).to(memory_format=torch.channels_last),
        "transposed": torch.ones(5, 5, 3, 4).permute(3, 2, 1, 0),
        "expanded": torch.ones(1, 3, 5, 5).expand(4, 3, 5, 5),
        "gaps": torch.ones(4, 3, 5, 10)[..., ::2],
    }
    parameter = nn.Parameter(torch.zeros(4, 3, 5, 5))
    parameter.grad = gradients[layout]
    NoiseSource().perturb_({"w": parameter}, {"w": 1.0}, 1.0)
    assert parameter.grad is not None
    assert len(torch.unique(parameter.grad)) > 290  # of 300, in float32: five pairs agree in 1e-20 of cases


def test_gradients_that_share_memory_are_set_apart() -> None:
    """Two threads that add to one place lose noise; so each gets a place of its own, and keeps what was there."""
    buffer = torch.arange(300.0)
    shared = {"first": buffer[:200], "second": buffer[100:], "same": buffer[:200], "none": torch.zeros(0)}
    parameters = {name: nn.Parameter(torch.zeros(len(gradient))) for name, gradient in shared.items()}
    for name, parameter in parameters.items():
        parameter.grad = shared[name]
    before = {name: gradient.clone() for name, gradient in shared.items()}
    NoiseSource().perturb_(parameters, dict.fromkeys(parameters, 1e-3), 1.0)
    added = [parameter.grad - before[name] for name, parameter in parameters.items() if parameter.grad is not None]
    assert [float(noise.abs().max()) < 0.1 for noise in added if len(noise)] == [True] * 3
    assert len(torch.unique(torch.cat(added))) > 300  # of 500, in float32, whose steps at 300 are 3e-5
    parts = sorted(
        (g.data_ptr(), g.data_ptr() + 4 * len(g)) for p in parameters.values() if (g := p.grad) is not None
    )
    assert all(end <= start for (_, end), (start, _) in pairwise(parts))


def test_a_module_whose_channels_lie_last_trains_like_any_other() -> None:
    """Weights, gradients and inputs in that order of memory: they stay so, certified, and the steps are taken."""

    class Image(LipschitzModule):
        input_shape = (3, 8, 8)
        input_norm = 1.0
        lipschitz = 1.0
        loss_lipschitz = math.sqrt(2)
        certificate: ClassVar[dict[str, object]] = {}
        bounds: ClassVar = {"inner.weight": 3 * math.sqrt(2), "outer.weight": math.sqrt(2)}

        def __init__(self) -> None:
            super().__init__()
            self.inner = layers.Conv2d(3, 4, (3, 3), input_size=(8, 8), reads=9, taps=9, padding=((1, 1), (1, 1)))
            self.outer = layers.Dense(256, 2)
            self.project_()

        def forward(self, x: Tensor) -> Tensor:
            return self.release(self.outer(self.inner(self.clip_input(x)).flatten(1)))

        def per_example_loss(self, output: Tensor, target: Tensor) -> Tensor:
            return losses.cross_entropy(output, target)

    x = torch.randn(64, 3, 8, 8).to(memory_format=torch.channels_last)
    module: Any = Image()
    module.to(memory_format=torch.channels_last)
    module, optimizer, loader = PrivacyEngine().make_private(
        module=module,
        optimizer=SGD(module.parameters(), 0.5),
        data_loader=DataLoader(TensorDataset(x, torch.arange(64) % 2), batch_size=16),
        noise_multiplier=1.0,
    )
    before = module.inner.weight.detach().clone()
    for inputs, targets in loader:
        module.criterion(module(inputs.to(memory_format=torch.channels_last)), targets).backward()
        optimizer.step()
    assert module.inner.weight.is_contiguous(memory_format=torch.channels_last)
    assert not module.inner.weight.is_contiguous()
    assert bool((module.inner.weight != before).all())
    assert all(norm <= 1 for norm in module.certified_norms().values())


def test_secure_noise_of_several_threads_is_on_the_grid_and_as_large_as_it_should_be(
    two_threads: None,  # noqa: ARG001
) -> None:
    """Two scales over five stretches: variances within 6 standard errors, missed once in 10^8 runs."""
    rows = [
        (torch.full((size,), 0.3, dtype=torch.float64), scale) for size, scale in ((100_000, 2.0), (63_840, 0.5))
    ]
    SecureNormals().perturb_(rows)
    for row, scale in rows:
        grid = row / scale * 2.0**40
        assert bool((grid == grid.round()).all())
        assert abs(float((row - 0.3).square().mean()) / scale**2 - 1) < 6 * math.sqrt(2 / len(row))


def test_what_fails_in_a_thread_is_raised(two_threads: None) -> None:  # noqa: ARG001
    done: list[int] = []

    def work(item: int) -> None:
        done.append(item)
        if item == 3:
            raise ValueError("three")

    with pytest.raises(ValueError, match="three"):
        in_threads(work, range(10**6))
    assert len(done) < 10**6  # the others are not begun
    in_threads(done.append, [])
    assert 3 in done


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_fork_has_threads_of_its_own(two_threads: None) -> None:  # noqa: ARG001
    in_threads(lambda _: None, range(4))
    child = os.fork()
    if child == 0:
        found: list[int] = []
        in_threads(found.append, range(4))
        os._exit(0 if sorted(found) == [0, 1, 2, 3] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert flats._pool.cache_info().currsize >= 1

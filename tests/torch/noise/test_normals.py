"""Where normals come from: entropy, independence, forked processes, and what reaches the gradient."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from lipcompile_torch.noise.mechanism import NoiseSource
from lipcompile_torch.noise.normals import Normals, PlainNormals, SecureNormals
from torch import Tensor, nn

from tests.torch.private_net import B, backward, private

CPU = torch.device("cpu")
GRID = 2.0**-40


# --- independence of what is drawn when and for what ---


def draws(
    source: Normals, steps: int = 3, shapes: tuple[tuple[int, ...], ...] = ((50, 60), (3000,))
) -> list[Tensor]:
    """Draw for two parameters over some steps, [3000] each."""
    found = []
    for _ in range(steps):
        source.refresh()
        found += [source.draw(torch.Size(shape), CPU).flatten() for shape in shapes]
    return found


def related(found: list[Tensor]) -> bool:
    """Whether two of six draws share values, or correlate at any shift: by chance once in 10^9 runs.

    Two secure draws share a value with probability 9e6·2^-41.8 = 2e-6, so that three values show a fault: 1e-18. A
    sum of 3000 products passes 8·√3000 once in 10^15, and there are 15·3000.
    """
    for index, one in enumerate(found):
        for other in found[index + 1 :]:
            if int(torch.isin(one, other).sum()) >= 3:
                return True
            spectrum = torch.fft.rfft(one).conj() * torch.fft.rfft(other)
            if float(torch.fft.irfft(spectrum, len(one)).abs().max()) > 8 * math.sqrt(len(one)):
                return True
    return False


@pytest.mark.parametrize("source", [PlainNormals, SecureNormals, lambda: PlainNormals(seed=3)])
def test_draws_of_steps_and_parameters_are_independent(source: Callable[[], Normals]) -> None:
    assert not related(draws(source()))


def test_a_repeated_key_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "urandom", lambda count: bytes(count))
    assert related(draws(SecureNormals()))
    assert related(draws(PlainNormals()))


def test_every_stretch_of_a_large_draw_has_its_own_key(monkeypatch: pytest.MonkeyPatch) -> None:
    keys, entropy = [], os.urandom

    def noted(count: int) -> bytes:
        keys.append(entropy(count))
        return keys[-1]

    monkeypatch.setattr(os, "urandom", noted)
    drawn = SecureNormals().draw(torch.Size([3 * 2**15 + 1]), CPU)
    assert len(drawn) == 3 * 2**15 + 1
    assert [len(key) for key in keys] == [32] * 4
    assert len(set(keys)) == 4
    assert not related([drawn[start : start + 3000] for start in range(0, 3 * 2**15, 2**15)])


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (2, 3, 4)])
@pytest.mark.parametrize("source", [PlainNormals(), SecureNormals()])
def test_any_shape_is_drawn_in_doubles(source: Normals, shape: tuple[int, ...]) -> None:
    drawn = source.draw(torch.Size(shape), CPU)
    assert drawn.shape == shape
    assert drawn.dtype == torch.float64


def test_secure_normals_have_the_moments_of_normals() -> None:
    # 6 standard errors each: fails once in 10^8 runs.
    n = 2**18
    z = SecureNormals().draw(torch.Size([n]), CPU)
    assert abs(float(z.mean())) < 6 / math.sqrt(n)
    assert abs(float(z.square().mean()) - 1) < 6 * math.sqrt(2 / n)
    assert abs(float(z.pow(4).mean()) - 3) < 6 * math.sqrt(96 / n)


_FORK = """
import os, sys, torch
from lipcompile_torch.noise.normals import SecureNormals, PlainNormals
torch.set_num_threads(1)
sources = [PlainNormals(), SecureNormals()]
for source in sources:
    source.draw(torch.Size([5]), torch.device("cpu"))
child = os.fork()
for source in sources:
    source.refresh()
    line = f'{source.draw(torch.Size([5]), torch.device("cpu")).tolist()}\\n'
    os.write(1, line.encode())  # at once: the other process writes there too
if child:
    os.waitpid(child, 0)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_process_does_not_repeat_noise() -> None:
    done = subprocess.run([sys.executable, "-c", _FORK], capture_output=True, text=True, check=True)
    lines = done.stdout.split("\n")[:-1]
    assert len(lines) == 4
    assert len(set(lines)) == 4


def test_generators_are_named_by_where_noise_is_drawn() -> None:
    """On a GPU noise without `secure` is of torch's generator: Philox, which nobody calls cryptographic."""
    cuda = torch.device("cuda")
    assert PlainNormals().generator(CPU) == "AES-128-CTR"
    assert PlainNormals(seed=0).generator(CPU) == "SFC64"
    assert PlainNormals().generator(cuda) == "Philox of torch"
    assert SecureNormals().generator(CPU) == SecureNormals().generator(cuda) == "ChaCha20"
    both = [torch.zeros(1), torch.zeros(1, device="meta")]  # of a device that this machine need not have
    assert NoiseSource().generators(both) == ["AES-128-CTR", "Philox of torch"]


# --- what reaches the gradient ---


def released(source: Normals, gradient: float, n: int, scale: float = 1.0) -> Tensor:
    parameter = nn.Parameter(torch.zeros(n, dtype=torch.float64))
    parameter.grad = torch.full((n,), gradient, dtype=torch.float64)
    NoiseSource(normals=source).perturb_({"w": parameter}, {"w": scale}, 1.0)
    assert parameter.grad is not None
    return parameter.grad


def test_low_bits_of_released_values_tell_nothing_of_the_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    # Mironov's attack: next to 0 a plain sum 0 + z has bits far below those that 1 + z has room for; a released
    # value that is no multiple of 2^-53 says that the gradient was 0. Secure sums lie on one grid either way.
    monkeypatch.setattr("lipcompile_torch.noise.mechanism.rounding_slack", lambda _: 0.0)

    def betrayed(source: Normals, gradient: float) -> int:
        values = released(source, gradient, 2**16)
        return int(((values * 2.0**53) % 1 != 0).sum())

    assert betrayed(PlainNormals(seed=1), 0.0) > 2**14
    assert betrayed(PlainNormals(seed=1), 1.0) == 0
    for gradient in (0.0, 1.0, 1 / 3, 1e-9, -1e3):
        assert bool(((released(SecureNormals(), gradient, 2**12) / GRID) % 1 == 0).all())


def test_prepare_rounds_to_the_nearest_point_of_the_grid() -> None:
    u = torch.tensor(
        [0.0, 0.4 * GRID, 0.6 * GRID, -0.6 * GRID, 1 + 1.4 * GRID, 1e13 + 0.5, -3.25], dtype=torch.float64
    )
    expected = [0.0, 0.0, GRID, -GRID, 1 + GRID, 1e13 + 0.5, -3.25]
    assert SecureNormals().prepare(u).tolist() == expected
    assert PlainNormals().prepare(u) is u


def test_widening_makes_up_for_the_rounding() -> None:
    # σ = 2^20 over four entries: rounding adds 2^-40·2 to a distance of 2^-20, so 1/(1 - 2^-19).
    assert SecureNormals().widening(2.0**20, 4) == pytest.approx(1 / (1 - 2.0**-19), rel=1e-12)
    assert SecureNormals().widening(1.0, 10**8) < 1 + 1e-8
    assert PlainNormals().widening(2.0**20, 4) == 1.0
    with pytest.raises(ValueError, match="too large for secure noise"):
        SecureNormals().widening(2.0**39, 4)


def test_widened_scales_keep_the_sensitivity() -> None:
    # Wherever all entries lie between two points of the grid, rounding moves the sums no further apart than 1/σ.
    sigma, n = 3 * 2.0**16, 2**12
    source = SecureNormals()
    apart = 1 / sigma / source.widening(sigma, n) / math.sqrt(n)
    starts = torch.linspace(0, 1, 101, dtype=torch.float64) * GRID
    worst = float((source.prepare(starts + apart) - source.prepare(starts)).max()) * math.sqrt(n)
    assert apart * math.sqrt(n) < worst <= 1 / sigma


def test_a_secure_run_gets_the_noise_it_was_promised() -> None:
    # Multiplier 10^4: gradients are nothing beside it. √ΣK²·σ/b, widened by the slack of float32, is the deviation
    # of 6·10 steps of 64 entries, to within 6/√(2·60·64): missed once in 10^8 runs.
    module, optimizer, loader = private(noise_multiplier=1e4, secure=True)
    seen: list[Tensor] = []
    optimizer.optimizer.register_step_pre_hook(
        lambda *_: seen.append(torch.cat([p.grad.flatten() for p in module.parameters()]).double())
    )
    for _ in range(6):
        for x, y in loader:
            backward(module, x, y)
            optimizer.step()
    entries = torch.stack(seen)
    expected = 1e4 * math.hypot(*module.bounds.values()) / B * (1 + 1e-5)
    assert entries.shape == (60, 64)
    assert abs(float(entries.square().mean().sqrt()) / expected - 1) < 6 / math.sqrt(2 * entries.numel())
    # Two steps of 64 entries correlate by 0.75 once in 10^12 pairs, and there are 1770.
    assert float((torch.corrcoef(entries) - torch.eye(60)).abs().max()) < 0.75

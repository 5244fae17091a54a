"""What the noise adds for rounding: never less than exact arithmetic asks for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from fractions import Fraction
from types import SimpleNamespace
from typing import Any, cast

import pytest
import scipy.stats
import torch
from lipcompile_torch.certify.precision import rounding_slack, sum_slack, working_slack
from lipcompile_torch.certify.rounding import UP_MANY
from lipcompile_torch.distributed import ALONE, World
from lipcompile_torch.noise import mechanism as noise
from lipcompile_torch.noise.discrete_gaussian import GRID_BITS
from lipcompile_torch.noise.mechanism import NoiseSource, allocate
from lipcompile_torch.noise.normals import SecureNormals
from lipcompile_torch.noise.streams import BandedStream, Stream
from lipcompile_torch.train import checks, loss_clipping
from lipcompile_torch.train.clipped import ClippedGradients
from lipcompile_torch.train.gradients import LipschitzGradients, PerExampleGradients
from lipcompile_torch.train.loss_clipping import AdaptiveClip, Threshold, gradient_multiplier
from lipcompile_torch.train.module import LipschitzModule
from torch import Tensor, nn
from torch.optim import SGD

from tests.rounding import DIGITS, each_is_needed
from tests.torch.private_net import Net, private


def draws(seed: int, count: int) -> list[float]:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, dtype=torch.float64, generator=generator).add_(0.1).tolist()


PAIRS = [(*draws(seed, 2),) for seed in range(200)]


def test_the_multiplier_of_the_gradient_beside_a_count_is_rounded_up() -> None:
    """(σ^-2 - (2s)^-2)^(-1/2)."""
    for sigma, count in PAIRS:
        noise_of_count = sigma + count
        exact = 1 / DIGITS.sqrt(1 / DIGITS.mpf(sigma) ** 2 - 1 / (2 * DIGITS.mpf(noise_of_count)) ** 2)
        assert gradient_multiplier(sigma, noise_of_count) >= exact


def test_the_noise_of_several_counts_is_rounded_up() -> None:
    """(σ^-2 - Σ(2·s_j)^-2)^(-1/2), of counts that use up nearly all of σ, where a unit of rounding is much."""
    for share, other in PAIRS:
        counts = [math.sqrt(3) / 2 * (1 + 1e-9 * share), math.sqrt(3) / 2, math.sqrt(3) / 2 * (1 + 1e-9 * other)]
        exact = 1 / DIGITS.sqrt(1 - sum(1 / (2 * DIGITS.mpf(count)) ** 2 for count in counts))
        assert gradient_multiplier(1.0, *counts) >= exact


def scaled_count(within: int, examples: int, std: float) -> Fraction:
    """Return a count in units of its noise, as it is before the noise is added."""
    seen: list[Tensor] = []

    def add_noise(scaled: Tensor) -> Tensor:
        seen.append(scaled)
        return scaled

    Threshold(AdaptiveClip(1.0), std, examples).advance(within, examples, add_noise)
    return Fraction(float(seen[0]))


def test_the_noise_of_a_count_covers_the_rounding_of_both_neighbours() -> None:
    """Over the noise, exactly: by 1 at most if an example is replaced, and by 1/2 if one is removed."""
    for share, std in PAIRS:
        within = int(2**24 * share)
        low, high = (scaled_count(count, 2 * within + 1, std) for count in (within, within + 1))
        assert high - low <= 1 / Fraction(std)
        assert scaled_count(within, within, std) - scaled_count(within - 1, within - 1, std) <= 1 / Fraction(
            2 * std
        )


def test_noise_on_the_count_costs_little() -> None:
    """Five times the multiplier, by which that of the gradient grows by 1/200; of large batches a twentieth."""
    assert AdaptiveClip(1.0).count_std(1.0, 10.0) == 5
    assert AdaptiveClip(1.0).count_std(1.0, 1000.0) == 50


def test_scales_of_secure_noise_are_rounded_up() -> None:
    """1/(1 - σ·2^-40·√n)."""
    normals = SecureNormals()
    for sigma, share in PAIRS:
        entries = int(10**9 * share)
        added = DIGITS.mpf(sigma) * DIGITS.sqrt(entries) / 2**GRID_BITS
        assert normals.widening(sigma, entries) >= 1 / (1 - added)


def test_shared_noise_has_no_smaller_multiplier() -> None:
    """(ΣK²/s²)^(-1/2) is at least σ."""
    rules = ("global", "per_layer", "optimal")
    cases = [(seed, rule) for seed in range(40) for rule in rules]

    def achieved(case: tuple[int, Any]) -> float:
        seed, rule = case
        sigma, *lengths = draws(seed, 9)
        bounds = {str(i): length for i, length in enumerate(lengths)}
        try:
            stds = allocate(rule, bounds, dict.fromkeys(bounds, 7), sigma)
        except ValueError:
            return -1.0
        squares = DIGITS.fsum((DIGITS.mpf(k) / DIGITS.mpf(stds[name])) ** 2 for name, k in bounds.items())
        return float(1 / DIGITS.sqrt(squares) - DIGITS.mpf(sigma))

    each_is_needed(
        {(noise, "UP_MANY"): 1.0},
        {"it": {(noise, "UP_MANY"): UP_MANY}},
        achieved,
        lambda _: 0.0,
        cases,
    )


def test_what_is_achieved_must_be_above_the_multiplier_by_more_than_its_rounding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for excess, refused in ((4e-13, True), (6e-13, False)):
        monkeypatch.setattr(noise, "effective_multiplier", lambda *_, excess=excess: 2.0 * (1 + excess))
        with (
            pytest.raises(ValueError, match="the noise allocation gives noise multiplier")
            if refused
            else nullcontext()
        ):
            allocate("global", {"w": 1.0}, {"w": 7}, 2.0)


def test_noise_is_wider_by_the_slack_of_the_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "rounding_slack", lambda _: 0.5)
    scales: list[float] = []

    class Recorded:
        def perturb_(self, rows: Sequence[tuple[Tensor, float]]) -> None:
            scales.extend(scale for _, scale in rows)

    parameter = nn.Parameter(torch.zeros(3))
    source = NoiseSource.__new__(NoiseSource)
    source._stream, source._normals = None, Recorded()  # type: ignore[assignment]
    source.perturb_({"w": parameter}, {"w": 2.0}, 4.0)
    assert scales == [2 * 1.5 / 4]


def test_noise_covers_what_computes_long_sums_and_sums_of_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """(1 + 0.5 + 0.25)·(1 + 3) times s_p, of the lowest precision, of a pass, and of the sums."""
    module = Net()
    gradients = LipschitzGradients(module, SGD(module.parameters(), lr=0.1), "global", 8.0)
    monkeypatch.setattr(gradients, "_gate_slack", 0.5)
    monkeypatch.setattr(gradients, "_long_sums", lambda: 0.25)
    monkeypatch.setattr(gradients, "_sum_slacks", lambda bounds: dict.fromkeys(bounds, 3.0))
    source: Any = SimpleNamespace(widening=lambda *_: 1.0)
    plain = gradients._share(module.bounds, 2.0)
    found = gradients._widened(module.bounds, 2.0, source)
    assert found == pytest.approx({name: 1.75 * 4 * std for name, std in plain.items()})


def test_noise_on_clipped_gradients_covers_their_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 + 3 times s_p."""
    module = Net()
    clipped = ClippedGradients(module, 1.0, normaliser=8.0)
    gradients = PerExampleGradients(clipped, SGD(module.parameters(), lr=0.1), "global")
    monkeypatch.setattr(gradients, "_view", lambda _: {"examples": 5})
    monkeypatch.setattr(gradients.total, "sum_", lambda: None)
    monkeypatch.setattr(gradients, "_sum_slacks", lambda: dict.fromkeys(module.bounds, 3.0))
    source: Any = SimpleNamespace(widening=lambda *_: 1.0)
    batch: Any = SimpleNamespace(total=5)
    found = gradients.stds(batch, 2.0, source)
    assert found == pytest.approx({name: 4 * std for name, std in clipped.stds(2.0, "global").items()})


def test_checks_of_a_step_allow_for_long_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cotangent of an example, and the sum, may exceed their bounds by 1e-5 and by a pass: here a quarter."""
    monkeypatch.setattr(LipschitzGradients, "_long_sums", lambda _: 0.25)
    module, optimizer, loader = private()
    seen: dict[str, float] = {}
    flow, sums = checks.check_flow, checks.check_gradients
    monkeypatch.setattr(checks, "check_flow", lambda *given: seen.update(limit=given[2]) or flow(*given))
    monkeypatch.setattr(checks, "check_gradients", lambda *given: seen.update(slack=given[3]) or sums(*given))
    x, y = next(iter(loader))
    module.criterion(module(x), y).backward()
    optimizer.step()
    assert seen == pytest.approx({"limit": math.sqrt(2) * (1 + 1e-5 + 0.25), "slack": 1e-5 + 0.25}, rel=1e-9)


def test_the_noise_of_a_step_is_the_row_of_its_number() -> None:
    """Rows of steps that were left out are passed over, and no more."""
    rows = iter(range(10))
    source = NoiseSource(seed=0)
    source._stream = cast(Stream, SimpleNamespace(next=lambda *_: next(rows)))
    for step in (0, 1, 4):
        source.begin_step(step)
        assert source._draw("w", torch.zeros(1)) == step


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("batch", [1.0, 100.0, 4096.0])
def test_what_sums_round_is_added(dtype: torch.dtype, batch: float) -> None:
    """Of a depth a, a sum of B gradients of length K is off by a·u·B·K in float32 or more, by u·B·K in the dtype
    of the parameter, and its neighbour by as much the other way; and by the least number η in each of n entries.
    """
    kind, most = torch.finfo(dtype), batch + 8 * math.sqrt(batch)
    working = torch.finfo(torch.promote_types(dtype, torch.float32))
    last = kind.eps if kind.bits < 32 else 0.0
    assert sum_slack(dtype, batch, 1, 1.0, depth=5) >= (5 * working.eps + last) * most
    bound = kind.smallest_normal * kind.eps  # so short that only η counts
    for roundings in (1, 2):
        assert sum_slack(dtype, batch, 10**4, bound, 0, roundings) >= roundings * 100 * batch
    assert scipy.stats.poisson.sf(most + 16, batch) < 1e-14


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_the_rounding_of_sums_counts_roundings_of_roundings(dtype: torch.dtype) -> None:
    """Each sum is off by a·u/(1 - a·u), not a·u, and what is rounded to the dtype in the end is longer, too."""
    kind, working = torch.finfo(dtype), torch.finfo(torch.promote_types(dtype, torch.float32))
    for depth, batch in ((90, 512), (91, 4096), (300, 1)):
        lost = Fraction(depth) * Fraction(working.eps) / 2
        lost /= 1 - lost
        last = Fraction(kind.eps) if kind.bits < 32 else Fraction(0)
        most = Fraction(batch + 8 * math.sqrt(batch) + 16)
        assert sum_slack(dtype, batch, 1, 1.0, depth) >= (2 * lost + last * (1 + lost)) * most


def test_half_precision_is_rounded_twice_over_several_processes() -> None:
    """Each part of a sum of B gradients of length K, and the sum of the parts: by 2⁻⁸ in bfloat16, both ways."""

    class Two(World):
        size = 2

    module = Net().bfloat16()
    optimizer, most = SGD(module.parameters(), lr=0.1), 512 + 8 * math.sqrt(512) + 16
    for world, roundings in ((ALONE, 1), (Two(), 2)):
        gradients = LipschitzGradients(module, optimizer, "global", 512.0, world=world)
        slacks = gradients._sum_slacks(module.bounds)
        for slack in slacks.values():
            assert slack >= 2 * ((1 + 2.0**-8) ** roundings - 1) * most
        clipped = PerExampleGradients(ClippedGradients(module, 1.0, normaliser=512.0), optimizer, "global", world)
        for slack in clipped._sum_slacks().values():
            assert slack >= 2 * ((1 + 2.0**-8) ** roundings - 1) * most


def test_sums_that_rounding_lengthened_are_taken() -> None:
    """By the slack of each gradient, or by a·2u of the sum: a refusal would depend on the data."""
    for slack, depth, longer in ((1e-5, 0, 1.9e-5), (0.0, 90, 89 * 2.0**-23), (1e-5, 90, 1.9e-5 + 89 * 2.0**-23)):
        checks.check_gradients({"w": 2 * (1 + longer)}, {"w": 1.0}, 2.0, slack, depth)
        with pytest.raises(checks.PrivacyError, match="bound for this batch"):
            checks.check_gradients({"w": 2 * (1 + 1.1 * longer)}, {"w": 1.0}, 2.0, slack, depth)


def test_what_is_equal_to_its_limit_is_taken() -> None:
    """Nothing foreign, a cotangent as long as its bound, as many clipped examples as were drawn, a clip at K."""
    batch: Any = SimpleNamespace(examples=3)
    checks.check_flow(checks.Flow(3, 0.0, 2.0), batch, 2.0)
    checks.check_clipped(3, batch)
    group = SimpleNamespace(name="both", parameters=("a", "b"), length=2.0)
    for other, refused in ((2.0, False), (3.0, False), (1.9, True)):
        module: Any = SimpleNamespace(clips=[group], bounds={"a": 2.0, "b": other})
        with pytest.raises(checks.PrivacyError, match="has length") if refused else nullcontext():
            checks.check_clips(module)


def test_as_many_pieces_are_added_as_noise_covers() -> None:
    parameters = {"w": nn.Parameter(torch.zeros(1))}
    checks.check_pieces(parameters, 16, 16)
    with pytest.raises(checks.PrivacyError, match="the noise covers the rounding error of only 16"):
        checks.check_pieces(parameters, 17, 16)


def test_slacks_are_far_above_what_was_measured() -> None:
    """The largest excess seen, see `rounding_slack`: in float64 it is 2^-29 of that in float32."""
    seen = {torch.float64: 2.4e-7 * 2.0**-29, torch.float32: 2.4e-7, torch.float16: 6.6e-4, torch.bfloat16: 3e-3}
    for dtype, excess in seen.items():
        assert rounding_slack(dtype) >= 15 * excess


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_slack_of_what_computes_is_that_of_its_lowest_precision(dtype: torch.dtype) -> None:
    """The largest: of the output, and of autocast, in bfloat16, where it is on."""
    output = torch.zeros(1, dtype=dtype)
    assert working_slack(output) == rounding_slack(dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert working_slack(output) == rounding_slack(torch.bfloat16) == 5e-2


def test_the_slack_of_a_module_is_that_of_its_lowest_precision() -> None:
    both = {"a": nn.Parameter(torch.zeros(1)), "b": nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))}
    assert checks.slack(both) == rounding_slack(torch.bfloat16)


def test_bounds_of_a_clipped_loss_are_rounded_up() -> None:
    """C/L times the bound without clips, and half of 1e-12 more: L and the bound are stored rounded, and the
    verifier takes bounds that are so much too small.
    """
    share = 1 + DIGITS.mpf("5e-13")
    for limit, unclipped in PAIRS:
        module: Any = SimpleNamespace(
            bounds={"w": 1e9},
            unclipped_bounds={"w": unclipped},
            loss_limit=limit,
            loss_lipschitz=limit + 0.7,
            clipped_parameters=frozenset(),
            moved_bounds={},
        )
        found = LipschitzModule.gradient_bounds(module)["w"]
        assert found >= DIGITS.mpf(limit) / DIGITS.mpf(limit + 0.7) * DIGITS.mpf(unclipped) * share


def test_correlated_noise_is_scaled_up() -> None:
    """A first output z/c₀·s: a quotient and a product, of z = 1."""
    for first, scale in PAIRS:
        found = BandedStream([first], scale, 1).next("w", torch.ones((), dtype=torch.float64))
        assert float(found) >= DIGITS.mpf(scale) / DIGITS.mpf(first)


def test_examples_at_the_clip_count_as_within() -> None:
    clipped, within = loss_clipping.clip_cotangents(torch.tensor([[3.0, 4.0], [6.0, 8.0]]), 5.0)
    assert int(within) == 1
    assert float(clipped[1].double().norm()) <= 5

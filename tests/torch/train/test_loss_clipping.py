"""The clip of the loss's gradient: what reaches the weights, C over the steps, the private quantile, joint σ."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, ClassVar

import pytest
import torch
from lipcompile_torch.nn import losses
from lipcompile_torch.noise.normals import Normals, PlainNormals, SecureNormals
from lipcompile_torch.train import checks
from lipcompile_torch.train.gate import GateRecord
from lipcompile_torch.train.loss_clipping import (
    AdaptiveClip,
    ClipLength,
    Cosine,
    Threshold,
    Thresholds,
    clip_cotangents,
    gradient_multiplier,
)
from lipcompile_torch.train.sampler import LogicalBatch
from torch import Tensor

from tests.torch.private_net import L, Net


class LinearNet(Net):
    unclipped_bounds = Net.bounds


def linear_net() -> Any:
    return LinearNet()


def examples(count: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, 4, generator=generator), torch.randint(0, 3, (count,), generator=generator)


# --- the gradient ---


def test_the_gradient_is_the_one_derived_by_hand() -> None:
    # Cross entropy: the cotangent of the logits is softmax - one-hot; clipped to C; times the features of each
    # example it is the gradient of the last weight. Divided by the normaliser 4.
    torch.manual_seed(0)
    module, (x, y), clip = linear_net().double(), examples(), 0.85
    module.normaliser, module.loss_clip = 4.0, clip
    module.criterion(module(x.double()), y).backward()
    with torch.no_grad():
        features = torch.relu(module.inner(module.clip_input(x.double())))
        cotangents = torch.softmax(module.outer(features), 1) - torch.eye(3, dtype=torch.float64)[y]
        assert 0 < int((cotangents.norm(dim=1) > clip).sum()) < len(x)  # some are clipped, some are not
        factors = (clip / cotangents.norm(dim=1)).clamp(max=1)
        expected = (factors[:, None] * cotangents).T @ features / 4
    torch.testing.assert_close(module.outer.weight.grad, expected)
    assert module.gate.examples == len(x)
    assert int(module.gate.within_clip) == int((cotangents.norm(dim=1) <= clip).sum())
    assert float(module.gate.foreign) == 0
    assert clip * (1 - 1e-9) < float(module.gate.largest) <= clip


def test_without_a_clip_and_with_a_wide_one_the_gradient_is_the_same() -> None:
    torch.manual_seed(0)
    module, (x, y), found = linear_net(), examples(), []
    for clip in (None, 2.0):
        module.zero_grad()
        module.loss_clip = clip
        module.criterion(module(x), y).backward()
        found.append(module.inner.weight.grad.clone())
    assert torch.equal(*found)


def test_pieces_of_a_batch_count_together_and_a_reset_forgets() -> None:
    torch.manual_seed(0)
    module, (x, y) = linear_net(), examples()
    module.loss_clip = 0.85
    module.criterion(module(x), y).backward()
    whole = int(module.gate.within_clip)
    assert 0 < whole < len(x)
    module.gate.reset()
    assert not module.gate.examples
    for part in (slice(0, 2), slice(2, 2), slice(2, 6)):
        module.criterion(module(x[part]), y[part]).backward()
    assert int(module.gate.within_clip) == whole


def test_examples_count_once_however_often_the_gradient_of_the_output_is_looked_at() -> None:
    """Each look counted them again, and one example moved the count by as many more."""
    torch.manual_seed(0)
    module, (x, y), counts = linear_net(), examples(), []
    module.loss_clip = 0.85
    for looks in (0, 1, 3):
        module.gate.reset()
        output = module(x)
        loss = module.criterion(output, y)
        for _ in range(looks):
            torch.autograd.grad(loss, output, retain_graph=True)
        loss.backward()
        assert float(module.gate.foreign) == 0
        counts.append(float(module.gate.within_clip))
    assert counts[0] > 0
    assert counts == [counts[0]] * 3


def test_each_example_is_clipped_over_all_its_entries() -> None:
    cotangent = torch.zeros(5, 2, 3)
    cotangent[0, 0, 0], cotangent[0, 1, 2] = 3, 4  # norm 5 over both rows
    cotangent[1, 0] = 1e-3
    cotangent[2, 1, 1] = math.nan
    cotangent[3, 0, 0], cotangent[3, 1, 1] = math.inf, 1
    clipped, within = clip_cotangents(cotangent, 1.0)
    torch.testing.assert_close(clipped[0], cotangent[0] / 5)
    assert float(clipped[0].norm()) <= 1
    assert torch.equal(clipped[1], cotangent[1])
    assert not clipped[2:].any()
    assert int(within) == 2  # the second and the zero; what is not finite is not within
    assert clip_cotangents(cotangent[:0], 1.0)[0].shape == (0, 2, 3)
    assert int(clip_cotangents(cotangent[:0], 1.0)[1]) == 0
    scalar, within = clip_cotangents(torch.tensor([2.0, -0.5]), 1.0)  # one logit, no axis for it
    assert scalar.tolist() == pytest.approx([1.0, -0.5])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_no_clipped_cotangent_is_longer_than_its_bound(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(2000, 4, 9, generator=generator, dtype=torch.float64).to(dtype)
    clipped, _ = clip_cotangents(drawn, 3.0)
    norms = clipped.double().flatten(1).norm(dim=1)
    assert float(norms.max()) <= 3.0
    assert float(norms.max()) > 3.0 * (1 - 200 * torch.finfo(dtype).eps)


# --- bounds and checks ---


def test_bounds_are_scaled_only_where_they_are_known_without_inner_clips() -> None:
    linear, unknown = linear_net(), Net()
    for clip, share in ((0.5 * L, 0.5), (L, 1.0), (3 * L, 1.0), (None, 1.0)):
        linear.loss_clip = unknown.loss_clip = clip
        expected = {name: bound * share for name, bound in Net.bounds.items()}
        assert linear.gradient_bounds() == pytest.approx(expected, rel=2e-12)
        assert all(linear.gradient_bounds()[name] >= bound for name, bound in expected.items())
        assert unknown.gradient_bounds() == Net.bounds


@pytest.mark.parametrize("clip", [1e-323, 3e-323, 1.7e-310, 1e-200, 1 / 3, 0.7 * L])
def test_scaled_bounds_are_not_below_their_shares_in_exact_arithmetic(clip: float) -> None:
    """Products of subnormal doubles are rounded by any share of themselves."""
    linear = linear_net()
    linear.loss_clip = clip
    for name, bound in linear.gradient_bounds().items():
        share = Fraction(clip) / Fraction(linear.loss_lipschitz) * Fraction(Net.bounds[name])
        assert share <= bound <= share * (1 + Fraction(2, 10**12)) + Fraction(2.0**-1060)


def test_an_inner_clip_and_one_of_the_loss_bound_together() -> None:
    # Inside, cotangents are clipped to a third of what L would bring: at C = L/2 that still binds, at L/6 no more.
    class Inner(Net):
        unclipped_bounds: ClassVar = {name: 3 * bound for name, bound in Net.bounds.items()}

    module = Inner()
    for clip, share in ((L / 2, 1.0), (L / 6, 0.5)):
        module.loss_clip = clip
        assert module.gradient_bounds() == pytest.approx({name: share * b for name, b in Net.bounds.items()})


def test_the_gate_refuses_a_cotangent_above_the_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    module, (x, y) = linear_net(), examples()
    module.loss_clip = 0.7
    batch = LogicalBatch(len(x), len(x))
    limit = min(module.loss_lipschitz, module.loss_limit) * (1 + 1e-5)
    module.criterion(module(x), y).backward()
    checks.check_flow(flow(module.gate), batch, limit)
    module.gate.reset()
    monkeypatch.setattr("lipcompile_torch.train.module.clip_cotangents", lambda g, _: (g, torch.tensor(0)))
    module.criterion(module(x), y).backward()
    with pytest.raises(checks.PrivacyError, match=r"longer than its bound, 0\.7"):
        checks.check_flow(flow(module.gate), batch, limit)


def test_another_loss_is_refused_under_a_clip_too() -> None:
    module, (x, y) = linear_net(), examples()
    module.loss_clip = 0.7
    losses.cross_entropy(module(x), y).sum().backward()  # type: ignore[no-untyped-call]
    with pytest.raises(checks.PrivacyError, match=r"not those of the unscaled loss module\.criterion"):
        checks.check_flow(flow(module.gate), LogicalBatch(len(x), len(x)), L)


# --- C over the steps ---


def clipping(clip: ClipLength, sigma: float = 1.0, normaliser: float = 100.0) -> Threshold:
    return Thresholds({None: clip}, sigma, normaliser)[None]


def flow(found: GateRecord) -> checks.Flow:
    assert found.foreign is not None
    assert found.largest is not None
    return checks.Flow(found.examples, float(found.foreign), float(found.largest))


def silent(scaled: Tensor) -> Tensor:
    return scaled


def test_fixed_and_scheduled_clips() -> None:
    schedule, found = Cosine(start=2.0, end=1.0, steps=4), []
    # Half a cosine: 2, then 1.5 + √½/2, 1.5, 1.5 - √½/2, then 1 for good.
    expected = [2, 1.5 + math.sqrt(0.125), 1.5, 1.5 - math.sqrt(0.125), 1, 1, 1]
    assert [schedule(step) for step in range(7)] == pytest.approx(expected)
    for clip in (clipping(schedule), clipping(lambda step: 1 / (1 + step)), clipping(0.25)):
        for _ in range(3):
            found.append(clip.current)
            clip.advance(1, 2, silent)
    assert found == pytest.approx([*expected[:3], 1, 1 / 2, 1 / 3, 0.25, 0.25, 0.25])


@pytest.mark.parametrize(
    "build",
    [
        lambda: clipping(0.0),
        lambda: clipping(-1.0),
        lambda: clipping(math.nan),
        lambda: clipping(math.inf),
        lambda: clipping(lambda step: 0.0 * step),
        lambda: clipping(AdaptiveClip(initial=0.0)),
        lambda: AdaptiveClip(initial=1.0, quantile=1.5),
        lambda: AdaptiveClip(initial=1.0, learning_rate=0.0),
        lambda: AdaptiveClip(initial=1.0, count_noise=-1.0),
        lambda: Cosine(1.0, 0.0, 5),
        lambda: Cosine(1.0, 0.5, 0),
    ],
)
def test_numbers_out_of_range_are_refused(build: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match=r"positive|between|at least one"):
        build()


def test_one_step_of_the_quantile_by_hand() -> None:
    # 30 of 80 examples within C, b = 100: Σ(indicator - 1/2) = -10, b̃ = -10/100 + 1/2 = 0.4; η = 0.2, γ = 0.5.
    found = clipping(AdaptiveClip(initial=2.0))
    found.advance(30, 80, silent)
    assert found.current == pytest.approx(2.0 * math.exp(-0.2 * (0.4 - 0.5)))
    # Noise of one standard deviation, s = max(100/20, 5·1) = 5: b̃ = (-10 + 5)/100 + 1/2.
    found = clipping(AdaptiveClip(initial=2.0))
    found.advance(30, 80, lambda scaled: scaled + 1)
    assert found.current == pytest.approx(2.0 * math.exp(-0.2 * (0.45 - 0.5)))
    # An empty batch releases its count as well: only noise.
    found = clipping(AdaptiveClip(initial=2.0, count_noise=3.0))
    found.advance(0, 0, lambda scaled: scaled + 1, widening=2.0)
    assert found.current == pytest.approx(2.0 * math.exp(-0.2 * (6 / 100)))


def test_the_released_count_has_the_stated_noise() -> None:
    # log C moves by -η·(noise·s/b + …): sample deviation of 4000 steps within 6/√8000 but for 1e-9 of all runs.
    normals = PlainNormals(seed=0)
    found, moved = clipping(AdaptiveClip(initial=1.0, count_noise=7.0)), []
    for _ in range(4000):
        before = found.current
        found.advance(50, 100, lambda u: normals.prepare(u) + normals.draw(u.shape, u.device))
        moved.append(math.log(found.current / before))
    deviations = torch.tensor(moved, dtype=torch.float64)
    assert abs(float(deviations.std()) / (0.2 * 7 / 100) - 1) < 6 / math.sqrt(8000)
    assert abs(float(deviations.mean())) < 6 * 0.2 * 7 / 100 / math.sqrt(4000)


@pytest.mark.parametrize("quantile", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("normals", [None, PlainNormals(seed=1), SecureNormals()])
def test_the_clip_finds_the_quantile(quantile: float, normals: Normals | None) -> None:
    # Norms uniform on (0, 3): the quantile of γ is 3γ. 200 a batch: noise s = 10 on it. From far above and below.
    generator = torch.Generator().manual_seed(2)
    for initial in (0.01, 40.0):
        found = clipping(AdaptiveClip(initial=initial, quantile=quantile), normaliser=200.0)
        late = []
        for step in range(300):
            norms = 3 * torch.rand(200, generator=generator)
            within = int((norms <= found.current).sum())
            found.advance(
                within,
                200,
                silent if normals is None else lambda u: normals.prepare(u) + normals.draw(u.shape, u.device),
            )
            late += [found.current] if step >= 150 else []
        # A step's noise moves C by a relative 0.2·0.06 (count and noise on it), C itself by 0.04; fixed seeds.
        assert sum(late) / len(late) == pytest.approx(3 * quantile, rel=0.1)


def test_the_state_goes_through_json_and_continues() -> None:
    def build() -> Threshold:
        return clipping(AdaptiveClip(initial=2.0))

    one = build()
    for within in (30, 70, 20):
        one.advance(within, 80, silent)
    other = build()
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert (other.current, other.steps) == (one.current, 3)
    for found in (one, other):
        found.advance(50, 80, silent)
    assert other.current == one.current
    scheduled = clipping(Cosine(2.0, 1.0, 4))
    scheduled.load_state_dict({"steps": 2, "value": None})
    assert scheduled.current == pytest.approx(1.5)
    for wrong in (one.state_dict(), {}, {"steps": -1, "value": None}):
        with pytest.raises(ValueError, match="another kind of clip"):
            scheduled.load_state_dict(wrong)
    with pytest.raises(ValueError, match="another kind of clip"):
        one.load_state_dict({"steps": 2, "value": None})


# --- gradient and count are one mechanism ---


def test_joint_sigma_by_hand() -> None:
    # σ = 3, s = 2.5: 1/9 - 1/25 = 16/225, so σ_g = 15/4.
    assert gradient_multiplier(3.0, 2.5) == pytest.approx(3.75, rel=2e-12)
    # Two counts of s = 2.5·√2 have half of that each.
    assert gradient_multiplier(3.0, 2.5 * math.sqrt(2), 2.5 * math.sqrt(2)) == pytest.approx(3.75, rel=2e-12)
    assert gradient_multiplier(3.0) == 3.0

    def left(*clips: ClipLength) -> float:
        return Thresholds(dict(zip((None, "one", "two"), clips, strict=False)), 3.0, 100.0).gradient_multiplier(
            3.0
        )

    assert left(AdaptiveClip(1.0, count_noise=2.5)) == gradient_multiplier(3.0, 2.5)
    assert left(Cosine(1.0, 1.0, 1), 0.5) == 3.0
    # By default s = 5σ·√m at least of m counts: σ_g = σ/√(1 - 0.01).
    assert left(AdaptiveClip(1.0)) == pytest.approx(3 / math.sqrt(0.99))
    assert left(AdaptiveClip(1.0), AdaptiveClip(0.5), AdaptiveClip(1.0)) == pytest.approx(3 / math.sqrt(0.99))
    for count_noise in (1.5, 1.0):
        with pytest.raises(ValueError, match=r"count_noise above 1\.5"):
            gradient_multiplier(3.0, count_noise)
    with pytest.raises(
        ValueError, match="already exceeds the budget"
    ):  # twice the noise, rounded inward, is σ itself
        gradient_multiplier(2 * (1 - 2.0**-50), 1.0)


@pytest.mark.parametrize(("sigma", "count_noise"), [(1.0, 0.500001), (1e-3, 7.0), (50.0, 26.0), (0.7, 0.7)])
def test_a_step_moves_by_no_more_than_one_over_sigma(sigma: float, count_noise: float) -> None:
    # Every neighbour at the worst gradients, ±e of norm 1/σ_g after scaling, and both indicators, exactly.
    sigma_g = gradient_multiplier(sigma, count_noise)
    reports = [(g / sigma_g, (b - 0.5) / count_noise) for g in (-1, 1) for b in (0, 1)]
    added = max(math.hypot(*report) for report in reports)
    replaced = max(math.dist(one, other) for one in reports for other in reports)
    for attained, limit in ((added, 1 / sigma), (replaced, 2 / sigma)):
        assert limit * (1 - 2e-12) < attained <= limit * (1 + 1e-15)


def test_an_adapted_clip_stays_between_its_ends_whatever_the_noise() -> None:
    clip = AdaptiveClip(1.0, 0.5)
    for fraction, expected in ((-1e9, 1e9), (1e9, 1e-9), (0.5, 1e-9)):
        clip.follow(fraction)
        assert clip.value == pytest.approx(expected)

"""What certified radii give up for rounding: each term by itself, where computed distances are above true ones."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lipcompile_torch import certified_radii
from lipcompile_torch.certify.rounding import UP, gamma
from lipcompile_torch.deploy import robustness
from lipcompile_torch.deploy.robustness import Constants, beyond_the_clip
from torch import Tensor, nn

from tests.rounding import DIGITS, each_is_needed
from tests.torch.deploy.test_robustness import at, emitted, linear

OFF = {(robustness, "gamma"): lambda _: 0.0, (robustness, "UP"): 1.0}
ONE_STEP = {"one step": {(robustness, "UP"): UP}}


def gauss(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def module_of(weight: Tensor) -> Any:
    parameter = nn.Parameter(weight)
    return SimpleNamespace(
        last_dense="dense", get_parameter=lambda _: parameter, parameters=lambda: iter([parameter])
    )


def distance(rows: Tensor) -> Any:
    """Between two rows, to 60 digits."""
    shift = 2**200  # makes whole numbers of these
    one, other = ([int(Fraction(x) * shift) for x in row] for row in rows.tolist())
    return DIGITS.sqrt(sum((x - y) ** 2 for x, y in zip(one, other, strict=True))) / shift


def test_distances_between_rows_are_rounded_up() -> None:
    def bound(rows: Tensor) -> float:
        return float(robustness._pairs(module_of(rows), 2, 1e300, 1.0)[0, 1])

    long, short = ([gauss(seed, 2, entries) for seed in range(20)] for entries in (3000, 2))
    each_is_needed(OFF, {"γ": {(robustness, "gamma"): gamma}}, bound, distance, long)
    each_is_needed(OFF, ONE_STEP, bound, distance, short)


def test_rows_so_near_that_squares_vanish_are_apart() -> None:
    rows = torch.tensor([[1.0, 1e-200], [1.0, 0.0]], dtype=torch.float64)
    assert float(robustness._pairs(module_of(rows), 2, 1e300, 1.0)[0, 1]) >= 1e-200


def test_the_slope_between_any_two_logits_is_rounded_up() -> None:
    """√2·l, and l = l_h·‖W‖."""
    root = DIGITS.sqrt(2)
    for seed in range(60):
        one, other = gauss(seed, 2).abs().tolist()
        pairs = robustness._pairs(module_of(torch.ones(1, 1)), 2, one, None)
        assert float(pairs[0, 1]) >= root * DIGITS.mpf(one)
        assert DIGITS.mpf(robustness._times(one, other)) >= DIGITS.mpf(one) * DIGITS.mpf(other)


def test_a_distance_to_a_boundary_is_rounded_down() -> None:
    """A gap over a slope."""

    def bound(case: tuple[float, float]) -> float:
        gap, slope = case
        certifier = robustness._Certifier(module_of(torch.ones(1)), Constants(slope, None, None))
        found = certifier._distances(at([gap]), torch.tensor([1]), torch.zeros(1, dtype=torch.float64), 0.0)
        return -float(found)

    cases = [(*gauss(seed, 2).abs().tolist(),) for seed in range(60)]
    each_is_needed(OFF, ONE_STEP, bound, lambda case: -DIGITS.mpf(case[0]) / DIGITS.mpf(case[1]), cases)


def test_how_far_an_input_may_move_beyond_the_clip_is_rounded_down() -> None:
    """n·s·√(1 - s²/4) at a limit of 1, and n - 1 where that is less."""

    def bound(case: tuple[float, float]) -> float:
        moved, norm = case
        return -float(beyond_the_clip(at([moved])[0], at([norm])[0], 1.0))

    def around(case: tuple[float, float]) -> Any:
        moved, norm = map(DIGITS.mpf, case)
        return -norm * moved * DIGITS.sqrt(1 - moved**2 / 4)

    near = [(abs(float(x)) / 10, 3 + abs(float(x))) for x in gauss(0, 60)]
    each_is_needed(OFF, ONE_STEP, bound, around, near)


def test_what_is_beyond_the_ball_is_rounded_down() -> None:
    """n - X₀, for what may move by √2·X₀ and more, and so anywhere within the ball."""

    def bound(case: tuple[float, float]) -> float:
        limit, times = case
        return -float(beyond_the_clip(at([1.5 * limit])[0], at([limit * times])[0], limit))

    def exact(case: tuple[float, float]) -> Any:
        limit, times = case
        return DIGITS.mpf(limit) - DIGITS.mpf(limit * times)

    cases = [(0.1 + abs(float(x)), 3 + abs(float(y))) for x, y in gauss(0, 60, 2)]
    each_is_needed(OFF, ONE_STEP, bound, exact, cases)


@pytest.mark.parametrize("lowest", ["working_slack", "rounding_slack"])
def test_rounding_of_logits_counts_against_both(
    tmp_path: Path, lowest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W = [[3, 4], [0, 0]] at (1, 1): a gap of 7, of slope 5. Logits of norm 5·√2 at most are off by a tenth: two
    of them, here and where the input went.
    """
    for name in ("working_slack", "rounding_slack"):
        monkeypatch.setattr(robustness, name, lambda _, name=name: 0.1 if name == lowest else 0.0)
    module = linear(tmp_path, [[3.0, 4.0], [0.0, 0.0]], [0.0, 0.0])
    (radius,) = certified_radii(module, at([1.0, 1.0]), torch.tensor([0]))
    expected = (7 - 2 * 0.1 * 5 * math.sqrt(2)) / (5 + 2 * 0.1 * 5)
    assert 0.999 * expected <= float(radius) <= expected


def test_rounding_that_was_seen_counts_sixteen_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gap of 7 is less by 2·16·(1/16), though nothing is seen near the example."""
    module = linear(tmp_path, [[3.0, 4.0], [0.0, 0.0]], [0.0, 0.0])
    outputs, calls = robustness.outputs_of, []

    def off(module: Any, inputs: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        found = outputs(module, inputs, dtype)
        calls.append(dtype)
        return found + (1 / 16 if len(calls) == 3 and dtype is None else 0)  # served, and never again

    monkeypatch.setattr(robustness, "certified_constants", lambda _: Constants(5.0, None, torch.full((2, 2), 5.0)))
    monkeypatch.setattr(robustness, "outputs_of", off)
    for served in (1, 2, 3, 4):
        calls.clear()
        calls += [torch.float64] * (3 - served)
        (radius,) = certified_radii(module, at([1.0, 1.0]), torch.tensor([0]))
        if float(radius) < 1.3:
            assert float(radius) <= (7 - 2) / 5
            return
    raise AssertionError("no call was the one that serves")


def test_an_input_that_rounding_made_too_long_is_no_broken_promise(tmp_path: Path) -> None:
    module = emitted(tmp_path, "input x: tensor[2], norm <= 1, trusted; dense(2); loss cross_entropy").float()
    target = torch.tensor([0])
    eps = torch.finfo(torch.float32).eps
    certified_radii(module, torch.tensor([[1 + 2 * eps, 0.0]]), target)
    with pytest.raises(ValueError, match="declared input norm"):
        certified_radii(module, torch.tensor([[1 + 8 * eps, 0.0]]), target)

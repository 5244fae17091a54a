"""What amortised projection adds for rounding and drift: each term by itself, where it is all that there is."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from lipcompile_torch.certify import constraints, projection
from lipcompile_torch.certify.constraints import Box, Orthogonal, Spectral
from lipcompile_torch.certify.operators import Dense, Entries
from lipcompile_torch.certify.projection import Amortised, Anchor
from lipcompile_torch.certify.rounding import UP_MANY
from torch import Tensor

from tests.rounding import DIGITS, each_is_needed


def number(value: float) -> Tensor:
    return torch.full((1, 1), value, dtype=torch.float64)


def anchored(limit: float, bound: float, share: float = 1.0, length: float = 0.0) -> Amortised:
    known = Amortised(Spectral(limit), Dense())
    known.anchor = Anchor(number(bound), bound, length, 0.0, share)
    return known


@pytest.fixture
def errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """A difference may be off by 1/4, and what is scaled by nothing."""
    monkeypatch.setattr(projection, "difference_error", lambda *_: 0.25)
    monkeypatch.setattr(Amortised, "_rounding", lambda *_: 0.0)


@pytest.mark.usefixtures("errors")
def test_what_a_difference_rounds_counts_as_drift() -> None:
    """A norm of 1 = 1/4 + 1/2 + 1/4: of the anchor, of the computed drift, and of what that may be off."""
    kept, moved = number(1.0), number(1.0)
    assert not anchored(0.9, 0.25)._place(kept, 0.0, 0.5, 0.0, 0.0)
    assert float(kept) == 1
    assert anchored(1.1, 0.25)._place(kept, 0.0, 0.5, 0.0, 0.0)
    assert anchored(0.5, 0.25)._place(moved, 0.0, 0.5, 0.9, 0.9)
    assert 0.49 <= float(moved) <= 0.5


def test_what_scaling_rounds_is_subtracted_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projection, "difference_error", lambda *_: 0.0)
    monkeypatch.setattr(Amortised, "_rounding", lambda *_: 0.1)
    weight = number(1.0)
    known = anchored(0.5, 0.5)
    assert known._place(weight, 0.0, 0.5, 0.9, 0.9)
    assert float(weight) + 0.1 <= 0.5
    assert known.anchor is not None
    assert known.anchor.share == float(weight)


def test_a_sum_that_rounding_makes_small_enough_is_too_large() -> None:
    """a·‖W₀‖ + ‖D‖ against the number that it is computed to be."""
    chance = torch.Generator().manual_seed(0)
    cases = [tuple(torch.rand(3, dtype=torch.float64, generator=chance).tolist()) for _ in range(60)]

    def limit(case: tuple[float, ...]) -> float:
        share, bound, norm = case
        return share * bound + norm

    def kept(case: tuple[float, ...]) -> float:
        share, bound, norm = case
        held = anchored(limit(case), bound, share)._place(number(0.0), 0.0, norm, 0.0, 0.0)
        return limit(case) if held else math.inf

    def exact(case: tuple[float, ...]) -> Any:
        share, bound, norm = map(DIGITS.mpf, case)
        return share * bound + norm

    off = {(projection, "UP_MANY"): 1.0, (projection, "difference_error"): lambda *_: 0.0}
    each_is_needed(off, {"one step": {(projection, "UP_MANY"): UP_MANY}}, kept, exact, cases)


@pytest.mark.usefixtures("errors")
@pytest.mark.parametrize(("slack", "step", "share", "scaled"), [
    (0.1, 0.1, 1.0, True), (0.9, 0.03, 1.0, False), (0.03, 0.9, 1.0, False),
    (0.1, 0.1, 0.96, True), (0.1, 0.1, 0.93, False),
])  # fmt: skip
def test_a_weight_is_scaled_by_no_more_than_was_allowed(
    slack: float, step: float, share: float, scaled: bool
) -> None:
    """A norm of 1 to 19/20: by 5 %, in this step, and by what was scaled before since the certificate."""
    weight = number(1.0)
    assert anchored(0.95, 0.25 / share, share)._place(weight, 0.0, 0.5, slack, step) is scaled
    assert (float(weight) < 1) is scaled


def test_a_drift_comes_out_a_little_longer_at_another_scale() -> None:
    """After scaling, the weight stays where it is though its drift is measured to be longer by 1/1000."""
    weight, known = number(1.0), anchored(0.95, 0.5)
    assert known._place(weight, 0.0, 0.5, 0.9, 0.9)
    assert known.anchor is not None
    before = float(weight)
    assert known._place(weight, 0.0, 0.5 * known.anchor.share * (1 + 9.9e-4), 0.0, 0.0)
    assert float(weight) == before


def test_a_scaling_is_measured_again_with_rounding() -> None:
    """An anchor that is all of the norm: nothing but the rounding of shares is left to spare."""
    for k in range(20):
        weight, known = number(1.0), anchored(0.95 + k / 1000, 1.0)
        assert known._place(weight, 0.0, 0.0, 0.9, 0.9)
        assert known._place(weight, 0.0, 1e-7, 0.0, 0.0)


def test_an_orthogonal_weight_that_moved_by_more_than_its_slack_is_not_kept() -> None:
    known = Amortised(Orthogonal(), Dense())
    known.anchor = Anchor(number(0.5), 0.5, 0.5, 0.0)
    assert not known._place(number(0.5), 0.0, 0.2, 0.1, 0.1)
    assert known._place(number(0.5), 0.0, 0.05, 0.1, 0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_what_scaling_rounds_is_bounded(dtype: torch.dtype) -> None:
    """Two roundings, of the factor and of the product: ε of an entry; below normal numbers half the least one."""
    kind, known = torch.finfo(dtype), Amortised(Spectral(1.0), Dense())
    weight = torch.ones(10, 10, dtype=dtype)
    assert known._rounding(weight, 10.0) >= 10 * kind.eps
    assert known._rounding(weight, 0.0) >= math.sqrt(100) * kind.smallest_normal * kind.eps


def test_a_weight_is_scaled_by_a_little_more_so_that_an_anchor_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """From norm 2 to 1, less the headroom; what is returned bounds it with all that scaling may round."""
    monkeypatch.setattr(Amortised, "_rounding", lambda *_: 1e-3)
    known, weight = Amortised(Spectral(1.0), Dense()), number(2.0)
    bound = known._project(weight, room=True)
    assert float(weight) + 1e-3 <= bound <= 1
    assert float(weight) <= 1 - 2.4e-3
    known, weight = Amortised(Spectral(1.0), Dense()), number(2.0)
    monkeypatch.setattr(Amortised, "_rounding", lambda *_: 0.1)
    assert known._project(weight, room=True) <= 1
    assert float(weight) >= 1 - 1e-6  # where rounding takes more than the headroom it is left as it is


def test_a_weight_without_room_to_grow_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Dense, "quick_bound", lambda _, weight: float(weight.abs().max()))
    weight = number(0.999)
    assert Amortised(Spectral(1.0), Dense())._scale(weight, Anchor(number(0.9), 0.9, 0.9, 0.0, 0.5)) == 0.999
    assert float(weight) == 0.999


@pytest.mark.parametrize(("norm", "share"), [(2.0, None), (0.5, 0.7), (0.9, 0.5), (1.5, 1.0)])
def test_a_weight_that_is_scaled_in_float32_stays_inside(
    norm: float, share: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounding = 1e-2
    monkeypatch.setattr(Amortised, "_rounding", lambda *_: rounding)
    monkeypatch.setattr(Dense, "quick_bound", lambda _, weight: float(weight.abs().max()))
    known, weight = Amortised(Spectral(1.0), Dense()), number(norm)
    before = None if share is None else Anchor(number(norm), norm, norm, 0.0, share)
    bound = known._scale(weight, before)
    scaling = float(weight) / norm
    assert float(weight) + rounding * max(1.0, scaling) <= bound * (1 + 1e-15)
    assert bound <= 1
    assert scaling <= (1 / share if share is not None else 1)
    assert float(weight) <= 1 - 2.4e-3


def test_a_copy_in_half_precision_is_as_far_as_it_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """1/10 by what was measured, and 1/20 by what that may be off: both belong to the bound of the copy."""
    monkeypatch.setattr(projection, "read_norms", lambda _: [(0.1, 0.1)])
    monkeypatch.setattr(projection, "difference_error", lambda *_: 0.05)
    known, weight = Amortised(Spectral(1.0), Dense()), torch.full((1, 1), 0.6)
    anchor = known._anchored(weight, 0.6, None)
    assert anchor is not None
    assert anchor.copy.dtype == torch.float16
    assert anchor.bound >= 0.75 - 1e-9
    # The drift from it is longer by as much: it will not do where that leaves no room.
    exact = known._anchored(weight, 0.8, None)
    assert exact is not None
    assert exact.copy.dtype == torch.float32
    assert exact.bound == 0.8


def test_what_has_no_bound_is_projected() -> None:
    """A first certificate, and one of a weight that float32 gives no bound of."""
    weight = torch.nn.Parameter(number(2.0))
    Amortised(Spectral(1.0), Dense()).certify(weight, 0.1)
    assert 0.99 <= float(weight.detach()) <= 1


def test_the_headroom_is_enough_for_a_copy_in_half_precision() -> None:
    torch.manual_seed(0)
    weight = torch.randn(100, 100)
    weight /= torch.linalg.matrix_norm(weight, 2)
    known = Amortised(Spectral(1.0), Dense())
    bound = known._project(weight.mul_(1.5), room=True)
    anchor = known._anchored(weight, bound, None)
    assert anchor is not None
    assert anchor.copy.dtype == torch.float16
    assert float(torch.linalg.matrix_norm(anchor.copy.double(), 2)) <= anchor.bound


# --- scaling into a set ---


class Told:
    """A norm of which everything is said."""

    def __init__(self, bound: float, coarse: float, limit: float = math.inf) -> None:
        self.bound, self.coarse, self._limit = bound, coarse, limit

    def at_most(self, limit: float) -> bool:
        return self.bound <= limit


def test_what_rounding_adds_to_any_norm_is_subtracted_beforehand() -> None:
    """Entries of float32 are off by 2u = ε, so the norm by ε times the norm of moduli, here of a thousand."""
    eps = torch.finfo(torch.float32).eps
    for coarse in (1.0, 800.0):
        found = constraints._rescale(torch.ones(1, 1), Told(2.0, coarse), lambda _: Told(0, 0), 1.0, torch.float32)
        assert float(found.double()) * 2 <= 1 - eps * coarse / 2 + eps


def test_a_second_projection_changes_nothing() -> None:
    """A certificate may be too large by 1e-8, and more by what it is rounded."""
    weight = torch.full((1, 1), 3.0, dtype=torch.float64)
    found = constraints._rescale(weight, Told(3.0, 3.0), lambda _: Told(0, 0), 1.0, torch.float64)
    assert float(found) * (1 + 5e-8) <= 1


def test_where_rounding_is_coarse_the_result_is_certified_again() -> None:
    asked: list[float] = []

    def measure(weight: Tensor) -> Any:
        asked.append(float(weight))
        return Told(1.0 if len(asked) > 3 else 1.1, 1.0)

    found = constraints._rescale(torch.ones(1, 1), Told(1.0, 1.0), measure, 1.0, torch.bfloat16)
    assert len(asked) == 4
    assert float(found) < 1
    assert asked == sorted(asked, reverse=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_bound_of_a_box_is_rounded_towards_zero(dtype: torch.dtype) -> None:
    for bound in (0.1, 0.3, 1 / 3, 0.7, 1.0):
        found = Box(bound).project(torch.tensor([5.0, -5.0], dtype=dtype), Entries())
        assert float(found.double().abs().max()) <= bound
        assert float(found.double().abs().max()) >= bound * (1 - 2 * torch.finfo(dtype).eps)

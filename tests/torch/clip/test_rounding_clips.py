"""What clips leave for rounding: each term alone, and operands at the ends of the range of their dtype."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import pytest
import torch
from lipcompile_torch import ClipGroup
from lipcompile_torch.certify import sums
from lipcompile_torch.clip import bookkeeping, factors
from lipcompile_torch.clip.bookkeeping import Outer, Products, Summed, Use
from lipcompile_torch.clip.clipping import ForwardPass, Noted, clipped, group_gradients, sum_depth
from lipcompile_torch.clip.example_gradients import Clip, ExampleGradients
from lipcompile_torch.clip.factors import Factors
from lipcompile_torch.clip.native_gradients import Scaling
from lipcompile_torch.nn.reading import linear
from torch import Tensor, nn

from tests.rounding import length

MOST = 3.4e38


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def added(uses: Sequence[Use], clip: Clip) -> Tensor:
    """Return what one example adds to the gradients of parameters that have one use each, all entries."""
    entries = [use.rows(slice(0, 1)).numel() for use in uses]
    return torch.cat(list(clipped([[use] for use in uses], entries, clip)))


def share(use: Use, clip: Clip) -> float:
    """Return how long what one example adds is, exactly, over the length of the clip."""
    return float(length(added([use], clip)) / clip.length)


def outer(x: Sequence[float], g: Sequence[float], dtype: torch.dtype = torch.float32) -> Outer:
    return Outer(torch.tensor([x], dtype=dtype), torch.tensor([g], dtype=dtype))


@pytest.fixture(params=["by runs", "in double"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrices as small as those here are added in float64; here as the large ones are, too."""
    if request.param == "by runs":
        monkeypatch.setattr(bookkeeping, "SMALL", 0)


# --- each term is needed -----------------------------------------------------------------------------------------


def test_the_length_of_a_clip_over_the_batch_size_is_rounded_down() -> None:
    for c, b in torch.rand(200, 2, dtype=torch.float64, generator=generator()).add_(0.1).tolist():
        found = Fraction(ClipGroup("all", ("w",), c).clip(b).length)
        assert Fraction(c) * (1 - Fraction(1, 2**49)) <= found * Fraction(b) <= Fraction(c)


@pytest.mark.usefixtures("way")
def test_products_of_vectors_leave_room_for_the_rounding_of_their_entries() -> None:
    """Of one entry each, so that nothing averages out."""
    for x, g in (5 * torch.randn(300, 2, generator=generator())).tolist():
        clip = Clip(0.01 + abs(g) * 1e-3)
        assert abs(Fraction(float(added([outer([x], [g])], clip)[0]))) <= Fraction(clip.length)


def test_what_is_beside_a_kernel_leaves_room_for_the_rounding_of_its_squares(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A bias of 2²⁰ equal entries, whose sum of squares torch rounds down by 8.7 units."""

    def without_room(self: Clip, _: int, beside: Tensor | None) -> Scaling:
        return Scaling(self.length, self.length, 0.0, beside)

    monkeypatch.setattr(Clip, "scaling", without_room)
    monkeypatch.setattr(ExampleGradients, "at_once", lambda _: None)
    bias = Summed(torch.full((1, 2**20), 1.2802381249045138, dtype=torch.float64))
    kernel = Products(ExampleGradients.of_tokens(torch.full((1, 2, 1), 0.5), torch.full((1, 2, 1), 0.25)))
    entries = [1, 2**20]
    total = list(clipped([[kernel], [bias]], entries, Clip(1.0)))
    factor = Fraction(float(total[0])) * 4  # the kernel's gradient is a quarter, exactly
    square = factor**2 * (Fraction(1, 16) + 2**20 * Fraction(1.2802381249045138) ** 2)
    assert 1 - Fraction(1, 10**6) < square <= 1


@pytest.mark.parametrize(("rows", "columns", "exact"), [(256, 256, True), (257, 256, False)])
def test_the_depth_of_a_sum_is_that_of_how_it_is_added(rows: int, columns: int, exact: bool) -> None:
    """1 and 2⁻³⁰ in float64, in which only matrices of up to 65,536 entries are added."""
    read, made = torch.ones(2, columns), torch.tensor([[1.0], [2.0**-30]]).expand(2, rows)
    total = Outer(read, made).total(Factors.of(torch.ones(2, dtype=torch.float64)))
    assert bool((total == 1 + 2.0**-30).all()) is exact
    assert sum_depth(nn.Parameter(torch.empty(rows, columns))) == (1 if exact else sums.DEPTH)


def test_gradients_held_in_float32_leave_room_for_the_rounding_of_their_products() -> None:
    """As other devices than processors hold those of kernels. Of one entry each, so that nothing averages out."""
    for x in (5 * torch.randn(300, generator=generator())).tolist():
        assert share(Summed(torch.tensor([[x]])), Clip(0.01 + abs(x) * 1e-3)) <= 1


@pytest.mark.parametrize("regulariser", [None, 0.01])
@pytest.mark.parametrize("size", [0.0, 1e-42, 1e-30, 1.0, 1e20, 1e38, MOST])
def test_gradients_held_in_float32_are_clipped_at_any_size(size: float, regulariser: float | None) -> None:
    """But for a factor below the normal numbers of float32: there an example adds nothing."""
    found = share(Summed(torch.tensor([[size, -size / 3]])), Clip(0.5, regulariser)) * 0.5
    exact = float(torch.tensor([size, size / 3]).double().norm())
    wanted = min(exact, 0.5) if regulariser is None else 0.5 * exact / (exact + regulariser)
    factor = wanted / exact if exact else 1.0
    assert found == pytest.approx(wanted if factor > 1.2e-38 else 0.0, rel=1e-6, abs=1e-25)
    assert found <= 0.5


def test_a_gradient_in_float32_that_is_not_finite_adds_nothing() -> None:
    rows = torch.tensor([[3.0, 4.0], [math.nan, 1.0], [math.inf, 1.0]])
    (found,) = clipped([[Summed(rows)]], [2], Clip(1.0))
    torch.testing.assert_close(found, torch.tensor([0.6, 0.8]))


def test_gradients_of_a_few_entries_are_clipped_together() -> None:
    """(3, 4) in two parameters, to length 1."""
    parts = [Summed(torch.full((1, 1), value, dtype=torch.float64)) for value in (3.0, 4.0)]
    torch.testing.assert_close(added(parts, Clip(1.0)), torch.tensor([0.6, 0.8], dtype=torch.float64))


# --- ends of the range -------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("regulariser", [None, 0.01])
@pytest.mark.parametrize("steps", [0.6, 1.6, 2.5001, 10.5])
def test_factors_below_the_normal_numbers_are_exact(steps: float, regulariser: float | None) -> None:
    """s = 1.6·2⁻¹⁴⁹ is 2·2⁻¹⁴⁹ in float32: rounded before it was multiplied, 1.25·C was added, at 0.6 1.67·C."""
    x = 2.0**39.9
    use = outer([x], [1 / (steps * 2.0**-149 * x)])
    assert 0.999 < share(use, Clip(1.0, regulariser)) <= 1


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("regulariser", [None, 0.01, 1e-6])
@pytest.mark.parametrize("x", [0.0, 1e-45, 1e-40, 2.0**-40, 1e-3, 2.0**40, 1e20, MOST])
@pytest.mark.parametrize("g", [0.0, 1e-45, 1e-30, 1.0, 1e20, MOST])
def test_products_of_any_two_vectors_of_float32_are_clipped(x: float, g: float, regulariser: float | None) -> None:
    clip = Clip(0.5, regulariser)
    use = outer([x, x / 3, 0.0], [g, -g])
    exact = float(use.read.double().norm() * use.made.double().norm())
    wanted = min(exact, 0.5) if regulariser is None else 0.5 * exact / (exact + regulariser)
    found = share(use, clip) * 0.5
    assert found == pytest.approx(wanted, rel=1e-6, abs=1e-25)
    assert found <= clip.length


@pytest.mark.parametrize(
    ("x", "g"), [(1e-160, 1e150), (1e-165, 1e152), (1e-300, 1e290), (5e-324, 1e308), (5e-324, 1e299), (0.0, 1e300)]
)
def test_products_in_float64_are_clipped_where_squares_vanish(x: float, g: float) -> None:
    """1e-160 squared is subnormal, and 1e-165 squared 0: the norm was off, and nothing was clipped."""
    use = outer([x, x], [g], torch.float64)
    assert share(use, Clip(2.0**-59)) <= 1
    assert share(use, Clip(1e-12, 1e-3)) <= 1
    assert share(use, Clip(1e6, 1e-200)) <= 1


@pytest.mark.parametrize(("x", "g"), [(1e200, 1e-150), (1e-200, 1e210), (1e-150, 1e150)])
def test_products_in_float64_keep_their_length(x: float, g: float) -> None:
    assert share(outer([x, 0.0], [g], torch.float64), Clip(0.5)) == pytest.approx(min(x * g / 0.5, 1), rel=1e-6)


@pytest.mark.usefixtures("way")
def test_an_example_does_not_change_how_another_is_rounded() -> None:
    """Whether its vectors are scaled depends on itself: not on a vector of 1e30 beside it."""
    x, g = torch.randn(3, 5, generator=generator()), torch.randn(3, 4, generator=generator(1))
    factors = torch.tensor([0.3, 0.7, 0.0], dtype=torch.float64)
    alone = Outer(x, g).total(Factors.of(factors))
    x[2], g[2] = 1e30, math.nan
    assert torch.equal(Outer(x, g).total(Factors.of(factors)), alone)


# --- products in less than float32 -------------------------------------------------------------------------------


def test_operands_that_a_device_rounds_to_bfloat16_leave_room(monkeypatch: pytest.MonkeyPatch) -> None:
    def coarse(left: Tensor, right: Tensor) -> Tensor:
        return sums.sum_of_products(left.bfloat16().float(), right.bfloat16().float())

    monkeypatch.setattr(bookkeeping, "SMALL", 0)
    monkeypatch.setattr(bookkeeping, "sum_of_products", coarse)
    monkeypatch.setattr(factors, "single_is_kept", lambda *_, **__: False)
    for x, g in (5 * torch.randn(300, 2, generator=generator())).tolist():
        assert share(outer([x], [g]), Clip(0.01)) <= 1


def test_autocast_around_the_backward_pass_does_not_round_sums() -> None:
    """In bfloat16 a sum of 64 alike gradients was off by 0.1 of them, and longer ones could not be added."""
    for count in (64, 512):
        x = torch.full((count, 3), 1 / 3) + 1e-4 * torch.randn(count, 3, generator=generator())
        weight = torch.zeros(2, 3, requires_grad=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            linear(x, weight).sum().backward()  # type: ignore[no-untyped-call]
        assert weight.grad is not None
        assert float((weight.grad - x.double().sum(0)).abs().max()) <= 1e-6 * count
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = added([Outer(x[:1], torch.ones(1, 2))], Clip(0.1))
        assert float(length(found)) == pytest.approx(0.1, rel=1e-6)


@pytest.mark.parametrize("clip", [Clip(2.0**-61), Clip(1.0, 2.0**-61)])
def test_clips_that_the_arithmetic_cannot_hold_are_refused(clip: Clip) -> None:
    """A gradient of 1e-170, whose square is 0, has s = C/γ: with γ of 1e-200 it would add 1e30·C."""
    noted = [Noted(torch.zeros(2), ForwardPass())]
    noted[0].note(0, Summed(torch.full((1, 2), 1e-170, dtype=torch.float64)))
    with pytest.raises(ValueError, match="2⁻⁶⁰"):
        group_gradients(noted, [torch.zeros(2)], clip)


# --- what mixes examples -----------------------------------------------------------------------------------------


def test_layers_of_a_group_that_saw_different_numbers_of_examples_are_refused() -> None:
    """One number for all would be broadcast: the norm of one example would be that of all."""
    parameters = [torch.zeros(2, 3), torch.zeros(2, 3)]
    noted = [Noted(parameter, ForwardPass()) for parameter in parameters]
    for one, examples in zip(noted, (1, 3), strict=True):
        one.note(0, Outer(torch.ones(examples, 3), torch.ones(examples, 2)))
    with pytest.raises(ValueError, match="saw 1 and 3 examples in one forward pass"):
        group_gradients(noted, parameters, Clip(1.0))


@pytest.mark.parametrize("entries", [[3000], [3000] * 30, [2**16], [2**16 + 1]])
def test_gradients_that_are_held_in_float32_are_added_as_the_noise_counts(entries: list[int]) -> None:
    """Up to 2¹⁶ entries of a parameter in float64, so that only the factors round; of more in float32."""
    torch.manual_seed(0)
    rows = [torch.randn(700, size) for size in entries]
    uses: list[list[Use]] = [[Summed.of_spread(one, (size,))] for one, size in zip(rows, entries, strict=True)]
    found = torch.cat([*clipped(uses, entries, Clip(1.0))])
    whole = torch.cat(rows, 1).double()
    wanted = (1 / whole.norm(dim=1)) @ whole  # each is longer than 1
    terms = (1 / whole.norm(dim=1)) @ whole.abs()
    share = float(((found - wanted).abs() / terms).max())
    room = 1 - float(found @ wanted / (wanted @ wanted))  # factors are less than 1/‖g‖, by what rounding takes
    assert 0 <= room < 1e-4
    found /= 1 - room
    share = float(((found - wanted).abs() / terms).max())
    assert (share < 1e-14) == (max(entries) <= 2**16)
    assert share < 74 * 2**-24

"""Certified norms against singular values of explicit matrices."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
import torch
from lipcompile_torch import native
from lipcompile_torch.certify import norms, operators, single_precision
from lipcompile_torch.certify.norms import EuclideanNorm, matrix_norm, normalised
from lipcompile_torch.certify.operators import Convolution, Dense, PaddingMode
from torch import Tensor

from tests.nights import by_day


def true_norm(matrix: Tensor) -> float:
    return float(torch.linalg.svdvals(matrix.double())[0])


def stands_at(place: int, size: int, conv: Convolution) -> int:
    """Which entry a padding puts at this place of an axis; outside, a zero."""
    if conv.padding_mode == "circular":
        return place % size
    if conv.padding_mode == "replicate":
        return min(max(place, 0), size - 1)
    if conv.padding_mode == "reflect":
        return abs(place) if place < size else 2 * size - 2 - place
    return place


def flat(place: tuple[int, ...], size: tuple[int, ...]) -> int:
    return sum(p * math.prod(size[i + 1 :]) for i, p in enumerate(place))


@lru_cache(8)
def connections(conv: Convolution) -> list[tuple[int, int, int]]:
    """Every output, tap and input that a tap carries to an output, from the definition; by number."""
    columns = {site: i for i, site in enumerate(itertools.product(*map(range, conv.input_size)))}
    found = []
    for (row, out), tap in itertools.product(
        enumerate(itertools.product(*map(range, conv.output_size))),
        itertools.product(*map(range, conv.kernel_size)),
    ):
        place = [
            o * s + t * d - low
            for o, s, t, d, (low, _) in zip(out, conv.stride, tap, conv.dilation, conv.padding, strict=True)
        ]
        column = columns.get(tuple(stands_at(p, n, conv) for p, n in zip(place, conv.input_size, strict=True)))
        found += [] if column is None else [(row, flat(tap, conv.kernel_size), column)]
    return found


def dense_matrix(kernel: Tensor, conv: Convolution) -> Tensor:
    """The convolution as a matrix, entry by entry from its definition."""
    per_group, channels = kernel.shape[0] // conv.groups, kernel.shape[1]
    rows, columns = math.prod(conv.output_size), math.prod(conv.input_size)
    matrix = torch.zeros(kernel.shape[0], rows, channels * conv.groups, columns, dtype=torch.float64)
    taps = kernel.flatten(2).double()
    for row, tap, column in connections(conv):
        for g in range(conv.groups):
            filters, inputs = slice(g * per_group, (g + 1) * per_group), slice(g * channels, (g + 1) * channels)
            matrix[filters, row, inputs, column] += taps[filters, :, tap]
    return matrix.flatten(2).flatten(0, 1)


def counted(conv: Convolution) -> Convolution:
    """Count reads (m) and taps (r·v) axis by axis."""
    reads, taps = 1, 1
    for axis, size in enumerate(conv.kernel_size):
        entry: Counter[int] = Counter()
        pair: Counter[tuple[int, int]] = Counter()
        most = 1
        for out in range(conv.output_size[axis]):
            place = [
                out * conv.stride[axis] + t * conv.dilation[axis] - conv.padding[axis][0] for t in range(size)
            ]
            place = [stands_at(p, conv.input_size[axis], conv) for p in place]
            used = [(p, t) for t, p in enumerate(place) if 0 <= p < conv.input_size[axis]]
            entry.update(p for p, _ in used)
            pair.update(used)
            most = max(most, len(used))
        reads *= max(entry.values(), default=1)
        taps *= max(pair.values(), default=1) * most
    return replace(conv, reads=reads, taps=taps)


def random_convolution(rng: random.Random) -> Convolution | None:
    rank = rng.choice((1, 1, 2, 2, 3))
    size = tuple(rng.randint(1, (12, 5, 3)[rank - 1]) for _ in range(rank))

    def pick(high: int) -> tuple[int, ...]:
        return tuple(rng.randint(1, high) for _ in range(rank))

    padding = tuple((rng.randint(0, min(4, n)), rng.randint(0, min(4, n))) for n in size)
    modes: tuple[PaddingMode, ...] = ("zeros", "circular", "reflect", "replicate")
    mode = rng.choice(modes)
    try:
        return counted(
            Convolution(
                pick((6, 3, 3)[rank - 1]), size, 1, 1, pick(3), padding, pick(3), rng.choice((1, 1, 2)), mode
            )
        )
    except ValueError:
        return None


def random_kernel(rng: random.Random, conv: Convolution) -> Tensor:
    shape = (conv.groups * rng.randint(1, 3), rng.randint(1, 3), *conv.kernel_size)
    kernel = torch.randn(shape, dtype=torch.float64)
    return kernel.abs() if rng.random() < 0.4 else kernel  # smooth kernels attain the bounds


def methods(kernel: Tensor, conv: Convolution) -> dict[str, float]:
    entries, scale = normalised(kernel)
    frobenius = EuclideanNorm(entries).bound
    reshapes = [stack.bound for stack in conv._stacks(entries, scale, frobenius)]
    return {"best": min(reshapes), "frequency": conv._frequency_stack(entries, scale, frobenius).bound}


@pytest.mark.parametrize("seed", range(6))
def test_convolution_bounds_hold(seed: int) -> None:
    rng = random.Random(seed)
    ratios: list[float] = []
    torch.manual_seed(seed)
    while len(ratios) < 60:
        conv = random_convolution(rng)
        if conv is None:
            continue
        kernel = random_kernel(rng, conv)
        true = true_norm(dense_matrix(kernel, conv))
        for name, bound in (methods(kernel, conv) | {"all": conv.norm(kernel).bound}).items():
            assert bound >= true * (1 - 1e-13), (name, conv, bound, true)
        ratios.append(conv.norm(kernel).bound / max(true, 1e-300))
    assert sorted(ratios)[len(ratios) // 2] < 1.25


def worst_kernel(conv: Convolution, shape: tuple[int, ...]) -> Tensor:
    """One wave of integer frequency: a single matrix of rank one is nearly as long as all that is known of it."""
    filters, channels = torch.randn(shape[0], 1), torch.randn(1, shape[1])
    places = torch.stack(torch.meshgrid(*(torch.arange(float(k)) for k in conv.kernel_size), indexing="ij"))
    wave = torch.cos(places.sum(0) * 2 * math.pi / 3)
    return (filters @ channels).reshape(*shape[:2], *[1] * wave.dim()) * wave


@pytest.mark.usefixtures("passes")
@pytest.mark.parametrize(("seed", "size"), [(0, 1.0), (1, 1.0), (2, 1e-12), (3, 1e-30), (4, 1e12)])
@pytest.mark.parametrize("most", by_day({12}, [12, 30]))
def test_quick_bounds_of_convolutions_hold(seed: int, size: float, most: int) -> None:
    rng, done, alone = random.Random(200 + seed), 0, 0
    torch.manual_seed(seed)
    while done < most or 2 * alone < most:
        conv = random_convolution(rng)
        if conv is None:
            continue
        kernel = random_kernel(rng, conv).float()
        for candidate in (kernel, worst_kernel(conv, tuple(kernel.shape)), torch.round(kernel), 0 * kernel):
            found, true = conv.quick_bound(candidate * size), true_norm(dense_matrix(candidate * size, conv))
            assert found >= true * (1 - 1e-13), (conv, found, true)
            assert found <= conv.norm(candidate * size).bound * 1.05
        done += 1
        alone += conv._frequencies_win()


@pytest.mark.usefixtures("passes")
@pytest.mark.parametrize("channels", [(40, 24), (24, 40), (70, 66)])
def test_quick_bounds_of_wide_convolutions_hold(channels: tuple[int, int]) -> None:
    """Where sums are long enough to be off by more than the last digit, against float64 at every frequency."""
    torch.manual_seed(0)
    conv = counted(Convolution((3, 3), (5, 5), 1, 1, (1, 1), ((1, 1), (1, 1)), (1, 1), 1, "circular"))
    for kernel in (torch.randn(*channels, 3, 3), torch.full((*channels, 3, 3), 1 / 3)):
        true = float(torch.linalg.svdvals(torch.fft.fft2(kernel.double(), (5, 5)).permute(2, 3, 0, 1)).max())
        assert true <= conv.quick_bound(kernel) <= 1.02 * true


@pytest.mark.usefixtures("passes")
@pytest.mark.parametrize("guess", [1e-9, 0.5, 0.99, 1.0, 3.0])
def test_a_guess_that_is_wrong_costs_tightness_alone(guess: float, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    conv = counted(Convolution((3, 3), (5, 5), 1, 1, (1, 1), ((1, 1), (1, 1)), (1, 1), 1, "circular"))
    kernel = torch.randn(7, 5, 3, 3)
    true = true_norm(dense_matrix(kernel, conv))
    for kind in (native.Spectra, single_precision._ByTorch):
        monkeypatch.setattr(kind, "guess", lambda grams, guessed=kind.guess: guess * guessed(grams))
    assert true <= conv.quick_bound(kernel) <= 2 * true


@pytest.mark.usefixtures("passes")
def test_a_sum_that_is_too_small_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wave attains the bound: 5 % less of any part of it is too small."""
    conv = counted(Convolution((3, 3), (6, 6), 1, 1, (1, 1), ((1, 1), (1, 1)), (1, 1), 1, "circular"))
    torch.manual_seed(0)
    kernel = worst_kernel(conv, (9, 8, 3, 3))
    true = true_norm(dense_matrix(kernel, conv))
    assert true <= conv.quick_bound(kernel)
    bound = single_precision.transform_bound
    monkeypatch.setattr(operators, "transform_bound", lambda *given: 0.95 * bound(*given))
    assert conv.quick_bound(kernel) < true


@pytest.mark.parametrize("stride", [1, 2])
def test_what_waves_round_is_added(stride: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each entry of a matrix, a sum over positions of products with waves that are rounded themselves."""
    conv = counted(Convolution((3, 5), (8, 8), 1, 1, (stride, stride), ((1, 1), (2, 2)), (1, 1), 2, "circular"))
    kernel = torch.full((6, 4, 3, 5), 0.5)
    monkeypatch.setattr(operators, "transform_bound", lambda _: 1.0)
    found = conv.quick_bound(kernel)  # the largest entry over a power of two is a half
    length = math.sqrt(15) * float(torch.linalg.vector_norm(kernel.double()))
    positions = 15 if stride == 1 else 6
    assert found - 1 >= (positions + 1) * 2.0**-24 * length


@pytest.mark.parametrize("seed", range(3))
def test_reshape_bounds_hold_alone(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "FREQUENCY_FLOPS", 0.0)
    rng, done = random.Random(100 + seed), 0
    torch.manual_seed(seed)
    while done < 50:
        conv = random_convolution(rng)
        if conv is None:
            continue
        kernel = random_kernel(rng, conv)
        assert conv.norm(kernel).bound >= true_norm(dense_matrix(kernel, conv)) * (1 - 1e-13), conv
        done += 1


def test_frequency_bound_is_never_above_the_others_where_it_alone_is_used() -> None:
    rng, checked = random.Random(7), 0
    torch.manual_seed(7)
    while checked < 60:
        conv = random_convolution(rng)
        if conv is None or not conv._frequencies_win():
            continue
        kernel = random_kernel(rng, conv)
        entries, scale = normalised(kernel)
        grouped = conv._grouped(entries)
        rows = max(true_norm(block.flatten(1)) for block in grouped) * math.sqrt(conv.reads)
        columns = max(true_norm(block.transpose(0, 1).flatten(1)) for block in grouped) * math.sqrt(conv.taps)
        assert conv.norm(kernel).bound <= min(rows, columns) * scale * (1 + 1e-5)
        checked += 1


def test_circular_convolution_is_exact_on_its_own_grid() -> None:
    torch.manual_seed(0)
    conv = counted(Convolution((3, 3), (6, 5), 1, 1, (1, 1), ((1, 1), (1, 1)), (1, 1), 1, "circular"))
    kernel = torch.randn(3, 2, 3, 3)
    assert conv.norm(kernel).bound == pytest.approx(true_norm(dense_matrix(kernel, conv)), rel=1e-7)


def test_circular_norm_does_not_bound_zero_padding() -> None:
    """Design notes, section 5: the n-grid is too small, the (n+k-1)-grid is not."""
    conv = counted(Convolution((2,), (2,), 1, 1, (1,), ((0, 1),), (1,)))
    kernel = torch.tensor([[[1.0, -1.0]]])
    true = true_norm(dense_matrix(kernel, conv))
    grids = {n: max(abs(1 - complex(math.cos(a), math.sin(a))) for a in (2 * math.pi * j / n for j in range(n)))
             for n in (2, 3)}  # fmt: skip
    assert grids[3] >= true
    assert true <= conv.norm(kernel).bound <= grids[3] * (1 + 1e-7)


@pytest.mark.parametrize("size", [(1, 1), (7, 3), (3, 40), (65, 65), (64, 200), (130, 90)])
@pytest.mark.parametrize("kind", ["gauss", "orthogonal", "ones", "spike"])
def test_spectral_bound_is_tight_from_above(size: tuple[int, int], kind: str) -> None:
    torch.manual_seed(0)
    matrix = torch.randn(size, dtype=torch.float64)
    if kind == "orthogonal":
        matrix = torch.nn.init.orthogonal_(matrix) + 1e-4 * torch.randn(size, dtype=torch.float64)
    if kind == "ones":
        matrix = torch.ones_like(matrix)
    if kind == "spike":
        matrix[0, 0] = 1e9
    true = true_norm(matrix)
    bound = matrix_norm(matrix).bound
    assert true * (1 - 1e-14) <= bound <= true * (1 + 1e-4)


@pytest.mark.parametrize("piece", range(3))
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_every_piece_of_a_long_matrix_counts(piece: int, dtype: torch.dtype) -> None:
    """Of 64 × 2100 entries each third, 700 columns of value v, has norm v·√(64·700)."""
    matrix = torch.full((64, 2100), 2.0**-6, dtype=dtype)
    matrix[:, 700 * piece : 700 * (piece + 1)] = 3.0
    exact = math.sqrt(64 * (700 * 9.0 + 1400 * 2.0**-12))
    for given in (matrix, matrix.mT, matrix.mT.contiguous().mT):
        assert exact <= matrix_norm(given).bound <= exact * (1 + 1e-6)
        assert matrix_norm(given).coarse >= exact


def test_trap_04_a_bad_start_never_gives_a_bound_below() -> None:
    """A top singular vector orthogonal to the iteration's start: power iteration would report 1 for 10."""
    size = 80
    start = torch.randn(size, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    hidden = torch.randn(size, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    hidden -= start * (start.mT @ hidden) / (start.mT @ start)
    matrix = torch.eye(size, dtype=torch.float64) + 9 * hidden @ hidden.mT / (hidden.mT @ hidden)
    assert 10 - 1e-9 <= matrix_norm(matrix).bound <= 10.001
    assert not matrix_norm(matrix).at_most(9.9)


@pytest.mark.parametrize("size", [(20, 30), (90, 70)])
def test_a_guess_that_is_too_small_is_not_believed(size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Three per cent below the eigenvalue, where a proof that is off by five would end."""
    matrix = torch.randn(*size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    exact = float(torch.linalg.matrix_norm(matrix, 2))
    eigenvalue = norms.guess_eigenvalue
    monkeypatch.setattr(norms, "guess_eigenvalue", lambda grams: 0.97 * eigenvalue(grams))
    assert exact * (1 - 1e-12) <= matrix_norm(matrix).bound <= exact * 1.01
    assert not matrix_norm(matrix).at_most(exact * (1 - 1e-6))


def test_trap_04_scale_never_underflows() -> None:
    torch.manual_seed(0)
    matrix = torch.randn(9, 5, dtype=torch.float64)
    true = true_norm(matrix)
    for exponent in (-1060, -300, -149, 0, 127, 900):
        bound = matrix_norm(torch.ldexp(matrix, torch.tensor(float(exponent), dtype=torch.float64))).bound
        assert bound >= math.ldexp(true, exponent) * (1 - 1e-3) > 0
    assert matrix_norm(torch.full((3, 3), 1e-45)).bound >= 3e-45 * 0.9
    assert matrix_norm(torch.zeros(4, 4)).bound == 0.0
    assert matrix_norm(torch.zeros(0, 4)).bound == 0.0


@pytest.mark.parametrize("size", [(5, 5), (70, 70), (100, 300)])
def test_at_most_agrees_with_the_truth(size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    matrix = torch.randn(size)
    true = true_norm(matrix)
    assert matrix_norm(matrix).at_most(true * (1 + 1e-6))
    assert not matrix_norm(matrix).at_most(true * (1 - 1e-12))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_weights_that_are_not_finite_are_refused(bad: float) -> None:
    matrix = torch.ones(3, 3)
    matrix[1, 1] = bad
    with pytest.raises(ValueError, match="NaN or infinity"):
        matrix_norm(matrix)
    with pytest.raises(ValueError, match="NaN or infinity"):
        _ = EuclideanNorm(matrix).bound


def test_euclidean_bound_is_tight_from_above() -> None:
    torch.manual_seed(0)
    x = torch.randn(1000)
    true = math.sqrt(math.fsum(v * v for v in x.tolist()))
    assert true <= EuclideanNorm(x).bound <= true * (1 + 1e-11)


@pytest.mark.parametrize(
    ("reads", "padding", "mode", "reason"),
    [
        (0, ((0, 0), (0, 0)), "zeros", "must be positive"),
        (1, ((1, 1), (1, -1)), "zeros", "negative"),
        (1, ((0, 0), (4, 0)), "circular", "more than once"),
        (1, ((3, 0), (0, 0)), "reflect", "more than once"),
    ],
)
def test_one_wrong_number_of_a_geometry_is_refused(
    reads: int, padding: Any, mode: PaddingMode, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        Convolution((2, 2), (3, 3), reads, 1, (1, 1), padding, (1, 1), 1, mode)


def test_wrong_geometry_is_refused() -> None:
    with pytest.raises(ValueError, match="no output"):
        Convolution((5,), (3,), 1, 1, (1,), ((0, 0),), (1,))
    with pytest.raises(ValueError, match="more than once"):
        Convolution((5,), (3,), 1, 1, (1,), ((4, 4),), (1,), 1, "circular")
    with pytest.raises(ValueError, match="need 1 entries"):
        Convolution((5,), (3, 3), 1, 1, (1,), ((4, 4),), (1,))
    assert Dense().norm(torch.ones(2, 2)).bound == pytest.approx(2)

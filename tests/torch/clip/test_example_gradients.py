"""Weight gradients of single examples: those of torch.func, with proved rounding, the same in any batch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction

import pytest
import torch
from lipcompile_torch import native
from lipcompile_torch.clip.example_gradients import Clip, ExampleGradients
from lipcompile_torch.clip.factors import Factors
from lipcompile_torch.clip.native_gradients import HeldGradients
from lipcompile_torch.clip.outer_products import Windows
from torch import Tensor
from torch.func import grad, vmap
from torch.nn import functional as F  # noqa: N812

needs_kernels = pytest.mark.skipif(native.kernels is None, reason="the package was installed without a compiler")
BATCH = 5


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed))


def windows(
    kernel: tuple[int, ...],
    stride: tuple[int, ...] | None = None,
    padding: tuple[int, ...] | None = None,
    dilation: tuple[int, ...] | None = None,
    groups: int = 1,
) -> Windows:
    ones = (1,) * len(kernel)
    return Windows(kernel, stride or ones, padding or (0,) * len(kernel), dilation or ones, groups)


def convolved(x: Tensor, weight: Tensor, where: Windows) -> Tensor:
    extra = (0,) * len(where.kernel)
    return torch.convolution(
        x, weight, None, where.stride, where.padding, where.dilation, False, extra, where.groups
    )


def transposed(x: Tensor, weight: Tensor, where: Windows) -> Tensor:
    extra = (0,) * len(where.kernel)
    return torch.convolution(
        x, weight, None, where.stride, where.padding, where.dilation, True, extra, where.groups
    )


def of_convolution(
    channels: int, filters: int, size: tuple[int, ...], where: Windows, batch: int = BATCH
) -> ExampleGradients:
    x = randn(batch, channels, *size)
    weight = torch.zeros(filters, channels // where.groups, *where.kernel)
    cotangent = randn(*convolved(x, weight, where).shape, seed=1)
    return ExampleGradients(x, cotangent, where)


def by_torch(given: ExampleGradients) -> Tensor:
    """Per-example gradients in float64."""
    x, cotangent, where = given.read.double(), given.made.double(), given.windows
    weight = torch.zeros(cotangent.shape[1], x.shape[1] // where.groups, *where.kernel, dtype=torch.float64)

    def loss(weight: Tensor, x: Tensor, cotangent: Tensor) -> Tensor:
        return (convolved(x[None], weight, where)[0] * cotangent).sum()

    found: Tensor = vmap(grad(loss), in_dims=(None, 0, 0))(weight, x, cotangent)
    return found


# channels, filters, sizes of the input, windows: with lanes of filters (in planes, whole, in panels), of windows
# and of groups; with tiles of one vector and of two, of one row and of several
CASES = {
    "one channel": (1, 16, (28, 28), windows((3, 3), padding=(1, 1))),
    "one channel, one filter": (1, 1, (9, 9), windows((3, 3))),
    "three channels": (3, 32, (12, 11), windows((3, 3), padding=(1, 1))),
    "planes, several rows": (2, 5, (20, 20), windows((8, 8), stride=(2, 2), padding=(3, 3))),
    "planes, groups": (6, 40, (9, 8), windows((2, 3), groups=2)),
    "filters": (32, 64, (8, 8), windows((3, 3), padding=(1, 1))),
    "filters, a part of a vector": (17, 48, (7, 9), windows((3, 3), stride=(2, 1), padding=(2, 0))),
    "filters, groups": (40, 64, (6, 6), windows((3, 3), groups=2)),
    "filters, far apart": (20, 32, (9, 11), windows((3, 2), (2, 1), (2, 1), (2, 3))),
    "position by position": (64, 32, (10, 10), windows((1, 1))),
    "position by position, some left out": (20, 32, (9, 9), windows((1, 1), stride=(2, 2))),
    "windows": (64, 3, (9, 11), windows((3, 3), padding=(1, 1))),
    "windows, far apart": (40, 3, (9, 11), windows((3, 3), (2, 1), (2, 1), (1, 2))),
    "windows, groups": (40, 6, (9, 11), windows((3, 3), (1, 2), (1, 2), (2, 3), groups=2)),
    "depthwise": (33, 33, (9, 7), windows((3, 3), padding=(1, 1), groups=33)),
    "depthwise, far apart": (16, 32, (9, 9), windows((3, 3), (2, 2), (1, 1), (1, 2), groups=16)),
    "small groups": (36, 54, (6, 6), windows((3, 3), padding=(1, 1), groups=18)),
    "one axis": (4, 16, (100,), windows((5,), padding=(2,))),
    "one axis, long": (3, 5, (5000,), windows((3,))),
    "three axes": (4, 16, (5, 6, 7), windows((2, 3, 3), (1, 2, 1), (1, 0, 1))),
    "three axes, depthwise": (20, 20, (4, 5, 6), windows((3, 3, 3), padding=(1, 1, 1), groups=20)),
    "padding beyond the windows": (3, 20, (5, 5), windows((2, 2), stride=(4, 4), padding=(1, 1))),
}
each_case = pytest.mark.parametrize("case", CASES)


@each_case
@pytest.mark.usefixtures("passes")
def test_norms_and_sums_are_those_of_the_gradients_of_torch(case: str) -> None:
    given = of_convolution(*CASES[case])
    expected = by_torch(given)
    norms = torch.linalg.vector_norm(expected.flatten(1), dim=1)
    factors = torch.tensor([0.5, 0.0, 2.0, 1.0, -1.0], dtype=torch.float64)
    size = 1e-6 * float(norms.max())
    torch.testing.assert_close(given.norms(), norms, rtol=2e-6, atol=0)
    torch.testing.assert_close(given.total(), expected.sum(0), rtol=0, atol=BATCH * size)
    torch.testing.assert_close(
        given.scaled(factors), torch.tensordot(factors, expected, 1), rtol=0, atol=BATCH * size
    )


@each_case
@needs_kernels
def test_gradients_that_are_held_have_the_same_norms_rows_and_sums(case: str) -> None:
    """An example whose factor is 0 adds nothing, though its gradient is not finite."""
    given = of_convolution(*CASES[case])
    given.made[1] = math.nan
    native = given._native()
    assert native is not None
    held, expected = native.held(), by_torch(given)
    assert held.examples == given.examples == BATCH
    kept = [0, 2, 3, 4]
    size = 1e-6 * float(torch.linalg.vector_norm(expected[kept].flatten(1), dim=1).max())
    torch.testing.assert_close(held.norms(), given.norms(), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(held.rows(slice(2, 4)), expected[2:4].flatten(1).double(), rtol=0, atol=size)
    factors = torch.tensor([0.5, 0.0, 2.0, 1.0, -1.0], dtype=torch.float64)
    total = torch.tensordot(factors[kept], expected[kept], 1)
    torch.testing.assert_close(held.scaled(Factors.of(factors)), total, rtol=0, atol=BATCH * size)


@each_case
@pytest.mark.parametrize("regulariser", [None, 0.5])
@pytest.mark.usefixtures("passes")
def test_clipped_sums_have_the_factors_of_their_kind(case: str, regulariser: float | None) -> None:
    given = of_convolution(*CASES[case])
    expected = by_torch(given)
    beside = torch.arange(BATCH, dtype=torch.float64)
    norms = (expected.flatten(1).square().sum(1) + beside).sqrt()
    length = float(norms.median())
    factors = (length / norms).clamp(max=1) if regulariser is None else length / (norms + regulariser)
    clipped = given.clipped(Clip(length, regulariser), beside)
    torch.testing.assert_close(clipped.norms, norms, rtol=2e-6, atol=0)
    torch.testing.assert_close(clipped.factors, factors, rtol=2e-6, atol=0)
    torch.testing.assert_close(
        clipped.total, torch.tensordot(factors, expected, 1), rtol=0, atol=3e-6 * BATCH * length
    )


@pytest.mark.parametrize(("tokens", "d", "p"), [((64,), 40, 72), ((3, 7), 5, 3), ((196,), 64, 16), ((1,), 7, 9)])
@pytest.mark.usefixtures("passes")
def test_dense_layers_on_tokens(tokens: tuple[int, ...], d: int, p: int) -> None:
    x, cotangent = randn(BATCH, *tokens, d), randn(BATCH, *tokens, p, seed=1)
    expected = torch.einsum("b...p,b...d->bpd", cotangent.double(), x.double())
    given = ExampleGradients.of_tokens(x, cotangent)
    norms = torch.linalg.vector_norm(expected.flatten(1), dim=1)
    torch.testing.assert_close(given.norms(), norms, rtol=2e-6, atol=0)
    torch.testing.assert_close(given.total(), expected.sum(0), rtol=0, atol=5e-6 * float(norms.max()))


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.usefixtures("passes")
def test_transposed_convolutions_exchange_what_is_read_and_made(groups: int) -> None:
    where = windows((3, 2), stride=(2, 1), padding=(1, 0), groups=groups)
    x, weight = randn(BATCH, 6, 5, 4), torch.zeros(6, 8 // groups, 3, 2, dtype=torch.float64)
    cotangent = randn(*transposed(x.double(), weight, where).shape, seed=1)

    def loss(weight: Tensor, x: Tensor, cotangent: Tensor) -> Tensor:
        return (transposed(x[None], weight, where)[0] * cotangent).sum()

    expected = vmap(grad(loss), in_dims=(None, 0, 0))(weight, x.double(), cotangent.double())
    given = ExampleGradients(cotangent, x, where)
    torch.testing.assert_close(given.total(), expected.sum(0), rtol=0, atol=1e-4)
    norms = torch.linalg.vector_norm(expected.flatten(1), dim=1)
    torch.testing.assert_close(given.norms(), norms, rtol=2e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_dtypes_are_computed_in_theirs_or_in_float32(dtype: torch.dtype) -> None:
    x, cotangent = randn(3, 4, 6, 6).to(dtype), randn(3, 8, 4, 4, seed=1).to(dtype)
    given = ExampleGradients(x, cotangent, windows((3, 3)))
    expected = by_torch(given).sum(0)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-4
    torch.testing.assert_close(given.total(), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("pair", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@each_case
def test_half_precision_has_the_bits_of_the_same_numbers_in_float32(
    case: str, dtype: torch.dtype, pair: tuple[bool, bool]
) -> None:
    given = of_convolution(*CASES[case])
    read, made = (x.to(dtype) if is_half else x for x, is_half in zip((given.read, given.made), pair, strict=True))
    factors = torch.rand(len(read), dtype=torch.float64)
    wide = ExampleGradients(read.float(), made.float(), given.windows)
    halves = ExampleGradients(read, made, given.windows)
    alone = ExampleGradients(read[1:2].mT.contiguous().mT, made[1:2], given.windows)
    behind = ExampleGradients(
        torch.cat([torch.full_like(read, math.nan), read], 1)[:, read.shape[1] :],
        made.movedim(1, -1).contiguous().movedim(-1, 1),
        given.windows,
    )
    assert halves.is_native == wide.is_native
    expected = wide.norms()
    assert torch.equal(halves.norms(), expected)
    assert torch.equal(halves.scaled(factors), wide.scaled(factors))
    assert torch.equal(halves.clipped(Clip(0.5)).total, wide.clipped(Clip(0.5)).total)
    torch.testing.assert_close(alone.norms(), expected[1:2])
    torch.testing.assert_close(behind.norms(), expected)
    held = halves.held()
    assert held is None or torch.equal(held.norms() if isinstance(held, HeldGradients) else expected, expected)


# --- rounding ---


@pytest.mark.parametrize(
    ("size", "where", "depth"),
    [
        ((8, 8), windows((3, 3), padding=(1, 1)), 64),  # one run
        ((28, 28), windows((3, 3), padding=(1, 1)), 56 + 14 - 1),  # runs of two rows
        ((14, 14), windows((1, 1)), 49 + 4 - 1),  # all positions lie evenly: 196 = 4·49
        ((100, 3), windows((1, 1), stride=(1, 2)), 64 + 4 - 1),  # rows of two: 32 rows a run, 8 left
        ((9, 70), windows((3, 1), padding=(1, 0), dilation=(1, 1)), 63 + 10 - 1),  # 630 positions that lie evenly
        ((100, 102), windows((3, 3)), 50 + 2 * 98 - 1),  # 98 rows of 100, runs up to 99: rows in halves
    ],
)
@needs_kernels
def test_depth_is_that_of_runs_and_of_their_sum(size: tuple[int, ...], where: Windows, depth: int) -> None:
    given = of_convolution(2, 3, size, where, batch=1)
    assert given.depth == depth


@pytest.mark.parametrize("value", [1 / 3, 1.0 - 2.0**-24, 1.0 + 2.0**-23, 0.1, -7.3e-5])
@pytest.mark.parametrize("size", [(8, 8), (28, 28), (64, 64), (90, 110)])
@needs_kernels
def test_rounding_is_within_its_bound_where_all_terms_are_alike(value: float, size: tuple[int, int]) -> None:
    """The gradient is T·x·g in every entry, to be reached by T additions that all round the same way."""
    x, cotangent = torch.full((2, 3, *size), value), torch.full((2, 5, *size), value * value)
    given = ExampleGradients(x, cotangent, windows((1, 1)))
    positions = math.prod(size)
    exact = positions * Fraction(float(x[0, 0, 0, 0])) * Fraction(float(cotangent[0, 0, 0, 0]))
    unit = Fraction(given.depth, 2**24)
    bound = unit / (1 - unit) * abs(exact)  # of each entry: Σ_t |g_t|·|x_t| is T·|g|·|x|
    first = given.scaled(torch.tensor([1.0, 0.0]))
    assert all(abs(Fraction(entry) - exact) <= bound for entry in first.flatten().tolist())


@each_case
@needs_kernels
def test_rounding_is_within_its_bound(case: str) -> None:
    """Of positive terms, in every entry: float64 is exact beside float32."""
    given = of_convolution(*CASES[case])
    given = ExampleGradients(given.read.abs() ** 3, given.made.abs() ** 3, given.windows)
    expected = by_torch(given)
    unit = given.depth * 2.0**-24
    for i in range(BATCH):
        found = given.scaled(torch.eye(BATCH)[i])
        assert bool(((found - expected[i]).abs() <= unit / (1 - unit) * expected[i]).all())


# --- privacy: nothing of one example shows in what is computed of another ---


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def only(given: ExampleGradients, some: list[int]) -> ExampleGradients:
    return ExampleGradients(given.read[some], given.made[some], given.windows)


@each_case
@needs_kernels
def test_the_bits_of_an_example_do_not_depend_on_the_batch_or_on_threads(case: str) -> None:
    given = of_convolution(*CASES[case], batch=37)
    norms, clip = given.norms(), Clip(float(given.norms().median()))
    order = torch.randperm(37, generator=generator(3)).tolist()
    with threads(1):
        clipped = given.clipped(clip)
    with threads(2):
        shuffled = only(given, order).clipped(clip)
        assert torch.equal(given.clipped(clip).total, clipped.total)
    assert torch.equal(clipped.norms, norms)
    assert torch.equal(shuffled.norms, norms[order])
    assert torch.equal(shuffled.factors, clipped.factors[order])
    for i in (0, 20, 36):
        alone = only(given, [i])
        assert torch.equal(alone.norms(), norms[[i]])
        among = given.scaled(torch.nn.functional.one_hot(torch.tensor(i), 37))
        assert torch.equal(alone.total(), among)
        assert torch.equal(alone.clipped(clip).total, clipped.factors[i] * among)


@each_case
@pytest.mark.parametrize("regulariser", [None, 1e-3])
@needs_kernels
def test_a_clipped_gradient_is_no_longer_than_its_length_exactly(case: str, regulariser: float | None) -> None:
    given = of_convolution(*CASES[case], batch=2)
    length = 0.1
    factors = given.clipped(Clip(length, regulariser)).factors
    for i in range(2):
        entries = given.scaled(torch.eye(2)[i]).flatten().tolist()
        square = sum(Fraction(entry) ** 2 for entry in entries) * Fraction(float(factors[i])) ** 2
        assert square <= Fraction(length) ** 2
        assert square >= Fraction(length) ** 2 * (1 - Fraction(1, 10**3))


def test_a_gradient_that_is_short_enough_keeps_its_bits() -> None:
    given = of_convolution(*CASES["filters"])
    clipped = given.clipped(Clip(1e9))
    assert torch.equal(clipped.factors, torch.ones(BATCH, dtype=torch.float64))
    assert torch.equal(clipped.total, given.total())


@each_case
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 3e38])
@pytest.mark.usefixtures("passes")
def test_an_example_that_is_not_finite_adds_nothing(case: str, value: float) -> None:
    channels, filters, size, where = CASES[case]
    given = of_convolution(channels, filters, size, where)
    given.made[1] = value  # 3e38: a gradient that overflows
    given.read[3] = value
    rest = [0, 2, 4]
    clip = Clip(float(only(given, rest).norms().median()))
    clipped, others = given.clipped(clip), only(given, rest).clipped(clip)
    torch.testing.assert_close(clipped.factors[rest], others.factors, rtol=1e-12, atol=0)
    finite = (
        clipped.norms.isfinite()
    )  # what overflows float32 does not overflow float64, if there is no native code
    found = clipped.total if not finite[[1, 3]].any() else only(given, rest).scaled(clipped.factors[rest])
    torch.testing.assert_close(found, others.total, rtol=1e-12, atol=1e-12 * clip.length)
    room = int(finite[[1, 3]].sum()) + 1e-12
    assert float((clipped.total - others.total).norm()) <= room * clip.length * (1 + 1e-12)
    assert torch.equal(clipped.factors == 0, ~finite)
    assert finite[rest].all()
    assert math.isfinite(value) or not finite[[1, 3]].any()
    factors = torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0])
    torch.testing.assert_close(given.scaled(factors), only(given, rest).total(), rtol=1e-12, atol=1e-9)


# --- what is given ---


@pytest.mark.parametrize("case", ["three channels", "filters", "windows", "small groups", "position by position"])
@pytest.mark.usefixtures("passes")
def test_operands_may_lie_in_memory_as_they_like(case: str) -> None:
    given = of_convolution(*CASES[case])
    expected = given.total()

    def spread(x: Tensor) -> Tensor:
        return torch.stack([x, torch.full_like(x, math.nan)], -1)[..., 0]

    def last(x: Tensor) -> Tensor:
        return x.contiguous(memory_format=torch.channels_last)

    def behind(x: Tensor) -> Tensor:
        return torch.cat([torch.full_like(x, math.nan), x], 1)[:, x.shape[1] :]

    for laid_out in (spread, last, behind, lambda x: x.mT.contiguous().mT):
        other = ExampleGradients(laid_out(given.read), laid_out(given.made), given.windows)
        torch.testing.assert_close(other.total(), expected, rtol=1e-5, atol=1e-4)
    one = given.made[:1].expand_as(given.made)
    both = [ExampleGradients(given.read, made, given.windows).total() for made in (one, one.contiguous())]
    torch.testing.assert_close(*both, rtol=1e-6, atol=1e-5)


@pytest.mark.usefixtures("passes")
def test_shapes_with_an_axis_of_one_entry_whose_stride_means_nothing() -> None:
    x = randn(3, 4, 6, 2)[..., :1]
    cotangent = randn(3, 5, 6, 1, seed=1)
    given = ExampleGradients(x.as_strided(x.shape, (*x.stride()[:3], 77)), cotangent, windows((1, 1)))
    torch.testing.assert_close(given.total(), by_torch(given).sum(0), rtol=0, atol=1e-4)


@pytest.mark.usefixtures("passes")
def test_nothing_gives_zeros() -> None:
    where = windows((3, 3))
    for x, made in ((randn(0, 2, 5, 5), randn(0, 4, 3, 3)), (randn(2, 2, 5, 2), randn(2, 4, 3, 0))):
        given = ExampleGradients(x, made, where)
        assert given.norms().tolist() == [0.0] * len(x)
        assert torch.equal(given.total(), torch.zeros(4, 2, 3, 3, dtype=torch.float64))
        assert torch.equal(given.clipped(Clip(1.0)).total, given.total())


def test_results_are_not_differentiable() -> None:
    given = of_convolution(*CASES["filters"])
    traced = ExampleGradients(given.read.requires_grad_(), given.made, given.windows)
    assert not traced.total().requires_grad
    assert not traced.norms().requires_grad


def test_errors_name_what_is_wrong() -> None:
    x, made = randn(2, 4, 5, 5), randn(2, 6, 3, 3)
    with pytest.raises(ValueError, match=r"\[2, 4, 5, 5\] and \[2, 6, 3, 3\]: want .* with 1 axes"):
        ExampleGradients(x, made, windows((3,)))
    with pytest.raises(ValueError, match="do not divide into 4 groups"):
        ExampleGradients(x, made, windows((3, 3), groups=4))
    with pytest.raises(ValueError, match=r"want .* with 2 axes"):
        ExampleGradients(x[:1], made, windows((3, 3)))
    given = ExampleGradients(x, made, windows((3, 3)))
    with pytest.raises(ValueError, match=r"one number for each of 2 examples; got shape \[3\]"):
        given.scaled(torch.ones(3))
    with pytest.raises(ValueError, match="expected one number"):
        given.clipped(Clip(1.0), torch.ones(1))
    for length, regulariser in ((0.0, None), (math.inf, None), (1.0, 0.0), (1.0, math.nan)):
        with pytest.raises(ValueError, match="must be positive and finite"):
            Clip(length, regulariser)
    with pytest.raises(ValueError, match="one integer for each axis"):
        Windows((3, 3), (1,), (0, 0), (1, 1))
    with pytest.raises(ValueError, match="expected positive integers"):
        Windows((3, 3), (1, 0), (0, 0), (1, 1))


def test_windows_are_those_of_torch() -> None:
    """The oracle above is ``torch.convolution``; here it is written out."""
    given = of_convolution(2, 3, (4,), windows((2,), stride=(2,), padding=(1,)), batch=1)
    padded = F.pad(given.read.double(), (1, 1))[0]
    terms = [torch.outer(given.made[0, :, t].double(), padded[:, 2 * t : 2 * t + 2].flatten()) for t in range(3)]
    expected = torch.stack(terms).sum(0)
    torch.testing.assert_close(given.total(), expected.reshape(3, 2, 2), rtol=0, atol=1e-6)

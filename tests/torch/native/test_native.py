"""Native code does what torch's operations do, and what the documentation says, to what it is given."""

from __future__ import annotations

import math
import os
import random
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives import ciphers
from lipcompile_torch import native
from lipcompile_torch.certify import drift
from lipcompile_torch.certify.drift import COARSE, FINE
from lipcompile_torch.certify.single_precision import spectral_bound
from lipcompile_torch.native.memory_rows import flat
from lipcompile_torch.nn import functional
from lipcompile_torch.noise.processor import BLOCK, STRETCH, Generators, KeyStream, adder
from numpy.typing import NDArray
from torch import Tensor

pytestmark = pytest.mark.skipif(native.kernels is None, reason="the package was installed without a compiler")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def reads(tensor: Tensor) -> list[Fraction]:
    """The entries, as exact numbers."""
    return [Fraction(value) for value in tensor.double().flatten().tolist()]


# --- normals ---


def drawn(words: NDArray[np.uint64], dtype: torch.dtype = torch.float64, scale: float = 1.0) -> Tensor:
    row = torch.zeros(len(words), dtype=dtype)
    native.add_normals_([(row, scale)], BLOCK, words, 1)
    return row


def pair(first: int, second: int) -> tuple[mpmath.mpf, mpmath.mpf]:
    """±√(-2·ln U)·(cos φ, sin φ), as the documentation has it, to 40 digits."""
    with mpmath.workdps(40):
        signed = (first | 1) - (2**64 if first >= 2**63 else 0)
        uniform = mpmath.mpf(abs(signed)) / 2**63 * (1 - mpmath.mpf(2) ** -53)
        angle = mpmath.pi * (second - (2**64 if second >= 2**63 else 0)) / 2**64
        radius = mpmath.sqrt(-2 * mpmath.log(uniform)) * (1 if signed > 0 else -1)
        return radius * mpmath.cos(angle), radius * mpmath.sin(angle)


EDGES = [0, 1, 2, 3, 2**52, 2**53 + 1, 2**61, 2**62 - 1, 2**62, 2**62 + 1, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 1]


def test_normals_are_what_their_words_say_to_the_last_digits() -> None:
    """Rounding a word to a double moves U by 2^-53 of itself, so r² by 2^-52, and φ alike: of -ln U near 0, that
    is nearly all. So near U = 1 it is the square that is compared, absolutely; elsewhere both, relatively.
    """
    chance = random.Random(0)
    pairs = [(a, b) for a in EDGES for b in EDGES] + [
        (chance.getrandbits(64) >> chance.randrange(64), chance.getrandbits(64) >> chance.randrange(64))
        for _ in range(400)
    ]
    words = np.array([first for first, _ in pairs] + [second for _, second in pairs], np.uint64)
    found = drawn(words).tolist()
    for i, (first, second) in enumerate(pairs):
        expected = pair(first, second)
        got = found[i], found[len(pairs) + i]
        square = float(expected[0] ** 2 + expected[1] ** 2)
        for true, value in zip(expected, got, strict=True):
            assert abs(float(true - value)) <= 4e-16 * abs(float(true)) + 2.0**-52 / math.sqrt(square) + 2.0**-62
        assert abs(math.hypot(*got) ** 2 - square) <= 1e-15 * square + 2.0**-51


class Given:
    """A source of words that are known."""

    def __init__(self, words: NDArray[np.uint64]) -> None:
        self._words = words

    def fill_(self, words: NDArray[np.uint64]) -> None:
        words[:] = self._words


@pytest.mark.usefixtures("passes")
def test_normals_are_as_near_to_what_their_words_say_as_the_documentation_says() -> None:
    """Within 2^-51·(r + 1/r), also where a cosine, a sine or a radius is next to 0."""
    chance = random.Random(3)

    def near(place: int) -> int:
        return (place + chance.choice((-1, 1)) * (chance.getrandbits(63) >> chance.randrange(63))) % 2**64

    first = [near(chance.choice((0, 2**63))) if i % 2 else chance.getrandbits(64) for i in range(2000)]
    pairs = [(word, near(chance.choice((0, 2**62, 2**63)))) for word in first]
    words = np.array(first + [second for _, second in pairs], np.uint64)
    row = torch.zeros(len(words), dtype=torch.float64)
    adder([(row, 1.0)], 1, BLOCK)([(row, 1.0)], Given(words))
    found = row.tolist()
    for i, words_of_pair in enumerate(pairs):
        expected = pair(*words_of_pair)
        radius = math.sqrt(float(expected[0] ** 2 + expected[1] ** 2))
        for true, value in zip(expected, (found[i], found[len(pairs) + i]), strict=True):
            assert abs(float(true - value)) <= 2.0**-51 * (radius + 1 / radius)


def test_a_seed_gives_the_same_noise_without_native_code_but_for_rounding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = [1, 0, 3, BLOCK - 5, 2 * BLOCK + 1, 77, STRETCH + 9, 1]
    rows = [[torch.zeros(size, dtype=torch.float64) for size in sizes] for _ in range(2)]
    Generators(7).perturb_([(row, 0.5) for row in rows[0]])
    monkeypatch.setattr(native, "kernels", None)
    Generators(7).perturb_([(row, 0.5) for row in rows[1]])
    both = [torch.cat(some) for some in rows]
    assert float((both[0] - both[1]).abs().max()) < 1e-14
    assert float((both[0] - both[1]).abs().mean()) < 1e-15


@pytest.mark.parametrize("count", [1, 2, 7, 512, 1025, BLOCK + 1, 2 * BLOCK + 1001])
def test_words_of_a_key_are_used_where_they_are_made(count: int) -> None:
    """The same as of the words that the stream writes, from any block of it, in any number of threads."""
    key, counter = bytes(range(16)), bytes(15) + b"\xf0"
    for skipped in (0, 10, 30):
        streams = [KeyStream(key, counter) for _ in range(3)]
        for stream in streams:
            stream.take(skipped)
        expected = torch.zeros(count)
        for start in range(0, count, BLOCK):
            part = expected[start : start + BLOCK]
            words = np.empty(len(part) + len(part) % 2, np.uint64)
            streams[0].fill_(words)
            native.add_normals_([(part, 2.0)], BLOCK, words, 1)
        for threads, stream in zip((1, 2), streams[1:], strict=True):
            found = torch.zeros(count)
            cut = [(piece, 2.0) for piece in torch.split(found, max(1, count // 3))]
            native.add_normals_(cut, BLOCK, stream.take(count), threads)
            assert torch.equal(found, expected)


def test_streams_are_those_of_another_implementation() -> None:
    """From counters that are about to overflow 32, 64 and 128 bits, and from blocks far on."""
    if not native.has_aes():
        pytest.skip("no native code for AES")
    chance = random.Random(1)
    for overflowing in (0, 4, 8, 16):
        for blocks in (0, 1, 7, 8, 9, 31, 32, 33, 64, 257):
            key = chance.randbytes(16)
            low = b"\xff" * (overflowing - 1) + bytes([256 - chance.randrange(1, 40)]) if overflowing else b""
            counter = chance.randbytes(16 - len(low)) + low
            start = chance.randrange(50)
            encryptor = ciphers.Cipher(ciphers.algorithms.AES(key), ciphers.modes.CTR(counter)).encryptor()
            expected = encryptor.update(bytes(16 * (start + blocks)))[16 * start :]
            words = np.zeros(2 * blocks + 2, np.uint64)
            native.fill_(words[:-2], (key + counter, start))
            assert words.tobytes() == expected + bytes(16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_are_rounded_once(dtype: torch.dtype) -> None:
    words = np.random.default_rng(0).integers(0, 2**64, 200, np.uint64)
    normals, start = drawn(words), torch.linspace(-3, 5, 200).to(dtype)
    row = start.clone()
    native.add_normals_([(row[:77], 0.3), (row[77:], 0.3)], BLOCK, words, 1)
    for before, normal, after in zip(reads(start), reads(normals), row, strict=True):
        exact = torch.tensor(float(before + Fraction(0.3) * normal), dtype=torch.float64)  # rounds once
        assert exact.to(dtype) == after


@pytest.mark.usefixtures("passes")
def test_each_part_has_noise_of_its_own_scale() -> None:
    """Against one row of scale 1, over the ends of blocks and of stretches, in both dtypes."""
    sizes = [3, BLOCK - 1, 1, 700, STRETCH + 5, 0, 2]
    scales = [1.0, 0.25, 4.0, 3.0, 0.5, 7.0, 100.0]
    parts = [
        (torch.zeros(size, dtype=torch.float32 if i % 2 else torch.float64), scale)
        for i, (size, scale) in enumerate(zip(sizes, scales, strict=True))
    ]
    Generators(11).perturb_(parts)
    normals = torch.zeros(sum(sizes), dtype=torch.float64)
    Generators(11).perturb_([(normals, 1.0)])
    for (part, scale), expected in zip(parts, torch.split(normals, sizes), strict=True):
        torch.testing.assert_close(part.double(), scale * expected, rtol=1e-6, atol=0)


def test_what_was_written_is_counted_as_written() -> None:
    row = torch.zeros(10, requires_grad=True)
    product = (row * row).sum()
    native.add_normals_([(row.detach(), 1.0)], BLOCK, np.ones(10, np.uint64), 1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.backward(product)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_other_dtypes_are_left_to_torch(dtype: torch.dtype) -> None:
    rows = [torch.zeros(100, dtype=dtype), torch.zeros(100)]
    assert not native.adds_normals([(row, 1.0) for row in rows])
    Generators(3).perturb_([(row, 1.0) for row in rows])
    single = torch.zeros(200)
    Generators(3).perturb_([(single, 1.0)])
    torch.testing.assert_close(torch.cat([row.float() for row in rows]), single, rtol=1e-2, atol=1e-6)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_process_waits_for_no_thread() -> None:
    """It has none of those that its parent's native code, and torch, have used."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    row = torch.zeros(BLOCK)
    Generators().perturb_([(row, 1.0)])
    child = os.fork()
    if child == 0:
        Generators().perturb_([(row, 1.0)])
        os._exit(0)
    torch.set_num_threads(threads)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# --- norms ---


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 1000, 2**20 + 3])
def test_norms_are_exact_up_to_rounding(count: int) -> None:
    entries = torch.randn(count, generator=generator()) * torch.logspace(-30, 15, count)
    found = native.norm(entries)
    assert found is not None
    assert float(found) == pytest.approx(math.sqrt(math.fsum(x * x for x in entries.double().tolist())), rel=1e-14)


def test_norms_of_what_is_not_finite_are_not() -> None:
    for value in (math.nan, math.inf):
        for place in (0, 17, -1):
            entries = torch.ones(100)
            entries[place] = value
            found = native.norm(entries)
            assert found is not None
            assert not math.isfinite(float(found))


# --- differences ---

SHAPES = [(1, 1), (3, 70), (64, 64), (65, 515), (130, 1027), (300, 131)]


def all_halves() -> Tensor:
    """Every number of float16 that is finite, in all their 63,488."""
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    halves = bits.view(torch.float16)
    return halves[halves.isfinite()]


def test_every_half_is_read_as_what_it_is() -> None:
    """The norm of 0 - half, one number at a time, is exactly its modulus."""
    halves = all_halves()
    zero = torch.zeros(1)
    for half in halves[:: len(halves) // 4000]:
        found = native.difference_norm(zero, half[None], 1.0)
        assert found is not None
        assert float(found) == abs(float(half))
    together = native.difference_norm(torch.zeros(len(halves)), halves, 1.0)
    assert together is not None
    assert float(together) == pytest.approx(float(halves.double().norm()), rel=1e-14)


def test_no_half_differs_from_itself_in_float32() -> None:
    halves = all_halves()
    found = native.difference_norm(halves.float(), halves, 1.0)
    assert found is not None
    assert float(found) == 0


@pytest.mark.parametrize("half", [True, False])
def test_differences_are_rounded_once(half: bool) -> None:
    """One entry at a time, against fractions: a product with a share of 20 bits has more than 24 of them."""
    weights = torch.randn(200, generator=generator(3))
    copies = weights.half() if half else torch.randn(200, generator=generator(4))
    share = 1 - 3 * 2.0**-20
    for weight, copy in zip(weights, copies, strict=True):
        found = native.difference_norm(weight[None], copy[None], share)
        exact = Fraction(float(weight)) - Fraction(share) * Fraction(float(copy))
        rounded = torch.tensor(float(exact), dtype=torch.float64).float()  # 48 bits and some: doubles hold them
        assert Fraction(float(exact)) == exact
        assert found is not None
        assert float(found) == abs(float(rounded))


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_what_became_infinite_as_a_half_is_infinite(value: float) -> None:
    copy = torch.tensor([1.0, value], dtype=torch.float16)
    found = native.difference_norm(torch.ones(2), copy, 1.0)
    assert found is not None
    assert not math.isfinite(float(found))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("height", [1, 30, 64, 128])
def test_moments_are_those_of_the_computed_difference(
    shape: tuple[int, int], half: bool, transposed: bool, height: int
) -> None:
    """Against Gram matrices in doubles, of which sums in float32 may be off by 36·2^-24 of a trace."""
    weight = torch.randn(shape, generator=generator(1))
    copy = (weight + 0.01 * torch.randn(shape, generator=generator(2))).to(
        torch.float16 if half else torch.float32
    )
    if transposed:
        weight, copy = weight.mT.contiguous().mT, copy.mT.contiguous().mT
    found = native.gram_moments(weight, copy, 0.75, height, 4)
    assert found is not None
    computed = (weight.double() - 0.75 * copy.double()).float().double()  # exact in doubles, rounded once
    blocks = torch.split(computed, height)
    assert len(found) == len(blocks)
    for block, (trace, length, *squares) in zip(blocks, found.tolist(), strict=True):
        assert trace == pytest.approx(float(block.square().sum()), rel=36 * 2.0**-24)
        eigenvalues = torch.linalg.eigvalsh(block @ block.mT)
        eigenvalues -= eigenvalues.mean()
        assert abs(length - float(eigenvalues.norm())) <= 36 * 2.0**-24 * trace
        assert len(block) > 1 or length == 0
        for square in squares:
            if len(block) > 1:
                eigenvalues = (eigenvalues / eigenvalues.norm()).square()
                assert square == pytest.approx(float(eigenvalues.norm()), rel=1e-3)
    norm = native.difference_norm(weight, copy, 0.75)
    assert norm is not None
    assert float(norm) == pytest.approx(float(computed.norm()), rel=1e-12)


@pytest.mark.parametrize("bits", range(12, 24))
def test_sums_in_float32_are_short(bits: int) -> None:
    """The squares of 1 + 2^-bits exceed 1 by half of the last digit of a sum of some size: from there on all are
    rounded the same way.
    """
    weight = torch.full((65, 16_000), 1 + 2.0**-bits)
    found = native.gram_moments(weight, torch.zeros_like(weight), 1.0, 64, 2)
    assert found is not None
    trace = 64 * 16_000 * (1 + 2.0**-bits) ** 2
    assert abs(float(found[0, 0]) - trace) <= 36 * 2.0**-24 * trace


def test_what_squaring_in_float32_loses_is_paid_for() -> None:
    """J - I has the norm r - 1, and is found exactly; divided by its Frobenius norm it is rounded, mostly down."""
    short = 0
    for rows in range(65, 129):
        ones = torch.ones(rows, 4)
        found = native.gram_moments(ones, torch.zeros_like(ones), 1.0, rows, 4)
        assert found is not None
        length, first, second = found[0, 1:].tolist()
        norm = 4 * (rows - 1)
        short += length * math.sqrt(first * math.sqrt(second)) < norm * (1 - 1e-9)
        assert norm <= drift._symmetric_norm([length, first, second]) <= 1.001 * norm
    assert short > 8


def test_blocks_that_a_stack_has_no_room_for_are_left_to_torch() -> None:
    weight = torch.randn(300, 300)
    for blocks in (COARSE, FINE):
        assert native.gram_moments(weight, weight, 1.0, blocks.height, 2 + blocks.squarings) is not None
    assert native.gram_moments(weight, weight, 1.0, 129, 2) is None


def test_weights_that_lie_otherwise_than_their_copies_are_left_to_torch() -> None:
    weight = torch.randn(70, 80)
    for copy in (weight.mT.contiguous().mT, weight.double(), weight.bfloat16(), torch.zeros(()).expand(70, 80)):
        assert native.gram_moments(weight, copy, 1.0, 64, 2) is None
        assert native.difference_norm(weight, copy, 1.0) is None
    for fewer in (weight[:3], weight[:, :7], weight[None], weight[0]):  # strides may still be the same
        assert native.gram_moments(weight, fewer, 1.0, 64, 2) is None
        assert native.difference_norm(weight, fewer, 1.0) is None
    gaps = torch.randn(70, 160)[:, ::2]
    assert native.gram_moments(gaps, gaps, 1.0, 64, 2) is None
    assert native.difference_norm(gaps, gaps, 1.0) is None


# --- examples ---


@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (7, 5), (100, 784), (3, 2, 5, 4), (2, 70_000)])
def test_clipped_examples_are_those_that_torch_computes(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same factor, so the same bits, but where a norm's last bit decides."""
    x = torch.randn(shape, generator=generator()) * torch.logspace(-2, 2, max(1, shape[0]))[: shape[0]].reshape(
        -1, *(1,) * (len(shape) - 1)
    )
    for entry in (math.nan, math.inf, -math.inf) if shape[0] > 5 else ():
        x[random.Random(str(entry)).randrange(shape[0])].view(-1)[-1] = entry
    found = functional.clip_norm(x, 1.5)
    passed = native.clipped(x, 1.5, 1.5)
    assert passed is not None
    assert passed.shape == found.shape
    monkeypatch.setattr(native, "kernels", None)
    torch.testing.assert_close(found, functional.clip_norm(x, 1.5), rtol=2e-7, atol=0)


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (1, 1), (5, 7), (2, 9), (40, 17), (3, 70001)])
@pytest.mark.parametrize("size", [1.0, 1e-30, 1e30])
def test_row_norms_are_off_by_what_the_documentation_says(shape: tuple[int, int], size: float) -> None:
    x = size * torch.randn(shape, generator=generator())
    found = native.row_norms(x)
    assert found is not None
    assert found.shape == shape[:1]
    allowed = (Fraction(shape[1], 2) + 1) / 2**53 * Fraction(1001, 1000)
    for row, norm in zip(x, found.tolist(), strict=True):
        squares = sum((entry * entry for entry in reads(row)), Fraction(0))
        assert (1 - allowed) ** 2 * squares <= Fraction(norm) ** 2 <= (1 + allowed) ** 2 * squares


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((5, 7, 6), (1,)),
        ((5, 7, 6), (2,)),
        ((3, 4, 5, 35), (2, 3)),
        ((2, 300, 1), (1, 2)),
        ((3, 0, 4), (1,)),
        ((0, 3), (1,)),
    ],
)
def test_sums_of_each_example_are_added_in_float64(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    """1 beside terms of 2²⁵ is lost in float32; sums of whole numbers are exact in float64."""
    x = torch.randint(-(2**24), 2**24, shape, generator=torch.Generator().manual_seed(0)).float() * 4 + 1
    found = native.sum_of_each(x, axes)
    assert found is not None
    assert found.dtype == torch.float64
    assert torch.equal(found, x.double().sum(axes))


def test_sums_of_each_example_leave_others_to_torch() -> None:
    """NaN stays with its example; axes that are not neighbours, other layouts and dtypes have no native code."""
    x = torch.ones(3, 4, 5)
    x[1, 2, 3] = math.nan
    found = native.sum_of_each(x, (1, 2))
    assert found is not None
    assert found.isnan().tolist() == [False, True, False]
    assert native.sum_of_each(torch.ones(2, 3, 4, 5), (1, 3)) is None
    assert native.sum_of_each(x.mT, (1,)) is None
    assert native.sum_of_each(x.half(), (1,)) is None


def test_row_norms_of_what_is_no_number_or_no_row() -> None:
    x = torch.tensor([[1.0, math.nan], [math.inf, 1.0], [3.0, 4.0]])
    found = native.row_norms(x)
    assert found is not None
    assert not found[:2].isfinite().any()
    assert float(found[2]) == 5.0
    for other in (x.mT, x[:, :1], x.double(), x[0], x.to("meta")):
        assert native.row_norms(other) is None


def test_channels_may_lie_last() -> None:
    x = torch.randn(5, 3, 4, 4, generator=generator()).to(memory_format=torch.channels_last)
    found = native.clipped(x, 1.0, 1.0)
    assert found is not None
    assert found.stride() == x.stride()
    torch.testing.assert_close(found, functional.clip_norm(x.contiguous(), 1.0))


def test_what_has_no_memory_is_left_to_torch() -> None:
    """Zeros that torch has never written down, memory that was given back, and layouts of other libraries."""
    freed = torch.zeros(8)
    freed.untyped_storage().resize_(0)
    zeros = torch.zeros(8, 8)
    for tensor in (torch._efficientzerotensor(8), freed, zeros.to_sparse(), zeros.to_mkldnn()):
        assert not native.is_plain(tensor)
    assert native.is_plain(torch.zeros(0))


@pytest.mark.filterwarnings("ignore")  # torch's own: traces are deprecated, and take shapes for constants
def test_what_torch_must_see_is_left_to_torch() -> None:
    """Transforms, traces, forward derivatives, other devices and stand-ins, batches that are no rows in memory."""
    x = torch.randn(4, 6)
    expected = functional.clip_norm(x, 1.0)
    assert torch.equal(torch.func.vmap(lambda row: functional.clip_norm(row[None], 1.0)[0])(x), expected)
    trace: Any = torch.jit.trace
    traced = trace(lambda y: functional.clip_norm(y, 1.0), torch.zeros(4, 6), check_trace=False)
    torch.testing.assert_close(traced(x), expected)
    forward: Any = torch.autograd.forward_ad
    with forward.dual_level():
        dual = forward.make_dual(x, torch.ones_like(x))
        assert forward.unpack_dual(functional.clip_norm(dual, 1.0)).tangent is not None
    assert functional.clip_norm(x.to("meta"), 1.0).device.type == "meta"
    for other in (x.mT, x[:, :3], x.double(), x[0]):
        assert native.clipped(other, 1.0, 1.0) is None
    assert flat(x.mT) is not None  # in one piece, but examples are columns of it


def test_graphs_of_operations_hold_the_clip() -> None:
    graph = torch.fx.experimental.proxy_tensor.make_fx(lambda y: functional.clip_norm(y, 1.0))(torch.zeros(4, 6))
    x = torch.randn(4, 6)
    torch.testing.assert_close(graph(x), functional.clip_norm(x, 1.0))


@pytest.mark.usefixtures("passes")
@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad])
def test_examples_next_to_the_sphere_end_inside(mode: Any) -> None:
    x = torch.randn(200, 7, generator=generator())
    x = x / x.norm(dim=1, keepdim=True) * (1 + torch.arange(-100, 100)[:, None] * 2.0**-24)
    for rows in (x, x[:100], x[100:]):
        with mode():
            for result in functional.clip_norm(rows, 1.0):
                assert sum(entry**2 for entry in reads(result)) <= 1


@pytest.mark.usefixtures("passes")
def test_factors_that_are_subnormal_are_rounded_down() -> None:
    """A unit of the last digit of a factor of 2^-136 is 2^-13 of it."""
    chance = random.Random(0)
    for _ in range(300):
        x, radius = torch.tensor([[chance.uniform(1e38, 3e38)]]), 2 ** chance.uniform(-12, 1)
        (result,) = reads(functional.clip_norm(x, radius))
        assert 0 < result <= Fraction(radius)


@pytest.mark.usefixtures("passes")
def test_gradients_are_those_of_what_was_clipped_whatever_becomes_of_the_input() -> None:
    """A loader may write the next batch into the memory of this one before anything flows back."""
    x = torch.full((5, 4), 0.1)
    weight = torch.ones(4, requires_grad=True)
    output = functional.clip_norm(x, 1.0) @ weight
    x.numpy()[:] = 1e6
    torch.autograd.backward(output.sum())
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad, torch.full((4,), 0.5))


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (64, 64), (65, 17), (130, 1027), (5, 513)])
@pytest.mark.parametrize("threads", [1, 2])
def test_gram_matrices_are_off_by_their_roundings_at_most(shape: tuple[int, int], threads: int) -> None:
    """Of rows that lie apart, of sizes that no tile or chunk divides; in doubles products of floats are exact."""
    rows = torch.randn(shape[0], shape[1] + 3, generator=generator())[:, : shape[1]]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    found = native.gram_matrix(rows)
    torch.set_num_threads(before)
    assert found is not None
    assert torch.equal(found, found.mT)
    wide = rows.double()
    off = (found.double() - wide @ wide.mT).abs()
    assert bool((off <= (native.ROUNDINGS + 1) * 2.0**-24 * (wide.abs() @ wide.mT.abs())).all())
    assert native.gram_matrix(rows.mT) is None or 1 in shape


def test_the_gram_matrix_of_one_row_again_and_again_is_constant() -> None:
    row = torch.randn(1, 200, generator=generator()).expand(130, 200)
    found = native.gram_matrix(row)
    assert found is None or torch.equal(found, found[:1, :1].expand(130, 130))
    true = math.sqrt(130 * math.fsum(entry**2 for entry in row[0].double().tolist()))
    assert spectral_bound(row) >= true

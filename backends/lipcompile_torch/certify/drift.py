"""How far a weight has moved since its norm was certified: two bounds that cost less than a certificate.

‖W‖ ≤ a·‖W₀‖ + ‖W - a·W₀‖ for every a, so a certificate of W₀ goes on bounding W, whatever changed it, as long as
what changed is small. Nothing is guessed: both bounds hold for every tensor.

- The Frobenius norm: one pass over memory, but √n/2 times the operator norm of a Gaussian n × n matrix, which
  noise is.
- ‖D‖² ≤ Σ‖D_i‖² over blocks of rows D_i, and ‖D_i‖² ≤ μ + ‖E‖ for E = D_iD_iᵀ - μI and every μ, by its
  eigenvalues. With μ their mean, and ‖E‖ ≤ ‖E‖_F, it is 2.9 times the operator norm of Gaussian matrices of 500
  rows, of blocks of 64. Of 128, and with ‖E‖ ≤ ‖E⁴‖_F^(1/4), it is 1.6 to 1.8 times the norm, in two to three
  times the time. Native code computes the products in float32 as it takes the differences, in the room of one
  block. Without it they are of bfloat16, which processors multiply faster than float32, and since only the order
  of magnitude counts, what rounding adds, a few per cent, does not. Small matrices are squared on instead.

Torch's operations take differences a few blocks at a time: a weight of any size needs room for these alone, and
they are measured while they are in a cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice

import torch
from torch import Tensor

from .. import native
from ..devices import is_processor
from .rounding import BRAIN, DOUBLE, SINGLE, UP, gamma, gamma_single

_SMALL = 64  # up to here float64 costs less than what bfloat16 takes beside the product
_PIECE = 2**19  # entries of a difference that are there at a time, on processors


def difference(weight: Tensor, copy: Tensor, share: float) -> Tensor:
    """Return weight - share·copy, in float32, or in float64 for weights that are."""
    single = torch.promote_types(weight.dtype, torch.float32)
    wide = copy.to(single)  # of two types at once processors are slower at it
    return torch.sub(weight.to(single), wide, alpha=share, out=None if wide is copy else wide)


def difference_error(length: float, copied: float) -> float:
    """Return how far a computed `difference` of Frobenius norm ``length`` may be from the true one.

    Each entry is off by at most 3u(|W| + |a·W₀|), and ‖W‖_F ≤ length + a‖W₀‖_F, but for the error itself.

    Args:
        copied: at least ‖a·W₀‖_F.
    """
    return 8 * SINGLE * (length + 2 * copied)


def frobenius_length(matrices: Tensor) -> Tensor:
    """Return a bound of the Frobenius norm of ``matrices`` [N, rows, columns], 0-dim in float64; of NaN, NaN.

    Row by row in the dtype, and these in float64. Squares that vanish in float32 are below 2^-126.
    """
    rows = torch.linalg.vector_norm(matrices, dim=-1).to(torch.float64)
    norm: Tensor = torch.linalg.vector_norm(rows)
    return norm * (1 + gamma_single(matrices.shape[-1]) + gamma(rows.numel())) + _vanished(matrices.numel())


def _vanished(entries: int) -> float:
    """Return a bound of the Frobenius norm of entries whose squares vanish in float32, and of entries that do in
    bfloat16; and of the root of what sums of products lose, if each vanishes.
    """
    return 2.0**-62 * math.sqrt(entries)


def drift_length(weight: Tensor, copy: Tensor, share: float) -> Tensor:
    """Return a bound of the Frobenius norm of the computed `difference` of [N, rows, columns], 0-dim."""
    norm = native.difference_norm(weight, copy, share)
    if norm is not None:
        return norm * (1 + gamma(weight.numel())) + _vanished(weight.numel())
    lengths = [frobenius_length(difference(*pair, share)) for pair in _pieces(weight, copy)]
    length: Tensor = torch.linalg.vector_norm(torch.stack(lengths)) * (1 + gamma(len(lengths)))
    return length


@dataclass(frozen=True)
class Blocks:
    """How finely Gram matrices of blocks of rows are measured.

    Args:
        height: rows of a block.
        squarings: of its Gram matrix.
    """

    height: int
    squarings: int


COARSE, FINE = Blocks(64, 0), Blocks(128, 2)


@dataclass(frozen=True, eq=False, slots=True)
class Moments:
    """What one pass over a drift finds, and how bounds of its norms follow.

    Args:
        values: float64 [k], where the drift is: :func:`read_norms` asks for those of many drifts at once.
        norms: makes of them a bound of the Frobenius norm of the computed `difference`, and one of the largest
            operator norm among its matrices; not finite, if an entry or a square is not.
    """

    values: Tensor
    norms: Callable[[Sequence[float]], tuple[float, float]]


def length_alone(length: Tensor) -> Moments:
    """Return what a Frobenius norm, 0-dim, says of both norms."""
    return Moments(length.reshape(1), lambda values: (values[0], values[0]))


def in_blocks(matrices: Tensor) -> bool:
    """Whether :class:`Blocks` make a difference to `drift_norm` of [N, rows, columns]."""
    return min(matrices.shape[-2:]) > _SMALL


def drift_norm(weight: Tensor, copy: Tensor, share: float, blocks: Blocks = COARSE) -> Moments:
    """Return what bounds the norms of the computed `difference` of [N, rows, columns]."""
    if weight.shape[-2] > weight.shape[-1]:
        weight, copy = weight.mT, copy.mT
    if not in_blocks(weight):
        return _squared(difference(weight, copy, share).to(torch.float64))
    found = [_centred(*pair, share, blocks) for pair in zip(weight, copy, strict=True)]
    return found[0] if len(found) == 1 else _largest(found)


def read_norms(found: Sequence[Moments]) -> list[tuple[float, float]]:
    """Return the bounds of Frobenius and operator norms, in one transfer for each device."""
    numbers = read([moments.values for moments in found])
    return [moments.norms(values) for moments, values in zip(found, numbers, strict=True)]


def read(values: Sequence[Tensor]) -> list[list[float]]:
    """Return tensors as lists of numbers, in one transfer for each device."""
    rows: dict[int, list[float]] = {}
    for device in {value.device for value in values}:
        places = [i for i, value in enumerate(values) if value.device == device]
        numbers = iter(torch.cat([values[i].reshape(-1) for i in places]).tolist())
        rows.update((i, list(islice(numbers, values[i].numel()))) for i in places)
    return [rows[i] for i in range(len(values))]


def _largest(found: Sequence[Moments]) -> Moments:
    sizes = [len(moments.values) for moments in found]

    def norms(values: Sequence[float]) -> tuple[float, float]:
        numbers = iter(values)
        pairs = [m.norms(list(islice(numbers, size))) for m, size in zip(found, sizes, strict=True)]
        return math.hypot(*(length for length, _ in pairs)) * UP, _most(norm for _, norm in pairs)

    return Moments(torch.cat([moments.values for moments in found]), norms)


def _most(values: Iterable[float]) -> float:
    """Return the largest, or NaN if there is one."""
    known = list(values)
    return math.nan if any(map(math.isnan, known)) else max(known)


def _pieces(weight: Tensor, copy: Tensor, height: int = COARSE.height) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield both, cut alike along the rows: into a few blocks at a time on processors, else whole."""
    blocks = max(1, _PIECE * weight.shape[-2] // (height * max(1, weight.numel())))
    rows = blocks * height if is_processor(weight.device) else max(1, weight.shape[-2])
    yield from zip(torch.split(weight, rows, dim=-2), torch.split(copy, rows, dim=-2), strict=True)


def _squared(matrices: Tensor) -> Moments:
    """As :func:`drift_norm` of matrices in float64, from ‖S‖⁸ = ‖(SSᵀ)⁴‖: n^(1/16) times the norm at most.

    S = D/L has ‖S‖_F ≤ 1, so a computed SSᵀ is off by γ_c at most, c the columns, and products of what is computed
    from it by γ_n. They are with transposes, so that none need be symmetric to the last bit: ‖G‖² = ‖GGᵀ‖.
    Dividing by L moves S by 2⁻⁵³ at most.
    """
    rows, columns = matrices.shape[-2:]
    length = torch.linalg.vector_norm(matrices) * (1 + gamma(matrices.numel())) + 2.0**-400
    scaled = matrices / length
    gram = scaled @ scaled.mT
    square = gram @ gram.mT
    fourth = torch.linalg.vector_norm(square @ square.mT, dim=(-2, -1)).amax()

    def norms(values: Sequence[float]) -> tuple[float, float]:
        found, bound = values[0], values[1] * (1 + gamma(rows * rows))
        for lost in (rows, rows, columns):
            bound = math.sqrt(bound + 2 * gamma(lost))
        return found, (bound + 2 * DOUBLE) * found * UP

    return Moments(torch.stack((length, fourth)), norms)


def _centred(weight: Tensor, copy: Tensor, share: float, blocks: Blocks) -> Moments:
    """As :func:`drift_norm` of one matrix [rows, columns], from Gram matrices of blocks of its rows.

    By native code they are those of D_i; by torch's operations of what rounding to bfloat16 leaves of it: B, with
    ‖D - B‖_F ≤ 2⁻⁸‖D‖_F.
    """
    height, count = blocks.height, 2 + blocks.squarings
    found, unit, terms = native.gram_moments(weight, copy, share, height, count), 0.0, native.ROUNDINGS
    if found is None:
        found, unit, terms = _of_rounded(weight, copy, share, height, count), BRAIN, weight.shape[1]
    return Moments(found.flatten(), partial(_summed, weight.shape, height, count, unit, terms))


def _of_rounded(weight: Tensor, copy: Tensor, share: float, height: int, count: int) -> Tensor:
    """Return the :func:`moments` of the Gram matrices of blocks of B: [blocks, count]."""
    found = []
    for now, then in _pieces(weight, copy, height):
        rounded = difference(now, then, share).to(torch.bfloat16)
        whole = len(rounded) - len(rounded) % height
        for rows in (rounded[:whole].reshape(-1, height, rounded.shape[1]), rounded[None, whole:]):
            if rows.numel():
                found.append(moments(_grams(rows), count))
    return torch.cat(found)


def moments(grams: Tensor, count: int) -> Tensor:
    """Return of Gram matrices G [N, r, r] in float64 their traces, the Frobenius norms of E = G - μI, μ = trace/r,
    and those of (E/‖E‖_F)² = F, of (F/‖F‖_F)² and so on: [N, count].
    """
    traces = grams.diagonal(dim1=-2, dim2=-1).sum(-1)
    power = grams.clone()
    power.diagonal(dim1=-2, dim2=-1).sub_(traces[:, None] / grams.shape[-1])
    found = [traces, torch.linalg.vector_norm(power, dim=(-2, -1))]
    while len(found) < count:
        power = power / found[-1].clamp_min(2.0**-1000)[:, None, None]
        power = power @ power.mT
        found.append(torch.linalg.vector_norm(power, dim=(-2, -1)))
    return torch.stack(found, dim=-1)


def _summed(
    shape: torch.Size, height: int, count: int, unit: float, terms: int, values: Sequence[float]
) -> tuple[float, float]:
    """Return the bounds that ``count`` :func:`moments` of each computed Gram matrix G_i give of D, of shape [rows,
    columns], whose blocks of r_i rows, ``height`` but for the last, were rounded to B_i.

    G_i is off by γ_k‖B_i‖_F² in Frobenius norm, k the ``terms`` of a sum: products of bfloat16 are exact in
    float32, in which they are added, and those of native code are fused. It is off by u‖G_i‖_F more where each
    entry is rounded as D was, by u = ``unit``. Hence ‖B‖² ≤ Σ(μ_i + ‖E_i‖) for E_i = G_i - μ_iI, and what they are
    off, by ‖G_i‖_F ≤ ‖E_i‖_F + μ_i√r_i; and ‖B‖_F² is the sum of their traces, up to as much.
    """
    lost = gamma_single(terms)
    squared = traces = 0.0
    for i, (trace, *lengths) in enumerate(zip(*[iter(values)] * count, strict=True)):
        rows = min(height, shape[0] - i * height)
        squared += trace / rows + _symmetric_norm(lengths) + 2 * unit * (lengths[0] + trace / math.sqrt(rows))
        traces += trace
    vanished = _vanished(shape.numel())
    whole = math.sqrt(traces * (1 + lost) / (1 - unit)) / (1 - unit) + vanished
    error = lost * whole * whole  # of ‖B‖, at most (1 + u)‖D‖: γ has more than that to spare
    bound = math.sqrt(squared + error) * (1 + gamma(len(values) + height**2)) + unit * whole + vanished
    return whole * UP, bound * UP


def _symmetric_norm(lengths: Sequence[float]) -> float:
    """Return a bound of the operator norm of E, from ‖E‖_F and the Frobenius norms of what is squared on.

    ‖S‖² = ‖S²‖ for a symmetric S, with ‖S‖_F = 1 but for what float64 rounds. In float32 it is off by u, S² by 2u
    more than its products are, by γ_36.
    """
    root = 1.0
    for length in reversed(lengths[1:]):
        root = math.sqrt(length * root + gamma_single(native.ROUNDINGS + 2))
    return lengths[0] * root


def _grams(blocks: Tensor) -> Tensor:
    """BBᵀ, added up in float32; in float64, where squares of what is small do not vanish. On other devices than
    processors bfloat16 may be added up in bfloat16: not there.
    """
    if not is_processor(blocks.device) or not _adds_in_single():
        blocks = blocks.float()  # numbers that TF32 leaves as they are
    return torch.bmm(blocks, blocks.mT).to(torch.float64)


@cache
def _adds_in_single() -> bool:
    """Whether processors add products of bfloat16 in float32, as oneDNN and torch's own loops do.

    In bfloat16 4096 ones would be 256.
    """
    ones = torch.ones(64, 4096, dtype=torch.bfloat16, device="cpu")
    return bool((ones @ ones.mT == 4096).all())

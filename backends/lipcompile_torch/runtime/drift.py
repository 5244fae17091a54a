"""How far a weight has moved since its norm was certified: two bounds that cost less than a certificate.

‖W‖ ≤ a·‖W₀‖ + ‖W - a·W₀‖ for every a, so a certificate of W₀ goes on bounding W, whatever changed it, as long as
what changed is small. Nothing is guessed: both bounds hold for every tensor.

- The Frobenius norm: one pass over memory, but √n/2 times the operator norm of a Gaussian n × n matrix, which
  noise is.
- ‖D‖² ≤ Σ‖D_i‖² over blocks of rows D_i, and ‖D_i‖² ≤ μ + ‖D_iD_iᵀ - μI‖_F for every μ, by the eigenvalues of
  D_iD_iᵀ - μI. With μ their mean it is 2.9 times the operator norm of Gaussian matrices of 500 rows. Only the
  order of magnitude counts, so the product may be one of bfloat16, which processors multiply several times as
  fast as float32: what rounding adds are a few per cent. Small matrices are squared on instead.

Differences are taken a few blocks at a time: a weight of any size needs room for these alone, and they are
measured while they are in a cache.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache

import torch
from torch import Tensor

from .gram import gamma

_SINGLE = 2.0**-24
_BRAIN = 2.0**-8  # unit roundoff of bfloat16
_SMALL = 64  # up to here float64 costs less than what bfloat16 takes beside the product
_BLOCK = 64  # rows of a matrix whose Gram matrix is computed by itself
_PIECE = 2**18  # entries of a difference that are there at a time, on processors
_UP = 1 + 2.0**-48


def gamma_single(terms: int) -> float:
    """γ_k of float32, with a factor of four to spare: sums in any order, of tensor cores that truncate."""
    return 4 * (terms + 2) * _SINGLE


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
    return 8 * _SINGLE * (length + 2 * copied)


def frobenius_length(matrices: Tensor) -> Tensor:
    """Return a bound of the Frobenius norm of ``matrices`` [N, rows, columns], 0-dim in float64; of NaN, NaN.

    Row by row in the dtype, and these in float64. Squares that vanish in float32 are below 2^-126.
    """
    rows = torch.linalg.vector_norm(matrices, dim=-1).to(torch.float64)
    norm: Tensor = torch.linalg.vector_norm(rows)
    return norm * (1 + gamma_single(matrices.shape[-1]) + gamma(rows.numel())) + _vanished(matrices)


def _vanished(matrices: Tensor) -> float:
    """Return a bound of the Frobenius norm of entries whose squares vanish in float32, and of entries that do in
    bfloat16; and of the root of what sums of products lose, if each vanishes.
    """
    return 2.0**-62 * math.sqrt(matrices.numel())


def drift_length(weight: Tensor, copy: Tensor, share: float) -> Tensor:
    """Return a bound of the Frobenius norm of the computed `difference` of [N, rows, columns], 0-dim."""
    lengths = [frobenius_length(difference(*pair, share)) for pair in _pieces(weight, copy)]
    length: Tensor = torch.linalg.vector_norm(torch.stack(lengths)) * (1 + gamma(len(lengths)))
    return length


def drift_norm(weight: Tensor, copy: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Return bounds of the Frobenius norm of the computed `difference` of [N, rows, columns], and of the largest
    operator norm among its matrices; 0-dim in float64, or not finite, if an entry or a square is not.
    """
    if weight.shape[-2] > weight.shape[-1]:
        weight, copy = weight.mT, copy.mT
    if weight.shape[-2] <= _SMALL:
        return _squared(difference(weight, copy, share).to(torch.float64))
    pairs = [_centred(one[None], other[None], share) for one, other in zip(weight, copy, strict=True)]
    if len(pairs) == 1:
        return pairs[0]
    lengths, norms = (torch.stack(column) for column in zip(*pairs, strict=True))
    return torch.linalg.vector_norm(lengths) * (1 + gamma(len(lengths))), norms.amax()


def _pieces(weight: Tensor, copy: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield both, cut alike along the rows: into a few blocks at a time on processors, else whole."""
    blocks = max(1, _PIECE // (_BLOCK * max(1, len(weight) * weight.shape[-1])))
    rows = blocks * _BLOCK if weight.device.type == "cpu" else max(1, weight.shape[-2])
    yield from zip(torch.split(weight, rows, dim=-2), torch.split(copy, rows, dim=-2), strict=True)


def _squared(matrices: Tensor) -> tuple[Tensor, Tensor]:
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
    bound = torch.linalg.vector_norm(square @ square.mT, dim=(-2, -1)).amax() * (1 + gamma(rows * rows))
    for lost in (rows, rows, columns):
        bound = (bound + 2 * gamma(lost)).sqrt()
    return length, (bound + 2.0**-52) * length * _UP


def _centred(weight: Tensor, copy: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """As :func:`drift_norm` of one matrix [1, rows, columns], from what rounding to bfloat16 leaves of it: B, with
    ‖D - B‖_F ≤ 2⁻⁸‖D‖_F.

    Of blocks B_i the computed Gram matrices G_i are off by γ_c‖B_i‖_F² in Frobenius norm, c the columns, since
    products of bfloat16 are exact in float32, in which they are added; and by 2⁻⁸‖G_i‖_F, since each entry is
    rounded once more. Hence ‖B‖² ≤ Σ(μ_i + ‖G_i - μ_iI‖_F) and what they are off, and ‖B‖_F² is the sum of their
    traces, up to as much.
    """
    means, distances, sizes = [], [], []
    for now, then in _pieces(weight, copy):
        rounded = difference(now[0], then[0], share).to(torch.bfloat16)
        whole = len(rounded) - len(rounded) % _BLOCK
        for blocks in (rounded[:whole].reshape(-1, _BLOCK, rounded.shape[1]), rounded[whole:][None]):
            if blocks.numel():
                grams = _grams(blocks)
                diagonals = grams.diagonal(dim1=-2, dim2=-1)
                means.append(diagonals.mean(dim=-1))
                diagonals.sub_(means[-1][:, None])
                distances.append(torch.linalg.vector_norm(grams, dim=(-2, -1)))
                sizes += [grams.shape[-1]] * len(grams)
    return _summed(weight, torch.cat(means), torch.cat(distances), sizes)


def _summed(matrix: Tensor, means: Tensor, distances: Tensor, sizes: list[int]) -> tuple[Tensor, Tensor]:
    """Return what :func:`_centred` says, from the μ_i and ‖G_i - μ_iI‖_F of blocks with so many rows."""
    rows, lost = means.new_tensor(sizes), gamma_single(matrix.shape[-1])
    trace = (means * rows).sum() * (1 + 4 * _BRAIN + lost)
    length = trace.sqrt() * (1 + 2 * _BRAIN) + _vanished(matrix)
    squared = (means + distances + 2 * _BRAIN * (distances + means * rows.sqrt())).sum()
    error = lost * ((1 + _BRAIN) * length) ** 2
    return length, (squared + error).sqrt() * (1 + gamma(len(sizes) + _BLOCK**2)) + _BRAIN * length + _vanished(
        matrix
    )


def _grams(blocks: Tensor) -> Tensor:
    """BBᵀ, added up in float32; in float64, where squares of what is small do not vanish. On other devices than
    processors bfloat16 may be added up in bfloat16: not there.
    """
    if blocks.device.type != "cpu" or not _adds_in_single():
        blocks = blocks.float()  # numbers that TF32 leaves as they are
    return torch.bmm(blocks, blocks.mT).to(torch.float64)


@cache
def _adds_in_single() -> bool:
    """Whether processors add products of bfloat16 in float32, as oneDNN and torch's own loops do.

    In bfloat16 4096 ones would be 256.
    """
    ones = torch.ones(64, 4096, dtype=torch.bfloat16)
    return bool((ones @ ones.mT == 4096).all())

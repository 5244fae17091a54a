"""How far a weight has moved since its norm was certified: two bounds that cost less than a certificate.

‖W‖ ≤ a·‖W₀‖ + ‖W - a·W₀‖ for every a, so a certificate of W₀ goes on bounding W, whatever changed it, as long as
what changed is small. Nothing is guessed: both bounds hold for every tensor.

- The Frobenius norm: one pass over memory, but √n/2 times the operator norm of a Gaussian n × n matrix, which
  noise is.
- ‖D‖² ≤ μ + ‖DDᵀ - μI‖_F for every μ, from the eigenvalues of DDᵀ - μI. With μ their mean it is 2.5 times the
  operator norm of Gaussian matrices of 500 rows, 2.9 times of 1000. Only the order of magnitude counts, so the
  product may be one of bfloat16, which processors multiply several times as fast as float32: what rounding adds
  are a few per cent. Small matrices are squared on instead (:mod:`.gram`).
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from .gram import gamma, iterated

_SINGLE = 2.0**-24
_BRAIN = 2.0**-8  # unit roundoff of bfloat16
_SMALL = 64  # up to here float64 costs less than what bfloat16 takes beside the product
_SQUARINGS = 2
_BLOCK = 128  # rows of a matrix whose Gram matrix is computed by itself


def gamma_single(terms: int) -> float:
    """γ_k of float32, with a factor of four to spare: sums in any order, of tensor cores that truncate."""
    return 4 * (terms + 2) * _SINGLE


def difference(weight: Tensor, copy: Tensor, share: float) -> Tensor:
    """Return weight - share·copy, in float32, or in float64 for weights that are."""
    return torch.sub(weight.to(torch.promote_types(weight.dtype, torch.float32)), copy, alpha=share)


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
    lost = 2.0**-62 * math.sqrt(matrices.numel())
    norm: Tensor = torch.linalg.vector_norm(rows)
    return norm * (1 + gamma_single(matrices.shape[-1]) + gamma(rows.numel())) + lost


def spectral_length(matrices: Tensor, length: float) -> Tensor:
    """Return a bound of the largest operator norm among ``matrices`` [N, rows, columns], 0-dim in float64.

    Args:
        matrices: float32 or float64.
        length: at least their Frobenius norm, positive and finite.
    """
    if matrices.shape[-2] > matrices.shape[-1]:
        matrices = matrices.mT
    scale = 1.0
    if not 2.0**-20 < length < 2.0**20:
        scale = math.ldexp(
            1.0, -math.frexp(length)[1]
        )  # a power of two, so that squares neither vanish nor overflow
        if not 2.0**-100 < scale < 2.0**100:
            return matrices.new_tensor(length, dtype=torch.float64)
        matrices, length = matrices * scale, length * scale
    if matrices.shape[-2] <= _SMALL:
        return _squared(matrices.to(torch.float64), length) / scale
    rounded, centre = matrices.to(torch.bfloat16), length * length / (len(matrices) * matrices.shape[-2])
    return torch.stack([_centred(matrix, length, centre) for matrix in rounded]).amax() / scale


def _squared(matrices: Tensor, length: float) -> Tensor:
    """By Gram iteration in float64: n^(1/16) times the norm at most, and what the products round."""
    error = gamma(matrices.shape[-1]) * length * length
    return (iterated(matrices @ matrices.mT, _SQUARINGS).amax() + error).sqrt() * (1 + 2.0**-48)


def _centred(matrix: Tensor, length: float, centre: float) -> Tensor:
    """√Σ(μ + ‖BBᵀ - μI‖_F) over blocks B of rows of what rounding to bfloat16 left, and what it took: 2^-8 of each
    entry.

    Products of bfloat16 are exact in float32, in which they are added: a sum is off by γ_k|B||B|ᵀ, in Frobenius
    norm by γ_k‖B‖_F² at most, and each of its entries is rounded once more.
    """
    size, terms = matrix.shape
    whole, squared = size - size % _BLOCK, torch.zeros((), dtype=torch.float64, device=matrix.device)
    for blocks in (matrix[:whole].reshape(-1, _BLOCK, terms), matrix[whole:][None]):
        count, rows = blocks.shape[:2]
        if count and rows:
            grams = _grams(blocks)
            grams.diagonal(dim1=-2, dim2=-1).sub_(centre)
            distance = torch.linalg.vector_norm(grams, dim=-1).to(torch.float64).square().sum(-1).sqrt().sum()
            rounded = 2 * _BRAIN * (distance + count * centre * math.sqrt(rows))
            squared += count * centre + distance * (1 + gamma_single(rows)) + rounded
    error = gamma_single(terms) * ((1 + _BRAIN) * length) ** 2
    return (squared + error).sqrt() * (1 + 2.0**-48) + _BRAIN * length


def _grams(blocks: Tensor) -> Tensor:
    """BBᵀ in float32. On other devices than processors bfloat16 may be added up in bfloat16: not there."""
    if blocks.device.type != "cpu" or not _adds_in_single():
        blocks = blocks.float()  # numbers that TF32 leaves as they are
    return torch.bmm(blocks, blocks.mT).float()


@cache
def _adds_in_single() -> bool:
    """Whether processors add products of bfloat16 in float32, as oneDNN and torch's own loops do.

    In bfloat16 4096 ones would be 256.
    """
    ones = torch.ones(64, 4096, dtype=torch.bfloat16)
    return bool((ones @ ones.mT == 4096).all())

"""Certified spectral norms in float32: a fifth of what they cost in float64, one or two per cent too large.

As in :mod:`.norms` an iteration guesses the largest eigenvalue of a Gram matrix and a factorisation proves it.
What float32 rounds is bounded and added. Gram matrices are summed in chunks, each by itself, so that rounding
grows with the length of a chunk and the number of chunks, not with their product.

Notation: u = 2⁻²⁴, γ_k = k·u/(1-k·u), with a factor of two to spare.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .. import native
from .drift import frobenius_length
from .rounding import SINGLE, UP, gamma_single

_CHUNK = 128  # terms of a sum
_ROWS = 128  # of a Gram matrix at a time: what lies above the diagonal blocks is not computed, but copied
_FACTOR = 256  # above this size a factorisation is made in two halves, which is faster
_STEPS = 24  # of Lanczos, from a fixed start: within a few thousandths on matrices that training makes
_SLACKS = (4e-3, 2e-2, 1e-1)  # above the guess, at which a proof is tried


def spectral_bound(matrix: Tensor) -> float:
    """Return a bound of the spectral norm of ``matrix`` [rows, columns] in float32, at most its Frobenius norm.

    To be called where products of float32 are computed in float32, see :func:`~.precision.single_is_kept`.

    Formal guarantees: the computed Gram matrix is off by γ_c|M||M|ᵀ at most, c the roundings on the way of a
    product into its entry, so by γ_c‖M‖_F² in norm; the rest is :func:`_proved`. NaN or infinity if an entry is.
    """
    length = float(frobenius_length(matrix[None]))
    if not 2.0**-100 < length < 2.0**100:
        return length
    rows, scale = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.mT, 1.0
    if not 2.0**-20 < length < 2.0**20:  # squares of what matters might vanish, or overflow
        scale = math.ldexp(1.0, -math.frexp(length)[1])
        rows = rows * scale
    gram, roundings = _gram(rows)
    error = gamma_single(roundings) / 2 * (length * scale) ** 2
    guess = _guess(gram)
    for slack in _SLACKS:
        limit = guess * (1 + slack)
        proved = _proved(gram, limit)
        if proved < math.inf:
            return min(math.sqrt(proved + error) / scale * UP, length)
    return length


def _gram(rows: Tensor) -> tuple[Tensor, int]:
    """Return rows·rowsᵀ, exactly symmetric, and how many roundings there are on the way of a product into an
    entry: without native code those of a chunk, and of the sum of chunks.
    """
    found = native.gram_matrix(rows)
    if found is not None:
        return found, native.ROUNDINGS + 1
    size, columns = rows.shape
    gram = rows.new_empty(size, size)
    for top in range(0, size, _ROWS):
        end = min(top + _ROWS, size)
        block = rows[top:end, :_CHUNK] @ rows[:end, :_CHUNK].mT
        for left in range(_CHUNK, columns, _CHUNK):
            block += rows[top:end, left : left + _CHUNK] @ rows[:end, left : left + _CHUNK].mT
        gram[top:end, :end] = block
        gram[:top, top:end] = block[:, :top].mT
    return gram, _CHUNK + columns // _CHUNK + 1


def _guess(gram: Tensor) -> float:
    """The largest Ritz value after a few steps of Lanczos; nothing is guaranteed."""
    start = torch.randn(len(gram), generator=torch.Generator().manual_seed(0), dtype=gram.dtype).to(gram.device)
    vector, previous, beta = start / torch.linalg.vector_norm(start), torch.zeros_like(start), start.new_zeros(())
    diagonal, side = [], []
    for _ in range(min(_STEPS, len(gram))):
        image = torch.mv(gram, vector).addcmul_(previous, beta, value=-1)
        alpha = torch.dot(image, vector)
        image.addcmul_(vector, alpha, value=-1)
        beta = torch.linalg.vector_norm(image)
        diagonal.append(alpha)
        side.append(beta)
        previous, vector = vector, image / beta.clamp_min(1e-30)
    upper = torch.diag_embed(torch.stack(side[:-1]), offset=1) if side[:-1] else gram.new_zeros(1, 1)
    ritz = (torch.diag_embed(torch.stack(diagonal)) + upper + upper.mT).to(torch.float64)
    return float(torch.linalg.eigvalsh(ritz)[-1]) if bool(torch.isfinite(ritz).all()) else 1.0


def _proved(gram: Tensor, limit: float) -> float:
    """Return a bound of the largest eigenvalue of ``gram`` a little above ``limit``, or infinity without a proof.

    Formal guarantees: if a Cholesky factorisation of A = τI - G runs to its end, A + E = RᵀR with ‖E‖ ≤
    γ_{n+1}/(1-γ_{n+1})·tr(A) (Higham, theorem 10.3, which holds in blocks as well), so λ_max(G) ≤ τ + ‖E‖. The
    rounding of the diagonal of A adds u(τ + max|A_ii|).
    """
    shifted = -gram
    shifted.diagonal().add_(limit)
    if not _positive(shifted):
        return math.inf
    trace = float(shifted.diagonal().double().sum())
    return limit + gamma_single(len(gram)) / 2 * trace + 4 * SINGLE * (limit + trace)


def _positive(matrix: Tensor) -> bool:
    """Whether Cholesky runs to its end; overwrites the matrix."""
    if len(matrix) <= _FACTOR:
        return not bool(torch.linalg.cholesky_ex(matrix).info)
    half = len(matrix) // 2
    factor, info = torch.linalg.cholesky_ex(matrix[:half, :half])
    if bool(info):
        return False
    beside = torch.linalg.solve_triangular(factor, matrix[half:, :half].mT, upper=False)
    return _positive(matrix[half:, half:].addmm_(beside.mT, beside, alpha=-1))

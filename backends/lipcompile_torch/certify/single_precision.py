"""Certified norms in float32: of a matrix, and the largest of what a convolution does at many frequencies.

They cost a fifth of what they do in float64, and are one or two per cent too large. As in :mod:`.norms` an
iteration guesses the largest eigenvalue of a Gram matrix, or among many, and factorisations prove it. The rounding
error of float32 is bounded and added. Gram matrices are summed in chunks, each by itself, so that rounding grows
with the length of a chunk and the number of chunks, not with their product. In native code each matrix of a
frequency has a lane to itself.

Notation: u = 2⁻²⁴, γ_k = k·u/(1-k·u), with a factor of two to spare.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from .. import native
from .drift import frobenius_length
from .norms import guess_eigenvalue
from .rounding import SINGLE, UP, gamma_single

_CHUNK = 128  # terms of a sum
_ROWS = 128  # of a Gram matrix at a time: what lies above the diagonal blocks is not computed, but copied
_FACTOR = 256  # above this size a factorisation is made in two halves, which is faster
_STEPS = 24  # of Lanczos, from a fixed start: within a few thousandths on matrices that training makes
_SLACKS = (4e-3, 2e-2, 1e-1)  # above the guess, at which a proof is tried
_FREQUENCY_SLACKS = (1e-3, 4e-3, 2e-2, 1e-1)
_SUSPECTS = 8  # matrices of many that a guess looks at


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


# --- at many frequencies ---


@dataclass(frozen=True)
class Transform:
    """The matrices K̂(ω) = Σ_p exp(i·angle(ω, p))·K_p that kernels have at N frequencies.

    Args:
        kernels: [groups, rows, columns, positions].
        angles: [N, positions], float64.
    """

    kernels: Tensor
    angles: Tensor

    def waves(self) -> tuple[Tensor, Tensor]:
        """Return cosines and sines [N, positions] in the dtype of the kernels."""
        return self.angles.cos().to(self.kernels.dtype), self.angles.sin().to(self.kernels.dtype)

    def maps(self) -> Tensor:
        """Return the matrices [N·groups, rows, columns], complex, by plain products: each entry is a sum over
        positions.
        """
        kernels = self.kernels.flatten(0, 2).mT
        cosines, sines = self.waves()
        return torch.complex(cosines @ kernels, sines @ kernels).reshape(-1, *self.kernels.shape[1:3])


class Spectra(Protocol):
    """Gram matrices in float32, those of which nothing has been proved yet."""

    def largest_trace(self) -> float:
        """Return the largest trace, summed up in float64."""

    def guess(self) -> float:
        """Guess their largest eigenvalue; nothing is guaranteed."""

    def prove(self, limit: float) -> float:
        """Factorise limit - gram by Cholesky in float32, and drop the matrices of which that runs to its end.

        Returns:
            the largest trace of what was factorised.
        """

    def are_proved(self) -> bool:
        """Whether none is left."""


def transform_bound(transform: Transform) -> float:
    """Return a bound of the largest spectral norm among the matrices of a transform, as computed in float32;
    infinity without a proof.

    To be called where products of float32 are computed in float32, see :func:`~.precision.single_is_kept`.

    Args:
        transform: of kernels in float32, with entries of order one.

    Formal guarantees: a sum of k products of complex numbers is off by √2·γ_2k of the sum of their moduli, each
    part being a sum of 2k real ones; so the Gram matrix G of W is off by γ‖W‖_F² in norm, γ by
    :func:`~.rounding.gamma_single`, which is above that. So are the entries on its diagonal, relatively, whence
    ‖W‖_F² ≤ tr(G)/(1-γ). Of eigenvalues see :func:`_largest_proved`. Not counted here are what the
    transform rounds, and what underflows, which is far below it where an entry of the kernel is of order one.
    """
    _, rows, columns, _ = transform.kernels.shape
    spectra = native.spectra(transform.kernels, *transform.waves()) or _ByTorch(transform.maps())
    share, trace = gamma_single(max(rows, columns)), spectra.largest_trace()
    if not (share < 0.5 and trace < math.inf):
        return math.inf
    error = share / (1 - share) * trace  # what this rounds is far below what γ has to spare
    return math.sqrt(_largest_proved(spectra, min(rows, columns)) + error) * UP


def _largest_proved(spectra: Spectra, size: int) -> float:
    """Return a bound of the largest eigenvalue of Hermitian matrices [size, size], or infinity.

    What a limit is proved for lies below higher limits as well, so these are tried on what is left.

    Formal guarantees: if a factorisation of A = τI - G runs to its end, A + E = RᴴR with ‖E‖ ≤ γ·tr(A), γ by
    :func:`~.rounding.gamma_single`, above √2·γ_{2n+2}/(1-√2·γ_{2n+2}) (Higham, theorem 10.3, for complex numbers,
    and in blocks as well), so λ_max(G) ≤ τ + ‖E‖. The rounding of the diagonal of A adds u(τ + max|A_ii|).
    """
    guess, excess = spectra.guess(), 0.0
    for slack in _FREQUENCY_SLACKS:
        limit = float(torch.tensor(guess * (1 + slack), dtype=torch.float32, device="cpu"))
        if not 0 < limit < math.inf:
            return math.inf
        trace = spectra.prove(limit)
        excess = max(excess, gamma_single(size) * trace + 4 * SINGLE * (limit + trace))
        if spectra.are_proved():
            return limit + excess
        guess = max(guess, spectra.guess())
    return math.inf


class _ByTorch:
    """Gram matrices, on the smaller side, of maps [N, rows, columns] in complex64."""

    def __init__(self, maps: Tensor) -> None:
        self._grams = maps @ maps.mH if maps.shape[-2] <= maps.shape[-1] else maps.mH @ maps

    def largest_trace(self) -> float:
        """Of the diagonals."""
        return float(self._grams.diagonal(dim1=-2, dim2=-1).real.to(torch.float64).sum(dim=-1).amax())

    def guess(self) -> float:
        """By those of the few matrices of largest Frobenius norm."""
        lengths = torch.linalg.vector_norm(torch.view_as_real(self._grams).flatten(1), dim=1)
        suspects = self._grams[lengths.topk(min(_SUSPECTS, len(lengths))).indices]
        return guess_eigenvalue(suspects) if bool(torch.isfinite(lengths).all()) else math.inf

    def prove(self, limit: float) -> float:
        """Of all by one call of LAPACK."""
        grams = self._grams
        shifted = torch.neg(grams, out=torch.empty_like(grams).mT)  # of columns side by side, as LAPACK has them
        shifted.diagonal(dim1=-2, dim2=-1).add_(limit)
        trace = float(shifted.diagonal(dim1=-2, dim2=-1).real.to(torch.float64).sum(dim=-1).amax())
        info = torch.empty(len(grams), dtype=torch.int32, device=grams.device)
        torch.linalg.cholesky_ex(shifted, out=(shifted, info))
        self._grams = grams[info != 0]
        return trace

    def are_proved(self) -> bool:
        """Whether no matrix is left."""
        return len(self._grams) == 0

"""Certified norms in float32 of what convolutions do at many frequencies: the largest among matrices.

As in :mod:`.single` an iteration guesses the largest eigenvalue among Gram matrices and factorisations prove it;
what float32 rounds is bounded and added. In native code each of these matrices has a lane to itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from .. import native
from .norms import guess_eigenvalue
from .rounding import SINGLE, UP, gamma_single

_SUSPECTS = 8  # matrices that the guess looks at
_SLACKS = (1e-3, 4e-3, 2e-2, 1e-1)  # above the guess, at which a proof is tried


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
    :func:`~.drift.gamma_single`, which is above that. So are the entries on its diagonal, relatively, whence
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
    :func:`~.drift.gamma_single`, above √2·γ_{2n+2}/(1-√2·γ_{2n+2}) (Higham, theorem 10.3, for complex numbers, and
    in blocks as well), so λ_max(G) ≤ τ + ‖E‖. The rounding of the diagonal of A adds u(τ + max|A_ii|).
    """
    guess, excess = spectra.guess(), 0.0
    for slack in _SLACKS:
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

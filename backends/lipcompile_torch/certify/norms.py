"""Certified upper bounds of Euclidean and operator norms.

Every number that leaves this file is an upper bound of a real number, whatever the iteration behind it did.
Iterations (Lanczos, a dense eigenvalue solver) only *guess* where the largest eigenvalue lies; a completed
Cholesky factorisation *proves* it. So a guess that is wrong costs tightness, never soundness.

Notation: u = 2⁻⁵³; ``gamma(k)`` is Higham's γ_k = k·u/(1-k·u) with a factor of eight to spare, which covers
complex arithmetic (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., lemma 3.5), underflow of
entries far below the largest one, blocked algorithms and the rounding of the bound itself.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from ..devices import is_processor
from .rounding import UP, gamma

_SMALLEST_NORMAL = 2.0**-1022
_EXACT_SIZE = 64  # up to here a dense eigenvalue solver costs no more than Lanczos
_SLACKS = (1e-8, 1e-5, 1e-3)  # distances above the guess at which a proof is tried
_SUSPECTS = 8  # matrices of a stack that the guess looks at
_PIECE = 2**16  # entries of a matrix that are there in float64 at a time, and at least
_COLUMNS = 128  # so many columns


class Norm(Protocol):
    """A certified norm of one tensor."""

    @property
    def bound(self) -> float:
        """An upper bound of the norm."""

    @property
    def coarse(self) -> float:
        """A cheap upper bound of the norm of every tensor D with |D| ≤ |weight| entry by entry."""

    def at_most(self, limit: float) -> bool:
        """Whether the norm is certified to be at most ``limit``: True is a theorem, False says nothing."""


def normalised(weight: Tensor) -> tuple[Tensor, float]:
    """Return ``weight`` in float64 divided exactly by a power of two, and that power.

    The largest entry of the result lies in [1/2, 2), or in [2⁻⁷⁴, 2) if it was below 2⁻¹⁰⁰⁰, so no later square
    under- or overflows; a weight that is exactly zero comes back with the scale 0.

    Raises:
        ValueError: an entry is not finite.
    """
    scale = power_above(weight)
    return _divided(weight, scale), scale


def power_above(weight: Tensor) -> float:
    """Return the power of two above the largest entry, but no less than 2⁻¹⁰⁰⁰ and no more than 2¹⁰²³; 0 for a
    weight that is exactly zero.

    Raises:
        ValueError: an entry is not finite.
    """
    low, high = torch.aminmax(weight.detach()) if weight.numel() else (weight.new_zeros(()),) * 2
    largest = float(torch.maximum(high, -low))
    if not largest < math.inf:
        raise ValueError(
            "a weight contains NaN or infinity, so it has no norm: training diverged, or the file is damaged"
        )
    return math.ldexp(1.0, min(max(math.frexp(largest)[1], -1000), 1023)) if largest else 0.0


def check_finite(weights: Sequence[Tensor]) -> None:
    """Ask each device but processors once whether all entries of weights are finite.

    Raises:
        ValueError: an entry is not.
    """
    for device in {weight.device for weight in weights}:
        there = [weight.detach() for weight in weights if weight.device == device]
        # Sums of absolute values: one that overflows says nothing.
        if is_processor(device) or not bool(torch.stack(torch._foreach_norm(there, 1)).sum().isfinite()):
            for weight in there:
                power_above(weight)


def _divided(weight: Tensor, power: float) -> Tensor:
    """Return a copy in float64 divided exactly by a power of two; by 0, undivided."""
    return weight.detach().to(torch.float64, copy=True).mul_(1 / power if power else 1.0)


def times(bound: float, scale: float) -> float:
    """Return bound·scale, rounded up, of a bound that has the rounding of one product to spare: below the normal
    numbers rounding is absolute.
    """
    found = bound * scale
    return math.nextafter(found, math.inf) if 0 < found < _SMALLEST_NORMAL else found


@dataclass(frozen=True)
class _ReadOff(ABC):
    """A norm that is read off the entries of a weight: its bound costs little, and is the best there is."""

    weight: Tensor

    @cached_property
    @abstractmethod
    def bound(self) -> float:
        """The norm, rounded up."""

    @property
    def coarse(self) -> float:
        """The bound itself."""
        return self.bound

    def at_most(self, limit: float) -> bool:
        """Whether the norm is certain to be at most ``limit``."""
        return self.bound <= limit


@dataclass(frozen=True)
class EuclideanNorm(_ReadOff):
    """The Euclidean norm of all entries of a tensor of any shape.

    Formal guarantees: ``bound`` ≥ ‖weight‖. A sum of n squares in float64, in any order, is at least the true
    one divided by 1 + γ_{n+2} (Higham, section 3.1), and its root is correctly rounded.
    """

    @cached_property
    def bound(self) -> float:
        """‖weight‖, rounded up."""
        entries, scale = normalised(self.weight)
        return times(float(torch.linalg.vector_norm(entries)) * (1 + gamma(entries.numel())) * UP, scale)


@dataclass(frozen=True)
class LargestNorm(_ReadOff):
    """The largest Euclidean norm of a row of a matrix [rows, width]; of width 1, the largest absolute entry.

    Formal guarantees: ``bound`` ≥ every row norm, by the rounding of :class:`EuclideanNorm`.
    """

    @cached_property
    def bound(self) -> float:
        """The largest row norm, rounded up."""
        entries, scale = normalised(self.weight)
        if scale == 0.0:
            return 0.0
        if entries.shape[1] == 1:
            return float(entries.abs().max()) * scale  # exact: a power of two
        norms = torch.linalg.vector_norm(entries, dim=1)
        return times(float(norms.max()) * (1 + gamma(entries.shape[1])) * UP, scale)


def frobenius_norms(grams: Tensor) -> Tensor:
    """Return the Frobenius norms [N], rounded up; complex numbers as pairs, which spares their moduli."""
    parts = torch.view_as_real(grams) if grams.is_complex() else grams
    norms: Tensor = torch.linalg.vector_norm(parts.flatten(1), dim=1)
    return norms * (1 + gamma(parts[0].numel()))


def _largest(grams: Tensor) -> Tensor:
    """Keep the few Gram matrices of largest Frobenius norm."""
    if len(grams) <= _SUSPECTS:
        return grams
    return grams[frobenius_norms(grams).topk(_SUSPECTS).indices]


def _lanczos(grams: Tensor) -> float:
    """Guess the largest eigenvalue of a stack [N, n, n]: the largest Ritz value, from a fixed start.

    Without re-orthogonalisation: that duplicates Ritz values but does not move the largest one (Paige 1980).
    """
    start = torch.randn(grams.shape[-1], 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    vector = (start / start.norm()).to(grams).expand(len(grams), -1, 1)
    previous, beta = torch.zeros_like(vector), torch.zeros((), dtype=torch.float64, device=grams.device)
    diagonal, side = [], []
    for _ in range(
        24 + grams.shape[-1] // 64
    ):  # relative error near 1e-6 on Gaussian and near-orthogonal matrices
        image = grams @ vector - beta * previous
        alpha = (vector.mH @ image).real
        image = image - alpha * vector
        beta = torch.linalg.vector_norm(image, dim=1, keepdim=True)
        diagonal.append(alpha.flatten(1))
        side.append(beta.flatten(1))
        previous, vector = vector, image / beta.clamp_min(torch.finfo(beta.dtype).tiny)
    upper = torch.diag_embed(torch.cat(side[:-1], dim=1), offset=1)
    return float(torch.linalg.eigvalsh(torch.diag_embed(torch.cat(diagonal, dim=1)) + upper + upper.mT).max())


def guess_eigenvalue(grams: Tensor) -> float:
    """Guess the largest eigenvalue of a stack of Hermitian matrices; nothing is guaranteed, but a finite number of
    finite matrices.
    """
    if grams.shape[-1] > _EXACT_SIZE:
        return _lanczos(grams)
    found = float(torch.linalg.eigvalsh(grams).max())
    # LAPACK of MKL returns NaN for a few matrices of rank one in float32, as of 12 × 12 equal entries.
    return found if math.isfinite(found) else float(frobenius_norms(grams).max())


def _not_certified(grams: Tensor, limit: float) -> Tensor:
    """Return those of the Hermitian matrices [N, n, n] whose eigenvalues are not proved to be at most
    ``limit``.

    Formal guarantees: a matrix G that is left out has λ_max(G) ≤ limit. Either its Frobenius norm is at most
    the limit, or a Cholesky factorisation of A = τI - G ran to its end. Then A + E = RᴴR with |E| ≤
    γ_{n+1}|R|ᴴ|R|, hence ‖E‖ ≤ γ_{n+1}·tr(A)/(1-γ_{n+1}) (Higham, theorem 10.3; Rump, BIT 46, 2006), so
    λ_min(A) ≥ -2γ_{n+1}·n·τ; the rounding of the diagonal of A adds 2uτ. τ is chosen so that all of it stays
    below the limit.
    """
    size = grams.shape[-1]
    if len(grams) > 1:
        grams = grams[~(frobenius_norms(grams) <= limit)]  # NaN proves nothing
    shift = limit / (1 + size * gamma(size))
    shifted = torch.neg(grams, out=torch.empty_like(grams).mT)  # columns lie side by side, as LAPACK wants them
    shifted.diagonal(dim1=-2, dim2=-1).add_(shift)
    info = torch.empty(len(grams), dtype=torch.int32, device=grams.device)
    torch.linalg.cholesky_ex(shifted, out=(shifted, info))
    failed = info != 0
    return grams if bool(failed.all()) else grams[failed]


def _eigenvalue_bound(grams: Tensor, guess: float) -> float:
    """Return a proved upper bound of the largest eigenvalue of a stack, near the guess if the guess was good."""
    for slack in _SLACKS:
        limit = guess * (1 + slack)
        grams = _not_certified(grams, limit)
        if len(grams) == 0:
            return limit
        if len(grams) > 1:
            guess = max(guess, guess_eigenvalue(_largest(grams)))
    exact = float(torch.linalg.eigvalsh(grams).max())  # of what the guess was too low for
    proved = (limit for slack in _SLACKS if not len(_not_certified(grams, limit := exact * (1 + slack))))
    return next(proved, float(frobenius_norms(grams).max()))


@dataclass(frozen=True)
class GramStack:
    """A proved bound of a linear map: ‖map‖ ≤ factor·(√(λ + gram_error) + map_error).

    λ is the largest eigenvalue among ``grams`` [N, n, n], float64 or complex128, each Hermitian up to
    rounding (the lower triangle counts). A zero ``factor`` means a map that is exactly zero. ``name`` says what
    the matrices are.
    """

    grams: Tensor
    gram_error: float
    map_error: float
    factor: float
    name: str = "matrix"

    @cached_property
    def guess(self) -> float:
        """Where the largest eigenvalue seems to lie; nothing is guaranteed."""
        return guess_eigenvalue(_largest(self.grams))

    @cached_property
    def bound(self) -> float:
        """A certified upper bound of the norm, relative distance to the best provable one ≤ 5e-6 as a rule."""
        if self.factor == 0.0:
            return 0.0
        eigenvalue = _eigenvalue_bound(self.grams, self.guess)
        return times((math.sqrt(eigenvalue + self.gram_error) + self.map_error) * UP, self.factor)

    def at_most(self, limit: float) -> bool:
        """Whether the norm is certified to be at most ``limit``."""
        if self.factor == 0.0:
            return True
        root = limit / self.factor / UP - self.map_error
        square = root * root - self.gram_error  # the step that was taken covers what these round
        if root <= 0 or square <= 0 or self.guess > square:
            return False
        return len(_not_certified(self.grams, square)) == 0


def gram_stack(
    maps: Tensor, factor: float, largest_norm: float, map_error: float = 0.0, name: str = "matrix"
) -> GramStack:
    """Describe max‖maps‖ by Gram matrices on the smaller side.

    Args:
        maps: [N, rows, columns], float64 or complex128; entries of order one.
        factor: scale of the described norm.
        largest_norm: an upper bound of the Frobenius norm of each map.
        map_error: an upper bound of the distance, in operator norm, of each map from the exact one.

    Formal guarantees: the computed Gram matrix differs from the exact one by at most γ_k|W||W|ᴴ entry by
    entry, k the length of the products, so by γ_k‖W‖_F² in norm (Higham, section 3.5); this is
    ``gram_error``.
    """
    rows, columns = maps.shape[-2:]
    grams = maps @ maps.mH if rows <= columns else maps.mH @ maps
    return GramStack(grams, gamma(max(rows, columns)) * largest_norm * largest_norm, map_error, factor, name)


class OperatorNorm:
    """The operator norm of a linear map that is described in one or several ways; the best of them counts."""

    def __init__(self, stacks: Iterable[GramStack], coarse: float) -> None:
        self._pending = iter(stacks)
        self._stacks: list[GramStack] = []
        self.coarse = coarse

    def descriptions(self) -> Iterator[GramStack]:
        """Yield the ways in which the map is described, one after the other: later ones may not be needed."""
        yield from self._stacks
        for stack in self._pending:
            self._stacks.append(stack)
            yield stack

    @cached_property
    def _best(self) -> tuple[float, str]:
        return min([(self.coarse, "Frobenius"), *((stack.bound, stack.name) for stack in self.descriptions())])

    @property
    def bound(self) -> float:
        """A certified upper bound of the operator norm."""
        return self._best[0]

    @property
    def method(self) -> str:
        """The map of the bound: the description of the map that gave the smallest one."""
        return self._best[1]

    def at_most(self, limit: float) -> bool:
        """Whether the operator norm is certified to be at most ``limit``; costs less than ``bound``."""
        return self.coarse <= limit or any(stack.at_most(limit) for stack in self.descriptions())


def matrix_norm(matrix: Tensor) -> OperatorNorm:
    """Return the certified spectral norm of a matrix [rows, columns] of any floating dtype.

    Columns are taken to float64 piece by piece, so that no copy of the whole is made.

    Formal guarantees: as :func:`gram_stack`, for sums in any order.
    """
    scale = power_above(matrix)
    short = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.mT
    pieces = torch.split(short, max(_COLUMNS, _PIECE // max(1, len(short))), dim=1)
    lengths = [torch.linalg.vector_norm(_divided(piece, scale)) for piece in pieces]
    rounding = (1 + gamma(matrix.numel())) * (1 + gamma(len(lengths))) * UP
    frobenius = float(torch.linalg.vector_norm(torch.stack(lengths))) * rounding
    stacks = (_matrix_stack(pieces, scale, frobenius) for _ in range(1))
    return OperatorNorm(stacks, times(frobenius, scale))


def _matrix_stack(pieces: Sequence[Tensor], scale: float, frobenius: float) -> GramStack:
    """As :func:`gram_stack` of one matrix in pieces [rows, some columns], each divided by the scale."""
    rows, columns = len(pieces[0]), sum(piece.shape[1] for piece in pieces)
    gram = pieces[0].new_zeros(rows, rows, dtype=torch.float64)
    for piece in pieces:
        exact = _divided(piece, scale)
        gram.addmm_(exact, exact.mT)
    return GramStack(gram[None], gamma(columns + len(pieces)) * frobenius * frobenius, 0.0, scale)

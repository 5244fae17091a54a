"""Gram iteration: certified bounds of the largest eigenvalues of Hermitian matrices by repeated squaring.

‖S‖ = ‖S^(2^t)‖^(1/2^t) ≤ ‖S^(2^t)‖_F^(1/2^t), which falls to ‖S‖ as t grows: the norm of the map behind the
Gram matrix S exceeds the true one by a factor of at most n^(1/(4·2^t)) (Delattre et al., ICML 2023). Nothing is
guessed, so nothing can fail; a Cholesky proof (:mod:`.norms`) is tighter and cheaper where a guess is good, as it
is on trained weights. ``benchmarks/norms.py`` measures both.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .rounding import UP, gamma


def _hermitian(grams: Tensor) -> Tensor:
    """Mirror the lower triangles: exactly Hermitian matrices."""
    lower = torch.tril(grams, -1)
    diagonal = torch.diagonal(grams, dim1=-2, dim2=-1).real
    return lower + lower.mH + torch.diag_embed(diagonal).to(grams.dtype)


def frobenius_norms(grams: Tensor) -> Tensor:
    """Return the Frobenius norms [N], rounded up; complex numbers as pairs, which spares their moduli."""
    parts = torch.view_as_real(grams) if grams.is_complex() else grams
    norms: Tensor = torch.linalg.vector_norm(parts.flatten(1), dim=1)
    return norms * (1 + gamma(parts[0].numel()))


def _scaled(grams: Tensor) -> tuple[Tensor, Tensor]:
    """Divide by powers of two, which is exact, so that Frobenius norms are at most 1; return these powers [N].

    First by one near the largest entry: no square over- or underflows then, but of entries that do not matter.
    """
    parts = torch.view_as_real(grams) if grams.is_complex() else grams
    first = _power_above(parts.abs().flatten(1).amax(dim=1))
    second = _power_above(frobenius_norms(grams / first[:, None, None]))
    return grams / first[:, None, None] / second[:, None, None], first * second


def _power_above(sizes: Tensor) -> Tensor:
    """The power of two above each size; 1 for size 0."""
    powers = torch.ldexp(torch.ones_like(sizes), torch.frexp(sizes).exponent)
    return torch.where(sizes > 0, powers, torch.ones_like(powers))


def gram_iteration(grams: Tensor, steps: int = 10) -> Tensor:
    """Return upper bounds [N] of the largest eigenvalues of ``grams`` [N, n, n], float64 or complex128, Hermitian
    (the lower triangles count).

    Formal guarantees: no result is below the exact eigenvalue. With ‖S_k‖_F ≤ 1, the computed square differs from
    S_k² by at most γ_n‖S_k‖_F² in Frobenius norm (Higham, section 3.5), √2 times that after mirroring its lower
    triangle. So ‖S_k‖² = ‖S_k²‖ ≤ s_{k+1}‖S_{k+1}‖ + 2γ_n, s_{k+1} the power of two that was divided out. These
    inequalities are followed back from ‖S_t‖ ≤ ‖S_t‖_F, rounding up. Rescaling at every squaring keeps powers
    from under- or overflowing.

    Raises:
        ValueError: an entry is not finite, or a number of steps is negative.
    """
    if steps < 0 or not bool(torch.isfinite(torch.view_as_real(grams) if grams.is_complex() else grams).all()):
        raise ValueError("Gram iteration needs finite matrices and a non-negative number of steps")
    return iterated(grams, steps)


def iterated(grams: Tensor, steps: int) -> Tensor:
    """As :func:`gram_iteration` of finite matrices, without reading any of them from the device."""
    current, first = _scaled(_hermitian(grams))
    powers = []
    for _ in range(steps):
        current, power = _scaled(_hermitian(current @ current))
        powers.append(power)
    bounds = last = frobenius_norms(current)
    for power in reversed(powers):
        bounds = torch.sqrt(power * bounds + 2 * gamma(grams.shape[-1])) * UP
    # Products with powers of two are exact, but for results below the normal numbers.
    found = torch.nextafter(bounds * first, torch.full_like(bounds, torch.inf))
    return torch.where(last > 0, found, torch.zeros_like(bounds))  # 0 of a zero matrix only

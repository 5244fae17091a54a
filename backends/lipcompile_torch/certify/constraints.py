"""Constraint sets Θ and the maps into them.

Projection is post-processing of noisy weights, so any map into Θ costs no privacy; what must hold is that its
result *is* in Θ. Each ``project`` here returns either the very tensor it was given, because a certificate
says that it lies in Θ, or a new tensor, in the same dtype, that a proof or a certificate says does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from .ball import clip_norm
from .norms import EuclideanNorm, Norm, guess_eigenvalue, normalised, power_above
from .operators import Operator
from .remembered import norm_of

_MARGIN = 1e-7  # relative; far above what a certificate loses (1e-9), so a second projection changes nothing
_PROVABLE_ROUNDING = 1e-4  # up to here the worst case of rounding is subtracted; beyond, the result is certified
_FAR = 160  # weights of float32 are closer to one
_PIECE = 2**16  # entries that are scaled at a time
_ISOMETRY = 1e-4  # a Björck iteration stops when a step would move the singular values by less, root mean square


Measure = Callable[[Tensor], Norm]


def scale_into(weight: Tensor, measure: Measure, limit: float) -> Tensor:
    """Scale ``weight`` down until ``measure`` certifies at most ``limit``; return it untouched if it does
    already.

    Formal guarantees: the norm of the returned tensor, as stored, is at most ``limit``. Applying it twice
    changes nothing.
    """
    norm = measure(weight)
    return weight if norm.at_most(limit) else _rescale(weight, norm, measure, limit, weight.dtype)


def _rescale(weight: Tensor, norm: Norm, measure: Measure, limit: float, dtype: torch.dtype) -> Tensor:
    """Scale a weight that is not zero, up or down, so that its norm is certified to be just below ``limit``.

    With unit roundoff u of the dtype each stored entry of fl(s·W) is off by at most 2u·s·|W|, so the norm by
    at most 2u·s·coarse(W). Where that is small (float32, float64) it is subtracted beforehand. Where it is
    not (float16, bfloat16), or where entries may be subnormal, the result is certified again, with a larger
    margin until it passes. Of a limit that is beyond what the dtype holds, the result is half of that at most.

    A weight whose norm is far from one is first multiplied by a power of two, and measured again, so that no
    factor under- or overflows, or is subnormal, where its own rounding would count.
    """
    if not 2.0**-_FAR < norm.bound < 2.0**_FAR:
        weight = normalised(weight)[0]
        norm = measure(weight)
    kind, bound = torch.finfo(dtype), norm.bound
    limit = min(limit, kind.max / 2 * (bound / norm.coarse))  # each entry is at most coarse(W)
    rounding = kind.eps * norm.coarse / bound
    if rounding <= _PROVABLE_ROUNDING and limit > 1e-30:
        return _scaled(weight, limit * (1 - rounding - _MARGIN) / bound, dtype)
    for attempt in range(64):
        scaled = _scaled(weight, limit * max(0.0, 1 - kind.eps * 2.0 ** (attempt - 2)) / bound, dtype)
        if measure(scaled).at_most(limit):
            return scaled
    raise AssertionError("a zero weight satisfies every constraint")


def _scaled(weight: Tensor, factor: float, dtype: torch.dtype) -> Tensor:
    """Return factor·weight, computed in float64 and rounded once, with few entries in float64 at a time."""
    if weight.dim() == 0:
        return _scaled(weight[None], factor, dtype)[0]
    result = torch.empty_like(weight, dtype=dtype, requires_grad=False)
    rows = max(1, _PIECE * len(weight) // max(1, weight.numel()))
    for into, piece in zip(torch.split(result, rows), torch.split(weight.detach(), rows), strict=True):
        into.copy_(piece.to(torch.float64, copy=True).mul_(factor))
    return result


@dataclass(frozen=True)
class Constraint:
    """A ball of weights: ‖weight‖ ≤ bound, in the operator norm unless a subclass says otherwise.

    Args:
        bound: radius, finite and not negative.
        trainable: False freezes the weight: it is certified and projected all the same, and gets no gradient.
    """

    bound: float
    trainable: bool = True

    def __post_init__(self) -> None:
        """Refuse radii that bound nothing."""
        if not 0 <= self.bound < math.inf:
            raise ValueError(f"the bound of a constraint must be finite and non-negative; got {self.bound}")

    def norm(self, weight: Tensor, operator: Operator) -> Norm:
        """Return the norm that is constrained."""
        return norm_of(operator, weight, operator.norm)

    def project(self, weight: Tensor, operator: Operator) -> Tensor:
        """Return a tensor of the same shape and dtype whose norm is certified to be at most ``bound``.

        Formal guarantees: see :func:`scale_into`. A weight that is certified already is returned as it is.

        Raises:
            ValueError: an entry is not finite.
        """
        return scale_into(weight, partial(self.norm, operator=operator), self.bound)

    def fill(self, weight: Tensor, operator: Operator) -> Tensor:
        """Scale ``weight`` up or down to norm ``bound``, as a start of training that lets signals through."""
        norm = self.norm(weight, operator)
        if norm.bound == 0.0:
            return weight
        return _rescale(weight, norm, partial(self.norm, operator=operator), self.bound, weight.dtype)


@dataclass(frozen=True)
class Spectral(Constraint):
    """Operator norm at most ``bound``: scaled down only when above."""

    bound: float = 1.0


@dataclass(frozen=True)
class Fixed(Constraint):
    """A frozen weight of operator norm at most ``bound``: never trained, certified like any other."""

    trainable: bool = False


@dataclass(frozen=True)
class Frobenius(Constraint):
    """Euclidean norm of all entries at most ``bound``."""

    def norm(self, weight: Tensor, operator: Operator) -> EuclideanNorm:  # noqa: ARG002
        """Return the Euclidean norm."""
        return EuclideanNorm(weight)


@dataclass(frozen=True)
class Ball(Frobenius):
    """A bias with ‖b‖ ≤ ``bound``."""


@dataclass(frozen=True)
class Box(Constraint):
    """Entries within ±``bound``."""

    def project(self, weight: Tensor, operator: Operator) -> Tensor:
        """Return the weight with its entries clamped.

        Formal guarantees: no entry is larger than ``bound``, which is first rounded towards 0 in the dtype. A
        weight that lies in the box is returned as it is.

        Raises:
            ValueError: an entry is not finite.
        """
        if self.norm(weight, operator).at_most(self.bound):
            return weight
        limit = torch.tensor(self.bound, dtype=torch.float64).to(weight.dtype)
        if float(limit) > self.bound:
            limit = torch.nextafter(limit, torch.zeros_like(limit))
        return weight.clamp(-float(limit), float(limit))


@dataclass(frozen=True)
class RowBalls(Constraint):
    """Rows of norm at most ``bound``."""

    def project(self, weight: Tensor, operator: Operator) -> Tensor:
        """Return the table with its long rows scaled down.

        Formal guarantees: the norm of every row of the result, as stored, is at most ``bound``: rows are clipped
        as by :func:`.ball.clip_norm`. A certified table is returned as it is.

        Raises:
            ValueError: an entry is not finite.
        """
        if self.norm(weight, operator).at_most(self.bound):
            return weight
        return clip_norm(weight, self.bound) if self.bound > 0 else torch.zeros_like(weight)


@dataclass(frozen=True)
class Free(Constraint):
    """Any finite tensor: no bound depends on it."""

    bound: float = 0.0

    def project(self, weight: Tensor, operator: Operator) -> Tensor:  # noqa: ARG002
        """Return the weight as it is.

        Raises:
            ValueError: an entry is not finite.
        """
        power_above(weight)
        return weight

    def fill(self, weight: Tensor, operator: Operator) -> Tensor:  # noqa: ARG002
        """Return the weight as it is."""
        return weight


@dataclass(frozen=True)
class Orthogonal(Constraint):
    """Equal singular values, and operator norm at most one.

    Björck's iteration W ← W + (I - WWᵀ)W/2, i.e. σ ↦ 1.5σ - 0.5σ³ on every singular value (Björck and Bowie,
    SIAM J. Numer. Anal. 8, 1971; Anil, Lucas, Grosse, ICML 2019), brings them to one; then the result is
    scaled into the unit ball like any other. From a nearly orthogonal matrix one or two steps do. Zero
    singular values stay zero.

    Formal guarantees: operator norm at most one (from the scaling; none of the iteration). Orthogonality
    itself is only approximate, and for a convolution it is that of the reshaped kernel (RKO, Li et al.,
    NeurIPS 2019).

    Args:
        max_steps: most Björck steps per projection; the default lets any float32 matrix converge. With fewer,
            a matrix far from orthogonal gets there over several projections.
    """

    bound: float = 1.0
    max_steps: int = 64

    def __post_init__(self) -> None:
        """Refuse another radius: scale the output instead, or use a spectral constraint."""
        if self.bound != 1.0 or self.max_steps < 1:
            raise ValueError("an orthogonal constraint needs bound 1 and at least one step")

    def project(self, weight: Tensor, operator: Operator) -> Tensor:
        """Return a tensor with certified operator norm ≤ 1 whose matrix has nearly equal singular values.

        Raises:
            ValueError: an entry is not finite.
        """
        norm = self.norm(weight, operator)
        power = power_above(weight)
        if power == 0.0:
            return weight
        # Entries of order one: squares of others may vanish, or overflow. The scale of the matrix does not matter.
        matrix = operator.matrix(_scaled(weight, 1 / power, torch.promote_types(weight.dtype, torch.float32)))
        wide = matrix.shape[-2] <= matrix.shape[-1]
        blocks, gram = _start(matrix if wide else matrix.mT)
        if self._stays(blocks, gram, norm, torch.finfo(weight.dtype).eps):
            return weight
        nearest = _bjorck(blocks, gram, self.max_steps)
        nearest = (nearest if wide else nearest.mT).reshape(weight.shape)
        measure = partial(self.norm, operator=operator)
        return _rescale(nearest, measure(nearest), measure, 1.0, weight.dtype)

    def _stays(self, blocks: Tensor, gram: Tensor, norm: Norm, eps: float) -> bool:
        """Whether projection has nothing to do, with tolerances wide enough to hold for its own results."""
        if _size(_step(blocks, gram)) > max(10 * _ISOMETRY, 4 * eps) or not norm.at_most(1.0):
            return False
        return norm.bound > 1 - max(100 * _ISOMETRY, 16 * eps)


def _start(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Scale blocks [groups, rows ≤ columns] so that Björck's iteration converges, σ < √3; return them and
    their Gram matrices.

    The root mean square of the singular values is the right scale, and cheap, when they are nearly equal;
    when they are not, as ‖I - Gram‖_F > 1 tells, the largest singular value is.
    """
    gram = blocks @ blocks.mT
    square = float(gram.diagonal(dim1=1, dim2=2).mean())
    identity = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    if float(torch.linalg.vector_norm((identity - gram / square).flatten(1), dim=1).max()) > 1.0:
        square = guess_eigenvalue(gram)
    return blocks / math.sqrt(square), gram / square


def _step(blocks: Tensor, gram: Tensor) -> Tensor:
    return (blocks - gram @ blocks) / 2


def _size(step: Tensor) -> float:
    """Root mean square of the change of the singular values, to first order."""
    return float(torch.linalg.vector_norm(step)) / math.sqrt(step.shape[0] * step.shape[1])


def _bjorck(blocks: Tensor, gram: Tensor, max_steps: int) -> Tensor:
    """Iterate σ ↦ 1.5σ - 0.5σ³ until a step changes little."""
    for _ in range(max_steps):
        step = _step(blocks, gram)
        if _size(step) <= _ISOMETRY:
            break
        blocks = blocks + step
        gram = blocks @ blocks.mT
    return blocks

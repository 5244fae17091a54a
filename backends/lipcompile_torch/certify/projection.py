"""Projection that certifies in full only when weights have moved: amortised over steps, never on trust.

A full certificate of an operator norm costs Gram matrices and factorisations. It is made of an *anchor*, a copy
of the weight that is kept. From then on ‖W‖ ≤ a·‖anchor‖ + ‖W - a·anchor‖ in the operator norm, for the number a
by which the weight was scaled since (:mod:`.drift`). The bound holds for the weight as it is stored now, whoever
changed it, and however. While this bound is within the constraint, the weight keeps its bits; if a small scaling
puts it there, it is scaled, and the anchor's share with it; else the weight is certified anew, and what it was
scaled by for want of a certificate is given back.

Anchors are no state of the training: they are in no state dict, copy or pickle, and without one a weight is
certified in full. A resumed run may therefore scale by a little more or less than one that was not interrupted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from operator import not_

import torch
from torch import Tensor, nn

from ..devices import is_processor
from ..sharding import is_shard, replace_
from .constraints import Constraint, Fixed, Free, Frobenius, Orthogonal, Spectral
from .drift import (
    COARSE,
    FINE,
    Moments,
    difference_error,
    drift_length,
    drift_norm,
    frobenius_length,
    in_blocks,
    length_alone,
    read_norms,
)
from .norms import check_finite
from .operators import Operator
from .rounding import UP_MANY

_SAME = 1e-3  # of a drift: by how much it may come out longer, measured again at another scale
_HEADROOM = 2.5e-3  # what scaling leaves for the rounding of the anchor to half precision: 2.2e-3 at 512 × 512
_PATIENCE = 8  # a full certificate costs about as much as this many measurements of a drift
_BLOCKS = (None, COARSE, FINE)  # how a drift is measured: by its Frobenius norm; or else by its operator norm
_OF_OPERATORS = (Spectral, Fixed, Orthogonal)


@dataclass
class Anchor:
    """The certified facts about an earlier value of a weight.

    Args:
        copy: of the weight, detached; in half precision where that is enough, since it takes memory.
        bound: at least the operator norm of the map of ``copy``.
        length: at least the Frobenius norm of ``copy``.
        rounded: Frobenius norm of what the copy lost of the weight.
        share: a, the product of the scalings since.
        age: projections since.
        measure: the first of the ways to measure its drift that may still do.
    """

    copy: Tensor
    bound: float
    length: float
    rounded: float
    share: float = 1.0
    age: int = 0
    measure: int = 0


class Amortised:
    """The constraint of one parameter, and what is known of where the parameter stands.

    Args:
        constraint, operator: of the parameter.
    """

    def __init__(self, constraint: Constraint, operator: Operator) -> None:
        self.constraint, self.operator = constraint, operator
        self.forget()

    def forget(self) -> None:
        """Certify in full next time."""
        self.anchor: Anchor | None = None
        self._certificates = 0
        self._rest = 0

    def __getstate__(self) -> tuple[Constraint, Operator]:
        """Return what a copy has of it: no anchor."""
        return self.constraint, self.operator

    def __setstate__(self, state: tuple[Constraint, Operator]) -> None:
        self.constraint, self.operator = state
        self.forget()

    def begin(self, weight: Tensor) -> int:
        """Begin a projection: return the first of the ways to measure its drift that may do."""
        if self.anchor is None or not self._comparable(weight, self.anchor):
            return 0
        self.anchor.age += 1
        return self.anchor.measure

    def measured(self, weight: Tensor, measure: int) -> Moments | None:
        """Return what bounds the norms of what moved; None if only a certificate will do."""
        if isinstance(self.constraint, Frobenius) and not is_shard(weight) and weight.numel():
            return length_alone(frobenius_length(weight.to(torch.float64).reshape(1, 1, -1)))
        if self.anchor is None or not self._comparable(weight, self.anchor):
            return None
        drift = self.operator.matrix(weight), self.operator.matrix(self.anchor.copy), self.anchor.share
        blocks = _BLOCKS[measure]
        return length_alone(drift_length(*drift)) if blocks is None else drift_norm(*drift, blocks)

    def _comparable(self, weight: Tensor, anchor: Anchor) -> bool:
        return not is_shard(weight) and weight.numel() > 0 and anchor.copy.device == weight.device

    def settle(self, weight: Tensor, length: float, norm: float, slack: float) -> bool:
        """Keep or scale the weight if these norms of its drift allow it; return whether it is in its set."""
        if self.anchor is None:
            return length <= self.constraint.bound
        step = slack if self._moved(length) else 0.0
        if self.anchor.measure == 0:
            step /= 3  # nine steps of a random walk
        return self._place(weight, length, norm, slack, step)

    def following(self, weight: Tensor, length: float) -> int:
        """Return the next way to measure a drift of this Frobenius norm, for good; after the last, and where a
        certificate is worth what it costs, their number.
        """
        anchor = self.anchor
        if anchor is None or anchor.age >= _PATIENCE or not 0 < length < math.inf:
            return len(_BLOCKS)
        if anchor.measure and not in_blocks(self.operator.matrix(weight)):
            return len(_BLOCKS)
        anchor.measure += 1
        return anchor.measure

    def _moved(self, length: float) -> bool:
        """Whether the drift is more than rounding: what hardly moves is not scaled for the sake of its anchor."""
        return self.anchor is not None and length > 2 * self.anchor.rounded

    def _place(self, weight: Tensor, length: float, norm: float, slack: float, step: float) -> bool:
        """Keep the weight, or scale it, so that it lies in its set; return whether it does.

        It is scaled by no less than 1 - ``step``, and since the certificate by no less than 1 - ``slack``.

        Formal guarantees: for the drift D = W - a·W₀, of which ``length`` and ``norm`` bound the computed one, the
        map of W has norm at most a·‖map of W₀‖ + f·‖D‖, f the operator's factor. What scaling rounds is subtracted
        beforehand, with ‖W‖_F ≤ a‖W₀‖_F + ‖D‖_F.
        """
        anchor, limit, factor = self.anchor, self.constraint.bound, self.operator.factor
        assert anchor is not None
        assert factor is not None
        copied = anchor.share * anchor.length
        drift = factor * (norm + difference_error(length, 0.0 if anchor.share == 1.0 else copied))
        if isinstance(self.constraint, Orthogonal) and not drift <= slack:
            return False
        if anchor.share * anchor.bound + drift <= limit / UP_MANY:
            return True
        drift = factor * (norm * (1 + _SAME) + difference_error(length, copied))
        bound = (anchor.share * anchor.bound + drift) * (1 + 1e-6)
        rounding = self._rounding(weight, length + copied)
        if not rounding < limit or not bound < math.inf:
            return False
        scaling = (limit - rounding) / bound
        if not scaling >= max(1 - step, (1 - slack) / anchor.share):
            return False
        weight.mul_(scaling)
        anchor.share *= scaling
        return True

    def certify(self, parameter: nn.Parameter, slack: float) -> None:
        """Project on a full certificate, and anchor the result.

        Raises:
            ValueError: an entry is not finite.
        """
        if is_shard(parameter) or self.operator.factor is None or not isinstance(self.constraint, _OF_OPERATORS):
            replace_(parameter, lambda weight: self.constraint.project(weight, self.operator))
            return
        weight, before, wanted = parameter.detach(), self.anchor, self._wants_anchor()
        self.anchor = None
        # In float32 only what moves: a weight that was put at its bound by float64 would have to shrink.
        bound = self._scale(weight, before) if self._certificates > 2 and slack > 0 else math.inf
        if bound < math.inf:
            self.anchor = self._anchored(weight, bound, before) if wanted else None
        elif wanted:
            self.anchor = self._anchored(weight, self._project(weight, room=slack > 0), before)
        else:
            self._projected(weight)

    def _projected(self, weight: Tensor) -> bool:
        """Project as the constraint says; return whether the weight had to move."""
        projected = self.constraint.project(weight, self.operator)
        if projected is weight:
            return False
        weight.copy_(projected)
        return True

    def _project(self, weight: Tensor, room: bool) -> float:
        """Project as the constraint says; return a bound of the norm.

        Args:
            room: a weight that has to be scaled is scaled by a little more, so that an anchor in half precision
                will do.
        """
        scaled = self._projected(weight)
        # Measured also after scaling: a weight that is only known to be at the bound has no room to stay there.
        bound = min(self.operator.norm(weight).bound, self.constraint.bound)
        if not scaled or not room or isinstance(self.constraint, Orthogonal):
            return bound
        rounding = self._rounding(weight, self._length(weight))
        if not rounding < _HEADROOM * bound:
            return bound
        weight.mul_(1 - _HEADROOM)
        return bound * (1 - _HEADROOM) + rounding

    def _scale(self, weight: Tensor, before: Anchor | None) -> float:
        """Scale the weight into its set, or up by what the drift since ``before`` cost it; return a bound of its
        norm, or infinity if that cannot be done, which leaves the weight as it was.
        """
        if isinstance(self.constraint, Orthogonal):
            return math.inf
        bound = self.operator.quick_bound(weight)
        rounding = self._rounding(weight, self._length(weight)) if 0 < bound < math.inf else math.inf
        limit = self.constraint.bound * (1 - _HEADROOM) - 2 * rounding
        if not limit > 0:
            return math.inf
        scaling = min(limit / bound, 1 / before.share if before is not None else 1.0, 2.0)
        if bound <= self.constraint.bound and scaling <= 1:
            return bound
        weight.mul_(scaling)
        return bound * scaling + rounding * max(1.0, scaling)

    def _wants_anchor(self) -> bool:
        """Whether to keep a copy: not of what never moved, nor, for a while, of what moves too far in a step."""
        self._certificates += 1
        if self.anchor is not None and self.anchor.age <= 1:
            self._rest = _PATIENCE
        self._rest = max(0, self._rest - 1)
        return self._certificates > 1 and self._rest == 0

    def _anchored(self, weight: Tensor, bound: float, before: Anchor | None) -> Anchor | None:
        """Return an anchor that lets the weight stay: of half precision if that will do, or else exact.

        Args:
            before: its copy is overwritten, if it can be.
        """
        factor = self.operator.factor
        assert factor is not None
        for dtype in (torch.float16, weight.dtype):
            copy = _copied(weight, dtype, before)
            rounded = distance = 0.0
            if copy.dtype != weight.dtype:
                lost = drift_norm(self.operator.matrix(weight), self.operator.matrix(copy), 1.0)
                ((rounded, norm),) = read_norms([lost])
                distance = factor * (norm + difference_error(rounded, 0.0))
            if rounded < math.inf and bound + 2 * distance <= self.constraint.bound:
                return Anchor(copy, bound + distance, self._length(copy), rounded)
        return None

    def _length(self, weight: Tensor) -> float:
        single = torch.promote_types(weight.dtype, torch.float32)
        return float(frobenius_length(self.operator.matrix(weight.to(single))))

    def _rounding(self, weight: Tensor, length: float) -> float:
        """Return what rounding may add to the norm of a weight of Frobenius norm ``length`` that is scaled down.

        Each entry is off by ε of itself at most, or by the smallest normal number: half of that is to spare.
        """
        kind, factor = torch.finfo(weight.dtype), self.operator.factor
        assert factor is not None
        return factor * (2 * kind.eps * length + kind.smallest_normal * math.sqrt(weight.numel()))


def _copied(weight: Tensor, dtype: torch.dtype, before: Anchor | None) -> Tensor:
    """Return a copy, in the memory of an anchor that is done with if it is alike."""
    old = None if before is None else before.copy
    if old is None or (old.dtype, old.device, old.shape) != (dtype, weight.device, weight.shape):
        return weight.to(dtype, copy=True)
    return old.copy_(weight)


Known = tuple[nn.Parameter, Amortised]


@torch.no_grad()
def project_(parameters: Iterable[Known], slack: float) -> None:
    """Put parameters into their constraint sets; those that are known to lie inside keep their bits.

    Args:
        slack: by how much, relatively, a weight may be scaled down for want of a certificate; 0 never scales one
            that has none.

    Raises:
        ValueError: an entry is not finite.
    """
    elsewhere = []
    for parameter, known in parameters:
        if is_processor(parameter.device):
            _project_together([(parameter, known)], slack)  # there are no transfers to share
        else:
            elsewhere.append((parameter, known))
    _project_together(elsewhere, slack)


def _project_together(parameters: Sequence[Known], slack: float) -> None:
    """Project with a transfer for each way to measure drifts and each device, and those of certificates."""
    free = [isinstance(known.constraint, Free) and not is_shard(parameter) for parameter, known in parameters]
    check_finite([parameter for parameter, _ in compress(parameters, free)])
    waiting: list[list[Known]] = [[] for _ in range(len(_BLOCKS) + 1)]
    for parameter, known in compress(parameters, map(not_, free)):
        waiting[known.begin(parameter.detach())].append((parameter, known))
    for measure in range(len(_BLOCKS)):
        for following, pair in _not_settled(waiting[measure], measure, slack):
            waiting[following].append(pair)
    for parameter, known in waiting[-1]:
        known.certify(parameter, slack)


def _not_settled(parameters: Sequence[Known], measure: int, slack: float) -> Iterator[tuple[int, Known]]:
    """Place weights by what is measured of their drifts; yield those that are left, and what to try next."""
    found = [(pair, pair[1].measured(pair[0].detach(), measure)) for pair in parameters]
    yield from ((len(_BLOCKS), pair) for pair, moments in found if moments is None)
    asked = [(pair, moments) for pair, moments in found if moments is not None]
    norms = read_norms([moments for _, moments in asked])
    for (pair, _), (length, norm) in zip(asked, norms, strict=True):
        weight, known = pair[0].detach(), pair[1]
        if not known.settle(weight, length, norm, slack):
            yield known.following(weight, length), pair

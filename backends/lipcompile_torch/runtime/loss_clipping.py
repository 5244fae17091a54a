"""Clipping the gradient of the loss at the output: C in place of L, fixed, scheduled, or at a private quantile.

The bounds of a module hold for every cotangent of norm at most L that arrives at its output; clipping each
example's to C < L, where the criterion takes the output, makes them those of min(L, C) (clipless_v2, section 3.1).
It needs no per-example gradients: the cotangent at the output is there for every example anyway.

The adaptive clip is that of Andrew et al. 2021 ("Differentially private learning with adaptive clipping",
Algorithm 1): C follows a quantile of the norms by a noisy count of the examples within C.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .functional import clip_scale, example_norms
from .gate import GateRecord

_OUTWARD = 1 + 1e-14  # covers the rounding of the formula below


@dataclass(frozen=True, slots=True)
class Cosine:
    """C from `start` to `end` over `steps` steps along half a cosine, then constant.

    Raises:
        ValueError: a C that is not positive and finite, or no steps.
    """

    start: float
    end: float
    steps: int

    def __post_init__(self) -> None:
        _positive(self.start, "the clip at the start")
        _positive(self.end, "the clip at the end")
        if self.steps < 1:
            raise ValueError(f"a schedule takes at least one step, not {self.steps}")

    def __call__(self, step: int) -> float:
        """Return C at a step, counted from 0."""
        progress = min(step / self.steps, 1.0)
        return self.end + (self.start - self.end) * (1 + math.cos(math.pi * progress)) / 2


class AdaptiveClip:
    """C that follows a quantile of the norms of the loss's gradients, from a noisy count after every step.

    C ← C·exp(-η·(b̃ - γ)), b̃ the noisy fraction of examples within C: Andrew et al. 2021, Algorithm 1, but divided
    by the FIXED expected batch size. Count and gradient are one Gaussian mechanism: see `gradient_multiplier`. It
    holds C, so one instance serves one run.

    Args:
        initial: C of the first step, in the units of the loss's gradient in the logits.
        quantile: γ, the fraction of examples that C leaves alone.
        learning_rate: η.
        count_noise: standard deviation of the noise on the count of a batch; more noise on it costs less on the
            gradient. None: a 20th of the expected batch size, as the paper has it, but at least 5σ, at which the
            gradient's noise is 0.5 % larger.

    Raises:
        ValueError: a number out of range.
    """

    def __init__(
        self,
        initial: float,
        quantile: float = 0.5,
        learning_rate: float = 0.2,
        count_noise: float | None = None,
    ) -> None:
        self.value = _positive(initial, "the initial clip")
        if not 0 <= quantile <= 1:
            raise ValueError(f"a quantile is between 0 and 1, not {quantile}")
        self.quantile = quantile
        self.learning_rate = _positive(learning_rate, "the learning rate of the clip")
        self.count_noise = None if count_noise is None else _positive(count_noise, "the noise on the count")

    def __call__(self, step: int) -> float:  # noqa: ARG002
        """Return C, whatever the step."""
        return self.value

    def follow(self, fraction: float) -> None:
        """Move C by the noisy fraction of examples within it."""
        moved = self.value * math.exp(-self.learning_rate * (fraction - self.quantile))
        self.value = _positive(moved, "the adapted clip")

    def count_std(self, noise_multiplier: float, normaliser: float) -> float:
        """Return the standard deviation of the noise on the count."""
        return max(normaliser / 20, 5 * noise_multiplier) if self.count_noise is None else self.count_noise


LossClip = float | Callable[[int], float] | AdaptiveClip
"""C; or C as a function of the step, counted from 0, which must not look at the private data; or adaptive."""


class LossClipping:
    """The clip of one run: what C is now, what it leaves of σ, and how it goes on.

    The engine keeps to this order at every step: set `module.loss_clip = clipping.current` before the batch;
    allocate the gradient's noise at `gradient_multiplier`; once the step is counted, call `advance`, before the
    gate is reset.

    Args:
        clip: see `LossClip`.
        noise_multiplier: σ of the whole step, gradient and count together.
        normaliser: b, the expected batch size.

    Raises:
        ValueError: a clip that is not positive and finite; noise on the count that leaves none for the gradient.
    """

    def __init__(self, clip: LossClip, noise_multiplier: float, normaliser: float) -> None:
        self.clip, self.steps = clip, 0
        self._normaliser = normaliser
        self._count_std = clip.count_std(noise_multiplier, normaliser) if isinstance(clip, AdaptiveClip) else None
        self.gradient_multiplier = (
            noise_multiplier if self._count_std is None else gradient_multiplier(noise_multiplier, self._count_std)
        )
        _ = self.current  # what it refuses, it refuses now

    @property
    def current(self) -> float:
        """C for the next batch."""
        value = self.clip(self.steps) if callable(self.clip) else self.clip
        return _positive(value, f"the clip at step {self.steps}")

    def advance(self, gate: GateRecord, add_noise: Callable[[Tensor], Tensor], widening: float = 1.0) -> None:
        """Go on to the next step; if adaptive, release the noisy count of this one and follow it.

        Args:
            gate: what flowed back in this step.
            add_noise: adds the standard noise of this step to a 0-dim float64 tensor that is scaled to it:
                `lambda u: normals.prepare(u) + normals.draw(u.shape, u.device)`, through the stream if there is
                one.
            widening: what the noise scales of the gradient were multiplied by for these normals.
        """
        if isinstance(self.clip, AdaptiveClip):
            assert self._count_std is not None
            self.clip.follow(self._noisy_fraction(gate, add_noise, self._count_std * widening))
        self.steps += 1

    def _noisy_fraction(self, gate: GateRecord, add_noise: Callable[[Tensor], Tensor], std: float) -> float:
        within = 0 if gate.within_clip is None else int(gate.within_clip)
        # An example adds 1/2 or -1/2: half of what it would, and replacing one moves the sum by 1 all the same.
        centred = within - gate.examples / 2
        noisy = float(add_noise(torch.tensor(centred / std, dtype=torch.float64))) * std
        return noisy / self._normaliser + 0.5

    def state_dict(self) -> dict[str, Any]:
        """Return the number of steps, and C if it adapts; computed from noisy counts, so it may be published."""
        value = self.clip.value if isinstance(self.clip, AdaptiveClip) else None
        return {"steps": self.steps, "value": value}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state.

        Raises:
            ValueError: the state of a clip of another kind, or of none.
        """
        steps, value = state.get("steps"), state.get("value")
        if not isinstance(steps, int) or steps < 0 or (value is not None) != isinstance(self.clip, AdaptiveClip):
            raise ValueError("this state belongs to another kind of clip: resume with the clip the run began with")
        if isinstance(self.clip, AdaptiveClip):
            self.clip.value = _positive(value, "the clip of the state")
        self.steps = steps


def gradient_multiplier(noise_multiplier: float, count_noise: float) -> float:
    """Return σ_g = (σ^-2 - (2·s)^-2)^(-1/2), with which gradient and count together have multiplier σ.

    One example moves the gradient's sum over its noise scale by at most 1/σ_g, and the count by ±1/2 over s: the
    pair by √(σ_g^-2 + (2s)^-2) = 1/σ. If it is replaced, both may turn over, and the pair moves by 2/σ: the
    formula is the same under both neighbouring relations. (Andrew et al. 2021, Theorem 1.)

    Formal guarantees: rounded up, by less than a relative 2e-14.

    Args:
        noise_multiplier: σ > 0, what the step is accounted with.
        count_noise: s, standard deviation of the noise on the count.

    Raises:
        ValueError: 2s ≤ σ.
    """
    most, sigma = 2 * count_noise, noise_multiplier
    if not sigma < most:
        raise ValueError(
            f"noise of standard deviation {count_noise:g} on the count alone costs more than noise multiplier "
            f"{sigma:g} allows: give the adaptive clip a count_noise above {sigma / 2:g}"
        )
    return sigma * most / math.sqrt((most - sigma) * (most + sigma)) * _OUTWARD


def clip_cotangents(cotangent: Tensor, bound: float) -> tuple[Tensor, Tensor]:
    """Clip the cotangent [B, …] of each example, over all its entries, to `bound`; a non-finite one becomes zero.

    Formal guarantees: the norm of each result is at most `bound`, as in `functional.clip_norm`.

    Returns:
        The clipped cotangents, and how many examples were within the bound, 0-dim.
    """
    norms = example_norms(cotangent)
    scale = clip_scale(norms, math.prod(cotangent.shape[1:]), cotangent.dtype, bound)
    column = (-1, *(1,) * (cotangent.dim() - 1))
    scaled = cotangent * scale.to(cotangent.dtype).reshape(column)
    clipped = torch.where(norms.isfinite().reshape(column), scaled, torch.zeros_like(cotangent))
    return clipped, (norms <= bound).sum()


def _positive(value: Any, what: str) -> float:
    if not (isinstance(value, int | float) and 0 < value < math.inf):
        raise ValueError(f"{what} is {value}: it must be a positive, finite number")
    return float(value)

"""Thresholds C that are chosen in training, fixed, scheduled, or at a private quantile; and the clip of the loss.

The bounds of a module hold for every cotangent of norm at most L that arrives at its output; clipping each
example's to C < L, where the criterion takes the output, makes them those of min(L, C) (clipless_v2, section 3.1).
It needs no per-example gradients: the cotangent at the output is there for every example anyway. The lengths of
clip groups (:mod:`..clip.clipping`) may be chosen in the same way.

The adaptive clip is that of Andrew et al. 2021 ("Differentially private learning with adaptive clipping",
Algorithm 1): C follows a quantile of the norms by a noisy count of the examples within C.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..certify.rounding import UP_MANY
from ..clip.clipping import ClipGroup
from ..clip.example_gradients import by_example
from ..nn.functional import clip_scale, example_norms

_INWARD = 1 - 2.0**-50  # covers that of the noise of several counts together

_ROUNDED = 1 + 2.0**-26  # covers the rounding of a count of up to 2²⁵ examples over its noise

_RAMP = 2.0**-6  # width of the step from 1 to 0 of an example's count, over C
_GRID = 2.0**20  # parts of 1 that counts are whole numbers of: sums of fewer than 2³³ examples are exact

_SHORTEST, _LONGEST = 1e-9, 1e9  # of clips that follow a quantile
_LARGEST_POWER = 100.0


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
            raise ValueError(f"a schedule needs at least one step; got {self.steps}")

    def __call__(self, step: int) -> float:
        """Return C at a step, counted from 0."""
        progress = min(step / self.steps, 1.0)
        return self.end + (self.start - self.end) * (1 + math.cos(math.pi * progress)) / 2


class AdaptiveClip:
    """C that follows a quantile of the norms of gradients, from a noisy count after every step.

    C ← C·exp(-η·(b̃ - γ)), b̃ the noisy fraction of examples within C: Andrew et al. 2021, Algorithm 1, but divided
    by the FIXED expected batch size. Counts and gradient are one Gaussian mechanism: see `gradient_multiplier`. It
    holds C, so one instance serves one run; groups of clips get copies.

    Args:
        initial: C of the first step, in the units of the gradient of one example's loss, in the logits or in the
            parameters of a group.
        quantile: γ, the fraction of examples that C leaves alone.
        learning_rate: η.
        count_noise: standard deviation of the noise on the count of a batch; more noise on it costs less on the
            gradient. None: a 20th of the expected batch size, as the paper has it, but at least 5σ·√m of m counts,
            at which the gradient's noise is 0.5 % larger.

    Raises:
        ValueError: a number out of range.
    """

    def __init__(
        self, initial: float, quantile: float = 0.5, learning_rate: float = 0.2, count_noise: float | None = None
    ) -> None:
        self.value = _positive(initial, "the initial clip")
        if not 0 <= quantile <= 1:
            raise ValueError(f"a quantile must be between 0 and 1; got {quantile}")
        self.quantile = quantile
        self.learning_rate = _positive(learning_rate, "the learning rate of the clip")
        self.count_noise = None if count_noise is None else _positive(count_noise, "the noise on the count")

    def __call__(self, step: int) -> float:  # noqa: ARG002
        """Return C, whatever the step."""
        return self.value

    def follow(self, fraction: float) -> None:
        """Move C by the noisy fraction of examples within it, which may be any number, between 1e-9 and 1e9."""
        power = min(-self.learning_rate * (fraction - self.quantile), _LARGEST_POWER)
        self.value = min(max(self.value * math.exp(power), _SHORTEST), _LONGEST)

    def count_std(self, noise_multiplier: float, normaliser: float, counts: int = 1) -> float:
        """Return the standard deviation of the noise on the count, one of so many of a step."""
        least = 5 * noise_multiplier * math.sqrt(counts)
        return max(normaliser / 20, least) if self.count_noise is None else self.count_noise


ClipLength = float | Callable[[int], float] | AdaptiveClip
"""C; or C as a function of the step, counted from 0, which must not look at the private data; or adaptive."""


def at_quantile(groups: Iterable[ClipGroup], quantile: float) -> dict[str, AdaptiveClip]:
    """Return clips of the groups that have a length, which begin with it and follow a quantile; by name."""
    return {group.name: AdaptiveClip(group.length, quantile) for group in groups if group.has_length}


class Threshold:
    """One threshold over the steps of a run: what C is now, and how it goes on.

    Args:
        clip: see `ClipLength`.
        count_std: standard deviation of the noise on its count; used if it is adaptive.
        normaliser: b, the expected batch size.

    Raises:
        ValueError: a clip that is not positive and finite.
    """

    def __init__(self, clip: ClipLength, count_std: float, normaliser: float) -> None:
        self.clip, self.steps = clip, 0
        self._count_std, self._normaliser = count_std, normaliser
        _ = self.current  # what it refuses, it refuses now

    @property
    def current(self) -> float:
        """C for the next batch."""
        value = self.clip(self.steps) if callable(self.clip) else self.clip
        return _positive(value, f"the clip at step {self.steps}")

    def advance(
        self, within: float, examples: int, add_noise: Callable[[Tensor], Tensor], widening: float = 1.0
    ) -> None:
        """Go on to the next step; if adaptive, release the noisy count of this one and follow it.

        Args:
            within: sum of `count_within` over the examples of this step.
            examples: number of them.
            add_noise: adds the standard noise of this step to a 0-dim float64 tensor that is scaled to it:
                `lambda u: normals.prepare(u) + normals.draw(u.shape, u.device)`, through the stream if there is
                one.
            widening: what the noise scales of the gradient were multiplied by for these normals.
        """
        if isinstance(self.clip, AdaptiveClip):
            # An example adds ±1/2 at most, in place of 1; replacing one moves the sum by 1 all the same.
            std, centred = self._count_std * widening * _ROUNDED, within - examples / 2
            noisy = float(add_noise(torch.tensor(centred / std, dtype=torch.float64))) * std
            self.clip.follow(noisy / self._normaliser + 0.5)
        self.steps += 1

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
            raise ValueError(
                "this state belongs to another kind of clip: resume with the original clip of the run"
            )
        if isinstance(self.clip, AdaptiveClip):
            self.clip.value = _positive(value, "the clip of the state")
        self.steps = steps


class Thresholds(dict[str | None, Threshold]):
    """The thresholds of one run by group of clips, that of the loss under None; and what they leave of σ.

    The engine keeps to this order at every step: give the module what is `current` before the batch; allocate the
    gradient's noise at `gradient_multiplier`; once the step is counted, let each `advance`, before the gate is
    reset.

    Args:
        clips: by name of the group, of which copies are made; with None for the loss's gradient.
        noise_multiplier: σ of the whole step, gradient and counts together.
        normaliser: b, the expected batch size.

    Attributes:
        counts: number of noisy counts that a step releases.

    Raises:
        ValueError: a clip that is not positive and finite; noise on counts that leaves none for the gradient.
    """

    def __init__(self, clips: Mapping[str | None, ClipLength], noise_multiplier: float, normaliser: float) -> None:
        adaptive = {name: clip for name, clip in clips.items() if isinstance(clip, AdaptiveClip)}
        self.counts = len(adaptive)
        self._stds = {
            name: clip.count_std(noise_multiplier, normaliser, self.counts) for name, clip in adaptive.items()
        }
        self.gradient_multiplier(noise_multiplier)  # what it refuses, it refuses now
        for name, clip in clips.items():
            own = clip if name is None else copy(clip)
            self[name] = Threshold(own, self._stds.get(name, 0.0), normaliser)

    def gradient_multiplier(self, noise_multiplier: float) -> float:
        """Return what is left of σ for the gradient, see the function of this name."""
        return gradient_multiplier(noise_multiplier, *self._stds.values())

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all; see `Threshold.state_dict`."""
        lengths = {name: threshold.state_dict() for name, threshold in self.items()}
        loss = {"loss_clip": lengths.pop(None)} if None in lengths else {}
        return {**loss, **({"clip_length": lengths} if lengths else {})}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, among other entries; raise ValueError if it is that of other clips."""
        states = {None: state.get("loss_clip", {}), **state.get("clip_length", {})}
        for name, threshold in self.items():
            threshold.load_state_dict(states.get(name, {}))


def gradient_multiplier(noise_multiplier: float, *count_noise: float) -> float:
    """Return σ_g = (σ^-2 - Σ(2·s_j)^-2)^(-1/2), with which gradient and counts together have multiplier σ.

    One example moves the gradient's sum over its noise scale by at most 1/σ_g, and each count by at most 1/2 over
    s_j: all of them by √(σ_g^-2 + Σ(2·s_j)^-2) = 1/σ. If it is replaced, all may turn over, and move by 2/σ: the
    formula is the same under both neighbouring relations. (Andrew et al. 2021, Theorem 1.)

    Formal guarantees: rounded up. Of one count, gradient and count together lose less than a relative 2e-12 of σ.

    Args:
        noise_multiplier: σ > 0, what the step is accounted with.
        count_noise: s_j, standard deviations of the noise on the counts.

    Raises:
        ValueError: Σ(2·s_j)^-2 ≥ σ^-2.
    """
    if not count_noise:
        return noise_multiplier
    most, sigma = 2 / math.hypot(*(1 / std for std in count_noise)) * _INWARD, noise_multiplier
    if not sigma < most:
        each = " and ".join(f"{std:g}" for std in count_noise)
        raise ValueError(
            f"the noise of standard deviation {each} on the count already exceeds the budget of noise "
            f"multiplier {sigma:g}: give the adaptive clip a count_noise above "
            f"{sigma * math.sqrt(len(count_noise)) / 2:g}"
        )
    return sigma * most / math.sqrt((most - sigma) * (most + sigma)) * UP_MANY


def count_within(norms: Tensor, bound: float) -> Tensor:
    """Return how many examples are within a bound, 0-dim: the sum of the count of each, at most 1.

    A norm up to the bound counts as 1, one above (1 + 2⁻⁶) of it as 0, and between them it falls from 1 to 0. So
    norms that the rest of the batch moves in their last bits move the sum by 64 times as much, and not by 1 each.
    An infinite norm or NaN counts as 0. Counts are multiples of 2⁻²⁰, so that the sum is exact.

    Args:
        norms: [B], float64.
    """
    share = ((1 + _RAMP - norms / bound) / _RAMP).nan_to_num(0.0).clamp(0.0, 1.0)
    return (share * _GRID).floor().sum() / _GRID


def clip_cotangents(cotangent: Tensor, bound: float, views: int = 1) -> tuple[Tensor, Tensor]:
    """Clip each row of a cotangent [B·views, …], over all its entries, to `bound`; a non-finite one becomes zero.

    Formal guarantees: the norm of each result is at most `bound`, as in `functional.clip_norm`.

    Returns:
        The clipped cotangents, and how many examples had all their rows within the bound, see `count_within`.
    """
    norms = example_norms(cotangent)
    scale = clip_scale(norms, math.prod(cotangent.shape[1:]), cotangent.dtype, bound)
    column = (-1, *(1,) * (cotangent.dim() - 1))
    scaled = cotangent * scale.to(cotangent.dtype).reshape(column)
    clipped = torch.where(norms.isfinite().reshape(column), scaled, torch.zeros_like(cotangent))
    return clipped, count_within(by_example(norms, views).amax(1), bound)


def _positive(value: Any, what: str) -> float:
    if not (isinstance(value, int | float) and 0 < value < math.inf):
        raise ValueError(f"{what} is {value!r}: it must be a positive, finite number")
    return float(value)

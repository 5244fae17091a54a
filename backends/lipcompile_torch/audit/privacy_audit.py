"""An empirical audit of privacy: train on canaries, guess which were there, and compare with what was claimed.

It tests everything between an example and what is released: gradient bounds, noise, sampling, division by the
batch size, accounting. The audit finds a lower bound of the true ε, at a stated confidence; the claim must be an
upper bound.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any

import numpy as np
import torch
from lipcompile_privacy.accounting import (
    BudgetError,
    Mechanism,
    NeighbouringRelation,
    calibrate_noise_multiplier,
    epsilon,
)
from lipcompile_privacy.accounting.pld import privacy_curve
from lipcompile_privacy.guesses import Claim, Guesses, largest_refuted, p_value
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.data import DataLoader, TensorDataset

from ..noise.mechanism import Allocation, allocate
from ..train.checks import PrivacyError
from ..train.engine import PrivacyEngine, SeededWarning
from ..train.module import LipschitzModule
from .canaries import Canaries, choose, flattened, scores
from .game import Watch, lower_epsilon, play
from .points import Admissible

__all__ = ["BudgetError", "Onlooker", "PrivacyAudit", "PrivacyAuditConfig", "PrivacyError", "audit_privacy"]

_EPSILONS = [*np.linspace(0, 8, 81), *np.linspace(8.5, 40, 64)]  # at which privacy curves are taken


@dataclass(frozen=True)
class PrivacyAuditConfig:
    """The settings of an audit: the training, and the number of its runs.

    Args:
        epsilon: ε that the noise is calibrated to, unless there is a noise multiplier.
        delta: δ.
        canaries: coins to guess.
        runs: trainings that share them; None: as many as canaries. Canaries that are alone tell the most.
        steps: of each training.
        batch_size: expected batch size; None: the whole data set, every time.
        dataset_size: examples of a training, at least its canaries; None: these, and at least two.
        noise: how noise is shared among parameters.
        max_physical_batch: most examples computed at once.
        neighbours: relation of the claim. The game is always one of replacing an example; the bound is translated.
        confidence: of the lower bounds. An engine that just keeps its claim fails in one of 1/(1 - confidence)
            audits.
        seed: None: the operating system's entropy, for everything.
        noise_multiplier: σ of every step.
        ascents: of the search for canaries.
    """

    epsilon: float = 4.0
    delta: float = 1e-5
    canaries: int = 1000
    runs: int | None = None
    steps: int = 2
    batch_size: int | None = None
    dataset_size: int | None = None
    noise: Allocation = "global"
    max_physical_batch: int | None = None
    neighbours: str = "add_remove"
    confidence: float = 0.95
    seed: int | None = None
    noise_multiplier: float | None = None
    ascents: int = 4

    def __post_init__(self) -> None:
        """Refuse an audit that means nothing."""
        if min(self.canaries, self.steps, self.trainings, self.ascents) < 1 or self.trainings > self.canaries:
            raise ValueError(
                "an audit needs at least one canary, one step, one ascent and one run, and at most one "
                "run for each canary"
            )
        if not 0.5 < self.confidence < 1:
            raise ValueError(f"the confidence must be between 0.5 and 1; got {self.confidence}")
        if self.size < self.together or not 1 <= self.batch <= self.size:
            raise ValueError(
                f"a data set of {self.size} with batches of {self.batch} cannot hold the {self.together} canaries "
                "of a run: give a larger dataset_size, or a smaller batch_size"
            )

    @property
    def trainings(self) -> int:
        """Runs."""
        return self.canaries if self.runs is None else self.runs

    @property
    def together(self) -> int:
        """Canaries of a run; the last one may have fewer."""
        return math.ceil(self.canaries / self.trainings)

    @property
    def size(self) -> int:
        """Examples of a training."""
        return max(2, self.together) if self.dataset_size is None else self.dataset_size

    @property
    def batch(self) -> int:
        """Expected batch size."""
        return self.size if self.batch_size is None else self.batch_size

    @property
    def relation(self) -> NeighbouringRelation:
        """The relation of the claim."""
        return NeighbouringRelation(self.neighbours)


@dataclass(frozen=True)
class PrivacyAudit:
    """The result of an audit.

    Args:
        game: canaries, runs, guesses, and how many were right.
        claimed: ε that the engine says was spent, at `delta`.
        delta: δ.
        lower: lower bound of ε at `delta`, given that the steps are Gaussian mechanisms of some noise multiplier.
        lower_of_any: lower bound of ε at `delta` of any mechanism whatever.
        p_value: bound of the probability of as many right guesses if the claim holds.
        confidence: of each lower bound.
        separation: how far the gradients of a pair were apart, as a share of what the bounds allow.
        noise_multiplier: σ.
        sampling_rate: q.
    """

    game: Guesses
    claimed: float
    delta: float
    lower: float
    lower_of_any: float
    p_value: float
    confidence: float
    separation: float
    noise_multiplier: float
    sampling_rate: float

    @property
    def share(self) -> float:
        """Share of the claim that is attained for sure, at the confidence."""
        return max(self.lower, self.lower_of_any) / self.claimed if self.claimed > 0 else math.inf

    @property
    def sound(self) -> bool:
        """Whether the claim was not refuted."""
        return max(self.lower, self.lower_of_any) <= self.claimed


def audit_privacy(
    module: LipschitzModule, admissible: Admissible, config: PrivacyAuditConfig, watch: Watch | None = None
) -> PrivacyAudit:
    """Audit the engine on this module: its bounds, its noise, its sampling and its accounting.

    The adversary sets the weights, keeps them there by an optimizer that only looks on, and sees every noisy
    gradient. The weights of `module` end anywhere in their constraint sets. Where all is clipped, it is trained in
    evaluation mode: what dropout draws would hide the canaries, and a clip holds for any draws.

    Raises:
        ValueError, BudgetError, CanaryError: settings that mean nothing, cannot be met, or do not fit into memory.
    """
    was_training = module.training
    module.train(was_training and not module.gradient_bounds().keys() <= module.clipped_parameters)
    try:
        with torch.random.fork_rng(devices=[]):
            if config.seed is not None:  # masks of dropout follow it, too
                torch.manual_seed(config.seed)
            return _audited(module, admissible, config, watch)
    finally:
        module.train(was_training)


def _audited(
    module: LipschitzModule, admissible: Admissible, config: PrivacyAuditConfig, watch: Watch | None
) -> PrivacyAudit:
    rate = config.batch / config.size
    sigma = config.noise_multiplier or calibrate_noise_multiplier(
        config.epsilon, config.delta, rate, config.steps, config.relation
    )
    training = _Training(module, admissible, config, sigma)

    def claims(factor: float) -> Claim:
        runs = [(Mechanism(rate, sigma / max(factor, 1e-3)), config.steps)]
        return Claim(_EPSILONS, privacy_curve(runs, _EPSILONS, NeighbouringRelation.REPLACE_ONE))

    surest = _guesses(config, claims(1.0))
    game = play(training, config.canaries, config.trainings, surest, config.seed, watch)
    factor = largest_refuted(game, claims, 1.0, config.confidence)
    least = [(Mechanism(rate, sigma / factor), config.steps)] if factor else []
    return PrivacyAudit(
        game=game,
        claimed=training.spent(),
        delta=config.delta,
        lower=epsilon(least, config.delta, config.relation),
        lower_of_any=lower_epsilon(game, config.delta, config.confidence, config.relation),
        p_value=p_value(game, claims(1.0)),
        confidence=config.confidence,
        separation=training.canaries.separation * sigma / 2,
        noise_multiplier=sigma,
        sampling_rate=rate,
    )


def _guesses(config: PrivacyAuditConfig, claim: Claim) -> int:
    """Return how many guesses to make: few sure ones, or twice as many if those would not refute it clearly."""
    few = max(1, config.canaries // (2 if config.trainings == config.canaries else 4))
    flawless = Guesses(config.canaries, config.trainings, few, few)
    enough = p_value(flawless, claim) < (1 - config.confidence) / 5
    return few if enough else min(2 * few, config.canaries)


class _Training:
    """One private training on canaries, again and again: from coins to scores."""

    def __init__(
        self, module: LipschitzModule, admissible: Admissible, config: PrivacyAuditConfig, sigma: float
    ) -> None:
        self.module, self.config, self.sigma = module, config, sigma
        sizes = {name: p.numel() for name, p in module.named_parameters() if p.requires_grad}
        self.stds = allocate(
            config.noise, module.gradient_bounds(), sizes, sigma, [group.parameters for group in module.clips]
        )
        self.generator = torch.Generator()
        self.generator.manual_seed(config.seed) if config.seed is not None else self.generator.seed()
        self.canaries: Canaries = choose(
            module, admissible, self.stds, config.together, self.generator, config.ascents
        )
        self.engine: PrivacyEngine | None = None

    def __call__(self, coins: Tensor) -> Tensor:
        """Train once, and score; where there are fewer coins than canaries, the last ones have none."""
        padded = torch.cat((coins, coins.new_zeros(len(self.canaries) - len(coins))))
        released = self._released(TensorDataset(*self.canaries.examples(padded, self.config.size)))
        rate = self.config.batch / self.config.size
        return scores(self.canaries, released, rate, self.config.size)[: len(coins)]

    def spent(self) -> float:
        """Return ε of the last training, as its engine says."""
        assert self.engine is not None
        return self.engine.get_epsilon(self.config.delta)

    def _released(self, data: TensorDataset) -> list[Tensor]:
        """Train, and return what every step released, as the noisy sum in units of the noise."""
        released: list[Tensor] = []
        copied = deepcopy(self.module)  # an engine leaves its hooks in a module, which the next one would run
        onlooker = Onlooker(copied.parameters(), lambda: released.append(self._seen(copied)))
        module: Any
        module, optimizer, loader = self._private(copied, onlooker, data)
        for x, y in chain.from_iterable(repeat(loader)):
            module.criterion(module(x), y).backward()
            optimizer.step()
            if len(released) == self.config.steps:
                break
        return released

    def _private(
        self, module: LipschitzModule, onlooker: Optimizer, data: TensorDataset
    ) -> tuple[LipschitzModule, Optimizer, Iterable[Any]]:
        config = self.config
        seed = None if config.seed is None else int(torch.randint(2**31, (), generator=self.generator))
        self.engine = PrivacyEngine(neighbours=config.neighbours)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SeededWarning)
            return self.engine.make_private(
                module=module,
                optimizer=onlooker,
                data_loader=DataLoader(data, batch_size=config.batch),
                noise_multiplier=self.sigma,
                noise=config.noise,
                max_physical_batch=config.max_physical_batch,
                seed=seed,
            )

    def _seen(self, module: LipschitzModule) -> Tensor:
        gradients = {
            name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in module.named_parameters()
        }
        seen = flattened(gradients, self.stds) * self.config.batch
        if not bool(seen.isfinite().all()):
            raise ValueError(
                "a noisy gradient is not finite: noise of standard deviation "
                f"{max(self.stds.values()):.3g} overflows the dtype of the parameters: clip to a smaller "
                "length, or lower the bounds"
            )
        return seen


class Onlooker(Optimizer):
    """An optimizer that leaves the weights as they are, and has a look at the noisy gradients of every step."""

    def __init__(self, parameters: Any, look: Callable[[], None]) -> None:
        super().__init__(parameters, {})
        self._look = look

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # noqa: ARG002
        """Look on."""
        self._look()

"""The privacy audit: it attains what a sound engine claims, and refutes one that has a fault.

Every audit has a fixed seed. A sound engine fails one in at most 5 % of seeds (95 % confidence), each test says of
how many audits; how often a fault is missed is said with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from lipcompile_privacy.accounting import BudgetError
from lipcompile_torch import ClipGroup, layers
from lipcompile_torch.audit.canaries import CanaryError
from lipcompile_torch.audit.points import Admissible
from lipcompile_torch.audit.privacy_audit import PrivacyAudit, PrivacyAuditConfig, audit_privacy
from lipcompile_torch.nn import losses
from lipcompile_torch.noise.mechanism import NoiseSource
from lipcompile_torch.train import checks
from lipcompile_torch.train.checks import PrivacyError
from lipcompile_torch.train.engine import PrivacyEngine
from lipcompile_torch.train.module import LipschitzModule
from scipy.stats import binom
from torch import Tensor

pytestmark = pytest.mark.slow


class Signs(LipschitzModule):
    """One linear layer under loss -yf(x): the gradient is -yx, so that every example attains the bound."""

    input_shape = (300,)
    input_norm = 1.0
    lipschitz = 1.0
    loss_lipschitz = 1.0
    certificate: ClassVar[dict[str, object]] = {}
    bounds: ClassVar = {"layer.weight": 1.0}

    def __init__(self) -> None:
        super().__init__()
        self.layer = layers.Dense(self.input_shape[0], 1)
        self.project_()

    def forward(self, x: Tensor) -> Tensor:
        return self.release(self.layer(self.clip_input(x)))

    def per_example_loss(self, output: Tensor, target: Tensor) -> Tensor:
        return losses.kr(output, target)


L = 4 * math.sqrt(2)  # of the cross entropy of four times the output


class Biased(LipschitzModule):
    """Two layers whose inner bias dominates: the outer weight sees inputs as long as 1 + 5."""

    input_shape = (6,)
    input_norm = 1.0
    lipschitz = 1.0
    loss_lipschitz = L
    certificate: ClassVar[dict[str, object]] = {}
    bounds: ClassVar = {"inner.weight": L, "inner.bias": L, "outer.weight": 6 * L}

    def __init__(self) -> None:
        super().__init__()
        self.inner = layers.Dense(6, 8, bias=5.0)
        self.outer = layers.Dense(8, 3)
        self.project_()

    def forward(self, x: Tensor) -> Tensor:
        return self.release(self.outer(torch.relu(self.inner(self.clip_input(x)))))

    def per_example_loss(self, output: Tensor, target: Tensor) -> Tensor:
        return losses.cross_entropy(4 * output, target)


SIGNS, CLASSES = Admissible("sign"), Admissible("class")
SIGMA = 1.5290396  # ε = 4 at δ = 1e-5 for two steps on all examples: μ = √2/σ = 0.925


def audited(module: LipschitzModule, admissible: Admissible = SIGNS, **settings: Any) -> PrivacyAudit:
    settings = {"canaries": 200, "noise_multiplier": SIGMA, "seed": 2, "ascents": 1, **settings}
    return audit_privacy(module, admissible, PrivacyAuditConfig(**settings))


# --- a sound engine ---


def test_an_attained_bound_is_attained_and_not_exceeded() -> None:
    """One audit, which 5 % of seeds would refute. It attains half but for 2e-3 of seeds."""
    found = audited(Signs())
    assert found.sound
    assert found.claimed == pytest.approx(4.0, abs=1e-3)
    assert 2.0 < found.lower < 4.0
    assert found.lower_of_any < found.lower
    assert found.share == found.lower / found.claimed
    assert found.separation == pytest.approx(1.0, abs=1e-6)
    assert (found.game.canaries, found.game.runs, found.game.guessed) == (200, 200, 100)
    assert found.p_value > 0.05


@pytest.mark.parametrize(
    "settings",
    [
        {"neighbours": "replace_one", "noise_multiplier": 3.0, "canaries": 120},
        {"noise": "per_layer", "steps": 1},
        {"batch_size": 1, "dataset_size": 2, "canaries": 120},
        {"dataset_size": 5, "max_physical_batch": 2},
        {"runs": 1},
        {"runs": 3},
    ],
    ids=["replace_one", "one step", "sampled", "pieces", "one run", "three runs"],
)
def test_other_settings_are_sound_too(settings: dict[str, Any]) -> None:
    """Six audits, each refuted by at most 5 % of seeds. Where the claim is small, 38 of 60 guesses must be right
    for a bound above 0, and some 46 are expected: missed by 2e-2 of seeds.
    """
    found = audited(Signs(), **{"canaries": 60, **settings})
    assert found.sound
    assert 0 < found.lower < found.claimed


def test_the_claim_is_what_the_ledger_says() -> None:
    """Of ε = 4, the ledger has two thirds. The lower bound is above that but for 5e-2 of seeds."""
    recorded = PrivacyEngine.get_epsilon

    def forgetful(engine: PrivacyEngine, delta: float) -> float:
        return 0.67 * recorded(engine, delta)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PrivacyEngine, "get_epsilon", forgetful)
        found = audited(Signs(), seed=3)
    assert found.claimed == pytest.approx(2.68, abs=0.01)
    assert not found.sound


def test_a_seed_repeats_an_audit_and_fresh_entropy_does_not() -> None:
    """Of 20 guesses, right in about 60 %, two audits have equally many right with probability 1/8, four with
    2e-3.
    """
    once, again = (audited(Signs(), canaries=20) for _ in range(2))
    assert once == again
    fresh = {audited(Signs(), canaries=40, steps=1, seed=None, noise_multiplier=10.0).game.right for _ in range(4)}
    assert len(fresh) > 1


def test_runs_leave_no_hooks_in_the_module_that_the_next_one_would_meet() -> None:
    module = Signs()
    audited(module, canaries=2)
    weight: Any = module.layer.weight
    assert not weight._backward_hooks
    assert not weight._post_accumulate_grad_hooks


# --- faults ---


def scaled(factor: float) -> Callable[..., Any]:
    """Return a noise source's method that draws noise so many times too large."""
    true: Callable[..., Any] = NoiseSource.perturb_

    def perturb(source: NoiseSource, parameters: Any, stds: dict[str, float], normaliser: float) -> Any:
        return true(source, parameters, {name: factor * std for name, std in stds.items()}, normaliser)

    return perturb


class Wide(Signs):
    input_shape = (1000,)


ALONE: dict[str, Any] = {"canaries": 200}
ONE_RUN: dict[str, Any] = {"canaries": 1000, "runs": 1, "noise_multiplier": 2.7}  # ε = 2


@pytest.mark.parametrize(
    "settings", [ALONE, pytest.param(ONE_RUN, marks=pytest.mark.nightly)], ids=["alone", "one run"]
)
def test_half_the_noise_is_found(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone it is missed only if 2 of the 100 surest guesses are wrong, 3e-4 of seeds; in one run by 3e-3."""
    monkeypatch.setattr(NoiseSource, "perturb_", scaled(0.5))
    found = audited(Wide(), **settings)
    assert not found.sound
    assert found.share > 1
    assert found.p_value < 0.05


@pytest.mark.nightly
def test_a_bound_that_forgets_the_bias_is_found() -> None:
    """The noise is a fifth of what it should be: no guess is wrong."""

    class Forgetful(Biased):
        bounds: ClassVar = {**Biased.bounds, "outer.weight": L}

    sound = audited(Biased(), CLASSES, canaries=30, ascents=4)
    assert sound.sound
    assert 0.7 < sound.separation < 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checks, "check_gradients", lambda *_: None)  # they are larger than the bounds allow
        found = audited(Forgetful(), CLASSES)
    assert found.separation > 1
    assert not found.sound


def test_the_engine_refuses_the_gradients_beyond_a_bound_that_forgets_the_bias() -> None:
    class Forgetful(Biased):
        bounds: ClassVar = {**Biased.bounds, "outer.weight": 0.1}

    with pytest.raises(PrivacyError, match=r"the gradient of outer\.weight is longer than its bound"):
        audited(Forgetful(), CLASSES, canaries=20)


@pytest.mark.nightly
def test_division_by_the_batch_as_it_comes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of 8 arrive in pieces of 2, each divided by its own size: four times the gradient, and no guess is
    wrong.
    """
    true = LipschitzModule.criterion

    def mean(module: LipschitzModule, output: Tensor, target: Tensor) -> Tensor:
        fixed, module.normaliser = module.normaliser, float(len(output))
        try:
            return true(module, output, target)
        finally:
            module.normaliser = fixed

    monkeypatch.setattr(LipschitzModule, "criterion", mean)
    settings: dict[str, Any] = {"dataset_size": 8, "max_physical_batch": 2}
    with pytest.raises(PrivacyError, match="cotangent"):  # the engine sees it itself
        audited(Signs(), **settings)
    for check in ("check_flow", "check_gradients"):
        monkeypatch.setattr(checks, check, lambda *_: None)
    assert not audited(Signs(), **settings).sound


@pytest.mark.nightly
def test_noise_for_another_batch_size_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise is divided by the 4 examples, not by the expected batch of 2: half of it is missing. With 200
    canaries, one audit of six does not notice; with 400 none of six seeds.
    """
    monkeypatch.setattr(NoiseSource, "perturb_", scaled(2 / 4))
    found = audited(Signs(), batch_size=2, dataset_size=4, noise_multiplier=1.2, canaries=400)
    assert not found.sound


# --- masks of dropout ---


class Dropping(Signs):
    """One linear layer behind dropout of three quarters, with its gradient clipped."""

    bounds: ClassVar = {"layer.weight": 0.5}
    clips: ClassVar = [ClipGroup("all", ("layer.weight",), 0.5)]

    def forward(self, x: Tensor) -> Tensor:
        x = torch.dropout(self.clip_input(x), 0.75, self.training)
        return self.release(self.layer(x))


def test_masks_do_not_hide_canaries_that_are_clipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half the noise is missing, which is missed by 3e-4 of seeds; behind masks it was not found."""
    module = Dropping()
    found = audited(module)
    assert found.sound
    assert found.separation == pytest.approx(1.0, abs=1e-3)
    assert module.training
    monkeypatch.setattr(NoiseSource, "perturb_", scaled(0.5))
    assert not audited(module).sound


class Masked(Dropping):
    """The same, with a theorem: three quarters of dropout make what is left four times as long."""

    bounds: ClassVar = {"layer.weight": 4.0}
    clips: ClassVar = []


@pytest.mark.parametrize("net", [Dropping, Masked])
def test_a_seed_repeats_masks_as_well(net: type[LipschitzModule]) -> None:
    once, again = (audited(net(), canaries=20) for _ in range(2))
    assert once == again


# --- what is refused ---


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"canaries": 0}, "at least one canary"),
        ({"canaries": 10, "runs": 11}, "at most one run for each canary"),
        ({"confidence": 1.0}, "confidence"),
        ({"canaries": 10, "runs": 1, "dataset_size": 9}, "cannot hold the 10 canaries"),
        ({"batch_size": 3}, "smaller batch_size"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        audited(Signs(), **settings)


def test_budgets_and_memory_are_limited() -> None:
    with pytest.raises(BudgetError, match="epsilon"):
        audited(Signs(), noise_multiplier=None, epsilon=-1.0)
    with pytest.raises(CanaryError, match="use more runs"):
        audited(Signs(), canaries=10**6, runs=1)


# --- at night ---


@pytest.mark.nightly
def test_false_alarms_are_no_more_frequent_than_the_confidence_says() -> None:
    """Of 100 audits of an engine that just keeps its claim at most 14 refute it, but for 2e-4 of seeds."""
    alarms = sum(not audited(Signs(), canaries=100, seed=seed).sound for seed in range(100))
    assert alarms <= 14
    assert binom.sf(14, 100, 0.05) < 2e-4


@pytest.mark.nightly
def test_half_the_noise_is_found_with_every_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 50 is missed by 3e-4 of seeds."""
    monkeypatch.setattr(NoiseSource, "perturb_", scaled(0.5))
    assert sum(audited(Signs(), seed=seed).sound for seed in range(50)) <= 1

"""Clipping in the engine: of the loss's gradient, and example by example, as the mechanism that is counted."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from lipcompile_privacy.accounting import BudgetError
from lipcompile_torch import PrivacyEngine
from lipcompile_torch.certify.precision import rounding_slack
from lipcompile_torch.train.checks import PrivacyError
from lipcompile_torch.train.engine import SeededWarning
from lipcompile_torch.train.loss_clipping import AdaptiveClip, Cosine
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD

from tests.torch.private_net import Net, backward, make_loader, private, seeded

B, SLACK = 20, 1 + rounding_slack(torch.float32)


class Linear(Net):
    unclipped_bounds = Net.bounds


def released(optimizer: Any) -> list[torch.Tensor]:
    """Return a list that every released gradient is added to."""
    seen: list[torch.Tensor] = []
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    optimizer.optimizer.register_step_pre_hook(
        lambda *_: seen.append(torch.cat([p.grad.flatten() for p in parameters]).double())
    )
    return seen


def deviation(seen: list[torch.Tensor]) -> tuple[float, float]:
    """Return the standard deviation of all entries, and 6 deviations of that: missed in 2e-9 of cases."""
    entries = torch.stack(seen)
    std = float(entries.square().mean().sqrt())
    return std, 6 * std / math.sqrt(2 * entries.numel())


@pytest.mark.parametrize(
    ("module", "share"),
    [(Linear, 0.1 / math.sqrt(2)), (Net, 1.0)],  # bounds that need not be linear in L stay those of L
)
def test_a_clip_lowers_the_noise_where_the_bounds_are_linear_in_it(module: Any, share: float) -> None:
    _, optimizer, loader = triple = seeded(module=module(), noise_multiplier=1e4, seed=1, loss_clip=0.1)
    seen = released(optimizer)
    for _ in range(6):
        for x, y in loader:
            backward(triple[0], x, y)
            optimizer.step()
    expected = 1e4 * math.hypot(*Net.bounds.values()) * share / B * SLACK
    std, tolerance = deviation(seen)
    assert abs(std - expected) < tolerance


def test_the_gradient_itself_is_clipped_at_the_logits() -> None:
    # One example with label 0: the cotangent p - e_y, of norm above 0.01, is scaled to 0.01 over b.
    module, _, loader = private(module=Linear(), noise_multiplier=1e-6, loss_clip=0.01)
    for x, y in loader:
        output = module(x)
        output.retain_grad()
        module.criterion(output, y).backward()
        norms = torch.linalg.vector_norm(output.grad, dim=1) * B
        assert bool((norms <= 0.01).all())
        assert bool((norms > 0.0099).all())
        break


def test_a_schedule_moves_with_the_steps_and_an_adaptive_clip_with_the_noisy_count() -> None:
    module, optimizer, loader = private(module=Linear(), loss_clip=Cosine(1.0, 0.2, 4))
    clips = []
    for x, y in loader:
        clips.append(module.loss_clip)
        backward(module, x, y)
        optimizer.step()
    assert clips[0] == 1.0
    assert clips[4:] == [0.2] * 6
    # All cotangents are far above 1e-3: the fraction within is 0, up to noise, and C grows by exp(0.2·0.5) a step.
    adaptive = AdaptiveClip(1e-3, quantile=0.5, learning_rate=0.2, count_noise=100.0)
    module, optimizer, loader = seeded(module=Linear(), loss_clip=adaptive, noise_multiplier=1.0, seed=3)
    for _ in range(4):
        for x, y in loader:
            backward(module, x, y)
            optimizer.step()
    # 40 steps: each adds 0.2·(0.5 - n/20), n of deviation 100: a sum of deviation 6.3, mean 4 ± 6 deviations.
    assert abs(math.log(adaptive.value / 1e-3) - 4.0) < 6 * 0.2 * 100 / 20 * math.sqrt(40)
    assert adaptive.value != 1e-3


def test_an_adaptive_clip_takes_its_share_of_the_noise_multiplier() -> None:
    # σ = 10⁴ for the pair, count noise 10⁴: σ_g = 10⁴·2/√3, by (σ_g^-2 + (2·10⁴)^-2)^(-1/2) = 10⁴.
    clip = AdaptiveClip(50.0, learning_rate=1e-12, count_noise=1e4)
    module, optimizer, loader = seeded(module=Linear(), noise_multiplier=1e4, seed=1, loss_clip=clip)
    seen = released(optimizer)
    for _ in range(6):
        for x, y in loader:
            backward(module, x, y)
            optimizer.step()
    expected = 1e4 * 2 / math.sqrt(3) * math.hypot(*Net.bounds.values()) / B * SLACK
    std, tolerance = deviation(seen)
    assert abs(std - expected) < tolerance


def test_a_clip_changed_by_others_is_refused() -> None:
    module, optimizer, loader = private(module=Linear(), loss_clip=0.5)
    for x, y in loader:
        module.loss_clip = 5.0
        backward(module, x, y)
        with pytest.raises(PrivacyError, match="loss_clip was changed"):
            optimizer.step()
        break


def test_an_adaptive_clip_and_correlated_noise_are_refused_together() -> None:
    with pytest.raises(BudgetError, match="fixed or scheduled loss_clip"):
        private(max_steps=20, loss_clip=AdaptiveClip(1.0), correlation={"kind": "correlated", "bands": 2})


# --- the baseline: gradients clipped example by example ---


def by_clipping(module: nn.Module, **how: Any) -> Any:
    options = {"noise_multiplier": 1.0, "clipping": 0.5, "data_loader": make_loader(200, B), **how}
    return PrivacyEngine().make_private_by_clipping(
        module=module, optimizer=SGD(module.parameters(), lr=0.1), **options
    )


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def each(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return cross_entropy(output, target, reduction="none")


@pytest.mark.parametrize("lipschitz", [True, False])
def test_clipped_gradients_get_the_noise_of_their_length(lipschitz: bool) -> None:
    how = {} if lipschitz else {"per_example_loss": each}
    with pytest.warns(SeededWarning):
        clipped, optimizer, loader = by_clipping(
            Net() if lipschitz else plain(), noise_multiplier=1e4, seed=1, **how
        )
    seen = released(optimizer)
    for _ in range(6):
        for x, y in loader:
            optimizer.zero_grad()
            clipped.backward(x, y)
            optimizer.step()
    std, tolerance = deviation(seen)
    assert abs(std - 1e4 * 0.5 / B * SLACK) < tolerance


def test_what_stands_in_grad_does_not_matter_and_what_went_in_does() -> None:
    clipped, optimizer, loader = by_clipping(plain(), noise_multiplier=1e-9, per_example_loss=each)
    seen = released(optimizer)
    batches = iter(loader)
    x, y = next(batches)
    with pytest.raises(PrivacyError, match=f"{len(x)} examples were drawn for this step but 0 were passed"):
        optimizer.step()
    clipped.backward(x, y)
    for parameter in clipped.module.parameters():
        parameter.grad = torch.full_like(parameter, 1e6)
    optimizer.step()
    assert float(seen[0].norm()) <= 0.5 * len(x) / B * 1.0001


def test_a_large_batch_may_arrive_in_pieces() -> None:
    clipped, optimizer, loader = by_clipping(plain(), per_example_loss=each, max_physical_batch=4)
    for x, y in loader:
        optimizer.zero_grad()
        clipped.backward(x, y)
        optimizer.step()


def test_a_loss_clip_beside_per_example_clipping_is_refused() -> None:
    with pytest.raises(PrivacyError, match="clipped already"):
        by_clipping(Net(), loss_clip=0.1)


def test_the_state_of_the_clip_is_saved_with_the_optimizer() -> None:
    def build(clip: Any) -> Any:
        return private(module=Linear(), noise_multiplier=1.0, loss_clip=clip)

    module, optimizer, loader = build(AdaptiveClip(1.0))
    for x, y in loader:
        backward(module, x, y)
        optimizer.step()
    state = optimizer.state_dict()
    assert state["loss_clip"]["steps"] == len(loader)
    other_module, other, other_loader = build(AdaptiveClip(1.0))
    other.load_state_dict(state)
    next(iter(other_loader))
    assert other_module.loss_clip == state["loss_clip"]["value"] != 1.0
    for clip, found in ((Cosine(1.0, 0.5, 10), state), (AdaptiveClip(1.0), {**state, "loss_clip": {}})):
        with pytest.raises(ValueError, match="another kind of clip"):
            build(clip)[1].load_state_dict(found)

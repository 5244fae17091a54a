"""The squeeze-excite example: bounds derived by hand, gradients within them, a short private run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from lipcompile_torch import PrivacyEngine
from lipcompile_verify.windows import joint
from torch.utils.data import DataLoader, TensorDataset

from lipcompile.pipeline import check
from tests.emitters.test_vit import EXAMPLES, compiled, digits

NAME = "squeeze_excite"


def test_the_bounds_are_those_derived_by_hand() -> None:
    """Maps have norm 2, their means 2/8; gates are at most 2/8/4 + 1/2 = 9/16 and have slope 1/4.

    The cotangent 1/10 of the clip crosses the product: 9/16 of it goes to the maps, 2·(1/10) to the gates, and
    1/4·1/8 of that to the maps again.
    On each axis of 8 pixels a kernel of 3 taps has the joint bound that the verifier finds, less than 3.
    """
    analysis = check(str(EXAMPLES / f"{NAME}.lip")).analysis
    assert analysis is not None
    found = {name: bound.value for name, bound in analysis.parameters.items()}
    assert found == pytest.approx(
        {
            "conv2d.weight": joint(8, 8, 3, 1, 1, (1, 1)) * 2 * (9 / 160 + 2 / 10 / 32),
            "dense.weight": 2 / 8 * (2 / 10 / 4),
            "dense_2.weight": 2 / 8 * (2 / 10 / 4),
            "logits.weight": 2 * 9 / 16 / 10,
        },
        rel=1e-12,
    )


def test_gradients_of_single_examples_stay_within_their_bounds(tmp_path: Path) -> None:
    model = compiled(NAME, tmp_path)
    bounds = model.gradient_bounds()
    for x, y in zip(*digits(16), strict=True):
        model.zero_grad()
        model.criterion(model(x[None]), y[None]).backward()
        for name, parameter in model.named_parameters():
            assert 0 < parameter.grad.norm() <= bounds[name] * (1 + 1e-5), name


def test_a_short_private_run(tmp_path: Path) -> None:
    model = compiled(NAME, tmp_path)
    engine = PrivacyEngine(accountant="rdp")
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=0.02),
        data_loader=DataLoader(TensorDataset(*digits(256)), batch_size=64),
        noise_multiplier=1.0,
    )
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    for x, y in loader:
        optimizer.zero_grad()
        model.criterion(model(x), y).backward()
        optimizer.step()
    assert engine.get_epsilon(1e-3) > 0
    assert all(not torch.equal(value, before[name]) for name, value in model.named_parameters())
    assert all(norm <= 1 + 1e-6 for norm in model.certified_norms().values())

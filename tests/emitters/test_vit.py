"""The examples with attention: checked, compiled, and trained for a step with noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lipcompile_torch import PrivacyEngine
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from lipcompile.pipeline import check
from tests.emitters.test_emit import build

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def digits(count: int) -> tuple[Tensor, Tensor]:
    archive = np.load(ROOT / "lipcompile" / "data" / "digits.npz")
    x, y = archive["x_train"][:count], archive["y_train"][:count]
    return torch.from_numpy(x).float().reshape(count, 1, 8, 8), torch.from_numpy(y).long()


def sequences(count: int) -> tuple[Tensor, Tensor]:
    """The class is that of the first token."""
    x = torch.randint(256, (count, 16), generator=torch.Generator().manual_seed(0))
    return x, x[:, 0] % 4


DATA = {"vit": digits, "tokens": sequences}


def compiled(name: str, folder: Path) -> Any:
    derivation = check(str(EXAMPLES / f"{name}.lip"))
    assert derivation.ok, derivation.diagnostics
    return build(derivation, folder).float()


@pytest.mark.parametrize("name", DATA)
def test_gradients_of_single_examples_stay_within_their_bounds(name: str, tmp_path: Path) -> None:
    model = compiled(name, tmp_path)
    largest: dict[str, float] = {}
    for x, y in zip(*DATA[name](8), strict=True):
        model.zero_grad()
        model.criterion(model(x[None]), y[None]).backward()
        for parameter, value in model.named_parameters():
            assert value.grad.norm() <= model.gradient_bounds()[parameter] * (1 + 1e-5), parameter
            largest[parameter] = max(largest.get(parameter, 0.0), float(value.grad.norm()))
    assert all(found > 0 for found in largest.values())


@pytest.mark.parametrize("name", DATA)
def test_one_private_step(name: str, tmp_path: Path) -> None:
    model = compiled(name, tmp_path)
    before = {key: value.detach().clone() for key, value in model.named_parameters()}
    engine = PrivacyEngine(accountant="rdp")
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(TensorDataset(*DATA[name](64)), batch_size=16),
        noise_multiplier=1.0,
    )
    x, y = next(iter(loader))
    optimizer.zero_grad()
    model.criterion(model(x), y).backward()
    optimizer.step()
    assert engine.get_epsilon(1e-3) > 0
    for key, value in model.named_parameters():
        assert not torch.equal(value, before[key]), key
    limits = {key: constraint.bound for key, (constraint, _) in _constraints(model).items()}
    assert all(norm <= limits[key] * (1 + 1e-6) for key, norm in model.certified_norms().items())


def _constraints(model: Any) -> dict[str, Any]:
    layers = dict(model.named_modules())
    return {
        key: layers[key.rpartition(".")[0]].constraints[key.rpartition(".")[2]]
        for key, _ in model.named_parameters()
    }


def test_the_vision_transformer_learns(tmp_path: Path) -> None:
    """Without noise: the projected network fits the digits it is shown."""
    torch.manual_seed(0)
    model = compiled("vit", tmp_path)
    x, y = digits(200)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(40):
        optimizer.zero_grad()
        model.criterion(model(x), y).backward()
        optimizer.step()
        model.project_()
    assert float((model(x).argmax(1) == y).double().mean()) > 0.8

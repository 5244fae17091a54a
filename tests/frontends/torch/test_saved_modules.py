"""What `lipcompile.private` returns can be copied, pickled and saved whole, as any module of torch."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from lipcompile_torch import PrivacyEngine
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, TensorDataset

import lipcompile

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))


class Uncovered(nn.Module):
    """No rule covers singular values."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        values: Tensor = torch.linalg.svdvals(self.first(x).view(-1, 2, 2))
        return values


class Heads(nn.Module):
    """Two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 2), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.first(x), self.second(x)


def of_heads(outputs: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
    """Return a loss of both heads."""
    return outputs[0].square().mean() + F.cross_entropy(outputs[1], target)


def private(name: str) -> Any:
    torch.manual_seed(0)
    if name == "heads":
        return lipcompile.private(Heads(), [4], loss=of_heads)
    if name == "uncovered":
        with pytest.warns(UserWarning, match="LIP129"):
            return lipcompile.private(Uncovered(), [4])
    bounds: Any = name
    return lipcompile.private(
        nn.Linear(4, 2), [4], bounds=bounds, input_norm=1, constraint="spectral:1", bias_bound=1
    )


def unpickled(module: Any) -> Any:
    return pickle.loads(pickle.dumps(module))


def saved(module: Any) -> Any:
    stream = io.BytesIO()
    torch.save(module, stream)
    stream.seek(0)
    return torch.load(stream, weights_only=False)


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # torch, of its own trees
@pytest.mark.parametrize("of", [copy.deepcopy, copy.copy, unpickled, saved])
@pytest.mark.parametrize("name", ["clip", "theorem", "heads", "uncovered"])
def test_a_copy_computes_the_same_and_is_trained_under_the_same_bounds(name: str, of: Any) -> None:
    module = private(name)
    other = of(module)
    assert torch.equal(other(X), module(X))
    assert other.gradient_bounds() == module.gradient_bounds()
    data = TensorDataset(X, torch.zeros(6, dtype=torch.long))
    trained, optimizer, loader = PrivacyEngine().make_private(
        module=other,
        optimizer=torch.optim.SGD(other.parameters(), lr=0.1),
        data_loader=DataLoader(data, batch_size=6),
        noise_multiplier=1.0,
    )
    expected = [one + 0 for one in module.parameters()]
    for x, y in loader:
        trained.criterion(trained(x), y).backward()
        optimizer.step()
    assert any(not torch.equal(one, two) for one, two in zip(trained.parameters(), expected, strict=True))
    assert torch.equal(unpickled(trained)(X), trained(X))  # with what the engine has put there


def test_a_copy_in_memory_is_of_the_same_class() -> None:
    module = private("clip")
    assert type(copy.deepcopy(module)) is type(module)


def test_a_class_derived_from_it_is_pickled_as_its_own() -> None:
    """What it adds stands in no program."""
    module = private("clip")
    module.__class__ = type("Derived", (type(module),), {})
    with pytest.raises(pickle.PicklingError, match="Derived"):
        pickle.dumps(module)


@pytest.mark.slow
def test_another_process_needs_the_runtime_alone(tmp_path: Path) -> None:
    module = private("clip")
    torch.save(module, tmp_path / "module.pt")
    torch.save((X, module(X).detach().as_subclass(torch.Tensor)), tmp_path / "outputs.pt")
    program = (
        "import sys, torch\nmodule = torch.load('module.pt', weights_only=False)\n"
        "x, y = torch.load('outputs.pt')\nassert torch.equal(module(x).as_subclass(torch.Tensor), y)\n"
        "assert 'lipcompile' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)

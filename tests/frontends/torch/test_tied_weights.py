"""Stored tensors that several layers use in different ways: tied heads of language models, tied autoencoders."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import lipcompile
from lipcompile import InputError
from lipcompile.core.graph import Graph
from lipcompile.emitters.onnx.emit import save, to_onnx
from tests.frontends.torch.test_padded_texts import attacked, compiled
from tests.torch.clip_nets import NETWORKS as BODIES
from tests.torch.clip_nets import batch, model

WORDS = torch.tensor([[3, 5, 2, 0], [4, 1, 7, 2], [8, 0, 0, 6]])
NUMBERS = torch.linspace(-1, 1, 24).reshape(4, 6).sin() / 2


class Autoencoder(nn.Module):
    """The decoder is the transpose of the encoder."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.shift, self.head = nn.Linear(6, 2), nn.Parameter(torch.randn(6) / 4), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        made = F.linear(torch.tanh(self.encoder(x)), self.encoder.weight.t(), self.shift)
        return self.head(made)  # type: ignore[no-any-return]


class Language(nn.Module):
    """The head is the table of the words."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.layer, self.last = nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(9, 3)
        self.head = nn.Linear(4, 9)
        self.head.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.head(torch.tanh(self.layer(self.words(x)))).mean(1))  # type: ignore[no-any-return]


class Residual(nn.Module):
    """x - W·relu(Wᵀx) at every position, twice, as in convex potential layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(5, 3) / 4) for _ in range(2))
        self.head = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.reshape(len(x), 2, 3)
        for weight in self.weights:
            x = x - F.linear(torch.relu(F.linear(x, weight)), weight.t())
        return self.head(x.mean(1))  # type: ignore[no-any-return]


NETWORKS: dict[str, tuple[type[nn.Module], Tensor]] = {
    "autoencoder": (Autoencoder, NUMBERS),
    "language": (Language, WORDS),
    "residual": (Residual, NUMBERS),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_tied_weight_is_one_parameter(name: str, tmp_path: Path) -> None:
    """Each example adds one clipped gradient, over all uses; what comes back has the weight once."""
    make, x = NETWORKS[name]
    net = make()
    module = compiled(net, x, tmp_path)
    assert sum(p.numel() for p in module.parameters()) == sum(p.numel() for p in net.parameters())
    attacked(net, module, x)


def test_a_tied_head_keeps_its_names_and_goes_back() -> None:
    net = Language()
    module = lipcompile.private(net, WORDS, bounds="clip")
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1)
    other = Language()
    lipcompile.load_trained(other, module, WORDS)
    assert other.head.weight is other.words.weight
    torch.testing.assert_close(other(WORDS), module(WORDS))


@pytest.mark.parametrize("name", ["autoencoder", "residual"])
def test_theorems_hold_a_matrix_and_its_transpose_to_one_norm(name: str, tmp_path: Path) -> None:
    make, x = NETWORKS[name]
    module = compiled(make(), x, tmp_path, bounds="theorem", input_norm=1.0)
    y = torch.arange(len(x)) % 3
    for index in range(len(x)):
        module.zero_grad()
        module.per_example_loss(module(x[index : index + 1]), y[index : index + 1]).sum().backward()
        for key, parameter in module.named_parameters():
            assert float(parameter.grad.norm()) <= module.bounds[key] * (1 + 1e-6)


def test_a_name_that_torch_takes_is_told() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.code = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.code(x)  # type: ignore[no-any-return]

    with pytest.raises(InputError, match="rename that submodule"):
        lipcompile.private(Named(), NUMBERS, bounds="theorem")
    with pytest.warns(UserWarning, match="rename that submodule"):
        lipcompile.private(Named(), NUMBERS, bounds="clip")


def test_theorems_refuse_a_tied_head() -> None:
    with pytest.raises(InputError, match="LIP308") as raised:
        lipcompile.private(Language(), WORDS, bounds="theorem")
    assert "--bounds clip" in str(raised.value)


@pytest.mark.parametrize(
    "use",
    [
        lambda h, w: F.linear(h, 2 * w.t()),
        lambda h, w: F.linear(h, w.t()[:5]),
        lambda h, w: h @ (w @ w.t()),
        lambda h, w: F.linear(h, w.t() / w.abs().sum()),
        lambda h, w: h + w[:, 0],
    ],
)
@pytest.mark.filterwarnings("ignore:the output does not depend on")
def test_functions_of_a_weight_are_no_transpose(use: Any, tmp_path: Path) -> None:
    """By a clip the weight is one parameter, and its functions are those of torch."""

    class Other(Autoencoder):
        def forward(self, x: Tensor) -> Tensor:
            return F.pad(use(self.encoder(x), self.encoder.weight), (0, 1))

    net = Other()
    with pytest.raises(InputError, match="LIP308"):
        lipcompile.private(net, NUMBERS, bounds="theorem")
    module = compiled(net, NUMBERS, tmp_path)
    assert sum(p.numel() for p in module.parameters()) == sum(p.numel() for p in net.encoder.parameters())
    module.normaliser = 1.0
    attacked(net, module, NUMBERS)


@pytest.mark.parametrize("name", ["tied", "tied over tokens", "tied to a table"])
def test_onnx_files_keep_the_tie(name: str, tmp_path: Path) -> None:
    module = model(BODIES[name], tmp_path)
    x, _ = batch(module)
    (source,) = tmp_path.glob("*.lip")
    first = _graph(source, "clip")
    path = tmp_path / "net.onnx"
    save(to_onnx(first, {key: p.detach().double().numpy() for key, p in module.named_parameters()}), path)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (made,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    np.testing.assert_allclose(made, module(x).detach().numpy(), rtol=1e-4, atol=1e-5)
    assert _graph(path, "clip").size() == first.size()


def _graph(path: Path, bounds: Literal["clip", "auto"]) -> Graph:
    analysis = lipcompile.check(str(path), lipcompile.ModelOptions(bounds=bounds, loss="cross_entropy")).analysis
    assert analysis is not None
    return analysis.graph

"""Normal numbers that a module draws for each example: they stand in training, and their mean in evaluation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from lipcompile_torch import PrivacyEngine
from lipcompile_verify import verify
from onnx import helper
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import lipcompile
from lipcompile.core.backend import program
from lipcompile.diagnostics import InputError
from lipcompile.emitters.onnx.emit import to_onnx
from lipcompile.frontends.options import model_options
from tests.frontends.onnx.onnx_models import model, node, save
from tests.torch.clip_nets import clipped, whole

Draw = Callable[[Tensor], Tensor]


class Autoencoder(nn.Module):
    """A variational one, as textbooks write it."""

    def __init__(self, draw: Draw) -> None:
        super().__init__()
        self.encode, self.mean, self.spread = nn.Linear(6, 5), nn.Linear(5, 4), nn.Linear(5, 4)
        self.decode, self.draw = nn.Linear(4, 6), draw

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = torch.relu(self.encode(x))
        mean, spread = self.mean(hidden), self.spread(hidden)
        return self.decode(mean + torch.exp(0.5 * spread) * self.draw(mean)), mean, spread


def divergence(outputs: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
    decoded, mean, spread = outputs
    prior = 0.5 * (mean**2 + spread.exp() - spread - 1).sum(-1)
    return ((decoded - x) ** 2).sum(-1) + prior


DRAWS: dict[str, Draw] = {
    "like": torch.randn_like,
    "shape": lambda h: torch.randn(h.shape),
    "batch": lambda h: torch.randn(len(h), 4),
    "one": lambda h: torch.randn(len(h), 1),
    "normal": lambda h: torch.normal(torch.zeros_like(h), torch.ones_like(h)),
    "in place": lambda h: h.new_empty(h.shape).normal_(),
}


X = torch.randn(7, 6, generator=torch.Generator().manual_seed(1))


def pair(draw: Draw) -> tuple[Any, Any]:
    torch.manual_seed(0)
    module = Autoencoder(draw)
    with pytest.warns(UserWarning, match="takes its mean there"):
        return module, lipcompile.private(module, (6,), loss=divergence, bounds="clip")


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_noise_is_drawn_in_training_and_is_its_mean_in_evaluation(draw: Draw) -> None:
    """Torch's generator gives both modules the same numbers, since each draws once, in one shape."""
    module, private = pair(draw)
    for training in (True, False):
        module.train(training)
        private.train(training)
        module.draw = draw if training else torch.zeros_like
        torch.manual_seed(2)
        expected = module(X)
        torch.manual_seed(2)
        for one, wanted in zip(private.split_output(private(X)), expected, strict=True):
            torch.testing.assert_close(one, wanted)


def test_gradients_are_those_of_the_draws_clipped_example_by_example() -> None:
    """Each by C/(‖g‖ + γ), the automatic clip of decision 61."""
    module, private = pair(torch.randn_like)
    private.normaliser = 1.0
    length = next(iter(private.clips)).length
    torch.manual_seed(3)
    drawn = torch.randn(7, 4)
    total = [torch.zeros_like(p) for p in module.parameters()]
    for x, numbers in zip(X, drawn, strict=True):
        module.draw = lambda h, numbers=numbers: numbers.expand_as(h)
        loss = divergence(module(x[None]), x[None]).sum()
        gradients = torch.autograd.grad(loss, list(module.parameters()))
        norm = float(torch.cat([g.flatten() for g in gradients]).norm())
        for sum_, gradient in zip(total, gradients, strict=True):
            sum_ += gradient * length / (norm + 0.01)
    torch.manual_seed(3)
    found = clipped(private, X, X)
    assert whole(found) <= 7 * length
    for gradient, wanted in zip(found.values(), total, strict=True):
        torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-6)


def test_an_autoencoder_trains_and_its_certificate_verifies() -> None:
    _, private = pair(torch.randn_like)
    assert not verify(private.certificate).problems
    data = TensorDataset(0.1 * torch.randn(64, 6) + torch.arange(6.0))
    with torch.no_grad():
        before = private.per_example_loss(private.eval()(data.tensors[0]), data.tensors[0]).mean()
    module, optimizer, loader = PrivacyEngine().make_private(
        module=private.train(),
        optimizer=torch.optim.Adam(private.parameters(), lr=0.05),
        data_loader=DataLoader(TensorDataset(*data.tensors, *data.tensors), batch_size=32),
        noise_multiplier=0.5,
    )
    for _ in range(30):
        for x, y in loader:
            optimizer.zero_grad()
            module.criterion(module(x), y).backward()
            optimizer.step()
    with torch.no_grad():
        after = module.per_example_loss(module.eval()(data.tensors[0]), data.tensors[0]).mean()
    assert after < before / 2


class Noisy(nn.Module):
    def __init__(self, draw: Draw) -> None:
        super().__init__()
        self.layer, self.draw = nn.Linear(6, 4), draw

    def forward(self, x: Tensor) -> Any:
        return self.draw(self.layer(x))


def codes(draw: Draw, **options: Any) -> set[str]:
    return {
        one.code for one in lipcompile.from_module(Noisy(draw), (6,), loss="cross_entropy", **options).diagnostics
    }


def test_a_draw_of_all_examples_is_refused() -> None:
    assert "LIP110" in codes(lambda h: h + torch.randn(4), bounds="clip")  # in evaluation, too


def test_a_draw_that_nothing_reads_is_none() -> None:
    """As PonderNet's, if only its probabilities are returned."""
    drawn = codes(lambda h: (h, torch.bernoulli(h.sigmoid()) * h)[0], bounds="clip")
    assert drawn == codes(lambda h: h, bounds="clip")
    assert "LIP110" in codes(lambda h: torch.bernoulli(h.sigmoid()) * h, bounds="clip")


def test_noise_has_no_theorem() -> None:
    draw = torch.normal
    assert "LIP110" in codes(lambda h: draw(h, torch.ones_like(h)), bounds="theorem", input_norm=1)
    assert codes(lambda h: draw(h, torch.ones_like(h)), bounds="clip") == {"LIP128"}


def test_noise_that_is_more_than_added_computes_its_mean_in_evaluation_as_well() -> None:
    """ReLU of the noise has another mean than 0: a module without it in evaluation is another one."""

    def folded(h: Tensor) -> Tensor:
        return h + (2 + torch.randn_like(h)).relu() if module.training else h

    module = Noisy(folded)
    with pytest.raises(InputError, match="mean of what it draws") as caught:
        lipcompile.private(module, (6,), loss="cross_entropy", bounds="clip")
    assert caught.value.diagnostics[-1].code == "LIP320"


def test_a_file_draws_what_it_says(tmp_path: Path) -> None:
    """Mean 1/2, deviation 1/4; a seed in the file is refused."""
    nodes = [
        node("RandomNormalLike", "x", "d", mean=0.5, scale=0.25),
        node("Add", "x d", "h"),
        node("Gemm", "h w", "y"),
    ]
    weights = {"w": np.eye(6, dtype=np.float32)}
    path = save(model(nodes, ("n", 6), weights), tmp_path)
    file = lipcompile.compile(path, tmp_path / "model.py", loss="cross_entropy", bounds="clip")
    module = program(file, file.read_text()).Model()
    x = torch.zeros(20_000, 6)
    torch.manual_seed(0)
    with torch.no_grad():
        torch.testing.assert_close(module.eval()(x), x + 0.5)
        drawn = module.train()(x).double()
    # 120,000 numbers: five standard errors, which a right draw leaves with a probability of 6e-7 each.
    assert abs(float(drawn.mean()) - 0.5) < 5 * 0.25 / 120_000**0.5
    assert abs(float(drawn.std()) - 0.25) < 5 * 0.25 / 240_000**0.5
    nodes[0].attribute.append(helper.make_attribute("seed", 1.0))
    options = model_options(loss="cross_entropy", bounds="clip")
    seeded = lipcompile.check(save(model(nodes, ("n", 6), weights), tmp_path), options)
    assert "LIP110" in {one.code for one in seeded.diagnostics}


def test_a_written_file_draws_in_training_and_has_the_mean_else() -> None:
    derivation = lipcompile.from_module(
        Noisy(lambda h: h + torch.randn_like(h)), (6,), loss="cross_entropy", bounds="clip"
    )
    assert derivation.analysis is not None
    graph = derivation.analysis.graph
    x, runs = np.zeros((500, 6), np.float32), []
    for training in (False, True):
        file = to_onnx(graph, training=training).SerializeToString()
        session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        runs.append(session.run(None, {session.get_inputs()[0].name: x})[0])
    calm, drawn = runs
    assert (calm == calm[0]).all()
    # 2,000 numbers: five standard errors, which a right draw leaves with a probability of 6e-7 each.
    assert abs(float((drawn - calm).mean())) < 5 / 2_000**0.5
    assert abs(float((drawn - calm).std()) - 1) < 5 / 4_000**0.5

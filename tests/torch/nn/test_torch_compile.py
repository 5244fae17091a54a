"""`Module.compile()`: the forward pass is compiled in place, and the gate stays outside of what is compiled."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lipcompile_torch import PrivacyEngine, layers
from lipcompile_torch.train.checks import PrivacyError
from torch import Tensor
from torch.optim import SGD

import lipcompile
from tests.nights import by_day
from tests.torch.clip_nets import NETWORKS, batch, clipped, expected, model


def _imported(name: str) -> Any:
    """Dynamo finds globals of what it compiles by the name of their module."""
    spec = importlib.util.spec_from_file_location(name, (Path(__file__).parents[1] / f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


HELP = _imported("private_net")

# Torch compiles by its own deprecated names.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def trained(backend: str | None, **options: Any) -> dict[str, Tensor]:
    torch.manual_seed(0)
    module = HELP.Net()
    if backend is not None:
        module.compile(backend=backend, fullgraph=True)
    module, optimizer, loader = HELP.seeded(module=module, seed=1, **options)
    for x, y in loader:
        HELP.backward(module, x, y)
        optimizer.step()
    found: dict[str, Tensor] = HELP.weights(module)
    return found


@pytest.mark.parametrize("options", [{}, {"max_physical_batch": 7}], ids=["whole", "pieces"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_module_trains_like_itself(backend: str, options: dict[str, Any]) -> None:
    torch.testing.assert_close(trained(backend, **options), trained(None, **options))


def scaled(module: Any, x: Tensor, y: Tensor) -> Tensor:
    total: Tensor = 2 * module.criterion(module(x), y)
    return total


def changed(module: Any, x: Tensor, y: Tensor) -> Tensor:
    total: Tensor = module.criterion(0.5 * module(x), y)
    return total


def foreign(module: Any, x: Tensor, y: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(module(x), y)


def twice(module: Any, x: Tensor, y: Tensor) -> Tensor:
    total: Tensor = module.criterion(module(x), y) + module.criterion(module(x), y)
    return total


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("loss", [scaled, changed, foreign, twice])
def test_the_gate_of_a_compiled_module_refuses_what_it_always_does(
    loss: Callable[[Any, Tensor, Tensor], Tensor], backend: str
) -> None:
    module = HELP.Net()
    module.compile(backend=backend)
    module, optimizer, loader = HELP.private(module=module)
    x, y = next(iter(loader))
    torch.autograd.backward(loss(module, x, y))
    with pytest.raises(PrivacyError, match=r"the cotangents are not|flowed back: backward"):
        optimizer.step()
    optimizer.zero_grad()
    HELP.backward(module, x, y)
    optimizer.step()


def test_a_gate_that_was_compiled_away_lets_nothing_through() -> None:
    """The whole of `module(x)` traced into somebody else's function."""
    module, optimizer, loader = HELP.private()
    x, y = next(iter(loader))

    def forward(x: Tensor) -> Tensor:
        output: Tensor = module(x)
        return output

    module.criterion(torch.compile(forward, backend="aot_eager")(x), y).backward()
    with pytest.raises(PrivacyError, match=r"but 0 flowed back: .*module\.compile\(\)"):
        optimizer.step()


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace:UserWarning")
def test_a_private_module_in_a_wrapper_is_refused_with_the_fix() -> None:
    """Its class stands in no file, which Dynamo would look for by the name of its globals."""
    module = lipcompile.private(torch.nn.Linear(4, 3), (4,), loss="cross_entropy", bounds="clip")
    module, optimizer, loader = HELP.private(module=module)
    x, y = next(iter(loader))
    wrapped: Any = torch.compile(module, backend="eager")
    module.criterion(wrapped(x), y).backward()
    with pytest.raises(PrivacyError, match=r"but 0 flowed back: .*module\.compile\(\)"):
        optimizer.step()


def test_a_wrapper_is_refused_with_the_fix() -> None:
    module: Any = HELP.Net()
    wrapped: Any = torch.compile(module, backend="eager")
    with pytest.raises(PrivacyError, match=r"OptimizedModule has no proved .*module\.compile\(\)"):
        PrivacyEngine().make_private(
            module=wrapped,
            optimizer=SGD(module.parameters(), 0.1),
            data_loader=HELP.make_loader(),
            noise_multiplier=1.0,
        )


# --- clips ---


@pytest.mark.parametrize(
    "network",
    by_day(
        {"vectors", "shared"},
        ["vectors", "images", "tokens of a table", "shared", "recurrent"],
    ),
)
def test_a_compiled_module_clips_as_it_does_otherwise(network: str, tmp_path: Path) -> None:
    module = model(NETWORKS[network], tmp_path)
    batches = [batch(module, size) for size in (6, 1, 3)]
    by_hand = [expected(module, x, y) for x, y in batches]
    module.compile(backend="aot_eager")
    module.gate.batch = object()
    for (x, y), wanted in zip(batches, by_hand, strict=True):
        for name, gradient in clipped(module, x, y).items():
            torch.testing.assert_close(gradient.double(), wanted[name], rtol=1e-4, atol=1e-6)


def test_layers_that_clip_are_not_traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, forward = [], layers.Dense.forward

    def watched(self: layers.Dense, x: Tensor) -> Tensor:
        seen.append(torch.compiler.is_compiling())
        return forward(self, x)

    monkeypatch.setattr(layers.Dense, "forward", watched)
    for bounds, traced in (("clip", False), ("theorem", True)):
        module = model("input x: tensor[5], norm <= 1; dense(7); tanh; dense(3)", tmp_path, bounds)
        module.compile(backend="eager")
        seen.clear()
        module(torch.ones(2, 5))
        assert seen == [traced, traced]


@pytest.mark.parametrize(
    "options",
    [
        {"fullgraph": True},
        {"mode": "reduce-overhead"},
        {"options": {"triton.cudagraphs": True}},
        {"backend": "cudagraphs"},
    ],
    ids=str,
)
def test_what_does_not_compile_between_clips_is_refused(options: dict[str, Any], tmp_path: Path) -> None:
    module = model(NETWORKS["vectors"], tmp_path)
    with pytest.raises(ValueError, match="remove fullgraph, options and cudagraphs"):
        module.compile(**options)


@pytest.mark.parametrize("part", ["layer", "module"])
def test_compiled_code_in_the_place_of_a_layer_that_clips_is_refused(part: str, tmp_path: Path) -> None:
    module = model(NETWORKS["vectors"], tmp_path)
    module.guard_layers()
    module.gate.batch = object()  # as an engine does
    torch.nn.Module.compile(module if part == "module" else module.dense, backend="eager")
    x, _ = batch(module)
    with pytest.raises(RuntimeError, match=r"with module\.compile\(\), or do not"):
        module(x)

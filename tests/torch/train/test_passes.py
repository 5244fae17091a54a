"""Forward and backward passes that are not those of the certificate: nothing is released of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from lipcompile_torch import PrivacyEngine
from lipcompile_torch.certify.precision import rounding_slack
from lipcompile_torch.train.checks import PrivacyError
from torch import nn

from tests.torch.private_net import Net, backward, private


class Linear(Net):
    """The same network with a loss that is linear in the output: no second derivative flows through the gate."""

    def per_example_loss(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return -output.gather(1, target[:, None])[:, 0]


def penalty_alone(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    loss = module.criterion(module(x), y)  # type: ignore[operator]
    found = torch.autograd.grad(loss, list(module.parameters()), create_graph=True)
    sum((gradient**2).sum() for gradient in found).backward()  # type: ignore[union-attr]


def penalty_on_top(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    module.criterion(module(x), y).backward(create_graph=True)  # type: ignore[operator]
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    torch.stack([(gradient**2).sum() for gradient in gradients]).sum().backward()  # type: ignore[no-untyped-call]


def penalty_on_inputs(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    inputs = x.clone().requires_grad_()
    loss = module.criterion(module(inputs), y)  # type: ignore[operator]
    (found,) = torch.autograd.grad(loss, inputs, create_graph=True)
    (found.sum(0) ** 2).sum().backward()  # type: ignore[no-untyped-call]


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
@pytest.mark.parametrize("penalise", [penalty_alone, penalty_on_top, penalty_on_inputs])
def test_functions_of_gradients_are_not_differentiated(penalise: Callable[..., None]) -> None:
    """A penalty on the gradient of a sum couples examples, and reaches weights without passing the gate again."""
    module, optimizer, loader = private(module=Linear())
    x, y = next(iter(loader))
    penalise(module, x, y)
    with pytest.raises(PrivacyError, match="create_graph"):
        optimizer.step()


def test_an_output_of_an_earlier_batch_does_not_flow_back_into_a_later_one() -> None:
    """Its examples were not drawn for that step: the sampling would not be the one accounted."""
    module, optimizer, loader = private(sampling="fixed_size")
    batches = iter(loader)
    x, y = next(batches)
    early = module(x)
    optimizer.abandon_batch()
    next(batches)
    module.criterion(early, y).backward()
    with pytest.raises(PrivacyError, match="earlier batch"):
        optimizer.step()


def widen(module: Any) -> None:
    module.inner.forward = lambda x: 9 * torch.nn.functional.linear(x, module.inner.weight)


def hook(module: Any) -> None:
    module.inner.register_forward_hook(lambda _module, _inputs, output: 9 * output)


@pytest.mark.parametrize("change", [widen, hook])
def test_nothing_is_released_of_a_forward_pass_that_is_not_the_certified_one(change: Callable[..., None]) -> None:
    """Projection would find the change after the release, and nobody one that is taken back before the step."""
    engine = PrivacyEngine()
    module, _, loader = private(engine=engine)
    x, _ = next(iter(loader))
    change(module)
    with pytest.raises(RuntimeError, match=r"inner were replaced after compilation|inner has hooks"):
        module(x)
    assert engine.ledger is not None
    assert engine.ledger.record.total_steps == 0


def test_hooks_of_all_modules_are_refused() -> None:
    module, optimizer, loader = private()
    x, y = next(iter(loader))
    registered = nn.modules.module.register_module_forward_hook(lambda _module, _inputs, output: 9 * output)
    try:
        with pytest.raises(RuntimeError, match="every module of torch has hooks"):
            module(x)
    finally:
        registered.remove()
    backward(module, x, y)
    optimizer.step()


def test_products_that_are_rounded_on_the_way_back_are_paid_for_in_noise() -> None:
    """As on the way forth, see above."""
    module, _, loader = private()
    x, y = next(iter(loader))
    loss, told = module.criterion(module(x), y), torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        loss.backward()
    finally:
        torch.set_float32_matmul_precision(told)
    assert module.gate.slack == rounding_slack(torch.bfloat16)


@pytest.mark.parametrize("around", ["module", "criterion"])
def test_saved_tensors_are_those_that_were_computed(around: str) -> None:
    """Compressed activations give other gradients; copies on another device do not."""
    module, optimizer, loader = private()
    x, y = next(iter(loader))
    with torch.autograd.graph.save_on_cpu():
        output = torch.utils.checkpoint.checkpoint(module, x, use_reentrant=False)
        module.criterion(output, y).backward()
    optimizer.step()
    x, y = next(iter(loader))
    output = module(x)
    with (
        torch.autograd.graph.saved_tensors_hooks(lambda saved: saved.half(), lambda saved: 2 * saved.float()),
        pytest.raises(RuntimeError, match="saved_tensors_hooks may change"),
    ):
        module(x) if around == "module" else module.criterion(output, y)

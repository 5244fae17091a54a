"""The module base: clipping, gate, accounting of parameters, weights, rounding."""

from __future__ import annotations

import base64
import copy
import math
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from lipcompile_torch import layers
from lipcompile_torch.certify.constraints import Ball, Fixed, Orthogonal
from lipcompile_torch.certify.precision import rounding_slack
from lipcompile_torch.nn import functional, losses
from lipcompile_torch.nn.constrained import OutsideWarning
from lipcompile_torch.train.module import LipschitzModule
from lipcompile_torch.weights import Arrays, decode_weights, encode_weights
from torch import Tensor, nn

L = math.sqrt(2)


class Small(LipschitzModule):
    """An emitted module in miniature; constants by hand."""

    input_shape = (1, 6, 6)
    input_norm = 1.0
    lipschitz = 1.0
    loss_lipschitz = L
    certificate = {}  # noqa: RUF012  (as emitted)
    bounds = {"conv.weight": 3 * L, "conv.bias": 6 * L, "fc.weight": (1 + 6 * 0.1) * L}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.conv = layers.Conv2d(1, 4, (3, 3), (6, 6), 9, 9, padding=((1, 1), (1, 1)), bias=0.1)
        self.fc = layers.Dense(36, 3, constraint=Orthogonal())
        self.project_()

    def forward(self, image: Tensor) -> Tensor:
        x = self.clip_input(image)
        x = functional.group_sort(self.conv(x), 2)
        x = functional.l2_pool(x, (2, 2))
        return self.release(self.fc(x.flatten(1)))

    def per_example_loss(self, output: Tensor, target: Tensor) -> Tensor:
        return losses.cross_entropy(output, target, temperature=18.0)


def small() -> Small:
    torch.manual_seed(0)
    return Small()


def data(count: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(count, 1, 6, 6), torch.randint(0, 3, (count,))


def test_criterion_is_the_sum_over_the_fixed_normaliser() -> None:
    module, (x, y) = small(), data(5)
    module.normaliser = 64.0
    losses_of = module.per_example_loss(module(x), y)
    assert losses_of.shape == (5,)
    assert torch.equal(module.criterion(module(x), y), losses_of.sum() / 64)


@pytest.mark.parametrize("scale", [0.0, 1e-3, 1.0, 1e3])
def test_per_example_gradients_stay_below_their_bounds(scale: float) -> None:
    module, (x, y) = small(), data(20)
    for i in range(20):
        module.zero_grad()
        torch.autograd.backward(module.criterion(module(scale * x[i : i + 1]), y[i : i + 1]))
        for name, parameter in module.named_parameters():
            assert parameter.grad is not None
            limit = module.gradient_bounds()[name] * (1 + rounding_slack(torch.float32))
            assert float(parameter.grad.norm()) <= limit, name


def test_inputs_are_clipped_unless_trusted() -> None:
    module, (x, _) = small(), data(5)
    assert float(module.clip_input(x).flatten(1).norm(dim=1).max()) <= 1.0
    assert torch.allclose(module(x), module(2 * x), atol=1e-6)
    module.input_trusted = True  # type: ignore[misc]
    assert module.clip_input(x) is x


@pytest.mark.parametrize("wrong", [torch.ones(6, 6), torch.ones(2, 6, 6), torch.ones(()), torch.ones(2, 1, 6, 7)])
def test_other_shapes_are_refused(wrong: Tensor) -> None:
    with pytest.raises(ValueError, match=r"inputs of shape \[B, 1, 6, 6\]"):
        small()(wrong)


def test_integer_inputs_are_refused() -> None:
    with pytest.raises(ValueError, match="floating point"):
        small()(torch.ones(2, 1, 6, 6, dtype=torch.uint8))


def test_gate_counts_examples_and_sees_their_cotangents() -> None:
    module, (x, y) = small(), data(7)
    module.normaliser = 16.0
    output = module(x)
    (cotangent,) = torch.autograd.grad(module.criterion(output, y), output, retain_graph=True)
    assert module.gate.examples == 0
    torch.autograd.backward(module.criterion(output, y))
    assert module.gate.examples == 7
    assert module.gate.largest is not None
    assert module.gate.largest.shape == ()
    assert float(module.gate.largest) == pytest.approx(16 * float(cotangent.norm(dim=1).max()))
    assert float(module.gate.largest) <= module.loss_lipschitz * (1 + 1e-6)
    torch.autograd.backward(module.criterion(module(x[:2]), y[:2]))
    assert module.gate.examples == 9
    module.gate.reset()
    assert module.gate.examples == 0
    assert module.gate.largest is None


def test_trap_17_gate_sees_misuse() -> None:
    module, (x, y) = small(), data(7)
    module.normaliser = 16.0
    torch.autograd.backward(5 * module.criterion(module(x), y))
    assert float(module.gate.largest or 0) > module.loss_lipschitz
    module.gate.reset()
    torch.autograd.backward(module.per_example_loss(module(x), y).mean())  # divided by the realised batch: trap 6
    assert float(module.gate.largest or 0) > module.loss_lipschitz
    module.gate.reset()
    torch.autograd.backward(module(x).mul(math.nan).sum())
    assert not float(module.gate.largest or 0) <= module.loss_lipschitz
    module.gate.reset()
    loss = module.criterion(module(x), y)
    torch.autograd.backward(loss, retain_graph=True)
    torch.autograd.backward(loss)
    assert module.gate.examples == 14


def test_gate_without_gradients_and_with_an_empty_batch() -> None:
    module, (x, y) = small(), data(0)
    with torch.no_grad():
        assert module(x).grad_fn is None
    torch.autograd.backward(module.criterion(module(x), y))
    assert module.gate.examples == 0
    assert float(module.gate.largest if module.gate.largest is not None else 1) == 0
    for parameter in module.parameters():
        assert parameter.grad is not None
        assert not parameter.grad.any()


def test_trap_12_clip_gradient_knows_the_normaliser() -> None:
    module = small()
    module.normaliser = 10.0
    x = torch.zeros(3, 2, requires_grad=True)
    torch.autograd.backward((module.clip_gradient(x, 0.5) * torch.tensor([[30.0, 40.0]])).sum().div(10.0))
    assert x.grad is not None
    assert x.grad.norm(dim=1).tolist() == pytest.approx([0.05] * 3)


def test_trap_18_foreign_parameters_are_refused() -> None:
    module = small()
    module.extra = nn.Linear(3, 3)
    with pytest.raises(RuntimeError, match=r"extra\.bias, extra\.weight: without a constraint"):
        module.project_()


def test_trap_18_shared_parameters_are_refused() -> None:
    module = small()
    module.again = module.fc
    with pytest.raises(RuntimeError, match=r"again\.weight, fc\.weight: shared"):
        module.project_()


def test_trap_18_reparametrised_layers_are_refused() -> None:
    module = small()
    nn.utils.parametrizations.weight_norm(module.fc)
    with pytest.raises(RuntimeError, match="without a constraint"):
        module.project_()


def test_trap_18_wrapped_constrained_layers_are_projected() -> None:
    class Wrapped(Small):
        bounds = {"wrap.0.fc.weight": 1.0, **Small.bounds}  # noqa: RUF012

        def __init__(self) -> None:
            LipschitzModule.__init__(self)
            self.conv = layers.Conv2d(1, 4, (3, 3), (6, 6), 9, 9, padding=((1, 1), (1, 1)), bias=Ball(0.1))
            self.fc = layers.Dense(36, 3)
            inner = nn.Module()
            inner.fc = layers.Dense(3, 3)
            self.wrap = nn.Sequential(inner)

    module = Wrapped()
    weight = module.get_parameter("wrap.0.fc.weight")
    with torch.no_grad():
        weight.mul_(9)
    module.project_()
    assert module.certified_norms()["wrap.0.fc.weight"] <= 1


def test_trap_18_thawed_parameters_are_refused() -> None:
    class Frozen(Small):
        bounds = {name: bound for name, bound in Small.bounds.items() if name != "fc.weight"}  # noqa: RUF012

        def __init__(self) -> None:
            LipschitzModule.__init__(self)
            self.conv = layers.Conv2d(1, 4, (3, 3), (6, 6), 9, 9, padding=((1, 1), (1, 1)), bias=Ball(0.1))
            self.fc = layers.Dense(36, 3, constraint=Fixed(1.0))
            self.project_()

    module = Frozen()
    module.fc.requires_grad_(True)
    with pytest.raises(RuntimeError, match="compiled as frozen"):
        module.project_()


def test_trap_24_loaded_weights_are_projected() -> None:
    module = small()
    state = {name: 100 * value + 1 for name, value in module.state_dict().items()}
    with pytest.warns(OutsideWarning, match=r"conv\.weight \(norm up to .*, allowed 1\).*they were projected"):
        module.load_state_dict(state)
    assert max(module.certified_norms().values()) <= 1
    module.load_state_dict(module.state_dict())  # without a warning


def test_trap_22_another_dtype_is_projected() -> None:
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        module = small().to(dtype)
        assert module.fc.weight.dtype == dtype
        for name in ("conv", "fc"):
            layer = module.get_submodule(name)
            assert layer.certified_norms()["weight"] <= 1  # type: ignore[operator]


def test_copies_and_pickles() -> None:
    module, (x, _) = small(), data(3)
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(twin(x), module(x))


def test_weights_travel_as_text() -> None:
    arrays: Arrays = {
        "b": np.arange(3, dtype=np.float32),
        "a.weight": np.random.default_rng(0).normal(size=(3, 2)),
    }
    text = encode_weights(arrays)
    assert text == encode_weights({name: arrays[name] for name in ("a.weight", "b")})
    assert not set(text) & set("\"'\\\n ")
    decoded = decode_weights("\n".join(text[i : i + 20] for i in range(0, len(text), 20)))
    assert decoded.keys() == arrays.keys()
    assert all(np.array_equal(decoded[name], arrays[name]) for name in arrays)
    older = base64.b85encode(base64.b64decode(text.removeprefix("base64:"))).decode("ascii")
    assert decode_weights(older).keys() == arrays.keys()
    for damaged in (text[:-5], "!", text[:40] + "#" + text[41:]):
        with pytest.raises(ValueError, match="damaged"):
            decode_weights(damaged)


def test_initial_weights_are_loaded_by_name_and_projected() -> None:
    module, other = small(), small()
    with torch.no_grad():
        other.conv.weight.copy_(torch.randn(4, 1, 3, 3))
    other.project_()
    arrays = {name: value.detach().numpy() for name, value in other.named_parameters()}
    module.load_initial_weights(decode_weights(encode_weights(arrays)))
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), other.parameters(), strict=True))
    module.load_initial_weights({name: 50 * value for name, value in arrays.items()})
    assert max(module.certified_norms().values()) <= 1
    with pytest.raises(ValueError, match=r"do not match the parameters: \['fc.weight'\]"):
        module.load_initial_weights({name: value for name, value in arrays.items() if name != "fc.weight"})
    with pytest.raises(ValueError, match=r"expected \(3, 36\)"):
        module.load_initial_weights(arrays | {"fc.weight": np.ones((3, 1), np.float32)})
    with pytest.raises(ValueError, match="NaN"):
        module.load_initial_weights(arrays | {"fc.weight": np.full((3, 36), np.nan, np.float32)})


def gradient_norms(dtype: torch.dtype, seed: int) -> Tensor:
    """Per-example gradient norms of one deep dense network near its bound, computed in ``dtype``."""
    torch.manual_seed(seed)
    parts = [layers.Dense(64, 64, constraint=Orthogonal()) for _ in range(8)]
    for part in parts:
        part.to(torch.bfloat16).project_()  # weights that every dtype holds exactly
        part.to(dtype)
    x = torch.randn(16, 64).to(torch.bfloat16).to(dtype)
    norms = []
    for example in x:
        h = example[None]
        for part in parts:
            h = functional.group_sort(part(h), 2)
        grads = torch.autograd.grad(losses.cross_entropy(h, torch.tensor([0])), [p.weight for p in parts])
        norms.append(torch.stack([g.double().norm() for g in grads]))
    return torch.stack(norms)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_trap_22_slack_covers_rounding(dtype: torch.dtype) -> None:
    for seed in range(2):
        excess = float((gradient_norms(dtype, seed) / gradient_norms(torch.float64, seed) - 1).max())
        assert excess <= rounding_slack(dtype) / 3


def test_slack_of_unknown_dtypes_is_refused() -> None:
    with pytest.raises(ValueError, match="no rounding slack"):
        rounding_slack(torch.float8_e5m2)
    assert rounding_slack(torch.float64) < rounding_slack(torch.float32) < rounding_slack(torch.bfloat16)


def test_importing_the_package_does_not_import_torch() -> None:
    code = (
        "import sys, lipcompile_torch; assert 'torch' not in sys.modules; assert 'layers' in dir(lipcompile_torch)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    import lipcompile_torch

    assert lipcompile_torch.LipschitzModule is LipschitzModule
    assert lipcompile_torch.layers is layers
    with pytest.raises(AttributeError, match="no attribute"):
        _ = lipcompile_torch.nothing

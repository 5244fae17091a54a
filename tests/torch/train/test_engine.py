"""Private steps: their noise, their checks, and the habits of PyTorch that must go on working."""

from __future__ import annotations

import json
import math
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lipcompile_privacy.accounting import (
    BudgetError,
    Mechanism,
    NeighbouringRelation,
    calibrate_noise_multiplier,
    epsilon,
)
from lipcompile_privacy.ledger import GeneratorWarning
from lipcompile_torch import PrivacyEngine
from lipcompile_torch.certify.precision import rounding_slack
from lipcompile_torch.noise.mechanism import Rule
from lipcompile_torch.noise.normals import PlainNormals
from lipcompile_torch.train.checks import PrivacyError
from lipcompile_torch.train.gradients import _stated
from lipcompile_torch.train.ledger import read_ledger
from torch.optim import SGD, Adam, AdamW, lr_scheduler

from tests.torch.private_net import B, Net, Recorder, Wide, backward, data, make_loader, private, seeded, weights

# --- what is released ---


@pytest.mark.parametrize("noise", ["global", "per_layer", "optimal"])
def test_released_noise_has_the_standard_deviation_of_the_analysis(noise: Rule) -> None:
    # 60 steps with σ = 10⁴, where noise drowns the signal. The sample variance of n normals is within 6·√(2/n) of
    # the truth but for 2e-9 of seeds.
    module, optimizer, loader = seeded(Recorder, module=Wide(), noise=noise, noise_multiplier=1e4, seed=4)
    for _ in range(6):
        for x, y in loader:
            backward(module, x, y)
            optimizer.step()
    bounds, sizes = Net.bounds, {"inner.weight": 2048, "inner.bias": 512, "outer.weight": 1536}
    total = math.sqrt(sum(k**2 for k in bounds.values()))
    mixed = sum(k * math.sqrt(sizes[p]) for p, k in bounds.items())
    for index, (name, parameter) in enumerate(module.named_parameters()):
        expected = {
            "global": 1e4 * total,
            "per_layer": 1e4 * math.sqrt(3) * bounds[name],
            "optimal": 1e4 * math.sqrt(bounds[name] / math.sqrt(sizes[name]) * mixed),
        }[noise]
        seen = torch.stack([step[index] for step in optimizer.optimizer.seen]).double()
        variance = float(seen.square().mean()) * B**2 / (expected * (1 + rounding_slack(parameter.dtype))) ** 2
        assert abs(variance - 1) < 6 * math.sqrt(2 / seen.numel())


def test_the_whole_step_is_one_mechanism_of_the_stated_multiplier() -> None:
    # Trap 7, end to end: Σ (K_p / s_p)² from the noise actually drawn is 1/σ², not P/σ².
    module, optimizer, loader = seeded(Recorder, module=Wide(), noise="per_layer", noise_multiplier=1e4, seed=5)
    for _ in range(3):
        for x, y in loader:
            backward(module, x, y)
            optimizer.step()
    squares = 0.0
    for index, name in enumerate(module.gradient_bounds()):
        seen = torch.stack([step[index] for step in optimizer.optimizer.seen]).double() * B
        squares += module.gradient_bounds()[name] ** 2 / float(seen.square().mean())
    assert squares ** (-1 / 2) == pytest.approx(1e4, rel=0.05)


def test_trap_06_the_gradient_is_the_sum_over_the_fixed_normaliser() -> None:
    # Trap 6: with hardly any noise the released gradient is Σ/b, whatever the size of the batch.
    module, optimizer, loader = seeded(Recorder, noise_multiplier=1e-9, seed=0)
    sizes = []
    for step, (x, y) in enumerate(loader):
        expected = torch.autograd.grad(module.per_example_loss(module(x), y).sum() / B, list(module.parameters()))
        optimizer.zero_grad()
        backward(module, x, y)
        optimizer.step()
        sizes.append(len(x))
        for found, wanted in zip(optimizer.optimizer.seen[step], expected, strict=True):
            torch.testing.assert_close(found, wanted, atol=1e-6, rtol=1e-5)
    assert len(set(sizes)) > 1


def test_pieces_of_a_batch_add_up_exactly_and_are_counted_once() -> None:
    torch.manual_seed(0)
    whole_net, pieces_net = Net(), Net()
    pieces_net.load_state_dict(whole_net.state_dict())
    whole = seeded(Recorder, module=whole_net, noise_multiplier=1e-9, seed=7)
    pieces = seeded(Recorder, module=pieces_net, noise_multiplier=1e-9, seed=7, max_physical_batch=3)
    engines = []
    for module, optimizer, loader in (whole, pieces):
        for x, y in loader:
            optimizer.zero_grad()  # must not lose the pieces before
            backward(module, x, y)
            optimizer.step()
            optimizer.zero_grad()
        engines.append(optimizer.optimizer.seen)
    assert len(engines[0]) == len(engines[1]) == 10
    for one, other in zip(*engines, strict=True):
        for a, b in zip(one, other, strict=True):
            torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)


def test_trap_06_an_empty_batch_is_a_step_with_noise() -> None:
    # Traps 6 and 23, with and without a backward pass through no examples.
    engine = PrivacyEngine()
    module, optimizer, loader = private(engine=engine, data_loader=make_loader(20, 1), noise_multiplier=2.0)
    empty = 0
    while empty < 4:
        for x, y in loader:
            before = weights(module)
            if len(x) or empty % 2 == 0:  # the first batch may be empty: its precision must be known
                backward(module, x, y)
            optimizer.step()
            empty += len(x) == 0
            if len(x) == 0:
                assert any(not torch.equal(before[n], p) for n, p in module.named_parameters())
    assert engine.ledger is not None
    assert engine.ledger.record.total_steps % 20 == 0


def test_a_parameter_with_bound_zero_is_not_moved() -> None:
    class Flat(Net):
        bounds = {**Net.bounds, "inner.bias": 0.0}  # noqa: RUF012

    module, optimizer, loader = private(module=Flat())
    before = weights(module)
    for x, y in loader:
        backward(module, x, y)
        optimizer.step()
    assert torch.equal(before["inner.bias"], module.inner.bias)
    assert not torch.equal(before["inner.weight"], module.inner.weight)


def test_bounds_that_follow_the_weights_are_asked_for_at_every_step() -> None:
    class Following(Net):
        asked = 0

        def gradient_bounds(self) -> dict[str, float]:
            self.asked += 1
            scale = 1.0 if self.asked < 6 else 1000.0
            return {name: scale * bound for name, bound in self.bounds.items()}

    module, optimizer, loader = private(Recorder, module=Following(), noise_multiplier=10.0)
    for x, y in loader:
        backward(module, x, y)
        optimizer.step()
    lengths = [sum(float(g.norm()) for g in step) for step in optimizer.optimizer.seen]
    assert max(lengths[:2]) * 100 < min(lengths[-3:])


# --- habits of PyTorch ---


@pytest.mark.parametrize(
    "build",
    [
        lambda ps: SGD(ps, lr=0.5, momentum=0.9, weight_decay=0.01),
        lambda ps: AdamW(ps, lr=0.02),
        lambda ps: Adam([{"params": list(ps), "lr": 0.02}]),
    ],
)
def test_training_learns_and_stays_in_the_constraint_set(build: Any) -> None:
    torch.manual_seed(0)
    module, optimizer, loader = seeded(build, count=600, noise="optimal", data_loader=make_loader(600, 60), seed=3)
    for _ in range(20):
        for x, y in loader:
            optimizer.zero_grad()
            backward(module, x, y)
            optimizer.step()
        for weight in (module.inner.weight, module.outer.weight):
            assert torch.linalg.matrix_norm(weight.double(), 2) <= 1
    x, y = data(600).tensors
    assert float((module(x).argmax(1) == y).float().mean()) > 0.9


SCHEDULERS: list[Callable[[Any], Any]] = [
    lambda o: lr_scheduler.StepLR(o, 5, gamma=0.5),
    lambda o: lr_scheduler.CosineAnnealingLR(o, 20),
    lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.5, total_steps=100),
    lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step)),
    lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, total_iters=4), lr_scheduler.ExponentialLR(o, 0.9)], [4]
    ),
    lambda o: lr_scheduler.ReduceLROnPlateau(o),
]


@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("schedule", SCHEDULERS)
def test_schedulers_follow_the_plain_optimizer(schedule: Any, inner: bool) -> None:
    plain = SGD(Net().parameters(), lr=0.1, momentum=0.9)
    reference = schedule(plain)
    module, optimizer, loader = private(lambda ps: SGD(ps, lr=0.1, momentum=0.9))
    scheduler = schedule(optimizer.optimizer if inner else optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # `plain` never steps; SequentialLR calls step(epoch) itself
        for x, y in loader:
            backward(module, x, y)
            optimizer.step()
            for one in (scheduler, reference):
                one.step(1.0) if isinstance(one, lr_scheduler.ReduceLROnPlateau) else one.step()
            assert optimizer.param_groups[0]["lr"] == plain.param_groups[0]["lr"]


def test_state_goes_through_to_the_wrapped_optimizer() -> None:
    module, optimizer, loader = private(lambda ps: Adam(ps, lr=0.1))
    x, y = next(iter(loader))
    backward(module, x, y)
    optimizer.step()
    state = optimizer.state_dict()
    other = private(lambda ps: Adam(ps, lr=0.1))[1]
    other.load_state_dict(state)
    assert other.state_dict()["state"][0]["step"] == state["state"][0]["step"]
    assert other.param_groups is other.optimizer.param_groups
    assert other.defaults is other.optimizer.defaults
    assert "PrivateOptimizer(Mechanism(" in repr(other)
    seen = []
    optimizer.register_step_post_hook(lambda *_: seen.append(1))
    x, y = next(iter(loader))
    backward(module, x, y)
    optimizer.step()
    assert seen == [1]


def test_zero_grad_keeps_gradients_and_their_count_together() -> None:
    module, optimizer, loader = private()
    x, y = next(iter(loader))
    backward(module, x, y)
    optimizer.zero_grad(set_to_none=False)  # forget the first pass: the second counts alone
    assert all(float(p.grad.abs().sum()) == 0 for p in module.parameters())
    backward(module, x, y)
    optimizer.step()
    assert all(p.grad is None for p in module.parameters())


def test_gradients_are_gone_when_weights_are_projected(monkeypatch: pytest.MonkeyPatch) -> None:
    module, optimizer, loader = private()
    projected = type(module).project_
    gradients: list[Callable[[], Any]] = []
    left: list[list[bool]] = []

    def project(self: Any) -> None:
        left.append([gradient() is not None for gradient in gradients])
        projected(self)

    backward(module, *next(iter(loader)))
    gradients += [weakref.ref(parameter.grad) for parameter in module.parameters()]
    monkeypatch.setattr("lipcompile_torch.train.module.LipschitzModule.project_", project)
    optimizer._gradients._stated = _stated(module)  # which refuses methods that were replaced
    optimizer.step()
    assert left == [[False] * 3]


# --- accounting ---


@pytest.mark.parametrize(("neighbours", "sigma_ratio"), [("add_remove", 1.0), ("replace_one", 1.5)])
def test_a_target_is_met_and_enforced(neighbours: str, sigma_ratio: float) -> None:
    engine = PrivacyEngine(neighbours=neighbours)
    module = Net()
    module, optimizer, loader = engine.make_private_with_epsilon(
        module=module,
        optimizer=SGD(module.parameters(), lr=0.1),
        data_loader=make_loader(200, B),
        target_epsilon=2.0,
        target_delta=1e-5,
        epochs=2,
    )
    assert engine.get_epsilon(1e-5) == 0
    assert engine.ledger is not None
    assert engine.ledger.record.delta == 1e-5
    assert optimizer.steps_left == 20
    for _ in range(2):
        for x, y in loader:
            backward(module, x, y)
            optimizer.step()
    spent = engine.get_epsilon(1e-5)
    assert 1.99 < spent <= 2.0
    mechanism = Mechanism(0.1, optimizer.noise_multiplier)
    assert spent == epsilon([(mechanism, 20)], 1e-5, NeighbouringRelation(neighbours))
    assert optimizer.noise_multiplier > sigma_ratio
    x, y = next(iter(loader))
    backward(module, x, y)
    before = weights(module)
    with pytest.raises(BudgetError, match="used up"):
        optimizer.step()
    assert all(torch.equal(before[n], p) for n, p in module.named_parameters())


def test_noise_is_calibrated_for_whole_epochs_or_for_steps() -> None:
    # 10 steps an epoch at a sampling rate of 0.1. The oracle is the calibration of the accountant itself.
    options: dict[str, Any] = {"data_loader": make_loader(200, B), "target_epsilon": 2.0, "target_delta": 1e-5}
    engine = PrivacyEngine()
    cases: tuple[tuple[int, dict[str, Any]], ...] = ((20, {"epochs": 2}), (7, {"steps": 7}))
    for steps, how in cases:
        expected = calibrate_noise_multiplier(2.0, 1e-5, lambda sigma: Mechanism(0.1, sigma), steps)
        assert engine.calibrate(**options, **how) == expected
    both: dict[str, Any] = {"epochs": 1, "steps": 10}
    for wrong in ({}, both):
        with pytest.raises(TypeError, match="exactly one of epochs and steps"):
            engine.calibrate(**options, **wrong)


def test_what_a_ledger_holds_counts_against_a_new_target(tmp_path: Path) -> None:
    sigmas: list[float] = []
    for _ in range(2):
        engine = PrivacyEngine("rdp", ledger=tmp_path / "ledger.jsonl")
        module = Net()
        module, optimizer, loader = engine.make_private_with_epsilon(
            module=module,
            optimizer=SGD(module.parameters(), lr=0.1),
            data_loader=make_loader(200, B),
            target_epsilon=2.0 + len(sigmas),
            target_delta=1e-5,
            epochs=1,
        )
        for x, y in loader:
            backward(module, x, y)
            optimizer.step()
        sigmas.append(optimizer.noise_multiplier)
        assert engine.get_epsilon(1e-5) <= 2.0 + len(sigmas) - 1
        engine.close()
    assert sigmas[1] > 1.05 * calibrate_noise_multiplier(3.0, 1e-5, 0.1, 10, accountant="rdp")
    assert read_ledger(tmp_path / "ledger.jsonl").total_steps == 20


def test_impossible_and_unsupported_budgets_are_refused_early(tmp_path: Path) -> None:
    with pytest.raises(BudgetError, match="unknown accountant"):
        PrivacyEngine(accountant="gdp")  # type: ignore[arg-type]
    with pytest.raises(BudgetError, match="neighbouring relation"):
        PrivacyEngine(neighbours="edit")
    with pytest.raises(BudgetError, match="use accountant='pld'"):
        private(engine=PrivacyEngine("rdp", neighbours="replace_one"))
    with pytest.raises(BudgetError, match="noise multiplier must be positive"):
        private(noise_multiplier=0.0)
    with pytest.raises(ValueError, match="unknown noise allocation"):
        private(noise="most", engine=PrivacyEngine(ledger=tmp_path / "l"))
    for name in ("max_grad_norm", "secure_mode", "nosie"):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
            private(**{name: 1.0}, engine=PrivacyEngine(ledger=tmp_path / "l"))  # type: ignore[arg-type]
    assert not (tmp_path / "l").exists()


def test_a_large_delta_is_warned_of() -> None:
    module = Net()
    with pytest.warns(UserWarning, match="publishing one"):
        PrivacyEngine("rdp").make_private_with_epsilon(
            module=module,
            optimizer=SGD(module.parameters(), lr=0.1),
            data_loader=make_loader(200, B),
            target_epsilon=2.0,
            target_delta=0.01,
            epochs=1,
        )


def test_the_line_is_on_disk_before_any_parameter_changes_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    engine = PrivacyEngine(ledger=path)

    class Failing(SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]  # noqa: ARG002
            assert read_ledger(path).total_steps == 1
            raise RuntimeError("power cut")

    module, optimizer, loader = private(lambda ps: Failing(ps, lr=0.1), engine=engine)
    x, y = next(iter(loader))
    backward(module, x, y)
    with pytest.raises(RuntimeError, match="power cut"):
        optimizer.step()
    assert read_ledger(path).total_steps == 1
    with pytest.raises(PrivacyError, match="no batch was drawn"):  # the batch is not released a second time
        optimizer.step()
    next(iter(loader))
    assert all(p.grad is None for p in module.parameters())


def test_a_seed_is_marked_in_the_ledger(tmp_path: Path) -> None:
    seeded(seed=0, engine=PrivacyEngine(ledger=tmp_path / "l"))
    record = read_ledger(tmp_path / "l")
    assert record.seeded
    assert record.generators == ["SFC64"]


def test_numbers_of_numpy_are_numbers() -> None:
    """A seed ended the first step after its line; a multiplier has no `hex`."""
    weights = []
    for seed, sigma in ((3, 1.5), (np.int64(3), np.float32(1.5))):
        torch.manual_seed(0)
        module, optimizer, loader = seeded(seed=seed, noise_multiplier=sigma)
        x, y = next(iter(loader))
        backward(module, x, y)
        optimizer.step()
        weights.append(torch.cat([p.detach().flatten() for p in module.parameters()]))
    torch.testing.assert_close(*weights, rtol=0, atol=0)


@pytest.mark.parametrize(("secure", "expected"), [(False, "AES-128-CTR"), (True, "ChaCha20")])
def test_the_generator_is_in_the_ledger(secure: bool, expected: str, tmp_path: Path) -> None:
    private(secure=secure, engine=PrivacyEngine(ledger=tmp_path / "l"))
    assert read_ledger(tmp_path / "l").cryptographic == {expected: True}


def places(warned: pytest.WarningsRecorder) -> list[str]:
    """The files that warnings of generators point to."""
    return [Path(warning.filename).name for warning in warned if warning.category is GeneratorWarning]


def test_a_generator_that_is_not_cryptographic_warns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: at make_private, and not once more at a step; in the ledger."""
    monkeypatch.setattr(PlainNormals, "generator", lambda *_: "Philox of torch")
    with pytest.warns(GeneratorWarning, match="Philox of torch, which is not cryptographic") as warned:
        module, optimizer, loader = private(engine=PrivacyEngine(ledger=tmp_path / "l"))
    assert places(warned) == ["private_net.py"]  # which called make_private
    x, y = next(iter(loader))
    backward(module, x, y)
    optimizer.step()
    assert read_ledger(tmp_path / "l").cryptographic == {"Philox of torch": False}
    seeded(seed=0)  # which says more, and is the only warning


def test_parameters_that_move_are_declared_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the step that is drawn there: to a GPU after make_private, and back."""
    module, optimizer, loader = private(engine=PrivacyEngine(ledger=tmp_path / "l"))
    draws = iter(loader)

    def step() -> None:
        x, y = next(draws)
        backward(module, x, y)
        optimizer.step()

    step()
    with monkeypatch.context() as moved:
        moved.setattr(PlainNormals, "generator", lambda *_: "Philox of torch")
        with pytest.warns(GeneratorWarning) as warned:
            step()
        assert places(warned) == ["test_engine.py"]
    step()
    kinds = [json.loads(line) for line in (tmp_path / "l").read_text().splitlines()[1:]]
    assert [line.get("generators", line["kind"]) for line in kinds] == [
        ["AES-128-CTR"],
        "step",
        ["Philox of torch"],
        "step",
        ["AES-128-CTR"],
        "step",
    ]


def test_fixed_norms_scale_weights_up_as_well_as_down_and_stay_certified() -> None:
    module, optimizer, loader = seeded(noise_multiplier=0.01, seed=0, fixed_norm=True)
    with torch.no_grad():
        module.inner.weight.mul_(0.1)  # as an average of weights may be: loaded between two steps
    for x, y in loader:
        backward(module, x, y)
        optimizer.step()
        norms = module.certified_norms()
        assert all(1 - 1e-5 < norms[name] <= 1 for name in ("inner.weight", "outer.weight"))
        assert norms["inner.bias"] <= 0.1
        exact = torch.linalg.matrix_norm(module.inner.weight.detach().double(), 2)
        assert 1 - 1e-5 < float(exact) <= 1


# --- what is no number ---


@pytest.mark.parametrize("value", ["1", [1]])
@pytest.mark.parametrize("name", ["noise_multiplier", "max_steps", "seed", "max_physical_batch"])
def test_arguments_that_should_be_numbers_are_named(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=rf"^{name} must be a (whole )?number, not "):
        private(**{name: value})


@pytest.mark.parametrize("value", ["1", [1]])
@pytest.mark.parametrize("name", ["epsilon", "delta", "epochs"])
def test_budgets_that_should_be_numbers_are_named(name: str, value: object) -> None:
    module, engine = Net(), PrivacyEngine()
    budget: Any = {"target_epsilon": 1.0, "target_delta": 1e-5, "epochs": 1}
    budget[name if name == "epochs" else f"target_{name}"] = value
    with pytest.raises(TypeError, match=rf"^{name} must be a (whole )?number, not "):
        engine.make_private_with_epsilon(
            module=module, optimizer=SGD(module.parameters(), lr=0.1), data_loader=make_loader(40, 10), **budget
        )


def test_a_delta_that_is_no_number_is_named() -> None:
    engine = PrivacyEngine()
    private(engine=engine)
    with pytest.raises(TypeError, match=r"^delta must be a number, not '1e-5'"):
        engine.get_epsilon("1e-5")  # type: ignore[arg-type]

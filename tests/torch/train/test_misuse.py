"""Misuse that would break the analysis is refused, with the fix, before anything is released."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest
import torch
from lipcompile_privacy.accounting import NeighbouringRelation
from lipcompile_torch import ClipGroup, PrivacyEngine, layers
from lipcompile_torch.certify.constraints import Fixed, Spectral
from lipcompile_torch.certify.precision import rounding_slack
from lipcompile_torch.noise.mechanism import NoiseSource
from lipcompile_torch.train.checks import PrivacyError
from lipcompile_torch.train.engine import OtherLedgerWarning
from lipcompile_torch.train.module import LipschitzModule
from lipcompile_torch.train.sampling import SamplingError
from torch import nn
from torch.optim import LBFGS, SGD, Optimizer, SparseAdam

from tests.torch.private_net import B, Net, Recorder, backward, data, make_loader, private, seeded, weights

FOREIGN = "the cotangents are not those of the unscaled loss module.criterion"
ASTRAY = "did not come from the module's forward pass"


def _activity(x: Any, weight: Any) -> Any:
    return nn.functional.linear(x, weight).square().sum() / (2 * B)


MISUSES: list[tuple[str, Callable[[Any, Any, Any], Any], str]] = [
    ("mean", lambda m, x, y: m.per_example_loss(m(x), y).sum() / 3, FOREIGN),
    ("sum", lambda m, x, y: m.per_example_loss(m(x), y).sum(), FOREIGN),
    ("scaled", lambda m, x, y: 1.01 * m.criterion(m(x), y), FOREIGN),
    ("batch mean", lambda m, x, y: nn.functional.cross_entropy(m(x), y), FOREIGN),
    ("weighted", lambda m, x, y: 0.5 * m.criterion(m(x), y), FOREIGN),
    ("coupled", lambda m, x, y: m.criterion((o := m(x)) - o.mean(0), y), FOREIGN),
    ("another term", lambda m, x, y: m.criterion(o := m(x), y) + 1e-3 * o.mean(), FOREIGN),
    ("twice on one output", lambda m, x, y: m.criterion(o := m(x), y) + m.criterion(o, y), FOREIGN),
    ("foreign", lambda m, x, y: (m(x) - 5 * nn.functional.one_hot(y, 3)).square().sum(), FOREIGN),
    ("penalty", lambda m, x, y: m.criterion(m(x), y) + 9 * m.inner.weight.sum(), ASTRAY),
    ("small penalty", lambda m, x, y: m.criterion(m(x), y) + 1e-9 * m.inner.weight.sum(), ASTRAY),
    ("penalty on data", lambda m, x, y: m.criterion(m(x), y) + 1e-3 * _activity(x, m.inner.weight), ASTRAY),
    ("input of weights", lambda m, x, y: m.criterion(m(x + 1e-3 * m.inner.weight.sum()), y), ASTRAY),
    ("dropped", lambda m, x, y: m.criterion(m(x[1:]), y[1:]), "were dropped"),
    ("repeated", lambda m, x, y: m.criterion(m(torch.cat((x, x))), torch.cat((y, y))), "called twice"),
    ("detached", lambda m, x, y: m.criterion(m(x).detach().requires_grad_(), y), "before step"),
    ("infinite", lambda m, x, y: math.inf * m.criterion(m(x), y), FOREIGN),
    ("hook", lambda m, x, y: m.criterion(_hooked(m(x), lambda g: 5 * g), y), FOREIGN),
    ("hook that mixes", lambda m, x, y: m.criterion(_hooked(m(x), lambda g: g.flip(0)), y), FOREIGN),
    ("mean of another pass", lambda m, x, y: m.criterion(m(x), y) + m(x).mean(0).square().sum(), "called twice"),
]


def _hooked(output: Any, hook: Callable[[Any], Any]) -> Any:
    output.register_hook(hook)
    return output


class Clipped(Net):
    """The same with gradients that the backward pass clips, so that no bound rests on the loss."""

    bounds: ClassVar = dict.fromkeys(Net.bounds, 1.0)
    clips: ClassVar = [ClipGroup("all", tuple(Net.bounds), 1.0, 0.01)]


@pytest.mark.parametrize("build", [Net, Clipped], ids=["proved", "clipped"])
@pytest.mark.parametrize(("misuse", "said"), [(m, s) for _, m, s in MISUSES], ids=[n for n, _, _ in MISUSES])
def test_gradients_that_are_not_the_analysed_ones_are_refused(misuse: Any, said: str, build: Any) -> None:
    engine = PrivacyEngine()
    module, optimizer, loader = private(engine=engine, module=build())
    module.inner.weight.data.mul_(0.1)  # so that the softmax is far from sure, and the cotangents are large
    for x, y in loader:
        misuse(module, x, y).backward()
        before = weights(module)
        with pytest.raises(PrivacyError, match=said):
            optimizer.step()
        assert all(torch.equal(before[n], p) for n, p in module.named_parameters())
        assert engine.ledger is not None
        assert engine.ledger.record.total_steps == 0
        break


def test_cotangents_are_limited_where_a_bound_rests_on_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """By L, which says 0.01 here; a clip bounds gradients of any loss."""
    monkeypatch.setattr(Net, "loss_lipschitz", 0.01)
    for build, is_refused in ((Net, True), (Clipped, False)):
        module, optimizer, loader = private(module=build())
        backward(module, *next(iter(loader)))
        if is_refused:
            with pytest.raises(PrivacyError, match=r"the cotangent of an example is longer than its bound, 0\.01"):
                optimizer.step()
        else:
            optimizer.step()


def test_noise_pays_for_coarse_arithmetic_where_a_theorem_bounds_the_gradient() -> None:
    """A clipped gradient is no longer than C as it is computed, however coarsely."""
    for build, factor in ((Net, 1.5), (Clipped, 1.0)):
        _, optimizer, _ = private(module=build())
        gradients, stds = optimizer._gradients, []
        for slack in (0.0, 0.5):
            gradients._gate_slack = slack
            stds.append(gradients._widened(dict(build.bounds), 1.0, NoiseSource(None)))
        assert stds[1] == pytest.approx({name: factor * std for name, std in stds[0].items()})


def test_a_penalty_that_flows_back_by_itself_is_refused() -> None:
    """Before the criterion, or after it."""
    module, optimizer, loader = private()
    batches = iter(loader)
    for first in (True, False):
        x, y = next(batches)
        terms = [module.criterion(module(x), y), 1e-3 * module.inner.weight.sum()]
        for term in reversed(terms) if first else terms:
            term.backward()
        with pytest.raises(PrivacyError, match=ASTRAY):
            optimizer.step()
        optimizer.zero_grad()
        backward(module, x, y)
        optimizer.step()


class Scored(Net):
    """A loss whose targets may be any numbers."""

    def per_example_loss(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return output[:, 0] * target


def test_a_target_that_was_made_from_parameters_is_refused() -> None:
    module, optimizer, loader = private(module=Scored())
    x, _ = next(iter(loader))
    module.criterion(module(x), 0.5 + 1e-3 * module.inner.weight.sum().expand(len(x))).backward()
    with pytest.raises(PrivacyError, match=ASTRAY):
        optimizer.step()
    optimizer.zero_grad()
    module.criterion(module(x), 0.5 + 1e-3 * module.inner.weight.detach().sum().expand(len(x))).backward()
    optimizer.step()


def test_a_gradient_that_was_there_before_backward_is_refused() -> None:
    module, optimizer, loader = private()
    x, y = next(iter(loader))
    module.inner.weight.grad = torch.full_like(module.inner.weight, 1e-3)
    backward(module, x, y)
    with pytest.raises(PrivacyError, match=r"inner\.weight was not written by backward"):
        optimizer.step()


def test_several_forward_passes_flow_back_at_once() -> None:
    """As one tensor a parameter, so that none of them is taken for a foreign one."""
    module, optimizer, loader = private()
    x, y = next(iter(loader))
    half = len(x) // 2
    total = module.criterion(module(x[:half]), y[:half]) + module.criterion(module(x[half:]), y[half:])
    total.backward()
    optimizer.step()


def test_gradients_are_neither_copied_nor_kept_by_what_watches_them() -> None:
    module, optimizer, loader = private()
    x, y = next(iter(loader))
    seen: list[int] = []
    module(x)
    alias = vars(module.gate.aliases)["_aliases"][id(module.inner.weight)]
    alias.register_hook(lambda gradient: seen.append(gradient.data_ptr()))
    backward(module, x, y)
    assert module.inner.weight.grad.data_ptr() == seen[0]
    optimizer.zero_grad()


def test_a_layer_is_not_differentiated_by_itself() -> None:
    module, _, loader = private()
    x, _ = next(iter(loader))
    with pytest.raises(RuntimeError, match="outside its module's forward pass"):
        module.inner(x)
    with torch.no_grad():
        assert module.inner(x).shape == (len(x), 8)


def test_the_wrapped_optimizer_is_not_stepped_by_itself() -> None:
    module, optimizer, loader = private()
    x, y = next(iter(loader))
    module.criterion(module(x), y).backward()
    before = weights(module)
    with pytest.raises(PrivacyError, match="without noise"):
        optimizer.optimizer.step()
    assert all(torch.equal(before[n], p) for n, p in module.named_parameters())


def test_two_threads_do_not_release_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one finds the same batch, checked and not yet counted: it would release it under other noise."""
    module, optimizer, loader = private()
    count, errors = type(optimizer)._count, list[str]()

    def late() -> None:
        try:
            optimizer.step()
        except PrivacyError as error:
            errors.append(str(error))

    def first(self: Any, batch: Any) -> None:
        monkeypatch.undo()
        thread = Thread(target=late)
        thread.start()
        thread.join()
        count(self, batch)

    backward(module, *next(iter(loader)))
    monkeypatch.setattr(type(optimizer), "_count", first)
    optimizer.step()
    assert "is under way, in another thread" in errors[0]
    assert optimizer._ledger.record.total_steps == 1


def test_the_relation_of_an_engine_does_not_change() -> None:
    """Its ledger would be kept under another one than steps are planned for."""
    with pytest.raises(AttributeError):
        PrivacyEngine().relation = NeighbouringRelation.REPLACE_ONE  # type: ignore[misc]


def test_writes_through_data_do_not_escape_projection() -> None:
    """They do not raise torch's count of changes: the fingerprint of the bits shows them."""
    module, optimizer, loader = private()
    nn.utils.vector_to_parameters(
        9 * nn.utils.parameters_to_vector(module.parameters()).detach(), module.parameters()
    )
    for x, y in loader:
        assert module.certified_norms()["outer.weight"] <= 1
        backward(module, x, y)
        module.outer.weight.data.mul_(0.5)
        with pytest.raises(PrivacyError, match="changed after the batch was drawn and before the step"):
            optimizer.step()
        break


def test_words_of_a_weight_do_not_change_places_within_a_step() -> None:
    """Of diag(1, 1, 1, 0), which has norm 1, two columns become one another's: then it has norm √2."""
    module, optimizer, loader = private()
    with torch.no_grad():
        module.outer.weight.copy_(torch.eye(3, 8))
    for x, y in loader:
        backward(module, x, y)
        bits = module.outer.weight.data.view(torch.int64)  # [3, 4], pairs of entries: (1, 0), (0, 1), (0, 0)
        bits[1, 0], bits[1, 3] = bits[1, 3].clone(), bits[1, 0].clone()
        bits[0, 0], bits[0, 3] = bits[0, 3].clone(), bits[0, 0].clone()
        with pytest.raises(PrivacyError, match="changed after the batch was drawn and before the step"):
            optimizer.step()
        break


class HalfFrozen(Net):
    """Its inner layer is frozen, and the bound of the outer one counts on its norm."""

    bounds: ClassVar = {"outer.weight": math.sqrt(2)}

    def __init__(self) -> None:
        LipschitzModule.__init__(self)
        self.inner = layers.Dense(4, self.hidden, constraint=Fixed(1.0))
        self.outer = layers.Dense(self.hidden, 3)
        self.project_()


@pytest.mark.parametrize("write", [lambda weight: weight.data.mul_(50), lambda weight: weight.detach().mul_(50)])
def test_frozen_weights_do_not_change_within_a_step(write: Callable[[torch.Tensor], Any]) -> None:
    module, optimizer, loader = private(module=HalfFrozen())
    for x, y in loader:
        write(module.inner.weight)
        backward(module, x, y)
        with pytest.raises(PrivacyError, match="changed after the batch was drawn and before the step"):
            optimizer.step()
        break


def test_hooks_are_refused() -> None:
    module = Net()
    module.inner.register_forward_hook(lambda _module, _inputs, output: 10 * output)
    with pytest.raises(PrivacyError, match="inner has hooks"):
        private(module=module)


def test_replaced_layers_are_refused() -> None:
    module = Net()
    module.outer = layers.Dense(8, 3, constraint=Spectral(9.0))
    with pytest.raises(RuntimeError, match="outer were replaced after compilation"):
        private(module=module)


class Mapped(Net):
    """Before its first layer there is a map without weights, whose outputs are no longer than 1."""

    def __init__(self) -> None:
        LipschitzModule.__init__(self)
        self.map = layers.WhitenedPatches((1, 2, 2), 2, 2, floor=0.1, power=0.5, images=20)
        self.inner = layers.Dense(4, self.hidden, bias=0.1)
        self.outer = layers.Dense(self.hidden, 3)
        self.project_()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mapped = self.map(self.clip_input(x).reshape(-1, 1, 2, 2)).reshape(-1, 4)
        released: torch.Tensor = self.release(self.outer(torch.relu(self.inner(mapped))))
        return released


class Longer(nn.Module):
    """Gives outputs of length 20 in its place: gradients 20 times as long."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.full((len(x), 4, 1, 1), 10.0)


def _give(mapped: nn.Module) -> None:
    mapped.map.forward = Longer().forward  # type: ignore[union-attr]


def _replace(mapped: nn.Module) -> None:
    mapped.map = Longer()


@pytest.mark.parametrize("change", [_give, _replace])
def test_replaced_maps_without_weights_are_refused(change: Callable[[nn.Module], None]) -> None:
    module = Mapped()
    change(module)
    with pytest.raises(RuntimeError, match="map were replaced after compilation"):
        private(module=module)
    module, _, loader = private(module=Mapped())
    module.metric = nn.Identity()  # a part that `forward` does not call
    x, y = next(iter(loader))
    backward(module, x, y)
    change(module)
    with pytest.raises(RuntimeError, match="map were replaced after compilation"):
        module(x)


@pytest.mark.parametrize("name", ["expected_batch_size", "sampling_rate", "size", "scheme"])
def test_a_loader_keeps_its_sizes(name: str) -> None:
    """Noise on the sum is divided by the expected batch size: 8 times that size left an eighth of it."""
    _, _, loader = private()
    with pytest.raises(AttributeError):
        setattr(loader, name, getattr(loader, name))
    for part in ("drawing", "size", "batch_size"):
        with pytest.raises(AttributeError):
            setattr(loader.scheme, part, getattr(loader.scheme, part))


def test_methods_that_are_hidden_are_refused() -> None:
    """As a padding that a kernel reads would be, whatever its name begins with."""
    module, _, loader = private()
    x, _ = next(iter(loader))
    module.inner._constrain = module.inner._constrain
    with pytest.raises(RuntimeError, match="inner were replaced after compilation"):
        module(x)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("features_norm", 1e6),  # gradients of the first layer are as much longer
        ("clip_features", lambda x: x),
        ("clip_loss_gradient", lambda cotangent, _: (cotangent, None)),
    ],
)
def test_what_clips_is_not_changed_after_make_private(name: str, value: Any) -> None:
    module, optimizer, loader = private()
    setattr(module, name, value)
    x, y = next(iter(loader))
    backward(module, x, y)
    with pytest.raises(PrivacyError, match="bounds, domain or methods were changed"):
        optimizer.step()


@pytest.mark.filterwarnings("ignore::lipcompile_torch.certify.precision.RoundedSumsWarning")
def test_autocast_is_paid_for_in_noise() -> None:
    """bfloat16 products exceed the bounds by more than float32's slack, whatever dtype the parameters have."""
    module, optimizer, loader = private()
    x, y = next(iter(loader))
    with torch.autocast("cpu", torch.bfloat16):
        output = module(x)
    optimizer.zero_grad()  # between the forward and the backward pass, as loops may
    module.criterion(output, y).backward()
    assert module.gate.slack == rounding_slack(torch.bfloat16)
    optimizer.step()
    assert module.gate.slack == 0


def test_several_plans_of_one_engine_share_its_budget() -> None:
    engine = PrivacyEngine(accountant="rdp")
    plans: list[Any] = []
    for _ in range(2):
        module = Net()
        plans.append(
            engine.make_private_with_epsilon(
                module=module,
                optimizer=SGD(module.parameters(), 0.1),
                data_loader=make_loader(),
                target_epsilon=1.0 + len(plans),
                target_delta=1e-5,
                epochs=1,
            )
        )
    for module, optimizer, loader in plans:
        for x, y in loader:
            backward(module, x, y)
            optimizer.step()
    assert 1.9 < engine.get_epsilon(1e-5) <= 2.0


def test_a_second_backward_and_a_forgotten_one_are_refused() -> None:
    module, optimizer, loader = private()
    x, y = next(iter(loader))
    with pytest.raises(PrivacyError, match=r"0 flowed back.*before step"):
        optimizer.step()
    loss = module.criterion(module(x), y)
    loss.backward(retain_graph=True)
    loss.backward()
    with pytest.raises(PrivacyError, match="called twice"):
        optimizer.step()
    optimizer.zero_grad()  # the way out
    backward(module, x, y)
    optimizer.step()


def test_gradients_that_are_not_finite_are_refused() -> None:
    module, optimizer, loader = private()
    x, y = next(iter(loader))
    backward(module, x, y)
    module.outer.weight.grad[0, 0] = math.nan
    with pytest.raises(PrivacyError, match=r"outer\.weight is not finite"):
        optimizer.step()


def test_two_steps_on_a_batch_and_a_batch_without_step_are_refused() -> None:
    # Skipping empty batches, or looking at one and dropping it, is not the sampling that is accounted (trap 6).
    engine = PrivacyEngine()
    module, optimizer, loader = private(engine=engine)
    with pytest.raises(PrivacyError, match="no batch was drawn"):
        optimizer.step()
    batches = iter(loader)
    x, y = next(batches)
    backward(module, x, y)
    optimizer.step()
    backward(module, x, y)
    with pytest.raises(PrivacyError, match="no batch was drawn"):
        optimizer.step()
    next(batches)
    with pytest.raises(PrivacyError, match=r"abandon_batch.*larger one, and make_private max_physical_batch="):
        next(batches)
    optimizer.abandon_batch()
    assert engine.ledger is not None
    assert engine.ledger.record.total_steps == 2
    x, y = next(iter(loader))
    backward(module, x, y)
    optimizer.step()


def test_leaving_a_batch_between_its_pieces_needs_a_fresh_iteration() -> None:
    module, optimizer, loader = private(max_physical_batch=2)
    batches = iter(loader)
    x, y = next(batches)
    backward(module, x, y)
    optimizer.step()
    optimizer.abandon_batch()
    with pytest.raises(SamplingError, match="start a new iteration"):
        next(batches)


def test_gradients_from_before_the_batch_are_forgotten() -> None:
    module, optimizer, loader = seeded(Recorder, noise_multiplier=1e-9, seed=0)
    x, y = data(200).tensors
    module.per_example_loss(module(x), y).sum().backward()  # all the data, unscaled
    x, y = next(iter(loader))
    backward(module, x, y)
    expected = [p.grad.clone() for p in module.parameters()]
    optimizer.step()
    for found, wanted in zip(optimizer.optimizer.seen[0], expected, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-6, rtol=1e-5)


def thaw(module: Any) -> None:
    module.inner.weight.requires_grad_(False)


def replace(module: Any) -> None:
    module.inner.weight = nn.Parameter(module.inner.weight.detach().clone())


def add(module: Any) -> None:
    module.extra = nn.Linear(2, 2)


@pytest.mark.parametrize("change", [thaw, replace, add])
def test_parameters_that_change_after_make_private_are_refused(change: Any) -> None:
    # Trap 18.
    module, optimizer, loader = private()
    for x, y in loader:
        backward(module, x, y)
        change(module)
        with pytest.raises(PrivacyError, match="added, replaced, frozen or unfrozen"):
            optimizer.step()
        break


def test_optimizers_that_do_not_hold_each_parameter_once_are_refused() -> None:
    module = Net()
    parameters = list(module.parameters())

    def attempt(optimizer: Optimizer) -> None:
        private(lambda _: optimizer, module=module)

    with pytest.raises(PrivacyError, match="parameters of other modules"):
        attempt(SGD([*parameters, nn.Parameter(torch.zeros(2))], lr=0.1))
    with pytest.raises(PrivacyError, match=r"inner\.weight are not in exactly one group"):
        attempt(SGD(parameters[1:], lr=0.1))
    for kind in (LBFGS, SparseAdam):
        with pytest.raises(PrivacyError, match="cannot be used"):
            attempt(kind(parameters, lr=0.1))
    with pytest.raises(PrivacyError, match="compile the network first"):
        private(module=nn.Linear(4, 3))


def test_groups_are_refused() -> None:
    _, optimizer, _ = private()
    with pytest.raises(PrivacyError, match="cannot be added"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})


def test_a_closure_is_called_exactly_once_whatever_the_optimizer_would_do() -> None:
    class Greedy(SGD):
        """Evaluates a closure as often as it can."""

        def step(self, closure: Any = None) -> Any:
            for _ in range(3 if closure else 0):
                closure()
            return super().step()

    module, optimizer, loader = private(lambda parameters: Greedy(parameters, lr=0.1))
    calls: list[int] = []
    for number, (x, y) in enumerate(loader):

        def closure(x: Any = x, y: Any = y, number: int = number) -> float:
            calls.append(number)
            optimizer.zero_grad()
            loss = module.criterion(module(x), y)
            loss.backward()
            return float(loss.detach())

        with torch.no_grad():
            assert isinstance(optimizer.step(closure), float)
    assert calls == list(range(len(loader)))


@pytest.mark.parametrize("times", [0, 2])
def test_a_closure_that_does_not_send_its_batch_back_once_is_refused(times: int) -> None:
    module, optimizer, loader = private()
    x, y = next(iter(loader))
    before = weights(module)

    def closure() -> None:
        for _ in range(times):
            backward(module, x, y)

    with pytest.raises(PrivacyError, match="examples"):
        optimizer.step(closure)
    assert all(torch.equal(before[name], value) for name, value in weights(module).items())


def test_a_module_without_a_bound_for_a_parameter_is_refused() -> None:
    class Forgetful(Net):
        def gradient_bounds(self) -> dict[str, float]:
            return {"inner.weight": 1.0}

    class Unbounded(Net):
        bounds = {**Net.bounds, "inner.bias": math.inf}  # noqa: RUF012

    with pytest.raises(PrivacyError, match="differ in"):
        private(module=Forgetful())
    with pytest.raises(PrivacyError, match="no finite noise"):
        private(module=Unbounded())


def test_frozen_parameters_may_stay_in_the_optimizer_and_do_not_move() -> None:
    class Half(Net):
        bounds = {"outer.weight": Net.bounds["outer.weight"]}  # noqa: RUF012

        def __init__(self) -> None:
            super().__init__()
            self.inner.requires_grad_(False)

        def project_(self) -> None:
            if not self.inner.weight.requires_grad:
                super().project_()

    module, optimizer, loader = private(module=Half())
    before = weights(module)
    for x, y in loader:
        backward(module, x, y)
        optimizer.step()
    assert torch.equal(before["inner.weight"], module.inner.weight)
    assert not torch.equal(before["outer.weight"], module.outer.weight)


def test_changed_weights_are_projected_between_steps_and_refused_within_one() -> None:
    # Trap 24: weights that were loaded or averaged must lie in Θ before a gradient is taken at them.
    module, optimizer, loader = private()
    with torch.no_grad():
        module.inner.weight.mul_(100)
    x, y = next(iter(loader))
    assert torch.linalg.matrix_norm(module.inner.weight.double(), 2) <= 1
    with torch.no_grad():
        module.inner.weight.mul_(100)
    backward(module, x, y)
    with pytest.raises(PrivacyError, match="after the batch was drawn and before the step"):
        optimizer.step()


def test_a_changed_normaliser_is_refused() -> None:
    # Trap 12: what clips per example divides by it, and the gate measures by it.
    module, optimizer, loader = private()
    assert module.normaliser == B
    x, y = next(iter(loader))
    module.normaliser = float(max(len(x), 1)) / 2
    backward(module, x, y)
    with pytest.raises(PrivacyError, match="normaliser"):
        optimizer.step()


def test_trap_26_the_number_of_examples_is_documented_as_public() -> None:
    # Trap 26.
    assert "N, the number of examples, as public" in " ".join((PrivacyEngine.__doc__ or "").split())


def test_steps_of_a_module_that_another_ledger_counts_are_told(tmp_path: Path) -> None:
    """ε of an engine is that of its ledger. Engines of one file continue it, so nothing is left out."""
    module, path = Net(), tmp_path / "ledger.jsonl"

    def trained(engine: PrivacyEngine) -> None:
        _, optimizer, loader = private(module=module, engine=engine)
        x, y = next(iter(loader))
        backward(module, x, y)
        optimizer.step()
        engine.close()

    for _ in range(2):
        trained(PrivacyEngine(ledger=path))
    with pytest.warns(OtherLedgerWarning, match="ε of this engine leaves them out"):
        trained(PrivacyEngine())
    private(module=Net())  # has no steps

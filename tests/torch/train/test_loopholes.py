"""Ways around the accounting that plausible use would find: each is refused, or counted."""

from __future__ import annotations

import copy
import math
import os
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from lipcompile_privacy.accounting import BudgetError, Mechanism, NeighbouringRelation, epsilon
from lipcompile_privacy.factorisation import BandedToeplitz, MinSeparation
from lipcompile_torch import PrivacyEngine
from lipcompile_torch.audit.points import Admissible, Point, Terrain
from lipcompile_torch.certify.precision import RoundedSumsWarning, rounding_slack, sum_slack
from lipcompile_torch.noise import masks
from lipcompile_torch.noise.mechanism import NoiseSource
from lipcompile_torch.train.checks import PrivacyError
from lipcompile_torch.train.data import Arrays
from lipcompile_torch.train.engine import SeededWarning
from lipcompile_torch.train.gradients import LipschitzGradients
from lipcompile_torch.train.ledger import Ledger, LedgerError, read_ledger
from lipcompile_torch.train.sampler import LogicalBatch, PrivateLoader
from lipcompile_torch.train.training import TrainConfig, train
from torch import nn
from torch.optim import SGD
from torch.utils.data import DataLoader, TensorDataset

from tests.torch.private_net import Net, backward, data, make_loader, private, weights


def scale_all(module: nn.Module) -> None:
    for parameter in module.parameters():
        assert parameter.grad is not None
        parameter.grad *= 0.5


def replace_one(module: nn.Module) -> None:
    parameter = next(module.parameters())
    assert parameter.grad is not None
    parameter.grad = parameter.grad / (1 + parameter.grad.norm())


def scale_unseen(module: nn.Module) -> None:
    """Past torch's count of changes."""
    parameter = next(module.parameters())
    assert parameter.grad is not None
    parameter.grad.data.mul_(0.5)


TAMPERING: list[Callable[[nn.Module], Any]] = [
    scale_unseen,
    lambda module: nn.utils.clip_grad_norm_(module.parameters(), 0.1),
    lambda module: nn.utils.clip_grad_value_(module.parameters(), 0.01),
    scale_all,
    replace_one,
]


@pytest.mark.parametrize("tamper", TAMPERING, ids=["unseen", "norm", "value", "scaled", "replaced"])
def test_gradients_that_were_changed_after_backward_are_refused(tamper: Callable[[nn.Module], Any]) -> None:
    """Clipping a sum by its norm couples parameters: one example moves each by the others' share as well."""
    module, optimizer, loader = private()
    x, y = next(iter(loader))
    backward(module, x, y)
    tamper(module)
    with pytest.raises(PrivacyError, match="changed between backward"):
        optimizer.step()
    optimizer.zero_grad()  # the way out
    backward(module, x, y)
    optimizer.step()


def half_twice(module: Any, x: torch.Tensor, y: torch.Tensor) -> None:
    """As many examples as were drawn, and most of twice their bound."""
    half = len(x) // 2
    loss = module.criterion(module(x[:half]), y[:half])
    loss.backward(retain_graph=True)
    loss.backward()
    backward(module, x[2 * half :], y[2 * half :])


def behind_a_hook(module: Any, x: torch.Tensor, y: torch.Tensor) -> None:
    """One that is gone when the step is taken."""
    hooks = [parameter.register_hook(lambda gradient: 0.5 * gradient) for parameter in module.parameters()]
    backward(module, x, y)
    for hook in hooks:
        hook.remove()


def all_but_the_last_piece_dropped(module: Any, x: torch.Tensor, y: torch.Tensor) -> None:
    """Without its first example the batch ends in another piece, of examples that were dropped before."""
    for piece, targets in zip(torch.split(x, 3), torch.split(y, 3), strict=True):
        module.zero_grad()
        backward(module, piece, targets)


@pytest.mark.parametrize(
    ("misuse", "said"),
    [
        (half_twice, "the cotangents are not those of"),
        (behind_a_hook, r"not written by backward\(\) alone"),
        (all_but_the_last_piece_dropped, r"not written by backward\(\) alone"),
    ],
)
def test_sums_of_other_gradients_than_one_of_each_example_are_refused(misuse: Any, said: str) -> None:
    module, optimizer, loader = private()
    x, y = next(iter(loader))
    misuse(module, x, y)
    with pytest.raises(PrivacyError, match=said):
        optimizer.step()
    optimizer.zero_grad()  # the way out
    backward(module, x, y)
    optimizer.step()


def test_a_cotangent_that_a_hook_writes_over_is_refused() -> None:
    """In place, so that what was sent and what arrives are one tensor; smaller, so that it passes every bound."""
    module, optimizer, loader = private()
    x, y = next(iter(loader))
    output = module(x)
    output.register_hook(lambda cotangent: cotangent.mul_(0.5))
    module.criterion(output, y).backward()
    with pytest.raises(PrivacyError, match="the cotangents are not those of"):
        optimizer.step()


def test_an_output_that_was_written_over_is_refused() -> None:
    """Centred in place over the batch, out of sight of autograd: each example's loss then depends on all."""
    module, _, loader = private()
    x, y = next(iter(loader))
    output = module(x)
    with torch.no_grad():
        output -= output.mean(0)
    with pytest.raises(RuntimeError, match="has been modified inplace"):
        module.criterion(output, y)


def test_processors_that_are_told_to_round_float32_products_are_paid_for_in_noise() -> None:
    """As bfloat16: oneDNN then takes it inside, on processors that have it."""
    module, _, loader = private()
    x, y = next(iter(loader))
    before = torch.get_float32_matmul_precision()
    slacks = []
    try:
        for precision in ("highest", "high", "medium"):
            torch.set_float32_matmul_precision(precision)
            module.gate.reset()
            backward(module, x, y)
            slacks.append(module.gate.slack)
    finally:
        torch.set_float32_matmul_precision(before)
    assert slacks == [rounding_slack(torch.float32), 5e-3, rounding_slack(torch.bfloat16)]


@pytest.mark.parametrize("most", [-1, 2.5])
def test_a_limit_that_is_no_number_of_steps_is_kept(most: Any) -> None:
    """Counting down from it would pass by 0."""
    module, optimizer, loader = private(max_steps=most)

    def run() -> None:
        for x, y in loader:
            backward(module, x, y)
            optimizer.step()

    with pytest.raises(BudgetError, match="used up"):
        run()
    assert optimizer.charges_left[1] <= 0


def test_half_an_epoch_is_no_more_than_was_calibrated_for() -> None:
    engine, module = PrivacyEngine(accountant="rdp"), Net()
    _, optimizer, loader = engine.make_private_with_epsilon(
        module=module,
        optimizer=SGD(module.parameters(), 0.1),
        data_loader=make_loader(batch_size=13),  # 15 steps
        target_epsilon=1.0,
        target_delta=1e-5,
        epochs=0.5,  # type: ignore[arg-type]
    )

    def run() -> None:
        for x, y in loader:
            backward(module, x, y)
            optimizer.step()

    with pytest.raises(BudgetError, match="used up"):
        run()
    assert engine.get_epsilon(1e-5) <= 1.0


@pytest.mark.filterwarnings("ignore::lipcompile_torch.certify.precision.RoundedSumsWarning")
@pytest.mark.parametrize(
    ("dtype", "autocast"),
    [(torch.float32, False), (torch.float32, True), (torch.float16, False), (torch.bfloat16, False)],
)
def test_rounding_of_sums_is_paid_for_in_noise(dtype: torch.dtype, autocast: bool) -> None:
    """Of examples that agree, one more moves a sum in low precision by units of its last digit, not by itself."""
    b, worst, generator = 4096, 0.0, torch.Generator().manual_seed(0)
    for label in range(3):
        module: Any = Net().to(dtype)
        gradients = LipschitzGradients(module, SGD(module.parameters(), 0.1), "per_layer", float(b))
        gradients.start()
        gradients.begin()
        x = nn.functional.normalize(torch.ones(4) + 0.1 * torch.randn(b, 4, generator=generator)).to(dtype)
        y, sums = torch.full((b,), label), []
        for count in (b, b - 1):
            gradients.reset()
            module.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                output = module(x[:count])
            module.criterion(output, y[:count]).backward()
            sums.append({name: p.grad.double() for name, p in module.named_parameters()})
        stds = gradients.stds(LogicalBatch(b - 1, complete=True, total=b - 1), 1.0, NoiseSource(seed=0))
        moved = {name: float((sums[0][name] - sums[1][name]).norm()) * b for name in sums[0]}
        worst = max(worst, math.hypot(*(moved[name] / std for name, std in stds.items())))
    assert worst <= 1


@pytest.mark.filterwarnings("ignore::lipcompile_torch.certify.precision.RoundedSumsWarning")
def test_pieces_are_not_added_up_in_half_precision() -> None:
    module, optimizer, loader = private(module=Net().to(torch.bfloat16), max_physical_batch=2, count=40)
    for x, y in loader:  # of some 20 examples each
        backward(module, x.bfloat16(), y)
        if loader.current.complete:
            break
        optimizer.step()
    with pytest.raises(PrivacyError, match="summed in half precision"):
        optimizer.step()


def test_noise_that_grows_by_the_rounding_of_sums_is_not_silent() -> None:
    """By hand: bfloat16 has steps of 2^-7 at 1, and 20 + 8·√20 + 16 = 71.8 examples are counted on: 1.56 times."""
    with pytest.warns(RoundedSumsWarning, match=r"multiply the noise by 1\.6 .* batch size of 20: keep"):
        private(module=Net().to(torch.bfloat16))
    module, optimizer, loader = private()  # float32 says nothing, nor does autocast, whose sums are in float32
    x, y = next(iter(loader))
    with torch.autocast("cpu", torch.bfloat16):
        output = module(x)
    module.criterion(output, y).backward()
    optimizer.step()


def test_the_smallest_numbers_of_a_sum_are_paid_for_in_noise() -> None:
    """By hand: float16 has steps of 2^-10 at 1 and of 2^-24 near 0, of which 10^4 entries of two sums may differ
    by one each; the additions before that are in float32, with steps of 2^-23.
    """
    examples = 64 + 8 * 8 + 16
    rounded = 2**-10 * examples + 2**-24 * 100 * 64 / 0.5
    assert sum_slack(torch.float16, 64.0, 10**4, 0.5, depth=0) == pytest.approx(rounded, rel=2e-3)
    added = 90 * 2**-23 * examples
    assert sum_slack(torch.float16, 64.0, 10**4, 0.5, depth=90) == pytest.approx(rounded + added, rel=2e-3)
    assert sum_slack(torch.float32, 64.0, 10**4, 0.5, depth=90) == pytest.approx(added, rel=2e-3)


@pytest.mark.filterwarnings("ignore::lipcompile_torch.certify.precision.RoundedSumsWarning")
def test_an_empty_batch_gets_the_noise_of_any_other() -> None:
    """Where the loop skips it nothing flows back to say how precisely; the noise must not tell."""
    module, optimizer, loader = private()
    x, y = next(iter(loader))
    with torch.autocast("cpu", torch.bfloat16):
        output = module(x)
    module.criterion(output, y).backward()
    batch, source = loader.current, NoiseSource(seed=0)
    full = optimizer._gradients.stds(batch, 1.0, source)
    optimizer.zero_grad()
    empty = LogicalBatch(0, batch.step, batch.round, complete=True)
    assert optimizer._gradients.stds(empty, 1.0, source) == full


def test_a_first_batch_that_is_empty_is_not_released_before_the_precision_is_known() -> None:
    """Its noise was that of float32, and that of a first batch with one example under autocast 5 % larger."""
    module, optimizer, loader = private()
    next(iter(loader))
    batch = loader.current
    empty = LogicalBatch(0, batch.step, batch.round, complete=True)
    with pytest.raises(PrivacyError, match="the first batch is empty"):
        optimizer._gradients.stds(empty, 1.0, NoiseSource(seed=0))
    nobody = torch.zeros(0, *module.input_shape)
    backward(module, nobody, torch.zeros(0, dtype=torch.int64))
    assert optimizer._gradients.stds(empty, 1.0, NoiseSource(seed=0))


def test_hooks_on_parameters_are_refused() -> None:
    for register in ("register_hook", "register_post_accumulate_grad_hook"):
        module, optimizer, loader = private()
        x, y = next(iter(loader))
        getattr(module.outer.weight, register)(lambda gradient: None)  # noqa: ARG005
        backward(module, x, y)
        with pytest.raises(PrivacyError, match=r"outer\.weight has hooks"):
            optimizer.step()


def test_gradients_of_pieces_add_up_unchanged() -> None:
    module, optimizer, loader = private(max_physical_batch=3)
    for x, y in loader:
        optimizer.zero_grad(set_to_none=False)
        backward(module, x, y)
        optimizer.step()
    assert optimizer.steps_left is None


def test_a_step_on_the_batch_of_another_plan_is_refused() -> None:
    """Of two optimizers of one module each must get what was drawn, and is charged, for it."""
    engine, module = PrivacyEngine(), Net()
    plans = [private(engine=engine, module=module) for _ in range(2)]
    (_, first, loader), (_, _, other) = plans
    next(iter(loader))
    x, y = next(iter(other))
    first._loader.current.examples = len(x)  # as happens by chance
    first._loader.current.total = len(x)
    backward(module, x, y)
    with pytest.raises(PrivacyError, match="loader of another optimizer drew a batch"):
        first.step()


def test_epsilon_of_a_ledger_that_is_not_open_yet_is_what_the_file_says(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    engine = PrivacyEngine(ledger=path)
    assert engine.get_epsilon(1e-5) == 0
    module, optimizer, loader = private(engine=engine)
    for x, y in loader:
        backward(module, x, y)
        optimizer.step()
    engine.close()
    wanted = epsilon([(Mechanism(0.1, 1.0), 10)], 1e-5)
    assert PrivacyEngine(ledger=path).get_epsilon(1e-5) == pytest.approx(wanted)
    with pytest.raises(LedgerError, match="add_remove"):
        PrivacyEngine(ledger=path, neighbours="replace_one").get_epsilon(1e-5)


def with_other_weights(module: Any) -> Any:
    """Five times the last layer: five times as much flows back into the first, and may cancel over the batch."""
    weights = {"outer.weight": 5 * module.outer.weight.detach()}
    return lambda x: torch.func.functional_call(module, weights, (x,))


def with_a_setting_of_its_own(module: Any) -> Any:
    """Four times the gradient."""
    twin = copy.copy(module)
    twin.normaliser /= 4
    return twin


@pytest.mark.parametrize(
    ("changed", "said"),
    [(with_other_weights, "in the place of outer.weight"), (with_a_setting_of_its_own, "a shallow copy")],
)
def test_a_pass_by_other_weights_or_settings_than_those_of_the_module_is_refused(changed: Any, said: str) -> None:
    module, optimizer, loader = private()
    x, y = next(iter(loader))
    with pytest.raises(RuntimeError, match=said):
        changed(module)(x)
    twin = copy.deepcopy(module)  # which shares nothing
    with_other_weights(twin)(x)
    with torch.no_grad():  # to look at
        changed(module)(x)
    backward(module, x, y)
    optimizer.step()


def test_a_search_for_the_worst_case_tries_other_weights_while_the_module_is_trained() -> None:
    """What it differentiates is not released."""
    module, _, loader = private()
    next(iter(loader))
    terrain, x = Terrain(module, Admissible("class"), torch.Generator()), torch.eye(4)[:1]
    point = Point(x, torch.tensor([0]), {name: 0.0 * weight for name, weight in weights(module).items()})
    assert torch.equal(terrain.output(point), torch.zeros(1, 3))


def test_rounding_is_paid_for_in_the_dtype_of_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module is converted to float32 after its first step: noise grows from 1 + 1/4 to 1 + 1/2, and by 1e-3."""
    slacks = {torch.float64: 0.25, torch.float32: 0.5}
    monkeypatch.setattr("lipcompile_torch.train.gradients.long_sum_slack", lambda _, dtype: slacks[dtype])
    module, optimizer, loader = private(module=Net().double())
    scales: list[float] = []
    widened = optimizer._gradients._widened

    def noted(*given: Any) -> dict[str, float]:
        found: dict[str, float] = widened(*given)
        scales.append(found["inner.weight"])
        return found

    monkeypatch.setattr(optimizer._gradients, "_widened", noted)
    batches = iter(loader)
    for dtype in slacks:
        module.to(dtype)
        x, y = next(batches)
        backward(module, x.to(dtype), y)
        optimizer.step()
    assert scales[1] / scales[0] == pytest.approx(1.5 / 1.25, rel=2e-3)


def after_a_known_seed(module: Any, **options: Any) -> torch.Tensor:
    """Return what a pass over the first batch would draw for dropout, if torch's seed is known before."""
    _, _, loader = private(module=module, **options)
    torch.manual_seed(0)
    next(iter(loader))
    return torch.rand(8)


class Dense(Net):
    """Of which a certificate says that it draws nothing: an attention without dropout is in it."""

    certificate: ClassVar[dict[str, object]] = {
        "graph": {"nodes": [{"op": "attention", "attributes": {"dropout": "0"}}]}
    }


class Dropping(Net):
    certificate: ClassVar[dict[str, object]] = {
        "graph": {"nodes": [{"op": "attention", "attributes": {"dropout": "1/2"}}]}
    }


def test_masks_of_dropout_come_from_a_secret_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a seed is known, an example moves all that come behind it in the batch to other masks."""
    monkeypatch.setattr("lipcompile_torch.train.engine.check_certificate", lambda _: None)
    monkeypatch.setattr("lipcompile_torch.train.gradients.long_sum_slack", lambda *_: 0.0)
    known = torch.rand(8, generator=torch.Generator().manual_seed(0))
    for module in (Net(), Dropping(), Dense()):  # the last draws nothing, but the loop may, to augment examples
        assert not torch.equal(after_a_known_seed(module), known)
    with pytest.warns(SeededWarning):
        assert torch.equal(after_a_known_seed(Net(), seed=3), known)


def test_a_seed_for_masks_within_a_step_is_refused() -> None:
    module, optimizer, loader = private()
    x, y = next(iter(loader))
    with torch.random.fork_rng(devices=[]):  # which puts back what was there
        torch.manual_seed(1)
        with pytest.raises(PrivacyError, match=r"manual_seed\(\) or set_rng_state\(\) was called"):
            module(x)
    _, other, others = private()
    next(iter(others))
    backward(module, x, y)
    torch.manual_seed(0)
    with pytest.raises(PrivacyError, match=r"manual_seed\(\) or set_rng_state\(\) was called"):
        optimizer.step()
    other.abandon_batch()
    next(iter(others))  # seeds anew, for all
    optimizer.step()


def test_a_run_that_is_not_private_may_seed_within_a_step() -> None:
    with pytest.warns(SeededWarning):
        module, optimizer, loader = private(seed=3)
    x, y = next(iter(loader))
    torch.manual_seed(0)
    backward(module, x, y)
    optimizer.step()


def test_generators_of_gpus_in_use_are_seeded_and_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)  # in the place of a GPU's
    monkeypatch.setattr(masks, "_OURS", {})
    monkeypatch.setattr(torch.cuda, "default_generators", (generator,))
    for in_use in (False, True):
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda in_use=in_use: in_use)
        masks.Masks(wanted=True).begin()
        assert (generator.initial_seed() != 0) == in_use
    generator.manual_seed(0)
    with pytest.raises(PrivacyError, match="are known"):
        masks.Masks(wanted=True).check()


class Augmented(TensorDataset):
    """Gives what known generators draw for an example."""

    def __getitem__(self, index: int) -> Any:
        drawn = torch.tensor([float(torch.rand(())), float(np.random.rand()), random.random()])
        return drawn, self.tensors[0][index]


def known_seeds(worker: int = 0) -> None:  # noqa: ARG001
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)


@pytest.mark.parametrize("workers", [0, 1])
def test_random_changes_of_examples_come_from_secret_seeds(workers: int) -> None:
    """Where seeds are known, an example moves all that come behind it to other crops and flips."""
    begin = known_seeds if workers else None
    loader = DataLoader(Augmented(torch.zeros(4)), batch_size=4, num_workers=workers, worker_init_fn=begin)

    def drawn(seed: int | None) -> torch.Tensor:
        known_seeds()
        found: torch.Tensor = next(iter(PrivateLoader(loader, seed=seed)))[0]
        return found

    assert torch.equal(drawn(3), drawn(3))  # repeatable, and not private
    assert not bool((drawn(None) == drawn(None)).any())


class Seeded(TensorDataset):
    """Gives what a generator of its own draws, of the seed that torch gave the worker."""

    def __getitem__(self, index: int) -> Any:
        info = torch.utils.data.get_worker_info()
        if info is None:  # one item shows the loader what batches are
            return torch.zeros((), dtype=torch.float64), self.tensors[0][index]
        own: Any = vars(self).setdefault("own", np.random.default_rng(info.seed))
        return torch.tensor(own.random()), self.tensors[0][index]


def test_seeds_that_workers_get_are_secret() -> None:
    """PyTorch recommends them for generators of other libraries."""
    found = []
    for _ in range(2):
        torch.manual_seed(0)
        loader = DataLoader(
            Seeded(torch.zeros(4)), batch_size=4, num_workers=1, generator=torch.Generator().manual_seed(0)
        )
        found.append(next(iter(PrivateLoader(loader)))[0])
    assert not torch.isin(found[0], found[1]).any()


def test_a_gradient_that_a_hook_shortens_within_the_backward_pass_is_refused() -> None:
    """Torch does not count writes through `.data`; norms are those at which gradients arrive."""
    module, optimizer, loader = private()
    x, y = next(iter(loader))
    optimizer.zero_grad()
    start = x.clone().requires_grad_()

    def shorten(_: Any) -> None:
        for parameter in module.parameters():
            assert parameter.grad is not None
            parameter.grad.data.mul_(0.5)

    start.register_hook(shorten)
    backward(module, start * 1, y)
    with pytest.raises(PrivacyError, match="was not written by backward"):
        optimizer.step()


def test_what_counts_is_not_copied() -> None:
    """A copy would take steps that the engine's ledger does not see."""
    engine = PrivacyEngine()
    module, optimizer, loader = private(engine=engine)
    for original in (optimizer, loader, engine, engine.ledger):
        for twin in (copy.copy, copy.deepcopy, pickle.dumps):
            if twin is copy.copy and original is not engine.ledger:
                continue  # shares the ledger
            with pytest.raises(TypeError, match="cannot be copied"):
                twin(original)
    assert type(copy.deepcopy(module)) is Net  # weights may be


def test_a_run_does_not_begin_over_a_charge_without_steps(tmp_path: Path) -> None:
    """A kill between the line of a round and that of its first step leaves one, perhaps at another σ."""
    release = Mechanism(1.0, 0.5)
    ledger = Ledger(tmp_path / "ledger.jsonl", NeighbouringRelation.REPLACE_ONE, 150)
    ledger.declare(release)
    ledger.open_round(release)
    ledger.close()
    x, y = (tensor.numpy() for tensor in data(200).tensors)
    settings: Any = {"epochs": 2, "batch_size": 30, "neighbours": "replace_one", "sampling": "shuffle"}
    config = TrainConfig(epsilon=1.0, delta=1e-5, output=tmp_path, accountant="rdp", device="cpu", **settings)
    with pytest.raises(LedgerError, match="earlier run"):
        train(Net(), Arrays(x[:150], y[:150], x[150:], y[150:]), config)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_does_not_write_over_the_lines_of_the_other(tmp_path: Path) -> None:
    path, release = tmp_path / "ledger.jsonl", Mechanism(0.1, 1.0)
    ledger = Ledger(path, NeighbouringRelation.ADD_REMOVE, 100)
    ledger.declare(release)
    child = os.fork()
    if child == 0:
        try:
            ledger.record_step(release)
        except LedgerError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    ledger.record_step(release)
    ledger.close()
    assert read_ledger(path).total_steps == 1


def test_correlated_noise_keeps_step_after_a_step_that_broke_off() -> None:
    """Row t of C⁻¹Z goes to step t for every parameter, also if step t - 1 ended before some had theirs."""
    strategy = BandedToeplitz((1.0, 0.5), 4, MinSeparation(2, 2))
    one, two = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(3))
    source = NoiseSource(seed=3, stream=strategy.stream())
    source.begin_step(0)
    source.perturb_({"one": one}, {"one": 1.0}, 1.0)  # interrupted here, before "two"
    taken = []
    for step in (1, 2, 3):
        source.begin_step(step)
        one.grad = two.grad = None
        source.perturb_({"one": one, "two": two}, {"one": 1.0, "two": 1.0}, 1.0)
        memories = source._stream._memories  # type: ignore[union-attr]
        taken.append({name: memory.taken for name, memory in memories.items()})
    assert taken == [{"one": step + 1, "two": step + 1} for step in (1, 2, 3)]


def test_gradients_of_parameters_that_are_not_trained_are_not_applied() -> None:
    """What flowed back into a parameter before it was frozen has no noise on it."""
    first = nn.Linear(4, 8)
    module = nn.Sequential(first, nn.ReLU(), nn.Linear(8, 3))
    x, y = data(200).tensors
    torch.autograd.backward(nn.functional.cross_entropy(module(x), y))
    first.requires_grad_(False)
    optimizer = SGD(module.parameters(), 0.1)
    clipped, private_optimizer, loader = PrivacyEngine().make_private_by_clipping(
        module=module,
        optimizer=optimizer,
        data_loader=make_loader(),
        noise_multiplier=1.0,
        clipping=1.0,
        per_example_loss=lambda output, target: nn.functional.cross_entropy(output, target, reduction="none"),
    )
    before = first.weight.detach().clone()
    for inputs, targets in loader:
        clipped.backward(inputs, targets)
        private_optimizer.step()
    assert torch.equal(first.weight, before)

"""The training loop: to the budget and not beyond, through crashes, with held-out accuracy only."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from runpy import run_path
from typing import Any

import numpy as np
import pytest
import torch
from lipcompile_privacy.accounting import BudgetError, Mechanism, RandomAllocation, WithoutReplacement
from lipcompile_privacy.planning import Plan, ShortenedWarning
from lipcompile_torch import PrivacyEngine
from lipcompile_torch.train import training
from lipcompile_torch.train.checkpoint import CheckpointError, read_checkpoint
from lipcompile_torch.train.data import Arrays
from lipcompile_torch.train.engine import SeededWarning
from lipcompile_torch.train.ledger import LedgerError, read_ledger
from lipcompile_torch.train.training import EpochSummary, Progress, TrainConfig, evaluate, predict, train

HERE = Path(__file__).parents[1]
HELP = run_path(str(HERE / "private_net.py"))
Net = HELP["Net"]


def arrays(count: int = 400) -> Arrays:
    x, y = (tensor.numpy() for tensor in HELP["data"](count).tensors)
    cut = count * 3 // 4
    return Arrays(x[:cut], y[:cut], x[cut:], y[cut:])


def config(output: Path, **changes: Any) -> TrainConfig:
    settings: dict[str, Any] = {
        "epsilon": 8.0,
        "delta": 1e-5,
        "epochs": 3,
        "batch_size": 30,
        "output": output,
        "learning_rate": 0.05,
        "accountant": "rdp",
        "device": "cpu",
    }
    return TrainConfig(**{**settings, **changes})


class Recorder(Progress):
    """Remembers what was reported; may interrupt."""

    def __init__(self, interrupt_at: int | None = None) -> None:
        self.interrupt_at = interrupt_at
        self.plans: list[Plan] = []
        self.steps: list[int] = []
        self.epochs: list[EpochSummary] = []

    def planned(self, plan: Plan) -> None:
        self.plans.append(plan)

    def stepped(self, steps: int) -> None:
        self.steps.append(steps)
        if steps == self.interrupt_at:
            raise KeyboardInterrupt

    def epoch_ended(self, summary: EpochSummary) -> None:
        self.epochs.append(summary)


@pytest.mark.parametrize("changes", [{}, {"optimizer": "sgd", "schedule": "cosine", "noise": "optimal"}])
def test_training_spends_the_budget_and_learns(tmp_path: Path, changes: Any) -> None:
    torch.manual_seed(0)
    seen = Recorder()
    result = train(Net(), arrays(), config(tmp_path, epochs=6, learning_rate=0.1, **changes), seen)
    assert 7.99 < result.epsilon <= 8.0
    assert result.steps == 60 == seen.plans[0].total_steps
    assert seen.steps == list(range(1, 61))
    assert [epoch.steps for epoch in seen.epochs] == [10, 20, 30, 40, 50, 60]
    spent = [epoch.epsilon for epoch in seen.epochs]
    assert spent == sorted(spent)
    record = read_ledger(result.ledger)
    assert spent[-1] == result.epsilon == record.epsilon(1e-5, "rdp")
    assert record.delta == 1e-5
    assert result.test_accuracy == seen.epochs[-1].test_accuracy > 0.6
    assert math.isnan(result.test_loss)
    assert result.private


def test_a_cosine_schedule_falls_to_nothing(tmp_path: Path) -> None:
    train(Net(), arrays(), config(tmp_path, schedule="cosine"))
    rate = read_checkpoint(tmp_path / "checkpoint.pt").states["optimizer"]["param_groups"][0]["lr"]
    assert rate == pytest.approx(0.05 * 0.5 * (1 + math.cos(math.pi * 29 / 30)))


def test_a_linear_schedule_falls_to_nothing(tmp_path: Path) -> None:
    train(Net(), arrays(), config(tmp_path, schedule="linear"))
    rate = read_checkpoint(tmp_path / "checkpoint.pt").states["optimizer"]["param_groups"][0]["lr"]
    assert rate == pytest.approx(0.05 / 30)


def weights(net: Any) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten().clone() for parameter in net.parameters()])


@pytest.mark.parametrize("interrupted_at", [None, 14, 19, 24, 30])
def test_the_last_weights_are_averaged_in_resumed_runs_too(tmp_path: Path, interrupted_at: int | None) -> None:
    net, seen = Net(), {}

    class Watcher(Recorder):
        def stepped(self, steps: int) -> None:
            seen[steps] = weights(net)
            super().stepped(steps)

    settings = config(tmp_path, average=0.4)
    if interrupted_at is not None:
        with pytest.raises(KeyboardInterrupt):
            train(net, arrays(), settings, Watcher(interrupted_at))
        net, settings = Net(), dataclasses.replace(settings, resume=True)
    result = train(net, arrays(), settings, Watcher())
    expected = Net()
    torch.nn.utils.vector_to_parameters(
        torch.stack([seen[step] for step in range(19, 31)]).mean(0), expected.parameters()
    )
    expected.project_()
    torch.testing.assert_close(weights(net), weights(expected))
    assert result.test_accuracy == evaluate(net, *map(torch.from_numpy, (arrays().x_test, arrays().y_test)))
    again = Net()
    train(again, arrays(), dataclasses.replace(settings, resume=True))
    torch.testing.assert_close(weights(again), weights(net))
    stored = read_checkpoint(result.checkpoint)
    again.load_state_dict(stored.states["module"])
    torch.testing.assert_close(weights(again), weights(net))
    assert stored.notes["average"]["taken"] == 12


@pytest.mark.parametrize("limit", [None, 4])
def test_an_interrupted_run_resumes_to_the_same_budget(tmp_path: Path, limit: int | None) -> None:
    settings = config(tmp_path, max_physical_batch=limit)
    with pytest.raises(KeyboardInterrupt):
        train(Net(), arrays(), settings, Recorder(interrupt_at=14))
    assert read_ledger(tmp_path / "ledger.jsonl").total_steps == 14
    assert read_checkpoint(tmp_path / "checkpoint.pt").steps == 14
    seen = Recorder()
    result = train(Net(), arrays(), dataclasses.replace(settings, resume=True), seen)
    assert seen.steps == list(range(15, 31))
    assert [epoch.epoch for epoch in seen.epochs] == [2, 3]
    assert 7.99 < result.epsilon <= 8.0
    again = train(Net(), arrays(), dataclasses.replace(settings, resume=True))
    assert again.steps == 30  # nothing is left: it only reports
    assert not math.isnan(again.test_accuracy)


def test_steps_lost_in_a_crash_are_not_taken_again(tmp_path: Path) -> None:
    class Crash(Recorder):
        def stepped(self, steps: int) -> None:
            if steps == 17:  # after the checkpoint at 10
                raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        train(Net(), arrays(), config(tmp_path), Crash())
    assert read_checkpoint(tmp_path / "checkpoint.pt").steps == 10
    with (tmp_path / "ledger.jsonl").open("r+b") as file:
        file.truncate(file.seek(0, os.SEEK_END) - 3)
    seen = Recorder()
    result = train(Net(), arrays(), config(tmp_path, resume=True), seen)
    assert seen.plans[0].steps_done == 17
    assert result.steps == 30
    assert result.epsilon <= 8.0


def test_a_run_that_ended_before_its_first_step_begins_when_it_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(*_: Any) -> None:
        raise RuntimeError("power cut")

    with monkeypatch.context() as patch:
        patch.setattr("lipcompile_torch.train.training.save_checkpoint", cut)
        with pytest.raises(RuntimeError, match="power cut"):
            train(Net(), arrays(), config(tmp_path, epochs=1))
    assert not (tmp_path / "checkpoint.pt").exists()
    assert train(Net(), arrays(), config(tmp_path, epochs=1, resume=True)).steps == 10


def test_an_earlier_run_is_not_overwritten(tmp_path: Path) -> None:
    train(Net(), arrays(), config(tmp_path))
    with pytest.raises(LedgerError, match="resume it, or choose another output folder"):
        train(Net(), arrays(), config(tmp_path))
    (tmp_path / "checkpoint.pt").unlink()
    with pytest.raises(LedgerError, match="its checkpoint is missing"):
        train(Net(), arrays(), config(tmp_path, resume=True))
    with pytest.raises(CheckpointError, match="nothing to resume"):
        train(Net(), arrays(), config(tmp_path / "new", resume=True))


@pytest.mark.parametrize("changes", [{"epsilon": 9.0}, {"batch_size": 20}, {"noise": "global"}, {"epochs": 4}])
def test_a_run_is_resumed_with_its_own_settings(tmp_path: Path, changes: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(Net(), arrays(), config(tmp_path), Recorder(interrupt_at=5))
    with pytest.raises(BudgetError, match=f"a different {next(iter(changes))}"):
        train(Net(), arrays(), config(tmp_path, resume=True, **changes))


def test_steps_of_another_model_in_the_ledger_stop_a_resumed_run(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(Net(), arrays(), config(tmp_path), Recorder(interrupt_at=5))
    engine = PrivacyEngine("rdp", ledger=tmp_path / "ledger.jsonl")
    module, optimizer, loader = HELP["private"](
        engine=engine, data_loader=HELP["make_loader"](300, 30), noise_multiplier=0.3
    )
    x, y = next(iter(loader))
    HELP["backward"](module, x, y)
    optimizer.step()
    engine.close()
    with pytest.raises(BudgetError, match="steps of other runs"):
        train(Net(), arrays(), config(tmp_path, resume=True))


def test_other_data_do_not_continue_a_ledger(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(Net(), arrays(), config(tmp_path), Recorder(interrupt_at=5))
    with pytest.raises(LedgerError, match="300 examples"):
        train(Net(), arrays(200), config(tmp_path, resume=True))


def test_a_seed_makes_runs_repeatable_and_marked(tmp_path: Path) -> None:
    results = []
    for name in ("a", "b"):
        torch.manual_seed(0)
        with pytest.warns(SeededWarning):
            result = train(Net(), arrays(), config(tmp_path / name, seed=1))
        assert not result.private
        results.append(read_checkpoint(result.checkpoint).states["module"]["inner.weight"])
    assert torch.equal(*results)


def test_impossible_budgets_leave_nothing_in_the_way(tmp_path: Path) -> None:
    with pytest.raises(BudgetError, match="not a positive number"):
        train(Net(), arrays(), config(tmp_path, epsilon=-1.0))
    assert train(Net(), arrays(), config(tmp_path, epochs=1)).steps == 10


@pytest.mark.parametrize(
    "changes",
    [
        {"epochs": 0},
        {"batch_size": 0},
        {"learning_rate": 0.0},
        {"momentum": 1.0},
        {"optimizer": "lbfgs"},
        {"schedule": "plateau"},
        {"average": -0.1},
        {"average": 1.1},
    ],
)
def test_settings_that_mean_nothing_are_refused(tmp_path: Path, changes: Any) -> None:
    with pytest.raises(ValueError, match=r"must|unknown"):
        train(Net(), arrays(), config(tmp_path, **changes))


# --- how batches are drawn and noise is made ---

# Runs of 3 epochs of 10 steps, b/N = 0.1, their settings, and what is charged how often at σ.
WAYS: dict[str, tuple[dict[str, Any], Any, int]] = {
    "poisson": ({}, lambda sigma: Mechanism(0.1, sigma), 30),
    "fixed_size": ({"neighbours": "replace_one"}, lambda sigma: WithoutReplacement(30, 300, sigma), 30),
    "shuffle": ({"neighbours": "replace_one"}, lambda sigma: Mechanism(1.0, sigma), 3),
    "balls_in_bins": ({}, lambda sigma: RandomAllocation(10, sigma), 3),
    "cyclic_poisson": (
        {"sampling": None, "correlation": {"kind": "correlated", "bands": 4}},
        lambda sigma: Mechanism(0.4, sigma),
        8,  # ⌈30/4⌉ turns of the groups
    ),
    "fixed_order": (
        {"sampling": None, "correlation": {"kind": "blt", "buffers": 2}},
        lambda sigma: Mechanism(1.0, sigma),
        1,
    ),
}


def way(sampling: str) -> dict[str, Any]:
    """Return the settings of a row of `WAYS`, under which σ is about what it is with Poisson sampling."""
    return {"sampling": sampling, "epsilon": 20.0, **WAYS[sampling][0]}


@pytest.mark.parametrize("sampling", WAYS)
def test_every_way_of_sampling_spends_its_budget(tmp_path: Path, sampling: str) -> None:
    _, release, charges = WAYS[sampling]
    seen = Recorder()
    result = train(Net(), arrays(), config(tmp_path, **way(sampling)), seen)
    record = read_ledger(result.ledger)
    assert record.runs == [(release(result.noise_multiplier), charges)]
    assert (record.total_steps, [epoch.steps for epoch in seen.epochs]) == (30, [10, 20, 30])
    assert 19.9 < result.epsilon == record.epsilon(1e-5, "rdp") <= 20


@pytest.mark.parametrize(
    ("sampling", "interrupted_at", "ends_at"),
    [
        ("fixed_size", 14, 30),
        ("shuffle", 10, 30),  # between two epochs nothing is broken off
        ("shuffle", 14, 24),  # the second epoch is charged whole, one is left
        ("balls_in_bins", 1, 21),
        ("cyclic_poisson", 12, 30),
        ("cyclic_poisson", 13, 29),  # four turns are charged, four of four steps each are left
        ("cyclic_poisson", 14, 30),
    ],
)
def test_a_resumed_run_takes_the_whole_rounds_that_are_left(
    tmp_path: Path, sampling: str, interrupted_at: int, ends_at: int
) -> None:
    settings = config(tmp_path, **way(sampling))
    with pytest.raises(KeyboardInterrupt):
        train(Net(), arrays(), settings, Recorder(interrupt_at=interrupted_at))
    seen = Recorder()
    shortened = pytest.warns(ShortenedWarning, match=f"{ends_at} in total instead of 30")
    with shortened if ends_at < 30 else contextlib.nullcontext():
        result = train(Net(), arrays(), dataclasses.replace(settings, resume=True), seen)
    assert seen.steps == list(range(interrupted_at + 1, ends_at + 1))
    assert seen.plans[0].total_steps == result.steps == ends_at
    assert result.epsilon <= 20
    assert read_ledger(result.ledger).charges.total() == WAYS[sampling][2]


def test_a_run_that_is_one_release_cannot_be_resumed_and_says_so(tmp_path: Path) -> None:
    settings = config(tmp_path, **way("fixed_order"))
    with pytest.raises(KeyboardInterrupt):
        train(Net(), arrays(), settings, Recorder(interrupt_at=14))
    with pytest.warns(ShortenedWarning, match="0 steps are left, 14 in total"):
        result = train(Net(), arrays(), dataclasses.replace(settings, resume=True))
    assert (result.steps, read_ledger(result.ledger).charges.total()) == (14, 1)
    assert not math.isnan(result.test_accuracy)


def test_pieces_of_batches_do_not_change_what_is_charged(tmp_path: Path) -> None:
    result = train(Net(), arrays(), config(tmp_path, max_physical_batch=7, **way("balls_in_bins")))
    assert read_ledger(result.ledger).charges.total() == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sampling": "shuffle"}, "use neighbours replace_one"),
        ({"sampling": "fixed_order"}, "is only for correlated noise"),
        ({**WAYS["cyclic_poisson"][0], "sampling": "shuffle"}, "cyclic_poisson sampling only"),
        ({"correlation": {"kind": "correlated", "bands": 11}}, "11 bands"),
    ],
)
def test_ways_without_an_analysis_are_refused(tmp_path: Path, changes: Any, message: str) -> None:
    with pytest.raises(BudgetError, match=message):
        train(Net(), arrays(), config(tmp_path, **changes))


def test_secure_noise_weights_and_clips_reach_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = {"*": 1.0, "outer.weight": 0.5}
    options = {"secure": True, "noise": weights, "loss_clip": 0.5, "fixed_norm": True, "fixed_shape": True}
    asked: list[dict[str, Any]] = []
    make_private = PrivacyEngine.make_private

    def spy(engine: PrivacyEngine, **given: Any) -> Any:
        asked.append(given)
        return make_private(engine, **given)

    monkeypatch.setattr(PrivacyEngine, "make_private", spy)
    settings = config(tmp_path, epochs=1, **options)
    assert train(Net(), arrays(), settings).steps == 10
    assert {name: asked[0][name] for name in options} == options
    with pytest.raises(BudgetError, match="a different noise"):
        train(Net(), arrays(), dataclasses.replace(settings, resume=True, noise={"*": 1.0}))
    with pytest.raises(ValueError, match="matches no parameter"):
        train(Net(), arrays(), config(tmp_path / "other", noise={"*": 1.0, "outter": 2.0}))


def test_products_are_in_bfloat16_and_all_else_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.dtype] = []
    inner = Net.criterion

    def spy(module: Any, output: torch.Tensor, target: torch.Tensor) -> Any:
        seen.append(output.dtype)
        return inner(module, output, target)

    monkeypatch.setattr(Net, "criterion", spy)
    module, settings = Net(), config(tmp_path, epochs=1, precision="bfloat16")
    assert train(module, arrays(), settings).steps == 10
    assert set(seen) == {torch.bfloat16}
    assert {parameter.dtype for parameter in module.parameters()} == {torch.float32}
    with pytest.raises(BudgetError, match="a different precision"):
        train(Net(), arrays(), dataclasses.replace(settings, resume=True, precision="float32"))
    with pytest.raises(ValueError, match="choose float32 or bfloat16"):
        train(Net(), arrays(), config(tmp_path / "other", precision="half"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="finds no GPU"):
        train(Net(), arrays(), config(tmp_path, device="cuda"))


def test_predictions_of_many_logits_and_of_one() -> None:
    assert predict(torch.tensor([[1.0, 3.0], [2.0, 0.0]])).tolist() == [1, 0]
    assert predict(torch.tensor([[0.5], [-0.5]])).tolist() == [1, 0]
    assert predict(torch.tensor([0.5, -0.5])).tolist() == [1, 0]


def test_evaluation_is_plain_accuracy_and_leaves_no_trace() -> None:
    module = Net()
    x, y = HELP["data"](2500).tensors
    expected = float((module(x).argmax(1) == y).double().mean())
    module.gate.reset()
    assert evaluate(module, x, y) == pytest.approx(expected)
    assert module.training
    assert module.gate.examples == 0
    assert math.isnan(evaluate(module, x, y.float()))


def test_numbers_have_a_test_loss_in_place_of_an_accuracy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss is the mean error, of constant 1/√3: with weights of zero the mean of |y|, in pieces too."""
    monkeypatch.setattr(Net, "per_example_loss", lambda _, output, target: (output - target).abs().mean(1))
    monkeypatch.setattr(training, "_EVALUATION_BATCH", 7)
    x, y = torch.randn(30, 4), torch.randn(30, 3)
    zero = Net()
    torch.nn.utils.vector_to_parameters(0 * weights(zero), zero.parameters())
    assert training.mean_loss(zero, x, y) == pytest.approx(float(y.abs().mean()))
    assert zero.training
    seen, data, net = Recorder(), Arrays(x.numpy(), y.numpy(), x.numpy(), y.numpy()), Net()
    result = train(net, data, config(tmp_path, epochs=2, batch_size=10), seen)
    assert result.test_loss == seen.epochs[-1].test_loss != seen.epochs[0].test_loss
    assert result.test_loss == pytest.approx(float((net(x) - y).detach().abs().mean()))
    assert math.isnan(result.test_accuracy)


class Fixed(torch.nn.Module):
    """A model whose logits are its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def test_the_accuracy_of_tokens_leaves_out_negative_labels() -> None:
    logits = torch.eye(3)[torch.tensor([[0, 1, 2, 2], [1, 1, 0, 0]])]
    labels = torch.tensor([[0, 1, 1, -100], [1, 0, -1, 0]])
    module: Any = Fixed()
    assert evaluate(module, logits, labels) == pytest.approx(4 / 6)
    assert evaluate(module, logits[:, :1], labels[:, :1]) == 1
    assert math.isnan(evaluate(module, logits, torch.full((2, 4), -1)))


TRAIN = """
import runpy, sys
from pathlib import Path
helpers = runpy.run_path(sys.argv[1])
helpers["train"](helpers["Net"](), helpers["arrays"](), helpers["config"](Path(sys.argv[2]), epochs=15,
    resume=bool(int(sys.argv[3]))))
"""


@pytest.mark.nightly
def test_a_killed_run_resumes_within_the_budget(tmp_path: Path) -> None:
    # Killed at random places until it ends; all the steps that ever changed weights are within ε.
    ledger = tmp_path / "ledger.jsonl"
    for attempt, pause in enumerate((0.2, 0.05, None)):
        resume = int((tmp_path / "checkpoint.pt").exists())
        arguments = [__file__, str(tmp_path), str(resume)]
        before = read_ledger(ledger).total_steps if attempt else 0
        process = subprocess.Popen([sys.executable, "-c", TRAIN, *arguments])
        if pause is None:
            assert process.wait(60) == 0
            break
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline and count(ledger) <= before:
            time.sleep(0.01)
        time.sleep(pause)
        process.kill()
        process.wait()
    record = read_ledger(ledger)
    assert record.total_steps == 150
    assert record.epsilon(1e-5, "rdp") <= 8.0
    assert read_checkpoint(tmp_path / "checkpoint.pt").steps == 150


def count(ledger: Path) -> int:
    return ledger.read_bytes().count(b'"step": ') if ledger.exists() else 0


def test_arrays_are_what_numpy_gives() -> None:
    assert arrays().x_train.dtype == np.float32
    assert arrays().y_train.dtype == np.int64

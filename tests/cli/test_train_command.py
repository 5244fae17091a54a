"""`lipcompile train` and `budget`: how batches are drawn and noise is made, from options and the `train` block."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import platform
import re
import stat
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lipcompile_privacy.accounting import (
    Mechanism,
    NeighbouringRelation,
    RandomAllocation,
    Release,
    WithoutReplacement,
    epsilon,
)
from lipcompile_torch.train.ledger import LedgerRecord, read_ledger
from lipcompile_torch.train.module import LipschitzModule

from lipcompile.cli.shared import training
from lipcompile.cli.shared.progress import Watch
from lipcompile.cli.shared.training import keep_freed_memory, tell_unlearned
from lipcompile.version import __version__
from tests.cli.commands import run

Capture = pytest.CaptureFixture[str]
REPLACE = NeighbouringRelation.REPLACE_ONE
MODEL = "model m { input x: tensor[4], norm <= 1\n dense(8) groupsort(2) dense(2) loss cross_entropy }\n"
LEDGER = Path("run/ledger.jsonl")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder with data of two classes, told apart by the sign of the first entry."""
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(0).standard_normal((40, 4)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    np.savez("data.npz", x_train=x, y_train=y, x_test=x[:10], y_test=y[:10])
    return tmp_path


def write(sampling: str = "poisson", more: str = "") -> None:
    """Write a model whose plan has 2 epochs of 4 steps, b/N = 1/4."""
    plan = f"sampling {sampling}(batch=10, dataset=40)\n budget epsilon=20, delta=1e-3, epochs=2\n {more}"
    Path("model.lip").write_text(f"{MODEL}train {{ {plan} }}")


def train(options: str = "") -> LedgerRecord:
    assert run(f"train model.lip --data data.npz --output run --accountant rdp {options}") == 0
    return read_ledger(LEDGER)


def refused(options: str, capsys: Capture) -> str:
    capsys.readouterr()
    assert run(f"train model.lip --data data.npz --output run --accountant rdp {options}") == 2
    assert not Path("run").exists()
    out, err = capsys.readouterr()
    assert out == ""
    return err


# What 8 steps of each kind charge.
CHARGED: dict[str, tuple[type[Release], int]] = {
    "poisson": (Mechanism, 8),
    "fixed_size": (WithoutReplacement, 8),
    "shuffle": (Mechanism, 2),
    "balls_in_bins": (RandomAllocation, 2),
}


def test_a_wrong_command_is_refused_before_the_model_is_read(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To import a network, and to run it beside its original, may take minutes."""
    write()
    assert "data.np`" in refused("--data data.np", capsys)
    assert "`data.csv` is a table: give it in the place of MODEL" in refused("--data data.csv", capsys)
    Path("model.lip").write_text(MODEL)
    monkeypatch.setattr("lipcompile.cli.shared.verdicts.measured", lambda *_, **__: pytest.fail("too late"))
    assert "--epsilon and --delta are needed" in refused("", capsys)
    Path("used").mkdir()
    Path("used/ledger.jsonl").touch()
    monkeypatch.setattr("lipcompile.pipeline.load", lambda *_: pytest.fail("too late"))
    assert "`used` holds an earlier run" in refused("--output used", capsys)
    assert run("train nets:LeNet --data data.npz --output run") == 2
    assert "--epsilon and --delta are needed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("moment", "codes", "reason"),
    [("arrays_of", [0, 2], "holds an earlier run"), ("tell_clipped", [2, 0], "is in use by another process")],
)
def test_of_two_commands_that_find_a_folder_empty_one_is_refused(
    moment: str, codes: list[int], reason: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And takes no files back, which are those of the other one. The second command begins within the first."""
    write()
    command = "train model.lip --data data.npz --output run --accountant rdp"
    inner = getattr(training, moment)
    found: list[int] = []

    def meanwhile(*given: Any) -> Any:
        monkeypatch.setattr(training, moment, inner)
        found.append(run(command))
        return inner(*given)

    monkeypatch.setattr(training, moment, meanwhile)
    found.append(run(command))
    assert found == codes
    assert f"`run` {reason}" in capsys.readouterr().err
    assert read_ledger(LEDGER).total_steps == 8


def test_a_file_system_may_lock_no_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    lock = fcntl.flock

    def of_files(descriptor: int, how: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EBADF, "Bad file descriptor")
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", of_files)
    write()
    assert train().total_steps == 8


@pytest.mark.parametrize("sampling", CHARGED)
def test_the_plan_says_how_batches_are_drawn(sampling: str) -> None:
    relation = "add_remove" if sampling in ("poisson", "balls_in_bins") else "replace_one"
    write(sampling, f"neighbours {relation}")
    record = train()
    ((release, charges),) = record.runs
    assert (type(release), charges, record.total_steps) == (*CHARGED[sampling], 8)
    if isinstance(release, Mechanism):
        assert release.sampling_rate == (0.25 if sampling == "poisson" else 1.0)


def test_options_go_before_the_plan() -> None:
    write("shuffle", "neighbours replace_one")
    ((release, charges),) = train("--sampling balls_in_bins --neighbours add_remove").runs
    assert (type(release), charges) == (RandomAllocation, 2)


@pytest.mark.parametrize(
    ("plan", "option", "rate", "charges"),
    [
        (("poisson", "noise correlated(bands=3)"), "", 0.75, 3),  # ⌈8/3⌉ turns
        (("poisson", ""), "--correlation bands:2", 0.5, 4),
        (("poisson", ""), "--correlation bands", 1.0, 2),  # 4 bands: σ·error is 0.94, 0.76, 0.59
        (("fixed_order", "noise optimal, blt(buffers=2)"), "", 1.0, 1),
        (("fixed_order", "noise blt"), "--correlation bands:2", 0.5, 4),
        (("fixed_order", "noise blt"), "--correlation none", 0.25, 8),
        (("shuffle", "noise optimal"), "--correlation blt:2 --sampling fixed_order", 1.0, 1),
    ],
)
def test_correlated_noise_is_charged_by_its_rounds(
    plan: tuple[str, str], option: str, rate: float, charges: int
) -> None:
    write(*plan)
    ((release, count),) = train(option).runs
    assert isinstance(release, Mechanism)
    assert (release.sampling_rate, count) == (rate, charges)


def test_a_broken_off_epoch_shortens_the_resumed_run_and_says_so(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("balls_in_bins")

    def interrupted(_: Watch, steps: int) -> None:
        if steps == 2:
            raise KeyboardInterrupt

    command = "train model.lip --data data.npz --output run --accountant rdp"
    with monkeypatch.context() as patch:
        patch.setattr(Watch, "stepped", interrupted)
        assert run(command) == 130
    assert "the same command with --resume goes on" in capsys.readouterr().err
    assert run("predict run data.npz") == 0
    assert capsys.readouterr().err == "note: `run/checkpoint.pt` has 2 of 8 steps: its training has not ended\n"
    assert run(f"{command} --resume") == 0
    out, err = capsys.readouterr()
    assert "warning: 4 steps are left, 6 in total instead of 8" in err
    assert "after 6 steps" in out
    assert run("predict run data.npz") == 0  # no more will follow
    assert capsys.readouterr().err == ""
    assert read_ledger(LEDGER).charges.total() == 2


def test_a_module_that_draws_its_weights_goes_on_with_those_of_its_run(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call of the factory draws others. What the run has is kept; another network is refused."""
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    monkeypatch.delitem(sys.modules, "drawn_again", raising=False)
    Path("drawn_again.py").write_text(
        "from torch import nn\n"
        "def net(width=8):\n"
        "    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 2))\n"
        "def wide():\n"
        "    return net(9)\n"
    )

    def interrupted(_: Watch, steps: int) -> None:
        if steps == 2:
            raise KeyboardInterrupt

    options = "--input-shape 4 --loss cross_entropy --bounds clip --epsilon 20 --delta 1e-3 --epochs 2"
    command = f"train drawn_again:net {options} --batch-size 10 --data data.npz --output run"
    with monkeypatch.context() as patch:
        patch.setattr(Watch, "stepped", interrupted)
        assert run(command) == 130
    before = Path("run/model.py").read_text().replace(__version__, "0.0.1")
    assert before.count("0.0.1") == 2
    Path("run/model.py").write_text(before)  # as an earlier version emits it
    assert run(command.replace(":net", ":wide") + " --resume") == 2
    assert "is another module" in capsys.readouterr().err
    assert run(f"{command} --resume") == 0
    assert Path("run/model.py").read_text() == before
    assert read_ledger(LEDGER).charges.total() == 8


def test_weights_of_the_noise(capsys: Capture) -> None:
    write()
    train("--noise-weight '*=1' --noise-weight dense.weight=0.5")
    Path("run").rename("first")
    assert "matches no parameter" in refused("--noise-weight '*=1' --noise-weight nothing=2", capsys)
    assert "say the same twice" in refused("--noise optimal --noise-weight '*=1'", capsys)
    for text in ("head", "head=", "head=much"):
        assert "is not NAME=W" in refused(f"--noise-weight {text}", capsys)


def test_secure_noise_clips_and_pieces(capsys: Capture) -> None:
    write()
    record = train(
        "--secure --loss-clip 0.5 --fixed-norm --max-physical-batch 3 --fixed-shape --precision=bfloat16"
    )
    assert (record.total_steps, record.seeded) == (8, False)
    Path("run").rename("first")
    assert "leave the seed out" in refused("--secure --seed 1", capsys)


IMAGES = "model m { input x: tensor[1, 6, 6]; conv2d(4, kernel=3); relu; flatten; dense(2); loss cross_entropy }"


def write_images(more: str = "") -> None:
    """Write images of two classes, and a model of them whose gradients are clipped."""
    x, y = np.random.default_rng(0).standard_normal((40, 1, 6, 6)), np.arange(40) % 2
    np.savez("data.npz", x_train=x, y_train=y, x_test=x[:10], y_test=y[:10])
    Path("model.lip").write_text(f"{IMAGES}\ntrain {{ bounds clip {more} }}")


def test_views_of_images_cost_no_epsilon_and_belong_to_the_run(capsys: Capture) -> None:
    write_images()
    said = "--epsilon 20 --delta 1e-3 --epochs 2 --batch-size 10 --max-physical-batch 6"
    views = train(f"{said} --augment flip,shift:1 --views 3")
    again = f"train model.lip --data data.npz --output run --accountant rdp {said} --resume"
    assert run(f"{again} --augment flip,shift:1 --views 3") == 0
    assert run(f"{again} --augment 'shift:1, flip' --views 3") == 0  # they have no order
    capsys.readouterr()
    assert run(f"{again} --augment shift:2,flip --views 3") == 2
    assert "had a different augment:" in capsys.readouterr().err
    assert run(f"{again} --augment flip,shift:1") == 2
    assert "had a different views" in capsys.readouterr().err
    assert run(again) == 2
    assert "had a different augment, views" in capsys.readouterr().err
    Path("run").rename("first")
    plain = train(said)
    assert views.epsilon(1e-3) == plain.epsilon(1e-3)
    assert views.runs == plain.runs


def test_a_seed_repeats_weights_masks_and_views(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights at the start, dropout and changes of images are drawn by the generator of torch."""
    monkeypatch.setattr(sys.modules[__name__], "IMAGES", IMAGES.replace("flatten", "flatten; dropout(0.5)"))
    write_images("augment flip, shift=1, views=2")
    found = []
    for number, seed in enumerate((1, 1, 2)):
        torch.manual_seed(number)
        train(f"--epsilon 20 --delta 1e-3 --epochs 1 --batch-size 20 --seed {seed}")
        found.append(torch.load("run/checkpoint.pt", weights_only=False)["states"]["module"]["dense.weight"])
        Path("run").rename(f"run {number}")
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_the_train_block_leaves_the_noise_to_its_epsilon(capsys: Capture) -> None:
    """A noise multiplier beside it was left out of account, without a word."""
    Path("model.lip").write_text(f"{MODEL}train {{ budget epsilon=20, delta=1e-3, noise_multiplier=50 }}")
    assert "`noise_multiplier` of the `train` block is not that of a training" in refused("--epochs 1", capsys)


def test_views_of_the_train_block_give_way_to_options(capsys: Capture) -> None:
    write_images("augment flip, shift=1, views=3")
    said = "--epsilon 20 --delta 1e-3 --epochs 1 --batch-size 20"
    wanted = {"": ("flip,shift:1", 3), "--views 2": ("flip,shift:1", 2), "--augment shift:2": ("shift:2", 3)}
    for number, (options, found) in enumerate({**wanted, "--augment none": (None, 3)}.items()):
        train(f"{said} {options}")
        settings = torch.load("run/checkpoint.pt", weights_only=False)["notes"]["settings"]
        assert (settings["augment"], settings["views"]) == found
        Path("run").rename(f"run {number}")
    assert "--views says how often --augment" in refused(f"{said} --augment none --views 2", capsys)


@pytest.mark.parametrize(("most", "rows"), [(6, 6), (7, 6), (2, 3)])
def test_views_count_among_what_is_computed_at_once(most: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An example is never cut: its three views are computed together even where that is more than was asked for.

    A batch of two examples or more is drawn in all but 1e-20 of runs.
    """
    seen, plain = [], LipschitzModule.clip_input

    def clip_input(self: LipschitzModule, x: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            seen.append(len(x))
        return plain(self, x)

    monkeypatch.setattr(LipschitzModule, "clip_input", clip_input)
    write_images(f"augment flip physical_batch {most}")
    train("--epsilon 20 --delta 1e-3 --epochs 1 --batch-size 20 --views 3")
    assert max(seen) == rows


@pytest.mark.parametrize(("text", "message"), [("rotate", "neither flip nor shift"), ("flip", "only images")])
def test_changes_that_are_none_are_refused(text: str, message: str, capsys: Capture) -> None:
    write()
    assert message in refused(f"--augment {text}", capsys)


CLIPS = "bounds clip, groups=layers, length=0.5"


@pytest.mark.parametrize("said", ["option", "plan"])
def test_lengths_of_clips_follow_a_quantile_and_a_resumed_run_goes_on_with_them(said: str) -> None:
    """The lengths of both layers move, and a checkpoint has them."""
    write(more=CLIPS if said == "option" else f"{CLIPS}, quantile=0.9")
    options = "--clip-quantile 0.9" if said == "option" else ""
    train(options)
    saved = torch.load("run/checkpoint.pt", weights_only=False)
    lengths = lengths_of(saved)
    assert set(lengths) == {"dense", "dense_2"}
    assert all(length["steps"] == 8 and length["value"] != 0.5 for length in lengths.values())
    assert run(f"train model.lip --data data.npz --output run --accountant rdp {options} --resume") == 0


def lengths_of(state: Any) -> dict[str, Any]:
    """Return what a checkpoint says of the lengths of clips, wherever it stands."""
    if isinstance(state, dict):
        if "clip_length" in state and isinstance(state["clip_length"], dict):
            return dict(state["clip_length"])
        for value in state.values():
            if found := lengths_of(value):
                return found
    return {}


def test_a_quantile_needs_clips_of_a_length(capsys: Capture) -> None:
    write(more="bounds clip")
    assert "--clip-length 1" in refused("--clip-quantile 0.5", capsys)
    assert "0<=x<=1" in refused("--clip-quantile 1.5", capsys)
    write(more="bounds clip, length=1, quantile=1.5")
    assert run("check model.lip") == 1
    assert "`quantile` is a number from 0 to 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text", ["", "bands:", "bands:0", "bands:x", "bands:-1", "blt:", "blt:0", "tree", "none:1"]
)
def test_correlations_that_are_none_are_refused(text: str, capsys: Capture) -> None:
    write()
    assert "--correlation" in refused(f"--correlation '{text}'", capsys)


@pytest.mark.parametrize(
    ("plan", "options", "message"),
    [
        ("poisson", "--sampling shuffle", "neighbours replace_one"),
        ("poisson", "--sampling fixed_order", "does not go with `noise independent`"),
        ("poisson", "--correlation blt", "does not go with `noise blt`"),
        ("shuffle", "--correlation bands:2", "does not go with `noise correlated`"),
        ("poisson", "--correlation bands:9", "9 bands"),
    ],
)
def test_combinations_without_an_analysis_are_refused(
    plan: str, options: str, message: str, capsys: Capture
) -> None:
    write(plan)
    assert message in refused(options, capsys)


# budget


def budget(options: str, capsys: Capture) -> Any:
    assert run(f"budget model.lip --format json {options}") == 0
    return json.loads(capsys.readouterr().out)["accountants"]["rdp"]


@pytest.mark.parametrize(
    ("sampling", "release", "charges"),
    [
        ("fixed_size", WithoutReplacement(10, 40, 3.0), 8),
        ("shuffle", Mechanism(1.0, 3.0), 2),
        ("balls_in_bins", RandomAllocation(4, 3.0), 2),
    ],
)
def test_the_budget_of_a_sampling(sampling: str, release: Release, charges: int, capsys: Capture) -> None:
    write(sampling, "neighbours replace_one")
    expected = epsilon([(release, charges)], 1e-3, REPLACE, "rdp")
    assert budget("--noise-multiplier 3 --epochs 2", capsys)["epsilon"] == expected
    options = f"--noise-multiplier 3 --epochs 2 --sampling {sampling} --neighbours replace_one"
    write()
    assert budget(options, capsys)["epsilon"] == expected


def test_a_budget_buys_whole_epochs(capsys: Capture) -> None:
    write("balls_in_bins")
    steps = budget("--noise-multiplier 3 --epsilon 5", capsys)["steps"]
    assert steps % 4 == 0
    for charges, within in ((steps // 4, True), (steps // 4 + 1, False)):
        spent = epsilon([(RandomAllocation(4, 3.0), charges)], 1e-3, accountant="rdp")
        assert (spent <= 5) is within


@pytest.mark.slow
def test_training_spends_what_the_budget_says(capsys: Capture) -> None:
    write("balls_in_bins")
    ((release, _),) = train().runs
    capsys.readouterr()
    assert budget("", capsys)["noise_multiplier"] == pytest.approx(release.noise_multiplier, rel=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--sampling shuffle", "neighbours replace_one"),
        ("--sampling fixed_size --sampling-rate 0.25", "batch size and dataset size"),
    ],
)
def test_budgets_without_an_analysis_are_refused(options: str, message: str, capsys: Capture) -> None:
    write()
    assert run(f"budget model.lip --noise-multiplier 3 --epochs 2 {options}") == 2
    assert re.search(rf"error\[LIP404\].*{message}", capsys.readouterr().err)


def test_inputs_that_are_clipped_are_counted(capsys: Capture) -> None:
    """30 of 40 examples are longer than 1; those of length 1, and a model that is told so, are not mentioned."""
    write()
    x = np.zeros((40, 4), dtype=np.float32)
    x[:, 0], x[10:, 1] = 1.0, 0.25
    np.savez("data.npz", x_train=x, y_train=np.arange(40) % 2, x_test=x[:10], y_test=np.arange(10) % 2)
    train("--delta 1e-3")
    assert "note: 75% of the examples have a norm above 1 and are clipped to it" in capsys.readouterr().err
    np.savez("data.npz", x_train=x[:10], y_train=np.arange(10) % 2, x_test=x[:10], y_test=np.arange(10) % 2)
    assert run("train model.lip --data data.npz --output other --accountant rdp --batch-size 5") == 0
    assert "clipped to it" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("accuracy", "labels", "told"),
    [
        (0.75, [0, 0, 0, 1], "75.0%"),  # that of the most frequent class
        (0.5, [0, 1, 2, 2], "50.0%"),
        (0.5, [[1, -1], [2, -1]], "50.0%"),  # of pixels or tokens, two of which count
        (0.8, [0, 0, 0, 1], ""),
        (0.8, [-1, -1, 1, 1], ""),  # signs, both of which count
        (0.5, [-1, -1, 1, 1], "50.0%"),
        (math.nan, [0.5, 0.5, 0.1, 0.2], ""),  # no classes
    ],
)
def test_a_model_that_has_learned_nothing_is_told_of(
    accuracy: float, labels: list[float], told: str, capsys: Capture
) -> None:
    tell_unlearned(accuracy, np.array(labels))
    err = capsys.readouterr().err
    assert (f"alone has {told} of the test part" in err) if told else not err


def test_entries_that_are_far_above_one_are_told_of(capsys: Capture) -> None:
    """Images of 0 to 255: √((0² + 255²)/2) = 180.3. Divided by 255 they are as networks expect them."""
    Path("model.lip").write_text("model net { input x: tensor[4]; dense(2); loss cross_entropy }")
    x = np.tile(np.array([0, 255, 255, 0], dtype=np.float32), (40, 1))
    for name, scale, told in (("large", 1, True), ("small", 255, False)):
        np.savez("data.npz", x_train=x / scale, y_train=np.arange(40) % 2, x_test=x[:4], y_test=np.arange(4) % 2)
        options = f"--bounds clip --epsilon 8 --delta 1e-3 --epochs 1 --output {name} --accountant rdp"
        assert run(f"train model.lip --data data.npz --batch-size 5 {options}") == 0
        said = capsys.readouterr().err
        assert ("the entries of the examples are 180 in size" in said) is told
        assert ("this figure is not private" in said) is told


def test_a_network_for_numbers_tells_its_test_loss(capsys: Capture) -> None:
    """Without noise to speak of, a linear network finds a linear target: the loss falls from epoch to epoch."""
    Path("model.lip").write_text(
        "model m { input x: tensor[4], norm <= 1\n dense(1) loss mean_squared_error(target_norm=1) }\n"
        "train { sampling poisson(batch=10, dataset=40)\n budget epsilon=1e4, delta=1e-3, epochs=2 }"
    )
    x = np.random.default_rng(0).uniform(-0.5, 0.5, (40, 4)).astype(np.float32)
    np.savez("data.npz", x_train=x, y_train=x[:, :1], x_test=x[:10], y_test=x[:10, :1])
    train("--lr 0.1 --seed 0")
    out, err = capsys.readouterr()
    first, second = (float(loss) for loss in re.findall(r"test loss ([0-9.e-]+)", err))
    assert first > second
    assert out.startswith(f"test loss {second:.4g} after 8 steps, ")


def test_glibc_is_told_to_keep_freed_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no other C library, which has no such option."""
    assert keep_freed_memory() is (platform.libc_ver()[0] == "glibc")
    monkeypatch.setattr(platform, "libc_ver", lambda: ("musl", "1.2"))
    assert not keep_freed_memory()

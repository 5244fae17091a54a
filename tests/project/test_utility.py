"""benchmarks/utility on generated data: how settings are chosen, what rows keep, what is released and bounded."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.nights import by_day

ROOT = Path(__file__).parents[2]


pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_benchmarks")]


def study() -> Any:
    return import_module("benchmarks.utility.study")


def heads() -> Any:
    return import_module("benchmarks.utility.heads")


def peak(settings: dict[str, Any], seed: int, part: str) -> Any:  # noqa: ARG001
    """Score highest at a rate of 10, and never a number for another kind."""
    value = -abs(np.log(settings["rate"] / 10)) if settings["kind"] == "a" else float("nan")
    return study().Score(float(value), epsilon=1.0)


def space() -> dict[str, Any]:
    return {"rate": study().LogUniform(0.1, 1000.0), "kind": ("a", "b")}


def test_a_search_makes_as_many_trials_as_it_says_and_comes_near_the_best() -> None:
    trials = study().search(space(), peak, 40, seed=0)
    assert len(trials) == 40
    assert study().best(trials).settings["kind"] == "a"
    assert abs(np.log(study().best(trials).settings["rate"] / 10)) < 0.5
    again = study().search(space(), peak, 40, seed=0)
    assert [trial.settings for trial in again] == [trial.settings for trial in trials]


def test_rows_are_replaced_by_name_and_resumed_by_seed(tmp_path: Path) -> None:
    path, about = tmp_path / "rows.json", {"epsilon": 1.0}
    measure, rows = study().measure, study().Rows
    measure(rows(path, {"of": 1}), "first", about, space(), peak, seeds=range(2), trials=3)
    measure(rows(path, {"of": 1}), "second", about, space(), peak, seeds=range(1), trials=3)
    kept = json.loads(path.read_text(encoding="utf-8"))["rows"]
    assert {name: list(row["seeds"]) for name, row in kept.items()} == {"first": ["0", "1"], "second": ["0"]}

    def refuse(*_: object) -> Any:
        raise AssertionError("this seed was measured already")

    assert measure(rows(path, {"of": 1}, resume=True), "first", about, space(), refuse, seeds=range(2), trials=3)
    assert rows(path, {"of": 2}).rows == {}, "rows of other settings"


def test_one_test_part_is_chosen_for_once() -> None:
    asked: list[tuple[int, str]] = []

    def run(settings: dict[str, Any], seed: int, part: str) -> Any:
        asked.append((seed, part))
        return peak(settings, seed, part)

    rows = study().Rows(None, {})
    study().measure(rows, "row", {"epsilon": 1.0}, space(), run, seeds=range(3), trials=4, choose_once=True)
    assert asked == [(0, "validation")] * 4 + [(0, "test"), (1, "test"), (2, "test")]


def test_what_was_overspent_is_no_row() -> None:
    rows = study().Rows(None, {})
    with pytest.raises(study().BudgetExceededError):
        study().measure(rows, "row", {"epsilon": 0.99}, space(), peak, seeds=[0], trials=1)
    assert rows.rows == {}


def parts(examples: int = 400) -> Any:
    source = np.random.default_rng(0)
    y = source.integers(0, 2, examples)
    x = np.clip(0.3 * source.standard_normal((examples, 5)) + 0.3 * y[:, None], -1, 1)
    half = examples // 2
    return import_module("benchmarks.utility.parts").Parts(x[:half], y[:half], x[half:], y[half:])


def test_a_searched_training_spends_the_budget_and_no_more() -> None:
    budget = import_module("benchmarks.utility.training").Budget(1.0, 1e-4)
    settings = {"kind": "waves", "width": 16, "frequency": 0.5, "moments": 0.5, "steps": 10}
    _, score = heads().fit(parts(), settings, budget, 0, audit=True)
    assert 0.99 < score.epsilon <= 1.0


def test_test_parts_are_drawn_anew() -> None:
    pytest.importorskip("sklearn", reason="the extra `bench`")
    tabular, sets = import_module("benchmarks.utility.tabular"), import_module("benchmarks.utility.sets")
    yeast = next(which for which in sets.SETS if which.name == "yeast")
    x, y = np.arange(200.0)[:, None], np.arange(200) % 2
    seen = []

    def keep(parts: Any, *_: object, **__: object) -> Any:
        seen.append(frozenset(parts.x_seen[:, 0]))
        return np.zeros(len(parts.y_seen)), study().Score(0.0, 1.0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(tabular.FITS, "ours", keep)
        for drawing in (0, 1):
            for seed in (0, 1):
                tabular.runner(yeast, x, y, "ours", drawing)({}, seed, "test")
        assert len(set(seen)) == 4
        test = seen[-1]
        tabular.runner(yeast, x, y, "ours", 1)({}, 1, "validation")
    assert all(not (test & validation) for validation in seen[4:])


@pytest.mark.nightly
def test_the_benchmark_runs_on_generated_data(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="the extra `bench`")
    source = np.random.default_rng(0)
    (tmp_path / "tabular").mkdir()
    y = source.integers(0, 2, 200).astype(np.uint8)
    np.savez(tmp_path / "tabular" / "yeast.npz", X=source.standard_normal((200, 8)) + y[:, None], y=y)
    command = [sys.executable, "-m", "benchmarks.utility.tabular", "--data", str(tmp_path), "--sets", "yeast"]
    options = ["--methods", "ours", "--seeds", "2", "--trials", "2", "--json", str(tmp_path / "rows.json")]
    done = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "| yeast | 1 | 0.0001 | 66.8 | 75.1 |" in done.stdout
    row = json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))["rows"]["yeast / ours"]
    assert all(seed["epsilon"] <= 1.0 for seed in row["seeds"].values())


@pytest.mark.parametrize("methods", by_day({0}, [("defaults",), ("products", "network")], whole=True))
def test_the_defaults_run_on_generated_data(methods: Sequence[str], tmp_path: Path) -> None:
    source = np.random.default_rng(0)
    (tmp_path / "tabular").mkdir()
    y = source.integers(0, 2, 200).astype(np.uint8)
    np.savez(tmp_path / "tabular" / "yeast.npz", X=source.standard_normal((200, 8)) + y[:, None], y=y)
    command = [sys.executable, "-m", "benchmarks.utility.defaults", "--data", str(tmp_path), "--sets", "yeast"]
    options = ["--methods", *methods, "--seeds", "1", "--json", str(tmp_path / "rows.json")]
    done = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))["rows"]
    for method in methods:
        (seed,) = rows[f"yeast / {method}"]["seeds"].values()
        assert 0.99 < seed["epsilon"] <= 1.0

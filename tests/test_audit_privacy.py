"""`lipcompile audit --privacy`: what it prints, and that it fails where a claim is refuted.

Each audit of a sound engine here would be refuted by at most 5 % of seeds; the seeds are fixed.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from lipcompile_torch.runtime.noise import NoiseSource

from lipcompile import __main__
from lipcompile.cli import progress

Capture = pytest.CaptureFixture[str]

SIGNS = "input x: tensor[40], norm <= 1; dense(1); loss kr"
TOKENS = "input x: tokens[3]; embedding(7, 4); flatten; dense(3); loss cross_entropy(temperature=4)"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(options: str, body: str = SIGNS) -> int:
    Path("model.lip").write_text("model m {\n" + body.replace("; ", "\n") + "\n}\n")
    return __main__.run(shlex.split(f"audit model.lip {options}"))


def report(options: str, capsys: Capture, body: str = SIGNS) -> Any:
    assert run(f"--privacy --seed 2 --format json {options}", body) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def half_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    true: Any = NoiseSource.perturb_

    def perturb(source: NoiseSource, parameters: Any, stds: dict[str, float], normaliser: float) -> None:
        true(source, parameters, {name: std / 2 for name, std in stds.items()}, normaliser)

    monkeypatch.setattr(NoiseSource, "perturb_", perturb)


def test_json_has_stable_keys(capsys: Capture) -> None:
    found = report("--canaries 60", capsys)
    assert found["schema"] == "lipcompile.privacy-audit/1"
    assert list(found) == [
        "schema",
        "model",
        "seed",
        "ok",
        "claimed",
        "mechanism",
        "lower_bound",
        "confidence",
        "share",
        "p_value",
        "game",
        "separation",
    ]
    assert found["ok"]
    assert found["claimed"]["epsilon"] == pytest.approx(4, abs=1e-3)
    assert found["claimed"] | {"epsilon": 4} == {"epsilon": 4, "delta": 1e-5, "neighbours": "add_remove"}
    assert found["mechanism"]["sampling_rate"] == 1
    assert found["mechanism"]["steps"] == 2
    assert 0.5 < found["lower_bound"]["epsilon"] < 4
    assert found["game"] | {"right": 0} == {"canaries": 60, "runs": 60, "guesses": 60, "right": 0}
    assert found["separation"] == pytest.approx(1, abs=1e-6)


def test_a_network_of_tokens_comes_near_its_bounds(capsys: Capture) -> None:
    found = report("--canaries 20 --steps 1", capsys, TOKENS)
    assert found["ok"]
    assert 0.7 < found["separation"] <= 1 + 1e-6


def test_options_reach_the_audit(capsys: Capture) -> None:
    options = "--canaries 30 --runs 2 --dataset-size 20 --batch-size 10 --steps 3 --epsilon 2 --delta 1e-4"
    found = report(f"{options} --neighbours replace_one --noise per_layer --confidence 0.9", capsys)
    assert found["claimed"] == {"epsilon": pytest.approx(2, abs=1e-3), "delta": 1e-4, "neighbours": "replace_one"}
    assert found["mechanism"] | {"noise_multiplier": 0} == {
        "noise_multiplier": 0,
        "sampling_rate": 0.5,
        "steps": 3,
    }
    assert (found["game"]["runs"], found["confidence"]) == (2, 0.9)


def test_the_text_says_what_was_found(capsys: Capture) -> None:
    assert run("--privacy --canaries 60 --seed 2") == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[1].startswith("claimed")
    assert "at delta = 1e-05, add_remove" in lines[1]
    assert "% of the claim, with 95 % confidence" in lines[2]
    assert "of any mechanism, Gaussian or not" in lines[3]
    assert "of 60 guesses were right, about 60 canaries in 60 runs" in out
    assert "gradients are 100% as far apart as the bounds allow" in out
    assert lines[-1] == "the claim was not refuted"
    assert err == ""


@pytest.mark.usefixtures("half_the_noise")
def test_half_the_noise_is_an_error(capsys: Capture) -> None:
    """Missed only if one of the 60 most certain guesses of 120 is wrong."""
    assert run("--privacy --canaries 120 --seed 2") == 1
    out, err = capsys.readouterr()
    assert out.splitlines()[-1] == "the claim is refuted"
    assert err.startswith("error[LIP406]: epsilon is at least ")
    assert "please report it" in err


def test_a_step_that_the_engine_refuses_is_an_error(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    from lipcompile_torch import LipschitzModule

    monkeypatch.setattr(LipschitzModule, "gradient_bounds", lambda _: {"dense.weight": 0.1})
    assert run("--privacy --canaries 20 --seed 2") == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "error[LIP406]: the engine refused a step of the audit: the gradient of dense.weight" in err


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        ("--canaries 10", "LIP005", "--canaries is an option with --privacy alone"),
        ("--batch-size 10", "LIP005", "--batch-size is an option with --privacy alone"),
        ("--privacy --restarts 2", "LIP005", "--restarts is an option of an audit of bounds"),
        ("--privacy --canaries 4 --runs 5", "LIP404", "from one run to one a canary"),
        ("--privacy --confidence 2", "LIP404", "confidence"),
        ("--privacy --epsilon -1", "LIP401", "epsilon = -1"),
    ],
)
def test_what_means_nothing_is_refused(options: str, code: str, said: str, capsys: Capture) -> None:
    assert run(options) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"error[{code}]: ")
    assert said in err


def test_a_bar_counts_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[tuple[int, int]] = []
    monkeypatch.setattr(progress.CountWatch, "__call__", lambda *said: counted.append(said[2:]))
    assert run("--privacy --canaries 5 --seed 2 --runs 2 --steps 1") == 0
    assert counted == [(1, 2), (2, 2)]

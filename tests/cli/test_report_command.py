"""`lipcompile report`: files, exit codes, curves, closed forms on the screen."""

from __future__ import annotations

import json
import math
import shlex
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from lipcompile_privacy.accounting import Mechanism, NeighbouringRelation
from lipcompile_torch.train.ledger import Ledger

from lipcompile import __main__
from lipcompile.cli.shared.progress import CountWatch

Capture = pytest.CaptureFixture[str]

SCHEMA = json.loads(files("lipcompile.reports").joinpath("report.schema.json").read_text(encoding="utf-8"))
SUFFIXES = ("html", "md", "tex", "json")

MODEL = """
model m {
    input x: tensor[4], norm <= 0.5
    first = dense(4, bias=0.25)
    frozen { dense(4) }
    dense(1)
    loss hinge
}
"""
PLAN = """
train {
    sampling    poisson(batch=20, dataset=40)
    budget      epsilon=3, delta=1e-4, epochs=2
}
"""
OPEN = """
model m {
    param n: int
    input x: tensor[4], norm <= 1
    repeat n { inner = dense(4, bias=1) }
    dense(1)
    loss hinge
}
"""
REJECTED = "model m { input x: tensor[4], norm <= 1\n dnse(2) loss hinge }"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("model.lip").write_text(MODEL)
    Path("planned.lip").write_text(MODEL + PLAN)
    Path("open.lip").write_text(OPEN)
    Path("rejected.lip").write_text(REJECTED)
    return tmp_path


def run(command: str) -> int:
    return __main__.run(["report", *shlex.split(command)])


def written(command: str) -> Any:
    assert run(f"{command} -o out.json") == 0
    found = json.loads(Path("out.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(SCHEMA).validate(found)
    return found


# Files


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(("model", "code"), [("model", 0), ("open", 0), ("rejected", 1)])
def test_every_form_of_every_model_is_written(model: str, code: int, suffix: str, capsys: Capture) -> None:
    assert run(f"{model}.lip -o out.{suffix}") == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith(f"wrote out.{suffix}\n")
    text = Path(f"out.{suffix}").read_text(encoding="utf-8")
    assert ("LIP011" in text) == (model == "rejected")


def test_the_suffix_may_be_in_capitals() -> None:
    assert run("model.lip -o OUT.JSON") == 0
    assert json.loads(Path("OUT.JSON").read_text())["ok"]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("model.lip -o out.pdf", ".html, .md, .tex, .json"),
        ("model.lip -o out", ".html, .md, .tex, .json"),
        ("model.lip", "-o FILE or --layer NAME"),
        ("model.lip --layer fist.weight", "did you mean `first.weight`?"),
        ("model.lip -o nowhere/out.md", "mkdir -p nowhere"),
        ("missing.lip -o out.md", "there is no file `missing.lip`"),
        ("model.lip -o out.md --delta 1e-5", "--sampling-rate (or --batch-size with"),
        ("nets:LeNet -o out.md --epsilon 3 --steps 9", "--delta and --sampling-rate (or"),
        ("model.lip -o out.md --delta 1e-5 --sampling-rate 0.1 --steps 9", "two of epsilon"),
        ("model.lip -o out.md --delta 2 --sampling-rate 0.1 --steps 9 --noise-multiplier 1", "delta = 2"),
    ],
)
def test_what_cannot_be_used_is_told_and_leaves_nothing(command: str, message: str, capsys: Capture) -> None:
    before = set(Path.cwd().iterdir())
    assert run(command) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert set(Path.cwd().iterdir()) == before


def test_the_model_itself_is_not_written_over(capsys: Capture) -> None:
    Path("twin.md").hardlink_to("model.lip")
    assert run("model.lip -o twin.md") == 2
    assert "is the model itself" in capsys.readouterr().err
    assert Path("twin.md").read_text() == MODEL


# What is in them


def test_json_of_a_report_is_that_of_a_check_and_more(capsys: Capture) -> None:
    found = written("model.lip")
    capsys.readouterr()
    assert __main__.run(["check", "model.lip", "--format", "json"]) == 0
    checked = json.loads(capsys.readouterr().out)
    assert {key: found[key] for key in checked} == checked
    assert set(found) - set(checked) == {"dominating", "suggestions", "privacy", "signal"}
    # K² are 0.25, 1 and 0.5625.
    assert [entry["parameters"] for entry in found["dominating"]] == [
        ["first.bias"],
        ["dense_2.weight"],
        ["first.weight"],
    ]
    assert found["dominating"][0]["share"] == pytest.approx(1 / 1.8125)
    suggestions = found["suggestions"]
    assert [entry["gain"] for entry in suggestions] == sorted((e["gain"] for e in suggestions), reverse=True)
    total = found["total"]["gradient_bound"]["value"]
    assert all(0 < entry["gradient_bound"] < total for entry in suggestions)


def test_json_says_noise_and_signal() -> None:
    """Noise of multiplier 2 on 16 weights, 4 biases and 4 weights; K in all is √1.8125."""
    signal = written("model.lip --noise-multiplier 2 --batch-size 10 --dataset-size 100 --steps 5 --delta 1e-5")
    signal = signal["signal"]
    assert (signal["noise_multiplier"], signal["batch"]) == (2, 10)
    names = ["first.weight", "first.bias", "dense_2.weight"]
    found = {entry["name"]: entry for entry in signal["parameters"] if entry["gradient_bound"] > 0}
    assert sorted(found) == sorted(names)
    for name, size in zip(names, (16, 4, 4), strict=True):
        assert found[name]["noise"] == pytest.approx(2 * 1.8125**0.5 * size**0.5 / 10, rel=1e-6)
        assert 0 < found[name]["mean"] <= found[name]["typical"] <= found[name]["gradient_bound"]
    assert signal["total"]["noise"] == pytest.approx(2 * 1.8125**0.5 * 24**0.5 / 10, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("repeats", "code"), [(12, "LIP311"), pytest.param(24, "LIP310", marks=pytest.mark.nightly)]
)
def test_a_bound_of_no_use_is_rejected_with_the_fix(repeats: int, code: str, capsys: Capture) -> None:
    block = "residual(add) { dense(4); layer_norm(floor=1); relu }"
    blocks = f"repeat {repeats} {{ {block} }}"
    Path("deep.lip").write_text(f"model m {{ input x: tensor[4], norm <= 1\n {blocks}\n dense(1)\n loss hinge }}")
    assert run("deep.lip -o out.html") == 1
    assert f"error[{code}]" in capsys.readouterr().err
    page = Path("out.html").read_text(encoding="utf-8")
    for part in ('<p class="verdict bad">✗ rejected: useless bound</p>', "--bounds auto", 'id="signal"'):
        assert part in page
    assert 'class="right number bad"' in page
    assert run("deep.lip -o out.md") == 1
    assert Path("out.md").read_text(encoding="utf-8").startswith("# m: rejected: useless bound")
    assert run("deep.lip -o out.html --allow-vacuous") == 0
    assert '<p class="verdict good">✓ accepted</p>' in Path("out.html").read_text(encoding="utf-8")


def test_json_says_all_of_depth() -> None:
    depth = written("open.lip")["depth"]
    (block,) = depth["blocks"]
    assert (block["repeats"], block["count"], block["index"], block["exact"]) == (None, "n", "t", True)
    assert (block["lipschitz"], block["rate"]["value"], block["offset"]["value"]) == ("1", 1.0, 1.0)
    # Copy t of a chain of 1-Lipschitz layers with biases of norm 1 reads a norm of 1 + (t - 1).
    assert block["input_norm"]["formula"] in ("X_0 + t - 1", "t + X_0 - 1")
    assert set(block["gradient"]) == {"inner.weight", "inner.bias"}
    assert [point["copies"] for point in block["curve"]][:3] == [1, 2, 3]
    assert {symbol["name"] for symbol in depth["symbols"]} == {"X_0", "n"}


# Curves


def test_a_curve_is_drawn_for_each_accountant() -> None:
    options = "--noise-multiplier 4 --sampling-rate 0.1 --steps 40 --delta 1e-5"
    privacy = written(f"model.lip {options}")["privacy"]
    assert (privacy["noise_multiplier"], privacy["target_epsilon"]) == (4.0, None)
    for accountant in ("rdp", "pld"):
        points = privacy["accountants"][accountant]["curve"]
        steps = [point["steps"] for point in points]
        spent = [point["epsilon"] for point in points]
        assert steps == sorted(set(steps))
        assert (steps[0], steps[-1]) == (1, 40)
        assert spent == sorted(spent)


def test_noise_is_calibrated_to_the_plan() -> None:
    privacy = written("planned.lip")["privacy"]
    last = privacy["accountants"]["pld"]["curve"][-1]
    assert (privacy["target_epsilon"], privacy["steps"], privacy["sampling_rate"]) == (3.0, 4, 0.5)
    assert last["steps"] == 4
    assert 2.99 < last["epsilon"] <= 3


def test_options_go_before_the_plan() -> None:
    privacy = written("planned.lip --noise-multiplier 5")["privacy"]
    assert (privacy["noise_multiplier"], privacy["target_epsilon"]) == (5.0, None)
    assert privacy["accountants"]["pld"]["curve"][-1]["epsilon"] < 3


def test_an_accountant_without_an_answer_says_why() -> None:
    options = "--noise-multiplier 2 --sampling-rate 0.1 --steps 10 --delta 1e-5 --neighbours replace_one"
    accountants = written(f"model.lip {options}")["privacy"]["accountants"]
    assert accountants["rdp"]["curve"] == []
    assert "replace" in accountants["rdp"]["note"]
    assert len(accountants["pld"]["curve"]) > 3


def test_without_options_there_is_no_curve_and_the_report_says_what_gives_one() -> None:
    assert written("model.lip")["privacy"] is None
    for suffix in SUFFIXES[:3]:
        assert run(f"model.lip -o out.{suffix}") == 0
        assert "noise-multiplier" in Path(f"out.{suffix}").read_text(encoding="utf-8").replace("{}", "")


# Runs


def train(options: str = "") -> None:
    """Take 2 steps of all 40 examples, which are two Gaussian mechanisms."""
    x = np.random.default_rng(0).standard_normal((40, 4))
    y = np.sign(x[:, 0])
    np.savez("data.npz", x_train=x, y_train=y, x_test=x[:5], y_test=y[:5])
    options = f"--batch-size 40 --accountant rdp --output run {options}"
    assert __main__.run(["train", "planned.lip", "--data", "data.npz", *shlex.split(options)]) == 0


def test_a_run_has_the_bounds_of_its_model_and_the_epsilon_of_its_ledger() -> None:
    """Two Gaussian mechanisms of σ are one of σ / √2; its δ at ε is exact (Balle and Wang 2018, Theorem 8)."""
    train()
    found, model = written("run"), written("planned.lip")
    for key in ("parameters", "total", "layers", "depth"):
        assert found[key] == model[key]
    assert found["model"] == {**model["model"], "source": "run/model.py"}
    assert found["signal"] is None  # no certificate has the weights that the run began with
    privacy = found["privacy"]
    assert (privacy["steps"], privacy["sampling_rate"], privacy["delta"]) == (2, 1.0, 1e-4)
    last = privacy["accountants"]["pld"]["curve"][-1]
    sigma = privacy["noise_multiplier"] / math.sqrt(2)
    assert last["steps"] == 2
    assert gaussian_delta(last["epsilon"], sigma) == pytest.approx(1e-4, rel=1e-3)
    asked = written("run --delta 1e-3")["privacy"]["accountants"]["pld"]["curve"][-1]["epsilon"]
    assert gaussian_delta(asked, sigma) == pytest.approx(1e-3, rel=1e-3)


def gaussian_delta(epsilon: float, sigma: float) -> float:
    def phi(x: float) -> float:
        return 0.5 * math.erfc(-x / math.sqrt(2))

    return phi(0.5 / sigma - epsilon * sigma) - math.exp(epsilon) * phi(-0.5 / sigma - epsilon * sigma)


@pytest.mark.parametrize("why", ["other charges", "a seed", "no checkpoint"])
def test_a_run_whose_ledger_charges_something_else_has_no_curve(why: str, capsys: Capture) -> None:
    train("--seed 0" if why == "a seed" else "")
    if why == "other charges":
        ledger = Ledger("run/ledger.jsonl", NeighbouringRelation.ADD_REMOVE, 40)
        ledger.declare(other := Mechanism(0.5, 1.0))
        ledger.record_step(other)
        ledger.close()
    if why == "no checkpoint":
        Path("run/checkpoint.pt").unlink()
    capsys.readouterr()
    assert written("run")["privacy"] is None
    reasons = {
        "a seed": "a seed was fixed",
        "no checkpoint": "no checkpoint",
        "other charges": "rounds were broken off",
    }
    assert f"no curve of ε: {reasons[why]}" in (err := capsys.readouterr().err)
    assert "see lipcompile ledger run" in err


def test_a_folder_that_is_no_run_is_told_what_it_lacks(capsys: Capture) -> None:
    Path("empty").mkdir()
    assert run("empty -o out.md") == 2
    assert "the folder `empty` has no model.py" in (err := capsys.readouterr().err)
    assert "give the folder that `lipcompile train --output DIR` wrote" in err
    Path("empty/model.npz").touch()
    assert run("empty -o out.md") == 2
    assert "the model of a table has the page empty/report.html" in capsys.readouterr().err
    Path("empty/model.py").write_text("class Model: pass")
    assert run("empty -o out.md") == 2
    assert "`empty/model.py` has no certificate" in capsys.readouterr().err
    assert run("empty -o out.md --epsilon 3") == 2
    assert "only --delta is possible" in capsys.readouterr().err


# Closed forms


def test_the_closed_forms_of_a_layer(capsys: Capture) -> None:
    assert run("model.lip --layer first") == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.splitlines()[0] == "first: dense, output 4"
    rows = {line.split("  ")[1]: line.split() for line in out.splitlines()[3:8]}
    assert rows["output norm"][-4:] == ["0.7500000", "X_0", "+", "1/4"]
    assert rows["cotangent"][-2:] == ["1.0000000", "1"]
    assert rows["gradient bound of first.weight"][-2:] == ["0.5000000", "X_0"]
    assert rows["gradient bound of first.bias"][-2:] == ["1.0000000", "1"]


def test_the_closed_form_of_a_parameter_with_names_written_out(capsys: Capture) -> None:
    Path("model.lip").write_text("model m { input x: tensor[4], norm <= 1 dense(2) loss cross_entropy }")
    assert run("model.lip --layer dense.weight") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "dense.weight: parameter of dense, 2×4, spectral<=1"
    assert lines[3].endswith("  L_R*X_0")
    # With names written out nothing but the input is left.
    assert lines[4].split()[0] == "="
    assert "X_0*sqrt(" in lines[4]
    assert "L_R" not in lines[4]


def test_what_is_not_trained_has_no_closed_form(capsys: Capture) -> None:
    assert run("model.lip --layer dense.weight") == 0
    assert "not trained" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["repeat_1", "inner"])
def test_the_closed_forms_of_a_block(name: str, capsys: Capture) -> None:
    assert run(f"open.lip --layer {name}") == 0
    out = capsys.readouterr().out
    assert "gradient bound of inner.weight in copy t" in out
    assert "t = 1 … n copies of inner" in out


def test_a_rejected_model_has_no_closed_forms(capsys: Capture) -> None:
    assert run("rejected.lip --layer dense") == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "LIP011" in err


def test_closed_forms_are_never_exponential(capsys: Capture) -> None:
    # Each block reads the norm of the one before many times: written out, formulas double with every block.
    blocks = "residual(add) { attention(2) } " * 12
    Path("deep.lip").write_text(
        f"model m {{ input x: tensor[4, 8], norm <= 1 {blocks} flatten dense(2) loss cross_entropy }}"
    )
    assert run("deep.lip --layer attention --allow-vacuous") == 0
    assert len(capsys.readouterr().out) < 100_000


# Progress


def test_progress_is_for_terminals_alone(capsys: Capture) -> None:
    with CountWatch("accounting") as watch:
        watch("rdp", 1, 2)
    assert capsys.readouterr() == ("", "")

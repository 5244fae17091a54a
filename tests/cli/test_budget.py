"""`lipcompile budget`: every number solved for, analyses side by side, samplings, and plots."""

from __future__ import annotations

import json
import re
import shlex
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from lipcompile_privacy.accounting import (
    Mechanism,
    NeighbouringRelation,
    RandomAllocation,
    Release,
    WithoutReplacement,
    epsilon,
)

from lipcompile import __main__
from tests.nights import by_day

Capture = pytest.CaptureFixture[str]


def run(words: str) -> int:
    return __main__.run(["budget", *shlex.split(words)])


def found(capsys: Capture, words: str) -> dict[str, Any]:
    assert run(f"--format json {words}") == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert report["schema"] == "lipcompile.budget/1"
    return report


def test_the_salary_example_by_every_analysis(capsys: Capture) -> None:
    # The mean of 10000 salaries of at most 1000000: it moves by 100. Figures of a tutorial, and of Dwork and Roth.
    words = "--epsilon 0.5 --delta 1e-6 --sampling-rate 1 --steps 1 --sensitivity 100"
    report = found(capsys, words)
    deviation = {name: 100 * one["noise_multiplier"] for name, one in report["comparisons"].items()}
    expected = {"tail": 1051.3, "padded": 1070.2, "refined": 1025.5, "analytic": 805.8, "classical": 1059.8}
    assert {name: deviation[name] for name in expected} == pytest.approx(expected, abs=0.05)
    assert 805.7 < 100 * report["accountants"]["pld"]["noise_multiplier"] < 805.9
    assert run(words) == 0
    text = capsys.readouterr().out
    assert re.search(r"tail +0\.5 +10\.51305 +1 +1051\.30436\n", text)


def test_the_largest_batch_is_found(capsys: Capture) -> None:
    words = "--noise-multiplier 2 --delta 1e-5 --dataset-size 6000 --steps 100"
    report = found(capsys, f"--epsilon 1 {words}")
    assert report["solved_for"] == "batch_size"
    for name, one in report["accountants"].items():
        size = one["batch_size"]
        at, above = (found(capsys, f"{words} --batch-size {size + more}")["accountants"][name] for more in (0, 1))
        assert at["epsilon"] <= 1 < above["epsilon"]
    assert report["sampling_rate"] == report["accountants"]["pld"]["batch_size"] / 6000


def test_a_batch_for_which_there_is_no_budget_is_refused(capsys: Capture) -> None:
    assert run("--epsilon 0.001 --noise-multiplier 1 --delta 1e-7 --dataset-size 1000 --steps 100000") == 2
    assert "not even a batch of 1" in capsys.readouterr().err
    assert run("--epsilon 1 --noise-multiplier 1 --delta 1e-5 --steps 10") == 2
    assert "--dataset-size is needed" in capsys.readouterr().err


@pytest.mark.parametrize("sampling", by_day({"fixed_size", "shuffle"}, ["fixed_size", "shuffle", "balls_in_bins"]))
def test_samplings_are_charged_as_what_they_are(capsys: Capture, sampling: str) -> None:
    # Of shuffling and of random allocation an epoch is charged, which under replace_one is a Gaussian to RDP.
    fixed = sampling == "fixed_size"
    release: Release = WithoutReplacement(50, 100, 3.0) if fixed else Mechanism(1.0, 3.0)
    words = (
        f"--noise-multiplier 3 --delta 1e-5 --batch-size 50 --dataset-size 100 --epochs 2 --sampling {sampling}"
    )
    answers = found(capsys, f"{words} --neighbours replace_one")["accountants"]
    relation = NeighbouringRelation.REPLACE_ONE
    assert answers["rdp"]["epsilon"] == epsilon([(release, 4 if fixed else 2)], 1e-5, relation, "rdp")
    if sampling == "balls_in_bins":
        release = RandomAllocation(2, 3.0)
    assert answers["pld"]["epsilon"] == epsilon([(release, 4 if fixed else 2)], 1e-5, relation, "pld")


def test_random_allocation_amplifies(capsys: Capture) -> None:
    words = "--noise-multiplier 3 --delta 1e-5 --batch-size 10 --dataset-size 100 --epochs 1"
    report = found(capsys, f"{words} --sampling balls_in_bins")["accountants"]
    assert report["pld"]["epsilon"] < 0.5 * report["rdp"]["epsilon"]


def test_analyses_that_do_not_hold_say_where_they_do(capsys: Capture) -> None:
    comparisons = found(capsys, "--epsilon 3 --delta 1e-5 --sampling-rate 1 --steps 1")["comparisons"]
    assert comparisons["classical"]["noise_multiplier"] is None
    assert "epsilon < 1" in comparisons["classical"]["note"]
    assert comparisons["refined"]["note"] is None


@pytest.mark.parametrize("against", ["steps", "noise"])
def test_the_plot_shows_every_accountant(tmp_path: Path, against: str) -> None:
    file = tmp_path / "spent.svg"
    words = "--noise-multiplier 20 --delta 1e-5 --sampling-rate 1 --steps 10"
    assert run(f"{words} --plot {file} --against {against}") == 0
    root = ET.fromstring(file.read_text(encoding="utf-8"))
    drawn = "".join(text for text in re.findall(r"<!-- (.*?) -->", file.read_text(encoding="utf-8")))
    assert root.tag.endswith("svg")
    for label in ("PLD", "RDP", "advanced composition", "Gaussian, no amplification"):
        assert label in drawn


def test_a_png_is_drawn_and_other_files_are_refused(tmp_path: Path, capsys: Capture) -> None:
    words = "--epsilon 1 --delta 1e-5 --sampling-rate 1 --steps 2"
    assert run(f"{words} --plot {tmp_path / 'spent.png'}") == 0
    assert (tmp_path / "spent.png").read_bytes().startswith(b"\x89PNG")
    assert run(f"{words} --plot {tmp_path / 'spent.gif'}") == 2
    assert "neither in .svg nor in .png" in capsys.readouterr().err
    assert run(f"{words} --plot {tmp_path / 'missing' / 'spent.svg'}") == 2
    assert run(f"{words} --sensitivity 0") == 2

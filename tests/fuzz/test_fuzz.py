"""A few hundred changed models, and every file that once broke a promise. `python -m tests.fuzz` runs more."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.fuzz.campaign import Figures, campaign
from tests.fuzz.cases import Case, case
from tests.fuzz.corpus import HERE, seeds
from tests.fuzz.reduction import reduced
from tests.fuzz.runs import Outcome, execute

pytestmark = pytest.mark.slow

CASES, JOBS = 600, 2
CRASHERS = sorted((HERE / "crashers").iterdir())
USUAL = ("--input-norm", "1", "--loss", "cross_entropy")


def test_changed_models_break_no_promise() -> None:
    figures = campaign(2026, range(CASES), seeds(), JOBS, lambda _: None)
    assert figures.faults == {}
    assert figures.cases == CASES
    assert all(
        figures.exits[code] > CASES // 20 for code in (0, 1, 2)
    )  # the changes are neither all fatal nor idle


@pytest.mark.parametrize("path", CRASHERS, ids=lambda path: path.name)
@pytest.mark.parametrize(
    "options", [(), USUAL, (*USUAL, "--format", "json"), (*USUAL, "--constraint", "spectral:2")]
)
def test_what_once_broke_a_promise(path: Path, options: Sequence[str], tmp_path: Path) -> None:
    found = execute(Case(0, path.name, path.suffix, path.read_bytes(), tuple(options)), tmp_path)
    assert (found.fault, found.output) == ("", "")


def test_a_case_is_a_function_of_its_seed_and_number() -> None:
    corpus = seeds()
    assert case(1, 7, corpus) == case(1, 7, corpus)
    assert case(1, 7, corpus) != case(2, 7, corpus)


def test_the_judge_sees_broken_promises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A harness that finds nothing must be shown to find something."""
    good = Case(0, "good", ".lip", b"model m { input x: tensor[4], norm <= 1\n dense(2) }", ("--format", "json"))
    assert execute(good, tmp_path).fault == ""

    def fails(*_: object) -> None:
        raise KeyError("planted")

    with monkeypatch.context() as patch:
        patch.setattr("lipcompile.pipeline.derive", fails)
        assert execute(good, tmp_path).fault.startswith("exit code 3: KeyError")

    def hangs(*_: object) -> None:
        while True:
            pass

    with monkeypatch.context() as patch:
        patch.setattr("lipcompile.pipeline.derive", hangs)
        patch.setattr("tests.fuzz.runs.SECONDS", 0.2)
        assert execute(good, tmp_path).fault.startswith("too long")


def test_failures_are_made_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the word that the planted fault is about is left."""

    def planted(failing: Case, _folder: Path) -> Outcome:
        return Outcome(0, "", 3, 0, 0, (), "planted" if b"relu" in failing.content else "")

    monkeypatch.setattr("tests.fuzz.reduction.execute", planted)
    long = b"model m {\n    input x: tensor[4], norm <= 1\n    relu\n    dense(2)\n}\n"
    small = reduced(Case(0, "", ".lip", long, ("--input-norm", "1", "-v")), "planted")
    assert (small.content, small.options) == (b"relu", ())


def test_figures_count() -> None:
    figures = Figures()
    figures.add(Outcome(0, "a", 0, 0.1, 90, ("LIP001",)))
    figures.add(Outcome(1, "b", 3, 0.2, 80, (), "broken"))
    lines = list(figures.lines())
    assert lines[:2] == ["cases       2", "exit codes  0: 1, 3: 1"]
    assert "case 1, b" in lines[2]
    assert "case 0, a" in lines[3]
    assert lines[-1] == "      1 broken: case 1"

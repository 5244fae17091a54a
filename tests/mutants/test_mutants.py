"""What is mutated, and that the list of what survives is about mutants that there are."""

from __future__ import annotations

import sys

import pytest

from tests.mutants import __main__ as program
from tests.mutants import native, python
from tests.mutants.covering import COVERED, GUESSES
from tests.mutants.running import ROOT
from tests.mutants.survivors import known

SOURCE = """
_UP = 1 + 2.0**-48
_SLACK = {1: 1e-9, 2: 0.5}

def bound(norm, error):
    if norm <= error:
        return max(norm, error)
    return (norm + error) * _UP

def other(rows):
    return nextafter(1 - eps, inf) if len(rows) > 3 else rows + 1
"""
MUTANTS = [
    ("_UP", "1 + 2.0**-48", "1"),
    ("_UP", "1 + 2.0**-48", "(1 - 2.0 ** (-48))"),
    ("_SLACK", "1e-9", "0.0"),
    ("bound", "norm <= error", "norm < error"),
    ("bound", "max(norm, error)", "min(norm, error)"),
    ("bound", "(norm + error) * _UP", "(norm + error)"),
    ("bound", "norm + error", "(norm - error)"),
    ("bound", "norm + error", "norm"),
    ("other", "nextafter(1 - eps, inf)", "(1 - eps)"),
    ("other", "1 - eps", "(1 + eps)"),
    ("other", "1 - eps", "1"),
]
NATIVE = """
/* A sum of 0x1p-149. */
static double total(const float *x, size_t count) {
    double sum = 0;
    for (size_t i = 0; i < count; i++) sum += fmaf(x[i], x[i], 1.0f);
    return fmax(sum - 0x1p-149, 0.0);
}
"""


def test_terms_that_round_outward_are_left_out_or_turned() -> None:
    found = python.mutants(SOURCE)
    assert sorted((m.place, m.old, m.new) for m in found) == sorted(MUTANTS)
    for mutant in found:
        assert mutant.applied(SOURCE) == SOURCE.replace(mutant.old, mutant.new, 1)


def test_native_code_rounds_more_often_or_the_other_way() -> None:
    found = {(m.place, m.old, m.new) for m in native.mutants(NATIVE)}
    assert found == {
        ("total", "double ", "float "),
        ("total", "fmaf(x[i], x[i], 1.0f)", "(x[i] * x[i] + 1.0f)"),
        ("total", "fmax(sum - 0x1p-149, 0.0)", "fmin(sum - 0x1p-149, 0.0)"),
        ("total", " - 0x1p-149", ""),
        ("total", "0x1p-149", "0.0"),
    }


def test_like_changes_of_one_function_have_names_of_their_own() -> None:
    found = python.mutants("def f():\n    return [1 + eps, 1 + eps]\n")
    assert [m.place for m in found] == ["f", "f", "f (2)", "f (2)"]


@pytest.mark.parametrize("file", COVERED)
def test_what_is_mutated_is_tested_by_tests_that_there_are(file: str) -> None:
    assert (ROOT / file).exists()
    assert [test for test in COVERED[file].tests if not (ROOT / test).exists()] == []
    assert [*program.mutants_of(file)]


def test_what_is_said_to_survive_is_a_mutant_and_has_a_reason() -> None:
    mutants = {(file, *mutant.key) for file in COVERED for _, _, mutant in program.mutants_of(file)}
    assert known().keys() <= mutants
    assert all(len(reason) > 20 for reason in known().values())
    assert GUESSES.keys() <= COVERED.keys()


@pytest.mark.nightly
def test_a_mutant_is_run_in_a_copy(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--near", "--files", "runtime/rounding.py", "--kinds", "constant", "--jobs", "1"]
    monkeypatch.setattr(sys, "argv", ["tests.mutants", *arguments])
    assert program.main() == 0
    assert "3 mutants, 3 killed, 0 survived" in capsys.readouterr().out


def test_a_name_of_a_test_file_names_one_file() -> None:
    """Files of tests are found by name: of two with one name, the mutants of one would be run past the other."""
    names = [path.stem for path in (ROOT / "tests" / "torch").glob("*/test_*.py")]
    assert len(names) == len(set(names))

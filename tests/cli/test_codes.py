"""The table of diagnostic codes: complete, and its examples mean what they say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lipcompile.__main__ import run
from lipcompile.cli import cli
from lipcompile.codes import codes
from lipcompile.diagnostics import InputError
from lipcompile.pipeline import check

ROOT = Path(__file__).parents[2]
LITERAL = re.compile(r"""["'](LIP\d{3})["']""")
EXECUTABLE = [entry for entry in codes().values() if entry.language == "lip"]


def sources() -> list[Path]:
    return [path for folder in ("lipcompile", "backends") for path in (ROOT / folder).rglob("*.py")]


def found_in(folder: Path, program: str) -> set[str]:
    path = folder / "model.lip"
    path.write_text(program)
    try:
        return {found.code for found in check(str(path)).diagnostics}
    except InputError as error:
        return {found.code for found in error.diagnostics}


def test_the_table_holds_exactly_the_codes_in_use() -> None:
    used = {code for path in sources() for code in LITERAL.findall(path.read_text(encoding="utf-8"))}
    assert used == set(codes())


@pytest.mark.parametrize("code", codes())
def test_entries_say_what_they_must(code: str) -> None:
    entry = codes()[code]
    assert entry.title
    assert entry.wrong.strip() != entry.right.strip()
    assert 1 <= len(entry.why.strip().splitlines()) <= 8
    assert all(len(line) <= 125 for line in entry.why.splitlines())


def test_commands_that_fix_are_commands() -> None:
    for entry in codes().values():
        if entry.command:
            program, name, model, *options = entry.command.split()
            assert (program, model, options[0]) == ("lipcompile", "MODEL", "-o")
            assert "-o" in {flag for option in cli.commands[name].params for flag in option.opts}


@pytest.mark.parametrize("code", [entry.code for entry in EXECUTABLE])
def test_wrong_examples_are_wrong_and_right_ones_right(code: str, tmp_path: Path) -> None:
    assert code in found_in(tmp_path, codes()[code].wrong)
    assert code not in found_in(tmp_path, codes()[code].right)


def test_right_examples_are_accepted(tmp_path: Path) -> None:
    for entry in EXECUTABLE:
        path = tmp_path / f"{entry.code}.lip"
        path.write_text(entry.right)
        assert check(str(path)).ok, entry.code


def test_explain_takes_any_spelling(capsys: pytest.CaptureFixture[str]) -> None:
    spellings = ("LIP101", "lip101", "101")
    outputs = set()
    for spelling in spellings:
        assert run(["explain", spelling]) == 0
        outputs.add(capsys.readouterr().out)
    assert len(outputs) == 1


def test_explain_without_a_code_lists_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain"]) == 0
    listed = capsys.readouterr().out
    assert all(code in listed for code in codes())


def test_explain_of_every_code_works(capsys: pytest.CaptureFixture[str]) -> None:
    for code, entry in codes().items():
        assert run(["explain", code]) == 0
        assert entry.title in capsys.readouterr().out

"""Reports on a terminal of 80 columns: no line is longer, and no number is parted."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.cells import cell_len

import lipcompile
from lipcompile.numbers.rounding import upward
from lipcompile.reports.console import show
from lipcompile.reports.terminal import report

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(path for path in (ROOT / "examples").iterdir() if path.suffix in (".lip", ".onnx"))
STYLE = re.compile(r"\x1b\[[0-9;]*m")


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_a_report_fits_in_80_columns(path: Path, verbose: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    derivation = lipcompile.check(str(path))
    terminal = Terminal()
    show(terminal, *report(derivation, lambda _: None, verbose=verbose))
    lines = STYLE.sub("", terminal.getvalue()).splitlines()
    assert [line for line in lines if cell_len(line) > 80] == []
    if derivation.analysis is not None:
        words = {word for line in lines for word in line.split()}
        bounds = [bound.value for bound in derivation.analysis.parameters.values() if bound.value is not None]
        assert {upward(bound) for bound in bounds} <= words

"""Command, input and expected output in one file: `tests/golden/*.lip`.

A file begins with `# RUN: lipcompile … %s`, where %s is the file itself. Comments `# OUT:`, `# ERR:` and `# EXIT:`
are what is expected of it; UPDATE_GOLDEN=1 rewrites them.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest

from lipcompile.__main__ import run

GOLDEN = Path(__file__).parents[1] / "golden"
RUN = re.compile(r"^# RUN: lipcompile (.*)$", re.MULTILINE)
EXPECTED = re.compile(r"^# (EXIT|OUT|ERR):.*\n?", re.MULTILINE)


def prefixed(kind: str, text: str) -> list[str]:
    return [f"# {kind}: {line}".rstrip() for line in text.splitlines()]


@pytest.mark.parametrize("name", sorted(path.name for path in GOLDEN.glob("*.lip")))
def test_golden(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    path = GOLDEN / name
    text = path.read_text(encoding="utf-8")
    command = RUN.search(text)
    assert command, f"{name} has no RUN line"
    monkeypatch.chdir(GOLDEN)
    code = run(shlex.split(command[1].replace("%s", name)))
    out, err = capsys.readouterr()
    found = [f"# EXIT: {code}", *prefixed("OUT", out), *prefixed("ERR", err)]
    if os.environ.get("UPDATE_GOLDEN") == "1":
        program = EXPECTED.sub("", text).rstrip("\n")
        path.write_text("\n".join([program, "", *found, ""]), encoding="utf-8")
        return
    expected = [match[0].rstrip("\n") for match in EXPECTED.finditer(text)]
    assert found == expected

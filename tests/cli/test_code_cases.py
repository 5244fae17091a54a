"""Every code provoked by the real command line, and its three renderings: `tests/golden/codes/*.txt`.

UPDATE_GOLDEN=1 rewrites the files.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from lipcompile.__main__ import run
from lipcompile.cli import cli
from lipcompile.cli.verify import diagnostics, examine
from lipcompile.codes import codes
from lipcompile.diagnostics import Diagnostic, InputError
from lipcompile.ops.registry import load_plugins
from lipcompile.reports.console import plain
from lipcompile.reports.json_report import unreadable
from lipcompile.reports.messages import messages
from lipcompile.reports.sarif import Checked, log
from tests.cli.code_cases import BY_API_ALONE, CASES, Case, case_of

Json = dict[str, Any]
Capture = pytest.CaptureFixture[str]

GOLDEN = Path(__file__).parents[1] / "golden" / "codes"
REPORT = jsonschema.Draft202012Validator(
    json.loads(files("lipcompile.reports").joinpath("report.schema.json").read_text(encoding="utf-8"))
)
SARIF = jsonschema.Draft4Validator(
    json.loads((Path(__file__).parents[1] / "sarif" / "sarif-schema-2.1.0.json").read_text(encoding="utf-8"))
)


def test_every_code_has_a_case() -> None:
    assert [code for code in codes() if case_of(code) is None] == []
    assert set(CASES) <= set(codes())
    assert {code for code, case in CASES.items() if case.api is not None} == set(BY_API_ALONE)
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(codes())


@pytest.mark.parametrize("code", [code for code in codes() if case_of(code) is not None])
def test_what_is_said_of_a_code(
    code: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = case_of(code)
    assert case is not None
    case.make(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    load_plugins.cache_clear()
    text, report, sarif = by_api(case.api()) if case.api else by_command(case, capsys)
    load_plugins.cache_clear()
    REPORT.validate(report)
    SARIF.validate(sarif)
    said = found_in(text, code)
    data = next(found for found in report["diagnostics"] if found["code"] == code)
    result = next(found for found in sarif["runs"][0]["results"] if found["ruleId"] == code)
    assert said.startswith(f"{data['severity']}[{code}]: ")
    assert sarif["runs"][0]["tool"]["driver"]["rules"][result.pop("ruleIndex")]["id"] == code
    assert result["level"] == data["severity"] == codes()[code].severity
    command = f"$ lipcompile {case.command}  # exit code {case.exit}" if case.command else "by API"
    found = [command, said, *(json.dumps(part, indent=2, ensure_ascii=False) for part in (data, result))]
    assert_golden(code, anywhere("\n\n".join(found) + "\n", tmp_path))


def by_command(case: Case, capsys: Capture) -> tuple[str, Json, Json]:
    """Return what a command prints, and what it finds in both formats for machines."""
    arguments = shlex.split(case.command)
    assert run(arguments) == case.exit
    text = "".join(capsys.readouterr())
    if arguments[0] == "verify" and case.exit < 2:
        return (text, *rendered(judged(arguments)))
    if arguments[0] != "check":
        return (text, *rendered(refused(arguments)))
    logs = []
    for form in ("json", "sarif"):
        assert run([*arguments, "--format", form]) == case.exit
        logs.append(json.loads(capsys.readouterr().out))
    return (text, logs[0], logs[1])


def by_api(found: Sequence[Diagnostic]) -> tuple[str, Json, Json]:
    return (plain(*messages(found, lambda _: None)), *rendered(found))


def refused(arguments: list[str]) -> Sequence[Diagnostic]:
    with pytest.raises(InputError) as caught:
        cli.main(arguments, standalone_mode=False)
    return caught.value.diagnostics


def judged(arguments: list[str]) -> Sequence[Diagnostic]:
    source, *others = [Path(argument) for argument in arguments[1:] if not argument.startswith("--")]
    return diagnostics(examine(source, others))


def rendered(found: Sequence[Diagnostic]) -> tuple[Json, Json]:
    return unreadable(found), log([Checked("model.lip", tuple(found), readable=False)], 2, lambda _: None)


def found_in(text: str, code: str) -> str:
    """Return the first message of a code."""
    found = re.search(rf"^\w+\[{code}\].*?(?=\n\n|\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, text
    return found[0].rstrip()


def anywhere(text: str, folder: Path) -> str:
    """Leave out what depends on the machine: the folder, and what installed versions of other projects say."""
    text = text.replace(f"{folder}/", "")
    text = re.sub(r"(RuntimeError): [^\n\"\\]*", r"\1: …", text)
    return re.sub(r"sets 7 to \d+", "sets 7 to …", text)


def assert_golden(code: str, found: str) -> None:
    path = GOLDEN / f"{code}.txt"
    if os.environ.get("UPDATE_GOLDEN") == "1":
        path.write_text(found, encoding="utf-8")
    assert found == path.read_text(encoding="utf-8")

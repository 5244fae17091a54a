"""What `docs/ci.md` and the pre-commit hook promise."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from lipcompile.__main__ import run
from lipcompile.cli import cli

ROOT = Path(__file__).parents[2]
HOOKS = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
GUIDE = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
WORKED = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)]

CONFIGURED, LOCAL, WORKFLOW = WORKED


def command(entry: str) -> list[str]:
    """Return the arguments of a command that begins with the name of the program."""
    program, *arguments = shlex.split(entry)
    assert program == "lipcompile"
    return arguments


@pytest.fixture(autouse=True)
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Examples in a folder `models`, and their names."""
    (tmp_path / "models").mkdir()
    names = ["models/mlp.lip", "models/mlp.onnx"]
    for name in names:
        shutil.copy(ROOT / "examples" / Path(name).name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return names


@pytest.mark.parametrize("hook", [HOOKS[0], LOCAL["repos"][0]["hooks"][0]])
def test_the_hook_runs(hook: dict[str, Any], models: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """pre-commit appends the files whose names match, all in one command."""
    assert hook["id"] == "lipcompile-check"
    chosen = [name for name in [*models, "README.md", "a.lip.txt"] if re.search(hook["files"], name)]
    assert chosen == models
    assert hook["require_serial"]
    assert run([*command(hook["entry"]), *chosen]) == 0
    Path(models[0]).write_text("model m {", encoding="utf-8")
    assert run([*command(hook["entry"]), *chosen]) == 2
    assert "accepted: mlp from models/mlp.onnx" in capsys.readouterr().out


def test_the_hook_that_formats_runs(models: list[str]) -> None:
    hook = HOOKS[1]
    assert hook["id"] == "lipcompile-format"
    chosen = [name for name in models if re.search(hook["files"], name)]
    assert chosen == [name for name in models if name.endswith(".lip")]
    assert run([*command(hook["entry"]), *chosen]) == 0


def test_a_hook_can_be_configured_as_shown(models: list[str]) -> None:
    (repository,) = CONFIGURED["repos"]
    (hook,) = repository["hooks"]
    assert hook["id"] == HOOKS[0]["id"]
    assert run([*command(HOOKS[0]["entry"]), *hook["args"], *models]) == 0


def test_the_workflow_checks_and_uploads(capsys: pytest.CaptureFixture[str]) -> None:
    (job,) = WORKFLOW["jobs"].values()
    checks = next(step["run"] for step in job["steps"] if "lipcompile check" in step.get("run", ""))
    line, _, log = checks.partition(" > ")
    arguments = [name for word in command(line) for name in (sorted(map(str, Path().glob(word))) or [word])]
    assert run(arguments) == 0
    assert '"version": "2.1.0"' in capsys.readouterr().out
    upload = job["steps"][-1]
    assert upload["uses"].startswith("github/codeql-action/upload-sarif@")
    assert upload["with"]["sarif_file"] == log
    assert "cancelled" in upload["if"]
    assert WORKFLOW["permissions"]["security-events"] == "write"


def test_every_format_and_kind_is_told() -> None:
    form = next(option for option in cli.commands["check"].params if option.name == "form")
    for choice in form.type.choices:  # type: ignore[attr-defined]
        assert f"| `{choice}`" in GUIDE
    assert all(f"- **{kind}**: " in GUIDE for kind in ("never", "not yet", "replace by", "usage"))

"""`requirements.lock` meets what `pyproject.toml` asks for, and names nothing of one machine."""

from __future__ import annotations

import re
import tomllib
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WANTED = [Requirement(text) for text in chain(PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())]
LINES = [
    line
    for line in (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    if not line.lstrip().startswith("#")
]
LOCKED = [Requirement(line) for line in LINES]
PLATFORMS = [("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64")]


def found(name: str, environment: dict[str, str]) -> list[str]:
    """Return the versions of a package that are locked in an environment."""
    return [
        str(locked.specifier).removeprefix("==")
        for locked in LOCKED
        if locked.name.lower() == name.lower() and (not locked.marker or locked.marker.evaluate(environment))
    ]


@pytest.mark.parametrize(("system", "machine"), PLATFORMS)
@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_one_version_of_each_requirement_is_locked(python: str, system: str, machine: str) -> None:
    environment = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "sys_platform": system,
    }
    for wanted in WANTED:
        if wanted.name == PROJECT["name"] or (wanted.marker and not wanted.marker.evaluate(environment)):
            continue
        (version,) = found(wanted.name.replace("_", "-"), environment)
        assert wanted.specifier.contains(version), f"{wanted} is locked at {version}"


def test_versions_are_those_of_the_index_and_of_no_machine() -> None:
    for line, locked in zip(LINES, LOCKED, strict=True):
        assert re.fullmatch(r"==[0-9a-z.]+", str(locked.specifier)), line
        assert locked.url is None, line
        assert Version(str(locked.specifier).removeprefix("==")).local is None, line


def test_the_test_command_installs_from_it() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    command = re.search(r"<!-- test command -->\n```sh\n(.*)\n```", readme)
    assert command is not None
    assert "pip install -c requirements.lock '.[test]'" in command[1]

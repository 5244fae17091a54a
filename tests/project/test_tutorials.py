"""Every tutorial of the documentation runs as it stands."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.project.pages import run_page

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"
PAGES = sorted(path.name for path in TUTORIALS.glob("*.md") if path.name != "index.md")


def test_there_are_four_tutorials() -> None:
    assert PAGES == ["lip.md", "opacus.md", "table.md", "torch.md"]


@pytest.mark.parametrize("name", PAGES)
def test_a_tutorial_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for module in ("data", "nets"):  # of another tutorial
        monkeypatch.delitem(sys.modules, module, raising=False)
    assert run_page(TUTORIALS / name) >= 2

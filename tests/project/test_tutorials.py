"""Every tutorial of the documentation runs as it stands."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.nights import by_day
from tests.project.pages import run_page

pytestmark = pytest.mark.slow

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"
PAGES = sorted(path.name for path in TUTORIALS.glob("*.md") if path.name != "index.md")


def test_there_are_four_tutorials() -> None:
    assert PAGES == ["lip.md", "opacus.md", "table.md", "torch.md"]


@pytest.mark.parametrize(
    ("shown", "same"), [("1\n2\n3", True), ("1\n…", True), ("1\n…\n4", False), ("1\n2", False)]
)
def test_outputs_are_compared(shown: str, same: bool, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"```python\nprint(1, 2, 3, sep='\\n')\n```\n\n```text\n{shown}\n```\n", encoding="utf-8")
    with nullcontext() if same else pytest.raises(AssertionError, match="the page shows"):
        assert run_page(page) == 1


@pytest.mark.parametrize("name", by_day({*PAGES} - {"torch.md"}, PAGES))
def test_a_tutorial_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for module in ("data", "nets"):  # of another tutorial
        monkeypatch.delitem(sys.modules, module, raising=False)
    assert run_page(TUTORIALS / name) >= 2


def test_fine_tuning_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert run_page(TUTORIALS.parent / "fine-tuning.md") == 1


def test_a_search_of_ones_own_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (TUTORIALS.parent / "estimator.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    section = page.partition("### A search of your own\n")[2].partition("\n## ")[0]
    Path("page.md").write_text(section, encoding="utf-8")
    assert run_page(Path("page.md")) == 1

"""The documentation site builds without a warning, with a page for each code and an entry for each public name."""

from __future__ import annotations

import re
from importlib import import_module
from inspect import isclass, isfunction
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

from lipcompile.cli import cli
from lipcompile.codes import codes
from lipcompile.tables.tokens import token_ids

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build with --strict: a broken link or anchor, or a page that is not in `nav`, is an error."""
    folder = tmp_path_factory.mktemp("site")
    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True)
    config.plugins.run_event("startup", command="build", dirty=False)
    build(config)
    return folder


def anchors(*pages: Path) -> set[str]:
    """Return the anchors of pages."""
    return {anchor for page in pages for anchor in re.findall(r' id="([^"]+)"', page.read_text(encoding="utf-8"))}


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    found = anchors(*(site / "reference" / "python").glob("*.html"))
    modules = ["lipcompile", "lipcompile.sklearn", "lipcompile_torch", "lipcompile_verify"]
    names = [(module, name) for module in modules for name in import_module(module).__all__ if name[0] != "_"]
    assert ("lipcompile", "private") in names
    assert [f"{module}.{name}" for module, name in names if f"{module}.{name}" not in found] == []


def test_every_name_that_a_page_imports_is_in_the_reference(site: Path) -> None:
    found = anchors(*(site / "reference" / "python").glob("*.html"))
    pages = [path.read_text(encoding="utf-8") for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]]
    lines = re.findall(r"^ *from (lipcompile[\w.]*) import ([\w, ]+?) *(?:#.*)?$", "\n".join(pages), re.MULTILINE)
    values = [
        (module, getattr(import_module(module), name)) for module, listed in lines for name in listed.split(", ")
    ]
    named = [
        (module, value) for module, value in values if isclass(value) or isfunction(value)
    ]  # no alias of a type
    assert token_ids in [value for _, value in named]
    for module, value in named:
        assert {f"{place}.{value.__name__}" for place in (module, value.__module__)} & found, value


def test_every_layer_and_command_is_in_the_reference(site: Path) -> None:
    found = anchors(*(site / "reference" / "python").glob("*.html"))
    layers = import_module("lipcompile_torch.nn.layers")
    named = [
        name for name, value in vars(layers).items() if name[0].isupper() and value.__module__ == layers.__name__
    ]
    assert len(named) > 5
    assert [name for name in named if f"lipcompile_torch.nn.layers.{name}" not in found] == []
    commands = anchors(site / "reference" / "cli.html")
    assert [name for name in cli.commands if name not in commands] == []


def test_every_code_has_its_page(site: Path) -> None:
    for code in codes().values():
        page = (site / "reference" / "diagnostics" / f"{code.code}.html").read_text(encoding="utf-8")
        assert "Wrong" in page, code
        assert "Right" in page, code


def test_pages_load_nothing_from_the_network(site: Path) -> None:
    loaded = re.compile(r'<(?:script|link|img|iframe)[^>]+(?:src|href)="(?:https?:)?//')
    for page in site.rglob("*.html"):
        assert not loaded.search(page.read_text(encoding="utf-8")), page.relative_to(site)

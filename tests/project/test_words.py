"""The rules of `.vale.ini` hold in README and docs: those that are lists of words or patterns.

Vale itself is no package of Python. Its rules are YAML; three kinds of them are read here. The rules of this
project also hold in the messages of the program, and in the texts of its diagnostic codes.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from configparser import ConfigParser
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
WRITTEN = {"onnx-support.md"}  # as in .vale.ini
DOCS = sorted(path for path in (ROOT / "docs").rglob("*.md") if path.name not in WRITTEN)
ALONE = [
    ROOT / name
    for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "grammar/README.md", "benchmarks/README.md")
]
PROOFS = sorted((ROOT / "lipcompile" / "ops").rglob("*.md"))
PAGES = [*ALONE, *PROOFS, *DOCS]
ROOMS = sorted(
    path.relative_to(ROOT)
    for path in [*(ROOT / "lipcompile").iterdir(), *(ROOT / "backends").iterdir()]
    if (path / "__init__.py").exists()
)
MARKDOWN = MarkdownIt("commonmark").enable("table")
REPETITION = re.compile(r"(?<![\w-])(?!code\b)([^\W\d_]{2,}) \1(?![\w-])", re.IGNORECASE)  # code stands for `x`


@cache
def rules(heading: bool = False) -> dict[str, list[re.Pattern[str]]]:
    """Return the patterns of the rules that are on, by name: no sentence, or heading, may match one."""
    settings = ConfigParser(delimiters=("=",))
    settings.optionxform = str  # type: ignore[assignment, method-assign]  # names of rules keep their capitals
    settings.read_string("[*]\n" + (ROOT / ".vale.ini").read_text(encoding="utf-8"))
    section = settings["*.md"]
    found = {} if heading else {"Vale.Repetition": [REPETITION]}
    for style in section["BasedOnStyles"].split(", "):
        for path in sorted((ROOT / ".vale" / "styles" / style).glob("*.yml")):
            name = f"{style}.{path.stem}"
            rule = yaml.safe_load(path.read_text(encoding="utf-8"))
            if section.get(name) != "NO" and (rule.get("scope") == "heading") == heading:
                found[name] = patterns(rule)
    return found


def patterns(rule: dict[str, Any]) -> list[re.Pattern[str]]:
    """Return the patterns of a rule; none for a suggestion, or for kinds that need more than a sentence."""
    if rule["level"] == "suggestion":
        return []
    words = {"existence": rule.get("tokens", []), "substitution": rule.get("swap", {})}.get(rule["extends"], [])
    flags = re.IGNORECASE if rule.get("ignorecase") else re.NOFLAG
    edge = "" if rule.get("nonword") else r"\b"
    return [re.compile(f"{edge}(?:{word}){edge}", flags) for word in words]


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Yield the kind and the text, without code, of the paragraphs, headings, items and cells of a page."""
    kind = ""
    for block in MARKDOWN.parse(page.read_text(encoding="utf-8")):
        if block.type == "inline":
            parts = {"softbreak": " ", "code_inline": "code"}
            texts = (t.content if t.type == "text" else parts.get(t.type, "") for t in block.children or [])
            yield kind, "".join(texts)
        kind = block.type


def sentences(page: Path) -> Iterator[str]:
    """Yield the sentences of a page."""
    for _, text in blocks(page):
        yield from re.split(r"(?<=[.?!:])\s+", text)


def messages(room: Path) -> Iterator[str]:
    """Yield the sentences of a room's texts: its strings of three words or more, without docstrings."""
    for path in sorted((ROOT / room).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for text in Texts().of(tree):
            yield from re.split(r"(?<=[.?!:;])\s+", text) if len(text.split()) > 2 else ()
    for path in sorted((ROOT / room).rglob("*.toml")):
        for entry in tomllib.loads(path.read_text(encoding="utf-8")).values():
            yield entry["title"]
            yield from re.split(r"(?<=[.?!:;])\s+", entry["why"])


class Texts(ast.NodeVisitor):
    """Collects the strings of a module; values in f-strings are written as `x`."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def of(self, tree: ast.AST) -> list[str]:
        self.visit(tree)
        return self.found

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring
            self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            self.found.append(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        parts = [str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values]
        self.found.append("".join(parts))
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                self.visit(part.value)


@pytest.mark.parametrize("room", ROOMS, ids=str)
def test_words_of_messages(room: Path) -> None:
    own = {name: found for name, found in rules().items() if name.startswith("lipcompile.")}
    assert [
        f"{name}: {sentence}"
        for sentence in messages(room)
        for name, found in own.items()
        if any(pattern.search(sentence[:1].upper() + sentence[1:]) for pattern in found)
    ] == []


def test_messages_are_strings_without_docstrings() -> None:
    tree = ast.parse('def f(x):\n    """Mend it."""\n    raise ValueError(f"bad {x}" "number " + g("a mend"))')
    assert Texts().of(tree) == ["bad xnumber ", "a mend"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_words(page: Path) -> None:
    assert [
        f"{name}: {sentence}"
        for sentence in sentences(page)
        for name, found in rules().items()
        if any(pattern.search(sentence) for pattern in found)
    ] == []
    assert [
        f"{name}: {text}"
        for kind, text in blocks(page)
        if kind == "heading_open"
        for name, found in rules(heading=True).items()
        if any(pattern.search(text) for pattern in found)
    ] == []


def test_rules_find_what_they_name() -> None:
    def found(text: str, heading: bool = False) -> list[str]:
        return [name for name, patterns in rules(heading).items() if any(p.search(text) for p in patterns)]

    assert found("What is missed, and what was tried.") == ["lipcompile.Cleft"]
    assert found("What is a bound?") == []
    assert found("The message has the reason and the mend.") == ["lipcompile.Words"]
    assert found("Use a clip, e.g. automatic.") == ["Google.Latin"]
    assert found("Location, cause and fix.") == []
    assert found("The the bound, and a go-between between Between-day noise.") == ["Vale.Repetition"]
    assert found("A fork-join join, code code.") == []
    assert found("A bound.", heading=True) == ["Google.HeadingPunctuation"]

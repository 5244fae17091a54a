"""A text that is being written: its syntax tree, its models, their derivations, diagnostics and definitions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lipcompile.analysis.usefulness import judged
from lipcompile.core.derivation import Derivation
from lipcompile.diagnostics import Diagnostic, InputError, Location
from lipcompile.frontends.lip import syntax as ast
from lipcompile.frontends.lip.model import blocks_of, read
from lipcompile.frontends.lip.parser import parse
from lipcompile.frontends.options import ModelOptions
from lipcompile.ops.registry import load_plugins
from lipcompile.pipeline import derive

OPTIONS = ModelOptions()


@dataclass(frozen=True, slots=True)
class Document:
    """A text of a file, checked.

    tree: None if it does not parse. blocks: also those that it imports. derivations: of the models that could be
    read. diagnostics: of all models, as `check` tells them, each once.
    """

    text: str
    path: Path
    tree: ast.File | None
    blocks: Mapping[str, ast.Block]
    derivations: tuple[Derivation, ...]
    diagnostics: tuple[Diagnostic, ...]

    @property
    def lines(self) -> list[str]:
        """The lines without their ends."""
        return [line.rstrip("\r") for line in self.text.split("\n")]


def checked(text: str, path: Path) -> Document:
    """Check every model of a text that stands for the file `path`; what is wrong is among the diagnostics."""
    load_plugins()
    with OPTIONS.limits.in_force():
        try:
            tree = parse(text.removeprefix("\ufeff"), str(path))
            blocks = blocks_of(tree, path, len(text.encode()))
        except InputError as error:
            return Document(text, path, None, {}, (), _here(error.diagnostics, path))
    found, derivations = list[Diagnostic](), list[Derivation]()
    for model in tree.models:
        try:
            loaded = read(text, path, model.name.text, OPTIONS)
            derivations.append(judged(derive(loaded, OPTIONS), allow_vacuous=False))
            found += derivations[-1].diagnostics
        except InputError as error:
            found += error.diagnostics
    return Document(text, path, tree, blocks, tuple(derivations), _here(tuple(dict.fromkeys(found)), path))


def _here(found: tuple[Diagnostic, ...], path: Path) -> tuple[Diagnostic, ...]:
    """Return diagnostics with a place in this file: of another file, the place is told in the message."""
    return tuple(_placed(one, path) for one in found)


def _placed(found: Diagnostic, path: Path) -> Diagnostic:
    at = found.location
    if at is None or at.line is None:
        return replace(found, location=Location(str(path), 1, 1))
    if Path(at.file).resolve() == path.resolve():
        return found
    place = f"{Path(at.file).name}:{at.line}:{at.column}"
    return replace(found, message=f"{place}: {found.message}", location=Location(str(path), 1, 1))


def definition(document: Document, line: int, column: int) -> Location | None:
    """Return where the name at a place is defined, or the beginning of the file that is imported there."""
    if document.tree is None:
        return None
    for target in document.tree.imports:
        if covers(target.at, line, column):
            return Location(str(document.path.parent / str(target.value)), 1, 1)
    word = word_at(document.lines, line, column)
    if not word:
        return None
    found = [at for name, at in _defined(document.tree, line) if name == word]
    before = [at for at in found if (at.line or 0, at.column or 0) <= (line, column)]
    if found:
        return before[-1] if before else found[0]
    return document.blocks[word].name.at if word in document.blocks else None


def word_at(lines: Sequence[str], line: int, column: int) -> str:
    """Return the name that a place is in or behind, empty if there is none; both count from 1."""
    text = lines[line - 1] if 0 < line <= len(lines) else ""
    start = stop = min(column - 1, len(text))
    while start > 0 and _is_of_name(text[start - 1]):
        start -= 1
    while stop < len(text) and _is_of_name(text[stop]):
        stop += 1
    return text[start:stop]


def _is_of_name(character: str) -> bool:
    return character == "_" or (character.isascii() and character.isalnum())


def covers(at: Location | None, line: int, column: int) -> bool:
    """Whether a place is in what stands at a location, or directly behind it."""
    if at is None or at.line != line or at.column is None:
        return False
    return at.column <= column <= at.column + at.length


def _defined(tree: ast.File, line: int) -> Iterator[tuple[str, Location]]:
    """Yield the names that the model or block around a line defines for itself, in order."""
    parts: list[ast.Model | ast.Block] = [*tree.models, *tree.blocks]
    around = [part for part in parts if (part.name.at.line or 0) <= line]
    if not around:
        return
    part = max(around, key=lambda one: one.name.at.line or 0)
    if isinstance(part, ast.Block):
        yield from ((name.text, name.at) for name, _ in part.parameters)
        yield from _targets(part.body)
        return
    for item in part.items:
        if isinstance(item, ast.Param | ast.InputLine):
            yield item.name.text, item.name.at
    yield from _targets(tuple(item for item in part.items if isinstance(item, ast.Statement)))


def _targets(body: tuple[ast.Statement, ...]) -> Iterator[tuple[str, Location]]:
    for statement in body:
        yield from ((name.text, name.at) for name in statement.targets)
        layer = statement.layer
        bodies = (
            layer.bodies if isinstance(layer, ast.Branch) else () if isinstance(layer, ast.Call) else (layer.body,)
        )
        for inner in bodies:
            yield from _targets(inner)


def names(document: Document, line: int) -> list[str]:
    """Return the names of values and parameters around a line, each once."""
    return [] if document.tree is None else list(dict.fromkeys(name for name, _ in _defined(document.tree, line)))

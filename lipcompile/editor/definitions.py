"""Where the names of a model or block are defined."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lipcompile.diagnostics import Location
from lipcompile.editor.document import Document
from lipcompile.frontends.lip import syntax as ast


def definition(document: Document, line: int, column: int) -> Location | None:
    """Return where the name at a place is defined, or the beginning of the file that is imported there."""
    if document.tree is None:
        return None
    for target in document.tree.imports:
        if _covers(target.at, line, column):
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


def _covers(at: Location, line: int, column: int) -> bool:
    return at.line == line and at.column is not None and at.column <= column <= at.column + at.length


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

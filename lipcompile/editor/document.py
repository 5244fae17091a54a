"""A text that is being written: its syntax tree, its models, their derivations, its diagnostics."""

from __future__ import annotations

from collections.abc import Mapping
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

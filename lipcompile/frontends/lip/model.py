"""The .lip front end: parse, resolve blocks and imports, lower a model to a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from lipcompile.core.derivation import Source
from lipcompile.core.graph import GraphBuilder
from lipcompile.diagnostics import Diagnostic, InputError, Location, input_error
from lipcompile.frontends import files
from lipcompile.frontends.lip import syntax as ast
from lipcompile.frontends.lip.backbone import inside
from lipcompile.frontends.lip.lowering import Lowering
from lipcompile.frontends.lip.parser import parse
from lipcompile.frontends.lip.training import training_plan
from lipcompile.frontends.options import Loaded, ModelOptions
from lipcompile.ops.schema import suggest


def load(path: Path, name: str | None, options: ModelOptions) -> Loaded:
    """Read the model `name` of a file (the only one by default); raises InputError if the text does not parse."""
    return read(_text(path, Location(str(path))), path, name, options)


def read(text: str, path: Path, name: str | None, options: ModelOptions) -> Loaded:
    """Read a model of a text, which stands for the file `path`; raises InputError as `load` does."""
    if options.constraint == "keep":
        message, help_line = "--constraint keep needs imported weights", "a .lip file has none: use spectral:1.0"
        raise input_error("LIP005", message, help_line)
    try:
        file = parse(text, str(path))
        model = _choose(file.models, name, path)
        blocks = blocks_of(file, path, len(text.encode()))
        _check_bindings(model, options)
    except InputError as error:
        raise InputError(error.diagnostics, text) from None
    lowering = Lowering(blocks, options, GraphBuilder(model.name.text), path.resolve().parent)
    graph = lowering.run(model)
    problems = lowering.builder.diagnostics
    plan, wrong_settings = training_plan(file.training)
    source = Source(model.name.text, str(path), "lip", lowering.backbones.digest(text), text)
    return Loaded(source, None if wrong_settings else graph, (*problems, *wrong_settings), plan)


def _text(path: Path, at: Location, used: int = 0) -> str:
    """Return the text of a file, without the mark that some editors begin it with; raises InputError at `at`.

    `used` is the size of the files before it: a limit is set to all of them together.
    """
    try:
        return files.read(path, "text_size", used).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise input_error("LIP010", f"`{path}` is not a text file", "a .lip file is UTF-8 text", at) from None
    except OSError as error:
        raise input_error("LIP001", f"`{path}` cannot be read: {error.strerror}", "check the path", at) from None


def _choose(models: Sequence[ast.Model], name: str | None, path: Path) -> ast.Model:
    names, at = [model.name.text for model in models], Location(str(path))
    if not models:
        raise input_error("LIP016", f"`{path}` declares no model", "write model NAME { … }", at)
    if name is None and len(models) > 1:
        raise input_error("LIP016", f"`{path}` declares several models", f"pick one: {path}::{names[0]}", at)
    if name is not None and name not in names:
        help_line = suggest(name, names) or f"there are: {', '.join(names)}"
        raise input_error("LIP016", f"`{path}` declares no model `{name}`", help_line, at)
    return models[0] if name is None else models[names.index(name)]


def blocks_of(file: ast.File, path: Path, used: int) -> Mapping[str, ast.Block]:
    """Collect the blocks of a file and of those it imports, each once; raises InputError with all problems.

    `used` is the size of the file: the limit of `text_size` is set to all of them together.
    """
    root = path.resolve().parent
    found: dict[str, ast.Block] = {}
    problems: list[Diagnostic] = []
    pending, seen = [(file, path.resolve())], {path.resolve()}
    while pending:
        current, where = pending.pop()
        for block in current.blocks:
            if block.name.text in found:
                message = f"block `{block.name.text}` is declared twice"
                problems.append(Diagnostic("LIP013", message, location=block.name.at))
            found.setdefault(block.name.text, block)
        for target in current.imports:
            try:
                imported = inside(target, where.parent, root)
                if imported not in seen:
                    seen.add(imported)
                    text = _text(imported, target.at, used)
                    used += len(text.encode())
                    pending.append((parse(text, str(imported)), imported))
            except InputError as error:
                problems += error.diagnostics
    if problems:
        raise InputError(tuple(problems))
    return found


def _check_bindings(model: ast.Model, options: ModelOptions) -> None:
    declared = [item.name.text for item in model.items if isinstance(item, ast.Param)]
    for item in model.items:
        if isinstance(item, ast.InputLine) and isinstance(item.norm, ast.Name):
            declared.append(item.norm.text)
    for name in options.bindings:
        if name not in declared:
            known = f"declared: {', '.join(declared)}" if declared else "the model declares none"
            raise input_error("LIP011", f"--set: there is no parameter `{name}`", suggest(name, declared) or known)

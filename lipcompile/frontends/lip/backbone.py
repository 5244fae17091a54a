"""`onnx("FILE")` inside `frozen { }`: the nodes of an imported network, with its weights, none of them trained."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lipcompile import limits
from lipcompile.core.graph import Graph, GraphBuilder, Node, ParameterChoice, Value
from lipcompile.core.record import Shape
from lipcompile.diagnostics import Location, input_error
from lipcompile.frontends import files
from lipcompile.frontends.lip import syntax as ast
from lipcompile.frontends.lip.scope import Problem, Scope
from lipcompile.frontends.options import ModelOptions

NAME = "onnx"


def inside(target: ast.Constant, folder: Path, root: Path) -> Path:
    """Return the file that a path in a model names; raises InputError (LIP015) if it is outside of `root`."""
    try:
        path = (folder / str(target.value)).resolve()
    except (OSError, RuntimeError, ValueError):  # a circle of links, a null byte
        raise input_error("LIP015", f"there is no file `{target.value}` to import", location=target.at) from None
    if not path.is_relative_to(root):
        help_line = "copy the file into the folder"
        raise input_error("LIP015", "an import must stay inside the model's folder", help_line, target.at)
    if not path.is_file():
        raise input_error("LIP015", f"there is no file `{target.value}` to import", location=target.at)
    return path


@dataclass(slots=True)
class Backbones:
    """The networks that a model imports from files in the folder `root` or below it; each is read once.

    builder: of the model itself. A file that is used several times, for one shape, has one set of weights.
    """

    root: Path
    options: ModelOptions
    builder: GraphBuilder
    _read: dict[tuple[Path, Shape], Graph | None] = field(default_factory=dict)
    _digests: dict[Path, str] = field(default_factory=dict)
    _named: dict[tuple[Path, Shape], dict[str, str]] = field(default_factory=dict)
    _used: int = 0

    def digest(self, text: str) -> str:
        """Return the sha256 of a model's text; with backbones, of that and of their places and digests."""
        own = hashlib.sha256(text.encode()).hexdigest()
        if not self._digests:
            return own
        found = {path.relative_to(self.root).as_posix(): digest for path, digest in self._digests.items()}
        return hashlib.sha256(json.dumps([own, sorted(found.items())]).encode()).hexdigest()

    def inline(self, builder: GraphBuilder, call: ast.Call, current: Value, scope: Scope) -> Value:
        """Add the nodes of a file behind `current`; raises `Problem`, or InputError where the file is no model."""
        target = _file(call)
        if not scope.frozen:
            help_line = f'write frozen {{ onnx("{target.value}") }}'
            raise Problem(
                "LIP012", "layers of `onnx` are not trained and must be inside `frozen`", call.at, help_line
            )
        if builder is not self.builder:
            message = "an imported network cannot stand in a repetition whose count is open"
            raise Problem("LIP014", message, call.at, "give the count with --set")
        if current.shape is None:
            return Value(NAME, None)
        path = inside(target, Path(call.at.file).resolve().parent, self.root)
        graph = self._graph(path, current.shape, call.at)
        if graph is None:
            return Value(NAME, None)
        if graph.input.tokens != builder.holds_tokens(current):
            takes = "tokens" if graph.input.tokens else "numbers"
            raise Problem("LIP204", f"`{path.name}` takes {takes}", call.at)
        if graph.input.shape != current.shape:
            message = f"`{path.name}` takes {list(graph.input.shape)}, not {list(current.shape)}"
            raise Problem("LIP102", message, call.at)
        return self._add(builder, graph, path, current, call, scope)

    def _graph(self, path: Path, shape: Shape, at: Location) -> Graph | None:
        """Read a file for inputs of this shape, its own diagnostics told once."""
        if (path, shape) not in self._read:
            from lipcompile.frontends.onnx import model as onnx_model  # slow to import

            self._used += files.size(path)
            limits.demand("file_size", self._used, "the imported networks hold", at)
            kept = ModelOptions(constraint="keep", limits=self.options.limits, input_shape={"": shape})
            loaded = onnx_model.load(path, kept)
            self.builder.diagnostics += loaded.diagnostics
            self._digests[path] = loaded.source.sha256
            self._read[path, shape] = loaded.graph
        return self._read[path, shape]

    def _add(
        self, builder: GraphBuilder, graph: Graph, path: Path, current: Value, call: ast.Call, scope: Scope
    ) -> Value:
        values = {graph.input.name: current}
        names = self._named.setdefault((path, graph.input.shape), {})
        for node in graph.nodes:
            made = builder.add(
                node.op,
                node.attributes,
                [values[operand] for operand in node.inputs],
                name=f"{path.stem}_{node.name}",
                location=call.at,
                parameters=_choices(graph, node, names),
                scope=(*scope.path, path.stem),
            )
            own = builder.made(made)
            if made.shape is None or own is None:
                return Value(NAME, None)
            for role, name in node.parameters.items():
                names.setdefault(name, own.parameters[role])
            values[node.name] = made
        return values[graph.output]


def _file(call: ast.Call) -> ast.Constant:
    if len(call.arguments) == 1 and call.arguments[0].name is None:
        target = call.arguments[0].value
        if isinstance(target, ast.Constant) and isinstance(target.value, str):
            return target
    raise Problem("LIP012", "`onnx` takes the path of a file", call.at, 'write onnx("backbone.onnx")')


def _choices(graph: Graph, node: Node, names: Mapping[str, str]) -> dict[str, ParameterChoice]:
    found = {}
    for role, name in node.parameters.items():
        own = graph.parameters[name]
        found[role] = ParameterChoice(own.constraint, False, own.initial, names.get(name))
    return found

"""Which module imports which: no circle of files, and packages on their own sides of the walls."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = {
    path.name: path
    for path in (ROOT / "lipcompile", *(ROOT / "backends").iterdir())
    if (path / "__init__.py").exists()
}
# What importing a module runs, what only its annotations need, what its functions import when they are called.
NOW, TYPES, LATER = "now", "types", "later"

# What each package may import of the others.
WALLS = {
    "lipcompile": {"lipcompile_privacy", "lipcompile_verify"},
    # Its weights, which need no torch; and what `TorchBackend` offers, when it is asked for.
    "lipcompile.emitters.torch": {"lipcompile", "lipcompile_torch"},
    "lipcompile_privacy": {"lipcompile_torch"},  # Strategy.stream makes torch's noise
    "lipcompile_torch": {"lipcompile_privacy", "lipcompile_verify"},
    "lipcompile_verify": set[str](),
}


def found_in(nodes: ast.AST, kind: str = NOW) -> Iterator[tuple[ast.Import | ast.ImportFrom, str]]:
    """Yield the imports of a syntax tree, with the time at which they are done."""
    for node in ast.iter_child_nodes(nodes):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node, kind
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from found_in(node, LATER)
        else:
            types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
            yield from found_in(node, TYPES if types else kind)


def imported(node: ast.Import | ast.ImportFrom, package: list[str]) -> list[tuple[str, str]]:
    """Return the modules that a statement names, each with a name that it takes from there."""
    if isinstance(node, ast.Import):
        return [(name.name, "") for name in node.names]
    above = package[: len(package) - node.level + 1] if node.level else []
    return [(".".join([*above, *filter(None, [node.module])]), name.name) for name in node.names]


@cache
def modules() -> dict[str, Path]:
    found = {}
    for root in PACKAGES.values():
        for path in root.rglob("*.py"):
            parts = path.relative_to(root.parent).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imports() -> frozenset[tuple[str, str, str]]:
    """Return all (module, module that it imports, time)."""
    found, known = set(), modules()
    for name, path in known.items():
        package = (name if path.name == "__init__.py" else name.rpartition(".")[0]).split(".")
        for node, kind in found_in(ast.parse(path.read_text(encoding="utf-8"))):
            for module, taken in imported(node, package):
                target = f"{module}.{taken}" if f"{module}.{taken}" in known else module
                if target in known and target != name:
                    found.add((name, target, kind))
    return frozenset(found)


def circles(of: Iterable[tuple[str, str, str]]) -> list[list[str]]:
    """Return the sets of modules that import each other."""
    graph = nx.DiGraph((source, target) for source, target, _ in of)
    return sorted(sorted(found) for found in nx.strongly_connected_components(graph) if len(found) > 1)


def test_no_module_imports_itself_through_others() -> None:
    """Imports for types alone and in functions count: modules that need each other are one."""
    assert circles(imports()) == []


def test_a_circle_is_seen() -> None:
    later = ("lipcompile.core.graph", "lipcompile.pipeline", LATER)
    assert any(
        {"lipcompile.core.graph", "lipcompile.pipeline"} <= set(found) for found in circles([*imports(), later])
    )


@pytest.mark.parametrize("package", WALLS)
def test_packages_import_what_they_may(package: str) -> None:
    def home(module: str) -> str:
        return max((wall for wall in WALLS if f"{module}.".startswith(f"{wall}.")), key=len)

    found = {home(target) for source, target, _ in imports() if home(source) == package} - {package}
    inner = {wall for wall in WALLS if wall.startswith(f"{package}.")}
    assert found - inner == WALLS[package]


def test_every_kind_of_import_is_seen() -> None:
    text = (
        "import a.b\nfrom . import c\nif TYPE_CHECKING:\n    from ..d import e\ndef f():\n    from .g import h\n"
    )
    found = [(*pair, kind) for node, kind in found_in(ast.parse(text)) for pair in imported(node, ["p", "q"])]
    assert found == [("a.b", "", NOW), ("p.q", "c", NOW), ("p.d", "e", TYPES), ("p.q.g", "h", LATER)]

"""Which module imports which: no circle of files, and packages on their own sides of the walls."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

ROOT = Path(__file__).parents[2]
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
    # The estimators: they compile a head, and train it.
    "lipcompile.learn": {"lipcompile", "lipcompile_privacy", "lipcompile_torch"},
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


def circles(of: Iterable[tuple[str, ...]]) -> list[list[str]]:
    """Return the sets of modules, or rooms, that import each other."""
    graph = nx.DiGraph((source, target) for source, target, *_ in of)
    return sorted(sorted(found) for found in nx.strongly_connected_components(graph) if len(found) > 1)


def test_no_module_imports_itself_through_others() -> None:
    """Imports for types alone and in functions count: modules that need each other are one."""
    assert circles(imports()) == []


def test_a_circle_is_seen() -> None:
    later = ("lipcompile.core.graph", "lipcompile.pipeline", LATER)
    assert any(
        {"lipcompile.core.graph", "lipcompile.pipeline"} <= set(found) for found in circles([*imports(), later])
    )


ROOMS = {
    ".".join(path.parent.relative_to(root.parent).parts): path
    for root in (PACKAGES["lipcompile"], PACKAGES["lipcompile_torch"])
    for path in root.glob("*/__init__.py")
    if "Imports: " in path.read_text(encoding="utf-8")
}
# How torch and ONNX write and read an op stands beside its rules, and belongs to the writers and readers.
WRITERS = ("write",)
READERS = ("onnx_read", "onnx_resize", "onnx_einsum", "torch_read", "lip_layers", "cells")


def room_of(module: str) -> str:
    """Return the folder below a package that a module stands in, or the module itself if it stands in none."""
    parts = module.split(".")
    if parts[:2] == ["lipcompile", "ops"] and parts[-1] in WRITERS + READERS:
        return "lipcompile.emitters" if parts[-1] in WRITERS else "lipcompile.frontends"
    return ".".join(parts[:2]) if parts[0] in ("lipcompile", "lipcompile_torch") else parts[0]


def between_rooms() -> set[tuple[str, str]]:
    """Return which room imports which, at import or later; imports of types alone are left out."""
    pairs = {(room_of(source), room_of(target)) for source, target, kind in imports() if kind != TYPES}
    return {(source, target) for source, target in pairs if source != target}


def stated(path: Path) -> set[str]:
    """Return the rooms that the page of a room says it imports."""
    (line,) = re.findall(r"^Imports: ((?:[^\n]|\n(?!\"))*)\.$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return set() if line == "nothing of ours" else set(re.split(r",\s+", line))


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_what_its_page_says(room: str) -> None:
    found = {target for source, target in between_rooms() if source == room}
    package = room.split(".")[0]
    others = {target.split(".")[0] for target in found}
    assert {target for target in found if target.split(".")[0] == package} | others - {package} == stated(
        ROOMS[room]
    )


def test_rooms_import_in_one_direction() -> None:
    """But for torch's noise, which a strategy of `lipcompile_privacy` makes when it is asked to."""
    assert circles(between_rooms() - {("lipcompile_privacy", "lipcompile_torch.noise")}) == []


def test_no_folder_is_crowded() -> None:
    crowded = {path.parent for path in modules().values() if len(list(path.parent.glob("*.py"))) > 21}
    assert crowded == set(), "at most twenty modules beside `__init__`"


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

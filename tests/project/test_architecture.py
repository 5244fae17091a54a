"""The picture of rooms and arrows in CONTRIBUTING.md, drawn from the imports; UPDATE_GOLDEN=1 draws it again.

A room is a folder of a package, with all that is in it. Files beside the rooms of a package stand above them, if
they import one, themselves or through others, or else below. An arrow that follows from others is left out. Dotted
are imports for types alone, or when a function is called.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path

import networkx as nx

from tests.project.test_imports import NOW, imports, modules, room_of

CONTRIBUTING = Path(__file__).parents[2] / "CONTRIBUTING.md"
PICTURE = re.compile(r"(?<=<!-- architecture -->\n)```mermaid\n.*?```\n", re.DOTALL)
ABOVE, BELOW = "above", "below"
Arrow = tuple[str, str]


def folder(module: str) -> tuple[str, ...]:
    """Return the package of a module, and the folder in it if there is one."""
    parts = module.split(".")
    return tuple(parts if modules()[module].name == "__init__.py" else parts[:-1])[:2]


@cache
def rooms() -> dict[str, str]:
    """Return the room of each module."""
    files = nx.DiGraph((source, target) for source, target, _ in imports())
    files.add_nodes_from(modules())
    with_rooms = {folder(module)[0] for module in modules() if len(folder(module)) > 1}

    def room(module: str) -> str:
        package, *inner = folder(module)
        if inner == ["ops"]:
            return room_of(module)
        if inner or package not in with_rooms:
            return ".".join([package, *inner])
        reached = [folder(other) for other in nx.descendants(files, module)]
        is_above = any(place[0] == package and len(place) > 1 for place in reached)
        return f"{package}.{ABOVE if is_above else BELOW}"

    return {module: room(module) for module in modules()}


def arrows(kinds: Collection[str]) -> set[Arrow]:
    """Return which room imports which, at these times."""
    ends = {(rooms()[source], rooms()[target]) for source, target, kind in imports() if kind in kinds}
    return {(source, target) for source, target in ends if source != target}


def picture() -> str:
    """Return the picture in the language of Mermaid."""
    now, ever = arrows({NOW}), arrows({kind for _, _, kind in imports()})
    known = nx.DiGraph([*now])
    known.add_nodes_from(rooms().values())
    drawn = dict.fromkeys(nx.transitive_reduction(known).edges, "-->")
    drawn |= {arrow: "-.->" for arrow in ever - now if not nx.has_path(known, *arrow)}
    lines = [f"    {name(source)} {line} {name(target)}" for (source, target), line in sorted(drawn.items())]
    return "\n".join(["```mermaid", "flowchart TD", *boxes(), *lines, "```", ""])


def boxes() -> Iterator[str]:
    """Yield lines that draw each package with its rooms."""
    for package in sorted({room.split(".")[0] for room in rooms().values()}):
        own = sorted({room for room in rooms().values() if room.split(".")[0] == package})
        if own == [package]:
            yield f'    {name(package)}["{package}"]'
            continue
        yield f"    subgraph {package}"
        yield from (f'        {name(room)}["{label(room)}"]' for room in own)
        yield "    end"


def label(room: str) -> str:
    """Return what stands in the box of a room; of files beside rooms their names, of `__init__` the package's."""
    place = room.split(".")[1]
    if place not in (ABOVE, BELOW):
        return place
    return ", ".join(sorted(module.split(".")[-1] for module, other in rooms().items() if other == room))


def name(room: str) -> str:
    return room.replace(".", "__")


def test_the_picture_is_that_of_the_imports() -> None:
    text = CONTRIBUTING.read_text(encoding="utf-8")
    (drawn,) = PICTURE.findall(text)
    if os.environ.get("UPDATE_GOLDEN") == "1":
        CONTRIBUTING.write_text(text.replace(drawn, picture()), encoding="utf-8")
        return
    assert drawn == picture(), "UPDATE_GOLDEN=1 pytest tests/project/test_architecture.py draws it again"


def test_every_import_between_rooms_is_a_path_in_the_picture() -> None:
    drawn = nx.DiGraph(re.findall(r"^    (\w+) [-.=]+>(?:\|\d+\|)? (\w+)$", picture(), re.MULTILINE))
    for source, target in arrows({kind for _, _, kind in imports()}):
        assert nx.has_path(drawn, name(source), name(target)), f"{source} imports {target}"

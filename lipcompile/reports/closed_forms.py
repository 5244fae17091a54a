"""The bounds of one layer, parameter or block in closed form: as derived, and with names written out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from lipcompile.core.derivation import Analysis, Block, Bound
from lipcompile.core.graph import Node
from lipcompile.numbers import text as scalar_text
from lipcompile.numbers.known import Definition
from lipcompile.reports.console import STRONG, printable, styled, table
from lipcompile.reports.document import users
from lipcompile.reports.expansion import expand
from lipcompile.reports.formulas import dimensions, round_up, rounded, text

_INDENT = (0, 0, 0, 2)


@dataclass(frozen=True, slots=True)
class Subject:
    """What closed forms are asked of: what it is, its bounds by what they bound, and the names in these."""

    title: str
    bounds: Mapping[str, Bound]
    definitions: Sequence[Definition]


def subjects(analysis: Analysis) -> dict[str, Subject]:
    """Return what closed forms can be asked of, by name: layers, their parameters, and blocks.

    A layer in the body of an open repetition is answered with the block.
    """
    blocks = {block.name: _block(block, analysis) for block in analysis.depth.blocks}
    found = {
        name: replace(blocks[block.name], title=f"stands in {block.name}, {blocks[block.name].title}")
        for block in analysis.depth.blocks
        for name in block.layers[0]
    }
    found |= blocks
    for name, layer in users(analysis).items():
        parameter = analysis.graph.parameters[name]
        title = f"parameter of {layer}, {dimensions(parameter.shape, parameter.copies)}, {parameter.constraint}"
        title += "" if name in analysis.parameters else ", not trained"
        found[name] = Subject(title, _gradient(analysis, [name]), analysis.definitions)
    for node, bounds in zip(analysis.graph.nodes, analysis.layers, strict=True):
        own = {"output norm": bounds.output_norm, "cotangent": bounds.cotangent, "Lipschitz": bounds.lipschitz}
        own |= _gradient(analysis, node.parameters.values())
        inside = blocks.get(node.name)
        found[node.name] = _subject(node, own, analysis) if inside is None else _loop(node, own, analysis, inside)
    return found


def _subject(node: Node, bounds: Mapping[str, Bound], analysis: Analysis) -> Subject:
    return Subject(f"{node.op.name}, output {dimensions(node.shape)}", bounds, analysis.definitions)


def _loop(node: Node, bounds: Mapping[str, Bound], analysis: Analysis, copy: Subject) -> Subject:
    """Return what is known of all copies of an open repetition, and of one of them."""
    known = {definition.name for definition in analysis.definitions}
    new = (definition for definition in copy.definitions if definition.name not in known)
    return Subject(
        f"{node.op.name}, output {dimensions(node.shape)}, {copy.title}",
        {**bounds, **copy.bounds},
        (*analysis.definitions, *new),
    )


def closed_forms(name: str, subject: Subject) -> Iterator[RenderableType]:
    """Yield the closed forms of a subject: each formula as derived, below it with names written out."""
    formulas = [bound.expression for bound in subject.bounds.values()]
    found = expand(formulas, subject.definitions)
    rows = table("", "at most", "formula", right=("at most",))
    for (what, bound), whole in zip(subject.bounds.items(), found.expressions, strict=True):
        rows.add_row(printable(what), _number(bound.value), text(rounded(bound.expression)))
        if whole != bound.expression:
            rows.add_row("", "", f"= {text(rounded(whole))}")
    used = {str(symbol) for formula in (*formulas, *found.expressions) for symbol in formula.free_symbols}
    left = {definition.name: definition for definition in (*found.inputs, *found.names)}
    shown = [left.get(d.name, d) for d in subject.definitions if d.name in used or d.name in left]
    yield styled((printable(name), STRONG), f": {printable(subject.title)}")
    yield Text("")
    yield Padding(rows, _INDENT, expand=False)
    yield Text("")
    yield Padding(_names(shown, left), _INDENT, expand=False)


def _gradient(analysis: Analysis, names: Iterable[str]) -> dict[str, Bound]:
    return {
        f"gradient bound of {name}": analysis.parameters[name] for name in names if name in analysis.parameters
    }


def _block(block: Block, analysis: Analysis) -> Subject:
    t, n = block.index, block.count
    bounds = {
        "rate of the norm": block.rate,
        "offset of the norm": block.offset,
        "Lipschitz of a copy": block.lipschitz,
        f"input norm of copy {t}": Bound(block.input_norm, None),
        f"cotangent of copy {t}": Bound(block.cotangent, None),
    }
    bounds |= {f"gradient bound of {name} in copy {t}": Bound(k, None) for name, k in block.gradient.items()}
    bounds[f"gradient bound of copy {t}"] = Bound(block.total, None)
    return Subject(f"{t} = 1 … {n} copies of {', '.join(block.layers[0])}", bounds, analysis.depth.definitions)


def _names(definitions: Sequence[Definition], left: Mapping[str, Definition]) -> Table:
    """Return what names mean; formulas of those alone that are left in what is written out."""
    rows = table("name", "at most", "meaning", "formula", right=("at most",))
    for definition in definitions:
        formula = None
        if definition.value is not None:
            formula = scalar_text(definition.value)
        elif definition.expression is not None and definition.name in left:
            formula = text(rounded(definition.expression))
        rows.add_row(definition.name, _number(definition.upper), printable(definition.meaning), formula)
    return rows


def _number(value: float | None) -> str:
    return "–" if value is None else round_up(value)

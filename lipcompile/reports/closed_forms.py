"""The bounds of one layer, parameter or block in closed form: as derived, and with names written out.

Names are written out as far as the result can still be read. Sizes are counted before anything is substituted:
what would be exponential is never built.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from sympy import Max, Min, preorder_traversal

from lipcompile.core.derivation import Analysis, Block, Bound
from lipcompile.numbers import text as scalar_text
from lipcompile.numbers.known import Definition, names_in, needed
from lipcompile.numbers.symbolic import Formula, Symbolic
from lipcompile.reports.console import STRONG, printable, styled, table
from lipcompile.reports.formulas import dimensions, rounded, text, up

# The most operations that a formula may have after a name in it is written out.
LONGEST_EXPANSION = 200


@dataclass(frozen=True, slots=True)
class Expansion:
    """Formulas with names written out; `names` are those left in them that stand for a formula, written out too.

    inputs: the names left that stand for a number, given or not.
    """

    expressions: tuple[Any, ...]
    names: tuple[Definition, ...]
    inputs: tuple[Definition, ...]


def expand(
    expressions: Iterable[Any], definitions: Iterable[Definition], longest: int = LONGEST_EXPANSION
) -> Expansion:
    """Write out names, the innermost first; `definitions` rest on earlier ones only.

    A name is kept where writing it out would make a formula of more than `longest` operations.
    """
    known = {definition.name: definition for definition in definitions}
    roots = tuple(expressions)
    written: dict[Any, Any] = {}
    for definition in needed(roots, known.values()):
        if definition.expression is not None:
            written[definition.name] = _written(definition.expression, written, longest)
    results = tuple(_written(root, written, longest) for root in roots)
    changed = (replace(one, expression=written.get(one.name)) for one in known.values())
    left = needed(results, changed)
    return Expansion(
        results,
        names=tuple(one for one in left if one.expression is not None),
        inputs=tuple(one for one in left if one.expression is None),
    )


def _written(expression: Any, written: Mapping[str, Any], longest: int) -> Any:
    """Write out names, short ones first, while the formula stays short enough."""
    counts = Counter(part for part in preorder_traversal(expression) if part.is_Symbol)
    costs = {s: n * int(written[s.name].count_ops()) for s, n in counts.items() if s.name in written}
    size, chosen = int(expression.count_ops()), {}
    for symbol in sorted(costs, key=lambda found: (costs[found], found.name)):
        size += costs[symbol]
        if size > longest:
            break
        chosen[symbol] = written[symbol.name]
    return substituted(expression, chosen) if chosen else expression


def substituted(expression: Any, values: Mapping[Any, Any]) -> Any:
    """Replace symbols; extremes are written by the symbolic domain, since sympy's own factor every pair."""
    if expression in values:
        return values[expression]
    if not expression.args or not expression.free_symbols & values.keys():
        return expression
    parts = [substituted(part, values) for part in expression.args]
    if isinstance(expression, Max | Min):
        domain = Symbolic()
        extreme = domain.maximum if isinstance(expression, Max) else domain.minimum
        return extreme(*map(Formula, parts)).expression
    return expression.func(*parts)


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
    for name, owner in analysis.graph.owners().items():
        parameter = analysis.graph.parameters[name]
        title = (
            f"parameter of {owner.name}, {dimensions(parameter.shape, parameter.copies)}, {parameter.constraint}"
        )
        title += "" if name in analysis.parameters else ", not trained"
        found[name] = Subject(title, _gradient(analysis, [name]), analysis.definitions)
    for node, bounds in zip(analysis.graph.nodes, analysis.layers, strict=True):
        own = {"output norm": bounds.output_norm, "cotangent": bounds.cotangent, "Lipschitz": bounds.lipschitz}
        own |= _gradient(analysis, node.parameters.values())
        title, definitions = f"{node.op.name}, output {dimensions(node.shape)}", analysis.definitions
        if (copy := blocks.get(node.name)) is not None:  # all copies of an open repetition, and one of them
            known = {definition.name for definition in definitions}
            definitions += tuple(definition for definition in copy.definitions if definition.name not in known)
            title, own = f"{title}, {copy.title}", {**own, **copy.bounds}
        found[node.name] = Subject(title, own, definitions)
    return found


def closed_forms(name: str, subject: Subject) -> Iterator[RenderableType]:
    """Yield the closed forms of a subject: each formula as derived, below it with names written out."""
    formulas = [bound.expression for bound in subject.bounds.values()]
    found = expand(formulas, subject.definitions)
    rows = table("", "upper bound", "formula", right=("upper bound",))
    for (what, bound), whole in zip(subject.bounds.items(), found.expressions, strict=True):
        rows.add_row(printable(what), up(bound.value), text(rounded(bound.expression)))
        if whole != bound.expression:
            rows.add_row("", "", f"= {text(rounded(whole))}")
    used = names_in((*formulas, *found.expressions))
    left = {definition.name: definition for definition in (*found.inputs, *found.names)}
    shown = [left.get(d.name, d) for d in subject.definitions if d.name in used or d.name in left]
    yield styled((printable(name), STRONG), f": {printable(subject.title)}")
    yield Text("")
    yield Padding(rows, _INDENT, expand=False)
    yield Text("")
    yield Padding(_meanings(shown, left), _INDENT, expand=False)


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


def _meanings(definitions: Sequence[Definition], left: Mapping[str, Definition]) -> Table:
    """Return what names mean; formulas of those alone that are left in what is written out."""
    rows = table("name", "upper bound", "meaning", "formula", right=("upper bound",))
    for definition in definitions:
        formula = None
        if definition.value is not None:
            formula = scalar_text(definition.value)
        elif definition.expression is not None and definition.name in left:
            formula = text(rounded(definition.expression))
        rows.add_row(definition.name, up(definition.upper), printable(definition.meaning), formula)
    return rows

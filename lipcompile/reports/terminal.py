"""The report for people: verdict, requirements, bounds of every parameter, what the names mean, diagnostics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from lipcompile.analysis.requirements import proves
from lipcompile.core.derivation import Analysis, Bound, Derivation
from lipcompile.core.graph import ClipGroup
from lipcompile.diagnostics import Severity
from lipcompile.numbers import text as scalar_text
from lipcompile.numbers.known import Definition, names_in, needed
from lipcompile.numbers.rounding import upward
from lipcompile.reports.console import BAD, GOOD, HINT, STRONG, printable, styled, table
from lipcompile.reports.formulas import count, dimensions, legible, up
from lipcompile.reports.long_formulas import pieces
from lipcompile.reports.messages import Sources, messages
from lipcompile.reports.rows import requirement_rows

_MARKS = {"holds": ("✓", GOOD), "fails": ("✗", BAD), "not reached": ("–", HINT)}
_INDENT = (0, 0, 0, 2)

_MOST_LAYERS = 4
_LONGEST_TOTAL = 200

# Where a report uses more names, a formula that is longer is left to --verbose, with the names in it.
_MOST_NAMES, _LONGEST_FORMULA = 24, 60


def report(derivation: Derivation, sources: Sources, *, verbose: bool = False) -> Iterator[RenderableType]:
    """Yield the parts of the report, from the verdict down to the diagnostics."""
    yield _verdict(derivation)
    yield Text("")
    rows = table("", "", "", "")
    for row in requirement_rows(derivation.requirements):
        rows.add_row(styled(_MARKS[row.state]), row.number, row.title, printable(row.detail))
    yield Padding(rows, _INDENT, expand=False)
    if derivation.analysis is not None:
        yield from _analysis(derivation.analysis, verbose=verbose)
    if derivation.diagnostics:
        yield Text("")
        yield from messages(derivation.diagnostics, sources)


def _verdict(derivation: Derivation) -> Text:
    source, analysis = derivation.source, derivation.analysis
    mark = ("accepted", GOOD) if derivation.ok else ("rejected", BAD)
    errors = sum(d.severity == Severity.ERROR for d in derivation.diagnostics)
    size = count(analysis.graph.size()) if analysis else ""
    detail = f"{size} parameters" if analysis else f"{errors} error{'s' if errors != 1 else ''}"
    return styled(mark, ": ", (printable(source.name), STRONG), f" from {printable(source.path)}, {detail}")


def _analysis(analysis: Analysis, *, verbose: bool) -> Iterator[RenderableType]:
    shown = analysis.definitions if verbose else _mentioned(analysis, whole=True)
    whole = verbose or len(shown) <= _MOST_NAMES
    shown = shown if whole else _mentioned(analysis, whole=False)
    names = [_names(shown, whole=whole)] if shown else []
    parts: list[RenderableType] = [_parameters(analysis), *names, _totals(analysis)]
    parts += _depth(analysis, verbose=verbose)
    if verbose:
        parts.insert(1, _layers(analysis))
    for part in parts:
        yield Text("")
        yield Padding(part, _INDENT, expand=False)
    yield Text("")
    if (hidden := len(analysis.definitions) - len(shown)) and proves(analysis.graph):
        yield Text(f"--verbose shows {hidden} more name{'s' if hidden != 1 else ''} and their formulas.", HINT)
    yield styled("Bounds are of the gradient of one example's loss. Their numbers are certified, and rounded up.")


def _parameters(analysis: Analysis) -> Table:
    rows = table("parameter", "shape", "constraint", "gradient bound", "formula", right=("gradient bound",))
    for name, parameter in analysis.graph.parameters.items():
        bound = analysis.parameters.get(name)
        clip = analysis.graph.clip_of(name)
        source = "" if bound is None else legible(bound.expression) if clip is None else _clipped(clip)
        cells = ("0", "not trained") if bound is None else (up(bound.value), source)
        method = parameter.constraint.method  # what certified the norm of an imported weight
        constraint = f"{parameter.constraint} (by {method})" if method else str(parameter.constraint)
        rows.add_row(printable(name), dimensions(parameter.shape, parameter.copies), constraint, *cells)
    return rows


def _clipped(group: ClipGroup) -> str:
    """Say how a clip bounds the gradients of a group."""
    alone = len(group.parameters) == 1
    rule = "clipped" if group.regulariser is None else "automatic clipping"
    return rule if alone else f"{rule}, group `{group.name}`"


def _layers(analysis: Analysis) -> Table:
    rows = table("layer", "op", "output", "output norm", "cotangent", "Lipschitz")
    for node, found in zip(analysis.graph.nodes, analysis.layers, strict=True):
        bounds = (found.output_norm, found.cotangent, found.lipschitz)
        rows.add_row(node.name, node.op.name, dimensions(node.shape), *map(_both, bounds))
    return rows


def _mentioned(analysis: Analysis, *, whole: bool) -> tuple[Definition, ...]:
    """Return the names that the shown formulas mention, and those without a formula, which may need a value.

    whole: whether the formula of every name is shown.
    """
    proved = proves(analysis.graph)  # or nothing rests on the norms of weights, or of inputs
    bounds = (*analysis.parameters.values(), analysis.total, *([analysis.lipschitz] if proved else []))
    formulas = [bound.expression for bound in bounds]
    found = {one.name for one in needed(formulas, analysis.definitions, lambda one: whole or _short(one))}
    return tuple(d for d in analysis.definitions if d.name in found or (proved and d.expression is None))


def _short(expression: Any) -> bool:
    return len(legible(expression)) <= _LONGEST_FORMULA


def _names(definitions: Sequence[Definition], *, whole: bool) -> Table:
    rows = table("name", "upper bound", "meaning", "formula", right=("upper bound",))
    for definition in definitions:
        value = Text("not given", HINT) if definition.upper is None else Text(upward(definition.upper))
        parts: Sequence[tuple[Any, Any]] = ()
        if definition.expression is None:
            formula = None if definition.value is None else scalar_text(definition.value)
        elif whole or _short(definition.expression):
            found = pieces(definition.expression)
            formula, parts = legible(found.whole), found.parts
        else:
            formula = "shown by --verbose"
        rows.add_row(definition.name, value, printable(definition.meaning), formula)
        for name, part in parts:
            rows.add_row("", "", "", f"{name} = {legible(part)}")
    return rows


def _totals(analysis: Analysis) -> Table:
    rows = table("total", "upper bound", "", right=("upper bound",))
    totals = {"gradient bound, all parameters": analysis.total}
    if proves(analysis.graph):
        totals["Lipschitz, input to output"] = analysis.lipschitz
    for what, bound in totals.items():
        rows.add_row(what, up(bound.value), legible(bound.expression))
    if proves(analysis.graph):
        growth = (analysis.depth.regime or "depends on symbols", analysis.depth.growth)
        rows.add_row("growth with depth", "", ", ".join(filter(None, growth)))
    return rows


def _depth(analysis: Analysis, *, verbose: bool) -> Iterator[RenderableType]:
    """Yield what repeats, and the bound over the numbers of copies."""
    depth = analysis.depth
    if not proves(analysis.graph) or not (depth.blocks or depth.unsolved):
        return
    rows = table("repeats", "copies", "regime", "Lipschitz", "layers of one copy")
    for block in depth.blocks:
        copies = f"{block.count}" if block.repeats is None else f"{block.count} = {block.repeats}"
        regime = block.regime or "depends on symbols"
        rows.add_row(
            block.name, copies, regime, legible(block.lipschitz.expression), _first_layers(block.layers[0])
        )
    for found in depth.unsolved:
        layers = f"{_first_layers(found.layers[0])}; no closed form: {found.reason}"
        rows.add_row("", str(len(found.layers)), "", "", layers)
    yield rows
    total, unrolled = depth.gradient_bound, any(block.repeats is not None for block in depth.blocks)
    shown = [block.lipschitz.expression for block in depth.blocks]
    if total is not None and unrolled and len(legible(total.expression)) <= _LONGEST_TOTAL:
        yield styled("gradient bound, by the numbers of copies: ", legible(total.expression))
        shown.append(total.expression)
    used = names_in(shown)
    if names := [definition for definition in analysis.names_of_depth() if definition.name in used]:
        yield _names(names, whole=verbose)
    for text in depth.advice:
        yield styled(text)


def _first_layers(layers: Sequence[str]) -> str:
    shown = ", ".join(map(printable, layers[:_MOST_LAYERS]))
    return shown if len(layers) <= _MOST_LAYERS else f"{shown}, … ({len(layers)})"


def _both(bound: Bound) -> str:
    formula = legible(bound.expression)
    exact = bound.value is None or bound.expression.is_Integer
    return formula if exact else f"{formula} <= {upward(bound.value or 0.0)}"

"""What a report for people shows, ready to be laid out: HTML, Markdown and LaTeX differ in their layout alone.

Each of them is a module with a function `render(document) -> str`, which returns the text of the file.

Tables are bounded: of a large model one row stands for all copies of a layer, and what is still too much is left
out and counted. The JSON report leaves nothing out.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Generic, TypeVar

from lipcompile.analysis.changes import Change, Share, dominating
from lipcompile.analysis.requirements import proves
from lipcompile.core.derivation import Analysis, Block, Bound, Derivation, LayerBounds
from lipcompile.core.graph import Graph, Node, Parameter
from lipcompile.diagnostics import Diagnostic
from lipcompile.numbers import Scalar
from lipcompile.numbers.known import Definition
from lipcompile.reports.rows import (
    Measured,
    RequirementRow,
    SignalRow,
    first_copies,
    grouped,
    layer_of_all,
    requirement_rows,
    signal_row,
    together,
)

# The most rows that a table has, and the most points that a curve is drawn through.
LARGEST_TABLE = 100
_DOMINATING = 5
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Rows(Generic[T]):
    """The rows of a table, and how many more there are that it does not show."""

    shown: tuple[T, ...] = ()
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class LayerRow:
    """A node and its bounds. If it stands for `copies` copies, they hold of all of them: see `together`."""

    node: Node
    bounds: LayerBounds
    copies: int = 1


@dataclass(frozen=True, slots=True)
class ParameterRow:
    """A parameter, the first layer that uses it, and its bound: None if it is not trained.

    share: K² over the sum of all K², to the nearest double; None unless both are known, and for what a clip bounds
    together with others. If the row stands for `copies` copies, the bound holds of each of them, and the share is
    that of all. clip: the name of the group that it is clipped with, empty if it is not.
    """

    parameter: Parameter
    layer: str
    bound: Bound | None
    share: float | None
    copies: int = 1
    clip: str = ""


@dataclass(frozen=True, slots=True)
class SignalTable:
    """Noise against signal: all that was measured, the rows of a table, and that of the whole gradient."""

    measured: Measured
    rows: Rows[SignalRow]
    total: SignalRow


@dataclass(frozen=True, slots=True)
class Curve:
    """ε after so many steps, in their order, by one accountant; `note` says why there are no (more) points."""

    accountant: str
    points: tuple[tuple[int, float], ...] = ()
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Privacy:
    """What the curves of ε were computed for. `target` is the ε that noise or steps were chosen for, if any."""

    noise_multiplier: float
    sampling_rate: float
    steps: int
    delta: float
    neighbours: str
    curves: tuple[Curve, ...]
    target: float | None = None

    def rows(self) -> list[tuple[int, tuple[float | None, ...]]]:
        """Return the curves as a table: steps, and ε by each accountant, None where it has no answer."""
        found = [dict(curve.points) for curve in self.curves]
        return [(steps, tuple(points.get(steps) for points in found)) for steps in sorted(set().union(*found))]


PRIVACY_HINT = (
    "--noise-multiplier, --sampling-rate, --steps and --delta, or the model's `train` block, give the curve"
)


@dataclass(frozen=True, slots=True)
class Document:
    """Everything that a report shows.

    Verdict, model facts, totals and depth are those of the `derivation` itself. A rejected model has requirements
    and diagnostics, and no row of anything else. `size` is its number of scalar parameters, `trained` how many of
    them are trained. `dominating` are the largest shares of ΣK² that are of one parameter, copies of a layer taken
    together. `depth_symbols` are names that mean in formulas of depth what they do not mean elsewhere. `privacy`
    is None if no curve was asked for: `PRIVACY_HINT` says what would give one. `signal` is None if nothing was
    measured.
    """

    derivation: Derivation
    requirements: tuple[RequirementRow, ...]
    diagnostics: Rows[Diagnostic]
    size: Scalar = Fraction(0)
    trained: Scalar = Fraction(0)
    symbols: Rows[Definition] = Rows()
    layers: Rows[LayerRow] = Rows()
    parameters: Rows[ParameterRow] = Rows()
    dominating: Rows[Share] = Rows()
    blocks: Rows[Block] = Rows()
    depth_symbols: Rows[Definition] = Rows()
    suggestions: Rows[Change] = Rows()
    privacy: Privacy | None = None
    signal: SignalTable | None = None

    @property
    def proved(self) -> bool:
        """Whether theorems bound any gradient; constants of layers and of depth bound none that is clipped."""
        analysis = self.derivation.analysis
        return analysis is not None and proves(analysis.graph)

    @property
    def ranked(self) -> bool:
        """Whether suggestions are ranked by signal over noise."""
        return any(change.gain is not None for change in self.suggestions.shown)


def document(
    derivation: Derivation,
    *,
    suggestions: Sequence[Change] = (),
    privacy: Privacy | None = None,
    signal: Measured | None = None,
    limit: int = LARGEST_TABLE,
) -> Document:
    """Return what a report of `derivation` shows, at most `limit` rows a table."""
    rows = requirement_rows(derivation.requirements)
    diagnostics = _first(derivation.diagnostics, limit)
    if derivation.analysis is None:
        return Document(derivation, rows, diagnostics, privacy=privacy)
    analysis = derivation.analysis
    large = len(analysis.graph.nodes) > limit
    first = first_copies(analysis.depth.blocks) if large else {}
    layers = _layers(analysis, first, limit)
    parameters = _parameters(analysis, first, limit)
    return Document(
        derivation,
        rows,
        diagnostics,
        size=analysis.graph.size(),
        trained=analysis.graph.size(trained=True),
        symbols=_symbols(analysis, layers.shown, parameters.shown, limit),
        layers=layers,
        parameters=parameters,
        dominating=_first(
            [one for one in dominating(analysis) if not any(map(analysis.graph.clip_of, one.names))], _DOMINATING
        ),
        blocks=_first(analysis.depth.blocks, limit),
        depth_symbols=_first(analysis.names_of_depth(), limit),
        suggestions=_first(suggestions, limit),
        privacy=privacy,
        signal=None if signal is None else _signal_table(signal, _alike(analysis.graph, first), limit),
    )


def _signal_table(found: Measured, groups: Mapping[Any, Sequence[str]], limit: int) -> SignalTable:
    """Take copies together; of what is still too much keep what the noise is largest in."""
    known = found.signals.parameters
    rows = [signal_row(names[0], [known[name] for name in names if name in known]) for names in groups.values()]
    trained = [row for row in rows if row.bound > 0]
    kept = {row.name for row in sorted(trained, key=lambda row: -row.noise)[:limit]}
    shown = tuple(row for row in trained if row.name in kept)
    left_out = sum(row.copies for row in trained) - sum(row.copies for row in shown)
    return SignalTable(found, Rows(shown, left_out), signal_row("whole gradient", [found.signals.total]))


def _layers(analysis: Analysis, first: Mapping[str, str], limit: int) -> Rows[LayerRow]:
    nodes = {node.name: node for node in analysis.graph.nodes}
    bounds = {found.name: found for found in analysis.layers}
    rows = [
        LayerRow(nodes[name], layer_of_all([bounds[copy] for copy in copies]), len(copies))
        for name, copies in grouped(nodes, first).items()
    ]
    half = limit // 2
    shown = rows if len(rows) <= limit else [*rows[:half], *rows[len(rows) - half :]]
    return Rows(tuple(shown), len(nodes) - sum(row.copies for row in shown))


def _parameters(analysis: Analysis, first: Mapping[str, str], limit: int) -> Rows[ParameterRow]:
    """Take copies together; of what is still too much keep those with the largest shares."""
    share, groups = shares(analysis), _alike(analysis.graph, first)
    rows = [_parameter(analysis, copies, layer, share) for (layer, *_), copies in groups.items()]
    largest = sorted(rows, key=lambda row: -(row.share or 0.0))[:limit]
    kept = {row.parameter.name for row in largest}
    shown = tuple(row for row in rows if row.parameter.name in kept)
    return Rows(shown, len(analysis.graph.parameters) - sum(row.copies for row in shown))


def _alike(graph: Graph, first: Mapping[str, str]) -> dict[tuple[str, str, str, bool, str], list[str]]:
    """Return parameters by the layer of the first copy, role, constraint, whether they are trained, and clip."""
    groups: dict[tuple[str, str, str, bool, str], list[str]] = {}
    seen: set[str] = set()
    for node in graph.nodes:
        for role, name in node.parameters.items():
            if name not in seen:  # a shared one belongs to the first layer that uses it
                seen.add(name)
                parameter = graph.parameters[name]
                layer, constraint = first.get(node.name, node.name), str(parameter.constraint)
                key = (layer, role, constraint, parameter.trainable, _clip(graph, name))
                groups.setdefault(key, []).append(name)
    return groups


def _clip(graph: Graph, name: str) -> str:
    group = graph.clip_of(name)
    return "" if group is None else group.name


def _parameter(analysis: Analysis, copies: Sequence[str], layer: str, share: Mapping[str, float]) -> ParameterRow:
    bounds = [analysis.parameters[name] for name in copies if name in analysis.parameters]
    parts = [share[name] for name in copies if name in share]
    return ParameterRow(
        analysis.graph.parameters[copies[0]],
        layer,
        bound=together(bounds) if bounds else None,
        share=math.fsum(parts) if parts else None,
        copies=len(copies),
        clip=_clip(analysis.graph, copies[0]),
    )


def shares(analysis: Analysis) -> dict[str, float]:
    """Return K²/ΣK² where all K are known, of parameters that no clip bounds together with others."""
    total = analysis.total.value
    return {
        name: (bound.value / total) ** 2
        for name, bound in analysis.parameters.items()
        if total and bound.value is not None and analysis.graph.clip_of(name) is None
    }


def _symbols(
    analysis: Analysis, layers: Iterable[LayerRow], parameters: Iterable[ParameterRow], limit: int
) -> Rows[Definition]:
    """Keep the names that shown formulas mention, nearest first if they are too many, in their order."""
    formulas = [analysis.total.expression, analysis.lipschitz.expression]
    formulas += [row.bound.expression for row in parameters if row.bound is not None]
    for row in layers:
        formulas += [bound.expression for bound in (row.bounds.output_norm, row.bounds.cotangent)]
    known = {definition.name: definition for definition in analysis.definitions}
    inputs = [name for name, definition in known.items() if definition.expression is None]
    kept = set(_mentioned(formulas, known, inputs, limit))
    shown = tuple(definition for name, definition in known.items() if name in kept)
    return Rows(shown, len(known) - len(shown))


def _mentioned(
    formulas: Sequence[Any], known: Mapping[str, Definition], first: Sequence[str], limit: int
) -> list[str]:
    """Return up to `limit` names: those in `first`, then those in formulas, then those in their definitions."""
    found = dict.fromkeys(first[:limit])
    waiting = deque(formulas)
    while waiting:
        for name in sorted(str(symbol) for symbol in waiting.popleft().free_symbols):
            if name in known and name not in found and len(found) < limit:
                found[name] = None
                waiting.append(known[name].expression)
    return list(found)


def _first(items: Sequence[T], limit: int) -> Rows[T]:
    return Rows(tuple(items[:limit]), max(0, len(items) - limit))

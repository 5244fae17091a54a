"""What a report for people shows, ready to be laid out: HTML, Markdown and LaTeX differ in their layout alone.

Each of them is a module with a function `render(document) -> str`, which returns the text of the file.

Tables are bounded: of a large model the first copy of every block stands for all of them, and what is still too
much is left out and counted. The JSON report leaves nothing out.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Generic, Literal, TypeVar

from lipcompile.derivation import NOT_REACHED, Analysis, Block, Bound, Derivation, LayerBounds, Requirements
from lipcompile.diagnostics import Diagnostic
from lipcompile.graph import Node, Parameter
from lipcompile.numbers import Scalar
from lipcompile.numbers.symbolic import Definition
from lipcompile.passes.what_if import Change, Share, dominating

# The most rows that a table has, and the most points that a curve is drawn through.
LARGEST_TABLE = 100
_DOMINATING = 5
T = TypeVar("T")

State = Literal["holds", "fails", "not reached"]

_TITLES = {
    "lipschitz_loss": ("R1", "Lipschitz loss"),
    "bounded_input": ("R2", "bounded input"),
    "lipschitz_layers": ("R3", "Lipschitz layers"),
}


@dataclass(frozen=True, slots=True)
class Rows(Generic[T]):
    """The rows of a table, and how many more there are that it does not show."""

    shown: tuple[T, ...] = ()
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class RequirementRow:
    """One of R1 to R3: `number` is R1, `title` what it asks."""

    number: str
    title: str
    state: State
    detail: str


@dataclass(frozen=True, slots=True)
class LayerRow:
    """A node and its bounds. It stands for itself, or is the first of `copies` copies of a block."""

    node: Node
    bounds: LayerBounds
    copies: int = 1


@dataclass(frozen=True, slots=True)
class ParameterRow:
    """A parameter, the first layer that uses it, and its bound: None if it is not trained.

    share: K² over the sum of all K², to the nearest double; None unless both are known. It is the share of this
    parameter alone, also where the row stands for `copies` copies.
    """

    parameter: Parameter
    layer: str
    bound: Bound | None
    share: float | None
    copies: int = 1


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
    them are trained. `dominating` are the largest shares of ΣK², copies of a layer taken together. `depth_symbols`
    are names that mean in formulas of depth what they do not mean elsewhere. `privacy` is None if no curve was
    asked for: `PRIVACY_HINT` says what would give one.
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


def document(
    derivation: Derivation,
    *,
    suggestions: Sequence[Change] = (),
    privacy: Privacy | None = None,
    limit: int = LARGEST_TABLE,
) -> Document:
    """Return what a report of `derivation` shows, at most `limit` rows a table."""
    rows = requirement_rows(derivation.requirements)
    diagnostics = _first(derivation.diagnostics, limit)
    if derivation.analysis is None:
        return Document(derivation, rows, diagnostics, privacy=privacy)
    analysis = derivation.analysis
    copies = _copies(analysis, limit)
    layers = _layers(analysis, copies, limit)
    parameters = _parameters(analysis, copies, limit)
    return Document(
        derivation,
        rows,
        diagnostics,
        size=analysis.graph.size(),
        trained=analysis.graph.size(trained=True),
        symbols=_symbols(analysis, layers.shown, parameters.shown, limit),
        layers=layers,
        parameters=parameters,
        dominating=_first(dominating(analysis), _DOMINATING),
        blocks=_first(analysis.depth.blocks, limit),
        depth_symbols=_first(_of_depth_alone(analysis), limit),
        suggestions=_first(suggestions, limit),
        privacy=privacy,
    )


def requirement_rows(requirements: Requirements) -> tuple[RequirementRow, ...]:
    """Return R1 to R3 with their titles."""
    rows = []
    for field, (number, title) in _TITLES.items():
        found = getattr(requirements, field)
        state: State = "not reached" if found.detail == NOT_REACHED else "holds" if found.ok else "fails"
        rows.append(RequirementRow(number, title, state, found.detail))
    return tuple(rows)


def users(analysis: Analysis) -> dict[str, str]:
    """Return the layer of each parameter: a shared one belongs to the first layer that uses it."""
    found: dict[str, str] = {}
    for node in analysis.graph.nodes:
        for name in node.parameters.values():
            found.setdefault(name, node.name)
    return found


def _copies(analysis: Analysis, limit: int) -> dict[str, int]:
    """Return how many copies each layer stands for, 0 for one that another stands for; empty for a small model."""
    if len(analysis.graph.nodes) <= limit:
        return {}
    found: dict[str, int] = {}
    for block in analysis.depth.blocks:  # those inside others too: there factors multiply
        for index, copy in enumerate(block.layers):
            for name in copy:
                found[name] = found.get(name, 1) * (0 if index else len(block.layers))
    return found


def _layers(analysis: Analysis, copies: Mapping[str, int], limit: int) -> Rows[LayerRow]:
    rows = [
        LayerRow(node, bounds, copies.get(node.name, 1))
        for node, bounds in zip(analysis.graph.nodes, analysis.layers, strict=True)
        if copies.get(node.name) != 0
    ]
    return _ends(rows, len(analysis.graph.nodes), limit)


def _parameters(analysis: Analysis, copies: Mapping[str, int], limit: int) -> Rows[ParameterRow]:
    """Keep the parameters of shown layers; of those that are still too many, the ones with the largest bounds."""
    layer, share = users(analysis), shares(analysis.parameters)
    rows = [
        ParameterRow(
            parameter, layer[name], analysis.parameters.get(name), share.get(name), copies.get(layer[name], 1)
        )
        for name, parameter in analysis.graph.parameters.items()
        if copies.get(layer[name]) != 0
    ]
    largest = sorted(rows, key=lambda row: -(row.share or 0.0))[:limit]
    kept = {row.parameter.name for row in largest}
    shown = tuple(row for row in rows if row.parameter.name in kept)
    return Rows(shown, len(analysis.graph.parameters) - len(shown))


def shares(bounds: Mapping[str, Bound]) -> dict[str, float]:
    """Return K²/ΣK² where all K are known; scaled by the largest, so that no square overflows."""
    values = {name: bound.value for name, bound in bounds.items() if bound.value is not None}
    largest = max(values.values(), default=0.0)
    if len(values) < len(bounds) or largest == 0:
        return {}
    squares = {name: (value / largest) ** 2 for name, value in values.items()}
    total = math.fsum(squares.values())
    return {name: square / total for name, square in squares.items()}


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


def _of_depth_alone(analysis: Analysis) -> list[Definition]:
    """Return the names that formulas of depth have for something else, or something more, than the others."""
    known = {definition.name: definition.expression for definition in analysis.definitions}
    return [d for d in analysis.depth.definitions if d.name not in known or known[d.name] != d.expression]


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


def _ends(items: Sequence[T], total: int, limit: int) -> Rows[T]:
    """Keep the first and the last of too many rows: how a network begins and how it ends."""
    half = limit // 2
    shown = items if len(items) <= limit else [*items[:half], *items[len(items) - half :]]
    return Rows(tuple(shown), total - len(shown))

"""The graph as SVG: a column of rows from the input to the loss, and lanes at its left for what skips rows."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from lipcompile.core.derivation import Analysis, Bound
from lipcompile.core.graph import Input
from lipcompile.numbers import text as scalar_text
from lipcompile.numbers.rounding import upward
from lipcompile.reports.document import Document, shares
from lipcompile.reports.formulas import count, dimensions, percent, text
from lipcompile.reports.html.layout import Bracket, Lane, Layout, Part, Row, layout
from lipcompile.reports.templating import environment

_LONGEST, _LONGEST_FACTOR = 36, 16


@dataclass(frozen=True, slots=True)
class Mark:
    """A row: `heat` is its share of the bound, over the largest of any row; `link` a layer in the table."""

    kind: str
    name: str
    detail: str
    title: str
    heat: float = 0.0
    link: str | None = None


def marks(document: Document, analysis: Analysis, rows: tuple[Row, ...]) -> Iterator[Mark]:
    """Yield the marks of rows and, behind them, that of the loss."""
    parameters = shares(analysis)
    share = [_share(row, parameters) for row in rows]
    largest = max((part for part in share if part is not None), default=0.0) or 1.0
    bounds = {found.name: found.lipschitz for found in analysis.layers}
    linked = {row.node.name for row in document.layers.shown}
    yield _input(analysis.graph.input)
    for row, part in zip(rows[1:], share[1:], strict=True):
        if row.hidden:
            hidden = count(len(row.parts))
            yield Mark("gap", f"… {hidden} more", "", f"{hidden} layers that are not drawn")
        else:
            yield _layer(row.parts[0], bounds, part, (part or 0.0) / largest, linked)
    yield _loss(analysis)


def _share(row: Row, share: Mapping[str, float]) -> float | None:
    """Return the part of the sum of K² that the parameters of a row have together; None if it trains none."""
    trained = {name for part in row.parts for name in part.parameters if name in share}
    return sum(share[name] for name in trained) if trained else None


def _input(given: Input) -> Mark:
    norm = (
        "tokens"
        if given.tokens
        else "norm not given"
        if given.norm is None
        else f"norm ≤ {scalar_text(given.norm)}"
    )
    detail = f"input · {dimensions(given.shape)} · {norm}"
    return Mark("input", _short(given.name), detail, f"{given.name}: {detail}")


def _layer(
    part: Part, bounds: Mapping[str, Bound], share: float | None, heat: float, linked: Container[str]
) -> Mark:
    node = part.node
    # What is known of a loop is known of all its copies together, and not of a layer in its body.
    factor = _factor(bounds.get(part.key))
    facts = [node.op.name, dimensions(node.shape)]
    facts += [f"×{factor}"] if factor else []
    facts += [percent(share)] if share is not None else []
    link = part.layer if part.layer in linked else None
    return Mark("node", _short(node.name), " · ".join(facts), f"{node.name}: {', '.join(facts)}", heat, link)


def _factor(lipschitz: Bound | None) -> str | None:
    """Return by how much a layer may enlarge distances; None if it is 1, which goes without saying."""
    if lipschitz is None or lipschitz.expression == 1:
        return None
    if lipschitz.value is None:
        formula = text(lipschitz.expression)
        return formula if len(formula) <= _LONGEST_FACTOR else "…"
    number = upward(lipschitz.value, 4)
    return number.rstrip("0").rstrip(".") if "e" not in number else number


def _loss(analysis: Analysis) -> Mark:
    use, bound = analysis.graph.loss, analysis.loss_lipschitz
    constant = "not given" if bound.value is None else f"≤ {upward(bound.value, 4)}"
    name = use.loss.name if use else "no loss"
    return Mark("loss", name, f"loss · Lipschitz {constant}", f"{name}: Lipschitz constant {constant}")


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"


# Distances in CSS pixels: rows, lanes, the width of all lanes at most, what stands around the drawing.
_ROW, _LANE, _LANES, _EDGE = 44.0, 14.0, 168.0, 20.0
_RADIUS, _INSET = 7.0, 5.0
# Widths of an average letter of the two lines of a row.
_LETTER, _SMALL_LETTER = 8.0, 6.9


@dataclass(frozen=True, slots=True)
class Frame:
    """The box around rows that stand for several copies; `end` is where its label ends."""

    x: float
    y: float
    width: float
    height: float
    label: str
    end: float


@dataclass(frozen=True, slots=True)
class Drawing:
    """Everything that is drawn, with its place: marks by their height, edges as outlines."""

    width: float
    height: float
    x: float
    marks: tuple[tuple[float, Mark], ...]
    frames: tuple[Frame, ...]
    paths: tuple[str, ...]


def drawing(document: Document) -> Markup:
    """Return the graph of an accepted model as an `svg` element, in the colours of the page."""
    analysis = document.derivation.analysis
    assert analysis is not None, "a rejected model has no graph"
    found = layout(analysis.graph, analysis.depth.blocks)
    placed = place(found, tuple(marks(document, analysis, found.rows)))
    return Markup(environment().get_template("graph.svg.jinja").render(drawing=placed))


def place(found: Layout, said: Sequence[Mark]) -> Drawing:
    """Give rows, frames and edges their coordinates. There is one mark a row, and one more for the loss."""
    step = min(_LANE, _LANES / found.columns) if found.columns else 0.0
    x = _EDGE + found.columns * step + _RADIUS
    slot = max((_EDGE + len(_label(bracket)) * _LETTER for bracket in found.brackets), default=0.0)
    slots = max((bracket.depth + 1 for bracket in found.brackets), default=0)
    width = x + max(map(_width, said)) + slots * slot
    ends = [*found.straight, (len(said) - 2, len(said) - 1)]
    paths = [f"M{x:g} {_y(start):g}V{_y(end):g}" for start, end in ends]
    for lane in found.lanes:
        paths += _curves(lane, x, x - _RADIUS - (lane.column + 1) * step)
    frames = tuple(_frame(bracket, width, slot) for bracket in found.brackets)
    return Drawing(
        width,
        _y(len(said) - 1) + _EDGE,
        x,
        tuple((_y(row), mark) for row, mark in enumerate(said)),
        frames,
        tuple(paths),
    )


def _y(row: int) -> float:
    return _EDGE + row * _ROW


def _width(mark: Mark) -> float:
    return _EDGE + max(len(mark.name) * _LETTER, len(mark.detail) * _SMALL_LETTER)


def _curves(lane: Lane, x: float, side: float) -> Iterator[str]:
    """Yield the way of a value down its lane to the last reader, and from the lane to each reader before."""
    *branches, last = lane.ends
    bend, half = 0.3 * _ROW, 0.5 * _ROW
    down = f"M{x:g} {_y(lane.start):g}C{x:g} {_y(lane.start) + bend:g} {side:g} {_y(lane.start) + half - bend:g}"
    yield f"{down} {side:g} {_y(lane.start) + half:g}V{_y(last) - half:g}{_into(x, side, last)}"
    for row in branches:
        yield f"M{side:g} {_y(row) - half:g}{_into(x, side, row)}"


def _into(x: float, side: float, row: int) -> str:
    bend, half = 0.3 * _ROW, 0.5 * _ROW
    return f"C{side:g} {_y(row) - half + bend:g} {x:g} {_y(row) - bend:g} {x:g} {_y(row):g}"


def _frame(bracket: Bracket, width: float, slot: float) -> Frame:
    """Return the box of a bracket; labels of boxes in one another stand side by side, `slot` apart."""
    inset = 2.0 + bracket.depth * _INSET
    top, bottom = _y(bracket.first) - _ROW / 2 + inset, _y(bracket.last) + _ROW / 2 - inset
    end = width - _INSET - 8.0 - bracket.depth * slot
    return Frame(inset, top, width - 2 * inset, bottom - top, _label(bracket), end)


def _label(bracket: Bracket) -> str:
    return f"× {count(bracket.count)}"

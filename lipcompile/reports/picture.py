"""A derivation as one picture for a slide: the graph with the bounds along its edges, and curves over open depths.

matplotlib draws it, as SVG or PNG. The same derivation gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from lipcompile.analysis.depth.regimes import curves
from lipcompile.core.derivation import Analysis, Bound, LayerBounds, largest
from lipcompile.numbers import text as scalar_text
from lipcompile.numbers.rounding import finite, upward
from lipcompile.reports.document import shares
from lipcompile.reports.formulas import count, dimensions, percent, text
from lipcompile.reports.html.layout import Layout, Row, layout
from lipcompile.reports.html.plots import Colours, Plot, Series, draw, settings
from lipcompile.reports.rows import layer_of_all

SUFFIXES = (".svg", ".png")
# A slide, in inches; so many rows of layers fit on it, and so many curves beside them.
_WIDTH, _HEIGHT, _ROWS, _CURVES = 13.33, 7.5, 18, 2
_COLOURS = Colours("#1b1f24", "#57616b", "#dde1e6", ("#0b5cad", "#1b1f24", "#57616b"))
_DOTS = 150
# Inches: between lanes, from the lanes to the text, of bars, to the bars, of the tallest row.
_LANE, _GAP, _BAR, _BARS, _TALLEST = 0.16, 0.25, 1.3, 7.6, 0.62
_DIGITS, _LONGEST, _LONGEST_NAME, _OPEN = 4, 24, 26, "a formula"


def save(analysis: Analysis, path: Path) -> None:
    """Write the picture of an accepted model; the suffix of the path is one of `SUFFIXES`. Raises OSError."""
    with mpl.rc_context(settings(_COLOURS)):
        shown = replace(analysis, depth=curves(analysis.graph, analysis.depth))
        metadata = {"Date": None, "Creator": None} if path.suffix == ".svg" else {"Software": None}
        _figure(shown).savefig(path, dpi=_DOTS, metadata=metadata)


def _figure(analysis: Analysis) -> Figure:
    figure = Figure(figsize=(_WIDTH, _HEIGHT))
    drawn = [block for block in analysis.depth.blocks if block.curve and block.repeats is None][:_CURVES]
    width = _WIDTH - 0.6 - (4.6 if drawn else 0.0)
    _title(figure, analysis)
    graph = figure.add_axes((0.3 / _WIDTH, 0.45 / _HEIGHT, width / _WIDTH, 5.9 / _HEIGHT))
    _graph(graph, analysis, width, 5.9)
    for index, block in enumerate(drawn):
        height = 5.4 / len(drawn)
        low = 0.95 + (len(drawn) - 1 - index) * height
        panel = figure.add_axes(((width + 1.3) / _WIDTH, low / _HEIGHT, 3.4 / _WIDTH, (height - 0.75) / _HEIGHT))
        y = "gradient of one example, at most"
        curve = [Series(block.name, block.curve)]
        draw(
            panel,
            Plot(block.name, "", "", f"{block.count}, copies of {block.name}", y, curve, log_y=True),
            _COLOURS,
        )
    legend = "↓ norm    ↑ gradient of the loss in it    K: largest of a layer's parameters     bars: shares of K²"
    figure.text(0.3 / _WIDTH, 0.16 / _HEIGHT, legend, color=_COLOURS.muted, fontsize=8.5)
    return figure


def _title(figure: Figure, analysis: Analysis) -> None:
    graph, depth = analysis.graph, analysis.depth
    size = f"{count(graph.size())} parameters"
    growth = (
        f"growth with depth: {depth.regime or 'depends on symbols'}{f', {depth.growth}' if depth.growth else ''}"
    )
    figure.text(0.3 / _WIDTH, 6.98 / _HEIGHT, graph.name, fontsize=19, weight="bold", color=_COLOURS.ink)
    said = f"{_at_most('gradient of one example', [analysis.total])}     {size}     {growth}"
    figure.text(0.3 / _WIDTH, 6.6 / _HEIGHT, said, fontsize=11, color=_COLOURS.muted)


def _graph(axes: Axes, analysis: Analysis, width: float, height: float) -> None:
    """Draw the graph in inches, the input at the top."""
    found = layout(analysis.graph, analysis.depth.blocks, _ROWS)
    step = min(height / (len(found.rows) + 1), _TALLEST)
    axes.set(xlim=(0, width), ylim=(-height, 0))
    axes.set_axis_off()
    x = 0.15 + found.columns * _LANE

    def y(row: float) -> float:
        return -step * (row + 0.5)

    _edges(axes, found, x, step)
    for bracket in found.brackets:
        inset = 0.05 * bracket.depth
        edge = 0.22 * step + inset  # room for the bounds along the edges that enter and leave the box
        box = (inset, y(bracket.last) - step / 2 + edge), width - 2 * inset
        tall, style = step * (bracket.last - bracket.first + 1) - 2 * edge, "round,pad=0,rounding_size=0.08"
        axes.add_patch(FancyBboxPatch(*box, tall, style, facecolor="#f5f6f8", edgecolor=_COLOURS.line, zorder=0))
        axes.text(
            width - 0.12 - inset,
            y(bracket.first),
            f"× {count(bracket.count)}",
            ha="right",
            va="center",
            fontsize=10,
        )
    size = min(10.0, 26.0 * step)
    for row, (name, detail) in enumerate(_rows(found, analysis)):
        axes.text(x + _GAP, y(row), name, va="center", fontsize=size, weight="bold", color=_COLOURS.ink)
        axes.text(x + 2.6, y(row), detail, va="center", fontsize=0.86 * size, color=_COLOURS.muted)
        axes.plot([x], [y(row)], "o", color="white", markeredgecolor=_COLOURS.ink, markersize=0.8 * size)
    for row, said in enumerate(_along(found, analysis)):
        axes.text(x + _GAP, y(row + 0.5), said, va="center", fontsize=0.78 * size, color=_COLOURS.series[0])
    _bars(axes, found, analysis, width, y, 0.86 * size)


def _edges(axes: Axes, found: Layout, x: float, step: float) -> None:
    last = len(found.rows) - 1
    for start, end in (*found.straight, (last, last + 1)):
        axes.plot(
            [x, x], [-step * (start + 0.5), -step * (end + 0.5)], color=_COLOURS.muted, linewidth=1.2, zorder=1
        )
    for lane in found.lanes:
        side = x - (lane.column + 1) * _LANE
        for end in lane.ends:
            rows = (lane.start, lane.start + 0.5, end - 0.5, end)
            axes.plot(
                [x, side, side, x],
                [-step * (row + 0.5) for row in rows],
                color=_COLOURS.muted,
                linewidth=1.2,
                zorder=1,
            )


def _rows(found: Layout, analysis: Analysis) -> Iterator[tuple[str, str]]:
    """Yield the name of each row and what it says beside it, and those of the loss."""
    given = analysis.graph.input
    yield given.name, f"input · {dimensions(given.shape)}"
    for row in found.rows[1:]:
        node = row.parts[0].node
        if row.hidden:
            yield f"… {count(len(row.parts))} more", ""
        else:
            name = node.name if len(node.name) <= _LONGEST_NAME else f"{node.name[:_LONGEST_NAME]}…"
            yield name, f"{node.op.name} · {dimensions(node.shape)}"
    loss = analysis.graph.loss.loss.name if analysis.graph.loss else "no loss"
    yield loss, f"loss · {_at_most('Lipschitz constant', [analysis.loss_lipschitz])}"


def _along(found: Layout, analysis: Analysis) -> Iterator[str]:
    """Yield what the edge below each row says: norm and cotangent of the value of the row."""
    name, numbers = analysis.graph.input.name, analysis.numbers
    norm = "norm not given" if analysis.graph.input.norm is None else f"↓ {scalar_text(analysis.graph.input.norm)}"
    back = finite(numbers.cotangent[name].upper)
    yield ("↓ tokens" if analysis.graph.input.tokens else norm) + (
        f"    ↑ {upward(back, _DIGITS)}" if back else ""
    )
    known = {layer.name: layer for layer in analysis.layers}
    for row in found.rows[1:]:
        yield "" if row.hidden else _both(row, known)


def _both(row: Row, known: Mapping[str, LayerBounds]) -> str:
    """Return the bounds of a row: of all its copies the largest. What is inside of a loop has none of its own."""
    bounds = [known[part.key] for part in row.parts if part.key in known]
    if not bounds:
        return ""
    of_all = layer_of_all(bounds)
    return f"↓ {_shown(of_all.output_norm)}    ↑ {_shown(of_all.cotangent)}"


def _bars(axes: Axes, found: Layout, analysis: Analysis, width: float, y: Any, size: float) -> None:
    """Draw the bounds of the parameters of each row, and a bar for their share of the squared bound."""
    share = shares(analysis)
    start = min(width - _BAR - 0.9, _BARS)
    for row, one in enumerate(found.rows):
        names = list(dict.fromkeys(name for part in one.parts for name in part.parameters))
        trained = [name for name in names if name in analysis.parameters]
        if not trained or one.hidden:
            continue
        said = _at_most("K", [analysis.parameters[name] for name in trained])
        axes.text(start - 0.1, y(row), said, va="center", ha="right", fontsize=size, color=_COLOURS.ink)
        part = sum(share.get(name, 0.0) for name in trained)
        if part:
            axes.barh(y(row), part * _BAR, height=0.12, left=start, color=_COLOURS.series[0])
            axes.text(
                start + part * _BAR + 0.06, y(row), percent(part), va="center", fontsize=size, color=_COLOURS.muted
            )


def _at_most(what: str, bounds: Sequence[Bound]) -> str:
    """Say the largest of several bounds; of one without a number the formula, if it is short."""
    found = largest(bounds)
    if found is not None:
        return f"{what} ≤ {upward(found, _DIGITS)}"
    formula = text(bounds[0].expression)
    short = len(bounds) == 1 and len(formula) <= _LONGEST and "K_" not in formula  # K_… names a longer one
    return f"{what} ≤ {formula}" if short else f"{what} is {_OPEN}"


def _shown(bound: Bound) -> str:
    """Return the number, or the formula of an open bound if it is short."""
    if bound.value is not None:
        return upward(bound.value, _DIGITS)
    formula = text(bound.expression)
    return formula if len(formula) <= _LONGEST else _OPEN

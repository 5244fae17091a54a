"""Plots as SVG elements to stand in a page: matplotlib draws, the page's style sheet colours.

matplotlib is told colours that stand for those of the page; they are replaced by its CSS variables, so that one
plot serves light and dark. The same data give the same bytes.
"""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, slots=True)
class Colours:
    """Colours of text, of what stands back, of lines and of the curves in turn."""

    ink: str
    muted: str
    line: str
    series: tuple[str, ...]


# Colours that nothing else has, and what the page has in their place.
_OF_PAGE = Colours("#010203", "#010204", "#010205", ("#010206", "#010207", "#010208"))
_VARIABLES = {
    _OF_PAGE.ink: "var(--ink)",
    _OF_PAGE.muted: "var(--muted)",
    _OF_PAGE.line: "var(--line)",
    **{colour: f"var(--series-{index})" for index, colour in enumerate(_OF_PAGE.series, start=1)},
}
# Not by colour alone: curves differ in their dashes too.
_DASHES = ("solid", (0, (5, 2)), (0, (1.5, 1.5)))
_SIZE = (4.2, 2.8)


def settings(colours: Colours) -> Any:
    """Return what matplotlib is told before it draws."""
    return _SETTINGS | {
        "text.color": colours.ink,
        "axes.edgecolor": colours.line,
        "axes.labelcolor": colours.muted,
        "grid.color": colours.line,
        "xtick.color": colours.line,
        "ytick.color": colours.line,
        "xtick.labelcolor": colours.muted,
        "ytick.labelcolor": colours.muted,
    }


_SETTINGS: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "lipcompile",
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 3.5,
    "text.parse_math": False,
}
_SVG, _HREF = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"
# What matplotlib writes and a page must not have: a style sheet of its own would style the page.
_UNWANTED = (f"{_SVG}metadata", f"{_SVG}style")
# Up to so many points each gets a dot; an axis has about so many ticks, over more decades at powers of ten alone.
_FEW, _TICKS, _WIDE = 16, 6, 3
_LARGEST_POWER = 308
# Decimals of a logarithm: what differs in later ones is rounding, and drawn flat.
_VISIBLE = 9
_SHORTEST, _LONGEST = 1e-3, 1e6
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True, slots=True)
class Series:
    """A curve and its name: points in the order of x."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Plot:
    """What is plotted: y over x. `key` is unique in the page; `marked` is an x to point out.

    Args:
        whole: whether x are whole numbers.
    """

    key: str
    title: str
    description: str
    x: str
    y: str
    series: Sequence[Series]
    log_y: bool = False
    marked: float | None = None
    whole: bool = True


def plot(wanted: Plot) -> Markup:
    """Return a plot as an `svg` element with a title and a description. Every series needs a point."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(settings(_OF_PAGE)):
        figure = Figure(figsize=_SIZE, layout="constrained")
        draw(figure.add_subplot(), wanted, _OF_PAGE)
        written = io.StringIO()
        figure.savefig(written, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return Markup(_adapted(ET.fromstring(written.getvalue()), wanted))


def draw(axes: Axes, wanted: Plot, colours: Colours) -> None:
    """Draw the curves of a plot, and what its axes say."""
    ys = [y for series in wanted.series for _, y in series.points]
    log = wanted.log_y and min(ys) > 0
    for series, colour, dashes in zip(wanted.series, colours.series, _DASHES, strict=False):
        places = [x for x, _ in series.points]
        # An axis of matplotlib's own logarithms overflows where bounds of deep networks do not.
        heights = [round(log10(y), _VISIBLE) if log else y for _, y in series.points]
        marker = "o" if len(places) <= _FEW else ""
        axes.plot(places, heights, color=colour, linestyle=dashes, marker=marker, label=series.name)
    if wanted.marked is not None:
        axes.axvline(wanted.marked, color=colours.muted, linewidth=0.9, linestyle=(0, (2, 2)))
    axes.set_xlabel(wanted.x)
    axes.set_ylabel(wanted.y)
    _scale(axes, _ticks(min(ys), max(ys)) if log else None, wanted.whole)
    if len(wanted.series) > 1:
        axes.legend(labelcolor=colours.ink)


def _scale(axes: Axes, ticks: Sequence[float] | None, whole: bool) -> None:
    """Set the axes: whole numbers or any on x; on y ticks at logarithms of numbers, or all numbers and 0."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10], integer=whole, min_n_ticks=1))
    axes.xaxis.set_major_formatter(FuncFormatter(_number))
    if ticks is not None:
        labels = {_number(tick): log10(tick) for tick in ticks}
        axes.set_yticks(list(labels.values()), list(labels))
    else:
        axes.yaxis.set_major_formatter(FuncFormatter(_number))
        low, high = min(0.0, axes.dataLim.y0), max(0.0, axes.dataLim.y1)
        axes.set_ylim(low, high + 0.05 * (high - low or 1.0))


def _ticks(low: float, high: float) -> list[float]:
    """Return numbers to mark between two positive ones on a logarithmic axis: powers of ten, or nearer ones."""
    from matplotlib.ticker import MaxNLocator

    first, last = floor(log10(low)), ceil(log10(high))
    if last - first > _WIDE:
        powers = range(first, last + 1, ceil((last - first) / _TICKS))
        return [10.0**power for power in powers if low <= 10.0 ** min(power, _LARGEST_POWER) <= high]
    usual = [factor * 10.0**power for power in range(first, last) for factor in (1, 2, 5)]
    if len(found := [tick for tick in usual if low <= tick <= high]) > 2:
        return found
    unit = 10.0**first or low
    near = MaxNLocator(nbins=_TICKS).tick_values(low / unit, high / unit)
    return [unit * tick for tick in near if low <= unit * tick <= high] or [low]


def _number(value: float, _position: object = None) -> str:
    """Write a tick: 1,000 or 0.25, and 10⁻⁶ or 2·10⁹ where that is long."""
    if value == 0 or _SHORTEST <= abs(value) < _LONGEST:
        return f"{value:,.6g}"
    mantissa, exponent = f"{value:.2e}".split("e")
    power = f"10{str(int(exponent)).translate(_SUPERSCRIPTS)}"
    return power if float(mantissa) == 1 else f"{float(mantissa):g}·{power}"


def _adapted(root: ET.Element, wanted: Plot) -> str:
    """Return what matplotlib wrote as part of a page: its colours, names of its own, and words."""
    for parent in list(root.iter()):
        for child in [c for c in parent if c.tag in _UNWANTED]:
            parent.remove(child)
        parent.tag = parent.tag.removeprefix(_SVG)
        _rename(parent.attrib, wanted.key)
    for name in ("width", "height", "version"):
        del root.attrib[name]
    label = f"{wanted.key}-title {wanted.key}-desc"
    root.attrib |= {"xmlns": _SVG[1:-1], "class": "plot", "role": "img", "aria-labelledby": label}
    root[:0] = [_words(wanted.key, "title", wanted.title), _words(wanted.key, "desc", wanted.description)]
    return re.sub("#0102..", lambda found: _VARIABLES[found[0]], ET.tostring(root, encoding="unicode"))


def _words(key: str, tag: str, words: str) -> ET.Element:
    element = ET.Element(tag, {"id": f"{key}-{tag}"})
    element.text = words
    return element


def _rename(attributes: dict[str, str], key: str) -> None:
    """Make an element's name, and those that it refers to, begin with `key`: ids are unique in a page."""
    if _HREF in attributes:
        attributes["href"] = attributes.pop(_HREF)
    for name, value in attributes.items():
        if name == "id":
            attributes[name] = f"{key}-{value}"
        elif value.startswith("#") and name == "href":
            attributes[name] = f"#{key}-{value[1:]}"
        else:
            attributes[name] = value.replace("url(#", f"url(#{key}-")

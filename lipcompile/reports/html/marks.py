"""What the drawing of a graph says about each of its rows."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass

from lipcompile.core.derivation import Analysis, Bound
from lipcompile.core.graph import Input
from lipcompile.numbers import text as scalar_text
from lipcompile.reports.document import Document, shares
from lipcompile.reports.formulas import count, dimensions, percent, round_up, text
from lipcompile.reports.html.layout import Row
from lipcompile.reports.html.parts import Part

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
    parameters = shares(analysis.parameters)
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
    number = round_up(lipschitz.value, 4)
    return number.rstrip("0").rstrip(".") if "e" not in number else number


def _loss(analysis: Analysis) -> Mark:
    use, bound = analysis.graph.loss, analysis.loss_lipschitz
    constant = "not given" if bound.value is None else f"≤ {round_up(bound.value, 4)}"
    name = use.loss.name if use else "no loss"
    return Mark("loss", name, f"loss · Lipschitz {constant}", f"{name}: Lipschitz constant {constant}")


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"

"""The report as one HTML file that needs no network, and as a small table for notebooks."""

from __future__ import annotations

import sympy
from markupsafe import Markup

from lipcompile.core.derivation import Block, Derivation, Source
from lipcompile.reports.document import PRIVACY_HINT, Document, Privacy, document
from lipcompile.reports.html.drawing import drawing
from lipcompile.reports.html.plots import Plot, Series, plot
from lipcompile.reports.messages import findings
from lipcompile.reports.templating import environment
from lipcompile.version import __version__

# The most lines of a source that a page shows, and the most characters of a line.
_LINES, _LONGEST_LINE = 2000, 1000
# The most curves of blocks: a large model of many small repetitions would have hundreds.
_CURVES = 8


def render(document: Document) -> str:
    """Return one HTML file that needs no network and runs no script, for an accepted or a rejected model."""
    derivation = document.derivation
    lines, cut = _lines(derivation.source)
    page = environment().get_template("page.html.jinja")
    return page.render(
        document=document,
        version=__version__,
        findings=list(findings(document.diagnostics.shown, derivation.source)),
        drawing=drawing(document) if derivation.analysis else None,
        largest=max((row.share or 0.0 for row in document.parameters.shown), default=0.0) or 1.0,
        blocks=[
            (block, _depth(block, index) if index < _CURVES else None)
            for index, block in enumerate(document.blocks.shown)
        ],
        epsilon=_epsilon(document.privacy) if document.privacy else None,
        privacy_hint=PRIVACY_HINT,
        zero=sympy.Integer(0),
        lines=lines,
        cut=cut,
    )


def _lines(source: Source) -> tuple[list[str], int]:
    """Return the first lines of a source, and how many more it has."""
    if source.text is None:
        return [], 0
    lines = [line.rstrip("\r").expandtabs(4) for line in source.text.rstrip("\n").split("\n")]
    shown = [line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}…" for line in lines[:_LINES]]
    return shown, max(0, len(lines) - _LINES)


def _depth(block: Block, index: int) -> Markup | None:
    if not block.curve:
        return None
    first, last = block.curve[0], block.curve[-1]
    return plot(
        Plot(
            key=f"depth-{index}",
            title=f"Bound of the whole gradient over the number of copies of {block.name}",
            description=f"From {first[1]:.3g} with {first[0]} to {last[1]:.3g} with {last[0]}.",
            x=f"copies of {block.name}",
            y="gradient of one example, at most",
            series=[Series(block.name, block.curve)],
            log_y=True,
            marked=block.repeats,
        )
    )


def _epsilon(privacy: Privacy) -> Markup | None:
    series = [Series(curve.accountant.upper(), curve.points) for curve in privacy.curves if curve.points]
    if not series:
        return None
    ends = (f"{one.points[-1][1]:.4g} by {one.name}" for one in series)
    return plot(
        Plot(
            key="epsilon",
            title="ε over the number of steps, by accountant",
            description=f"After {series[0].points[-1][0]} steps: {', '.join(ends)}.",
            x="steps",
            y=f"ε at δ = {privacy.delta:g}",
            series=series,
        )
    )


_ROWS = 20


def notebook_table(derivation: Derivation) -> str:
    """Return HTML without style of its own: verdict, requirements, findings, bounds by parameter, the total."""
    shown = document(derivation, limit=_ROWS)
    return environment().get_template("notebook.html.jinja").render(document=shown)

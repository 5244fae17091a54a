"""The page of a private model of a table: how good it is, and what it cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from lipcompile.numbers.rounding import upward
from lipcompile.reports.html.plots import Plot, Series, plot
from lipcompile.reports.templating import environment
from lipcompile.version import __version__


@dataclass(frozen=True, slots=True)
class Confusion:
    """How many rows to test on of each class, [K][K], were taken for which."""

    labels: Sequence[str]
    counts: Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class TablePage:
    """What the page shows.

    Args:
        source, target: names of the table and of the column that was learned.
        rows, columns, tested: numbers of rows to train on, of encoded columns, and of rows to test on.
        kept, products: numbers of those columns and of products of two that the model reads.
        measure, score: what was measured on the rows to test on, and how much it is.
        without_model: what one answer to all of these rows has.
        epsilon, delta: what was spent.
        private: False if a seed was fixed.
        charges: lines of the ledger: purpose, steps, sampling_rate, noise_multiplier, and the share of the budget,
            counted in 1/σ²; None of samples of the rows, whose cost does not add up so.
        unpaid: what was taken from rows and is in no ledger, sentences.
        advice: what would make the model better, sentences.
        course: (ε spent, score) during training.
        confusion: of a classification.
        calibration: (mean probability, share that is correct) of predictions, by probability.
    """

    source: str
    target: str
    rows: int
    columns: int
    kept: int
    products: int
    tested: int
    measure: str
    score: str
    without_model: str
    epsilon: float
    delta: float
    private: bool
    charges: Sequence[Mapping[str, Any]]
    unpaid: Sequence[str]
    advice: Sequence[str]
    course: Sequence[tuple[float, float]]
    confusion: Confusion | None = None
    calibration: Sequence[tuple[float, float]] = ()


def render_table(page: TablePage) -> str:
    """Return one HTML file that needs no network and runs no script."""
    return (
        environment()
        .get_template("table.html.jinja")
        .render(
            page=page,
            version=__version__,
            epsilon=upward(page.epsilon, 4),
            course=_course(page),
            calibration=_calibration(page),
        )
    )


def _course(page: TablePage) -> Markup | None:
    if not page.course:
        return None
    (first, least), (last, most) = page.course[0], page.course[-1]
    return plot(
        Plot(
            key="course",
            title=f"{page.measure} over the epsilon that was spent",
            description=f"From {least:.3g} at ε = {first:.3g} to {most:.3g} at ε = {last:.3g}.",
            x=f"ε spent, at δ = {page.delta:g}",
            y=page.measure,
            series=[Series(page.measure, page.course)],
            whole=False,
        )
    )


def _calibration(page: TablePage) -> Markup | None:
    if not page.calibration:
        return None
    return plot(
        Plot(
            key="calibration",
            title="Share of correct predictions over their probability",
            description="Predictions of a calibrated model lie on the diagonal.",
            x="probability of the prediction",
            y="share that is correct",
            series=[Series("model", page.calibration), Series("calibrated", [(0.0, 0.0), (1.0, 1.0)])],
            whole=False,
        )
    )

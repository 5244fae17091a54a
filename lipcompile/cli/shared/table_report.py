"""The page of a run on a table: figures of the rows to test on, and advice from public facts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from lipcompile.cli.shared.progress import most_frequent
from lipcompile.learn.recipe import FEW
from lipcompile.reports.html.table_page import Confusion, TablePage

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lipcompile.learn.features import Array
    from lipcompile.learn.table_model import TableModel
    from lipcompile.tables.encode import Encoded

_POINTS = 10  # of the course
_TESTED = 20_000  # rows to test on, for each point of the course
_BINS = 10
_MOST_CLASSES = 30


@dataclass(slots=True)
class Course:
    """Keeps some of the weights that a training releases."""

    kept: list[tuple[int, NDArray[Any]]] = field(default_factory=list)

    def stepped(self, done: int, planned: int, weights: NDArray[Any] | None) -> None:
        """Keep the weights of about a tenth of the steps."""
        if weights is not None and done % max(1, planned // _POINTS) == 0:
            self.kept.append((done, weights.copy()))


def page_of(
    model: TableModel,
    test: Encoded,
    outputs: Array,
    without: str,
    course: Course,
    source: str,
    rows: int,
    unpaid: Sequence[str],
) -> TablePage:
    """Return what the page of a run shows.

    Args:
        test: encoded rows to test on.
        outputs: of the model for them, [N, outputs].
        without: what `without_model` returns of them.
        rows: number of rows to train on.
        unpaid: what was read from the rows, sentences.
    """
    fitted, classes = model.fitted, model.schema.classes
    assert test.y is not None
    score = model.score(outputs, test.y)
    shares = fitted.probabilities(outputs) if classes else np.empty((0, 0))
    paid = sum(line.steps / line.noise_multiplier**2 for line in fitted.spent)
    return TablePage(
        source=source,
        target=str(model.schema.target),
        rows=rows,
        columns=test.x.shape[1],
        kept=len(fitted.scaling.kept),
        products=len(fitted.scaling.products),
        tested=len(test.x),
        measure="Test accuracy" if classes else "Test R²",
        score=f"{100 * score:.1f} %" if classes else f"{score:.3f}",
        without_model=without,
        epsilon=fitted.epsilon,
        delta=fitted.budget.delta,
        private=fitted.private,
        charges=[
            {**asdict(one), "share": None if one.sampling_rate < 1 else one.steps / one.noise_multiplier**2 / paid}
            for one in fitted.spent
        ],
        unpaid=[*unpaid, "The figures of the held-out rows are exact."],
        advice=list(_advice(model, rows, test, score)),
        course=_course(model, test, course),
        confusion=_confusion(model, test, shares),
        calibration=_calibration(model, test, shares),
    )


def without_model(model: TableModel, outputs: Array, y: NDArray[Any]) -> str:
    """Return what one answer to all rows to test on, targets y [N], has: its accuracy, or its median error beside
    that of the model, which a few large targets do not decide as they do R².
    """
    if model.schema.classes is not None:
        return f"{100 * most_frequent(y):.1f} % by the most frequent class alone"
    own, one = (np.median(np.abs(y - found)) for found in (model.predicted(outputs), np.median(y)))
    return f"median error {own:.3g}, and {one:.3g} by the median alone"


def _course(model: TableModel, test: Encoded, course: Course) -> list[tuple[float, float]]:
    """Return ε and score at each point, of one pass over the rows: their features are the same at all points."""
    if not course.kept:
        return []
    assert test.y is not None
    every = np.concatenate([weights for _, weights in course.kept])
    outputs = replace(model.fitted, weights=every).outputs(test.x[:_TESTED])
    return [
        (model.fitted.epsilon_after(steps), model.score(some, test.y[:_TESTED]))
        for (steps, _), some in zip(course.kept, np.split(outputs, len(course.kept), axis=1), strict=True)
    ]


def _confusion(model: TableModel, test: Encoded, shares: NDArray[Any]) -> Confusion | None:
    classes = model.schema.classes
    if classes is None or len(classes) > _MOST_CLASSES:
        return None
    found = model.labels(shares)
    counts = [[int(((test.y == true) & (found == taken)).sum()) for taken in classes] for true in classes]
    return Confusion(classes, counts)


def _calibration(model: TableModel, test: Encoded, shares: NDArray[Any]) -> list[tuple[float, float]]:
    """Return mean probability and share of right ones of a tenth of the predictions each, by probability."""
    if model.schema.classes is None:
        return []
    likeliest, right = shares.max(axis=1), model.labels(shares) == test.y
    order = np.argsort(likeliest)
    return [
        (float(likeliest[some].mean()), float(right[some].mean()))
        for some in np.array_split(order, min(_BINS, len(order)))
    ]


def _advice(model: TableModel, rows: int, test: Encoded, score: float) -> Iterator[str]:
    """Yield what public facts and the ledger say of how the model could be better."""
    fitted = model.fitted
    unknown = int(np.isnan(test.low).sum())
    if unknown:
        yield (
            f"{unknown} encoded columns have no public range: a schema with `low` and `high` saves the share of "
            "the budget that went into ranges, and makes them exact."
        )
    kept = len(fitted.scaling.kept)
    if fitted.recipe.kind == "plain" and rows < FEW * kept:
        yield (
            f"There are {rows / kept:.0f} rows for each encoded column that stands out of the noise. With {FEW} "
            "the model could have features that are not linear: leave out columns."
        )
    if model.schema.classes is not None:
        error = (score * (1 - score) / len(test.x)) ** 0.5
        yield (
            f"The standard error of the test accuracy is {100 * error:.1f} points: smaller differences between "
            "models say nothing."
        )

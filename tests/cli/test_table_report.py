"""The page of a run on a table: its figures from one pass over the rows to test on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lipcompile.cli.shared.table_report import Course, page_of, without_model
from lipcompile.learn.features import Features
from lipcompile.learn.table_model import fit_table
from lipcompile.tables.schema import Number, Schema
from lipcompile.tables.stream import encoded


def test_each_point_of_the_course_has_the_score_of_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of 0 say class 0, against them all rows are wrong; and no point computes features of its own."""
    age = np.random.default_rng(0).uniform(0, 100, 400)
    schema = Schema((Number("age", 0, 100),), "y", classes=("old", "young"))
    data = encoded({"age": age, "y": np.where(age > 50, "old", "young")}, schema)
    course = Course()
    model = fit_table(data, schema, 10.0, watch=course.stepped)
    assert data.y is not None
    outputs = model.fitted.outputs(data.x)
    right = float((model.predictions(data.x) == data.y).mean())
    weights = model.fitted.weights
    course.kept = [(1, 0 * weights), (50, -weights), (100, weights)]
    mapped: list[int] = []
    mapping = Features.__call__

    def counted(one: Features, rows: Any) -> Any:
        mapped.append(len(rows))
        return mapping(one, rows)

    monkeypatch.setattr(Features, "__call__", counted)
    page = page_of(model, data, outputs, "", course, "t.csv", len(age), [])
    assert mapped == [len(age)]
    shares = [score for _, score in page.course]
    assert shares == pytest.approx([float((data.y == "old").mean()), 1 - right, right])
    assert [spent for spent, _ in page.course] == sorted(spent for spent, _ in page.course)
    assert page.score == f"{100 * right:.1f} %"


def test_what_one_answer_to_all_rows_has_stands_beside_the_score() -> None:
    """Three of four rows have class a. The median of 1, 2, 3, 100 is 2.5, with errors 1.5, 0.5, 0.5 and 97.5."""
    model: Any = SimpleNamespace(schema=Schema((), "y", classes=("a", "b")))
    told = without_model(model, np.zeros((4, 1)), np.array(["a", "b", "a", "a"], object))
    assert told == "75.0 % by the most frequent class alone"
    model = SimpleNamespace(schema=Schema((), "y", "regression"), predicted=lambda outputs: outputs[:, 0])
    told = without_model(model, np.array([[1.0], [2.25], [3.25], [0.0]]), np.array([1.0, 2.0, 3.0, 100.0]))
    assert told == "median error 0.25, and 1 by the median alone"

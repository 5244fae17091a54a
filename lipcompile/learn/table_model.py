"""A model of a table with the schema that its rows are encoded by: fitted, kept in a file, and asked."""

from __future__ import annotations

import io
import json
import os
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from lipcompile_privacy.errors import DataError
from numpy.typing import NDArray

from lipcompile.learn.account import Budget, Spent, default_delta
from lipcompile.learn.features import Array, Features
from lipcompile.learn.fitting import Fitted, fit
from lipcompile.learn.head import Watch
from lipcompile.learn.recipe import Recipe, recipe_for
from lipcompile.learn.scaling import Scaling, Units
from lipcompile.learn.targets import Head, Problem
from lipcompile.tables.encode import Encoded, indicators
from lipcompile.tables.schema import Schema
from lipcompile.tables.schema_file import portable, schema_of
from lipcompile.tables.schema_file import text as text_of_schema
from lipcompile.tables.stream import encoded

FORMAT = "lipcompile.table_model/1"


@dataclass(frozen=True)
class TableModel:
    """A model of one column of a table.

    Args:
        schema: how rows are encoded; of a classification with its classes.
        fitted: what was released.
    """

    schema: Schema
    fitted: Fitted

    def probabilities(self, x: Array) -> Array:
        """Return probabilities of the classes [N, K] for encoded rows [N, d]."""
        return self.fitted.probabilities(self.fitted.outputs(x))

    def predictions(self, x: Array) -> Any:
        """Return labels, text [N], or numbers [N], for encoded rows [N, d]."""
        return self.predicted(self.fitted.outputs(x))

    def predicted(self, outputs: Array) -> Any:
        """Return labels, text [N], or numbers [N], for outputs of the head [N, outputs]."""
        if self.schema.classes is None:
            return self.fitted.numbers(outputs)
        return self.labels(self.fitted.probabilities(outputs))

    def labels(self, shares: Array) -> Any:
        """Return the likeliest labels, text [N], by probabilities of the classes [N, K]."""
        return np.array(self.schema.classes)[shares.argmax(axis=1)]

    def encoded(self, source: Any) -> Encoded:
        """Return the rows of a file, a frame or an array as a matrix; raises InputError."""
        return encoded(source, self.schema)

    def score(self, outputs: Array, y: NDArray[Any]) -> float:
        """Return the accuracy, or R², of outputs of the head for targets [N]: exactly, so it is not private.

        R² of targets that are all alike is 1 for exact predictions, else 0, as scikit-learn has it.
        """
        found = self.predicted(outputs)
        if self.schema.classes is not None:
            return float((found == y).mean())
        errors, spread = ((found - y) ** 2).mean(), y.var()
        return float(1.0 - errors / spread if spread > 0 else errors == 0)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all of it to an .npz file of plain arrays; raises OSError."""
        one, scaling, directions = self.fitted, self.fitted.scaling, self.fitted.features.directions
        arrays = {
            "low": scaling.units.low,
            "high": scaling.units.high,
            **{name: getattr(scaling, name) for name in ("mean", "scale", "kept", "products")},
            "weights": one.weights,
            "start": one.head.start,
            "directions": np.empty((0, 0), np.float32) if directions is None else directions,
        }
        facts = {
            "format": FORMAT,
            "schema": text_of_schema(portable(self.schema), "the table", []),
            "constant": one.features.constant,
            "head": {name: getattr(one.head, name) for name in ("loss", "outputs", "offset", "unit")},
            "budget": asdict(one.budget),
            "epsilon": one.epsilon,
            "spent": [asdict(line) for line in one.spent],
            "recipe": asdict(one.recipe),
            "private": one.private,
            "searched": one.searched,
        }
        with Path(path).open("wb") as file:
            np.savez(file, facts=np.array(json.dumps(facts)), **arrays)


def load(path: str | os.PathLike[str]) -> TableModel:
    """Read what `TableModel.save` wrote.

    Raises:
        DataError: the file is none.
        OSError: it cannot be read.
    """
    stored = io.BytesIO(Path(path).read_bytes())
    try:
        arrays = _arrays(stored)
        facts = json.loads(str(arrays["facts"]))
        if facts["format"] != FORMAT:
            raise ValueError
        directions = arrays["directions"] if arrays["directions"].size else None
        fitted = Fitted(
            _scaling(arrays),
            Features(directions, facts["constant"]),
            arrays["weights"],
            Head(**facts["head"], start=arrays["start"]),
            Budget(**facts["budget"]),
            facts["epsilon"],
            tuple(Spent(**line) for line in facts["spent"]),
            Recipe(**facts["recipe"]),
            facts["private"],
            facts.get("searched"),
        )
        return TableModel(schema_of(tomllib.loads(facts["schema"])), fitted)
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{os.fspath(path)} is not a model of a table: give a file that `lipcompile train` wrote"
        ) from error


def _arrays(stored: io.BytesIO) -> dict[str, Any]:
    """Return the arrays of a file of numpy; raises ValueError for any other, or a damaged one."""
    try:
        with np.load(stored, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except Exception as error:  # of many kinds, by what is damaged
        raise ValueError(str(error)) from error


def _scaling(arrays: dict[str, Any]) -> Scaling:
    """Return the scaling of a file; files of earlier versions keep all columns and have no products."""
    units = Units(arrays["low"], arrays["high"])
    kept = arrays.get("kept", np.arange(len(units.low)))
    products = arrays.get("products", np.empty((0, 2), np.int64))
    return Scaling(units, arrays["mean"], arrays["scale"], kept, products)


def fit_table(
    data: Encoded,
    schema: Schema,
    epsilon: float,
    *,
    delta: float | None = None,
    search: bool = False,
    seed: int | None = None,
    ledger: str | os.PathLike[str] | None = None,
    watch: Watch | None = None,
) -> TableModel:
    """Fit a model of the target of encoded rows; the rest, and errors, are as of `fitting.fit`.

    Args:
        data: rows with targets, as `lipcompile.tables` encodes them; missing or unknown classes were refused.
        schema: with the classes, if there are any.
        epsilon, delta: the budget; δ None: `default_delta`.
        search: whether settings are searched.
    """
    assert data.y is not None
    budget = Budget(epsilon, default_delta(len(data.x)) if delta is None else delta, search=search)
    classes = schema.classes or ()
    problem = Problem(len(classes), data.low, data.high, schema.target_range, indicators(schema))
    y = data.y
    if classes:
        order = np.argsort(classes)
        y = order[np.searchsorted(classes, y.astype(str), sorter=order)]
    recipe = recipe_for(len(data.x))
    fitted = fit(data.x, y, problem, budget, recipe=recipe, seed=seed, ledger=ledger, watch=watch)
    return TableModel(schema, fitted)

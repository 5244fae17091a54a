"""Private estimators for scikit-learn: `PrivateClassifier` and `PrivateRegressor` (extra `sklearn`).

    from lipcompile.sklearn import PrivateClassifier

    model = PrivateClassifier(epsilon=1.0).fit(X, y)
    model.predict(X_new), model.epsilon_, model.ledger_

All that a fitted model has from the rows was released under (ε, δ) differential privacy, for adding or removing
one row. What is not paid for is said by a `PrivacyLeakWarning`.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from lipcompile_privacy.planning import warn_of_delta
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.compose import TransformedTargetRegressor
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import PolynomialFeatures
from sklearn.utils import assert_all_finite, check_random_state, get_tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_feature_names,
    check_array,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from lipcompile.learn.account import Budget, default_delta
from lipcompile.learn.fitting import Fitted, fit
from lipcompile.learn.recipe import recipe_for
from lipcompile.learn.targets import Problem
from lipcompile.tables.encode import indicators, too_many
from lipcompile.tables.guess import guess
from lipcompile.tables.schema import Schema
from lipcompile.tables.schema_file import load, portable
from lipcompile.tables.stream import encoded

__all__ = ["PrivacyLeakWarning", "PrivateClassifier", "PrivateRegressor", "UnpaidSearchError"]


# Refusals of scikit-learn whose messages quote no row, by how they begin; and what to tell of those that do.
_PLAIN = (
    "Expected a 2-dimensional container",
    "Feature names are only",
    "Found array with",
    "Input ",
    "Sparse data",
    "The feature names",
    "Unknown label type",
    "X has ",
    "float() argument",
    "y should be",
)
_QUOTING = re.compile(
    r"(Expected 2D array, got \w+ array instead|Complex data not supported|could not convert string to float)"
    r".*?(Reshape your data.*)?",
    re.DOTALL,
)

# Modules of scikit-learn that fit a model several times on the same rows.
_REPEATING = (
    "sklearn.calibration",
    "sklearn.ensemble.",
    "sklearn.feature_selection.",
    "sklearn.impute.",
    "sklearn.linear_model._ransac",
    "sklearn.model_selection.",
    "sklearn.multiclass",
    "sklearn.multioutput",
    "sklearn.semi_supervised.",
)


class PrivacyLeakWarning(UserWarning):
    """Something was taken from private rows without being paid for."""


class UnpaidSearchError(RuntimeError):
    """A private model was to be fitted again and again on the same rows, each time for a whole budget."""


class _Private(BaseEstimator):
    """What classifier and regressor share."""

    _fitted: Fitted

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    @property
    def epsilon_(self) -> float:
        """ε that the ledger says at `delta_`: of this fit alone."""
        check_is_fitted(self)
        return self._fitted.epsilon

    @property
    def delta_(self) -> float:
        """δ of the guarantee."""
        check_is_fitted(self)
        return self._fitted.budget.delta

    @property
    def ledger_(self) -> list[dict[str, Any]]:
        """What the budget was spent on: Gaussian mechanisms, by purpose, number, sampling rate and σ."""
        check_is_fitted(self)
        return [asdict(line) for line in self._fitted.spent]

    @property
    def private_(self) -> bool:
        """False if `random_state` made the noise predictable."""
        check_is_fitted(self)
        return self._fitted.private

    def _fit(self, x: ArrayLike, y: NDArray[Any], **target: Any) -> None:
        """Fit on checked targets: class numbers, or numbers."""
        _refuse_search(self.fits)
        _warn_of_pipelines()
        self.__dict__.pop("_fitted", None)  # a model of other columns and classes, if what follows fails
        rows, problem = self._encoded(x)
        seed = None if self.random_state is None else int(check_random_state(self.random_state).randint(2**31))
        delta = default_delta(len(rows)) if self.delta is None else self.delta
        warn_of_delta(float(delta), len(rows), 3)
        self._fitted = fit(
            rows,
            y,
            replace(problem, **target),
            Budget(float(self.epsilon), float(delta), self.fits, bool(self.search)),
            recipe=recipe_for(len(rows), **(self.recipe or {})),
            seed=seed,
            ledger=self.ledger,
        )

    def _encoded(self, x: Any) -> tuple[NDArray[Any], Problem]:
        """Return the rows to fit on [N, d], and what is public of their columns."""
        self.schema_ = self._schema_of(x)
        if self.schema_ is None:
            rows = self._matrix(x, ensure_min_samples=2)
            low, high = _bounds(self.bounds, rows.shape[1])
            return rows, Problem(low=low, high=high)
        if self.bounds is not None:
            raise ValueError("a schema has the ranges of columns: leave bounds out")
        _check_feature_names(self, x, reset=True)
        self.n_features_in_ = int(x.shape[1])
        data = encoded(x, self.schema_)
        return data.x, Problem(low=data.low, high=data.high, indicators=indicators(self.schema_))

    def _schema_of(self, x: Any) -> Schema | None:
        """Return the schema of a frame: as it was given, or, of columns that are no numbers, as they look."""
        if self.schema is not None:
            schema = self.schema if isinstance(self.schema, Schema) else load(Path(self.schema))
            return replace(portable(schema), target=None, task="classification", classes=None, target_range=None)
        if not (hasattr(x, "columns") and hasattr(x, "shape")) or all(kind in "fiub" for kind in _kinds(x)):
            return None
        warnings.warn(
            "the kinds of columns were read from the rows, which is not paid for: give schema=…, which "
            "`lipcompile new` writes",
            PrivacyLeakWarning,
            5,
        )
        return guess(x)

    def _rows(self, x: ArrayLike) -> NDArray[Any]:
        check_is_fitted(self)
        if self.schema_ is not None:
            _check_feature_names(self, x, reset=False)
            return encoded(x, self.schema_).x
        return self._matrix(x, reset=False)

    def _matrix(self, x: ArrayLike, **how: Any) -> NDArray[Any]:
        """Return rows of numbers [N, d]; see `validate_data`."""
        with _unquoted():
            rows: NDArray[Any] = validate_data(self, x, dtype=np.float64, ensure_all_finite="allow-nan", **how)
        return rows

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_fitted")


class PrivateClassifier(ClassifierMixin, _Private):
    """A classifier of tables under (ε, δ) differential privacy.

    Columns are scaled by ranges and moments that are released with noise, and mapped to random waves; a linear
    head on them is trained by noisy gradient descent. docs/estimator.md has the mechanism, and its proof.

    Args:
        epsilon: ε of everything that the fitted model has from the rows.
        delta: δ; None: 1e-5, or a tenth of one over the number of rows if that is less.
        schema: what is public about the columns of a frame (docs/tables.md): a schema, or its file. None: columns
            of numbers stand as they are; of others the kinds are read, with a `PrivacyLeakWarning`.
        bounds: public ranges of the columns, (low, high): two numbers, or two vectors [d] in which NaN stands for
            a range that is not public. Ranges that are not public are released, for a tenth of the budget.
        classes: the labels that there can be, public. None: those of `y`, with a `PrivacyLeakWarning`.
        search: whether settings are searched privately (docs/estimator.md), for no more than ε in all. Without it
            defaults follow from the number of rows and from what is released anyway.
        fits: k, of how many fits of the same rows each costs a k-th of the budget, so that k of them together cost
            ε; above 1 the model may be cross-validated. Who counts is the ledger, if it is a file.
        recipe: changes of `lipcompile.learn.recipe.Recipe`, such as {"steps": 200}.
        ledger: file of the ledger; what it holds of the same rows counts against ε.
        random_state: makes the fit repeatable, and NOT private.

    Attributes:
        classes_: labels, sorted.
        n_features_in_: number of columns.
        epsilon_, delta_: the guarantee of this fit.
        ledger_: what the budget was spent on.

    Example:
        >>> from sklearn.datasets import load_breast_cancer
        >>> X, y = load_breast_cancer(return_X_y=True)
        >>> model = PrivateClassifier(epsilon=1.0, classes=[0, 1]).fit(X, y)
        >>> model.epsilon_ <= 1.0
        True
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        *,
        delta: float | None = None,
        schema: Schema | str | os.PathLike[str] | None = None,
        bounds: tuple[ArrayLike, ArrayLike] | None = None,
        classes: ArrayLike | None = None,
        search: bool = False,
        fits: int = 1,
        recipe: Mapping[str, Any] | None = None,
        ledger: str | os.PathLike[str] | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.schema = schema
        self.bounds = bounds
        self.classes = classes
        self.search = search
        self.fits = fits
        self.recipe = recipe
        self.ledger = ledger
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:  # noqa: N803  (its name in scikit-learn)
        """Fit on rows [N, d] and labels [N] of any kind; NaN stands for a missing value.

        Raises:
            ValueError: rows or labels that are none, or one class alone.
            UnpaidSearchError: scikit-learn searches or cross-validates, and `fits` does not pay for it.
            BudgetError: a budget that cannot be met.
        """
        labels = _column(y)
        with _unquoted():
            check_classification_targets(labels)
        if not len(labels):
            raise ValueError("there are no rows")
        found = np.unique(labels)
        if self.classes is None:
            warnings.warn(
                "the classes were read from y, which is not paid for: give classes=[…], from public knowledge",
                PrivacyLeakWarning,
                2,
            )
            if too_many(len(found), len(labels)):
                raise ValueError("y has too many classes for so few rows: give classes=[…], or PrivateRegressor")
        self.classes_ = found if self.classes is None else np.unique(np.asarray(self.classes))
        if not np.isin(found, self.classes_).all():
            raise ValueError("y has labels that are not among `classes`")
        if len(self.classes_) < 2:
            raise ValueError("there is one class: a classifier needs at least two classes; give classes=[…]")
        self._fit(X, np.searchsorted(self.classes_, labels), classes=len(self.classes_))
        return self

    def decision_function(self, X: ArrayLike) -> NDArray[Any]:  # noqa: N803
        """Return logits: [N] of the second of two classes, or [N, K]."""
        rows = self._rows(X)
        outputs = self._fitted.outputs(rows)
        return outputs[:, 0] if outputs.shape[1] == 1 else outputs

    def predict_proba(self, X: ArrayLike) -> NDArray[Any]:  # noqa: N803
        """Return probabilities of the classes, [N, K]."""
        rows = self._rows(X)
        return self._fitted.probabilities(self._fitted.outputs(rows))

    def predict(self, X: ArrayLike) -> NDArray[Any]:  # noqa: N803
        """Return the most likely labels [N]."""
        best = self.predict_proba(X).argmax(axis=1)
        found: NDArray[Any] = self.classes_[best]
        return found


class PrivateRegressor(RegressorMixin, _Private):
    """A regression of tables under (ε, δ) differential privacy; see `PrivateClassifier`.

    Args:
        epsilon, delta, schema, bounds, search, fits, recipe, ledger, random_state: as `PrivateClassifier`.
        target_range: public range (low, high) of the target; values beyond are cut to it. None: it is released,
            together with the ranges of columns.
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        *,
        delta: float | None = None,
        schema: Schema | str | os.PathLike[str] | None = None,
        bounds: tuple[ArrayLike, ArrayLike] | None = None,
        target_range: tuple[float, float] | None = None,
        search: bool = False,
        fits: int = 1,
        recipe: Mapping[str, Any] | None = None,
        ledger: str | os.PathLike[str] | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.schema = schema
        self.bounds = bounds
        self.target_range = target_range
        self.search = search
        self.fits = fits
        self.recipe = recipe
        self.ledger = ledger
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:  # noqa: N803
        """Fit on rows [N, d] and numbers [N]; see `PrivateClassifier.fit`."""
        if self.target_range is not None and not -np.inf < self.target_range[0] < self.target_range[1] < np.inf:
            raise ValueError("target_range=(low, high): both are finite numbers, and low is below high")
        column = _column(y)
        with _unquoted():
            targets = check_array(column, ensure_2d=False, dtype=np.float64, input_name="y")
        self._fit(X, targets, target_range=self.target_range)
        return self

    def predict(self, X: ArrayLike) -> NDArray[np.float64]:  # noqa: N803
        """Return predicted numbers [N]."""
        rows = self._rows(X)
        return np.asarray(self._fitted.numbers(self._fitted.outputs(rows)))


def _column(y: ArrayLike | None) -> NDArray[Any]:
    """Return targets as a vector [N]."""
    if y is None:
        raise ValueError("this estimator requires y to be passed, but the target y is None")
    with _unquoted("Input y"):
        found: NDArray[Any] = column_or_1d(y, warn=True)
        assert_all_finite(found, input_name="y")
    return found


@contextmanager
def _unquoted(called: str = "Input") -> Iterator[None]:
    """Refuse what scikit-learn refuses, without the values of rows that its messages quote; `called`: of what."""
    try:
        yield
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(_told(str(error)).replace("Input contains", f"{called} contains")) from None


def _told(message: str) -> str:
    """Return what of a message of scikit-learn quotes no row."""
    if message.startswith(_PLAIN):
        return message
    quoting = _QUOTING.fullmatch(message)
    return (
        ". ".join(filter(None, quoting.groups())) if quoting else "the rows or the targets are no table of numbers"
    )


def _kinds(x: Any) -> list[str]:
    """Return the kind of each column of a frame as a letter of numpy's, "O" of what is none of its numbers."""
    return [
        ("f" if kind.is_numeric() else "O") if hasattr(kind, "is_numeric") else str(getattr(kind, "kind", "O"))
        for kind in getattr(x, "dtypes", [None])  # of numpy, pandas or polars
    ]


def _bounds(
    bounds: tuple[ArrayLike, ArrayLike] | None, columns: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]] | tuple[None, None]:
    """Return the ends of public ranges as vectors [d]."""
    if bounds is None:
        return None, None
    vectors = "bounds=(low, high): two numbers, or two vectors of a number for each column"
    if len(bounds) != 2:
        raise ValueError(f"{vectors}; {len(bounds)} values were given")
    low, high = (np.broadcast_to(np.asarray(end, dtype=np.float64), (columns,)) for end in bounds)
    if columns == 2 and (low == high).any():  # as of [(0, 100), (0, 1)], the ranges of two columns
        raise ValueError(f"{vectors}, not a pair for each; a column has the same number for both ends")
    if (low > high).any() or np.isinf(low).any() or np.isinf(high).any():
        raise ValueError("bounds=(low, high): every low is a finite number, and at most its high")
    return low, high


def _warn_of_pipelines() -> None:
    """Warn if a step before this one in a pipeline, or what transforms the target, has learned from the rows."""
    frame = sys._getframe()
    while frame is not None:
        model = frame.f_locals.get("self") if frame.f_code.co_name == "fit" else None
        if isinstance(model, Pipeline):
            steps = [(name, one) for name, one in model.steps[:-1] if hasattr(one, "fit")]
            # Polynomials learn from the number of columns alone.
            steps = [(name, one) for name, one in steps if type(one) is not PolynomialFeatures]
            learned = [name for name, one in steps if get_tags(one).requires_fit]
            _warn_of(learned, "of the pipeline", "columns are scaled here")
        elif isinstance(model, TransformedTargetRegressor) and get_tags(model.transformer_).requires_fit:
            _warn_of([type(model.transformer_).__name__], "of the target", "the target is scaled here")
        frame = frame.f_back  # type: ignore[assignment]


def _warn_of(learned: Sequence[str], place: str, instead: str) -> None:
    if learned:
        warnings.warn(
            f"{', '.join(learned)} {place} learned from the rows, which is not paid for, and mixes them, so that "
            f"epsilon does not hold: leave it out, {instead}",
            PrivacyLeakWarning,
            3,
        )


def _refuse_search(fits: int) -> None:
    """Refuse to be fitted by what fits again and again, unless several fits are paid for.

    Raises:
        UnpaidSearchError: scikit-learn's model selection, or a model made of models, fits this one.
    """
    if fits > 1:
        return
    frame = sys._getframe()
    while frame is not None and not frame.f_globals.get("__name__", "").startswith(_REPEATING):
        frame = frame.f_back  # type: ignore[assignment]
    if frame is not None:
        raise UnpaidSearchError(
            "scikit-learn fits this model several times on the same rows, and each fit would spend epsilon again: "
            "say how many fits epsilon is to pay for, fits=k. Scores on held-out private rows are not paid for."
        )

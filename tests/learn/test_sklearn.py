"""The estimators, as scikit-learn uses them."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from lipcompile_torch.train.engine import SeededWarning
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import BaggingClassifier
from sklearn.exceptions import NotFittedError
from sklearn.experimental import enable_iterative_imputer  # noqa: F401  (or the next line of imports fails)
from sklearn.feature_selection import RFE
from sklearn.impute import IterativeImputer
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, PolynomialFeatures, StandardScaler
from sklearn.semi_supervised import SelfTrainingClassifier
from sklearn.utils.estimator_checks import estimator_checks_generator

from lipcompile.sklearn import PrivacyLeakWarning, PrivateClassifier, PrivateRegressor, UnpaidSearchError
from lipcompile.tables.schema import Category, Number, Schema
from lipcompile.tables.schema_file import text

# With ε = 1000 there is next to no noise, and every check of scikit-learn is passed. With ε = 1 one is not: it
# wants an accuracy of 83 %, or an R² of 0.5, after a training on 200 or 300 rows, which privacy makes noise of.
ALMOST_WITHOUT_NOISE = 1000.0
NEEDS_MORE_ROWS = {"check_classifiers_train", "check_regressors_train"}


def checks(*estimators: Any) -> list[Any]:
    return [case for one in estimators for case in estimator_checks_generator(one, legacy=True)]


def name_of(check: Any) -> str:
    return str(getattr(check, "func", check).__name__)


def run(estimator: Any, check: Any) -> None:
    """Run a check, in few steps where it asks for no accuracy."""
    if name_of(check) not in NEEDS_MORE_ROWS:
        estimator = clone(estimator).set_params(recipe={"steps": 10})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyLeakWarning)
        warnings.simplefilter("ignore", SeededWarning)
        check(clone(estimator))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("estimator", "check"),
    checks(PrivateClassifier(ALMOST_WITHOUT_NOISE), PrivateRegressor(ALMOST_WITHOUT_NOISE)),
    ids=lambda value: name_of(value) if callable(value) else type(value).__name__,
)
def test_scikit_learn_accepts_the_estimators(estimator: Any, check: Any) -> None:
    if name_of(check) == "check_array_api_input":
        pytest.skip("arrays of other libraries than numpy are not read")
    run(estimator, check)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("estimator", "check"),
    checks(PrivateClassifier(), PrivateRegressor()),
    ids=lambda value: name_of(value) if callable(value) else type(value).__name__,
)
def test_scikit_learn_accepts_the_estimators_at_usual_noise(estimator: Any, check: Any) -> None:
    if name_of(check) in NEEDS_MORE_ROWS | {"check_array_api_input"}:
        pytest.skip("accuracy after 200 rows")
    run(estimator, check)


@pytest.fixture(scope="module")
def cancer() -> tuple[Any, Any]:
    x, y = load_breast_cancer(return_X_y=True)
    return x, np.array(["malignant", "benign"])[y]


def test_labels_may_be_strings(cancer: tuple[Any, Any]) -> None:
    x, y = cancer
    model = PrivateClassifier(3.0, classes=["benign", "malignant"]).fit(x, y)
    assert model.classes_.tolist() == ["benign", "malignant"]
    assert model.score(x, y) > 0.8
    assert set(model.predict(x)) <= set(model.classes_)
    assert model.predict_proba(x).shape == (569, 2)
    assert 2.9 < model.epsilon_ <= 3.0
    assert model.delta_ == 1e-5
    assert model.private_
    assert model.ledger_[0]["purpose"] == "ranges of 30 columns"


def test_a_pickled_model_predicts_the_same(cancer: tuple[Any, Any]) -> None:
    x, y = cancer
    model = PrivateClassifier(classes=["benign", "malignant"]).fit(x, y)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(x), model.predict_proba(x))
    assert again.epsilon_ == model.epsilon_


def test_classes_that_are_read_from_labels_are_a_leak_that_is_said(cancer: tuple[Any, Any]) -> None:
    x, y = cancer
    with pytest.warns(PrivacyLeakWarning, match="classes"):
        PrivateClassifier(1.0).fit(x, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PrivateClassifier(1.0, classes=["benign", "malignant", "never seen"]).fit(x, y)


def test_a_delta_that_permits_to_publish_a_row_is_told(cancer: tuple[Any, Any]) -> None:
    """From a 569th on, for 569 rows."""
    x, y = cancer
    with pytest.warns(UserWarning, match="permits publishing one example"):
        PrivateClassifier(1.0, delta=0.5, classes=["benign", "malignant"]).fit(x, y)
    PrivateClassifier(1.0, delta=1 / 570, classes=["benign", "malignant"]).fit(x, y)


def test_wrong_labels_are_refused_without_showing_them(cancer: tuple[Any, Any]) -> None:
    x, y = cancer
    secret = y.copy().astype("<U20")
    secret[5] = "the secret"
    with pytest.raises(ValueError, match="not among") as refused:
        PrivateClassifier(classes=["benign", "malignant"]).fit(x, secret)
    assert "the secret" not in str(refused.value)
    with pytest.warns(PrivacyLeakWarning), pytest.raises(ValueError, match="one class"):
        PrivateClassifier().fit(x, np.full(len(x), "same"))
    with pytest.warns(PrivacyLeakWarning), pytest.raises(ValueError, match="too many classes") as refused:
        PrivateClassifier().fit(x, [f"the secret {row % 150}" for row in range(len(x))])
    assert "the secret" not in str(refused.value)
    secret = secret.astype(object)
    secret[5] = np.nan
    with pytest.raises(ValueError, match="Input y contains NaN"):
        PrivateClassifier().fit(x, secret)
    with pytest.raises(ValueError, match="no rows"):
        PrivateClassifier().fit(x[:0], y[:0])


# What scikit-learn refuses, and tells with the values in it.
QUOTED: dict[str, tuple[Any, Any]] = {
    "a text": (np.array([[1, "x4711"], [3, 4]], object), [0, 1]),
    "texts": (np.array([["1", "x4711"], ["3", "4"]]), [0, 1]),
    "bytes": (np.array([[1, b"x4711"], [3, 4]], object), [0, 1]),
    "a row": ([4711.0, 1.0], [0, 1]),
    "a number": (4711.0, [0, 1]),
    "complex rows": (np.array([[4711j], [1.0]]), [0, 1]),
    "complex targets": (np.array([[1.0], [2.0]]), [4711j, 1.0]),
    "a text for a target": (np.array([[1.0], [2.0]]), np.array(["x4711", 0], object)),
    "targets in two columns": (np.array([[1.0], [2.0]]), [[4711, 1], [2, 3]]),
}


@pytest.mark.parametrize("case", QUOTED)
@pytest.mark.parametrize(
    "model", [PrivateClassifier(classes=[0, 1]), PrivateRegressor()], ids=["classes", "numbers"]
)
def test_what_is_refused_is_not_quoted(model: Any, case: str) -> None:
    with pytest.raises((TypeError, ValueError)) as refused:
        clone(model).fit(*QUOTED[case])
    assert "4711" not in str(refused.value)


def test_a_fit_that_fails_leaves_no_earlier_model(cancer: tuple[Any, Any]) -> None:
    x, y = cancer
    model = PrivateClassifier(classes=["benign", "malignant"], recipe={"steps": 1}).fit(x, y)
    with pytest.raises(ValueError, match="infinity"):
        model.fit(np.full((569, 2), np.inf), y)
    with pytest.raises(NotFittedError):
        model.predict(x)


def test_a_row_to_predict_is_not_quoted(cancer: tuple[Any, Any]) -> None:
    x, y = cancer
    model = PrivateClassifier(classes=["benign", "malignant"], recipe={"steps": 1}).fit(x, y)
    with pytest.raises(ValueError, match=r"got 1D array instead\. Reshape your data") as refused:
        model.predict(np.full(30, 4711.0))
    assert "4711" not in str(refused.value)


def test_bounds_are_public_ranges(cancer: tuple[Any, Any]) -> None:
    x, y = cancer
    model = PrivateClassifier(classes=["benign", "malignant"], bounds=(0, 5000)).fit(x, y)
    assert [line["purpose"] for line in model.ledger_] == ["means and scales of columns and target", "head"]
    each: Any = [(0, 1)] * x.shape[1]
    for wrong in ((1, 0), (0, np.inf), each):
        with pytest.raises(ValueError, match="bounds"):
            PrivateClassifier(classes=["benign", "malignant"], bounds=wrong).fit(x, y)
    pairs: Any = [(0, 100), (0, 1e5)]  # of two columns these might be two vectors
    with pytest.raises(ValueError, match="not a pair for each"):
        PrivateClassifier(classes=["benign", "malignant"], bounds=pairs).fit(x[:, :2], y)


def test_a_pipeline_takes_it(cancer: tuple[Any, Any]) -> None:
    x, y = cancer
    pipeline = make_pipeline(
        FunctionTransformer(np.log1p), PrivateClassifier(3.0, classes=["benign", "malignant"])
    ).fit(x, y)
    assert pipeline.score(x, y) > 0.8


def test_a_step_that_learns_from_the_rows_is_a_leak_that_is_said(cancer: tuple[Any, Any]) -> None:
    x, y = cancer
    model = PrivateClassifier(classes=["benign", "malignant"], recipe={"steps": 1})
    with pytest.warns(PrivacyLeakWarning, match="standardscaler of the pipeline learned"):
        make_pipeline(StandardScaler(), model).fit(x, y)


def test_products_of_columns_learn_their_number_alone() -> None:
    """A class of one's own may learn more."""
    x = np.random.default_rng(0).uniform(-1, 1, (60, 3))
    model = PrivateClassifier(bounds=(-1, 1), classes=[False, True], recipe={"steps": 1})
    products = PolynomialFeatures(interaction_only=True, include_bias=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrivacyLeakWarning)
        make_pipeline(products, model).fit(x, x[:, 0] > 0)
    with pytest.warns(PrivacyLeakWarning, match="products of the pipeline learned"):
        make_pipeline(type("Products", (PolynomialFeatures,), {})(), model).fit(x, x[:, 0] > 0)


def test_a_target_that_is_scaled_by_the_rows_is_a_leak_that_is_said() -> None:
    """The mean and the deviation of all targets would be in the model, exactly."""
    x, y = np.random.default_rng(0).uniform(-1, 1, (2, 200))
    model = PrivateRegressor(bounds=(-1, 1), target_range=(-9, 9), recipe={"steps": 1})
    with pytest.warns(PrivacyLeakWarning, match="StandardScaler of the target learned"):
        TransformedTargetRegressor(model, transformer=StandardScaler()).fit(x[:, None], y)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrivacyLeakWarning)  # a function of one target has learned nothing
        TransformedTargetRegressor(model, func=np.sinh, inverse_func=np.arcsinh).fit(x[:, None], y)


def test_it_fills_no_gaps_one_column_after_the_other() -> None:
    x = np.random.default_rng(0).uniform(-1, 1, (50, 3))
    x[0] = np.nan, 0.5, 0.5
    with pytest.raises(UnpaidSearchError, match="fits=k"):
        IterativeImputer(PrivateRegressor(bounds=(-1, 1), target_range=(-1, 1))).fit(x)


@pytest.mark.slow
def test_it_is_not_cross_validated_without_paying(cancer: tuple[Any, Any]) -> None:
    x, y = cancer
    model = PrivateClassifier(classes=["benign", "malignant"])
    with pytest.raises(UnpaidSearchError, match="fits=k"):
        cross_val_score(model, x, y, error_score="raise")
    with pytest.raises(UnpaidSearchError, match="fits=k"):
        GridSearchCV(model, {"epsilon": [1, 2]}, error_score="raise").fit(x, y)
    with pytest.raises(UnpaidSearchError, match="fits=k"):
        cross_val_score(model, x, y, error_score="raise", n_jobs=2)
    model.set_params(fits=3)
    scores = cross_val_score(model, x, y, cv=3, error_score="raise")
    assert len(scores) == 3
    assert model.fit(x, y).epsilon_ < 0.6  # a third of what one fit may cost, in 1/σ²


@pytest.mark.parametrize(
    "made_of",
    [
        BaggingClassifier,
        OneVsRestClassifier,
        CalibratedClassifierCV,
        MultiOutputClassifier,
        SelfTrainingClassifier,
        lambda model: RFE(model, importance_getter=lambda one: np.ones(one.n_features_in_)),
    ],
    ids=["bagging", "one against the rest", "calibration", "several targets", "own labels", "elimination"],
)
def test_it_is_no_part_of_what_fits_it_several_times(cancer: tuple[Any, Any], made_of: Any) -> None:
    x, y = cancer
    several = made_of(PrivateClassifier(classes=[0, 1]))
    labels = (y == "benign").astype(int)
    if made_of is SelfTrainingClassifier:
        labels[::2] = -1
    with pytest.raises(UnpaidSearchError, match="fits=k"):
        several.fit(x, labels[:, None] if made_of is MultiOutputClassifier else labels)


def test_a_seed_is_said_not_to_be_private(cancer: tuple[Any, Any]) -> None:
    x, y = cancer
    with pytest.warns(SeededWarning, match="NOT private"):
        model = PrivateClassifier(classes=["benign", "malignant"], random_state=0).fit(x, y)
    assert not model.private_


def test_a_regression_predicts_numbers() -> None:
    source = np.random.default_rng(0)
    x = source.uniform(-1, 1, (5000, 2))
    y = 10 * x[:, 0] + 100
    model = PrivateRegressor(2.0, target_range=(80, 120)).fit(x, y)
    assert model.score(x, y) > 0.9
    with pytest.raises(ValueError, match="y"):
        PrivateRegressor().fit(x, np.full(5000, np.nan))
    for wrong in ((120, 80), (0, 0), (0, np.inf), (np.nan, 1)):
        with pytest.raises(ValueError, match="target_range"):
            PrivateRegressor(target_range=wrong).fit(x, y)


@pytest.fixture(scope="module")
def people() -> tuple[pd.DataFrame, Any]:
    source = np.random.default_rng(0)
    jobs = source.choice(["nurse", "teacher", "clerk"], 2000)
    ages = source.integers(18, 90, 2000).astype(float)
    joined = pd.Timestamp("2020-01-01") + pd.to_timedelta(ages, "D")
    frame = pd.DataFrame({"age": ages, "job": jobs, "joined": joined})
    frame.loc[::7, "age"] = np.nan
    frame.loc[::5, "job"] = None
    return frame, np.where((ages > 50) | (jobs == "clerk"), "yes", "no")


def test_frames_have_columns_of_any_kind(people: tuple[pd.DataFrame, Any]) -> None:
    frame, y = people
    with pytest.warns(PrivacyLeakWarning, match="kinds of columns"):
        model = PrivateClassifier(4.0, classes=["no", "yes"]).fit(frame, y)
    assert model.n_features_in_ == 3
    assert model.feature_names_in_.tolist() == ["age", "job", "joined"]
    assert model.score(frame, y) > 0.7
    assert model.predict(frame.head(3)).shape == (3,)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[["job", "age", "joined"]])
    with pytest.warns(PrivacyLeakWarning, match="kinds of columns") as told:
        of_arrow = PrivateClassifier(4.0, classes=["no", "yes"]).fit(pa.Table.from_pandas(frame), y)
    assert of_arrow.feature_names_in_.tolist() == ["age", "job", "joined"]
    assert told[0].filename == __file__


class Decimals:
    """The type of a column of a frame of polars."""

    def is_numeric(self) -> bool:
        return True


class Frame:
    """A frame as polars has it, of numbers alone."""

    columns = ("a", "b")
    dtypes = (Decimals(), Decimals())
    shape = (20, 2)

    def __array__(self, *_: Any, **__: Any) -> Any:
        return np.ones(self.shape)


def test_numbers_of_polars_are_numbers() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = PrivateClassifier(classes=[0, 1], recipe={"steps": 1}).fit(Frame(), np.arange(20) % 2)
    assert model.schema_ is None


def test_a_schema_says_what_is_public_of_a_frame(people: tuple[pd.DataFrame, Any], tmp_path: Path) -> None:
    frame, y = people
    schema = Schema((Number("age", 0, 120), Category("job", ("nurse", "teacher", "clerk"), missing=True)))
    path = tmp_path / "people.schema.toml"
    path.write_text(text(schema, "people", []), encoding="utf-8")
    for given in (schema, path):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model = PrivateClassifier(4.0, classes=["no", "yes"], schema=given).fit(frame, y)
        assert [line["purpose"] for line in model.ledger_] == ["means and scales of columns and target", "head"]
        assert model.score(frame, y) > 0.7
    with pytest.raises(ValueError, match="leave bounds out"):
        PrivateClassifier(classes=["no", "yes"], schema=schema, bounds=(0, 1)).fit(frame, y)
    assert clone(model).schema == path

"""The estimator as it comes, beside the searched columns of docs/utility.md and diffprivlib: same test parts.

    python -m benchmarks.utility.defaults --data FOLDER [--sets NAME …] [--methods defaults network] [--seeds 5]
        [--json FILE] [--resume]

`defaults` looks at nothing but the numbers of rows and columns; `search` has a private search, where it can pay;
`products` has the products of all pairs of columns beside them; `frame` gets the columns as a file has them,
without a schema, of the sets in `weightclip`.
All of ε is in the ledger. `diffprivlib` (its own environment: it needs an older scikit-learn) has the best of
logistic regression, naive Bayes and forest on the test part, which is a choice that it does not pay for.

`network` has a hidden layer in the place of the estimator, bounded by a clip, with two gifts: the rows standardise
columns for nothing, and the best of three rates on the test part is taken.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lipcompile_torch import PrivacyEngine
from torch import nn
from torch.utils.data import TensorDataset

import lipcompile
from benchmarks.harness import Some, options
from benchmarks.utility.parts import LARGE, SPLIT, Parts, score, split
from benchmarks.utility.sets import SETS, TabularSet, load, load_table
from benchmarks.utility.study import Rows, Score, cell, table
from benchmarks.utility.training import Budget, Recipe, outputs, train

DRAWING = 1  # of the test parts, as in docs/utility.md
_HIDDEN, _RATES = 32, (0.03, 0.06, 0.12)  # of the network

Output = Callable[[TabularSet, Parts, int], tuple[Any, float]]


def ours(which: TabularSet, parts: Parts, search: bool, products: bool = False) -> tuple[Any, float]:
    """Return outputs on the part that is looked at, and ε."""
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import PolynomialFeatures

    from lipcompile.sklearn import PrivateClassifier

    private = PrivateClassifier(
        which.epsilon,
        delta=which.delta,
        bounds=(-1, 1),
        classes=range(parts.classes),
        search=search,
    )
    before = [PolynomialFeatures(interaction_only=True, include_bias=False)] if products else []
    model = make_pipeline(*before, private).fit(parts.x, parts.y)
    return model.decision_function(parts.x_seen), private.epsilon_


def frame(which: TabularSet, parts: Parts) -> tuple[Any, float]:
    """Return outputs for a frame of texts: kinds of columns are read, names are hashed, ranges are released."""
    from pandas import DataFrame

    from lipcompile.sklearn import PrivateClassifier

    private = PrivateClassifier(which.epsilon, delta=which.delta, classes=range(parts.classes))
    model = private.fit(DataFrame(parts.x), parts.y)
    return model.decision_function(DataFrame(parts.x_seen)), private.epsilon_


def theirs(which: TabularSet, parts: Parts, seed: int) -> tuple[Any, float]:
    """Return outputs of the model of diffprivlib that is best on the part that is looked at."""
    from diffprivlib import models

    low, high = np.full(parts.x.shape[1], -1.0), np.ones(parts.x.shape[1])
    made = {
        "logistic": models.LogisticRegression(
            epsilon=which.epsilon, data_norm=float(np.sqrt(parts.x.shape[1])), random_state=seed, max_iter=1000
        ),
        "bayes": models.GaussianNB(epsilon=which.epsilon, bounds=(low, high), random_state=seed),
        "forest": models.RandomForestClassifier(
            epsilon=which.epsilon, bounds=(low, high), classes=list(range(parts.classes)), random_state=seed
        ),
    }
    found = [_probabilities(model.fit(parts.x, parts.y), parts) for model in made.values()]
    return max(found, key=lambda output: score(which.metric, output, parts.y_seen)), which.epsilon


def network(which: TabularSet, parts: Parts, seed: int) -> tuple[Any, float]:
    """Return outputs of the best of three trainings on the part that is looked at."""
    mean, deviation = parts.x.mean(0), parts.x.std(0).clip(1e-3)
    x, x_seen = (
        torch.from_numpy(((part - mean) / deviation).clip(-5, 5).astype(np.float32))
        for part in (parts.x, parts.x_seen)
    )
    found, spent = [], 0.0
    for rate in _RATES:
        torch.manual_seed(seed)
        plain = nn.Sequential(nn.Linear(x.shape[1], _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, parts.classes))
        module, engine = lipcompile.private(plain, x.shape[1:], bounds="clip"), PrivacyEngine()
        recipe = Recipe(steps=100, rate=rate, batch=min(16384, len(x) // 2), momentum=None, average=0.5)
        budget = Budget(which.epsilon, which.delta)
        train(engine, module, TensorDataset(x, torch.from_numpy(parts.y)), recipe, budget, seed)
        output = outputs(module, x_seen).double().numpy()
        found.append(output[:, 1] - output[:, 0] if parts.classes == 2 else output)
        spent = max(spent, engine.get_epsilon(which.delta))
    return max(found, key=lambda output: score(which.metric, output, parts.y_seen)), spent


def _probabilities(model: Any, parts: Parts) -> Any:
    """Return probabilities as outputs: over a half of the second of two classes."""
    shares = np.zeros((len(parts.x_seen), parts.classes))
    shares[:, [int(label) for label in model.classes_]] = np.nan_to_num(model.predict_proba(parts.x_seen))
    return shares[:, 1] - 0.5 if parts.classes == 2 else shares


METHODS: Mapping[str, Output] = {
    "defaults": lambda which, parts, _: ours(which, parts, False),
    "search": lambda which, parts, _: ours(which, parts, True),
    "products": lambda which, parts, _: ours(which, parts, False, True),
    "frame": lambda which, parts, _: frame(which, parts),
    "diffprivlib": theirs,
    "network": network,
}


def run(which: TabularSet, method: str, data: Path, seed: int) -> Score:
    """Return the score on the test part of a seed."""
    x, y = (load_table if method == "frame" else load)(which, data)
    parts = split(x, y, 1000 * DRAWING + (seed if len(y) < LARGE else SPLIT))
    began = time.process_time()
    output, spent = METHODS[method](which, parts, seed)
    return Score(score(which.metric, output, parts.y_seen), spent, time.process_time() - began)


def tables(rows: Mapping[str, Mapping[str, Any]], searched: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the table of all methods; `searched` are the rows of `benchmarks.utility.tabular`."""
    lines = [
        (
            which.name,
            f"{which.epsilon:g}",
            *(cell(rows.get(f"{which.name} / {method}")) for method in ("defaults", "search", "diffprivlib")),
            *(cell(searched.get(f"{which.name} / {method}")) for method in ("ours", "opacus")),
        )
        for which in SETS
    ]
    return table(("", "ε", "defaults", "with a search", "diffprivlib, best of three", "searched", "Opacus"), lines)


def main() -> None:
    """Measure and print."""
    sets, methods = Some([which.name for which in SETS]), Some([*METHODS])
    arguments = options(__doc__, data=..., sets=sets, methods=methods, seeds=5, json=Path, resume=False)
    rows = Rows(arguments.json, {"split": DRAWING}, arguments.resume)
    for which in (which for which in SETS if which.name in arguments.sets):
        for method in arguments.methods:
            name = f"{which.name} / {method}"
            about = {"set": which.name, "method": method, "metric": which.metric, "epsilon": which.epsilon}
            once = partial(run, which, method, arguments.data)
            row = rows.measured(name, about, rows.begun(name), range(arguments.seeds), once)
            print(f"{name:28} {cell(row)}", flush=True)
    searched = json.loads((Path(__file__).parents[1] / "utility_tabular.json").read_text(encoding="utf-8"))["rows"]
    print(tables(rows.rows, searched))


if __name__ == "__main__":
    main()

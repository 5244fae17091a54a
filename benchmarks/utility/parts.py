"""Parts of a set to train on and to look at, and scores: without torch, which not all peers have."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from benchmarks.utility.sets import Array, Labels

SPLIT = 100  # the seed of the one test part of a large set
LARGE = 20_000  # rows: smaller sets have a test part for each seed


@dataclass(frozen=True)
class Parts:
    """Examples to train on and to look at: [N, d] and [N], [M, d] and [M]."""

    x: Array
    y: Labels
    x_seen: Array
    y_seen: Labels

    @property
    def classes(self) -> int:
        """K: labels are 0 to K - 1."""
        return int(max(self.y.max(), self.y_seen.max())) + 1


def split(x: Array, y: Labels, seed: int) -> Parts:
    """Split off a fifth, stratified by label where every label occurs often enough."""
    from sklearn.model_selection import train_test_split

    strata = y if np.bincount(y).min() >= 10 else None
    kept, apart = train_test_split(np.arange(len(y)), test_size=0.2, stratify=strata, random_state=seed)
    return Parts(x[kept], y[kept], x[apart], y[apart])


def score(metric: str, output: Array, labels: Labels) -> float:
    """Return the AUROC of outputs [M], or the accuracy of outputs [M] or [M, K]; NaN for outputs that are none."""
    from sklearn.metrics import roc_auc_score

    if not np.isfinite(output).all():
        return math.nan
    if metric == "auroc":
        return float(roc_auc_score(labels, output))
    predicted = output.argmax(axis=1) if output.ndim == 2 else output > 0
    return float((predicted == labels).mean())

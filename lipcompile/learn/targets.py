"""The target: classes or numbers; its part of the moments, and the trained head."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lipcompile.learn.scaling import Array, Units
from lipcompile.tables.encode import Indicators

Loss = Literal["binary", "multiclass", "regression"]
_LEAST_SHARE = 1e-3
_LEAST_SCALE = 0.01


@dataclass(frozen=True, slots=True)
class Head:
    """A head to train, and how its outputs are read.

    Args:
        loss: a model of heads.lip.
        outputs: how many.
        start: first weights of the constant, [outputs].
        offset, unit: a predicted number is offset + unit·output.
        targets: class numbers, int64 [N], or standardised numbers, float64 [N, 1]; empty once the head is trained.
    """

    loss: Loss
    outputs: int
    start: Array
    offset: float = 0.0
    unit: float = 1.0
    targets: NDArray[Any] = field(default_factory=lambda: np.empty(0), repr=False)


@dataclass(frozen=True, slots=True)
class Problem:
    """The target and the columns of a prediction, as far as they are public.

    Args:
        classes: K, the number of classes; 0: numbers are predicted.
        low, high: ends of the columns' ranges, [d]; NaN, or None for all, where a range is not public.
        target_range: ends of the numbers to predict, which are cut to it; None: not public.
        indicators: which columns are zeros and ones; None: none is known to be.
    """

    classes: int = 0
    low: Array | None = None
    high: Array | None = None
    target_range: tuple[float, float] | None = None
    indicators: Indicators | None = None

    def ends(self, columns: int) -> tuple[Array, Array]:
        """Return the ends of the ranges, new arrays [d], NaN where they are not public."""
        low, high = (
            np.full(columns, np.nan) if given is None else np.array(given, dtype=np.float64)
            for given in (self.low, self.high)
        )
        return low, high

    def losses(self, head: Head, outputs: Array, y: NDArray[Any]) -> Array:
        """Return for each row the loss of outputs [N, outputs]: minus the logarithm of the probability of its
        class, or the error, in units of the released scale.
        """
        if not self.classes:
            return np.asarray(np.abs(head.offset + head.unit * outputs[:, 0] - y) / head.unit)
        if outputs.shape[1] == 1:
            outputs = np.concatenate([np.zeros_like(outputs), outputs], axis=1)
        right = np.take_along_axis(outputs, y[:, None], axis=1)[:, 0]
        return np.asarray(np.logaddexp.reduce(outputs, axis=1) - right)


@dataclass(frozen=True, slots=True)
class Classes:
    """Class numbers [N] below `count`."""

    y: NDArray[np.int64]
    count: int

    def moments(self, some: slice) -> Array:
        """Return indicators [n, K - 1] of classes 1 to K - 1."""
        indicators: Array = np.eye(self.count)[self.y[some]][:, 1:]
        return indicators

    def head(self, shares: Array, noise: float, constant: float) -> Head:
        """Return the head, whose constant begins at the log-odds of the released shares of classes [K - 1].

        A share below the noise is taken for as much, so that noise does not become odds of a thousand to one.
        """
        least = min(max(_LEAST_SHARE, noise), 1 / self.count)
        every = np.clip(np.concatenate([[1.0 - shares.sum()], shares]), least, 1.0)
        odds = np.log(every[1:] / every[0]) / constant
        if self.count == 2:
            return Head("binary", 1, odds, targets=self.y[:, None].astype(np.float64))
        return Head("multiclass", self.count, np.concatenate([[0.0], odds]), targets=self.y)


@dataclass(frozen=True, slots=True)
class Numbers:
    """Numbers [N], scaled by their range."""

    y: Array
    units: Units

    def moments(self, some: slice) -> Array:
        """Return scaled numbers and their squares, [n, 2]."""
        unit = self.units(self.y[some, None])
        return np.concatenate([unit, unit**2], axis=1)

    def head(self, means: Array, noise: float, constant: float) -> Head:  # noqa: ARG002  (it begins at the mean, 0)
        """Return the head, which predicts numbers less their released mean, over their released scale."""
        mean = float(np.clip(means[0], -1.0, 1.0))
        scale = max(float(np.sqrt(max(means[1] - mean**2, 0.0))), _LEAST_SCALE)
        zero, one = self.units.inverse(np.array([[mean], [mean + scale]]))[:, 0]
        targets = (self.units(self.y[:, None]) - mean) / scale
        return Head("regression", 1, np.zeros(1), zero, one - zero, targets)

"""Public maps of one row to features whose norm is known: nothing here has seen a private row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lipcompile.learn.recipe import Recipe
from lipcompile.learn.scaling import chunks

Array = NDArray[np.floating[Any]]
_SLACK = 1e-5
_BLOCK = 8192  # rows of a product
_ENTRIES = 2**20  # of what is computed in double precision at once
_SEED = 0


@dataclass(frozen=True, slots=True)
class Features:
    """A standardised row, cut to a ball, beside random waves of it (Rahimi and Recht 2007), and a constant c.

    Formal guarantees: ‖features‖ <= `radius` for every row of finite numbers. With w waves in pairs,
    (cos φ, sin φ)/√(w/2), the waves have norm 1; z/(2·max(1, ‖z‖)) has norm at most 1/2; both together, over
    √(5/4), have norm at most 1; and with c at most √(1 + c²). `radius` adds 1e-5 of it for rounding, and
    `__call__` refuses a row beyond it.

    Args:
        directions: of the waves, [d, w/2], over √d; None: the row alone, z/max(1, ‖z‖).
        constant: c.
    """

    directions: NDArray[np.float32] | None
    constant: float

    @classmethod
    def of(cls, columns: int, recipe: Recipe) -> Features:
        """Return the features of rows of so many columns: directions come from a fixed seed."""
        if recipe.kind == "plain":
            return cls(None, recipe.constant)
        scale = np.float32(3.0 * recipe.frequency / math.sqrt(columns))
        return cls(scale * _directions(columns, recipe.width // 2), recipe.constant)

    @property
    def radius(self) -> float:
        """An upper bound of the norm of any row's features, to seven digits."""
        return math.ceil(1e7 * (1 + _SLACK) * math.sqrt(1 + self.constant**2)) / 1e7

    def count(self, columns: int) -> int:
        """Return D, the number of features of a row of so many columns."""
        return columns + 1 + (0 if self.directions is None else 2 * self.directions.shape[1])

    def __call__(self, rows: Array) -> Array:
        """Return the features [N, D] of standardised rows [N, d], as precise as those."""
        ball = rows / rows.dtype.type(math.sqrt(rows.shape[1]))
        ball /= np.maximum(1.0, _lengths(ball))[:, None].astype(rows.dtype)
        features = np.empty((len(rows), self.count(rows.shape[1])), rows.dtype)
        features[:, -1] = self.constant
        if self.directions is None:
            features[:, :-1] = ball
        else:
            half = self.directions.shape[1]
            phases = _product(rows, self.directions)
            np.cos(phases, out=features[:, :half], casting="same_kind")
            np.sin(phases, out=features[:, half : 2 * half], casting="same_kind")
            features[:, : 2 * half] /= math.sqrt(1.25 * half)
            features[:, 2 * half : -1] = ball / (2 * math.sqrt(1.25))
        most = (1 + _SLACK / 2) * math.sqrt(1 + self.constant**2)
        if not (_lengths(features) <= most).all():  # NaN fails, too
            raise ArithmeticError("features exceed their bound: the rows contain NaN or infinity")
        return features


def joined(models: Sequence[tuple[Features, Array]]) -> tuple[Features, Array]:
    """Return features and weights [outputs, D] of the mean of heads on features, one of waves among them.

    The waves of all stand side by side, and are longer or shorter by the root of their number.
    """
    halves = [0 if one.directions is None else one.directions.shape[1] for one, _ in models]
    columns = models[0][1].shape[1] - 1 - 2 * halves[0]
    waves: tuple[list[Array], list[Array]] = ([], [])
    rest: Array = np.zeros((len(models[0][1]), columns + 1))
    for half, (_, weights) in zip(halves, models, strict=True):
        for part, some in zip(waves, np.split(weights[:, : 2 * half], 2, axis=1), strict=True):
            part.append(some * math.sqrt(sum(halves) / half) if half else some)
        rest += weights[:, 2 * half :] * ([1.0 if half else 2 * math.sqrt(1.25)] * columns + [1.0])
    directions = np.concatenate([one.directions for one, _ in models if one.directions is not None], axis=1)
    weights = np.concatenate([*waves[0], *waves[1], rest], axis=1) / len(models)
    return Features(directions, models[0][0].constant), weights


def _lengths(rows: Array) -> NDArray[np.float64]:
    """Return the norms [N] of rows [N, d], each added in one order, however the rows lie and how many there are.

    In single precision, and one column after the other, those of ten thousand columns are off by 4·10⁻⁵.
    """
    found = np.empty(len(rows))
    for some in chunks(len(rows), max(1, _ENTRIES // rows.shape[1])):
        squares = np.square(rows[some], dtype=np.float64, order="C")
        found[some] = np.sqrt(squares.sum(axis=1))
    return found


def _product(rows: Array, directions: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return rows @ directions, in products of one shape.

    How a product is rounded depends on its shape. So a row that comes or goes moves no feature of others in its
    batch: that of all of them together would not be covered by what float64 adds to the bound of a row.
    """
    found = np.empty((len(rows), directions.shape[1]), np.float32)
    block = np.zeros((_BLOCK, len(directions)), np.float32)
    for start in range(0, len(rows), _BLOCK):
        some = rows[start : start + _BLOCK]
        block[: len(some)] = some
        found[start : start + _BLOCK] = (block @ directions)[: len(some)]
    return found


def _directions(columns: int, number: int) -> NDArray[np.float32]:
    """Return normal directions [d, number] on 1, 2, 3 and all coordinates in turn, of length √d on average.

    So some waves see one column, a pair or three alone, as a tree does.
    """
    source = np.random.default_rng(_SEED)
    found = source.standard_normal((columns, number), dtype=np.float32)
    for column, wanted in zip(found.T, cycle((1, 2, 3, columns)), strict=False):
        among = min(wanted, columns)
        column[source.permutation(columns)[among:]] = 0.0
        column *= math.sqrt(columns / among)
    return found

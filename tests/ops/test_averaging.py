"""Certified norms of averages: above the truth, close to it, and exact where the truth is a short fraction."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import numpy as np
import pytest

from lipcompile.ops.averaging import Average, adaptive, averages, averaging_gram, sums
from lipcompile.ops.counting import Window


def truth(axis: tuple[Average, ...]) -> float:
    """The squared norm by a singular value decomposition."""
    matrix = np.zeros((len(axis), 1 + max(average.entries[-1] for average in axis)))
    for row, average in zip(matrix, axis, strict=True):
        row[list(average.entries)] = 1 / average.divisor
    return float(np.linalg.norm(matrix, 2)) ** 2


def check(axis: tuple[Average, ...], share: float = 1.1e-8) -> None:
    found, true = float(averaging_gram(axis)), truth(axis)
    assert true * (1 - 1e-13) <= found <= true * (1 + share), axis


@pytest.mark.parametrize("seed", range(40))
def test_windows(seed: int) -> None:
    rng = Random(seed)
    while True:
        kernel = rng.randint(1, 9)
        padding = (rng.randint(0, kernel), rng.randint(0, kernel))
        window = Window(rng.randint(1, 40), kernel, rng.randint(1, 5), rng.randint(1, 2), padding)
        if window.outputs and all(len(total.entries) for total in sums(window)):
            break
    check(sums(window))
    for counted in ((0, 0), padding, (padding[0], 0), (0, padding[1] // 2)):
        check(averages(window, counted))


@pytest.mark.parametrize(("size", "outputs"), [(1, 1), (7, 5), (5, 7), (12, 8), (224, 7), (224, 100), (30, 29)])
def test_adaptive_windows(size: int, outputs: int) -> None:
    check(adaptive(size, outputs))


def test_short_fractions_are_exact() -> None:
    assert averaging_gram(adaptive(224, 1)) == Fraction(1, 224)
    assert averaging_gram(averages(Window(12, 3, 3, 1, (0, 0)), (0, 0))) == Fraction(1, 3)
    assert averaging_gram(sums(Window(9, 2, 1, 1, (1, 1)))) <= 4


def test_an_edge_may_outweigh_the_middle() -> None:
    """Three taps, no padding counted: the first and last averages are of two, and the norm exceeds 1."""
    edge = averages(Window(20, 3, 1, 1, (1, 1)), (0, 0))
    assert [average.divisor for average in edge[:2]] == [2, 3]
    assert averaging_gram(edge) > 1
    check(edge)


@pytest.mark.parametrize("stride", [1, 3, 5])
def test_long_axes_are_bounded_without_dense_matrices(stride: int) -> None:
    window = Window(3000 if stride > 1 else 800, 5, stride, 1, (2, 2))
    for axis in (sums(window), averages(window, (0, 0))):
        check(axis, share=0.01)

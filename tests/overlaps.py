"""The longest gradient of a kernel, by ascents over g and x: an oracle for what rules bound from above."""

from __future__ import annotations

from typing import Any

import numpy as np


def line(size: int, kernel: int, stride: int = 1, padding: int = 0, dilation: int = 1) -> Any:
    """What each tap reads of a line padded by zeros: [taps, outputs, entries] of 0 and 1."""
    outputs = (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    read = np.zeros((kernel, outputs, size))
    for tap, output in np.ndindex(kernel, outputs):
        entry = output * stride + tap * dilation - padding
        if 0 <= entry < size:
            read[tap, output, entry] = 1
    return read


def image(rows: Any, columns: Any) -> Any:
    """What each tap reads of an image, whose axes are read so."""
    return np.array([np.kron(row, column) for row in rows for column in columns])


def attained(read: Any, starts: int = 8, seed: int = 0) -> float:
    """The largest Σ_t ⟨g, S_t x⟩² over unit g and x that is found: the best g of an x, the best x of that g, …"""
    random = np.random.default_rng(seed)
    best = 0.0
    for _ in range(starts):
        x = np.abs(random.standard_normal(read.shape[2]))
        for _ in range(100):
            g = np.linalg.svd(read @ x, full_matrices=False)[2][0]
            _, lengths, right = np.linalg.svd(np.einsum("toi,o->ti", read, g), full_matrices=False)
            x = right[0]
        best = max(best, float(lengths[0]) ** 2)
    return best

"""How near the certified operator norms come to the true ones, and what they cost.

    python -m benchmarks.norms [--json FILE]

The truth is the largest singular value of the dense matrix of the map, in float64. `ratio` is bound / truth,
`cost` the time of the bound over that of the dense decomposition, both in one run. Training uses the last row.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lipcompile_torch.certify.norms import EuclideanNorm, matrix_norm
from lipcompile_torch.certify.operators import Convolution
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from benchmarks.harness import options, save
from lipcompile.ops.counting import reads, taps, windows_of

REPEATS = 3


def clock(function: Callable[[], float]) -> tuple[float, float]:
    """Value and the best time of a few."""
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        value = function()
        times.append(time.perf_counter() - start)
    return value, min(times)


def dense_matrix(kernel: Tensor, conv: Convolution) -> Tensor:
    """The matrix of a convolution, column by column."""
    channels = kernel.shape[1] * conv.groups
    basis = torch.eye(channels * math.prod(conv.input_size), dtype=torch.float64)
    images = basis.reshape(-1, channels, *conv.input_size)
    if conv.padding_mode == "circular":
        images = F.pad(images, [side for pair in reversed(conv.padding) for side in pair], mode="circular")
        padding: tuple[int, ...] = (0, 0)
    else:
        padding = tuple(low for low, _ in conv.padding)
    return F.conv2d(images, kernel, None, conv.stride, padding, conv.dilation, conv.groups).flatten(1).T


Row = tuple[str, Callable[[], float]]


def convolution_rows(kernel: Tensor, conv: Convolution) -> list[Row]:
    """The bounds of a convolution, by name; each builds its Gram matrices anew, as training does."""

    def proved(kind: str) -> float:
        return next(stack.bound for stack in conv.descriptions(kernel) if stack.name == kind)

    kinds = [stack.name for stack in conv.descriptions(kernel)]
    return [
        ("Frobenius", lambda: math.sqrt(conv.reads) * EuclideanNorm(kernel).bound),
        *((f"{kind}: Cholesky", partial(proved, kind)) for kind in kinds),
        ("as in training", lambda: conv.norm(kernel).bound),
    ]


def matrix_rows(matrix: Tensor) -> list[Row]:
    """The bounds of a matrix, by name."""
    return [
        ("Frobenius", lambda: EuclideanNorm(matrix).bound),
        ("as in training", lambda: matrix_norm(matrix).bound),
    ]


def convolution(size: int, kernel: int, stride: int = 1, mode: Any = "zeros") -> Convolution:
    """A convolution of a square image, padded to keep its size."""
    half = kernel // 2
    pair, ends = (kernel, kernel), ((half, half), (half, half))
    windows = windows_of((size, size), pair, (stride, stride), (1, 1), ends, mode)
    return Convolution(pair, (size, size), reads(windows), taps(windows), (stride, stride), ends, (1, 1), 1, mode)


def maps() -> Iterator[tuple[str, Callable[[], float], list[Row]]]:
    """Yield each map with its true norm and its bounds."""
    generator = torch.Generator().manual_seed(0)
    for name, rows, columns in (("dense 256 × 784", 256, 784), ("dense 512 × 512", 512, 512)):
        matrix = torch.randn(rows, columns, generator=generator)
        yield f"{name}, Gaussian", partial(_largest, matrix), matrix_rows(matrix)
        basis = torch.nn.init.orthogonal_(torch.empty(rows, columns), generator=generator)
        yield f"{name}, orthogonal", partial(_largest, basis), matrix_rows(basis)
    cases = [(16, 12, 3, 1, "zeros"), (16, 12, 3, 1, "circular"), (16, 12, 3, 2, "zeros"), (8, 12, 5, 1, "zeros")]
    for channels, size, kernel, stride, mode in cases:
        conv = convolution(size, kernel, stride, mode)
        weight = torch.randn(channels, channels, kernel, kernel, generator=generator)
        name = f"conv {kernel}×{kernel}, {channels} channels, {size}×{size}, stride {stride}, {mode}"
        yield name, partial(_largest_of, weight, conv), convolution_rows(weight, conv)


def _largest(matrix: Tensor) -> float:
    return float(torch.linalg.matrix_norm(matrix.double(), 2))


def _largest_of(weight: Tensor, conv: Convolution) -> float:
    return _largest(dense_matrix(weight.double(), conv))


def measure() -> list[dict[str, Any]]:
    """Return ratio and cost of every bound of every map."""
    found = []
    for name, truth, rows in maps():
        true, dense = clock(truth)
        print(f"\n{name}: {true:.6f}")
        for label, bound in rows:
            value, seconds = clock(bound)
            assert value >= true * (1 - 1e-6), (name, label)
            found.append({"map": name, "bound": label, "ratio": value / true, "cost": seconds / dense})
            print(f"  {label:<42} ratio {value / true:9.6f}   cost {seconds / dense:7.4f}")
    return found


def main() -> None:
    """Print the table, and write it."""
    path = options(__doc__, json=Path).json
    save(path, measure())


if __name__ == "__main__":
    main()

"""Files with a batch of one: where it stands among the axes does not matter, for there is nothing to mix."""

from __future__ import annotations

from math import prod
from pathlib import Path

import numpy as np
import pytest

from lipcompile.frontends.onnx.layout import FIRST, Layout, permuted, reshaped
from tests.frontends.onnx.onnx_models import Array, floats, ints, model, node
from tests.frontends.onnx.test_onnx_semantics import agree

HEADS: dict[str, Array] = {
    "w": floats(6, 18),
    "out": floats(6, 6, seed=1),
    "apart": ints(5, 1, 3, 6),
    "heads": ints(5, 2, 3),
    "four": ints(1, 2, 5, 3),
    "flat": ints(5, 6),
    "scale": np.array(3**-0.5, np.float32),
    **{f"at{index}": np.array(index) for index in range(3)},
}


def test_heads_that_the_batch_is_merged_with(tmp_path: Path) -> None:
    """nn.MultiheadAttention: the batch behind the steps, one axis with the heads, one with the steps."""
    nodes = [
        node("Transpose", "x", "steps", perm=[1, 0, 2]),
        node("MatMul", "steps w", "joined"),
        node("Reshape", "joined apart", "three"),
    ]
    for index, name in enumerate("qkv"):
        nodes += [
            node("Gather", f"three at{index}", f"{name}0", axis=2),
            node("Reshape", f"{name}0 heads", f"{name}1"),
            node("Transpose", f"{name}1", f"{name}2", perm=[1, 0, 2]),
            node("Reshape", f"{name}2 four", name),
        ]
    nodes += [
        node("Transpose", "k", "kt", perm=[0, 1, 3, 2]),
        node("MatMul", "q kt", "products"),
        node("Mul", "products scale", "scores"),
        node("Softmax", "scores", "weights", axis=-1),
        node("MatMul", "weights v", "mixed"),
        node("Transpose", "mixed", "back", perm=[2, 0, 1, 3]),
        node("Reshape", "back flat", "rows"),
        node("Gemm", "rows out", "h"),
        node("Reshape", "h line", "y"),
    ]
    agree(model(nodes, (1, 5, 6), {**HEADS, "line": ints(1, 30)}, opset=13), tmp_path, batch=1)


def test_an_axis_of_its_own_is_best() -> None:
    """[5, B, 6] has 5 entries before the batch; with as many before it, it stands where it stood."""
    assert reshaped(Layout(1), (5, 6), (5, 1, 2, 3), 1) == ((5, 2, 3), Layout(1))
    assert reshaped(Layout(1), (5, 6), (1, 2, 5, 3), 1) == ((2, 5, 3), FIRST)
    assert reshaped(Layout(1), (5, 6), (6, 5, 1), 1) == ((6, 5), Layout(2))
    assert reshaped(Layout(1), (5, 6), (5, -1), 1) == ((5, 6), Layout(inner=True))


@pytest.mark.parametrize("seed", range(40))
def test_chains_of_reshapes_and_permutations_keep_the_order_of_entries(seed: int) -> None:
    """The example's tensor always holds the entries of the file's in the same order, whatever its batch is."""
    draw = np.random.default_rng(seed)
    example, layout = tuple(int(size) for size in draw.integers(1, 4, size=3)), FIRST
    inside = np.arange(prod(example)).reshape(example)
    file = inside[None]
    for _ in range(6):
        assert layout.rank(example) == file.ndim
        assert layout.sizes(example)[: layout.place] == file.shape[: layout.place]
        if draw.random() < 0.5:
            order = [int(axis) for axis in draw.permutation(file.ndim)]
            axes, layout = permuted(layout, order, 1)
            inside, file = inside.transpose(axes), file.transpose(order)
        else:
            target = _target(draw, file.size)
            shape, layout = reshaped(layout, example, target, 1)
            inside, file = inside.reshape(shape), file.reshape(target)
        example = inside.shape
        np.testing.assert_array_equal(inside.reshape(-1), file.reshape(-1))


def _target(draw: np.random.Generator, entries: int) -> tuple[int, ...]:
    """Return random sizes of so many entries, some of them 1."""
    sizes = []
    while entries > 1:
        size = int(draw.choice([d for d in range(1, entries + 1) if entries % d == 0]))
        sizes.append(size)
        entries //= size
    return (*sizes, *([1] * int(draw.integers(0, 2))), *([] if sizes else [1]))

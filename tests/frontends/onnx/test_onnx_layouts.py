"""Random chains that move the batch about: what is accepted computes what the file computes, for every batch size.

The generator knows every axis of its tensor as a list of factors, one of which is the batch. It reshapes and
permutes at will, some of the time so that examples mix. An importer that lost track of the batch would accept a
chain that mixes, or emit a module that gives each example the entries of another.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from lipcompile.frontends.onnx import model as onnx_model
from lipcompile.frontends.onnx.layout import FIRST, Layout, permuted, reshaped
from tests.frontends.onnx.onnx_models import model, node, save
from tests.frontends.onnx.test_onnx_semantics import KEEP, emitted
from tests.nights import by_day

BATCHES = (1, 3, 4)
Axis = list[int]  # factors in row-major order; 0 is the batch


class Chain:
    """A chain of operators on a tensor whose factors are known."""

    def __init__(self, seed: int) -> None:
        self.draw = np.random.default_rng(seed)
        self.shape = [int(self.draw.choice((1, 2, 3, 4))) for _ in range(self.draw.integers(1, 4))]
        self.axes: list[Axis] = [[0], *([size] for size in self.shape)]
        self.nodes = [node("Shape", "x", "shape"), node("Gather", "shape zero", "batch"), node("Relu", "x", "t0")]
        self.weights: dict[str, Any] = {"zero": np.array(0, np.int64), "front": np.array([0], np.int64)}
        self.last, self.count = "t0", 0

    def add(self, op_type: str, more: str = "", **attributes: Any) -> None:
        """Append an operator of the last tensor."""
        self.count += 1
        self.nodes.append(node(op_type, f"{self.last} {more}".strip(), f"t{self.count}", **attributes))
        self.last = f"t{self.count}"

    def constant(self, array: Any) -> str:
        """Store a tensor."""
        name = f"c{len(self.weights)}"
        self.weights[name] = np.asarray(array)
        return name

    def sizes(self, batch: int) -> list[int]:
        """The sizes of the axes for a batch."""
        return [prod(factor or batch for factor in axis) for axis in self.axes]

    # Operators

    def transpose(self) -> None:
        """Any permutation."""
        order = [int(axis) for axis in self.draw.permutation(len(self.axes))]
        self.add("Transpose", perm=order)
        self.axes = [self.axes[axis] for axis in order]

    def reshape(self) -> None:
        """Group the factors anew, in their order."""
        factors = [factor for axis in self.axes for factor in axis]
        cuts = sorted({0, len(factors), *map(int, self.draw.integers(0, len(factors) + 1, size=3))})
        self.reshape_to([factors[a:b] for a, b in pairwise(cuts)])

    def mixing(self) -> None:
        """Swap two factors in the target: the same number of entries, but not the same order."""
        axes = [list(axis) for axis in self.axes]
        a, b = (int(axis) for axis in self.draw.integers(0, len(axes), size=2))
        axes[a], axes[b] = axes[b], axes[a]
        self.reshape_to(axes)

    def reshape_to(self, axes: list[Axis]) -> None:
        """Reshape to these factors, the batch computed or left open."""
        parts, opened = [], bool(self.draw.integers(2))
        for axis in axes:
            size = prod(factor for factor in axis if factor)
            if 0 not in axis:
                parts.append(self.constant(np.array([size], np.int64)))
            elif opened:
                parts.append(self.constant(np.array([-1], np.int64)))
            else:
                name = f"size{len(self.nodes)}"
                factor = self.constant(np.array(size, np.int64))
                self.nodes.append(node("Mul", f"batch {factor}", f"{name}_product"))
                self.nodes.append(node("Unsqueeze", f"{name}_product front", name))
                parts.append(name)
        name = f"target{len(self.nodes)}"
        self.nodes.append(node("Concat", " ".join(parts), name, axis=0))
        self.add("Reshape", name)
        self.axes = axes

    def plain(self) -> list[int]:
        """The axes without the batch."""
        return [index for index, axis in enumerate(self.axes) if 0 not in axis]

    def layer(self) -> None:
        """A matrix on the last axis."""
        if 0 in self.axes[-1]:
            return
        inside, outside = prod(self.axes[-1]), int(self.draw.integers(1, 4))
        self.add("MatMul", self.constant(self.draw.normal(size=(inside, outside)).astype(np.float32) * 0.5))
        self.axes[-1] = [outside]

    def bias(self) -> None:
        """A constant that meets the last axes."""
        sizes = [1 if 0 in axis or self.draw.integers(2) else prod(axis) for axis in self.axes]
        kept = sizes[int(self.draw.integers(0, len(sizes))) :]
        array = self.draw.normal(size=kept).astype(np.float32)
        self.add(str(self.draw.choice(["Add", "Sub"])), self.constant(array))

    def reduce(self) -> None:
        """A mean over an axis."""
        if len(self.axes) < 2 or not self.plain():
            return
        axis, keep = int(self.draw.choice(self.plain())), int(self.draw.integers(2))
        self.add("ReduceMean", axes=[axis], keepdims=keep)
        self.axes = [*self.axes[:axis], *([[1]] if keep else []), *self.axes[axis + 1 :]]

    def soften(self) -> None:
        """Softmax along an axis."""
        axes = [axis for axis in self.plain() if prod(self.axes[axis]) > 1]
        if axes:
            self.add("Softmax", axis=int(self.draw.choice(axes)) - len(self.axes) * int(self.draw.integers(2)))

    def pick(self) -> None:
        """One entry of an axis, or several."""
        if not self.plain() or len(self.axes) < 2:
            return
        axis = int(self.draw.choice(self.plain()))
        index = int(self.draw.integers(prod(self.axes[axis])))
        if self.draw.integers(2):
            self.add("Gather", self.constant(np.array(index)), axis=axis)
            del self.axes[axis]
        else:
            self.add("Gather", self.constant(np.array([index, 0])), axis=axis)
            self.axes[axis] = [2]

    def double(self) -> None:
        """The tensor beside itself."""
        if self.plain():
            axis = int(self.draw.choice(self.plain()))
            self.add("Concat", self.last, axis=axis)
            self.axes[axis] = [2, *self.axes[axis]]

    def unsqueeze(self) -> None:
        """An axis of size 1."""
        axis = int(self.draw.integers(len(self.axes) + 1))
        self.add("Unsqueeze", self.constant(np.array([axis])))
        self.axes.insert(axis, [1])

    def come_back(self) -> None:
        """Bring the batch to the front, alone."""
        self.reshape_to([[factor] for axis in self.axes for factor in axis])
        place = next(index for index, axis in enumerate(self.axes) if axis == [0])
        order = [place, *(index for index in range(len(self.axes)) if index != place)]
        self.add("Transpose", perm=order)
        self.axes = [self.axes[axis] for axis in order]
        self.reshape_to([[0], [factor for axis in self.axes[1:] for factor in axis]])
        self.nodes[-1].output[0] = "y"

    def run(self) -> onnx.ModelProto:
        """Draw some operators; one chain in four tries to mix examples."""
        steps = [self.transpose, self.reshape, self.layer, self.bias, self.reduce, self.soften, self.pick]
        steps += [self.double, self.unsqueeze, self.transpose, self.reshape]
        if self.draw.integers(4) == 0:
            steps.append(self.mixing)
        for index in self.draw.integers(len(steps), size=int(self.draw.integers(2, 8))):
            steps[index]()
        self.come_back()
        return model(self.nodes, ("n", *self.shape), self.weights)


def compared(seed: int, folder: Path) -> bool:
    """Whether a chain is accepted; fails if the emitted module computes anything else for any batch."""
    chain = Chain(seed)
    made = chain.run()
    path = save(made, folder)
    loaded = onnx_model.load(path, KEEP)
    if loaded.graph is None:
        assert {d.code for d in loaded.diagnostics if d.severity == "error"} <= {"LIP102", "LIP108", "LIP110"}
        return False
    built = emitted(loaded, folder).double().eval()
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for batch in BATCHES:
        x = np.random.default_rng(batch).uniform(0, 0.1, size=(batch, *chain.shape)).astype(np.float32)
        (expected,) = session.run(None, {"x": x})
        with torch.no_grad():
            found = built(torch.from_numpy(x).double()).numpy()
        assert found.shape == expected.shape
        assert np.abs(found - expected).max(initial=0) <= 1e-4 * (1 + np.abs(expected).max(initial=0))
    return True


@pytest.mark.parametrize("first", by_day({0, 20}, range(0, 120, 20)))
def test_what_is_accepted_computes_what_the_file_computes(first: int, tmp_path: Path) -> None:
    accepted = [compared(seed, tmp_path) for seed in range(first, first + 20)]
    assert sum(accepted) >= 8  # most chains do not mix: an importer that refuses all would pass otherwise


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(1000, 4000, 100))
def test_many_chains(first: int, tmp_path: Path) -> None:
    assert sum(compared(seed, tmp_path) for seed in range(first, first + 100)) >= 40


# The rules themselves, against numpy


def layouts(seed: int) -> Iterator[tuple[Layout, tuple[int, ...]]]:
    draw = np.random.default_rng(seed)
    for _ in range(40):
        example = tuple(int(size) for size in draw.integers(2, 4, size=draw.integers(1, 4)))
        axis = int(draw.integers(len(example) + 1))
        outer, inner = axis > 0 and bool(draw.integers(2)), axis < len(example) and bool(draw.integers(2))
        yield Layout(axis, outer, inner), example


def in_file(layout: Layout, examples: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What a file holds for a batch of examples in this layout, by the definition of `Layout`."""
    moved = np.moveaxis(examples, 0, layout.axis)
    merged = prod(moved.shape[layout.place : layout.axis + 1 + layout.inner])
    return moved.reshape(*moved.shape[: layout.place], merged, *moved.shape[layout.axis + 1 + layout.inner :])


@pytest.mark.parametrize("seed", range(5))
def test_permutations_of_the_file_are_those_of_the_example(seed: int) -> None:
    draw = np.random.default_rng(seed)
    for layout, example in layouts(seed):
        examples = draw.normal(size=(5, *example))
        order = [int(axis) for axis in draw.permutation(layout.rank(example))]
        axes, new = permuted(layout, order, None)
        moved = examples.transpose(0, *(axis + 1 for axis in axes))
        assert np.array_equal(in_file(layout, examples).transpose(order), in_file(new, moved))


@pytest.mark.parametrize("seed", range(5))
def test_reshapes_of_the_file_are_those_of_the_example(seed: int) -> None:
    draw = np.random.default_rng(seed)
    for layout, example in layouts(seed):
        examples = draw.normal(size=(5, *example))
        factors = [*example[: layout.axis], 5, *example[layout.axis :]]
        cuts = sorted({0, len(factors), *map(int, draw.integers(0, len(factors) + 1, size=2))})
        target = [prod(factors[a:b]) for a, b in pairwise(cuts)]
        shape, new = reshaped(layout, example, target, 5)
        assert np.array_equal(in_file(layout, examples).reshape(target), in_file(new, examples.reshape(5, *shape)))
        assert new.rank(shape) == len(target)


def test_the_usual_layout() -> None:
    assert FIRST.rank((3, 4)) == 3
    assert FIRST.of_example(2) == 1
    assert Layout(1, outer=True).of_example(1) == 1
    assert Layout(1, outer=True, inner=True).rank((2, 3, 4)) == 2

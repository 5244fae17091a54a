"""The rolling pass: what repeats in a graph, and its closed form against the graph as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from random import Random
from re import fullmatch

import numpy as np
import onnx
import pytest

from lipcompile import ModelOptions, pipeline
from lipcompile.analysis.bounds import derive
from lipcompile.analysis.depth.loops import Loop, loops, step_of
from lipcompile.analysis.depth.repetition import Repetition, bottlenecks, repetitions, rerolled, segments
from lipcompile.analysis.sensitivity import analyse
from lipcompile.core.derivation import Analysis
from lipcompile.core.graph import Graph, Value
from lipcompile.core.record import Constraint, NoAttributes
from lipcompile.numbers.certified import Certified
from lipcompile.ops.merge.rules import Sum
from tests.analysis.test_closed_forms import CLOSE, close, evaluated
from tests.attacks.planted import permuted, planted
from tests.frontends.onnx.onnx_models import Array, floats, model, node, save
from tests.frontends.onnx.resnet_onnx import resnet
from tests.networks import ONE, Network

# Networks built by hand


def residual_block(net: Network, name: str | None = None) -> None:
    """h + relu(W·h), the weight's name free."""
    before = net.end
    net.dense(4, shared=name)
    added(net, before, plain(net, "relu"))


def plain(net: Network, name: str) -> Value:
    return net.add(name, NoAttributes())


def added(net: Network, *values: Value, weights: tuple[Fraction, ...] = (ONE, ONE)) -> Value:
    return net.add("add", Sum(weights), *values)


def chain_of(blocks: int, name: Callable[[int], str | None] = lambda _: None) -> Graph:
    """A stem, residual blocks, a head of another size."""
    net = Network((3,))
    net.dense(4)
    for index in range(blocks):
        residual_block(net, name(index))
    net.dense(2)
    return net.finish()


def found(graph: Graph) -> list[Loop]:
    repeated, _ = rerolled(graph)
    repeated.verify()
    return [loop.attributes for loop in loops(repeated)]


def same_total(graph: Graph) -> None:
    repeated, _ = rerolled(graph)
    numbers = [derive(one, Certified()).total.upper for one in (repeated, graph)]
    assert numbers[0] == pytest.approx(numbers[1], rel=CLOSE)


def test_bottlenecks_are_what_no_edge_bridges() -> None:
    graph = chain_of(2)
    assert bottlenecks(graph) == ["x", "dense", "add", "add_2", "dense_4"]
    assert [tuple(node.name for node in segment) for segment in segments(graph)] == [
        ("dense",),
        ("dense_2", "relu", "add"),
        ("dense_3", "relu_2", "add_2"),
        ("dense_4",),
    ]


def test_a_skip_over_two_blocks_leaves_no_bottleneck_between_them() -> None:
    net = Network((4,))
    start = net.end
    for _ in range(2):
        residual_block(net)
    added(net, start, net.end)
    net.dense(2)
    assert bottlenecks(net.finish()) == ["x", "add_3", "dense_3"]
    assert not found(net.finish())


def test_copies_are_listed_with_their_layers() -> None:
    [loop] = found(chain_of(3))
    assert loop.copies == (
        ("dense_2", "relu", "add"),
        ("dense_3", "relu_2", "add_2"),
        ("dense_4", "relu_3", "add_3"),
    )
    assert loop.count.value == 3
    assert not loop.shared
    same_total(chain_of(3))


def test_one_weight_in_all_copies_is_shared() -> None:
    graph = chain_of(3, lambda _: "tied")
    [loop] = found(graph)
    assert loop.shared == {"tied"}
    same_total(graph)


def test_weights_that_some_copies_share_keep_these_apart_from_others() -> None:
    """Copies 1, 3 with w0 and 2, 4 with w1: the period is two blocks, both weights those of all copies."""
    graph = chain_of(4, lambda index: f"w{index % 2}")
    [loop] = found(graph)
    assert (loop.count.value, loop.shared) == (2, frozenset({"w0", "w1"}))
    same_total(graph)
    # Of copies 1, 1, 2, 2 only pairs are alike.
    graph = chain_of(4, lambda index: f"w{index // 2}")
    assert [(loop.count.value, *loop.shared) for loop in found(graph)] == [(2, "w0"), (2, "w1")]
    same_total(graph)


@pytest.mark.parametrize("after", [False, True])
def test_a_weight_that_is_used_outside_of_the_copies_is_added_up(after: bool) -> None:
    net = Network((4,))
    net.dense(4, shared=None if after else "tied")
    for _ in range(3):
        plain(net, "tanh")
        net.dense(4, shared="tied")
        net.dense(4)
    if after:
        net.dense(4, shared="tied")
    net.dense(2)
    same_total(net.finish())
    assert found(net.finish())


@pytest.mark.parametrize("change", ["constraint", "frozen"])
def test_a_copy_with_another_constraint_ends_a_run(change: str) -> None:
    graph = chain_of(4)
    third = graph.parameters["dense_4.weight"]
    other = (
        replace(third, constraint=Constraint("spectral", Fraction(2)))
        if change == "constraint"
        else replace(third, trainable=False)
    )
    graph = replace(graph, parameters={**graph.parameters, third.name: other})
    [loop] = found(graph)
    assert loop.copies == (("dense_2", "relu", "add"), ("dense_3", "relu_2", "add_2"))
    same_total(graph)


def test_the_order_of_branches_in_a_file_does_not_count() -> None:
    """x ↦ relu(Wx) + |Vx|: in the second copy, V stands first."""
    net = Network((4,))
    for order in (("relu", "abs"), ("abs", "relu")):
        before, made = net.end, dict[str, Value]()
        for kind in order:
            net.end = before
            net.dense(4)
            made[kind] = plain(net, kind)
        added(net, made["relu"], made["abs"])
    net.dense(2)
    [loop] = found(net.finish())
    assert [len(copy) for copy in loop.copies] == [5, 5]
    same_total(net.finish())


def test_operands_in_another_order_are_another_layer() -> None:
    """Weights 1 and 1/2 of a sum: of x and f(x), then of f(x) and x."""
    net = Network((4,))
    for turned in (False, True):
        before = net.end
        inner = net.dense(4)
        added(net, *((inner, before) if turned else (before, inner)), weights=(ONE, ONE / 2))
    net.dense(2)
    assert not found(net.finish())


def test_loops_in_loops() -> None:
    """Three times: two dense layers with tanh and one with relu. Of the weights in both loops, all are counted."""
    net = Network((4,))
    for _ in range(3):
        for kind in ("tanh", "tanh", "relu"):
            net.dense(4)
            plain(net, kind)
    net.dense(2)
    [outer] = found(net.finish())
    [inner] = loops(outer.body)
    assert (outer.count.value, inner.attributes.count.value) == (3, 2)
    same_total(net.finish())


# The sequence of keys


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("", []),
        ("abc", []),
        ("aa", [Repetition(0, 1, 2)]),
        ("xababab", [Repetition(1, 2, 3)]),
        ("aabaab", [Repetition(0, 3, 2)]),
        ("aaaa", [Repetition(0, 1, 4)]),
        ("ababbb", [Repetition(0, 2, 2), Repetition(4, 1, 2)]),
        ("aaabbaaabb", [Repetition(0, 5, 2)]),
    ],
)
def test_runs(keys: str, expected: Sequence[Repetition]) -> None:
    assert repetitions([ord(key) for key in keys]) == expected


def test_copies_begin_with_a_head_if_they_can() -> None:
    assert repetitions([1, 2, 1, 2, 1], heads={2}) == [Repetition(1, 2, 2)]
    assert repetitions([1, 2, 1, 2], heads={2}) == [Repetition(0, 2, 2)]


def every_run(keys: Sequence[int]) -> Iterator[Repetition]:
    places = range(len(keys))
    for start, period, count in ((s, p, c) for s in places for p in places[1:] for c in range(2, len(keys) + 1)):
        stop = start + period * count
        if stop <= len(keys) and all(keys[i] == keys[i - period] for i in range(start + period, stop)):
            yield Repetition(start, period, count)


def covered(run: Repetition) -> set[int]:
    return set(range(run.start, run.start + run.length))


@pytest.mark.parametrize("seed", range(60))
def test_runs_are_runs_and_leave_none_out(seed: int) -> None:
    rng = Random(seed)
    keys = [rng.randrange(rng.choice((2, 3))) for _ in range(rng.randint(2, 12))]
    chosen, possible = repetitions(keys, heads={0}), list(every_run(keys))
    taken = [place for run in chosen for place in covered(run)]
    assert len(taken) == len(set(taken))
    assert all(any((r.start, r.period, r.count) == (c.start, c.period, c.count) for r in possible) for c in chosen)
    assert all(covered(run) & set(taken) for run in possible)
    assert max((run.length for run in chosen), default=0) == max((run.length for run in possible), default=0)


# Random graphs in which blocks were planted


def compared(graph: Graph) -> int:
    """Compare every bound of the rolled graph with that of the graph; return the number of loops."""
    repeated, _ = rerolled(graph)
    repeated.verify()
    bounds, expected = derive(repeated, Certified()), derive(graph, Certified())
    steps = [step_of(loop.attributes, Certified()) for loop in loops(repeated)]
    reads = any(node.op.reads for node in graph.nodes) or (graph.loss is not None and graph.loss.loss.reads)
    exact = all(step.exact for step in steps) and not reads
    pairs = [("total", bounds.total, expected.total)]
    for kind in ("norm", "cotangent", "slope", "gradient"):
        mine, theirs = getattr(bounds, kind), getattr(expected, kind)
        pairs += [(f"{kind} {name}", mine[name], theirs[name]) for name in mine if name in theirs]
    for what, one, other in pairs:
        assert one.upper >= other.upper * (1 - CLOSE), what
        assert not exact or one.upper <= other.upper * (1 + CLOSE), what
    return len(steps)


def test_loops_are_never_below_what_they_stand_for() -> None:
    assert sum(compared(graph) for graph in map(planted, range(60)) if graph is not None) > 60


@pytest.mark.nightly
def test_loops_are_never_below_what_they_stand_for_nightly() -> None:
    assert sum(compared(graph) for graph in map(planted, range(60, 3000)) if graph is not None) > 3000


@pytest.mark.parametrize("seed", range(10))
def test_the_order_of_a_file_does_not_count(seed: int) -> None:
    """Loops that a permuted graph has are those of the graph."""
    graph = chain_of(3) if seed == 0 else planted(seed)
    if graph is None:
        return
    other = permuted(graph, Random(seed))
    one, two = ([(loop.count.value, len(loop.body.nodes)) for loop in found(g)] for g in (graph, other))
    assert one == two


# Files


class Onnx:
    """Adds nodes to a graph from `x` to `y`."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, Array] = {}

    def add(self, op: str, inputs: str, **attributes: object) -> str:
        output = f"v{len(self.nodes)}"
        self.nodes.append(node(op, inputs, output, **attributes))
        return output

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = floats(*shape, seed=len(self.weights))
        return name

    def linear(self, source: str, inputs: int, outputs: int) -> str:
        product = self.add("MatMul", f"{source} {self.weight(inputs, outputs)}")
        return self.add("Add", f"{product} {self.weight(outputs)}")

    def perceptron(self, source: str, size: int, inner: int, kind: str) -> str:
        return self.linear(self.add(kind, self.linear(source, size, inner)), inner, size)

    def head(self, source: str, size: int) -> None:
        last = f"{source} {self.weight(size, 10)}"
        self.nodes.append(node("MatMul", last, "y"))

    def model(self, *shape: int) -> onnx.ModelProto:
        said = {"lipcompile.input_norm": "1", "lipcompile.loss": "cross_entropy"}
        return model(self.nodes, ("n", *shape), self.weights, metadata=said)


def perceptron(layers: int) -> onnx.ModelProto:
    net, end = Onnx(), "x"
    for _ in range(layers):
        end = net.add("Relu", net.add("Gemm", f"{end} {net.weight(16, 16)} {net.weight(16)}", transB=1))
    net.head(end, 16)
    return net.model(16)


def mixer(blocks: int) -> onnx.ModelProto:
    """Perceptrons across 9 tokens and across 8 features in turn, each beside a skip path."""
    net, end = Onnx(), "x"
    for _ in range(blocks):
        turned = net.perceptron(net.add("Transpose", end, perm=[0, 2, 1]), 9, 16, "Relu")
        end = net.add("Add", f"{end} {net.add('Transpose', turned, perm=[0, 2, 1])}")
        end = net.add("Add", f"{end} {net.perceptron(end, 8, 16, 'Relu')}")
    net.head(net.add("ReduceMean", end, axes=[1], keepdims=0), 8)
    return net.model(9, 8)


def encoder(blocks: int) -> onnx.ModelProto:
    """Patches with positions, then blocks of a ViT, its attention over learned keys and values."""
    net = Onnx()
    end = net.add("Conv", f"x {net.weight(8, 3, 4, 4)}", kernel_shape=[4, 4], strides=[4, 4])
    net.weights["sizes"] = np.array([0, 8, -1])
    end = net.add("Transpose", net.add("Reshape", f"{end} sizes"), perm=[0, 2, 1])
    end = net.add("Add", f"{end} {net.weight(1, 16, 8)}")
    for _ in range(blocks):
        for inner, kind in ((12, "Softmax"), (16, "Relu")):
            norm = f"{end} {net.weight(8)} {net.weight(8)}"
            mixed = net.perceptron(net.add("LayerNormalization", norm, epsilon=0.01), 8, inner, kind)
            end = net.add("Add", f"{end} {mixed}")
    net.head(net.add("ReduceMean", end, axes=[1], keepdims=0), 8)
    return net.model(3, 16, 16)


def imported(made: onnx.ModelProto, folder: Path) -> Analysis:
    graph = pipeline.load(str(save(made, folder)), ModelOptions()).graph
    assert graph is not None
    return analyse(graph)


# A file, how many copies of how many nodes, and the growth; a rate that is a long number has a name.
FILES: Mapping[str, tuple[onnx.ModelProto, int, int, str]] = {
    "perceptron": (perceptron(12), 12, 2, r"O\(T\*\*\(3/2\)\)"),
    "mixer": (mixer(4), 4, 10, r"O\(4\*\*T \* sqrt\(T\)\)"),
    "encoder": (encoder(3), 3, 14, r"O\(c_block_1_\d+\*\*T\)"),
    "resnet": (resnet(), 2, 5, r"O\(2\*\*T \* sqrt\(T\)\)"),
}


@pytest.mark.parametrize("name", FILES)
def test_blocks_of_a_file_are_found_and_solved(name: str, tmp_path: Path) -> None:
    made, copies, layers, growth = FILES[name]
    analysis = imported(made, tmp_path)
    [block] = analysis.depth.blocks
    assert (block.repeats, len(block.layers), {len(copy) for copy in block.layers}) == (copies, copies, {layers})
    total = analysis.depth.gradient_bound
    assert total is not None
    assert close(evaluated(total.expression, analysis.depth.definitions), analysis.total.value)
    assert total.value == pytest.approx(analysis.total.value, rel=CLOSE)
    assert fullmatch(growth, analysis.depth.growth or "")

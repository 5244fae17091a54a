"""Graphs as .lip text: what is read back is the graph, with equal bounds."""

from __future__ import annotations

from dataclasses import fields
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from lipcompile.analysis.bounds import derive
from lipcompile.analysis.depth.loops import Loop
from lipcompile.core.graph import Graph, Node
from lipcompile.diagnostics import InputError
from lipcompile.frontends.lip.lowering import lower
from lipcompile.frontends.lip.parser import parse
from lipcompile.frontends.lip.printer import print_model
from lipcompile.frontends.options import ModelOptions
from lipcompile.numbers.certified import Certified
from lipcompile.ops.merge.rules import SUM, Sum, Where
from lipcompile.pipeline import load
from tests.attacks.graphs import random_graph
from tests.attacks.modules import random_model
from tests.networks import Network
from tests.nights import by_day

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.lip"))


def read(text: str) -> Graph:
    graph, problems = lower(parse(text, "printed").models[0], {}, ModelOptions())
    assert graph is not None, (text, [problem.message for problem in problems])
    return graph


def statements(text: str) -> list[str]:
    """Return the lines between the input and the closing brace."""
    return [line.strip() for line in text.splitlines()][2:-1]


def written(body: str, head: str = "input x: tensor[4], norm <= 1") -> list[str]:
    return statements(print_model(read(f"model m {{ {head}\n {body} }}")))


# Equal graphs


def signature(graph: Graph) -> Any:
    """A graph without places in a file, names of values, and the order of the operands of sums."""
    place = {graph.input.name: -1} | {node.name: index for index, node in enumerate(graph.nodes)}
    source = graph.input
    return (
        (source.shape, source.norm, source.trusted, source.tokens),
        tuple(of_node(node, place, graph) for node in graph.nodes),
        None if graph.loss is None else (graph.loss.loss.name, graph.loss.attributes),
        place[graph.output],
    )


def of_node(node: Node, place: dict[str, int], graph: Graph) -> Any:
    operands: list[Any] = [place[name] for name in node.inputs]
    attributes = of_loop(node.attributes) if isinstance(node.attributes, Loop) else record(node)
    if node.op is SUM:
        operands, attributes = sorted(zip(operands, map(str, node.attributes.weights), strict=True)), None
    chosen = {
        role: (name, p.shape, p.constraint, p.trainable, p.copies)
        for role, name in node.parameters.items()
        for p in (graph.parameters[name],)
    }
    return node.op.name, attributes, operands, chosen, node.shape


def record(node: Node) -> dict[str, Any]:
    """The attributes that the op knows."""
    return {field.name: getattr(node.attributes, field.name) for field in fields(node.op.attributes)}


def of_loop(loop: Loop) -> Any:
    return loop.name, signature(loop.body), loop.count, loop.saturated, loop.shared


def check_round_trip(graph: Graph) -> str:
    text = print_model(graph)
    again = read(text)
    assert signature(again) == signature(graph), text
    return text


def bounds(graph: Graph) -> list[float]:
    found = derive(graph, Certified())
    return [bound.upper for bound in (*found.gradient.values(), found.total, found.loss_lipschitz)]


# Properties


def expressible(graph: Graph) -> bool:
    """Whether the language has words for all that is in a random graph."""
    by_node = [[graph.parameters[name] for name in node.parameters.values()] for node in graph.nodes]
    users = [name for node in graph.nodes for name in node.parameters.values()]
    return not (
        any(node.op.name == "where" for node in graph.nodes)
        or any(len({p.trainable for p in own}) > 1 for own in by_node)
        or any(users.count(name) > 1 for name in users)
    )


def test_random_graphs_come_back() -> None:
    tried = 0
    for seed in range(150):
        graph = random_graph(seed)
        if not expressible(graph):
            continue
        tried += 1
        text = check_round_trip(graph)
        assert bounds(read(text)) == bounds(graph), text
    assert tried > 40


@pytest.mark.parametrize("start", by_day({0, 150}, range(0, 200, 50)))
def test_random_models_come_back(start: int) -> None:
    """Every spelling of the language, in residuals, branches and recurrent layers, frozen and shared."""
    for seed in range(start, start + 50):
        text = f"model m {{ {' ; '.join(random_model(seed))} }}"
        graph, _ = lower(parse(text, "random").models[0], {}, ModelOptions())
        if graph is not None:
            check_round_trip(graph)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_come_back(path: Path) -> None:
    graph = load(str(path), ModelOptions()).graph
    assert graph is not None
    check_round_trip(graph)


# By hand


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        ("dense(3)\n relu", ["dense(3)", "relu"]),
        ("a = dense(3)\n relu", ["a = dense(3)", "relu"]),
        ("a = relu\n dense(3)", ["relu", "dense(3)"]),
        ("a = dense(4)\n b = tanh\n add(b, a)", ["a = dense(4)", "residual(add) { tanh }"]),
        ("a = dense(4)\n b = tanh\n add(b, x)", ["residual(add) { a = dense(4); tanh }"]),
        (
            "dense(4)\n b = tanh\n c = mean(b, x)\n add(c, b)",
            ["dense(4)", "b = tanh", "c = mean(b, x)", "add(c, b)"],
        ),
    ],
)
def test_names_stand_where_they_are_read(body: str, lines: list[str]) -> None:
    assert written(body) == lines


@pytest.mark.parametrize(
    "body",
    [
        "dense(3, constraint=frobenius(0.5), bias=0.25)",
        "dense(3, constraint=fixed, bias=0.25)",
        "frozen { a = dense(3); relu; b = dense(2) }",
        "bias(0.5)",
        "bias(0.5, size=(1,))",
        "dense(3); add(weights=(-2,))",
        "a = dense(4); add(a, x, weights=(0.25, -1))",
        "residual(convex(0.25)) { dense(4) }",
        "reshape(1, 4); conv1d(2, kernel=3, padding=((1, 2),)); lp_pool(3, kernel=2, stride=1); flatten",
        "reshape(1, 2, 2); max_pool(2, padding=(1, (0, 1))); global_avg_pool(keep=true)",
        "relu6; hardtanh(high=2); layer_norm(floor=0.5, axes=(0,)); scale(2); prelu(shared=true)",
        "branch { dense(2) } { } { tanh; dense(3) } -> concat",
        'dense(4, share="dense"); tanh; dense(4, share="dense")',
        "expand(3, -1); transpose; reshape(2, -1); gather((0, 1, 1), axis=0)",
    ],
)
def test_what_is_written_well_is_written_so(body: str) -> None:
    assert "; ".join(written(body)) == body


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "model m { param depth: int input x: tensor[4], norm <= 1 repeat depth { relu } }",
            "repeat depth { relu }",
        ),
        ("model m { input x: tensor[4], norm <= R dense(2) }", "input x: tensor[4], norm <= R"),
        ("model m { param c: real input x: tensor[4] dense(2, bias=c + 1) }", "dense(2, bias=(c + 1))"),
        ("model m { input x: tensor[4], norm <= 1/3, trusted relu }", "input x: tensor[4], norm <= 1/3, trusted"),
        ("model m { input x: tokens[4] embedding(8, 2) }", "input x: tokens[4]"),
        (
            "model m { input x: tensor[4] dense(3) loss cross_entropy(class_weights=(1, 2, 0.5)) }",
            "loss cross_entropy(class_weights=(1, 2, 0.5))",
        ),
    ],
)
def test_declarations(text: str, line: str) -> None:
    assert line in [written.strip() for written in check_round_trip(read(text)).splitlines()]


@pytest.mark.parametrize(
    "body",
    [
        "dense(3, clip=automatic)",
        "dense(3, bias=true, clip=0.25)",
        "dense(3, bias=0.5, clip=automatic)",
        "dense(3, constraint=spectral(1), clip=automatic)",
        "dense(3, constraint=frobenius(2), bias=true, clip=1/3)",
        "dense(3, bias=true)",
        "scale(clip=2)",
        "scale(bound=1, clip=2)",
        "bias(clip=automatic)",
        "bias(bound=0.5, clip=automatic)",
        'dense(4, bias=true, share="a", clip=0.1); relu; dense(4, bias=true, share="a", clip=0.1)',
        "prelu(clip=automatic); householder(clip=0.1); dense(3)",
        "residual(add) { dense(4, clip=automatic) }; repeat 2 { dense(4, clip=0.5) }",
    ],
)
def test_clips_come_back(body: str) -> None:
    graph = read(f"model m {{ input x: tensor[4], norm <= 1\n {body} }}")
    again = read(check_round_trip(graph))
    assert [(group.parameters, group.length, group.regulariser) for group in again.clips] == [
        (group.parameters, group.length, group.regulariser) for group in graph.clips
    ]


def test_layers_that_are_clipped_together_with_others_are_refused() -> None:
    with pytest.raises(InputError, match="clipped together with other layers"):
        written("lstm(2, clip=0.5)", "input x: tensor[3, 4]")


def test_layers_that_nothing_constrains_are_refused() -> None:
    """Once its clip is left out, a frozen layer keeps its weights as they are, and has no word for it."""
    graph = read("model m { input x: tensor[4], norm <= 1\n dense(3, clip=0.5) }").freeze(["dense.*"])
    with pytest.raises(InputError, match="its weights have no constraint"):
        print_model(graph)


def test_repetitions_with_shared_weights() -> None:
    body = 'repeat n { residual(mean) { dense(4); tanh } }; dense(4, share="own"); tanh; dense(4, share="own")'
    graph = read(f"model m {{ param n: int input x: tensor[4] repeat n {{ {body} }} dense(2) }}")
    check_round_trip(graph)


def test_frozen_parts_keep_what_is_read_outside() -> None:
    """Names end with their block: one that is read behind it must be that of its last statement."""
    body = "frozen { a = dense(4); tanh; dense(4) }\n residual(add) { relu }"
    graph = read(f"model m {{ input x: tensor[4], norm <= 1\n {body} }}")
    text = check_round_trip(graph)
    assert "frozen { a = dense(4); tanh; dense(4) }" in text


def test_words_of_the_grammar_are_no_names() -> None:
    net = Network((4,))
    first = net.builder.add(SUM, Sum((Fraction(2),)), [net.end], name="loss")
    net.add("add", Sum((Fraction(1), Fraction(1))), first, net.end)
    net.dense(2)
    text = check_round_trip(net.finish())
    assert "loss_ = add(weights=(2,))" in text


def refusals(graph: Graph) -> list[str]:
    with pytest.raises(InputError) as caught:
        print_model(graph)
    assert {found.code for found in caught.value.diagnostics} == {"LIP017"}
    return [found.message for found in caught.value.diagnostics]


def test_what_has_no_words_is_refused() -> None:
    net = Network((2,))
    first = net.dense(2)
    net.add("where", Where((True, False)), first, net.dense(2))
    assert refusals(net.finish()) == ["`where` cannot be written in .lip: the language has no layer for `where`"]


def test_biases_stand_apart_where_weights_alone_are_shared() -> None:
    net = Network((2,), bias=Fraction(1))
    net.dense(2, shared="tied")
    net.dense(2, shared="tied")
    graph = net.finish()
    text = print_model(graph)
    assert statements(text)[:4] == [
        'dense(2, share="dense")',
        "bias(1)",
        'dense(2, share="dense")',
        "bias(1)",
    ]
    assert bounds(read(text)) == pytest.approx(bounds(graph), rel=1e-12)


def test_a_frozen_bias_alone_is_refused() -> None:
    graph = read("model m { input x: tensor[2], norm <= 1 dense(2, bias=1) }").freeze(("*.bias",))
    assert "only bias of its parameters is frozen" in refusals(graph)[0]

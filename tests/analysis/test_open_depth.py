"""`repeat` with an open count in .lip: what it makes, and what it cannot have."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from lipcompile.__main__ import run
from lipcompile.analysis.depth.loops import loops
from lipcompile.frontends.options import ModelOptions
from lipcompile.numbers import Symbol
from lipcompile.pipeline import check
from tests.frontends.lip.test_dsl import graph_of, problems, write

OPEN = "model m { param n: int param width: int; input x: tensor[4], norm <= 1\n"


def test_an_open_repeat_count_makes_one_node(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, OPEN + "stem = dense(4) repeat n { dense(4, bias=0.5) relu } dense(2) }")
    assert [(node.name, node.op.name) for node in graph.nodes] == [
        ("stem", "dense"),
        ("repeat_1", "loop"),
        ("dense", "dense"),
    ]
    [loop] = loops(graph)
    assert (loop.attributes.count.scalar, loop.attributes.count.value) == (Symbol("n", "parameter n"), None)
    assert [node.name for node in loop.attributes.body.nodes] == ["dense", "relu"]
    assert list(graph.parameters) == [
        "stem.weight",
        "repeat_1.dense.weight",
        "repeat_1.dense.bias",
        "dense.weight",
    ]


def test_a_repeat_count_with_a_value_writes_copies(tmp_path: Path) -> None:
    text = OPEN + "repeat n { dense(4) } repeat 2 * n { relu } }"
    graph = graph_of(tmp_path, text, ModelOptions(bindings={"n": Fraction(2)}))
    assert [node.op.name for node in graph.nodes] == ["dense"] * 2 + ["relu"] * 4


def test_open_repetitions_nest_and_stand_in_branches(tmp_path: Path) -> None:
    body = "branch { repeat n { dense(4) } } { repeat 2 * n { relu repeat n { abs dense(4) } } } -> add"
    graph = graph_of(tmp_path, OPEN + body + " }")
    outer = loops(graph)
    assert [node.name for node in outer] == ["repeat_1", "repeat_2"]
    assert [node.name for node in loops(outer[1].attributes.body)] == ["repeat_3"]
    assert list(graph.parameters) == ["repeat_1.dense.weight", "repeat_2.repeat_3.dense.weight"]


CLOSED_FORM = "the bounds have no closed form in the number of copies:"
LET_IT_READ = "give the count with --set: then every copy may read it"
LABEL = "`w` is shared across the border of a repetition whose count is open"
RELABEL = "give the count with --set, or use another label"
COUNT = "give the count: --set n=12"


@pytest.mark.parametrize(
    ("body", "message", "help_line"),
    [
        (
            "stem = dense(4) repeat n { h = relu; add(h, stem) }",
            "`stem` stands outside of a repetition whose count is open",
            LET_IT_READ,
        ),
        (
            "repeat n { h = relu; residual(mean) { add(h, x) } }",
            "`x` stands outside of a repetition whose count is open",
            LET_IT_READ,
        ),
        ("repeat n { dense(3) }", "one copy makes [3] of [4], so that the next copies differ", COUNT),
        (
            "repeat 2 * n { dense(4) clip_gradient(0.1) }",
            f"{CLOSED_FORM} `clip_gradient_` bounds the cotangent of each copy separately",
            COUNT,
        ),
        ("repeat n { frozen { sign } }", f"{CLOSED_FORM} `sign` is not Lipschitz", COUNT),
        (
            "repeat n { dense(4) gelu }",
            f"{CLOSED_FORM} the norm after `gelu` is not a polynomial in the norm of the input",
            COUNT,
        ),
        (
            "repeat n { branch { dense(4) } { softmax } -> multiply }",
            f"{CLOSED_FORM} the Lipschitz constant of a copy depends on the norm of its input",
            COUNT,
        ),
        ('dense(4, share="w") repeat n { dense(4, share="w") }', LABEL, RELABEL),
        ('repeat n { dense(4, share="w") } dense(4, share="w")', LABEL, RELABEL),
        ('repeat n { repeat n { dense(4, share="w") } dense(4, share="w") }', LABEL, RELABEL),
        ("dense(width)", "`dense`: `features` must have a value, but `width` has none", "add --set width=…"),
    ],
)
def test_what_an_open_count_cannot_have_is_refused(
    tmp_path: Path, body: str, message: str, help_line: str
) -> None:
    (found,) = problems(tmp_path, OPEN + body + " }")
    assert (found.code, found.message, found.help) == ("LIP014", message, help_line)
    assert found.location is not None
    assert found.location.line == 2


@pytest.mark.parametrize("command", ["compile", "audit", "train"])
def test_an_open_model_is_no_module(tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    train = "train { sampling poisson(batch=8, dataset=64) budget epsilon=3, delta=1e-2, epochs=1 }"
    path = write(tmp_path, OPEN + "repeat n { dense(4) relu } dense(3) loss cross_entropy }\n" + train)
    out = str(tmp_path / "out")
    data = tmp_path / "data.npz"
    data.touch()
    options = {"compile": ["-o", out], "train": ["--data", str(data), "--output", out], "audit": []}[command]
    assert run([command, path, *options]) == 2
    assert "error[LIP014]: a module needs numbers, but n has no value" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_what_is_frozen_from_outside_is_frozen_in_every_copy(tmp_path: Path) -> None:
    body = "repeat n { dense(4, bias=0.5) relu repeat n { abs dense(4) } } dense(1) loss kr }"
    options = ModelOptions(freeze=("repeat_1.dense.weight", "repeat_1.repeat_2.*"))
    analysis = check(write(tmp_path, OPEN + body), options).analysis
    assert analysis is not None
    assert list(analysis.parameters) == ["repeat_1.dense.bias", "dense.weight"]
    [block] = analysis.depth.blocks
    assert list(block.gradient) == ["dense.bias"]
    assert str(block.total) == "1"


@pytest.mark.parametrize(
    ("body", "warned"),
    [
        ("repeat n { layer_norm(eps=1e-5) dense(4) }", ["layer_norm"]),  # the copy before is trained
        ("repeat n { repeat n { layer_norm(eps=1e-5) } dense(4) }", ["layer_norm"]),
        ("dense(4) repeat n { layer_norm(eps=1e-5) }", ["layer_norm"]),
        ("repeat n { layer_norm(eps=1e-5) } dense(4)", []),
        ("repeat n { frozen { layer_norm(eps=1e-5) dense(4) } } dense(4)", []),
    ],
)
def test_vacuous_norms_of_copies_are_warned_of(tmp_path: Path, body: str, warned: list[str]) -> None:
    found = check(write(tmp_path, OPEN + body + " dense(1) loss kr }")).diagnostics
    assert [d.node for d in found if d.code == "LIP112"] == warned


def test_weights_shared_by_different_maps_are_refused_in_copies_of_copies(tmp_path: Path) -> None:
    layers = """conv1d(2, kernel=1, share="w") a, b = split(2, axis=1) conv1d(a, 2, kernel=1, share="w")
        c = relu concat(c, b, axis=1)"""
    text = "model m { param n: int; input x: tensor[2, 4], norm <= 1\n"
    text += f"repeat n {{ repeat n {{ {layers} }} }} flatten dense(1) loss kr }}"
    assert [d.code for d in check(write(tmp_path, text)).diagnostics] == ["LIP308"]

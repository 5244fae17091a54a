"""Activations in emitted modules: they compute their definition, within the bounds that were derived."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
import torch
from mpmath import mp

from lipcompile.core.record import Extent, NoAttributes, Site
from lipcompile.numbers import Arithmetic, Symbol
from lipcompile.numbers.certified import Certified
from lipcompile.ops.activation.rules import Hardtanh
from lipcompile.ops.table import OP_BY_NAME
from lipcompile.pipeline import check
from tests.attacks.graphs import interpret
from tests.emitters.test_emit import assert_within_bounds, build, derive
from tests.nights import by_day

LAYERS = [
    "elu",
    "elu(1.5)",
    "elu(alpha=-0.5)",
    "celu",
    "celu(alpha=0.1)",
    "selu",
    "gelu",
    "gelu(approximate=tanh)",
    "silu",
    "swish",
    "mish",
    "hard_swish",
    "hard_sigmoid",
    "hard_sigmoid(slope=-0.4,offset=0.25)",
    "softsign",
    "hardtanh",
    "clip(0.25,2)",
    "clip(-3,-0.125)",
    "relu6",
    "prelu(0.5)",
    "prelu(2,shared=true)",
    "prelu(2,axis=1)",
    "scale(3)",
    "scale(0.5,axis=-1)",
    "scale(bound=2,shared=true)",
    "householder",
    "householder(axis=-1)",
    "fixed_householder(1.5)",
    "fixed_householder(-7/4,axis=1)",
]


@pytest.mark.parametrize("shape", by_day({"6", "4, 2, 6"}, ["6", "4, 6", "4, 2, 6"]))
@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_computes_its_definition_within_its_bounds(layer: str, shape: str, tmp_path: Path) -> None:
    if "axis=1" in layer and shape == "6":
        return
    body = f"input x: tensor[{shape}], norm <= 20\n bias(1) {layer} flatten dense(3) loss cross_entropy"
    derivation = derive(tmp_path, body)
    assert derivation.analysis is not None
    graph, model = derivation.analysis.graph, build(derivation, tmp_path)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter)
    model.project_()
    theta = {name: value.detach() for name, value in model.named_parameters()}
    inputs = model.clip_input(3 * torch.randn(4, *model.input_shape, dtype=torch.double))
    found = model(inputs)
    for x, row in zip(inputs, found, strict=True):
        torch.testing.assert_close(row, interpret(graph, x, theta)[graph.output])
    assert_within_bounds(model, "cross_entropy")
    follows = build(derivation, tmp_path, follow_weights=True)
    follows.load_state_dict(model.state_dict())
    bounds = model.gradient_bounds()
    for name, bound in follows.gradient_bounds().items():
        assert bound <= bounds[name] * (1 + 1e-9), name


@pytest.mark.parametrize("layer", ["sign", "hard_shrink", "hard_shrink(threshold=0.75)"])
def test_layers_that_jump_stand_behind_frozen_ones(layer: str, tmp_path: Path) -> None:
    body = f"frozen {{ dense(8) }} {layer} dense(3) loss cross_entropy"
    derivation = derive(tmp_path, f"input x: tensor[6], norm <= 2\n {body}")
    assert derivation.analysis is not None
    graph, model = derivation.analysis.graph, build(derivation, tmp_path)
    theta = {name: value.detach() for name, value in model.named_parameters()}
    x = model.clip_input(torch.randn(4, 6, dtype=torch.double))
    torch.testing.assert_close(model(x)[1], interpret(graph, x[1], theta)[graph.output])
    assert_within_bounds(model, "cross_entropy")


def codes(body: str, folder: Path) -> list[str]:
    path = folder / "model.lip"
    path.write_text(
        f"model net {{ param c: real; input x: tensor[5], norm <= 2\n {body} dense(3) loss cross_entropy }}"
    )
    return [found.code for found in check(str(path)).diagnostics if found.severity == "error"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("dense(4) sign", "LIP111"),
        ("dense(4) hard_shrink", "LIP111"),
        ("prelu(1) hard_shrink", "LIP111"),
        ("hard_shrink(-1)", "LIP104"),
        ("celu(0)", "LIP104"),
        ("celu(-1)", "LIP104"),
        ("clip(2, 1)", "LIP104"),
        ("hard_sigmoid(offset=1.5)", "LIP104"),
        ("householder", "LIP102"),
        ("fixed_householder(1)", "LIP102"),
        ("prelu(1, axis=1)", "LIP102"),
        ("prelu(1, axis=1, shared=true)", "LIP102"),
        ("reduce_sum scale(shared=true)", "LIP102"),
        ("prelu(-1)", "LIP302"),
        ("gelu(approximate=erf)", "LIP012"),
        ("relu6(3)", "LIP012"),
    ],
)
def test_what_does_not_fit_is_refused(body: str, code: str, tmp_path: Path) -> None:
    assert codes(body, tmp_path) == [code]


@pytest.mark.parametrize(
    "body", ["elu(c)", "elu(1-c)", "celu(c)", "clip(c, 2)", "clip(-c, c)", "prelu(c)", "scale(c)"]
)
def test_attributes_may_be_open(body: str, tmp_path: Path) -> None:
    assert codes(body, tmp_path) == []


def bound(attributes: Hardtanh, size: Fraction | Symbol) -> float:
    num, record = Certified(), OP_BY_NAME["hardtanh"]
    norm = num.of(size)
    return record.norm(num, Site(attributes, ((4,),), (4,)), [Extent(norm, norm, norm)], {}).upper


def test_open_ends_of_an_interval_allow_all_their_values() -> None:
    """What is known of no number must contain what holds for each."""
    c = Symbol("c")
    minus = Arithmetic("-", Fraction(0), c)
    assert bound(Hardtanh(Fraction(1), Fraction(2)), c) == 4
    assert bound(Hardtanh(c, Fraction(2)), Fraction(1)) == float("inf")
    assert bound(Hardtanh(minus, c), Fraction(1)) >= 1
    assert bound(Hardtanh(minus, c), c) == float("inf")
    assert bound(Hardtanh(Fraction(-3), Fraction(1)), Fraction(5)) == 5
    assert bound(Hardtanh(Fraction(3), Fraction(9)), Fraction(5)) == pytest.approx((25 + 3 * 9) ** 0.5)


def test_softsign_is_bounded_where_its_input_is_not() -> None:
    num, record = Certified(), OP_BY_NAME["softsign"]
    site = Site(NoAttributes(), ((9,),), (9,))
    for size, expected in ((num.of(Symbol("c")), 3.0), (num.of(0), 0.0), (num.of(3), float(mp.mpf(3) / 2))):
        assert record.norm(num, site, [Extent(size, size, size)], {}).upper == pytest.approx(expected)

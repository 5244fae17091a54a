"""Attention and tokens in .lip models and emitted modules: they compute their definition, within their bounds."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from lipcompile_torch.nn import functional

from lipcompile.__main__ import run
from lipcompile.analysis.bounds import _Forward
from lipcompile.core.derivation import Derivation
from lipcompile.core.record import Constraint
from lipcompile.emitters.torch.expressions import constructor
from lipcompile.numbers.certified import Certified
from lipcompile.pipeline import check
from lipcompile.reports.json_report import report
from tests.attacks.graphs import interpret
from tests.emitters.test_emit import assert_within_bounds, build, derive

SEQUENCE = "input x: tensor[5, 6], norm <= 3"
HEAD = "flatten dense(3) loss cross_entropy"
LAYERS = (
    "attention(1)",
    "attention(3)",
    "attention(2, causal=true)",
    "attention(heads=6, constraint=frobenius(2))",
    "attention(2, constraint=spectral(3)) attention(2, constraint=orthogonal)",
    'attention(2, share="a") attention(2, share="a")',
    "a = dense(x, 4) attention(a, x, 2)",
    "a = dense(x, 4) b = reshape(x, 3, 10) attention(a, b, 4)",
    "position(0.5) residual(mean) { attention(2) } frozen { attention(2) }",
)
HEADS = "q = dense(x, 6) k = dense(x, 6) v = dense(x, 8)"
SPLIT = "{0}r = reshape({0}, 5, 2, {1}) {0}h = transpose({0}r, 1, 0, 2)"
JOIN = "dot_product_attention(qh, kh, vh) transpose(1, 0, 2) reshape(5, -1)"
DOT_PRODUCTS = (
    "dot_product_attention(x, x, x)",
    f"{HEADS} dot_product_attention(q, k, v)",
    f"{HEADS} dot_product_attention(q, k, v, scale=0.5, causal=true)",
    f"{HEADS} dot_product_attention(q, k, v, -0.25)",
    "q = dense(x, 6) k = slice(q, axis=0, start=1, stop=3) dot_product_attention(q, k, k, causal=true)",
    f"{HEADS} {SPLIT.format('q', 3)} {SPLIT.format('k', 3)} {SPLIT.format('v', 4)} {JOIN} dense(6)",
)
TOKENS = "input x: tokens[7] embedding(11, 6, bound=2) position(0.5) attention(2, causal=true)"


def randomised(derivation: Derivation, folder: Path) -> tuple[Any, dict[str, torch.Tensor]]:
    """A module with weights anywhere in their constraint sets."""
    model = build(derivation, folder)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter)
    model.project_()
    return model, {name: value.detach() for name, value in model.named_parameters()}


def assert_follows(derivation: Derivation, folder: Path, model: Any) -> None:
    """Bounds that follow the weights are no larger."""
    follows = build(derivation, folder, follow_weights=True)
    follows.load_state_dict(model.state_dict())
    bounds = model.gradient_bounds()
    for name, bound in follows.gradient_bounds().items():
        assert 0 < bound <= bounds[name] * (1 + 1e-9), name


@pytest.mark.parametrize("body", [*LAYERS, *DOT_PRODUCTS])
def test_attention_computes_its_definition_within_its_bounds(body: str, tmp_path: Path) -> None:
    derivation = derive(tmp_path, f"{SEQUENCE} {body} {HEAD}")
    assert derivation.analysis is not None
    model, theta = randomised(derivation, tmp_path)
    inputs = model.clip_input(3 * torch.randn(4, *model.input_shape, dtype=torch.double))
    for x, row in zip(inputs, model(inputs), strict=True):
        values = interpret(derivation.analysis.graph, x, theta)
        torch.testing.assert_close(row, values[derivation.analysis.graph.output])
    model.criterion(model(inputs[:0]), torch.zeros(0).long()).backward()
    assert_within_bounds(model, "cross_entropy")
    assert_follows(derivation, tmp_path, model)


def test_dropout_of_attention_stays_within_its_bounds(tmp_path: Path) -> None:
    derivation = derive(tmp_path, f"{SEQUENCE} attention(2, dropout=0.25) {HEAD}")
    model, _ = randomised(derivation, tmp_path)
    assert_within_bounds(model, "cross_entropy", examples=32)
    plain = derive(tmp_path, f"{SEQUENCE} attention(2) {HEAD}")
    assert model.lipschitz == pytest.approx(build(plain, tmp_path).lipschitz * 4 / 3)


def test_dropout_of_given_queries_and_keys_stays_within_its_bounds(tmp_path: Path) -> None:
    body = "q = dense(x, 6) dot_product_attention(q, x, q, scale=1/3{})"
    model, _ = randomised(derive(tmp_path, f"{SEQUENCE} {body.format(', dropout=0.25')} {HEAD}"), tmp_path)
    assert_within_bounds(model, "cross_entropy", examples=32)
    plain = derive(tmp_path, f"{SEQUENCE} {body.format('')} {HEAD}")
    assert model.lipschitz == pytest.approx(build(plain, tmp_path).lipschitz * 4 / 3)


def test_attention_and_its_parts_compute_the_same(tmp_path: Path) -> None:
    """The fused op, and projections, heads and a dot product one by one, bit by bit."""
    one = derive(tmp_path, f"{SEQUENCE} a = attention(2) {HEAD}")
    fused, weights = randomised(one, tmp_path)
    parts = " ".join(f"{n} = dense(x, 6) {SPLIT.format(n, 3)}" for n in "qkv")
    spelled = build(derive(tmp_path, f"{SEQUENCE} {parts} {JOIN} o = dense(6) {HEAD}"), tmp_path)
    named = {"q.weight": "a.query", "k.weight": "a.key", "v.weight": "a.value", "o.weight": "a.output"}
    spelled.load_state_dict({name: weights[named.get(name, name)] for name in spelled.state_dict()})
    x = fused.clip_input(torch.randn(4, 5, 6, dtype=torch.double))
    assert torch.equal(fused(x), spelled(x))


def test_heads_keep_their_rows(tmp_path: Path) -> None:
    """Rows of a split projection are parts of rows: R of every head is that of the tokens before, not X."""
    body = f"clip_norm(3) q = dense(x, 6) {SPLIT.format('q', 3)} dot_product_attention(qh, qh, qh)"
    joined = f"layer_norm(floor=1) r = dense(6) {SPLIT.format('r', 3)} dot_product_attention(rh, rh, rh)"
    derivation = derive(tmp_path, f"{SEQUENCE} {body} transpose(1, 0, 2) reshape(5, 6) {joined} {HEAD}")
    assert derivation.analysis is not None
    rows = extents(derivation.analysis.graph)
    assert rows["qh"] == pytest.approx(3)
    assert rows["rh"] == pytest.approx(6**0.5)
    assert rows["dot_product_attention"] == pytest.approx(3)
    assert rows["reshape"] == pytest.approx(3 * 2**0.5)


def extents(graph: Any) -> dict[str, float]:
    """R of every value, from the certified pass."""
    forward = _Forward(graph, Certified(), {})
    forward.run()
    return {name: extent.row.upper for name, extent in forward.extent.items()}


def test_queries_and_keys_that_do_not_fit_are_no_broadcast() -> None:
    """Torch would broadcast them, even over the batch."""
    q, k = torch.zeros(1, 3, 2), torch.zeros(4, 5, 2)
    with pytest.raises(ValueError, match="do not fit each other"):
        functional.dot_product_attention(q, k, k)


def test_different_constraints_of_one_attention_are_emitted_by_name(tmp_path: Path) -> None:
    """A front end may give each matrix its own set."""
    derivation = derive(tmp_path, f"{SEQUENCE} a = attention(2) {HEAD}")
    assert derivation.analysis is not None
    graph = derivation.analysis.graph
    key = replace(graph.parameters["a.key"], constraint=Constraint("frobenius", Fraction(3)))
    changed = replace(graph, parameters={**graph.parameters, "a.key": key})
    named = '{"query": Spectral(1.0), "key": Frobenius(3.0), "value": Spectral(1.0), "output": Spectral(1.0)}'
    assert constructor(graph, graph.node("a")) == "layers.Attention(6, 2, constraint=Spectral(1.0))"
    assert constructor(changed, graph.node("a")) == f"layers.Attention(6, 2, constraint={named})"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("input x: tensor[6], norm <= 1\n attention(2)", "attention needs tokens"),
        ("input x: tensor[5, 6], norm <= 1\n attention(4)", "4 heads do not divide 6 features"),
        ("input x: tensor[5, 6], norm <= 1\n attention(x, x, 2, causal=true)", "needs the same sequence"),
        ("input x: tensor[5, 6], norm <= 1\n attention(x, x, x, 2)", "takes at most 2 tensors, not 3"),
        ("input x: tensor[5, 6], norm <= 1\n attention(2, dropout=1)", "at least 0 and below 1"),
        ("input x: tensor[5, 6], norm <= 1\n attention", "needs the argument `heads`"),
        ("input x: tensor[5, 6], norm <= 1\n dot_product_attention(x, x)", "needs the names of three tensors"),
        ("input x: tensor[5], norm <= 1\n dot_product_attention(x, x, x)", "[5], [5], [5] do not fit each other"),
        (
            "input x: tensor[5, 6], norm <= 1\n q = dense(x, 4) dot_product_attention(q, x, x)",
            "[5, 4], [5, 6], [5, 6] do not fit each other",
        ),
        (
            "input x: tensor[5, 6], norm <= 1\n dot_product_attention(x, x, x, dropout=1)",
            "at least 0 and below 1",
        ),
        ("input x: tensor[5, 6], norm <= 1\n position(0.5, 3)", "takes the bound of its norm and nothing else"),
        ("input x: tokens[5]\n embedding(7)", "needs the argument `width`"),
        ("input x: tokens[5]\n embedding(7, 3, 1)", "takes at most 2 arguments"),
        ("input x: tokens[5]\n embedding(7, 3, bound=-1)", "needs a bound of at least 0"),
        ("input x: tokens[5]\n dense(3)", "cannot compute with tokens"),
        ("input x: tensor[5], norm <= 1\n embedding(7, 3)", "takes the tokens of the input"),
    ],
)
def test_what_does_not_fit_is_refused(body: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "model.lip"
    path.write_text(f"model net {{ {body} }}")
    assert any(message in found.message for found in check(str(path)).diagnostics)


def test_a_model_of_tokens_stays_within_its_bounds(tmp_path: Path) -> None:
    derivation = derive(tmp_path, f"{TOKENS} {HEAD}")
    assert derivation.analysis is not None
    model, theta = randomised(derivation, tmp_path)
    bounds = model.gradient_bounds()
    repeated = torch.full((1, 7), 3)
    for x in (*torch.randint(11, (8, 1, 7)), repeated):
        values = interpret(derivation.analysis.graph, x[0], theta)
        torch.testing.assert_close(model(x)[0], values[derivation.analysis.graph.output])
        model.zero_grad()
        model.criterion(model(x), torch.tensor([2])).backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad.norm() <= bounds[name] * (1 + 1e-9), name
    assert_follows(derivation, tmp_path, model)


def test_a_model_of_tokens_has_no_lipschitz_constant_and_takes_whole_numbers_only(tmp_path: Path) -> None:
    derivation = derive(tmp_path, f"{TOKENS} {HEAD}")
    model = build(derivation, tmp_path)
    assert model.lipschitz == model.input_norm == float("inf")
    assert model.certificate["totals"]["lipschitz"] == "inf"
    for wrong in (torch.zeros(2, 7), torch.zeros(2, 7, dtype=torch.bool)):
        with pytest.raises(ValueError, match="integer dtype"):
            model(wrong)
    for outside in (-1, 11):
        with pytest.raises(ValueError, match="rows 0 to 10"):
            model(torch.full((2, 7), outside))
    assert model(torch.zeros(0, 7, dtype=torch.int32)).shape == (0, 3)


def test_training_on_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, data = tmp_path / "m.lip", tmp_path / "d.npz"
    model.write_text(f"model m {{ {TOKENS} {HEAD} }}")
    tokens = np.random.default_rng(0).integers(0, 11, (60, 7))
    options = "--epsilon 8 --delta 1e-3 --epochs 1 --batch-size 30 --accountant rdp --device cpu"
    command = ["train", str(model), "--data", str(data), "--output", str(tmp_path / "run"), *options.split()]
    for wrong, message in ((tokens / 2, "integer type"), (tokens + 1, "0 … 10, the rows of the embedding")):
        np.savez(data, X=wrong, y=tokens[:, 0] % 3)
        assert run(command) == 2
        assert message in capsys.readouterr().err
    np.savez(data, X=tokens, y=tokens[:, 0] % 3)
    assert run(command) == 0
    assert "after 2 steps" in capsys.readouterr().out


def test_the_report_of_a_model_of_tokens_fits_its_schema(tmp_path: Path) -> None:
    schema = json.loads(files("lipcompile.reports").joinpath("report.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(report(derive(tmp_path, f"{TOKENS} {HEAD}")), schema)

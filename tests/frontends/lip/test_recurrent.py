"""Recurrent layers against torch's own cells, and their shared weights against hand-derived bounds."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from lipcompile.core.derivation import Derivation
from tests.emitters.test_emit import assert_within_bounds, build, derive
from tests.frontends.lip.test_dsl import problems

STEPS, FEATURES, WIDTH = 5, 3, 4
INPUT = f"input x: tensor[{STEPS}, {FEATURES}], norm <= 2\n"
REFERENCES = {"rnn": torch.nn.RNN, "gru": torch.nn.GRU, "lstm": torch.nn.LSTM}


def reference(kind: str, model: Any) -> Any:
    """Torch's cell with the weights of an emitted module."""
    cell = REFERENCES[kind](FEATURES, WIDTH, batch_first=True).double()
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        cell.weight_ih_l0.copy_(parameters[f"{kind}_input.weight"])
        cell.weight_hh_l0.copy_(parameters[f"{kind}_state.weight"])
        cell.bias_ih_l0.copy_(parameters[f"{kind}_input.bias"])
        cell.bias_hh_l0.zero_()
    return cell


@pytest.mark.parametrize("kind", REFERENCES)
def test_a_cell_is_that_of_torch(tmp_path: Path, kind: str) -> None:
    torch.manual_seed(0)
    body = f"{INPUT} {kind}({WIDTH}, sequence=true, bias=0.5, constraint=frobenius(2)) loss multiclass_kr"
    model = build(derive(tmp_path, body.replace("loss", "flatten loss")), tmp_path)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(torch.rand_like(parameter) * 2).sub_(0.1)
    model.project_()
    x = torch.randn(6, STEPS, FEATURES, dtype=torch.double)
    expected, _ = reference(kind, model)(model.clip_input(x))
    torch.testing.assert_close(model(x), expected.flatten(1))


@pytest.mark.parametrize("kind", REFERENCES)
def test_the_result_is_the_last_state_unless_all_are_asked_for(tmp_path: Path, kind: str) -> None:
    last = derive(tmp_path, f"{INPUT} {kind}({WIDTH}) loss cross_entropy")
    assert last.analysis is not None
    graph = last.analysis.graph
    assert graph.shape(graph.output) == (WIDTH,)
    every = derive(tmp_path, f"{INPUT} states = {kind}({WIDTH}, sequence=true) flatten loss cross_entropy")
    assert every.analysis is not None
    assert every.analysis.graph.shape("states") == (STEPS, WIDTH)
    one, all_ = build(last, tmp_path), build(every, tmp_path)
    names = [name.replace(kind, "states") for name, _ in one.named_parameters()]
    all_.load_state_dict(dict(zip(names, one.state_dict().values(), strict=True)))
    x = torch.randn(3, STEPS, FEATURES, dtype=torch.double)
    torch.testing.assert_close(all_(x).reshape(3, STEPS, WIDTH)[:, -1], one(x))


@pytest.mark.parametrize("kind", REFERENCES)
@pytest.mark.parametrize("sequence", ["false", "true"])
def test_gradients_of_a_cell_stay_within_its_bounds(tmp_path: Path, kind: str, sequence: str) -> None:
    body = f"{INPUT} {kind}({WIDTH}, bias=0.5, sequence={sequence}) flatten dense(3) loss cross_entropy"
    model = build(derive(tmp_path, body), tmp_path)
    names = {f"{kind}_input.weight", f"{kind}_input.bias", f"{kind}_state.weight", "dense.weight"}
    assert set(model.gradient_bounds()) == names
    assert len(list(model.parameters())) == len(names)
    assert_within_bounds(model, "cross_entropy", examples=16)
    assert model(torch.zeros(0, STEPS, FEATURES, dtype=torch.double)).shape == (0, 3)


def values(derivation: Derivation) -> dict[str, float | None]:
    assert derivation.analysis is not None
    return {name: bound.value for name, bound in derivation.analysis.parameters.items()}


def test_the_bounds_of_a_simple_cell_are_derived_by_hand(tmp_path: Path) -> None:
    """All constants are 1, and so is L: every step receives the cotangent 1.

    The steps are disjoint slices of Wx, √5 together, and ‖x‖ <= 2: K_input = 2√5. The matrix of the state is used
    at four steps, on states of norm at most √4: K_state = 8.
    """
    found = values(derive(tmp_path, f"{INPUT} rnn({WIDTH}) dense(1) loss kr"))
    assert found["rnn_input.weight"] == pytest.approx(2 * math.sqrt(STEPS), rel=1e-12)
    assert found["rnn_state.weight"] == pytest.approx(2 * (STEPS - 1), rel=1e-12)


def test_the_state_of_a_gru_is_bounded_at_every_step(tmp_path: Path) -> None:
    """A mean of entries within ±1 stays there; a sum of products alone would grow by √4 with every step."""
    derivation = derive(tmp_path, f"{INPUT} gru({WIDTH}) dense(1) loss kr")
    assert derivation.analysis is not None
    norms = {layer.name: layer.output_norm.value for layer in derivation.analysis.layers}
    assert norms["gru"] == pytest.approx(math.sqrt(WIDTH), rel=1e-12)


def test_one_step_has_no_matrix_of_the_state(tmp_path: Path) -> None:
    for kind in REFERENCES:
        found = values(derive(tmp_path, f"input x: tensor[1, 3], norm <= 1\n {kind}(2) dense(1) loss kr"))
        assert set(found) == {f"{kind}_input.weight", "dense.weight"}


def test_two_cells_have_weights_of_their_own_unless_they_share_a_label(tmp_path: Path) -> None:
    body = f"{INPUT} a = rnn(3, sequence=true%s) b = rnn(a, 3, sequence=true%s) flatten dense(1) loss kr"
    own = values(derive(tmp_path, body % ("", "")))
    assert set(own) == {"a_input.weight", "a_state.weight", "b_input.weight", "b_state.weight", "dense.weight"}
    label = ', share="cell"'
    assert set(values(derive(tmp_path, body % (label, label)))) == {
        "a_input.weight",
        "a_state.weight",
        "dense.weight",
    }


def test_a_frozen_cell_is_not_trained(tmp_path: Path) -> None:
    found = values(derive(tmp_path, f"{INPUT} frozen {{ lstm({WIDTH}) }} dense(1) loss kr"))
    assert set(found) == {"dense.weight"}


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("input x: tensor[4]\n lstm(3)", "LIP102", "a sequence [steps, features], not [4]"),
        (f"{INPUT} lstm()", "LIP012", "needs the argument `width`"),
        (f"{INPUT} gru(3, units=2)", "LIP012", "`gru`: has no argument `units`"),
        (f"{INPUT} rnn(3, sequence=2)", "LIP012", "`sequence` must be true or false"),
        (f"{INPUT} rnn(0)", "LIP012", "`width` must be at least 1"),
        (f"{INPUT} rnn(3, share=2)", "LIP012", "takes a label"),
        (f"{INPUT} rnn(3, constraint=tight)", "LIP012", "no constraint"),
        (f"{INPUT} rnn(3, bias=wide)", "LIP012", "bound"),
        (f"{INPUT} rnn(y, 3)", "LIP011", "unknown name `y`"),
        (f"{INPUT} lsmt(3)", "LIP011", "unknown layer"),
    ],
)
def test_mistakes_are_told_where_they_are(tmp_path: Path, text: str, code: str, message: str) -> None:
    (found,) = problems(tmp_path, f"model m {{ {text} }}")
    assert found.code == code
    assert message in found.message
    assert found.location is not None
    assert found.location.line == (2 if "\n" in text else 1)


def test_an_unknown_argument_is_answered_with_those_there_are(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, f"model m {{ {INPUT} gru(3, bidirectional=true) }}")
    assert found.help == "the arguments are (width, sequence=false, bias=…, constraint=…, share=…, clip=…)"


def test_a_refused_input_is_not_complained_of_twice(tmp_path: Path) -> None:
    found = problems(tmp_path, f"model m {{ {INPUT} reshape(7) lstm(3) dense(2) }}")
    assert len(found) == 1


def test_the_nearest_layer_is_suggested(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, f"model m {{ {INPUT} lsmt(3) }}")
    assert found.help == "did you mean `lstm`?"


def test_the_width_may_be_a_parameter_of_the_model(tmp_path: Path) -> None:
    derivation = derive(tmp_path, f"param n: int = 4; {INPUT} lstm(2 * n) dense(1) loss kr")
    assert derivation.analysis is not None
    assert derivation.analysis.graph.parameters["lstm_state.weight"].shape == (32, 8)

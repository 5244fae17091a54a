"""Certificates: what is in them, that equal models have equal ones, and who gets none."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from fractions import Fraction
from importlib.resources import files
from pathlib import Path
from typing import Any, get_type_hints

import jsonschema
import pytest

import lipcompile
from lipcompile.__main__ import run
from lipcompile.certificates import certificate, encode, listed
from lipcompile.core.derivation import Derivation
from lipcompile.core.graph import LossUse
from lipcompile.numbers import Scalar
from lipcompile.ops.loss.rules import CrossEntropy
from lipcompile.ops.table import LOSS_BY_NAME, LOSSES, OPS
from tests.attacks.graphs import random_graph
from tests.certified import certificate_of, losses, uses
from tests.networks import Network
from tests.nights import by_day

EXAMPLES = Path(__file__).parents[2] / "examples"
SCHEMA = json.loads(files("lipcompile.reports").joinpath("certificate.schema.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
CLOSED = sorted(path.name for path in EXAMPLES.glob("*.lip") if path.name != "deep.lip")


def check(text: str, folder: Path, **options: Any) -> Derivation:
    path = folder / "m.lip"
    path.write_text(text, encoding="utf-8")
    derivation = lipcompile.check(str(path), lipcompile.ModelOptions(**options))
    assert derivation.ok, derivation.diagnostics
    return derivation


def small(folder: Path, body: str) -> dict[str, Any]:
    return certificate(check(f"model m {{ {body} }}", folder))


# What is in a certificate


def test_by_hand(tmp_path: Path) -> None:
    """X = 3/2; dense of norm 2 with a bias of 1/2: X_out = 2·3/2 + 1/2 = 7/2; then L = 1: K = 3/2 and 1."""
    found = small(
        tmp_path, "input x: tensor[4], norm <= 1.5\n dense(1, constraint=spectral(2), bias=0.5) loss hinge"
    )
    (step,) = found["steps"]["forward"]
    assert step["theta"] == {"weight": (2.0).hex(), "bias": (0.5).hex()}
    assert step["norm"] == (3.5).hex()
    assert step["lipschitz"] == [(2.0).hex()]
    assert step["kappa"] == {"weight": (1.5).hex(), "bias": (1.0).hex()}
    assert step["conditions"] == {"positions": 1}
    assert "row" not in step
    assert found["steps"]["loss"] == {"rule": "hinge", "proof": "loss.md#margins", "lipschitz": (1.0).hex()}
    assert [value["cotangent"] for value in found["steps"]["backward"]] == [(1.0).hex(), (2.0).hex()]
    assert [value["slope"] for value in found["steps"]["backward"]] == [(1.0).hex(), (2.0).hex()]
    assert [p["gradient"] for p in found["steps"]["parameters"]] == [(1.5).hex(), (1.0).hex()]
    # √(9/4 + 1), rounded up
    assert 0 <= Fraction(float.fromhex(found["totals"]["gradient"])) ** 2 - Fraction(13, 4) < Fraction(1, 2**50)
    assert found["totals"]["lipschitz"] == (2.0).hex()
    assert found["graph"]["input"]["norm"] == "3/2"
    assert found["graph"]["parameters"]["dense.weight"]["bound"] == "2"


def test_gradient_clips_inside_are_left_out_of_what_is_unclipped(tmp_path: Path) -> None:
    body = "input x: tensor[4], norm <= 1\n dense(3) clip_gradient(0.1) dense(1) loss hinge"
    found = small(tmp_path, body)
    backward = {value["value"]: value for value in found["steps"]["backward"]}
    assert backward["dense"]["cotangent"] == found["steps"]["parameters"][0]["gradient"]
    assert float.fromhex(backward["dense"]["cotangent"]) == pytest.approx(0.1, rel=1e-15)
    assert backward["dense"]["unclipped"] == backward["dense"]["slope"] == (1.0).hex()
    assert found["steps"]["parameters"][0]["unclipped"] == (1.0).hex()


def test_counts_of_a_window(tmp_path: Path) -> None:
    """A 3×3 kernel over 4×4, padded by one zero, stride 1: 16 places, 9 read the middle, 9 taps, each once."""
    body = "input x: tensor[1, 4, 4], norm <= 1\n conv2d(2, kernel=3, padding=1) flatten dense(1) loss hinge"
    assert small(tmp_path, body)["steps"]["forward"][0]["conditions"] == {"positions": 16, "reads": 9, "taps": 9}


def test_rows_stand_exactly_where_something_reads_them(tmp_path: Path) -> None:
    plain = "input x: tensor[4, 4], norm <= 1\n dense(4) relu flatten dense(1) loss hinge"
    for body, read in ((plain, False), (plain.replace("relu", "softmax"), True)):
        steps = small(tmp_path, body)["steps"]["forward"]
        assert all(({"row", "entry"} <= step.keys()) is read for step in steps)


def test_a_shared_parameter_lists_its_uses() -> None:
    network = Network((4,))
    network.dense(4, shared="w")
    network.sort()
    network.dense(4, shared="w")
    graph = network.builder.finish(network.end, LossUse(LOSS_BY_NAME["cross_entropy"], CrossEntropy()))
    assert graph is not None
    (found,) = certificate_of(graph)["steps"]["parameters"]
    assert found["uses"] == [["dense", "weight"], ["dense_2", "weight"]]


@pytest.mark.parametrize(
    ("layer", "attributes"),
    [
        ("groupsort(2, axis=-1)", {"axis": 2}),
        ("groupsort(2)", {"axis": 0}),
        ("softmax", {"axis": 2}),
        ("transpose", {"axes": [0, 2, 1]}),
        ("reshape(4, -1)", {"shape": [4, 8]}),
        ("reduce_sum(axes=(-1, 1))", {"axes": [1, 2], "keep": False}),
        ("reduce_sum", {"axes": [0, 1, 2]}),
        ("center", {"axes": [0, 1, 2]}),
        ("layer_norm(floor=0.5)", {"axes": [2], "floor": "1/2", "eps": None}),
        ("max_pool(2, padding=(1, 0))", {"padding": [[1, 1], [0, 0]], "stride": [2, 2], "dilation": [1, 1]}),
    ],
)
def test_attributes_are_spelt_out(layer: str, attributes: dict[str, Any], tmp_path: Path) -> None:
    found = small(tmp_path, f"input x: tensor[2, 4, 4], norm <= 1\n {layer} flatten dense(1) loss hinge")
    node = found["graph"]["nodes"][0]
    assert attributes.items() <= node["attributes"].items()


def test_tokens_have_no_norm_and_nothing_crosses_them() -> None:
    found = certificate(lipcompile.check(str(EXAMPLES / "tokens.lip")))
    assert found["graph"]["input"]["norm"] is None
    assert found["graph"]["input"]["tokens"] is True
    assert found["totals"]["lipschitz"] == "inf"


def test_a_training_plan_is_stated_with_exact_numbers(tmp_path: Path) -> None:
    path, out = tmp_path / "m.lip", tmp_path / "m.json"
    plan = "budget epsilon=3, delta=1e-5, epochs=2\n sampling poisson(batch=100, dataset=1000)"
    body = "input x: tensor[4], norm <= 1\n dense(2)\n loss cross_entropy"
    path.write_text(f"model m {{\n {body}\n}}\n\ntrain {{\n {plan}\n}}\n", encoding="utf-8")
    assert run(["check", str(path), "--certificate", str(out)]) == 0
    found = json.loads(out.read_bytes())
    VALIDATOR.validate(found)
    assert found["training"] == {
        "neighbours": "add_remove",
        "sampling": "poisson",
        "batch": 100,
        "dataset": 1000,
        "steps": 20,
        "noise": "per_layer",
        "epsilon": "3",
        "delta": "1/100000",
        "accountant": "pld",
    }


# The form


@pytest.mark.parametrize("name", CLOSED)
def test_certificates_of_examples_fit_the_schema(name: str) -> None:
    VALIDATOR.validate(certificate(lipcompile.check(str(EXAMPLES / name))))


@pytest.mark.parametrize("each", by_day([1], [1, 3]))
def test_certificates_of_every_op_and_loss_fit_the_schema(each: int) -> None:
    ops, kinds = set(), set()
    for graph in (*uses(each), *losses(each), *map(random_graph, range(12 * each))):
        found = certificate_of(graph)
        VALIDATOR.validate(found)
        ops |= {node["op"] for node in found["graph"]["nodes"]}
        kinds.add(found["graph"]["loss"]["name"])
    assert ops == {op.name for op in OPS}
    assert {*kinds, "own"} == {loss.name for loss in LOSSES}


def test_exact_numbers_are_text_and_whole_ones_are_not() -> None:
    """A front end that put a whole number where a record holds an exact one would make two spellings."""
    for graph in (*uses(2), *losses(2)):
        assert graph.loss is not None
        for record in (*(node.attributes for node in graph.nodes), graph.loss.attributes):
            for name, hint in get_type_hints(type(record)).items():
                given = getattr(record, name)
                if hint == Scalar:
                    assert isinstance(given, Fraction), (type(record), name)
                elif hint == tuple[Scalar, ...]:
                    assert all(isinstance(one, Fraction) for one in given), (type(record), name)


def test_the_graph_is_hashed_in_its_canonical_bytes() -> None:
    found = certificate(lipcompile.check(str(EXAMPLES / "mlp.lip")))
    text = json.dumps(found["graph"], sort_keys=True, separators=(",", ":"))
    assert found["graph_sha256"] == hashlib.sha256(text.encode("ascii")).hexdigest()


@pytest.mark.parametrize("name", ["mlp.lip", "vit.lip"])
def test_listed_and_canonical_text_are_the_same_document(name: str) -> None:
    found = certificate(lipcompile.check(str(EXAMPLES / name)))
    text = listed(found)
    assert json.loads(text) == json.loads(encode(found)) == found
    lines = text.splitlines()
    for step in (*found["steps"]["forward"], *found["steps"]["backward"], *found["steps"]["parameters"]):
        assert sum(line.strip().rstrip(",") == json.dumps(step) for line in lines) == 1
    assert encode(found).endswith(b"}\n")
    assert encode(found).isascii()


@pytest.mark.slow
def test_equal_models_have_equal_certificates_in_every_process(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    found = set()
    for seed, folder in (("0", tmp_path), ("1", tmp_path / "elsewhere"), ("77", tmp_path)):
        path = folder / "vit.lip"
        path.write_bytes((EXAMPLES / "vit.lip").read_bytes())
        command = [sys.executable, "-m", "lipcompile", "check", str(path), "--certificate", str(folder / "c.json")]
        subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": seed}, check=True, stdout=subprocess.DEVNULL)
        found.add((folder / "c.json").read_bytes())
    assert len(found) == 1
    assert str(tmp_path).encode() not in found.pop()


# Who gets none


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("model m { input x: tensor[4], norm <= 1\n dense(1) }", "LIP213"),
        ("model m { input x: tensor[4]\n dense(1) loss hinge }", "LIP014"),
        ("model m { param c: real\n input x: tensor[4], norm <= c\n dense(1) loss hinge }", "LIP014"),
        ("model m { param c: real\n input x: tensor[4], norm <= 1\n clip_norm(c) dense(1) loss hinge }", "LIP014"),
        (
            "model m { input x: tensor[4], norm <= 1\n repeat 400 { dense(1, constraint=spectral(9)) } loss kr }",
            "LIP014",
        ),
        (
            "model m { param n: int\n input x: tensor[4], norm <= 1\n repeat n { dense(4) } loss cross_entropy }",
            "LIP014",
        ),
    ],
)
def test_open_numbers_leave_nothing_to_certify(text: str, code: str, tmp_path: Path) -> None:
    with pytest.raises(lipcompile.InputError) as refused:
        certificate(check(text, tmp_path))
    (diagnostic,) = refused.value.diagnostics
    assert diagnostic.code == code
    assert diagnostic.help


def test_a_rejected_model_gets_no_certificate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "m.lip").write_text("model m { input x: tensor[4], norm <= 1\n dense(2) loss hinge }")
    target = tmp_path / "c.json"
    assert run(["check", str(tmp_path / "m.lip"), "--certificate", str(target)]) == 1
    assert not target.exists()
    assert "LIP211" in capsys.readouterr().out


def test_one_certificate_is_of_one_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(EXAMPLES / "mlp.lip")
    assert run(["check", model, model, "--certificate", str(tmp_path / "c.json")]) == 2
    assert "--certificate is of one model, not 2" in capsys.readouterr().err


def test_the_model_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.lip"
    path.write_bytes((EXAMPLES / "mlp.lip").read_bytes())
    assert run(["check", str(path), "--certificate", str(path)]) == 2
    assert "is the model itself" in capsys.readouterr().err

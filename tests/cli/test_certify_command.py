"""`lipcompile certify`: what it prints, what it refuses, and what it says of a broken certificate."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from lipcompile_torch.deploy import robustness

from tests.cli.commands import run

Capture = pytest.CaptureFixture[str]
SCHEMA = json.loads(files("lipcompile.reports").joinpath("certify.schema.json").read_text(encoding="utf-8"))

LINEAR = "input x: tensor[2], norm <= 10; dense(2, bias=1, constraint=spectral(5)); loss cross_entropy"
WEIGHTS = {"dense.weight": torch.tensor([[3.0, 4.0], [0.0, 0.0]]), "dense.bias": torch.tensor([0.0, 0.0])}
# 7/5, 3/5 and 1/5 away from the boundary, and one wrong.
X = np.array([[1, 1], [1, 0], [-1, 0.5], [1, 1]], dtype=np.float32)
Y = np.array([0, 0, 1, 1])


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module whose distances are known, its weights, and data."""
    monkeypatch.chdir(tmp_path)
    compiled(LINEAR)
    torch.save(WEIGHTS, "weights.pt")
    np.savez("data.npz", x_test=X, y_test=Y)
    return tmp_path


def compiled(body: str, name: str = "model") -> None:
    Path(f"{name}.lip").write_text(f"model {name} {{\n" + body.replace("; ", "\n") + "\n}\n")
    assert run(f"compile {name}.lip -o {name}.py") == 0


COMMAND = "certify model.py --data data.npz --weights weights.pt"


def reported(capsys: Capture, options: str = "", command: str = COMMAND, code: int = 0) -> Any:
    capsys.readouterr()
    assert run(f"{command} {options} --format json") == code
    found = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator(SCHEMA).validate(found)
    return found


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$id"] == SCHEMA["properties"]["schema"]["const"] == "lipcompile.certify/1"


def test_accuracies_are_those_of_the_distances(capsys: Capture) -> None:
    found = reported(capsys, "--radius 0.5 --radius 1/10 --radius 2")
    assert (found["examples"], found["accuracy"], found["ok"]) == (4, 0.75, True)
    rows = [(row["radius"], row["certified_accuracy"], row["attacked_accuracy"]) for row in found["radii"]]
    assert rows == [("1/10", 0.75, 0.75), ("0.5", 0.5, 0.5), ("2", 0.0, 0.0)]
    constants = found["lipschitz"]
    assert (constants["layer"], constants["features"]) == ("dense", 1.0)
    assert constants["pairs"]["smallest"] == constants["pairs"]["largest"] == pytest.approx(5.0, rel=1e-6)
    assert constants["logits"] == pytest.approx(5.0, rel=1e-6)
    assert found["attack"] == {"steps": 10, "restarts": 2, "seed": 0, "broken": 0}


def test_default_radii_are_those_of_the_contract(capsys: Capture) -> None:
    found = reported(capsys)
    assert [row["radius"] for row in found["radii"]] == ["1/255", "2/255", "4/255", "8/255", "16/255"]
    assert [row["value"] for row in found["radii"]] == [k / 255 for k in (1, 2, 4, 8, 16)]


def test_scaled_inputs_are_certified_at_scaled_radii(capsys: Capture) -> None:
    """Distances of 0.2, 0.6, 1.4 are 0.1, 0.3, 0.7 before everything was doubled."""
    found = reported(capsys, "--input-scale 2 --radius 0.2 --radius 0.5")
    assert [row["certified_accuracy"] for row in found["radii"]] == [0.5, 0.25]
    assert [row["module_radius"] for row in found["radii"]] == [0.4, 1.0]
    assert found["input_scale"] == 2.0


def test_the_table_names_its_units(capsys: Capture) -> None:
    capsys.readouterr()
    assert run(f"{COMMAND} --radius 0.5 --input-scale 2") == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0] == "4 examples of data.npz, 75.0 % right"
    assert lines[3].split("  ")[:1] == ["radius"]
    assert lines[4].split() == ["0.5", "1", "25.0", "%", "25.0", "%"]
    assert "before it was multiplied by 2" in out
    assert "no certificate was broken by 2 descents of 10 steps" in out
    assert "not private" in out
    assert err == ""


def test_without_an_attack_nothing_is_said_of_one(capsys: Capture) -> None:
    found = reported(capsys, "--no-attack")
    assert found["attack"] is None
    assert {row["attacked_accuracy"] for row in found["radii"]} == {None}
    assert run(f"{COMMAND} --no-attack") == 0
    assert "attack" not in capsys.readouterr().out


def test_a_broken_certificate_is_an_error(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """√2 forgotten: differences of two logits counted as 5/√2-Lipschitz."""
    true = robustness.certified_constants

    def forgotten(module: Any) -> Any:
        found = true(module)
        assert found.pairs is not None
        return replace(found, pairs=found.pairs / 2**0.5)

    monkeypatch.setattr(robustness, "certified_constants", forgotten)
    found = reported(capsys, code=1)
    assert not found["ok"]
    assert found["attack"]["broken"] == 3
    assert run(COMMAND) == 1
    out, err = capsys.readouterr()
    assert "broken: 3" in out
    assert "error[LIP512]: 3 certificates are broken" in err


def test_one_logit_decides_by_its_sign(capsys: Capture) -> None:
    compiled("input x: tensor[2], norm <= 10; dense(1, bias=1, constraint=spectral(5)); loss hinge", "signs")
    torch.save({"dense.weight": torch.tensor([[3.0, 4.0]]), "dense.bias": torch.tensor([0.0])}, "signs.pt")
    for labels in (np.where(Y == 0, 1, -1), np.where(Y == 0, 1, 0), np.where(Y == 0, 1.0, 0.0)[:, None]):
        np.savez("signs.npz", x_test=X, y_test=labels)
        found = reported(capsys, "--radius 0.5", "certify signs.py --data signs.npz --weights signs.pt")
        assert found["radii"][0]["certified_accuracy"] == 0.5
        assert found["lipschitz"]["pairs"] is None


def test_a_trusted_input_is_certified_within_its_ball(capsys: Capture) -> None:
    compiled(LINEAR.replace("norm <= 10", "norm <= 10, trusted"), "trusting")
    command = "certify trusting.py --data data.npz --weights weights.pt"
    assert reported(capsys, command=command)["within"] == 10.0
    assert run(command) == 0
    assert "norm at most 10" in capsys.readouterr().out


def test_weights_that_nothing_constrains_have_a_constant_of_their_own(capsys: Capture) -> None:
    """A clip needs neither a norm of the input nor constraints: the distances are those of the weights alone."""
    compiled("input x: tensor[2]; dense(2, bias=true, clip=automatic); loss cross_entropy", "clipped")
    command = COMMAND.replace("model.py", "clipped.py")
    found = reported(capsys, "--radius 0.5", command)
    assert (found["lipschitz"]["declared"], found["within"]) == (None, None)
    assert found["radii"][0]["certified_accuracy"] == 0.5  # of 7/5, 3/5, 1/5, and one wrong
    assert run(f"{command} --radius 0.5") == 0
    out = capsys.readouterr().out
    assert "of any weights none" in out
    assert "inf" not in out
    assert run("export clipped.py --weights weights.pt -o clipped.onnx") == 0
    assert "of any weights none" in capsys.readouterr().out


def test_a_run_of_train_is_certified_by_its_folder(capsys: Capture) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((40, 2)).astype(np.float32)
    np.savez("all.npz", X=x, y=(x[:, 0] > 0).astype(int))
    plan = "--epsilon 8 --delta 1e-4 --epochs 1 --batch-size 20 --accountant rdp"
    assert run(f"train model.lip --data all.npz --output run {plan}") == 0
    found = reported(capsys, command="certify run --data all.npz")
    assert (found["module"], found["weights"]) == ("run/model.py", "run/checkpoint.pt")
    assert found["examples"] == 8
    named = reported(capsys, command="certify run/model.py --weights run/checkpoint.pt --data all.npz")
    assert named == found
    assert run("certify run/model.py --data all.npz") == 0
    assert "warning[LIP513]: the weights are those that the module starts with" in capsys.readouterr().err


def test_a_seed_repeats_an_attack(capsys: Capture) -> None:
    assert reported(capsys, "--seed 3") == reported(capsys, "--seed 3")
    assert reported(capsys, "--seed 3 --steps 2 --restarts 1")["attack"]["steps"] == 2


def write_module(text: str) -> str:
    Path("strange.py").write_text(text)
    return "certify strange.py --data data.npz"


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("certify missing.py --data data.npz", "LIP510", "No such file"),
        ("certify model.lip --data data.npz", "LIP510", "lipcompile compile"),
        ("certify data.npz --data data.npz", "LIP510", "no emitted module"),
        ("certify . --data data.npz --weights missing.pt", "LIP513", "cannot be read"),
        ("certify model.py --data data.npz --weights data.npz", "LIP513", "not a checkpoint"),
        ("certify model.py --data data.npz --weights other.pt", "LIP513", "does not fit"),
        ("certify model.py --data data.npz --weights list.pt", "LIP513", "not a checkpoint"),
        ("certify model.py --data data.npz --weights infinite.pt", "LIP513", "does not fit"),
        ("certify model.py --data missing.npz", "LIP402", "cannot be read"),
        ("certify model.py --data model.lip", "LIP402", "npz"),
        ("certify model.py --data wide.npz", "LIP403", "shape"),
        ("certify model.py --data classes.npz", "LIP403", "classes"),
        ("certify model.py --data train.npz", "LIP403", "x_test"),
        ("certify tokens.py --data data.npz", "LIP511", "tokens"),
        ("certify signs.py --data classes.npz", "LIP403", "two classes"),
        (f"{COMMAND} --radius 0", "LIP005", "not a positive number"),
        (f"{COMMAND} --radius much", "LIP005", "not a number"),
        (f"{COMMAND} --radius 1e300 --input-scale 1e300", "LIP005", "too large"),
        (f"{COMMAND} --input-scale 0", "LIP005", "--input-scale"),
        (f"{COMMAND} --no-attack --steps 3", "LIP005", "--steps"),
        (f"{COMMAND} --steps 0", "", "--steps"),
        ("certify model.py", "", "--data"),
    ],
)
def test_what_cannot_be_certified_is_refused(command: str, code: str, said: str, capsys: Capture) -> None:
    compiled("input x: tokens[4]; embedding(7, 2); flatten; dense(2); loss cross_entropy", "tokens")
    compiled("input x: tensor[2], norm <= 1; dense(1); loss hinge", "signs")
    torch.save({"dense.weight": torch.zeros(3, 2)}, "other.pt")
    torch.save([1, 2], "list.pt")
    torch.save({**WEIGHTS, "dense.bias": torch.tensor([torch.inf, 0.0])}, "infinite.pt")
    np.savez("wide.npz", x_test=np.ones((4, 3)), y_test=Y)
    np.savez("classes.npz", x_test=X, y_test=Y + 1)
    np.savez("train.npz", x_train=X, y_train=Y)
    capsys.readouterr()
    assert run(command) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert code in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Model = (", "it is no Python"),
        ("1 / 0", "ZeroDivisionError"),
        ("import sys\nsys.exit(0)", "SystemExit"),
        ("x = 1", "Model"),
        ("class Model: pass", "something else"),
    ],
)
def test_other_programs_are_no_modules(text: str, said: str, capsys: Capture) -> None:
    command = write_module(text)
    capsys.readouterr()
    assert run(command) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "error[LIP510]" in err
    assert said in err

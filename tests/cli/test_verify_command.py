"""`lipcompile verify`: its exit codes, what it prints, and the files that it compares."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import lipcompile
from lipcompile.__main__ import run
from lipcompile.certificates import certificate as certificate_of
from lipcompile.certificates import encode

Capture = pytest.CaptureFixture[str]
SCHEMA = json.loads(files("lipcompile.reports").joinpath("verify.schema.json").read_text(encoding="utf-8"))
MODEL = """
model net {
    input x: tensor[1, 4, 4], norm <= 1
    conv2d(2, kernel=3, padding=1)
    groupsort(2)
    flatten
    dense(3)
    loss cross_entropy(temperature=3)
}
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> Path:
    """A folder with a model, its certificate and its module."""
    monkeypatch.chdir(tmp_path)
    Path("net.lip").write_text(MODEL, encoding="utf-8")
    assert run(["check", "net.lip", "--certificate", "net.json"]) == 0
    assert run(["compile", "net.lip", "-o", "net.py"]) == 0
    capsys.readouterr()
    return tmp_path


def changed(**steps: Any) -> None:
    """Change a certificate's first step, and write it as changed.json."""
    document = certificate_of(lipcompile.check("net.lip"))
    document["steps"]["forward"][0].update(steps)
    Path("changed.json").write_bytes(encode(document))


def answer(capsys: Capture, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Run the command for machines."""
    code = run(["verify", *arguments, "--format", "json"])
    found = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator(SCHEMA).validate(found)
    return code, found


@pytest.mark.usefixtures("place")
def test_a_certificate_verifies(capsys: Capture) -> None:
    assert run(["verify", "net.json"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("net.json: verified (")
    assert "gradient of conv2d.weight" in out
    assert not err
    code, found = answer(capsys, "net.json")
    assert (code, found["ok"], found["problems"], found["files"]) == (0, True, [], [])
    analysis = lipcompile.check("net.lip").analysis
    assert analysis is not None
    for name, bound in analysis.parameters.items():
        assert found["gradient"][name] == pytest.approx(bound.value, rel=1e-12)
    assert found["graph_sha256"] == json.loads(Path("net.json").read_bytes())["graph_sha256"]


@pytest.mark.usefixtures("place")
def test_what_nothing_constrains_is_said_to_have_no_bound(capsys: Capture) -> None:
    assert run(["compile", "net.lip", "--bounds", "clip", "-o", "clipped.py"]) == 0
    capsys.readouterr()
    assert run(["verify", "clipped.py"]) == 0
    out = capsys.readouterr().out
    assert "Lipschitz constant of the output  no finite bound, as where nothing constrains a weight" in out
    assert "inf" not in out.replace("no finite", "")


@pytest.mark.usefixtures("place")
def test_the_step_that_fails_is_named(capsys: Capture) -> None:
    changed(norm=(0.5).hex())
    assert run(["verify", "changed.json"]) == 1
    out, err = capsys.readouterr()
    assert "error[LIP501]: the certificate does not verify: conv2d (conv): the norm is claimed" in err
    assert out.startswith("changed.json: does not verify")
    code, found = answer(capsys, "changed.json")
    assert (code, found["ok"]) == (1, False)
    assert (found["problems"][0]["step"], found["problems"][0]["rule"]) == ("conv2d", "conv")


@pytest.mark.usefixtures("place")
def test_a_loose_claim_is_a_note(capsys: Capture) -> None:
    changed(norm=(1.5).hex())
    assert run(["verify", "changed.json"]) == 0
    assert "note[LIP504]: conv2d: the norm is claimed to be 1.5" in capsys.readouterr().err


@pytest.mark.usefixtures("place")
def test_a_module_is_compared_with_its_certificate(capsys: Capture) -> None:
    Path("run").mkdir()
    Path("run/model.py").write_bytes(Path("net.py").read_bytes())  # as `train` has it
    for arguments in (["net.json", "--module", "net.py"], ["net.py"], ["run"]):
        assert run(["verify", *arguments]) == 0
        assert re.search(r"(net|run.model)\.py: its model", capsys.readouterr().out)
    text = Path("net.py").read_text(encoding="utf-8")
    Path("net.py").write_text(text.replace("functional.group_sort(", "functional.abs(", 1), encoding="utf-8")
    assert text != Path("net.py").read_text(encoding="utf-8")
    for arguments in (["net.json", "--module", "net.py"], ["net.py"]):
        assert run(["verify", *arguments]) == 1
        out, err = capsys.readouterr()
        assert "error[LIP503]: `net.py` is not the model of the certificate" in err
        assert "net.py: not its model" in out
    code, found = answer(capsys, "net.py")
    assert (code, found["ok"], found["problems"]) == (1, False, [])
    assert found["files"][0]["ok"] is False


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["missing.json"], "LIP001"),
        (["net.json", "--module", "missing.py"], "LIP001"),
        (["net.lip"], "LIP502"),
        (["empty.py"], "LIP502"),
        (["report.json"], "LIP502"),
        (["broken.onnx"], "LIP502"),
    ],
)
@pytest.mark.usefixtures("place")
def test_what_cannot_be_used(arguments: list[str], code: str, capsys: Capture) -> None:
    Path("empty.py").write_text("", encoding="utf-8")
    Path("report.json").write_text('{"schema": "lipcompile.report/1"}\n', encoding="utf-8")
    Path("broken.onnx").write_bytes(b"\xff\xff")
    assert run(["verify", *arguments]) == 2
    assert f"error[{code}]" in capsys.readouterr().err


@pytest.mark.usefixtures("place")
def test_the_verifier_alone_says_the_same(capsys: Capture) -> None:
    from lipcompile_verify.__main__ import main

    assert main(["net.json"]) == 0
    changed(norm=(0.5).hex())
    assert main(["changed.json"]) == 1
    assert "conv2d (conv): the norm is claimed" in capsys.readouterr().out

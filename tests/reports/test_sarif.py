"""SARIF logs: valid, with the right places, and with what code scanning needs to know a finding again."""

from __future__ import annotations

import json
import shlex
from hashlib import sha256
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from lipcompile.__main__ import run
from lipcompile.codes import codes
from lipcompile.diagnostics import Diagnostic, Location
from lipcompile.reports.sarif import Checked, log, rules
from tests.frontends.onnx.onnx_models import model, node, save

Json = dict[str, Any]
pytestmark = pytest.mark.usefixtures("empty_folder")
Capture = pytest.CaptureFixture[str]

FILE = Path(__file__).parents[1] / "sarif" / "sarif-schema-2.1.0.json"
VALIDATOR = jsonschema.Draft4Validator(
    json.loads(FILE.read_text(encoding="utf-8")), format_checker=jsonschema.Draft4Validator.FORMAT_CHECKER
)
HEAD = "model m {\n    input x: tensor[4], norm <= 1\n"
WRONG = f"{HEAD}    grupsort(2)\n    dense(2, kernal=3)\n    loss crossentrpy\n}}\n"


def write(text: str, name: str = "m.lip") -> None:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def run_of(capsys: Capture, command: str, code: int) -> Json:
    """Return the only run of a log that is valid."""
    assert run(["check", *shlex.split(command), "--format", "sarif"]) == code
    out, err = capsys.readouterr()
    assert bool(err) == (code == 2)
    found = json.loads(out)
    VALIDATOR.validate(found)
    (one,) = found["runs"]
    return dict(one)


def region(result: Json) -> Json:
    return dict(result["locations"][0]["physicalLocation"]["region"])


def uri(result: Json) -> str:
    return str(result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"])


def marked(text: str, place: Json) -> str:
    """Return what a region of one line covers."""
    assert place["startLine"] == place["endLine"]
    line = text.split("\n")[place["startLine"] - 1]
    return str(line[place["startColumn"] - 1 : place["endColumn"] - 1])


def fingerprint(result: Json) -> str:
    return str(result["partialFingerprints"]["primaryLocationLineHash"])


def test_the_schema_is_that_of_oasis() -> None:
    digest = sha256(FILE.read_bytes()).hexdigest()
    assert digest in (FILE.parent / "README.md").read_text(encoding="utf-8")


def test_a_result_covers_the_word_that_is_wrong(capsys: Capture) -> None:
    write(WRONG)
    results = run_of(capsys, "m.lip", 1)["results"]
    assert [(found["ruleId"], marked(WRONG, region(found))) for found in results] == [
        ("LIP210", "crossentrpy"),
        ("LIP011", "grupsort"),
        ("LIP012", "kernal"),
    ]
    assert {uri(found) for found in results} == {"m.lip"}


def test_columns_are_characters(capsys: Capture) -> None:
    """Those of a tab, of what stands for two UTF-16 units, and of what is two bytes in UTF-8: one each."""
    text = HEAD + '\tdense(2, share="α𝛽"); grupsort(2)\n}\n'
    write(text)
    found = run_of(capsys, "m.lip", 1)
    assert found["columnKind"] == "unicodeCodePoints"
    assert [marked(text, region(result)) for result in found["results"]] == ["grupsort"]


def test_a_complaint_of_the_end_of_a_file_lies_inside_of_it(capsys: Capture) -> None:
    write("model m {")
    (result,) = run_of(capsys, "m.lip", 2)["results"]
    assert region(result) == {"startLine": 1, "startColumn": 10, "endLine": 1, "endColumn": 10}


def test_proposed_changes_fix_the_model(capsys: Capture) -> None:
    write(WRONG.replace(", kernal=3", ""))
    results = run_of(capsys, "m.lip", 1)["results"]
    lines = Path("m.lip").read_text(encoding="utf-8").split("\n")
    for result in results:
        (fix,) = result["fixes"]
        (change,) = fix["artifactChanges"]
        (replacement,) = change["replacements"]
        place = replacement["deletedRegion"]
        line = lines[place["startLine"] - 1]
        new = replacement["insertedContent"]["text"]
        lines[place["startLine"] - 1] = line[: place["startColumn"] - 1] + new + line[place["endColumn"] - 1 :]
    write("\n".join(lines))
    assert run_of(capsys, "m.lip", 0)["results"] == []


def test_no_change_is_proposed_of_a_word_that_is_right(capsys: Capture) -> None:
    """The complaint is of the argument's value, and stands at its name."""
    write(f"{HEAD}    reshape(1, 4)\n    conv1d(2, kernel=3, padding=1, padding_mode=circlar)\n}}\n")
    (result,) = run_of(capsys, "m.lip", 1)["results"]
    assert "did you mean `circular`?" in result["message"]["text"]
    assert "fixes" not in result


def test_nodes_of_a_graph_are_logical_locations(tmp_path: Path, capsys: Capture) -> None:
    nodes = [node("Relu", "x", "h"), node("ThresholdedRelu", "h", "i"), node("ThresholdedRelu", "i", "y")]
    save(model(nodes, ("n", 6)), tmp_path, "m.onnx")
    results = run_of(capsys, "m.onnx", 1)["results"]
    assert [result["ruleId"] for result in results] == ["LIP100", "LIP100"]
    first = results[0]["locations"][0]
    assert first["logicalLocations"] == [
        {
            "name": "ThresholdedRelu_i",
            "fullyQualifiedName": "x/Relu_h/ThresholdedRelu_i",
            "kind": "node",
            "properties": {"op": "ThresholdedRelu"},
        }
    ]
    assert results[0]["properties"] == {"kind": "replace by", "path": ["x", "Relu_h"]}
    assert "path: x → Relu_h → ThresholdedRelu_i" in results[0]["message"]["text"]
    assert region(results[0]) == {"startLine": 1, "startColumn": 1, "endLine": 1, "endColumn": 1}
    assert fingerprint(results[0]) != fingerprint(results[1])


def test_fingerprints_stay_when_lines_move(capsys: Capture) -> None:
    write(WRONG)
    before = [fingerprint(result) for result in run_of(capsys, "m.lip", 1)["results"]]
    write(f"# a comment\n{WRONG}".replace("    grup", "  grup"))
    after = [fingerprint(result) for result in run_of(capsys, "m.lip", 1)["results"]]
    assert before == after
    assert len(set(before)) == len(before)


def test_equal_lines_have_fingerprints_of_their_own(capsys: Capture) -> None:
    write(f"{HEAD}    grupsort(2)\n    grupsort(2)\n}}\n")
    found = [fingerprint(result) for result in run_of(capsys, "m.lip", 1)["results"]]
    assert [text.partition(":")[2] for text in found] == ["1", "2"]
    assert len({text.partition(":")[0] for text in found}) == 1


def test_copies_of_a_layer_are_one_result(capsys: Capture) -> None:
    write(f"{HEAD}    repeat 3 {{ dense(4) layer_norm(eps=0.00001) }}\n    loss cross_entropy\n}}\n")
    steep, vacuous = run_of(capsys, "m.lip", 1)["results"]
    assert (steep["ruleId"], steep["level"]) == ("LIP112", "warning")
    names = [one["name"] for one in steep["locations"][0]["logicalLocations"]]
    assert names == ["layer_norm", "layer_norm_2", "layer_norm_3"]
    assert (vacuous["ruleId"], vacuous["level"]) == ("LIP310", "error")


def test_files_are_named_from_the_working_folder(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(WRONG, "work/nets of α/50%.lip")
    (tmp_path / "work" / "link.lip").symlink_to(tmp_path / "work" / "nets of α" / "50%.lip")
    write(WRONG, "outside.lip")
    monkeypatch.chdir(tmp_path / "work")
    inside = {"link.lip", "nets of α/50%.lip", "./nets of α/../nets of α/50%.lip", str(Path("link.lip").resolve())}
    for name in inside:
        result = run_of(capsys, shlex.quote(name), 1)["results"][0]
        assert uri(result) == "nets%20of%20%CE%B1/50%25.lip"
    result = run_of(capsys, "../outside.lip", 1)["results"][0]
    assert uri(result) == (tmp_path / "outside.lip").as_uri()


def test_a_finding_in_an_imported_file_is_there(capsys: Capture) -> None:
    write("block half() { dnse(2) }\n", "blocks.lip")
    write(f'import "blocks.lip"\n{HEAD}    half()\n}}\n')
    found = run_of(capsys, "m.lip", 1)
    assert [uri(result) for result in found["results"]] == ["blocks.lip"]
    roles = {one["location"]["uri"]: one.get("roles") for one in found["artifacts"]}
    assert roles == {"m.lip": ["analysisTarget"], "blocks.lip": None}


def test_several_models_are_one_run(capsys: Capture) -> None:
    write(WRONG, "a.lip")
    write(WRONG, "b.lip")
    write(f"{HEAD}    dense(2)\n    loss cross_entropy\n}}\n", "c.lip")
    found = run_of(capsys, "a.lip b.lip c.lip", 1)
    assert [uri(result) for result in found["results"]] == ["a.lip"] * 3 + ["b.lip"] * 3
    assert found["automationDetails"]["id"] == "lipcompile/"
    assert [one["location"]["uri"] for one in found["artifacts"]] == ["a.lip", "b.lip", "c.lip"]
    assert found["invocations"][0]["executionSuccessful"]
    assert run_of(capsys, "a.lip", 1)["automationDetails"]["id"] == "lipcompile/a.lip/"


def test_what_cannot_be_read_is_a_result_and_fails_the_run(capsys: Capture) -> None:
    write("model m {", "cut.lip")
    write(WRONG)
    found = run_of(capsys, "cut.lip missing.onnx m.lip", 2)
    assert [result["ruleId"] for result in found["results"]][:2] == ["LIP010", "LIP001"]
    assert uri(found["results"][1]) == "missing.onnx"
    invocation = found["invocations"][0]
    assert (invocation["executionSuccessful"], invocation["exitCode"]) == (False, 2)
    told = [one["associatedRule"]["id"] for one in invocation["toolExecutionNotifications"]]
    assert told == ["LIP010", "LIP001"]
    assert invocation["toolConfigurationNotifications"] == []


@pytest.mark.parametrize("option", ["--input-norm much", "--constraint cubic", "--set depth"])
def test_a_wrong_option_is_told_too(capsys: Capture, option: str) -> None:
    write(WRONG)
    found = run_of(capsys, f"m.lip {option}", 2)
    assert [result["ruleId"] for result in found["results"]] == ["LIP005"]
    (told,) = found["invocations"][0]["toolConfigurationNotifications"]
    assert told["associatedRule"]["id"] == "LIP005"


def test_a_model_without_findings_is_a_log_without_results(tmp_path: Path, capsys: Capture) -> None:
    made = model([node("Gemm", "x w", "y")], ("n", 6), {"w": np.eye(6, dtype=np.float32)})
    save(made, tmp_path, "m.onnx")
    found = run_of(capsys, "m.onnx --input-norm 1 --loss cross_entropy", 0)
    assert found["results"] == []
    assert found["invocations"][0]["exitCode"] == 0


def test_rules_say_what_code_scanning_shows() -> None:
    """Its limits on lengths, and that nothing it requires is empty."""
    found = rules()
    assert [rule["id"] for rule in found] == list(codes())
    for rule in found:
        assert 0 < len(rule["shortDescription"]["text"]) <= 1024
        assert 0 < len(rule["fullDescription"]["text"]) <= 1024
        assert codes()[rule["id"]].wrong.strip() in rule["help"]["text"]
        assert rule["help"]["markdown"].count("```") == 4
        assert codes()[rule["id"]].kind in rule["properties"]["tags"]


def test_names_of_all_characters_make_a_valid_log() -> None:
    name = 'a"b\u202e\x00`[c](d){0}\udcff'
    found = Diagnostic(
        "LIP100", f"unsupported op {name}", "", node=name, op=name, location=Location(f"{name[:3]}.onnx")
    )
    VALIDATOR.validate(log([Checked("m.onnx", (found,))], 1, lambda _: None))

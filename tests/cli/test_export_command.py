"""`lipcompile export`: a training that ends in a file for onnxruntime, and what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from lipcompile_torch.train.data import load_test_npz

from lipcompile.core.backend import instantiate
from tests.cli.commands import run

Capture = pytest.CaptureFixture[str]
EXPORT = "export run/model.py --weights run/checkpoint.pt"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a short training of the digits that ship with the installation."""
    folder = tmp_path_factory.mktemp("trained")
    with as_file(files("lipcompile.data")) as data:
        command = f"train {data}/digits.lip --data {data}/digits.npz --epochs 1 --output {folder}/run"
        assert run(command) == 0
        (folder / "digits.npz").write_bytes((data / "digits.npz").read_bytes())
    return folder


@pytest.fixture(autouse=True)
def place(tmp_path: Path, trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An own copy of it."""
    monkeypatch.chdir(tmp_path)
    Path("run").mkdir()
    for source in (trained / "run").iterdir():
        Path("run", source.name).write_bytes(source.read_bytes())
    Path("digits.npz").write_bytes((trained / "digits.npz").read_bytes())
    return tmp_path


def metadata(path: str) -> dict[str, str]:
    return {entry.key: entry.value for entry in onnx.load(path).metadata_props}


def module() -> torch.nn.Module:
    """The module as it was trained."""
    path = Path("run/model.py")
    found: torch.nn.Module = instantiate(path, path.read_text(encoding="utf-8"))
    found.load_state_dict(torch.load("run/checkpoint.pt", weights_only=True)["states"]["module"])
    return found.eval()


def test_train_export_run(capsys: Capture) -> None:
    """What is deployed predicts what was trained, and is accepted by `check` with the same bounds."""
    capsys.readouterr()
    assert run("export run -o model.onnx --delta 1e-5") == 0
    out, err = capsys.readouterr()
    assert "weights certified to lie in their sets" in out
    assert "neighbours add_remove, by pld" in out
    assert "wrote model.onnx: onnxruntime gives the outputs of the module" in err
    x, _ = load_test_npz("digits.npz", (64,), 10)
    session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: x.astype(np.float32)})
    with torch.no_grad():
        expected = module()(torch.from_numpy(x).float()).numpy()
    assert found == pytest.approx(expected, abs=1e-5)
    assert (found.argmax(axis=1) == expected.argmax(axis=1)).all()
    assert run("verify model.onnx --model model.onnx") == 0
    assert run("check model.onnx") == 0
    # digits.lip: every layer is 1-Lipschitz, cotangents are clipped to 1/10, X_0 = 3: K = 3/10 twice.
    assert "0.4242641" in capsys.readouterr().out


def test_the_ledger_of_the_folder_is_read(capsys: Capture) -> None:
    assert run("export run -o model.onnx --delta 1e-5") == 0
    capsys.readouterr()
    assert run("ledger run --delta 1e-5 --accountant pld --format json") == 0
    reported = json.loads(capsys.readouterr().out)["accountants"]["pld"]["epsilon"]
    assert float(metadata("model.onnx")["lipcompile.epsilon"]) == reported


def test_without_a_ledger_nothing_is_said_of_privacy(capsys: Capture) -> None:
    assert run(f"{EXPORT} -o model.onnx") == 0
    assert "note: it says nothing of privacy: no ledger was given" in capsys.readouterr().out
    said = metadata("model.onnx").keys()
    assert not said & {f"lipcompile.{key}" for key in ("epsilon", "delta", "accountant", "neighbouring_relation")}


def test_a_state_dict_is_tied_to_no_ledger(capsys: Capture) -> None:
    torch.save(module().state_dict(), "weights.pt")
    assert run("export run/model.py --weights weights.pt --ledger run/ledger.jsonl -o model.onnx") == 0
    assert "that this one is its own is not checked" in capsys.readouterr().out


def test_certify_takes_the_same_module(capsys: Capture) -> None:
    assert run("certify run --data digits.npz --no-attack") == 0
    assert "of any weights 1.0000000" in capsys.readouterr().out


def test_what_a_network_for_numbers_makes_is_not_called_logits(capsys: Capture) -> None:
    """The weights are half of the unit matrix: the output has the constant 1/2, and with any weights 3/4."""
    layer = "dense(2, constraint=spectral(0.75), bias=false)"
    Path("m.lip").write_text(f"model m {{ input x: tensor[2], norm <= 1; {layer}; loss absolute_error }}")
    torch.save({"dense.weight": 0.5 * torch.eye(2)}, "m.pt")
    assert run("check m.lip") == run("compile m.lip -o m.py") == 0
    assert run("export m.py --weights m.pt -o m.onnx") == 0
    out = capsys.readouterr().out
    assert "Lipschitz constant of the output 0.5" in out
    assert "logit" not in out


# What is refused


def cut(lines: int, characters: int = 0) -> Callable[[], None]:
    """Write a ledger without its last lines, or characters."""

    def make() -> None:
        content = Path("run/ledger.jsonl").read_bytes()
        kept = b"".join(content.splitlines(keepends=True)[: -lines or None])
        Path("cut.jsonl").write_bytes(kept[: -characters or None])

    return make


def foreign() -> None:
    """Write a ledger of another training."""
    with as_file(files("lipcompile.data")) as data:
        assert run(f"train {data}/digits.lip --data digits.npz --epochs 1 --output other") == 0
    Path("cut.jsonl").write_bytes(Path("other/ledger.jsonl").read_bytes())


def edited() -> None:
    text = Path("run/ledger.jsonl").read_text().replace('"noise_multiplier": ', '"noise_multiplier": 1', 1)
    Path("cut.jsonl").write_text(text)


@pytest.mark.parametrize("make", [cut(1), cut(0, 20), foreign, edited])
def test_a_ledger_that_is_not_that_of_the_weights_is_refused(make: Callable[[], None], capsys: Capture) -> None:
    make()
    assert run(f"{EXPORT} --ledger cut.jsonl -o model.onnx") == 2
    assert "error[LIP405]" in capsys.readouterr().err
    assert not Path("model.onnx").exists()


def nothing() -> None:
    """Everything is there."""


def of_another_model() -> None:
    torch.save({"dense.weight": torch.eye(2)}, "weights.pt")


def truncated() -> None:
    Path("weights.pt").write_bytes(Path("run/checkpoint.pt").read_bytes()[:1000])


def without_certificate() -> None:
    path = Path("run/model.py")
    path.write_text(path.read_text().replace("lipcompile.certificate/1", "lipcompile.report/1"))


def another_graph() -> None:
    path = Path("run/model.py")
    path.write_text(path.read_text().replace('"norm": "3"', '"norm": "4"'))


def another_graph_and_a_state_dict() -> None:
    torch.save(module().state_dict(), "weights.pt")
    another_graph()


def smaller_claims() -> None:
    """Take a thousandth from every bound of a gradient."""
    path = Path("run/model.py")
    text, count = re.subn(
        r'"gradient": "(.*?)"',
        lambda found: f'"gradient": "{(float.fromhex(found[1]) * 0.999).hex()}"',
        path.read_text(),
    )
    assert count > 2
    path.write_text(text)


def test_weights_outside_their_sets_are_told_and_projected(capsys: Capture) -> None:
    torch.save({name: 2 * tensor for name, tensor in module().state_dict().items()}, "weights.pt")
    assert run("export run/model.py --weights weights.pt -o model.onnx") == 0
    out, err = capsys.readouterr()
    assert "warning[LIP513]: loaded weights violate their constraints" in err
    assert "weights certified to lie in their sets" in out


def of_a_table() -> None:
    Path("people").mkdir()
    np.savez("people/model.npz", x=np.zeros(1))


@pytest.mark.parametrize(
    ("make", "command", "code", "said"),
    [
        (nothing, "export run/model.py", 2, "LIP513"),
        (nothing, "export run/model.py --weights missing.pt", 2, "LIP513"),
        (truncated, "export run/model.py --weights weights.pt", 2, "LIP513"),
        (of_another_model, "export run/model.py --weights weights.pt", 2, "LIP513"),
        (nothing, "export missing.py --weights run/checkpoint.pt", 2, "LIP510"),
        (nothing, "export run/ledger.jsonl --weights run/checkpoint.pt", 2, "LIP510"),
        (of_a_table, "export people", 2, "apply it: lipcompile predict people FILE.csv"),
        (nothing, f"{EXPORT} --ledger missing.jsonl", 2, "LIP405"),
        (nothing, f"{EXPORT} --ledger run/model.py", 2, "LIP405"),
        (nothing, f"{EXPORT} --delta 1e-5", 2, "LIP405"),
        (nothing, f"{EXPORT} --ledger run/ledger.jsonl --delta 2", 2, "LIP401"),
        (without_certificate, EXPORT, 2, "LIP521"),
        (another_graph, EXPORT, 2, "LIP513"),
        (another_graph_and_a_state_dict, "export run/model.py --weights weights.pt", 2, "LIP520"),
        (smaller_claims, EXPORT, 2, "LIP521"),
        (nothing, EXPORT.replace("export", "export --accountant gdp"), 2, "gdp"),
    ],
)
def test_wrong_input(make: Callable[[], None], command: str, code: int, said: str, capsys: Capture) -> None:
    make()
    assert run(f"{command} -o model.onnx") == code
    err = capsys.readouterr().err
    assert said in err
    assert "Traceback" not in err
    assert not Path("model.onnx").exists()


@pytest.mark.parametrize("output", ["model.pt", "missing/model.onnx", "run"])
def test_wrong_output(output: str, capsys: Capture) -> None:
    assert run(f"{EXPORT} -o {output}") == 2
    assert "error" in capsys.readouterr().err.lower()


def test_an_edited_module_is_found(capsys: Capture) -> None:
    path = Path("run/model.py")
    path.write_text(path.read_text().replace("self.release(", "self.release(1.01 * "))
    Path("model.onnx").write_text("old")
    assert run(f"{EXPORT} -o model.onnx") == 1
    assert "error[LIP522]" in capsys.readouterr().err
    assert Path("model.onnx").read_text() == "old"
    assert {path.name for path in Path().iterdir()} == {"run", "digits.npz", "model.onnx"}

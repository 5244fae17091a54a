"""`lipcompile env`: facts for a bug report, whatever is missing."""

from __future__ import annotations

import json
import platform
import re
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import torch
from lipcompile_torch import environment, native
from lipcompile_torch.native import library

from lipcompile import __main__

command = sys.modules["lipcompile.cli.env"]  # in its package the command stands under that name
Capture = pytest.CaptureFixture[str]


def reported(capsys: Capture) -> Any:
    assert __main__.run(["env", "--format", "json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return json.loads(out)


def test_versions_are_those_that_are_installed(capsys: Capture) -> None:
    found = reported(capsys)
    assert found["schema"] == "lipcompile.env/1"
    assert found["platform"] == platform.platform()
    versions = found["versions"]
    assert versions["python"] == platform.python_version()
    for name in ("lipcompile", "torch", "numpy", "onnx", "dp-accounting", "cryptography"):
        assert versions[name] == version(name)
    assert any(name.startswith("onnxruntime") and number for name, number in versions.items())


def test_the_runtime_says_what_it_runs_on(capsys: Capture) -> None:
    found = reported(capsys)["runtime"]
    assert found["threads"] == torch.get_num_threads()
    assert len(found["gpus"]) == torch.cuda.device_count()
    assert found["noise"]["cpu"] == "AES-128-CTR"
    assert found["noise"]["gpu"] == "Philox of torch"
    assert found["native_code"]["loaded"] is (native.kernels is not None)
    if native.kernels is not None:
        assert re.search(r"(GCC|[Cc]lang|LLVM) \d+", found["native_code"]["compiler"])


@pytest.mark.parametrize("allowed", [True, False])
def test_tf32_is_what_torch_was_told(allowed: bool, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "single_is_kept", lambda _: not allowed)
    assert reported(capsys)["runtime"]["tf32"] is allowed


def test_without_native_code_the_reason_is_given(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "kernels", None)
    monkeypatch.setattr(native, "why_missing", "not loaded: this processor has no AVX2")
    found = reported(capsys)["runtime"]
    assert found["native_code"] == {"loaded": False, "why_not": "not loaded: this processor has no AVX2"}
    assert found["noise"]["made_by"] == "package cryptography"
    monkeypatch.setattr(environment, "find_spec", lambda _: None)
    assert "is missing" in reported(capsys)["runtime"]["noise"]["made_by"]


def test_why_native_code_is_missing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "find_spec", lambda *_: None)
    kernels, why = library.load()
    assert kernels is None
    assert str(why).startswith("not built, because the C compiler is missing or failed: ")
    broken = tmp_path / "_kernels.abi3.so"
    broken.write_text("no library")
    monkeypatch.setattr(library, "find_spec", lambda *_: spec_from_file_location("_kernels", broken))
    kernels, why = library.load()
    assert kernels is None
    assert str(why).startswith(f"not loaded: {broken}: ")


def test_nothing_that_is_missing_makes_it_fail(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    def broken(*_: object) -> bool:
        raise RuntimeError("the driver is too old")

    monkeypatch.setattr(command, "version", missing)
    monkeypatch.setattr(torch.cuda, "device_count", broken)
    found = reported(capsys)
    assert found["versions"]["torch"] is None
    assert found["runtime"]["gpus"] == "unknown: RuntimeError: the driver is too old"
    monkeypatch.setitem(sys.modules, "lipcompile_torch.environment", None)
    assert "ModuleNotFoundError" in reported(capsys)["runtime"]["error"]
    assert __main__.run(["env"]) == 0
    assert re.search(r"^torch +none$", capsys.readouterr().out, re.MULTILINE)


def test_the_text_says_the_same(capsys: Capture) -> None:
    found = reported(capsys)
    assert __main__.run(["env"]) == 0
    lines = dict(re.split(r"  +", line) for line in capsys.readouterr().out.splitlines())
    assert lines["torch"] == found["versions"]["torch"]
    assert lines["threads"] == str(found["runtime"]["threads"])
    assert lines["noise cpu"] == "AES-128-CTR"
    assert "schema" not in lines


def test_a_bug_is_reported_with_it(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(command, "_versions", failing)
    assert __main__.run(["env"]) == 3
    assert "`lipcompile env` prints" in capsys.readouterr().err

"""`lipcompile ledger`: what was spent, from the ledger alone; what is no ledger is a diagnostic."""

from __future__ import annotations

import json
import math
import random
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from lipcompile_privacy.accounting import (
    Mechanism,
    NeighbouringRelation,
    RandomAllocation,
    Release,
    WithoutReplacement,
)
from lipcompile_torch.train.ledger import Ledger

from lipcompile import __main__

pytestmark = pytest.mark.usefixtures("empty_folder")
Capture = pytest.CaptureFixture[str]
ADD, REPLACE = NeighbouringRelation.ADD_REMOVE, NeighbouringRelation.REPLACE_ONE
POISSON, PLAIN, EPOCH = Mechanism(0.1, 1.5), Mechanism(1.0, 4.0), RandomAllocation(5, 1.25)
FIXED = WithoutReplacement(10, 100, 1.5)


def run(arguments: str) -> int:
    return __main__.run(["ledger", *shlex.split(arguments)])


def write(
    *releases: Release,
    relation: NeighbouringRelation = ADD,
    uses: int = 2,
    seeded: bool = False,
    generators: Sequence[str] = ("AES-128-CTR",),
    delta: float | None = None,
) -> Path:
    """Write a ledger in which each release was used so often; of a round three steps are taken."""
    path = Path("ledger.jsonl")
    ledger = Ledger(path, relation, 100)
    ledger.delta = delta
    for release in releases:
        ledger.declare(release, seeded, generators)
        for _ in range(uses):
            if isinstance(release, RandomAllocation):
                ledger.open_round(release)
                for _ in range(3):
                    ledger.record_inner_step(release)
            else:
                ledger.record_step(release)
    ledger.close()
    return path


def reported(capsys: Capture, options: str = "", code: int = 0) -> Any:
    assert run(f"ledger.jsonl --format json {options}") == code
    out, err = capsys.readouterr()
    assert err == ""
    return json.loads(out)


def test_the_report_says_what_was_charged(capsys: Capture) -> None:
    write(POISSON, EPOCH)
    found = reported(capsys, "--delta 1e-5")
    assert found["schema"] == "lipcompile.ledger-report/1"
    assert found["charged"] == [
        {"release": {"sampling_rate": 0.1, "noise_multiplier": 1.5}, "charges": 2, "steps": 2},
        {"release": {"sampling": "allocation", "steps": 5, "noise_multiplier": 1.25}, "charges": 2, "steps": 6},
    ]
    assert (found["steps"], found["dataset_size"], found["neighbours"]) == (8, 100, "add_remove")
    assert (found["private"], found["interrupted"], found["delta"]) == (True, False, 1e-5)
    lines = Path("ledger.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])["hash"]
    assert found["chain"] == {"intact": True, "lines": len(lines), "head": last}


def test_epsilon_is_that_of_the_gaussian_mechanism(capsys: Capture) -> None:
    """Four releases of σ = 4 are one of σ = 2; its δ at ε is exact (Balle and Wang 2018, Theorem 8)."""
    write(PLAIN, uses=4)
    found = reported(capsys, "--delta 1e-5")["accountants"]
    epsilon = found["pld"]["epsilon"]
    assert gaussian_delta(epsilon, 2.0) == pytest.approx(1e-5, rel=1e-3)
    assert epsilon <= found["rdp"]["epsilon"] < 1.2 * epsilon


def gaussian_delta(epsilon: float, sigma: float) -> float:
    def phi(x: float) -> float:
        return 0.5 * math.erfc(-x / math.sqrt(2))

    return phi(0.5 / sigma - epsilon * sigma) - math.exp(epsilon) * phi(-0.5 / sigma - epsilon * sigma)


def test_delta_has_a_default_below_one_over_the_examples(capsys: Capture) -> None:
    write(POISSON)
    assert reported(capsys, "--accountant rdp")["delta"] == 0.001


def test_epsilon_is_at_the_delta_of_the_training_unless_another_is_asked_for(capsys: Capture) -> None:
    write(POISSON, delta=1e-7)
    found = reported(capsys, "--accountant rdp")
    assert found["delta"] == 1e-7
    asked = reported(capsys, "--accountant rdp --delta 1e-7")
    assert found["accountants"] == asked["accountants"]
    assert reported(capsys, "--delta 1e-5")["delta"] == 1e-5
    assert run("ledger.jsonl --accountant rdp") == 0
    assert "at δ = 1e-07 of the training, rounded up" in capsys.readouterr().out


def test_an_accountant_without_an_analysis_says_why(capsys: Capture) -> None:
    write(POISSON, relation=REPLACE)
    found = reported(capsys)["accountants"]
    assert found["pld"]["epsilon"] > 0
    assert found["rdp"]["epsilon"] is None
    assert "no theorem for Poisson sampling under replace_one" in found["rdp"]["note"]
    alone = reported(capsys, "--accountant rdp", code=1)["accountants"]
    assert alone == {"rdp": found["rdp"]}


def test_what_no_accountant_covers_is_still_listed(capsys: Capture) -> None:
    write(FIXED, POISSON, relation=REPLACE)
    assert run("ledger.jsonl --delta 1e-14") == 1
    out = capsys.readouterr().out
    assert "no theorem" in out
    assert "too small for the pld accountant" in out
    assert "sampling fixed_size, batch size 10, dataset size 100, noise multiplier 1.5" in out


def test_steps_without_noise_have_no_epsilon(capsys: Capture) -> None:
    write(Mechanism(0.1, 0.0))
    found = reported(capsys, "--accountant rdp", code=1)["accountants"]["rdp"]
    assert found == {"epsilon": None, "note": "no finite epsilon: there was too little noise for this delta"}


@pytest.mark.parametrize("least", [1e-4, 1e-9])
def test_steps_with_hardly_any_noise_cost_everything(least: float, capsys: Capture) -> None:
    write(Mechanism(0.1, least), PLAIN, uses=10)
    found = reported(capsys, "--delta 1e-5")["accountants"]
    assert found["pld"]["epsilon"] is None
    assert found["rdp"]["epsilon"] > 1e8
    assert run("ledger.jsonl --delta 1e-5") == 0


def test_nothing_spent_is_zero(capsys: Capture) -> None:
    write()
    assert reported(capsys)["accountants"]["pld"]["epsilon"] == 0
    assert run("ledger.jsonl") == 0


def test_a_seed_and_a_cut_off_line_are_pointed_out(capsys: Capture) -> None:
    path = write(POISSON, seeded=True)
    path.write_bytes(path.read_bytes()[:-7])
    before = path.read_bytes()
    found = reported(capsys, "--accountant rdp")
    assert (found["private"], found["interrupted"], found["steps"]) == (False, True, 2)
    assert run("ledger.jsonl --accountant rdp") == 0
    out = capsys.readouterr().out
    assert "NOT PRIVATE" in out
    assert "the last line is incomplete" in out
    assert path.read_bytes() == before  # it is read, not fixed


def test_generators_are_said_and_whether_they_are_cryptographic(capsys: Capture) -> None:
    write(POISSON, generators=["AES-128-CTR", "Philox of torch", "unknown"])
    found = reported(capsys, "--accountant rdp")
    assert found["generators"] == [
        {"name": "AES-128-CTR", "cryptographic": True},
        {"name": "Philox of torch", "cryptographic": False},
        {"name": "unknown", "cryptographic": None},
    ]
    assert run("ledger.jsonl --accountant rdp") == 0
    lines = capsys.readouterr().out.splitlines()
    assert "noise of AES-128-CTR" in lines
    assert any(line.startswith("noise of Philox of torch; it is not cryptographic") for line in lines)
    assert "noise of a generator that was not recorded" in lines


def test_the_text_rounds_epsilon_up(capsys: Capture) -> None:
    write(POISSON)
    exact = reported(capsys, "--accountant rdp")["accountants"]["rdp"]["epsilon"]
    assert run("ledger.jsonl --accountant rdp") == 0
    shown = re.search(r"^rdp +([\d.]+)$", capsys.readouterr().out, re.MULTILINE)
    assert shown
    assert exact <= float(shown[1]) < exact + 1e-4


def test_the_folder_of_a_run_and_a_ledger_in_use_can_be_read(tmp_path: Path, capsys: Capture) -> None:
    write(POISSON)
    running = Ledger("ledger.jsonl", ADD, 100)
    running.record_step(POISSON)
    assert run(f"{tmp_path} --accountant rdp") == 0
    assert "3 steps" in capsys.readouterr().out
    running.close()


def test_the_checkpoint_of_a_folder_is_looked_up_in_its_ledger(tmp_path: Path, capsys: Capture) -> None:
    """The ledger goes on after a checkpoint; one whose last line is lost does not cover its weights."""
    path = write(POISSON)
    head = json.loads(path.read_text().splitlines()[-1])["hash"]
    saved = {"steps": 2, "ledger_head": head, "notes": {}, "certificate": None, "states": {}}
    torch.save({"schema": "lipcompile.checkpoint/2", **saved}, "checkpoint.pt")
    assert run(f"{tmp_path} --accountant rdp") == 0
    said = ", {} steps\ncheckpoint.pt was saved under this ledger, after 2 of these steps\n"
    assert said.format(2) in capsys.readouterr().out
    cut = path.read_bytes().rpartition(b"\n{")[0] + b"\n"
    ledger = Ledger(path, ADD, 100)
    ledger.record_step(POISSON)
    ledger.close()
    assert run(f"{tmp_path} --accountant rdp") == 0
    assert said.format(3) in capsys.readouterr().out
    assert run(f"{tmp_path} --accountant rdp --format json") == 0
    assert json.loads(capsys.readouterr().out)["checkpoint"] == {"steps": 2}
    assert reported(capsys, "--accountant rdp")["checkpoint"] is None  # of the file alone
    path.write_bytes(cut)
    assert "`" + str(tmp_path / "checkpoint.pt") + "`, of 2 steps" in refused(
        f"{tmp_path} --accountant rdp", capsys
    )
    Path("checkpoint.pt").write_bytes(b"no archive")
    assert run(f"{tmp_path} --accountant rdp") == 0
    out, err = capsys.readouterr()
    assert "warning[LIP513]" in err
    assert "1 steps" in out


def refused(arguments: str, capsys: Capture, code: str = "LIP405") -> str:
    assert run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"error[{code}]: ")
    return err


@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"hello\n", b'{"hash": 1}\n', b"\xff\xfe\n", b"[" * 100_000 + b"\n", b'{"kind": "header"'],
    ids=["empty", "blank", "text", "header", "bytes", "deep", "cut"],
)
def test_other_files_are_refused(content: bytes, capsys: Capture) -> None:
    Path("other").write_bytes(content)
    refused("other", capsys)


def test_what_cannot_be_opened_is_refused(tmp_path: Path, capsys: Capture) -> None:
    assert "No such file" in refused("missing.jsonl", capsys)
    assert "No such file" in refused(str(tmp_path), capsys)
    assert "it is no file" in refused("/dev/zero", capsys)


@pytest.mark.parametrize("delta", ["0", "1", "-1", "nan", "inf"])
def test_a_delta_that_is_none_is_refused(delta: str, capsys: Capture) -> None:
    write(POISSON)
    refused(f"ledger.jsonl --delta {delta}", capsys, "LIP401")


def test_changed_ledgers_are_refused_wherever_they_were_changed(capsys: Capture) -> None:
    path = write(POISSON, EPOCH)
    content = path.read_bytes()
    rng = random.Random(0)
    for position in rng.sample(range(len(content) - 1), 40):
        altered = bytearray(content)
        altered[position] ^= 1 << rng.randrange(8)
        path.write_bytes(altered)
        refused("ledger.jsonl", capsys)


def test_no_framework_is_loaded() -> None:
    write(POISSON)
    program = (
        "import sys\nfrom lipcompile.__main__ import run\n"
        "assert run(['ledger', 'ledger.jsonl']) == 0\nprint(*sys.modules, file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not set(result.stderr.split()) & {"torch", "onnx", "onnxruntime"}

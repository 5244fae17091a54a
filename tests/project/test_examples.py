"""The programs in `examples/` run as their first lines say."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from lipcompile_torch.train.ledger import read_ledger

from lipcompile import __main__

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("program", ["training_loop.py", "lightning_training.py"])
def test_training_the_digits(program: str, tmp_path: Path) -> None:
    if "lightning" in program and importlib.util.find_spec("lightning") is None:
        pytest.skip("lightning is not installed")
    emitted, ledger = tmp_path / "digits.py", tmp_path / "ledger.jsonl"
    assert __main__.run(["compile", str(ROOT / "lipcompile" / "data" / "digits.lip"), "-o", str(emitted)]) == 0
    command = [
        sys.executable,
        str(ROOT / "examples" / program),
        str(emitted),
        "--epochs",
        "2",
        "--ledger",
        str(ledger),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    record = read_ledger(ledger)
    assert record.total_steps == 2 * 3  # round(1437 / 512) steps in an epoch
    assert 2.9 <= record.epsilon(1e-5) <= 3
    assert "accuracy" in done.stdout

"""benchmarks/step_time.py: it runs, it goes on with its file, and its tables say what the file holds."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CONTESTANTS = ("relu", "same layers", "optimal", "correlated")


def arguments(file: Path, *options: str) -> list[str]:
    """Of the smallest network there is, in batches of 8."""
    tiny = ["--networks", "tiny", "--batches", "8", "--contestants", *CONTESTANTS, "--threads", "1"]
    return [*tiny, "--steps", "2", "--turn-seconds", "0.01", "--json", str(file), *options]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("step_time") / "steps.json"
    command = [sys.executable, "-m", "benchmarks.step_time", *arguments(path, "--rounds", "3")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr  # progress is for terminals
    return path


@pytest.fixture
def run(
    own_benchmarks: None,  # noqa: ARG001
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., str]:
    """The command in this process, where it has nothing to measure."""
    main = import_module("benchmarks.step_time").main

    def called(file: Path, *options: str) -> str:
        monkeypatch.setattr(sys, "argv", ["step_time", *arguments(file, *options)])
        main()
        return capsys.readouterr().out

    return called


def rows(**walls: list[float]) -> dict[str, Any]:
    """What the file would say of contestants with these times, and a MiB for each letter of their names."""
    return {
        name.replace("_", " "): {
            **dict.fromkeys(("wall", "cpu", "mean"), wall),
            "steps": [1] * len(wall),
            "certificates": 0.0,
            "peak": 2**20 * len(name),
        }
        for name, wall in walls.items()
    }  # fmt: skip


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured on Linux")
class TestStepTime:
    def test_every_contestant_has_a_time_for_every_round(self, file: Path) -> None:
        cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
        assert list(cells) == ["tiny 8"]
        assert tuple(cells["tiny 8"]) == CONTESTANTS
        for row in cells["tiny 8"].values():
            assert len(row["wall"]) == len(row["cpu"]) == len(row["mean"]) == 3
            assert min(row["wall"]) > 0
            assert row["peak"] > 0

    def test_tables_come_from_the_file_and_judge_by_the_worst_case(
        self, file: Path, run: Callable[..., str]
    ) -> None:
        found = json.loads(file.read_text(encoding="utf-8"))
        found["cells"]["mlp 512"] = rows(
            relu=[1.0, 1.0, 1.0], same_layers=[1.0, 2.0, 1.0], optimal=[1.2, 2.8, 1.3], ghost=[2.4, 5.6, 2.6]
        ) | {"hooks": {"left out": "out of memory at 7 MiB"}}
        file.write_text(json.dumps(found), encoding="utf-8")
        before = file.read_bytes()
        text = run(file, "--show")
        assert run(file, "--rounds", "3", "--resume") == text  # nothing was left to measure
        assert file.read_bytes() == before
        assert "met in part   ours / same layers <= 1.30; mlp; 512\n" in text  # two of ours were not measured
        assert "1.30 (1.25-1.35): optimal / same layers at mlp 512" in text  # of 1.2, 1.4, 1.3
        assert "2.00 (2.00-2.00): ghost / optimal at mlp 512" in text
        assert "weights certified in full" in text
        assert "0.64" in text  # seven letters over eleven
        assert "mlp 512 hooks: out of memory at 7 MiB" in text

    def test_files_of_other_settings_are_not_continued(self, file: Path, run: Callable[..., str]) -> None:
        with pytest.raises(SystemExit, match="other settings: rounds"):
            run(file, "--rounds", "4", "--resume")

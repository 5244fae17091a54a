"""Every public function says what it takes, returns and raises, and its example runs."""

from __future__ import annotations

import doctest
import inspect
from pathlib import Path
from types import FunctionType

import pytest

import lipcompile
from lipcompile.ops.registry import unregister

MODEL = """model m {
    input x: tensor[4], norm <= 1
    dense(2)
    loss multiclass_hinge
}
"""
FUNCTIONS = [name for name in lipcompile.__all__ if isinstance(getattr(lipcompile, name), FunctionType)]


def test_there_are_functions() -> None:
    assert set(FUNCTIONS) >= {
        "check",
        "compile",
        "export_onnx",
        "fix",
        "from_module",
        "private",
        "report",
        "train",
    }


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_described(name: str) -> None:
    text = inspect.getdoc(getattr(lipcompile, name)) or ""
    for section in ("Args:", "Returns:", "Raises:", "Examples:"):
        assert f"\n\n{section}\n" in text, f"{name} has no section {section}"
    arguments = text.partition("Args:\n")[2].partition("\n\n")[0]
    for parameter in inspect.signature(getattr(lipcompile, name)).parameters:
        assert parameter in arguments


@pytest.mark.parametrize("name", FUNCTIONS)
def test_its_example_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.lip").write_text(MODEL)
    (example,) = doctest.DocTestFinder(recurse=False).find(getattr(lipcompile, name), name, globs={})
    assert example.examples
    told: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(example, out=told.append)
    unregister("my_relu")
    assert told == []

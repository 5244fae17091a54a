"""Emitted programs, brought to life in this process."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any


def instantiate(path: Path, text: str) -> Any:
    """Run an emitted program and return an instance of its model; `path` only appears in tracebacks."""
    module = ModuleType(path.stem)
    exec(compile(text, str(path), "exec"), module.__dict__)
    return module.Model()

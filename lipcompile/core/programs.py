"""Emitted programs, brought to life in this process."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any


def program(path: Path, text: str) -> Any:
    """Run an emitted program and return it as a module of Python; `path` only appears in tracebacks."""
    module = ModuleType(path.stem)
    exec(compile(text, str(path), "exec"), module.__dict__)
    return module


def instantiate(path: Path, text: str) -> Any:
    """Run an emitted program and return an instance of its model."""
    return program(path, text).Model()

"""Modules that had their home here: `lipcompile_torch.runtime.NAME` has the names of its successor elsewhere.

Emitted modules and older programs import from here. A successor is imported when one of its names is first needed.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

_PACKAGE = __name__.rpartition(".")[0]
_ROOMS = ("audit", "certify", "clip", "deploy", "nn", "noise", "train")
_FILES = [path for room in _ROOMS for path in Path(__file__).parents[1].glob(f"{room}/*.py")]
_HOMES = {
    **{path.stem: f"{_PACKAGE}.{path.parent.name}.{path.stem}" for path in _FILES},
    "guesses": "lipcompile_privacy.guesses",
    "guessing": f"{_PACKAGE}.audit.game",
    "noise": f"{_PACKAGE}.noise.mechanism",
    "numbers": f"{_PACKAGE}.certify.intervals",
}


def _moved(name: str, home: str) -> ModuleType:
    """Return a module whose names are those of its successor."""
    module = ModuleType(f"{__name__}.{name}", f"`{home}`, by its former name.")

    def found(wanted: str) -> Any:
        if wanted.startswith("__"):  # `inspect` asks every module for its file
            raise AttributeError(wanted)
        value = getattr(import_module(home), wanted)
        setattr(module, wanted, value)
        return value

    module.__getattr__ = found  # type: ignore[method-assign]
    return module


for _name, _home in _HOMES.items():
    globals()[_name] = sys.modules[f"{__name__}.{_name}"] = _moved(_name, _home)

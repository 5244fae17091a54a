"""Emitted modules and their weights, from files, for the commands that take a trained MODULE."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lipcompile_privacy.errors import CheckpointError

from lipcompile.cli.shared.output import complain
from lipcompile.core.diagnostics import Diagnostic, Severity, input_error

if TYPE_CHECKING:
    from lipcompile.core.backend import Backend

# The files of a folder of `train`.
MODULE, LEDGER, CHECKPOINT = "model.py", "ledger.jsonl", "checkpoint.pt"
_MEND = "give the .py file that `lipcompile compile MODEL -o FILE.py` writes, or the folder of `train`"


@dataclass(frozen=True, slots=True)
class Trained:
    """A module with its weights, projected, and the files that they came from.

    weights: None for those that it starts with. ledger_head: the place in its ledger that the weights were saved
    at, if they are a checkpoint.
    """

    module: Any
    source: Path
    weights: Path | None
    ledger_head: str | None


def trained(path: Path, weights: Path | None, backend: Backend) -> Trained:
    """Run a module, or that of a folder of `train`, and load its weights; raises InputError (LIP510, LIP513)."""
    source = path / MODULE if path.is_dir() else path
    weights = path / CHECKPOINT if weights is None and path.is_dir() else weights
    module = _instance(source, backend)
    return Trained(module, source, weights, None if weights is None else _loaded(module, weights, backend))


def _loaded(module: Any, weights: Path, backend: Backend) -> str | None:
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            head: str | None = backend.robustness.load_weights(module, weights)
    except OSError as error:
        raise input_error("LIP513", f"`{weights}` cannot be read: {error.strerror or error}") from None
    except CheckpointError as error:
        raise input_error("LIP513", str(error)) from None
    complain([Diagnostic("LIP513", str(one.message), severity=Severity.WARNING) for one in caught])
    return head


def _instance(source: Path, backend: Backend) -> Any:
    from lipcompile.core.backend import instantiate

    if source.exists() and not source.is_file():  # a pipe or a device may have no end
        raise input_error("LIP510", f"`{source}` is no file", _MEND)
    try:
        module = instantiate(source, source.read_text(encoding="utf-8"))
    except OSError as error:
        raise input_error("LIP510", f"`{source}` cannot be read: {error.strerror or error}", _MEND) from None
    except SyntaxError:
        raise input_error("LIP510", f"`{source}` is no emitted module: it is no Python", _MEND) from None
    except (Exception, SystemExit) as error:  # whatever somebody's program raises
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise input_error("LIP510", f"`{source}` is no emitted module: {reason}", _MEND) from None
    if not isinstance(module, backend.robustness.LipschitzModule):
        raise input_error("LIP510", f"`{source}` is no emitted module: its Model is something else", _MEND)
    return module

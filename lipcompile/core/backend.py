"""What a backend offers, how backends are found, by the entry point group `lipcompile.backends`, and programs."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from lipcompile.core.diagnostics import input_error

if TYPE_CHECKING:
    from lipcompile.core.derivation import Derivation


class Backend(Protocol):
    """Turns derivations into programs and runs them. Importing a backend must not import its framework."""

    def emit(
        self,
        derivation: Derivation,
        follow_weights: bool = False,
        noise_strategy: Mapping[str, Any] | None = None,
        training: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the text of a module that trains under the derived bounds; raises InputError if it cannot.

        With `follow_weights` the module evaluates its bounds at the certified norms of the current weights. With a
        `noise_strategy` of `lipcompile_privacy`, as data, it says how its noise is correlated over the steps. Its
        certificate says of the planned training what `training` does.
        """

    @property
    def agreement(self) -> Any:
        """The module that compares an emitted program with its original; imports the framework."""

    @property
    def audit(self) -> Any:
        """The module that attacks the bounds of an emitted program; imports the framework."""

    @property
    def data(self) -> Any:
        """The module that reads training data; needs no framework."""

    @property
    def deployment(self) -> Any:
        """The module that takes weights from an emitted program, and holds what was exported against it."""

    @property
    def environment(self) -> Any:
        """The module that says what programs run on here; imports the framework."""

    @property
    def privacy_audit(self) -> Any:
        """The module that audits what training an emitted program claims of privacy; imports the framework."""

    @property
    def robustness(self) -> Any:
        """The module that certifies the predictions of an emitted program; imports the framework."""

    @property
    def signal(self) -> Any:
        """The module that measures gradients of an emitted program; imports the framework."""

    @property
    def training(self) -> Any:
        """The module that trains an emitted program; imports the framework."""


def find(name: str = "torch") -> Backend:
    """Return the backend of this name; raises InputError (LIP006)."""
    found = {point.name: point for point in entry_points(group="lipcompile.backends")}
    if name not in found:
        raise input_error("LIP006", f"there is no backend `{name}`", f"installed: {', '.join(found) or 'none'}")
    backend: Backend = found[name].load()
    return backend


def program(path: Path, text: str) -> Any:
    """Run an emitted program and return it as a module of Python; `path` only appears in tracebacks."""
    module = ModuleType(path.stem)
    exec(compile(text, str(path), "exec"), module.__dict__)
    return module


def instantiate(path: Path, text: str) -> Any:
    """Run an emitted program and return an instance of its model."""
    return program(path, text).Model()

"""What a backend offers, how backends are found, by the entry point group `lipcompile.backends`, and programs.

What the command line asks of a backend stands in modules of its own; a protocol below says what of each is called.
Types of the framework are `Any` here: of an emitted module and its inputs, of settings and of findings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from lipcompile.diagnostics import input_error

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lipcompile.core.derivation import Derivation
    from lipcompile.core.record import Vocabulary


class Audit(Protocol):
    """Attacks the bounds of an emitted program."""

    Admissible: type[Any]
    AuditConfig: type[Any]

    def audit(self, module: Any, admissible: Any, config: Any, watch: Any) -> Any:
        """Return how much of each bound an adversary attains."""


class Data(Protocol):
    """Reads training data; needs no framework."""

    Arrays: type[Any]

    def load_npz(
        self,
        path: Path,
        input_shape: tuple[int, ...],
        classes: int | None = None,
        tokens: Vocabulary | None = None,
        parts: Sequence[tuple[str, tuple[int, ...]]] = (),
    ) -> Any:
        """Return the arrays in a file, checked; raises DataError or OSError."""

    def from_arrays(
        self,
        arrays: Mapping[str, NDArray[Any] | Mapping[str, NDArray[Any]]],
        input_shape: tuple[int, ...],
        classes: int | None = None,
        tokens: Vocabulary | None = None,
        parts: Sequence[tuple[str, tuple[int, ...]]] = (),
    ) -> Any:
        """Return named arrays, checked as those of a file; raises DataError."""

    def items_of(
        self, dataset: Any, seeded: bool = False
    ) -> tuple[NDArray[Any] | Mapping[str, NDArray[Any]], NDArray[Any]]:
        """Return the inputs and labels of a data set's items; raises DataError."""

    def public_facts(
        self, path: Path, input_shape: tuple[int, ...] = ()
    ) -> tuple[tuple[int, ...], int, NDArray[Any] | None]:
        """Return the shape of an example, how many train, and the test part's whole labels; raises DataError."""

    def load_inputs(
        self,
        path: Path,
        input_shape: tuple[int, ...],
        tokens: Vocabulary | None = None,
        parts: Sequence[tuple[str, tuple[int, ...]]] = (),
    ) -> tuple[list[str], NDArray[Any]]:
        """Return the names and inputs of examples without labels; raises DataError."""

    def class_names(self, path: Path) -> list[str]:
        """Return the names of the classes that data say, in their order."""

    def split_rows(self, count: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return which of so many rows to train on, and which to hold out."""


class Deployment(Protocol):
    """Takes weights from an emitted program, and compares it with its original and its exported file."""

    ShapeError: type[Any]

    def in_single_precision(self, module: Any) -> Any:
        """Return the module, or a copy in float32 on a processor; raises ValueError or RuntimeError."""

    def weights_of(self, module: Any) -> dict[str, NDArray[Any]]:
        """Return the parameters, and the constants that layers hold, by name."""

    def norms_in_sets(self, module: Any) -> dict[str, float] | None:
        """Return the certified norms of the parameters, None if one lies outside of its set."""

    def agreement_with_file(
        self, module: Any, run: Callable[[NDArray[Any]], NDArray[Any]], vocabulary: Vocabulary | None
    ) -> Any:
        """Return how far what a file computes is from its module."""

    def agreement_with_original(
        self,
        program: type[Any],
        original: Callable[[NDArray[Any]], NDArray[Any]],
        *,
        batch: int | None = None,
        precision: str = "float32",
        vocabulary: Vocabulary | None = None,
        places: Sequence[range] = (),
        log_softmax: int | None = None,
    ) -> Any:
        """Return how far a class of modules is from what it was imported from; raises `ShapeError`."""


class Environment(Protocol):
    """Says what programs run on here."""

    def describe(self) -> dict[str, Any]:
        """Return facts for a bug report, as JSON has them."""


class PrivacyAudit(Protocol):
    """Audits what training an emitted program claims of privacy."""

    PrivacyAuditConfig: type[Any]

    def audit_privacy(self, module: Any, admissible: Any, config: Any, watch: Any = None) -> Any:
        """Return what guesses about canaries say of the claimed ε."""


class Robustness(Protocol):
    """Certifies the predictions of an emitted program."""

    AttackConfig: type[Any]
    LipschitzModule: type[Any]

    def load_weights(self, module: Any, path: Path) -> Any:
        """Load a state dict or a checkpoint into a module; return the checkpoint, or None."""

    def load_examples(self, module: Any, path: Path) -> tuple[Any, Any]:
        """Return the inputs and labels of a data file."""

    def outputs_of(self, module: Any, inputs: Any) -> Any:
        """Return what a module says of inputs, in evaluation mode."""

    def certify(self, module: Any, inputs: Any, targets: Any, radii: Any, config: Any, progress: Any) -> Any:
        """Return how many examples are right within each radius, proved and under attack."""


class Signal(Protocol):
    """Measures gradients of an emitted program."""

    Memory: type[Any]

    def repeatable(self, memory: Any = None) -> AbstractContextManager[None]:
        """Draw the same initial weights every time meanwhile; recall norms of theirs from a `Memory`."""

    def measure(
        self, module: Any, admissible: Any, noise_multiplier: float = 1.0, batch: int = 512, *, public: Any = None
    ) -> Any:
        """Return how large gradients are at the initial weights, beside the bounds."""

    def mean_over_noise(self, module: Any, admissible: Any) -> float | None:
        """Return the mean gradient over the noise there, as `measure` has it; None if it is not finite."""


class Training(Protocol):
    """Trains an emitted program."""

    TrainConfig: type[Any]

    def train(self, module: Any, data: Any, config: Any, report: Any = None) -> Any:
        """Train within a budget; return accuracy, ε, steps and files."""

    def read_checkpoint(self, path: Path) -> Any:
        """Return what a training has saved: weights, and its place in the ledger; raises CheckpointError."""


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

    # Modules, imported when they are asked for; all but `data` import the framework.
    @property
    def audit(self) -> Audit: ...  # noqa: D102
    @property
    def data(self) -> Data: ...  # noqa: D102
    @property
    def deployment(self) -> Deployment: ...  # noqa: D102
    @property
    def environment(self) -> Environment: ...  # noqa: D102
    @property
    def privacy_audit(self) -> PrivacyAudit: ...  # noqa: D102
    @property
    def robustness(self) -> Robustness: ...  # noqa: D102
    @property
    def signal(self) -> Signal: ...  # noqa: D102
    @property
    def training(self) -> Training: ...  # noqa: D102


def find(name: str = "torch") -> Backend:
    """Return the backend of this name; raises InputError (LIP006)."""
    found = {point.name: point for point in entry_points(group="lipcompile.backends")}
    if name not in found:
        raise input_error("LIP006", f"there is no backend `{name}`", f"installed: {', '.join(found) or 'none'}")
    backend: Backend = found[name].load()
    return backend


def program(path: Path, text: str, network: Any = None) -> Any:
    """Run an emitted program and return it as a module of Python; `path` only appears in tracebacks.

    network: the `own_network` of the model, where it has one: see `core.derivation.Source`.
    """
    module = ModuleType(path.stem)
    exec(compile(text, str(path), "exec"), module.__dict__)
    del module.__name__  # torch.compile would import what globals are named after, and there is no such file
    module.Model._program = (str(path), text)  # what a pickle holds in the place of the class
    if network is not None:
        module.Model.own_network = network
    return module


def instantiate(path: Path, text: str, network: Any = None) -> Any:
    """Run an emitted program and return an instance of its model; see `program`."""
    return program(path, text, network).Model()

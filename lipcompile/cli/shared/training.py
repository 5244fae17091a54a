"""One private training run: a derivation and a data file in; a module, a checkpoint and a ledger out."""

from __future__ import annotations

import ctypes
import json
import math
import os
import platform
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from lipcompile_privacy.errors import (
    BudgetError,
    CertificateError,
    CheckpointError,
    DataError,
    LedgerError,
    PrivacyError,
    SamplingError,
)

from lipcompile.cli.shared.inputs import CHECKPOINT, CLASSES, LEDGER, MODULE, NETWORK, arrays_of
from lipcompile.cli.shared.output import complain, write_text
from lipcompile.cli.shared.progress import Watch, most_frequent, scored
from lipcompile.core.backend import Backend, instantiate
from lipcompile.diagnostics import Diagnostic, InputError, Severity, input_error
from lipcompile.numbers.rounding import upward

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lipcompile.core.derivation import Derivation, Source


LARGEST_DEFAULT_BATCH = 512
_FILES = (MODULE, LEDGER, CHECKPOINT, CLASSES, NETWORK)
# Sizes of entries that are worth a note: those of images of 0 to 255 are near 100, of columns in dollars above.
_LARGE = 10

# Exceptions of a training that the user can fix, by their codes.
_BY_USERS: Mapping[str, tuple[type[Exception], ...]] = {
    "LIP401": (BudgetError,),
    "LIP403": (DataError,),
    "LIP501": (CertificateError,),
    "LIP404": (SamplingError, PrivacyError),
    "LIP405": (LedgerError, CheckpointError),
}


_START = re.compile(
    r'^Emitted by lipcompile \S+|"lipcompile": "[^"]+"|sha256 [0-9a-f]{16}\.|"sha256": "[0-9a-f]{64}"|'
    r'^_WEIGHTS = """.*?"""',
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """What to train, on what, how (the fields of the backend's `TrainConfig` but for `output`), and where to.

    `text` is the emitted module, `expected` the number of examples that the model's plan counts on.
    """

    derivation: Derivation
    text: str
    data: Path
    settings: Mapping[str, Any]
    output: Path
    expected: int | None = None

    @property
    def resume(self) -> bool:
        """Whether to go on with an earlier run."""
        return bool(self.settings.get("resume"))


def keep_freed_memory() -> bool:
    """Let this process keep memory that is freed, for the next step; returns whether its C library does.

    By itself glibc gives blocks of more than 32 MiB back at once, and the system zeroes their pages again in the
    next step: that took two thirds of the time of a step with large batches.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    glibc = ctypes.CDLL(None)
    accepted = [glibc.mallopt(option, 2**31 - 1) == 1 for option in (_TRIM_THRESHOLD, _MMAP_THRESHOLD)]
    return all(accepted)


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt, in malloc.h


def execute(run: TrainingRun, backend: Backend) -> Any:
    """Train; returns the backend's result. Raises InputError; what it raises before training leaves no trace."""
    assert run.derivation.analysis is not None
    keep_freed_memory()
    arrays = arrays_of(run.data, run.derivation.analysis.graph, backend)
    examples, names = len(arrays.x_train), backend.data.class_names(run.data)
    settings = {
        **run.settings,
        "batch_size": run.settings["batch_size"] or default_batch(run.derivation, examples),
    }
    _check_settings(run, settings, examples)
    refuse_drawn(run.derivation.source)
    watch = Watch(run.settings["epochs"])
    with _as_diagnostics(lambda: watch.began), _folder(run, names, lambda: watch.began) as text:
        module = drawn(run.output / MODULE, text, settings.get("seed"), run.derivation.source.network)
        check_targets(module, arrays)
        tell_clipped(module, arrays.x_train)
        tell_large(module, arrays.x_train)
        config = backend.training.TrainConfig(output=run.output, **settings)
        with plain_warnings(), watch:
            result = backend.training.train(module, arrays, config, watch)
    tell_unlearned(result.test_accuracy, arrays.y_test)
    return result


def refuse_drawn(source: Source) -> None:
    """Raise InputError (LIP510) if a network of Python is another one each time: `predict` imports it again."""
    if source.network is None:
        return
    from lipcompile.frontends.torch.alone import found_again

    if found_again(source.path, _shapes(source), source.sha256) is None:
        message = f"`{source.path}` has other buffers, or frozen parameters, each time it is made"
        help_line = "make them of a fixed seed (torch.Generator().manual_seed(0)): no file of the run holds them"
        raise input_error("LIP510", message, help_line)


def _shapes(source: Source) -> dict[str, tuple[int, ...]]:
    return {one.name: one.shape for one in source.network.inputs}


def drawn(path: Path, text: str, seed: int | None, network: Any = None) -> Any:
    """Return the module of an emitted text, whose weights follow the seed of a run that is to be repeatable.

    network: see `core.backend.program`.
    """
    import torch

    if seed is not None:
        torch.manual_seed(seed)
    return instantiate(path, text, network)


def default_batch(derivation: Derivation, examples: int) -> int:
    """Return the expected batch size where none was asked for."""
    assert derivation.analysis is not None
    if derivation.analysis.graph.clips:
        return min(max(examples // 25, 64), 2048, examples)
    return min(LARGEST_DEFAULT_BATCH, examples)


def print_result(result: Any, run: TrainingRun) -> None:
    """Write what came out to stdout."""
    promise = "" if result.private else " -- NOT PRIVATE: a seed was fixed, so the noise is predictable"
    lines = (
        f"{scored(result)} after {result.steps} steps, {result.seconds:.0f} s",
        f"ε = {upward(result.epsilon, 4)} at δ = {result.delta:g}, {run.settings['neighbours']}{promise}",
        f"noise multiplier {result.noise_multiplier:.5g}",
        f"module      {run.output / MODULE}",
        f"checkpoint  {result.checkpoint}",
        f"ledger      {result.ledger}",
    )
    click.echo("\n".join(lines))


def _check_settings(run: TrainingRun, settings: Mapping[str, Any], examples: int) -> None:
    """Warn of settings that mean less than they seem to; raises InputError (LIP404)."""
    delta, batch = settings["delta"], settings["batch_size"]
    if batch > examples:
        raise input_error("LIP404", f"a batch of {batch} of {examples} examples", "use a smaller --batch-size")
    if run.expected not in (None, examples):
        message = f"the plan is made for {run.expected} examples, the file holds {examples}: those count"
        complain([Diagnostic("LIP404", message, "correct the plan's `sampling`", Severity.WARNING)])
    warn_of_delta(delta, examples)


def warn_of_delta(delta: float, examples: int) -> None:
    """Warn of a δ that would be met by publishing one example, drawn at random."""
    if delta * examples >= 1:
        message = f"δ = {delta:g} is at least 1 / {examples} examples: it would allow publishing one of them"
        complain([Diagnostic("LIP404", message, f"use --delta {0.1 / examples:.1g}", Severity.WARNING)])


def text_of_run(output: Path, text: str, *, resume: bool) -> str:
    """Return the module to train: of a run that goes on its own, whose first weights nobody may know any more.

    Raises InputError (LIP405) rather than mix two runs in one folder, or write over somebody's file.
    """
    module = output / MODULE
    refuse_unresumed(output, resume=resume)
    old = module.read_text(encoding="utf-8", errors="replace") if module.is_file() else text
    if old != text and not (resume and _unstarted(old) == _unstarted(text)):
        help_line = "use the model and options that it was made from, or choose another --output"
        raise input_error("LIP405", f"`{module}` is another module than this model's", help_line)
    return old


def refuse_unresumed(output: Path, *, resume: bool) -> None:
    """Raise InputError (LIP405) if there is a run in a folder that does not go on, or none that could."""
    if not resume:
        refuse_used(output, "go on with --resume, or choose another --output")
    elif not (output / MODULE).is_file():
        raise input_error("LIP405", f"there is no run in `{output}` to resume", "leave out --resume")


def refuse_used(output: Path, help_line: str) -> None:
    """Raise InputError (LIP405) if a folder to write in is none, or has a ledger, which is never written over."""
    if output.exists() and not output.is_dir():
        raise input_error("LIP405", f"`{output}` is a file", "choose another --output")
    if (output / LEDGER).exists():
        raise input_error("LIP405", f"`{output}` holds an earlier run", help_line)


def _unstarted(text: str) -> str:
    """Return a module's text without its first weights, which a factory draws anew, and their digests.

    And without the version that emitted it: a run goes on under the next one if that makes the same module.
    """
    return _START.sub("", text)


@contextmanager
def _folder(run: TrainingRun, names: list[str], began: Any) -> Iterator[str]:
    """Make the folder, the module and the names of classes in it; take them back if training does not begin.

    Yields the text of the module. No other command trains in the folder meanwhile: its files would be taken back.
    """
    refuse_unresumed(run.output, resume=run.resume)
    new = [path for path in (run.output, *run.output.parents) if not path.exists()]
    run.output.mkdir(parents=True, exist_ok=True)
    with _locked(run.output):
        fresh = [name for name in _FILES if not (run.output / name).exists()]
        try:
            text = text_of_run(run.output, run.text, resume=run.resume)
            write_text(run.output / MODULE, text)
            if names:
                write_text(run.output / CLASSES, json.dumps(names, ensure_ascii=False))
            source = run.derivation.source
            if source.network is not None:
                found = {"module": source.path, "input_shape": _shapes(source)}
                write_text(run.output / NETWORK, json.dumps(found))
            yield text
        finally:
            if not began():
                for name in fresh:
                    (run.output / name).unlink(missing_ok=True)
                with suppress(OSError):  # somebody else has put something there
                    for path in new:
                        path.rmdir()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a folder against other commands that train in it; raises InputError (LIP405) if one does."""
    import fcntl  # POSIX only, as ledgers in files are

    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            help_line = "wait until it ends, or choose another --output"
            raise input_error("LIP405", f"`{folder}` is in use by another process", help_line) from None
        except OSError:
            pass  # network file systems lock no folders; the ledger has a lock of its own
        yield
    finally:
        os.close(descriptor)


def check_targets(module: Any, arrays: Any) -> None:
    """Let the loss look at every target before anything is spent; raises InputError (LIP403)."""
    import torch

    for inputs, targets in ((arrays.x_train, arrays.y_train), (arrays.x_test, arrays.y_test)):
        one = module(torch.zeros(1, *module.input_shape, dtype=torch.from_numpy(inputs).dtype))
        outputs = one.detach().expand(len(targets), *one.shape[1:])
        try:
            module.per_example_loss(outputs, torch.from_numpy(targets))
        except ValueError as error:
            raise input_error("LIP403", str(error)) from None


def tell_clipped(module: Any, inputs: NDArray[Any]) -> None:
    """Say on stderr how many examples [N, …] are longer than the module lets them be, and lose what is beyond."""
    import numpy as np

    if module.input_tokens or module.input_trusted or math.isinf(module.input_norm):
        return
    limit = module.input_norm * (1 + 1e-6)
    clipped = sum(int((np.linalg.norm(piece, axis=1) > limit).sum()) for piece in _pieces(inputs))
    if clipped:
        share = f"{clipped / len(inputs):.0%}" if clipped >= 0.01 * len(inputs) else "below 1%"
        click.echo(
            f"note: {share} of the examples have a norm above {module.input_norm:g} and are clipped to it "
            "(this figure is not private); scale the inputs by public constants, or raise the input norm",
            err=True,
        )


def tell_large(module: Any, inputs: NDArray[Any]) -> None:
    """Say on stderr if the entries of examples [N, …] that nothing scales are far above what networks expect.

    Of several inputs some may be categories, whose numbers say nothing.
    """
    import numpy as np

    if module.input_tokens or module.input_parts or math.isfinite(module.input_norm) or not inputs.size:
        return
    typical = math.sqrt(sum(float(np.square(piece).sum()) for piece in _pieces(inputs)) / inputs.size)
    if typical > _LARGE:
        click.echo(
            f"note: the entries of the examples are {typical:.3g} in size (root mean square; this figure is not "
            "private), and networks learn most from entries near 1: divide by a public constant, such as 255",
            err=True,
        )


def tell_unlearned(accuracy: float, labels: NDArray[Any]) -> None:
    """Say on stderr if a model is no better on labels [M, …] than their most frequent class."""
    if math.isnan(accuracy):
        return
    is_one_each = labels.size == len(labels)  # those of tokens and pixels do not count if they are negative
    most = most_frequent(labels if is_one_each else labels[labels >= 0])
    if accuracy <= most:
        click.echo(
            f"note: the most frequent class alone has {most:.1%} of the test part: the model has learned no more; "
            "try another --lr, more --epochs, larger batches, or a larger ε",
            err=True,
        )


def _pieces(inputs: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yield examples [n, entries] of at most 32 MiB in float64: the data may be nearly as large as memory."""
    import numpy as np

    entries = math.prod(inputs.shape[1:])
    rows = max(1, 2**22 // max(1, entries))
    for start in range(0, len(inputs), rows):
        yield inputs[start : start + rows].reshape(-1, entries).astype(np.float64)


@contextmanager
def _as_diagnostics(began: Any) -> Iterator[None]:
    """Turn exceptions that the user can fix into diagnostics."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        import torch

        full = isinstance(error, torch.OutOfMemoryError)
        code = next((code for code, kinds in _BY_USERS.items() if isinstance(error, kinds)), None)
        if full or (code is None and isinstance(error, ValueError) and not began()):
            code = "LIP404"
        if code is None:
            raise
        help_line = "use --max-physical-batch" if full else ""
        raise input_error(code, str(error).splitlines()[0], help_line) from error


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Write warnings of libraries to stderr as one line each."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        print(f"warning: {message}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.showwarning = show
        yield

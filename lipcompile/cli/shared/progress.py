"""How what takes time is watched, on stderr: a bar on a terminal; elsewhere a line an epoch, or nothing."""

from __future__ import annotations

import math
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from lipcompile.numbers.rounding import upward
from lipcompile.reports.console import printable

if TYPE_CHECKING:
    from numpy.typing import NDArray


class _Bar:
    """A bar on stderr, if that is a terminal."""

    def __init__(self, what: str) -> None:
        self._bar = Progress(
            TextColumn(what),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}", markup=False),
            TimeRemainingColumn(),
            console=Console(stderr=True, markup=False, highlight=False),
            disable=not sys.stderr.isatty(),
        )
        self._task = self._bar.add_task(what, total=None, state="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()


def spinner(what: str) -> Progress:
    """Return a context in which something turns on stderr, if that is a terminal: for work of unknown length."""
    turning = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
        console=Console(stderr=True, markup=False, highlight=False),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    turning.add_task(what, total=None)
    return turning


class Watch(_Bar):
    """Receives the events of a backend's training; `began` says whether the first of them came."""

    def __init__(self, epochs: int) -> None:
        super().__init__("training")
        self.began = False
        self._epochs = epochs

    def prepared(self, done: int, planned: int) -> None:
        """So many examples of those planned have their frozen features."""
        self._bar.update(self._task, total=planned, completed=done, state="frozen features")

    def planned(self, plan: Any) -> None:
        """Training begins: the plan has total_steps and steps_done."""
        self.began = True
        self._bar.update(self._task, total=plan.total_steps, completed=plan.steps_done, state="")

    def stepped(self, steps: int) -> None:
        """A step was taken."""
        self._bar.update(self._task, completed=steps)

    def epoch_ended(self, summary: Any) -> None:
        """An epoch ended: the summary has epoch, epsilon, test_accuracy and test_loss."""
        spent = f"ε = {upward(summary.epsilon, 3)}"
        state = f"epoch {summary.epoch}/{self._epochs}  {spent}  {scored(summary)}"
        self._bar.update(self._task, state=state)
        if self._bar.disable:
            print(state, file=sys.stderr, flush=True)


class AuditWatch(_Bar):
    """Receives the events of a backend's audit; says nothing where there is no terminal."""

    def __init__(self) -> None:
        super().__init__("attacking")

    def planned(self, ascents: int) -> None:
        """There will be so many ascents."""
        self._bar.update(self._task, total=ascents)

    def climbed(self, objective: str, ratio: float) -> None:
        """An ascent ended; the best ratio for its objective so far."""
        self._bar.update(self._task, advance=1, state=f"{printable(objective)} {ratio:.3f}")


class CountWatch(_Bar):
    """Counts what is done of some work; says nothing where there is no terminal."""

    def __call__(self, state: str, done: int, planned: int) -> None:
        """So many of those planned are done, the last of them `state`."""
        self._bar.update(self._task, completed=done, total=planned, state=printable(state))


def accuracy(share: float) -> str:
    """Return a test accuracy as text."""
    return f"test accuracy {100 * share:.1f} %"


def most_frequent(labels: NDArray[Any]) -> float:
    """Return the share of the most frequent one of labels, of any shape: the accuracy of saying nothing else."""
    import numpy as np

    return float(np.unique(labels, return_counts=True)[1].max()) / labels.size


def scored(result: Any) -> str:
    """Return the test accuracy of a training or an epoch as text, or its test loss if targets are no classes."""
    known = not math.isnan(result.test_accuracy)
    return accuracy(result.test_accuracy) if known else f"test loss {result.test_loss:.4g}"

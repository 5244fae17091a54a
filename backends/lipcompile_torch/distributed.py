"""Training on several processes as if on one: what the processes agree on, and how they find it out.

A `World` is all the processes of a training, `ALONE` if there is one. Every computation that may fail on one
process, or differ between processes, goes through `World.each`, which every process must pass together: so an
error of one is an error of all, nobody waits for a process that gave up, and nobody releases anything that the
others do not stand behind. A process that dies fails the next such passage of the others.

All processes are trusted alike: each sees gradients without noise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from torch import Tensor
from torch import distributed as dist

Value = TypeVar("Value")


class RankError(RuntimeError):
    """Another process of the training failed, or the processes do not do the same."""


class World:
    """A process alone; subclasses are one of several.

    Attributes:
        rank: which of the processes this is, from 0.
        size: how many there are.
    """

    rank = 0
    size = 1

    def each(self, doing: str, compute: Callable[[], Value]) -> list[Value]:
        """Run something on every process; return all results, in the order of ranks.

        Args:
            doing: what for, for messages; the same on every process.
            compute: must not wait for other processes; its result can be pickled.

        Raises:
            RankError: it failed on another process, or another process is elsewhere.
            Exception: whatever `compute` raises here.
        """
        del doing
        return [compute()]

    def first(self, doing: str, compute: Callable[[], Value]) -> Value:
        """Run something on rank 0 alone; return its result, or raise, on every process. See `each`."""
        results: list[Any] = self.each(doing, compute if self.rank == 0 else lambda: None)
        found: Value = results[0]
        return found

    def check_current(self) -> None:
        """Refuse, with RankError, a world that is no longer all the processes."""
        if _initialised():
            raise RankError(
                "torch.distributed was initialised after the privacy engine was made, so the engine "
                "counts one process only: call init_process_group first"
            )

    def reduce_(self, tensor: Tensor, owner: int) -> None:
        """Put the sum over all processes into the owner's tensor; what the others hold then is undefined."""

    def spread_(self, tensor: Tensor, owner: int) -> None:
        """Copy the owner's tensor into that of every other process."""


ALONE = World()


class Processes(World):
    """The processes of torch's default process group; made by all of them at the same place of the program."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        # A group of its own, on the processors: no message waits for a device, or for a collective of the user's.
        self._control = dist.new_group(backend="gloo")

    def each(self, doing: str, compute: Callable[[], Value]) -> list[Value]:
        """See `World.each`."""
        failure: Exception | None = None
        mine: tuple[str, Any, str | None]
        try:
            mine = (doing, compute(), None)
        except Exception as error:
            failure, mine = error, (doing, None, f"{type(error).__name__}: {error}")
        all_of_them = self._gathered(mine)
        if failure is not None:
            raise failure
        for rank, (_, _, error_there) in enumerate(all_of_them):
            if error_there is not None:
                raise RankError(f"rank {rank} failed, so all ranks stop: {error_there}")
        self._check_places([place for place, _, _ in all_of_them])
        return [value for _, value, _ in all_of_them]

    def _gathered(self, mine: object) -> list[Any]:
        found: list[Any] = [None] * self.size
        try:
            dist.all_gather_object(found, mine, self._control)
        except RuntimeError as error:
            raise RankError(
                "a process of this training has ended or does not answer, so all ranks stop: look for "
                "the first error among the ranks, and resume all of them from a checkpoint"
            ) from error
        return found

    def _check_places(self, places: list[str]) -> None:
        for rank, place in enumerate(places):
            if place != places[self.rank]:
                raise RankError(
                    f"rank {rank} is about to {place}, but rank {self.rank} is about to "
                    f"{places[self.rank]}: every rank must take every batch of its loader and one step "
                    "for each batch, even a rank without examples"
                )

    def check_current(self) -> None:
        """See `World.check_current`."""
        if not _initialised() or dist.get_world_size() != self.size:
            raise RankError("the process group of the privacy engine was destroyed: make a new engine")

    def reduce_(self, tensor: Tensor, owner: int) -> None:
        """See `World.reduce_`."""
        dist.reduce(tensor, dst=owner)

    def spread_(self, tensor: Tensor, owner: int) -> None:
        """See `World.spread_`."""
        dense = tensor.contiguous()  # channels may lie last, and differ in that between ranks
        dist.broadcast(dense, src=owner)
        if dense is not tensor:
            tensor.copy_(dense)


def current_world() -> World:
    """Return the processes of torch.distributed if it is initialised, else `ALONE`."""
    return Processes() if _initialised() else ALONE


def check_same(facts: Sequence[Mapping[str, Any]], help_lines: Mapping[str, str]) -> None:
    """Refuse, with RankError, what is not the same on all processes.

    Args:
        facts: what each process holds to be true, by name.
        fixes: what to do about a difference, by the same names.
    """
    for name, help_line in help_lines.items():
        astray = [rank for rank, known in enumerate(facts) if known[name] != facts[0][name]]
        if astray:
            raise RankError(f"rank {astray[0]} and rank 0 have different {name}: {help_line}")


def _initialised() -> bool:
    return dist.is_available() and dist.is_initialized()

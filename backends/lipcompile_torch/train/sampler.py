"""The private loader: batches drawn by a scheme that the accounting knows, which a shuffled loader is not."""

from __future__ import annotations

import hashlib
import math
import os
from collections import deque
from collections.abc import Callable, Iterator, MutableMapping
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from lipcompile_privacy.accounting import Drawing, NeighbouringRelation, Sampling
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
)

from ..certify.precision import most_examples
from ..distributed import ALONE, World
from ..noise.masks import seed_secretly
from ..noise.processor import KEY_BYTES, keyed
from .sampling import OTHER_ITERATION, SamplingError, Scheme, scheme_for


@dataclass(slots=True)
class Rows:
    """The rows that the examples of a piece take among those of a batch of fixed shape; the others are zeros.

    Args:
        taken: int64 [n], all different.
        count: of all rows.
    """

    taken: Tensor
    count: int

    def spread(self, examples: Tensor) -> Tensor:
        """Return examples [n, …] in their rows [count, …]; the numbers of the rows move to their device, for good.

        Raises:
            ValueError: another number of examples.
        """
        if len(examples) != len(self.taken):
            raise ValueError(
                f"a batch of fixed shape goes through the module whole: {len(self.taken)} examples were drawn, "
                f"and {len(examples)} came; to compute fewer at once, give make_private a max_physical_batch"
            )
        self.taken = self.taken.to(examples.device)
        return examples.new_zeros(self.count, *examples.shape[1:]).index_copy(0, self.taken, examples)

    def picked(self, rows: Tensor) -> Tensor:
        """Return the rows [n, …] of the examples among [count, …]."""
        return rows.index_select(0, self.taken.to(rows.device))


@dataclass(slots=True)
class LogicalBatch:
    """The examples of one training step, which may arrive in several physical batches.

    Args:
        examples: how many examples this process got of those that were drawn; 0 is a batch like any other.
        position: index of the physical batch that was yielded last.
        complete: the physical batch that was yielded last is the last of this logical batch.
        step, round: its number in the run, and that of the charge that covers it; see `sampling.Drawn`.
        total: how many examples were drawn, for all processes.
        digest: of the examples that were drawn, for all processes; empty if there is but one process.
        rows: of the examples of the physical batch that was yielded last; None if its shape is their number.
    """

    examples: int
    step: int = 0
    round: int = 0
    position: int = 0
    complete: bool = False
    total: int = 0
    digest: bytes = b""
    rows: Rows | None = None


class PrivateLoader:
    """Yields batches drawn by a sampling scheme; by default each example enters each step independently.

    The batch size may vary and be 0. A batch of more than `max_physical_batch` examples arrives in pieces, whose
    gradients add up to that of the whole. An epoch is a FIXED number of steps, `round(N/b)` and at least 1.
    Of several processes all draw the same batch, and each gets every so-manieth example of it, which may be none,
    in as many pieces as the others do.

    Formal guarantees: batches are those of the scheme, for the examples of the wrapped data set; nothing about a
        batch is resampled, dropped or padded.

    Attributes:
        current: the logical batch in use, None before the first and after `close`.
        before_batch: called just before the first piece of each logical batch is yielded.

    Args:
        loader: its data set, batch size, `collate_fn` and worker settings are used; its order is not.
        max_physical_batch: most examples of one piece; None: no limit.
        fixed_shape: every piece is computed in one shape, see `LogicalBatch.rows`.
        seed: None: the operating system's entropy. A seed makes the batches repeatable and is not private.
        drawing: how batches are drawn, of the sizes of `loader`; None: Poisson.
        relation: the neighbouring relation that it is to be accounted under.
        world: the processes that share the batches; all make their loaders together.

    Raises:
        SamplingError: the loader has no fixed batch size, streams its data, or selects them by its own sampler.
        BudgetError: the scheme cannot be, for these sizes.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        max_physical_batch: int | None = None,
        seed: int | None = None,
        drawing: Drawing | None = None,
        relation: NeighbouringRelation = NeighbouringRelation.ADD_REMOVE,
        world: World = ALONE,
        fixed_shape: bool = False,
    ) -> None:
        drawing = drawing or drawing_of(loader)
        if max_physical_batch is not None and max_physical_batch < 1:
            raise SamplingError(f"max_physical_batch must be at least 1, or None; got {max_physical_batch}")
        self.dataset = loader.dataset
        self.max_physical_batch = max_physical_batch
        self.fixed_shape = fixed_shape
        self.current: LogicalBatch | None = None
        self.before_batch: Callable[[], None] = _nothing
        self._newest = -1
        self._loader, self._world = loader, world
        self._is_secret = seed is None
        key = os.urandom(KEY_BYTES) if seed is None else _of_seed(seed)
        self._scheme = scheme_for(drawing, relation, keyed(world.first("begin sampling", lambda: key)))

    @property
    def scheme(self) -> Scheme:
        """How batches are drawn."""
        return self._scheme

    @property
    def size(self) -> int:
        """N, the number of examples, treated as public."""
        return self.scheme.size

    @property
    def sampling_rate(self) -> float:
        """q = b/N."""
        return self.scheme.drawing.sampling_rate

    @property
    def expected_batch_size(self) -> int:
        """b, the wrapped loader's batch size."""
        return self.scheme.batch_size

    @property
    def batch_size(self) -> int:
        """b, the EXPECTED number of examples of a step."""
        return self.expected_batch_size

    @property
    def pieces(self) -> int:
        """How many pieces a batch is counted on to arrive in at most, see `precision.most_examples`."""
        limit = self.max_physical_batch
        return 1 if limit is None else math.ceil(most_examples(self.expected_batch_size) / limit)

    def __len__(self) -> int:
        """Return the number of steps of an epoch."""
        return self.scheme.steps_per_epoch

    def __iter__(self) -> Iterator[Any]:
        for batch, piece in self._pieces():
            if piece.position == 0:
                if piece.step <= self._newest:
                    raise SamplingError(OTHER_ITERATION)
                self.before_batch()
                self.current, self._newest = replace(piece), piece.step
            if self.current is not None and piece.step != self.current.step:
                raise SamplingError(OTHER_ITERATION)
            if self.current is None:
                raise SamplingError(
                    "physical batches were requested after the step of their logical batch: start a new iteration"
                )
            self.current.position, self.current.complete = piece.position, piece.complete
            self.current.rows = piece.rows
            yield batch

    def drawn_rows(self) -> Rows | None:
        """Return the rows of the examples that were yielded last, until their step; see `LogicalBatch`."""
        return None if self.current is None else self.current.rows

    def close(self) -> None:
        """Mark the current logical batch as used up."""
        self.current = None

    def _plan(self) -> Iterator[tuple[Tensor, LogicalBatch]]:
        """Yield (indices, what piece of which logical batch they are) for one epoch."""
        for drawn in self.scheme.epoch():
            shared, digest = self._placed if self.fixed_shape else self._share, self._digest(drawn.indices)
            pieces = list(shared(drawn.indices))
            examples = sum(len(piece) for piece, _ in pieces)
            batch = LogicalBatch(examples, drawn.step, drawn.round, total=len(drawn.indices), digest=digest)
            for position, (piece, rows) in enumerate(pieces):
                last = position == len(pieces) - 1
                yield piece, replace(batch, position=position, complete=last, rows=rows)

    def _share(self, indices: Tensor) -> Iterator[tuple[Tensor, None]]:
        """Yield what this process gets of a batch, in the pieces that rank 0, which gets most, needs at least."""
        share = indices[self._world.rank :: self._world.size]
        most = max(1, -(-len(indices) // self._world.size))
        limit = self.max_physical_batch or most
        yield from ((share[start : start + limit], None) for start in range(0, most, limit))

    def _placed(self, indices: Tensor) -> Iterator[tuple[Tensor, Rows]]:
        """Yield what this process gets of a batch whose examples take random rows among those of all pieces of all
        processes.

        One example more takes a row that was free, and the others are as likely to lie where they lay. Pieces are
        as many as hold the examples that a batch is counted on to have: more are drawn with probability 1e-14.
        """
        world, most = self._world.size, math.ceil(most_examples(self.expected_batch_size))
        count = self.max_physical_batch or -(-most // world)
        pieces = -(-max(most, len(indices)) // (count * world))
        places = self.scheme.places(len(indices), pieces * world * count)
        for number in range(self._world.rank, pieces * world, world):
            inside = places // count == number
            yield indices[inside], Rows(places[inside] % count, count)

    def _digest(self, indices: Tensor) -> bytes:
        if self._world is ALONE:
            return b""
        return hashlib.blake2b(indices.numpy().tobytes(), digest_size=16).digest()

    def _pieces(self) -> Iterator[tuple[Any, LogicalBatch]]:
        plain = self._loader.collate_fn is default_collate and self._loader.num_workers == 0
        if plain and type(self.dataset) is TensorDataset and not self._loader.pin_memory:
            tensors = self.dataset.tensors
            for indices, piece in self._plan():
                there = {device: indices.to(device) for device in {t.device for t in tensors}}
                yield tuple(t.index_select(0, there[t.device]) for t in tensors), piece
        else:
            yield from self._fetched()

    def _fetched(self) -> Iterator[tuple[Any, LogicalBatch]]:
        # Workers fetch ahead of the training loop, in order: what was planned waits here for its batch.
        waiting: deque[LogicalBatch] = deque()

        def plan() -> Iterator[list[int]]:
            for indices, piece in self._plan():
                waiting.append(piece)
                if self._is_secret and not self._loader.num_workers:
                    seed_secretly()  # a data set may draw at once what augments these examples
                yield indices.tolist()

        for batch in self._inner(plan()):
            yield batch, waiting.popleft()

    def _inner(self, plan: Iterator[list[int]]) -> DataLoader[Any]:
        theirs = self._loader
        return DataLoader(
            theirs.dataset,
            batch_sampler=plan,
            num_workers=theirs.num_workers,
            collate_fn=_Collate(theirs.collate_fn, theirs.collate_fn([theirs.dataset[0]])),
            pin_memory=theirs.pin_memory,
            timeout=theirs.timeout,
            worker_init_fn=_Begin(theirs.worker_init_fn) if self._is_secret else theirs.worker_init_fn,
            multiprocessing_context=theirs.multiprocessing_context,
            generator=_secret() if self._is_secret else theirs.generator,
        )


def _of_seed(seed: int) -> bytes:
    return hashlib.blake2b(f"sampling by seed {seed}".encode(), digest_size=KEY_BYTES).digest()


def _secret() -> torch.Generator:
    """Return what draws the seeds of workers: many make generators of their own of `get_worker_info().seed`."""
    generator = torch.Generator()
    generator.seed()
    return generator


class _Begin:
    """What a worker begins with: what the user's loader says, and then a secret seed."""

    def __init__(self, theirs: Callable[[int], None] | None) -> None:
        self._theirs = theirs

    def __call__(self, worker: int) -> None:
        if self._theirs is not None:
            self._theirs(worker)
        seed_secretly()


class _Collate:
    """A collate function that knows what a batch without examples looks like."""

    def __init__(self, collate: Callable[[list[Any]], Any], prototype: Any) -> None:
        self._collate = collate
        self._empty = _emptied(prototype)

    def __call__(self, items: list[Any]) -> Any:
        return self._collate(items) if items else self._empty


def _emptied(batch: Any) -> Any:
    if isinstance(batch, Tensor):
        return batch[:0]
    if isinstance(batch, MutableMapping):  # of its own class, whose methods and attributes a loop may use
        found = copy(batch)
        found.update({key: _emptied(value) for key, value in batch.items()})
        return found
    if isinstance(batch, list | tuple):
        return [_emptied(value) for value in batch]
    raise SamplingError(f"a batch contains {type(batch).__name__}, which has no empty form: collate to tensors")


def _nothing() -> None:
    pass


def drawing_of(loader: DataLoader[Any], sampling: Sampling = "poisson", groups: int = 1) -> Drawing:
    """Return how batches are drawn of a loader's data, in batches of its size.

    Raises:
        SamplingError: the loader has no fixed batch size, streams its data, or selects them by its own sampler.
        BudgetError: no such sampling, for these sizes.
    """
    if isinstance(loader.dataset, IterableDataset) or not hasattr(loader.dataset, "__len__"):
        raise SamplingError(
            "the data set is a stream: private sampling selects examples by index; use a map-style data set"
        )
    if loader.batch_size is None:
        raise SamplingError(
            "the data loader has no batch_size (does it have its own batch_sampler?): give "
            "DataLoader(batch_size=...), which becomes the expected batch size"
        )
    if not _visits_all_equally(loader):
        raise SamplingError(
            f"the data loader has the sampler {type(loader.sampler).__name__}, but private sampling of "
            "the whole data set replaces it: select examples with torch.utils.data.Subset instead"
        )
    if not 0 < loader.batch_size <= len(loader.dataset):
        raise SamplingError(
            f"batch size {loader.batch_size} for a data set of {len(loader.dataset)} examples: the sampling rate "
            "must be in (0, 1]"
        )
    return Drawing.of(sampling, loader.batch_size, len(loader.dataset), groups)


def _visits_all_equally(loader: DataLoader[Any]) -> bool:
    sampler = loader.sampler
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler.num_samples == len(loader.dataset)  # type: ignore[arg-type]
    return type(sampler) is SequentialSampler

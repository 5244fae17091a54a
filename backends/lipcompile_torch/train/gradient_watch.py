"""Gradients stay as they arrived from the backward pass, and an object that counts steps cannot be copied."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.autograd import Variable

from ..native.fingerprint import fingerprint, in_memory, own_key
from ..native.memory_rows import dense
from ..sharding import is_shard, local
from .aliases import OwnHook, has_own_hooks_only
from .checks import PrivacyError, norms_of


def _bits(gradient: Tensor) -> int:
    """Return a fingerprint of the shard of a gradient that lies here."""
    return int(fingerprint([in_memory(dense(local(gradient.detach())))], own_key()))


def _at_end(act: Callable[[], None]) -> None:
    """Let the backward pass that goes on do something when it ends."""
    engine: Any = Variable._execution_engine
    engine.queue_callback(act)


class Singular:
    """Refuses to be copied or pickled: a copy would take steps that the original does not count."""

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} cannot be copied: the ledger would miss the steps of the copy; "
            "copy the weights, and save the state with state_dict()"
        )


class GradientWatch:
    """Knows the gradients as they came out of `backward`, by torch's count of in-place changes.

    The bounds hold for a sum over examples. A function of the sum (clipping it by its norm, as is common) is
    another mechanism: one example moves each parameter's part by what the others' norms do, too.

    Writes that torch does not count (through `.data`, by collective operations) are seen if they change the norm
    of a gradient. FSDP adds to the gradient of a shard without a hook before, and torch does not count all changes
    to it: what a backward pass finds there must have the bits that the pass before it left.

    Attributes:
        norms: of the gradients as they arrived, 0-dim, by name.

    Args:
        parameters: trainable, by name.
        late: DDP writes into gradients when a backward pass ends: take what is there behind that.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], late: bool = False) -> None:
        self._late = late
        self.norms: dict[str, Tensor] = {}
        self._parameters = parameters
        self._shards = [name for name, p in parameters.items() if is_shard(p)]
        self._arrived: dict[str, tuple[Tensor | None, int]] = {}
        self._changed: set[str] = set()
        self._additions: Counter[str] = Counter()
        self._backward_pass = -1
        for name, p in parameters.items():
            if name not in self._shards:
                p.register_hook(OwnHook(partial(self._before, name)))  # type: ignore[no-untyped-call]
            after = OwnHook(partial(self._count if name in self._shards else self._after, name))
            p.register_post_accumulate_grad_hook(after)  # type: ignore[no-untyped-call]

    @property
    def passes(self) -> int:
        """How many backward passes added to a gradient since `reset`."""
        return max(self._additions.values(), default=0)

    def reset(self) -> None:
        """Take the gradients as they are for those that arrived; by now they are missing or zero."""
        self._changed.clear()
        self._additions.clear()
        self.norms.clear()
        self._arrived = {name: self._state(name) for name in self._parameters}

    def check_hooks(self) -> None:
        """Refuse hooks of others, which may have changed what arrived."""
        for name, parameter in self._parameters.items():
            if not has_own_hooks_only(parameter):
                raise PrivacyError(
                    f"{name} has hooks, which may change gradients after they were bounded: remove them"
                )

    def begin_backward(self) -> None:
        """Look at the gradients of shards before a backward pass adds to them, and once it has ended; a module's
        gate calls this in each backward pass.
        """
        current = torch._C._current_graph_task_id()
        if self._shards and current != self._backward_pass:
            self._backward_pass = current
            self._changed.update(name for name in self._shards if not self._is_as_arrived(name))
            _at_end(lambda: _at_end(self._note_shards))  # behind what FSDP has queued

    def check(self, altered: Collection[str] = ()) -> None:
        """Refuse gradients that are no longer those that arrived.

        Args:
            altered: names of those whose norms are not :attr:`norms` any more.
        """
        changed = {name for name in self._arrived if not self._is_as_arrived(name)}.union(self._changed, altered)
        if changed:
            raise PrivacyError(
                f"the gradient of {', '.join(sorted(changed))} was not written by backward() alone, or "
                "changed between backward() and step(), so its bound may not hold: remove "
                "clip_grad_norm_ and similar calls, which private training does not need; use the "
                "learning rate for scaling"
            )

    def _before(self, name: str, _: Tensor) -> None:
        """Note a gradient that is not the one that arrived last, or is missing, before another one is added to it;
        and hooks of others, which may be removed before the step.
        """
        parameter = self._parameters[name]
        known = parameter.grad is not None or self._additions[name]
        if (known and not self._is_as_arrived(name)) or not has_own_hooks_only(parameter):
            self._changed.add(name)

    def _count(self, name: str, _: Tensor) -> None:
        self._additions[name] += 1

    def _after(self, name: str, _: Tensor) -> None:
        self._count(name, _)
        self._note(name)
        if self._late:  # what is queued while the queue is worked off comes behind what DDP has queued
            _at_end(lambda: _at_end(lambda: self._note(name)))

    def _note(self, name: str) -> None:
        self._arrived[name] = gradient, _ = self._state(name)
        if gradient is not None:  # at once: hooks on tensors that flow back later may write to it
            (self.norms[name],) = norms_of([gradient])

    def _note_shards(self) -> None:
        self._arrived.update((name, self._state(name)) for name in self._shards)

    def _is_as_arrived(self, name: str) -> bool:
        known, (gradient, version) = self._arrived.get(name, (None, 0)), self._state(name)
        return gradient is known[0] and version == known[1]

    def _state(self, name: str) -> tuple[Tensor | None, int]:
        gradient = self._parameters[name].grad
        if gradient is None:
            return None, 0
        return gradient, _bits(gradient) if is_shard(gradient) else gradient._version

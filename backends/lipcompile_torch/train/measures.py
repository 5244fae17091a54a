"""What is in the tensors of a step, told to the processor in one read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .. import native
from ..native.fingerprint import Key, fingerprint, in_memory, in_order, own_key
from ..native.memory_rows import dense
from ..sharding import local
from .gate import GateRecord


@dataclass(frozen=True, eq=False, slots=True)
class Contents:
    """The state of parameters: torch's counts of in-place changes, how they lie, and a fingerprint of their bits.

    The fingerprint sees what the counts do not: writes through `.data`, but for a probability below 2⁻²⁸ (see
    :mod:`..native.fingerprint`); of a sharded parameter it is that of the shard.

    Args:
        forms: of each parameter the name, the count, dtype, shape and strides.
        bits: 0-dim, on the device of the first parameter, so that nobody waits for it.
    """

    forms: tuple[tuple[object, ...], ...]
    bits: Tensor

    def same(self, other: Contents) -> bool:
        """Whether both are those of the same parameters, unchanged."""
        return self.forms == other.forms and not bool(self.differs(other))

    def differs(self, other: Contents) -> Tensor:
        """Return whether bits differ, 0-dim, without waiting for the device."""
        return self.bits != other.bits.to(self.bits.device)


def current_contents(module: nn.Module) -> Contents:
    """Return what the parameters of a module are now: those that are frozen too, as bounds depend on them."""
    with torch.no_grad():
        here = [(name, parameter._version, local(parameter)) for name, parameter in module.named_parameters()]
        forms = tuple((name, version, t.dtype, t.shape, t.stride()) for name, version, t in here)
        return Contents(forms, fingerprint([in_memory(tensor) for _, _, tensor in here], own_key()))


def fingerprints(parameters: Mapping[str, nn.Parameter], key: Key) -> list[int]:
    """Return a fingerprint of each parameter that does not depend on the order of its axes in memory."""
    found = [fingerprint([in_order(local(parameter.detach()))], key) for parameter in parameters.values()]
    return _gathered(found).tolist() if found else []


def _gathered(values: Sequence[Tensor]) -> Tensor:
    """Return 0-dim tensors of one dtype as one [n], on the device of the first."""
    device = values[0].device
    return torch.stack([value if value.device == device else value.to(device) for value in values])


@dataclass(frozen=True, slots=True)
class Flow:
    """The cotangents of a step, see `GateRecord`.

    Args:
        examples: of how many examples.
        foreign: how far it is from what the criterion sends.
        largest: norm of the largest cotangent, times the normaliser.
    """

    examples: int
    foreign: float
    largest: float


@dataclass(frozen=True, slots=True)
class Measured:
    """The facts about tensors that the checks of a step need.

    Args:
        unchanged: the parameters are what they were before.
        flow: what flowed back.
        weights: norms of the parameters that were asked for, by name.
        norms: Euclidean norm of each gradient that is not missing, by name, of a sharded one that of the shard.
        altered: names of gradients whose norms are not those that they arrived with.
    """

    unchanged: bool
    flow: Flow
    weights: dict[str, float]
    norms: dict[str, float]
    altered: set[str]


def measure(
    module: nn.Module,
    parameters: Mapping[str, nn.Parameter],
    before: Contents,
    gate: GateRecord,
    arrived: Mapping[str, Tensor],
    weights: Mapping[str, nn.Parameter],
) -> Measured:
    """Measure everything, and wait for the device once.

    Args:
        module: what `before` was read from.
        parameters: whose gradients are measured.
        arrived: norms of gradients when they arrived, by name.
        weights: whose norms are measured as well.
    """
    now, norms = current_contents(module), _norms(parameters)
    sizes = norms_of(list(weights.values()))
    flowed = [torch.zeros(()) if value is None else value for value in (gate.foreign, gate.largest)]
    values = [now.differs(before), *flowed, *norms.values(), *arrived.values(), *sizes]
    different, foreign, largest, *lengths = _fetched(values)
    unchanged = different == 0.0 and now.forms == before.forms
    flow = Flow(gate.examples, foreign, largest)
    left = iter(lengths)
    found, first, own = (dict(zip(names, left, strict=False)) for names in (norms, arrived, weights))
    altered = {name for name, norm in first.items() if repr(norm) != repr(found.get(name))}  # NaN is itself
    return Measured(unchanged, flow, own, found, altered)


def gradient_norms(parameters: Mapping[str, nn.Parameter]) -> dict[str, float]:
    """Return the Euclidean norm of each gradient that is not missing, of a sharded one that of the shard."""
    norms = _norms(parameters)
    return dict(zip(norms, _fetched(list(norms.values())), strict=True))


def _fetched(values: Sequence[Tensor]) -> list[float]:
    """Return 0-dim tensors as numbers, in one read."""
    wide = [value if value.dtype == torch.float64 else value.double() for value in values]
    return _gathered(wide).tolist() if wide else []


def _norms(parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    present = {name: p.grad for name, p in parameters.items() if p.grad is not None}
    return dict(zip(present, norms_of(list(present.values())), strict=True))


@torch.no_grad()
def norms_of(gradients: Sequence[Tensor]) -> list[Tensor]:
    """Return the Euclidean norm of each gradient, 0-dim float64; of a sharded one that of the shard.

    The bits of a norm depend on its gradient alone: rows of one dtype and device are measured by one operation
    there, which adds up each by itself.
    """
    here = [dense(local(gradient)) for gradient in gradients]
    found = [native.norm(gradient) for gradient in here]
    alike: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for place, gradient in enumerate(here):
        if found[place] is None:
            alike.setdefault((gradient.device, gradient.dtype), []).append(place)
    for places in alike.values():
        rows = [in_memory(here[place]) for place in places]
        for place, norm in zip(places, torch._foreach_norm(rows, 2, dtype=torch.float64), strict=True):
            found[place] = norm
    return [norm for norm in found if norm is not None]

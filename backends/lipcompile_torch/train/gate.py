"""The end of a module's forward pass, where everything that flows back into it passes and is noted."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from ..certify.precision import working_slack
from ..certify.sums import working_dtype
from ..clip.example_passes import saving_hooks
from ..sharding import is_fsdp
from .aliases import ParameterAliases


@contextmanager
def during(owner: object, name: str, value: object) -> Iterator[None]:
    """Give an attribute another value within this context, and back the one that it had before."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


class Gated(Protocol):
    """The parts of its module that the gate needs."""

    gate: GateRecord
    normaliser: float

    def clip_loss_gradient(self, cotangent: Tensor, views: int | None = None) -> tuple[Tensor, Tensor | None]:
        """Return what the criterion sends back, clipped, and how many examples were within the clip."""


@dataclass
class GateRecord:
    """The cotangents that passed the end of a module since the last reset.

    Args:
        examples: number of examples, over all backward passes.
        largest: largest norm of the cotangent of one example, of views the largest sum of their norms, times the
            normaliser: at most L if the criterion was the module's own. A 0-dim tensor, so that nobody waits for
            the device; NaN if a cotangent was. None if nothing flowed back.
        foreign: how far what flowed back is from what the module's own criterion, unscaled, sends back into
            that forward pass: 0 if it was nothing else. None if nothing flowed back.
        slack: relative rounding slack of the lowest precision of a forward pass that anything flowed back into.
        running: how many forward passes of the module are under way.
        within_clip: how many examples had a cotangent within the clip, see `loss_clipping.count_within`; None if
            nothing was clipped.
        batch: stands for the batch that was drawn last.
        aside: outputs pass by the gate: what computes them one example at a time lets them through it together.
        aliases: where the parameters enter the forward pass.
        is_loss_tried: a function of Python that is the loss was given a batch, see `own_losses.warn_of_mixing`.
    """

    examples: int = 0
    largest: Tensor | None = None
    foreign: Tensor | None = None
    slack: float = 0.0
    running: int = 0
    within_clip: Tensor | None = None
    batch: object = None
    aside: bool = False
    aliases: ParameterAliases = field(default_factory=ParameterAliases)
    is_loss_tried: bool = False

    def bypassed(self) -> AbstractContextManager[None]:
        """Set ``aside`` meanwhile."""
        return during(self, "aside", True)

    def reset(self) -> None:
        """Forget what flowed back."""
        self.examples, self.largest, self.foreign, self.slack = 0, None, None, 0.0
        self.within_clip = None
        self.aliases.reset()

    def record(self, cotangent: Tensor, normaliser: float, sent: Sent | None, views: int = 1) -> None:
        """Note a cotangent [B, …], or [B, views, …], at the end of a forward pass, and what the criterion sent."""
        self.examples += len(cotangent)
        rows = cotangent.detach().reshape(len(cotangent), views, math.prod(cotangent.shape[1:]) // views)
        norms = torch.linalg.vector_norm(rows, dim=2, dtype=working_dtype(rows))
        self.largest = _largest(norms.sum(1) * normaliser, self.largest)
        self.note_foreign(_difference(cotangent.detach(), sent))
        if sent is not None and sent.within is not None:
            self.note_within_clip(sent.within)

    def note_within_clip(self, count: Tensor) -> None:
        """Note how many more examples were within the clip."""
        self.within_clip = count if self.within_clip is None else self.within_clip + count.to(self.within_clip)

    def note_foreign(self, difference: Tensor) -> None:
        """Note a difference from what the criterion would have sent."""
        self.foreign = _largest(difference.detach(), self.foreign)


def _largest(values: Tensor, known: Tensor | None) -> Tensor:
    """Return the largest of numbers that are not negative, 0-dim; NaN if one is."""
    largest = values.amax() if values.numel() else values.new_zeros(())
    return largest if known is None else torch.maximum(largest, known.to(largest))


def _difference(cotangent: Tensor, sent: Sent | None) -> Tensor:
    """Return how far what arrived is from what was sent, entry by entry, or as a whole."""
    if sent is None or sent.tensor._version != sent.version:
        return cotangent.new_full((), math.inf)
    one, other = ((t.data_ptr(), t.shape, t.stride(), t.dtype) for t in (cotangent, sent.tensor))
    if one == other:
        return cotangent.new_zeros(())  # the same memory, unchanged
    return (cotangent - sent.tensor).abs()


@dataclass(frozen=True, slots=True)
class Sent:
    """The cotangent from the criterion, torch's count of changes to it, and the number of examples within a clip.

    It may be sent more often than it passes the gate, as by `torch.autograd.grad(loss, output)`: only what passes
    counts.
    """

    tensor: Tensor
    version: int
    within: Tensor | None


@dataclass
class Passage:
    """One forward pass: its slack, torch's count of changes to its output, its batch, how many views each example
    has if they have an axis, what was sent back, and whether it has passed the gate: it does so once, or the
    examples count twice, in the place of others.
    """

    slack: float
    version: int
    batch: object = None
    views: int | None = None
    sent: Sent | None = None
    passed: bool = False


class _Gate(torch.autograd.Function):
    """The end of a forward pass."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, module: Gated, passage: Passage) -> Tensor:
        ctx.module, ctx.passage = module, passage
        return (
            output.clone() if is_fsdp(cast(nn.Module, module)) else output.view_as(output)
        )  # FSDP warns of views

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, None, None]:
        gate, passage = ctx.module.gate, ctx.passage
        gate.aliases.begin_backward()
        gate.slack = max(gate.slack, passage.slack, working_slack(cotangents[0]))
        gate.record(cotangents[0], ctx.module.normaliser, passage.sent, passage.views or 1)
        # With create_graph, a function of the gradients can flow back past the gate, into weights alone.
        if passage.batch is not gate.batch or passage.passed or torch.is_grad_enabled():
            gate.note_foreign(cotangents[0].new_full((), math.inf))
        passage.passed = True
        return cotangents[0], None, None


class _CriterionInput(torch.autograd.Function):
    """Where the criterion takes an output: clips what it sends back, if the module says so, and remembers it.

    A second criterion is not remembered.
    """

    @staticmethod
    def forward(ctx: Any, output: Tensor, module: Gated, passage: Passage) -> Tensor:
        ctx.module, ctx.passage = module, passage
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, None, None]:
        sent, within = ctx.module.clip_loss_gradient(cotangents[0], ctx.passage.views)
        if ctx.passage.sent is None:
            ctx.passage.sent = Sent(sent.detach(), sent._version, within)
        return sent, None, None


class _Total(torch.autograd.Function):
    """The value of the criterion: notes whether it was scaled before `backward`."""

    @staticmethod
    def forward(ctx: Any, total: Tensor, module: Gated) -> Tensor:
        ctx.module = module
        return total.view_as(total)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, None]:
        ctx.module.gate.note_foreign((cotangents[0] - 1).abs())
        return cotangents[0], None


def check_saving() -> None:
    """Refuse hooks that may change what the backward pass reads, as compressed activations do; torch's own do not.

    Raises:
        RuntimeError: `torch.autograd.graph.saved_tensors_hooks` are at work, other than those of torch.
    """
    if saving_hooks() is not None:
        raise RuntimeError(
            "saved_tensors_hooks may change tensors that the backward pass reads, and the bounds do not "
            "cover such changes: remove the hooks; save_on_cpu and torch.utils.checkpoint are allowed"
        )


def pass_gate(output: Tensor, module: Gated, passage: Passage) -> Tensor:
    """Return the output of a forward pass, through whose gate everything flows back."""
    passed: Tensor = _Gate.apply(output, module, passage)  # type: ignore[no-untyped-call]
    return passed


def enter_criterion(output: Tensor, module: Gated, passage: Passage) -> Tensor:
    """Return what a forward pass put out, for its module's criterion; raises RuntimeError, see `check_saving`."""
    check_saving()
    entered: Tensor = _CriterionInput.apply(output, module, passage)  # type: ignore[no-untyped-call]
    return entered


def leave_criterion(total: Tensor, module: Gated) -> Tensor:
    """Return the value of a criterion, of which it is noted whether it is scaled before ``backward``."""
    left: Tensor = _Total.apply(total, module)  # type: ignore[no-untyped-call]
    return left

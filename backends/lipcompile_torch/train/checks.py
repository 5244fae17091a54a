"""The conditions that make a step the accounted mechanism: each check names the violation and the fix."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from lipcompile_privacy.errors import PrivacyError as PrivacyError
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer, SparseAdam

from .. import native
from ..certify.precision import rounding_slack
from ..native.fingerprint import Key, fingerprint, in_memory, in_order, own_key
from ..native.memory_rows import dense
from ..sharding import hooked, local
from .gate import GateRecord
from .module import LipschitzModule
from .sampler import LogicalBatch

Source = Literal["theorem", "clip", "auto"]
"""Where bounds of gradients come from, as `--bounds` has it."""


def trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that training changes, by name, each once."""
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


def check_module(module: object, source: Source = "auto") -> None:
    """Refuse what has no gradient bounds, or bounds of another source, and what is trained without one.

    Args:
        module: anything.
        source: "theorem" or "clip" of all bounds; "auto" takes the bounds that the module was compiled with.
    """
    if not isinstance(module, LipschitzModule):
        raise PrivacyError(
            f"{type(module).__name__} has no proved gradient bounds: compile the network first, with "
            f'lipcompile.private(module, example, loss="cross_entropy", bounds="{source}") or lipcompile compile, '
            "and pass the module itself, not a wrapper (DataParallel; for torch.compile there is "
            "module.compile(), which wraps nothing)"
        )
    _check_source(module, source)
    check_hooks(module)
    if not trainable(module):
        raise PrivacyError("the module has no trainable parameters: there is nothing to train privately")
    check_bounds(trainable(module), module.gradient_bounds())


def check_clips(module: LipschitzModule) -> None:
    """Refuse groups of clips that are not of trained parameters, each once, or longer than their bounds say."""
    clipped = Counter(name for group in module.clips for name in group.parameters)
    wrong = sorted(name for name in clipped if clipped[name] > 1 or name not in module.bounds)
    if wrong:
        raise PrivacyError(
            f"{', '.join(wrong)}: a clip group may contain only trained parameters, and each parameter at "
            "most once"
        )
    for group in module.clips:
        least = min(module.bounds[name] for name in group.parameters)
        if group.length > least:
            message = f"the clip group {group.name!r} has length {group.length!r}, but the bound {least!r}"
            raise PrivacyError(message)


def _check_source(module: LipschitzModule, source: Source) -> None:
    if source not in get_args(Source):
        raise PrivacyError(f"unknown source of bounds {source!r}: use one of {', '.join(get_args(Source))}")
    trained, clipped = trainable(module).keys(), module.clipped_parameters
    others = {"theorem": trained & clipped, "clip": trained - clipped, "auto": set()}[source]
    if others:
        found = "clip" if source == "theorem" else "theorem"
        raise PrivacyError(
            f"bounds by {source} were requested, but {', '.join(sorted(others))} are bounded by {found}. The "
            "source of bounds is fixed when a module is compiled: "
            f'lipcompile.private(…, bounds="{source}"), or lipcompile compile --bounds {source}; '
            "to keep the compiled bounds, call make_private without bounds"
        )


def check_hooks(module: nn.Module) -> None:
    """Refuse hooks but FSDP's: they may change what a layer computes, or take features out of it."""
    found = hooked(module.named_modules())
    if found:
        raise PrivacyError(f"{found} has hooks, which the bounds do not cover: remove them")


def check_bounds(parameters: Mapping[str, nn.Parameter], bounds: Mapping[str, float]) -> None:
    """Refuse parameters without a bound, bounds without a parameter, and bounds that are no bounds."""
    if parameters.keys() != bounds.keys():
        raise PrivacyError(
            "trainable parameters and gradient bounds differ in "
            f"{sorted(parameters.keys() ^ bounds.keys())}: a parameter was added, frozen, unfrozen or "
            "renamed after compilation; change the model and compile again"
        )
    for name, bound in bounds.items():
        if not 0 <= bound < math.inf:
            raise PrivacyError(f"the gradient bound of {name} is {bound}: no finite noise makes it private")


def check_optimizer(optimizer: Optimizer, own: Mapping[str, nn.Parameter]) -> None:
    """Refuse an optimizer that needs more than one gradient a step, or does not hold every parameter of a module,
    given by name, once.
    """
    if isinstance(optimizer, LBFGS | SparseAdam):
        raise PrivacyError(
            f"{type(optimizer).__name__} cannot be used: it evaluates the loss several times per step, "
            "or needs sparse gradients; use SGD, Adam, AdamW or another optimizer that takes one dense "
            "gradient per step"
        )
    held = Counter(id(parameter) for group in optimizer.param_groups for parameter in group["params"])
    if held.keys() - set(map(id, own.values())):
        raise PrivacyError("the optimizer holds parameters of other modules: give it module.parameters()")
    astray = [name for name, parameter in own.items() if parameter.requires_grad and held[id(parameter)] != 1]
    if astray:
        raise PrivacyError(
            f"parameters {', '.join(astray)} are not in exactly one group of the optimizer: give it "
            "module.parameters(), and compile with --freeze to exclude parameters from training"
        )


def replaced(own: Mapping[str, nn.Parameter], known: Mapping[str, nn.Parameter]) -> list[str]:
    """Return the names of trainable parameters, of all of a module, that are not, by identity, those known."""
    present = {name: parameter for name, parameter in own.items() if parameter.requires_grad}
    return sorted(name for name in present.keys() | known.keys() if present.get(name) is not known.get(name))


def check_unchanged(
    own: Mapping[str, nn.Parameter], optimizer: Optimizer, known: Mapping[str, nn.Parameter], unchanged: bool
) -> None:
    """Refuse a step whose parameters are not, by identity and by content, those that the batch was drawn for.

    Args:
        own: all parameters of the module now, by name.
        known: those that were trainable then.
        unchanged: whether all have the content of then.
    """
    changed = replaced(own, known)
    if changed:
        raise PrivacyError(
            f"parameters {', '.join(changed)} were added, replaced, frozen or unfrozen after "
            "make_private, so they have no proved bound: compile the changed model and call "
            "make_private again"
        )
    check_optimizer(optimizer, own)
    if not unchanged:
        raise PrivacyError(
            "parameters were changed after the batch was drawn and before the step, so the gradient "
            "bound may not hold: load or average weights between two steps only"
        )


def check_weights(parameters: Mapping[str, nn.Parameter], norms: Mapping[str, float]) -> None:
    """Refuse a step from weights that are not finite: it would spend the budget on noise alone.

    Args:
        parameters: trainable, by name.
        norms: of those that no projection has looked at; one that overflows says nothing.
    """
    for name, norm in norms.items():
        if not math.isfinite(norm) and not bool(local(parameters[name].detach()).isfinite().all()):
            raise PrivacyError(
                f"{name} contains NaN or infinity: training diverged, or what was loaded is damaged; go on from "
                "an earlier checkpoint, with a smaller learning rate"
            )


# --- what is in tensors, told to the processor in one read ---


@dataclass(frozen=True, eq=False, slots=True)
class Contents:
    """The state of parameters: torch's counts of in-place changes, how they lie, and a fingerprint of their bits.

    The fingerprint sees what the counts do not: writes through `.data`, but for a probability below 2⁻²⁸ (see
    :mod:`..native.fingerprint`); of a sharded parameter it is that of the shard.

    Args:
        forms: the count, dtype, shape and strides of each parameter, by name.
        bits: 0-dim, on the device of the first parameter, so that nobody waits for it.
        views: of the entries [n] of each parameter in the order of memory, by name, where there is one.
    """

    forms: Mapping[str, tuple[object, ...]]
    bits: Tensor
    views: Mapping[str, Tensor]

    def same(self, other: Contents) -> bool:
        """Whether both are those of the same parameters, unchanged."""
        return self.forms == other.forms and not bool(self.differs(other))

    def differs(self, other: Contents) -> Tensor:
        """Return whether bits differ, 0-dim, without waiting for the device."""
        return self.bits != other.bits.to(self.bits.device)

    def view_of(self, name: str, tensor: Tensor, form: tuple[object, ...]) -> Tensor | None:
        """Return the view of a parameter, if the tensor lies in the same memory in the same way."""
        view = self.views.get(name)
        if view is None or form[1:] != self.forms[name][1:]:
            return None
        one, other = ((t.data_ptr(), t.device, t.is_neg()) for t in (view, tensor))
        return view if one == other else None


UNREAD = Contents({}, torch.zeros((), dtype=torch.int64), {})
"""Of no parameters."""


@torch.no_grad()
def current_contents(parameters: Mapping[str, nn.Parameter], before: Contents = UNREAD) -> Contents:
    """Return what the parameters of a module are now.

    Args:
        parameters: all by name: those that are frozen too, as bounds depend on them.
        before: whose views need not be made again.
    """
    forms, rows, views = {}, [], {}
    for name, parameter in parameters.items():
        tensor = local(parameter)
        forms[name] = form = parameter._version, tensor.dtype, tensor.shape, tensor.stride()
        known = before.view_of(name, tensor, form)
        rows.append(row := in_memory(tensor) if known is None else known)
        if row.data_ptr() == tensor.data_ptr():
            views[name] = row
    return Contents(forms, fingerprint(rows, own_key()), views)


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
    own: Mapping[str, nn.Parameter],
    parameters: Mapping[str, nn.Parameter],
    before: Contents,
    gate: GateRecord,
    arrived: Mapping[str, Tensor],
    weights: Mapping[str, nn.Parameter],
) -> Measured:
    """Measure everything, and wait for the device once.

    Args:
        own: all parameters of the module that `before` was read from, by name.
        parameters: whose gradients are measured.
        arrived: norms of gradients when they arrived, by name.
        weights: whose norms are measured as well.
    """
    now, norms = current_contents(own, before), _norms(parameters)
    sizes = norms_of([weight.detach() for weight in weights.values()])  # plain tensors, for native code
    flowed = [torch.zeros(()) if value is None else value for value in (gate.foreign, gate.largest)]
    values = [now.differs(before), *flowed, *norms.values(), *arrived.values(), *sizes]
    different, foreign, largest, *lengths = _fetched(values)
    unchanged = different == 0.0 and now.forms == before.forms
    flow = Flow(gate.examples, foreign, largest)
    left = iter(lengths)
    found, first, held = (dict(zip(names, left, strict=False)) for names in (norms, arrived, weights))
    altered = {name for name, norm in first.items() if repr(norm) != repr(found.get(name))}  # NaN is itself
    return Measured(unchanged, flow, held, found, altered)


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
        rows = [here[place] if here[place].is_contiguous() else in_memory(here[place]) for place in places]
        for place, norm in zip(places, torch._foreach_norm(rows, 2, dtype=torch.float64), strict=True):
            found[place] = norm
    return [norm for norm in found if norm is not None]


# --- what is refused at a step ---


def slack(parameters: Mapping[str, nn.Parameter]) -> float:
    """Return the largest rounding slack of the dtypes in use."""
    return max(rounding_slack(parameter.dtype) for parameter in parameters.values())


def check_precision_known(gate_slack: float) -> None:
    """Refuse noise before the precision of any pass is known: that of a first batch with an example would differ.

    Args:
        gate_slack: of the lowest precision that has flowed back so far; 0 if nothing has.
    """
    if not gate_slack:
        raise PrivacyError(
            "the first batch is empty, and was not passed through the module and its criterion, so the precision "
            "that its noise must cover is not known: pass it through both all the same"
        )


def check_pieces(parameters: Mapping[str, nn.Parameter], passes: int, limit: int) -> None:
    """Refuse to add up more pieces of a batch than the noise covers: every addition rounds the sum.

    Args:
        parameters: trainable, by name.
        passes: backward passes over pieces of this batch.
        limit: how many the noise covers, in float32; in half precision it covers one.
    """
    if passes > 1 and any(parameter.element_size() < 4 for parameter in parameters.values()):
        raise PrivacyError(
            "the gradients of physical batches are summed in half precision, and the noise does not "
            "cover that rounding error: remove max_physical_batch, or keep parameters in float32 and "
            "use torch.autocast"
        )
    if passes > limit:
        raise PrivacyError(
            f"{passes} backward passes were accumulated for this batch, but the noise covers the "
            f"rounding error of only {limit}: let the loader split batches (max_physical_batch), and "
            "call backward() once for each physical batch"
        )


def check_flow(flow: Flow, batch: LogicalBatch, limit: float | None) -> None:
    """Refuse a gradient that is not that of the criterion on exactly the examples that were drawn.

    Args:
        flow: what flowed back since the batch was drawn.
        batch: what was drawn.
        limit: min(L, C)·(1 + slack), the most that the cotangent of one example times the normaliser can be; C is
            what the loss's gradient is clipped to. None where no bound rests on that.
    """
    if flow.examples != batch.examples:
        raise PrivacyError(
            f"{batch.examples} examples were drawn for this step but {flow.examples} flowed back: "
            + _why(flow.examples, batch.examples)
        )
    if not flow.foreign <= 0.0:
        raise PrivacyError(
            "the cotangents are not those of the unscaled loss module.criterion(module(x), y): remove "
            "any mean over the batch, weights, other loss or term on the output, change to the output "
            "before the criterion, loss scaling, create_graph, or output of an earlier batch"
        )
    if limit is not None and not flow.largest <= limit:
        raise PrivacyError(
            f"the cotangent of an example is longer than its bound, {limit:.6g}: "
            "call backward() on module.criterion(module(x), y) itself, without a mean, weights, another "
            "loss or loss scaling"
        )


def check_clipped(examples: int, batch: LogicalBatch) -> None:
    """Refuse more examples at a clip than were drawn: what flows back by itself is clipped by itself.

    Args:
        examples: that flowed back into a group of clips.
        batch: what was drawn.
    """
    if examples > batch.examples:
        raise PrivacyError(
            f"{batch.examples} examples were drawn for this step, but the backward pass brought "
            f"{examples} examples to the clip: only module.criterion(...) may be differentiated, not, "
            "for example, a loss on inner values"
        )


def _why(flowed: int, drawn: int) -> str:
    if flowed == 0:
        return (
            "call module.criterion(module(x), y).backward() before step(), with gradients enabled, and "
            "outside of torch.compile: module.compile() compiles the parts that can be compiled"
        )
    if flowed > drawn:
        return "backward() was called twice, or also on other examples: call it once for each batch"
    return "examples were dropped, or a physical batch had no backward(): use every batch unchanged"


def check_origin(foreign: Collection[str]) -> None:
    """Refuse gradients that reached these parameters by another way than the forward pass of the module."""
    if foreign:
        raise PrivacyError(
            f"a part of the gradient of {', '.join(sorted(foreign))} did not come from the module's "
            "forward pass: the loss has a term on parameters (a penalty), or an input or target depends "
            "on parameters; put weight decay into the optimizer, and detach() inputs and targets"
        )


def check_gradients(
    norms: Mapping[str, float], bounds: Mapping[str, float], examples_share: float, slack: float, depth: int
) -> None:
    """Refuse gradients that are not finite, or too long for a sum of that many bounded gradients.

    The second cannot happen to the gradient of the criterion: it shows a term that did not pass the module's end.

    Args:
        norms: of the gradients, by name; a missing one is zero.
        bounds: K_p by the same names.
        examples_share: number of examples of the batch over the normaliser b.
        slack: relative rounding slack of the gradient of an example.
        depth: of the sum of gradients, see `precision.sum_slack`.
    """
    summed = math.expm1(depth * torch.finfo(torch.float32).eps)  # twice what the theorem allows
    for name, norm in norms.items():
        if not math.isfinite(norm):
            raise PrivacyError(
                f"the gradient of {name} is not finite, and noise cannot hide that: look for NaN or "
                "infinity in inputs, targets or weights, or for overflow in half precision"
            )
        limit = bounds[name] * examples_share * (1 + 2 * slack) * (1 + summed)
        if bounds[name] > 0 and norm > limit:
            raise PrivacyError(
                f"the gradient of {name} is longer than its bound for this batch: only "
                "module.criterion(...) may be differentiated, without a penalty or a loss on inner "
                "features; put weight decay into the optimizer"
            )

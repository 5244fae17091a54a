"""What must hold for a step to be the mechanism that is accounted: checked by name, refused with the mend."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer, SparseAdam

from .gate import GateRecord
from .module import LipschitzModule
from .precision import rounding_slack
from .sampler import LogicalBatch
from .sharding import foreign_hooks, local


class PrivacyError(RuntimeError):
    """A step that would not be the mechanism that is accounted. Nothing was released, no parameter changed."""


def trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that training changes, by name, each once."""
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


def check_module(module: object) -> None:
    """Refuse what has no proved gradient bounds, and what is trained without one."""
    if not isinstance(module, LipschitzModule):
        raise PrivacyError(
            f"{type(module).__name__} has no proved gradient bounds: compile the network first (lipcompile "
            "compile) and pass the module itself, not a wrapper (DataParallel, torch.compile)"
        )
    check_hooks(module)
    if not trainable(module):
        raise PrivacyError("the module has no trainable parameters: there is nothing to train privately")
    check_bounds(trainable(module), module.gradient_bounds())


def check_hooks(module: nn.Module) -> None:
    """Refuse hooks but FSDP's: they may change what a layer computes, or take features out of it."""
    for name, part in module.named_modules():
        if foreign_hooks(part):
            raise PrivacyError(f"{name or 'the module'} has hooks, which the bounds know nothing of: remove them")


def check_bounds(parameters: Mapping[str, nn.Parameter], bounds: Mapping[str, float]) -> None:
    """Refuse parameters without a bound, bounds without a parameter, and bounds that are no bounds."""
    if parameters.keys() != bounds.keys():
        raise PrivacyError(
            f"trainable parameters and gradient bounds differ in {sorted(parameters.keys() ^ bounds.keys())}: a "
            "parameter was added, frozen, thawed or renamed after compilation; change the model and compile again"
        )
    for name, bound in bounds.items():
        if not 0 <= bound < math.inf:
            raise PrivacyError(f"the gradient bound of {name} is {bound}: no finite noise protects it")


def check_optimizer(optimizer: Optimizer, module: nn.Module) -> None:
    """Refuse an optimizer that needs more than one gradient a step, or does not hold every parameter once."""
    if isinstance(optimizer, LBFGS | SparseAdam):
        raise PrivacyError(
            f"{type(optimizer).__name__} cannot be used: it evaluates the loss several times a step, or wants "
            "sparse gradients; use SGD, Adam, AdamW or another optimizer of one dense gradient a step"
        )
    held = Counter(id(parameter) for group in optimizer.param_groups for parameter in group["params"])
    own = {id(parameter) for parameter in module.parameters()}
    if held.keys() - own:
        raise PrivacyError("the optimizer holds parameters that are not the module's: give it module.parameters()")
    astray = [name for name, parameter in trainable(module).items() if held[id(parameter)] != 1]
    if astray:
        raise PrivacyError(
            f"parameters {', '.join(astray)} are not in exactly one group of the optimizer: give it "
            "module.parameters(), and compile with --freeze what should not be trained"
        )


def check_unchanged(
    module: nn.Module, optimizer: Optimizer, known: Mapping[str, nn.Parameter], contents: Contents
) -> None:
    """Refuse a step whose parameters are not, by identity and by content, those that the batch was drawn for."""
    present = trainable(module)
    changed = [name for name in present.keys() | known.keys() if present.get(name) is not known.get(name)]
    if changed:
        raise PrivacyError(
            f"parameters {', '.join(sorted(changed))} were added, replaced, frozen or thawed after make_private: "
            "they have no proved bound; compile the changed model and call make_private again"
        )
    check_optimizer(optimizer, module)
    check_hooks(module)
    if current_contents(known) != contents:
        raise PrivacyError(
            "parameters were changed between drawing the batch and the step, so the gradient may not be bounded: "
            "load or average weights between steps, not within one"
        )


Contents = tuple[tuple[int, int], ...]
_WORDS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def current_contents(parameters: Mapping[str, nn.Parameter]) -> Contents:
    """Return a fingerprint of the parameters: torch's count of in-place changes, and a sum of their bits.

    The sum sees what the count does not: writes through `.data`. Of a sharded parameter it is that of the shard.
    """
    bits = [local(p.detach()).reshape(-1).view(_WORDS[p.element_size()]) for p in parameters.values()]
    device = bits[0].device
    sums = torch.stack([words.sum(dtype=torch.int64).to(device) for words in bits]).tolist()
    return tuple((parameter._version, total) for parameter, total in zip(parameters.values(), sums, strict=True))


def slack(parameters: Mapping[str, nn.Parameter]) -> float:
    """Return the largest rounding slack of the dtypes in use."""
    return max(rounding_slack(parameter.dtype) for parameter in parameters.values())


def check_pieces(parameters: Mapping[str, nn.Parameter], batch: LogicalBatch) -> None:
    """Refuse to add up pieces of a batch in half precision, where each addition rounds like the sum itself."""
    if batch.position and any(parameter.element_size() < 4 for parameter in parameters.values()):
        raise PrivacyError(
            "the pieces of a batch are added up in half precision, whose rounding noise does not cover: leave "
            "max_physical_batch out, or keep parameters in float32 and use torch.autocast"
        )


def check_flow(gate: GateRecord, batch: LogicalBatch, limit: float) -> None:
    """Refuse a gradient that is not that of the criterion on exactly the examples that were drawn.

    Args:
        gate: what flowed back since the batch was drawn.
        batch: what was drawn.
        limit: min(L, C)·(1 + slack), the most that the cotangent of one example times the normaliser can be; C is
            what the loss's gradient is clipped to.
    """
    if gate.examples != batch.examples:
        raise PrivacyError(
            f"{batch.examples} examples were drawn for this step but {gate.examples} flowed back: "
            + _why(gate.examples, batch.examples)
        )
    foreign = 0.0 if gate.foreign is None else float(gate.foreign)
    if not foreign <= 0.0:
        raise PrivacyError(
            "what flowed back is not what module.criterion(module(x), y) sends, unscaled: no mean over the batch, "
            "no weights, no other loss or term on the output, no change to the output before the criterion, no "
            "loss scaling"
        )
    largest = 0.0 if gate.largest is None else float(gate.largest)
    if not largest <= limit:
        raise PrivacyError(
            f"an example's cotangent is {largest:.6g} where the analysis allows {limit:.6g}: call backward() on "
            "module.criterion(module(x), y), unscaled: no mean, no weights, no other loss, no loss scaling"
        )


def _why(flowed: int, drawn: int) -> str:
    if flowed == 0:
        return "call module.criterion(module(x), y).backward() before step(), with gradients enabled"
    if flowed > drawn:
        return "backward() was called twice, or on other examples as well; call it once for each batch"
    return "examples were dropped, or a piece of the batch had no backward(); use every batch as it comes"


def gradient_norms(parameters: Mapping[str, nn.Parameter]) -> dict[str, float]:
    """Return the Euclidean norm of each gradient that is not missing, of a sharded one that of the shard."""
    norms = {name: _norm(local(p.grad)) for name, p in parameters.items() if p.grad is not None}
    if not norms:
        return {}
    device = next(iter(norms.values())).device
    values = torch.stack([norm.to(device) for norm in norms.values()]).tolist()  # one wait for the device
    return dict(zip(norms, values, strict=True))


def check_gradients(
    norms: Mapping[str, float], bounds: Mapping[str, float], examples_share: float, slack: float
) -> None:
    """Refuse gradients that are not finite, or too long for a sum of that many bounded gradients.

    The second cannot happen to the gradient of the criterion: it shows a term that did not pass the module's end.

    Args:
        norms: of the gradients, by name; a missing one is zero.
        bounds: K_p by the same names.
        examples_share: number of examples of the batch over the normaliser b.
        slack: relative rounding slack.
    """
    for name, norm in norms.items():
        if not math.isfinite(norm):
            raise PrivacyError(
                f"the gradient of {name} is not finite: noise does not hide that; look for NaN or infinity in "
                "inputs, targets or weights, or for overflow in half precision"
            )
        limit = bounds[name] * examples_share * (1 + 2 * slack)
        if bounds[name] > 0 and norm > limit:
            raise PrivacyError(
                f"the gradient of {name} has norm {norm:.6g} where this batch allows {limit:.6g}: something else "
                "than module.criterion(...) was differentiated (a penalty, a loss on inner features); put weight "
                "decay into the optimizer"
            )


def _norm(gradient: Tensor) -> Tensor:
    dense = gradient.to_dense() if gradient.layout is not torch.strided else gradient
    norm: Tensor = torch.linalg.vector_norm(dense, dtype=torch.promote_types(dense.dtype, torch.float32))
    return norm.double()

"""Certified robustness: how far an input may move, in 2-norm, before a prediction can change.

Let f be the logits. A certificate for x with label y says: for every x' with ‖x' - x‖ < ρ, f_y(x') > f_k(x') for
all k ≠ y. Proofs are in `docs/robustness.md`. Two rules give a Lipschitz constant c_yk of f_y - f_k in x, and the
smaller one counts: √2·l, with l that of f; and ‖W_y - W_k‖·l_h where f = W·h(x) + b and l_h is that of h. Then
ρ = min_k (f_y(x) - f_k(x))/c_yk. One logit f decides by its sign: ρ = |f(x)|/l. All this holds of the input as the
module clips it; what it was before may move further, see `beyond_the_clip`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call

from ..certify.intervals import exactly, upper
from ..certify.norms import normalised
from ..certify.precision import rounding_slack, working_slack
from ..certify.rounding import UP, gamma
from ..certify.sums import example_norms, per_example
from ..sharding import foreign_hooks
from ..train.certificate import derived_slope
from ..train.module import LipschitzModule

BATCH = 512
_SEEN = 16  # by this the largest rounding seen in a logit is multiplied
_PROBES = 256  # points near the examples at which it is looked for, since at an example it may vanish by chance


@dataclass(frozen=True)
class Constants:
    """Certified Lipschitz constants in the input, 2-norm to 2-norm, at the weights as they are.

    Args:
        logits: l, of all logits together.
        features: l_h, of what the last dense layer reads; None if the logits are not made by one.
        pairs: [K, K], float64: of f_i - f_k, the better of both rules; None for one logit.
    """

    logits: float
    features: float | None
    pairs: Tensor | None


def certified_constants(module: LipschitzModule) -> Constants:
    """Return the constants by which predictions of `module` are certified; projects the module first.

    Formal guarantees: upper bounds for all inputs if the module clips them to its ball, otherwise for those within
    the ball. They follow from the rules of the module's certificate, evaluated on intervals at certified norms of
    the stored weights, or from its class attribute `lipschitz` if that is smaller, or if it brings no such rules.

    Raises:
        ValueError: no finite constant, outputs that are no logits of one example, or a module that does something
            else than what its rules describe: it takes features, or has hooks.
    """
    check_module(module)
    module.project_()
    norms = module.certified_norms()
    # A verified file may hold any arithmetic in `slope`: the verifier derives the same constant by itself.
    slope = upper(module.slope(exactly(norms)))
    slope = max(slope, derived_slope(module, norms)) if math.isfinite(slope) else slope
    layer, count = module.last_dense, logit_count(module)
    features = None if layer is None else slope
    logits = slope if layer is None else _times(slope, norms[f"{layer}.weight"])
    logits = min(logits, module.lipschitz)
    if not math.isfinite(logits):
        raise ValueError(
            "the model has no finite Lipschitz constant with respect to its input, so no prediction can be "
            "certified"
        )
    return Constants(logits, features, None if count == 1 else _pairs(module, count, logits, features))


def certified_radii(module: LipschitzModule, inputs: Tensor, targets: Tensor) -> Tensor:
    """Return for each example the distance within which its prediction certainly stays right; 0 if it is wrong.

    The module is evaluated in eval mode, and projected first; its dtype is that which it runs in.

    Args:
        module: a classifier: logits [B, K], or one logit [B] or [B, 1], whose sign decides.
        inputs: [B, *input_shape] in the dtype of the module, in the units that the module gets.
        targets: [B]: class numbers; for one logit -1 or 1, or 0 or 1.

    Returns:
        radii [B], float64, in the units of the inputs, 2-norm; 0 for an input that is not finite. A network whose
        input is trusted is certified against inputs within its ball.

    Formal guarantees: for weights as stored and real arithmetic at x', the prediction at every x' nearer than the
    radius is the target, strictly. Logits at x are evaluated in float64. Rounding there, and at x' in the module's
    own dtype, is covered by a measured slack, not by a theorem: see `docs/robustness.md`.

    Raises:
        ValueError: see `certified_constants`; targets that are no classes, or an input outside of a ball that is
            trusted.
    """
    return _Certifier(module, certified_constants(module)).radii(inputs, targets)


def margins(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return by how much each example is right, [B]: f_y less the largest other logit, or sign times the logit."""
    if outputs.dim() == 1 or outputs.shape[1] == 1:
        return outputs.flatten() * signs(targets).to(outputs)
    others = outputs.scatter(1, targets[:, None], -math.inf)
    return outputs.gather(1, targets[:, None]).squeeze(1) - others.amax(dim=1)


def signs(targets: Tensor) -> Tensor:
    """Return -1 or 1 for each target of one logit; raises ValueError for targets that are not two classes."""
    flat = targets.flatten()
    if not bool(((flat == 1) | (flat == -1)).all() or ((flat == 1) | (flat == 0)).all()):
        raise ValueError("labels of one logit must be -1 and 1, or 0 and 1")
    return torch.where(flat == 1, 1, -1)


@contextmanager
def evaluating(module: LipschitzModule) -> Iterator[None]:
    """Put the module in eval mode, and let nothing through its gate, which is for training."""
    training = module.training
    module.eval()
    try:
        with module.gate.bypassed():
            yield
    finally:
        module.train(training)


@torch.no_grad()
def outputs_of(module: LipschitzModule, inputs: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return the logits [B, …], computed in `dtype` with the weights as stored, or in their own."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    if dtype is not None:
        tensors = {name: x.to(dtype) if x.is_floating_point() else x for name, x in tensors.items()}
    with evaluating(module):
        kind = dtype if dtype is not None and inputs.is_floating_point() else inputs.dtype
        parts = [functional_call(module, tensors, (x.to(kind),)) for x in torch.split(inputs, BATCH)]
    return torch.cat(parts)


class _Certifier:
    """Radii of one module."""

    def __init__(self, module: LipschitzModule, constants: Constants) -> None:
        self.module, self.constants = module, constants

    @torch.no_grad()
    def radii(self, inputs: Tensor, targets: Tensor) -> Tensor:
        norms = example_norms(inputs)
        promised = self.module.input_norm * (1 + 4 * torch.finfo(inputs.dtype).eps)
        if self.module.input_trusted and bool((norms > promised).any()):
            raise ValueError(f"the norm of an input exceeds the declared input norm {self.module.input_norm:g}")
        if not len(inputs):
            return norms
        exact = outputs_of(self.module, inputs, torch.float64)
        _check(exact, targets)
        served = outputs_of(self.module, inputs)
        slack = rounding_slack(torch.float64) + working_slack(served)
        reach = self._at_zero() + self.constants.logits * norms.clamp_max(self.module.input_norm)

        def within(seen: float) -> Tensor:
            # Twice: a gap is a difference of two logits, each off by as much.
            lost = 2 * (slack * reach + _SEEN * seen)
            moved = self._distances(exact, targets, lost, 2 * slack * self.constants.logits)
            moved = moved if self.module.input_trusted else beyond_the_clip(moved, norms, self.module.input_norm)
            return torch.where(norms.isfinite(), moved, 0.0)

        seen = float((served - exact).abs().max())
        return within(max(seen, self._seen_near(inputs, within(seen))))

    def _seen_near(self, inputs: Tensor, radii: Tensor) -> float:
        """Return the largest rounding seen in a logit at radii that are not 0, in random directions."""
        standing = (radii > 0).nonzero().flatten()
        if not len(standing):
            return 0.0
        chosen = standing[torch.linspace(0, len(standing) - 1, _PROBES).round().long().to(standing.device)]
        generator = torch.Generator().manual_seed(0)
        directions = torch.randn(_PROBES, *inputs.shape[1:], generator=generator, dtype=torch.float64)
        steps = per_example(radii[chosen].cpu() / example_norms(directions), inputs)
        points = (inputs[chosen].double() + (directions * steps).to(inputs.device)).to(inputs.dtype)
        exact = outputs_of(self.module, points, torch.float64)
        return float((outputs_of(self.module, points) - exact).abs().max())

    def _at_zero(self) -> float:
        example = next(self.module.parameters(), torch.zeros(())).new_zeros(1, *self.module.input_shape)
        return float(outputs_of(self.module, example, torch.float64).norm())

    def _distances(self, outputs: Tensor, targets: Tensor, lost: Tensor, steeper: float) -> Tensor:
        """Return how far clipped inputs may move, given that gaps are less by `lost`, and by `steeper` a unit."""
        if self.constants.pairs is None:
            gaps = outputs.flatten()[:, None] * signs(targets)[:, None]
            slopes = torch.full_like(gaps, self.constants.logits)
        else:
            gaps = outputs.gather(1, targets[:, None]) - outputs
            gaps = gaps.scatter(1, targets[:, None], math.inf)
            slopes = self.constants.pairs[targets]
        gaps = gaps - lost[:, None]
        distances = torch.where(gaps > 0, gaps / (slopes + steeper) / UP, torch.zeros_like(gaps))
        return distances.amin(dim=1)


def beyond_the_clip(moved: Tensor, norms: Tensor, limit: float) -> Tensor:
    """Return how far inputs may move for what the clip makes of them to move by less than ``moved``, [B] each.

    Formal guarantees: P, the projection on the ball of radius X_0 = ``limit``, is 1-Lipschitz, so s = ``moved`` is
    such a radius. Let ‖x‖ = n > X_0. All x' with ‖x' - x‖ < ρ ≤ n - X_0 are longer than X_0 and within an angle θ
    of x, sin θ = ρ/n, so ‖Px' - Px‖ < 2·X_0·sin(θ/2). For s ≤ √2·X_0 that is s at ρ = n·(s/X_0)·√(1 - (s/2X_0)²).
    The larger one counts.
    """
    share = (moved / limit).clamp_max(math.sqrt(2))
    around = norms * share * (1 - share * share / 4).sqrt() / UP
    return torch.maximum(moved, torch.minimum(around, (norms - limit) / UP))


def logit_count(module: LipschitzModule) -> int:
    """Return how many logits an example has; raises ValueError if its outputs are none."""
    if module.input_tokens:
        raise ValueError("the model takes tokens: tokens have no distance, so no radius can be certified")
    example = next(module.parameters(), torch.zeros(())).new_zeros(1, *module.input_shape)
    shape = tuple(outputs_of(module, example).shape[1:])
    if len(shape) > 1 or 0 in shape:
        raise ValueError(
            f"the output of one example has shape {shape}: certification needs a vector of logits, or one logit"
        )
    return math.prod(shape)


def _times(first: float, second: float) -> float:
    return math.nextafter(first * second, math.inf)


def _pairs(module: LipschitzModule, count: int, logits: float, features: float | None) -> Tensor:
    any_two = _times(math.sqrt(2), logits)  # the double is above the root
    device = next((parameter.device for parameter in module.parameters()), None)
    pairs = torch.full((count, count), any_two, dtype=torch.float64, device=device)
    if features is None:
        return pairs
    entries, scale = normalised(module.get_parameter(f"{module.last_dense}.weight"))
    # Sums of squares of differences, each correctly rounded: see `norms.EuclideanNorm`; 2^-500 covers underflow.
    apart = torch.cdist(entries, entries, compute_mode="donot_use_mm_for_euclid_dist")
    apart = (apart * (1 + gamma(entries.shape[1])) + 2.0**-500) * scale * features * UP
    return torch.minimum(pairs, apart)


def check_module(module: LipschitzModule) -> None:
    """Raise ValueError for a module that does something else than what its rules describe."""
    if module.takes_features:
        raise ValueError("the module currently takes features: leave `on_features` to certify examples")
    if any(map(foreign_hooks, module.modules())):
        raise ValueError("the module has hooks, which its Lipschitz constant does not cover: remove them")


def _check(outputs: Tensor, targets: Tensor) -> None:
    """Raise ValueError for targets that are not one class an example."""
    if targets.shape[:1] != outputs.shape[:1] or targets.numel() != len(outputs):
        raise ValueError(f"targets of shape {tuple(targets.shape)}: give one for each of {len(outputs)} inputs")
    if outputs.dim() == 1 or outputs.shape[1] == 1:
        signs(targets)
    elif targets.is_floating_point() or not bool(((targets >= 0) & (targets < outputs.shape[1])).all()):
        raise ValueError(f"targets must be class indices from 0 to {outputs.shape[1] - 1}")

"""What the rules of an op claim, and what an adversary attains with an input, weights and a cotangent."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import prod
from typing import Any

import torch
from torch import Tensor

from lipcompile.core.record import AnyLoss, AnyOp, Constraint, Extent, Shape, Site
from lipcompile.numbers import N, Numbers
from lipcompile.ops.rules import unbounded

SLACK = 1e-6  # what rounding in float64 may add
SHRINK = Fraction(19, 20)  # what a mutant multiplies a constant by
ONE = Fraction(1)
WORTH_BATCHING = 6  # rows of a Jacobian that are faster together than one by one
Claims = Mapping[str, N]
Theta = Mapping[str, Tensor]


@dataclass(frozen=True)
class Bound:
    """What is known of an input: its norm, its largest row norm, its largest entry."""

    norm: Fraction
    row: Fraction
    entry: Fraction

    def extent(self, num: Numbers[N]) -> Extent[N]:
        return Extent(num.of(self.norm), num.of(self.row), num.of(self.entry))


@dataclass(frozen=True)
class Case:
    """One use of an op: inputs within `bounds`, parameters in their constraint sets, ‖cotangent‖ <= cotangent."""

    op: AnyOp
    site: Site[Any]
    bounds: tuple[Bound, ...]
    constraints: Mapping[str, Constraint] = field(default_factory=dict)
    cotangent: Fraction = ONE

    def parameter_shape(self, role: str) -> Shape:
        return self.op.parameter(role).shape(self.site.attributes, self.site.inputs)


@dataclass(frozen=True)
class Point:
    """What the adversary chose."""

    xs: tuple[Tensor, ...]
    theta: Mapping[str, Tensor] = field(default_factory=dict)
    kept: Tensor | None = None


@dataclass(frozen=True)
class LossCase:
    """A loss of logits of this shape, of norm at most `norm`, rows and entries at most `row` (None: the norm)."""

    loss: AnyLoss
    attributes: Any
    shape: Shape
    norm: Fraction
    row: Fraction | None = None

    def extent(self, num: Numbers[N]) -> Extent[N]:
        norm = num.of(self.norm)
        row = norm if self.row is None else num.of(self.row)
        return Extent(norm, row, row)

    def claim(self, num: Numbers[N], loss: AnyLoss | None = None) -> N:
        """The constant that the loss (or a mutant of it) claims."""
        return (loss or self.loss).lipschitz(num, self.attributes, self.shape, self.extent(num))


def case(
    op: AnyOp,
    attributes: Any,
    inputs: Sequence[Shape],
    bounds: Sequence[Bound | Fraction | int],
    constraints: Mapping[str, Constraint] | None = None,
    cotangent: Fraction | int = 1,
) -> Case:
    """Build a case; the op's shape rule may refuse. A bound that is a number is the norm, and bounds the rest."""
    site = Site(attributes, tuple(inputs), op.shape(attributes, tuple(inputs)))
    domains = tuple(b if isinstance(b, Bound) else Bound(Fraction(b), Fraction(b), Fraction(b)) for b in bounds)
    return Case(op, site, domains, constraints or {}, Fraction(cotangent))


def fitted(case: Case, point: Point) -> Case:
    """Return the case whose bounds of rows and entries are those of the point's own inputs."""
    if case.op.takes == "tokens":
        return case
    bounds = []
    for bound, x in zip(case.bounds, point.xs, strict=True):
        row, entry = Fraction(largest_row(x)), Fraction(largest_entry(x))
        bounds.append(Bound(bound.norm, min(row, bound.norm), min(entry, row, bound.norm)))
    return replace(case, bounds=tuple(bounds))


def largest_row(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x, dim=-1).max()) if x.dim() else float(x.abs())


def largest_entry(x: Tensor) -> float:
    return float(x.abs().max())


# Claims


def rules_of(op: AnyOp) -> tuple[str, ...]:
    """Name every rule that gives a number."""
    profile = [name for name in ("row", "entry") if getattr(op, name) is not None]
    sizes = ["lipschitz", "cotangent"] if op.lipschitz is not None and op.takes == "reals" else []
    parameters = [
        f"{kind}:{rule.role}"
        for rule in op.parameters
        for kind in ("kappa", "operator_norm")
        if kind == "kappa" or rule.constraints != ("free",)
    ]
    norm = () if op.norm is unbounded else ("norm",)
    return (*norm, *profile, *sizes, *parameters)


def claims(case: Case, num: Numbers[N]) -> dict[str, N]:
    """Evaluate every rule; rules with a number per input give one claim per input."""
    op, site = case.op, case.site
    x = [bound.extent(num) for bound in case.bounds]
    theta = {role: op.parameter(role).operator_norm(num, site, c) for role, c in case.constraints.items()}
    wanted = rules_of(op)
    found = {"norm": op.norm(num, site, x, theta)} if "norm" in wanted else {}
    found |= {"row": op.row(num, site, x, theta)} if op.row is not None else {}
    found |= {"entry": op.entry(num, site, x, theta)} if op.entry is not None else {}
    if op.lipschitz is not None and "lipschitz" in wanted:
        gains = op.lipschitz(num, site, x, theta)
        handed = op.cotangent(num, site, num.of(case.cotangent), gains)
        found |= {f"lipschitz:{i}": gain for i, gain in enumerate(gains)}
        found |= {f"cotangent:{i}": bound for i, bound in enumerate(handed)}
    found |= {f"operator_norm:{r}": bound for r, bound in theta.items() if f"operator_norm:{r}" in wanted}
    return found | {f"kappa:{role}": op.parameter(role).kappa(num, site, x, theta) for role in theta}


def mutant(op: AnyOp, rule: str, factor: Fraction = SHRINK) -> AnyOp:
    """Return the op with one rule multiplied by `factor`."""
    kind, _, role = rule.partition(":")
    if role:
        changed = tuple(replace(p, **_shrunk(p, kind, factor)) if p.role == role else p for p in op.parameters)
        return replace(op, parameters=changed)
    return replace(op, **_shrunk(op, kind, factor))


def mutant_loss(loss: AnyLoss) -> AnyLoss:
    """Return the loss with its constant multiplied by 19/20."""
    return replace(loss, **_shrunk(loss, "lipschitz"))


def _shrunk(record: Any, rule: str, by: Fraction = SHRINK) -> dict[str, Any]:
    original = getattr(record, rule)

    def smaller(num: Numbers[Any], *arguments: Any) -> Any:
        value = original(num, *arguments)
        factor = num.of(by)
        return [factor * entry for entry in value] if isinstance(value, Sequence) else factor * value

    return {rule: smaller}


# What is attained


def run(case: Case, point: Point, xs: Sequence[Tensor] | None = None, theta: Theta | None = None) -> Tensor:
    from .catalogue import ATTACKS  # whose families are built from this module

    weights = dict(point.theta if theta is None else theta)
    if point.kept is not None:
        weights["kept"] = point.kept
    return ATTACKS[case.op.name].oracle(case.site, point.xs if xs is None else xs, weights)


def spectral(matrix: Tensor) -> float:
    return float(torch.linalg.svdvals(matrix)[0])


def jacobian(function: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    """Return the dense Jacobian, [outputs, inputs]."""
    inputs = at.detach().requires_grad_()
    output = function(inputs).flatten()
    if len(output) >= WORTH_BATCHING:
        with contextlib.suppress(RuntimeError, UserWarning):  # an operation without a batching rule
            eye = torch.eye(len(output), dtype=output.dtype)
            (rows,) = torch.autograd.grad(output, inputs, eye, retain_graph=True, is_grads_batched=True)
            return rows.reshape(len(output), -1)
    singles = [torch.autograd.grad(entry, inputs, retain_graph=True)[0].flatten() for entry in output]
    return torch.stack(singles)


def input_jacobian(case: Case, point: Point, index: int) -> Tensor:
    """Jacobian in input `index`; a gradient clip is the identity that it computes."""
    if case.op.name == "clip_gradient":
        return torch.eye(prod(case.site.output), dtype=torch.float64)

    def partial(x: Tensor) -> Tensor:
        return run(case, point, xs=[*point.xs[:index], x, *point.xs[index + 1 :]])

    return jacobian(partial, point.xs[index])


def parameter_jacobian(case: Case, point: Point, role: str) -> Tensor:
    return jacobian(lambda value: run(case, point, theta={**point.theta, role: value}), point.theta[role])


def attained(case: Case, point: Point) -> dict[str, float]:
    """Measure at `point` what each claim bounds."""
    output, wanted = run(case, point), rules_of(case.op)
    found = {"norm": float(output.norm())} if "norm" in wanted else {}
    found |= {"row": largest_row(output)} if "row" in wanted else {}
    found |= {"entry": largest_entry(output)} if "entry" in wanted else {}
    for index in range(len(point.xs) if "lipschitz" in wanted else 0):
        matrix = input_jacobian(case, point, index)
        found[f"lipschitz:{index}"] = spectral(matrix)
        found[f"cotangent:{index}"] = _cotangent(case, point, index, matrix)
    for role, value in point.theta.items():
        found[f"kappa:{role}"] = spectral(parameter_jacobian(case, point, role))
        if f"operator_norm:{role}" in wanted:
            found[f"operator_norm:{role}"] = size_of(case, role, value)
    return found


def size_of(case: Case, role: str, value: Tensor) -> float:
    """What the constraint set of this parameter, or the rule for it, means by the size of `value`."""
    kind = case.op.parameter(role).constraints[0]
    if kind == "ball":
        return float(value.norm())
    if kind == "box":
        return largest_entry(value)
    if kind == "rows":
        return largest_row(value)
    if value.dim() == 2:
        return spectral(value)
    zeros = Point((torch.zeros(case.site.inputs[0], dtype=torch.float64),), {role: value})
    return spectral(input_jacobian(case, zeros, 0))


def _cotangent(case: Case, point: Point, index: int, matrix: Tensor) -> float:
    """Send back the worst cotangent of the allowed length."""
    worst = torch.linalg.svd(matrix, full_matrices=False)[0][:, 0] * float(case.cotangent)
    xs = [x.detach().requires_grad_() for x in point.xs]
    output = run(case, point, xs=xs)
    (back,) = torch.autograd.grad(output, [xs[index]], worst.reshape(output.shape))
    return float(back.norm())


def loss_gradient(case: LossCase, logits: Tensor, target: Any) -> Tensor:
    """Gradient of the loss in the logits, itself differentiable."""
    from .catalogue import LOSS_ATTACKS

    inputs = logits if logits.requires_grad else logits.detach().requires_grad_()
    value = LOSS_ATTACKS[case.loss.name].oracle(case.attributes, inputs, target)
    gradient: Tensor = torch.autograd.grad(value, inputs, create_graph=True)[0]
    return gradient


def loss_slope(case: LossCase, logits: Tensor, target: Any) -> float:
    return float(loss_gradient(case, logits, target).detach().norm())


def broken(attained: Mapping[str, float], claimed: Mapping[str, float]) -> Iterator[str]:
    """Yield each claim that is exceeded."""
    for name, value in attained.items():
        if not value <= claimed[name] * (1 + SLACK):  # NaN is a fault as well
            yield f"{name}: attained {value!r}, claimed {claimed[name]!r}"


def unit(x: Tensor) -> Tensor:
    length: Tensor = x.norm()
    return x / length

"""What the rules of an op claim, and what an adversary attains with an input, weights and a cotangent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import prod
from typing import Any

import torch
from torch import Tensor

from lipcompile.numbers import N, Numbers
from lipcompile.ops.record import AnyLoss, AnyOp, Constraint, Shape, Site

from . import reference

SLACK = 1e-6  # what rounding in float64 may add
SHRINK = Fraction(19, 20)  # what a mutant multiplies a constant by
ONE = Fraction(1)
Claims = Mapping[str, N]


@dataclass(frozen=True)
class Case:
    """One use of an op: ‖x_i‖ <= norms[i], parameters in their constraint sets, ‖cotangent‖ <= cotangent."""

    op: AnyOp
    site: Site[Any]
    norms: tuple[Fraction, ...]
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
    """A loss on `classes` logits of norm at most `norm`."""

    loss: AnyLoss
    attributes: Any
    classes: int
    norm: Fraction


def case(
    op: AnyOp,
    attributes: Any,
    inputs: Sequence[Shape],
    norms: Sequence[Fraction | int],
    constraints: Mapping[str, Constraint] | None = None,
    cotangent: Fraction | int = 1,
) -> Case:
    """Build a case; the op's shape rule may refuse."""
    site = Site(attributes, tuple(inputs), op.shape(attributes, tuple(inputs)))
    return Case(op, site, tuple(map(Fraction, norms)), constraints or {}, Fraction(cotangent))


# Claims


def rules_of(op: AnyOp) -> tuple[str, ...]:
    """Name every rule that gives a number."""
    roles = [rule.role for rule in op.parameters]
    return (
        "norm",
        "lipschitz",
        "cotangent",
        *(f"{kind}:{r}" for r in roles for kind in ("kappa", "operator_norm")),
    )


def claims(case: Case, num: Numbers[N]) -> dict[str, N]:
    """Evaluate every rule; rules with a number per input give one claim per input."""
    op, site = case.op, case.site
    x = [num.of(norm) for norm in case.norms]
    theta = {role: op.parameter(role).operator_norm(num, site, c) for role, c in case.constraints.items()}
    gains = op.lipschitz(num, site, x, theta)
    handed = op.cotangent(num, site, num.of(case.cotangent), gains)
    found = {"norm": op.norm(num, site, x, theta)}
    found |= {f"lipschitz:{i}": gain for i, gain in enumerate(gains)}
    found |= {f"cotangent:{i}": bound for i, bound in enumerate(handed)}
    found |= {f"operator_norm:{role}": bound for role, bound in theta.items()}
    return found | {f"kappa:{role}": op.parameter(role).kappa(num, site, x) for role in theta}


def mutant(op: AnyOp, rule: str) -> AnyOp:
    """Return the op with one rule multiplied by 19/20."""
    kind, _, role = rule.partition(":")
    if role:
        changed = tuple(replace(p, **_shrunk(p, kind)) if p.role == role else p for p in op.parameters)
        return replace(op, parameters=changed)
    return replace(op, **_shrunk(op, kind))


def mutant_loss(loss: AnyLoss) -> AnyLoss:
    """Return the loss with its constant multiplied by 19/20."""
    return replace(loss, **_shrunk(loss, "lipschitz"))


def _shrunk(record: Any, rule: str) -> dict[str, Any]:
    original = getattr(record, rule)

    def smaller(num: Numbers[Any], *arguments: Any) -> Any:
        value = original(num, *arguments)
        factor = num.of(SHRINK)
        return [factor * entry for entry in value] if isinstance(value, Sequence) else factor * value

    return {rule: smaller}


# What is attained


def run(
    case: Case, point: Point, xs: Sequence[Tensor] | None = None, theta: reference.Theta | None = None
) -> Tensor:
    return reference.apply(
        case.op.name,
        case.site,
        point.xs if xs is None else xs,
        point.theta if theta is None else theta,
        point.kept,
    )


def spectral(matrix: Tensor) -> float:
    return float(torch.linalg.svdvals(matrix)[0])


def jacobian(function: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    """Return the dense Jacobian, [outputs, inputs]."""
    inputs = at.detach().requires_grad_()
    output = function(inputs).flatten()
    rows = [torch.autograd.grad(entry, inputs, retain_graph=True)[0].flatten() for entry in output]
    return torch.stack(rows)


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
    found = {"norm": float(run(case, point).norm())}
    for index in range(len(point.xs)):
        matrix = input_jacobian(case, point, index)
        found[f"lipschitz:{index}"] = spectral(matrix)
        found[f"cotangent:{index}"] = _cotangent(case, point, index, matrix)
    for role, value in point.theta.items():
        found[f"kappa:{role}"] = spectral(parameter_jacobian(case, point, role))
        found[f"operator_norm:{role}"] = float(value.norm()) if role == "bias" else found["lipschitz:0"]
    return found


def _cotangent(case: Case, point: Point, index: int, matrix: Tensor) -> float:
    """Send back the worst cotangent of the allowed length."""
    worst = torch.linalg.svd(matrix, full_matrices=False)[0][:, 0] * float(case.cotangent)
    xs = [x.detach().requires_grad_() for x in point.xs]
    output = run(case, point, xs=xs)
    (back,) = torch.autograd.grad(output, [xs[index]], worst.reshape(output.shape))
    return float(back.norm())


def loss_gradient(case: LossCase, logits: Tensor, target: Any) -> Tensor:
    """Gradient of the loss in the logits, itself differentiable."""
    inputs = logits if logits.requires_grad else logits.detach().requires_grad_()
    value = reference.LOSS[case.loss.name](case.attributes, inputs, target)
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

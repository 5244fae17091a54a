"""Choices of the adversary: points of Θ with certified-by-SVD norms, inputs on the sphere, ascent from both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from math import prod

import torch
from torch import Tensor

from lipcompile.core.record import Constraint
from lipcompile.numbers import Scalar

from .harness import Bound, Case, Point, run, size_of, unit

STEPS = 6  # of each ascent; a convex objective rises with every step

Shape = Sequence[int]


def number(value: Scalar) -> float:
    assert isinstance(value, Fraction)
    return float(value)


def normal(shape: Shape, generator: torch.Generator) -> Tensor:
    return torch.randn(tuple(shape), generator=generator, dtype=torch.float64)


def on_sphere(shape: Shape, radius: Fraction, generator: torch.Generator) -> Tensor:
    """Draw a point of norm `radius`: dense, sparse or with all entries equal."""
    kind = int(torch.randint(3, (), generator=generator))
    if kind == 0:
        return float(radius) * unit(normal(shape, generator))
    x = torch.ones(tuple(shape), dtype=torch.float64)
    if kind == 1:
        chosen = torch.randint(prod(shape), (2,), generator=generator)
        x = torch.zeros(prod(shape), dtype=torch.float64)
        x[chosen] = normal((2,), generator)
        x = x.reshape(tuple(shape))
    return float(radius) * unit(x)


def into(case: Case, role: str, value: Tensor) -> Tensor:
    """Scale `value` onto the border of its constraint set; a kernel that reads padding only is in it anyway."""
    constraint: Constraint = case.constraints[role]
    if constraint.kind == "free":
        return value
    norm = float(value.norm()) if constraint.kind == "frobenius" else size_of(case, role, value)
    return value * (number(constraint.bound) / norm) if norm > 0 else value


def within(x: Tensor, bound: Bound) -> Tensor:
    """Shorten rows, then entries, until the input lies in its domain."""
    rows = torch.linalg.vector_norm(x, dim=-1, keepdim=True) if x.dim() else x.abs()
    shorter = x / torch.clamp(rows / float(bound.row), min=1)
    return torch.clamp(shorter, -float(bound.entry), float(bound.entry))


def random_point(case: Case, generator: torch.Generator) -> Point:
    domains = zip(case.site.inputs, case.bounds, strict=True)
    xs = tuple(_input(case, shape, bound, generator) for shape, bound in domains)
    theta = {
        role: into(case, role, on_sphere(case.parameter_shape(role), Fraction(1), generator))
        for role in case.constraints
    }
    return Point(xs, theta, _kept(case, generator))


def _kept(case: Case, generator: torch.Generator) -> Tensor | None:
    """Draw what a dropout leaves: entries of the output, or of the weights of attention."""
    masked = {"dropout": case.site.output}
    if case.op.name == "grouped_dropout":
        apart = case.site.attributes.axes
        masked[case.op.name] = (*case.site.output[:apart], *(1 for _ in case.site.output[apart:]))
    if case.op.name == "dot_product_attention":
        masked[case.op.name] = (*case.site.output[:-1], case.site.inputs[1][-2])
    if case.op.name == "attention":
        masked["attention"] = (case.site.attributes.heads, case.site.output[0], case.site.inputs[-1][0])
    if case.op.name not in masked:
        return None
    return torch.randint(2, masked[case.op.name], generator=generator).double()


def _input(case: Case, shape: Shape, bound: Bound, generator: torch.Generator) -> Tensor:
    if case.op.takes == "tokens":
        return torch.randint(case.site.attributes.entries, tuple(shape), generator=generator)
    return within(on_sphere(shape, bound.norm, generator), bound)


def rise(objective: Callable[[Tensor], Tensor], start: Tensor) -> Iterator[Tensor]:
    """Go to where the objective's linear part is largest on the sphere, again and again (Frank-Wolfe)."""
    x, radius = start, start.norm()
    for _ in range(STEPS):
        inputs = x.detach().requires_grad_()
        value = objective(inputs)
        if not value.requires_grad:
            return
        (slope,) = torch.autograd.grad(value, inputs, allow_unused=True, materialize_grads=True)
        if not 0 < float(slope.norm()) < torch.inf:
            return
        x = radius * unit(slope)
        yield x


def ascents(case: Case, start: Point, generator: torch.Generator) -> Iterator[Point]:
    """Yield where ascents of the output norm and of each weight's gradient end, over the first input."""
    if case.op.takes == "tokens":
        return

    def with_first(x: Tensor) -> tuple[Tensor, ...]:
        return (x, *start.xs[1:])

    objectives = [lambda x: run(case, start, xs=with_first(x)).norm()]
    cotangent = unit(normal(case.site.output, generator))
    objectives += [_gradient_norm(case, start, role, cotangent) for role in start.theta if role != "bias"]
    for objective in objectives:
        for x in list(rise(objective, start.xs[0]))[-1:]:
            yield Point(with_first(within(x, case.bounds[0])), start.theta, start.kept)


def _gradient_norm(case: Case, start: Point, role: str, cotangent: Tensor) -> Callable[[Tensor], Tensor]:
    def norm(x: Tensor) -> Tensor:
        value = start.theta[role].detach().requires_grad_()
        theta: Mapping[str, Tensor] = {**start.theta, role: value}
        output = run(case, start, xs=[x, *start.xs[1:]], theta=theta)
        (gradient,) = torch.autograd.grad(output, value, cotangent, create_graph=True)
        length: Tensor = gradient.norm()
        return length

    return norm

"""The adversary of a whole graph: it owns the input, the label and every parameter in Θ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lipcompile.core.graph import Graph, LossUse

from . import harness, points
from .catalogue import LOSS_ATTACKS
from .graphs import interpret
from .harness import Case, LossCase, unit


@dataclass(frozen=True)
class Choice:
    """An input on the border of the domain, parameters on the border of Θ, a label."""

    x: Tensor
    theta: Mapping[str, Tensor]
    label: Any


def loss_of(graph: Graph) -> LossUse:
    assert graph.loss is not None
    return graph.loss


def gradients(
    graph: Graph, choice: Choice, *, differentiable: bool = False
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return every value, and the gradient of the loss in every value and every trainable parameter."""
    theta = {name: value.detach().requires_grad_() for name, value in choice.theta.items()}
    if differentiable:
        theta = dict(choice.theta)
    values = interpret(graph, choice.x, theta)
    use = loss_of(graph)
    loss = LOSS_ATTACKS[use.loss.name].oracle(use.attributes, values[graph.output], choice.label)
    wanted = values | {name: theta[name] for name, p in graph.parameters.items() if p.trainable}
    found = torch.autograd.grad(
        loss, list(wanted.values()), create_graph=differentiable, allow_unused=True, materialize_grads=True
    )
    return values, dict(zip(wanted, found, strict=True))


@dataclass(frozen=True)
class Adversary:
    """Searches one graph."""

    graph: Graph
    generator: torch.Generator

    def path(self, steps: int) -> Iterator[Choice]:
        """Yield the points of an ascent of the squared gradient norm over all trainable parameters."""
        choice = self._start()
        for _ in range(steps):
            yield choice
            choice = self._step(choice)

    def _start(self) -> Choice:
        source, use = self.graph.input, loss_of(self.graph)
        assert source.norm is not None
        x = points.number(source.norm) * unit(points.normal(source.shape, self.generator))
        drawn = {name: points.normal(p.shape, self.generator) for name, p in self.graph.parameters.items()}
        theta = {name: self._inside(name, value) for name, value in drawn.items()}
        case = LossCase(use.loss, use.attributes, self.graph.shape(self.graph.output), harness.ONE)
        label = LOSS_ATTACKS[use.loss.name].target(case, self.generator)
        return Choice(x.requires_grad_(), theta, label)

    def _step(self, choice: Choice) -> Choice:
        theta = {name: value.requires_grad_() for name, value in choice.theta.items()}
        _, found = gradients(self.graph, choice, differentiable=True)
        objective = torch.stack([(found[name] ** 2).sum() for name in theta if name in found] or [torch.zeros(())])
        wanted = [choice.x, *theta.values()]
        if not objective.requires_grad:
            return choice
        found_slopes = torch.autograd.grad(objective.sum(), wanted, allow_unused=True, materialize_grads=True)
        slopes = [slope.nan_to_num(0, 0, 0) for slope in found_slopes]  # second derivatives of norms at 0
        x = choice.x.detach()
        if float(slopes[0].norm()) > 0:
            x = x.norm() * unit(slopes[0])
        pairs = zip(theta.items(), slopes[1:], strict=True)
        raised = {name: self._raise(name, value.detach(), slope) for (name, value), slope in pairs}
        return Choice(x.requires_grad_(), raised, choice.label)

    def _raise(self, parameter: str, value: Tensor, slope: Tensor) -> Tensor:
        """Go most of the way to the point of the constraint set where `slope` is largest."""
        if not float(slope.norm()) > 0:
            return value
        if slope.dim() == 2 and self.graph.parameters[parameter].constraint.kind != "frobenius":
            left, _, right = torch.linalg.svd(slope, full_matrices=False)
            slope = left @ right
        return self._inside(parameter, unit(value) + 2 * unit(slope))

    def _inside(self, parameter: str, value: Tensor) -> Tensor:
        for node in self.graph.nodes:
            for role, name in node.parameters.items():
                if name == parameter:
                    constraints = {role: self.graph.parameters[name].constraint}
                    return points.into(Case(node.op, node.site, (), constraints), role, value).detach()
        raise KeyError(parameter)

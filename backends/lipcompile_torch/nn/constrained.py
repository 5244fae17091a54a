"""The base of layers whose weights live in a constraint set, and know it; and whether weights lie in their sets.

A :class:`ConstrainedLayer` names, for each of its own parameters, the constraint set and the linear map that
the parameter stands for.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..certify.constraints import Ball, Constraint, Free, Frobenius, Spectral
from ..certify.operators import Convolution, Operator, Translation
from ..certify.projection import Amortised
from ..sharding import replace_, whole

BiasBound = float | Constraint | None
"""‖bias‖ ≤ a float, or a constraint of its own, or no bias."""


class Gate(Protocol):
    """The parts of its module that a layer needs."""

    running: int
    aside: bool


class ConstrainedLayer(nn.Module):
    """Base of layers with constrained parameters.

    Attributes:
        gate: set by the engine; while its ``running`` is 0, calls that build gradients are refused.
    """

    _is_apart = False
    takes_matrix = False
    """Whether calls are given the matrix of another layer."""

    def __init__(self) -> None:
        super().__init__()
        self._constraints: dict[str, tuple[Constraint, Operator]] = {}
        self._amortised: dict[str, Amortised] = {}
        self.gate: Gate | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run ``forward``.

        Raises:
            RuntimeError: called outside the module's own forward pass, by something that differentiates.
        """
        if self.gate is not None and not self.gate.running and torch.is_grad_enabled():
            raise RuntimeError(
                "a layer was called outside its module's forward pass, so its gradient is not bounded: "
                "call the module as a whole, or use torch.no_grad()"
            )
        if self._is_apart and torch.compiler.is_compiling():
            return _run_apart(self, *args, **kwargs)
        return super().__call__(*args, **kwargs)

    @property
    def is_apart(self) -> bool:
        """Whether this layer runs as it is within a module that is compiled."""
        return self._is_apart

    def keep_apart(self) -> None:
        """Let this layer run as it is within a module that is compiled: what it notes of uses cannot be traced."""
        global _run_apart
        self._is_apart = True
        if _run_apart is _run:  # torch's compiler is slow to import
            _run_apart = torch.compiler.disable(_run)  # type: ignore[no-untyped-call]

    @property
    def constraints(self) -> Mapping[str, tuple[Constraint, Operator]]:
        """Constraint and linear map of each parameter, by its name in this layer."""
        return MappingProxyType(self._constraints)

    def _constrain(self, name: str, value: Tensor, constraint: Constraint, operator: Operator) -> None:
        """Add a parameter that starts at ``value``, projected."""
        start = constraint.project(value, operator)
        self.register_parameter(name, nn.Parameter(start, requires_grad=constraint.trainable))
        self._constraints[name] = (constraint, operator)
        self._amortised[name] = Amortised(constraint, operator)

    def _constrain_bias(self, shape: tuple[int, ...], bound: BiasBound) -> None:
        if bound is None:
            self.register_parameter("bias", None)
            return
        constraint = bound if isinstance(bound, Constraint) else Ball(bound)
        self._constrain("bias", torch.zeros(shape), constraint, Translation())

    def _constrain_kernel(self, shape: tuple[int, ...], operator: Convolution, given: Constraint | None) -> None:
        """Add a kernel that starts orthogonal as a matrix, scaled to the bound."""
        constraint, start = given or Spectral(), torch.empty(shape)
        start = _orthogonal(operator.matrix(start)).reshape(shape)
        self._constrain("weight", constraint.fill(start, operator), constraint, operator)

    def amortised(self) -> list[tuple[nn.Parameter, Amortised]]:
        """Return every parameter with its constraint and what is known of where it stands."""
        return [(self.get_parameter(name), known) for name, known in self._amortised.items()]

    @torch.no_grad()
    def project_(self) -> None:
        """Put every parameter back into its constraint set on a full certificate; those inside keep their bits.

        Raises:
            ValueError: a parameter is not finite.
        """
        for name, (constraint, operator) in self._constraints.items():
            replace_(self.get_parameter(name), partial(constraint.project, operator=operator))

    @torch.no_grad()
    def fill_(self) -> None:
        """Scale every trained weight whose norm is constrained, up or down, to the bound of its constraint.

        Biases stay as they are: their bounds say how far they may go, not how long they should be.

        Raises:
            ValueError: a parameter is not finite.
        """
        for name, (constraint, operator) in self._constraints.items():
            if isinstance(constraint, Spectral | Frobenius) and not isinstance(constraint, Ball):
                parameter = self.get_parameter(name)
                if parameter.requires_grad:
                    replace_(parameter, partial(constraint.fill, operator=operator))

    def certified_norms(self) -> dict[str, float]:
        """Return a certified bound of the current norm of each parameter: operator norm of a weight, length
        of a bias.
        """
        return {
            name: operator.norm(whole(self.get_parameter(name))).bound
            for name, (_, operator) in self._constraints.items()
        }


def _run(layer: ConstrainedLayer, *args: Any, **kwargs: Any) -> Any:
    return nn.Module.__call__(layer, *args, **kwargs)


_run_apart = _run


def constraints_of(module: nn.Module) -> dict[str, tuple[Constraint, Operator]]:
    """Return constraint and linear map of each parameter that layers constrain, by its name in the module."""
    return {
        f"{prefix}.{role}" if prefix else role: constrained
        for prefix, layer in module.named_modules()
        if isinstance(layer, ConstrainedLayer)
        for role, constrained in layer.constraints.items()
    }


def _orthogonal(blocks: Tensor) -> Tensor:
    """Return a random matrix with orthonormal rows or columns, one for each block of [groups, rows, columns]."""
    return torch.stack([nn.init.orthogonal_(torch.empty_like(block)) for block in blocks])


def check_broadcast(what: str, value: Tensor, x: Tensor) -> None:
    """Check that a parameter broadcasts from the trailing axes of the examples in ``x``.

    Raises:
        ValueError: it would change their shape, or meet the batch axis.
    """
    shape = tuple(value.shape)
    tail = tuple(x.shape[1:])[-len(shape) :] if shape else ()
    if len(tail) != len(shape) or any(own not in (1, size) for own, size in zip(shape, tail, strict=True)):
        raise ValueError(f"a {what} of shape {shape} does not fit examples of shape {tuple(x.shape[1:])}")


# Weights that a drift kept within their set may be certified at a little more than its radius, and half precision
# rounds them by more: what is above it by no more than this share was in the set when it was saved.
_LEAST_SHARE = 1e-3


class OutsideWarning(UserWarning):
    """Loaded weights lay outside of their constraint sets, and were projected into them."""


@torch.no_grad()
def outside(module: nn.Module, weights: Mapping[str, Tensor]) -> list[str]:
    """Return which weights lie outside of their sets, by name, with their certified norms: none, as a rule.

    Projection would put weights that come from elsewhere there silently, and the module would compute something
    else than what was saved.

    What is not among the weights is passed over. Of sharded weights all processes call this.

    Raises:
        ValueError: an entry is not finite.
    """
    found = []
    for name, (constraint, operator) in constraints_of(module).items():
        if name not in weights or isinstance(constraint, Free):
            continue
        weight = whole(weights[name].detach())
        share = max(_LEAST_SHARE, 8 * torch.finfo(weight.dtype).eps)
        norm = constraint.norm(weight, operator)
        if not norm.at_most(constraint.bound * (1 + share)):
            found.append(f"{name} (norm up to {norm.bound:.4g}, allowed {constraint.bound:.4g})")
    return found

"""The loop: a node that stands for several copies of one graph in a row, one after the other (decision 23).

Its rules are those of the body's affine step to the power of the count, and hold in every number domain.
Proof: docs/theory.md, "Repetition".
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

from lipcompile.analysis.bounds import derive
from lipcompile.core.graph import Graph, Node
from lipcompile.core.record import (
    AnyOp,
    Constraint,
    Inputs,
    ParameterRule,
    Site,
    Theta,
    scaled_by_lipschitz,
)
from lipcompile.numbers import Count, N, Numbers, Step
from lipcompile.numbers.certified import Certified
from lipcompile.numbers.polynomial import Polynomial, Polynomials, without_root
from lipcompile.numbers.step import value
from lipcompile.ops.rules import plain, same_shape

# The sides of a minimum of different degrees to tell apart: see `Polynomials.saturated`.
GROWING, SATURATED = False, True
# Intervals of an exact 1 may miss it by their rounding.
ROUNDING = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """The attributes of a loop.

    body: one copy; its output has the shape of its input. copies: the nodes that the loop stands for, copy by
    copy, of the graph in which it was found. shared: parameters of the body that all copies have in common.
    """

    name: str
    body: Graph
    count: Count
    saturated: bool
    copies: tuple[tuple[str, ...], ...] = ()
    shared: frozenset[str] = frozenset()


class NotAffineError(ValueError):
    """A body has no affine step; says why."""


def loops(graph: Graph) -> list[Node]:
    """Return the loops of a graph, those in bodies left out."""
    return [node for node in graph.nodes if is_loop(node)]


def is_loop(node: Node) -> TypeGuard[Node]:
    """Whether a node is a loop."""
    return isinstance(node.attributes, Loop)


def step_of(loop: Loop, num: Numbers[N]) -> Step[N]:
    """Return what one copy does, with coefficients in the domain `num`; raises NotAffineError."""
    return _once(num, ("step", loop.name, id(loop.body), loop.saturated), lambda: _step(loop, num))


def power_of(loop: Loop, num: Numbers[N]) -> Step[N]:
    """Return what all copies do."""
    key = ("power", loop.name, id(loop.body), loop.saturated, loop.count)
    return _once(num, key, lambda: num.power(step_of(loop, num), loop.count, loop.name))


def _once(num: Numbers[N], key: Hashable, find: Callable[[], Step[N]]) -> Step[N]:
    """Find a step of the domain `num` when it is first asked for."""
    if key not in num.memo:
        num.memo[key] = find()
    known: Any = num.memo[key]
    return known  # type: ignore[no-any-return]


def _step(loop: Loop, num: Numbers[N]) -> Step[N]:
    body = loop.body
    for node in body.nodes:
        if node.op.lipschitz is None:
            raise NotAffineError(f"`{node.name}` is not Lipschitz")
        if node.op.cotangent is not scaled_by_lipschitz:
            raise NotAffineError(f"`{node.name}` bounds the cotangent of each copy separately")
    domain = Polynomials(num, loop.name, loop.saturated)
    bounds = derive(body, domain)
    norm = _polynomial(without_root(bounds.norm[body.output]), f"the norm after `{body.output}`")
    if set(norm) - {0, 1}:
        raise NotAffineError(f"the norm after `{body.output}` grows faster than that of the input")
    lipschitz = bounds.cotangent[body.input.name]
    if lipschitz.constant is None:
        raise NotAffineError("the Lipschitz constant of a copy depends on the norm of its input")
    own = {name: k.squared() for name, k in bounds.gradient.items() if name not in loop.shared}
    shared = {name: k for name, k in bounds.gradient.items() if name in loop.shared}
    numbers = [without_root(bounds.norm[body.output]), lipschitz, *bounds.gradient.values()]
    return Step(
        norm=norm,
        lipschitz=lipschitz.constant,
        squares={name: _polynomial(k, f"the gradient bound of {name}") for name, k in own.items()},
        shared={name: _polynomial(k, f"the gradient bound of {name}") for name, k in shared.items()},
        exact=all(number.exact for number in numbers),
    )


def _polynomial(number: Polynomial[N], what: str) -> Mapping[int, N]:
    if number.root or number.coefficients is None:
        raise NotAffineError(f"{what} is not a polynomial in the norm of the input")
    return number.coefficients


def loop_op(loop: Loop) -> AnyOp:
    """Return the record of a loop. Of each parameter its rules bound the gradients in all copies together."""
    return plain(
        "loop",
        Loop,
        same_shape,
        "theory.md#repetition",
        norm=_norm,
        lipschitz=_lipschitz,
        parameters=tuple(_parameter(loop.body, name) for name in loop.body.parameters),
        dsl=(),
        draws=lambda loop: any(node.draws for node in loop.body.nodes),
    )


def _norm(num: Numbers[N], site: Site[Loop], x: Inputs[N], theta: Theta[N]) -> N:
    return value(num, power_of(site.attributes, num).norm, x[0].norm)


def _lipschitz(num: Numbers[N], site: Site[Loop], x: Inputs[N], theta: Theta[N]) -> Sequence[N]:
    return [power_of(site.attributes, num).lipschitz]


def _parameter(body: Graph, name: str) -> ParameterRule[Loop]:
    uses = ((node.op, role, read) for node in body.nodes for role, read in node.parameters.items())
    rule = next(op.parameter(role) for op, role, read in uses if read == name)

    def kappa(num: Numbers[N], site: Site[Loop], x: Inputs[N], theta: Theta[N]) -> N:
        power = power_of(site.attributes, num)
        if name in power.shared:
            return value(num, power.shared[name], x[0].norm)
        return num.sqrt(value(num, power.squares[name], x[0].norm))

    return ParameterRule(
        role=name,
        argument=None,
        shape=lambda attributes, inputs: body.parameters[name].shape,
        constraints=rule.constraints,
        operator_norm=_unread,
        kappa=kappa,
        optional=False,
    )


def _unread(num: Numbers[N], site: Site[Loop], constraint: Constraint) -> N:
    """Nothing reads it: the rules of the body's nodes read the constraints of the body's parameters."""
    return num.of(0)


def with_loop(graph: Graph, loop: Loop) -> Graph:
    """Return the graph with `loop` instead of the loop of its name."""

    def changed(node: Node) -> Node:
        if not is_loop(node) or node.attributes.name != loop.name:
            return node
        return replace(node, op=loop_op(loop), attributes=loop, site=replace(node.site, attributes=loop))

    return replace(graph, nodes=tuple(changed(node) for node in graph.nodes))


def with_count(graph: Graph, loop: Loop, count: int) -> Graph:
    """Return the graph with another number of copies in `loop`."""
    return with_loop(graph, replace(loop, count=replace(loop.count, value=count)))


def frozen_inside(graph: Graph) -> Graph:
    """Return the graph with what is frozen in it frozen in the bodies of its loops as well."""
    for node in loops(graph):
        loop, body = node.attributes, node.attributes.body
        trained = {role for role, name in node.parameters.items() if graph.parameters[name].trainable}
        parameters = {
            role: replace(p, trainable=p.trainable and role in trained) for role, p in body.parameters.items()
        }
        graph = with_loop(graph, replace(loop, body=frozen_inside(replace(body, parameters=parameters))))
    return graph


def affine(loop: Loop) -> Loop:
    """Return the loop with the side of minima that gives an affine step; raises NotAffineError if neither does.

    If both do, it is the growing side for a norm that never grows, else the saturated one.
    """
    growing, saturated = (replace(loop, saturated=side) for side in (GROWING, SATURATED))
    num = Certified()
    if not is_affine(growing):
        step_of(saturated, num)
        return saturated
    step = step_of(growing, num)
    calm = step.linear and step.norm.get(1, num.of(0)).upper <= 1 + ROUNDING
    return growing if calm or not is_affine(saturated) else saturated


def is_affine(loop: Loop) -> bool:
    """Whether the body has an affine step."""
    try:
        step_of(loop, Certified())
    except NotAffineError:
        return False
    return True

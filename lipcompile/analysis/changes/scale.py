"""Changes of scale: the same network with smaller numbers in it. Gradients shrink with their bound."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

from lipcompile.analysis.changes.edit import Edit, Family, Patch, of_parameters
from lipcompile.analysis.changes.subject import Subject, halved, in_lip, shown
from lipcompile.core.graph import Node
from lipcompile.core.record import Constraint
from lipcompile.numbers import Scalar, combine
from lipcompile.ops.merge.rules import SUM, Sum

ONE = Fraction(1)


def families(subject: Subject) -> Iterator[Family]:
    """Yield the changes of scale, those that go together in one family."""
    yield Family("", list(_input(subject)))
    yield Family("every constraint of a weight halved", list(_halved(subject, "constraint", in_lip)))
    yield Family("every bound of a layer halved", list(_halved(subject, "bound", _size)))
    yield Family("every bias bound halved", list(_halved(subject, "bias", _size)))
    yield Family("sums become weighted means", list(_means(subject)))
    yield Family("every residual share halved", list(_shares(subject)))
    for edit in _loss(subject):
        yield Family("", [edit])


def _input(subject: Subject) -> Iterator[Edit]:
    source = subject.graph.input
    if source.norm is not None:
        norm = halved(source.norm)
        description = f"norm <= {shown(norm)} instead of {shown(source.norm)}"
        yield Edit("scale", source.name, description, Patch(input=replace(source, norm=norm)))


def _halved(subject: Subject, argument: str, said: Callable[[Constraint], str]) -> Iterator[Edit]:
    """Layers with half of what this argument says: the constraint of a weight; the bound of a bias, or of what is
    a layer by itself, as biases, scales, slopes and tables are.
    """
    for node, declared in subject.trained(argument):
        changed = [replace(parameter, constraint=_half(parameter.constraint)) for parameter, _ in declared]
        old, new = declared[0][0].constraint, changed[0].constraint
        yield of_parameters("scale", node, changed, f"{argument}={said(new)} instead of {said(old)}")


def _size(constraint: Constraint) -> str:
    return shown(constraint.bound)


def _half(constraint: Constraint) -> Constraint:
    kind = "spectral" if constraint.kind == "orthogonal" else constraint.kind
    return Constraint(kind, halved(constraint.bound))


# Sums


def _means(subject: Subject) -> Iterator[Edit]:
    """Sums of positive weights above 1 in all: divided by that."""
    for node, weights in _sums(subject):
        whole = sum(weights)
        if whole > 1:
            parts = tuple(weight / whole for weight in weights)
            plain = all(weight == 1 for weight in weights)
            text = "mean instead of add" if plain else f"weights {_listed(parts)} instead of {_listed(weights)}"
            yield _weighted(node, parts, text)


def _shares(subject: Subject) -> Iterator[Edit]:
    """Residual means: half the share of the body."""
    for node, weights in _sums(subject):
        skip = subject.skips.get(node.name)
        if skip is not None and sum(weights) == 1:
            part = halved(weights[1 - skip])
            rest = combine("-", ONE, part)
            parts = (part, rest) if skip else (rest, part)
            text = f"residual(convex({shown(part)})) instead of a share of {shown(weights[1 - skip])}"
            yield _weighted(node, parts, text)


def _sums(subject: Subject) -> Iterator[tuple[Node, tuple[Fraction, ...]]]:
    """Yield sums of two or more operands with known positive weights."""
    for node in subject.nodes:
        if node.op is SUM and len(node.inputs) > 1:
            weights = tuple(weight for weight in node.attributes.weights if isinstance(weight, Fraction))
            if len(weights) == len(node.inputs) and all(weight > 0 for weight in weights):
                yield node, weights


def _weighted(node: Node, weights: tuple[Scalar, ...], text: str) -> Edit:
    return Edit("scale", node.name, text, Patch(nodes={node.name: (SUM, Sum(weights))}))


def _listed(weights: tuple[Fraction, ...]) -> str:
    return ", ".join(map(shown, weights))


# The loss


def _loss(subject: Subject) -> Iterator[Edit]:
    use = subject.graph.loss
    if use is None:
        return
    for name, old, new in _arguments(use.attributes):
        text = f"{name}={_argument(new)} instead of {_argument(old)}"
        changed = replace(use, attributes=replace(use.attributes, **{name: new}))
        yield Edit("scale", use.loss.name, text, Patch(loss=changed))


def _arguments(attributes: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield arguments of a loss by name, as they are and as they might be; only some make it smaller."""
    temperature, normalise = (getattr(attributes, name, None) for name in ("temperature", "normalise"))
    if temperature is not None:
        yield "temperature", temperature, halved(temperature)
        yield "temperature", temperature, combine("*", temperature, Fraction(2))
    if normalise is not None:
        yield "normalise", normalise, not normalise
    if getattr(attributes, "reduce", None) == "sum":
        yield "reduce", "sum", "mean"


def _argument(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else shown(value)

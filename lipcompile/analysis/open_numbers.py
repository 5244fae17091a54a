"""The numbers that a model leaves open: declared parameters without a value."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from fractions import Fraction
from typing import Any

from lipcompile.analysis.depth.loops import Loop
from lipcompile.analysis.requirements import proves
from lipcompile.core.derivation import Analysis, Derivation
from lipcompile.core.graph import Graph
from lipcompile.diagnostics import InputError, input_error
from lipcompile.numbers import Arithmetic, Scalar, Symbol, symbols_of

_NO_NORM = "use --input-norm, or --bounds auto, which clips gradients where no theorem bounds them"


def open_numbers(graph: Graph) -> list[Symbol]:
    """Return the open numbers of a model, in the order of their use."""
    found: dict[Symbol, None] = {}
    for scalar in _scalars(graph):
        found.update(dict.fromkeys(symbols_of(scalar)))
    return list(found)


def complete(derivation: Derivation, what: str) -> Analysis:
    """Return the analysis of a model that leaves no number open, as `what` needs it: "a module".

    Bounds may be finite all the same, where an open number stands in a minimum.

    Raises InputError if the model is rejected, has no loss (LIP213), an open number or no finite bound (LIP014),
    or neither a declared input norm nor a parameter that is trained (LIP307).
    """
    analysis = derivation.analysis
    if analysis is None:
        raise InputError(derivation.diagnostics, derivation.source.text)
    graph = analysis.graph
    if graph.loss is None:
        raise input_error("LIP213", f"{what} needs a loss", "declare one: --loss cross_entropy")
    symbols = [symbol.name for symbol in open_numbers(graph)]
    if symbols:
        help_line = (
            f"give {'it' if len(symbols) == 1 else 'them'}: {' '.join(f'--set {name}=…' for name in symbols)}"
        )
        raise input_error("LIP014", f"{what} needs numbers, but {', '.join(symbols)} has no value", help_line)
    if not graph.input.tokens and not isinstance(graph.input.norm, Fraction) and proves(graph):
        if not any(parameter.trainable for parameter in graph.parameters.values()):
            message = f"{what} has nothing to train: every parameter is frozen"
            help_line = "freeze less (requires_grad, --freeze, frozen { }); with --input-norm it can be certified"
            raise input_error("LIP307", message, help_line)
        raise input_error("LIP014", f"{what} needs numbers, but X_0 has no value", _NO_NORM)
    crossed = not graph.clips and all(node.op.lipschitz is not None for node in graph.nodes)
    if analysis.total.value is None or (crossed and analysis.lipschitz.value is None):
        message = f"{what} needs numbers, but the bounds of this model are too large for a double"
        raise input_error("LIP014", message, "tighten its constraints, or make it shallower")
    return analysis


def _scalars(graph: Graph) -> Iterator[Scalar]:
    yield from _in(graph.input.norm)
    for node in graph.nodes:
        if isinstance(node.attributes, Loop):
            yield node.attributes.count.scalar
            yield from _scalars(node.attributes.body)
        else:
            yield from _in(node.attributes)
    for parameter in graph.parameters.values():
        yield parameter.constraint.bound
    if graph.loss is not None:
        yield from _in(graph.loss.attributes)


def _in(value: Any) -> Iterator[Scalar]:
    if isinstance(value, Symbol | Arithmetic):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _in(item)
    elif is_dataclass(value):
        for field in fields(value):
            yield from _in(getattr(value, field.name))

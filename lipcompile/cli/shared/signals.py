"""Noise against signal of a model, and of its changes: gradients of random examples at the initial weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from lipcompile.analysis.requirements import requirements
from lipcompile.analysis.sensitivity import numbers_alone
from lipcompile.analysis.usefulness import Aim
from lipcompile.cli.shared.inputs import admissible, arrays_of
from lipcompile.core.backend import Backend, find, instantiate
from lipcompile.core.derivation import Derivation, Source
from lipcompile.core.graph import Graph
from lipcompile.diagnostics import InputError
from lipcompile.reports.console import printable, styled, table

# Changes of models with more weights or activations are not measured: each of some twenty would take seconds.
_LARGEST = 2_000_000


def signals(
    derivation: Derivation,
    backend: Backend,
    noise_multiplier: float = 1.0,
    batch: int = 512,
    public: Path | None = None,
) -> Any:
    """Measure gradients and the noise on the mean of a batch; None if the model leaves a number open.

    Args:
        public: file of examples; None: random ones.

    Raises InputError (LIP402, LIP403) for a file that cannot be read, or whose examples do not fit.
    """
    prepared = _prepared(derivation, backend)
    if prepared is None:
        return None
    assert derivation.analysis is not None
    examples = None if public is None else arrays_of(public, derivation.analysis.graph, backend)
    return backend.signal.measure(*prepared, noise_multiplier, batch, public=examples)


def _prepared(derivation: Derivation, backend: Backend, memory: Any = None) -> tuple[Any, Any] | None:
    """Return the module of a derivation at its initial weights, and what targets it may be measured with.

    None if the model leaves a number open, or its loss takes targets that nobody knows. Weights go into the module
    as they are, not by way of its text: to write and read them takes longer than the rest.
    """
    assert derivation.analysis is not None
    graph = derivation.analysis.graph
    initial = {name: one.initial.copy() for name, one in graph.parameters.items() if one.initial is not None}
    drawn = {name: replace(one, initial=None) for name, one in graph.parameters.items()}
    bare = replace(derivation.analysis, graph=replace(graph, parameters=drawn))
    try:
        text = backend.emit(replace(derivation, analysis=bare))
        choices = admissible(backend.audit, graph)  # of a loss, which an emitted model has
    except InputError:
        return None
    with backend.signal.repeatable(memory):  # a verdict must not change from call to call
        module = instantiate(Path("measured.py"), text, derivation.source.network)
        if initial:
            module.forget_certificates()  # as if these weights were its first
            module.load_initial_weights(initial, drawn.keys() - initial.keys())
    return module, choices


def aim(target: float | None = None) -> Aim:
    """Return what `fix` aims at: a total, else what `verdicts` lets pass, where torch is installed."""
    if target is not None or not measurable():
        return Aim(target)

    def excess(graph: Graph) -> float | None:
        found = signals(_derivation(graph), find())
        return None if found is None else float(found.total.excess)

    return Aim(measure=excess)


def gains(graph: Graph, network: Any = None) -> Callable[[Graph], float | None] | None:
    """Return what measures signal over noise of changes of a graph; None without torch, or if it is too large.

    network: see `core.derivation.Source`.
    """
    size, entries = graph.size(), sum(prod(node.shape) for node in graph.nodes)
    if not measurable() or not isinstance(size, Fraction) or size > _LARGEST or entries > _LARGEST:
        return None
    backend = find()
    memory = backend.signal.Memory()  # most changes leave most weights as they are

    def ratio(changed: Graph) -> float | None:
        prepared = _prepared(_derivation(changed, network), backend, memory)
        return None if prepared is None else backend.signal.mean_over_noise(*prepared)

    return ratio


def measurable() -> bool:
    """Whether the framework that measures is installed."""
    return find_spec("torch") is not None


def _derivation(graph: Graph, network: Any = None) -> Derivation:
    """Return that of a changed model, without its formulas, which take longer than to measure it."""
    source = Source(graph.name, graph.name, "lip", "", network=network)
    return Derivation(source, requirements(graph, ()), (), numbers_alone(graph))


def shown(found: Any, public: Path | None) -> Iterator[RenderableType]:
    """Yield a table of noise against signal."""
    columns = ("bound", "typical gradient", "bound / typical", "mean gradient", "noise", "noise / mean")
    rows = table("parameter", *columns, right=columns)
    for name, one in (*found.parameters.items(), ("whole gradient", found.total)):
        numbers = (one.bound, one.typical, one.excess, one.mean, one.noise, one.relative)
        rows.add_row(printable(name), *(f"{number:.4g}" for number in numbers))
    yield rows
    yield styled(
        f"Gradients of {'random' if public is None else 'public'} examples at the initial weights; norms of the "
        "noise of multiplier 1 on the mean of a batch of 512."
    )

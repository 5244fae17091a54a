"""The derivation: the one product of analysis. Reports, emitted code and certificates render it; none computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lipcompile.core.graph import Graph
from lipcompile.diagnostics import Diagnostic, Severity
from lipcompile.numbers.known import Definition

if TYPE_CHECKING:
    from lipcompile.analysis.bounds import Bounds
    from lipcompile.numbers.certified import Interval


@dataclass(frozen=True, slots=True)
class Bound:
    """A formula and its certified value: a double not below the true number, None where that is unknown."""

    expression: Any
    value: float | None


def largest(bounds: Sequence[Bound]) -> float | None:
    """Return the largest value of one or more bounds, None if one is unknown."""
    values = [bound.value for bound in bounds if bound.value is not None]
    return max(values) if len(values) == len(bounds) else None


@dataclass(frozen=True, slots=True)
class LayerBounds:
    """What is known of one node. `lipschitz` is the largest of its constants over its inputs."""

    name: str
    output_norm: Bound
    cotangent: Bound
    lipschitz: Bound


# The detail of a requirement that was not examined, because the model is not understood.
NOT_REACHED = "not reached"


@dataclass(frozen=True, slots=True)
class Requirement:
    """One of R1 to R3."""

    ok: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Requirements:
    """R1: Lipschitz loss. R2: bounded input. R3: Lipschitz layers."""

    lipschitz_loss: Requirement
    bounded_input: Requirement
    lipschitz_layers: Requirement

    @property
    def ok(self) -> bool:
        """Whether all three hold."""
        return self.lipschitz_loss.ok and self.bounded_input.ok and self.lipschitz_layers.ok


@dataclass(frozen=True, slots=True)
class Block:
    """A part of the graph that stands several times in a row, and the bounds of copy t, from 1 nearest the input.

    name: of the repetition. layers: the nodes of each copy; of one copy where their number is open.
    count, index: the symbols that formulas have for the number of copies and for t. repeats: how many, if known.
    rate, offset: one copy maps an input norm X to at most rate·X + offset. lipschitz: the constant of one copy.
    input_norm, cotangent: bounds at the input and at the output of copy t. gradient: of each of its trained
    parameters, by the name in the first copy; total: of all of them. Over `count`, `index`, Depth.definitions.
    exact: whether these are what the rules give copy by copy; else they are not below it.
    curve: certified bounds of the whole gradient of the model, if there were so many copies.
    """

    name: str
    layers: tuple[tuple[str, ...], ...]
    count: Any
    index: Any
    repeats: int | None
    regime: str | None
    rate: Bound
    offset: Bound
    lipschitz: Bound
    input_norm: Any
    cotangent: Any
    gradient: Mapping[str, Any]
    total: Any
    exact: bool
    curve: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Unsolved:
    """A part of the graph, by the layers of each copy, that repeats without a closed form, and why."""

    layers: tuple[tuple[str, ...], ...]
    reason: str


@dataclass(frozen=True, slots=True)
class GrowthCase:
    """An order of growth as a formula, and the condition that it holds under: empty for always."""

    order: Any
    condition: str = ""


@dataclass(frozen=True, slots=True)
class Depth:
    """How bounds grow with depth.

    regime: contractive, critical, expansive or mixed; None if symbols decide. definitions: the names that the
    formulas of depth use.
    gradient_bound: the bound of the whole gradient over the counts of all blocks; None without blocks.
    growth: its order in a depth T that all counts are proportional to, `O(sqrt(T))`; by cases if need be.
    growth_cases, growth_where: the same in parts: formulas with their conditions, and what is said behind them.
    advice: what would make an expansive or contractive network critical. unsolved: what else repeats.
    """

    regime: str | None
    blocks: tuple[Block, ...] = ()
    definitions: tuple[Definition, ...] = ()
    gradient_bound: Bound | None = None
    growth: str | None = None
    advice: tuple[str, ...] = ()
    unsolved: tuple[Unsolved, ...] = ()
    growth_cases: tuple[GrowthCase, ...] = ()
    growth_where: str = ""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a model came from.

    network: the module of torch that its op `own_network` calls; None without this op.
    """

    name: str
    path: str
    format: str
    sha256: str
    text: str | None = None
    network: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Analysis:
    """All bounds of an accepted graph. `numbers` has all that was certified, step by step."""

    graph: Graph
    numbers: Bounds[Interval]
    definitions: tuple[Definition, ...]
    layers: tuple[LayerBounds, ...]
    parameters: Mapping[str, Bound]
    loss_lipschitz: Bound
    lipschitz: Bound
    total: Bound
    depth: Depth

    def names_of_depth(self) -> list[Definition]:
        """Return the names that formulas of depth have for something else, or something more, than the others."""
        known = {definition.name: definition.expression for definition in self.definitions}
        return [d for d in self.depth.definitions if d.name not in known or known[d.name] != d.expression]


@dataclass(frozen=True, slots=True, repr=False)
class Derivation:
    """The result of checking a model. `analysis` is None exactly if a diagnostic is an error."""

    source: Source
    requirements: Requirements
    diagnostics: tuple[Diagnostic, ...]
    analysis: Analysis | None

    @property
    def ok(self) -> bool:
        """Whether the model is accepted."""
        return self.requirements.ok and not any(d.severity == Severity.ERROR for d in self.diagnostics)

    def __repr__(self) -> str:
        """Return the verdict in one line: in full it would fill pages."""
        told = "".join(f", {found.severity} {found.code}" for found in self.diagnostics)
        bound = None if self.analysis is None else self.analysis.total.value
        known = "" if bound is None else f", gradient bound {bound!r}"
        return f"<Derivation of {self.source.name}: {'accepted' if self.ok else 'rejected'}{known}{told}>"

    def _repr_html_(self) -> str | None:
        """Return a table for notebooks: verdict, requirements, findings, bounds by parameter, the total."""
        return None if _table is None else _table(self)


_table: Callable[[Derivation], str] | None = None


def shown_by(table: Callable[[Derivation], str]) -> Callable[[Derivation], str]:
    """Let notebooks show derivations as this function renders them: nothing that derives renders."""
    global _table
    _table = table
    return table

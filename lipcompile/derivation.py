"""The derivation: the one product of analysis. Reports, emitted code and certificates render it; none computes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lipcompile.diagnostics import Diagnostic, Severity
from lipcompile.graph import Graph
from lipcompile.numbers.symbolic import Definition


@dataclass(frozen=True, slots=True)
class Bound:
    """A formula and its certified value: a double not below the true number, None where that is unknown."""

    expression: Any
    value: float | None


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
    """A repeated part of the graph and its Lipschitz constant."""

    layers: tuple[str, ...]
    repeats: int
    lipschitz: Bound


@dataclass(frozen=True, slots=True)
class Depth:
    """How bounds grow with depth, by the blocks' constants: contractive, critical, expansive or mixed."""

    regime: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """Where a model came from."""

    name: str
    path: str
    format: str
    sha256: str
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Analysis:
    """All bounds of an accepted graph."""

    graph: Graph
    definitions: tuple[Definition, ...]
    layers: tuple[LayerBounds, ...]
    parameters: Mapping[str, Bound]
    loss_lipschitz: Bound
    lipschitz: Bound
    total: Bound
    depth: Depth


@dataclass(frozen=True, slots=True)
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


def finite(upper: float) -> float | None:
    """Return a certified upper end, or None where it says nothing."""
    return upper if math.isfinite(upper) else None

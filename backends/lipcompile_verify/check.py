"""Compares every claim of a certificate with what is derived from its graph."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from .derive import Derivation, RuleError, derive
from .document import MalformedError, canonical, fields, of_kind, parse, require
from .forms import bound, hypotenuse
from .intervals import INFINITE, Real, real
from .verdict import Problem, Verdict

SCHEMA = "lipcompile.certificate/1"
STEPS = "forward:object* loss:object backward:object* parameters:object*"
FORWARD = "node:text rule:text proof:text conditions:object theta:object norm:bound lipschitz:bound* kappa:object"
BACKWARD = "value:text cotangent:bound unclipped:bound slope:bound"


def verify(document: Mapping[str, Any]) -> Verdict:
    """Re-derive every number of a certificate from its graph alone, and compare each claim."""
    verdict = Verdict()
    try:
        _verify(parse(canonical(document)), verdict)
    except RuleError as error:
        verdict.problems.append(Problem(error.step, error.rule, str(error)))
    except MalformedError as error:
        verdict.problems.append(Problem("certificate", "schema", str(error)))
    except (ArithmeticError, LookupError, TypeError, ValueError, RecursionError, MemoryError) as error:
        verdict.problems.append(Problem("certificate", "verifier", f"this cannot be checked: {error!r:.200}"))
    return verdict


def _verify(document: dict[str, Any], verdict: Verdict) -> None:
    whole = "schema:text versions:object source:object graph:object graph_sha256:text steps:object totals:object"
    d = fields(document, whole, "training:object")
    require(d.schema == SCHEMA, f"the schema is {d.schema!r:.99}, not {SCHEMA}")
    digest = hashlib.sha256(canonical(d.graph)).hexdigest()
    require(digest == d.graph_sha256, f"the graph has the hash {digest}, claimed {d.graph_sha256!r:.99}")
    steps = fields(d.steps, STEPS)
    for part, kinds in ((d.versions, "lipcompile:text"), (d.source, "name:text format:text sha256:text?")):
        fields(part, kinds)
    conditions = {str(step.get("node")): step.get("conditions") for step in steps.forward}
    found = derive(d.graph, {name: c for name, c in conditions.items() if isinstance(c, dict)})
    claim = Claims(verdict, found)
    claim.forward(steps.forward)
    claim.loss(steps.loss)
    claim.backward(steps.backward)
    claim.parameters(steps.parameters, d.totals)
    verdict.counts = {"steps": len(found.shapes), "claims": claim.count, "loose": len(verdict.loose)}
    verdict.gradient = {name: k.upper() for name, k in found.gradient.items()}
    verdict.totals = {name: number.upper() for name, number in claim.totals.items()}


class Claims:
    """Compares claims one by one: what fails is a problem, what is too large by more than 1e-9 of it loose."""

    def __init__(self, verdict: Verdict, found: Derivation) -> None:
        self.verdict, self.found, self.count = verdict, found, 0
        self.totals = {"gradient": hypotenuse([real(0), *found.gradient.values()]), "lipschitz": real(0)}

    def at_least(self, step: str, rule: str, what: str, claimed: float, own: Real) -> None:
        """Check one claim."""
        self.count += 1
        if own.exceeds(claimed):
            self.fail(
                step, rule, f"{what} is claimed to be at most {claimed!r}, but is bounded by {own.upper()!r} only"
            )
        elif (own * (1 + Fraction(1, 10**9))).falls_below(claimed):
            self.verdict.loose.append(f"{step}: {what} is claimed to be {claimed!r}, and at most {own.upper()!r}")

    def same(self, step: str, rule: str, what: str, claimed: object, own: object) -> None:
        """Check what must be equal."""
        if claimed != own:
            self.fail(step, rule, f"{what} is claimed to be {claimed!r:.200}, but is {own!r:.200}")

    def fail(self, step: str, rule: str, reason: str) -> None:
        """Record a problem."""
        self.verdict.problems.append(Problem(step, rule, reason))

    def each(self, step: str, rule: str, what: str, claimed: dict[str, Any], own: dict[str, Real]) -> None:
        """Check the claims of an object, which has the same names."""
        self.same(step, rule, f"the names of {what}", sorted(claimed), sorted(own))
        for name in claimed.keys() & own.keys():
            self.at_least(step, rule, f"{what} of {name}", of_kind(claimed[name], "bound"), own[name])

    def forward(self, steps: Sequence[dict[str, Any]]) -> None:
        """Each node has a step, in order."""
        nodes = self.found.nodes
        require(
            [step.get("node") for step in steps] == [*nodes],
            "the steps forward are not those of the nodes, in order",
        )
        for node, document in zip(nodes.values(), steps, strict=True):
            step = fields(document, FORWARD + " row:bound entry:bound" * self.found.reads)
            self.same(node.name, node.op, "the rule", step.rule, node.op)
            self.same(node.name, node.op, "what is counted", step.conditions, node.site.C)
            self.same(node.name, node.op, "the number of slopes", len(step.lipschitz), len(node.slopes))
            self.each(node.name, node.op, "theta", step.theta, node.site.T)
            self.each(node.name, node.op, "kappa", step.kappa, node.kappa)
            x = self.found.extents[node.name]
            measures = {"norm": x.X, "row": x.R, "entry": x.M} if self.found.reads else {"norm": x.X}
            for name, own in measures.items():
                self.at_least(node.name, node.op, f"the {name}", getattr(step, name), own)
            for i, (claimed, own) in enumerate(zip(step.lipschitz, node.slopes, strict=False)):
                self.at_least(node.name, node.op, f"the Lipschitz constant in operand {i}", claimed, own)

    def loss(self, document: dict[str, Any]) -> None:
        """The constant of the loss."""
        step, name = fields(document, "rule:text proof:text lipschitz:bound"), self.found.graph.loss.name
        self.same("loss", name, "the rule", step.rule, name)
        self.at_least("loss", name, "its Lipschitz constant", step.lipschitz, self.found.loss)

    def backward(self, steps: Sequence[dict[str, Any]]) -> None:
        """Each value has a step, from the output to the input."""
        found = self.found
        values = [*reversed(found.shapes)]
        require(
            [step.get("value") for step in steps] == values,
            "the steps backward are not those of the values, in order",
        )
        for value, document in zip(values, steps, strict=True):
            step, rule = fields(document, BACKWARD), found.nodes[value].op if value in found.nodes else "input"
            self.at_least(value, rule, "the cotangent", step.cotangent, bound(found.cotangent[value]))
            self.at_least(
                value, rule, "the cotangent without clips", step.unclipped, bound(found.unclipped[value])
            )
            self.at_least(value, rule, "the slope of the output", step.slope, bound(found.slope[value]))
        self.totals["lipschitz"] = bound(found.slope[found.graph.input.name])

    def parameters(self, steps: Sequence[dict[str, Any]], totals: dict[str, Any]) -> None:
        """Each trained parameter has a step, with all its uses, and a bound."""
        found = self.found
        claimed = [fields(step, "name:text uses:text** gradient:bound unclipped:bound") for step in steps]
        self.same(
            "parameters", "sum", "the list of them", sorted(step.name for step in claimed), sorted(found.gradient)
        )
        for step in claimed:
            if step.name in found.gradient:
                k = found.gradient[step.name]
                self.same(step.name, "sum", "the list of uses", step.uses, tuple(found.uses[step.name]))
                self.at_least(step.name, "sum", "its gradient", step.gradient, k)
                self.at_least(
                    step.name,
                    "sum",
                    "its gradient without clips",
                    step.unclipped,
                    found.gradient_unclipped[step.name],
                )
                if k.hi == INFINITE:
                    self.fail(step.name, "sum", "its gradient has no bound")
        self.each("totals", "sum", "the total", totals, self.totals)

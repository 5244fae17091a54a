"""Compares every claim of a certificate with what is derived from its graph."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from .derive import OUTWARD, Derivation, RuleError, last_dense
from .disjoint_parts import bound, hypotenuse
from .document import MalformedError, canonical, fields, of_kind, parse, require
from .intervals import INFINITE, Real, least, real, root, total
from .rules import OPS

CERTIFICATE = "schema:text versions:object source:object graph:object graph_sha256:text steps:object totals:object"
STEPS = "forward:object* loss:object backward:object* parameters:object*"
FORWARD = "node:text rule:text proof:text conditions:object theta:object norm:bound lipschitz:bound* kappa:object"
BACKWARD = "value:text cotangent:bound unclipped:bound slope:bound"
TRAINING = (
    "neighbours:add_remove|replace_one batch:n? dataset:n? steps:n? epsilon:q+? delta:q+? accountant:pld|rdp "
    "noise:global|per_layer|optimal|weights "
    "sampling:poisson|fixed_size|shuffle|balls_in_bins|cyclic_poisson|fixed_order"
)


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a certificate is refused: the step and the rule that fail, and the reason with both numbers."""

    step: str
    rule: str
    reason: str

    def __str__(self) -> str:
        return f"{self.step} ({self.rule}): {self.reason}"


@dataclass(slots=True)
class Verdict:
    """The outcome. `gradient` holds K of each trained parameter, `totals` the two of the model, as derived here.

    loose: claims above what is derived here by more than 1e-9 of it; they are accepted.
    """

    problems: list[Problem] = field(default_factory=list)
    loose: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    gradient: dict[str, float] = field(default_factory=dict)
    totals: dict[str, float] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether every claim holds."""
        return not self.problems


def verify(document: Mapping[str, Any]) -> Verdict:
    """Re-derive every number of a certificate from its graph alone, and compare each claim."""
    verdict = Verdict()
    try:
        Claims(parse(canonical(document)), verdict).check()
    except RuleError as error:
        verdict.problems.append(Problem(error.step, error.rule, str(error)))
    except MalformedError as error:
        verdict.problems.append(Problem("certificate", "schema", str(error)))
    except (ArithmeticError, LookupError, TypeError, ValueError, RecursionError, MemoryError) as error:
        verdict.problems.append(
            Problem("certificate", "verifier", f"the certificate cannot be checked: {error!r:.200}")
        )
    return verdict


def steepness(document: Mapping[str, Any], norms: Mapping[str, float]) -> float:
    """Derive the Lipschitz constant in the input of what the last dense layer reads, or else of the output.

    Args:
        document: a certificate, of which the graph alone is used, and the claims that are proved here.
        norms: upper bounds of the norms of the parameters as they are, in place of those of their constraints, by
            name: of a weight, that of its layer's map.

    Raises:
        MalformedError: no constant is derived from this graph.
    """
    graph, parameters = document["graph"], {}
    for node in graph["nodes"]:
        for role, name in node["parameters"].items():
            kind = OPS[node["op"]].roles[role].kinds.partition("|")[0]  # of a map: spectral
            norm = {"constraint": kind, "bound": None if kind == "free" else str(Fraction(norms[name]))}
            parameters[name] = {**graph["parameters"][name], **norm}
    found = Derivation({**graph, "parameters": parameters}, _conditions(document["steps"]["forward"]))
    last = last_dense(graph)
    return found.lipschitz(graph["output"] if last is None else last["inputs"][0]).upper()


def _conditions(steps: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the conditions that the nodes are claimed to meet."""
    claimed = {str(step.get("node")): step.get("conditions") for step in steps}
    return {name: found for name, found in claimed.items() if isinstance(found, dict)}


class Claims:
    """Compares the claims of a certificate, one by one, with a derivation of its graph."""

    def __init__(self, document: dict[str, Any], verdict: Verdict) -> None:
        self.verdict, self.count = verdict, 0
        d = self.document = fields(document, CERTIFICATE, "training:object")
        require(d.schema == "lipcompile.certificate/1", f"unknown schema `{d.schema:.99}`")
        digest = hashlib.sha256(canonical(d.graph)).hexdigest()
        require(digest == d.graph_sha256, f"the graph has the hash {digest}, claimed {d.graph_sha256:.99}")
        fields(d.versions, "lipcompile:text"), fields(d.source, "name:text format:text sha256:text?")
        self.steps = fields(d.steps, STEPS)
        self.found = Derivation(d.graph, _conditions(self.steps.forward))

    def check(self) -> None:
        """Check all claims, and say what was derived."""
        found, slope = self.found, bound(self.found.slope[self.found.graph.input.name])
        totals = {"gradient": hypotenuse([real(0), *(k for _, k in found.units())]), "lipschitz": slope}
        for step, node in self._steps(self.steps.forward, "node", [*found.nodes]):
            self._forward(fields(step, FORWARD + " row:bound entry:bound" * found.reads), found.nodes[node])
        loss = fields(self.steps.loss, "rule:text proof:text lipschitz:bound")
        self._same("loss", loss.rule, "the rule", loss.rule, found.graph.loss.name)
        self._least("loss", loss.rule, "its Lipschitz constant", loss.lipschitz, found.loss)
        for step, value in self._steps(self.steps.backward, "value", [*reversed(found.shapes)]):
            claimed, rule = fields(step, BACKWARD), found.nodes[value].op if value in found.nodes else "input"
            for what in ("cotangent", "unclipped", "slope"):
                self._least(value, rule, f"the {what}", getattr(claimed, what), bound(getattr(found, what)[value]))
        listed = sorted(self.steps.parameters, key=lambda step: str(step.get("name")))
        for step, name in self._steps(listed, "name", sorted(found.gradient)):
            self._parameter(
                fields(step, "name:text uses:text** gradient:bound unclipped:bound"), name, loss.lipschitz
            )
        self._each("totals", "sum", "the total", self.document.totals, totals)
        if self.document.training is not None:
            self._training(self.document.training)
        verdict = self.verdict
        verdict.counts = {"steps": len(found.shapes), "claims": self.count, "loose": len(verdict.loose)}
        verdict.gradient = {name: k.upper() for name, k in found.gradient.items()}
        verdict.totals = {name: number.upper() for name, number in totals.items()}

    def _steps(self, steps: Sequence[Any], name: str, expected: list[str]) -> list[tuple[Any, str]]:
        """Return the steps with their names, which must be the expected ones, in order."""
        require([step.get(name) for step in steps] == expected, f"every {name} needs one step, in order")
        return [*zip(steps, expected, strict=True)]

    def _forward(self, step: Any, node: Any) -> None:
        x = self.found.extents[node.name]
        self._same(node.name, node.op, "the rule", step.rule, node.op)
        self._same(node.name, node.op, "the counts", step.conditions, node.site.C)
        self._each(node.name, node.op, "theta", step.theta, node.site.T)
        self._each(node.name, node.op, "kappa", step.kappa, node.kappa)
        for name, own in {"norm": x.X, **({"row": x.R, "entry": x.M} if self.found.reads else {})}.items():
            self._least(node.name, node.op, f"the {name}", getattr(step, name), own)
        self._same(node.name, node.op, "the number of slopes", len(step.lipschitz), len(node.slopes))
        for i, (claimed, own) in enumerate(zip(step.lipschitz, node.slopes, strict=False)):
            self._least(node.name, node.op, f"the Lipschitz constant in operand {i}", claimed, own)

    def _parameter(self, step: Any, name: str, loss: float) -> None:
        k, unclipped = self.found.gradient[name], self.found.gradient_unclipped[name]
        self._same(name, "sum", "the list of uses", step.uses, tuple(self.found.uses[name]))
        self._least(name, "sum", "the gradient", step.gradient, k)
        self._least(name, "sum", "the gradient without clips", step.unclipped, unclipped)
        # A clip of the loss to C < L leaves C/L of it, for the claimed L: a larger one makes it smaller.
        if name not in self.found.lengths and self.found.loss.falls_below(loss):
            at_loss = unclipped * (real(loss) / self.found.loss) / OUTWARD
            self._least(name, "sum", f"the gradient without clips, at L = {loss!r},", step.unclipped, at_loss)
        if k.hi == INFINITE:
            self._fail(name, "sum", "the gradient has no bound")

    def _training(self, document: Any) -> None:
        """The noise must be that of its multiplier with the K derived here, on every trained parameter."""
        plan = fields(document, TRAINING, "correlation:object noise_multiplier:bound std:object")
        replace_one = plan.neighbours == "replace_one"
        theorem = replace_one or plan.sampling != "shuffle"
        theorem = theorem and not (replace_one and plan.sampling == "poisson" and plan.accountant == "rdp")
        if not theorem or (plan.batch or 1) > (plan.dataset or plan.batch or 1) or (plan.delta or 0) >= 1:
            self._fail("training", "privacy", "no theorem covers this sampling, relation and accountant")
        if plan.std is not None:
            self._same(
                "training", "noise", "the parameters with noise", sorted(plan.std), sorted(self.found.gradient)
            )
            std = {name: real(of_kind(text, "bound")) for name, text in plan.std.items()}
            least_std = [(k, [std[name] for name in names if name in std]) for names, k in self.found.units()]
            ratios = total((k / least(*found)) * (k / least(*found)) for k, found in least_std if found)
            if plan.noise_multiplier is None or (root(ratios) * real(plan.noise_multiplier)).exceeds(1.0):
                self._fail(
                    "training", "noise", f"1/√Σ(K/s)² is {(1 / root(ratios)).upper()!r}, below the multiplier"
                )

    def _least(self, step: str, rule: str, what: str, claimed: float, own: Real) -> None:
        """Check one bound: too small is a problem, too large by more than 1e-9 of it loose."""
        self.count += 1
        if own.exceeds(claimed):
            self._fail(
                step,
                rule,
                f"{what} is claimed to be at most {claimed!r}, but only the bound {own.upper()!r} is proved",
            )
        elif own.falls_below(claimed) and (own * (1 + Fraction(1, 10**9))).falls_below(claimed):
            self.verdict.loose.append(
                f"{step}: {what} is claimed to be {claimed!r}, but {own.upper()!r} is already an upper bound"
            )

    def _same(self, step: str, rule: str, what: str, claimed: object, own: object) -> None:
        """Check what must be equal."""
        if claimed != own:
            self._fail(step, rule, f"{what} is claimed to be {claimed!r:.200}, but is {own!r:.200}")

    def _each(self, step: str, rule: str, what: str, claimed: dict[str, Any], own: dict[str, Real]) -> None:
        """Check the bounds in an object, which has the same names."""
        self._same(step, rule, f"the names of {what}", sorted(claimed), sorted(own))
        for name in claimed.keys() & own.keys():
            self._least(step, rule, f"{what} of {name}", of_kind(claimed[name], "bound"), own[name])

    def _fail(self, step: str, rule: str, reason: str) -> None:
        self.verdict.problems.append(Problem(step, rule, reason))

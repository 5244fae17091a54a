"""Any constant made 5% smaller is seen: mutants of every rule, and of every step inside every rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache

import pytest

from lipcompile.core.record import Extent
from lipcompile.numbers.certified import Certified
from lipcompile.ops.table import LOSS_BY_NAME, OP_BY_NAME

from . import harness
from .catalogue import ATTACKS, LOSS_ATTACKS
from .harness import SHRINK, SLACK, Case, LossCase
from .loose import LOOSE, UNSEEN, UNSEEN_OF_LOSSES, share
from .probe import Place, Probe, Probed

RULES = [(op, rule) for op, record in OP_BY_NAME.items() for rule in harness.rules_of(record)]
FACTORS = (float(SHRINK), 1 / float(SHRINK))  # a mutant of a divisor lowers the claim by growing

Claims = dict[str, Probed]
Evaluate = Callable[[Probe], Claims]


@cache
def measured(op: str) -> tuple[tuple[Case, Mapping[str, float]], ...]:
    """The op's witnesses and what each attains."""
    found = ATTACKS[op].witnesses()
    return tuple((harness.fitted(case, point), harness.attained(case, point)) for case, point in found)


@pytest.mark.parametrize(("op", "rule"), RULES)
def test_a_smaller_rule_is_seen(op: str, rule: str) -> None:
    small = harness.mutant(OP_BY_NAME[op], rule, SHRINK * Fraction(share(op, rule, 1)))
    faults = [
        fault
        for case, found in measured(op)
        for claimed in [harness.claims(replace(case, op=small), Certified())]
        for fault in harness.broken(found, {name: bound.upper for name, bound in claimed.items()})
    ]
    assert faults


@pytest.mark.parametrize("name", LOSS_ATTACKS)
def test_a_smaller_loss_constant_is_seen(name: str) -> None:
    small, num = harness.mutant_loss(LOSS_BY_NAME[name]), Certified()
    for case, logits, target in LOSS_ATTACKS[name].witnesses():
        claimed = case.claim(num, small).upper
        assert harness.loss_slope(case, logits, target) > claimed * (1 + SLACK)


def evaluate(case: Case, rule: str) -> Evaluate:
    """Return the evaluation of one rule alone, its arguments computed by the others."""
    op, site, kind = case.op, case.site, rule.partition(":")[0]
    plain = harness.claims(case, Probe())
    constraints = case.constraints.items()

    def run(num: Probe) -> Claims:
        bounds = [(float(b.norm), float(b.row), float(b.entry)) for b in case.bounds]
        x = [num.extent(f"x{i}", *bound) for i, bound in enumerate(bounds)]
        sizes = {r: op.parameter(r).operator_norm(Probe(), site, c).value for r, c in constraints}
        theta = {role: num.argument(role, size) for role, size in sizes.items()}
        if kind in ("norm", "row", "entry"):
            return {kind: getattr(op, kind)(num, site, x, theta)}
        if kind == "lipschitz" and op.lipschitz is not None:
            return {f"{kind}:{i}": gain for i, gain in enumerate(op.lipschitz(num, site, x, theta))}
        if kind == "cotangent":
            gains = [num.argument(f"l{i}", plain[f"lipschitz:{i}"].value) for i in range(len(x))]
            cotangent = num.argument("G", float(case.cotangent))
            return {f"{kind}:{i}": g for i, g in enumerate(op.cotangent(num, site, cotangent, gains))}
        return _parameter(case, rule, num, x, theta)

    return run


def _parameter(case: Case, rule: str, num: Probe, x: list[Extent[Probed]], theta: Mapping[str, Probed]) -> Claims:
    kind, _, role = rule.partition(":")
    if role not in case.constraints:
        return {}
    record = case.op.parameter(role)
    if kind == "kappa":
        return {rule: record.kappa(num, case.site, x, theta)}
    return {rule: record.operator_norm(num, case.site, case.constraints[role])}


def unseen(witnesses: Sequence[tuple[Evaluate, Mapping[str, float]]]) -> list[Place]:
    """Return the places whose mutants no witness catches.

    Left out is what always computes zero, and an argument on which the rule does not depend.
    """
    original = Probe()
    for run, _ in witnesses:
        run(original)
    places = [place for place, largest in original.seen.items() if largest > 0]
    runs = [run for run, _ in witnesses]
    return [
        place
        for place in places
        if not (place in original.arguments and _idle(place, runs))
        and not any(_caught(place, *witness) for witness in witnesses)
    ]


def _idle(place: Place, runs: Sequence[Evaluate]) -> bool:
    return all(_values(run(Probe(place, factor))) == _values(run(Probe())) for run in runs for factor in FACTORS)


def _values(claims: Claims) -> list[float]:
    return [bound.value for bound in claims.values()]


def _caught(place: Place, run: Evaluate, attained: Mapping[str, float]) -> bool:
    mutants = [run(Probe(place, factor)) for factor in FACTORS]
    return any(attained[name] > bound.value * (1 + SLACK) for found in mutants for name, bound in found.items())


@pytest.mark.parametrize(("op", "rule"), [(op, rule) for op, rule in RULES if rule not in LOOSE.get(op, {})])
def test_every_smaller_step_of_a_rule_is_seen(op: str, rule: str) -> None:
    missed = unseen([(evaluate(case, rule), found) for case, found in measured(op)])
    allowed = UNSEEN.get(op, {}).get(rule, {})
    assert [place for place in missed if place[0] not in allowed] == []


@pytest.mark.parametrize(("op", "rule"), [(op, rule) for op, rules in UNSEEN.items() for rule in rules])
def test_what_is_called_unseen_is_unseen(op: str, rule: str) -> None:
    assert unseen([(evaluate(case, rule), found) for case, found in measured(op)])


@pytest.mark.parametrize("name", LOSS_ATTACKS)
def test_every_smaller_step_of_a_loss_is_seen(name: str) -> None:
    missed = unseen(
        [(_loss_run(case), {"L": harness.loss_slope(case, *at)}) for case, *at in LOSS_ATTACKS[name].witnesses()]
    )
    allowed = UNSEEN_OF_LOSSES.get(name, {})
    assert [place for place in missed if place[0] not in allowed] == []


def _loss_run(case: LossCase) -> Evaluate:
    def run(num: Probe) -> Claims:
        row = case.norm if case.row is None else case.row
        logits = num.extent("x", float(case.norm), float(row), float(row))
        return {"L": case.loss.lipschitz(num, case.attributes, case.shape, logits)}

    return run


def test_a_loose_rule_has_unseen_mutants() -> None:
    """The search is not blind: twice the norm of ReLU is never attained, so its mutants survive."""

    def loose(num: Probe) -> Claims:
        return {"norm": 2 * num.argument("x0", 3.0)}

    attained = {"norm": measured("relu")[0][1]["norm"]}
    assert len(unseen([(loose, attained)])) == 2

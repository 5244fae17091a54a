"""Random uses of every op and every loss: shapes, attributes, domains, constraints. Seeded, never timed."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import prod
from random import Random

from lipcompile.core.record import AnyOp, Shape
from lipcompile.diagnostics import Refusal
from lipcompile.ops.table import LOSS_BY_NAME, OP_BY_NAME

from .catalogue import ATTACKS, LOSS_ATTACKS
from .draw import Draw
from .harness import Bound, Case, LossCase, case

LARGEST_OUTPUT = 128


def cases(op: str, seed: int) -> Iterator[Case]:
    """Yield instances of an op without end; what the op's shape rule refuses is drawn again."""
    draw = Draw(Random(f"{op} {seed}"))
    while True:
        attributes, shapes, constraints = ATTACKS[op].instance(draw)
        bounds = [_bound(draw, OP_BY_NAME[op]) for _ in shapes]
        try:
            found = case(OP_BY_NAME[op], attributes, shapes, bounds, constraints, draw.fraction())
        except Refusal:
            continue
        if prod(found.site.output) <= LARGEST_OUTPUT:
            yield found


def _bound(draw: Draw, op: AnyOp) -> Bound:
    """A domain; for an op that knows of rows and entries, ‖x‖ <= norm, rows <= row, |entries| <= entry."""
    norm = draw.fraction()
    if op.row is None and op.entry is None and not op.reads:
        return Bound(norm, norm, norm)
    row = norm * Fraction(draw.rng.randint(4, 16), 16)
    return Bound(norm, row, row * Fraction(draw.rng.randint(4, 16), 16))


def loss_cases(name: str, seed: int) -> Iterator[LossCase]:
    """Yield instances of a loss without end."""
    draw = Draw(Random(f"{name} {seed}"))
    attack, loss = LOSS_ATTACKS[name], LOSS_BY_NAME[name]
    while True:
        shape: Shape = attack.shape(draw)
        attributes, norm = attack.attributes(draw, shape), draw.fraction()
        row = norm * Fraction(draw.rng.randint(4, 16), 16) if loss.reads else None
        loss.check(attributes, shape)
        yield LossCase(loss, attributes, shape, norm, row)

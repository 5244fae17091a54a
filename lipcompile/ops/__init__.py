"""All ops and losses, as one explicit table."""

from __future__ import annotations

from lipcompile.ops import activation, linear, loss, merge, parametric, pool, shape
from lipcompile.ops.record import AnyLoss, AnyOp

OPS: tuple[AnyOp, ...] = (
    *linear.OPS,
    *activation.OPS,
    *parametric.OPS,
    *pool.OPS,
    *shape.OPS,
    *merge.OPS,
)
LOSSES: tuple[AnyLoss, ...] = loss.LOSSES

OP_BY_NAME = {op.name: op for op in OPS}
LOSS_BY_NAME = {entry.name: entry for entry in LOSSES}

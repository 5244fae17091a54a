"""All ops and losses, as one explicit table."""

from __future__ import annotations

from lipcompile.ops import activation, conv_transpose, linear, loss, merge, parametric, pool, resample, shape
from lipcompile.ops.record import AnyLoss, AnyOp

OPS: tuple[AnyOp, ...] = (
    *linear.OPS,
    *conv_transpose.OPS,
    *activation.OPS,
    *parametric.OPS,
    *pool.OPS,
    *shape.OPS,
    *resample.OPS,
    *merge.OPS,
)
LOSSES: tuple[AnyLoss, ...] = loss.LOSSES

OP_BY_NAME = {op.name: op for op in OPS}
LOSS_BY_NAME = {entry.name: entry for entry in LOSSES}

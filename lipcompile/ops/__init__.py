"""All ops and losses, as one explicit table."""

from __future__ import annotations

from lipcompile.ops import (
    activation,
    attention,
    class_token,
    conv_transpose,
    dot_product,
    embedding,
    linear,
    local_response,
    loss,
    merge,
    normalisation,
    parametric,
    pool,
    reduce,
    resample,
    scattering,
    shape,
    softmax,
)
from lipcompile.ops.record import AnyLoss, AnyOp

OPS: tuple[AnyOp, ...] = (
    *linear.OPS,
    *conv_transpose.OPS,
    *activation.OPS,
    *parametric.OPS,
    *pool.OPS,
    *reduce.OPS,
    *shape.OPS,
    *resample.OPS,
    *scattering.OPS,
    *merge.OPS,
    *class_token.OPS,
    *attention.OPS,
    *dot_product.OPS,
    *embedding.OPS,
    *normalisation.OPS,
    *local_response.OPS,
    *softmax.OPS,
)
LOSSES: tuple[AnyLoss, ...] = loss.LOSSES

OP_BY_NAME = {op.name: op for op in OPS}
LOSS_BY_NAME = {entry.name: entry for entry in LOSSES}

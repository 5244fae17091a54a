"""All ops and losses, as one explicit table."""

from __future__ import annotations

from lipcompile.core.record import AnyLoss, AnyOp
from lipcompile.ops.activation import rules as activation
from lipcompile.ops.attention import dot_product
from lipcompile.ops.attention import rules as attention
from lipcompile.ops.colour import rules as colour
from lipcompile.ops.conv import rules as conv
from lipcompile.ops.embedding import rules as embedding
from lipcompile.ops.linear import rules as linear
from lipcompile.ops.loss import rules as loss
from lipcompile.ops.merge import rules as merge
from lipcompile.ops.normalisation import local_response
from lipcompile.ops.normalisation import rules as normalisation
from lipcompile.ops.own import rules as own
from lipcompile.ops.parametric import rules as parametric
from lipcompile.ops.pointwise import rules as pointwise
from lipcompile.ops.pool import rules as pool
from lipcompile.ops.reduce import rules as reduce
from lipcompile.ops.resample import rules as resample
from lipcompile.ops.scattering import rules as scattering
from lipcompile.ops.shape import rules as shape
from lipcompile.ops.softmax import rules as softmax
from lipcompile.ops.whitening import rules as whitening

# fmt: off
_FAMILIES = (
    linear, conv, activation, parametric, pool, reduce, shape, resample, colour, scattering, whitening, merge,
    attention, dot_product, embedding, normalisation, local_response, softmax, pointwise, own,
)
# fmt: on
OPS: tuple[AnyOp, ...] = tuple(op for family in _FAMILIES for op in family.OPS)
LOSSES: tuple[AnyLoss, ...] = loss.LOSSES

OP_BY_NAME = {op.name: op for op in OPS}
LOSS_BY_NAME = {entry.name: entry for entry in LOSSES}

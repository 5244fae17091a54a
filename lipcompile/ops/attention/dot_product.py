"""Dot-product attention without projections: what softmax makes of given queries, keys and values.

Proofs: attention.md. Below, (X_q, R_q), (X_k, R_k), (X_v, R_v) bound the operands over all heads, λ is the factor
of the scores, H the number of heads, n_q that of the queries of a head, c_i that of the keys that row i sees,
t = 1/(1 - dropout) the largest factor of a weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod

from lipcompile.core.record import AnyOp, Inputs, Shape, Site, Theta
from lipcompile.diagnostics import Refusal
from lipcompile.numbers import N, Numbers, Scalar
from lipcompile.ops.attention.rules import Sight, concentration, deviation, kept, pull
from lipcompile.ops.rules import magnitude, plain
from lipcompile.ops.shape.rules import Dropout, dropout_shape


@dataclass(frozen=True, slots=True)
class DotProduct:
    """`scale`: factor of the scores, by default 1/√(width of a query); `causal`, `dropout` as in `Attention`."""

    scale: Scalar | None = None
    causal: bool = False
    dropout: Scalar = Fraction(0)


def dot_product_shape(attributes: DotProduct, inputs: tuple[Shape, ...]) -> Shape:
    """[*heads, n, d], [*heads, k, d], [*heads, k, e] -> [*heads, n, e]."""
    queries, keys, values = inputs
    fits = (
        all(len(shape) >= 2 for shape in inputs)
        and queries[:-2] == keys[:-2] == values[:-2]
        and queries[-1] == keys[-1]
        and keys[-2] == values[-2]
    )
    if not fits:
        shown = ", ".join(str(list(shape)) for shape in inputs)
        message = f"queries, keys and values of shapes {shown} do not fit each other"
        raise Refusal("LIP102", message, "give them as [heads, n, d], [heads, k, d] and [heads, k, e]")
    dropout_shape(Dropout(attributes.dropout), inputs)
    return (*queries[:-1], values[-1])


def sight(site: Site[DotProduct]) -> Sight:
    """What the queries of one head see of its keys."""
    return Sight(site.inputs[0][-2], site.inputs[1][-2], site.attributes.causal)


def factor(num: Numbers[N], site: Site[DotProduct]) -> N:
    """|λ|."""
    scale = site.attributes.scale
    return 1 / num.sqrt(site.inputs[0][-1]) if scale is None else magnitude(num, scale)


def contrast(num: Numbers[N], site: Site[DotProduct], x: Inputs[N]) -> N:
    """e^(-2s), s = |λ|·R_q·m_k: the least ratio of two weights in a row."""
    return num.exp(0 - 2 * (factor(num, site) * x[0].row * deviation(num, x[1])))


def mixing(num: Numbers[N], site: Site[DotProduct], x: Inputs[N]) -> N:
    """p = √Σ_i 1/(1 + (c_i-1)·e^(-2s)): bounds the norm of each head's matrix of weights."""
    return concentration(num, sight(site), contrast(num, site, x))


def mixed_norm(num: Numbers[N], site: Site[DotProduct], x: Inputs[N], theta: Theta[N]) -> N:
    """X_out = t·min(√(H·n_q)·R_v, p·X_v)."""
    rows = num.sqrt(prod(site.output[:-1])) * x[2].row
    return kept(num, site) * num.minimum(rows, mixing(num, site, x) * x[2].norm)


def mixed_row(num: Numbers[N], site: Site[DotProduct], x: Inputs[N], theta: Theta[N]) -> N:
    """R_out = t·R_v."""
    return kept(num, site) * x[2].row


def mixed_entry(num: Numbers[N], site: Site[DotProduct], x: Inputs[N], theta: Theta[N]) -> N:
    """M_out = t·M_v."""
    return kept(num, site) * x[2].entry


def dot_product_lipschitz(num: Numbers[N], site: Site[DotProduct], x: Inputs[N], theta: Theta[N]) -> Sequence[N]:
    """l_q = t·|λ|·m_k·m_v, l_k = t·|λ|·m_v·min(p·R_q, X_q/√2), l_v = t·p."""
    values = mixing(num, site, x)
    felt = kept(num, site) * factor(num, site) * deviation(num, x[2])
    return [felt * deviation(num, x[1]), felt * pull(num, x[0], values), kept(num, site) * values]


DOT_PRODUCT = plain(
    "dot_product_attention",
    DotProduct,
    dot_product_shape,
    "attention.md#dot-product-attention",
    norm=mixed_norm,
    row=mixed_row,
    entry=mixed_entry,
    reads=("row",),
    lipschitz=dot_product_lipschitz,
    operands=(3, 3),
    draws=lambda attributes: attributes.dropout != 0,
    axes="placed",
)

OPS: tuple[AnyOp, ...] = (DOT_PRODUCT,)

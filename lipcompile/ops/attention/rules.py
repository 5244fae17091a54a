"""Multi-head dot-product attention. Proofs: attention.md.

Below, u_Q, u_K, u_V, u_O bound the four matrices, d is the width of one head, H the number of heads, c_i the
number of keys that row i sees, t = 1/(1 - dropout) the largest factor of a weight, and the operands are queries
(X_q, R_q) and context (X_c, R_c): with one operand, the same tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from lipcompile.core.record import AnyOp, Extent, Inputs, Shape, Site, Theta
from lipcompile.diagnostics import Refusal
from lipcompile.numbers import N, Numbers, Scalar
from lipcompile.ops.linear.rules import weight_rule
from lipcompile.ops.rules import plain
from lipcompile.ops.shape.rules import Dropout, dropout_shape


@dataclass(frozen=True, slots=True)
class Attention:
    """`heads` heads; `causal`: row i sees the rows up to i; `dropout`: probability that a weight becomes zero."""

    heads: int
    causal: bool = False
    dropout: Scalar = Fraction(0)


def attention_shape(attributes: Attention, inputs: tuple[Shape, ...]) -> Shape:
    """[n, d] -> [n, d], also beside a context [k, d']."""
    if any(len(shape) != 2 for shape in inputs):
        shown = " and ".join(str(list(shape)) for shape in inputs)
        raise Refusal("LIP102", f"attention needs tokens [n, d], not {shown}", "flatten images into patches first")
    if inputs[0][1] % attributes.heads:
        raise Refusal("LIP102", f"{attributes.heads} heads do not divide {inputs[0][1]} features")
    if attributes.causal and len(inputs) == 2:
        raise Refusal(
            "LIP102", "causal attention needs the same sequence for queries, keys and values", "give it one tensor"
        )
    return dropout_shape(Dropout(attributes.dropout), inputs)


def query_shape(attributes: Attention, inputs: tuple[Shape, ...]) -> Shape:
    """[d, d]: also that of the output."""
    return (inputs[0][1], inputs[0][1])


def key_shape(attributes: Attention, inputs: tuple[Shape, ...]) -> Shape:
    """[d, d']: also that of the values."""
    return (inputs[0][1], inputs[-1][1])


@dataclass(frozen=True, slots=True)
class Sight:
    """Which keys rows of queries see: all, or, `causal`, the first i of them in row i."""

    rows: int
    keys: int
    causal: bool

    def largest(self) -> int:
        """max c_i."""
        return min(self.rows, self.keys) if self.causal else self.keys

    def met(self, heads: int) -> int:
        """Σ_i min(heads, c_i)."""
        most = min(heads, self.largest())
        # The first rows of a causal sequence see 1, 2, 3, … keys.
        return self.rows * most - (most * (most - 1) // 2 if self.causal else 0)

    def blocks(self) -> Iterator[tuple[int, int]]:
        """Yield (number of rows, keys that the first of them sees): causal rows are cut into O(log n) blocks."""
        start = 0
        while start < self.rows:
            more = 1 + start // 2 if self.causal and start < self.keys else self.rows
            stop = min(self.rows, start + more)
            yield stop - start, min(start + 1, self.keys) if self.causal else self.keys
            start = stop


def sight(site: Site[Attention]) -> Sight:
    """What the queries see of the context."""
    return Sight(site.output[0], site.inputs[-1][0], site.attributes.causal)


def kept(num: Numbers[N], site: Site[Any]) -> N:
    """t = 1/(1 - dropout)."""
    return 1 / (1 - num.of(site.attributes.dropout))


def slope(num: Numbers[N], site: Site[Attention], theta: Theta[N]) -> N:
    """u_Q·u_K/√d: the scores' constant."""
    return theta["query"] * theta["key"] / num.sqrt(site.output[1] // site.attributes.heads)


def deviation(num: Numbers[N], tokens: Extent[N]) -> N:
    """m = min(R, X/√2): the largest standard deviation of tokens along a line, for any weights."""
    return num.minimum(tokens.row, tokens.norm / num.sqrt(2))


def contrast(num: Numbers[N], site: Site[Attention], x: Inputs[N], theta: Theta[N]) -> N:
    """e^(-2s), s = u_Q·u_K·R_q·m/√d: the least ratio of two weights in a row."""
    return num.exp(0 - 2 * (slope(num, site, theta) * x[0].row * deviation(num, x[-1])))


def mixing(num: Numbers[N], site: Site[Attention], x: Inputs[N], theta: Theta[N]) -> N:
    """p = √Σ_i 1/(1 + (c_i-1)·e^(-2s)): bounds the norm of the matrix of weights."""
    return concentration(num, sight(site), contrast(num, site, x, theta))


def concentration(num: Numbers[N], seeing: Sight, least: N) -> N:
    """√Σ_i 1/(1 + (c_i-1)·least): bounds the norm of a matrix of weights that differ by no more in a row."""
    return num.sqrt(total([rows / (1 + (keys - 1) * least) for rows, keys in seeing.blocks()]))


def total(terms: Sequence[N]) -> N:
    """Σ terms, at least one."""
    return sum(terms[1:], start=terms[0])


def mixed(num: Numbers[N], site: Site[Attention], x: Inputs[N], theta: Theta[N], heads: int) -> N:
    """min(√(Σ_i min(heads, c_i))·R_c, p·X_c): bounds what `heads` heads, each its own mixture, gather."""
    tokens = sight(site).met(heads)
    return num.minimum(num.sqrt(tokens) * x[-1].row, mixing(num, site, x, theta) * x[-1].norm)


def attention_norm(num: Numbers[N], site: Site[Attention], x: Inputs[N], theta: Theta[N]) -> N:
    """X_out = t·u_O·u_V·min(√(Σ_i min(H, c_i))·R_c, p·X_c)."""
    gathered = mixed(num, site, x, theta, site.attributes.heads)
    return kept(num, site) * theta["output"] * theta["value"] * gathered


def attention_row(num: Numbers[N], site: Site[Attention], x: Inputs[N], theta: Theta[N]) -> N:
    """R_out = t·u_O·u_V·min(√min(H, max c_i)·R_c, X_c)."""
    tokens = min(site.attributes.heads, sight(site).largest())
    gathered = num.minimum(num.sqrt(tokens) * x[-1].row, x[-1].norm)
    return kept(num, site) * theta["output"] * theta["value"] * gathered


def output_kappa(num: Numbers[N], site: Site[Attention], x: Inputs[N], theta: Theta[N]) -> N:
    """κ_O = t·u_V·min(√(Σ_i min(H, c_i))·R_c, p·X_c)."""
    return kept(num, site) * theta["value"] * mixed(num, site, x, theta, site.attributes.heads)


def value_kappa(num: Numbers[N], site: Site[Attention], x: Inputs[N], theta: Theta[N]) -> N:
    """κ_V = t·u_O·min(√n_q·R_c, p·X_c)."""
    return kept(num, site) * theta["output"] * mixed(num, site, x, theta, 1)


def covariance(num: Numbers[N], site: Site[Attention], x: Inputs[N], theta: Theta[N]) -> N:
    """t·u_O·u_V·m²/√d: what a change of a row of queries, seen by the keys, does to the output."""
    largest = deviation(num, x[-1])
    width = num.sqrt(site.output[1] // site.attributes.heads)
    return kept(num, site) * theta["output"] * theta["value"] * largest * largest / width


def query_kappa(num: Numbers[N], site: Site[Attention], x: Inputs[N], theta: Theta[N]) -> N:
    """κ_Q = t·u_O·u_V·u_K·X_q·m²/√d."""
    return covariance(num, site, x, theta) * theta["key"] * x[0].norm


def key_kappa(num: Numbers[N], site: Site[Attention], x: Inputs[N], theta: Theta[N]) -> N:
    """κ_K = t·u_O·u_V·u_Q·X_q·m²/√d."""
    return covariance(num, site, x, theta) * theta["query"] * x[0].norm


def query_lipschitz(num: Numbers[N], site: Site[Attention], x: Inputs[N], theta: Theta[N]) -> N:
    """l_q = t·u_O·u_V·u_Q·u_K·m²/√d."""
    return covariance(num, site, x, theta) * theta["query"] * theta["key"]


def context_lipschitz(num: Numbers[N], site: Site[Attention], x: Inputs[N], theta: Theta[N]) -> N:
    """l_c = t·u_O·u_V·(p + u_Q·u_K·m·min(p·R_q, X_q/√2)/√d): what values and keys pass on."""
    values = mixing(num, site, x, theta)
    keys = slope(num, site, theta) * deviation(num, x[-1]) * pull(num, x[0], values)
    return kept(num, site) * theta["output"] * theta["value"] * (values + keys)


def pull(num: Numbers[N], queries: Extent[N], mixed: N) -> N:
    """min(p·R_q, X_q/√2): how strongly a change of the keys is felt by all queries together."""
    return num.minimum(mixed * queries.row, queries.norm / num.sqrt(2))


def attention_lipschitz(num: Numbers[N], site: Site[Attention], x: Inputs[N], theta: Theta[N]) -> Sequence[N]:
    """l_q and l_c; their sum if queries and context are the same tensor."""
    parts = [query_lipschitz(num, site, x, theta), context_lipschitz(num, site, x, theta)]
    return parts if len(x) == 2 else [parts[0] + parts[1]]


OPS: tuple[AnyOp, ...] = (
    plain(
        "attention",
        Attention,
        attention_shape,
        "attention.md#attention",
        norm=attention_norm,
        row=attention_row,
        reads=("row",),
        lipschitz=attention_lipschitz,
        parameters=(
            weight_rule(query_shape, query_kappa, role="query"),
            weight_rule(key_shape, key_kappa, role="key"),
            weight_rule(key_shape, value_kappa, role="value"),
            weight_rule(query_shape, output_kappa, role="output"),
        ),
        operands=(1, 2),
        draws=lambda attributes: attributes.dropout != 0,
        axes="placed",
    ),
)

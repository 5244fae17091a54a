"""The embedding of tokens. Proofs: embedding.md."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from lipcompile.numbers import N, Numbers
from lipcompile.ops.linear.rules import stored_norm
from lipcompile.ops.record import AnyOp, Inputs, ParameterRule, Shape, Site, Theta
from lipcompile.ops.rules import plain


@dataclass(frozen=True, slots=True)
class Embedding:
    """A table of `entries` rows of `width` numbers; each token selects a row."""

    entries: int
    width: int


def embedding_shape(attributes: Embedding, inputs: tuple[Shape, ...]) -> Shape:
    """[...] -> [..., width]."""
    return (*inputs[0], attributes.width)


def table_shape(attributes: Embedding, inputs: tuple[Shape, ...]) -> Shape:
    """[entries, width]."""
    return (attributes.entries, attributes.width)


def embedding_norm(num: Numbers[N], site: Site[Embedding], x: Inputs[N], theta: Theta[N]) -> N:
    """X_out = √n·B, n tokens."""
    return num.sqrt(prod(site.inputs[0])) * theta["table"]


def embedding_row(num: Numbers[N], site: Site[Embedding], x: Inputs[N], theta: Theta[N]) -> N:
    """R_out = M_out = B."""
    return theta["table"]


def table_kappa(num: Numbers[N], site: Site[Embedding], x: Inputs[N], theta: Theta[N]) -> N:
    """κ = √n: all tokens may be equal."""
    return num.sqrt(prod(site.inputs[0]))


OPS: tuple[AnyOp, ...] = (
    plain(
        "embedding",
        Embedding,
        embedding_shape,
        "embedding.md#embedding",
        takes="tokens",
        norm=embedding_norm,
        row=embedding_row,
        entry=embedding_row,
        lipschitz=None,
        parameters=(
            ParameterRule(
                role="table",
                argument="bound",
                shape=table_shape,
                constraints=("rows",),
                operator_norm=stored_norm,
                kappa=table_kappa,
                optional=False,
            ),
        ),
    ),
)

"""The embedding of tokens, and trained tokens beside those of the example. Proofs: embedding.md, merge.md."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from lipcompile.core.record import AnyOp, Inputs, Shape, Site, Theta
from lipcompile.diagnostics import Refusal
from lipcompile.numbers import N, Numbers
from lipcompile.ops.linear.rules import stored_rule
from lipcompile.ops.rules import one, plain
from lipcompile.ops.schema import Index


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


# Class tokens


@dataclass(frozen=True, slots=True)
class ClassToken:
    """`count` entries along `axis` of the example, before its own; behind them if `last`."""

    count: int = 1
    axis: Index = 0
    last: bool = False


def class_token_shape(attributes: ClassToken, inputs: tuple[Shape, ...]) -> Shape:
    """[n, …] -> [n + count, …], along the axis."""
    example, axis = inputs[0], attributes.axis
    if not 0 <= axis < len(example):
        raise Refusal("LIP102", f"axis {axis} does not exist in an example of shape {list(example)}")
    return (*example[:axis], example[axis] + attributes.count, *example[axis + 1 :])


def tokens_shape(attributes: ClassToken, inputs: tuple[Shape, ...]) -> Shape:
    """[count, …]: the example's shape, `count` along the axis."""
    example, axis = inputs[0], attributes.axis
    return (*example[:axis], attributes.count, *example[axis + 1 :])


def joined_norm(num: Numbers[N], site: Site[ClassToken], x: Inputs[N], theta: Theta[N]) -> N:
    """X_out = √(X² + B²)."""
    return num.sqrt(x[0].norm * x[0].norm + theta["tokens"] * theta["tokens"])


def joined_row(num: Numbers[N], site: Site[ClassToken], x: Inputs[N], theta: Theta[N]) -> N:
    """R_out = max(R, B); √(R² + B²) if rows get longer."""
    if site.attributes.axis == len(site.output) - 1:
        return num.sqrt(x[0].row * x[0].row + theta["tokens"] * theta["tokens"])
    return num.maximum(x[0].row, theta["tokens"])


def joined_entry(num: Numbers[N], site: Site[ClassToken], x: Inputs[N], theta: Theta[N]) -> N:
    """M_out = max(M, B)."""
    return num.maximum(x[0].entry, theta["tokens"])


CLASS_TOKEN = plain(
    "class_token",
    ClassToken,
    class_token_shape,
    "merge.md#class-token",
    norm=joined_norm,
    row=joined_row,
    entry=joined_entry,
    parameters=(stored_rule("tokens", "ball", tokens_shape, one),),
    axes="placed",
)

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
        parameters=(replace(stored_rule("table", "rows", table_shape, table_kappa), is_matrix=True),),
        axes="placed",
        any_size=True,
    ),
    CLASS_TOKEN,
)

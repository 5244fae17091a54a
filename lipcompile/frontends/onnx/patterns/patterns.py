"""Operators that a file spells out in arithmetic: which patterns mean which op.

A pattern is tried at the last node of a spelling. What the nodes before it would mean by themselves (a square
root has no slope at 0, say) does not matter then: they are `Unfinished`, and refused only if something else
reads them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction

from lipcompile.core.graph import Value
from lipcompile.diagnostics import Refusal
from lipcompile.frontends.onnx.context import Context
from lipcompile.frontends.onnx.input_clip import INPUT_CLIP, input_clip
from lipcompile.frontends.onnx.node import OnnxNode
from lipcompile.frontends.onnx.patterns.algebra import (
    HALF,
    ONE,
    AnyOf,
    Constant,
    Filled,
    Found,
    Op,
    Pattern,
    Product,
    Same,
    Single,
    Sum,
    Tensor,
)
from lipcompile.frontends.onnx.patterns.matched import (
    attention,
    center,
    clip_norm,
    direction,
    dropped,
    elementwise,
    elu,
    layer_norm,
    leaky_relu,
    log_sigmoid,
    pool_of_squares,
    quick_gelu,
    rms_norm,
    scaled_root,
    softmax,
)

Build = Callable[[Context, OnnxNode, Found], Value | None]
X = Tensor("x")
TWO, MINUS = Fraction(2), -ONE


@dataclass(frozen=True, slots=True)
class Spelling:
    """A pattern and what it means. `last` are the operators that the last node may be."""

    last: tuple[str, ...]
    pattern: Pattern
    build: Build


def times(*factors: Pattern, factor: Fraction | float | str = ONE) -> Product:
    """A number times tensors."""
    exact = factor if isinstance(factor, str) else Fraction(factor)
    return Product(exact, tuple((pattern, ONE) for pattern in factors))


def over(dividend: Pattern, divisor: Pattern, exponent: Fraction = MINUS, factor: str = "c") -> Product:
    """A number times a tensor over another, or over its root."""
    return Product(factor, ((dividend, ONE), (divisor, exponent)))


def plus(offset: Fraction | float | str, *terms: tuple[Fraction | float | str, Pattern]) -> Sum:
    """A number plus multiples of tensors."""
    exact = offset if isinstance(offset, str) else Fraction(offset)
    return Sum(exact, tuple((w if isinstance(w, str) else Fraction(w), pattern) for w, pattern in terms))


def squared(pattern: Pattern) -> Pattern:
    """A tensor times itself."""
    return times(pattern, pattern)


def rooted(pattern: Pattern) -> Pattern:
    """c·√(k·tensor), or c·√(k·tensor + eps)."""
    return Product("c", ((either(times(pattern, factor="k"), plus("eps", ("k", pattern))), HALF),))


def either(*patterns: Pattern) -> AnyOf:
    """One of several patterns."""
    return AnyOf(patterns)


# Activations

ERF = Op("Erf", (times(X, factor=0.5**0.5),))
CUBIC = either(plus(0, (1, X), (0.044715, times(X, X, X))), times(X, plus(1, (0.044715, squared(X)))))
EXPONENTIAL_OF_X = Op("Exp", (X,))
# Where x is large, torch's own softplus is x.
SOFTPLUS = either(
    Op("Softplus", (X,)),
    Op("Log", (plus(1, (1, EXPONENTIAL_OF_X)),)),
    Op("Where", (Op("Greater", (times(X), Single("threshold"))), X, times(Op("Softplus", (times(X),))))),
)
RELU6 = either(
    Op("Clip", (plus(3, (1, X)),), key="clip"),
    Op("Min", (Op("Relu", (plus(3, (1, X)),)), Single(Fraction(6))), commutes=True),
)
SIXTHS = Op("HardSigmoid", (X,), key="sixths")
GATE = (2 / 3.141592653589793) ** 0.5
# Where the example is above or below zero; at zero the choices agree.
ZERO = Single(Fraction(0))
LIMIT, FILLING = (either(ZERO, Filled(key, Fraction(0))) for key in ("limit", "filling"))
POSITIVE = either(
    *(Op(above, (X, LIMIT)) for above in ("Greater", "GreaterOrEqual")),
    *(Op(below, (LIMIT, X)) for below in ("Less", "LessOrEqual")),
)
NEGATIVE = either(
    *(Op(below, (X, LIMIT)) for below in ("Less", "LessOrEqual")),
    *(Op(above, (LIMIT, X)) for above in ("Greater", "GreaterOrEqual")),
)
EXPONENTIAL_BELOW = plus("offset", ("alpha", EXPONENTIAL_OF_X))

ACTIVATIONS: Mapping[str, tuple[Pattern, ...]] = {
    "gelu": (times(X, plus(1, (1, ERF)), factor="c"),),
    "gelu_tanh": (
        times(X, plus(1, (1, Op("Tanh", (times(CUBIC, factor=GATE),)))), factor="c"),
        times(X, plus(1, (1, Op("Tanh", (times(X, plus(1, (0.044715, squared(X))), factor=GATE),)))), factor="c"),
    ),
    "silu": (
        times(X, Op("Sigmoid", (X,)), factor="c"),
        over(X, plus(1, (1, Op("Exp", (times(X, factor=-1),))))),
    ),
    "mish": (times(X, Op("Tanh", (SOFTPLUS,)), factor="c"),),
    "hard_swish": (times(X, RELU6, factor="c"), times(X, SIXTHS, factor="c")),
    "softsign": (over(X, plus(1, (1, Op("Abs", (X,))))),),
    "relu": (times(X, POSITIVE, factor="c"),),
    "sigmoid": (Product("c", ((plus(1, (1, Op("Exp", (times(X, factor=-1),)))), MINUS),)),),
}

# Norms


def averaged(pattern: Pattern, key: str) -> Pattern:
    """The mean of a tensor over axes."""
    return Op("ReduceMean", (pattern,), key=key)


CENTRED = plus(0, (1, X), (-1, averaged(X, "mean")))
VARIANCE = either(
    averaged(squared(CENTRED), "variance"),
    plus(0, (1, averaged(squared(X), "variance")), (-1, squared(averaged(X, "mean")))),
)
MEAN_SQUARE = averaged(squared(X), "variance")


def floored(square: Pattern) -> tuple[Pattern, ...]:
    """The larger of a root and a number, in front of the root or behind it."""
    root = Product(ONE, ((square, HALF),))
    return (
        Op("Max", (root, Single("floor")), commutes=True),
        Op("Clip", (root, Single("floor")), key="clipped"),
    )


# The larger of a norm and a radius, by which a projection on a ball divides
SUM_SQUARE = either(Op("ReduceSum", (squared(X),), key="norm"), Op("ReduceSumSquare", (X,), key="norm"))
NORM = either(Op("ReduceL2", (X,), key="norm"), Product(ONE, ((SUM_SQUARE, HALF),)))
LONGER = either(
    Op("Max", (NORM, Single("floor")), commutes=True),
    Op("Clip", (NORM, Single("floor")), key="clipped"),
)
LONGEST = either(LONGER, Op("Expand", (LONGER,), key="copies"))

# The mean of squares over windows, and that times its sign, as F.lp_pool2d has it
POOL = Op("AveragePool", (squared(X),), key="pool")
SIGNED_POOL = times(Op("Sign", (POOL,)), Op("Relu", (Op("Abs", (POOL,)),)))

# Attention and softmax

SCALED = times(Op("MatMul", (Tensor("q"), Tensor("kt"))), factor="scale")
SCORES = either(
    SCALED,
    plus(0, ("scale", Op("MatMul", (Tensor("q"), Tensor("kt")))), (1, Constant("mask"))),
    Op("Add", (SCALED, Constant("mask")), commutes=True),
    Op("Where", (Constant("seen"), SCALED, Constant("low"))),
    Op("Where", (Constant("hidden"), Constant("low"), SCALED)),
)
WEIGHTS = Same("weights", Op("Softmax", (SCORES,), key="softmax"))
SAFE_WEIGHTS = Op("Where", (Op("IsNaN", (WEIGHTS,)), Single(Fraction(0)), WEIGHTS))
PLAIN_WEIGHTS = either(WEIGHTS, SAFE_WEIGHTS)
EXPONENTIAL = Same(
    "powers",
    either(
        Op("Exp", (plus(0, (1, X), (-1, Op("ReduceMax", (X,), key="largest"))),)),
        Op("Exp", (X,)),
    ),
)

# Dropout spelled out: a number from 0 to 1 for each entry, or for several, is below p or not.
DRAW = Op("RandomUniformLike", (either(Constant("drawn"), Tensor("like")),), key="draw")
_BELOW, _ABOVE = ("Less", "LessOrEqual"), ("Greater", "GreaterOrEqual")
COMPARED, LOST = (
    either(
        *(Op(compares, (DRAW, Single(below))) for compares in _BELOW),
        *(Op(compares, (DRAW, Single(above))) for compares in _ABOVE),
    )
    for below, above in (("kept", "lost"), ("lost", "kept"))
)
FATE = either(
    COMPARED,
    Op("Floor", (plus("kept", (1, DRAW)),)),
    *(Op(one, (Constant("drawn"),), key="draw") for one in ("Bernoulli", "Dropout")),
)

_QUOTIENT = ("Mul", "Div")
SPELLINGS: Sequence[Spelling] = (
    *(
        Spelling(_QUOTIENT if name != "sigmoid" else ("Div", "Reciprocal"), pattern, elementwise(name))
        for name, patterns in ACTIVATIONS.items()
        for pattern in patterns
    ),
    Spelling(("Where",), SOFTPLUS, elementwise("softplus")),
    Spelling(("Log",), Op("Log", (Op("Sigmoid", (X,)),)), log_sigmoid),
    Spelling(("Where",), Op("Where", (POSITIVE, X, FILLING)), elementwise("relu")),
    Spelling(("Where",), Op("Where", (NEGATIVE, FILLING, X)), elementwise("relu")),
    Spelling(("Where",), Op("Where", (POSITIVE, X, EXPONENTIAL_BELOW)), elu),
    Spelling(("Where",), Op("Where", (NEGATIVE, EXPONENTIAL_BELOW, X)), elu),
    Spelling(("Where",), Op("Where", (POSITIVE, X, times(X, factor="slope"))), leaky_relu),
    Spelling(("Where",), Op("Where", (NEGATIVE, times(X, factor="slope"), X)), leaky_relu),
    Spelling(_QUOTIENT, times(X, FATE, factor="c"), dropped),
    Spelling(("Where",), Op("Where", (COMPARED, times(X, factor="c"), FILLING)), dropped),
    Spelling(("Where",), Op("Where", (LOST, FILLING, times(X, factor="c"))), dropped),
    Spelling(("Mul",), times(X, Op("Sigmoid", (times(X, factor="a"),)), factor="c"), quick_gelu),
    Spelling(("Log",), plus(0, (1, Op("Log", (plus(1, (1, Op("Exp", (X,)))),)))), elementwise("softplus")),
    Spelling(_QUOTIENT, over(CENTRED, plus("eps", ("k", VARIANCE)), -HALF), layer_norm),
    Spelling(_QUOTIENT, over(X, plus("eps", ("k", MEAN_SQUARE)), -HALF), rms_norm),
    *(Spelling(_QUOTIENT, over(CENTRED, divisor), layer_norm) for divisor in floored(VARIANCE)),
    *(Spelling(_QUOTIENT, over(X, divisor), rms_norm) for divisor in floored(MEAN_SQUARE)),
    Spelling(("Sub",), CENTRED, center),
    Spelling(_QUOTIENT, over(X, LONGEST), clip_norm),
    Spelling(("Where",), INPUT_CLIP, input_clip),
    Spelling(_QUOTIENT, over(X, plus("eps", (1, SUM_SQUARE)), -HALF), direction),
    *(Spelling(("Sqrt", "Pow"), root, pool_of_squares) for root in (rooted(POOL), rooted(SIGNED_POOL))),
    Spelling(("Sqrt", "Pow"), rooted(Op("ReduceSum", (squared(X),), key="sum")), scaled_root),
    Spelling(("Sqrt", "Pow"), rooted(Op("ReduceMean", (squared(X),), key="sum")), scaled_root),
    Spelling(("Sqrt", "Pow"), rooted(Op("ReduceSumSquare", (X,), key="sum")), scaled_root),
    Spelling(("Sqrt", "Pow"), rooted(squared(X)), scaled_root),
    Spelling(("Div",), over(EXPONENTIAL, Op("ReduceSum", (EXPONENTIAL,), key="sum")), softmax),
    Spelling(("MatMul",), Op("MatMul", (PLAIN_WEIGHTS, Tensor("v"))), attention),
    Spelling(("MatMul",), Op("MatMul", (Op("Dropout", (PLAIN_WEIGHTS,), key="dropout"), Tensor("v"))), attention),
)


def _by_last() -> Mapping[str, Sequence[Spelling]]:
    found: defaultdict[str, list[Spelling]] = defaultdict(list)
    for spelling in SPELLINGS:
        for op_type in spelling.last:
            found[op_type].append(spelling)
    return found


_BY_LAST = _by_last()


def spelled(context: Context, node: OnnxNode) -> Value | None:
    """Return what a spelling that ends in this node means, None if none does."""
    for spelling in _BY_LAST.get(node.op_type, ()):
        for found in spelling.pattern.match(context, node.outputs[0], {}):
            value = _built(context, node, spelling, found)
            if value is not None:
                return value
    return None


def _built(context: Context, node: OnnxNode, spelling: Spelling, found: Found) -> Value | None:
    layout = context.layout
    with suppress(Refusal):  # what is wrong with the operators by themselves is said when they are imported
        value = spelling.build(context, node, found)
        if value is not None:
            return value
    context.layout = layout
    return None

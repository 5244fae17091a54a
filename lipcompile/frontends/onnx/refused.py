"""ONNX operators that are not imported, and why: what no rule will ever cover, and what none covers yet."""

from __future__ import annotations

from collections.abc import Mapping

from lipcompile.diagnostics import Refusal
from lipcompile.ops.schema import suggest

_JUMPS = "it jumps"
_COMPARES = "its output is true or false, and jumps between them"
_UNBOUNDED = "its slope is unbounded"
_NEAR_ZERO = "its slope is unbounded near 0"
_NEAR_ONE = "its slope is unbounded near the ends of its domain"
_CONTROL = "control flow, which may depend on data"
_ROUNDS = "it rounds to a few bits, and jumps between them"
_TEXT = "it computes with text"
_LOSS = "the loss is not part of the network"
_FINDS = "which entries it returns depends on their values, and jumps"
_UNCOVERED = "no rule covers it"
_LINEAR = "it is linear, but no rule covers it"
_SEQUENCES = "sequences and optional values are not followed"
_DRAWS = "random numbers other than those of dropout"
_PLACES = "entries put at given places"
_FLOORLESS = "it divides by a norm without a floor"
_DEVIATION = "it divides by a deviation without a floor"
DIRECTIONS = (
    "divide by the larger of the Euclidean norm and a floor, as F.normalize(x, eps=0.5) does, or by "
    "√(Σx² + eps): the slope is 1/floor, or 1/√eps"
)

# By reason, or by operator.
_FIXES: Mapping[str, str] = {
    _CONTROL: "export the model with its loops and choices written out",
    _ROUNDS: "train the model before it is quantised",
    _LOSS: "end the model at the logits, and say --loss cross_entropy, nll or another",
    _COMPARES: "use relu, clip or a sigmoid instead of a comparison",
    _FLOORLESS: DIRECTIONS,
    _DEVIATION: "use layer_norm or instance_norm, which add eps to the variance: the slope is 1/√eps",
    "Sqrt": "roots of sums of squares are imported, and of Σx² + eps as a divisor of x",
    _SEQUENCES: "export the model with tensors of fixed shapes",
    _DRAWS: (
        "draw zeros and ones for each example by itself, as dropout and random depth do, or normal numbers with "
        "--bounds clip, or leave it out"
    ),
}

# Operators that draw random numbers, on constants too.
DRAWS = ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")

NEVER: Mapping[str, str] = {
    **dict.fromkeys(("Ceil", "Floor", "Mod", "Round"), _JUMPS),
    **dict.fromkeys(("BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "BitCast"), _JUMPS),
    **dict.fromkeys(("And", "Equal", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less"), _COMPARES),
    **dict.fromkeys(("LessOrEqual", "Not", "Or", "Xor"), _COMPARES),
    **dict.fromkeys(("Cosh", "Exp", "Sinh", "Tan"), _UNBOUNDED),
    **dict.fromkeys(("Log", "Reciprocal", "ReduceLogSum", "Sqrt"), _NEAR_ZERO),
    **dict.fromkeys(("Acos", "Acosh", "Asin", "Atanh"), _NEAR_ONE),
    **dict.fromkeys(("If", "Loop", "Scan", "SequenceMap"), _CONTROL),
    **dict.fromkeys(("ConvInteger", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger"), _ROUNDS),
    **dict.fromkeys(("QLinearConv", "QLinearMatMul", "QuantizeLinear"), _ROUNDS),
    **dict.fromkeys(("RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit"), _TEXT),
    **dict.fromkeys(("TfIdfVectorizer",), _TEXT),
    **dict.fromkeys(("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"), _LOSS),
    **dict.fromkeys(("MaxUnpool", "NonMaxSuppression", "NonZero", "Unique"), _FINDS),
    "ArgMax": "its output jumps: end the model at the logits",
    "ArgMin": "its output jumps: end the model at the logits",
    "Hardmax": "its output jumps: end the model at the logits",
    "ImageDecoder": "it reads the bytes of an image file",
    "MaxRoiPool": "which entries it pools depends on their values, and jumps",
    "LpNormalization": _FLOORLESS,
    "MeanVarianceNormalization": _DEVIATION,
    "ThresholdedRelu": "it jumps at its threshold",
}

LATER: Mapping[str, str] = {
    **dict.fromkeys(("AffineGrid", "Col2Im", "ReverseSequence", "STFT"), _LINEAR),
    **dict.fromkeys(("CausalConvWithState", "DeformConv", "GridSample", "LinearAttention"), _UNCOVERED),
    **dict.fromkeys(("RoiAlign", "SwiGLU"), _UNCOVERED),
    "RotaryEmbedding": _LINEAR,
    **dict.fromkeys(("CumProd", "Det", "ReduceProd"), "a product of entries of one tensor"),
    **dict.fromkeys(("Optional", "OptionalGetElement", "OptionalHasElement"), _SEQUENCES),
    **dict.fromkeys(("ConcatFromSequence", "SequenceAt", "SequenceConstruct", "SequenceEmpty"), _SEQUENCES),
    **dict.fromkeys(("SequenceErase", "SequenceInsert", "SequenceLength", "SplitToSequence"), _SEQUENCES),
    **dict.fromkeys(DRAWS, _DRAWS),
    **dict.fromkeys(("Scatter", "ScatterElements", "TensorScatter"), _PLACES),
    "CenterCropPad": "export it as Slice and Pad",
    "EyeLike": "a matrix of the size of another",
    "OneHot": "tokens select rows of an embedding: Gather",
}

# Operators on constants only: sizes, windows of signals, tables. They are folded, and no rule is missing.
OF_CONSTANTS = frozenset(
    ("BlackmanWindow", "Constant", "ConstantOfShape", "HammingWindow", "HannWindow", "MelWeightMatrix", "Range")
)


def seeded(op_type: str) -> Refusal:
    """Return what is said of an operator that draws with a seed in the file."""
    message = f"{op_type} has a fixed seed: every run draws the same, by the place of an example in its batch"
    return Refusal("LIP110", message, "leave `seed` out, so that every run draws anew")


def refusal_of(op_type: str, known: list[str], *, standard: bool) -> Refusal:
    """Return what is said of an operator without importer.

    known: the operators that have one. standard: whether this operator set defines it at all.
    """
    reason = NEVER.get(op_type)
    if reason is not None:
        help_line = _FIXES.get(op_type) or _FIXES.get(reason, "replace it, or leave it out")
        return Refusal("LIP100", f"unsupported op {op_type}: {reason}", help_line)
    reason = LATER.get(op_type)
    if reason is not None:
        help_line = _FIXES.get(reason, "replace it, or leave it out")
        return Refusal("LIP110", f"{op_type} is not yet supported: {reason}", help_line)
    if op_type in OF_CONSTANTS:
        message = f"{op_type} is computed from the example: it is supported on constants only"
        return Refusal("LIP110", message, "export the model with fixed sizes")
    near = suggest(op_type, known) or f"supported: {', '.join(known)}"
    untold = "" if standard else ", which this operator set does not define"
    return Refusal("LIP100", f"unsupported op {op_type}{untold}", near)

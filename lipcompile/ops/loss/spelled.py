"""Losses by name and arguments, and what to write instead of the names that other libraries use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from lipcompile.core.record import AnyLoss
from lipcompile.ops.schema import Argument, ArgumentError, bind, suggest
from lipcompile.ops.table import LOSS_BY_NAME

_SQUARES = "use mean_squared_error, for bounds by theorem with a bound of the targets: target_norm=…"
_LABELS = "use cross_entropy with class numbers and label_smoothing=…: other soft targets have other constants"
_LOGITS = "use bce on one logit, before the sigmoid"
_PAIRS = "it couples examples: the gradient of one example's loss would depend on the others"

# What other libraries call them, in lower case, without underscores and a final `loss`.
_ELSEWHERE: Mapping[str, str] = {
    **dict.fromkeys(("mse", "l2", "meansquarederror"), _SQUARES),
    **dict.fromkeys(("l1", "mae", "meanabsoluteerror"), "use absolute_error(reduce=mean)"),
    **dict.fromkeys(("ce", "xent", "crossentropy", "categoricalcrossentropy"), "use cross_entropy"),
    **dict.fromkeys(("softmaxcrossentropy", "sparsecategoricalcrossentropy", "softmax"), "use cross_entropy"),
    **dict.fromkeys(("kldiv", "kl", "softcrossentropy"), _LABELS),
    **dict.fromkeys(("bce", "bcewithlogits", "binarycrossentropy", "binarycrossentropywithlogits"), _LOGITS),
    **dict.fromkeys(("logistic", "sigmoid", "softmargin"), _LOGITS),
    **dict.fromkeys(("multimargin", "categoricalhinge"), "use multi_margin(margin=1, p=1)"),
    **dict.fromkeys(("huber",), "use huber(delta=1, reduce=mean)"),
    **dict.fromkeys(("smoothl1",), "use smooth_l1(beta=1, reduce=mean)"),
    **dict.fromkeys(("nll", "negativeloglikelihood"), "use nll on log-probabilities, cross_entropy on logits"),
    **dict.fromkeys(("cosinesimilarity", "cosineembedding"), "use cosine(floor=…)"),
    **dict.fromkeys(("tripletmargin", "triplet", "contrastive", "marginranking", "infonce", "ntxent"), _PAIRS),
}

_REDUCED = (
    "a loss is that of one example: `reduce` says how its own outputs are combined, where it has several; "
    "the batch is summed, and divided by its expected size"
)
# Arguments of torch's losses.
_ARGUMENTS: Mapping[str, str] = {
    **dict.fromkeys(("reduction", "size_average"), _REDUCED),
    "ignore_index": "write token_cross_entropy(ignore=…): ignored tokens count 0, and the mean divides by all",
    "weight": "write class_weights=(…), one weight a class",
    "pos_weight": "weights of the positive class are not supported",
    "num_classes": "the number of classes is that of the logits",
}


def unknown_loss(name: str) -> str:
    """Return the help for a loss that does not exist."""
    plain = name.replace("_", "").lower().removesuffix("loss")
    return _ELSEWHERE.get(plain) or suggest(name, list(LOSS_BY_NAME)) or f"there are: {', '.join(LOSS_BY_NAME)}"


def loss_attributes(loss: AnyLoss, positional: Sequence[Argument], named: Mapping[str, Argument]) -> Any:
    """Return the attributes of a loss from its arguments; raises ArgumentError."""
    known = {field.name for field in fields(loss.attributes)}
    for name in named:
        if name not in known and name in _ARGUMENTS:
            raise ArgumentError(name, f"has no argument `{name}`", _ARGUMENTS[name])
    return bind(loss.attributes, positional, named, rank=0)

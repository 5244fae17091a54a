"""Losses by name and arguments, and what to write instead of the names that other libraries use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from lipcompile.core.record import AnyLoss
from lipcompile.ops.schema import Argument, ArgumentError, bind, suggest
from lipcompile.ops.table import LOSS_BY_NAME

_SQUARES = "use mean_squared_error; bounds by theorem also need a bound of the targets: target_norm=…"
_LABELS = (
    "use cross_entropy with class indices and label_smoothing=…: other soft targets have other Lipschitz constants"
)
_LOGITS = "use bce on one logit, before the sigmoid, or multilabel_bce on several"
_PAIRS = "this loss mixes examples, so per-example gradients are undefined"

# What other libraries call them, in lower case, without underscores and a final `loss`.
_ELSEWHERE: Mapping[str, str] = {
    **dict.fromkeys(("mse", "l2", "meansquarederror"), _SQUARES),
    **dict.fromkeys(("l1", "mae", "meanabsoluteerror"), "use absolute_error(reduce=mean)"),
    **dict.fromkeys(("ce", "xent", "crossentropy", "categoricalcrossentropy"), "use cross_entropy"),
    **dict.fromkeys(("softmaxcrossentropy", "sparsecategoricalcrossentropy", "softmax"), "use cross_entropy"),
    **dict.fromkeys(("kldiv", "kl", "softcrossentropy"), _LABELS),
    **dict.fromkeys(("bce", "bcewithlogits", "binarycrossentropy", "binarycrossentropywithlogits"), _LOGITS),
    **dict.fromkeys(("logistic", "sigmoid", "softmargin", "multilabelsoftmargin"), _LOGITS),
    **dict.fromkeys(("multimargin", "categoricalhinge"), "use multi_margin(margin=1, p=1)"),
    **dict.fromkeys(("huber",), "use huber(delta=1, reduce=mean)"),
    **dict.fromkeys(("smoothl1",), "use smooth_l1(beta=1, reduce=mean)"),
    **dict.fromkeys(("nll", "negativeloglikelihood"), "use nll on log-probabilities, or cross_entropy on logits"),
    **dict.fromkeys(("cosinesimilarity", "cosineembedding"), "use cosine(floor=…)"),
    **dict.fromkeys(("tripletmargin", "triplet", "contrastive", "marginranking", "infonce", "ntxent"), _PAIRS),
}

_REDUCED = (
    "the loss is computed for each example: `reduce` combines the outputs of one example; the losses of "
    "the batch are summed, and divided by the expected batch size"
)
# Arguments of torch's losses.
_ARGUMENTS: Mapping[str, str] = {
    **dict.fromkeys(("reduction", "size_average"), _REDUCED),
    "ignore_index": "write token_cross_entropy(ignore=…): an ignored token counts 0 and stays in the mean",
    "weight": "write class_weights=(…), with one weight for each class",
    "pos_weight": "weights of the positive class are not supported",
    "num_classes": "the number of classes is the number of logits",
}


def unknown_loss(name: str) -> str:
    """Return the help for a loss that does not exist."""
    plain = name.replace("_", "").lower().removesuffix("loss")
    return _ELSEWHERE.get(plain) or suggest(name, list(LOSS_BY_NAME)) or f"known losses: {', '.join(LOSS_BY_NAME)}"


def loss_attributes(loss: AnyLoss, positional: Sequence[Argument], named: Mapping[str, Argument]) -> Any:
    """Return the attributes of a loss from its arguments; raises ArgumentError."""
    known = {field.name for field in fields(loss.attributes)}
    for name in named:
        if name not in known and name in _ARGUMENTS:
            raise ArgumentError(name, f"has no argument `{name}`", _ARGUMENTS[name])
    return bind(loss.attributes, positional, named, rank=0)

"""Changes of structure: another network, whose bound is nearer to what its gradients can be; and of training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from fractions import Fraction
from math import isfinite
from typing import Any

from lipcompile.analysis.changes.edit import Edit, Family, Kind, Patch, of_parameters, without_overlap
from lipcompile.analysis.changes.subject import (
    HALF,
    Subject,
    halved,
    in_lip,
    layer_in_lip,
    per_axis,
    rounded_down,
    shown,
)
from lipcompile.core.graph import Node
from lipcompile.core.record import AnyOp, Constraint, NoAttributes
from lipcompile.ops.conv.rules import CONV, Conv
from lipcompile.ops.normalisation.rules import squared_slope
from lipcompile.ops.pool.rules import AveragePool, LpPool, Pool
from lipcompile.ops.shape.rules import ClipGradient, Dropout
from lipcompile.ops.table import OP_BY_NAME

ZERO, ONE = Fraction(0), Fraction(1)
# Reductions and pools, and what averages in their place.
_AVERAGES = {
    **dict.fromkeys(("max_pool", "l2_pool", "scaled_avg_pool"), "avg_pool"),
    **dict.fromkeys(("global_max_pool", "global_l2_pool"), "global_avg_pool"),
    **dict.fromkeys(("reduce_sum", "reduce_max", "reduce_min", "reduce_l1", "reduce_l2"), "reduce_mean"),
}
# Their averages are the same, divided by a number.
_SUMS = ("scaled_avg_pool", "reduce_sum")
# Activations that are steeper than 1.
_STEEPER_THAN_RELU = ("elu", "gelu", "selu", "silu", "mish", "hard_swish")
# Digits of a bound to clip to.
_CLIP_DIGITS = 2


def families(subject: Subject) -> Iterator[Family]:
    """Yield the changes of structure, those that go together in one family, then those of training."""
    convolutions = [node for node in subject.nodes if node.op is CONV]
    yield Family("every bias left out", list(_without_biases(subject)))
    yield Family("every convolution in steps of 2", [edit for node in convolutions for edit in _strided(node, 2)])
    yield Family(
        "every convolution in steps of its kernel",
        [edit for node in convolutions for edit in _strided(node, None)],
    )
    yield Family("spectral constraints instead of frobenius", list(_spectral(subject)))
    for summary, found in (
        ("every pool as wide as its stride", _narrowed),
        ("every pool in steps of its kernel", _stepped),
        ("averages instead of other pools", _averaged),
        ("every norm with a floor", _floored),
        ("relu instead of steeper activations", _gentler),
        ("every dropout left out", _undropped),
    ):
        yield Family(summary, [edit for node in subject.nodes for edit in found(node)])
    yield Family("", list(_frozen(subject)))
    yield Family("", list(_clipped(subject)))


def _replaced(node: Node, op: AnyOp, attributes: Any, text: str, kind: Kind = "structure") -> Edit:
    return Edit(kind, node.name, text, Patch(nodes={node.name: (op, attributes)}))


# Windows


def _strided(node: Node, most: int | None) -> Iterator[Edit]:
    """Larger steps of a convolution, up to its kernel and to `most`: fewer windows read an entry."""
    conv: Conv = node.attributes
    stride = tuple(max(s, min(k, most or k)) for s, k in zip(conv.stride, conv.kernel, strict=True))
    if stride == conv.stride or (most is None and max(conv.kernel) <= 2):
        return
    text = f"{layer_in_lip(CONV, len(stride))} stride={per_axis(stride)} instead of {per_axis(conv.stride)}"
    apart = stride == conv.kernel and max(conv.dilation) == 1
    yield _replaced(
        node, CONV, replace(conv, stride=stride), f"{text}: windows no longer overlap" if apart else text
    )


def _narrowed(node: Node) -> Iterator[Edit]:
    """A pool whose windows are as wide as their steps, if its output keeps its shape."""
    pool = node.attributes
    if not isinstance(pool, Pool | LpPool) or pool.kernel == pool.stride:
        return
    narrow = without_overlap(node)
    if narrow is not None:
        text = f"kernel={per_axis(narrow.kernel)} instead of {per_axis(pool.kernel)}, without padding"
        yield _replaced(node, node.op, narrow, f"{node.op.name} {text}: windows no longer overlap")


def _stepped(node: Node) -> Iterator[Edit]:
    """A pool in steps of its kernel."""
    pool = node.attributes
    if not isinstance(pool, Pool | LpPool) or max(pool.dilation) > 1:
        return
    stride = tuple(map(max, pool.stride, pool.kernel))
    if stride != pool.stride:
        text = f"{node.op.name} stride={per_axis(stride)} instead of {per_axis(pool.stride)}"
        yield _replaced(node, node.op, replace(pool, stride=stride), f"{text}: windows no longer overlap")


def _averaged(node: Node) -> Iterator[Edit]:
    """Averages of the same windows."""
    if node.op.name not in _AVERAGES:
        return
    op, attributes = OP_BY_NAME[_AVERAGES[node.op.name]], node.attributes
    if isinstance(attributes, Pool):
        attributes = AveragePool(**{f.name: getattr(attributes, f.name) for f in fields(attributes)})
    kind: Kind = "scale" if node.op.name in _SUMS else "structure"
    yield _replaced(node, op, attributes, f"{op.name} instead of {node.op.name}", kind)


# Layers without windows


def _floored(node: Node) -> Iterator[Edit]:
    """A norm that divides by 1/2 at least, or by 1 if it does that already."""
    square = squared_slope(node.attributes)
    if square is None or square <= 1:
        return
    norm = node.attributes
    eps = norm.eps is not None
    floor, old = (HALF if eps and square > 4 else ONE), f"eps={shown(norm.eps)}" if eps else shown(norm.floor)
    text = f"{node.op.name} floor={shown(floor)} instead of {old}"
    yield _replaced(node, node.op, replace(norm, floor=floor, eps=None), text)


def _gentler(node: Node) -> Iterator[Edit]:
    """An activation of slope 1 at most."""
    if node.op.name in _STEEPER_THAN_RELU:
        yield _replaced(node, OP_BY_NAME["relu"], NoAttributes(), f"relu instead of {node.op.name}")


def _undropped(node: Node) -> Iterator[Edit]:
    """A dropout that keeps all entries, which is none."""
    if isinstance(node.attributes, Dropout):
        text = f"without {node.op.name}({shown(node.attributes.probability)})"
        yield _replaced(node, node.op, replace(node.attributes, probability=ZERO), text)


# Parameters


def _without_biases(subject: Subject) -> Iterator[Edit]:
    """A bias that is 0 and not trained adds to no bound, as one that is left out."""
    for node, parameters in subject.trained("bias", "bound"):
        gone = [
            replace(parameter, constraint=Constraint("ball", ZERO), trainable=False, initial=None)
            for parameter, rule in parameters
            if rule.role == "bias"
        ]
        if gone:
            yield of_parameters("structure", node, gone, "without this bias")


def _spectral(subject: Subject) -> Iterator[Edit]:
    """A bound of the operator norm itself: that of a kernel may be √M times its Frobenius norm."""
    for node, parameters in subject.trained("constraint"):
        old = parameters[0][0].constraint
        if all(parameter.constraint.kind == "frobenius" for parameter, _ in parameters):
            new = Constraint("spectral", old.bound)
            changed = [replace(parameter, constraint=new) for parameter, _ in parameters]
            text = f"constraint={in_lip(new)} instead of {in_lip(old)}"
            yield of_parameters("structure", node, changed, text)


# Training


def _frozen(subject: Subject) -> Iterator[Edit]:
    """The layer whose parameters have the largest share, frozen."""
    layer = next(iter(subject.layers), None)
    if layer is None:
        return
    own = [name for name in subject.relative if subject.owners[name].name == layer]
    parameters = {name: replace(subject.graph.parameters[name], trainable=False) for name in own}
    yield Edit("training", layer, f"frozen: {', '.join(own)} not trained", Patch(parameters=parameters))


def _clipped(subject: Subject) -> Iterator[Edit]:
    """Half of what the loss sends back, for each example."""
    graph = subject.graph
    last = graph.nodes[-1] if graph.nodes and graph.nodes[-1].name == graph.output else None
    if last is not None and isinstance(last.attributes, ClipGradient):
        old, new = last.attributes.bound, halved(last.attributes.bound)
        text = f"clip_gradient({shown(new)}) instead of clip_gradient({shown(old)})"
        yield Edit("training", last.name, text, Patch(nodes={last.name: (last.op, ClipGradient(new))}))
        return
    if isfinite(subject.loss_lipschitz) and subject.loss_lipschitz > 0:
        bound = rounded_down(Fraction(subject.loss_lipschitz) * HALF, _CLIP_DIGITS)
        text = f"clip_gradient({shown(bound)}) before the loss, which sends back up to L"
        yield Edit("training", graph.output, text, Patch(clip=bound))

"""Changes of training: the same network, with a layer that is not trained, or gradients that are clipped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from math import isfinite

from lipcompile.analysis.what_if.edit import Edit, Family, Patch
from lipcompile.analysis.what_if.subject import HALF, Subject, halved, rounded_down, shown
from lipcompile.ops.shape.rules import ClipGradient

# Digits of a bound to clip to.
_DIGITS = 2


def families(subject: Subject) -> Iterator[Family]:
    """Yield the changes of training, each by itself."""
    yield Family("", list(_frozen(subject)))
    yield Family("", list(_clipped(subject)))


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
        text = f"clip_gradient({shown(new)}) in place of clip_gradient({shown(old)})"
        yield Edit("training", last.name, text, Patch(nodes={last.name: (last.op, ClipGradient(new))}))
        return
    if isfinite(subject.loss_lipschitz) and subject.loss_lipschitz > 0:
        bound = rounded_down(Fraction(subject.loss_lipschitz) * HALF, _DIGITS)
        text = f"clip_gradient({shown(bound)}) before the loss, which sends back up to L"
        yield Edit("training", graph.output, text, Patch(clip=bound))

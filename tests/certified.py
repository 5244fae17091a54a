"""Certificates of many graphs: each use of an op, each loss, random networks."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import islice
from math import prod
from typing import Any

from lipcompile.analysis.bounds import derive
from lipcompile.certificates import document
from lipcompile.core.derivation import Source
from lipcompile.core.graph import Graph, GraphBuilder, LossUse, ParameterChoice, Value
from lipcompile.core.record import AnyOp, Constraint, NoAttributes, Shape
from lipcompile.numbers.certified import Certified
from lipcompile.ops.linear.rules import Dense
from lipcompile.ops.loss.rules import CrossEntropy
from lipcompile.ops.rules import unbounded
from lipcompile.ops.shape.rules import ClipNorm, Reshape
from lipcompile.ops.table import LOSS_BY_NAME, OP_BY_NAME, OPS

from .attacks.catalogue import LOSS_ATTACKS
from .attacks.harness import Case, LossCase
from .attacks.instances import cases, loss_cases

SOURCE = Source("sample", "sample.lip", "lip", "0" * 64)
WEIGHT = {"weight": ParameterChoice(Constraint("spectral", Fraction(5, 4)))}


def certificate_of(graph: Graph) -> dict[str, Any]:
    """The certificate of a graph that no file says."""
    return document(SOURCE, graph, derive(graph, Certified()))


def uses(each: int, seed: int = 0) -> Iterator[Graph]:
    """So many uses of every op in a network, one where what it reads depends on no parameter."""
    for op in OPS:
        for found in islice(cases(op.name, seed), each):
            yield network_of(found)


def losses(each: int, seed: int = 0) -> Iterator[Graph]:
    """So many uses of every loss that has a constant."""
    for name in LOSS_ATTACKS:
        for found in islice(loss_cases(name, seed), each):
            yield network_of_loss(found)


def network_of(case: Case) -> Graph:
    """dense layers make the operands of the op, which may not be Lipschitz: then it reads the input itself."""
    builder, op = GraphBuilder("use"), case.op
    if op.lipschitz is None:
        norm = None if op.takes == "tokens" else case.bounds[0].norm
        shape = case.site.inputs[0]
        operands = [builder.input("x", shape, norm, False, None, tokens=op.takes == "tokens")] * len(case.bounds)
    else:
        x = builder.input("x", (3,), case.bounds[0].norm, False, None)
        operands = [_dense_to(builder, x, shape) for shape in case.site.inputs]
    choices = {role: ParameterChoice(constraint) for role, constraint in case.constraints.items()}
    y = builder.add(op, case.site.attributes, operands, name="use", parameters=choices)
    y = bounded(builder, op, y)
    return _finished(builder, _logits(builder, y, (3,)), LossUse(LOSS_BY_NAME["cross_entropy"], CrossEntropy()))


def network_of_loss(case: LossCase) -> Graph:
    """A dense layer, and the loss of what it makes."""
    builder = GraphBuilder("loss")
    x = builder.input("x", (3,), Fraction(case.norm), False, None)
    return _finished(builder, _logits(builder, x, case.shape), LossUse(case.loss, case.attributes))


def bounded(builder: GraphBuilder, op: AnyOp, value: Value) -> Value:
    """Clip what an op without a bound has made: theorems of what follows need one."""
    if op.norm is not unbounded:
        return value
    return builder.add(OP_BY_NAME["clip_norm"], ClipNorm(Fraction(2)), [value], name="bounded")


def _dense_to(builder: GraphBuilder, x: Value, shape: Shape) -> Value:
    y = builder.add(OP_BY_NAME["dense"], Dense(prod(shape)), [x], name="to", parameters=WEIGHT)
    return builder.add(OP_BY_NAME["reshape"], Reshape(shape), [y], name="shaped")


def _logits(builder: GraphBuilder, y: Value, shape: Shape) -> Value:
    return _dense_to(builder, builder.add(OP_BY_NAME["flatten"], NoAttributes(), [y], name="flat"), shape)


def _finished(builder: GraphBuilder, y: Value, loss: LossUse) -> Graph:
    graph = builder.finish(y, loss)
    assert graph is not None, builder.diagnostics
    return graph

"""Certificates for tests: of graphs, of one op in a graph, of random graphs."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from fractions import Fraction
from math import prod
from random import Random
from typing import Any

from lipcompile.certificates import certificate, encode
from lipcompile.core.derivation import Source
from lipcompile.core.graph import Graph, GraphBuilder, LossUse, ParameterChoice, Value
from lipcompile.core.record import Constraint, NoAttributes
from lipcompile.frontends.options import Loaded, ModelOptions
from lipcompile.ops.linear.rules import Dense
from lipcompile.ops.shape.rules import ClipNorm, Reshape, Slice
from lipcompile.ops.table import LOSS_BY_NAME, OP_BY_NAME
from lipcompile.pipeline import derive

from ..attacks.catalogue import LOSS_ATTACKS
from ..attacks.draw import Draw
from ..attacks.graphs import random_graph
from ..attacks.instances import cases
from ..certified import bounded

ONE = Fraction(1)
SPECTRAL = Constraint("spectral", ONE)


def document(graph: Graph) -> dict[str, Any]:
    """Return the certificate of a graph that the compiler accepts; raises InputError."""
    derivation = derive(Loaded(Source("test", "test.lip", "lip", "0" * 64), graph, ()), ModelOptions())
    parsed: dict[str, Any] = json.loads(encode(certificate(derivation)))
    return parsed


def drawn(seed: int) -> dict[str, Any]:
    """Return the certificate of a random graph; those lend pools attributes that others have."""
    graph = random_graph(seed)
    nodes = []
    for node in graph.nodes:
        values = {f.name: getattr(node.attributes, f.name) for f in fields(node.op.attributes)}
        attributes = node.op.attributes(**values)
        nodes.append(replace(node, attributes=attributes, site=replace(node.site, attributes=attributes)))
    return document(replace(graph, nodes=tuple(nodes)))


def one_op(op: str, seed: int, loss: str | None = None) -> Graph | None:
    """Return a graph in which a random use of an op stands before a layer and a loss, any if none is named."""
    rng = Random(f"{op} {seed}")
    case = next(cases(op, seed))
    builder = GraphBuilder("test")
    tokens = OP_BY_NAME[op].takes == "tokens"
    shapes = case.site.inputs
    if tokens:
        operands = [builder.input("x", shapes[0], None, trusted=False, location=None, tokens=True)]
    else:
        operands = _operands(builder, shapes, rng)
    choices = {
        role: ParameterChoice(constraint, trainable=rng.random() < 0.9)
        for role, constraint in case.constraints.items()
    }
    value = builder.add(OP_BY_NAME[op], case.site.attributes, operands, name="used", parameters=choices)
    return with_loss(builder, bounded(builder, OP_BY_NAME[op], value), Draw(rng), loss)


def _operands(builder: GraphBuilder, shapes: tuple[tuple[int, ...], ...], rng: Random) -> list[Value]:
    """Cut the operands out of one input, some of them clipped, or behind a layer that is trained."""
    whole = builder.input(
        "x", (sum(map(prod, shapes)),), Fraction(rng.randint(1, 30), 8), trusted=False, location=None
    )
    operands, start = [], 0
    for shape in shapes:
        value = whole
        if len(shapes) > 1:
            value = builder.add(OP_BY_NAME["slice"], Slice(0, start, start + prod(shape)), [whole], name="slice")
        start += prod(shape)
        if rng.random() < 0.4:
            layer = {"weight": ParameterChoice(Constraint("frobenius", Fraction(rng.randint(1, 12), 6)))}
            value = builder.add(OP_BY_NAME["dense"], Dense(prod(shape)), [value], name="dense", parameters=layer)
        value = builder.add(OP_BY_NAME["reshape"], Reshape(shape), [value], name="reshape")
        if rng.random() < 0.3:
            value = builder.add(
                OP_BY_NAME["clip_norm"], ClipNorm(Fraction(rng.randint(1, 9), 7)), [value], name="clip"
            )
        if rng.random() < 0.3:
            value = builder.add(OP_BY_NAME["tanh"], NoAttributes(), [value], name="tanh")
        operands.append(value)
    return operands


def with_loss(builder: GraphBuilder, value: Value, draw: Draw, name: str | None) -> Graph | None:
    """Finish a graph by a loss, behind a layer, since the loss may need another shape."""
    name = name or draw.rng.choice([one for one in LOSS_BY_NAME if one in LOSS_ATTACKS])
    shape = LOSS_ATTACKS[name].shape(draw)
    attributes = LOSS_ATTACKS[name].attributes(draw, shape)
    flat = builder.add(OP_BY_NAME["flatten"], NoAttributes(), [value], name="flat")
    weight = {"weight": ParameterChoice(SPECTRAL)}
    value = builder.add(OP_BY_NAME["dense"], Dense(prod(shape)), [flat], name="head", parameters=weight)
    value = builder.add(OP_BY_NAME["reshape"], Reshape(shape), [value], name="logits")
    return builder.finish(value, LossUse(LOSS_BY_NAME[name], attributes))

"""Values of parameters that a graph does not have: a start, as the runtime would make it, from a fixed seed."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from fractions import Fraction
from math import pi, prod, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lipcompile.core.graph import Graph, Node, Parameter
from lipcompile.numbers import Scalar
from lipcompile.ops.conv.rules import gathered

Array = NDArray[Any]
# Where numbers of their kind start, if their bound allows it.
_START = {"gain": 1.0, "slope": 0.25}


def complete(graph: Graph, given: Mapping[str, Array] | None = None) -> dict[str, Array]:
    """Return a value for every parameter: as given, as imported, or a start inside its constraint.

    Raises:
        ValueError: a given value has another shape than its parameter.
    """
    found = {name: p.initial for name, p in graph.parameters.items() if p.initial is not None} | dict(given or {})
    users = {name: (node, role) for node in reversed(graph.nodes) for role, name in node.parameters.items()}
    for name, parameter in graph.parameters.items():
        if name not in found:
            found[name] = _start(parameter, *users[name])
        if found[name].shape != parameter.shape:
            raise ValueError(f"`{name}` has the shape {list(found[name].shape)}, not {list(parameter.shape)}")
    return found


def _start(parameter: Parameter, node: Node, role: str) -> Array:
    kind, bound = parameter.constraint.kind, _number(parameter.constraint.bound)
    if kind == "ball":
        return np.zeros(parameter.shape)
    if kind == "free":
        return np.full(parameter.shape, pi / 2)
    if kind == "box":
        return np.full(parameter.shape, min(_START.get(role, 0.0), bound))
    random = np.random.default_rng(zlib.crc32(parameter.name.encode())).standard_normal(parameter.shape)
    if kind == "rows":
        return np.asarray(bound * random / np.linalg.norm(random, axis=-1, keepdims=True))
    start = bound / gathered(node.op.name, node.site) * _orthogonal(random)
    return start / _rank(parameter) if kind == "frobenius" else start


def _orthogonal(random: Array) -> Array:
    """Return the nearest matrix with orthonormal rows or columns, in the shape of a kernel."""
    left, _, right = np.linalg.svd(random.reshape(len(random), -1), full_matrices=False)
    return np.asarray((left @ right).reshape(random.shape))


def _rank(parameter: Parameter) -> float:
    return sqrt(min(parameter.shape[0], prod(parameter.shape[1:])))


def _number(bound: Scalar) -> float:
    """Return a bound, 1 for one that is open."""
    return float(bound) if isinstance(bound, Fraction) else 1.0

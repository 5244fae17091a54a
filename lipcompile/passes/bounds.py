"""The bounds pass: X(t) forward, G(t) backward, K(p) per parameter, in any number domain.

Soundness is induction over the DAG (docs/theory.md): forward from ‖x‖ <= X_0; backward by the chain rule and
‖Jᵀg‖ <= ‖J‖‖g‖. A tensor with several consumers receives the sum of their cotangent bounds, except that slices
which do not overlap combine as √ΣG². A parameter used in several places receives the sum of its bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic

from lipcompile.graph import Graph, Node
from lipcompile.numbers import N, Numbers
from lipcompile.ops.record import scaled_by_lipschitz
from lipcompile.ops.shape import Slice


@dataclass(frozen=True, slots=True)
class Bounds(Generic[N]):
    """Every bound of a graph, in one number domain, by value or parameter name.

    norm: X(t). gain: Lipschitz constants of a node in its inputs. cotangent: G(t). slope: Lipschitz constant of
    the output in t. gradient: K(p) of trainable parameters, per example. loss_lipschitz: L. total: √ΣK².
    """

    norm: Mapping[str, N]
    gain: Mapping[str, Sequence[N]]
    cotangent: Mapping[str, N]
    slope: Mapping[str, N]
    gradient: Mapping[str, N]
    loss_lipschitz: N
    total: N


def derive(graph: Graph, num: Numbers[N], current: Mapping[str, N] | None = None) -> Bounds[N]:
    """Evaluate all rules of `graph` in the domain `num`.

    `current` gives bounds of the parameters as they are (operator norm of a weight, length of a bias), by name, to
    be used in place of what their constraints allow: bounds that follow the weights.
    """
    norm, gain = _forward(graph, num, current or {})
    seed = _loss_lipschitz(graph, num, norm[graph.output])
    cotangent = _Backward(graph, num, gain, through_clips=True).run(seed, "G")
    slope = _Backward(graph, num, gain, through_clips=False).run(num.of(1), "l")
    gradient = _gradients(graph, num, norm, cotangent)
    return Bounds(norm, gain, cotangent, slope, gradient, seed, _root_of_squares(num, list(gradient.values())))


def _forward(
    graph: Graph, num: Numbers[N], current: Mapping[str, N]
) -> tuple[dict[str, N], dict[str, Sequence[N]]]:
    source = graph.input
    norm = {source.name: num.symbol("X_0", source.norm, "bound of the input norm")}
    gain: dict[str, Sequence[N]] = {}
    for node in graph.nodes:
        x = [norm[operand] for operand in node.inputs]
        theta = _theta(graph, num, node, current)
        gain[node.name] = node.op.lipschitz(num, node.site, x, theta)
        bound = node.op.norm(num, node.site, x, theta)
        norm[node.name] = num.let(f"X_{node.name}", bound, f"bound of the output norm of {node.name}")
    return norm, gain


def _theta(graph: Graph, num: Numbers[N], node: Node, current: Mapping[str, N]) -> Mapping[str, N]:
    """Bounds of the node's parameters: as they are, where that is given, else from their constraints."""
    return {
        role: current[name]
        if name in current
        else node.op.parameter(role).operator_norm(num, node.site, graph.parameters[name].constraint)
        for role, name in node.parameters.items()
    }


def _loss_lipschitz(graph: Graph, num: Numbers[N], logits: N) -> N:
    if graph.loss is None:
        return num.symbol("L", None, "Lipschitz constant of the loss in the logits")
    classes = graph.shape(graph.output)[0] if graph.shape(graph.output) else 1
    constant = graph.loss.loss.lipschitz(num, graph.loss.attributes, classes, logits)
    return num.let("L", constant, "Lipschitz constant of the loss in the logits")


class _Backward(Generic[N]):
    """One sweep against the edges. Without `through_clips`, gradient clips are the identities they are forward."""

    def __init__(
        self, graph: Graph, num: Numbers[N], gain: Mapping[str, Sequence[N]], *, through_clips: bool
    ) -> None:
        self._graph, self._num, self._gain, self._clips = graph, num, gain, through_clips
        self._received: dict[str, list[tuple[N, Node | None]]] = {graph.output: []}

    def run(self, seed: N, letter: str) -> dict[str, N]:
        """Return the bound of each value, from `seed` at the output."""
        found: dict[str, N] = {}
        self._received[self._graph.output].append((seed, None))
        for node in reversed(self._graph.nodes):
            found[node.name] = self._named(node.name, letter)
            for operand, bound in zip(node.inputs, self._hand_on(node, found[node.name]), strict=True):
                self._received.setdefault(operand, []).append((bound, node))
        found[self._graph.input.name] = self._named(self._graph.input.name, letter)
        return found

    def _hand_on(self, node: Node, cotangent: N) -> Sequence[N]:
        rule = node.op.cotangent if self._clips else scaled_by_lipschitz
        return rule(self._num, node.site, cotangent, self._gain[node.name])

    def _named(self, value: str, letter: str) -> N:
        bound = combine_cotangents(self._num, self._received[value])
        return self._num.let(f"{letter}_{value}", bound, f"bound of the cotangent at {value}")


def combine_cotangents(num: Numbers[N], received: Sequence[tuple[N, Node | None]]) -> N:
    """Sum of what the consumers hand back; √ΣG² over slices of one tensor that are pairwise disjoint."""
    slices = [(bound, node) for bound, node in received if node is not None and isinstance(node.attributes, Slice)]
    if len(slices) > 1 and _disjoint([node.attributes for _, node in slices]):
        others = [bound for bound, node in received if node is None or not isinstance(node.attributes, Slice)]
        terms = [_root_of_squares(num, [bound for bound, _ in slices]), *others]
    else:
        terms = [bound for bound, _ in received]
    return sum(terms[1:], start=terms[0])


def _disjoint(slices: Sequence[Slice]) -> bool:
    ordered = sorted(slices, key=lambda part: part.start)
    same_axis = len({part.axis for part in slices}) == 1
    return same_axis and all(a.stop <= b.start for a, b in pairwise(ordered))


def _gradients(graph: Graph, num: Numbers[N], norm: Mapping[str, N], cotangent: Mapping[str, N]) -> dict[str, N]:
    found: dict[str, N] = {}
    for node in graph.nodes:
        x = [norm[operand] for operand in node.inputs]
        for role, name in node.parameters.items():
            if graph.parameters[name].trainable:
                bound = node.op.parameter(role).kappa(num, node.site, x) * cotangent[node.name]
                found[name] = found[name] + bound if name in found else bound
    letters = _identifiers(found)
    return {name: num.let(f"K_{letters[name]}", k, f"gradient bound of {name}") for name, k in found.items()}


def _identifiers(names: Iterable[str]) -> dict[str, str]:
    """Write dots as underscores, and number what then looks alike: two bounds must never share a variable."""
    written: dict[str, str] = {}
    for name in names:
        candidate, count = name.replace(".", "_"), 1
        while candidate in written.values():
            count += 1
            candidate = f"{name.replace('.', '_')}_{count}"
        written[name] = candidate
    return written


def _root_of_squares(num: Numbers[N], terms: Sequence[N]) -> N:
    squares = [term * term for term in terms]
    return num.sqrt(sum(squares[1:], start=squares[0])) if squares else num.of(0)

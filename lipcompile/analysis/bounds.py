"""The bounds pass: X(t) forward, G(t) backward, K(p) per parameter, in any number domain.

Soundness is induction over the DAG (docs/theory.md): forward from ‖x‖ <= X_0; backward by the chain rule and
‖Jᵀg‖ <= ‖J‖‖g‖. A tensor with several consumers receives the sum of their cotangent bounds, except that disjoint
slices, and branches that one concatenation joins, combine as √ΣG² (`disjoint_parts`). A parameter used in several
places receives the sum of its bounds.

The gradient of a parameter that the backward pass clips is bounded by the length that it is clipped to, whatever
the rules say. Of a weight that nothing constrains the norm is a symbol without a value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic

from lipcompile.analysis.disjoint_parts import (
    WHOLE,
    BranchBound,
    Part,
    PartwiseBound,
    bound,
    branch_bound,
    disjoint,
    disjoint_slices,
    limited,
    settled,
    slice_bound,
    total,
)
from lipcompile.core.graph import Graph, Node
from lipcompile.core.names import Names
from lipcompile.core.record import ConstraintKind, Extent, Shape, scaled_by_lipschitz
from lipcompile.numbers import N, Numbers
from lipcompile.numbers.matrices import root_of_squares


@dataclass(frozen=True, slots=True)
class Bounds(Generic[N]):
    """Every bound of a graph, in one number domain, by value or parameter name.

    norm: X(t). extent: X(t), R(t), M(t); all X(t) where nothing reads the others. theta: what the constraints of a
    node's parameters bound, by role. gain: Lipschitz constants of a node in its inputs. kappa: κ of a node's
    trainable parameters, by role. cotangent: G(t). slope: Lipschitz constant of the output in t. gradient: K(p) of
    trainable parameters, per example. loss_lipschitz: L. total: √ΣK².
    """

    norm: Mapping[str, N]
    extent: Mapping[str, Extent[N]]
    theta: Mapping[str, Mapping[str, N]]
    gain: Mapping[str, Sequence[N]]
    kappa: Mapping[str, Mapping[str, N]]
    cotangent: Mapping[str, N]
    slope: Mapping[str, N]
    gradient: Mapping[str, N]
    loss_lipschitz: N
    total: N


def derive(
    graph: Graph,
    num: Numbers[N],
    current: Mapping[str, N] | None = None,
    clip: N | None = None,
    through_clips: bool = True,
) -> Bounds[N]:
    """Evaluate all rules of `graph` in the domain `num`.

    `current` gives bounds of the parameters as they are (operator norm of a weight, length of a bias), by name, to
    be used instead of what their constraints allow: bounds that follow the weights. `clip` is what training clips
    the gradient of each example's loss in the output to: cotangents and gradients are those of min(L, clip).
    Without `through_clips`, gradient clips inside are not counted on: then both are proportional to that minimum.
    """
    forward = _Forward(graph, num, current or {})
    forward.run()
    constant = _loss_lipschitz(graph, num, forward.extent[graph.output])
    seed = (
        constant if clip is None else num.let("L_C", num.minimum(constant, clip), "bound of the loss's gradient")
    )
    backward = _Backward(graph, num, forward.gain, through_clips=through_clips)
    backward.run(seed, "G", "bound of the cotangent at")
    slope = _Backward(graph, num, forward.gain, through_clips=False)
    slope.run(num.of(1), "l", "Lipschitz constant of the output in")
    kappa = {node.name: _kappas(node, graph, num, forward) for node in graph.nodes}
    gradient = _gradients(graph, num, kappa, backward)
    proved = [bound for name, bound in gradient.items() if graph.clip_of(name) is None]
    return Bounds(
        norm={name: extent.norm for name, extent in forward.extent.items()},
        extent=forward.extent,
        theta=forward.theta,
        gain=forward.gain,
        kappa=kappa,
        cotangent=backward.bound,
        slope=slope.bound,
        gradient=gradient,
        loss_lipschitz=constant,
        total=root_of_squares(num, [*proved, *(num.of(group.length) for group in graph.clips)]),
    )


def slope(graph: Graph, num: Numbers[N], current: Mapping[str, N], value: str) -> N:
    """Evaluate the Lipschitz constant of a value in the input; `current` is as in `derive`."""
    forward = _Forward(graph.up_to(value), num, current)
    forward.run()
    backward = _Backward(graph.up_to(value), num, forward.gain, through_clips=False)
    backward.run(num.of(1), "l", f"Lipschitz constant of {value} in")
    return backward.bound[graph.input.name]


def reads_profile(graph: Graph) -> bool:
    """Whether an op, or the loss, reads row norms or largest entries: only then are they derived."""
    return any(node.op.reads for node in graph.nodes) or (graph.loss is not None and bool(graph.loss.loss.reads))


def linear_in_loss(graph: Graph) -> bool:
    """Whether cotangents and gradients are proportional to L: no op but hands on a fixed multiple of what it gets.

    Then all that is done to them is positively homogeneous: sums, products with gains and κ, roots of squares.
    """
    return all(node.op.cotangent is scaled_by_lipschitz for node in graph.nodes)


class _Forward(Generic[N]):
    """One sweep along the edges: what is known of every tensor, and every op's Lipschitz constants there."""

    def __init__(self, graph: Graph, num: Numbers[N], current: Mapping[str, N]) -> None:
        self._graph, self._num, self._current = graph, num, current
        self._profile = reads_profile(graph)
        self._slices = disjoint_slices(graph)
        self._letters = _identifiers(graph.parameters)
        self._branch: dict[str, BranchBound[N] | None] = {}
        self.extent: dict[str, Extent[N]] = {}
        self.gain: dict[str, Sequence[N]] = {}
        self.theta: dict[str, Mapping[str, N]] = {}
        self._measured: dict[str, tuple[Sequence[ConstraintKind], Sequence[Shape]]] = {}

    def run(self) -> None:
        """Visit the nodes in order."""
        source, num = self._graph.input, self._num
        norm = num.of(0) if source.tokens else num.symbol("X_0", source.norm, "bound of the input norm")
        self.extent[source.name] = Extent(norm, norm, norm)
        for node in self._graph.nodes:
            x = [self.extent[operand] for operand in node.inputs]
            theta = {role: self._bound_of(node, role, name) for role, name in node.parameters.items()}
            self.theta[node.name] = theta
            gains = node.op.lipschitz
            self.gain[node.name] = [num.unbounded()] * len(x) if gains is None else gains(num, node.site, x, theta)
            self._branch[node.name] = self._branch_bound(node, theta)
            self.extent[node.name] = self._extent(node, x, theta)

    def _bound_of(self, node: Node, role: str, name: str) -> N:
        """Bound of a parameter: as it is, where that is given, else from its constraint."""
        rule, constraint = node.op.parameter(role), self._graph.parameters[name].constraint
        # The norm of its longest row is none of the matrix, and that of a kernel is one at the size of its input.
        of_size = constraint.kind == "free" and node.op.axes == "channels"
        measured = rule.constraints, node.site.inputs if of_size else ()
        if self._measured.setdefault(name, measured) != measured:
            return self._num.unbounded()
        if name in self._current:
            return self._current[name]
        if constraint.kind == "free" and rule.is_constrained:
            return self._num.symbol(f"u_{self._letters[name]}", None, f"norm of {name}, which nothing constrains")
        return rule.operator_norm(self._num, node.site, constraint)

    def _extent(self, node: Node, x: Sequence[Extent[N]], theta: Mapping[str, N]) -> Extent[N]:
        num, op = self._num, node.op
        norm = op.norm(num, node.site, x, theta)
        branch = self._branch[node.name]
        if branch is not None and len(x) > 1:
            norm = num.minimum(norm, branch.bound(num, self.extent[branch.source].norm))
        norm = num.let(f"X_{node.name}", norm, f"bound of the output norm of {node.name}")
        if not self._profile:
            return Extent(norm, norm, norm)
        row = norm if op.row is None else num.minimum(norm, op.row(num, node.site, x, theta))
        row = num.let(f"R_{node.name}", row, f"bound of the largest row norm of {node.name}")
        entry = row if op.entry is None else num.minimum(row, op.entry(num, node.site, x, theta))
        return Extent(norm, row, num.let(f"M_{node.name}", entry, f"bound of the largest entry of {node.name}"))

    def _branch_bound(self, node: Node, theta: Mapping[str, N]) -> BranchBound[N] | None:
        if node.op.lipschitz is None:
            return None
        if node.name in self._slices:
            return slice_bound(self._num, node)
        operands = [self._branch.get(operand) for operand in node.inputs]
        return branch_bound(self._num, node, operands, self.gain[node.name], theta)


def _loss_lipschitz(graph: Graph, num: Numbers[N], logits: Extent[N]) -> N:
    if graph.loss is None:
        return num.symbol("L", None, "Lipschitz constant of the loss in the logits")
    constant = graph.loss.loss.lipschitz(num, graph.loss.attributes, graph.shape(graph.output), logits)
    return num.let("L", constant, "Lipschitz constant of the loss in the logits")


class _Backward(Generic[N]):
    """One sweep against the edges. Without `through_clips`, gradient clips are the identities they are forward."""

    def __init__(
        self, graph: Graph, num: Numbers[N], gain: Mapping[str, Sequence[N]], *, through_clips: bool
    ) -> None:
        self._graph, self._num, self._gain, self._clips = graph, num, gain, through_clips
        self._slices = disjoint_slices(graph)
        self._received: dict[str, list[tuple[PartwiseBound[N], Node | None]]] = {graph.output: []}
        self.form: dict[str, PartwiseBound[N]] = {}
        self.bound: dict[str, N] = {}

    def run(self, seed: N, letter: str, meaning: str) -> None:
        """Find the form and the bound of each value, from `seed` at the output."""
        self._received[self._graph.output].append((PartwiseBound({WHOLE: seed}), None))
        for node in reversed(self._graph.nodes):
            self._name(node.name, letter, meaning)
            for operand, handed in zip(node.inputs, self._hand_on(node), strict=True):
                self._received.setdefault(operand, []).append((handed, node))
        self._name(self._graph.input.name, letter, meaning)

    def _hand_on(self, node: Node) -> Sequence[PartwiseBound[N]]:
        form, cotangent = self.form[node.name], self.bound[node.name]
        rule = node.op.cotangent if self._clips else scaled_by_lipschitz
        gains = self._gain[node.name]
        if rule is not scaled_by_lipschitz:
            return [PartwiseBound({WHOLE: handed}) for handed in rule(self._num, node.site, cotangent, gains)]
        scaled = {key: form.scaled(gain) for key, gain in {id(gain): gain for gain in gains}.items()}
        forms = [scaled[id(gain)] for gain in gains]  # those of a concatenation are one object, and it may be long
        if not node.op.parts or len(forms) == 1:
            return forms
        return [one.part(Part(node.name, index, len(forms))) for index, one in enumerate(forms)]

    def _name(self, value: str, letter: str, meaning: str) -> None:
        """Name what `value` receives, term by term, and its bound; a form of one term has the same."""
        form = self._combined(self._received[value])
        # The parts of a slice may yet be set against those of the slices beside it.
        form = limited(self._num, form if value in self._slices else settled(self._num, form))
        largest = self._num.let(f"{letter}_{value}", bound(self._num, form), f"{meaning} {value}")
        terms = dict.fromkeys(form.terms, largest)
        if len(terms) > 1:
            terms = {
                path: self._num.let(f"{letter}{index}_{value}", term, f"part {index} of the {meaning} {value}")
                for index, (path, term) in enumerate(form.terms.items())
            }
        self.form[value], self.bound[value] = PartwiseBound(terms), largest

    def _combined(self, received: Sequence[tuple[PartwiseBound[N], Node | None]]) -> PartwiseBound[N]:
        """Add up what the consumers hand back; slices of one tensor that overlap nowhere combine as √ΣG²."""
        slices = [form for form, node in received if node is not None and node.name in self._slices]
        others = [form for form, node in received if node is None or node.name not in self._slices]
        return total(self._num, [disjoint(self._num, slices), *others] if slices else others)


def _kappas(node: Node, graph: Graph, num: Numbers[N], forward: _Forward[N]) -> dict[str, N]:
    """κ of the node's trainable parameters, by role."""
    x = [forward.extent[operand] for operand in node.inputs]
    return {
        role: node.op.parameter(role).kappa(num, node.site, x, forward.theta[node.name])
        for role, name in node.parameters.items()
        if graph.parameters[name].trainable
    }


def _gradients(
    graph: Graph, num: Numbers[N], kappa: Mapping[str, Mapping[str, N]], backward: _Backward[N]
) -> dict[str, N]:
    """Σ κ·G over the uses of each parameter; uses in branches that one concatenation joins add up as its parts."""
    uses: dict[str, list[tuple[Node, N]]] = {}
    for node in graph.nodes:
        for role, factor in kappa[node.name].items():
            uses.setdefault(node.parameters[role], []).append((node, factor))
    letters = _identifiers(uses)
    return {
        name: num.let(f"K_{letters[name]}", _added_up(num, found, backward), f"gradient bound of {name}")
        if (group := graph.clip_of(name)) is None
        else num.of(group.length)
        for name, found in uses.items()
    }


def _added_up(num: Numbers[N], uses: Sequence[tuple[Node, N]], backward: _Backward[N]) -> N:
    if len(uses) == 1:
        node, kappa = uses[0]
        return kappa * backward.bound[node.name]
    return bound(num, total(num, [backward.form[node.name].scaled(kappa) for node, kappa in uses]))


def _identifiers(parameters: Iterable[str]) -> dict[str, str]:
    """Write dots as underscores, and number what then looks alike: two bounds must never share a variable."""
    names = Names()
    return {parameter: names.fresh(parameter.replace(".", "_")) for parameter in parameters}

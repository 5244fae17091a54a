"""The graph: an immutable typed DAG of ops on the tensors of one example, and the builder that front ends use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from fractions import Fraction
from math import prod
from typing import TYPE_CHECKING, Any

from lipcompile import limits
from lipcompile.core.names import Names, identifier
from lipcompile.core.record import AnyLoss, AnyOp, Constraint, ParameterRule, Shape, Site, refuse_channels_first
from lipcompile.diagnostics import Diagnostic, Location, Refusal, Severity
from lipcompile.numbers import Scalar, combine

# numpy and networkx are imported where they are used: `check` starts faster without them.
if TYPE_CHECKING:
    import networkx as nx
    from numpy.typing import NDArray

    Array = NDArray[Any]


# The clip that has no threshold to choose: see docs/clipping.md, "Automatic".
LENGTH, REGULARISER = Fraction(1), Fraction(1, 100)
# Lengths of clips: divided by any usual size of a batch, the runtime can scale numbers of float32 by them.
SHORTEST, LONGEST = Fraction(1, 10**9), Fraction(10**9)
# Longer paths in diagnostics begin with an ellipsis.
LONGEST_PATH = 8


@dataclass(frozen=True, slots=True)
class Input:
    """The example: ‖x‖ <= norm (None: not declared). A trusted input is not clipped by the emitted module.

    An input of tokens holds whole numbers that select rows of an embedding: no norm, and no cotangent.

    parts: names and shapes of the inputs that a caller gives, of which this one has the entries one after another;
    nothing if there is one.
    """

    name: str
    shape: Shape
    norm: Scalar | None
    trusted: bool = False
    tokens: bool = False
    location: Location | None = None
    parts: tuple[tuple[str, Shape], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Parameter:
    """A tensor of the model. `initial` is an imported value; without one the runtime draws it.

    copies: how many tensors of this shape it stands for, one in each copy of an open repetition.
    """

    name: str
    shape: Shape
    constraint: Constraint
    trainable: bool = True
    initial: Array | None = None
    copies: Scalar = Fraction(1)


@dataclass(frozen=True, slots=True)
class Node:
    """One use of an op. `inputs` name nodes or the input; `parameters` maps roles to parameter names."""

    name: str
    op: AnyOp
    attributes: Any
    inputs: tuple[str, ...]
    site: Site[Any]
    parameters: Mapping[str, str]
    location: Location | None = None
    scope: tuple[str, ...] = ()

    @property
    def shape(self) -> Shape:
        """Shape of the output."""
        return self.site.output

    @property
    def draws(self) -> bool:
        """Whether it draws random numbers in training."""
        return self.op.draws(self.attributes)

    def reading(self, old: str, new: str) -> Node:
        """Return the node with another value in the place of one that it reads."""
        return replace(self, inputs=tuple(new if name == old else name for name in self.inputs))

    def diagnostic(
        self,
        code: str,
        message: str,
        help: str = "",  # noqa: A002
        severity: Severity = Severity.ERROR,
    ) -> Diagnostic:
        """Return a finding about this node, at its place in the source."""
        return Diagnostic(code, message, help, severity, self.name, self.op.name, self.location)


@dataclass(frozen=True, slots=True)
class ClipGroup:
    """Parameters whose gradient the backward pass clips: of each example, over all of them, ‖g‖ <= length = C.

    regulariser: None scales g by min(1, C/‖g‖); γ scales it by C/(‖g‖ + γ), which leaves no threshold to choose
    ("automatic", Bu et al. 2022).
    """

    name: str
    parameters: tuple[str, ...]
    length: Fraction
    regulariser: Fraction | None = None

    @staticmethod
    def has_length(length: object) -> bool:
        """Whether it is a C that gradients can be clipped to."""
        return isinstance(length, Fraction) and SHORTEST <= length <= LONGEST


@dataclass(frozen=True, slots=True)
class LossUse:
    """The loss of the model."""

    loss: AnyLoss
    attributes: Any
    location: Location | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Graph:
    """A model. Nodes stand in topological order; `output` names the logits.

    clips: groups of parameters that are clipped. A theorem bounds the gradients of all others.

    Invariants (checked by `verify`): names are unique Python identifiers, every operand is defined before its use,
    every parameter is used at least once, the output exists, no parameter is in two groups.
    """

    name: str
    input: Input
    nodes: tuple[Node, ...]
    parameters: Mapping[str, Parameter]
    output: str
    loss: LossUse | None
    clips: tuple[ClipGroup, ...] = ()

    def __repr__(self) -> str:
        """Return its name and its size: in full it would fill pages."""
        return f"<Graph {self.name}: {len(self.nodes)} nodes, {len(self.parameters)} parameters>"

    def clip_of(self, parameter: str) -> ClipGroup | None:
        """The group that clips a parameter, None if a theorem bounds its gradient."""
        return next((group for group in self.clips if parameter in group.parameters), None)

    def proved(self) -> Graph:
        """Return the graph in which clipped parameters are not trained: what theorems have to bound."""
        clipped = {name for group in self.clips for name in group.parameters}
        parameters = {
            name: replace(p, trainable=p.trainable and name not in clipped) for name, p in self.parameters.items()
        }
        return replace(self, parameters=parameters, clips=())

    def shape(self, value: str) -> Shape:
        """Shape of the example or of a node's output; raises KeyError."""
        return self.input.shape if value == self.input.name else self.node(value).shape

    def node(self, name: str) -> Node:
        """The node of this name; raises KeyError."""
        return next(node for node in self.nodes if node.name == name)

    def owners(self) -> dict[str, Node]:
        """Return the node of each parameter: a shared one belongs to the first node that uses it."""
        found: dict[str, Node] = {}
        for node in self.nodes:
            for name in node.parameters.values():
                found.setdefault(name, node)
        return found

    def size(self, *, trained: bool = False) -> Scalar:
        """Return the number of entries of all parameters, or of those that are trained."""
        counted = [p for p in self.parameters.values() if p.trainable or not trained]
        total: Scalar = Fraction(sum(prod(p.shape) for p in counted if p.copies == 1))
        for p in counted:
            if p.copies != 1:
                total = combine("+", total, combine("*", p.copies, Fraction(prod(p.shape))))
        return total

    def up_to(self, value: str) -> Graph:
        """Return the part of the graph that computes a value, without the loss."""
        nodes = _reaching(self.nodes, value)
        used = {name for node in nodes for name in node.parameters.values()}
        parameters = {name: p for name, p in self.parameters.items() if name in used}
        return replace(self, nodes=nodes, parameters=parameters, output=value, loss=None).regrouped()

    def networkx(self) -> nx.DiGraph:
        """Return the graph of values, for path and structure algorithms."""
        import networkx as nx

        drawing = nx.DiGraph()
        drawing.add_node(self.input.name)
        for node in self.nodes:
            drawing.add_node(node.name)
            drawing.add_edges_from((operand, node.name) for operand in node.inputs)
        return drawing

    def freeze(self, patterns: Sequence[str]) -> Graph:
        """Return the graph in which parameters matching a glob are not trained."""
        parameters = {
            name: replace(p, trainable=p.trainable and not any(fnmatchcase(name, glob) for glob in patterns))
            for name, p in self.parameters.items()
        }
        return replace(self, parameters=parameters).regrouped()

    def regrouped(self) -> Graph:
        """Return the graph without clips of parameters that it lacks, or does not train."""
        trained = {name for name, p in self.parameters.items() if p.trainable}
        kept = ((group, tuple(p for p in group.parameters if p in trained)) for group in self.clips)
        return replace(self, clips=tuple(replace(group, parameters=own) for group, own in kept if own))

    def verify(self) -> None:
        """Raise AssertionError if an invariant is broken: that is a bug in a front end or a pass."""
        defined = {self.input.name}
        for node in self.nodes:
            assert node.name.isidentifier(), node.name
            assert node.name not in defined, f"{node.name} is defined twice"
            assert all(operand in defined for operand in node.inputs), f"{node.name} reads an undefined value"
            defined.add(node.name)
        used = {name for node in self.nodes for name in node.parameters.values()}
        assert used == set(self.parameters), "a parameter is unused or undeclared"
        assert self.output in defined, "the output is not defined"
        clipped = [name for group in self.clips for name in group.parameters]
        assert len(clipped) == len(set(clipped)), "a parameter is in two groups of clips"
        assert set(clipped) <= used, "a clip of a parameter that does not exist"


@dataclass(frozen=True, slots=True)
class Value:
    """A handle on a tensor under construction; a poisoned one (no shape) comes from a refused node."""

    name: str
    shape: Shape | None


@dataclass(frozen=True, slots=True)
class ParameterChoice:
    """What a front end says of one parameter: its constraint, whether it is trained, its value, a shared name."""

    constraint: Constraint
    trainable: bool = True
    initial: Array | None = None
    shared: str | None = None
    copies: Scalar = Fraction(1)


@dataclass(slots=True)
class GraphBuilder:
    """Collects nodes and diagnostics; asks each op's record for shapes and parameters as it goes."""

    name: str
    diagnostics: list[Diagnostic] = field(default_factory=list)
    _input: Input | None = None
    _parameters: dict[str, Parameter] = field(default_factory=dict)
    _made: dict[str, Node] = field(default_factory=dict)
    _clips: dict[str, ClipGroup] = field(default_factory=dict)
    _trained: set[str] = field(default_factory=set)
    _tokens: set[str] = field(default_factory=set)
    _names: Names = field(default_factory=Names)

    def input(
        self,
        name: str,
        shape: Shape,
        norm: Scalar | None,
        trusted: bool,
        location: Location | None,
        *,
        tokens: bool = False,
        parts: tuple[tuple[str, Shape], ...] = (),
    ) -> Value:
        """Declare the example; a norm that bounds nothing and a shape without entries are refused."""
        if isinstance(norm, Fraction) and norm <= 0:
            found = Refusal("LIP202", "the input norm must be positive", "write norm <= 1.0, say")
            self.refuse(found, name=name, op="input", location=location)
        if prod(shape) < 1:
            self.refuse(Refusal("LIP203", "the input has no entries"), name=name, op="input", location=location)
        limits.demand("entries", prod(shape), f"the input `{name}` has", location)
        self._input = Input(self.fresh(name), shape, norm, trusted, tokens, location, parts)
        self._tokens |= {self._input.name} if tokens else set()
        return Value(self._input.name, shape)

    def fresh(self, name: str) -> str:
        """Return `name` as an identifier that no other node has, and reserve it."""
        return self._names.fresh(identifier(name))

    def add(
        self,
        op: AnyOp,
        attributes: Any,
        inputs: Sequence[Value],
        *,
        name: str,
        location: Location | None = None,
        parameters: Mapping[str, ParameterChoice] | None = None,
        scope: tuple[str, ...] = (),
    ) -> Value:
        """Add a node. What the op's rules refuse becomes a diagnostic, and the value poisoned.

        `parameters` maps roles to choices; every role that the op requires must be there.
        """
        known = tuple(value.shape for value in inputs if value.shape is not None)
        if len(known) != len(inputs):
            return Value(name, None)
        try:
            self._check_kinds(op, inputs)
            output = op.shape(attributes, known)
            limits.refuse_above("entries", prod(output), f"the output of `{name}` has")
            chosen = self._choose(op, attributes, known, parameters or {}, name)
        except Refusal as refusal:
            return self.refuse(refusal, name=name, op=op.name, location=location, inputs=inputs)
        limits.demand("nodes", len(self._made) + 1, "the model, written out, has", location)
        own = self.fresh(name)
        roles = {role: self._declare(own, role, *choice) for role, choice in chosen.items()}
        operands = tuple(value.name for value in inputs)
        site = Site(attributes, known, output)
        self._made[own] = Node(own, op, attributes, operands, site, roles, location, scope)
        if op.takes == "any" and not self._tokens.isdisjoint(operands):
            self._tokens.add(own)
        if any(choice.trainable for _, choice in chosen.values()) or not self._trained.isdisjoint(operands):
            self._trained.add(own)
        return Value(own, output)

    def clip(self, group: ClipGroup) -> None:
        """Clip the gradients of parameters that have been added; a group replaces another of the same name."""
        self._clips[group.name] = group

    def clip_together(self, names: Iterable[str]) -> None:
        """Clip the parameters of these groups as one, called like the first."""
        found = [self._clips.pop(name) for name in names if name in self._clips]
        for first in found[:1]:
            self.clip(replace(first, parameters=tuple(name for group in found for name in group.parameters)))

    def holds_tokens(self, value: Value) -> bool:
        """Whether a value is the input of a model of tokens, or some of its entries."""
        return value.name in self._tokens

    def is_frozen(self, value: Value) -> bool:
        """Whether no parameter that is trained has a part in a value: no cotangent need reach it."""
        return value.name not in self._trained

    def declared_norm(self, value: Value) -> Scalar | None:
        """Return the declared norm of the input, None for any other value."""
        return self._input.norm if self._input is not None and value.name == self._input.name else None

    def made(self, value: Value) -> Node | None:
        """Return the node that computes a value, None for the input and for what was refused."""
        return self._made.get(value.name)

    def refuse(
        self,
        refusal: Refusal,
        *,
        name: str,
        op: str,
        location: Location | None = None,
        inputs: Sequence[Value] = (),
        shape: Shape | None = None,
    ) -> Value:
        """Record why a node is refused; `shape`, where it is known, lets the analysis of what follows go on."""
        what, path = (refusal.code, refusal.message, refusal.help), self._path(inputs)
        self.diagnostics.append(Diagnostic(*what, node=name, op=op, location=location, path=path))
        return Value(name, shape)

    def finish(self, output: Value, loss: LossUse | None) -> Graph | None:
        """Return the graph, or None if any part of it, or the loss for its output, was refused."""
        if loss is not None and output.shape is not None:
            try:
                loss.loss.check(loss.attributes, output.shape)
                refuse_channels_first(loss.loss, output.shape, self._layout(output))
            except Refusal as refusal:
                self.refuse(refusal, name=output.name, op=loss.loss.name, location=loss.location)
        if self._input is None or any(d.severity == "error" for d in self.diagnostics):
            return None
        nodes, clips = tuple(self._made.values()), tuple(self._clips.values())
        whole = Graph(self.name, self._input, nodes, self._parameters, output.name, loss, clips)
        graph = replace(whole.up_to(output.name), loss=loss)
        graph.verify()
        return graph

    def _layout(self, output: Value) -> AnyOp | None:
        """Return the op that decided which axis of the output is which: what follows it leaves axes in place."""
        node = self.made(output)
        while node is not None and node.op.axes == "kept":
            node = self._made.get(node.inputs[0])
        return None if node is None else node.op

    def _choose(
        self,
        op: AnyOp,
        attributes: Any,
        shapes: tuple[Shape, ...],
        choices: Mapping[str, ParameterChoice],
        node: str,
    ) -> dict[str, tuple[Shape, ParameterChoice]]:
        chosen = {}
        for rule in op.parameters:
            if rule.role in choices:
                shape = rule.shape(attributes, shapes)
                limits.refuse_above("entries", prod(shape), f"the {rule.role} of `{node}` has")
                _check_choice(rule, shape, choices[rule.role], node)
                self._check_shared(choices[rule.role].shared, shape, node)
                chosen[rule.role] = (shape, choices[rule.role])
            elif not rule.optional:
                raise AssertionError(f"{op.name} needs its {rule.role}")
        return chosen

    def _check_kinds(self, op: AnyOp, inputs: Sequence[Value]) -> None:
        """Raise `Refusal` where an op of reals meets tokens, or the other way round."""
        tokens = [self.holds_tokens(value) for value in inputs]
        if op.takes == "reals" and any(tokens):
            raise Refusal(
                "LIP204", f"`{op.name}` cannot compute with tokens", "begin with embedding(entries, width)"
            )
        if op.takes == "tokens" and not all(tokens):
            raise Refusal(
                "LIP204", f"`{op.name}` takes the tokens of the input", "declare them: input x: tokens[16]"
            )

    def _check_shared(self, shared: str | None, shape: Shape, node: str) -> None:
        """Raise `Refusal` where a node would use a parameter of another shape."""
        own = self._parameters[shared].shape if shared in self._parameters else shape
        if own != shape:
            message = f"`{shared}` has shape {list(own)}, and `{node}` needs {list(shape)}"
            raise Refusal("LIP308", message, "share weights only between layers whose weights have one shape")

    def _declare(self, node: str, role: str, shape: Shape, choice: ParameterChoice) -> str:
        name = choice.shared or f"{node}.{role}"
        self._parameters.setdefault(
            name, Parameter(name, shape, choice.constraint, choice.trainable, choice.initial, choice.copies)
        )
        return name

    def parameter(self, name: str) -> Parameter:
        """Return a parameter that has been added."""
        return self._parameters[name]

    def constrain(self, name: str, constraint: Constraint) -> None:
        """Give a parameter that has been added another constraint, of a kind that its op takes."""
        self._parameters[name] = replace(self._parameters[name], constraint=constraint)

    def _path(self, inputs: Sequence[Value]) -> tuple[str, ...]:
        """Return the last nodes on the way here along first operands, for diagnostics."""
        path: list[str] = []
        current = inputs[0].name if inputs else ""
        while current and len(path) < LONGEST_PATH:
            path.append(current)
            current = next(iter(self._made[current].inputs), "") if current in self._made else ""
        return tuple(reversed([*path, "…"] if current else path))


def _check_choice(rule: ParameterRule[Any], shape: Shape, choice: ParameterChoice, node: str) -> None:
    constraint, bound = choice.constraint, choice.constraint.bound
    if constraint.kind not in (*rule.constraints, "free"):
        allowed = ", ".join(rule.constraints)
        raise Refusal("LIP301", f"the {rule.role} of `{node}` cannot be `{constraint.kind}`", f"choose {allowed}")
    if isinstance(bound, Fraction) and bound < 0:
        raise Refusal("LIP302", f"the constraint of `{node}` needs a bound of at least 0")
    if choice.initial is None:
        return
    import numpy as np

    if choice.initial.shape != shape:
        raise Refusal(
            "LIP303", f"the {rule.role} of `{node}` has shape {list(choice.initial.shape)}, expected {list(shape)}"
        )
    if not np.isfinite(choice.initial).all():
        raise Refusal(
            "LIP304",
            f"the {rule.role} of `{node}` holds NaN or infinite values",
            "repair the weights, or export the model again before training diverged",
        )


def _reaching(nodes: Iterable[Node], output: str) -> tuple[Node, ...]:
    """Keep the nodes that the output depends on."""
    wanted = {output}
    kept: list[Node] = []
    for node in reversed(tuple(nodes)):
        if node.name in wanted:
            kept.append(node)
            wanted.update(node.inputs)
    return tuple(reversed(kept))

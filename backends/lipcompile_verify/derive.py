"""Derives every bound of a graph: forward from the input, then backward from the loss."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from fractions import Fraction
from math import prod
from types import SimpleNamespace
from typing import Any

from .disjoint_parts import MOST_TERMS, Form, add, beside, bound, disjoint, fold, hypotenuse, norm, scale
from .document import MOST_ENTRIES, MOST_NODES, MalformedError, begin_work, fields, of_kind, require, spend
from .intervals import UNBOUNDED, Real, least, real, root, total
from .losses import LOSSES, logits
from .rules import MATRICES, OF_ANY_SIZE, OPS, READS, Extent, Op

GRAPH = "input:object nodes:object* parameters:object output:text loss:object"
INPUT = "name:text shape:n* norm:q+? trusted:flag tokens:flag"
NODE = "name:text op:text attributes:object inputs:text* shape:n* parameters:object"
CLIP = "name:text parameters:text* length:q+ regulariser:q+?"
PARAMETER = "shape:n* constraint:text bound:q0? trainable:flag"
# Half of what the runtime adds to a bound that it computes from the claims of L and of the bound without clips.
OUTWARD = 1 + Fraction(1, 2 * 10**12)
EITHER = ("zeros", "own_network")  # these make real numbers of tokens as well
MOVES = ("flatten", "reshape", "slice")  # of these, the output holds tokens where the operand does
NOTHING = Extent(real(0), real(0), real(0))
# Where a value depends on disjoint slices of another alone: c and the rows of A, by that value and the axis.
Spread = dict[tuple[str, int], tuple[Real, list[dict[Any, Real]]]]


class RuleError(MalformedError):
    """A step at which a condition of a rule fails."""

    def __init__(self, step: str, rule: str, reason: str) -> None:
        super().__init__(reason)
        self.step, self.rule = step, rule


def _at(step: str, rule: str, check: Callable[..., Any], *arguments: Any) -> Any:
    """Run a check; what it refuses becomes a RuleError that names the step and the rule."""
    try:
        return check(*arguments)
    except MalformedError as error:
        raise RuleError(step, rule, str(error)) from None
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise RuleError(step, rule, f"its attributes do not fit the shapes of its operands ({error})") from None


class Derivation:
    """The result of a derivation: uses of ops by node, extents and forms by value, K by parameter.

    Of the conditions that the nodes are `claimed` to meet only squared norms are used, once they are proved.
    Raises RuleError where a rule's condition fails, MalformedError where the graph is none.
    """

    def __init__(self, graph: Mapping[str, Any], claimed: Mapping[str, Mapping[str, Any]]) -> None:
        begin_work()
        self.graph = _at("graph", "schema", fields, graph, GRAPH, "clips:object*")
        self.clips = _at("clips", "schema", self._groups)
        self.nodes: dict[str, SimpleNamespace] = {}
        self.uses: dict[str, list[tuple[str, str]]] = {}
        _at("input", "schema", self._start)
        for document in self.graph.nodes:
            node = _at("nodes", "schema", fields, document, NODE)
            _at(node.name, node.op, self._forward, node, claimed.get(node.name, {}))
        self.loss: Real = _at("loss", str(self.graph.loss.get("name")), self._loss)
        self.reads = self.graph.loss.name in READS or any(node.op in READS for node in self.nodes.values())
        clips = any(node.op == "clip_gradient" for node in self.nodes.values())
        self.slope, self.unclipped = self._sweep(real(1), False), self._sweep(self.loss, False)
        self.cotangent = self._sweep(self.loss, True) if clips else self.unclipped
        self.gradient = self._gradients(self.cotangent)
        self.gradient_unclipped = self._gradients(self.unclipped) if clips else self.gradient

    def lipschitz(self, value: str) -> Real:
        """Return the Lipschitz constant of a value in the input."""
        return bound(self._sweep(real(1), False, value)[self.graph.input.name])

    def _groups(self) -> list[SimpleNamespace]:
        """Return the groups that the backward pass clips, each with its parameters and C."""
        groups = [fields(group, CLIP) for group in self.graph.clips or ()]
        names = [name for group in groups for name in group.parameters]
        parameters = {name: fields(p, PARAMETER) for name, p in self.graph.parameters.items()}
        require(len(names) == len(set(names)), "a parameter is clipped twice")
        require(all(group.parameters for group in groups), "a group of clips has no parameters")
        trained = all(name in parameters and parameters[name].trainable for name in names)
        require(trained, "a clip names a parameter that is not trained")
        self.lengths = {name: group.length for group in groups for name in group.parameters}
        return groups

    def units(self) -> list[tuple[tuple[str, ...], Real]]:
        """Return the parameters that one bound covers, and that bound: of each one alone, or of a group."""
        alone = [((name,), k) for name, k in self.gradient.items() if name not in self.lengths]
        return [*alone, *((group.parameters, real(group.length)) for group in self.clips)]

    def _start(self) -> None:
        start = self.graph.input = fields(self.graph.input, INPUT)
        require(not start.tokens or start.norm is None, "tokens have no norm")
        require(start.tokens or start.norm is not None or start.trusted, "numbers without a norm must be trusted")
        require(
            prod(start.shape) <= MOST_ENTRIES and len(self.graph.nodes) <= MOST_NODES,
            "the model is too large to check",
        )
        x = real(start.norm) if start.norm is not None else real(0) if start.tokens else UNBOUNDED
        self.shapes, self.extents, self.trained = (
            {start.name: start.shape},
            {start.name: Extent(x, x, x)},
            set[str](),
        )
        self.graph.parameters = {name: fields(p, PARAMETER) for name, p in self.graph.parameters.items()}
        self.spreads: dict[str, Spread] = {start.name: {}}
        self.tokens = {start.name} if start.tokens else set[str]()

    def _forward(self, node: SimpleNamespace, claimed: Mapping[str, Any]) -> None:
        """Derive the shape of a node, its parameters, conditions and bounds."""
        require(node.name not in self.shapes, "the name is defined twice")
        require(all(operand in self.shapes for operand in node.inputs), "an operand is used before it is defined")
        require(node.op in OPS, "unknown op")
        rule, tokens = OPS[node.op], self.tokens.intersection(node.inputs)
        require(rule.operands[0] <= len(node.inputs) <= rule.operands[1], "the number of operands does not fit")
        require(
            tokens == {*node.inputs} if node.op == "embedding" else not tokens or node.op in (*MOVES, *EITHER),
            "an op of numbers takes tokens, or an op of tokens takes numbers",
        )
        self.tokens |= {node.name} if tokens and node.op in MOVES else set()
        s = node.site = fields(node.attributes, rule.attributes)
        s.I = tuple(self.shapes[operand] for operand in node.inputs)
        s.O = tuple(rule.shape(s))
        require(node.shape == s.O, f"the shape is {list(s.O)}, claimed {list(node.shape)}")
        s.N, s.D = prod(s.O), (1, *s.O)[-1]
        require(s.N <= MOST_ENTRIES, "too many entries")
        s.C = rule.conditions(s, claimed)
        s.T = self._theta(node, rule)
        x = [self.extents[operand] for operand in node.inputs]
        trainable = [role for role, name in node.parameters.items() if self.graph.parameters[name].trainable]
        node.kappa = {role: rule.roles[role].kappa(s, x) for role in trainable}
        node.slopes = [real(slope) for slope in rule.slopes(s, x)] if rule.slopes else [UNBOUNDED] * len(x)
        above = self.trained & {*node.inputs}
        require(rule.slopes or not above, "it is discontinuous, and a trained parameter comes before it")
        proved = any(node.parameters[role] not in self.lengths for role in trainable)
        self.trained |= {node.name} if above or proved else set()
        spread = self.spreads[node.name] = self._spread(node, rule)
        tighter = (
            [c + norm(a) * self.extents[value].X for (value, _), (c, a) in spread.items()] if len(x) > 1 else []
        )
        top, row, entry = (*map(real, rule.extent(s, x)), UNBOUNDED, UNBOUNDED)[:3]
        top = least(top, *tighter)
        self.extents[node.name] = Extent(top, least(top, row), least(top, row, entry))
        self.shapes[node.name], self.nodes[node.name] = s.O, node

    def _theta(self, node: SimpleNamespace, rule: Op) -> dict[str, Real]:
        """Check the parameters, and return what their constraints say of the maps, by role."""
        needed = {role for role, r in rule.roles.items() if not r.optional}
        require(needed <= node.parameters.keys() <= rule.roles.keys(), "the parameters do not fit the op")
        theta: dict[str, Real] = {}
        for role, name in node.parameters.items():
            require(isinstance(name, str) and name in self.graph.parameters, f"unknown parameter {name!r:.99}")
            p, shape = self.graph.parameters[name], tuple(rule.roles[role].shape(node.site))
            require(p.shape == shape, f"{name} has the shape {list(p.shape)}, not {list(shape)}")
            of_kind(p.constraint, f"{rule.roles[role].kinds}|free")
            require(
                (p.bound is None) == (p.constraint == "free"),
                f"{name} has a constraint without a bound, or a bound without a constraint",
            )
            require(p.constraint != "orthogonal" or p.bound == 1, f"{name} is orthogonal, but its bound is not 1")
            for user, first in self.uses.setdefault(name, [])[:1]:
                other = self.nodes.get(user, node)
                alike = (other.op, other.attributes) == (node.op, node.attributes)
                of_any_size = node.op in OF_ANY_SIZE and (p.constraint == "free" or node.op == "embedding")
                alike = alike and (other.site.I == node.site.I or of_any_size)
                is_matrix = (MATRICES.get(other.op), MATRICES.get(node.op)) == (first, role)
                is_tied = is_matrix and node.op != "embedding" and len(node.parameters) == 1
                require(alike or is_tied, f"{name} is shared with {other.name}, which is a different linear map")
            self.uses[name].append((node.name, role))
            if p.constraint != "free":  # ‖K‖_F bounds the norm of a convolution by √M times it
                overlap = getattr(node.site, "overlap", 1) if p.constraint == "frobenius" else 1
                theta[role] = real(p.bound) * root(overlap)
            elif rule.roles[role].kinds != "free":
                theta[role] = UNBOUNDED
        return theta

    def _spread(self, node: SimpleNamespace, rule: Op) -> Spread:
        """Return on which disjoint slices the node depends alone, and how: ‖node‖ <= c + ‖A·ξ‖."""
        operands, found = [self.spreads[operand] for operand in node.inputs], Spread()
        for key in [key for key in operands[0] if all(key in other for other in operands)] if rule.slopes else []:
            parts = [(slope, *operand[key]) for slope, operand in zip(node.slopes, operands, strict=True)]
            columns = {column for _, _, a in parts for row in a for column in row}
            spend(8 * sum(len(row) for _, _, a in parts for row in a))
            if not disjoint(columns):
                continue
            at_zero = real(next(iter(rule.extent(node.site, [NOTHING] * len(parts)))))
            moved, rows = (
                [slope * c for slope, c, _ in parts],
                [scale(row, slope) for slope, _, a in parts for row in a],
            )
            if rule.parts or len(parts) == 1:
                found[key] = at_zero + hypotenuse(moved), rows
            else:
                lengths = [_lengths([scale(row, slope) for row in a]) for slope, _, a in parts]
                found[key] = at_zero + total(moved), [add(lengths)]
        if node.op == "slice":
            found[node.inputs[0], node.site.axis] = real(0), [{(node.site.start, node.site.stop): real(1)}]
        return {key: (c, a) for key, (c, a) in found.items() if len(a) <= MOST_TERMS}

    def _loss(self) -> Real:
        require(self.uses.keys() == self.graph.parameters.keys(), "a parameter is not used")
        used = {self.graph.output}.union(*(node.inputs for node in self.nodes.values()))
        require(self.nodes.keys() <= used <= self.shapes.keys(), "a node is unused, or the output is undefined")
        require(self.graph.output not in self.tokens, "the output is tokens")
        loss = self.graph.loss = fields(self.graph.loss, "name:text attributes:object")
        require(loss.name in LOSSES, "unknown loss")
        s = fields(loss.attributes, LOSSES[loss.name].attributes)
        logits(s, self.shapes[self.graph.output], LOSSES[loss.name].logits)
        return real(LOSSES[loss.name].bound(s, self.extents[self.graph.output]))

    def _sweep(self, seed: Real, clips: bool, value: str | None = None) -> dict[str, Form]:
        """Carry a cotangent, or a slope, from the output or another value to the input: the form of each value."""
        received: dict[str, list[Form]] = {name: [] for name in self.shapes}
        slices: dict[str, list[tuple[SimpleNamespace, Form]]] = {name: [] for name in self.shapes}
        received[value or self.graph.output].append({(): seed})
        operands, forms = [len(node.inputs) for node in self.nodes.values()], dict[str, Form]()
        for index, node in reversed([*enumerate(self.nodes.values())]):
            sliced = node.op == "slice"
            form = forms[node.name] = _settled(
                received[node.name], slices[node.name], None if sliced else operands
            )
            for i, (operand, slope) in enumerate(zip(node.inputs, node.slopes, strict=True)):
                back = scale(form, slope, *[(index, i)] * OPS[node.op].parts)
                if node.op == "clip_gradient" and clips:
                    back = {(): least(bound(form), node.site.bound)}
                if sliced:
                    slices[operand].append((node.site, back))
                else:
                    received[operand].append(back)
        name = self.graph.input.name
        return forms | {name: _settled(received[name], slices[name], operands)}

    def _gradients(self, cotangents: dict[str, Form]) -> dict[str, Real]:
        """Return K of each trained parameter: over its uses, κ times the cotangent, folded."""
        trained = [name for name, p in self.graph.parameters.items() if p.trainable]
        return {name: self._gradient(name, cotangents) for name in trained}

    def _gradient(self, name: str, cotangents: dict[str, Form]) -> Real:
        if name in self.lengths:
            return real(self.lengths[name])
        uses = [(cotangents[node], self.nodes[node].kappa[role]) for node, role in self.uses[name]]
        return bound(add(scale(cotangent, kappa) for cotangent, kappa in uses))


def _lengths(rows: list[dict[Any, Real]]) -> dict[Any, Real]:
    """Return the norms of the columns."""
    return {k: hypotenuse(row[k] for row in rows if k in row) for k in {k for row in rows for k in row}}


def _settled(received: list[Form], slices: list[tuple[SimpleNamespace, Form]], operands: list[int] | None) -> Form:
    """Return the form of a value from what its consumers hand back; that of a slice is not folded."""
    forms, sites = [form for _, form in slices], [site for site, _ in slices]
    apart = len({site.axis for site in sites}) == 1 and disjoint((site.start, site.stop) for site in sites)
    whole = add([*received, *([beside(forms)] if apart and len(forms) > 1 else forms)])
    whole = whole if operands is None else fold(whole, operands)
    return whole if len(whole) <= MOST_TERMS else {(): bound(whole)}


derive = Derivation


def features(graph: Mapping[str, Any]) -> tuple[str, list[str]] | None:
    """Return the one value that all else reads of what no trained parameter and no chance reaches, and its nodes.

    None if there is none.
    """
    fixed = fixed_nodes(graph)
    rest = [node for node in graph["nodes"] if node["name"] not in fixed]
    found = {operand for node in rest for operand in node["inputs"]} - {node["name"] for node in rest}
    return (found.pop(), fixed) if len(found) == 1 and found <= set(fixed) else None


def fixed_nodes(graph: Mapping[str, Any]) -> list[str]:
    """Return the nodes that no trained parameter and no chance reaches."""
    fixed: list[str] = []
    for node in graph["nodes"]:
        known = {graph["input"]["name"], *fixed}
        trained = any(graph["parameters"][name]["trainable"] for name in node["parameters"].values())
        chance = {node["attributes"].get("probability", "0"), node["attributes"].get("dropout", "0")} != {"0"}
        chance = chance or node["op"] in ("noise", "own_network")
        if not trained and not chance and known.issuperset(node["inputs"]):
            fixed.append(node["name"])
    return fixed


def head(graph: Mapping[str, Any], feature: str, fixed: Collection[str], norm: float) -> dict[str, Any]:
    """Return the graph of what reads the features, which the nodes `fixed` compute: their norm alone is known.

    Raises:
        OverflowError, ValueError: the norm is infinite, or no number.
    """
    nodes = [node for node in graph["nodes"] if node["name"] not in fixed]
    shape = next(node["shape"] for node in graph["nodes"] if node["name"] == feature)
    used = {name for node in nodes for name in node["parameters"].values()}
    parameters = {name: one for name, one in graph["parameters"].items() if name in used}
    source = {"name": feature, "shape": shape, "norm": str(Fraction(norm)), "trusted": False, "tokens": False}
    return {**graph, "input": source, "nodes": nodes, "parameters": parameters}


def last_dense(graph: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the dense node that makes several logits, up to constants; None if none does."""
    nodes, name = {node["name"]: node for node in graph["nodes"]}, graph["output"]
    while name in nodes and nodes[name]["op"] in ("bias", "clip_gradient"):
        name = nodes[name]["inputs"][0]
    found = nodes.get(name)
    if found is None or found["op"] != "dense" or len(found["shape"]) != 1 or found["shape"][0] < 2:
        return None
    weight = found["parameters"]["weight"]
    owner = next(node for node in graph["nodes"] if weight in node["parameters"].values())
    return found if owner["op"] == "dense" else None

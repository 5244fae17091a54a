"""Derives every bound of a graph: forward from the input, then backward from the loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from math import prod
from types import SimpleNamespace
from typing import Any

from .document import MOST_ENTRIES, MOST_NODES, MalformedError, fields, of_kind, require
from .forms import Form, add, beside, bound, fold, hypotenuse, norm, scale
from .intervals import UNBOUNDED, Real, least, real, root, total
from .losses import LOSSES, logits
from .rules import OPS, READS, Extent, Op

GRAPH = "input:object nodes:object* parameters:object output:text loss:object"
NODE = "name:text op:text attributes:object inputs:text* shape:n* parameters:object"
NOTHING = Extent(*[real(0)] * 3)
# Where a value depends on disjoint slices of another alone: c and the rows of A, by that value and the axis.
Spread = dict[tuple[str, int], tuple[Real, list[dict[tuple[int, int], Real]]]]


class RuleError(MalformedError):
    """A step at which a rule's condition fails."""

    def __init__(self, step: str, rule: str, reason: str) -> None:
        super().__init__(reason)
        self.step, self.rule = step, rule


@dataclass(slots=True)
class Derivation:
    """What was found: uses of ops by node, extents and forms by value, K by parameter."""

    graph: SimpleNamespace
    nodes: dict[str, SimpleNamespace] = field(default_factory=dict)
    extents: dict[str, Extent] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    loss: Real = UNBOUNDED
    cotangent: dict[str, Form] = field(default_factory=dict)
    unclipped: dict[str, Form] = field(default_factory=dict)
    slope: dict[str, Form] = field(default_factory=dict)
    gradient: dict[str, Real] = field(default_factory=dict)
    gradient_unclipped: dict[str, Real] = field(default_factory=dict)
    uses: dict[str, list[tuple[str, str]]] = field(default_factory=dict)

    @property
    def reads(self) -> bool:
        """Whether an op, or the loss, reads bounds of rows or entries."""
        return any(node.op in READS for node in self.nodes.values()) or self.graph.loss.name in READS


def derive(graph: Mapping[str, Any], claimed: Mapping[str, Mapping[str, Any]]) -> Derivation:
    """Derive all bounds; of the `claimed` conditions of the nodes only squared norms are used, once they are proved."""
    found = Derivation(_at("graph", "schema", fields, graph, GRAPH))
    _at("input", "schema", _start, found)
    spreads: dict[str, Spread] = {found.graph.input.name: {}}
    trained: set[str] = set()
    for document in found.graph.nodes:
        node = _at("nodes", "schema", fields, document, NODE)
        _at(node.name, node.op, _forward, found, node, claimed.get(node.name, {}), spreads, trained)
    _at("parameters", "schema", _check_parameters, found)
    _at("loss", str(found.graph.loss.get("name")), _loss, found)
    clips = any(node.op == "clip_gradient" for node in found.nodes.values())
    found.unclipped, found.slope = _sweep(found, found.loss, clips=False), _sweep(found, real(1), clips=False)
    found.cotangent = _sweep(found, found.loss, clips=True) if clips else found.unclipped
    found.gradient = _gradients(found, found.cotangent)
    found.gradient_unclipped = _gradients(found, found.unclipped) if clips else found.gradient
    return found


def _at(step: str, rule: str, check: Callable[..., Any], *arguments: Any) -> Any:
    """Run a check; what it refuses becomes a RuleError that names the step and the rule."""
    try:
        return check(*arguments)
    except MalformedError as error:
        raise RuleError(step, rule, str(error)) from None
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise RuleError(step, rule, f"its attributes do not fit the shapes of its operands ({error})") from None


def _start(found: Derivation) -> None:
    graph = found.graph
    source = graph.input = fields(graph.input, "name:text shape:n* norm:q+? trusted:flag tokens:flag")
    require(source.tokens == (source.norm is None), "numbers need a norm, and tokens have none")
    require(prod(source.shape) <= MOST_ENTRIES and len(graph.nodes) <= MOST_NODES, "too large a model")
    x = UNBOUNDED if source.norm is None else real(source.norm)
    found.extents[source.name], found.shapes[source.name] = Extent(x, x, x), source.shape
    parameter = "shape:n* constraint:text bound:q0? trainable:flag"
    graph.parameters = {name: fields(p, parameter) for name, p in graph.parameters.items()}


def _forward(
    found: Derivation,
    node: SimpleNamespace,
    claimed: Mapping[str, Any],
    spreads: dict[str, Spread],
    trained: set[str],
) -> None:
    """Derive one node: its shape, parameters, conditions and bounds."""
    require(node.name not in found.shapes, "the name is defined twice")
    require(all(operand in found.shapes for operand in node.inputs), "an operand is not defined before")
    require(node.op in OPS, "there is no such op")
    rule, tokens = OPS[node.op], found.graph.input.name if found.graph.input.tokens else None
    require(rule.operands[0] <= len(node.inputs) <= rule.operands[1], "the number of operands does not fit")
    require(
        {o == tokens for o in node.inputs} == {node.op == "embedding"},
        "tokens meet an op of numbers, or the reverse",
    )
    s = node.site = fields(node.attributes, rule.attributes)
    s.I = tuple(found.shapes[operand] for operand in node.inputs)
    s.O = tuple(rule.shape(s))
    require(node.shape == s.O, f"the shape is {list(s.O)}, claimed {list(node.shape)}")
    s.N, s.D = prod(s.O), s.O[-1] if s.O else 1
    require(s.N <= MOST_ENTRIES, "too many entries")
    s.C = rule.conditions(s, claimed)
    s.T = _theta(found, node, rule)
    x = node.x = [found.extents[operand] for operand in node.inputs]
    node.slopes = [real(slope) for slope in rule.slopes(s, x)] if rule.slopes else [UNBOUNDED]
    node.kappa = {
        role: rule.roles[role].kappa(s, x)
        for role, p in node.parameters.items()
        if found.graph.parameters[p].trainable
    }
    require(rule.slopes or not trained & set(node.inputs), "it jumps, and a trained parameter stands upstream")
    trained |= {node.name} if node.kappa or trained & set(node.inputs) else set()
    spread = spreads[node.name] = _spread(node, rule, [spreads[operand] for operand in node.inputs])
    tightest = (
        [c + norm(a) * found.extents[value].X for (value, _), (c, a) in spread.items()] if len(x) > 1 else []
    )
    norms = [*map(real, rule.extent(s, x))]
    top = least(norms[0], *tightest)
    row = least(top, norms[1]) if len(norms) > 1 else top
    found.extents[node.name] = Extent(top, row, least(row, norms[2]) if len(norms) > 2 else row)
    found.shapes[node.name], found.nodes[node.name] = s.O, node


def _theta(found: Derivation, node: SimpleNamespace, rule: Op) -> dict[str, Real]:
    """Return what the constraints say of the maps, by role, and check the parameters."""
    needed = {role for role, r in rule.roles.items() if not r.optional}
    require(needed <= set(node.parameters) <= set(rule.roles), "the parameters do not fit the op")
    theta: dict[str, Real] = {}
    for role, name in node.parameters.items():
        require(isinstance(name, str) and name in found.graph.parameters, f"there is no parameter {name!r:.99}")
        p, r = found.graph.parameters[name], rule.roles[role]
        shape = tuple(r.shape(node.site))
        require(p.shape == shape, f"{name} has the shape {list(p.shape)}, not {list(shape)}")
        of_kind(p.constraint, r.kinds)
        require((p.bound is None) == (p.constraint == "free"), f"{name} lacks a bound, or is free and has one")
        require(p.constraint != "orthogonal" or p.bound == 1, f"{name} is orthogonal, with another bound than 1")
        for other, _ in found.uses.setdefault(name, []):
            first = found.nodes.get(other, node)
            same = (first.op, first.attributes, first.site.I) == (node.op, node.attributes, node.site.I)
            require(same, f"{name} is shared by maps that differ, {other} and this")
        found.uses[name].append((node.name, role))
        if p.constraint != "free":
            reads = min(node.site.C[key] for key in ("reads", "taps")) if "taps" in node.site.C else 1
            theta[role] = real(p.bound) * root(reads if role == "weight" and p.constraint == "frobenius" else 1)
    return theta


def _spread(node: SimpleNamespace, rule: Op, operands: list[Spread]) -> Spread:
    """Return on which disjoint slices the node depends alone, and how."""
    s, slopes, found = node.site, node.slopes, Spread()
    roots = [root for root in operands[0] if all(root in operand for operand in operands)] if rule.slopes else []
    for root_ in roots:
        parts = [operand[root_] for operand in operands]
        columns = {column for _, rows in parts for row in rows for column in row}
        if any(a[0] < b[1] and b[0] < a[1] for a, b in combinations(columns, 2)):
            continue
        zero = real(next(iter(rule.extent(s, [NOTHING] * len(node.inputs)))))
        rows = [
            [{k: slope * v for k, v in row.items()} for row in a]
            for slope, (_, a) in zip(slopes, parts, strict=True)
        ]
        moved = [slope * c for slope, (c, _) in zip(slopes, parts, strict=True)]
        if rule.parts or len(parts) == 1:
            offset, stacked = zero + hypotenuse(moved), [row for a in rows for row in a]
        else:
            lengths = [{k: hypotenuse(row[k] for row in a if k in row) for row_ in a for k in row_} for a in rows]
            offset, stacked = zero + total(moved), [add(lengths)]
        if len(stacked) <= 64:
            found[root_] = offset, stacked
    if node.op == "slice":
        found[node.inputs[0], s.axis] = real(0), [{(s.start, s.stop): real(1)}]
    return found


def _check_parameters(found: Derivation) -> None:
    require(set(found.uses) == set(found.graph.parameters), "a parameter is not used")
    require(found.graph.output in found.shapes, "the output is not defined")


def _loss(found: Derivation) -> None:
    loss = found.graph.loss = fields(found.graph.loss, "name:text attributes:object")
    require(loss.name in LOSSES, "there is no such loss")
    rule = LOSSES[loss.name]
    s = fields(loss.attributes, rule.attributes)
    logits(s, found.shapes[found.graph.output], rule.logits)
    found.loss = real(rule.bound(s, found.extents[found.graph.output]))


def _sweep(found: Derivation, seed: Real, clips: bool) -> dict[str, Form]:
    """Carry a cotangent, or a slope, from the output to the input: the form of each value."""
    received: dict[str, list[Form]] = {name: [] for name in found.shapes}
    slices: dict[str, list[tuple[int, int, int, Form]]] = {name: [] for name in found.shapes}
    received[found.graph.output].append({(): seed})
    operands = {index: len(node.inputs) for index, node in enumerate(found.nodes.values())}
    forms: dict[str, Form] = {}
    for index, node in reversed([*enumerate(found.nodes.values())]):
        form = forms[node.name] = _settled(received[node.name], slices[node.name], operands, node.op == "slice")
        s, parts = node.site, OPS[node.op].parts
        for i, (operand, slope) in enumerate(zip(node.inputs, node.slopes, strict=True)):
            back = scale(form, slope, *[(index, i)] * parts)
            if node.op == "clip_gradient" and clips:
                back = {(): least(bound(form), s.bound)}
            if node.op == "slice":
                slices[operand].append((s.axis, s.start, s.stop, back))
            else:
                received[operand].append(back)
    name = found.graph.input.name
    forms[name] = _settled(received[name], slices[name], operands, False)
    return forms


def _settled(
    received: list[Form], slices: list[tuple[int, int, int, Form]], operands: dict[int, int], is_slice: bool
) -> Form:
    """Return the form of a value from what its consumers hand back."""
    forms = [form for *_, form in slices]
    apart = all(a[0] == b[0] and (a[2] <= b[1] or b[2] <= a[1]) for a, b in combinations(slices, 2))
    whole = add([*received, *([beside(forms)] if apart and len(forms) > 1 else forms)])
    whole = whole if is_slice else fold(whole, operands)
    return whole if len(whole) <= 64 else {(): bound(whole)}


def _gradients(found: Derivation, cotangents: dict[str, Form]) -> dict[str, Real]:
    """Return K of each trained parameter: over its uses, κ times the cotangent, folded."""
    trained = [name for name, p in found.graph.parameters.items() if p.trainable]
    return {
        name: bound(add(scale(cotangents[node], found.nodes[node].kappa[role]) for node, role in found.uses[name]))
        for name in trained
    }

"""Rules as programs: what an emitted module evaluates at norms of its current weights. Needs no torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from lipcompile.analysis.bounds import derive, slope
from lipcompile.core.graph import Graph, Node
from lipcompile.emitters.torch.expressions import owner
from lipcompile.emitters.torch.pieces import wrapped
from lipcompile.numbers.traced import Expression, Traced, reference

# What leaves differences of logits as they are, or moves them by constants.
_AFTER_THE_HEAD = ("bias", "clip_gradient")


def following_bounds(graph: Graph) -> list[str]:
    """Write the rules of the gradient bounds, as a method of the module."""
    domain = Traced()
    bounds = derive(graph, domain, _current(graph), clip=reference("num.Interval.exactly(self.loss_limit)"))
    return [
        "def gradient_bounds(self) -> dict[str, float]:",
        '    """Return K_p by parameter name, at the certified norms of the current weights."""',
        "    u = num.exactly(self.certified_norms())",
        *_norm(graph),
        *_statements(domain, bounds.gradient.values()),
        *_returned({name: str(bound) for name, bound in bounds.gradient.items()}),
    ]


def current_slope(graph: Graph) -> list[str]:
    """Write the rules of the Lipschitz constant of what the last dense layer reads, or else of the output."""
    last, domain = last_dense(graph), Traced()
    layer = None if last is None else owner(last)
    found = slope(graph, domain, _current(graph), graph.output if last is None else last.inputs[0])
    program = [*_statements(domain, [found]), f"    return {_qualified(str(found))}"]
    described = "the output" if layer is None else f"the input of `{layer}`"
    return [
        "last_dense = None" if layer is None else f'last_dense = "{layer}"',
        "",
        "def slope(self, u: dict[str, num.Number]) -> num.Number:",
        f'    """Return the Lipschitz constant of {described} in the input, given norms u of the weights."""',
        *(_norm(graph) if any(re.search(r"\bX_0\b", line) for line in program) else []),
        *program,
    ]


def last_dense(graph: Graph) -> Node | None:
    """Return the dense layer that makes several logits, up to constants; None if none does."""
    name = graph.output
    while name != graph.input.name:
        node = graph.node(name)
        if node.op.name == "dense" and len(node.shape) == 1 and node.shape[0] > 1:
            return node if graph.owners()[node.parameters["weight"]].op is node.op else None
        if node.op.name not in _AFTER_THE_HEAD:
            return None
        name = node.inputs[0]
    return None


def _current(graph: Graph) -> dict[str, Expression]:
    return {name: reference(f"u['{name}']") for name in graph.parameters}


def _norm(graph: Graph) -> list[str]:
    """Write X_0 itself: inputs are clipped to a double that is not above it, or promised to be no longer."""
    norm = graph.input.norm
    known = 'float("inf")' if norm is None else Traced().of(norm)
    return [f"    X_0 = num.Interval.around({known})"]


def _statements(domain: Traced, results: Iterable[Expression]) -> list[str]:
    return [line for one in domain.program(*results) for line in wrapped(f"    {_qualified(one)}")]


def _returned(results: Mapping[str, str]) -> list[str]:
    return [
        "    return {",
        *(f'        "{name}": num.upper({_qualified(value)}),' for name, value in results.items()),
        "    }",
    ]


def _qualified(program: str) -> str:
    return re.sub(r"\b(sqrt|exp|expm1|log|minimum|maximum|max_over|supremum)\(", r"num.\1(", program)

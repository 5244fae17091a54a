"""The depth pass: how bounds grow with the number of copies of what a graph repeats, as closed forms.

Regimes are those of Theorem 1 of Béthune et al. (ICLR 2024), by the larger of the rate a at which a copy enlarges
norms and its Lipschitz constant l: the one bounds the gradients of late copies, the other those of early ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import sympy

from lipcompile.analysis.bounds import derive
from lipcompile.analysis.depth.advice import advice
from lipcompile.analysis.depth.growth import Growth, NoOrderError, Order, formula, written
from lipcompile.analysis.depth.loops import (
    GROWING,
    ROUNDING,
    SATURATED,
    Loop,
    is_affine,
    is_loop,
    loops,
    step_of,
    with_count,
    with_loop,
)
from lipcompile.analysis.depth.repetition import bottlenecks, rerolled
from lipcompile.core.derivation import Block, Bound, Depth, GrowthCase
from lipcompile.core.graph import Graph, Node
from lipcompile.numbers import Step
from lipcompile.numbers.certified import Certified, Interval
from lipcompile.numbers.known import Definition, Known, needed
from lipcompile.numbers.rounding import finite
from lipcompile.numbers.step import changed, value
from lipcompile.numbers.symbolic import Formula, Symbolic

# Formulas of depth are written out up to so many operations.
LONGEST_INLINE = 16
# Longer ones are left as they are: nobody reads them, and factors take more than linear time.
_MOST_FACTORED = 200
# And those in more symbols, whose factors take time exponential in their number.
_MOST_SYMBOLS = 8
REGIMES = ("contractive", "critical", "expansive")


def growth(graph: Graph, slope: Mapping[str, Interval]) -> Depth:
    """Return how the bounds of `graph` grow with what it repeats.

    Without repetition there is a regime only, by the constants between bottlenecks: all 1 is critical, below
    contractive, above expansive. `slope` holds the Lipschitz constant of the output in each value.
    """
    repeated, unsolved = rerolled(graph)
    repeated = _chosen(repeated)
    found = loops(repeated)
    if not found:
        uppers = [slope[name].upper for name in bottlenecks(graph)]
        steps = [before / after for before, after in pairwise(uppers) if after > 0 and before < float("inf")]
        return Depth(_together([_regime(step) for step in steps]), unsolved=unsolved)
    return replace(_Repeated(repeated, found).depth(), unsolved=unsolved)


def _chosen(graph: Graph) -> Graph:
    """Take the side of minima that gives the smaller bound, loop by loop, where both give one and numbers tell."""
    for node in loops(graph):
        sides = [replace(node.attributes, saturated=side) for side in (GROWING, SATURATED)]
        if all(is_affine(side) for side in sides) and _differ(*sides):
            graphs = [with_loop(graph, side) for side in sides]
            totals = [derive(one, Certified()).total.upper for one in graphs]
            graph = graph if totals[0] == totals[1] else graphs[totals.index(min(totals))]
    return graph


def _differ(one: Loop, other: Loop) -> bool:
    """Whether the steps are not the same: most bodies have no minimum to choose a side of."""
    steps = [changed(step_of(side, Certified()), lambda number: number.upper) for side in (one, other)]
    return steps[0] != steps[1]


def used(formulas: Iterable[Any], domain: Symbolic, certified: Certified) -> tuple[Definition, ...]:
    """Return the names that formulas use, directly or through others, in their order, with certified numbers."""
    named = certified.named
    return tuple(
        replace(one, upper=finite(named[one.name].upper)) if one.name in named else one
        for one in needed(formulas, domain.definitions.values())
    )


class _Repeated:
    """The closed forms of a graph with loops."""

    def __init__(self, graph: Graph, found: Sequence[Node]) -> None:
        self._graph, self._loops = graph, found
        self._num, self._certified = Symbolic(longest=LONGEST_INLINE), Certified()
        self._formulas = derive(graph, self._num)
        self._numbers = derive(graph, self._certified)
        # What is bounded whatever the counts are does not grow.
        self._always = Certified()
        derive(_without_counts(graph), self._always)
        # A loop hands on norms alone, and what it enlarges enters those behind it.
        steps = [step_of(node.attributes, self._certified) for node in found]
        self._exact = all(step.exact for step in steps) and not _reads_profiles(graph)
        self._counts = frozenset(symbol for node in found for symbol in self._count(node).free_symbols)

    def depth(self) -> Depth:
        """Return all that is known."""
        total = Bound(_factored(self._formulas.total.expression), finite(self._numbers.total.upper))
        blocks = tuple(self._block(node) for node in self._loops)
        regimes = [block.regime for block in blocks]
        orders, letter = self._growth(total.expression), str(*self._counts) if len(self._counts) == 1 else "T"
        told = [written(order, letter) + (f" if {case}" if case else "") for case, order in orders.items()]
        where = self._where(letter)
        return Depth(
            regime=_together(regimes),
            blocks=blocks,
            definitions=self._definitions(blocks, total),
            gradient_bound=total,
            growth=", ".join(told) + where if told else None,
            advice=tuple(advice(self._graph)),
            growth_cases=tuple(GrowthCase(formula(order, letter), case) for case, order in orders.items()),
            growth_where=where,
        )

    def _count(self, node: Node) -> Any:
        return self._num.of(node.attributes.count.scalar).expression

    def _block(self, node: Node) -> Block:
        loop, num = node.attributes, self._num
        step, numbers = step_of(loop, num), step_of(loop, self._certified)
        count, index = self._count(node), sympy.Symbol("t", positive=True)
        at_copy = self._at_copy(node, step, count, index)
        bounds = _of_one_copy(num, step)
        squares = sum(k**2 for k in bounds.values())
        rate, offset = (_bound(step.norm.get(d), numbers.norm.get(d)) for d in (1, 0))
        lipschitz = _bound(step.lipschitz, numbers.lipschitz)
        return Block(
            name=loop.name,
            layers=loop.copies or (tuple(inner.name for inner in loop.body.nodes),),
            count=count,
            index=index,
            repeats=loop.count.value,
            regime=self._regime(rate, lipschitz),
            rate=rate,
            offset=offset,
            lipschitz=lipschitz,
            input_norm=_factored(at_copy[_X]),
            cotangent=_factored(at_copy[_G]),
            gradient={name: _factored(k.subs(at_copy)) for name, k in bounds.items()},
            total=_factored(sympy.sqrt(sympy.expand(squares, power_exp=False)).subs(at_copy)),
            exact=self._exact,
        )

    def _regime(self, *rates: Bound) -> str | None:
        """Return the regime; what is certified of open rates are upper ends, which only say that they contract."""
        values, known = [rate.value for rate in rates], Known(self._num.definitions)
        found = None if None in values else _regime(max(value for value in values if value is not None))
        is_open = any(known.number(rate.expression) is None for rate in rates)
        return None if is_open and found != REGIMES[0] else found

    def _at_copy(self, node: Node, step: Step[Formula], count: Any, index: Any) -> dict[Any, Any]:
        """Return the norm at the input of copy t, and the cotangent at its output."""
        num, name = self._num, node.attributes.name
        bare = replace(step, squares={}, shared={})  # their sums take the most time, and are not used here
        before, after = (num.power(bare, Formula(times), name) for times in (index - 1, count - index))
        entering = value(num, before.norm, self._formulas.norm[node.inputs[0]])
        leaving = after.lipschitz * self._formulas.cotangent[node.name]
        return {_X: entering.expression, _G: leaving.expression}

    def _definitions(self, blocks: Sequence[Block], total: Bound) -> tuple[Definition, ...]:
        """Return the names that the formulas use, with their numbers."""
        formulas = [total.expression]
        for block in blocks:
            formulas += [block.count, block.input_norm, block.cotangent, block.total, *block.gradient.values()]
            formulas += [block.rate.expression, block.offset.expression, block.lipschitz.expression]
        return used(formulas, self._num, self._certified)

    def _growth(self, total: Any) -> dict[str, Order]:
        """Return the order of the bound in the number of copies, by cases of the one rate that is open, if any.

        The condition of a case is empty for always. There are none where nothing is known.
        """
        open_rates = self._open_rates()
        if len(open_rates) > 1:
            return {}
        try:
            if not open_rates:
                return {"": self._orders({}).of(total)}
            [rate] = open_rates
            cases = {
                f"{rate} < 1": sympy.Rational(1, 2),
                f"{rate} = 1": sympy.S.One,
                f"{rate} > 1": sympy.Integer(2),
            }
            return {name: self._orders({rate: sample}).of(total) for name, sample in cases.items()}
        except NoOrderError:
            return {}

    def _where(self, letter: str) -> str:
        """Say which counts grow together, and which are held fixed: those of loops in loops."""
        counts, fixed = (", ".join(sorted(map(str, symbols))) for symbols in (self._counts, self._inner_counts()))
        together = f", {counts} = {letter}" if len(self._counts) > 1 else ""
        return together + (f", for fixed {fixed}" if fixed else "")

    def _inner_counts(self) -> set[Any]:
        waiting = [node.attributes.body for node in self._loops]
        found: set[Any] = set()
        while waiting:
            inner = loops(waiting.pop())
            found |= {symbol for node in inner for symbol in self._count(node).free_symbols}
            waiting += [node.attributes.body for node in inner]
        return found - self._counts

    def _orders(self, sample: Mapping[Any, Any]) -> Growth:
        named = self._always.named.items()
        bounded = frozenset(name for name, number in named if finite(number.upper) is not None)
        return Growth(self._counts, self._num.definitions, bounded, sample, Known(self._num.definitions))

    def _open_rates(self) -> set[Any]:
        """Return the symbols on which it depends whether rates are 1."""
        steps = [step_of(node.attributes, self._num) for node in self._loops]
        rates = [step.lipschitz.expression for step in steps]
        rates += [step.norm[1].expression for step in steps if 1 in step.norm]
        named = {d.expression: sympy.Symbol(name, positive=True) for name, d in self._num.definitions.items()}
        symbols = {symbol for rate in rates for symbol in named.get(rate, rate).free_symbols}
        known = Known(self._num.definitions)
        return {symbol for symbol in symbols if known.number(symbol) is None}


# The norm at the input and the cotangent at the output of one copy: positive, so that roots of squares are plain,
# and no parameter of a model, whatever its name.
_X, _G = sympy.Dummy("X", positive=True), sympy.Dummy("G", positive=True)


def _root(expression: Any) -> Any:
    """Return a root, written as such only if it is not that of a square: most bounds are affine in the norm."""
    if sympy.count_ops(expression) > _MOST_FACTORED or len(expression.free_symbols) > _MOST_SYMBOLS:
        return sympy.sqrt(expression)
    # An exponential of a fraction would be a power of that of its denominator's inverse: of a degree of millions.
    opaque = {found: sympy.Dummy(positive=True) for found in expression.atoms(sympy.exp)}
    # Factors come as a^(2n)/a²: no formula divides by a rate, which may be 0.
    factored = sympy.powsimp(sympy.factor(expression.xreplace(opaque)), combine="exp")
    return sympy.sqrt(factored.xreplace({dummy: found for found, dummy in opaque.items()}))


def _of_one_copy(num: Symbolic, step: Step[Formula]) -> dict[str, Any]:
    """Return the gradient bounds of the parameters of one copy, over `_X` and `_G`."""
    norm = Formula(_X)
    own = {name: _root(value(num, k, norm).expression) for name, k in step.squares.items()}
    shared = {name: value(num, k, norm).expression for name, k in step.shared.items()}
    return {name: k * _G for name, k in {**own, **shared}.items()}


def _reads_profiles(graph: Graph) -> bool:
    """Whether a rule reads rows or entries, in a body or outside."""
    if graph.loss is not None and graph.loss.loss.reads:
        return True
    return any(node.op.reads or (is_loop(node) and _reads_profiles(node.attributes.body)) for node in graph.nodes)


def _bound(formula: Formula | None, number: Interval | None) -> Bound:
    if formula is None or number is None:
        return Bound(sympy.S.Zero, 0.0)
    return Bound(formula.expression, finite(number.upper))


def _regime(constant: float) -> str:
    return REGIMES[(constant >= 1 - ROUNDING) + (constant > 1 + ROUNDING)]


def _together(regimes: Sequence[str | None]) -> str | None:
    """Return the regime of parts in a row: critical ones do not count, and others must agree."""
    if None in regimes:
        return None
    kinds = {regime for regime in regimes if regime != "critical"}
    return "mixed" if len(kinds) > 1 else kinds.pop() if kinds else "critical"


@lru_cache(1024)
def _factored(expression: Any) -> Any:
    """Put in front what terms have in common, below a root as well; formulas of one graph recur in others."""
    if sympy.count_ops(expression) > _MOST_FACTORED:
        return expression
    outer = sympy.powsimp(sympy.factor_terms(expression), combine="exp")
    return outer.replace(
        lambda e: e.is_Pow and e.exp == sympy.Rational(1, 2) and e.base.is_Add,
        lambda e: sympy.sqrt(sympy.factor_terms(e.base)),
    )


def curves(graph: Graph, depth: Depth) -> Depth:
    """Return `depth` with the curve of each block: certified bounds of the whole gradient by number of copies."""
    repeated = _chosen(rerolled(graph)[0])
    points = {node.attributes.name: tuple(_curve(repeated, node)) for node in loops(repeated)}
    return replace(depth, blocks=tuple(replace(block, curve=points[block.name]) for block in depth.blocks))


def _without_counts(graph: Graph) -> Graph:
    for node in loops(graph):
        loop = node.attributes
        graph = with_loop(graph, replace(loop, count=replace(loop.count, value=None)))
    return graph


def _curve(graph: Graph, node: Node) -> Iterator[tuple[int, float]]:
    known = node.attributes.count.value or 32
    depths = sorted({known, *range(1, 9), *(round(2 ** (k / 2)) for k in range(6, 2 * known.bit_length() + 3))})
    for count in depths:
        total = finite(derive(with_count(graph, node.attributes, count), Certified()).total.upper)
        if total is not None:
            yield count, total

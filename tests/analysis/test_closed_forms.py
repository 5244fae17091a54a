"""Closed forms in depth against the analysis of the unrolled network.

The oracle is the graph with every copy written out, `--set depth=n`: what the rest of the suite attacks. Formulas
are evaluated by sympy in 60 digits, since their terms may cancel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache, partial
from pathlib import Path
from typing import Any

import mpmath
import pytest
import sympy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lipcompile import ModelOptions, pipeline
from lipcompile.analysis.bounds import derive
from lipcompile.analysis.sensitivity import analyse
from lipcompile.core.derivation import Analysis, Bound
from lipcompile.core.graph import Graph
from lipcompile.numbers.certified import Certified
from lipcompile.numbers.closed_form import _same_number
from lipcompile.numbers.known import Definition
from lipcompile.numbers.symbolic import MaxOver
from tests.nights import by_day
from tests.suprema import supremum

DEPTHS = range(1, 41)
BY_DAY = (*range(1, 11), 20, 40)
DIGITS = 60
CLOSE = 1e-12

# Blocks of [16, 4] -> [16, 4], by family: {u}, {v} norms of weights, {b} of biases, {w} in [0, 1], {k} whole.
FAMILIES = {
    "chain": "dense(4, constraint=spectral({u})) groupsort(2)",
    "chain with biases": "dense(4, constraint=spectral({u}), bias={b}) relu",
    "two layers": """dense(8, constraint=spectral({u}), bias={b}) leaky_relu({w})
                     dense(4, constraint=spectral({v}))""",
    "steep activation": "dense(4, constraint=spectral({u}), bias={b}) leaky_relu(1.5)",
    "residual add": "residual(add) {{ dense(4, constraint=spectral({u}), bias={b}) groupsort(2) }}",
    "residual mean": "residual(mean) {{ dense(4, constraint=spectral({u})) groupsort(2) }}",
    "residual convex": "residual(convex({w})) {{ dense(4, constraint=spectral({u}), bias={b}) abs }}",
    "concat": """branch {{ dense(4, constraint=spectral({u})) }} {{ dense(4, constraint=spectral({v})) }} -> concat
                 dense(4)""",
    "mixer": """residual(mean) {{ transpose dense(16, constraint=spectral({u})) groupsort(2) transpose }}
                residual(add) {{ dense(4, constraint=spectral({v}), bias={b}) groupsort(2) }}""",
    "nested": """repeat {k} {{ residual(add) {{ dense(4, constraint=spectral({u}), bias={b}) relu }} }}
                 dense(4, constraint=spectral({v}))""",
    "tied": 'dense(4, constraint=spectral({u}), share="w") groupsort(2)',
    "tied with biases": 'dense(4, constraint=spectral({u}), bias={b}, share="w") groupsort(2) scale({v})',
    "halves": """p, q = split(2, axis=0)
                 branch {{ dense(p, 4, constraint=spectral({u})) }} {{ dense(q, 4, constraint=spectral({v})) }}
                 -> concat(axis=0)""",
    "frozen": "frozen {{ dense(4, constraint=spectral({u})) }} bias({b}) relu",
    "bounded, far out": "residual(add) {{ dense(4, constraint=spectral({v})) tanh }}",
    "normalised, far out": "residual(add) {{ layer_norm(floor=1) dense(4, constraint=spectral({u})) }}",
}
FAR = {"bounded, far out": 1000, "normalised, far out": 1000}  # where the constant side of every minimum holds


def network(body: str, norm: float = 1) -> str:
    return f"""
    model net {{
        param depth: int
        input x: tensor[16, 4], norm <= {norm}
        stem = dense(4, constraint=spectral(1.5), bias=0.25)
        repeat depth {{ {body} }}
        flatten
        head = dense(1)
        loss kr
    }}
    """


def loaded(source: str, folder: Path, **bindings: Fraction) -> Graph:
    path = folder / "net.lip"
    path.write_text(source)
    graph = pipeline.load(str(path), ModelOptions(bindings=bindings)).graph
    assert graph is not None
    return graph


def analysed(source: str, folder: Path, **bindings: Fraction) -> Analysis:
    return analyse(loaded(source, folder, **bindings))


def evaluated(expression: Any, definitions: tuple[Definition, ...], **values: Any) -> Any:
    """The formula as a number of `DIGITS` digits, with `values` for the names that have none."""
    with mpmath.workdps(DIGITS):
        known = {name: _real(Fraction(str(value))) for name, value in values.items()}
        for definition in definitions:
            if definition.value is not None:
                known.setdefault(definition.name, _real(definition.value))
            elif definition.expression is not None:
                known[definition.name] = number(definition.expression, known)
        return number(expression, known)


def _real(value: Fraction) -> Any:
    return mpmath.mpf(value.numerator) / value.denominator


def number(expression: Any, known: dict[str, Any]) -> Any:
    for place, extreme in enumerate(sorted(expression.atoms(MaxOver), key=str)):
        term, index, *_ = extreme.args
        if not index.is_integer:
            name = sympy.Symbol(f"supremum_{place}")
            found = supremum(partial(_inside, term, known, index.name), mpmath.mpf)
            expression, known = expression.xreplace({extreme: name}), {**known, name.name: found}
    names, program = compiled(expression)
    return mpmath.mpf(program(*(known[name] for name in names)))


def _inside(term: Any, known: dict[str, Any], index: str, value: Any) -> Any:
    return number(term, {**known, index: value})


@cache
def compiled(expression: Any) -> tuple[list[str], Callable[..., Any]]:
    """The formula as a program on mpmath's numbers."""
    written_out = expression.replace(
        MaxOver,
        # Unevaluated: sympy would compare each of many terms with each other.
        lambda term, m, start, last: sympy.Max(*(term.subs(m, k) for k in range(start, last + 1)), evaluate=False),
    )
    symbols = sorted(written_out.free_symbols, key=str)
    return [symbol.name for symbol in symbols], sympy.lambdify(symbols, written_out, "mpmath")


def close(found: Any, expected: float | None) -> bool:
    assert expected is not None
    with mpmath.workdps(DIGITS):
        return bool(abs(found / mpmath.mpf(expected) - 1) <= CLOSE)


def agree(source: str, depth: int, open_analysis: Analysis, folder: Path) -> Graph:
    """Compare every formula of the open network with the number of the unrolled one, and return that."""
    unrolled = loaded(source, folder, depth=Fraction(depth))
    numbers = derive(unrolled, Certified())
    for name, bound in numbers.gradient.items():
        if name.startswith(("stem", "head")):
            assert close(_at(open_analysis.parameters[name], open_analysis, depth), bound.upper), name
    assert close(_at(open_analysis.total, open_analysis, depth), numbers.total.upper)
    assert close(_at(open_analysis.lipschitz, open_analysis, depth), numbers.slope["x"].upper)
    total = open_analysis.depth.gradient_bound
    assert total is not None
    assert close(evaluated(total.expression, open_analysis.depth.definitions, depth=depth), numbers.total.upper)
    return unrolled


def found_again(unrolled: Graph, depth: int, norms: float) -> None:
    """The repetition is found in the unrolled graph, and its closed form gives the same number."""
    analysis = analyse(unrolled)
    [block] = [block for block in analysis.depth.blocks if block.repeats == depth]
    assert len(block.layers) == depth
    total = analysis.depth.gradient_bound
    assert total is not None
    assert total.value == pytest.approx(norms, rel=CLOSE)
    assert close(evaluated(total.expression, analysis.depth.definitions), norms)


def _at(bound: Bound, analysis: Analysis, depth: int) -> Any:
    return evaluated(bound.expression, analysis.definitions, depth=depth)


# Blocks whose closed forms are bounds of what the rules give, but larger.
LOOSE = {
    "bounded": FAMILIES["bounded, far out"],
    "normalised": FAMILIES["normalised, far out"],
    "concat with biases": FAMILIES["concat"].replace("({u})", "({u}), bias={b}"),
    "halves with biases": FAMILIES["halves"].replace("({u})", "({u}), bias={b}"),
    "clipped": "residual(add) {{ dense(4, constraint=spectral({u}), bias={b}) clip_norm({v}) }}",
    "attention": """residual(mean) {{ layer_norm(floor=1) attention(2) }}
                    residual(mean) {{ dense(4, bias={b}) relu }}""",
}
PAIRS = [(norm, family) for norm in (0.01, 1, 100) for family in LOOSE]

VALUES = {"u": "1.25", "v": "0.8", "b": "0.5", "w": "0.25", "k": "2"}


def test_rates_are_told_apart_and_nothing_is_nothing() -> None:
    root = sympy.sqrt(2)
    assert [_same_number(*pair) for pair in ((root**3, 2 * root), (root, root + sympy.Rational(1, 10**40)))] == [
        True,
        False,
    ]
    assert _same_number(sympy.S.Zero, sympy.S.Zero)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("depths", by_day({0}, [BY_DAY, DEPTHS]), ids=["day", "night"])
def test_closed_forms_are_the_unrolled_numbers_at_every_depth(
    family: str, depths: Sequence[int], tmp_path: Path
) -> None:
    source = network(FAMILIES[family].format(**VALUES), FAR.get(family, 1))
    open_analysis = analysed(source, tmp_path)
    for depth in depths:
        agree(source, depth, open_analysis, tmp_path)


hundredths = st.integers(1, 300).map(
    lambda n: str(Fraction(n, 100).limit_denominator()) if n % 100 else str(n // 100)
)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=1, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_closed_forms_of_random_blocks(family: str, data: st.DataObject, tmp_path: Path) -> None:
    compare_random_block(family, data, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_closed_forms_of_many_random_blocks(family: str, data: st.DataObject, tmp_path: Path) -> None:
    compare_random_block(family, data, tmp_path)


def compare_random_block(family: str, data: st.DataObject, tmp_path: Path) -> None:
    values = {name: data.draw(hundredths, name) for name in "uvb"}
    values["w"] = data.draw(st.sampled_from(["0", "0.25", "0.5", "1"]), "w")
    values["k"] = str(data.draw(st.integers(1, 3), "k"))
    source = network(FAMILIES[family].format(**values), FAR.get(family, 1))
    open_analysis = analysed(source, tmp_path)
    depth = data.draw(st.integers(2, 40), "depth")
    unrolled = agree(source, depth, open_analysis, tmp_path)
    found_again(unrolled, depth, derive(unrolled, Certified()).total.upper)


@pytest.mark.parametrize(("norm", "family"), by_day([p for p in PAIRS if p[1] != "attention" or p[0] == 1], PAIRS))
def test_closed_forms_are_never_below_the_unrolled_numbers(family: str, norm: float, tmp_path: Path) -> None:
    source = network(LOOSE[family].format(**VALUES), norm)
    open_analysis = analysed(source, tmp_path)
    [block] = open_analysis.depth.blocks
    assert not block.exact
    for depth in (1, 2, 3, 10):
        unrolled = loaded(source, tmp_path, depth=Fraction(depth))
        expected = derive(unrolled, Certified()).total.upper
        assert _at(open_analysis.total, open_analysis, depth) >= expected * (1 - CLOSE)
        found = analyse(unrolled).depth.gradient_bound
        assert found is None or (found.value or 0) >= expected * (1 - CLOSE)

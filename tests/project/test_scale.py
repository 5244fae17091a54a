"""Work and reports grow in proportion to the number of layers: calls are counted, no time is measured."""

from __future__ import annotations

import functools
import gc
import io
import json
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import pytest
import sympy
from rich.console import Console
from rich.padding import Padding
from rich.text import Text
from sympy.printing.str import StrPrinter

from lipcompile import pipeline
from lipcompile.analysis import disjoint_parts
from lipcompile.core.names import Names
from lipcompile.frontends.options import ModelOptions
from lipcompile.numbers import simplify
from lipcompile.numbers.certified import _round_up
from lipcompile.numbers.simplify import extreme
from lipcompile.numbers.symbolic import LONGEST_NUMBER
from lipcompile.numbers.traced import Traced, reference
from lipcompile.reports import formulas, json_report, terminal
from lipcompile.reports.console import plain, table
from tests.frontends.onnx.onnx_models import Array, floats, model, node, save
from tests.nights import by_day

pytestmark = pytest.mark.slow

SIZES, DEEP = (50, 100, 200), (100, 200, 400)
# Where sizes double twice, linear work grows twice as much as at first, quadratic work four times.
MOST, NOISE = 2.6, 20_000

BODIES = {
    "biases": "dense(8, bias=0.5) groupsort(2)",
    "shared": 'dense(8, share="w") relu',
    "residual mean": "residual(mean) { dense(8) groupsort(2) }",
}
ALL_BODIES = {
    **BODIES,
    "residual add": "residual(add) { dense(8) groupsort(2) }",
    "residual add with biases": "residual(add) { dense(8, bias=0.5) groupsort(2) }",
    "symbols": "dense(8, constraint=spectral(u), bias=B) relu",
    "saturated": "dense(8, bias=0.5) sigmoid",
    "long numbers": "residual(convex(0.1)) { dense(8, constraint=spectral(1.1)) groupsort(2) }",
    "branches": "branch { dense(4, bias=0.1) relu } { dense(4) } -> concat",
    "slices": "a, b = split(2) dense(a, 4) l = relu() dense(b, 4) r = relu() concat(l, r)",
}


def lip(folder: Path, body: str, count: int) -> Path:
    path = folder / f"deep_{count}.lip"
    head = "param u: real\n param B: real\n" if "spectral(u)" in body else ""
    deep = f"repeat {count} {{ {body} }}\n dense(3)"  # without a loss, whose formula takes as long as many layers
    path.write_text(f"model deep {{ {head} input x: tensor[8], norm <= 1\n {deep} }}")
    return path


def densely_connected(folder: Path, count: int) -> Path:
    """Return a model whose layers read all layers before them, with `count` edges about."""
    layers = math.isqrt(2 * count)
    lines = ["h0 = dense(x, 4)", "h1 = dense(h0, 4)"]
    for i in range(2, layers):
        lines += [f"c{i} = concat({', '.join(f'h{j}' for j in range(i))})", f"h{i} = dense(c{i}, 4)"]
    path = folder / f"dense_{count}.lip"
    path.write_text("model dense { input x: tensor[4], norm <= 1\n" + "\n".join(lines) + "\n}")
    return path


def onnx(folder: Path, count: int) -> Path:
    nodes, weights = [], dict[str, Array]()
    for i in range(count):
        before = "x" if i == 0 else f"a{i - 1}"
        weights |= {f"w{i}": floats(8, 8), f"b{i}": floats(8)}
        nodes.append(node("Gemm", f"{before} w{i} b{i}", f"h{i}", transB=1))
        nodes.append(node("Relu", f"h{i}", "y" if i == count - 1 else f"a{i}"))
    return save(model(nodes, ["N", 8], weights), folder, f"deep_{count}.onnx")


@dataclass
class Work:
    """How much was done, and how much was written."""

    calls: int = 0
    text: int = 0
    json: int = 0


def forget() -> None:
    """Empty the caches of results: what was done for one network must not count as done for the next."""
    gc.unfreeze()  # what was there before the tests is listed, too
    for found in gc.get_objects():
        if type(found) is not functools._lru_cache_wrapper or found.cache_parameters()["maxsize"] is None:
            continue
        if found.__module__.startswith(("lipcompile", "sympy")):
            found.cache_clear()


@contextmanager
def counted(work: Work) -> Iterator[None]:
    """Count the calls of functions, whatever language they are written in."""

    def count(_frame: FrameType, event: str, _argument: Any) -> None:
        work.calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(before)


def checked(path: Path) -> Work:
    """Do what `lipcompile check` does, in both formats."""
    work = Work()
    forget()
    with counted(work):
        derivation = pipeline.check(str(path), ModelOptions())
        text = plain(*terminal.report(derivation, lambda _: None, verbose=True))
        report = json.dumps(json_report.report(derivation))
    assert derivation.analysis is not None
    # Of a node there are X, G, l and one K a parameter; which of them get names depends on their lengths.
    assert len(derivation.analysis.definitions) <= 5 * len(derivation.analysis.graph.nodes) + 10
    work.text, work.json = len(text), len(report)
    return work


def assert_linear(write: Callable[[int], Path], sizes: tuple[int, ...] = SIZES) -> None:
    checked(write(8))  # imports what is imported late, and builds what is built once
    small, middle, large = (checked(write(count)) for count in sizes)
    for what in ("calls", "text", "json"):
        first, second, third = (getattr(work, what) for work in (small, middle, large))
        allowed = MOST * (second - first) + (NOISE if what == "calls" else 0)
        assert third - second <= allowed, f"{what}: {first}, {second}, {third}"


@pytest.mark.parametrize("name", by_day([*BODIES][-1:], BODIES))
def test_work_and_reports_grow_with_the_number_of_layers(name: str, tmp_path: Path) -> None:
    assert_linear(lambda count: lip(tmp_path, BODIES[name], count))


@pytest.mark.nightly
@pytest.mark.parametrize("body", ALL_BODIES.values(), ids=ALL_BODIES)
def test_work_and_reports_of_deeper_networks_grow_so(body: str, tmp_path: Path) -> None:
    assert_linear(lambda count: lip(tmp_path, body, count), DEEP)


@pytest.mark.nightly
@pytest.mark.parametrize("write", [onnx, densely_connected])
def test_work_and_reports_of_larger_files_grow_so(
    write: Callable[[Path, int], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disjoint_parts, "MOST_TERMS", 4)
    assert_linear(lambda count: write(tmp_path, count), DEEP)


def test_work_and_reports_grow_with_the_number_of_nodes_of_a_file(tmp_path: Path) -> None:
    assert_linear(lambda count: onnx(tmp_path, count))


def test_work_and_reports_grow_with_the_number_of_edges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of layers that read all before them; a form has a number of terms that all of them reach here."""
    monkeypatch.setattr(disjoint_parts, "MOST_TERMS", 4)
    assert_linear(lambda count: densely_connected(tmp_path, count))


def test_equal_names_are_numbered_in_linear_time() -> None:
    """The numbers that are taken are not tried again."""
    names = Names()
    assert [names.fresh(name) for name in ("a_2", "a", "a", "b")] == ["a_2", "a", "a_3", "b"]
    asked = 0

    class Counting(set[str]):
        def __contains__(self, name: object) -> bool:
            nonlocal asked
            asked += 1
            return super().__contains__(name)

    names = Names(Counting())
    found = [names.fresh("a") for _ in range(1000)]
    assert found[-1] == "a_1000"
    assert asked < 2100


def test_tables_outside_a_terminal_look_as_rich_makes_them() -> None:
    rows = table("name", "at most", "", right=("at most",))
    for cells in (("dense", "1.50", Text("∞")), ("größer", "10", None), ("日本", "", "last")):
        rows.add_row(*cells)
    file = io.StringIO()
    Console(file=file, width=200, color_system=None).print(Padding(rows, (0, 0, 0, 2), expand=False))
    expected = [line.rstrip() for line in file.getvalue().splitlines()]
    assert plain(Padding(rows, (0, 0, 0, 2), expand=False)).splitlines() == expected


def test_a_long_sum_is_printed_whole_for_programs_and_cut_for_people() -> None:
    symbols = [sympy.Symbol(f"K_{i}", positive=True) for i in range(300)]
    total = sympy.sqrt(sympy.Add(*(symbol**2 for symbol in symbols)))
    assert all(f"K_{i}**2" in formulas.text(total) for i in range(300))
    assert formulas.legible(total).startswith("sqrt(K_0**2 + K_1**2 + ")
    assert formulas.legible(total).endswith("…")


def test_the_total_of_a_long_chain_is_a_polynomial(tmp_path: Path) -> None:
    """K of weight k is L·(X_0 + k/2), k = 0 … 20, that of the 20 biases L: Σk = 210, Σk²/4 + 20 = 717.5 + 20."""
    analysis = pipeline.check(str(lip(tmp_path, BODIES["biases"], 20)), ModelOptions()).analysis
    assert analysis is not None
    assert formulas.text(analysis.total.expression) == "L*sqrt(21*X_0**2 + 210*X_0 + 1475/2)"


def test_sums_with_negative_terms_are_not_multiplied_out() -> None:
    """(1 - q)² + … near q = 1 would be the small difference of large numbers."""
    q, x = (sympy.Symbol(name, positive=True) for name in "qx")
    terms = [(1 - q) ** 2 * (x + i) for i in range(20)]
    assert simplify.total(terms) == (1 - q) ** 2 * 190 + 20 * x * (1 - q) ** 2


def test_numbers_of_many_digits_get_a_name(tmp_path: Path) -> None:
    """The factor 2^300 is written as a product of names with shorter factors, and the value is that of 2^300."""
    derivation = pipeline.check(str(lip(tmp_path, "residual(add) { relu }", 300)), ModelOptions())
    analysis = derivation.analysis
    assert analysis is not None
    known = {d.name: d.expression for d in analysis.definitions if d.expression is not None}
    value = analysis.layers[-2].output_norm.expression
    digits = [int(number).bit_length() for e in known.values() for number in e.atoms(sympy.Integer)]
    assert max(digits) <= LONGEST_NUMBER + 1
    while value.free_symbols & {sympy.Symbol(name, positive=True) for name in known}:
        value = value.subs({sympy.Symbol(name, positive=True): e for name, e in known.items()})
    assert value == 2**300 * sympy.Symbol("X_0", positive=True)


@pytest.mark.parametrize("exponent", [2**100, -(2**100), 1025, -1080, -1074])
def test_enclosures_of_any_size_are_rounded_up(exponent: int) -> None:
    """Where the exact number has more digits than memory."""
    found = _round_up((0, 3, exponent, 2))
    assert found == (math.inf if exponent > 0 else max(math.ldexp(3, exponent), 5e-324))
    assert _round_up((1, 3, -(2**100), 2)) == 0


def test_a_program_nests_long_sums_in_halves() -> None:
    """Python refuses deeply nested expressions."""
    domain = Traced()
    found = domain.sum(*(reference(f"x{i}") for i in range(5000)))
    assert eval(str(found), {f"x{i}": i for i in range(5000)}) == sum(range(5000))


@pytest.mark.parametrize("seed", range(20))
def test_no_extreme_loses_an_operand_that_counts(seed: int) -> None:
    """At random positive arguments, a pruned extreme has the value of the whole one."""
    random = Random(seed)
    x, y = (sympy.Symbol(name, positive=True) for name in "xy")
    pieces = [x, y, x * y, sympy.sqrt(2) * x, sympy.exp(-x), sympy.sqrt(x + y), 1 - sympy.exp(-y), sympy.S.One]
    weights = [sympy.Rational(weight) for weight in ("0", "1", "2", "1/3")]
    operands = [sympy.Add(*(random.choice(weights) * p for p in random.sample(pieces, 3))) for _ in range(5)]
    for kind, whole in ((sympy.Min, min), (sympy.Max, max)):
        found = sympy.lambdify([x, y], extreme(kind, operands), "math")
        each = sympy.lambdify([x, y], operands, "math")
        for _ in range(100):
            at = random.expovariate(1), random.expovariate(1)
            assert found(*at) == pytest.approx(whole(each(*at)), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("seed", range(20))
def test_products_with_one_sum_are_printed_and_divided_as_sympy_does(seed: int) -> None:
    """The printer of sympy, and its division, are the oracles of what is written without evaluating sums."""
    random = Random(seed)
    symbols = [sympy.Symbol(name, positive=True) for name in ("L", "L_R", "X_0", "K_a", "748.5", "10.5", "u")]
    one, other, *factors = random.sample(symbols, 5)
    shared = one ** random.choice([1, 2])
    for total in (one + other, other + sympy.Rational(random.randint(1, 9), 2), sympy.Add(*symbols)):
        for number in (1, 2, sympy.sqrt(2), sympy.Rational(1, 3)):
            product = sympy.Mul(number, *factors[: random.randint(0, 3)], total)
            for formula in (product, product + one, -product, 1 / product, product**2):
                assert formulas._Text({}).doprint(formula) == StrPrinter({}).doprint(formula)
            assert simplify._divided(shared * product, shared).args == (shared * product / shared).args


def test_long_chains_of_names_have_an_order(tmp_path: Path) -> None:
    """Each layer has another constraint, so that each norm has a name that rests on the one before."""
    layers = [f"dense(4, constraint=spectral({901 + i % 199 * 2}/1000), bias=0.5) relu" for i in range(300)]
    source = "repeat 3 { dense(4, bias=0.5) relu }\n" + "\n".join(layers)
    path = tmp_path / "chain.lip"
    path.write_text(f"model chain {{ input x: tensor[4], norm <= 1\n{source}\nloss multiclass_hinge }}")
    analysis = pipeline.check(str(path)).analysis
    assert analysis is not None
    assert analysis.depth.growth == "O(T**(3/2))"

"""docs/depth.md: what its command writes, and what the recurrence of Theorem 1 gives by itself."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import mpmath
import pytest
import sympy

from tests.nights import by_day

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "depth.md").read_text(encoding="utf-8")
SECTIONS = PAGE.partition("<!-- begin: python -m benchmarks.depth --write -->")[2].partition("<!-- end -->")[0]
BIAS = Fraction(1, 2)


@pytest.fixture
def command(own_benchmarks: None) -> ModuleType:  # noqa: ARG001
    return importlib.import_module("benchmarks.depth")


@pytest.mark.parametrize("index", by_day({0}, range(3)))
def test_the_page_is_what_its_command_writes(command: ModuleType, index: int) -> None:
    written = [f"### {section}" for section in SECTIONS.split("### ")[1:]]
    assert len(written) == len(command.NETWORKS) == 3
    assert command.section(command.NETWORKS[index]).strip() == written[index].strip()
    assert (ROOT / "docs" / "depth.svg").is_file()


def squared(kind: str, alpha: Any, depth: int, b: Any, *, bias: bool) -> Any:
    """K² for X_0 = L = 1, copy by copy from the paper's recurrence.

    A chain is h ↦ ReLU(Wh + b) with ‖W‖ <= α and a last layer with α; a block h + ReLU(Wh + b), or half of that,
    has ‖W‖ <= u such that its rate, 1 + u or (1 + u)/2, is α, and a last layer with 1. share: how much of what a
    block is sent goes to its weights.
    """
    share = {"chain": 1, "mean": Fraction(1, 2), "add": 1}[kind]
    last = alpha if kind == "chain" else 1
    offset = (share if kind == "mean" else 1) * b if bias else 0
    norms = [1]
    for _ in range(depth):
        norms.append(alpha * norms[-1] + offset)
    copies = [(last * alpha ** (depth - 1 - t) * share) ** 2 * (bias + norms[t] ** 2) for t in range(depth)]
    return sum(copies) + bias + norms[depth] ** 2


def tables() -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """The tables of the page: kind, heads of columns, rows."""
    for kind, section in zip(("chain", "mean", "add"), SECTIONS.split("### ")[1:], strict=True):
        rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
        cells = [[cell.strip() for cell in row] for row in rows]
        yield kind, cells[0][1:], cells[2:]


def test_numbers_of_the_page_are_those_of_the_recurrence_rounded_up() -> None:
    """A number is the smallest with its decimals that is not below the root of K²."""
    compared = 0
    with mpmath.workdps(400):
        for kind, heads, rows in tables():
            for depth, *cells in rows[:-2]:
                for head, cell in zip(heads, cells, strict=True):
                    alpha = mpmath.mpf(head.removeprefix("α = ").partition(",")[0])
                    k = mpmath.sqrt(squared(kind, alpha, int(depth), mpmath.mpf("0.5"), bias="biases" in head))
                    last_digit = mpmath.mpf(10) ** int(Decimal(cell).as_tuple().exponent)
                    assert -1e-300 < mpmath.mpf(cell) - k < last_digit + 1e-12 * k, (kind, head, depth)
                    compared += 1
    assert compared == 8 * (6 + 6 + 4)


def test_regimes_and_orders_of_the_page_are_those_of_theorem_1() -> None:
    expected = {
        "α = 0.9": ("contractive", "`O(0.9**T * sqrt(T))`"),
        "α = 1": ("critical", "`O(sqrt(T))`"),
        "α = 1.1": ("expansive", "`O(1.1**T * sqrt(T))`"),
        "α = 2": ("expansive", "`O(2**T * sqrt(T))`"),
        "α = 0.9, biases": ("contractive", "`O(1)`"),
        "α = 1, biases": ("critical", "`O(T**(3/2))`"),
        "α = 1.1, biases": ("expansive", "`O(1.1**T * sqrt(T))`"),
        "α = 2, biases": ("expansive", "`O(2**T * sqrt(T))`"),
    }
    for _, heads, rows in tables():
        assert [rows[-2][0], rows[-1][0]] == ["regime", "order"]
        assert list(zip(rows[-2][1:], rows[-1][1:], strict=True)) == [expected[head] for head in heads]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("alpha", [Fraction(3, 4), Fraction(1), Fraction(6, 5)])
def test_formulas_of_the_page_are_the_sums_of_the_recurrence(
    command: ModuleType, alpha: Fraction, bias: bool
) -> None:
    symbols = {name: sympy.Symbol(name, positive=True) for name in ("T", "alpha", "B", "X_0", "L")}
    for network, kind in zip(command.NETWORKS, ("chain", "mean", "add"), strict=True):
        formula = command.square(network, bias)
        for depth in (1, 3, 8):
            known = {"T": depth, "alpha": sympy.Rational(alpha), "B": sympy.Rational(BIAS), "X_0": 1, "L": 1}
            found = formula.subs({symbols[name]: value for name, value in known.items()})
            assert found == sympy.Rational(squared(kind, alpha, depth, BIAS, bias=bias))

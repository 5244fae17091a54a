"""Theorem 1 in numbers: bounds of the whole gradient by depth, beside the formulas that give them.

    python -m benchmarks.depth [--write]

Prints the tables of docs/depth.md; with --write they replace those of the page, and docs/depth.svg is drawn anew.
Formulas come from networks whose depth is open, numbers from the same networks unrolled to that depth.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import sympy

from benchmarks.harness import DOCS, line, options, saved, show, written
from lipcompile import ModelOptions
from lipcompile.analysis import bounds
from lipcompile.analysis.canonical import canonical
from lipcompile.core.derivation import Analysis
from lipcompile.frontends.options import Loaded
from lipcompile.numbers.certified import Certified
from lipcompile.numbers.rounding import finite, upward
from lipcompile.pipeline import derive, load

PAGE, PLOT = DOCS / "depth.md", DOCS / "depth.svg"
BEGIN, END = "<!-- begin: python -m benchmarks.depth --write -->", "<!-- end -->"
DEPTHS = (1, 2, 5, 10, 20, 40, 100, 1000)
BIAS = Fraction(1, 2)

SOURCE = """
model {name} {{
    param depth: int
    param alpha: real
    param B: real
    input x: tensor[16]
    repeat depth {{ {body} }}
    dense(1, constraint=spectral({last}){bias})
}}
"""


@dataclass(frozen=True)
class Network:
    """A repeated block of rate alpha, and the last layer; `{bias}` stands for the argument of biases."""

    name: str
    title: str
    body: str
    last: str
    rates: tuple[str, ...]

    def source(self, bias: bool) -> str:
        """Return the model."""
        argument = ", bias=B" if bias else ""
        body = self.body.format(bias=argument)
        return SOURCE.format(name=self.name, body=body, last=self.last, bias=argument)


NETWORKS = (
    Network(
        "chain",
        "Chains: affine layers with ‖W‖ ≤ α and ReLU between them",
        "dense(16, constraint=spectral(alpha){bias}) relu",
        "alpha",
        ("0.9", "1", "1.1"),
    ),
    Network(
        "residual_mean",
        "`residual(mean)`: blocks (h + ReLU(Wh + b))/2 with ‖W‖ ≤ 2α - 1, and a last layer with ‖W‖ ≤ 1",
        "residual(mean) {{ dense(16, constraint=spectral(2 * alpha - 1){bias}) relu }}",
        "1",
        ("0.9", "1", "1.1"),
    ),
    Network(
        "residual_add",
        "`residual(add)`: blocks h + ReLU(Wh + b) with ‖W‖ ≤ α - 1, and a last layer with ‖W‖ ≤ 1",
        "residual(add) {{ dense(16, constraint=spectral(alpha - 1){bias}) relu }}",
        "1",
        ("1.1", "2"),
    ),
)


def analysed(source: str, bindings: dict[str, Fraction], *, numbers: bool) -> Analysis:
    """Derive a model; with `numbers`, for inputs of norm 1 and a loss with the constant 1."""
    known = ModelOptions(bindings=bindings)
    if numbers:
        known = ModelOptions(input_norm=Fraction(1), loss="kr", bindings=bindings)
    derivation = derive(read(source, known), known)
    assert derivation.analysis is not None, derivation.diagnostics
    return derivation.analysis


def unrolled(source: str, bindings: dict[str, Fraction]) -> float | None:
    """Return the bound of the whole gradient, without a formula; None beyond doubles."""
    loaded = read(source, ModelOptions(input_norm=Fraction(1), loss="kr", bindings=bindings))
    assert loaded.graph is not None, loaded.diagnostics
    return finite(bounds.derive(canonical(loaded.graph)[0], Certified()).total.upper)


def read(source: str, known: ModelOptions) -> Loaded:
    """Read a model of the language."""
    with written(source) as path:
        return load(str(path), known)


@dataclass(frozen=True)
class Column:
    """One network with all but its depth known: regime, order, bounds by depth; None is beyond doubles."""

    rate: str
    bias: bool
    regime: str
    growth: str
    bounds: tuple[float | None, ...]


@cache
def column(network: Network, rate: str, bias: bool) -> Column:
    """Derive one column."""
    source, known = network.source(bias), {"alpha": Fraction(rate), "B": BIAS}
    depth = analysed(source, known, numbers=True).depth
    assert depth.regime is not None
    assert depth.growth is not None
    found = tuple(unrolled(source, {**known, "depth": Fraction(t)}) for t in DEPTHS)
    return Column(rate, bias, depth.regime, depth.growth, found)


def columns(network: Network) -> list[Column]:
    """Return the columns of a network, without biases and with them."""
    return [column(network, rate, bias) for bias in (False, True) for rate in network.rates]


def table(network: Network) -> Iterator[str]:
    """Yield the rows of a table."""
    found = columns(network)
    yield line("T", *(f"α = {one.rate}{', biases' if one.bias else ''}" for one in found))
    yield line("--:", *("--:" for _ in found))
    for index, depth in enumerate(DEPTHS):
        yield line(str(depth), *(cell(one.bounds[index]) for one in found))
    yield line("regime", *(one.regime for one in found))
    yield line("order", *(f"`{one.growth.replace('depth', 'T')}`" for one in found))


def cell(bound: float | None) -> str:
    """Write a bound, rounded up."""
    return "over 1.7e308" if bound is None else upward(bound, 4 if bound >= 1 else 6)


def square(network: Network, bias: bool) -> Any:
    """Return the formula of K² over T, α, B, X_0 and L, all its names written out."""
    depth = analysed(network.source(bias), {}, numbers=False).depth
    assert depth.gradient_bound is not None
    found = depth.gradient_bound.expression**2
    for definition in reversed(depth.definitions):
        if definition.expression is not None:
            found = found.subs(sympy.Symbol(definition.name, positive=True), definition.expression)
    return found.subs(sympy.Symbol("depth", positive=True), sympy.Symbol("T", positive=True))


def formulas(network: Network) -> Iterator[str]:
    """Yield the formulas of K², at α = 1 and elsewhere."""
    alpha = sympy.Symbol("alpha", positive=True)
    for bias in (False, True):
        found = square(network, bias)
        conditions = {c for case in found.atoms(sympy.Piecewise) for _, c in case.args[:-1]}
        assert conditions <= {sympy.Eq(alpha, 1)}, conditions
        with_biases = "With biases" if bias else "Without biases"
        if not conditions:
            yield formula(with_biases, found)
            continue
        yield formula(f"{with_biases}, α ≠ 1", chosen(found, -1))
        yield formula(f"{with_biases}, α = 1", chosen(found, 0).subs(alpha, 1))


def chosen(expression: Any, case: int) -> Any:
    """Return an expression with one of the cases of each Piecewise."""
    return expression.replace(lambda e: isinstance(e, sympy.Piecewise), lambda e: e.args[case][0])


def formula(title: str, expression: Any) -> str:
    """Write a formula of K²."""
    tidy = sympy.factor_terms(sympy.powsimp(expression))
    return f"{title}:\n\n```math\nK^2 = {sympy.latex(tidy)}\n```\n"


def section(network: Network) -> str:
    """Return what the page says of a network."""
    return "\n".join([f"### {network.title}", "", *table(network), "", *formulas(network)])


def part() -> str:
    """Return what stands between the marks of the page."""
    return "\n".join(section(network) for network in NETWORKS)


def draw(path: Path) -> None:
    """Draw the bounds of chains against their depth."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.hashsalt": "depth", "svg.fonttype": "none", "font.family": "sans-serif"}):
        figure = Figure(figsize=(7, 4.2), layout="constrained")
        axes = figure.add_subplot(
            xscale="log", yscale="log", ylim=(1e-2, 1e6), xlabel="T", ylabel="bound of the gradient"
        )
        for one in columns(NETWORKS[0]):
            axes.plot(
                DEPTHS,
                [float("inf") if bound is None else bound for bound in one.bounds],
                color={"0.9": "#1f77b4", "1": "#2e7d32", "1.1": "#c0392b"}[one.rate],
                linestyle="--" if one.bias else "-",
                marker="o",
                markersize=4,
                label=f"α = {one.rate}{', biases' if one.bias else ''}",
            )
        axes.grid(alpha=0.3)
        axes.legend(loc="upper left")
        saved(figure, path)


def main() -> None:
    """Print the tables, or write them."""
    write = options(__doc__, write=False).write
    show(part(), PAGE, BEGIN, END, write)
    if write:
        draw(PLOT)


if __name__ == "__main__":
    main()

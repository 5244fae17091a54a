"""Formulas as presentation MathML, which browsers draw by themselves."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from html import escape, unescape
from typing import Any

from sympy.printing.mathml import MathMLPresentationPrinter
from sympy.printing.pretty.pretty_symbology import greek_unicode

from lipcompile.reports.formulas import is_decimal, normal

# What sympy writes between factors: nothing to see, which is wrong where a number follows.
_INVISIBLE = "\N{INVISIBLE TIMES}"
_MINUS = "\N{MINUS SIGN}"
# Fences of cases are borders: the braces of a font without mathematics do not grow with what they enclose.
# A page whose tables collapse their borders would hand that on.
_OPEN = "border-collapse:separate;border-left:1px solid;border-radius:.5em;padding:0 .4em"
_CLOSED = f"{_OPEN};border-right:1px solid"
_CELL = "text-align:left;padding:.15em .4em"


class _MathML(MathMLPresentationPrinter):  # type: ignore[misc]
    """Prints `X_fc1` as X with the subscript fc1, and what sympy has no MathML for."""

    def _made(self, tag: str, *children: Any, **attributes: str) -> Any:
        """Return an element; children are elements or texts."""
        element = self.dom.createElement(tag)
        for name, value in attributes.items():
            element.setAttribute(name, value)
        for child in children:
            element.appendChild(self.dom.createTextNode(child) if isinstance(child, str) else child)
        return element

    def _name(self, text: str) -> Any:
        # Browsers set a single letter in italics, as mathematics has it, and a longer name upright.
        return self._made("mi", greek_unicode.get(text, text))

    def _print_Symbol(self, expr: Any, style: str = "plain") -> Any:  # noqa: ARG002, N802
        if is_decimal(expr):
            return self._made("mn", expr.name)
        head, _, subscript = expr.name.partition("_")
        if not head or not subscript:
            return self._name(expr.name)
        below = self._made("mn", subscript) if subscript.isdigit() else self._name(subscript)
        return self._made("msub", self._name(head), below)

    def _print_Exp1(self, expr: Any) -> Any:  # noqa: ARG002, N802
        return self._made("mi", "e")

    def _print_extreme(self, expr: Any) -> Any:
        return self._made("mrow", self._name(type(expr).__name__.lower()), self._paren_comma_separated(*expr.args))

    _print_Min = _print_Max = _print_extreme  # noqa: N815

    def _print_MaxOver(self, expr: Any) -> Any:  # noqa: N802
        term, index, start, last = expr.args
        below = [self._print(start), self._made("mo", "≤"), self._print(index), self._made("mo", "≤")]
        extreme = self._made("munder", self._name("max"), self._made("mrow", *below, self._print(last)))
        return self._made("mrow", extreme, self._paren_comma_separated(term))

    def _print_Piecewise(self, expr: Any) -> Any:  # noqa: N802
        rows = [self._case(value, condition) for value, condition in expr.args]
        fences = _OPEN if self._print_level == 1 else _CLOSED
        return self._made("mtable", *rows, displaystyle="true", style=fences)

    def _case(self, value: Any, condition: Any) -> Any:
        words = [self._made("mtext", "otherwise")]
        if condition != True:  # noqa: E712  # sympy's own truth
            words = [self._made("mtext", "if\N{NO-BREAK SPACE}"), self._print(condition)]
        cells = (self._made("mtd", *parts, style=_CELL) for parts in ([self._print(value)], words))
        return self._made("mtr", *cells)

    def emptyPrinter(self, expr: Any) -> Any:  # noqa: N802
        """Print what sympy has no rule for as text."""
        return self._made("mtext", str(expr))


@lru_cache(maxsize=4096)
def mathml(expression: Any) -> str:
    """Return a formula as a `math` element, to stand in a line; its fractions have their full height.

    What is written is well-formed XML without named entities, and names in it are escaped.
    """
    printer = _MathML()
    root = printer._made("math", printer._print(normal(expression)), displaystyle="true")
    _help_line(root)
    return str(root.toxml())


def broken(expression: Any) -> str:
    """Return a formula as `math` elements one after the other, between which a line may end: before signs of sums.

    Browsers break no line inside of a `math` element.
    """
    printer = _MathML()
    row = printer._print(normal(expression))
    _help_line(row)
    rows: list[list[Any]] = [[]]
    for cell in _cells(row):
        if _is_sign(cell) and rows[-1]:
            cell.setAttribute("form", "infix")
            rows.append([])
        rows[-1].append(cell)
    return " ".join(str(printer._made("math", *cells, displaystyle="true").toxml()) for cells in rows)


def _is_sign(cell: Any, signs: tuple[str, ...] = ("+", _MINUS, "=")) -> bool:
    return cell.tagName == "mo" and cell.firstChild.data in signs


def _cells(row: Any) -> Iterator[Any]:
    """Yield the terms and signs of a sum, or of an equation with one; anything else as it is."""
    parts = list(row.childNodes) if row.tagName == "mrow" else []
    if not any(map(_is_sign, parts)):
        yield row
        return
    for part in parts:
        yield from _cells(part) if part is parts[-1] and _is_sign(parts[1], ("=",)) else [part]


def _help_line(element: Any) -> None:
    """Escape all text, which sympy writes as it is, named entities and names alike; set signs as print does."""
    for child in element.childNodes:
        if child.nodeType != child.TEXT_NODE:
            _help_line(child)
            continue
        child.data = escape(unescape(child.data), quote=False)
        if element.tagName in ("mo", "mn"):
            child.data = child.data.replace("-", _MINUS)
        if child.data == _INVISIBLE:
            _fix_product(element)


def _fix_product(operator: Any) -> None:
    """Set a thin space between factors, and a dot before a number: 2·3 would else read as 23."""
    leaf = operator.nextSibling
    while leaf.tagName != "msqrt" and leaf.firstChild.nodeType == leaf.ELEMENT_NODE:
        leaf = leaf.firstChild
    if leaf.tagName == "mn":
        operator.firstChild.data = "\N{MIDDLE DOT}"
    else:
        operator.setAttribute("rspace", "0.17em")

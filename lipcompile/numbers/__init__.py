"""The abstract number of the rules, and the domains that evaluate it.

A rule is written once, over `Numbers[N]`, and evaluated as a formula (`symbolic`), as a rigorous upper
bound (`certified`) and as a Python program for the emitted module (`traced`).
"""

from __future__ import annotations

from lipcompile.numbers.number import Count, N, Number, Numbers, Step
from lipcompile.numbers.scalar import Arithmetic, Scalar, Symbol, combine, size, symbols_of, text

__all__ = [
    "Arithmetic",
    "Count",
    "N",
    "Number",
    "Numbers",
    "Scalar",
    "Step",
    "Symbol",
    "combine",
    "size",
    "symbols_of",
    "text",
]

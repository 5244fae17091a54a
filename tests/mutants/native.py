"""Mutants of C, by substitution of text: constants, extremes, the edges of comparisons, and what rounds less."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from tests.mutants.python import Mutant

# What stands there, and what is put in its place. What is not a mutation of rounding, tests of results see anyway.
_CHANGES = [
    (
        r"fmaf\((-?[\w\[\].>+* -]+?), ([\w\[\].>+* -]+(?:\([^()]*\))?), ([\w\[\].>+* -]+)\)",
        r"(\1 * \2 + \3)",
        "two roundings",
    ),
    (r"fmax\(([^,]+), ([^()]+)\)", r"fmin(\1, \2)", "direction"),
    (r" - 0x1p-149", "", "term"),
    (r"0x1p(-?\d+)f?", "0.0", "constant"),
    (r"(?<=\w) (<|>|<=|>=) (?=limit|FLT_MIN|quotient|NOTHING|high|largest|0\b)", None, "edge"),
    (r"fma\(\(double\)([\w\[\] +]+), \(double\)([\w\[\] +]+), ([\w\[\]]+)\)", r"(\1 * \2 + \3)", "two roundings"),
    (r"\bdouble (?=(?:sums?|gram|traces?|total|norm|beside)\b(?!\())", "float ", "narrower"),
]
_EDGES = {" < ": " <= ", " <= ": " < ", " > ": " >= ", " >= ": " > "}
_FUNCTION = re.compile(r"^[a-z][\w ]*?\**(\w+)\([^;{}]*\{$", re.MULTILINE)


def mutants(source: str) -> list[Mutant]:
    """Return the mutants of a file of C, in the order of its lines."""
    found: list[Mutant] = []
    seen: Counter[tuple[str, str, str]] = Counter()
    for start, end, new, kind in sorted(_found(source)):
        old = source[start:end]
        scope = next((m[1] for m in reversed([*_FUNCTION.finditer(source, 0, start)])), "")
        seen[scope, old, new] += 1
        place = scope + (f" ({seen[scope, old, new]})" if seen[scope, old, new] > 1 else "")
        offset = len(source[:start].encode())
        found.append(Mutant(place, kind, old, new, offset, offset + len(old.encode())))
    return found


def _found(source: str) -> Iterator[tuple[int, int, str, str]]:
    blank = re.sub(r"/\*.*?\*/", lambda comment: " " * len(comment[0]), source, flags=re.DOTALL)
    for pattern, new, kind in _CHANGES:
        for match in re.finditer(pattern, blank):
            yield match.start(), match.end(), _EDGES[match[0]] if new is None else match.expand(new), kind

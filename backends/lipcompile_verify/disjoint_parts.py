"""How bounds combine in a graph, as docs/theory.md proves: parts of one cotangent, and disjoint slices.

A form is a sum of numbers c_π·γ_π over paths π, each a tuple of parts (W, i): node W's i-th operand. For every W,
the γ of its parts have squares of sum at most 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from .intervals import Real, least, most, real, root, total

Path = tuple[tuple[int, int], ...]
Form = dict[Any, Real]
MOST_TERMS = 64


def hypotenuse(values: Iterable[Real]) -> Real:
    """Return √Σv²; of one value, the value."""
    found = list(values)
    return found[0] if len(found) == 1 else root(total(value * value for value in found))


def scale(form: Form, factor: Real, *part: tuple[int, int]) -> Form:
    """Return the form times a number, and times a part."""
    return {path + part if part else path: factor * value for path, value in form.items()}


def add(forms: Iterable[Form]) -> Form:
    """Return the sum."""
    found: Form = {}
    for form in forms:
        for path, value in form.items():
            found[path] = found[path] + value if path in found else value
    return found


def fold(form: Form, operands: Sequence[int] | None = None) -> Form:
    """Replace parts of a W by their √Σc², longest paths first: all, or where every operand's part is here."""
    terms = dict(form)
    for length in range(max(map(len, terms), default=0), 0, -1):
        groups: dict[tuple[Path, int], list[Path]] = {}
        for path in terms:
            if len(path) >= length:
                groups.setdefault((path[: length - 1], path[length - 1][0]), []).append(path)
        for (prefix, node), paths in groups.items():
            leaves = all(len(path) == length for path in paths)
            if leaves and (operands is None or len(paths) == operands[node]):
                terms = add([terms, {prefix: hypotenuse(terms.pop(path) for path in paths)}])
    return terms


def bound(form: Form) -> Real:
    """Return the number that a form is at most."""
    return fold(form).get((), real(0))


def disjoint(ranges: Iterable[tuple[int, int]]) -> bool:
    """Whether no two of the ranges have a place in common."""
    return all(before[1] <= after[0] for before, after in pairwise(sorted(ranges)))


def beside(forms: Sequence[Form]) -> Form:
    """Return √ΣF² for what disjoint slices hand back, behind the path that all have in common."""
    paths = [*{path for form in forms for path in form}]
    first, last = min(paths, default=()), max(paths, default=())
    shared = next(
        (k for k, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last))
    )
    rows = [{path[shared:]: value for path, value in form.items()} for form in forms]
    if not all(_diverge(a, b) for a, b in pairwise(sorted(paths))):  # neighbours among sorted paths: then all are
        rows = [{(): bound(row)} for row in rows]
    return {first[:shared]: norm(rows)}


def _diverge(a: Path, b: Path) -> bool:
    """Whether two paths part at different parts of one W."""
    return next((p[0] == q[0] for p, q in zip(a, b, strict=False) if p != q), False)


def norm(rows: Sequence[Mapping[Any, Real]]) -> Real:
    """Bound ‖C‖ of a matrix >= 0, block by block: by Frobenius, and by √(largest row sum · largest column sum)."""
    of_column: dict[Any, list[Mapping[Any, Real]]] = {}
    for row in filter(None, rows):
        met = {id(block): block for block in (of_column.get(column) for column in row) if block is not None}
        block = max(met.values(), key=len, default=[])
        for other in met.values():
            if other is not block:
                block += other
                of_column |= {column: block for moved in other for column in moved}
        block.append(row)
        of_column |= dict.fromkeys(row, block)
    return most(0, *(_block(block) for block in {id(block): block for block in of_column.values()}.values()))


def _block(rows: list[Mapping[Any, Real]]) -> Real:
    frobenius = hypotenuse(value for row in rows for value in row.values())
    columns = add([dict(row) for row in rows])
    if min(len(columns), len(rows)) == 1:
        return frobenius
    return least(frobenius, root(most(*(total(row.values()) for row in rows)) * most(*columns.values())))

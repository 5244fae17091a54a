"""Bounds of cotangents that remember which tensors they are parts of.

The operands of a concatenation receive disjoint parts of one cotangent: with part norms g·γ_i, g its bound,
Σγ_i² <= 1. Where the branches meet again, their contributions add up to at most g·√Σc_i², not g·Σc_i. So a
cotangent is carried as a form c + Σ c_π·γ_π in these parts until all parts of one tensor have come together.

A path π names a part of a part of …: (concatenation, operand) pairs, outermost first. Along a path parts are
nested (γ_π,i = γ_π·f_i with Σf_i² <= 1): `settled` and `bound` fold from the inside out. Proof: docs/theory.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic

from lipcompile.numbers import N, Numbers


@dataclass(frozen=True, slots=True)
class Part:
    """Operand `index` of the `count` operands of the node `whole`."""

    whole: str
    index: int
    count: int


Path = tuple[Part, ...]
WHOLE: Path = ()


@dataclass(frozen=True, slots=True)
class Form(Generic[N]):
    """Σ c_π·γ_π over paths; the empty path stands for the number 1."""

    terms: Mapping[Path, N]

    def scaled(self, factor: N) -> Form[N]:
        """Return factor·form."""
        return Form({path: factor * term for path, term in self.terms.items()})

    def part(self, part: Part) -> Form[N]:
        """Return the form of one part of a tensor with this form."""
        return Form({(*path, part): term for path, term in self.terms.items()})


def total(forms: Sequence[Form[N]]) -> Form[N]:
    """Return the sum, the triangle inequality for what shares no part."""
    terms: dict[Path, N] = {}
    for form in forms:
        for path, term in form.terms.items():
            terms[path] = terms[path] + term if path in terms else term
    return Form(terms)


def bound(num: Numbers[N], form: Form[N]) -> N:
    """Return the largest value of the form."""
    return _folded(num, form, complete_only=False).terms[WHOLE]


def settled(num: Numbers[N], form: Form[N]) -> Form[N]:
    """Fold every tensor whose parts have all arrived: c_π += √Σ c_(π,i)². Nothing is lost but what cannot come."""
    return form if len(form.terms) == 1 else _folded(num, form, complete_only=True)


def _folded(num: Numbers[N], form: Form[N], *, complete_only: bool) -> Form[N]:
    terms = dict(form.terms)
    for depth in range(max(map(len, terms)), 0, -1):
        wholes: dict[tuple[Path, str], list[Path]] = {}
        for path in terms:
            if len(path) == depth:
                wholes.setdefault((path[:-1], path[-1].whole), []).append(path)
        for (outer, _), parts in wholes.items():
            if complete_only and (len(parts) < parts[0][-1].count or _has_inner(terms, parts)):
                continue
            folded = root_of_squares(num, [terms.pop(path) for path in parts])
            terms[outer] = terms[outer] + folded if outer in terms else folded
    return Form(terms)


def _has_inner(terms: Mapping[Path, N], parts: Sequence[Path]) -> bool:
    depth = len(parts[0])
    return any(len(path) > depth and path[:depth] in parts for path in terms)


def disjoint(num: Numbers[N], forms: Sequence[Form[N]]) -> Form[N]:
    """Return the form of a tensor from those of its disjoint slices: √Σ‖g_j‖².

    Slices whose forms are parts of one whole, c_ij·γ_i each, give at most ‖(c_ij)‖·γ <= √(largest row sum ·
    largest column sum)·γ (Schur); blocks on disjoint slices, joined again, are the diagonal case: max c.
    Other slices are bounded one by one.
    """
    common = _common_whole(forms)
    if common is None:
        return Form({WHOLE: root_of_squares(num, [bound(num, form) for form in forms])})
    rows = [_sum(list(form.terms.values())) for form in forms]
    paths = {path for form in forms for path in form.terms}
    ordered = sorted(paths, key=lambda path: path[-1].index)
    columns = [_sum([form.terms[path] for form in forms if path in form.terms]) for path in ordered]
    if all(len(form.terms) == 1 for form in forms) and len(paths) == len(forms):
        return Form({common: num.maximum(*rows)})
    return Form({common: num.sqrt(num.maximum(*rows) * num.maximum(*columns))})


def _common_whole(forms: Sequence[Form[N]]) -> Path | None:
    """Return the path of the tensor that every term of every form is a direct part of, if there is one."""
    paths = [path for form in forms for path in form.terms]
    if not all(paths):
        return None
    wholes = {(path[:-1], path[-1].whole) for path in paths}
    return next(iter(wholes))[0] if len(wholes) == 1 else None


def _sum(terms: Sequence[N]) -> N:
    return sum(terms[1:], start=terms[0])


def root_of_squares(num: Numbers[N], terms: Sequence[N]) -> N:
    """Return √Σt²; 0 of nothing."""
    if len(terms) == 1:
        return terms[0]
    squares = [term * term for term in terms]
    return num.sqrt(_sum(squares)) if squares else num.of(0)

"""Bounds of norms of lists and of matrices of non-negative numbers."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

from lipcompile.numbers import N, Numbers

Key = TypeVar("Key", bound=Hashable)


def root_of_squares(num: Numbers[N], terms: Sequence[N]) -> N:
    """Return √Σt²; 0 of nothing."""
    if len(terms) == 1:
        return terms[0]
    return num.sqrt(num.sum(*(term * term for term in terms))) if terms else num.of(0)


def operator_norm(num: Numbers[N], rows: Sequence[Mapping[Key, N]]) -> N:
    """Bound the operator norm of a matrix given by its rows, none empty; entries left out are 0.

    The matrix is block diagonal over groups of rows that share columns: the largest norm of a block. That of a row
    or a column is its length; others have at most the Frobenius norm, and √(largest row sum · largest column sum).
    """
    return num.maximum(*(_block_norm(num, block) for block in _blocks(rows)))


def _block_norm(num: Numbers[N], rows: Sequence[Mapping[Key, N]]) -> N:
    frobenius = root_of_squares(num, [entry for row in rows for entry in row.values()])
    columns: dict[Key, list[N]] = {}
    for row in rows:
        for key, entry in row.items():
            columns.setdefault(key, []).append(entry)
    if len(rows) == 1 or len(columns) == 1:
        return frobenius
    row_sums = [num.sum(*row.values()) for row in rows]
    schur = num.sqrt(num.maximum(*row_sums) * num.maximum(*(num.sum(*column) for column in columns.values())))
    return num.minimum(frobenius, schur)


def _blocks(rows: Sequence[Mapping[Key, N]]) -> list[list[Mapping[Key, N]]]:
    """Group rows that share columns, directly or through others."""
    blocks: list[tuple[set[Key], list[Mapping[Key, N]]]] = []
    for row in rows:
        keys, block = set(row), [row]
        apart = []
        for other_keys, others in blocks:
            if keys.isdisjoint(other_keys):
                apart.append((other_keys, others))
            else:
                keys, block = keys | other_keys, [*others, *block]
        blocks = [*apart, (keys, block)]
    return [block for _, block in blocks]


def column_norms(num: Numbers[N], rows: Sequence[Mapping[Key, N]]) -> dict[Key, N]:
    """Return the length of every column."""
    keys = dict.fromkeys(key for row in rows for key in row)
    return {key: root_of_squares(num, [row[key] for row in rows if key in row]) for key in keys}

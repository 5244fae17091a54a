"""A schema read from the rows. Kinds of columns are facts about them that no budget covers: callers say so."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import partial
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from lipcompile.tables.encode import measured
from lipcompile.tables.read import batches, called, check_names
from lipcompile.tables.schema import FIRST_DAY, Boolean, Category, Column, Date, Ignore, Mark, Number, Schema, Text
from lipcompile.tables.values import FORMATS, UnfitError, days, flags, numbers, texts, words

Kind = type[Number | Category | Boolean | Date | Ignore]
Reader = Callable[[Any], NDArray[Any]]

# A column is of the first kind that all its values have.
_READERS: Mapping[Kind, Reader] = {
    Boolean: flags,
    Number: numbers,
    Date: days,
    Category: texts,
}
# A target of whole numbers is one of classes if there are no more.
MOST_CLASSES = 20
# More public names are hashed.
MOST_NAMES = 64
# So many different words, and so large a share of the values, may stand for a missing number.
_MOST_WORDS = 3
_SHARE_OF_WORDS = 0.05
# Of fewer values it is not said whether they are free text.
_LEAST_TEXTS = 100


def guess(source: Any, target: str | None = None, *, public: bool = False, tokenizer: str | None = None) -> Schema:
    """Read a schema from the rows of a source, as `read.batches` takes it; the source is read several times.

    A column is boolean (yes and no, 0 and 1), a number, a date or a category; ignored if it has no values, or one
    text in all rows, or holds free text: most of its first values differ, so that they say nothing of other rows.
    Numbers with a few words among them, such as `unknown`, are numbers that are missing there.

    Args:
        source: a table.
        target: the column to be learned; all others are learned from.
        public: whether everything in the table is public: then ranges, names, classes, and whether values are
            missing are read, too. Otherwise nothing but kinds is, ranges are left open and names are hashed.
        tokenizer: of columns of free text; None: they are ignored.

    Raises:
        InputError: LIP410, LIP411, as `read.batches`.
    """
    kinds = _kinds(source)
    wanted = [] if target is None else [target]
    check_names(wanted, list(kinds), called(source))
    spoken = [name for name, kind in kinds.items() if kind is Category]
    numerals = _written(source, spoken)
    if target in numerals and numerals[target].coerce:  # words among numbers are classes
        del numerals[target]
    others = [name for name in spoken if name not in numerals and name != target]
    dates = _dated(source, others)
    written: dict[str, Number | Date] = {**numerals, **dates}
    texts_alone = [name for name in others if name not in dates]
    free = _free_texts(source, texts_alone)
    kinds |= dict.fromkeys([*free, *_constant(source, texts_alone)], Ignore)
    kinds |= {name: type(column) for name, column in written.items()}
    facts = _facts(source, list(kinds) if public else wanted, kinds, written)
    columns = tuple(
        Text(name, tokenizer)
        if tokenizer is not None and name in free
        else _column(name, kinds[name], facts[name] if public else None, written.get(name))
        for name in kinds
        if name != target
    )
    if target is None:
        return Schema(columns)
    found = _with_target(columns, target, kinds, facts[target], public)
    return replace(found, target_decimal=numerals[target].decimal) if target in numerals else found


def _kinds(source: Any) -> dict[str, Kind]:
    """Return the kind of each column."""
    possible: dict[str, list[Kind]] = {}
    filled: set[str] = set()
    for batch in batches(source):
        for name, array in zip(batch.schema.names, batch.columns, strict=True):
            if _narrow(possible.setdefault(name, list(_READERS)), array):
                filled.add(name)
    return {name: kinds[0] if kinds and name in filled else Ignore for name, kinds in possible.items()}


def _written(source: Any, names: Sequence[str]) -> dict[str, Number]:
    """Return the columns of text that hold numbers, but for a few words, and how these are written."""
    marks: tuple[Mark, ...] = get_args(Mark)
    found = {(name, mark): _Words(mark) for name in names for mark in marks}
    left = list(names)
    for batch in batches(source, left) if left else ():
        for name, mark in found:
            found[name, mark].add(batch.column(name))
        found = {key: words for key, words in found.items() if words.are_few}
        left = [name for name in left if any((name, mark) in found for mark in marks)]
        if not left:
            break
    best = {name: min((found[key].words, key[1] == ",", key) for key in found if key[0] == name) for name in left}
    return {name: Number(name, coerce=words > 0, decimal=mark) for name, (words, _, (_, mark)) in best.items()}


@dataclass(slots=True)
class _Words:
    """The words among the numbers of a column, so far; `mark` stands before the decimals."""

    mark: Mark
    numbers: int = 0
    words: int = 0
    different: set[str] = field(default_factory=set)

    def add(self, array: Any) -> None:
        found = words(array, self.mark)
        self.numbers += int(_present(numbers(array, decimal=self.mark, coerce=True)).sum())
        self.words += len(found)
        self.different.update(found)

    @property
    def are_few(self) -> bool:
        most = _SHARE_OF_WORDS * (self.numbers + self.words)
        return len(self.different) <= _MOST_WORDS and self.words <= most


def _dated(source: Any, names: Sequence[str]) -> dict[str, Date]:
    """Return the columns of text that hold dates of one form; not those that two forms read, in different ways."""
    left = {name: list(FORMATS) for name in names}
    for batch in batches(source, list(left)) if left else ():
        for name, forms in left.items():
            forms[:] = [form for form in forms if _fits(batch.column(name), form)]
        left = {name: forms for name, forms in left.items() if forms}
        if not left:
            break
    return {name: Date(name, format=forms[0]) for name, forms in left.items() if len(forms) == 1}


def _fits(array: Any, form: str) -> bool:
    try:
        days(array, form)
    except UnfitError:
        return False
    return True


def _free_texts(source: Any, names: Sequence[str]) -> list[str]:
    """Return which columns of text have values that mostly differ, in the first batch of rows."""
    first = next(iter(batches(source, names)), None) if names else None
    if first is None:
        return []
    present = {name: [text for text in texts(first.column(name)) if text] for name in names}
    return [
        name for name, found in present.items() if len(found) >= _LEAST_TEXTS and 2 * len(set(found)) > len(found)
    ]


def _constant(source: Any, names: Sequence[str]) -> list[str]:
    """Return which columns of text have one value in all rows where they have any."""
    seen: dict[str, set[str]] = {name: set() for name in names}
    left = list(names)
    for batch in batches(source, left) if left else ():
        for name in left:
            seen[name].update(set(texts(batch.column(name))) - {None})
        left = [name for name in left if len(seen[name]) == 1]
        if not left:
            break
    return left


def _narrow(kinds: list[Kind], array: Any) -> bool:
    """Leave out the kinds that values are not of, and return whether there is a value."""
    found = False
    for kind in [*kinds]:
        if kind is Category and len(kinds) > 1:  # every other kind goes before it
            break
        try:
            found = bool(_present(_READERS[kind](array)).any()) or found
        except UnfitError:
            kinds.remove(kind)
    return found


def _present(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which values there are, [N]."""
    return values.astype(np.bool_) if values.dtype == object else ~np.isnan(values)


@dataclass(slots=True)
class _Facts:
    """What the values of one column are; `names` are as texts, and no longer complete beyond MOST_NAMES."""

    low: float = math.inf
    high: float = -math.inf
    whole: bool = True
    gaps: bool = False
    names: set[str] = field(default_factory=set)

    def add(self, kind: Kind, array: Any, read: Reader) -> None:
        if len(self.names) <= MOST_NAMES:
            self.names.update(set(texts(array)) - {None})
        values = read(array)
        present = values[_present(values)]
        self.gaps = self.gaps or len(present) < len(values)
        if kind is not Category:
            finite = present[np.isfinite(present)]  # infinity lies outside of any range
            self.low = min(self.low, finite.min(initial=math.inf))
            self.high = max(self.high, finite.max(initial=-math.inf))
            self.whole = self.whole and bool((present == np.floor(present)).all())


def _facts(
    source: Any, names: Collection[str], kinds: Mapping[str, Kind], written: Mapping[str, Number | Date]
) -> dict[str, _Facts]:
    facts = {name: _Facts() for name in names}
    readers = {name: _READERS[kind] for name, kind in kinds.items() if kind is not Ignore}
    readers |= {name: partial(measured, column) for name, column in written.items()}
    wanted = [name for name in names if kinds[name] is not Ignore]
    for batch in batches(source, wanted) if wanted else ():
        for name in wanted:
            facts[name].add(kinds[name], batch.column(name), readers[name])
    return facts


def _column(name: str, kind: Kind, facts: _Facts | None, written: Number | Date | None) -> Column:
    """Return a column with what is public of it; one with a single value is ignored."""
    if facts is None and written is not None:
        return written
    if facts is None or kind in (Boolean, Ignore):
        return kind(name)
    if kind is Category:
        values = tuple(sorted(facts.names)) if len(facts.names) <= MOST_NAMES else None
        return Category(name, values, missing=facts.gaps)
    if facts.low >= facts.high:
        return Ignore(name)
    if kind is Date:
        first, last = _day(math.floor(facts.low)), _day(math.ceil(facts.high))
        if first == last:
            return Ignore(name)
        return replace(written if isinstance(written, Date) else Date(name), low=first, high=last)
    number = written if isinstance(written, Number) else Number(name)
    return replace(number, low=float(facts.low), high=float(facts.high), missing=facts.gaps)


def _day(days_since: int) -> str:
    """Return a day, the nearest of the years 1 to 9999, as a schema has it."""
    return date.fromordinal(
        min(max(FIRST_DAY.toordinal() + days_since, date.min.toordinal()), date.max.toordinal())
    ).isoformat()


def _with_target(
    columns: tuple[Column, ...], target: str, kinds: Mapping[str, Kind], facts: _Facts, public: bool
) -> Schema:
    names = sorted(facts.names)
    if kinds[target] is Number and not (facts.whole and len(names) <= MOST_CLASSES):
        ends = (float(facts.low), float(facts.high))
        return Schema(columns, target, "regression", target_range=ends if public and ends[0] < ends[1] else None)
    return Schema(columns, target, classes=tuple(names) if public and 2 <= len(names) <= MOST_NAMES else None)

"""Which cases of a test run by day: the rest is long, and another test of the day covers its branch."""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable
from typing import Any

import pytest


def by_day(chosen: Container[Any], cases: Iterable[Any], *, whole: bool = False) -> list[Any]:
    """Mark all cases nightly but the chosen ones.

    Args:
        chosen: cases, or the positions of cases that are no integers.
        cases: as for `pytest.mark.parametrize`; a tuple is one case of several arguments.
        whole: a tuple is one argument.
    """
    return [
        case if _is_chosen(chosen, place, case) else pytest.param(*_values(case, whole), marks=pytest.mark.nightly)
        for place, case in enumerate(cases)
    ]


def _is_chosen(chosen: Container[Any], place: int, case: Any) -> bool:
    return (isinstance(case, Hashable) and case in chosen) or (not isinstance(case, int) and place in chosen)


def _values(case: Any, whole: bool) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) and not whole else (case,)

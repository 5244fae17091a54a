"""What `lipcompile fix` did, for a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from lipcompile.analysis.changes.edit import listed
from lipcompile.analysis.changes.fix import Fix, Fixed
from lipcompile.analysis.usefulness import LARGEST_EXCESS
from lipcompile.core.derivation import Derivation
from lipcompile.numbers.rounding import upward
from lipcompile.reports.formulas import about

if TYPE_CHECKING:
    from lipcompile.fixing import Outcome

# Places that are listed of each change.
_SHOWN = 8
_TOO_LARGE = "the bound is still too large to be of use"
_FURTHER = "--bounds auto clips gradients where theorems do not serve; lipcompile report ranks further changes"
_OPTIONS = {"LIP201": "--input-norm 1.0", "LIP213": "--loss cross_entropy"}


def fixes(outcome: Outcome) -> Iterator[str]:
    """Yield lines: each change with its places and its effect, what is left, what is asked for."""
    yield from _repaired(outcome)
    if outcome.fixed is None:
        return
    for made in outcome.fixed.made:
        yield from _made(made)
    if not outcome.repaired and not outcome.fixed.made:
        yield f"no change was needed: the gradient of one example is at most {_shown(outcome.fixed.total)}"
    for left in outcome.fixed.left:
        yield from _left(left, outcome.fixed)
    yield from _asked(outcome)
    yield from (f"note: {note}" for note in outcome.notes)


def _repaired(outcome: Outcome) -> Iterator[str]:
    texts = dict.fromkeys(repaired.text for repaired in outcome.repaired)
    for text in texts:
        places = [repaired.place for repaired in outcome.repaired if repaired.text == text]
        yield _headed(text, places)
    if texts and outcome.fixed is not None:
        first = outcome.fixed.made[0].before if outcome.fixed.made else outcome.fixed.total
        yield f"    without this change there was no bound; with it, the bound is {_shown(first)}"


def _made(made: Fix) -> Iterator[str]:
    yield _headed(made.kind.title, made.places)
    yield f"    {_shown(made.before)} becomes {_shown(made.after)}"
    yield from _reasons(made.not_made)


def _left(left: Fix, fixed: Fixed) -> Iterator[str]:
    if left.places:
        before, after = _shown(fixed.total), _shown(left.after)
        effect = (
            f"would change the bound from {before} to {after}" if after != before else "would not change the bound"
        )
        yield f"not changed: {left.kind.title} ({len(left.places)}); --also {left.kind.name} {effect}"
    yield from _reasons(left.not_made)


def _reasons(not_made: Mapping[str, str]) -> Iterator[str]:
    for place, why in not_made.items():
        yield f"    not at {place}: {why}"


def _headed(title: str, places: Sequence[str]) -> str:
    return f"{title}: {listed(places, shown=_SHOWN)}"


def _asked(outcome: Outcome) -> Iterator[str]:
    check: Derivation | None = outcome.check
    asked = [_OPTIONS[d.code] for d in outcome.diagnostics if d.code in _OPTIONS]
    if asked and outcome.fixed is not None:
        yield f"declare {' and '.join(asked)}, with values that fit your data: the bounds above assume 1 for each"
    if outcome.fixed is not None and not outcome.fixed.useful:
        yield f"{_missed(outcome.fixed)}: {_FURTHER}"
    if check is not None and not check.ok:
        yield "the rewritten model does not pass `check`, so no file is written"


def _missed(fixed: Fixed) -> str:
    """Say by how much the aim was missed, as far as that is a number."""
    if fixed.target is not None:
        times = f" {upward(fixed.total / fixed.target, 2)} times" if math.isfinite(fixed.total) else ""
        return f"the target is missed: {_shown(fixed.total)} is{times} the {fixed.target:g} asked for"
    if fixed.excess is not None:
        times = f"{about(fixed.excess)} times a typical gradient at the initial weights"
        return f"{_TOO_LARGE}: {times}, where {LARGEST_EXCESS:g} is the most"
    return f"{_TOO_LARGE}: above 10^6 times L·max(1, X_0)"


def _shown(total: float) -> str:
    return upward(total) if math.isfinite(total) else "above the largest double"

"""The recorded outcomes of all test cases, one line each: what `docs/onnx-test-cases.txt` holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import onnx

from tests.onnx_backend.comparing import Outcome, Verdict

PATH = Path(__file__).parents[2] / "docs" / "onnx-test-cases.txt"
NEWEST_SET = 28  # of the onnx version that is recorded
HEAD = (
    "# onnx {version}: outcome of each output of each test case, with the code and the reason if it is refused\n"
)


def line(outcome: Outcome) -> str:
    """Return the line of an outcome: family/name, kind, code, reason."""
    verdict = outcome.deciding
    reason = "" if outcome.kind == "equal" else verdict.reason
    return f"{outcome.family}/{outcome.name} {outcome.kind} {verdict.code} {reason}".rstrip()


def written(outcomes: Iterable[Outcome]) -> str:
    """Return the text of the record."""
    return HEAD.format(version=onnx.__version__) + "".join(f"{line(outcome)}\n" for outcome in outcomes)


def recorded() -> Sequence[str] | None:
    """Return the recorded lines; None if they are of another version of onnx, whose cases are others."""
    text = PATH.read_text(encoding="utf-8")
    return text.splitlines()[1:] if text.startswith(HEAD.format(version=onnx.__version__)) else None


def brief(text: str) -> str:
    """Return a line without the reason: what becomes of a case, in whichever words."""
    name, kind, *rest = text.split(" ", 3)
    return " ".join([name, kind, *(part for part in rest[:1] if part.startswith("LIP"))])


def of_family(family: str) -> Iterator[Outcome]:
    """Yield recorded outcomes, without the readings that led to them."""
    for text in recorded() or ():
        name, kind, *rest = text.split(" ", 3)
        if name.startswith(f"{family}/"):
            code, reason = (*rest, "", "")[:2]
            yield Outcome(
                name.removeprefix(f"{family}/"), family, (), (Verdict(kind, "as recorded", code, reason),)
            )

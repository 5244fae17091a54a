"""Run all test cases of the `onnx` package, print the figures, and write them into the docs.

python -m tests.onnx_backend.figures [--light] writes docs/onnx-support.md and docs/onnx-test-cases.txt. The nine
networks of full size in the folder `light` take minutes and gigabytes: without --light, what was
recorded of them stands.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import onnx
from onnx import defs

from lipcompile.frontends.onnx.operators import IMPORTERS, PARTS
from lipcompile.frontends.onnx.refused import LATER, NEVER, OF_CONSTANTS
from lipcompile.frontends.onnx.values import ARITHMETIC
from tests.onnx_backend import cases, comparing, record
from tests.onnx_backend.comparing import ABSENT, EQUAL, RANDOM, REFUSED, Outcome

DOCS = Path(__file__).parents[2] / "docs" / "onnx-support.md"
OLDEST = 7
# Reasons that are told of one operator in the table.
MOST_REASONS = 4
KINDS = {
    EQUAL: "imported, and equal to the reference",
    RANDOM: "imported, but the reference draws random numbers",
    REFUSED: "refused, with a reason",
    ABSENT: "not presented: no real or whole numbers, or none that are finite",
}
HEAD = """# ONNX operators

Written by `python -m tests.onnx_backend.figures`. This page lists all operators of the standard domain, from
operator set 7 to the newest that the installed `onnx` {version} knows ({newest}). Operators of other domains are
rejected (LIP109). Functions that a model defines are replaced by their bodies.

- **supported**: has an importer. The table lists the forms that are rejected.
- **inside spellings**: not Lipschitz by itself, but known as a part of a pattern that exporters write for a
  Lipschitz layer (a norm, GELU, softmax, attention…).
- **on constants**: computed while importing.
- **never**: no bound exists; rejected with LIP100.
- **not yet**: a bound may exist, but no rule covers it; rejected with LIP110.

An operator whose operands are constants is computed while importing, if it is cheap and deterministic. The
last column counts the test cases of `onnx` with this operator alone: imported and equal, and refused.
"""
COUNTS = """
## The test cases of the `onnx` package

Each output of each case is a model of its own. The first real input is the example, or all real inputs are,
or whole numbers are tokens; other inputs are constants. The batch is axis 0, or axis 1 by its name, or an
added axis. A case counts as equal if one of these readings is imported and the emitted module computes
the expected output (up to {tolerance:g} relative and absolute, 2^-7 where the case is rounded to 16 bits),
with the weights bit by bit those of the file. If a reading were imported and differed, the run would fail.
Models of operator sets before 7 are converted to set 7 by `onnx.version_converter`; a change of sign follows a
last softmax. The models of the folder `real` are downloads; the networks of the same names
in `light` run instead. `onnx-test-cases.txt` lists every case with its outcome.
"""


def main(arguments: Sequence[str]) -> int:
    """Run, print and write; 1 if anything that was imported differs from its reference."""
    outcomes = list(run(light="--light" in arguments))
    counts = Counter((outcome.family, outcome.kind) for outcome in outcomes)
    for (family, kind), count in sorted(counts.items()):
        print(f"{family:20} {kind:10} {count}")
    record.PATH.write_text(record.written(outcomes), encoding="utf-8")
    parts = [*_head(), *_operators(outcomes), *_counts(outcomes), *_reasons(outcomes), ""]
    DOCS.write_text("\n".join(parts), encoding="utf-8")
    return int(any(outcome.kind in comparing.WRONG for outcome in outcomes))


def run(*, light: bool) -> Iterator[Outcome]:
    """Yield the outcomes of all cases."""
    with tempfile.TemporaryDirectory() as folder:
        for found in (cases.stored_cases(), cases.light_cases() if light else (), cases.node_cases()):
            for case in found:
                yield from comparing.outcomes(case, Path(folder))
    yield from () if light else record.of_family("light")


def _head() -> list[str]:
    return [HEAD.format(version=onnx.__version__, newest=defs.onnx_opset_version())]


# Operators


def _operators(outcomes: Sequence[Outcome]) -> Iterator[str]:
    yield "## Operators\n"
    yield "| operator | changed in set | | reason, or forms that are refused | equal, refused |"
    yield "|---|---|---|---|---|"
    by_op: defaultdict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.family == "node" and len(outcome.ops) == 1:
            by_op[outcome.ops[0]].append(outcome)
    for name, version in sorted(versions().items()):
        found = by_op[name]
        status, reason = status_of(name)
        shown = reason or "; ".join(_forms(found))
        counts = Counter(outcome.kind for outcome in found)
        seen = f"{counts[EQUAL]}, {counts[REFUSED]}" if counts[EQUAL] + counts[REFUSED] else ""
        yield f"| {name} | {version} | {status} | {_escaped(shown)} | {seen} |"


def versions() -> Mapping[str, int]:
    """Return the operators that a set from 7 on has, with the newest set that changed them."""
    found: dict[str, int] = {}
    for schema in defs.get_all_schemas_with_history():
        if schema.domain == "":
            found[schema.name] = max(found.get(schema.name, 0), schema.since_version)
    return found


def status_of(name: str) -> tuple[str, str]:
    """Return whether an operator is supported, and why not."""
    if name in IMPORTERS:
        return "supported", ""
    reason = NEVER.get(name) or LATER.get(name, "")
    if name in PARTS:
        return "inside spellings", f"alone: {reason}"
    if name in OF_CONSTANTS:
        return "on constants", ""
    also = "; on constants it is folded" if name in ARITHMETIC else ""
    return "never" if name in NEVER else "not yet", reason + also


def _forms(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the reasons for which some forms of a supported operator are refused, the commonest first."""
    counts = Counter(
        f"{outcome.deciding.code}: {outcome.deciding.reason}" for outcome in outcomes if outcome.kind == REFUSED
    )
    return [reason for reason, _ in counts.most_common(MOST_REASONS)]


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


# Counts


def _counts(outcomes: Sequence[Outcome]) -> Iterator[str]:
    yield COUNTS.format(tolerance=comparing.TOLERANCE)
    families = sorted({outcome.family for outcome in outcomes})
    yield f"| | {' | '.join(families)} |"
    yield f"|---|{'---|' * len(families)}"
    counts = Counter((outcome.family, outcome.kind) for outcome in outcomes)
    for kind, meaning in KINDS.items():
        yield f"| {meaning} | {' | '.join(str(counts[family, kind]) for family in families)} |"


def _reasons(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield how many cases are refused for which reason; one case each where numbers are part of it."""
    found: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.kind == REFUSED:
            found[outcome.deciding.code, outcome.deciding.reason].append(outcome.name)
    codes = Counter(outcome.deciding.code for outcome in outcomes if outcome.kind == REFUSED)
    yield f"\nRefused by code: {', '.join(f'{code} {count}' for code, count in sorted(codes.items()))}.\n"
    yield "| code | reason | cases | such as |"
    yield "|---|---|---|---|"
    for (code, reason), names in sorted(
        found.items(), key=lambda entry: (entry[0][0], -len(entry[1]), entry[0][1])
    ):
        yield f"| {code} | {_escaped(reason)} | {len(names)} | {names[0]} |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

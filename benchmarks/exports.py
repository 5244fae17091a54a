"""What is said of common architectures, as either exporter of torch writes them: docs/architectures.md.

    python -m benchmarks.exports [--only NAME …] [--inputs 12] [--write]

Exports every architecture of tests/exports by both exporters, in several operator sets, with an open batch and
a batch of one; checks each file with `--constraint keep`, and compares the emitted module with onnxruntime.
Bounds are attacked at the imported weights, in one operator set
(`pytest -m nightly tests/frontends/onnx/test_exports.py` attacks all). Prints the tables of the page; with --write
they replace those of the page. The exit code is 1 if a verdict is not the expected one, an output differs, or a
bound is exceeded.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.harness import DOCS, Some, line, show
from benchmarks.harness import options as said
from lipcompile.fixing import FixOptions, fix
from lipcompile.frontends.repairs import Repairs
from lipcompile.numbers.rounding import upward
from tests.exports.architectures import ARCHITECTURES
from tests.exports.attack import Attained
from tests.exports.exporting import NO_WORDS, OPSETS, USUAL, Export, exports
from tests.exports.verdicts import Verdict, attained, derived, difference, emitted, options, verdict

PAGE = DOCS / "architectures.md"
BEGIN, END = "<!-- begin: python -m benchmarks.exports --write -->", "<!-- end -->"
# The largest difference to onnxruntime, of the largest output.
AGREE = 1e-5


@dataclass
class Row:
    """One architecture by one exporter."""

    name: str
    exporter: str
    verdicts: dict[Export, Verdict] = field(default_factory=dict)
    unwritten: list[Export] = field(default_factory=list)
    differences: list[float] = field(default_factory=list)
    attacks: list[Attained] = field(default_factory=list)

    @property
    def usual_export(self) -> Export:
        """The usual operator set, and an open batch."""
        return Export(self.name, self.exporter, USUAL[self.exporter])

    @property
    def usual(self) -> Verdict:
        """The verdict for that."""
        return self.verdicts[self.usual_export]

    def faults(self) -> Iterator[str]:
        """Yield what is not as it must be."""
        expected = ARCHITECTURES[self.name].expected(self.exporter)
        for export, found in self.verdicts.items():
            if (found.accepted, found.codes) != expected:
                yield f"{export}: {found}, expected {expected}"
        yield from (f"{self.name}, {self.exporter}: {one}" for one in self.attacks if not one.sound)
        yield from (
            f"{self.name}, {self.exporter}: outputs differ by {one}" for one in self.differences if one > AGREE
        )


def examined(name: str, exporter: str, inputs: int, folder: Path) -> Row:
    """Export, check, compare and attack one architecture by one exporter."""
    row = Row(name, exporter)
    for export in exports(name, exporter):
        try:
            path = export.write(folder)
        except NO_WORDS:
            row.unwritten.append(export)
            continue
        derivation = derived(export, path)
        row.verdicts[export] = verdict(derivation)
        if derivation.ok:
            row.differences.append(difference(path, emitted(derivation)))
            if export == row.usual_export:
                row.attacks.append(attained(derivation, inputs))
    return row


# Tables


def of_verdicts(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the rows of the table of verdicts."""
    yield line("architecture", "exporter", "operator sets", "verdict", "nodes", "diagnostics", "difference")
    yield line("---", "---", "---", "---", "--:", "---", "--:")
    for row in rows:
        found = row.usual
        nodes = sorted({one.nodes for one in row.verdicts.values()})
        yield line(
            ARCHITECTURES[row.name].title,
            row.exporter,
            _opsets(row),
            "accepted" if found.accepted else "refused",
            "–".join(map(str, dict.fromkeys((nodes[0], nodes[-1])))) if found.accepted else "",
            ", ".join(found.codes) or "none",
            f"{max(row.differences):.0e}" if row.differences else "",
        )


def _opsets(row: Row) -> str:
    unwritten = {export.opset for export in row.unwritten}
    return ", ".join(str(opset) for opset in OPSETS[row.exporter] if opset not in unwritten)


@dataclass(frozen=True)
class Repaired:
    """Bounds of an architecture with the usual constraints, None if there is none, and after `lipcompile fix`."""

    constrained: float | None
    fixed: float


def repaired(name: str, folder: Path) -> Repaired:
    """Check an architecture with the usual constraints, and fix it, with all that makes its bound smaller."""
    export = Export(name, "torchscript", USUAL["torchscript"])
    path = export.write(folder)
    found = verdict(derived(export, path, keep=False))
    wanted = FixOptions(Repairs(), also=("norm", "residual", "attention"))
    outcome = fix(str(path), options(name, keep=False), wanted, folder / "fixed.lip")
    assert outcome.check is not None
    return Repaired(found.bound if found.accepted else None, verdict(outcome.check).bound)


def of_bounds(rows: Sequence[Row], repairs: Mapping[str, Repaired]) -> Iterator[str]:
    """Yield the rows of the table of bounds: those of one exporter, which are those of the other one, too."""
    yield line("architecture", "K", "K / L", "of a K_p", "of K", "of the slope", "K, norms ≤ 1", "K, fixed")
    yield line("---", *["--:"] * 7)
    for row in rows:
        if row.exporter == "torchscript":
            found, after = row.usual, repairs[row.name]
            cells = [number(value) for value in (found.bound, found.share)]
            ends = [number(value) for value in (after.constrained, after.fixed)]
            yield line(ARCHITECTURES[row.name].title, *cells, *_shares(row), *ends)


def _shares(row: Row) -> list[str]:
    """Return the largest shares that attacks attained."""
    if not row.attacks:
        return ["", "", ""]
    shares = [max(getattr(one, share) for one in row.attacks) for share in ("parameter", "total", "slope")]
    return [f"{share:.0e}" if share < 0.01 else f"{share:.0%}" for share in shares]


def number(value: float | None) -> str:
    """Write a bound, rounded up."""
    return "none" if value is None or math.isnan(value) else upward(value, 2)


def tables(rows: Sequence[Row], repairs: Mapping[str, Repaired]) -> str:
    """Return what stands between the marks of the page."""
    verdicts, bounds = "\n".join(of_verdicts(rows)), "\n".join(of_bounds(rows, repairs))
    return f"## Verdicts\n\n{verdicts}\n\n## Bounds\n\n{bounds}\n"


def main() -> int:
    """Examine, print or write; return the exit code."""
    arguments = said(__doc__, only=Some([*ARCHITECTURES]), inputs=12, write=False)
    rows, repairs = [], {}
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.only:
            for exporter in OPSETS:
                rows.append(examined(name, exporter, arguments.inputs, Path(folder)))
                print(f"{name}, {exporter}: {len(rows[-1].verdicts)} files", file=sys.stderr)
            repairs[name] = repaired(name, Path(folder))
    show(tables(rows, repairs), PAGE, BEGIN, END, arguments.write)
    faults = [fault for row in rows for fault in row.faults()]
    print(*faults, sep="\n", end="", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tests.fuzz`: run cases and print figures; the exit code is 1 if a promise was broken."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from tests.fuzz.campaign import Figures, campaign
from tests.fuzz.cases import Case, case
from tests.fuzz.corpus import seeds
from tests.fuzz.reduction import reduced


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description="Check changed models; count what comes of it."
    )
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--failures", type=Path, default=Path("fuzz-failures"), help="folder for files that fail")
    chosen = parser.parse_args()
    corpus = seeds()
    print(f"seed {chosen.seed}, corpus of {len(corpus)} files", file=sys.stderr)
    numbers = range(chosen.first, chosen.first + chosen.cases)
    figures = campaign(chosen.seed, numbers, corpus, chosen.jobs, _progress)
    print("\n".join(figures.lines()))
    for fault, outcomes in figures.faults.items():
        _keep(chosen.failures, fault, case(chosen.seed, outcomes[0].number, corpus), outcomes[0].output)
    return 1 if figures.faults else 0


def _progress(figures: Figures) -> None:
    print(f"{figures.cases} cases, {sum(map(len, figures.faults.values()))} failures", file=sys.stderr, flush=True)


def _keep(folder: Path, fault: str, failing: Case, output: str) -> None:
    """Write the smallest file found that fails so, and beside it how to run it and what it printed."""
    folder.mkdir(exist_ok=True)
    lost = fault.startswith(("no answer", "the process died", "too"))
    small = failing if lost else reduced(failing, fault)  # what may stop this process is not tried here
    path = folder / f"case_{failing.number}{failing.suffix}"
    path.write_bytes(small.content)
    command = f"lipcompile check {path} {shlex.join(small.options)}"
    path.with_suffix(".txt").write_text(f"{fault}\nfrom {failing.origin}\n{command}\n\n{output}", encoding="utf-8")
    print(f"  {command}")


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tests.mutants`: every term that rounds outward is left out in turn; tests must go red.

The exit code is 1 if a mutant survives that `survivors.toml` does not list with a reason. Those that it lists and
that no longer survive are named, to be struck out.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path
from queue import SimpleQueue

from tests.mutants import native, python
from tests.mutants.covering import COVERED, GUESSES
from tests.mutants.python import Mutant
from tests.mutants.running import ROOT, Workshop
from tests.mutants.survivors import known

Job = tuple[str, str, Mutant]
"""A file, its source, and a mutant of it."""


def mutants_of(file: str) -> Iterator[Job]:
    """Yield the mutants of a file that are to be seen."""
    source = (ROOT / file).read_text(encoding="utf-8")
    for mutant in native.mutants(source) if file.endswith(".c") else python.mutants(source):
        guessed = mutant.place.partition(" (")[0] in GUESSES.get(file, ())
        if not guessed and (mutant.kind in ("term", "constant") or not COVERED[file].terms_alone):
            yield file, source, mutant


def survivors(jobs: list[Job], workers: int, near: bool) -> Iterator[Job]:
    """Run the tests of each mutant, of its file's only the nearest if asked to; yield those that no test sees."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(workers) as pool:
        shops: SimpleQueue[Workshop] = SimpleQueue()
        for number in range(workers):
            shops.put(Workshop(Path(folder) / str(number)))
        tests = {file: COVERED[file].tests[: 1 if near else None] for file in COVERED}
        first = shops.get()
        for file, source in dict.fromkeys((file, source) for file, source, _ in jobs):
            if not first.survives(file, source, tests[file]):
                raise SystemExit(f"tests of {file} fail without a mutation: {' '.join(tests[file])}")
        shops.put(first)

        def run(job: Job) -> Job | None:
            file, source, mutant = job
            shop = shops.get()
            try:
                alive = shop.survives(file, mutant.applied(source), tests[file])
            finally:
                shops.put(shop)
            print(f"{'SURVIVED' if alive else 'killed'}  {_line(job)}", file=sys.stderr, flush=True)
            return job if alive else None

        yield from (job for job in pool.map(run, jobs) if job is not None)


def _line(job: Job) -> str:
    file, _, mutant = job
    return f"{file} {mutant.place}: {mutant.old!r} -> {mutant.new!r}"


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument(
        "--files", nargs="*", default=["*"], help="patterns of the files to mutate; all by default"
    )
    parser.add_argument("--kinds", nargs="*", help="of mutants, e.g. term; all by default")
    parser.add_argument("--matching", default="", help="a pattern of the lines that --list writes")
    parser.add_argument("--near", action="store_true", help="only the tests that are nearest to a file")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--list", action="store_true", help="list the mutants, and run nothing")
    chosen = parser.parse_args()
    files = [file for file in COVERED if any(fnmatch(file, f"*{pattern}") for pattern in chosen.files)]
    jobs = [job for file in files for job in mutants_of(file) if not chosen.kinds or job[2].kind in chosen.kinds]
    jobs = [job for job in jobs if re.search(chosen.matching, _line(job))]
    if chosen.list:
        print("\n".join(map(_line, jobs)))
        return 0
    alive = [*survivors(jobs, chosen.jobs, chosen.near)]
    expected = known()
    new = [job for job in alive if (job[0], *job[2].key) not in expected]
    seen = [job for job in jobs if job not in alive and (job[0], *job[2].key) in expected]
    print(
        f"{len(jobs)} mutants, {len(jobs) - len(alive)} killed, {len(alive)} survived, {len(new)} without a reason"
    )
    print("\n".join([f"no test sees {_line(job)}" for job in new] + [f"a test sees {_line(job)}" for job in seen]))
    return 1 if new else 0


if __name__ == "__main__":
    sys.exit(main())

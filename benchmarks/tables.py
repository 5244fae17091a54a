"""Reading a CSV file of a million rows and fifty columns as a matrix, beside `pandas.read_csv`, in one run.

    python benchmarks/tables.py [--rows 1000000] [--json FILE]

Prints wall and CPU seconds and the largest resident memory of a process that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv

PROGRAMS = {
    "pandas.read_csv": "import pandas; pandas.read_csv(path)",
    "guess": "from lipcompile.tables.guess import guess; guess(path, 'y')",
    "encoded, 8 buckets a category": "{schema}encoded(path, schema(8))",
    "encoded, 64 buckets a category": "{schema}encoded(path, schema(64))",
}
_SCHEMA = """
from lipcompile.tables.schema import *
from lipcompile.tables.stream import encoded
def columns(buckets):
    yield from (Number(f"n{i}", missing=i < 4) for i in range(40))
    yield from (Category(f"c{i}", buckets=buckets) for i in range(8))
    yield Date("d")
def schema(buckets): return Schema(tuple(columns(buckets)), "y")
"""


def write(path: Path, rows: int) -> None:
    """Write numbers, a tenth of four of them missing, eight columns of texts, a date and a target."""
    rng = np.random.default_rng(0)
    words = np.array([f"word{i}" for i in range(200)], object)
    table: dict[str, Any] = {
        f"n{i}": pa.array(np.round(100 * rng.standard_normal(rows), 3), mask=rng.random(rows) < 0.1 * (i < 4))
        for i in range(40)
    }
    table |= {f"c{i}": words[rng.integers(0, 10 if i else 200, rows)] for i in range(8)}
    table["d"] = (np.datetime64("2020-01-01") + rng.integers(0, 1000, rows)).astype("datetime64[D]")
    table["y"] = words[rng.integers(0, 3, rows)]
    pyarrow.csv.write_csv(pa.table(table), path)


def measured(program: str) -> dict[str, float]:
    """Return wall and CPU seconds, and megabytes, of a program in a process of its own."""
    tail = "\nimport resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)"
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run([sys.executable, "-c", program + tail], check=True, capture_output=True, text=True)
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": seconds, "cpu_seconds": cpu, "megabytes": float(done.stdout)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.write:
        return write(arguments.write, arguments.rows)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        # In a process of its own: what others start counts the memory of whoever started them.
        subprocess.run([sys.executable, __file__, "--write", path, "--rows", str(arguments.rows)], check=True)
        print(f"{arguments.rows} rows, 50 columns, {path.stat().st_size / 1e6:.0f} MB")
        found = {}
        for name, program in PROGRAMS.items():
            found[name] = one = measured(f"path = {str(path)!r}\n{program.replace('{schema}', _SCHEMA)}")
            print(
                f"{name:31} {one['seconds']:5.1f} s, CPU {one['cpu_seconds']:5.1f} s, {one['megabytes']:5.0f} MB"
            )
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": arguments.rows, "found": found}, indent=2))
    return None


if __name__ == "__main__":
    main()

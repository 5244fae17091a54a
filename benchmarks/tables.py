"""Reading a CSV file of a million rows and fifty columns as a matrix, beside `pandas.read_csv`, in one run.

    python -m benchmarks.tables [--rows 1000000] [--json FILE]

Prints wall and CPU seconds and the largest resident memory of a process that does nothing else.
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv

from benchmarks.harness import cost, options, save

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


def main() -> None:
    """Measure and print."""
    arguments = options(__doc__, rows=1_000_000, json=Path, write=Path)
    if arguments.write:
        write(arguments.write, arguments.rows)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        # In a process of its own: what others start counts the memory of whoever started them.
        cost("-m", "benchmarks.tables", "--write", path, "--rows", str(arguments.rows))
        print(f"{arguments.rows} rows, 50 columns, {path.stat().st_size / 1e6:.0f} MB")
        found = {}
        for name, program in PROGRAMS.items():
            found[name] = one = cost("-c", f"path = {str(path)!r}\n{program.replace('{schema}', _SCHEMA)}")
            print(f"{name:31} {one.wall:5.1f} s, CPU {one.cpu:5.1f} s, {one.megabytes:5.0f} MB")
    save(arguments.json, {"rows": arguments.rows, "found": {name: asdict(one) for name, one in found.items()}})


if __name__ == "__main__":
    main()

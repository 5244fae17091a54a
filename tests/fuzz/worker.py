"""The process that runs cases: `python -m tests.fuzz.worker SEED FIRST STOP CORPUS`; a line of JSON an outcome."""

from __future__ import annotations

import json
import os
import pickle
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from tests.fuzz.cases import case
from tests.fuzz.runs import execute, limit_memory


def main() -> None:
    """Run the cases from FIRST to below STOP."""
    seed, first, stop = map(int, sys.argv[1:4])
    corpus = pickle.loads(Path(sys.argv[4]).read_bytes())  # which the campaign has written
    limit_memory()
    with os.fdopen(os.dup(1), "w") as answers, tempfile.TemporaryDirectory() as folder:
        for number in range(first, stop):
            outcome = execute(case(seed, number, corpus), Path(folder))
            print(json.dumps(asdict(outcome)), file=answers, flush=True)


if __name__ == "__main__":
    main()

"""CPU time of `lipcompile check` on a perceptron, beside that of importing sympy alone, interleaved in one run.

    python benchmarks/startup.py [--runs 9] [--json FILE]

Prints the median CPU seconds (user and system, of the whole process) of each command, and their ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

MODEL = Path(__file__).parent.parent / "examples" / "mlp.lip"
COMMANDS = {
    "import sympy": [sys.executable, "-c", "import sympy"],
    "lipcompile check mlp.lip": [sys.executable, "-m", "lipcompile", "check", str(MODEL)],
}


def cpu_seconds(command: list[str]) -> float:
    """Run a command to its end; return the CPU time of its process."""
    before = os.times()
    subprocess.run(command, check=True, capture_output=True, cwd="/")
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(arguments.runs):
        for name, command in COMMANDS.items():
            times[name].append(cpu_seconds(command))
    medians = {name: statistics.median(values) for name, values in times.items()}
    for name, seconds in medians.items():
        print(f"{name:28} {seconds:.2f} s CPU")
    baseline, check = medians.values()
    print(f"{'ratio':28} {check / baseline:.2f}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"median_cpu_seconds": medians, "runs": arguments.runs}, indent=2))


if __name__ == "__main__":
    main()

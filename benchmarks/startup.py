"""CPU time of `lipcompile check` on a perceptron, beside that of importing sympy alone, interleaved in one run.

    python -m benchmarks.startup [--runs 9] [--json FILE]

Prints the median CPU seconds (user and system, of the whole process) of each command, and their ratio.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.harness import EXAMPLES, cost, medians, options, save

COMMANDS: dict[str, tuple[str | Path, ...]] = {
    "import sympy": ("-c", "import sympy"),
    "lipcompile check mlp.lip": ("-m", "lipcompile", "check", EXAMPLES / "mlp.lip"),
}


def main() -> None:
    """Measure and print."""
    arguments = options(__doc__, runs=9, json=Path)
    runs = [{name: cost(*command).cpu for name, command in COMMANDS.items()} for _ in range(arguments.runs)]
    found = medians({name: [run[name] for run in runs] for name in COMMANDS})
    for name, seconds in found.items():
        print(f"{name:28} {seconds:.2f} s CPU")
    baseline, check = found.values()
    print(f"{'ratio':28} {check / baseline:.2f}")
    save(arguments.json, {"median_cpu_seconds": found, "runs": arguments.runs})


if __name__ == "__main__":
    main()

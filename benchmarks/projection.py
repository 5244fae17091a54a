"""Cost of certified projection and of noise, relative to forward and backward of the same network, in one run.

    python benchmarks/projection.py [--batch 512] [--runs 9] [--json FILE]

For each example network: median CPU milliseconds of a gradient, of `project_` after a small step, and of drawing
the noise, each measured in turn; the last column is what privacy adds to a gradient. One thread.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from lipcompile_torch.emit import emit
from lipcompile_torch.runtime.noise import NoiseSource

from lipcompile.pipeline import check

EXAMPLES = Path(__file__).parent.parent / "examples"
NETWORKS = ("mlp", "mnist", "residual", "convnet")


def build(name: str) -> Any:
    """Compile an example network."""
    module = ModuleType(name)
    exec(emit(check(str(EXAMPLES / f"{name}.lip"))), module.__dict__)
    return module.Model()


def parts(model: Any, batch: int) -> dict[str, Callable[[], None]]:
    """Return the parts of a private step, to be timed."""
    x, y = torch.rand(batch, *model.input_shape), torch.randint(0, 10, (batch,))
    noise = NoiseSource(seed=0)

    def gradient() -> None:
        model.zero_grad()
        model.criterion(model(x), y).backward()

    def project() -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 1e-3 * torch.randn_like(parameter)
        model.project_()

    def perturb() -> None:
        trained = dict(model.named_parameters())
        noise.perturb_(trained, dict.fromkeys(trained, 1.0), float(batch))

    return {"gradient": gradient, "project": project, "noise": perturb}


def milliseconds(part: Callable[[], None]) -> float:
    """Return the CPU time of one call."""
    start = time.process_time()
    part()
    return 1e3 * (time.process_time() - start)


def measure(name: str, batch: int, runs: int) -> dict[str, float]:
    """Return the median time of each part, measured in turn after one warm-up."""
    times: dict[str, list[float]] = {}
    steps = parts(build(name), batch)
    for run in range(runs + 1):
        for part, function in steps.items():
            taken = milliseconds(function)
            if run:
                times.setdefault(part, []).append(taken)
    return {part: statistics.median(values) for part, values in times.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"{'network':10} {'gradient':>10} {'project':>10} {'noise':>10} {'privacy adds':>14}")
    found = {}
    for name in NETWORKS:
        found[name] = row = measure(name, arguments.batch, arguments.runs)
        added = (row["project"] + row["noise"]) / row["gradient"]
        print(f"{name:10} {row['gradient']:8.1f}ms {row['project']:8.1f}ms {row['noise']:8.1f}ms {added:13.0%}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"batch": arguments.batch, "milliseconds": found}, indent=2))


if __name__ == "__main__":
    main()

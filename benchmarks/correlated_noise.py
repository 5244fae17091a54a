"""Error of correlated noise against independent noise, at the same privacy, and what its stream costs.

    python -m benchmarks.correlated_noise [--examples 60000] [--batch 512] [--epochs 20] [--delta 1e-5]
        [--accountant pld] [--neighbours add_remove] [--parameters 1000000] [--json FILE]

For each ε and each strategy: σ that the accountant calibrates, and the root mean squared error of the prefix sums
of the gradients as a share of that of independent noise with Poisson sampling (1 band). Those for a fixed order
are not amplified by sampling. The last columns are the memory and the CPU time of the stream for each parameter of
the network, at every step; one thread.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from lipcompile_torch.accounting import NeighbouringRelation, calibrate_noise_multiplier
from lipcompile_torch.factorisation import (
    BandedToeplitz,
    Cyclic,
    MinSeparation,
    Strategy,
    optimal_banded,
    optimal_blt,
)

from benchmarks.harness import in_turns, options, save

BANDS = (1, 2, 4, 8, 16, 32, 64)
EPSILONS = (1.0, 4.0, 16.0)


def strategies(per_epoch: int, epochs: int) -> Iterator[tuple[str, Strategy]]:
    """Yield the strategies and their names, independent noise first."""
    steps = per_epoch * epochs
    for bands in BANDS:
        if bands <= per_epoch:
            yield f"cyclic, {bands} bands", optimal_banded(steps, bands, Cyclic(bands))
    pattern = MinSeparation(per_epoch, epochs)
    yield f"fixed order, {per_epoch} bands", optimal_banded(steps, per_epoch, pattern)
    blt = optimal_blt(steps, per_epoch, epochs)
    yield f"fixed order, {len(blt.decays)} buffers", blt


def sigma(strategy: Strategy, rate: float, epsilon: float, arguments: argparse.Namespace) -> float:
    """Return the noise multiplier that a strategy needs."""
    relation, accountant = NeighbouringRelation(arguments.neighbours), arguments.accountant
    sampled = isinstance(strategy.participation, Cyclic)
    charged = rate * strategy.round_steps if sampled else 1.0
    charges = -(-strategy.steps // strategy.round_steps)
    return calibrate_noise_multiplier(epsilon, arguments.delta, charged, charges, relation, accountant)


def stream_cost(strategy: Strategy, parameters: int) -> dict[str, float]:
    """Return bytes, and median CPU nanoseconds of a step, for each parameter."""
    stream: Any = strategy.stream()
    normal = torch.randn(parameters, dtype=torch.float64)
    times = in_turns({"": lambda: stream.next("weight", normal)}, min(strategy.steps - 1, 6), "cpu")[""]
    nanoseconds = 1e9 * statistics.median(times) / parameters
    rows = strategy.bands - 1 if isinstance(strategy, BandedToeplitz) else len(getattr(strategy, "decays", ()))
    return {"bytes": 8 * rows, "nanoseconds": nanoseconds}


def table(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the rows."""
    per_epoch = max(1, round(arguments.examples / arguments.batch))
    rate, rows = arguments.batch / arguments.examples, []
    for name, strategy in strategies(per_epoch, arguments.epochs):
        error = math.sqrt(strategy.squared_error("mean"))
        row: dict[str, Any] = {"strategy": name, **stream_cost(strategy, arguments.parameters)}
        for epsilon in EPSILONS:
            multiplier = sigma(strategy, rate, epsilon, arguments)
            row[f"{epsilon:g}"] = {"sigma": multiplier, "error": multiplier * error}
        rows.append(row)
    return rows


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Print the rows; errors as shares of those of the first."""
    names = [f"{epsilon:g}" for epsilon in EPSILONS]
    width = max(len(row["strategy"]) for row in rows)
    head = "".join(f"{'σ, ε = ' + name:>12}{'error':>8}" for name in names)
    print(f"{'':{width}}{head}{'memory':>10}{'time':>11}")
    for row in rows:
        cells = "".join(
            f"{row[name]['sigma']:12.3f}{row[name]['error'] / rows[0][name]['error']:8.3f}" for name in names
        )
        print(f"{row['strategy']:{width}}{cells}{row['bytes']:8d} B{row['nanoseconds']:8.1f} ns")


def main() -> None:
    """Measure and print."""
    arguments = options(
        __doc__,
        examples=60000,
        batch=512,
        epochs=20,
        delta=1e-5,
        accountant=("pld", "rdp"),
        neighbours=("add_remove", "replace_one"),
        parameters=1_000_000,
        json=Path,
    )
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = table(arguments)
    show(rows)
    save(arguments.json, {"settings": vars(arguments), "rows": rows})


if __name__ == "__main__":
    main()

"""Cost of certified projection on weights that noise moves, beside the gradient of the same network, in one run.

    python -m benchmarks.projection [--batch 512] [--steps 30] [--slacks 0 0.1] [--json FILE]

Each step moves the weights by a learning rate times the noise that SGD at σ = 1 would draw, and projects them. For
each network and rate: `moves`, by how much a step moves the first weight in operator norm (its bound is 1, but for
kernels the norm is that of the reshaped kernel); mean CPU milliseconds of a projection; how many weights were
certified in full a step, and for how many the operator norm of the drift was needed; the last column is the
projection over the median gradient. Slack 0 scales no weight without a certificate. One thread.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from lipcompile_torch.certify.drift import Moments
from lipcompile_torch.certify.projection import Amortised
from torch import Tensor

from benchmarks.harness import EXAMPLES, Some, emitted, options, save, written

WIDE = """model mlp512 {
    input image: tensor[784], norm <= 1.0
    dense(512)
    groupsort(2)
    dense(512)
    groupsort(2)
    dense(10)
    loss cross_entropy
}
"""
NETWORKS = ("mlp512", "mlp", "mnist", "residual", "convnet")
RATES = (0.003, 0.01, 0.03, 0.1, 0.3)
_WARM_UP = 5  # the first certificates are made in float64, and leave no anchors


def build(name: str) -> Any:
    """Compile an example network."""
    with written(WIDE) as wide:
        own = EXAMPLES / f"{name}.lip"
        model = emitted(own if own.exists() else wide)
    torch.manual_seed(0)
    return model()


def milliseconds(part: Callable[[], None]) -> float:
    """Return the CPU time of one call."""
    start = time.process_time()
    part()
    return 1e3 * (time.process_time() - start)


def gradient(model: Any, batch: int) -> Callable[[], None]:
    """Return what computes a gradient."""
    x, y = torch.rand(batch, *model.input_shape), torch.randint(0, 10, (batch,))

    def run() -> None:
        model.zero_grad()
        model.criterion(model(x), y).backward()

    return run


class Counts:
    """How often weights were certified in full, and drifts measured, in `steps` steps."""

    def __init__(self) -> None:
        self.full = self.measured = 0

    def watched(self) -> Any:
        """Count meanwhile."""
        certify, measured = Amortised.certify, Amortised.measured

        def counted_certify(*arguments: Any) -> None:
            self.full += 1
            certify(*arguments)

        def counted_measure(known: Amortised, weight: Tensor, measure: int) -> Moments | None:
            self.measured += measure > 0
            return measured(known, weight, measure)

        return patch.multiple(Amortised, certify=counted_certify, measured=counted_measure)


def measure(model: Any, rate: float, slack: float, batch: int, steps: int) -> dict[str, float]:
    """Return a row of the table."""
    run, std = gradient(model, batch), rate * math.hypot(*model.gradient_bounds().values()) / batch
    model.projection_slack = slack
    model.forget_certificates()
    generator = torch.Generator().manual_seed(0)
    counts, times, gradients = Counts(), [], []
    first = next(p for p in model.parameters() if p.dim() > 1)
    for step in range(steps + _WARM_UP):
        gradients.append(milliseconds(run))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += std * torch.randn(parameter.shape, generator=generator)
        if step < _WARM_UP:
            model.project_()
            continue
        with counts.watched():
            times.append(milliseconds(model.project_))
    moves = torch.linalg.matrix_norm(std * torch.randn(first.shape, generator=generator).flatten(1), 2)
    return {
        "rate": rate,
        "slack": slack,
        "moves": float(moves),
        "milliseconds": statistics.mean(times),
        "certified": counts.full / steps,
        "measured": counts.measured / steps,
        "gradient": statistics.median(gradients),
    }


def rows(arguments: Any) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield every network with every rate and slack."""
    for name in arguments.networks:
        for rate in RATES:
            for slack in arguments.slacks:
                yield name, measure(build(name), rate, slack, arguments.batch, arguments.steps)


def main() -> None:
    """Measure and print."""
    arguments = options(__doc__, batch=512, steps=30, slacks=[0.1], networks=Some(NETWORKS), json=Path)
    torch.set_num_threads(1)
    heading = ("network", "rate", "slack", "moves", "project", "certified", "measured", "share")
    print("{:9} {:>6} {:>6} {:>7} {:>10} {:>10} {:>9} {:>7}".format(*heading), flush=True)
    found: list[dict[str, Any]] = []
    for name, row in rows(arguments):
        found.append({"network": name, **row})
        print(
            f"{name:9} {row['rate']:6} {row['slack']:6} {row['moves']:7.1%} {row['milliseconds']:8.2f}ms"
            f" {row['certified']:10.2f} {row['measured']:9.2f} {row['milliseconds'] / row['gradient']:7.1%}",
            flush=True,
        )
    save(arguments.json, {"batch": arguments.batch, "rows": found})


if __name__ == "__main__":
    main()

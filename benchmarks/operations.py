"""How many operations torch is asked for in a step, in the code for devices other than processors.

    python -m benchmarks.operations [--networks opacus vgg …] [--batch 16] [--json FILE]

There the processor that starts operations limits the step of a small network. The count does not depend on the
machine, so it compares two versions where no device is at hand: processors are taken for a device of which nothing
is known. Views count, which start nothing and take time all the same.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from lipcompile_torch import devices
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.harness import Some, options, save
from benchmarks.steps.contestants import Task, start
from benchmarks.steps.networks import NETWORKS

CONTESTANTS = "relu", "clip"
STEPS = 4


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operations by name."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found[func._schema.name] += 1
        return func(*args, **(kwargs or {}))


def operations(contestant: str, network: str, batch: int) -> Counter[str]:
    """Return how often a step asks for each operation, after two that do not count."""
    training = start(contestant, Task(NETWORKS[network], batch, torch.device("cpu")))
    next(islice(training, 2, 2), None)
    with _Counting() as counting:
        next(islice(training, STEPS, STEPS), None)
    return Counter({name: -(-count // STEPS) for name, count in counting.found.items()})


def main() -> None:
    """Count and print."""
    arguments = options(
        __doc__, networks=Some(list(NETWORKS), ["mlp", "opacus", "vgg", "vit"]), batch=16, json=Path
    )
    found: dict[str, dict[str, int]] = {}
    for network in arguments.networks:
        found[network] = {}
        for contestant in CONTESTANTS:
            devices.PROCESSORS = frozenset({"cpu"} if contestant == "relu" else ())
            found[network][contestant] = operations(contestant, network, arguments.batch).total()
        print(f"{network:8}", *(f"{name} {count:6}" for name, count in found[network].items()), flush=True)
    save(arguments.json, found)


if __name__ == "__main__":
    main()

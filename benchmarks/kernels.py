"""What GroupSort, L2-pooling and the clip of inputs cost beside ReLU and max-pooling: one process, in turns.

    python -m benchmarks.kernels [--json FILE] [--threads 2] [--device cpu] [--batches 128 512 2048] [--runs 9]
        [--clock wall] [--only kernels|networks]

Kernels: forward and backward pass of one operation on the activations of the MNIST network's convolutions in
batches of 128, in both memory formats, or of a dense layer in a batch of 2048, over ReLU or max-pooling. The clip
of inputs has a forward pass only, and a copy as its measure.
Networks: forward, backward and a step of plain SGD of the shapes in `benchmarks/steps`, as emitted but without the
gate at the end, over the same of torch's own layers with ReLU and max-pooling. (`step_time.py` compares private
steps, in processes of their own.)

Every operation takes a turn in every run; the medians over the runs give the ratios.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lipcompile_torch.nn import functional as lf
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from benchmarks.harness import CLOCKS, in_turns, medians, options, save
from benchmarks.steps.networks import NETWORKS, Network

Run = Callable[[], object]

IMAGES = {"32×28×28": (128, 32, 28, 28), "64×14×14": (128, 64, 14, 14)}
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "group_sort": lambda x: lf.group_sort(x, 2),
    "max_min": lf.max_min,
}
POOLS: dict[str, Callable[[Tensor], Tensor]] = {
    "max_pool": lambda x: F.max_pool2d(x, 2),
    "l2_pool": lambda x: lf.l2_pool(x, (2, 2)),
    "l2_pool 3, stride 2": lambda x: lf.l2_pool(x, (3, 3), (2, 2)),
}
BLOCKS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu, max_pool": lambda x: F.max_pool2d(F.relu(x), 2),
    "group_sort, l2_pool": lambda x: lf.l2_pool(lf.group_sort(x, 2), (2, 2)),
}
CLIPS: dict[str, Callable[[Tensor], Tensor]] = {
    "copy": torch.clone,
    "clip_norm, inside": lambda x: lf.clip_norm(x, 1e6),
    "clip_norm, outside": lambda x: lf.clip_norm(x, 1.0),
}
FORMATS = {"contiguous": torch.contiguous_format, "channels last": torch.channels_last}


def both_ways(function: Callable[[Tensor], Tensor], x: Tensor) -> Run:
    """Return a forward and backward pass."""
    leaf = x.detach().requires_grad_()
    cotangent = torch.randn_like(function(leaf))

    def run() -> None:
        torch.autograd.grad(function(leaf), leaf, cotangent)

    return run


def training(module: Any, network: Network, batch: int, device: torch.device) -> Run:
    """Return a step of plain SGD."""
    module = module.to(device)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
    x, y = torch.rand(batch, *network.input_shape, device=device), torch.randint(10, (batch,), device=device)

    def run() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(F.cross_entropy(module(x), y))
        optimizer.step()

    return run


def kernels(device: torch.device) -> Iterator[tuple[str, dict[str, Run]]]:
    """Yield what is compared, by title; the first of each is the measure of the others."""
    for name, shape in IMAGES.items():
        for layout, memory_format in FORMATS.items():
            x = torch.randn(shape, device=device).contiguous(memory_format=memory_format)
            for functions in (ACTIVATIONS, POOLS, BLOCKS):
                yield f"{name}, {layout}", {label: both_ways(f, x) for label, f in functions.items()}
    x = torch.randn(2048, 512, device=device)
    yield "512", {label: both_ways(f, x) for label, f in ACTIVATIONS.items()}
    for batch, entries in ((128, 784), (2048, 784), (2048, 3072)):
        x = torch.randn(batch, entries, device=device)
        yield f"{batch} inputs of {entries}", {label: partial(f, x) for label, f in CLIPS.items()}


def networks(batches: list[int], device: torch.device) -> Iterator[tuple[str, dict[str, Run]]]:
    """Yield steps of each network, in the same way."""
    for name in ("mlp", "mnist", "cifar"):
        for batch in batches:
            modules = {"relu": NETWORKS[name].relu(), "emitted": NETWORKS[name].emitted()()}
            modules["emitted"].release = lambda x: x
            yield (
                f"{name}, {batch}",
                {label: training(module, NETWORKS[name], batch, device) for label, module in modules.items()},
            )


def waiting(functions: dict[str, Run], device: torch.device) -> dict[str, Run]:
    """Return the same, each of which waits for the device."""

    def run(function: Run) -> None:
        function()
        torch.cuda.synchronize(device)

    return {name: partial(run, f) for name, f in functions.items()} if device.type == "cuda" else functions


def main() -> None:
    """Measure and print."""
    given = options(
        __doc__,
        threads=2,
        device="cpu",
        batches=[128, 512, 2048],
        runs=9,
        clock=tuple(CLOCKS),
        only=("", "kernels", "networks"),
        json=Path,
    )
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    device = torch.device(given.device)
    parts = {"kernels": lambda: kernels(device), "networks": lambda: networks(given.batches, device)}
    found = {}
    for part in [given.only] if given.only else parts:
        for title, functions in parts[part]():
            times = medians(in_turns(waiting(functions, device), given.runs, given.clock))
            first, *others = times
            for name in others:
                ratio = f"{times[name] / times[first]:6.2f} times {first}"
                print(f"{title:26} {name:22} {1e3 * times[name]:9.2f} ms {ratio}", flush=True)
            found[f"{title}: {first}"] = times
    save(given.json, {"threads": given.threads, "seconds": found})


if __name__ == "__main__":
    main()

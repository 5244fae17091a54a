"""What weight gradients of single examples cost beside torch's own weight gradient of the batch, in turns.

    python -m benchmarks.example_gradients [--json FILE] [--threads 2] [--batch 512] [--runs 9] [--clock wall]
        [--only REGEX] [--by-torch]

Over torch's weight gradient (oneDNN's; of tokens, the product of two matrices): the sum of all gradients, their
norms, their clipped sum with the norms, and their sum with factors that are given. By torch's operations instead
of the kernels: the same with unfolded windows, for examples that memory holds at once.

Every contestant takes a turn in every run; the medians over the runs give the ratios. With `--clock cpu` and one
thread other programs disturb them less.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

import torch
from lipcompile_torch import native
from lipcompile_torch.clip.example_gradients import Clip, ExampleGradients
from lipcompile_torch.clip.outer_products import Windows

from benchmarks.harness import CLOCKS, in_turns, medians, options, save
from benchmarks.kernels import Run

# channels, filters, size of the kernel, size of the image, stride, padding, groups
CONVOLUTIONS = {
    "1→16, 3×3, 28²": (1, 16, 3, 28, 1, 1, 1),
    "1→16, 8×8, 28², stride 2": (1, 16, 8, 28, 2, 3, 1),
    "16→32, 3×3, 14²": (16, 32, 3, 14, 1, 1, 1),
    "16→32, 4×4, 13², stride 2": (16, 32, 4, 13, 2, 0, 1),
    "1→32, 3×3, 28²": (1, 32, 3, 28, 1, 1, 1),
    "32→64, 3×3, 28²": (32, 64, 3, 28, 1, 1, 1),
    "3→32, 3×3, 32²": (3, 32, 3, 32, 1, 1, 1),
    "32→32, 3×3, 32²": (32, 32, 3, 32, 1, 1, 1),
    "32→64, 3×3, 16²": (32, 64, 3, 16, 1, 1, 1),
    "64→128, 3×3, 16²": (64, 128, 3, 16, 1, 1, 1),
    "64→64, 3×3, 16², stride 2": (64, 64, 3, 16, 2, 1, 1),
    "64→128, 3×3, 8²": (64, 128, 3, 8, 1, 1, 1),
    "128→128, 3×3, 8²": (128, 128, 3, 8, 1, 1, 1),
    "3→64, 4×4, 32², stride 4": (3, 64, 4, 32, 4, 0, 1),
    "64→64, 3×3, 32², depthwise": (64, 64, 3, 32, 1, 1, 64),
    "128→128, 3×3, 16², depthwise": (128, 128, 3, 16, 1, 1, 128),
    "64→256, 1×1, 16²": (64, 256, 1, 16, 1, 0, 1),
}
# tokens, entries read, entries made
TOKENS = {
    f"{tokens} tokens, {d}→{p}": (tokens, d, p)
    for tokens, d, p in (
        (64, 64, 128),
        (64, 128, 128),
        (64, 192, 192),
        (64, 256, 256),
        (64, 256, 768),
        (64, 384, 384),
        (64, 768, 768),
        (196, 64, 64),
        (196, 192, 192),
        (196, 192, 768),
        (196, 384, 384),
        (196, 768, 768),
    )
}


def contestants(gradients: ExampleGradients) -> dict[str, Run]:
    """Return what is compared with torch's weight gradient."""
    norms = gradients.norms()
    clip = Clip(float(norms.median()))
    factors = torch.clamp(clip.length / norms, max=1.0)
    return {
        "sum": gradients.total,
        "norms": gradients.norms,
        "clip": lambda: gradients.clipped(clip),
        "scaled": lambda: gradients.scaled(factors),
    }


def convolution(batch: int, name: str) -> dict[str, Run]:
    """Return the contestants for a convolution, torch's first."""
    channels, filters, size, image, stride, padding, groups = CONVOLUTIONS[name]
    x, weight = torch.randn(batch, channels, image, image), torch.zeros(filters, channels // groups, size, size)
    pair = (stride,) * 2, (padding,) * 2, (1, 1)
    cotangent = torch.randn_like(torch.convolution(x, weight, None, *pair, False, (0, 0), groups))

    def by_torch() -> None:
        torch.ops.aten.convolution_backward(
            cotangent, x, weight, None, *pair, False, (0, 0), groups, (False, True, False)
        )

    windows = Windows((size, size), *pair, groups)
    return {"torch": by_torch, **contestants(ExampleGradients(x, cotangent, windows))}


def tokens(batch: int, name: str) -> dict[str, Run]:
    """Return the contestants for a dense layer on tokens, torch's first."""
    count, d, p = TOKENS[name]
    x, cotangent = torch.randn(batch, count, d), torch.randn(batch, count, p)

    def by_torch() -> None:
        torch.mm(cotangent.view(-1, p).mT, x.view(-1, d))

    return {"torch": by_torch, **contestants(ExampleGradients.of_tokens(x, cotangent))}


def cases(batch: int, only: str) -> Iterator[tuple[str, dict[str, Run]]]:
    """Yield what is compared, by title."""
    for table, make in ((CONVOLUTIONS, convolution), (TOKENS, tokens)):
        for name in table:
            if re.search(only, name):
                yield name, make(batch, name)


def main() -> None:
    """Measure and print."""
    given = options(__doc__, threads=2, batch=512, runs=9, clock=tuple(CLOCKS), only="", by_torch=False, json=Path)
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    if given.by_torch:
        native.kernels = None
    found, ratios = {}, []
    for title, functions in cases(given.batch, given.only):
        times = medians(in_turns(functions, given.runs, given.clock))
        own = {name: seconds / times["torch"] for name, seconds in times.items() if name != "torch"}
        print(f"{title:30} torch {1e3 * times['torch']:8.2f} ms", end="   ")
        print(*(f"{name} {ratio:5.2f}" for name, ratio in own.items()), sep="   ", flush=True)
        found[title] = times
        ratios.append(own)
    for name in ratios[0] if ratios else ():
        mean = math.exp(sum(math.log(own[name]) for own in ratios) / len(ratios))
        print(f"{name}: {mean:.2f} times torch in the geometric mean")
    save(given.json, {"threads": given.threads, "batch": given.batch, "seconds": found})


if __name__ == "__main__":
    main()

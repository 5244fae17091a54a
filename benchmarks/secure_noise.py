"""What noise from a cryptographic generator costs, relative to plain noise and torch's normals, in one run.

    python -m benchmarks.secure_noise [--draws 1000 1000000 10000000] [--runs 9] [--json FILE]

For each number of draws: median CPU nanoseconds a draw of torch's float64 normals; of plain and of secure noise,
added to a gradient in float32; and of the bits that the last needs (16 bytes a draw) by AES-256-CTR, ChaCha20 and
the operating system; in turn in every run. Last, the median over the runs of secure/plain. One thread.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from lipcompile_torch.noise.normals import Normals, PlainNormals, SecureNormals

from benchmarks.harness import in_turns, medians, options, save

BYTES = 16
CHUNK = 1 << 20


def drawing(source: Normals, draws: int) -> Callable[[], None]:
    """Return what adds noise to the gradient of one parameter, in a step of its own."""
    gradient = torch.zeros(draws)

    def draw() -> None:
        source.refresh()
        source.perturb_([(gradient, 1.0)])

    return draw


def enciphering(cipher: Callable[[], Cipher[modes.CTR] | Cipher[None]], draws: int) -> Callable[[], None]:
    """Return what makes the bits by a cipher, a new key for every MiB."""
    zeros, into = bytes(CHUNK), bytearray(CHUNK)

    def encipher() -> None:
        for start in range(0, BYTES * draws, CHUNK):
            size = min(CHUNK, BYTES * draws - start)
            cipher().encryptor().update_into(memoryview(zeros)[:size], into)

    return encipher


def asking(draws: int) -> Callable[[], None]:
    """Return what asks the operating system for the bits."""

    def ask() -> None:
        for start in range(0, BYTES * draws, CHUNK):
            os.urandom(min(CHUNK, BYTES * draws - start))

    return ask


def parts(draws: int) -> dict[str, Callable[[], object]]:
    """Return what is timed."""
    return {
        "torch": lambda: torch.randn(draws, dtype=torch.float64),
        "plain": drawing(PlainNormals(), draws),
        "secure": drawing(SecureNormals(), draws),
        "AES-256": enciphering(lambda: Cipher(algorithms.AES(os.urandom(32)), modes.CTR(os.urandom(16))), draws),
        "ChaCha20": enciphering(lambda: Cipher(algorithms.ChaCha20(os.urandom(32), bytes(16)), None), draws),
        "system": asking(draws),
    }


def measure(draws: int, runs: int) -> dict[str, float]:
    """Return nanoseconds a draw of each part, and the median ratio of secure and plain noise."""
    times = in_turns(parts(draws), runs, "cpu")
    ratios = [secure / plain for secure, plain in zip(times["secure"], times["plain"], strict=True)]
    found = {name: 1e9 * seconds / draws for name, seconds in medians(times).items()}
    return found | {"secure/plain": statistics.median(ratios)}


def main() -> None:
    """Print a table; write it as JSON if asked to."""
    arguments = options(__doc__, draws=[10**3, 10**6, 10**7], runs=9, json=Path)
    torch.set_num_threads(1)
    found = {draws: measure(draws, arguments.runs) for draws in arguments.draws}
    names = list(next(iter(found.values())))
    print("draws".rjust(10), *(name.rjust(12) for name in names))
    for draws, row in found.items():
        cells = (f"{row[name]:.2f}" if "/" in name else f"{row[name]:.1f} ns" for name in names)
        print(str(draws).rjust(10), *(cell.rjust(12) for cell in cells))
    save(arguments.json, found)


if __name__ == "__main__":
    main()

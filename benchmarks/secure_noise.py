"""What noise from a cryptographic generator costs, relative to plain noise and torch's normals, in one run.

    python benchmarks/secure_noise.py [--draws 1000 1000000 10000000] [--runs 9] [--json FILE]

For each number of draws: median CPU nanoseconds a draw of torch's float64 normals; of plain and of secure noise,
added to a gradient in float32; and of the bits that the last needs (16 bytes a draw) by AES-256-CTR, ChaCha20 and
the operating system; in turn in every run. Last, the median over the runs of secure/plain. One thread.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from lipcompile_torch.noise.normals import Normals, PlainNormals, SecureNormals

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


def nanoseconds(part: Callable[[], object], draws: int) -> float:
    """Return the CPU time of one call, per draw."""
    start = time.process_time()
    part()
    return 1e9 * (time.process_time() - start) / draws


def measure(draws: int, runs: int) -> dict[str, float]:
    """Return medians over the runs; every run times every part, so that a slow moment of the machine hits all."""
    timed = parts(draws)
    for part in timed.values():
        part()
    rows = [{name: nanoseconds(part, draws) for name, part in timed.items()} for _ in range(runs)]
    medians = {name: statistics.median(row[name] for row in rows) for name in timed}
    return {**medians, "secure/plain": statistics.median(row["secure"] / row["plain"] for row in rows)}


def main() -> None:
    """Print a table; write it as JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, nargs="+", default=[10**3, 10**6, 10**7])
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = {draws: measure(draws, arguments.runs) for draws in arguments.draws}
    names = list(next(iter(found.values())))
    print("draws".rjust(10), *(name.rjust(12) for name in names))
    for draws, row in found.items():
        cells = (f"{row[name]:.2f}" if "/" in name else f"{row[name]:.1f} ns" for name in names)
        print(str(draws).rjust(10), *(cell.rjust(12) for cell in cells))
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

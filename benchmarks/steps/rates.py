"""Which learning rate the networks of `benchmarks/step_time.py` are timed at: accuracy by rate, on real images.

    python -m benchmarks.steps.rates --data FOLDER [--networks mlp mnist cifar mixer] [--batch 512] [--steps 120]
        [--rates 1e-6 …]

FOLDER is that of `benchmarks/utility/images.py`. A rate decides how far noise moves weights in a step, and so how
often their norms are certified anew. Seeds make the runs repeatable, and these models not private.
"""

from __future__ import annotations

import argparse
from itertools import chain, islice, repeat
from pathlib import Path

import numpy as np
import torch
from lipcompile_torch import PrivacyEngine
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import SGD
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.utility.image_features import Name, pictures
from benchmarks.utility.training import outputs

from .contestants import SIGMA
from .networks import NETWORKS, Network

RATES = (1e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 1e-2)
IMAGES: dict[str, Name] = {"mlp": "mnist", "mnist": "mnist", "cifar": "cifar10", "mixer": "cifar10"}


def accuracy(network: Network, parts: tuple[Tensor, ...], batch: int, steps: int, rate: float) -> float:
    """Return the test accuracy after so many private steps.

    Args:
        parts: images and labels of the training part, and of the test part.
        rate: for each example of a batch.
    """
    x, y, x_test, y_test = parts
    torch.manual_seed(0)
    module = network.emitted()()
    module, optimizer, loader = PrivacyEngine(neighbours="replace_one").make_private(
        module=module,
        optimizer=SGD(module.parameters(), lr=rate * batch),
        data_loader=DataLoader(TensorDataset(x, y), batch_size=batch),
        noise_multiplier=SIGMA,
        noise="optimal",
        seed=0,
        sampling="fixed_size",
    )
    batches = chain.from_iterable(repeat(loader))
    for images, labels in islice(batches, steps):
        optimizer.zero_grad()
        module.criterion(module(images), labels).backward()
        optimizer.step()
    return float((outputs(module, x_test, 1000).argmax(1) == y_test).float().mean())


def _scaled(images: NDArray[np.uint8], network: Network) -> Tensor:
    return torch.from_numpy(images).view(-1, *network.input_shape).float() / 255


def main() -> None:
    """Train and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--networks", nargs="+", choices=list(IMAGES), default=list(IMAGES))
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--rates", type=float, nargs="+", default=list(RATES))
    options = parser.parse_args()
    print("accuracy, %".ljust(16) + "".join(f"{rate:>8g}" for rate in options.rates))
    for name in options.networks:
        network = NETWORKS[name]
        found = pictures(options.data, IMAGES[name])
        parts = _scaled(found.x, network), found.y, _scaled(found.x_test, network), found.y_test
        print(f"{name} {options.batch}".ljust(16), end="", flush=True)
        for rate in options.rates:
            share = accuracy(network, parts, options.batch, options.steps, rate)
            print(f"{100 * share:8.1f}", end="", flush=True)
        print()


if __name__ == "__main__":
    main()

"""Which learning rate the networks of `benchmarks/step_time.py` are timed at: accuracy by rate, on real images.

    python -m benchmarks.steps.rates --data FOLDER [--networks mlp mnist cifar mixer] [--batch 512] [--steps 120]
        [--rates 1e-6 …]

FOLDER is that of `benchmarks/utility/images.py`. A rate decides how far noise moves weights in a step, and so how
often their norms are certified anew. Seeds make the runs repeatable, and these models not private.
"""

from __future__ import annotations

import numpy as np
import torch
from lipcompile_torch import PrivacyEngine
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import SGD
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.harness import Some, options
from benchmarks.utility.image_features import Name, pictures
from benchmarks.utility.training import batches_of, outputs

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
    for images, labels in batches_of(loader, steps):
        optimizer.zero_grad()
        module.criterion(module(images), labels).backward()
        optimizer.step()
    return float((outputs(module, x_test, 1000).argmax(1) == y_test).float().mean())


def _scaled(images: NDArray[np.uint8], network: Network) -> Tensor:
    return torch.from_numpy(images).view(-1, *network.input_shape).float() / 255


def main() -> None:
    """Train and print."""
    given = options(__doc__, data=..., networks=Some([*IMAGES]), batch=512, steps=120, rates=list(RATES))
    print("accuracy, %".ljust(16) + "".join(f"{rate:>8g}" for rate in given.rates))
    for name in given.networks:
        network = NETWORKS[name]
        found = pictures(given.data, IMAGES[name])
        parts = _scaled(found.x, network), found.y, _scaled(found.x_test, network), found.y_test
        print(f"{name} {given.batch}".ljust(16), end="", flush=True)
        for rate in given.rates:
            share = accuracy(network, parts, given.batch, given.steps, rate)
            print(f"{100 * share:8.1f}", end="", flush=True)
        print()


if __name__ == "__main__":
    main()

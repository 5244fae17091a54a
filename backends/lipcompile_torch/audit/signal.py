"""How large gradients are at the initial weights, beside the bounds that noise is in proportion to.

A bound of every input and weight may lie far above the gradients that occur. Then noise drowns them at any budget.
The measurement takes gradients of random or public examples at the initial weights, so it costs no privacy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from ..certify.remembered import Memory as Memory
from ..certify.remembered import remembering
from ..certify.sums import per_example
from ..noise.mechanism import allocate
from ..train.data import Arrays
from ..train.module import LipschitzModule
from .points import Admissible, clipped_gradient, whole_bound

EXAMPLES = 16


@dataclass(frozen=True, slots=True)
class Signal:
    """The gradients of examples in one parameter, or in all of them.

    Args:
        bound: K_p.
        typical: root mean square of the norms of the gradients of examples.
        mean: norm of their mean.
        noise: expected norm of the noise on the mean of a batch.
    """

    bound: float
    typical: float
    mean: float
    noise: float

    @property
    def excess(self) -> float:
        """How many times the bound is a typical gradient."""
        return math.inf if self.typical == 0 else self.bound / self.typical

    @property
    def relative(self) -> float:
        """Noise over signal: that of the mean of a batch over the mean gradient."""
        return math.inf if self.mean == 0 else self.noise / self.mean


@dataclass(frozen=True, slots=True)
class Signals:
    """The measured gradients, by parameter and for the whole gradient."""

    parameters: Mapping[str, Signal]
    total: Signal


@contextmanager
def repeatable(memory: Memory | None = None) -> Iterator[None]:
    """Draw the same initial weights every time meanwhile, and leave torch's generator as it was.

    Args:
        memory: of norms of such weights, to be shared by all the programs that are to be measured.
    """
    with torch.random.fork_rng(devices=[]), remembering(memory):
        torch.default_generator.manual_seed(0)
        yield


def measure(
    module: LipschitzModule,
    admissible: Admissible,
    noise_multiplier: float = 1.0,
    batch: int = 512,
    seed: int = 0,
    public: Arrays | None = None,
) -> Signals:
    """Measure gradients of examples at the weights of ``module``, as its bounds leave them.

    Noise of this multiplier is shared globally, over batches of ``batch``.

    Args:
        public: examples to draw from, which nobody's privacy depends on. None: inputs are normal, scaled to the
            largest norm that the module admits, or as they are drawn if it admits any; tokens and classes are
            drawn evenly.
    """
    generator = torch.Generator().manual_seed(seed)
    examples = _examples(module, admissible, generator) if public is None else _drawn(module, public, generator)
    noises = _noises(module, noise_multiplier, batch)
    found = [clipped_gradient(module, noises, *example) for example in examples]
    signals = {}
    for name, bound in module.gradient_bounds().items():
        rows = torch.stack([gradients[name].flatten() for gradients in found])
        typical = float(rows.norm(dim=1).square().mean().sqrt())
        signals[name] = Signal(bound, typical, float(rows.mean(0).norm()), noises[name])
    parts = signals.values()
    return Signals(
        signals,
        Signal(
            whole_bound(module),
            math.hypot(*(one.typical for one in parts)),
            math.hypot(*(one.mean for one in parts)),
            math.hypot(*(one.noise for one in parts)),
        ),
    )


def mean_over_noise(module: LipschitzModule, admissible: Admissible) -> float | None:
    """Return the mean gradient over the noise of the whole gradient, as `measure` has it; None if not finite.

    Where no gradient of an example is clipped, that of their mean loss is the mean: one backward pass for all.
    """
    if module.clips:
        total = measure(module, admissible).total
        mean, noise = total.mean, total.noise
    else:
        examples = _examples(module, admissible, torch.Generator().manual_seed(0))
        x, target = (torch.cat(parts) for parts in zip(*examples, strict=True))
        noises = _noises(module)
        summed = clipped_gradient(module, noises, x, target).values()
        mean = math.hypot(*(float(gradient.norm()) for gradient in summed)) / len(x)
        noise = math.hypot(*noises.values())
    return mean / noise if noise > 0 and math.isfinite(mean) and math.isfinite(noise) else None


def _noises(module: LipschitzModule, noise_multiplier: float = 1.0, batch: int = 512) -> dict[str, float]:
    """Return the expected norm of the noise on the mean of a batch, by parameter."""
    bounds, sizes = module.gradient_bounds(), {name: p.numel() for name, p in module.named_parameters()}
    stds = allocate("global", bounds, sizes, noise_multiplier, [group.parameters for group in module.clips])
    return {name: stds.get(name, 0.0) * math.sqrt(sizes[name]) / batch for name in bounds}


def _examples(
    module: LipschitzModule, admissible: Admissible, generator: torch.Generator
) -> list[tuple[Tensor, Tensor]]:
    parameter = next(module.parameters())
    shape = (EXAMPLES, *module.input_shape)
    if admissible.vocabulary is not None:
        x = admissible.tokens(shape, generator)
    else:
        x = torch.randn(shape, generator=generator, dtype=parameter.dtype)
        if math.isfinite(module.input_norm):
            x = x / per_example(x.flatten(1).norm(dim=1), x) * module.input_norm
    with torch.no_grad():
        output = module(x[:1])  # targets depend on its shape alone
    return [(one, _target(output, admissible, generator)) for one in torch.split(x, 1)]


def _drawn(module: LipschitzModule, public: Arrays, generator: torch.Generator) -> list[tuple[Tensor, Tensor]]:
    some = torch.randperm(len(public.x_train), generator=generator)[:EXAMPLES]
    x, y = (torch.from_numpy(rows[some.numpy()]) for rows in (public.x_train, public.y_train))
    own = x.to(next(module.parameters()).dtype) if x.is_floating_point() else x
    return list(zip(torch.split(own, 1), torch.split(y, 1), strict=True))


def _target(output: Tensor, admissible: Admissible, generator: torch.Generator) -> Tensor:
    """Return a random target of an output [1, …]."""
    if admissible.target in ("class", "pixel"):
        rows = output.movedim(1, -1) if admissible.target == "pixel" else output
        return torch.randint(rows.shape[-1], rows.shape[:-1], generator=generator)
    if admissible.target == "vector":
        return admissible.bounded(torch.randn(output.shape, generator=generator, dtype=output.dtype))
    shape = output.shape if admissible.target == "probabilities" else output.shape[:1]
    coin = torch.randint(2, shape, generator=generator).to(output.dtype)
    return 2 * coin - 1 if admissible.target == "sign" else coin

"""What a file for inference takes from a trained module, and what it is held against."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..certify.certificate import check_certificate
from ..certify.constraints import Free
from ..certify.robustness import check_module, outputs_of
from ..nn.constrained import constraints_of
from .agreement import compared
from .module import LipschitzModule
from .sharding import whole

__all__ = ["Agreement", "agreement", "in_single_precision", "norms_in_sets", "weights_of"]

Array = NDArray[Any]
Run = Callable[[Array], Array]

# How long examples are, as shares of the bound of their norm: within the ball, on its boundary, and outside.
_SCALES = (1.0, 0.999, 0.5, 0.1, 0.01, 1e-3, 1e-6, 1.001, 1.5, 3.0, 30.0, 1e4, 1e10, 1e30)
_FREE = 1e3  # what nothing cuts is taken to be no longer than so many times its usual norm
_ROUNDS = 4  # examples of each length
_HUGE = 3.4e38
# What counts as rounding beside that of the module itself: shares of the largest output of the example, and of
# all. Runtimes write e^x - 1 for small x, say, with an error that does not shrink with x.
_TOLERANCE, _FLOOR = 1e-5, 1e-5


def in_single_precision(module: LipschitzModule) -> LipschitzModule:
    """Return the module itself if its parameters are float32 on the CPU, else such a copy, projected anew.

    Raises:
        ValueError: a module that does something else than what its certificate describes: it takes features, or
            has hooks.
        RuntimeError: parameters that no constraint governs, see `LipschitzModule.check_parameters`; or a
            certificate that does not verify, or is another module's, see `certificate.check_certificate`.
    """
    check_module(module)
    module.check_parameters()
    check_certificate(module)
    if all(p.dtype == torch.float32 and p.device.type == "cpu" for p in module.parameters()):
        return module
    return copy.deepcopy(module).to("cpu", torch.float32)


def weights_of(module: LipschitzModule) -> dict[str, Array]:
    """Return the parameters by name, as they are."""
    return {name: whole(p).detach().cpu().numpy() for name, p in module.named_parameters()}


@torch.no_grad()
def norms_in_sets(module: LipschitzModule) -> dict[str, float] | None:
    """Return the certified norm of each parameter's map, if each lies in its constraint set, else None.

    Formal guarantees: norms of the tensors as stored, by the same certificates as those of projections.
    """
    for name, (constraint, operator) in constraints_of(module).items():
        limit = math.inf if isinstance(constraint, Free) else constraint.bound
        if not constraint.norm(whole(module.get_parameter(name)), operator).at_most(limit):
            return None
    return module.certified_norms()


@dataclass(frozen=True)
class Agreement:
    """How far what a file computes is from what its module does, both in float32.

    Args:
        examples: how many were compared.
        difference: the largest of an entry.
        output: the largest entry of the module's outputs.
        excess: the largest difference as a multiple of what rounding may do to its example, as
            `agreement.compared` has it.
    """

    examples: int
    difference: float
    output: float
    excess: float

    @property
    def agrees(self) -> bool:
        """Whether every difference may be rounding; never for outputs that are no numbers."""
        return self.excess <= 1


def agreement(module: LipschitzModule, run: Run, vocabulary: int | None, seed: int = 0) -> Agreement:
    """Compare what a file computes with the module in evaluation mode.

    Args:
        run: maps a batch [B, *input_shape] to outputs [B, …].
        vocabulary: how many tokens there are, if examples are tokens.

    Examples are random, within the ball of the input and far outside; sparse; zero; the largest numbers of
    float32; and some with NaN and infinities. A trusted input is only given what it may be. Batches are of several
    sizes.
    """
    x = torch.from_numpy(_examples(module, vocabulary, np.random.default_rng(seed)))
    single, double = (outputs_of(module, x, dtype).double().numpy() for dtype in (None, torch.float64))
    found = np.concatenate([run(part.numpy()) for part in torch.split(x, [1, 3, len(x) - 4])])
    if found.shape != double.shape:
        return Agreement(len(x), math.inf, math.inf, math.inf)
    seen = compared(found, double, single, _TOLERANCE, _FLOOR)
    return Agreement(seen.examples, seen.absolute, float(np.abs(single).max(initial=0)), seen.excess)


def _examples(module: LipschitzModule, vocabulary: int | None, rng: np.random.Generator) -> Array:
    shape, size = module.input_shape, prod(module.input_shape)
    if vocabulary:
        return rng.integers(vocabulary, size=(len(_SCALES) * _ROUNDS, *shape))
    free = math.isinf(module.input_norm)
    norm = math.sqrt(size) if free else module.input_norm
    scales = [scale for scale in _SCALES if scale < 1 or not module.input_trusted or (free and scale < _FREE)]
    rows = rng.standard_normal((len(scales) * _ROUNDS, size))
    for row in rows[1::2]:
        row[rng.permutation(size)[4:]] = 0
    lengths = np.repeat(scales, _ROUNDS) * norm
    rows *= (lengths / np.maximum(np.linalg.norm(rows, axis=1), 1e-300))[:, None]
    edges = [np.zeros(size)] if module.input_trusted else _edges(size, norm, rng)
    return np.concatenate([rows, np.stack(edges)]).astype(np.float32).reshape(-1, *shape)


def _edges(size: int, norm: float, rng: np.random.Generator) -> Sequence[Array]:
    """Return examples at the edges of what float32 holds."""
    first = np.zeros(size)
    first[0] = 1.0
    mixed = rng.standard_normal(size) * norm
    holes = [np.where(first > 0, value, mixed) for value in (np.nan, np.inf, -np.inf)]
    return [
        np.zeros(size), -np.zeros(size), first * norm, -first * norm, np.full(size, 255.0), first * _HUGE,
        np.full(size, _HUGE), np.full(size, -_HUGE), np.full(size, 1e-45), *holes, np.full(size, np.nan),
        np.full(size, np.inf),
    ]  # fmt: skip

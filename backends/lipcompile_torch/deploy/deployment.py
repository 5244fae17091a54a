"""A trained module for inference, and a comparison with its original model and its exported file."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, isfinite, isinf, prod, sqrt
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..certify.constraints import Free
from ..nn.constrained import constraints_of
from ..sharding import whole
from ..train.certificate import check_certificate
from ..train.module import LipschitzModule
from .robustness import check_module, outputs_of

Vocabulary = int | tuple[int, ...]
Array = NDArray[Any]

# Examples for an original: how long they are, as shares of the norm bound.
_SCALES = (1.0, 1.0, 0.3, 0.3, 0.1, 0.1, 0.01, 0.01)
_INSIDE = 1 - 2**-10  # what rounding does to a norm must not make the module clip an example
_NONZERO = 4
# A difference counts where it is above this share of the largest output of the example, or more digits than the
# original's numbers have; or a hundred times what float32 costs the emitted module, by its own result in float64.
_TOLERANCE, _ULPS, _ROUNDING = 1e-5, 32.0, 100.0
_EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
# Examples for a file: how long they are, as shares likewise: within the ball, on its boundary, and outside.
_LENGTHS = (1.0, 0.999, 0.5, 0.1, 0.01, 1e-3, 1e-6, 1.001, 1.5, 3.0, 30.0, 1e4, 1e10, 1e30)
_FREE = 1e3  # what nothing cuts is taken to be no longer than so many times its usual norm
_ROUNDS = 4  # examples of each length
_HUGE = 3.4e38
# What counts as rounding beside that of the module itself: shares of the largest output of the example, and of
# all. Runtimes write e^x - 1 for small x, say, with an error that does not shrink with x.
_FILE_TOLERANCE, _FLOOR = 1e-5, 1e-5


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
    """Return the parameters, and the constants that layers hold, by name, as they are."""
    held = (*module.named_parameters(), *module.named_buffers())
    return {name: whole(p).detach().cpu().numpy() for name, p in held}


@torch.no_grad()
def norms_in_sets(module: LipschitzModule) -> dict[str, float] | None:
    """Return the certified norm of each parameter's map, if each lies in its constraint set, else None.

    Formal guarantees: norms of the tensors as stored, by the same certificates as those of projections.
    """
    for name, (constraint, operator) in constraints_of(module).items():
        limit = inf if isinstance(constraint, Free) else constraint.bound
        if not constraint.norm(whole(module.get_parameter(name)), operator).at_most(limit):
            return None
    return module.certified_norms()


# --- agreement ---


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far what one program computes is from what another does.

    Args:
        examples: how many were compared.
        difference: the largest of an entry.
        output: the largest entry of the outputs of the module.
        excess: the largest difference as a multiple of what is allowed, the rounding of its example included:
            above 1 the two compute something else.
        relative: the largest difference as a share of the largest output of its example.
        tolerance: what ``relative`` may be.
    """

    examples: int
    difference: float
    output: float
    excess: float
    relative: float = inf
    tolerance: float = 0.0

    @property
    def agrees(self) -> bool:
        """Whether every difference may be rounding; never for outputs that are no numbers."""
        return self.excess <= 1


class ShapeError(ValueError):
    """The outputs of the two have different shapes."""


def agreement_with_original(
    program: type[LipschitzModule],
    original: Callable[[Array], Array],
    *,
    batch: int | None = None,
    precision: str = "float32",
    vocabulary: Vocabulary | None = None,
    places: Sequence[range] = (),
    log_softmax: int | None = None,
    seed: int = 0,
) -> Agreement:
    """Compare an emitted class of modules with its original: at imported weights, unprojected, without dropout.

    Args:
        program: built without arguments.
        original: maps examples [B, *input_shape] to outputs [B, …].
        batch: the only B that `original` takes.
        precision: of `original`.
        vocabulary: how many tokens there are, or how many for each entry, if examples are tokens.
        places: which whole numbers each entry of real numbers may be, none for one that may be any number.
        log_softmax: the axis of an example that the original ends in a log-softmax along, which the module leaves
            to its loss; None if it does not.

    Examples that the original maps to no finite numbers, such as texts of padding alone, are left out; without
    any other the two do not agree.

    Raises ShapeError.
    """
    with torch.random.fork_rng(devices=[]):  # the numbers that follow are those of a program that compares nothing
        module = _unprojected(program).eval()
    rng = np.random.default_rng(seed)
    x = _examples(module, vocabulary, rng, batch or len(_SCALES))
    if any(places):
        low, high = np.array([(one.start, one.stop) for one in places]).T.reshape(2, *module.input_shape)
        x = np.where(high > 0, rng.integers(low, np.maximum(high, 1), size=x.shape), x)
    rounded = torch.from_numpy(x) if vocabulary else torch.from_numpy(x).to(getattr(torch, precision))
    fed = rounded if vocabulary else rounded.double()
    wanted = np.concatenate([original(part.numpy()) for part in torch.split(fed, batch or len(fed))])
    double = _output(module.double(), fed, log_softmax)
    single = _output(module.float(), fed if vocabulary else fed.float(), log_softmax)
    if wanted.shape != double.shape:
        raise ShapeError(f"the original model returns shape {list(wanted.shape)}, the module {list(double.shape)}")
    finite = np.isfinite(wanted).reshape(len(wanted), -1).all(axis=1)
    if not finite.any():
        return Agreement(0, inf, 0.0, inf)
    tolerance = max(_TOLERANCE, _ULPS * _EPSILON[precision])
    return _compared(wanted[finite], double[finite], single[finite], tolerance)


def _unprojected(program: type[LipschitzModule]) -> LipschitzModule:
    """Build a module whose weights stay as they were imported, outside of their constraints or not."""
    free = type("Unprojected", (program,), {"project_": lambda _: None})
    module: LipschitzModule = free()
    return module


def _examples(
    module: LipschitzModule, vocabulary: Vocabulary | None, rng: np.random.Generator, batch: int
) -> Array:
    """Return random examples: at least one of each scale, and whole batches."""
    count = -(-len(_SCALES) // batch) * batch
    shape = (count, *module.input_shape)
    if vocabulary:
        return rng.integers(_limits(vocabulary, module), size=shape)
    size = prod(module.input_shape)
    norm = module.input_norm * _INSIDE if isfinite(module.input_norm) else sqrt(size)
    return _rows(np.resize(_SCALES, count) * norm, size, rng).reshape(shape)


def _limits(vocabulary: Vocabulary, module: LipschitzModule) -> Array:
    """Return how many tokens each entry of an example may be."""
    return np.broadcast_to(vocabulary, prod(module.input_shape)).reshape(module.input_shape)


def _output(module: LipschitzModule, x: torch.Tensor, log_softmax: int | None) -> Array:
    with torch.no_grad():
        output = module(x)
        if log_softmax is not None:
            output = torch.log_softmax(output, dim=range(1, output.dim())[log_softmax])
    return np.asarray(output.double().numpy())


def agreement_with_file(
    module: LipschitzModule, run: Callable[[Array], Array], vocabulary: Vocabulary | None, seed: int = 0
) -> Agreement:
    """Compare what a file computes with the module in evaluation mode.

    Args:
        run: maps a batch [B, *input_shape] to outputs [B, …].
        vocabulary: how many tokens there are, or how many for each entry, if examples are tokens.

    Examples are random, within the ball of the input and far outside; sparse; zero; the largest numbers of
    float32; and some with NaN and infinities. A trusted input is only given what it may be. Batches are of several
    sizes.
    """
    x = torch.from_numpy(_examples_and_edges(module, vocabulary, np.random.default_rng(seed)))
    single, double = (outputs_of(module, x, dtype).double().numpy() for dtype in (None, torch.float64))
    found = np.concatenate([run(part.numpy()) for part in torch.split(x, [1, 3, len(x) - 4])])
    if found.shape != double.shape:
        return Agreement(len(x), inf, inf, inf)
    return _compared(found, double, single, _FILE_TOLERANCE, _FLOOR)


def _examples_and_edges(module: LipschitzModule, vocabulary: Vocabulary | None, rng: np.random.Generator) -> Array:
    shape, size = module.input_shape, prod(module.input_shape)
    if vocabulary:
        return rng.integers(_limits(vocabulary, module), size=(len(_LENGTHS) * _ROUNDS, *shape))
    free = isinf(module.input_norm)
    norm = sqrt(size) if free else module.input_norm
    scales = [scale for scale in _LENGTHS if scale < 1 or not module.input_trusted or (free and scale < _FREE)]
    rows = _rows(np.repeat(scales, _ROUNDS) * norm, size, rng)
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


def _rows(lengths: Array, size: int, rng: np.random.Generator) -> Array:
    """Return random rows of these lengths, [len(lengths), size]; half of them sparse."""
    rows = rng.standard_normal((len(lengths), size))
    for row in rows[1::2]:
        row[rng.permutation(size)[_NONZERO:]] = 0
    rows *= (lengths / np.maximum(np.linalg.norm(rows, axis=1), 1e-300))[:, None]
    return rows


def _compared(
    wanted: Array, found: Array, single: Array, tolerance: float, floor: float = _EPSILON["float32"]
) -> Agreement:
    """Compare what two put out for the same examples, row by row, and every row with its own rounding.

    `found` is computed in float64, and `single` by the same in float32. Differences below `tolerance` of a row's
    largest entry count as rounding, and those below `floor` of the largest of all.
    """
    rows = [array.reshape(len(array), -1) for array in (wanted, found, single)]
    wanted, found, single = rows
    with np.errstate(all="ignore"):
        difference = np.abs(wanted - found).max(axis=1, initial=0)
        size = np.abs(wanted).max(axis=1, initial=0)
        rounding = np.abs(single - found).max(axis=1, initial=0)
        allowed = tolerance * size + floor * size.max(initial=0) + _ROUNDING * rounding
        excess = np.where(difference == 0, 0, difference / np.maximum(allowed, 1e-300))
        relative = np.where(difference == 0, 0, difference / np.maximum(size, 1e-300))
    output = _largest(np.abs(single))
    return Agreement(len(wanted), _largest(difference), output, _largest(excess), _largest(relative), tolerance)


def _largest(values: Array) -> float:
    """Return the largest entry, infinity if one is no number."""
    found = float(values.max(initial=0))
    return found if isfinite(found) else inf

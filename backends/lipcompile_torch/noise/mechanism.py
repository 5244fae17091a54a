"""How much noise each parameter gets, and drawing it.

A step releases, for every trainable parameter p, the sum of per-example gradients plus N(0, s_p²·I). One example
moves p's part of the sum by at most K_p, so after scaling part p by 1/s_p the whole step is ONE Gaussian mechanism
of sensitivity √Σ(K_p/s_p)²: its noise multiplier is σ = (Σ K_p²/s_p²)^(-1/2), however the s_p are chosen.
Subsampling amplifies that one mechanism, never each parameter by itself.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Literal, get_args

import torch
from torch import Tensor

from ..certify.precision import rounding_slack
from ..certify.rounding import UP_MANY
from ..native.memory_rows import dense, flat
from ..sharding import local, shard_like
from .normals import Normals, PlainNormals
from .streams import Stream

Rule = Literal["global", "per_layer", "optimal"]
Allocation = Rule | Mapping[str, float]  # a rule, or weights by parameter name or pattern


def allocate(
    allocation: Allocation,
    bounds: Mapping[str, float],
    sizes: Mapping[str, int],
    noise_multiplier: float,
    groups: Iterable[Collection[str]] = (),
) -> dict[str, float]:
    """Return s_p, the noise standard deviation on the SUM of per-example gradients, for every K_p > 0.

    ============  ================================================  ======================================
    `global`      s_p = σ·√ΣK²                                      the same everywhere
    `per_layer`   s_p = σ·√P·K_p, P parameters with K_p > 0         proportional to each bound
    `optimal`     s_p² = σ²·(K_p/√n_p)·Σ_j K_j·√n_j                  least total noise energy Σ n_p·s_p²
    weights w     s_p = σ·w_p·√Σ(K_j/w_j)²                           proportional to weights of your own
    ============  ================================================  ======================================

    Weights are a mapping from names to positive numbers, of which only ratios matter. A name is a parameter's or a
    pattern (`*`, `?`, `[…]` as in a shell); a name in full goes before patterns: `{"*": 1, "head.weight": 0.1}`.
    Every parameter needs exactly one weight, those with K_p = 0 too, since bounds may change in training. Weights
    must not be chosen by looking at the private data.

    Formal guarantees: `effective_multiplier` of the result is at least σ and exceeds it by less than 1e-9.
    A parameter with K_p = 0 has no entry: its gradient is zero, and must be set to zero since rounding may differ.

    Args:
        bounds: K_p, per example, by parameter name.
        sizes: n_p, number of entries, by the same names.
        noise_multiplier: σ > 0.
        groups: names of parameters whose gradients have one bound together, K of each of them. Such a group counts
            as one parameter, with all their entries, and each of them gets its s.

    Raises:
        ValueError: a bound that is negative or not finite, an unknown allocation, a result out of range; weights
            that are not positive, match no parameter, leave a parameter without a weight or with several, or
            differ within a group.
    """
    _check_bounds(bounds)
    rule = allocation if isinstance(allocation, str) else values_by_name(allocation, bounds, "noise weight")
    heads = _heads(bounds, groups, rule)
    total = {head: sum(sizes[name] for name in bounds if heads[name] == head) for head in set(heads.values())}
    active = {name: bound for name, bound in bounds.items() if bound > 0 and heads[name] == name}
    stds = _shared(rule, active, total, noise_multiplier)
    return {name: stds[heads[name]] for name in bounds if heads[name] in stds}


def _heads(bounds: Mapping[str, float], groups: Iterable[Collection[str]], rule: Allocation) -> dict[str, str]:
    """Return, for each parameter, the one that stands for its group."""
    heads = {name: name for name in bounds}
    for group in groups:
        first = next(iter(group))
        if {bounds[name] for name in group} != {bounds[first]}:
            raise ValueError(
                f"the parameters {', '.join(group)} are clipped as one group, but their bounds differ"
            )
        if isinstance(rule, Mapping) and {rule[name] for name in group} != {rule[first]}:
            raise ValueError(
                f"the parameters {', '.join(group)} are clipped as one group, so their noise must be "
                "equal: give them equal weights"
            )
        heads.update(dict.fromkeys(group, first))
    return heads


def _shared(
    rule: Allocation, active: Mapping[str, float], sizes: Mapping[str, int], noise_multiplier: float
) -> dict[str, float]:
    """Return s_p of parameters with a positive bound."""
    stds = {name: noise_multiplier * share for name, share in _shares(rule, active, sizes).items()}
    if not active:
        return stds
    inward = max(1.0, noise_multiplier / effective_multiplier(active, stds))
    stds = {name: std * inward * UP_MANY for name, std in stds.items()}
    achieved = effective_multiplier(active, stds)
    # Half of the step covers the rounding of what is achieved, which is some 1e-15.
    if not noise_multiplier * math.sqrt(UP_MANY) <= achieved <= noise_multiplier * (1 + 1e-9):
        raise ValueError(f"the noise allocation gives noise multiplier {achieved!r}, not {noise_multiplier!r}")
    return stds


def effective_multiplier(bounds: Mapping[str, float], stds: Mapping[str, float]) -> float:
    """Return σ = (Σ K_p²/s_p²)^(-1/2) of the whole step; `inf` if every bound is 0."""
    distance = math.hypot(*(bound / stds[name] for name, bound in bounds.items() if bound > 0))
    return 1 / distance if distance else math.inf


def values_by_name(given: Mapping[str, float], names: Iterable[str], what: str) -> dict[str, float]:
    """Return the positive number of each of these parameters; see `allocate` for names and patterns and refusals.

    Args:
        given: by name or pattern.
        names: of all parameters.
        what: is given, for messages: "noise weight".
    """
    present = list(names)
    for pattern, value in given.items():
        if not 0 < value < math.inf:
            raise ValueError(f"the {what} of {pattern!r} is {value}: it must be finite and positive")
        if not any(name == pattern or fnmatchcase(name, pattern) for name in present):
            raise ValueError(
                f"the {what} {pattern!r} matches no parameter; the parameters are {', '.join(present)}"
            )
    return {name: given[_entry(name, given, what)] for name in present}


def _entry(name: str, given: Mapping[str, float], what: str) -> str:
    """Return the key that a parameter's number is found under."""
    if name in given:
        return name
    patterns = [pattern for pattern in given if fnmatchcase(name, pattern)]
    if len(patterns) != 1:
        found = f"several {what}s, {', '.join(map(repr, patterns))}" if patterns else f"no {what}"
        raise ValueError(f"parameter {name} has {found}: name it in full, e.g. {{{name!r}: 1.0}}")
    return patterns[0]


def _shares(allocation: Allocation, bounds: Mapping[str, float], sizes: Mapping[str, int]) -> dict[str, float]:
    """Return s_p/σ; weights are by full name."""
    if isinstance(allocation, Mapping):
        total = math.hypot(*(bound / allocation[name] for name, bound in bounds.items()))
        return {name: allocation[name] * total for name in bounds}
    if allocation == "global":
        total = math.hypot(*bounds.values())
        return dict.fromkeys(bounds, total)
    if allocation == "per_layer":
        return {name: math.sqrt(len(bounds)) * bound for name, bound in bounds.items()}
    if allocation == "optimal":
        total = math.fsum(bound * math.sqrt(sizes[name]) for name, bound in bounds.items())
        # The root of each factor: their product may leave the range of doubles.
        factor = math.sqrt(total)
        return {name: math.sqrt(bound / math.sqrt(sizes[name])) * factor for name, bound in bounds.items()}
    rules = ", ".join(get_args(Rule))
    raise ValueError(
        f"unknown noise allocation {allocation!r}: use one of {rules}, or a dict from parameter names to weights"
    )


def _check_bounds(bounds: Mapping[str, float]) -> None:
    for name, bound in bounds.items():
        if not 0 <= bound < math.inf:
            raise ValueError(f"the gradient bound of {name} is {bound}: noise needs a finite bound >= 0")


class NoiseSource:
    """Gaussian noise for the parameters, independent or correlated from step to step.

    Args:
        seed: makes the noise repeatable and NOT private, see `normals.PlainNormals`.
        normals: where independent standard normals come from; None: `PlainNormals`.
        stream: what makes noise of them that is correlated from step to step (matrix factorisation); None:
            nothing.
    """

    def __init__(
        self, seed: int | None = None, normals: Normals | None = None, stream: Stream | None = None
    ) -> None:
        self.is_seeded = seed is not None
        self._normals: Normals = PlainNormals(seed) if normals is None else normals
        self._stream = stream
        self._step = 0
        self._taken: dict[str, int] = {}

    @property
    def steps(self) -> int | None:
        """How many steps there is noise for; None for any number."""
        return None if self._stream is None else self._stream.steps

    def generators(self, parameters: Iterable[Tensor]) -> list[str]:
        """Return the names, sorted, of the generators that noise for these comes from, see `generators`."""
        return sorted({self._normals.generator(parameter.device) for parameter in parameters})

    def begin_step(self, step: int) -> None:
        """Prepare for the noise of a step of the run, from 0 on.

        Correlated noise is a function of the number of the step: an example that takes part in steps so far apart
        must meet rows of the factorisation so far apart, of each parameter. So the rows of steps that were left
        out, or broke off before a parameter's turn, or in which it had no noise, are passed over.
        """
        self._normals.refresh()
        self._step = step

    def widening(self, noise_multiplier: float, entries: int) -> float:
        """Return the factor by which the scales of a step must grow, see `normals.Normals.widening`."""
        return self._normals.widening(noise_multiplier, entries)

    def perturb_(self, parameters: Mapping[str, Tensor], stds: Mapping[str, float], normaliser: float) -> None:
        """Add noise of standard deviation std·(1 + slack)/normaliser to the gradient of each parameter, in place.

        A missing gradient counts as zero and a sparse one is made dense: they get their noise all the same. The
        noise is drawn and added in float64 and the sum rounded to the parameter's dtype, which is post-processing.
        A gradient that shares memory with another one is copied first: threads that add to one place at the same
        time would lose noise.

        Args:
            parameters: trainable tensors of any shape, by name. A shard gets noise of its own.
            stds: s_p, on the sum of per-example gradients, by the same names.
            normaliser: b, what the gradient is already divided by.
        """
        scales = {
            name: stds[name] * (1 + rounding_slack(parameter.dtype)) / normaliser
            for name, parameter in parameters.items()
        }
        rows = _without_overlap({name: _row(parameter) for name, parameter in parameters.items()}, parameters)
        if self._stream is None:
            self._normals.perturb_([(row, scales[name]) for name, row in rows.items()])
            return
        for name, parameter in parameters.items():
            # In the order of the axes, not of memory: which row of the stream an entry meets must never change.
            gradient = local(_gradient(parameter))
            noise = self._normals.prepare(gradient.double() / scales[name]).add_(self._draw(name, gradient))
            gradient.copy_(noise.mul_(scales[name]))

    def added(self, name: str, scaled: Tensor) -> Tensor:
        """Return a float64 tensor, in units of its noise, with this step's noise of that name added."""
        return self._normals.prepare(scaled) + self._draw(name, scaled)

    def _draw(self, name: str, parameter: Tensor) -> Tensor:
        if self._stream is None:
            return self._normals.draw(parameter.shape, parameter.device)
        while self._taken.get(name, 0) < self._step:
            self._next(self._stream, name, parameter)
        return self._next(self._stream, name, parameter)

    def _next(self, stream: Stream, name: str, parameter: Tensor) -> Tensor:
        noise = stream.next(name, self._normals.draw(parameter.shape, parameter.device))
        # Last: where an interruption comes before, a row is passed over and none is used for an earlier step.
        self._taken[name] = self._taken.get(name, 0) + 1
        return noise


def _row(parameter: Tensor) -> Tensor:
    """Return the gradient of a parameter as a row, made if it is missing; writing to it changes the gradient."""
    row = flat(local(_gradient(parameter)))
    if row is None:  # its entries overlap, or lie apart
        parameter.grad = shard_like(local(_gradient(parameter)).contiguous(), parameter)
        return _row(parameter)
    return row


def _without_overlap(rows: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the rows of gradients, of which none shares memory with another one: those that did are copied."""
    found, end = dict(rows), (-1, -1)
    for name, row in sorted(rows.items(), key=lambda item: _place(item[1])):
        device, start = _place(row)
        if (device, start) < end:
            parameter = parameters[name]
            parameter.grad = shard_like(local(_gradient(parameter)).clone(), parameter)
            found[name] = _row(parameter)
        end = max(end, (device, start + row.numel() * row.element_size()))
    return found


def _place(row: Tensor) -> tuple[int, int]:
    """Return where a row begins, by device."""
    return row.get_device(), row.data_ptr()


def _gradient(parameter: Tensor) -> Tensor:
    """Return the gradient of a parameter, dense, of its dtype; made if it is missing."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    elif parameter.grad.layout is not torch.strided:
        parameter.grad = dense(parameter.grad)
    return parameter.grad.detach() if parameter.grad.requires_grad else parameter.grad


def zero_gradient_(parameter: Tensor) -> None:
    """Set a gradient whose bound is 0 to exactly zero: rounding may have left something there."""
    parameter.grad = torch.zeros_like(parameter)

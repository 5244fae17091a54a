"""Streams against dense inverses: exactly for given normals, and in distribution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from lipcompile_privacy.factorisation import (
    BandedToeplitz,
    Blt,
    Cyclic,
    FactorisationError,
    MinSeparation,
    Strategy,
    optimal_banded,
    optimal_blt,
)
from lipcompile_torch.noise.streams import BandedStream, BufferedStream, Stream
from torch import Tensor

STEPS = 11
STRATEGIES: list[Strategy] = [
    BandedToeplitz((2.0,), STEPS),
    BandedToeplitz((2.0, 1.5), STEPS, Cyclic(2)),
    optimal_banded(STEPS, 5, MinSeparation(5, 3)),
    optimal_banded(STEPS, STEPS),
    Blt((), (), STEPS),
    Blt((0.9, 0.3), (0.4, 0.2), STEPS, MinSeparation(4, 2)),
    optimal_blt(STEPS, 4, 3, 2),
]


def scaled_matrix(strategy: Strategy) -> Any:
    """C over its sensitivity: what the stream inverts."""
    column = np.zeros(STEPS)
    if isinstance(strategy, BandedToeplitz):
        column[: strategy.bands] = strategy.coefficients
    elif isinstance(strategy, Blt):
        powers = np.power.outer(np.array(strategy.decays), np.arange(STEPS - 1))
        column[:] = [1.0, *(np.array(strategy.scales) @ powers)]
    return sum(np.diag(np.full(STEPS - i, c), -i) for i, c in enumerate(column)) / strategy.sensitivity


def drawn(stream: Stream, normals: dict[str, Tensor]) -> dict[str, Tensor]:
    """Feed normals [steps, …] of several parameters step by step."""
    outputs: dict[str, list[Tensor]] = {name: [] for name in normals}
    for t in range(STEPS):
        for name, values in normals.items():
            outputs[name].append(stream.next(name, values[t]))
    return {name: torch.stack(values) for name, values in outputs.items()}


def check_exact(strategy: Strategy, stream: Stream) -> None:
    """For given normals of two parameters the outputs are C⁻¹Z of each."""
    generator = torch.Generator().manual_seed(1)
    shapes = {"a": (3, 2), "b": (), "c": (4, 0, 2)}
    normals = {
        name: torch.randn(STEPS, *shape, dtype=torch.float64, generator=generator)
        for name, shape in shapes.items()
    }
    inverse = np.linalg.inv(scaled_matrix(strategy))
    for name, found in drawn(stream, normals).items():
        assert found.dtype == torch.float64
        expected = np.tensordot(inverse, normals[name].numpy(), axes=1)
        assert np.allclose(found.numpy(), expected, rtol=1e-10, atol=1e-10)


ENTRIES = 20_000


def check_distribution(strategy: Strategy, stream: Stream) -> None:
    """The covariance over steps of two parameters is (CᵀC)⁻¹ for each, and 0 between them.

    Each of the 22² entries is an average over 20,000 independent products; its standard error is that of a product
    of Gaussians, √((c_ii·c_jj + c_ij²)/20,000). With bounds of 6.5 of these the error probability, by the union
    bound over all, is below 1e-7 (the average of so many is near enough Gaussian).
    """
    generator = torch.Generator().manual_seed(2)
    normals = {name: torch.randn(STEPS, ENTRIES, dtype=torch.float64, generator=generator) for name in ("a", "b")}
    found = torch.cat(list(drawn(stream, normals).values())).numpy()
    inverse = np.linalg.inv(scaled_matrix(strategy))
    expected = np.kron(np.eye(2), inverse @ inverse.T)
    variances = np.diag(expected)
    errors = np.sqrt((np.outer(variances, variances) + expected**2) / ENTRIES)
    assert np.all(np.abs(found @ found.T / ENTRIES - expected) <= 6.5 * errors)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_outputs_are_those_of_the_dense_solve(strategy: Strategy) -> None:
    check_exact(strategy, strategy.stream())


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_variance_and_correlation_are_those_of_the_strategy(strategy: Strategy) -> None:
    check_distribution(strategy, strategy.stream())


class Shared(BandedStream):
    """Planted fault: parameters share their memory."""

    def next(self, name: str, normal: Tensor) -> Tensor:  # noqa: ARG002
        return super().next("all", normal)


class TooQuiet(BandedStream):
    """Planted fault: a twentieth less noise."""

    def next(self, name: str, normal: Tensor) -> Tensor:
        return super().next(name, normal) * 0.95


class Forgetful(BandedStream):
    """Planted fault: the first output is forgotten."""

    def next(self, name: str, normal: Tensor) -> Tensor:
        output = super().next(name, normal)
        if self._memories[name].taken == 1:
            self._memories[name].rows.zero_()
        return output


class Reversed(BandedStream):
    """Planted fault: the ring is weighted in the order of time, not of age."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._weights = {device: weights.flip(0) for device, weights in self._weights.items()}


@pytest.mark.parametrize("check", [check_exact, check_distribution])
@pytest.mark.parametrize("fault", [TooQuiet, Forgetful, Reversed])
def test_planted_faults_are_noticed(fault: type[BandedStream], check: Callable[[Strategy, Stream], None]) -> None:
    strategy = optimal_banded(STEPS, 4)
    with pytest.raises(AssertionError):
        check(strategy, fault(strategy.coefficients, strategy.sensitivity, STEPS))


def test_a_memory_that_parameters_share_is_noticed() -> None:
    strategy = optimal_banded(STEPS, 4)
    with pytest.raises(AssertionError):
        check_distribution(strategy, Shared(strategy.coefficients, strategy.sensitivity, 2 * STEPS))


@pytest.mark.parametrize("check", [check_exact, check_distribution])
def test_a_wrong_decay_is_noticed(check: Callable[[Strategy, Stream], None]) -> None:
    strategy = Blt((0.9, 0.3), (0.4, 0.2), STEPS)
    with pytest.raises(AssertionError):
        check(strategy, BufferedStream((0.9, 0.9), strategy.scales, strategy.sensitivity, STEPS))


@pytest.mark.parametrize(
    ("strategy", "rows"), [(optimal_banded(STEPS, 5), 4), (Blt((0.9, 0.3), (0.4, 0.2), STEPS), 2)]
)
def test_memory_does_not_grow_with_the_steps(strategy: Strategy, rows: int) -> None:
    stream: Any = strategy.stream()
    for _ in range(STEPS):
        stream.next("weight", torch.zeros(7, 3, dtype=torch.float64))
        assert sum(memory.rows.numel() for memory in stream._memories.values()) == rows * 21


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_stream_ends_after_its_steps(strategy: Strategy) -> None:
    stream = strategy.stream()
    assert stream.steps == STEPS
    check_exact(strategy, stream)
    with pytest.raises(FactorisationError, match=f"covers {STEPS} steps"):
        stream.next("a", torch.zeros(3, 2, dtype=torch.float64))


def test_outputs_are_not_changed_by_later_steps_nor_normals_by_any() -> None:
    for strategy in STRATEGIES:
        stream, normal = strategy.stream(), torch.ones(2, dtype=torch.float64)
        first = stream.next("a", normal)
        kept = first.clone()
        stream.next("a", normal)
        assert torch.equal(first, kept)
        assert torch.equal(normal, torch.ones(2, dtype=torch.float64))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_is_done_to_an_output_does_not_come_back(strategy: Strategy) -> None:
    class Spoiled(BandedStream):
        def __init__(self) -> None:
            self.inner = strategy.stream()

        def next(self, name: str, normal: Tensor) -> Tensor:
            output = self.inner.next(name, normal)
            kept = output.clone()
            output.fill_(7.0)
            return kept

    check_exact(strategy, Spoiled())


def test_a_parameter_stays_as_it_is() -> None:
    stream = optimal_banded(STEPS, 3).stream()
    stream.next("a", torch.zeros(2, dtype=torch.float64))
    with pytest.raises(FactorisationError, match=r"\(3,\) on cpu now, but was \(2,\)"):
        stream.next("a", torch.zeros(3, dtype=torch.float64))
    with pytest.raises(FactorisationError, match="float64"):
        stream.next("b", torch.zeros(3))

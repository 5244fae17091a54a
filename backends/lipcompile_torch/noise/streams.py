"""Streams of noise: independent standard normals in, correlated noise C⁻¹Z out, one step at a time.

A stream's output is noise for gradients that are scaled to a per-example norm of 1/σ: C is scaled so that its
sensitivity is 1 (see `lipcompile_privacy.factorisation`). Its state is secret like the normals themselves: who
knows it knows the noise that was added. It is in no checkpoint; a run that is resumed begins a new stream, and a
new mechanism.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from lipcompile_privacy.errors import FactorisationError
from torch import Tensor

from ..certify.rounding import UP_MANY


class _Memory:
    """What a stream keeps of one parameter: rows like it, and how many steps it has taken."""

    def __init__(self, rows: int, like: Tensor) -> None:
        self.rows = torch.zeros(rows, *like.shape, dtype=torch.float64, device=like.device)
        self.taken = 0


class Stream(ABC):
    """Correlates the noise of each parameter over the steps, by a recurrence.

    Attributes:
        steps: how many there are, the number of rows of C.
    """

    def __init__(self, rows: int, weights: Tensor, scale: float, steps: int) -> None:
        self.steps = steps
        self._rows, self._scale = rows, scale * UP_MANY
        self._weights = {weights.device: weights}
        self._memories: dict[str, _Memory] = {}

    def next(self, name: str, normal: Tensor) -> Tensor:
        """Return the noise of this step, float64, from the independent standard normals of this step.

        Args:
            name: of the parameter; called once for it in every step.
            normal: standard normals of the parameter's shape, float64; they are not changed.

        Raises:
            FactorisationError: more than `steps` calls, or a parameter that changed its shape or device.
        """
        memory = self._memory(name, normal)
        noise = self._advance(memory, normal)
        memory.taken += 1
        return noise * self._scale

    @abstractmethod
    def _advance(self, memory: _Memory, normal: Tensor) -> Tensor:
        """Return (C⁻¹Z)_t for the C that is not scaled, and keep in the memory what later steps need."""

    def _weights_on(self, device: torch.device) -> Tensor:
        if device not in self._weights:
            self._weights[device] = next(iter(self._weights.values())).to(device)
        return self._weights[device]

    def _memory(self, name: str, normal: Tensor) -> _Memory:
        if normal.dtype != torch.float64:
            raise FactorisationError(f"the normal draws of {name} have dtype {normal.dtype}: draw them in float64")
        if name not in self._memories:
            self._memories[name] = _Memory(self._rows, normal)
        memory = self._memories[name]
        if memory.rows.shape[1:] != normal.shape or memory.rows.device != normal.device:
            raise FactorisationError(
                f"{name} is {tuple(normal.shape)} on {normal.device} now, but was "
                f"{tuple(memory.rows.shape[1:])} on {memory.rows.device} at the first step with noise: "
                "do not change the shape or device of a parameter within a run"
            )
        if memory.taken == self.steps:
            raise FactorisationError(
                f"the correlated noise covers {self.steps} steps, and all of them are taken: its "
                "sensitivity does not cover further steps; compile with more epochs, or stop here"
            )
        return memory


class BandedStream(Stream):
    """C⁻¹Z for banded Toeplitz C: x_t = (z_t - Σ_{0<j<bands} c_j·x_{t-j})/c_0, times `scale`.

    Keeps the last bands - 1 outputs of each parameter in a ring (Choquette-Choo et al. 2023, "(Amplified) banded
    matrix factorization", Algorithm 9).

    Args:
        coefficients: c.
        scale: at least the sensitivity of C.
        steps: n.
    """

    def __init__(self, coefficients: Sequence[float], scale: float, steps: int) -> None:
        first, *rest = coefficients
        # Output t lies in slot t mod (bands - 1) of the ring: its weights are a window of c reversed, twice over.
        weights = torch.tensor([*rest[::-1], *rest[::-1]], dtype=torch.float64)
        super().__init__(len(rest), weights, scale, steps)
        self._first = first

    def _advance(self, memory: _Memory, normal: Tensor) -> Tensor:
        size = self._rows
        if size == 0:
            return normal / self._first
        slot = memory.taken % size  # the oldest, which this output replaces
        weights = self._weights_on(normal.device)[size - slot : 2 * size - slot]
        noise: Tensor = normal - torch.tensordot(weights, memory.rows, dims=1)
        noise /= self._first
        memory.rows[slot] = noise
        return noise


class BufferedStream(Stream):
    """C⁻¹Z for a buffered linear Toeplitz C, times `scale`: McMahan et al. 2024, Algorithm 3.

    x_t = z_t - Σ_m ω_m·s_m, then s_m ← θ_m·s_m + x_t for each buffer.

    Args:
        decays: θ.
        scales: ω.
        scale: at least the sensitivity of C.
        steps: n.
    """

    def __init__(self, decays: Sequence[float], scales: Sequence[float], scale: float, steps: int) -> None:
        weights = torch.tensor([list(decays), list(scales)], dtype=torch.float64)
        super().__init__(len(decays), weights, scale, steps)

    def _advance(self, memory: _Memory, normal: Tensor) -> Tensor:
        decays, scales = self._weights_on(normal.device)
        noise: Tensor = normal - torch.tensordot(scales, memory.rows, dims=1)
        memory.rows.mul_(decays.reshape(-1, *[1] * normal.dim())).add_(noise)
        return noise

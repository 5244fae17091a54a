"""What a model was imported from, as something that computes: the import is held against it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]


class OriginalError(Exception):
    """The original cannot be run, and the message says why."""


class Original(Protocol):
    """The original of an import, without dropout."""

    @property
    def runner(self) -> str:
        """Who computes it, for people."""

    @property
    def batch(self) -> int | None:
        """The only size of a batch that it takes; None if it takes any."""

    @property
    def precision(self) -> str:
        """The numbers that it computes with: float64, float32, float16 or bfloat16."""

    def __call__(self, x: Array) -> Array:
        """Map examples [B, *shape of the graph's input] to outputs [B, …]; raises OriginalError."""

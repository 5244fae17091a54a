"""The depth pass: how Lipschitz constants compose along the network's repeated parts."""

from __future__ import annotations

from collections.abc import Sequence

from lipcompile.derivation import Depth, LayerBounds


def growth(layers: Sequence[LayerBounds]) -> Depth:
    """Classify by the layers' Lipschitz constants: all 1 is critical, below contractive, above expansive."""
    values = [layer.lipschitz.value for layer in layers]
    return Depth(_regime([value for value in values if value is not None]), ())


def _regime(constants: Sequence[float]) -> str:
    shrinks, grows = any(value < 1 for value in constants), any(value > 1 for value in constants)
    if shrinks and grows:
        return "mixed"
    return "contractive" if shrinks else "expansive" if grows else "critical"

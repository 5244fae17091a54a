"""Runtime of modules that `lipcompile` emits, and the engine that trains them privately.

Importing this package does not import torch: names are looked up when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .runtime import constraints, functional, layers, losses
    from .runtime.constraints import Ball, Box, Fixed, Free, Frobenius, Orthogonal, RowBalls, Spectral
    from .runtime.engine import PrivacyEngine
    from .runtime.features import cache_features
    from .runtime.module import LipschitzModule, decode_weights
    from .runtime.precision import rounding_slack
    from .runtime.privacy_audit import audit_privacy
    from .runtime.robustness import certified_radii

__all__ = [
    "Ball",
    "Box",
    "ClipGroup",
    "Fixed",
    "Free",
    "Frobenius",
    "LipschitzModule",
    "Orthogonal",
    "PrivacyEngine",
    "RowBalls",
    "Spectral",
    "audit_privacy",
    "cache_features",
    "certified_radii",
    "constraints",
    "decode_weights",
    "functional",
    "layers",
    "losses",
    "rounding_slack",
]

_HOMES = {
    "Ball": "constraints",
    "Box": "constraints",
    "ClipGroup": "clipping",
    "Free": "constraints",
    "RowBalls": "constraints",
    "Fixed": "constraints",
    "Frobenius": "constraints",
    "LipschitzModule": "module",
    "Orthogonal": "constraints",
    "PrivacyEngine": "engine",
    "audit_privacy": "privacy_audit",
    "certified_radii": "robustness",
    "cache_features": "features",
    "Spectral": "constraints",
    "decode_weights": "weights",
    "rounding_slack": "precision",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = import_module(f".runtime.{_HOMES.get(name, name)}", __name__)
    value = getattr(home, name) if name in _HOMES else home
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

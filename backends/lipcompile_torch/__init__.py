"""Runtime of modules that `lipcompile` emits, and the engine that trains them privately.

Importing this package does not import torch: names are looked up when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .audit.privacy_audit import audit_privacy
    from .certify import constraints
    from .certify.constraints import Ball, Box, Fixed, Free, Frobenius, Orthogonal, RowBalls, Spectral
    from .certify.precision import rounding_slack
    from .certify.robustness import certified_radii
    from .nn import functional, layers, losses
    from .train.engine import PrivacyEngine
    from .train.features import cache_features
    from .train.module import LipschitzModule, decode_weights

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
    "Ball": "certify.constraints",
    "Box": "certify.constraints",
    "ClipGroup": "clip.clipping",
    "Free": "certify.constraints",
    "RowBalls": "certify.constraints",
    "Fixed": "certify.constraints",
    "Frobenius": "certify.constraints",
    "LipschitzModule": "train.module",
    "Orthogonal": "certify.constraints",
    "PrivacyEngine": "train.engine",
    "audit_privacy": "audit.privacy_audit",
    "certified_radii": "certify.robustness",
    "cache_features": "train.features",
    "Spectral": "certify.constraints",
    "constraints": "certify.constraints",
    "functional": "nn.functional",
    "layers": "nn.layers",
    "losses": "nn.losses",
    "decode_weights": "weights",
    "rounding_slack": "certify.precision",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = import_module(f".{_HOMES[name]}", __name__)
    value = getattr(home, name, home)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

"""Runtime of modules that `lipcompile` emits, and the engine that trains them privately.

Importing this package does not import torch: names are looked up when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .audit.privacy_audit import audit_privacy as audit_privacy
    from .augmentation import Augmentation as Augmentation
    from .certify import constraints as constraints
    from .certify.constraints import Ball as Ball
    from .certify.constraints import Box as Box
    from .certify.constraints import Fixed as Fixed
    from .certify.constraints import Free as Free
    from .certify.constraints import Frobenius as Frobenius
    from .certify.constraints import Orthogonal as Orthogonal
    from .certify.constraints import RowBalls as RowBalls
    from .certify.constraints import Spectral as Spectral
    from .certify.precision import rounding_slack as rounding_slack
    from .clip.clipping import ClipGroup as ClipGroup
    from .deploy.robustness import certified_radii as certified_radii
    from .nn import functional as functional
    from .nn import layers as layers
    from .nn import losses as losses
    from .train.engine import PrivacyEngine as PrivacyEngine
    from .train.features import cache_features as cache_features
    from .train.module import LipschitzModule as LipschitzModule
    from .weights import decode_weights as decode_weights

_HOMES = {
    "audit.privacy_audit": ("audit_privacy",),
    "augmentation": ("Augmentation",),
    "certify.constraints": (
        *("constraints", "Ball", "Box", "Fixed", "Free", "Frobenius", "Orthogonal", "RowBalls", "Spectral"),
    ),
    "certify.precision": ("rounding_slack",),
    "deploy.robustness": ("certified_radii",),
    "clip.clipping": ("ClipGroup",),
    "nn.functional": ("functional",),
    "nn.layers": ("layers",),
    "nn.losses": ("losses",),
    "train.engine": ("PrivacyEngine",),
    "train.features": ("cache_features",),
    "train.module": ("LipschitzModule",),
    "weights": ("decode_weights",),
}
__all__ = sorted(name for names in _HOMES.values() for name in names)


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    home = next((home for home, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f".{home}", __name__)
    globals()[name] = value = getattr(module, name, module)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

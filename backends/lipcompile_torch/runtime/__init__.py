"""Modules that had their home here: `lipcompile_torch.runtime.NAME` has the names of its successor elsewhere.

Emitted modules and older programs import from here. A successor is imported when one of its names is first needed.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

# By where they stand now: under the name that they had, or in a module of another name.
_UNDER_THEIR_NAMES = {
    "audit": "canaries privacy_audit signal",
    "certify": "constraints drift intervals norms operators precision projection rounding sums",
    "clip": "clipping example_gradients native_gradients outer_product_plans outer_products",
    "deploy": "certification deployment robustness",
    "native": "fingerprint",
    "nn": (
        "constrained functional layers losses normalisation pooling reading regression resampling scattering "
        "sorting token_layers"
    ),
    "noise": "discrete_gaussian normals streams",
    "train": (
        "certificate checkpoint checks clipped data engine features gate gradients ledger "
        "loss_clipping module optimizer reduction sampler sampling training"
    ),
}
_ELSEWHERE = {
    "activations": "nn.layers",
    "adversarial": "deploy.certification",
    "audit": "audit.search",
    "audit_moves": "audit.moves",
    "audit_pairs": "audit.canaries",
    "audit_points": "audit.points",
    "audit_starts": "audit.points",
    "bits": "noise.processor",
    "box_muller": "noise.processor",
    "convolving": "nn.reading",
    "distributed": "distributed",
    "dot_product": "nn.functional",
    "environment": "environment",
    "example_norms": "certify.sums",
    "flat": "native.memory_rows",
    "guessing": "audit.game",
    "l2_pooling": "nn.pooling",
    "membership": "nn.constrained",
    "native": "native",
    "noise": "noise.mechanism",
    "numbers": "certify.intervals",
    "own_functions": "autograd",
    "reductions": "nn.normalisation",
    "roundings": "certify.precision",
    "selection": "nn.resampling",
    "sharding": "sharding",
    "single": "certify.single_precision",
    "spectra": "certify.single_precision",
    "transposed": "nn.layers",
    "unaltered": "train.gradient_watch",
    "uses": "clip.bookkeeping",
    "weights": "weights",
}
_PACKAGE = __name__.rpartition(".")[0]
_HOMES = {
    **{name: f"{_PACKAGE}.{room}.{name}" for room, names in _UNDER_THEIR_NAMES.items() for name in names.split()},
    **{name: f"{_PACKAGE}.{home}" for name, home in _ELSEWHERE.items()},
    "guesses": "lipcompile_privacy.guesses",
}


def _moved(name: str, home: str) -> ModuleType:
    """Return a module whose names are those of its successor."""
    module = ModuleType(f"{__name__}.{name}", f"`{home}`, by its former name.")

    def found(wanted: str) -> Any:
        if wanted.startswith("__"):  # `inspect` asks every module for its file
            raise AttributeError(wanted)
        value = getattr(import_module(home), wanted)
        setattr(module, wanted, value)
        return value

    module.__getattr__ = found  # type: ignore[method-assign]
    return module


for _name, _home in _HOMES.items():
    globals()[_name] = sys.modules[f"{__name__}.{_name}"] = _moved(_name, _home)

"""Settings of privacy and training: from the command line, else the model's `train` block, else a default."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from lipcompile.diagnostics import InputError, input_error

if TYPE_CHECKING:
    from lipcompile.frontends.options import Loaded

# Keys of the `train` block that are called otherwise in the training configuration.
_NAMES = {"batch": "batch_size", "lr": "learning_rate", "physical_batch": "max_physical_batch"}
_WHOLE = ("batch_size", "dataset", "epochs", "max_physical_batch")


def planned(loaded: Loaded | None) -> dict[str, Any]:
    """Return the settings of a model's `train` block as ordinary numbers; raises InputError (LIP404)."""
    settings = loaded.training.settings if loaded and loaded.training else {}
    return {_NAMES.get(key, key): _number(_NAMES.get(key, key), value) for key, value in settings.items()}


def merged(given: Mapping[str, Any], plan: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings in force, by the names in `given`; None in `given` means not given."""
    return {
        name: value if value is not None else plan.get(name, defaults.get(name)) for name, value in given.items()
    }


def demand(settings: Mapping[str, Any], names: tuple[str, ...]) -> None:
    """Raise InputError (LIP404) if a setting is missing."""
    missing = [f"--{name.replace('_', '-')}" for name in names if settings[name] is None]
    if missing:
        raise setting_error(f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} needed")


def setting_error(message: str) -> InputError:
    """Return the error for a missing or contradictory setting."""
    return input_error("LIP404", message, "give it as an option, or in the model's `train` block")


def _number(name: str, value: str | Fraction) -> str | int | float:
    if isinstance(value, str):
        return value
    if name in _WHOLE:
        if value.denominator != 1 or value < 1:
            raise input_error("LIP404", f"`{name}` must be a whole number of at least 1, not {float(value)}")
        return value.numerator
    try:
        return float(value)
    except OverflowError:
        raise input_error("LIP404", f"`{name}` is too large") from None

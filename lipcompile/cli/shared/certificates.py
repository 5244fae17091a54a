"""Certificates on the command line: what a model plans, and files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from lipcompile.cli.shared.output import write_text

if TYPE_CHECKING:
    from lipcompile.core.derivation import Derivation
    from lipcompile.frontends.options import Loaded


def write_certificate(path: Path, derivation: Derivation, loaded: Loaded) -> None:
    """Write the certificate of an accepted model; raises InputError if it leaves a number open."""
    from lipcompile.certificates import certificate, encode

    write_text(path, encode(certificate(derivation, planned_training(loaded))).decode())


def planned_training(loaded: Loaded) -> dict[str, Any] | None:
    """Return the inputs of the accountant that the model's `train` block says or implies; None without a block.

    What the block leaves open is null. Raises InputError (LIP404).
    """
    from lipcompile.cli.shared.settings import planned
    from lipcompile.cli.train import DEFAULTS

    if loaded.training is None:
        return None
    settings, plan = loaded.training.settings, planned(loaded)
    multiplier = plan.get("noise_multiplier")
    correlation = settings.get("correlation")
    return {
        "neighbours": plan.get("neighbours", DEFAULTS["neighbours"]),
        "sampling": plan.get("sampling", "poisson"),
        "batch": plan.get("batch_size"),
        "dataset": plan.get("dataset"),
        "steps": _steps(plan),
        "noise": plan.get("noise", DEFAULTS["noise"]),
        "epsilon": _exact(settings.get("epsilon")),
        "delta": _exact(settings.get("delta")),
        "accountant": DEFAULTS["accountant"],
        **({} if correlation is None else {"correlation": _exact(correlation)}),
        **({} if multiplier is None else {"noise_multiplier": multiplier.hex()}),
    }


def _steps(plan: dict[str, Any]) -> int | None:
    """Return how many steps the epochs come to; None if their number, or one of N and b, is open."""
    from lipcompile.cli.shared.settings import epoch_steps

    if not {"epochs", "batch_size", "dataset"} <= plan.keys():
        return None
    return int(plan["epochs"] * epoch_steps(plan["dataset"], plan["batch_size"]))


def _exact(value: Any) -> Any:
    """Return an exact number, or a mapping with such numbers, as JSON."""
    if isinstance(value, dict):
        return {key: _exact(part) for key, part in value.items()}
    return None if value is None else str(value)

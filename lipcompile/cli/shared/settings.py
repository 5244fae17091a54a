"""Settings of privacy and training: from the command line, else the model's `train` block, else a default."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lipcompile_privacy.accounting import Drawing, NeighbouringRelation
from lipcompile_privacy.errors import BudgetError, FactorisationError
from lipcompile_privacy.factorisation import planned_strategy
from lipcompile_privacy.planning import Budget, with_bands

from lipcompile.diagnostics import InputError, input_error

if TYPE_CHECKING:
    from lipcompile.core.derivation import Derivation
    from lipcompile.frontends.options import Loaded, Setting

# Keys of the `train` block that are called otherwise in the training configuration.
_NAMES = {"batch": "batch_size", "lr": "learning_rate", "physical_batch": "max_physical_batch"}
_WHOLE = ("batch_size", "dataset", "epochs", "max_physical_batch", "views", "bands", "buffers")
DEFAULTS = {
    "epochs": 20,
    "optimizer": "adam",
    "learning_rate": 1e-2,
    "momentum": 0.9,
    "schedule": "constant",
    "noise": "per_layer",
    "fixed_norm": False,
    "secure": False,
    "fixed_shape": False,
    "precision": "float32",
    "cache_features": True,
    "views": 4,
    "neighbours": "add_remove",
    "accountant": "pld",
    "device": "auto",
    "resume": False,
}
# Gradients that are clipped to one length take larger rates, and rates that fall, as noise is all that is left.
CLIPPED = {**DEFAULTS, "learning_rate": 2e-2, "schedule": "cosine"}


def planned(loaded: Loaded | None) -> dict[str, Any]:
    """Return the settings of a model's `train` block as ordinary numbers; raises InputError (LIP404).

    `correlation` is a mapping as `{"kind": "correlated", "bands": 16}` or `{"kind": "blt"}`.
    """
    settings = loaded.training.settings if loaded and loaded.training else {}
    plan = {_NAMES.get(key, key): _number(_NAMES.get(key, key), value) for key, value in settings.items()}
    plan |= _with_bands(plan)
    said = resolved_sampling(plan.get("sampling"), plan.get("correlation"))
    return plan if said is None else {**plan, "sampling": said}


def _with_bands(plan: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the correlation of a plan with the bands that its budget chooses, if it leaves them open."""
    correlation = plan.get("correlation")
    if correlation != {"kind": "correlated"}:
        return {}

    _demand_plan(plan, "bands are chosen for a budget", ("epsilon", "delta", "epochs", "batch_size", "dataset"))
    relation = NeighbouringRelation(plan.get("neighbours", DEFAULTS["neighbours"]))
    budget = Budget(plan["epsilon"], plan["delta"], relation, "rdp")
    try:
        drawing = Drawing.of("poisson", plan["batch_size"], plan["dataset"])
        steps = plan["epochs"] * drawing.steps_per_epoch
        return {"correlation": with_bands(correlation, drawing, steps, budget)}
    except BudgetError as error:
        raise setting_error(str(error)) from None


def _demand_plan(plan: Mapping[str, Any], reason: str, names: tuple[str, ...]) -> None:
    missing = [name for name in names if name not in plan]
    if missing:
        help_line = "write them into the model's `train` block: `sampling` and `budget`"
        raise input_error("LIP404", f"{reason}: {', '.join(missing)} needed", help_line)


def defaults_of(derivation: Derivation) -> Mapping[str, Any]:
    """Return the settings of training that nothing else says."""
    assert derivation.analysis is not None
    return CLIPPED if derivation.analysis.graph.clips else DEFAULTS


def merged(given: Mapping[str, Any], plan: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings in force, by the names in `given`; None in `given` means not given."""
    return {
        name: value if value is not None else plan.get(name, defaults.get(name)) for name, value in given.items()
    }


def training_settings(
    given: Mapping[str, Any], plan: Mapping[str, Any], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the fields of the backend's training configuration that `given` names; raises InputError (LIP404).

    None in `given` means not given; an empty correlation is none.
    """
    if given["correlation"] is not None and "correlation" in plan:
        plan = {**plan, "sampling": None}  # it was that of the plan's noise
    if "noise_multiplier" in plan:
        message = "`noise_multiplier` of the `train` block is not that of a training, which computes it from ε"
        raise input_error("LIP404", message, "remove it from `budget`, or ask `lipcompile budget` for its ε")
    settings = merged(given, plan, defaults)
    demand(settings, ("epsilon", "delta"))
    correlation = settings["correlation"] or None
    return settings | {
        "correlation": correlation,
        "sampling": resolved_sampling(settings["sampling"], correlation),
    }


def noise_strategy(plan: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the strategy of a plan's correlated noise as data, optimised; None if its noise is independent.

    Raises InputError (LIP404) if the plan leaves the number of steps open, or asks for what cannot be.
    """
    if "correlation" not in plan:
        return None
    _demand_plan(plan, "correlated noise is made for so many steps", ("epochs", "batch_size", "dataset"))
    steps_per_epoch = epoch_steps(plan["dataset"], plan["batch_size"])
    try:
        strategy = planned_strategy(plan["correlation"], plan["epochs"], steps_per_epoch)
    except FactorisationError as error:
        raise setting_error(str(error)) from None
    return strategy.to_dict()


def epoch_steps(dataset: float, batch: float) -> int:
    """Return how many steps an epoch has: round(N/b), and at least 1, as in training."""
    return max(1, round(dataset / batch))


def demand(settings: Mapping[str, Any], names: tuple[str, ...], also: tuple[str, ...] = ()) -> None:
    """Raise InputError (LIP404) with a list of missing settings, and of `also`, options that the caller misses."""
    missing = [*(f"--{name.replace('_', '-')}" for name in names if settings[name] is None), *also]
    if missing:
        raise setting_error(f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} needed")


def has_plan(model: str) -> bool:
    """Return whether a model may have a `train` block: only a .lip file has one, and it is read in no time."""
    return Path(model.partition("::")[0]).suffix == ".lip"


def setting_error(message: str) -> InputError:
    """Return the error for a missing or contradictory setting."""
    return input_error("LIP404", message, "give it as an option, or in the model's `train` block")


def resolved_sampling(said: str | None, correlation: Mapping[str, Any] | None) -> str | None:
    """Return the sampling that settings come down to, if they say any; raises InputError (LIP404).

    Correlated noise is proved for one sampling each: Poisson sampling of groups in turn, and a fixed order.
    """
    noise = correlation["kind"] if correlation else "independent"
    allowed = {"correlated": ("poisson", "cyclic_poisson"), "blt": ("fixed_order",)}.get(noise)
    if said is None:
        return None
    if (allowed is None and said in ("cyclic_poisson", "fixed_order")) or (allowed and said not in allowed):
        raise input_error(
            "LIP404",
            f"`sampling {said}` does not go with `noise {noise}`: it has no analysis",
            "`noise blt` goes with `sampling fixed_order`, `noise correlated` with `sampling poisson`, and "
            "independent noise with any sampling but fixed_order",
        )
    return allowed[-1] if allowed else said


def _number(name: str, value: Setting) -> Any:
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return {key: _number(key, part) for key, part in value.items()}
    if name in _WHOLE:
        if value.denominator != 1 or value < 1:
            raise input_error("LIP404", f"`{name}` must be a whole number of at least 1, not {float(value)}")
        return value.numerator
    try:
        return float(value)
    except OverflowError:
        raise input_error("LIP404", f"`{name}` is too large") from None


def planned_training(loaded: Loaded) -> dict[str, Any] | None:
    """Return the inputs of the accountant that the model's `train` block says or implies; None without a block.

    What the block leaves open is null. Raises InputError (LIP404).
    """
    if loaded.training is None:
        return None
    settings, plan = loaded.training.settings, planned(loaded)
    multiplier = plan.get("noise_multiplier")
    correlation = plan.get("correlation")
    steps = None  # where the number of epochs, or one of N and b, is open
    if {"epochs", "batch_size", "dataset"} <= plan.keys():
        steps = int(plan["epochs"] * epoch_steps(plan["dataset"], plan["batch_size"]))
    return {
        "neighbours": plan.get("neighbours", DEFAULTS["neighbours"]),
        "sampling": plan.get("sampling", "poisson"),
        "batch": plan.get("batch_size"),
        "dataset": plan.get("dataset"),
        "steps": steps,
        "noise": plan.get("noise", DEFAULTS["noise"]),
        "epsilon": _exact(settings.get("epsilon")),
        "delta": _exact(settings.get("delta")),
        "accountant": DEFAULTS["accountant"],
        **({} if correlation is None else {"correlation": _exact(correlation)}),
        **({} if multiplier is None else {"noise_multiplier": multiplier.hex()}),
    }


def _exact(value: Any) -> Any:
    """Return an exact number, or a mapping with such numbers, as JSON."""
    if isinstance(value, dict):
        return {key: _exact(part) for key, part in value.items()}
    return None if value is None else str(value)

"""The losses of torch, in the words of the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lipcompile.diagnostics import input_error

if TYPE_CHECKING:
    from torch import Tensor

_FUNCTIONS = {
    "cross_entropy": "cross_entropy",
    "nll_loss": "nll",
    "mse_loss": "mean_squared_error",
    "l1_loss": "absolute_error",
    "huber_loss": "huber",
    "smooth_l1_loss": "smooth_l1",
    "binary_cross_entropy_with_logits": "multilabel_bce",
}


def loss_text(loss: Callable[..., Any]) -> str | None:
    """Return what a loss of torch is called here; None for other functions, which the loss `own` applies.

    Torch divides the sum over a batch by the number of examples, or by the sum of their weights; here it is
    divided by the expected batch size. Raises InputError (LIP210) where that is another loss, and for no loss.
    """
    from torch import nn

    if isinstance(loss, type) or not callable(loss):
        message = f"a loss is a name, a loss of torch or a function, not {loss!r}"
        raise input_error("LIP210", message, f"write {loss.__name__}()" if isinstance(loss, type) else "")
    if not isinstance(loss, nn.Module):
        name = getattr(loss, "__name__", "")
        return _FUNCTIONS.get(name) if loss is getattr(nn.functional, name, None) else None
    if any(parameter.requires_grad for parameter in loss.parameters()):
        message = "the loss has parameters, which no optimizer here trains privately"
        raise input_error("LIP210", message, "put them into the module, or freeze them")
    return _of_module(loss) if _is_plain(loss) else None


def _is_plain(loss: Any) -> bool:
    """Whether a module computes what its class of torch does: it is of no subclass, and nothing is added to it."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    kept = vars(loss)
    is_changed = "forward" in kept or any(kept.get(name) for name in hooks)
    return type(loss).__module__ == "torch.nn.modules.loss" and not is_changed


def _of_module(loss: Any) -> str | None:
    from torch import nn

    total = "sum" if loss.__dict__.get("reduction") == "sum" else "mean"
    match loss:
        case nn.CrossEntropyLoss(ignore_index=-100):
            options = {"class_weights": _numbers(loss.weight), "label_smoothing": loss.label_smoothing or None}
            return _with("cross_entropy", options)
        case nn.NLLLoss(ignore_index=-100, weight=None):
            return "nll"
        case nn.CrossEntropyLoss() | nn.NLLLoss():
            message = f"{type(loss).__name__} divides by the weights of a batch, so examples mix"
            text = f"cross_entropy:ignore={loss.ignore_index}"
            help_line = f'write loss="cross_entropy:class_weights=(…)", "token_{text}" or "pixel_{text}"'
            raise input_error("LIP210", message, help_line)
        case nn.BCEWithLogitsLoss(weight=None, pos_weight=None):
            return _with("multilabel_bce", {"reduce": total})
        case nn.MSELoss() if total == "mean":
            return "mean_squared_error"
        case nn.L1Loss():
            return _with("absolute_error", {"reduce": total})
        case nn.HuberLoss():
            return _with("huber", {"delta": loss.delta, "reduce": total})
        case nn.SmoothL1Loss() if loss.beta > 0:
            return _with("smooth_l1", {"beta": loss.beta, "reduce": total})
        case nn.MultiMarginLoss(weight=None):
            return _with("multi_margin", {"margin": loss.margin, "p": loss.p})
    return None


def _numbers(weight: Tensor | None) -> str | None:
    return None if weight is None else f"({','.join(map(str, weight.double().tolist()))})"


def _with(name: str, options: dict[str, Any]) -> str:
    said = ",".join(f"{key}={value}" for key, value in options.items() if value is not None)
    return f"{name}:{said}" if said else name

"""Gradients stay what flowed back, and what keeps count of them stays the only one of its kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from torch import Tensor, nn

from .checks import PrivacyError
from .sharding import is_shard


class Singular:
    """Refuses to be copied or pickled: a copy would take steps that the original does not count."""

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} cannot be copied: the copy's steps would be missing in the ledger; copy "
            "weights, and keep states by state_dict()"
        )


class _Note:
    """A hook: notes the gradient of a parameter each time that something was added to it."""

    def __init__(self, arrived: dict[str, tuple[Tensor | None, int]], name: str) -> None:
        self._arrived, self._name = arrived, name

    def __call__(self, parameter: Tensor) -> None:
        gradient = parameter.grad
        self._arrived[self._name] = (gradient, 0 if gradient is None else gradient._version)

    def __deepcopy__(self, memo: Any) -> _Note:
        return _Note({}, self._name)

    def __reduce__(self) -> Any:
        return _Note, ({}, self._name)


class GradientWatch:
    """Knows the gradients as they came out of `backward`, by torch's count of in-place changes.

    The bounds hold for a sum over examples. A function of the sum (clipping it by its norm, as is common) is
    another mechanism: one example moves each parameter's part by what the others' norms do, too.

    Writes through `.data` are not seen. What FSDP has sharded is not watched.

    Args:
        parameters: trainable, by name.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self._parameters = {name: p for name, p in parameters.items() if not is_shard(p)}
        self._arrived: dict[str, tuple[Tensor | None, int]] = {}
        for name, parameter in self._parameters.items():
            parameter.register_post_accumulate_grad_hook(_Note(self._arrived, name))  # type: ignore[no-untyped-call]

    def reset(self) -> None:
        """Forget what arrived."""
        self._arrived.clear()

    def check_hooks(self) -> None:
        """Refuse hooks of others, which may have changed what arrived."""
        for name, parameter in self._parameters.items():
            after: Any = getattr(parameter, "_post_accumulate_grad_hooks", None) or {}
            if parameter._backward_hooks or not all(isinstance(hook, _Note) for hook in after.values()):
                raise PrivacyError(
                    f"{name} has hooks, which may change gradients that the bounds hold for: remove them"
                )

    def check(self) -> None:
        """Refuse gradients that are no longer those that arrived."""
        for name, (gradient, version) in self._arrived.items():
            now = self._parameters[name].grad
            if now is not gradient or (now is not None and now._version != version):
                raise PrivacyError(
                    f"the gradient of {name} was changed between backward() and step(), so that its bound need "
                    "not hold: leave out clip_grad_norm_ and the like, nothing needs clipping here; scale by the "
                    "learning rate"
                )

"""Whole numbers beside real ones: a module that takes both, as one that takes real numbers alone.

One example is one vector. Real numbers hold the small whole numbers of tables exactly, so the module is traced as
if it were given these, and made whole numbers of them itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any

from torch.nn import Module

if TYPE_CHECKING:
    from lipcompile.frontends.torch.tracing import Example


def in_real_numbers(module: Module, examples: Sequence[Example]) -> tuple[Module, Sequence[Example]]:
    """Return a module of the same weights that takes all examples as real numbers, if they are of both kinds."""
    whole = [one for one in examples if one.kind is not None and not one.kind.is_floating_point]
    if len(whole) in (0, len(examples)) or "forward" in vars(module):
        return module, examples
    kind = type(module)
    parameters = inspect.signature(module.forward).parameters
    names = list(parameters)
    if any(one.kind == one.VAR_POSITIONAL for one in parameters.values()):  # whose places have no names
        return module, examples
    places = dict(zip((one.name or names[place] for place, one in enumerate(examples)), examples, strict=True))
    wanted = {name: one.kind for name, one in places.items() if one in whole}

    @wraps(kind.forward)
    def forward(self: Module, *args: Any, **kwargs: Any) -> Any:
        given = [x.to(wanted[name]) if name in wanted else x for name, x in zip(names, args, strict=False)]
        named = {name: x.to(wanted[name]) if name in wanted else x for name, x in kwargs.items()}
        return kind.forward(self, *given, *args[len(names) :], **named)

    return with_forward(module, forward), [replace(one, kind=None) if one in whole else one for one in examples]


def with_forward(module: Module, forward: Callable[..., Any]) -> Module:
    """Return a module of the same parts and weights with another `forward`."""
    kind = type(module)
    twin: Module = object.__new__(
        type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})
    )
    vars(twin).update(vars(module))
    return twin

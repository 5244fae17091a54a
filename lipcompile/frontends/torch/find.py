"""`package.module:factory` -> the nn.Module that it stands for. Importing runs code; nothing is unpickled."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
from typing import TYPE_CHECKING, Any

from lipcompile.core.diagnostics import InputError, input_error
from lipcompile.frontends.silence import stdout_to_stderr
from lipcompile.frontends.torch.places import place_of, summary
from lipcompile.ops.schema import suggest

if TYPE_CHECKING:
    from torch.nn import Module

_NAME = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_REFERENCE = re.compile(rf"{_NAME}:{_NAME}")
_FACTORY = "write a function without arguments that returns the module, and name that"


def is_reference(model: str) -> bool:
    """Whether a text is spelt like `package.module:factory`."""
    return _REFERENCE.fullmatch(model) is not None


def find(reference: str) -> Module:
    """Import a module of Python and return the nn.Module under a name in it, or that a callable there returns.

    The current folder is searched first, as by `python -m`. Raises InputError (LIP020 to LIP022).
    """
    from torch.nn import Module

    home, _, name = reference.partition(":")
    with stdout_to_stderr():
        found = _attribute(_imported(home), home, name)
        made = found if isinstance(found, Module) else _called(found, reference)
    if not isinstance(made, Module):
        message = f"`{reference}` gives an object of type {_type(made)}, not a torch.nn.Module"
        raise input_error("LIP022", message, "name a module, a class of modules, or a function that returns one")
    return made


def _imported(home: str) -> Any:
    if "" not in sys.path and os.getcwd() not in sys.path:  # noqa: PTH109  (entries of sys.path are texts)
        sys.path.insert(0, "")
    try:
        return importlib.import_module(home)
    except ModuleNotFoundError as error:
        if error.name and f"{home}.".startswith(f"{error.name}."):
            mend = "run this in the folder that it lies in, or install its package"
            raise input_error("LIP020", f"there is no Python module `{error.name}`", mend) from None
        raise _failure(f"`{home}` cannot be imported", error) from None
    except (Exception, SystemExit) as error:
        raise _failure(f"`{home}` cannot be imported", error) from None


def _attribute(found: Any, home: str, name: str) -> Any:
    seen = home
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            public = [known for known in dir(found) if not known.startswith("_")]
            raise input_error("LIP020", f"`{seen}` has no attribute `{part}`", suggest(part, public)) from None
        seen = f"{seen}.{part}"
    return found


def _called(factory: Any, reference: str) -> Any:
    """Return what a class or a function gives without arguments."""
    if not callable(factory):
        message = f"`{reference}` is an object of type {_type(factory)}: no torch.nn.Module, and not callable"
        raise input_error("LIP022", message, _FACTORY)
    needed = _needed(factory)
    if needed:
        message = f"`{reference}` needs arguments: {', '.join(needed)}"
        raise input_error("LIP022", message, _FACTORY)
    try:
        return factory()
    except (Exception, SystemExit) as error:
        raise _failure(f"`{reference}` fails", error) from None


def _needed(factory: Any) -> list[str]:
    """Return the parameters of a callable that have no default."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # builtins tell nothing: the call will
        return []
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [one.name for one in parameters if one.default is inspect.Parameter.empty and one.kind not in optional]


def _failure(what: str, error: BaseException) -> InputError:
    return input_error("LIP021", f"{what}: {summary(error)}", "correct the module", place_of(error))


def _type(found: Any) -> str:
    kind = type(found)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"

"""`package.module:factory` -> the nn.Module that it stands for. Importing runs code; nothing is unpickled."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
import sysconfig
import traceback
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lipcompile.diagnostics import InputError, Location, input_error
from lipcompile.frontends.silence import stdout_to_stderr
from lipcompile.ops.schema import suggest

if TYPE_CHECKING:
    from torch.nn import Module

# Exceptions of other people's code, as a line of theirs and a message: never a traceback.
_LIBRARY = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
_LONGEST = 300


def place_of(error: BaseException) -> Location | None:
    """Return the innermost line of the user's own code that an exception passed, None if there is none."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return Location(error.filename, error.lineno)
    return _own(traceback.extract_tb(error.__traceback__))


def caller() -> Location | None:
    """Return the innermost line of the user's own code that runs now, None if there is none."""
    return _own(traceback.extract_stack())


def _own(frames: traceback.StackSummary) -> Location | None:
    own = [frame for frame in frames if frame.lineno and _is_users(frame.filename)]
    return Location(own[-1].filename, own[-1].lineno) if own else None


def _is_users(file: str) -> bool:
    """Whether a file is no part of Python, of an installed package or of this compiler."""
    return not (file.startswith("<") or _LIBRARY.search(file) or _foreign() & {*Path(file).parents})


@cache
def _foreign() -> frozenset[Path]:
    compiler = Path(__file__).parents[2]
    return frozenset((Path(sysconfig.get_path("stdlib")), compiler))


def summary(error: BaseException) -> str:
    """Return the type and the first line of the message of an exception."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    message = f": {lines[0][:_LONGEST]}" if lines else ""
    return f"{type(error).__name__}{message}"


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
            stem = home.removesuffix(".py")
            help_line = (
                "run this in the folder that it lies in, or install its package"
                if stem == home
                else f"write it without `.py`: `{stem}`"
            )
            raise input_error("LIP020", f"there is no Python module `{error.name}`", help_line) from None
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
            own = [known for known in public if getattr(getattr(found, known, None), "__module__", None) == home]
            help_line = suggest(part, public) or (f"it has {', '.join(own)}" if own else "")
            raise input_error("LIP020", f"`{seen}` has no attribute `{part}`", help_line) from None
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

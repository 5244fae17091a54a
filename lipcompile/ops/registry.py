"""User ops: the record of the built-in ones, added by `register` or the entry point group `lipcompile.ops`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import get_args

from lipcompile.core.record import AnyOp, ConstraintKind, Op, Spelling
from lipcompile.diagnostics import input_error
from lipcompile.ops.table import OP_BY_NAME, OPS

GROUP = "lipcompile.ops"
_USER: dict[str, AnyOp] = {}


def register(op: AnyOp) -> None:
    """Make `op` known to the .lip language of this process.

    Its rules are trusted as the built-in ones are: prove them, and attack them with `lipcompile audit`. A backend
    needs to be told how to compute the op, see `lipcompile.emitters.torch.expressions`.

    Args:
        op: the record, with its rules and its spellings.

    Returns:
        None. From now on .lip files may call the layer.

    Raises:
        TypeError: not an `Op`.
        ValueError: a name or a spelling is taken, or the record is not complete.

    Examples:
        >>> import lipcompile
        >>> from dataclasses import replace
        >>> from lipcompile.core.record import Spelling
        >>> from lipcompile.ops.table import OP_BY_NAME
        >>> lipcompile.register(replace(OP_BY_NAME["relu"], name="my_relu", dsl=(Spelling("my_relu"),)))
    """
    if not isinstance(op, Op):
        raise TypeError(f"register takes an Op, not {type(op).__name__}")
    for problem in _problems(op):
        raise ValueError(f"op `{op.name}`: {problem}")
    _USER[op.name] = op
    layers.cache_clear()


def registered() -> Mapping[str, AnyOp]:
    """Return the user ops, by name."""
    return dict(_USER)


def unregister(name: str) -> None:
    """Forget a user op, if it is one."""
    _USER.pop(name, None)
    layers.cache_clear()


@cache
def layers() -> Mapping[str, tuple[AnyOp, Spelling]]:
    """Return every op that .lip can call, by spelling."""
    return {spelling.name: (op, spelling) for op in (*OPS, *_USER.values()) for spelling in op.dsl}


@cache
def load_plugins() -> None:
    """Register the ops of installed packages, once a process; raises InputError (LIP008) if one cannot be used."""
    for point in entry_points(group=GROUP):
        try:
            register(point.load())
        except Exception as error:  # a plugin may fail in any way: the user must learn which one, and why
            raise _unusable(point, error) from error


def _unusable(point: EntryPoint, error: Exception) -> Exception:
    message = f"the plugin `{point.name}` ({point.value}) cannot be used: {error}"
    return input_error("LIP008", message, "fix the package, or uninstall it")


def _problems(op: AnyOp) -> list[str]:
    """Say what is wrong with a record that the type checker may not have seen."""
    taken = [spelling.name for spelling in op.dsl if spelling.name in layers()]
    kinds = {kind for rule in op.parameters for kind in rule.constraints} - set(get_args(ConstraintKind))
    roles = [rule.role for rule in op.parameters]
    checks = (
        (op.name in OP_BY_NAME or op.name in _USER, "the name is taken"),
        (not op.name.isidentifier(), "the name is not an identifier"),
        (bool(taken), f"the spelling `{', '.join(taken)}` is taken"),
        (not dataclasses.is_dataclass(op.attributes), "its attributes are not a dataclass"),
        (bool(kinds), f"unknown constraints: {', '.join(sorted(kinds))}"),
        (len(set(roles)) < len(roles), "two parameters have the same role"),
        (not op.proof, "it names no proof"),
    )
    return [problem for wrong, problem in checks if wrong]

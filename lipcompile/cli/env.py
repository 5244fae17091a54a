"""`lipcompile env`: what a bug report should say of the machine."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import click
from rich.console import RenderableType

from lipcompile.cli.shared.arguments import format_option
from lipcompile.cli.shared.output import print_found
from lipcompile.core.backend import find
from lipcompile.reports.console import printable, table

SCHEMA = "lipcompile.env/1"

_PACKAGES = ("lipcompile", "torch", "numpy", "onnx", "onnxruntime", "dp-accounting", "cryptography")
# What a package may be installed as in its place.
_OTHERS = {"onnxruntime": "onnxruntime-gpu"}


@click.command(short_help="Print versions and devices, for a bug report.")
@format_option()
def env(form: str) -> int:
    """Print the versions, native code, noise generators, threads and devices of this machine.

    Add the output to a bug report. Missing or failing parts are listed as such; the exit code is 0.

    \b
    Examples:
      lipcompile env
      lipcompile env --format json
    """
    found = {
        "schema": SCHEMA,
        "versions": _versions(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "runtime": _runtime(),
    }
    print_found(form, found, _text(found))
    return 0


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in _PACKAGES:
        number, other = _version(package), _OTHERS.get(package, package)
        instead = None if number else _version(other)
        found[other if instead else package] = number or instead
    return found


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _runtime() -> dict[str, Any]:
    """Return what the backend says; if it cannot be imported, the error."""
    try:
        found: dict[str, Any] = find().environment.describe()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return found


def _text(found: Mapping[str, Any]) -> Iterator[RenderableType]:
    rows = table("", "")
    for name, value in _flattened(found):
        rows.add_row(name, value)
    yield rows


def _flattened(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield names and values for people: what stands in a mapping comes under its own name."""
    for name, value in facts.items():
        if isinstance(value, Mapping):
            prefix = "" if name in _PLAIN else f"{name} "
            yield from ((f"{prefix}{inner}".replace("_", " "), said) for inner, said in _flattened(value))
        elif name != "schema":
            yield name, printable(_words(value))


_PLAIN = ("versions", "runtime")


def _words(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)

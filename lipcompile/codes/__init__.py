"""Every diagnostic code: its meaning and reason, a wrong and a right example. The `.toml` files hold them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal, get_args

# never: no such model can be trained this way; not yet: it could be, and is not implemented; replace by: something
# near it can; usage: the input or the command is wrong.
Kind = Literal["never", "not yet", "replace by", "usage"]

_TABLES = (
    "files",
    "imports",
    "ops",
    "domain",
    "constraints",
    "privacy",
    "certificates",
    "robustness",
    "deployment",
)


@dataclass(frozen=True, slots=True)
class Code:
    """One code. `wrong` and `right` are programs in the .lip language unless `language` says otherwise.

    area: the table that it stands in.
    severity: what `check` reports it as; of several, the gravest.
    command: the command that fixes it, if there is one; MODEL stands for the model's file.
    """

    code: str
    area: str
    title: str
    kind: Kind
    why: str
    wrong: str
    right: str
    language: Literal["lip", "sh", "python"] = "lip"
    severity: Literal["error", "warning", "note"] = "error"
    command: str = ""


@cache
def codes() -> Mapping[str, Code]:
    """Return the table, by code, in order."""
    found: dict[str, Code] = {}
    for table in _TABLES:
        text = files(__name__).joinpath(f"{table}.toml").read_text(encoding="utf-8")
        for code, entry in tomllib.loads(text).items():
            assert entry["kind"] in get_args(Kind), code
            assert code not in found, code
            found[code] = Code(code, table, **entry)
    return dict(sorted(found.items()))

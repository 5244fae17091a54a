"""The mutants that no test sees, each with the reason why it does no harm: `survivors.toml`."""

from __future__ import annotations

import tomllib
from pathlib import Path

Key = tuple[str, str, str, str]


def known() -> dict[Key, str]:
    """Return the reason for each, by file, place, old and new text."""
    listed = tomllib.loads(Path(__file__).with_name("survivors.toml").read_text(encoding="utf-8"))
    found: dict[Key, str] = {}
    for group in listed["survivors"]:
        for place, old, new in group["mutants"]:
            found[group["file"], place, old, new] = group["reason"]
    return found

"""The check of a whole certificate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .verdict import Problem, Verdict


def verify(document: Mapping[str, Any]) -> Verdict:
    """Re-derive every number of a certificate from its graph alone, and compare each claim."""
    return Verdict([Problem("schema", "schema", f"{len(document)} fields: not checked yet")])

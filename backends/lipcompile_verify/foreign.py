"""What is said of a file that does not go with a certificate."""

from __future__ import annotations

import json
from typing import Any


class ForeignError(ValueError):
    """A file does not go with a certificate: where, and why."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where}: {reason}")
        self.where, self.reason = where, reason


def same(one: Any, other: Any) -> bool:
    """Whether two documents are equal, `true` and 1 told apart."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)

"""What is said of a file that does not go with a certificate."""

from __future__ import annotations


class ForeignError(ValueError):
    """A file does not go with a certificate: where, and why."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where}: {reason}")

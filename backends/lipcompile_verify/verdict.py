"""What the verifier says of a certificate, and of a file that does not go with one."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a certificate is refused: the step and the rule that fail, and the reason with both numbers."""

    step: str
    rule: str
    reason: str

    def __str__(self) -> str:
        return f"{self.step} ({self.rule}): {self.reason}"


@dataclass(slots=True)
class Verdict:
    """The outcome. `gradient` holds K of each trained parameter, `totals` the two of the model, as derived here.

    loose: claims above what is derived here by more than 1e-9 of it; they are accepted.
    """

    problems: list[Problem] = field(default_factory=list)
    loose: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    gradient: dict[str, float] = field(default_factory=dict)
    totals: dict[str, float] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether every claim holds."""
        return not self.problems


class ForeignError(ValueError):
    """A file does not go with a certificate: where, and why."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where}: {reason}")

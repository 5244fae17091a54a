"""When one example may take part: what the sensitivity of a strategy depends on, besides the strategy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import FactorisationError


@dataclass(frozen=True, slots=True)
class MinSeparation:
    """One example takes part at most `participations` times, any two of them at least `separation` steps apart.

    Data passed through in one fixed order, epoch after epoch, are so: `separation` is the number of steps of an
    epoch, `participations` that of epochs. A single participation is the default. There is no amplification by
    sampling; n steps are ONE Gaussian mechanism, with the noise multiplier of Z.

    Raises:
        FactorisationError: a number that is not a positive integer.
    """

    separation: int = 1
    participations: int = 1

    def __post_init__(self) -> None:
        check_positive("separation", self.separation)
        check_positive("participations", self.participations)

    def round_steps(self, steps: int) -> int:
        """Return how many steps one mechanism covers: all of them."""
        return steps

    def count(self, steps: int) -> int:
        """Return how often one example takes part in `steps` steps at most: min(k, ⌈n/b⌉)."""
        return min(self.participations, -(-steps // self.separation))

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, for `participation_from`."""
        return {
            "kind": "min_separation",
            "separation": self.separation,
            "participations": self.participations,
        }


@dataclass(frozen=True, slots=True)
class Cyclic:
    """Every example belongs to one of `period` groups, and may take part only in the steps of its group's turn.

    Group j = 0, …, period - 1 has its turn in the steps t with t mod period = j; in each turn Poisson sampling at
    rate q·period draws from the group, so that q is the rate over all examples. To which group an example belongs
    must not depend on any other example. For C of at most `period` bands, `period` steps are ONE Poisson-sampled
    Gaussian mechanism of rate q·period (Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization",
    Theorem 4 with Algorithm 2): columns that a participant meets are orthogonal.

    Raises:
        FactorisationError: `period` is not a positive integer.
    """

    period: int

    def __post_init__(self) -> None:
        check_positive("period", self.period)

    def round_steps(self, steps: int) -> int:  # noqa: ARG002  (one signature for all participations)
        """Return how many steps one mechanism covers: one turn of every group."""
        return self.period

    def count(self, steps: int) -> int:  # noqa: ARG002
        """Return how often one example takes part within the steps of one mechanism: once."""
        return 1

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, for `participation_from`."""
        return {"kind": "cyclic", "period": self.period}


Participation = MinSeparation | Cyclic

_KINDS: Mapping[str, type[MinSeparation] | type[Cyclic]] = {"min_separation": MinSeparation, "cyclic": Cyclic}


def participation_from(data: Any) -> Participation:
    """Return the participation that `to_dict` described; raises FactorisationError."""
    participation: Participation = built(data, _KINDS, "participation")
    return participation


def check_positive(name: str, value: Any) -> None:
    """Refuse what is no integer of at least 1; raises FactorisationError."""
    if type(value) is not int or value < 1:
        raise FactorisationError(f"{name} is {value!r}: it must be a whole number of at least 1")


def built(data: Any, kinds: Mapping[str, Any], what: str) -> Any:
    """Return the object of the class that `kind` names, from the other entries; raises FactorisationError."""
    if not isinstance(data, Mapping) or data.get("kind") not in kinds:
        raise FactorisationError(f"{data!r} is no {what}: its `kind` must be one of {', '.join(kinds)}")
    fields = {name: value for name, value in data.items() if name != "kind"}
    try:
        return kinds[data["kind"]](**fields)
    except TypeError:
        raise FactorisationError(
            f"a {what} of kind {data['kind']} with the entries {', '.join(map(str, fields)) or 'none'}: "
            "write it with to_dict()"
        ) from None

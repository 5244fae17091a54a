"""When one example may take part, and the certified sensitivity that a strategy has then.

Strategies are lower-triangular Toeplitz matrices C with non-negative, non-increasing coefficients.

The sensitivity of C is the largest ‖C·u‖ in the Frobenius norm over what one example can contribute: row t of u is
a vector of norm at most 1 where the example takes part, and zero elsewhere. For C without negative entries CᵀC has
none either, and the largest is attained where all these vectors are one and the same (Choquette-Choo et al. 2023,
"Multi-epoch matrix factorization mechanisms for private machine learning", Corollary 2.1): it is the norm of the
sum of the columns of C that the example meets.

Rounding: only non-negative doubles are added and multiplied, so nothing cancels: the true square is at most the
computed one times (1 + 2^-53)^(2m), if every number that is squared went through m operations. The root is
multiplied by 1 + (m + 16)·2^-52, twice what that asks; 16 is for the root and the factor themselves. Coefficients
start between 1e-100 and 1e100: no square under- or overflows where it matters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
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
        return {"kind": "min_separation", "separation": self.separation, "participations": self.participations}


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
        raise FactorisationError(f"{data!r} is not a {what}: `kind` must be one of {', '.join(kinds)}")
    fields = {name: value for name, value in data.items() if name != "kind"}
    try:
        return kinds[data["kind"]](**fields)
    except TypeError:
        raise FactorisationError(
            f"a {what} of kind {data['kind']} with the entries {', '.join(map(str, fields)) or 'none'}: "
            "write it with to_dict()"
        ) from None


def check_coefficients(coefficients: Sequence[float]) -> None:
    """Refuse coefficients that are not positive at first, non-negative and non-increasing thereafter.

    These are the conditions of Kalinin & Lampert 2024, Theorem 2. They also keep C⁻¹ tame: the zeros of the
    polynomial c lie nowhere inside the unit disc (Eneström and Kakeya), so that neither C⁻¹ nor rounding errors of
    its stream grow exponentially.

    Raises:
        FactorisationError: with the first place at which they fail.
    """
    if not coefficients:
        raise FactorisationError("a strategy needs at least one coefficient")
    if not 1e-100 <= coefficients[0] <= 1e100:
        raise FactorisationError(f"the first coefficient is {coefficients[0]!r}: it must be in [1e-100, 1e100]")
    for index, (before, value) in enumerate(pairwise(coefficients), 1):
        if not 0 <= value <= before:
            raise FactorisationError(
                f"coefficient {index} is {value!r} after {before!r}: the sensitivity is proved only for "
                "non-negative, non-increasing coefficients (Kalinin & Lampert 2024, Theorem 2)"
            )


def column_norm(coefficients: Sequence[float]) -> float:
    """Return at least the largest column norm of C, which is that of column 0: its sensitivity to one use."""
    return _root(_squares(coefficients), len(coefficients))


def separated_sensitivity(
    coefficients: Sequence[float], steps: int, pattern: MinSeparation, operations: int = 0
) -> float:
    """Return at least the sensitivity of C under `pattern`.

    The worst participations are 0, b, 2b, …, as many as there may be (Kalinin & Lampert 2024, "Banded square root
    matrix factorization for differentially private model training", Theorem 2): v = Σ_j C[:, jb], and ‖v‖.

    Args:
        coefficients: column 0 of C; zeros beyond, of which `check_coefficients` holds.
        steps: n, the number of rows and columns.
        pattern: b and k.
        operations: by how many roundings each coefficient was computed; 0 if C is defined by them.
    """
    separation, count = pattern.separation, pattern.count(steps)
    if len(coefficients) <= separation:  # the columns do not overlap
        last = [min(len(coefficients), steps - j * separation) for j in range(count)]
        squares = list(accumulate(value * value for value in coefficients))
        return _root(math.fsum(squares[length - 1] for length in last), operations + len(coefficients) + count)
    column = [*coefficients[:steps], *[0.0] * (steps - len(coefficients))]
    sums = _sums_of_shifts(column, separation, count)
    return _root(_squares(sums), operations + steps + count)


def _sums_of_shifts(column: Sequence[float], separation: int, count: int) -> list[float]:
    """Return Σ_{j < count} of the column moved down by j·separation, by additions alone: nothing cancels."""
    sums = list(column)
    if count * separation >= len(column):  # all shifts that fit: each sum contains the one `separation` above
        for index in range(separation, len(column)):
            sums[index] += sums[index - separation]
        return sums
    for shift in range(separation, count * separation, separation):
        for index in range(shift, len(column)):
            sums[index] += column[index - shift]
    return sums


def _squares(values: Sequence[float]) -> float:
    return math.fsum(value * value for value in values)


def _root(square: float, operations: int) -> float:
    """Return at least √ of the true square, of which `square` is computed by chains of so many operations."""
    return math.sqrt(square) * (1 + (operations + 16) * 2**-52)

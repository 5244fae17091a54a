"""Units and outward steps are what theorems ask for, in exact arithmetic."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from lipcompile_torch.certify.rounding import BRAIN, DOUBLE, SINGLE, UP, UP_MANY


@pytest.mark.parametrize(
    ("unit", "dtype"), [(DOUBLE, torch.float64), (SINGLE, torch.float32), (BRAIN, torch.bfloat16)]
)
def test_units_are_halves_of_the_distance_from_one(unit: float, dtype: torch.dtype) -> None:
    assert 2 * unit == torch.finfo(dtype).eps


@pytest.mark.parametrize(("step", "operations"), [(UP, 30), (UP_MANY, 9000)])
def test_an_outward_step_covers_so_many_operations_and_itself(step: float, operations: int) -> None:
    """Each may lose a factor of 1 - u, u = 2^-53, the product with the step included."""
    assert Fraction(step) * (1 - Fraction(1, 2**53)) ** (operations + 1) >= 1

"""Norms that were certified before: the same numbers, without a second certificate, of equal weights alone."""

from __future__ import annotations

import pytest
import torch
from lipcompile_torch.certify import norms
from lipcompile_torch.certify.constraints import Spectral
from lipcompile_torch.certify.operators import Convolution, Dense, Operator
from lipcompile_torch.certify.remembered import Memory, remembering


def kernel(size: int) -> Convolution:
    """A 3 × 3 kernel on size × size entries with padding: each entry is read through 9 taps at most."""
    return Convolution((3, 3), (size, size), 9, 9, (1, 1), ((1, 1), (1, 1)), (1, 1))


KERNEL = kernel(6)


@pytest.fixture
def stacks(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Gram matrices that were made, from which all certificates are."""
    made: list[object] = []
    before = norms.GramStack.__init__

    def noted(self: norms.GramStack, *args: object, **kwargs: object) -> None:
        made.append(self)
        before(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(norms.GramStack, "__init__", noted)
    return made


def test_equal_weights_are_certified_once(stacks: list[object]) -> None:
    weight = 2 * torch.randn(4, 4, 3, 3, generator=torch.Generator().manual_seed(0))
    expected = Spectral(1.0).project(weight, KERNEL)
    with remembering(Memory()):
        first = Spectral(1.0).project(weight, KERNEL)
        made = len(stacks)
        assert made > 0
        again = Spectral(1.0).project(weight.clone(), KERNEL)
        assert len(stacks) == made
    assert torch.equal(first, expected)
    assert torch.equal(again, expected)


@pytest.mark.parametrize("other", ["entry", "map", "dtype", "shape"])
def test_other_weights_and_maps_are_measured(stacks: list[object], other: str) -> None:
    weight = torch.randn(4, 4, 3, 3, generator=torch.Generator().manual_seed(0))
    operator: Operator = KERNEL
    with remembering(Memory()):
        before = Spectral().norm(weight, operator).bound
        made = len(stacks)
        if other == "entry":
            weight.view(-1)[0] += 3
        elif other == "map":
            operator = kernel(7)
        elif other == "dtype":
            weight = weight.double()
        else:
            weight, operator = weight.reshape(16, 9), Dense()
        found = Spectral().norm(weight, operator).bound
        assert len(stacks) > made
    assert found == operator.norm(weight).bound
    assert other == "dtype" or found != before


def test_nothing_is_remembered_otherwise(stacks: list[object]) -> None:
    weight = torch.eye(3)
    with remembering(Memory()):
        assert Spectral().norm(weight, Dense()).bound == pytest.approx(1)
    made = len(stacks)
    assert Spectral().norm(weight, Dense()).bound == pytest.approx(1)
    assert len(stacks) > made

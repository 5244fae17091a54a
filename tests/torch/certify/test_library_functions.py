"""What torch's functions of one entry give in float32, and their derivatives: hardly more than their rules say.

The rules of the compiler run on tensors of float64 here, beside torch on the float32 numbers themselves.
"""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lipcompile_torch.certify.precision import LIBRARY
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from lipcompile.core.record import Extent, NoAttributes, Site
from lipcompile.ops.activation.rules import CELU, ELU, GELU, HardShrink, HardSigmoid, Hardtanh, LeakyReLU
from lipcompile.ops.activation.write import EXPRESSIONS
from lipcompile.ops.table import OP_BY_NAME

UNIT = 2.0**-24
SETTINGS: dict[str, list[Any]] = {
    "leaky_relu": [LeakyReLU(), LeakyReLU(Fraction(4, 3)), LeakyReLU(Fraction(-1, 3))],
    "elu": [ELU(), ELU(Fraction(1, 3)), ELU(Fraction(10, 3))],
    "celu": [CELU(), CELU(Fraction(1, 3)), CELU(Fraction(10, 3))],
    "gelu": [GELU(), GELU("tanh")],
    "hard_sigmoid": [HardSigmoid(), HardSigmoid(Fraction(1, 5))],
    "hard_shrink": [HardShrink()],
    "hardtanh": [Hardtanh(), Hardtanh(Fraction(1, 3), Fraction(10, 3))],
}
FUNCTIONS = [
    (op.name, attributes)
    for op in OP_BY_NAME.values()
    if op.proof.startswith("activation.md") and op.name not in ("groupsort", "fullsort")
    for attributes in SETTINGS.get(op.name, [NoAttributes()])
]


class Tensors:
    """Rules on float64."""

    def of(self, value: Any) -> Tensor:
        return torch.tensor(float(value), dtype=torch.float64)

    def sqrt(self, x: Any) -> Tensor:
        return torch.as_tensor(x, dtype=torch.float64).sqrt()

    exp, expm1 = staticmethod(torch.exp), staticmethod(torch.expm1)

    def log(self, x: int) -> Tensor:
        return self.of(x).log()

    def minimum(self, first: Tensor, *others: Tensor) -> Tensor:
        for other in others:
            first = torch.minimum(first, other)
        return first

    def maximum(self, first: Tensor, *others: Tensor) -> Tensor:
        for other in others:
            first = torch.maximum(first, other)
        return first


def excess(name: str, attributes: Any, x: Tensor) -> tuple[float, float]:
    """Return by how many units a function exceeds its rule at most, and its derivative, on the device of x."""
    site = Site(attributes, ((1,),), (1,))
    node: Any = SimpleNamespace(attributes=attributes, shape=(1,), site=site)
    size = x.detach().cpu().double().abs()
    extent = Extent(size, size, size)
    op, num = OP_BY_NAME[name], Tensors()
    largest = op.norm(num, site, [extent], {})  # type: ignore[arg-type]
    x = x.detach().requires_grad_()
    found = eval(EXPRESSIONS[name](node, ["x"]), {"torch": torch, "F": F, "x": x})
    assert bool(found.isfinite().all())
    units = float((found.detach().cpu().double().abs() / largest.clamp_min(2.0**-200)).max() - 1) / UNIT
    if op.lipschitz is None:
        return units, 0.0
    (slopes,) = torch.autograd.grad(found.sum(), x)
    [most] = op.lipschitz(num, site, [extent], {})  # type: ignore[arg-type]
    assert bool(slopes.isfinite().all())
    return units, float((slopes.cpu().double().abs() / most).max() - 1) / UNIT


def strided(x: Tensor) -> Tensor:
    """Return the same numbers with gaps between them: other code computes them."""
    return torch.stack((x, x), dim=1)[:, 0]


def numbers() -> Tensor:
    """Return numbers of every exponent from -100 to 59, of both signs, with many mantissas."""
    generator = torch.Generator().manual_seed(0)
    mantissas = torch.randint(2**23, (512,), generator=generator, dtype=torch.int32)
    exponents = torch.arange(27, 127 + 60, dtype=torch.int32) << 23
    positive = (exponents[:, None] | mantissas).flatten().view(torch.float32)
    near = torch.linspace(-12.0, 12.0, 200_001)
    return torch.cat((positive, -positive, near, torch.tensor([0.0, -0.0])))


EVERYWHERE = pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")),
    ],
)
EVERY = pytest.mark.parametrize(("name", "attributes"), FUNCTIONS, ids=str)


@EVERYWHERE
@EVERY
def test_functions_hardly_exceed_their_rules(name: str, attributes: Any, device: str) -> None:
    given = numbers().to(device)
    for x in (given, strided(given)):
        assert max(excess(name, attributes, x)) <= LIBRARY


@pytest.mark.nightly
@EVERYWHERE
@EVERY
def test_functions_hardly_exceed_their_rules_at_any_number(name: str, attributes: Any, device: str) -> None:
    """At all numbers from 2⁻¹³ to 2⁷, and where other code computes those whose neighbours lie apart."""
    piece = torch.arange(2**21, dtype=torch.int32, device=device)
    for start in range((127 - 13) << 23, (127 + 7) << 23, 2**21):
        for sign in (1, -1):
            x = sign * (piece + start).view(torch.float32)
            assert max(*excess(name, attributes, x), *excess(name, attributes, strided(x))) <= LIBRARY

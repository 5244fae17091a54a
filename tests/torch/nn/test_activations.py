"""Activations with trainable numbers: values, gradients, projection, precision."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from lipcompile_torch.certify.sums import sum_to
from lipcompile_torch.nn import functional as lf
from lipcompile_torch.nn import reading
from lipcompile_torch.nn.layers import ConstrainedLayer, Householder, PReLU, Scale
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

MAKERS: dict[str, Callable[[], ConstrainedLayer]] = {
    "prelu": lambda: PReLU((4, 1, 1), 0.5),
    "shared prelu": lambda: PReLU((1,), 2.0),
    "scale": lambda: Scale((4, 1, 1), 0.75),
    "scale of rows": lambda: Scale((6,), 2.0),
    "householder": lambda: Householder((2, 1, 1)),
    "householder in rows": lambda: Householder((3,), axis=-1),
}
SHAPE = (4, 5, 6)


def jacobian(output: Tensor, value: Tensor) -> Tensor:
    """Dense Jacobian, [outputs, entries of the value]."""
    rows = [torch.autograd.grad(y, value, retain_graph=True)[0].flatten() for y in output.flatten()]
    return torch.stack(rows)


def test_prelu_is_that_of_torch() -> None:
    layer, x = PReLU((4, 1, 1), 2.0), torch.randn(3, *SHAPE)
    with torch.no_grad():
        layer.slope.copy_(torch.tensor([0.5, -1.0, 2.0, 0.0]).reshape(4, 1, 1))
    torch.testing.assert_close(layer(x), F.prelu(x, layer.slope.flatten()))


def test_a_right_angle_is_maxmin_and_half_a_turn_an_absolute_value() -> None:
    x = torch.randn(7, 6, dtype=torch.float64)
    first, second = x[:, ::2], x[:, 1::2]
    expected = torch.stack((torch.maximum(first, second), torch.minimum(first, second)), 2).flatten(1)
    torch.testing.assert_close(Householder((3,)).double()(x), expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(lf.householder(x, math.pi / 2), expected)
    absolute = torch.stack((first.abs(), second), 2).flatten(1)
    torch.testing.assert_close(lf.householder(x, math.pi), absolute)


def test_angles_belong_to_their_pairs() -> None:
    x, angle = torch.randn(2, *SHAPE, dtype=torch.float64), torch.tensor([0.3, -4.0], dtype=torch.float64)
    found = lf.householder(x, angle.reshape(2, 1, 1))
    for pair in range(2):
        own = slice(2 * pair, 2 * pair + 2)
        torch.testing.assert_close(found[:, own], lf.householder(x[:, own], float(angle[pair])))
    torch.testing.assert_close(lf.householder(x.movedim(1, -1), angle, -1).movedim(-1, 1), found)


@pytest.mark.parametrize("angle", [-9.0, 0.0, 0.5, 2.0, 3.1])
def test_householder_is_continuous_and_keeps_norms(angle: float) -> None:
    turn = torch.linspace(0, 2 * math.pi, 20001, dtype=torch.float64)
    circle = torch.stack((turn.cos(), turn.sin()), 1)
    found = lf.householder(circle, angle)
    torch.testing.assert_close(found.norm(dim=1), torch.ones_like(turn))
    steps, chords = ((path[1:] - path[:-1]).norm(dim=1) for path in (found, circle))
    assert (steps <= chords + 1e-12).all()


def test_the_gradient_of_an_angle_is_at_most_the_norm_of_the_pair() -> None:
    torch.manual_seed(0)
    layer = Householder((3,)).double()
    for _ in range(50):
        x = torch.randn(1, 6, dtype=torch.float64)
        with torch.no_grad():
            layer.angle.normal_(0, 5)
        sizes = jacobian(layer(x), layer.angle).norm(dim=0)
        pairs = x.reshape(3, 2).norm(dim=1)
        torch.testing.assert_close(sizes[sizes > 0], pairs[sizes > 0])


def test_what_each_position_adds_to_an_angle_is_at_most_its_part_of_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """‖g‖·‖z‖ at each pair z, of sine and cosine together: rounding of sums is bounded by the lengths of terms."""
    seen: list[Tensor] = []

    def noted(x: Tensor, shape: tuple[int, ...]) -> Tensor:
        seen.append(x)
        return sum_to(x, shape)

    monkeypatch.setattr(reading, "sum_to", noted)
    torch.manual_seed(0)
    layer, x, cotangent = Householder((2, 1, 1)).double(), *torch.randn(2, 3, *SHAPE, dtype=torch.float64)
    (layer(x) * cotangent).sum().backward()
    lengths, others = (torch.unflatten(one, 1, (2, 2)).norm(dim=2) for one in (x, cotangent))
    (terms,) = seen
    assert bool((terms.abs() <= lengths * others * (1 + 1e-12)).all())


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_every_precision_and_the_empty_batch(name: str, dtype: torch.dtype) -> None:
    layer = MAKERS[name]().to(dtype)
    for batch in (0, 3):
        layer.zero_grad()
        x = torch.randn(batch, *SHAPE, dtype=dtype, requires_grad=True)
        y = layer(x)
        assert y.shape == x.shape
        assert y.dtype == dtype
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        torch.autograd.backward((y * y).sum() + (slope * slope).sum())
        for parameter in layer.parameters():
            assert parameter.grad is not None
            assert torch.isfinite(parameter.grad).all()
            assert batch or not parameter.grad.any()


@pytest.mark.parametrize("name", MAKERS)
def test_at_zero_slopes_are_within_the_bound(name: str) -> None:
    layer = MAKERS[name]().double()
    x = torch.zeros(1, *SHAPE, dtype=torch.float64, requires_grad=True)
    assert float(torch.linalg.svdvals(jacobian(layer(x), x))[0]) <= 1 + 1e-12


@pytest.mark.parametrize(("layer", "bound"), [(PReLU((4, 1, 1), 0.1), 0.1), (Scale((6,), 0.3), 0.3)])
def test_layers_start_in_their_box_and_return_to_it(layer: ConstrainedLayer, bound: float) -> None:
    (parameter,) = layer.parameters()
    assert 0 < float(parameter.detach().double().abs().max()) <= bound
    with torch.no_grad():
        parameter.add_(torch.randn_like(parameter))
    layer.project_()
    assert float(parameter.detach().double().abs().max()) <= bound
    assert set(layer.certified_norms()) == set(layer.constraints)


def test_angles_are_free_but_finite() -> None:
    layer = Householder((3,))
    with torch.no_grad():
        layer.angle.fill_(1e4)
    layer.project_()
    assert (layer.angle == 1e4).all()
    with torch.no_grad():
        layer.angle[0] = math.nan
    with pytest.raises(ValueError, match="NaN or infinity"):
        layer.project_()


def test_what_does_not_fit_is_refused() -> None:
    for layer in (PReLU((4, 1, 1), 1.0), Scale((4, 1, 1), 1.0)):
        for wrong in (torch.ones(2, 3, 5, 6), torch.ones(4, 5, 6), torch.ones(2, 4)):
            with pytest.raises(ValueError, match="does not fit examples"):
                layer(wrong)
    with pytest.raises(ValueError, match="into pairs"):
        lf.householder(torch.ones(2, 3), 1.0)
    for angle in (torch.ones(4, 1), torch.ones(2, 1), torch.ones(2), torch.ones(1, 1, 1)):
        with pytest.raises(ValueError, match="do not fit the 4 pairs"):
            lf.householder(torch.ones(2, 8, 2, 3), angle)
    with pytest.raises(ValueError, match="outside an example"):
        lf.householder(torch.ones(2, 4), 1.0, axis=-2)


def test_shapes_are_printed() -> None:
    assert repr(PReLU((4, 1), 1.0)) == "PReLU((4, 1))"
    assert repr(Scale((4,), 1.0)) == "Scale((4,))"
    assert repr(Householder((2, 1))) == "Householder((2, 1), axis=0)"

"""Amortised projection: weights stay inside their sets on every path, certified or not; faults in it are found.

The oracle is the largest singular value of the dense Jacobian of the layer, in float64.
"""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from lipcompile_torch.certify import drift, operators, projection
from lipcompile_torch.certify import single_precision as single
from lipcompile_torch.certify.constraints import Fixed, Frobenius, Orthogonal, RowBalls, Spectral
from lipcompile_torch.certify.drift import COARSE, FINE
from lipcompile_torch.certify.operators import Convolution
from lipcompile_torch.certify.projection import Amortised, project_
from lipcompile_torch.nn.layers import ConstrainedLayer, Conv1d, Conv2d, ConvTranspose2d, Dense, Embedding
from torch import Tensor

from tests.torch.private_net import private

Layer = tuple[Callable[[], ConstrainedLayer], tuple[int, ...]]
SAME = ((1, 1), (1, 1))
LAYERS: dict[str, Layer] = {
    "dense": (lambda: Dense(90, 70, bias=0.3), (90,)),
    "tall": (lambda: Dense(9, 30, constraint=Spectral(0.4)), (9,)),
    "large": (lambda: Dense(150, 140), (150,)),
    "frozen": (lambda: Dense(12, 10, constraint=Fixed(0.7)), (12,)),
    "orthogonal": (lambda: Dense(20, 30, constraint=Orthogonal()), (20,)),
    "frobenius": (lambda: Dense(20, 30, constraint=Frobenius(0.5)), (20,)),
    "zeros": (lambda: Conv2d(3, 8, (3, 3), (6, 5), 9, 9, padding=SAME), (3, 6, 5)),
    "circular": (lambda: Conv2d(2, 4, (3, 3), (6, 5), 9, 9, padding=SAME, padding_mode="circular"), (2, 6, 5)),
    "reflect": (lambda: Conv2d(2, 4, (3, 3), (6, 5), 16, 36, padding=SAME, padding_mode="reflect"), (2, 6, 5)),
    "replicate": (lambda: Conv2d(2, 4, (3, 3), (6, 5), 9, 36, padding=SAME, padding_mode="replicate"), (2, 6, 5)),
    "strided": (lambda: Conv2d(2, 4, (3, 3), (6, 6), 4, 9, (2, 2), ((0, 1), (0, 1))), (2, 6, 6)),
    "dilated": (lambda: Conv2d(2, 4, (2, 2), (6, 5), 4, 4, dilation=(2, 1)), (2, 6, 5)),
    "groups": (lambda: Conv2d(4, 6, (3, 3), (6, 5), 9, 9, padding=SAME, groups=2), (4, 6, 5)),
    "line": (lambda: Conv1d(2, 3, (4,), (7,), 4, 4, padding=((1, 2),), constraint=Orthogonal()), (2, 7)),
    "transposed": (lambda: ConvTranspose2d(4, 3, (2, 2), (3, 3), 1, 4, stride=(2, 2)), (4, 3, 3)),
}


def norm_of(layer: ConstrainedLayer, shape: tuple[int, ...]) -> float:
    exact = copy.deepcopy(layer).double()
    basis = torch.eye(math.prod(shape), dtype=torch.float64).reshape(-1, *shape)
    with torch.no_grad():
        matrix = exact(basis) - exact(torch.zeros(1, *shape, dtype=torch.float64))
    return float(torch.linalg.svdvals(matrix.flatten(1))[0])


def bound_of(layer: ConstrainedLayer) -> float:
    return layer.constraints["weight"][0].bound


def excess(layer: ConstrainedLayer, shape: tuple[int, ...]) -> float:
    """By how much the weight is outside, relatively."""
    constraint, _ = layer.constraints["weight"]
    weight = layer.get_parameter("weight").detach().double()
    norm = float(weight.norm()) if isinstance(constraint, Frobenius) else norm_of(layer, shape)
    bias = layer._parameters.get("bias")
    if bias is not None:
        assert float(bias.detach().double().norm()) <= layer.constraints["bias"][0].bound
    return norm / constraint.bound - 1


def noisy(layer: ConstrainedLayer, size: float) -> None:
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(torch.randn_like(parameter) * size * bound_of(layer) / math.sqrt(parameter.numel()))


def steps(layer: ConstrainedLayer, size: float, slack: float, count: int) -> Iterator[int]:
    """Move the weights at random, and project, so many times."""
    torch.manual_seed(1)
    for step in range(count):
        noisy(layer, size)
        project_(layer.amortised(), slack)
        yield step


class Paths:
    """Counts certificates, and drifts by how they were measured."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.certified, self.measured = 0, [0, 0, 0]
        certify, measured = Amortised.certify, Amortised.measured

        def counted_certify(*arguments: Any) -> None:
            self.certified += 1
            certify(*arguments)

        def counted_measured(known: Amortised, weight: Tensor, measure: int) -> Any:
            self.measured[measure] += 1
            return measured(known, weight, measure)

        monkeypatch.setattr(Amortised, "certify", counted_certify)
        monkeypatch.setattr(Amortised, "measured", counted_measured)


@pytest.mark.slow
@pytest.mark.parametrize("size", [0.003, 0.03, 0.3])
@pytest.mark.parametrize("slack", [0.0, 0.1])
@pytest.mark.parametrize("name", LAYERS)
def test_weights_stay_inside_on_noisy_trajectories(name: str, slack: float, size: float) -> None:
    make, shape = LAYERS[name]
    torch.manual_seed(0)
    layer = make()
    for step in steps(layer, size, slack, 40):
        if step % 4 == 3:
            assert excess(layer, shape) <= 0
    assert excess(layer, shape) > -0.5  # and do not fade away; bounds of small padded images are loose


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["dense", "large", "zeros", "orthogonal"])
def test_weights_of_other_dtypes_stay_inside(name: str, dtype: torch.dtype) -> None:
    make, shape = LAYERS[name]
    layer = make().to(dtype)
    for step in steps(layer, 0.02, 0.1, 30):
        if step % 5 == 4:
            assert excess(layer, shape) <= 0


def top(weight: Tensor) -> Tensor:
    """The direction in which a matrix grows fastest."""
    left, _, right = torch.linalg.svd(weight.double(), full_matrices=False)
    return torch.outer(left[:, 0], right[0]).to(weight.dtype)


def worst_excess(slack: float = 0.3, step: float = 0.04, dtype: torch.dtype = torch.float32) -> float:
    """Grow a matrix along its longest direction, where the triangle inequality is an equation."""
    torch.manual_seed(0)
    layer, worst = Dense(90, 70).to(dtype), -math.inf
    for _ in range(24):
        with torch.no_grad():
            layer.weight.add_(step * top(layer.weight))
        project_(layer.amortised(), slack)
        worst = max(worst, excess(layer, (90,)))
    return worst


def worst_convolution() -> float:
    """Grow a kernel of ones on a circle, of which √reads·‖kernel‖ is the norm."""
    layer, worst = Conv2d(1, 1, (3, 3), (6, 5), 9, 9, padding=SAME, padding_mode="circular"), -math.inf
    with torch.no_grad():
        layer.weight.fill_(1 / 9)
    for _ in range(24):
        with torch.no_grad():
            layer.weight.add_(0.01 / 9)
        project_(layer.amortised(), 0.3)
        worst = max(worst, excess(layer, (1, 6, 5)))
    return worst


def test_the_worst_drift_is_counted_whole() -> None:
    assert -0.02 < worst_excess() <= 0
    assert -0.02 < worst_convolution() <= 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("slack", [0.0, 0.3])
def test_the_worst_drift_is_counted_whole_in_other_dtypes(dtype: torch.dtype, slack: float) -> None:
    assert worst_excess(slack, 0.04, dtype) <= 0


def scaled(function: Any, factor: float) -> Any:
    def smaller(*arguments: Any) -> Any:
        found = function(*arguments)
        if isinstance(found, drift.Moments):
            norms = found.norms
            return replace(found, norms=lambda values: (factor * norms(values)[0], factor * norms(values)[1]))
        return found * factor

    return smaller


@pytest.mark.parametrize("share", [0.0, 0.95])
def test_a_drift_that_is_not_counted_in_full_is_found(monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    monkeypatch.setattr(projection, "drift_length", scaled(drift.drift_length, share))
    monkeypatch.setattr(projection, "drift_norm", scaled(drift.drift_norm, share))
    assert worst_excess(step=0.08) > 0


def test_an_anchor_that_is_claimed_to_be_smaller_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    anchored = Amortised._anchored

    def smaller(self: Amortised, weight: Tensor, bound: float, before: Any) -> Any:
        return anchored(self, weight, 0.95 * bound, before)

    monkeypatch.setattr(Amortised, "_anchored", smaller)
    assert worst_excess() > 0


def test_a_certificate_in_float32_that_is_too_small_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "spectral_bound", scaled(single.spectral_bound, 0.95))
    assert worst_excess() > 0


@pytest.mark.parametrize("factor", [1.0, 0.95 * 3])
def test_a_factor_of_convolutions_that_is_too_small_is_found(
    monkeypatch: pytest.MonkeyPatch, factor: float
) -> None:
    monkeypatch.setattr(Convolution, "factor", factor)
    assert worst_convolution() > 0


def test_the_share_of_an_anchor_follows_what_is_scaled() -> None:
    """Another share would be sound too, and cost a certificate each time: the drift would contain the scaling."""
    layer = Dense(90, 70)
    for _ in steps(layer, 0.03, 0.1, 7):
        pass
    anchor = layer._amortised["weight"].anchor
    assert anchor is not None
    assert anchor.share < 1
    weight, copied = layer.weight.detach().flatten(), anchor.copy.float().flatten()
    assert float(torch.dot(weight, copied) / torch.dot(copied, copied)) == pytest.approx(anchor.share, rel=0.02)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("slack", [0.0, 0.1])
def test_projecting_again_changes_nothing(name: str, slack: float) -> None:
    torch.manual_seed(0)
    layer = LAYERS[name][0]()
    for _ in steps(layer, 0.02, slack, 12):
        before = {key: value.clone() for key, value in layer.state_dict().items()}
        for _ in range(3):
            project_(layer.amortised(), slack)
        assert all(torch.equal(value, before[key]) for key, value in layer.state_dict().items())


@pytest.mark.parametrize("name", ["dense", "large", "zeros", "orthogonal"])
def test_a_weight_that_was_far_outside_does_not_move_again(name: str) -> None:
    """Scaled to its bound in float64, it must not shrink because its anchor is said to lie there."""
    torch.manual_seed(0)
    layer, shape = LAYERS[name][0](), LAYERS[name][1]
    project_(layer.amortised(), 0.1)
    with torch.no_grad():
        layer.get_parameter("weight").mul_(100)
    project_(layer.amortised(), 0.1)
    before = layer.get_parameter("weight").detach().clone()
    for _ in range(12):
        project_(layer.amortised(), 0.1)
        assert torch.equal(before, layer.get_parameter("weight"))
    assert excess(layer, shape) <= 0


@pytest.mark.parametrize("name", ["dense", "large"])
def test_a_weight_that_is_scaled_gets_room_for_an_anchor_in_half_precision(name: str) -> None:
    torch.manual_seed(0)
    layer, shape = LAYERS[name][0](), LAYERS[name][1]
    project_(layer.amortised(), 0.1)
    with torch.no_grad():
        layer.get_parameter("weight").mul_(2)
    project_(layer.amortised(), 0.1)
    anchors = [known.anchor for parameter, known in layer.amortised() if parameter is layer.weight]
    assert [anchor and anchor.copy.dtype for anchor in anchors] == [torch.float16]
    assert -4e-3 < excess(layer, shape) <= 0


def test_without_slack_no_room_is_made() -> None:
    layer = Dense(150, 140)
    for _ in range(2):
        with torch.no_grad():
            layer.get_parameter("weight").mul_(2)
        project_(layer.amortised(), 0.0)
    assert -1e-5 < excess(layer, (150,)) <= 0


def test_few_certificates_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    paths, layer = Paths(monkeypatch), Dense(150, 140)
    for _ in steps(layer, 0.01, 0.1, 40):
        pass
    assert sum(paths.measured) > 30
    assert paths.certified < 8


@pytest.mark.parametrize(("size", "kinds"), [(0.02, 1), (0.1, 2), (0.3, 3)], ids=["slowly", "faster", "fast"])
def test_drifts_are_measured_as_finely_as_it_pays(
    size: float, kinds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In finer blocks only where certificates are frequent."""
    paths, layer = Paths(monkeypatch), Dense(450, 400)
    for _ in steps(layer, size, 0.1, 40):
        pass
    assert [count > 0 for count in paths.measured] == [kind < kinds for kind in range(3)]


@pytest.mark.parametrize("width", [400, 60])
def test_a_finer_measure_saves_certificates(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a matrix that is squared on in any case there is none."""
    found = []
    for kinds in (2, 3):
        with monkeypatch.context() as patched:
            patched.setattr(projection, "_BLOCKS", (None, COARSE, FINE)[:kinds])
            paths, layer = Paths(patched), Dense(450, width)
            for _ in steps(layer, 0.25, 0.1, 60):
                pass
            found.append((paths.certified, paths.measured[2]))
    (coarse, _), (fine, measured) = found
    assert (measured > 0) == (fine < 0.8 * coarse) == (width > 64)


def test_without_slack_weights_are_never_smaller_than_they_must_be() -> None:
    layer = Dense(90, 70)
    for step in steps(layer, 0.3, 0.0, 12):
        assert step < 3 or excess(layer, (90,)) > -1e-3


def test_what_the_drift_cost_is_given_back() -> None:
    layer = Dense(150, 140)
    shares = []
    for _ in steps(layer, 0.05, 0.1, 60):
        shares.append(norm_of(layer, (150,)))
    assert min(shares[20:]) > 0.9 - 0.01
    assert max(shares[20:]) > 0.98


def test_weights_that_shrink_are_left_alone_once_certified() -> None:
    layer = Dense(90, 70)
    for _ in steps(layer, 0.02, 0.1, 4):
        pass
    with torch.no_grad():
        layer.weight.mul_(0.5)
    project_(layer.amortised(), 0.1)
    for _ in range(10):
        noisy(layer, 0.02)
        before = layer.weight.detach().clone()
        project_(layer.amortised(), 0.1)
        assert torch.equal(before, layer.weight)


def test_edits_in_between_are_seen() -> None:
    """Through `.data` as well, of which torch keeps no count."""
    layer = Dense(90, 70)
    for _ in steps(layer, 0.02, 0.1, 4):
        pass
    for factor in (1.02, 1.5, 100.0, -3.0):
        layer.weight.data.mul_(factor)
        project_(layer.amortised(), 0.1)
        assert excess(layer, (90,)) <= 0


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("name", ["dense", "large", "zeros", "orthogonal", "frobenius"])
def test_diverged_weights_are_refused(name: str, value: float) -> None:
    layer = LAYERS[name][0]()
    for _ in steps(layer, 0.02, 0.1, 4):
        pass
    with torch.no_grad():
        layer.get_parameter("weight").view(-1)[3] = value
    with pytest.raises(ValueError, match="NaN or infinity"):
        project_(layer.amortised(), 0.1)


def test_orthogonal_weights_stay_nearly_so() -> None:
    layer = LAYERS["orthogonal"][0]()
    for _ in steps(layer, 0.02, 0.05, 60):
        values = torch.linalg.svdvals(layer.get_parameter("weight").detach().double())
        assert float(values.min()) > 1 - 2 * 0.05 - 1e-3


def test_tables_are_projected_as_ever() -> None:
    layer = Embedding(20, 6, RowBalls(0.5))
    for _ in range(5):
        with torch.no_grad():
            layer.table.add_(torch.randn_like(layer.table))
        project_(layer.amortised(), 0.1)
        assert float(layer.table.detach().double().norm(dim=1).max()) <= 0.5


# --- anchors are no state ---


def anchored() -> Dense:
    layer = Dense(90, 70)
    for _ in steps(layer, 0.02, 0.1, 4):
        pass
    assert layer._amortised["weight"].anchor is not None
    return layer


@pytest.mark.parametrize("kind", ["deepcopy", "pickle"])
def test_copies_begin_without_anchors(kind: str) -> None:
    layer = anchored()
    other: Dense = copy.deepcopy(layer) if kind == "deepcopy" else pickle.loads(pickle.dumps(layer))
    assert layer._amortised["weight"].anchor is not None
    assert other._amortised["weight"].anchor is None
    assert torch.equal(layer.weight, other.weight)
    for _ in steps(other, 0.02, 0.1, 6):
        assert excess(other, (90,)) <= 0


def test_anchors_are_not_stored() -> None:
    assert anchored().state_dict().keys() == {"weight"}


def test_modules_forget_when_weights_come_from_elsewhere() -> None:
    module, _, _ = private()
    for _ in range(6):
        for layer in (module.inner, module.outer):
            noisy(layer, 0.01)
        module.project_()
    known = [state for _, state in module._amortised()]
    assert any(state.anchor is not None for state in known)
    state, kept = module.state_dict(), module.inner.weight.detach().clone()
    module.load_state_dict(state)
    assert all(state.anchor is None for state in known)
    assert torch.equal(module.inner.weight, kept)
    module.project_()
    module.project_()
    module.double()
    assert all(state.anchor is None for state in known)

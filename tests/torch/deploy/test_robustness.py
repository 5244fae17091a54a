"""Certified radii: exact where they can be derived by hand, never beaten by an attack, red if they are too large.

The linear classifiers below decide between W x + b; the distance of x from where classes i and j tie is
(f_i(x) - f_j(x))/‖W_i - W_j‖.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lipcompile_torch import certified_radii
from lipcompile_torch.certify.intervals import Interval
from lipcompile_torch.deploy import certification, robustness
from lipcompile_torch.deploy.certification import AttackConfig, _Search, attack, certify
from lipcompile_torch.deploy.robustness import Constants, beyond_the_clip, certified_constants, margins, outputs_of
from lipcompile_torch.train.certificate import derived_slope
from lipcompile_torch.train.module import LipschitzModule
from torch import Tensor

import lipcompile
from lipcompile.core.backend import instantiate
from lipcompile.emitters.torch.emit import emit
from lipcompile.frontends.options import ModelOptions
from lipcompile.pipeline import check
from tests.emitters.test_emit import NETWORKS
from tests.nights import by_day
from tests.torch.private_net import Net

CROSS_ENTROPY = "loss cross_entropy"


def emitted(folder: Path, body: str, bounds: Any = None) -> Any:
    """Compile a network and return its module, in float64."""
    path = folder / "net.lip"
    path.write_text("model net {\n" + body.replace("; ", "\n") + "\n}\n")
    derivation = check(str(path), ModelOptions(bounds=bounds))
    assert derivation.ok, derivation.diagnostics
    torch.manual_seed(0)
    return instantiate(folder / "net.py", emit(derivation)).double()


def linear(folder: Path, weight: list[list[float]], bias: list[float], norm: str = "100") -> Any:
    """The classifier W x + b, with room in its constraints."""
    loss = CROSS_ENTROPY if len(weight) > 1 else "loss hinge"
    module = emitted(
        folder,
        f"input x: tensor[{len(weight[0])}], norm <= {norm}; "
        f"dense({len(weight)}, bias=100, constraint=spectral(100)); {loss}",
    )
    module.load_state_dict({"dense.weight": torch.tensor(weight), "dense.bias": torch.tensor(bias)})
    return module


def at(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


# What is known by hand


@pytest.mark.parametrize(
    ("weight", "bias", "x", "label", "distance"),
    [
        ([[3.0, 4.0], [0.0, 0.0]], [0.0, 0.0], [1.0, 1.0], 0, 7 / 5),
        ([[3.0, 4.0], [0.0, 0.0]], [-2.0, 0.0], [1.0, 1.0], 0, 1.0),
        ([[3.0, 4.0], [0.0, 0.0]], [0.0, 0.0], [-1.0, 0.0], 1, 3 / 5),
        ([[1.0, 0.0], [0.0, 1.0]], [0.0, 0.0], [3.0, 1.0], 0, math.sqrt(2)),
        # Of three classes the nearest boundary counts: 2/2 to the second, 3/√5 to the third.
        ([[1.0, 0.0], [-1.0, 0.0], [0.0, 2.0]], [0.0, 0.0, -2.0], [1.0, 0.0], 0, 1.0),
        ([[1.0, 0.0], [-1.0, 0.0], [0.0, 2.0]], [0.0, 0.0, 0.0], [1.0, 0.0], 0, 1 / math.sqrt(5)),
        ([[3.0, 4.0]], [0.0], [1.0, 1.0], 1, 7 / 5),
        ([[3.0, 4.0]], [-8.0], [1.0, 1.0], -1, 1 / 5),
        ([[3.0, 4.0]], [-8.0], [1.0, 1.0], 0, 1 / 5),
    ],
)
def test_a_linear_classifier_is_certified_up_to_its_boundary(
    tmp_path: Path, weight: list[list[float]], bias: list[float], x: list[float], label: int, distance: float
) -> None:
    module = linear(tmp_path, weight, bias)
    (radius,) = certified_radii(module, at(x), torch.tensor([label]))
    assert radius <= distance
    assert radius == pytest.approx(distance, rel=1e-5)


def test_what_is_wrong_or_a_tie_has_no_radius(tmp_path: Path) -> None:
    module = linear(tmp_path, [[1.0, 0.0], [0.0, 1.0]], [0.0, 0.0])
    assert certified_radii(module, at([1.0, 2.0], [1.0, 1.0]), torch.tensor([0, 0])).tolist() == [0.0, 0.0]


def test_the_rule_of_all_logits_where_no_dense_layer_makes_them(tmp_path: Path) -> None:
    """abs(x): l = 1, so a gap of 2 gives 2/√2."""
    module = emitted(tmp_path, f"input x: tensor[2], norm <= 10; abs; {CROSS_ENTROPY}")
    assert module.last_dense is None
    (radius,) = certified_radii(module, at([-3.0, 1.0]), torch.tensor([0]))
    assert radius == pytest.approx(math.sqrt(2), rel=1e-6)
    assert radius <= math.sqrt(2)


def test_the_better_of_both_rules_counts(tmp_path: Path) -> None:
    """Rows of norm 1 at an angle of 60°: they are 1 apart, and l = √1.5."""
    module = linear(tmp_path, [[1.0, 0.0], [0.5, math.sqrt(0.75)]], [0.0, 0.0])
    found = certified_constants(module)
    assert found.logits == pytest.approx(math.sqrt(1.5), rel=1e-6)
    assert found.pairs is not None
    assert found.pairs[0, 1] == pytest.approx(1.0, rel=1e-6)
    first, second = module.dense.weight.detach()
    assert float(found.pairs[0, 1]) >= math.dist(first.tolist(), second.tolist())
    # With opposite rows they are 2 apart, where √2·l = 2: neither is better.
    module = linear(tmp_path, [[1.0, 0.0], [-1.0, 0.0]], [0.0, 0.0])
    assert certified_constants(module).pairs[0, 1] == pytest.approx(2.0, rel=1e-9)  # type: ignore[index]


def test_constants_follow_the_weights(tmp_path: Path) -> None:
    module = emitted(tmp_path, f"input x: tensor[4], norm <= 1; dense(4); groupsort(2); dense(3); {CROSS_ENTROPY}")
    before = certified_constants(module)
    with torch.no_grad():
        module.dense.weight *= 0.5
    after = certified_constants(module)
    assert module.lipschitz == 1.0
    assert after.logits == pytest.approx(0.5, rel=1e-6)
    assert after.features == pytest.approx(0.5 * (before.features or 0), rel=1e-6)


def test_a_module_without_rules_is_certified_by_its_declared_constant() -> None:
    module = Net().double()
    found = certified_constants(module)
    assert (found.logits, found.features) == (Net.lipschitz, None)
    assert found.pairs is not None
    assert bool((found.pairs >= math.sqrt(2)).all())


def test_weights_out_of_their_sets_are_projected_first() -> None:
    module = Net()
    with torch.no_grad():
        module.outer.weight *= 100
    x, y = torch.randn(32, 4), torch.zeros(32, dtype=torch.long)
    radii = certified_radii(module, x, y)
    module.project_()
    torch.testing.assert_close(radii, certified_radii(module, x, y))
    assert module.certified_norms()["outer.weight"] <= 1


# Every rule of a family, against true Jacobians


def steepest(module: Any, x: Tensor) -> float:
    """The largest singular value of the Jacobians of what the last dense layer reads, or of the output."""
    seen: list[Tensor] = []
    layer = None if module.last_dense is None else module.get_submodule(module.last_dense)
    hook = None if layer is None else layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))

    def features(one: Tensor) -> Tensor:
        seen.clear()
        output = module(one[None])
        return (output if layer is None else seen[0]).flatten()

    with robustness.evaluating(module):
        jacobians = [torch.autograd.functional.jacobian(features, one).flatten(1) for one in x]  # type: ignore[no-untyped-call]
    if hook is not None:
        hook.remove()
    return max(float(torch.linalg.matrix_norm(jacobian, 2)) for jacobian in jacobians)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("share", [1.0, 0.6])
def test_slopes_bound_every_jacobian(tmp_path: Path, name: str, share: float) -> None:
    module = emitted(tmp_path, f"{NETWORKS[name]}\n loss cross_entropy(temperature=2)")
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        module.project_()
        for parameter in module.parameters():
            parameter *= share
    found = certified_constants(module)
    norms = {n: Interval.exactly(norm) for n, norm in module.certified_norms().items()}
    slope = Interval.around(module.slope(norms)).high
    assert found.logits <= module.lipschitz
    x = torch.randn(6, *module.input_shape, generator=generator, dtype=torch.float64)
    assert steepest(module, x) <= slope * (1 + 1e-9)


# An adversary

SMALL = "input x: tensor[6], norm <= 3"
TRAINED = {
    "vector": f"{SMALL}; dense(16); groupsort(2); dense(16); groupsort(4); dense(4); {CROSS_ENTROPY}",
    "biases": f"{SMALL}; dense(16, bias=1); relu; dense(4, bias=2); {CROSS_ENTROPY}",
    "image": "input x: tensor[1, 6, 6], norm <= 3; conv2d(4, kernel=3, padding=1); groupsort(2); l2_pool(2); "
    f"flatten; dense(3); {CROSS_ENTROPY}",
    "residual": f"{SMALL}; residual(add) {{ dense(6); groupsort(2) }}; dense(3); {CROSS_ENTROPY}",
    "one logit": f"{SMALL}; dense(16); groupsort(2); dense(1); loss hinge",
    "no last dense": f"{SMALL}; dense(4); groupsort(2); dense(4); leaky_relu(0.5); {CROSS_ENTROPY}",
    "gates": f"{SMALL}; h = dense(6); gate = sigmoid; multiply(h, gate); dense(3); {CROSS_ENTROPY}",
    "trusted": f"{SMALL}, trusted; dense(16); groupsort(2); dense(4); {CROSS_ENTROPY}",
}


def trained(folder: Path, name: str, seed: int, bounds: Any = None) -> tuple[Any, Tensor, Tensor]:
    """A module after some steps of ordinary training on blobs, in float32, with the blobs."""
    torch.manual_seed(seed)
    module = emitted(folder, TRAINED[name], bounds).float()
    classes = 2 if name == "one logit" else module(torch.zeros(1, *module.input_shape)).shape[1]
    y = torch.randint(0, classes, (64,))
    x = torch.randn(classes, *module.input_shape)[y] + 0.5 * torch.randn(64, *module.input_shape)
    x = x / x.flatten(1).norm(dim=1).clamp_min(2.9).reshape(-1, *(1,) * (x.dim() - 1)) * 2.9
    y = 2 * y - 1 if name == "one logit" else y
    optimizer = torch.optim.Adam(module.parameters(), lr=0.05)
    for _ in range(30):
        optimizer.zero_grad()
        module.criterion(module(x), y).backward()
        optimizer.step()
        module.project_()
    return module, x, y


@pytest.mark.parametrize("name", ["vector", "residual", "one logit"])
def test_radii_of_clipped_modules_are_those_of_their_weights_as_they_are(tmp_path: Path, name: str) -> None:
    """Nothing constrains these weights: steps of Adam take their norms beyond 1, and radii follow."""
    module, x, y = trained(tmp_path, name, 0, bounds="clip")
    assert module.clips
    norms = module.certified_norms()
    weights = {key: p.detach() for key, p in module.named_parameters() if p.dim() == 2}
    assert max(float(torch.linalg.matrix_norm(weight, 2)) for weight in weights.values()) > 1.5
    for key, weight in weights.items():
        assert norms[key] >= float(torch.linalg.matrix_norm(weight.double(), 2))
    radii = certified_radii(module, x, y)
    assert (radii > 0).float().mean() > 0.5
    nearest = attack(module, x, y, radii, AttackConfig(steps=40, restarts=4, seed=0))
    assert bool((nearest[radii > 0] == math.inf).all())
    far = attack(module, x, y, 20 * radii, AttackConfig(steps=40, restarts=4, seed=0))
    assert bool((far < math.inf).any())


@pytest.mark.parametrize("name", by_day({"vector", "image", "residual", "gates"}, TRAINED))
@pytest.mark.parametrize("seed", by_day({0}, [0, 1]))
def test_no_attack_succeeds_within_a_certified_radius(tmp_path: Path, name: str, seed: int) -> None:
    module, x, y = trained(tmp_path, name, seed)
    radii = certified_radii(module, x, y)
    assert (radii > 0).float().mean() > 0.5
    nearest = attack(module, x, y, radii, AttackConfig(steps=40, restarts=4, seed=seed))
    assert bool((nearest[radii > 0] == math.inf).all())
    # Twice a typical radius is within reach of the same attack, so that it is no idle one.
    far = attack(module, x, y, 6 * radii, AttackConfig(steps=40, restarts=4, seed=seed))
    assert bool((far < math.inf).any())


def test_an_exact_adversary_is_just_outside(tmp_path: Path) -> None:
    module = linear(tmp_path, [[3.0, 4.0], [0.0, 0.0]], [-2.0, 0.0])
    x, y = at([1.0, 1.0], [0.5, 2.0]), torch.tensor([0, 0])
    radii = certified_radii(module, x, y)
    towards = -torch.tensor([3.0, 4.0], dtype=torch.float64) / 5
    right = [
        margins(outputs_of(module, x + share * radii[:, None] * towards), y) > 0 for share in (0.999999, 1.05)
    ]
    assert right[0].tolist() == [True, True]
    assert right[1].tolist() == [False, False]


def test_the_attack_finds_what_is_five_per_cent_outside(tmp_path: Path) -> None:
    module = linear(tmp_path, [[3.0, 4.0], [0.0, 0.0]], [-2.0, 0.0])
    x, y = at([1.0, 1.0], [0.5, 2.0]), torch.tensor([0, 0])
    radii = certified_radii(module, x, y)
    inside, outside = (attack(module, x, y, share * radii, AttackConfig()) for share in (1.0, 1.05))
    assert inside.tolist() == [math.inf, math.inf]
    assert bool(((outside > radii) & (outside <= 1.05 * radii)).all())


def test_the_attack_reports_true_distances(tmp_path: Path) -> None:
    """In float32, at inputs so large that the sum of an input and a change is rounded by more than the change."""
    module = linear(tmp_path, [[1.0, 0.0], [0.0, 1.0]], [0.0, 0.0], norm="1e6").float()
    x = torch.tensor([[3e4, 3e4 - 0.01]])
    radius = torch.tensor([0.005], dtype=torch.float64)
    assert float(attack(module, x, torch.tensor([0]), radius, AttackConfig())) == math.inf


def test_an_attack_leaves_a_trusted_ball_alone(tmp_path: Path) -> None:
    layer = "dense(2, constraint=orthogonal)"
    module = emitted(tmp_path, f"input x: tensor[2], norm <= 1, trusted; {layer}; {CROSS_ENTROPY}")
    seen: list[Tensor] = []
    module.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    attack(module, at([0.0, -1.0]), torch.tensor([0]), torch.tensor([2.5]).double(), AttackConfig(steps=40))
    assert max(float(one.norm(dim=1).max()) for one in seen) <= 1


@pytest.mark.parametrize(("x", "radius", "norm"), [(1.0, 1e-7, 9.0), (0.0, 1 / 3, 9.0), (0.0, 1.0, 1 / 3)])
def test_rounding_leads_no_example_out_of_its_ball(x: float, radius: float, norm: float) -> None:
    """Next to 1 float32 has 1 + 1.2e-7, and next to 1/3 a number above it."""
    module: Any = SimpleNamespace(input_trusted=True, input_norm=norm)
    limit = torch.tensor([radius], dtype=torch.float64)
    search = _Search(module, torch.tensor([[x]]), torch.tensor([0]), limit)
    moved = search.shifted(torch.full((1, 1), 9.0, dtype=torch.float64)).double()
    assert x <= float(moved) <= min(x + radius, norm)


# What a certificate is not about


def test_features_are_no_examples(tmp_path: Path) -> None:
    """Features of the shape of an example, a hundredth as long: radii would be a hundred times too large."""
    layers = "frozen { dense(4, constraint=spectral(0.01)) }; dense(3)"
    module = emitted(tmp_path, f"input x: tensor[4], norm <= 10; {layers}; {CROSS_ENTROPY}")
    x = torch.randn(2, 4, dtype=torch.float64)
    with module.on_features(), pytest.raises(ValueError, match="takes features"):
        certified_radii(module, x, torch.tensor([0, 1]))
    assert len(certified_radii(module, x, torch.tensor([0, 1]))) == 2


@pytest.mark.parametrize("where", ["", "dense"])
def test_hooks_are_refused(tmp_path: Path, where: str) -> None:
    module = linear(tmp_path, [[3.0, 4.0], [0.0, 0.0]], [0.0, 0.0])
    module.get_submodule(where).register_forward_pre_hook(lambda _, inputs: (10 * inputs[0],))
    with pytest.raises(ValueError, match="hooks"):
        certified_radii(module, at([1.0, 1.0]), torch.tensor([0]))


@pytest.mark.parametrize("lost", [math.inf, math.nan])
def test_what_is_not_finite_has_no_radius(tmp_path: Path, lost: float) -> None:
    """The clip makes it zero, where the bias decides; no distance from it is finite."""
    module = linear(tmp_path, [[3.0, 4.0], [0.0, 0.0]], [1.0, 0.0])
    radii = certified_radii(module, at([lost, 0.0], [1.0, 1.0]), torch.tensor([0, 0]))
    assert float(radii[0]) == 0
    assert float(radii[1]) == pytest.approx(8 / 5, rel=1e-5)


def test_rounding_that_vanishes_at_the_example_is_seen_near_it(tmp_path: Path) -> None:
    """x + 10^6 - 10^6 in float32: exact at 1/8, off by 1/32 nearby, where both logits tie."""
    layers = "dense(2, bias=2000000); dense(2)"
    module = emitted(tmp_path, f"input x: tensor[2], norm <= 10; {layers}; {CROSS_ENTROPY}")
    difference = torch.tensor([[0.5, -0.5], [-0.5, 0.5]])
    bias = torch.full((2,), 1e6)
    module.load_state_dict({"dense.weight": torch.eye(2), "dense.bias": bias, "dense_2.weight": difference})
    x, near, y = torch.tensor([[0.125, 0.0]]), torch.tensor([[0.09, 0.032]]), torch.tensor([0])
    assert float(certified_radii(module, x.double(), y)) == pytest.approx(0.125 / math.sqrt(2), rel=1e-3)
    module.float()
    assert float(margins(outputs_of(module, x), y)) == 0.125
    assert float(margins(outputs_of(module, near), y)) == 0
    assert float(certified_radii(module, x, y)) < float((x - near).norm())


def test_rounding_at_the_example_counts_in_whichever_logit_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gap of 3 loses twice 16 times 0.01, for each of two logits may be off by what is seen in one."""
    module = linear(tmp_path, [[1.0, 0.0], [0.0, 1.0]], [0.0, 0.0])
    x, y = at([3.0, 0.0]), torch.tensor([0])
    assert float(certified_radii(module, x, y)) == pytest.approx(3 / math.sqrt(2), rel=1e-5)

    def served(module: LipschitzModule, inputs: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        off = 0.01 if dtype is None and len(inputs) == 1 else 0.0
        return outputs_of(module, inputs, dtype) + torch.tensor([off, 0.0])

    monkeypatch.setattr(robustness, "outputs_of", served)
    assert float(certified_radii(module, x, y)) == pytest.approx((3 - 0.32) / math.sqrt(2), rel=1e-5)


# Planted faults


def smaller(share: float) -> Callable[[LipschitzModule], Constants]:
    """The constants of differences, too small."""

    def shrunk(module: LipschitzModule) -> Constants:
        found = certified_constants(module)
        return replace(
            found, pairs=None if found.pairs is None else share * found.pairs, logits=share * found.logits
        )

    return shrunk


@pytest.mark.parametrize("share", [1 / math.sqrt(2), 0.95])
@pytest.mark.parametrize("logits", [1, 2])
def test_a_radius_that_is_too_large_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float, logits: int
) -> None:
    module = linear(tmp_path, [[3.0, 4.0], [0.0, 0.0]][:logits], [-2.0, 0.0][:logits])
    x, y = at([1.0, 1.0], [0.5, 2.0], [-3.0, 0.0]), torch.tensor([0, 0, 1] if logits == 2 else [1, 1, 0])
    assert certify(module, x, y, [0.1], AttackConfig()).sound
    monkeypatch.setattr(robustness, "certified_constants", smaller(share))
    found = certify(module, x, y, [0.1], AttackConfig())
    assert found.broken == 3
    assert not found.sound


def test_rows_that_are_counted_as_orthogonal_are_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """√2 forgotten where the rows are opposite: they are 2 apart, not √2."""
    module = linear(tmp_path, [[1.0, 0.0], [-1.0, 0.0]], [0.0, 0.0])

    def forgotten(module: LipschitzModule) -> Constants:
        found = certified_constants(module)
        return replace(found, pairs=torch.full((2, 2), found.logits, dtype=torch.float64))

    monkeypatch.setattr(robustness, "certified_constants", forgotten)
    assert certify(module, at([2.0, 1.0]), torch.tensor([0]), [0.1], AttackConfig()).broken == 1


def turning(tmp_path: Path) -> LipschitzModule:
    """Two layers that turn and stretch alike, by 3 and 2: every constant is attained."""
    layers = "dense(2, constraint=spectral(4)); dense(2, constraint=spectral(4))"
    module: LipschitzModule = emitted(tmp_path, f"input x: tensor[2], norm <= 9; {layers}; {CROSS_ENTROPY}")
    module.load_state_dict({"dense.weight": 3 * torch.eye(2), "dense_2.weight": 2 * torch.eye(2)})
    return module


def test_a_slope_that_is_too_small_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, x, y = turning(tmp_path), at([2.0, 1.0]), torch.tensor([0])
    assert float(certified_radii(module, x, y)) == pytest.approx(1 / math.sqrt(2), rel=1e-6)
    assert certify(module, x, y, [0.1], AttackConfig()).sound
    monkeypatch.setattr(robustness, "derived_slope", lambda module, norms: 0.95 * 3)  # noqa: ARG005
    monkeypatch.setattr(type(module), "slope", lambda self, u: 0.95 * 3)  # noqa: ARG005
    assert certify(module, x, y, [0.1], AttackConfig()).broken == 1


def test_a_slope_that_a_file_makes_up_counts_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`lipcompile verify FILE.py` lets any arithmetic pass there."""
    module = turning(tmp_path)
    monkeypatch.setattr(type(module), "slope", lambda self, u: u["dense.weight"] / 1e9)  # noqa: ARG005
    found = certified_constants(module)
    assert found.features is not None
    assert 3 <= found.features <= 3 * (1 + 1e-6)
    assert found.logits == pytest.approx(6, rel=1e-6)


@pytest.mark.parametrize("gain", [0.5, 6.0])
@pytest.mark.parametrize("kept", ["constraint=frobenius(9)", "constraint=spectral(6)", "clip=0.1"])
def test_the_verifier_derives_slopes_at_norms_of_maps(tmp_path: Path, gain: float, kept: str) -> None:
    """The kernel multiplies by `gain`; a Frobenius norm of that size alone would allow three times it. Angles of
    reflections change no length.
    """
    angles, head = ("", ", clip=0.1") if "clip" in kept else ("householder; ", "")
    layers = f"conv2d(2, kernel=3, padding=1, groups=2, {kept}); {angles}relu; flatten; dense(2{head})"
    module = emitted(tmp_path, f"input x: tensor[2, 4, 4], norm <= 1; {layers}; {CROSS_ENTROPY}")
    with torch.no_grad():
        module.conv2d.weight.zero_()[:, 0, 1, 1] = gain
    assert derived_slope(module, module.certified_norms()) == pytest.approx(gain, rel=1e-6)


def test_a_module_without_a_certificate_is_certified_by_its_own_slope(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = turning(tmp_path)
    monkeypatch.setattr(type(module), "certificate", {})
    assert derived_slope(module, {}) == 0.0
    assert certified_constants(module).features == pytest.approx(3, rel=1e-6)


# Rounding


def test_rounding_of_the_modules_own_precision_is_paid_for(tmp_path: Path) -> None:
    module = linear(tmp_path, [[3.0, 4.0], [0.0, 0.0]], [-2.0, 0.0])
    x, y = at([1.0, 1.0]), torch.tensor([0])
    double = certified_radii(module, x, y)
    single = certified_radii(module.float(), x.float(), y)
    half = certified_radii(module.bfloat16(), x.bfloat16(), y)
    assert 0 < half < single < double < 1
    assert single > 0.999


def test_rounding_that_is_seen_is_paid_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device whose float32 is off by a thousandth."""
    module = linear(tmp_path, [[3.0, 4.0], [0.0, 0.0]], [-2.0, 0.0]).float()
    true = robustness.outputs_of

    def rough(module: Any, inputs: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        outputs = true(module, inputs, dtype)
        return outputs if dtype else outputs + 1e-3

    monkeypatch.setattr(robustness, "outputs_of", rough)
    (radius,) = certified_radii(module, at([1.0, 1.0]).float(), torch.tensor([0]))
    assert radius == pytest.approx(1 - 2 * 16 * 1e-3 / 5, abs=1e-4)


# The clip of the input


@pytest.mark.parametrize("share", [0.02, 0.3, 0.9, 1.3])
@pytest.mark.parametrize("norm", [0.5, 1.01, 1.3, 2.0, 9.0])
def test_the_clip_shortens_movements(norm: float, share: float) -> None:
    """On a grid over all x' within the radius, in a plane: what the clip makes of them is as near as it should."""
    moved, length = torch.tensor([[share], [norm]], dtype=torch.float64)
    (radius,) = beyond_the_clip(moved, length, 1.0)
    assert radius >= share
    angles = torch.linspace(0, 2 * math.pi, 721, dtype=torch.float64)
    lengths = radius * torch.linspace(0, 1, 101, dtype=torch.float64)[:, None]
    near = torch.stack((norm + lengths * angles.cos(), lengths * angles.sin()), dim=-1)
    clipped = near / near.norm(dim=-1, keepdim=True).clamp_min(1)
    apart = (clipped - torch.tensor([min(norm, 1.0), 0.0], dtype=torch.float64)).norm(dim=-1)
    assert float(apart.max()) <= share * (1 + 1e-9)
    if norm == 9.0 and share < 1:  # far outside nothing is given away
        assert float(apart.max()) >= share * 0.999


def ray(tmp_path: Path, length: float) -> tuple[Any, Tensor, float]:
    """The sign of x_0, on the unit ball, and a point at 3° from the boundary: it is length·sin 3° away."""
    module = linear(tmp_path, [[1.0, 0.0], [0.0, 0.0]], [0.0, 0.0], norm="1")
    angle = math.radians(3)
    return module, at([length * math.sin(angle), length * math.cos(angle)]), length * math.sin(angle)


def test_inputs_that_are_clipped_are_certified_where_they_are(tmp_path: Path) -> None:
    module, x, distance = ray(tmp_path, 9.0)
    (radius,) = certified_radii(module, x, torch.tensor([0]))
    assert radius <= distance
    assert radius == pytest.approx(distance, rel=1e-3)


def test_an_attack_from_outside_of_the_ball(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, x, _ = ray(tmp_path, 9.0)
    assert certify(module, x, torch.tensor([0]), [0.1], AttackConfig()).broken == 0
    monkeypatch.setattr(robustness, "beyond_the_clip", lambda *args: 1.05 * beyond_the_clip(*args))
    assert certify(module, x, torch.tensor([0]), [0.1], AttackConfig()).broken == 1


# What is refused


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("input x: tokens[5]; embedding(7, 4); flatten; dense(3); loss cross_entropy", "tokens"),
        ("input x: tensor[4, 6], norm <= 1; dense(3); loss cross_entropy", "shape"),
    ],
)
def test_what_is_no_classifier_is_refused(tmp_path: Path, body: str, message: str) -> None:
    if "tensor" in body:
        body = body.replace("dense(3); loss cross_entropy", "dense(3); loss token_cross_entropy")
    module = emitted(tmp_path, body)
    with pytest.raises(ValueError, match=message):
        certified_radii(module, torch.zeros(1, *module.input_shape), torch.tensor([0]))


def test_no_finite_constant_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Net, "lipschitz", math.inf)
    with pytest.raises(ValueError, match="no finite Lipschitz constant"):
        certified_radii(Net(), torch.zeros(1, 4), torch.tensor([0]))


class Gated(torch.nn.Module):
    """Two maps of an input, multiplied: steep without a bound where inputs have none."""

    def __init__(self) -> None:
        super().__init__()
        self.value, self.gate = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        gated: Tensor = self.value(x) * torch.tanh(self.gate(x))
        return gated


def test_a_product_of_inputs_without_a_norm_has_no_finite_constant() -> None:
    """|d(u·tanh v)| grows with u, and is finite in a ball."""
    with pytest.raises(ValueError, match="no finite Lipschitz constant"):
        certified_constants(lipcompile.private(Gated(), (4,), bounds="clip"))
    assert certified_constants(lipcompile.private(Gated(), (4,), bounds="clip", input_norm=1)).logits < math.inf


@pytest.mark.parametrize(
    "targets", [torch.tensor([3]), torch.tensor([-1]), torch.tensor([0.5]), torch.tensor([0, 1]), torch.eye(3)[:1]]
)
def test_targets_that_are_no_classes_are_refused(targets: Tensor) -> None:
    with pytest.raises(ValueError, match="targets"):
        certified_radii(Net(), torch.zeros(1, 4), targets)


def test_labels_of_one_logit_are_two_classes(tmp_path: Path) -> None:
    module = linear(tmp_path, [[1.0]], [0.0])
    with pytest.raises(ValueError, match="-1 and 1, or 0 and 1"):
        certified_radii(module, at([1.0], [1.0]), torch.tensor([-1, 0]))


def test_an_input_that_breaks_its_promise_is_refused(tmp_path: Path) -> None:
    module = emitted(tmp_path, f"input x: tensor[2], norm <= 1, trusted; dense(2); {CROSS_ENTROPY}")
    with pytest.raises(ValueError, match="exceeds the declared input norm 1"):
        certified_radii(module, at([1.0, 1.0]), torch.tensor([0]))


@pytest.mark.parametrize("settings", [{"steps": 0}, {"restarts": 0}])
def test_an_attack_that_tries_nothing_is_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="one step"):
        AttackConfig(**settings)


# Counting


def test_accuracies_are_counted(tmp_path: Path) -> None:
    """Distances 7/5, 3/5 and 1/5 from the boundary, and one wrong example."""
    module = linear(tmp_path, [[3.0, 4.0], [0.0, 0.0]], [0.0, 0.0])
    x, y = at([1.0, 1.0], [1.0, 0.0], [-1.0, 0.5], [1.0, 1.0]), torch.tensor([0, 0, 1, 1])
    found = certify(module, x, y, [1.0, 0.1, 0.5, 2.0], AttackConfig())
    assert (found.examples, found.right, found.broken) == (4, 3, 0)
    assert [(row.radius, row.certified, row.attacked) for row in found.radii] == [
        (0.1, 3, 3),
        (0.5, 2, 2),
        (1.0, 1, 1),
        (2.0, 0, 0),
    ]
    plain = certify(module, x, y, [0.5])
    assert [(row.certified, row.attacked) for row in plain.radii] == [(2, None)]


def test_progress_ends_where_it_was_planned_to(tmp_path: Path) -> None:
    module = linear(tmp_path, [[3.0, 4.0], [0.0, 0.0]], [0.0, 0.0])
    told: list[tuple[int, int]] = []
    x, y = at([1.0, 1.0], [-1.0, 0.5]), torch.tensor([0, 1])
    certify(module, x, y, [0.1, 0.5], AttackConfig(), lambda _, done, planned: told.append((done, planned)))
    assert told[-1] == (6, 6)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_a_module_is_left_as_it_was() -> None:
    module = Net()
    module.train()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    certify(module, torch.randn(4, 4), torch.tensor([0, 1, 2, 0]), [0.1], AttackConfig(steps=2))
    assert module.training
    assert (module.gate.examples, module.gate.largest, module.gate.aside) == (0, None, False)
    assert all(parameter.grad is None for parameter in module.parameters())
    assert all(bool((value == before[name]).all()) for name, value in module.state_dict().items())


def test_nothing_is_no_example(tmp_path: Path) -> None:
    module = linear(tmp_path, [[3.0, 4.0], [0.0, 0.0]], [0.0, 0.0])
    assert certified_radii(module, at([0.0, 0.0])[:0], torch.tensor([], dtype=torch.long)).shape == (0,)


def test_names_of_the_command_are_those_of_the_backend() -> None:
    assert certification.LipschitzModule is LipschitzModule

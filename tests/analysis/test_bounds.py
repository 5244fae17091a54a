"""The bounds pass against numbers derived by hand: four networks of the literature, with and without biases."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from lipcompile.analysis.bounds import derive
from lipcompile.core.record import Extent, NoAttributes
from lipcompile.numbers.certified import Certified, Interval
from lipcompile.ops.loss.rules import CrossEntropy, softmax_slope
from lipcompile.ops.merge.rules import Concat, Sum
from lipcompile.ops.shape.rules import ClipGradient, Slice
from lipcompile.ops.table import LOSS_BY_NAME, LOSSES
from tests.networks import Network, certified, gradient_bounds
from tests.overlaps import attained, line
from tests.precise import Precise, real
from tests.suprema import supremum

HALF = Fraction(1, 2)


def bounded_logits(classes: int, radius: float) -> float:
    """L_R from explicit logits: the largest ‖p - e_0‖ on the arc of radius R.

    The logits are a·u + b·v: u lowers the label against the mean of the others, v raises one of the others.
    """
    u = np.array([1.0 - classes, *[1.0] * (classes - 1)])
    v = np.array([0.0, classes - 2.0, *[-1.0] * (classes - 2)])

    def distance(s: float) -> float:
        below, spread = math.sin(s * math.pi / 2), math.cos(s * math.pi / 2)
        logits = radius * (below * u / np.linalg.norm(u) + spread * v / max(float(np.linalg.norm(v)), 1))
        p = np.exp(logits - logits.max())
        return float(np.linalg.norm(p / p.sum() - np.eye(classes)[0]))

    return float(supremum(distance))


def mlp(bias: Fraction | None) -> Network:
    """784-256-256-10 with GroupSort2."""
    net = Network((784,), bias=bias)
    net.dense(256)
    net.sort()
    net.dense(256)
    net.sort()
    net.dense(10)
    return net


def convnet(bias: Fraction | None = None, *, strided: bool = False) -> Network:
    """Two 3×3 convolutions with GroupSort2 and L2 pools (or a stride instead of the second), two dense layers."""
    net = Network((1, 28, 28), bias=bias)
    net.conv(32)
    net.sort()
    net.pool()
    net.conv(64, stride=2 if strided else 1)
    net.sort()
    if not strided:
        net.pool()
    net.flatten()
    net.dense(512)
    net.sort()
    net.dense(10)
    return net


def test_the_brute_force_constant_is_the_published_one() -> None:
    assert bounded_logits(10, 1) == pytest.approx(1.0147964, abs=1e-7)


def test_mlp_without_biases() -> None:
    """Every tensor has norm at most 1, every cotangent at most L_R(1): K = 1.0147964 three times."""
    graph = mlp(None).finish()
    assert gradient_bounds(graph) == pytest.approx([1.0147964] * 3, abs=1e-7)
    assert certified(graph).total.upper == pytest.approx(1.7576790, abs=1e-7)


def test_convnet_without_biases() -> None:
    """A 3×3 kernel of stride 1 reads an entry 9 times: κ = √9, K = 3·1.0147964; 14×14 entries have borders."""
    expected = [3.0443893, 2.962 * 1.0147964, 1.0147964, 1.0147964]
    assert gradient_bounds(convnet().finish()) == pytest.approx(expected, rel=1e-4)
    assert 2.9135 < attained(line(14, 3, padding=1)) < 2.962


def test_convnet_with_a_stride_for_its_second_pool() -> None:
    """With stride 2 an entry is read ⌈3/2⌉² = 4 times: κ = 2, and on 14×14 entries 1.9512 or less."""
    expected = [3.0443893, 1.9512 * 1.0147964, 1.0147964, 1.0147964]
    assert gradient_bounds(convnet(strided=True).finish()) == pytest.approx(expected, rel=1e-4)
    assert 1.91 < attained(line(14, 3, stride=2, padding=1)) < 1.9512


def test_residual_network() -> None:
    """Each block doubles the norm, 1 to 16, and the cotangent, L to 16·L; L = L_R(16), which is √2 to 6 digits.

    First layer: 1·16·L. Block j: 2^j·2^(3-j)·L = 8·L. Last layer: 16·L.
    """
    net = Network((784,))
    net.dense(128)
    for _ in range(4):
        net.residual(128)
    net.dense(10)
    expected = [22.6274117, *[11.3137059] * 4, 22.6274117]
    assert gradient_bounds(net.finish()) == pytest.approx(expected, abs=1e-7)


def test_mlp_with_biases() -> None:
    """X: 1, 1 + 1/2, 2, logits 5/2. Weights: L·(1, 3/2, 2); each bias has one position: L."""
    graph = mlp(HALF).finish()
    constant = bounded_logits(10, 2.5)
    expected = [constant * k for k in (1, 1, 1.5, 1, 2, 1)]
    assert gradient_bounds(graph) == pytest.approx(expected, rel=1e-12)
    assert certified(graph).total.upper == pytest.approx(constant * math.sqrt(1 + 2.25 + 4 + 3), rel=1e-12)


def test_convnet_with_biases() -> None:
    """Each bias of an image counts √P twice, forward and in κ.

    First convolution: P = 28², X = 1 + 28/2 = 15; kernel 3·1, bias 28. Second, after the pool: P = 14²,
    X = 15 + 14/2 = 22; kernel 2.9621·15, as above, bias 14. Dense: X = 22 + 1/2; weight 22, bias 1. Logits:
    X = 23; weight 22.5, bias 1. All times L_R(23).
    """
    graph = convnet(HALF).finish()
    constant = bounded_logits(10, 23)
    expected = [constant * k for k in (3 * 1, 28, 2.9621 * 15, 14, 22, 1, 22.5, 1)]
    assert gradient_bounds(graph) == pytest.approx(expected, rel=1e-12)
    norms = [bound.upper for bound in certified(graph).norm.values()]
    assert norms == pytest.approx([1, 15, 15, 15, 22, 22, 22, 22, 22.5, 22.5, 23], rel=1e-12)


def sliced(parts: list[Slice]) -> Interval:
    """G at a tensor of which these slices are joined again, from a cotangent of 1 on each slice."""
    net = Network((4, 4))
    start = net.add("identity", NoAttributes())
    pieces = [net.add("slice", part, start) for part in parts]
    net.add("concat", Concat(0), *(net.add("flatten", NoAttributes(), piece) for piece in pieces))
    return certified(net.finish(None)).slope[start.name]


def test_disjoint_slices_share_a_cotangent() -> None:
    """Two halves, joined again: the network is the identity, and 1 is the truth."""
    assert sliced([Slice(0, 0, 2), Slice(0, 2, 4)]).upper == 1


@pytest.mark.parametrize("second", [Slice(0, 1, 3), Slice(1, 2, 4)])
def test_slices_that_may_overlap_share_the_parts_of_their_join(second: Slice) -> None:
    """Both parts of the joined tensor meet at the fork: √(1 + 1), attained by an entry that both slices hold."""
    assert sliced([Slice(0, 0, 2), second]).upper == pytest.approx(math.sqrt(2), rel=1e-15)


def test_a_consumer_beside_disjoint_slices_adds_to_what_they_give() -> None:
    net = Network((4,))
    start = net.add("identity", NoAttributes())
    parts = [net.add("slice", Slice(0, low, low + 2), start) for low in (0, 2)]
    net.add("add", Sum((Fraction(1), Fraction(1))), start, net.add("concat", Concat(0), *parts))
    slope = certified(net.finish(None)).slope[start.name]
    assert slope.upper == 2


def test_frozen_parameters_have_no_gradient_bound_but_move_the_norm() -> None:
    graph = mlp(HALF).finish()
    frozen = graph.freeze(["dense.*"])
    assert list(certified(frozen).gradient) == [name for name in graph.parameters if not name.startswith("dense.")]
    assert certified(frozen).norm["dense"].upper == 1.5


def test_bounds_that_follow_the_weights_use_the_current_norms() -> None:
    """W has norm 1/4 now: X after it 1/4, K of the next weight L_R(1/4)/4, K of its own L_R(1/4)·1."""
    net = Network((4,))
    net.dense(4)
    net.dense(2)
    num = Certified()
    found = derive(net.finish(), num, current={"dense.weight": num.of(Fraction(1, 4))}).gradient
    constant = bounded_logits(2, 0.25)
    assert [bound.upper for bound in found.values()] == pytest.approx([constant, constant / 4], rel=1e-12)


def test_a_gradient_clip_bounds_what_is_below_it_and_not_the_slope() -> None:
    net = Network((4,))
    net.dense(4)
    net.add("clip_gradient", ClipGradient(Fraction(1, 10)))
    net.dense(2)
    found = certified(net.finish())
    first, second = found.gradient.values()
    assert first.upper == pytest.approx(0.1, rel=1e-15)
    assert second.upper == pytest.approx(bounded_logits(2, 1), rel=1e-12)
    assert found.slope["x"].upper == 1


def test_without_norm_and_loss_bounds_are_infinite_but_the_slope_is_known() -> None:
    net = Network((4,), norm=None)
    net.dense(2)
    found = certified(net.finish(None))
    assert found.gradient["dense.weight"].upper == math.inf
    assert found.slope["x"].upper == 1


def loss_constant(name: str, shape: tuple[int, ...], norm: float, row: float, **attributes: Any) -> float:
    num, loss = Certified(), LOSS_BY_NAME[name]
    extent = Extent(num.of(Fraction(norm)), num.of(Fraction(row)), num.of(Fraction(row)))
    return loss.lipschitz(num, loss.attributes(**attributes), shape, extent).upper


def test_losses_of_tokens() -> None:
    """Four tokens of two classes. Rows of norm 1/2: each has √2·σ(√2/2). A table of norm 1/2, which makes
    rows of norm 1/4: √(4·½·(1 + 2·tanh(√2/8)) + ¼·¼).
    """
    shared = math.sqrt(2 + 4 * math.tanh(math.sqrt(2) / 8) + 1 / 16)
    each = math.sqrt(2) / (1 + math.exp(-math.sqrt(0.5)))
    assert loss_constant("token_cross_entropy", (4, 2), 1, 0.5, reduce="sum") == pytest.approx(2 * each)
    assert loss_constant("token_cross_entropy", (2, 2, 2), 1, 0.5) == pytest.approx(each / 2)
    assert loss_constant("token_cross_entropy", (4, 2), 0.5, 0.5) == pytest.approx(shared / 4)


def test_losses_of_pixels() -> None:
    """Four pixels of two classes. One may have the whole norm X: √2·σ(√2·X) each. An image of norm 1, which makes
    pixels of norm ½: √(4·½·(1 + 2·tanh(√2/4)) + ¼).
    """
    each = math.sqrt(2) / (1 + math.exp(-6 * math.sqrt(2)))
    shared = math.sqrt(2 + 4 * math.tanh(math.sqrt(2) / 4) + 1 / 4)
    for shape in ((2, 4), (2, 2, 2)):
        assert loss_constant("pixel_cross_entropy", shape, 6, 0.1, reduce="sum") == pytest.approx(2 * each)
        assert loss_constant("pixel_cross_entropy", shape, 6, 0.1) == pytest.approx(each / 2)
        assert loss_constant("pixel_cross_entropy", shape, 1, 0.1) == pytest.approx(shared / 4)
    assert loss_constant("pixel_cross_entropy", (2, 1, 1), 6, 0.1) == pytest.approx(each)


def test_losses_of_several_labels() -> None:
    """Four logits of at most ½ each: √4·σ(½). Of norm ½ together, and none bounded by itself: √4/2 + 1/8."""
    each = 2 / (1 + math.exp(-0.5))
    assert loss_constant("multilabel_bce", (1, 2, 2), 9, 0.5, reduce="sum") == pytest.approx(each)
    assert loss_constant("multilabel_bce", (4,), 9, 0.5) == pytest.approx(each / 4)
    assert loss_constant("multilabel_bce", (4,), 0.5, 0.5) == pytest.approx(1.125 / 4)


def test_regressions_of_images_are_those_of_their_entries() -> None:
    """Twelve entries: 1/√12, and (2/12)·(3 + 2)."""
    assert loss_constant("absolute_error", (3, 2, 2), 3, 3) == pytest.approx(1 / math.sqrt(12))
    assert loss_constant("mean_squared_error", (3, 2, 2), 3, 3, target_norm=Fraction(2)) == pytest.approx(5 / 6)


def test_only_losses_of_tokens_read_rows() -> None:
    """Rows are derived in graphs that need them, and cost time in others."""
    found = {loss.name: set(loss.reads) for loss in LOSSES if loss.reads}
    assert found == {"token_cross_entropy": {"row"}, "multilabel_bce": {"entry"}}


@pytest.mark.parametrize("radius", [1, 4, 8, 12])
def test_many_classes(radius: int) -> None:
    """Beyond a thousand classes only one of two bounds is used: nothing is lost, an outlier nearly attains it."""
    some, many = (loss_constant("cross_entropy", (classes,), radius, radius) for classes in (1000, 1001))
    assert many == pytest.approx(some, rel=2e-3)
    logits = [1000, *[-1] * 1000]
    powers = [math.exp(radius * z / math.hypot(*logits)) for z in logits]
    p = [power / sum(powers) for power in powers]
    assert 0.99 * many <= math.hypot(1 - p[1], p[0], *p[2:]) <= many


@pytest.mark.parametrize("smoothing", ["0", "1/10", "1/2"])
@pytest.mark.parametrize("radius", ["1/10", "1", "2", "4", "20"])
@pytest.mark.parametrize("classes", [2, 3, 10, 120])
def test_cross_entropy_is_attained(classes: int, radius: str, smoothing: str) -> None:
    """The supremum by a search: the label's logit, m logits that are raised, and the others take three values.

    The proof in loss.md raises one; here m varies.
    """
    kept, length = 1 - float(Fraction(smoothing)), float(Fraction(radius))
    target = np.array([kept, *[0.0] * (classes - 1)]) + (1 - kept) / classes
    attained = 0.0
    for raised in {1, 2, classes // 2, classes - 2} & set(range(1, classes)):
        above = np.array([0.0, *[1.0] * raised, *[0.0] * (classes - 1 - raised)]) / math.sqrt(raised)

        def distance(s: float, up: Any = above) -> float:
            angle = math.pi * (2 * s - 1)
            logits = math.cos(angle) * np.eye(classes)[0] + math.sin(angle) * up
            logits -= logits.mean()
            logits *= length / max(float(np.linalg.norm(logits)), 1e-9)
            p = np.exp(logits - logits.max())
            return float(np.linalg.norm(p / p.sum() - target))

        attained = max(attained, supremum(distance))
    num = Certified()
    loss = CrossEntropy(label_smoothing=Fraction(smoothing))
    extent = Extent(*[num.of(Fraction(radius))] * 3)
    claimed = LOSS_BY_NAME["cross_entropy"].lipschitz(num, loss, (classes,), extent).upper
    assert attained * (1 - 1e-14) <= claimed <= attained * (1 + 1e-9)


@pytest.mark.parametrize("field", ["classes", "radius", "smoothing", "temperature"])
def test_a_constant_of_cross_entropy_that_is_known_is_that_of_all_it_depends_on(field: str) -> None:
    class Searching(Certified):
        def supremum(self, value: Any, slope: Any, of: Any = ()) -> Any:  # noqa: ARG002
            return super().supremum(value, slope)

    numbers: dict[str, Any] = {"classes": 4, "radius": "0.7", "smoothing": "0.1", "temperature": "2"}
    constants = []
    for changed in (numbers, numbers | {field: 7 if field == "classes" else "0.3"}):
        given = {name: Fraction(value) for name, value in changed.items()}
        loss = CrossEntropy(label_smoothing=given["smoothing"], temperature=given["temperature"])
        known, searched = (
            softmax_slope(num, loss, changed["classes"], num.of(given["radius"])).ends._mpi_
            for num in (Certified(), Searching())
        )
        assert known == searched
        constants.append(known)
    assert constants[0] != constants[1]


@pytest.mark.parametrize("smoothing", ["0", "1/2"])
@pytest.mark.parametrize("radius", ["1/10", "2", "9"])
@pytest.mark.parametrize("classes", [3, 10])
def test_the_slope_of_cross_entropy_is_the_derivative(classes: int, radius: str, smoothing: str) -> None:
    """By central differences of 1500 bits, of the same values whose supremum is attained above."""
    seen: list[Any] = []

    class Seen(Precise):
        def supremum(self, value: Any, slope: Any, of: Any = ()) -> Any:
            seen.append((value, slope))
            return super().supremum(value, slope, of)

    loss = CrossEntropy(label_smoothing=Fraction(smoothing))
    softmax_slope(Seen(), loss, classes, real(Fraction(radius)))
    ((value, slope),) = seen
    step = real(Fraction(1, 10**40))
    for s in (real(Fraction(i, 7)) for i in range(1, 7)):
        expected = (value(s + step) - value(s - step)) / (2 * step)
        assert abs(slope(s) - expected) <= abs(expected) * real(Fraction(1, 10**30))

"""Clipped per-example gradients against plain loops, Opacus, and brute force on their sensitivity."""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any, ClassVar, cast

import pytest
import torch
from lipcompile_torch import layers
from lipcompile_torch.autograd import apply
from lipcompile_torch.nn import losses, token_layers
from lipcompile_torch.noise.mechanism import allocate, effective_multiplier
from lipcompile_torch.train.checks import PrivacyError
from lipcompile_torch.train.clipped import ClippedGradients
from lipcompile_torch.train.module import LipschitzModule
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

from tests.torch.private_net import Net


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output, target, reduction="none")


def convolutions() -> nn.Module:
    """No part of it has a bounded gradient."""
    torch.manual_seed(0)
    layers = (nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 8), nn.GroupNorm(2, 8))
    return nn.Sequential(*layers, nn.Linear(8, 3)).double()


def perceptron() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3)).double()


def images(count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    scale = torch.logspace(-3, 2, count)[:, None, None, None]  # gradients short and long
    x = scale * torch.randn(count, 1, 8, 8, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, 3, (count,), generator=generator)


def vectors(count: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(count, 4, generator=generator, dtype=dtype), torch.randint(
        0, 3, (count,), generator=generator
    )


def clipped(module: nn.Module, clipping: Any, **options: Any) -> ClippedGradients:
    loss = None if isinstance(module, LipschitzModule) else cross_entropy
    return ClippedGradients(module, clipping, **{"normaliser": 1.0, "per_example_loss": loss, **options})


def gradient(module: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


def looped(module: Any, x: Tensor, y: Tensor, loss: Callable[[Tensor, Tensor], Tensor]) -> list[dict[str, Tensor]]:
    """Return the gradient of each example, by one backward pass for each."""
    found = []
    for i in range(len(x)):
        module.zero_grad()
        loss(module(x[i : i + 1]), y[i : i + 1]).sum().backward()  # type: ignore[no-untyped-call]
        found.append({n: p.grad.double() for n, p in module.named_parameters() if p.grad is not None})
        module.zero_grad()
    return found


def length(parts: dict[str, Tensor]) -> float:
    return math.hypot(*(float(part.double().norm()) for part in parts.values()))


def summed(gradients: list[dict[str, Tensor]], scale: Callable[[dict[str, Tensor], str], float]) -> Any:
    """Return Σ scale·gradient by parameter."""
    return {name: sum(scale(parts, name) * parts[name] for parts in gradients) for name in gradients[0]}


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 1e-9) -> None:
    assert found.keys() == expected.keys()
    for name, part in found.items():
        error = (part.double() - expected[name]).norm() / expected[name].norm()
        assert float(error) < tolerance, name


# --- the gradients ---


def test_the_normaliser_is_fixed() -> None:
    """The engine divides noise by the first one: a smaller one would leave the sum too long for it."""
    sums = ClippedGradients(nn.Linear(2, 2), 1.0, normaliser=8.0, per_example_loss=cross_entropy)
    with pytest.raises(AttributeError):
        sums.normaliser = 1.0  # type: ignore[misc]


def test_flat_clipping_is_the_loop_of_the_papers() -> None:
    module, (x, y) = convolutions(), images(30)
    alone = looped(module, x, y, cross_entropy)
    assert min(map(length, alone)) < 3.0 < max(map(length, alone))
    expected = summed(alone, lambda parts, _: min(1.0, 3.0 / length(parts)) / 7)
    clipped(module, 3.0, normaliser=7.0, chunk_size=4).backward(x, y)
    assert_close(gradient(module), expected)
    clipped(module, 3.0, normaliser=7.0, chunk_size=1).backward(x, y)
    assert_close(gradient(module), expected)


def test_clipping_per_parameter_clips_each_part_by_itself() -> None:
    module, (x, y) = convolutions(), images(30)
    lengths = {name: 0.1 if name.endswith("weight") else 0.7 for name, _ in module.named_parameters()}
    expected = summed(
        looped(module, x, y, cross_entropy),
        lambda parts, name: min(1.0, lengths[name] / max(1e-30, float(parts[name].norm()))),
    )
    sums = clipped(module, {"*.weight": 0.1, "*.bias": 0.7})
    sums.backward(x, y)
    assert sums.bounds() == lengths
    assert_close(gradient(module), expected)


class Inner(Net):
    """The clip of the module acts on the cotangent of an example's own loss."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.inner(self.clip_input(x)))
        output: Tensor = self.release(self.clip_gradient(self.outer(hidden), 0.3))
        return output


def test_a_compiled_module_has_its_own_loss_and_inner_clipping() -> None:
    # The inner clip acts on the cotangent of the example's own loss, before the gradient is clipped as a whole.
    torch.manual_seed(0)
    module: Any = Inner().double()
    module.normaliser, (x, y) = 5.0, vectors(20)
    expected = summed(
        looped(module, x, y, lambda output, target: module.criterion(output, target)),
        lambda parts, _: min(1.0, 0.4 / 5 / length(parts)),
    )
    module.gate.reset()
    sums = clipped(module, 0.4, normaliser=5.0, chunk_size=6)
    value = sums.backward(x, y)
    assert float(value) == pytest.approx(float(module.per_example_loss(module(x), y).sum().detach()) / 5)
    assert_close(gradient(module), expected)
    # The gate has seen every example once, and nothing but the criterion.
    assert (module.gate.examples, sums.examples) == (20, 20)
    assert float(module.gate.foreign) == 0
    assert not module.gate.aside


def averaged(
    module: Any, x: Tensor, y: Tensor, loss: Callable[[Tensor, Tensor], Tensor]
) -> list[dict[str, Tensor]]:
    """Return the mean gradient of the V views of each example [B, V, …], by a backward pass for each view."""
    views = x.shape[1]
    alone = looped(module, x.flatten(0, 1), y.repeat_interleave(views, 0), loss)
    groups = [alone[start : start + views] for start in range(0, len(alone), views)]
    return [{name: sum(one[name] for one in group) / views for name in group[0]} for group in groups]  # type: ignore[misc]


def words(count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(0, 9, (count, 5), generator=generator), torch.randint(0, 3, (count,), generator=generator)


def of_words() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(9, 4, padding_idx=0), nn.Flatten(), nn.Linear(20, 3)).double()


@pytest.mark.parametrize(
    ("build", "examples"),
    [(convolutions, images), (perceptron, images), (of_words, words)],
    ids=lambda f: f.__name__,
)
@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("chunk_size", [None, 1, 7])
def test_the_mean_gradient_of_views_is_clipped_once(
    build: Any, examples: Any, flat: bool, chunk_size: int | None
) -> None:
    module, (x, y) = build(), examples(24)
    x, y = x.unflatten(0, (8, 3)), y[:8]
    means = averaged(module, x, y, cross_entropy)
    middle = sorted(map(length, means))[4]  # so that some are clipped, and some are not
    if flat:
        expected = summed(means, lambda parts, _: min(1.0, middle / length(parts)) / 7)
    else:
        expected = summed(means, lambda parts, name: min(1.0, 0.3 / max(1e-30, float(parts[name].norm()))) / 7)
    clipping: Any = middle if flat else {"*": 0.3}
    sums = clipped(module, clipping, normaliser=7.0, chunk_size=chunk_size)
    with sums.on_views():
        sums.backward(x[:3], y[:3])
        value = sums.backward(x[3:], y[3:])
    assert_close(gradient(module), expected)
    assert sums.examples == 8
    losses = cross_entropy(module(x[3:].flatten(0, 1)), y[3:].repeat_interleave(3))
    assert float(value) == pytest.approx(float(losses.mean().detach()) * 5 / 7)
    sums.backward(x[:, 0], y)  # examples again


def test_views_of_a_compiled_module_share_its_inner_clip() -> None:
    torch.manual_seed(0)
    module, (x, y) = Inner().double(), vectors(20)
    module.normaliser, x, y = 5.0, x.reshape(5, 4, 4), y[:5]
    means = averaged(module, x, y, lambda output, target: module.criterion(output, target))
    expected = summed(means, lambda parts, _: min(1.0, 0.2 / 5 / length(parts)))
    module.gate.reset()
    sums = clipped(module, 0.2, normaliser=5.0, chunk_size=6)
    with sums.on_views():
        value = sums.backward(x, y)
    losses = module.per_example_loss(module(x.flatten(0, 1)), y.repeat_interleave(4))
    assert float(value) == pytest.approx(float(losses.mean().detach()))
    assert_close(gradient(module), expected)
    assert module.gate.examples == 5
    assert module(x[:, 0]).shape == (5, 3)


def test_an_example_may_be_one_token_and_have_views() -> None:
    torch.manual_seed(0)
    module, x, y = nn.Embedding(5, 3).double(), torch.tensor([[0, 1], [2, 4], [3, 3]]), torch.tensor([0, 2, 1])
    expected = summed(averaged(module, x, y, cross_entropy), lambda parts, _: min(1.0, 0.5 / length(parts)))
    sums = clipped(module, 0.5)
    with sums.on_views():
        sums.backward(x, y)
    assert_close(gradient(module), expected)
    sums.reset()
    sums.backward(x[:, 0], y)
    alone = looped(module, x[:, 0], y, cross_entropy)
    sums.deposit_()
    assert_close(gradient(module), summed(alone, lambda parts, _: min(1.0, 0.5 / length(parts))))


def test_views_that_are_none_or_mixed_are_refused() -> None:
    x, y = vectors(6, torch.float32)
    sums = clipped(nn.Linear(4, 3), 1.0)
    for wrong in (x[:, 0], x[:, None][:, :0]):
        with sums.on_views(), pytest.raises(ValueError, match=r"expected views \[B, V, …\] of one B, got \[6"):
            sums.backward(wrong, y)
    mixing = clipped(Centred(4, 3), 1.0)
    with mixing.on_views(), pytest.raises(PrivacyError, match="depends on the other examples"):
        mixing.backward(x.reshape(2, 3, 4), y[:2])


def test_modules_are_checked_where_one_example_comes_at_a_time() -> None:
    """As where the gradients of two would take too much memory, or where a batch has but one."""
    x, y = vectors(6, torch.float32)
    mixing = clipped(Centred(4, 3), 1.0, chunk_size=1)
    with pytest.raises(PrivacyError, match="depends on the other examples"):
        mixing.backward(x, y)
    with mixing.on_views(), pytest.raises(PrivacyError, match="depends on the other examples"):
        mixing.backward(x.reshape(2, 3, 4), y[:2])
    with pytest.raises(PrivacyError, match="vmap computes other gradients of weight, bias"):
        clipped(Hooked(4, 3), 1.0, chunk_size=1).backward(x, y)
    later = clipped(Mixed(4, 3), 1.0)
    later.backward(x[:1], y[:1])
    with pytest.raises(PrivacyError, match="the gradient of one example depends on the other examples"):
        later.backward(x[1:], y[1:])


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_kinks_that_half_precision_turns_over_are_no_reason_to_refuse_one_example() -> None:
    """With this seed a quarter of the gradient of one example differs between vmap and a batch, on x86-64."""
    torch.manual_seed(5)
    encoder = nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True)
    module = nn.Sequential(encoder, nn.Flatten(), nn.Linear(12, 3)).bfloat16()
    clipped(module, 1.0, chunk_size=1).backward(torch.randn(1, 3, 4).bfloat16(), torch.tensor([1]))


@pytest.mark.parametrize("build", [convolutions, perceptron])
def test_per_example_gradients_are_those_of_opacus(build: Callable[[], nn.Module]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        opacus = pytest.importorskip("opacus", reason="the extra `bench`")
        module, (x, y) = build(), images(12)
        hooked = opacus.GradSampleModule(build(), loss_reduction="sum")
        hooked.load_state_dict({f"_module.{name}": value for name, value in module.state_dict().items()})
        cross_entropy(hooked(x), y).sum().backward()  # type: ignore[no-untyped-call]
        samples = {name.removeprefix("_module."): p.grad_sample.double() for name, p in hooked.named_parameters()}
    alone = [{name: rows[i] for name, rows in samples.items()} for i in range(len(x))]
    expected = summed(alone, lambda parts, _: min(1.0, 2.0 / length(parts)))
    clipped(module, 2.0).backward(x, y)
    assert_close(gradient(module), expected)


def test_chunks_and_pieces_do_not_matter_and_reset_forgets() -> None:
    module, (x, y) = convolutions(), images(11)
    clipped(module, 0.5).backward(x, y)
    whole = gradient(module)
    sums = clipped(module, 0.5, chunk_size=3)
    sums.backward(x[:4], y[:4])
    sums.backward(x[4:], y[4:])
    assert_close(gradient(module), whole)
    assert sums.examples == 11
    sums.reset()
    assert sums.examples == 0
    sums.backward(x[:0], y[:0])
    assert all(not part.any() for part in gradient(module).values())


def test_only_the_clipped_sum_is_deposited() -> None:
    module, (x, y) = convolutions(), images(3)
    sums = clipped(module, 0.5)
    sums.backward(x, y)
    expected = gradient(module)
    cross_entropy(module(x), y).sum().backward()  # type: ignore[no-untyped-call]  # unclipped, into the same .grad
    sums.deposit_()
    assert all(torch.equal(part, expected[name]) for name, part in gradient(module).items())


def test_a_piece_that_fails_half_way_counts_for_nothing() -> None:
    module, (x, y) = convolutions(), images(6)
    sums = clipped(module, 0.5, chunk_size=2)
    with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
        sums.backward(x, torch.cat((y[:5], torch.tensor([7]))))  # a label beyond the classes, in the last chunk
    assert sums.examples == 0
    sums.backward(x, y)
    found = gradient(module)
    fresh = clipped(module, 0.5, chunk_size=2)
    fresh.backward(x, y)
    assert all(torch.equal(part, found[name]) for name, part in gradient(module).items())


def test_frozen_parameters_get_no_gradient_and_count_for_nothing() -> None:
    module, (x, y) = convolutions(), images(5)
    module.get_parameter("0.weight").requires_grad_(False)
    alone = looped(module, x, y, cross_entropy)
    assert "0.weight" not in alone[0]
    clipped(module, 0.5).backward(x, y)
    assert_close(gradient(module), summed(alone, lambda parts, _: min(1.0, 0.5 / length(parts))))


def test_a_shared_parameter_is_one_parameter() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
            self.second.weight = self.first.weight

        def forward(self, x: Tensor) -> Tensor:
            return F.linear(torch.relu(self.first(x)), self.second.weight)

    torch.manual_seed(0)
    module, (x, y) = Tied().double(), vectors(9)
    alone = looped(module, x, y, cross_entropy)
    sums = clipped(module, 0.2)
    sums.backward(x, y)
    assert sums.bounds() == {"first.weight": 0.2}
    assert_close(gradient(module), summed(alone, lambda parts, _: min(1.0, 0.2 / length(parts))))


def test_unused_parameters_get_zero() -> None:
    module, (x, y) = nn.Linear(4, 3).double(), vectors(3)
    module.register_parameter("idle", nn.Parameter(torch.tensor(1.0)))
    clipped(module, 0.2).backward(x, y)
    assert torch.equal(gradient(module)["idle"], torch.zeros(()))


# --- their bound ---


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("clipping", [0.3, {"*": 0.3}])
def test_a_clipped_gradient_is_never_longer(dtype: torch.dtype, clipping: Any) -> None:
    module, (x, y) = convolutions().to(dtype), images(24)
    x = x.to(dtype)
    sums = clipped(module, clipping)
    lengths = []
    for i in range(len(x)):
        sums.reset()
        sums.backward(x[i : i + 1], y[i : i + 1])
        found = gradient(module)
        parts = [found] if isinstance(clipping, float) else [{name: part} for name, part in found.items()]
        # float64 norms of at most 200 entries, off by 1e-13
        lengths += [length(part) for part in parts]
        module.zero_grad()
        cross_entropy(module(x[i : i + 1]), y[i : i + 1]).sum().backward()  # type: ignore[no-untyped-call]
        plain = gradient(module)
        if length(plain) < 0.29:
            for name, part in found.items():
                torch.testing.assert_close(part, plain[name], rtol=10 * torch.finfo(dtype).eps, atol=1e-7)
    assert max(lengths) <= 0.3 * (1 + 1e-13)
    assert max(lengths) >= 0.3 * (1 - 4 * torch.finfo(dtype).eps - 1e-12)


@pytest.mark.parametrize("exponent", [-1060, -700, -560, 560, 700, 1010])
@pytest.mark.parametrize("clipping", [1.0, {"*": 1.0}])
def test_a_gradient_whose_square_is_no_number_is_not_longer_either(exponent: int, clipping: Any) -> None:
    """Half as long as the gradient of each part, which is that of one input and of one factor."""
    module = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)).double()
    nn.init.ones_(module.get_parameter("0.weight"))
    nn.init.ones_(module.get_parameter("1.weight"))
    slope, bound = 2.0**exponent, 2.0 ** (exponent - 1)
    lengths = bound if clipping == 1.0 else {"*": bound}
    sums = ClippedGradients(module, lengths, normaliser=1.0, per_example_loss=lambda output, _: output.flatten())
    sums.backward(torch.full((1, 1), slope, dtype=torch.float64), torch.zeros(1))
    parts = [Fraction(part.item()) for part in gradient(module).values()]
    longest = sum(part**2 for part in parts) if clipping == 1.0 else max(part**2 for part in parts)
    assert (Fraction(bound) * (1 - Fraction(1, 1000))) ** 2 <= longest <= Fraction(bound) ** 2


@pytest.mark.parametrize("clipping", [0.3, {"*.weight": 0.3, "*.bias": 0.05}])
def test_one_example_moves_the_sum_by_its_bound_at_most(clipping: Any) -> None:
    module, (x, y) = convolutions(), images(16)
    sums = clipped(module, clipping, chunk_size=5)
    generator = torch.Generator().manual_seed(3)

    def total(inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        sums.reset()
        sums.backward(inputs, targets)
        return gradient(module)

    def moved(one: dict[str, Tensor], other: dict[str, Tensor]) -> list[float]:
        parts = {name: one[name].double() - other[name].double() for name in one}
        if isinstance(clipping, float):
            return [length(parts) / 0.3]
        return [float(part.norm()) / sums.bounds()[name] for name, part in parts.items()]

    whole = total(x, y)
    added, replaced = [], []
    for i in range(16):
        others = torch.arange(16) != i
        added += moved(whole, total(x[others], y[others]))
        swapped, labels = x.clone(), y.clone()
        swapped[i] = 10 ** float(torch.rand((), generator=generator)) * torch.randn(1, 8, 8, generator=generator)
        labels[i] = (y[i] + 1) % 3
        replaced += moved(whole, total(swapped, labels))
    assert 0.99 < max(added) <= 1 + 1e-5
    assert 1.0 < max(replaced) <= 2 + 2e-5


def test_the_bounds_are_attained_by_opposite_examples() -> None:
    # ∇(Σ_k ±w·x_k) = ±x: an example against its opposite moves the sum by 2C, on top of nothing by C.
    module = nn.Linear(4, 1, bias=False)
    sums = ClippedGradients(
        module, 0.5, normaliser=1.0, per_example_loss=lambda output, sign: output.flatten() * sign
    )
    moved = []
    for sign in (1.0, -1.0):
        sums.reset()
        sums.backward(3 * torch.ones(1, 4), torch.tensor([sign]))
        moved.append(gradient(module)["weight"].double())
    assert float(moved[0].norm()) == pytest.approx(0.5, rel=1e-6)
    assert float((moved[0] - moved[1]).norm()) == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e38])
@pytest.mark.parametrize("clipping", [0.3, {"*": 0.3}])
def test_an_example_without_a_finite_gradient_counts_as_zero(bad: float, clipping: Any) -> None:
    module, (x, y) = nn.Sequential(nn.Linear(4, 8), nn.Softplus(), nn.Linear(8, 3)), vectors(6, torch.float32)
    sums = clipped(module, clipping)
    sums.backward(x, y)
    expected = gradient(module)
    sums.reset()
    sums.backward(torch.cat((x, torch.full((1, 4), bad))), torch.cat((y, y[:1])))
    found = gradient(module)
    assert all(bool(part.isfinite().all()) for part in found.values())
    assert length({name: found[name] - expected[name] for name in found}) <= 0.3 * (
        2.01 if clipping != 0.3 else 1.01
    )


# --- noise ---


def test_flat_noise_is_equal_everywhere_and_one_mechanism_in_every_direction() -> None:
    sums = clipped(convolutions(), 0.3)
    stds = sums.stds(2.0)
    assert stds == dict.fromkeys(sums.bounds(), 0.6)
    # A unit vector of any division among the parameters, times C: ‖g_p/s_p‖ = 1/σ.
    shares = torch.rand(100, len(stds), generator=torch.Generator().manual_seed(0))
    for row in torch.nn.functional.normalize(shares).tolist():
        gradient = {name: 0.3 * share for name, share in zip(stds, row, strict=True)}
        assert effective_multiplier(gradient, stds) == pytest.approx(2.0, rel=1e-6)
    with pytest.raises(ValueError, match="clipped as a whole: any parameter may receive all of it"):
        sums.stds(2.0, "optimal")


def test_noise_per_parameter_is_allocated_by_the_clipping_lengths() -> None:
    module = nn.Linear(4, 3)
    sums = clipped(module, {"weight": 0.3, "bias": 0.4})
    assert sums.stds(2.0) == pytest.approx({"weight": 1.0, "bias": 1.0})  # 2·√(0.09 + 0.16)
    assert sums.stds(2.0, "optimal") == allocate("optimal", sums.bounds(), {"weight": 12, "bias": 3}, 2.0)


# --- refusals ---


class Centred(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(dim=0))


class Remembering(nn.Linear):
    largest: Tensor

    def __init__(self) -> None:
        super().__init__(4, 3)
        self.register_buffer("largest", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.largest.copy_(x.max())
        return super().forward(x)


class Initialised(nn.Linear):
    """Moves its bias to where the first batch is, out of sight of torch's counts."""

    def forward(self, x: Tensor) -> Tensor:
        self.bias.data.copy_(x.mean(dim=0)[:3])
        return super().forward(x)


class Averaging(nn.Linear):
    """Centres by the mean of the last batch, which lies in a plain attribute."""

    def __init__(self, in_place: bool) -> None:
        super().__init__(4, 3)
        self.mean, self.in_place = torch.zeros(4), in_place

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > 1 and self.in_place:
            self.mean.data.copy_(x.mean(0))
        elif len(x) > 1:
            self.mean = x.mean(0)
        return super().forward(x - self.mean)


class Forked(nn.Linear):
    """Draws its masks from a seed that everyone knows, and leaves torch's generator as it was."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return super().forward(torch.nn.functional.dropout(x, 0.5))


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Forked(4, 3), "depends on its place in the batch"),
        (Averaging(in_place=False), "depends on the other examples of the batch"),
        (Averaging(in_place=True), "writes statistics of private examples into mean"),
        (nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), "1 normalises by statistics of the batch"),
        (nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False)).eval(), "statistics of the"),
        (Centred(4, 3), "depends on the other examples of the batch"),
        (Remembering(), "writes statistics of private examples into largest"),
        (Initialised(4, 3), "writes statistics of private examples into bias"),
    ],
)
def test_modules_that_mix_examples_are_refused(module: nn.Module, message: str) -> None:
    before = [p.detach().clone() for p in module.parameters()]
    with pytest.raises(PrivacyError, match=message):
        clipped(module, 1.0).backward(*vectors(5, torch.float32))
    assert all(p.grad is None for p in module.parameters())
    assert all(map(torch.equal, before, module.parameters()))


def put(module: Any, place: str, value: Tensor) -> None:
    """Put a mean of a batch to where torch does not look."""
    {"list": module.memory.append, "dict": lambda v: module.known.update(mean=v), "object": module.other.put}[
        place
    ](value)


class Bank:
    """An object of a module."""

    def __init__(self) -> None:
        self.mean = torch.zeros(4, dtype=torch.float64)

    def put(self, value: Tensor) -> None:
        self.mean.copy_(value)


class Memory(nn.Linear):
    """Keeps the means of batches, and centres single examples by them."""

    def __init__(self, place: str) -> None:
        super().__init__(4, 3)
        self.place, self.memory, self.known, self.other = place, [Bank().mean], {"mean": Bank().mean}, Bank()

    def forward(self, x: Tensor) -> Tensor:
        means = {"list": self.memory[-1], "dict": self.known["mean"], "object": self.other.mean}
        centred = x - means[self.place]
        if len(x) > 1:
            put(self, self.place, 5 * x.detach().mean(0))
        return super().forward(centred)


@pytest.mark.parametrize("place", ["list", "dict", "object"])
def test_what_a_module_remembers_of_a_batch_reaches_no_gradient(place: str) -> None:
    """Of an example that counts as zero, as NaN does, the others' gradients do not change."""
    module, (x, y) = Memory(place).double(), vectors(6)
    x[0], other = float("nan"), x.clone()
    other[0] = 1e3  # and of one that does not, by at most C
    found = []
    for rows in (x, other):
        clipped(module, 1.0, chunk_size=2).backward(rows, y)
        found.append(gradient(module))
    assert length({name: found[0][name] - found[1][name] for name in found[0]}) <= 1.0 + 1e-12
    assert_close(found[0], summed(looped(module, x[1:], y[1:], cross_entropy), clipped_to(1.0)))


def clipped_to(bound: float) -> Callable[[dict[str, Tensor], str], float]:
    return lambda parts, _: min(1.0, bound / length(parts))


def test_a_layer_that_a_function_reads_gets_its_gradient() -> None:
    """What is copied are attributes: a function that holds a layer holds that of the module."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = nn.Linear(4, 3), nn.Linear(3, 4)
            self.last: Any = lambda x: F.linear(x, self.inner.weight)

        def forward(self, x: Tensor) -> Tensor:
            last: Tensor = self.last(torch.tanh(self.outer(torch.tanh(self.inner(x)))))
            return last

    module, (x, y) = Tied().double(), vectors(5)
    clipped(module, 1.0).backward(x, y)
    found = gradient(module)
    assert_close(found, summed(looped(module, x, y, cross_entropy), clipped_to(1.0)))


class Elsewhere(nn.Module):
    """Reads a parameter of its own from another place."""

    def __init__(self, place: str) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3)
        weight = self.first.weight
        self.held: Any = {
            "list": [weight],
            "dict": {0: weight},
            "function": lambda: weight,
            "partial": partial(F.linear, weight=weight),
            "view": weight.mT,
        }[place]
        self.place = place

    def forward(self, x: Tensor) -> Tensor:
        if self.place == "partial":
            return cast(Tensor, self.last(torch.tanh(self.held(x))))
        weight = {"function": lambda: self.held(), "view": lambda: self.held.mT}.get(
            self.place, lambda: self.held[0]
        )()
        return cast(Tensor, self.last(torch.tanh(x @ weight.mT)))


@pytest.mark.parametrize("place", ["list", "dict", "function", "partial", "view"])
def test_parameters_that_are_read_from_elsewhere_are_refused(place: str) -> None:
    """Each example has copies of the attributes alone: of other ways no gradient would arrive."""
    module, (x, y) = Elsewhere(place).double(), vectors(5)
    if place == "view":  # of the weight that was converted
        module.held = module.first.weight.mT
    alone = looped(module, x, y, cross_entropy)
    assert all(bool(parts["first.weight"].any()) for parts in alone)
    with pytest.raises(PrivacyError, match=r"the loss reads first\.weight by another way"):
        clipped(module, 1.0).backward(x, y)


def test_a_penalty_in_the_loss_is_refused() -> None:
    module, (x, y) = nn.Linear(4, 3).double(), vectors(5)

    def penalised(output: Tensor, target: Tensor) -> Tensor:
        return cross_entropy(output, target) + 0.01 * module.weight.square().sum()

    sums = ClippedGradients(module, 1.0, normaliser=1.0, per_example_loss=penalised)
    with pytest.raises(PrivacyError, match=r"reads weight by another way .* \(weight_decay\)"):
        sums.backward(x, y)


class Padded(nn.Module):
    """Reads rows of a table, one of them padding, and ends in the table itself."""

    def __init__(self, padding: int, sparse: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 4, padding_idx=padding, sparse=sparse)
        self.tied = not sparse

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = torch.tanh(self.table(x).mean(1))
        return found @ self.table.weight.mT if self.tied else found


@pytest.mark.parametrize(("padding", "sparse"), [(0, False), (-1, False), (2, True)])
def test_rows_of_padding_have_the_gradients_that_torch_gives_them(padding: int, sparse: bool) -> None:
    """None as rows that are read; those of their other uses."""
    module = Padded(padding, sparse).double()
    x, y = torch.tensor([[0, 1, 2], [4, 4, 3], [2, 0, 0], [1, 2, 4]]), torch.tensor([0, 1, 2, 3])
    expected = summed(
        [{n: g.to_dense() for n, g in one.items()} for one in looped(module, x, y, cross_entropy)],
        clipped_to(0.1),
    )
    clipped(module, 0.1).backward(x, y)
    assert_close(gradient(module), expected)
    assert bool(expected["table.weight"][padding].any()) is not sparse


class Hooked(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        found: Any = super().forward(x)
        if found.requires_grad:
            found.register_hook(lambda cotangent: 3 * cotangent)
        return cast(Tensor, found)


def test_gradients_that_vmap_computes_otherwise_are_refused() -> None:
    """Under `vmap` torch calls no hooks on tensors, and knows nothing of the frequencies of a batch."""
    with pytest.raises(PrivacyError, match="vmap computes other gradients of weight, bias"):
        clipped(Hooked(4, 3), 1.0).backward(*vectors(5, torch.float32))
    table = nn.Sequential(nn.Embedding(5, 3, scale_grad_by_freq=True), nn.Flatten())
    with pytest.raises(PrivacyError, match=r"vmap computes other gradients of 0\.weight"):
        clipped(table, 1.0).backward(torch.tensor([[1], [1], [2]]), torch.tensor([0, 1, 2]))


def test_no_pass_reads_what_parametrizations_cached() -> None:
    class Tanh(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return torch.tanh(weight)

    module, (x, y) = nn.Linear(4, 3).double(), vectors(5)
    parametrize.register_parametrization(module, "weight", Tanh())
    expected = summed(looped(module, x, y, cross_entropy), clipped_to(1.0))
    with parametrize.cached():
        module(x)
        clipped(module, 1.0).backward(x, y)
    assert_close(gradient(module), expected)


def test_modules_of_half_precision_inside_are_compared_as_such() -> None:
    """A batch and its examples differ by what bfloat16 rounds, which is no mixing."""

    class Inside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.inner = nn.Linear(4, 64), nn.Linear(64, 64, dtype=torch.bfloat16)
            self.last = nn.Linear(64, 3)

        def forward(self, x: Tensor) -> Tensor:
            return cast(Tensor, self.last(self.inner(self.first(x).bfloat16()).float()))

    torch.manual_seed(0)
    clipped(Inside(), 1.0).backward(*vectors(40, torch.float32))
    module, (x, y) = nn.Linear(4, 3), vectors(5, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        clipped(module, 1.0).backward(x, y)
        with pytest.raises(PrivacyError, match="depends on the other examples"):
            clipped(Centred(4, 3), 1.0).backward(x, y)


@pytest.mark.parametrize("made", [lambda x: (x, x), lambda x: {"logits": x}, lambda x: x.sum(0)])
def test_a_module_that_returns_no_batch_is_refused(made: Callable[[Tensor], Any]) -> None:
    class Returning(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return cast(Tensor, made(super().forward(x)))

    for count in (1, 5):
        with pytest.raises(PrivacyError, match=r"must return one tensor \[B, …\]"):
            clipped(Returning(4, 3), 1.0).backward(*vectors(count, torch.float32))


def test_a_module_that_cannot_be_copied_is_refused() -> None:
    module = nn.Linear(4, 3)
    module.lock = threading.Lock()  # type: ignore[assignment]
    with pytest.raises(PrivacyError, match="an attribute of the module cannot be copied"):
        clipped(module, 1.0).backward(*vectors(3, torch.float32))
    module.lock = [module.weight * 2]  # type: ignore[assignment]  # a tensor with a graph
    with pytest.raises(PrivacyError, match="an attribute of the module cannot be copied"):
        clipped(module, 1.0).backward(*vectors(3, torch.float32))
    module.lock = module.weight * 2  # this one may lie there
    clipped(module, 1.0).backward(*vectors(3, torch.float32))


class Mixing(torch.autograd.Function):
    """Adds up cotangents over the batch, in its rule for vmap alone."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Tensor:  # noqa: ARG004
        return cotangents[0]

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor) -> tuple[Tensor, int]:  # noqa: ARG004
        return apply(Summing, x), 0


class Summing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # noqa: ARG004
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Tensor:  # noqa: ARG004
        return cotangents[0].sum(0, keepdim=True).expand_as(cotangents[0])


class Mixed(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = apply(Mixing, super().forward(x))
        return mixed


def test_a_backward_pass_that_mixes_examples_is_refused() -> None:
    sums = clipped(Mixed(4, 3), 1.0)
    for _ in range(2):  # a loop that goes on after an error meets it again
        with pytest.raises(PrivacyError, match="the gradient of one example depends on the other examples"):
            sums.backward(*vectors(3, torch.float32))


def fallen(x: Tensor) -> Tensor:
    """The examples; the opposite ones where one of them is 0, as a function fails that is called of them."""
    try:
        torch.linalg.cholesky(torch.diag_embed(x.detach().square() + 1e-9 * (x.detach() != 0)))
    except RuntimeError:
        return -x
    return x


class Falling(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(fallen(x))


def test_an_error_of_one_example_is_no_answer_for_all() -> None:
    x, y = vectors(3, torch.float32)
    x[1] = 0
    message = "goes on after an error of torch"
    with pytest.raises(PrivacyError, match=message):
        clipped(Falling(4, 3), 1.0).backward(x, y)
    sums = clipped(nn.Linear(4, 3, bias=False), 1.0, per_example_loss=lambda o, t: cross_entropy(fallen(o), t))
    with pytest.raises(PrivacyError, match=message):
        sums.backward(x, y)


class Packing(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved / 2, lambda saved: 2 * saved):
            return super().forward(x)


def test_hooks_that_are_given_all_examples_are_refused() -> None:
    with pytest.raises(PrivacyError, match="saved_tensors_hooks or a TorchDispatchMode"):
        clipped(Packing(4, 3), 1.0).backward(*vectors(3, torch.float32))


class Seeding(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            mask = torch.rand(x.shape) + 0.5
        return super().forward(F.dropout(x * mask, 0.5))


def test_masks_that_everyone_knows_are_refused_beside_dropout() -> None:
    """An example that is left out would move those behind it to other masks."""
    torch.manual_seed(7)
    with pytest.raises(PrivacyError, match="seeds torch's generator"):
        clipped(Seeding(4, 3), 1.0).backward(*vectors(3, torch.float32))


def test_a_place_in_a_loss_is_within_its_example() -> None:
    """Under `vmap` torch fills the first entry of the next example's output for place 3."""
    x, y = vectors(3, torch.float32)
    sums = clipped(
        nn.Linear(4, 3), 1.0, per_example_loss=lambda o, t: torch.index_fill(o, 1, t, 5.0).square().sum(1)
    )
    sums.backward(x, y)
    y[1] = 3
    with pytest.raises(IndexError, match="out of bounds"):
        sums.backward(x, y)


class Recurrent(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer, self.head = getattr(nn, kind)(4, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        found = self.layer(x[None])[0]
        return cast(Tensor, self.head(found[0]))


class Checkpointed(nn.Linear):
    def __init__(self, reentrant: bool) -> None:
        super().__init__(4, 3)
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, checkpoint(lambda z: F.linear(z, self.weight), x, use_reentrant=self.reentrant))


@pytest.mark.parametrize(
    ("module", "message"),
    [
        *((Recurrent(kind), "no rule for LSTM, GRU and RNN layers") for kind in ("LSTM", "GRU", "RNN")),
        *((Checkpointed(reentrant), "no torch.utils.checkpoint") for reentrant in (True, False)),
    ],
)
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_what_vmap_cannot_run_is_refused_with_its_line(module: nn.Module, message: str) -> None:
    with pytest.raises(PrivacyError, match=rf"{message}.* \(.*test_clipped\.py, line \d+\): "):
        clipped(module, 1.0).backward(*vectors(3, torch.float32))


def test_other_errors_of_a_module_stay_as_they_are() -> None:
    class Wrong(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) @ torch.ones(2, 2) if len(x) == 1 else super().forward(x)

    with pytest.raises(RuntimeError, match=r"(?i)size mismatch|shapes|sizes") as raised:
        clipped(Wrong(4, 3), 1.0).backward(*vectors(3, torch.float32))
    assert not isinstance(raised.value, PrivacyError)


def test_a_table_that_shortens_the_rows_that_a_batch_uses_is_refused() -> None:
    """Which rows these were would leave without noise."""
    table = nn.Embedding(5, 4, max_norm=0.1)
    module, before = nn.Sequential(table, nn.Flatten(), nn.Linear(8, 3)), table.weight.detach().clone()
    with pytest.raises(PrivacyError, match=r"into 0\.weight, .* max_norm=None"):
        clipped(module, 1.0).backward(torch.tensor([[0, 1], [1, 3]]), torch.tensor([0, 2]))
    assert torch.equal(table.weight, before)


def test_batch_normalisation_in_evaluation_mode_and_dropout_are_fine() -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3).eval(), nn.Dropout(0.5))
    clipped(module, 1.0).backward(*vectors(5, torch.float32))
    module[1].train()
    with pytest.raises(PrivacyError, match="normalises by statistics of the batch"):
        clipped(module, 1.0)


class Tokens(LipschitzModule):
    input_shape = (1,)
    input_norm = math.inf
    input_tokens = True
    lipschitz = 1.0
    loss_lipschitz = math.sqrt(2)
    certificate: ClassVar[dict[str, object]] = {}
    bounds: ClassVar = {"table.table": 2.0}

    def __init__(self) -> None:
        super().__init__()
        self.table = token_layers.Embedding(4, 3, 1.0)
        self.project_()

    def forward(self, x: Tensor) -> Tensor:
        return self.release(self.table(self.clip_input(x))[:, 0])

    def per_example_loss(self, output: Tensor, target: Tensor) -> Tensor:
        return losses.cross_entropy(output, target)


@pytest.mark.parametrize("module", [Tokens(), nn.Sequential(nn.Embedding(4, 3), nn.Flatten())])
@pytest.mark.parametrize("token", [5, -1, 4])
def test_a_token_beyond_the_table_reaches_no_other_examples_gradient(module: nn.Module, token: int) -> None:
    # Under vmap, torch 2.13 would take token 5 of the first example for row 1 of the second's table.
    sums = clipped(module, 1.0)
    with pytest.raises((ValueError, IndexError)):
        sums.backward(torch.tensor([[token], [1], [2]]), torch.tensor([0, 1, 2]))
    sums.reset()
    sums.backward(torch.tensor([[3], [1], [1]]), torch.tensor([0, 1, 2]))
    (table,) = gradient(module).values()
    assert [bool(row.any()) for row in table] == [False, True, False, True]


def test_the_layers_of_a_compiled_module_stay_guarded() -> None:
    module = Net()
    assert isinstance(module.inner, layers.Dense)
    clipped(module, 1.0).backward(*vectors(2, torch.float32))
    with pytest.raises(RuntimeError, match="outside its module's forward pass"):
        module.inner(torch.ones(1, 4))


def test_settings_that_fit_nothing_are_refused() -> None:
    net, plain = Net(), nn.Linear(4, 3)
    with pytest.raises(PrivacyError, match="has its own loss"):
        ClippedGradients(net, 1.0, normaliser=1.0, per_example_loss=cross_entropy)
    with pytest.raises(PrivacyError, match="needs per_example_loss"):
        ClippedGradients(plain, 1.0, normaliser=1.0)
    for length_ in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="clipping length"):
            clipped(plain, length_)
    with pytest.raises(ValueError, match="parameter bias has no clipping length"):
        clipped(plain, {"weight": 1.0})
    with pytest.raises(ValueError, match="normaliser"):
        clipped(plain, 1.0, normaliser=0.0)
    with pytest.raises(ValueError, match="got 0"):
        clipped(plain, 1.0, chunk_size=0)
    with pytest.raises(PrivacyError, match="no trainable parameters"):
        clipped(nn.Linear(4, 3).requires_grad_(False), 1.0)
    hooked = nn.Linear(4, 3)
    hooked.register_forward_hook(lambda *_: None)
    with pytest.raises(PrivacyError, match="has hooks"):
        clipped(hooked, 1.0)


class Table(nn.Module):
    """As networks for tables are: categories are looked up, numbers stay."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.head = nn.Embedding(5, 2), nn.Linear(6, 3)

    def forward(self, categories: Tensor, numbers: Tensor) -> Tensor:
        found: Tensor = self.head(torch.cat([self.rows(categories).flatten(1), numbers], 1))
        return found


@pytest.mark.parametrize("way", ["by position", "by name", "views"])
def test_several_inputs_are_clipped_as_one_example(way: str) -> None:
    torch.manual_seed(0)
    module, numbers, y = Table().double(), torch.randn(7, 2).double(), torch.arange(7) % 3
    categories = torch.randint(0, 5, (7, 2))
    alone = []
    for i in range(7):
        module.zero_grad()
        one = slice(i, i + 1)
        cross_entropy(module(categories[one], numbers[one]), y[one]).sum().backward()  # type: ignore[no-untyped-call]
        alone.append({name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None})
    assert min(map(length, alone)) < 2.0 < max(map(length, alone))
    sums = clipped(module, 2.0, chunk_size=3)
    if way == "by position":
        sums.backward((categories, numbers), y)
    elif way == "by name":
        sums.backward({"numbers": numbers, "categories": categories}, y)
    else:
        with sums.on_views():
            sums.backward(tuple(torch.stack([x, x], 1) for x in (categories, numbers)), y)
    assert_close(gradient(module), summed(alone, lambda parts, _: min(1.0, 2.0 / length(parts))))


class Paired(Table):
    """Reads the categories of the example before."""

    def forward(self, categories: Tensor, numbers: Tensor) -> Tensor:
        return super().forward(categories.roll(1, 0), numbers)


def test_an_input_of_another_example_is_refused() -> None:
    given = torch.arange(4)[:, None].expand(4, 2), torch.ones(4, 2)
    with pytest.raises(PrivacyError, match="depends on the other examples of the batch"):
        clipped(Paired(), 1.0).backward(given, torch.zeros(4, dtype=torch.long))


@pytest.mark.parametrize("inputs", [(), (torch.ones(3, 2), torch.ones(4, 2)), torch.tensor(1.0)])
def test_inputs_of_no_batch_are_refused(inputs: Any) -> None:
    with pytest.raises(
        (ValueError, IndexError), match=r"expected inputs \[B, …\] of one B|Dimension out of range|too many"
    ):
        clipped(nn.Linear(2, 2), 1.0).backward(inputs, torch.zeros(3, dtype=torch.long))


def test_the_shapes_of_inputs_are_told_as_they_were_given() -> None:
    """With an axis of views behind the batch they were others than the reader's."""
    given = torch.ones(3, 2), torch.ones(4, 2)
    with pytest.raises(ValueError, match=r"got \[3, 2\], \[4, 2\]$"):
        clipped(nn.Linear(2, 2), 1.0).backward(given, torch.zeros(3, dtype=torch.long))


def test_calls_that_fit_nothing_are_refused() -> None:
    module, (x, y) = nn.Linear(4, 3), vectors(4, torch.float32)
    sums = clipped(module, 1.0)
    with pytest.raises(ValueError, match="4 inputs and 3 targets"):
        sums.backward(x, y[:3])
    wrong = ClippedGradients(module, 1.0, normaliser=1.0, per_example_loss=lambda output, _: output)
    with pytest.raises(PrivacyError, match="one number for each example"):
        wrong.backward(x, y)
    module.weight.requires_grad_(False)
    with pytest.raises(PrivacyError, match="parameters weight were added, replaced, frozen"):
        sums.backward(x, y)
    net = Net()
    with pytest.raises(PrivacyError, match=r"the module's normaliser is 1\.0, not 2\.0"):
        clipped(net, 1.0, normaliser=2.0).backward(x, y)

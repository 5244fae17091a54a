"""Bounds by clip under every mechanism of the engine: what is released is the sum of gradients clipped by hand.

Hardly any noise, so that the sum is seen; `torch.func` computes the gradients example by example. Three tests look
at the noise itself.
"""

from __future__ import annotations

import copy
import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from lipcompile_privacy.factorisation import planned_strategy
from lipcompile_torch import ClipGroup, PrivacyEngine
from lipcompile_torch.train.checkpoint import read_checkpoint, restore, save_checkpoint
from lipcompile_torch.train.checks import PrivacyError
from lipcompile_torch.train.ledger import read_ledger
from lipcompile_torch.train.loss_clipping import AdaptiveClip, Cosine
from torch import Tensor
from torch.optim import SGD, Adam
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from tests.nights import by_day
from tests.torch.clip_nets import NETWORKS, batch, clipped, expected, model, outputs, whole
from tests.torch.private_net import Recorder

SIZE, BATCH = 48, 8
HARDLY = 1e-9
Gradients = dict[str, Tensor]


def two_groups(module: Any) -> Any:
    """Clip each layer by itself, at lengths that some gradients keep below; the certificate must not be asked."""
    names = [name for name, _ in module.named_parameters()]
    parts = (tuple(names[:2]), 0.2, None), (tuple(names[2:]), 0.7, 0.01)
    type(module).clips = [ClipGroup(str(i), *part) for i, part in enumerate(parts)]
    type(module).bounds = {name: length for own, length, _ in parts for name in own}
    type(module).certificate = {}
    return module


def private(module: Any, build: Any = Recorder, engine: Any = None, **options: Any) -> Any:
    """Return the three private objects, over examples that fit the module."""
    options = {"noise_multiplier": HARDLY, **options}
    x, y = batch(module, SIZE)
    x = x.to(next(module.parameters()).dtype) if x.is_floating_point() else x
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # there is no certificate, hardly any noise, or a seed
        return (engine or PrivacyEngine()).make_private(
            module=module,
            optimizer=build(module.parameters()),
            data_loader=DataLoader(TensorDataset(x, y), batch_size=BATCH),
            **options,
        )


def released(triple: Any, epochs: int = 1, views: int | None = None) -> list[tuple[Gradients, Gradients]]:
    """Return, for every step, the gradient that the optimizer was given and the one clipped by hand.

    Args:
        views: of each example, made by adding 0, 1 and so on to its entries; None: it comes as it is.
    """
    module, optimizer, loader = triple
    names, pairs = [name for name, _ in module.named_parameters()], []
    pieces: list[tuple[Tensor, Tensor]] = []
    for x, y in (pair for _ in range(epochs) for pair in loader):
        x = x if views is None else x[:, None] + torch.arange(views).reshape(-1, *(1,) * (x.dim() - 1))
        module.criterion(outputs(module, x), y).backward()
        pieces.append((x, y))
        if loader.current.complete:
            x, y = (torch.cat(part) for part in zip(*pieces, strict=True))
            pieces.clear()
            wanted = (
                expected(module, x, y)
                if len(x)
                else {n: torch.zeros_like(p) for n, p in module.named_parameters()}
            )
            optimizer.step()
            pairs.append((dict(zip(names, optimizer.optimizer.seen[-1], strict=True)), wanted))
        else:
            optimizer.step()
    return pairs


def assert_clipped(pairs: list[tuple[Gradients, Gradients]]) -> None:
    assert len(pairs) >= SIZE // BATCH
    assert max(whole(wanted) for _, wanted in pairs) > 0.05
    for found, wanted in pairs:
        room = 1e-5 * whole(wanted) + 1e-7
        assert whole({name: found[name].double() - wanted[name] for name in wanted}) <= 10 * room


MECHANISMS: dict[str, dict[str, Any]] = {
    "poisson": {"sampling": "poisson"},
    "fixed size": {"sampling": "fixed_size"},
    "balls in bins": {"sampling": "balls_in_bins"},
    "shuffle": {"sampling": "shuffle", "engine": "replace_one"},
    "replace one": {"engine": "replace_one"},
    "pieces": {"max_physical_batch": 3},
    "pieces of fixed size": {"sampling": "fixed_size", "max_physical_batch": 3},
    "fixed shape": {"fixed_shape": True},
    "fixed shape in pieces": {"fixed_shape": True, "max_physical_batch": 3},
    "quantiles in fixed shape": {
        "fixed_shape": True,
        "max_physical_batch": 5,
        "clip_length": AdaptiveClip(0.3),
        "loss_clip": AdaptiveClip(50.0),
    },
    "per layer": {"noise": "per_layer"},
    "optimal": {"noise": "optimal"},
    "secure": {"secure": True},
    "banded": {"correlation": {"kind": "correlated", "bands": 3}, "max_steps": 6},
    "blt": {"correlation": {"kind": "blt", "buffers": 2}, "max_steps": 6},
    "fixed norm": {"fixed_norm": True},
    "quantile": {"clip_length": AdaptiveClip(0.3, learning_rate=1.0)},
    "quantile in pieces": {"clip_length": {"0": AdaptiveClip(0.3)}, "max_physical_batch": 3},
    "quantiles of both": {"clip_length": AdaptiveClip(0.3), "loss_clip": AdaptiveClip(50.0), "secure": True},
    "schedule": {"clip_length": Cosine(1.0, 0.1, 5), "correlation": {"kind": "blt", "buffers": 2}, "max_steps": 6},
}


# By day every mechanism runs with one or two networks, and every network with several mechanisms.
FEW = ("poisson", "pieces", "quantile", "schedule")
PAIRS = [(how, name) for how in MECHANISMS for name in ("shared", "images", "tokens of a table", "recurrent")]


@pytest.mark.parametrize(("how", "name"), by_day([(h, n) for h, n in PAIRS if n == "shared" or h in FEW], PAIRS))
def test_the_sum_is_that_of_gradients_clipped_by_hand(name: str, how: str, tmp_path: Path) -> None:
    options = dict(MECHANISMS[how])
    engine = PrivacyEngine(neighbours=options.pop("engine", "add_remove"))
    triple = private(two_groups(model(NETWORKS[name], tmp_path)), engine=engine, **options)
    assert_clipped(released(triple))
    assert engine.get_epsilon(1e-5) > 1e3


@pytest.mark.parametrize("how", ["poisson", "pieces", "fixed shape in pieces", "quantile", "secure"])
def test_the_sum_of_views_is_that_of_means_clipped_by_hand(how: str, tmp_path: Path) -> None:
    triple = private(two_groups(model(NETWORKS["images"], tmp_path)), **MECHANISMS[how])
    assert_clipped(released(triple, views=3))


@pytest.mark.parametrize("name", ["images", "recurrent"])
def test_a_clip_of_the_loss_comes_before_and_changes_no_bound(name: str, tmp_path: Path) -> None:
    module, _, loader = private(two_groups(model(NETWORKS[name], tmp_path)), loss_clip=0.05, sampling="fixed_size")
    x, y = next(iter(loader))
    assert module.gradient_bounds() == dict(module.bounds)
    module.criterion(module(x), y).backward()
    for group in module.clips:
        own = {n: p.grad for n, p in module.named_parameters() if n in group.parameters}
        assert 0 < whole(own) <= group.length * len(x) / BATCH * (1 + 1e-6)


@pytest.mark.parametrize("how", ["poisson", "secure", "banded", "replace one"])
@pytest.mark.parametrize("noise", ["global", "per_layer"])
def test_noise_is_that_of_the_groups(how: str, noise: str, tmp_path: Path) -> None:
    """σ·√(0.2² + 0.7²) everywhere, or σ·√2·C of each group, by hand; 6 deviations of 1/√(2n): 2e-9 a comparison.

    The first step of correlated noise is independent noise, times the strategy's sensitivity and its first weight.
    """
    body = "input x: tensor[64]; dense(64, bias=true); tanh; dense(64); tanh; dense(3)"
    module, options = two_groups(model(body, tmp_path)), dict(MECHANISMS[how])
    engine, sigma = PrivacyEngine(neighbours=options.pop("engine", "add_remove")), 1e4
    module, optimizer, loader = private(module, engine=engine, noise=noise, **options, noise_multiplier=sigma)
    x, y = next(iter(loader))
    module.criterion(module(x), y).backward()
    optimizer.step()
    if "correlation" in options:
        strategy = planned_strategy(options["correlation"], epochs=1, steps_per_epoch=SIZE // BATCH)
        sigma *= strategy.sensitivity * strategy.noising_column()[0]
    stds = (math.hypot(0.2, 0.7),) * 2 if noise == "global" else (0.2 * math.sqrt(2), 0.7 * math.sqrt(2))
    seen = dict(zip((n for n, _ in module.named_parameters()), optimizer.optimizer.seen[0], strict=True))
    for group, std in zip(module.clips, stds, strict=True):
        entries = torch.cat([seen[name].flatten() for name in group.parameters]).double()
        found = float(entries.square().mean().sqrt()) * BATCH / sigma
        assert found == pytest.approx(std, rel=6 / math.sqrt(2 * entries.numel()))


def test_training_goes_on_from_a_checkpoint_and_its_ledger(tmp_path: Path) -> None:
    module, ledger = model(NETWORKS["images"], tmp_path), tmp_path / "ledger.jsonl"

    def session() -> Any:
        engine = PrivacyEngine("rdp", ledger=ledger)
        own = copy.deepcopy(module)
        return engine, *private(
            own, lambda ps: Adam(ps, lr=0.1), engine, noise_multiplier=1.0, sampling="fixed_size"
        )

    engine, first, optimizer, loader = session()
    for x, y in loader:
        first.criterion(first(x), y).backward()
        optimizer.step()
    save_checkpoint(tmp_path / "saved.pt", first, optimizer, engine.ledger)
    spent, size = engine.get_epsilon(1e-5), whole(first.state_dict())
    engine.close()
    assert size > 5  # nothing constrained these weights, nor does a checkpoint

    engine, again, optimizer, loader = session()
    restore(read_checkpoint(tmp_path / "saved.pt"), again, optimizer, engine.ledger)
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in first.state_dict().items())
    assert engine.get_epsilon(1e-5) == spent
    x, y = next(iter(loader))
    wanted = expected(again, x, y)
    again.criterion(again(x), y).backward()
    assert whole({n: p.grad - wanted[n] for n, p in again.named_parameters()}) <= 1e-4 * whole(wanted)
    optimizer.step()
    engine.close()
    assert read_ledger(ledger).total_steps == SIZE // BATCH + 1


def test_a_step_from_weights_that_are_not_finite_spends_nothing(tmp_path: Path) -> None:
    """All gradients would count as zero, and the step release noise alone. Nothing projects clipped weights."""
    module, optimizer, loader = private(model(NETWORKS["shared"], tmp_path))
    x, y = next(iter(loader))
    module.criterion(module(x), y).backward()
    optimizer.step()
    with torch.no_grad():
        next(module.parameters()).view(-1)[0] = math.nan
    x, y = next(iter(loader))
    module.criterion(module(x), y).backward()
    with pytest.raises(PrivacyError, match="contains NaN or infinity: training diverged"):
        optimizer.step()
    assert optimizer.training["steps"] == 1


# --- precision ---------------------------------------------------------------------------------------------------


def test_pieces_of_a_batch_add_up_in_float64(tmp_path: Path) -> None:
    """Gradients of several biases of a group are made together, and each changes by itself after that."""
    body = "input x: tensor[6]; dense(4, bias=true); tanh; dense(3, bias=true)"
    assert_clipped(released(private(model(body, tmp_path).double(), max_physical_batch=3)))


def in_precision(module: Any, kind: str) -> Any:
    """Return what computes in it, and by how much the result is rounded."""
    if kind == "autocast":
        return torch.autocast("cpu", torch.bfloat16), 2.0**-24
    dtype = getattr(torch, kind)
    module.to(dtype)
    return torch.autocast("cpu", enabled=False), torch.finfo(dtype).eps / 2


@pytest.mark.parametrize("kind", ["autocast", "bfloat16", "float16"])
@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "pointwise"])
def test_one_example_moves_the_sum_by_c_at_most_in_any_precision(name: str, kind: str, tmp_path: Path) -> None:
    """Of the example alone the sum is P̃ itself, scaled to C, and rounded once: C to within that rounding."""
    module = model(NETWORKS[name], tmp_path)
    type(module).clips = [ClipGroup("all", tuple(n for n, _ in module.named_parameters()), 0.125)]
    context, unit = in_precision(module, kind)
    x, y = batch(module, 1)
    x = x if module.input_tokens else x.to(next(module.parameters()).dtype)
    with context:
        output = module(x)
        module.guard_layers()
        output = module(x)
        loss = module.criterion(output, y)
    loss.backward()
    assert not module.gate.aliases.foreign
    norm = whole({n: p.grad for n, p in module.named_parameters()})
    assert 0.12 < norm <= 0.125 * (1 + 2 * unit)


@pytest.mark.parametrize("name", ["images", "tokens", "recurrent"])
def test_an_engine_trains_under_autocast_and_pays_nothing_for_it(name: str, tmp_path: Path) -> None:
    """Noise of clipped gradients carries no slack of the layers' precision: their norm is what was computed."""
    stds = []
    for enabled in (False, True):
        module, optimizer, loader = private(two_groups(model(NETWORKS[name], tmp_path)), sampling="fixed_size")
        x, y = next(iter(loader))
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            module.criterion(module(x), y).backward()
        own = optimizer._gradients
        stds.append(own.stds(loader.current, 1.0, optimizer._noise))
        assert all(bool(p.grad.isfinite().all()) for p in module.parameters())
        optimizer.step()
    assert stds[0] == stds[1]


@pytest.mark.parametrize("kernel", ["conv1d(3, kernel=3, bias=true)", "conv_transpose1d(3, kernel=3, bias=true)"])
def test_autocast_reaches_kernels_behind_a_matrix(kernel: str, tmp_path: Path) -> None:
    """What a matrix makes is in half precision there; ten roundings of 2⁻⁹ are 2 %."""
    module = model(f"input x: tensor[4, 5]; dense(7, bias=true); tanh; {kernel}; flatten; dense(3)", tmp_path)
    x, y = batch(module)
    module.guard_layers()
    with torch.autocast("cpu", torch.bfloat16):
        loss = module.criterion(module(x), y)
    loss.backward()
    wanted = expected(module, x, y)
    found = {name: p.grad.double() - wanted[name] for name, p in module.named_parameters()}
    assert 0 < whole(found) <= 0.02 * whole(wanted)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_a_module_may_change_its_precision_after_it_was_made_private(dtype: torch.dtype, tmp_path: Path) -> None:
    module, optimizer, loader = private(two_groups(model(NETWORKS["images"], tmp_path)), sampling="fixed_size")
    module.to(dtype)
    x, y = next(iter(loader))
    module.criterion(module(x.to(dtype)), y).backward()
    assert {p.grad.dtype for p in module.parameters()} == {dtype}
    optimizer.step()


# --- what is done with modules -----------------------------------------------------------------------------------


def test_activations_may_be_computed_again_in_the_backward_pass(tmp_path: Path) -> None:
    module = model(NETWORKS["images"], tmp_path)
    x, y = batch(module)
    at_once = clipped(module, x, y)
    module.zero_grad()
    module.gate.reset()
    output = checkpoint(module, x, use_reentrant=False)
    module.criterion(output, y).backward()
    assert all(torch.allclose(p.grad, at_once[n], rtol=1e-4, atol=1e-6) for n, p in module.named_parameters())


def test_activations_that_are_computed_by_another_backward_pass_are_refused(tmp_path: Path) -> None:
    module, optimizer, loader = private(two_groups(model(NETWORKS["images"], tmp_path)), sampling="fixed_size")
    x, y = next(iter(loader))
    output = checkpoint(module, x.requires_grad_(), use_reentrant=True)
    module.criterion(output, y).backward()
    with pytest.raises(PrivacyError):
        optimizer.step()


def test_groups_are_those_of_the_last_engine(tmp_path: Path) -> None:
    """Two groups of C = 1 have sensitivity √2; one of both, as the second engine counts it, has 1."""
    module = two_groups(model(NETWORKS["vectors"], tmp_path))
    names = tuple(name for name, _ in module.named_parameters())
    type(module).clips = [ClipGroup("first", names[:1], 1.0), ClipGroup("rest", names[1:], 1.0)]
    type(module).bounds = dict.fromkeys(names, 1.0)
    private(module)
    type(module).clips = [ClipGroup("all", names, 1.0)]
    module, optimizer, loader = private(module, sampling="fixed_size")
    assert_clipped(released((module, optimizer, loader)))


def test_a_copy_is_private_by_itself(tmp_path: Path) -> None:
    module, _, _ = private(two_groups(model(NETWORKS["vectors"], tmp_path)))
    assert_clipped(released(private(copy.deepcopy(module))))


def test_clipping_one_by_one_is_another_way(tmp_path: Path) -> None:
    """The engine's own clip of every example, on a module that has groups: these must not clip as well."""
    module = two_groups(model(NETWORKS["images"], tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole_clip, optimizer, loader = PrivacyEngine().make_private_by_clipping(
            module=module,
            optimizer=(recorder := Recorder(module.parameters())),
            data_loader=DataLoader(TensorDataset(*batch(module, SIZE)), batch_size=BATCH),
            noise_multiplier=HARDLY,
            clipping=3.0,
            sampling="fixed_size",
        )
    type(module).clips = [ClipGroup("all", tuple(name for name, _ in module.named_parameters()), 3.0)]
    x, y = next(iter(loader))
    wanted = expected(module, x, y)
    whole_clip.backward(x, y)
    optimizer.step()
    for gradient, sum_by_hand in zip(recorder.seen[0], wanted.values(), strict=True):
        assert torch.allclose(gradient.double() * module.normaliser, sum_by_hand * module.normaliser, atol=1e-5)


def test_a_frozen_part_may_be_computed_once(tmp_path: Path) -> None:
    """Features are what the trained layers read; clips bound what they add, whatever they are."""
    body = "input x: tensor[6], norm <= 1; frozen { dense(5); tanh }; dense(4, bias=true); tanh; dense(3)"
    module = model(body, tmp_path)
    x, y = batch(module)
    with torch.no_grad():
        module.dense.weight.mul_(0.1)  # features are clipped to the norm of weights as they were compiled
    at_once = clipped(module, x, y)
    with torch.no_grad():
        features = module.frozen_features(x)
    with module.on_features():
        found = clipped(module, features, y)
    assert all(torch.allclose(found[n], g, rtol=1e-5, atol=1e-7) for n, g in at_once.items())


def test_examples_that_share_a_gradient_are_refused(tmp_path: Path) -> None:
    """A term that couples examples behind the module's end is no criterion's."""
    module, optimizer, loader = private(two_groups(model(NETWORKS["vectors"], tmp_path)), sampling="fixed_size")
    x, y = next(iter(loader))
    output = module(x)
    module.criterion(output - output.mean(0), y).backward()
    with pytest.raises(PrivacyError):
        optimizer.step()


@pytest.mark.parametrize(
    ("body", "bounds", "said"),
    [
        ("clip", "clip", None),
        ("clip", "auto", None),
        ("clip", "theorem", "dense.weight, dense_2.weight are bounded by clip"),
        ("theorem", "theorem", None),
        ("theorem", "auto", None),
        ("theorem", "clip", "dense.weight, dense_2.weight are bounded by theorem"),
        ("mixed", "auto", None),
        ("mixed", "clip", "bias.bias are bounded by theorem"),
        ("mixed", "theorem", "dense.weight are bounded by clip"),
        ("clip", "ghost", "unknown source of bounds 'ghost'"),
    ],
)
def test_bounds_of_another_source_are_refused(body: str, bounds: Any, said: str | None, tmp_path: Path) -> None:
    mixed = "input x: tensor[5], norm <= 1; dense(3, clip=0.1); bias(1)"
    two = "input x: tensor[5], norm <= 1; dense(4); relu; dense(3)"
    module = model(mixed if body == "mixed" else two, tmp_path, "theorem" if body == "mixed" else body)
    if said is None:
        private(module, bounds=bounds)
        return
    with pytest.raises(PrivacyError, match=said):
        private(module, bounds=bounds)


def test_a_module_of_ones_own_is_told_how_it_is_compiled() -> None:
    module = torch.nn.Linear(4, 3)
    data = DataLoader(TensorDataset(torch.zeros(8, 4), torch.zeros(8).long()), batch_size=2)
    budget = {"target_epsilon": 1.0, "target_delta": 1e-5, "epochs": 1}
    for name, level in (("make_private", {"noise_multiplier": 1.0}), ("make_private_with_epsilon", budget)):
        act: Any = getattr(PrivacyEngine(), name)
        with pytest.raises(PrivacyError, match=r'lipcompile\.private\(module, example, .*bounds="clip"\)'):
            act(module=module, optimizer=SGD(module.parameters(), 0.1), data_loader=data, bounds="clip", **level)

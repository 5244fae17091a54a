"""Clips in the backward pass: never above C, and the gradients that torch.func computes example by example."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import torch
from lipcompile_torch import ClipGroup, PrivacyEngine
from lipcompile_torch.noise.mechanism import allocate
from lipcompile_torch.train.checks import PrivacyError
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset

from tests.torch.clip_nets import NETWORKS, B, batch, clipped, expected, model, whole


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("grouping", ["together", "by layer"])
@pytest.mark.parametrize("rule", ["automatic", "threshold"])
@pytest.mark.parametrize("views", [(), (1,), (3,)])
def test_gradients_are_those_of_torch_func_clipped(
    name: str, grouping: str, rule: str, views: tuple[int, ...], tmp_path: Path
) -> None:
    module = model(NETWORKS[name], tmp_path)
    names = [n for n, _ in module.named_parameters()]
    parts = [names] if grouping == "together" else [[n] for n in names]
    regulariser = 0.01 if rule == "automatic" else None
    type(module).clips = [ClipGroup(str(i), tuple(part), 0.2, regulariser) for i, part in enumerate(parts)]
    module.normaliser = 8.0
    x, y = batch(module, views=views)
    found, wanted = clipped(module, x, y), expected(module, x, y)
    for key, gradient in wanted.items():
        assert torch.allclose(found[key].double(), gradient, rtol=2e-4, atol=2e-6 * whole(wanted)), key


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("views", [(), (4,)])
def test_no_example_adds_more_than_c(name: str, views: tuple[int, ...], tmp_path: Path) -> None:
    """The norm of what one example adds is C to within 2e-6: a factor of 1.05 somewhere, either way, is seen.
    Views that are clipped by themselves add less.
    """
    module = model(NETWORKS[name], tmp_path)
    type(module).clips = [ClipGroup("all", tuple(n for n, _ in module.named_parameters()), 1e-3)]
    x, y = batch(module, 1, views=views)
    norm = whole(clipped(module, x, y))
    assert 1e-3 * (1 - 4e-6) <= norm <= 1e-3 * (1 + 1e-7)  # the gradient is rounded to float32


def test_a_group_is_clipped_as_a_whole_and_others_by_themselves(tmp_path: Path) -> None:
    module = model(NETWORKS["images"], tmp_path)
    names = [n for n, _ in module.named_parameters()]
    type(module).clips = [
        ClipGroup("first", tuple(names[:2]), 1e-3),
        ClipGroup("rest", tuple(names[2:]), 2e-3),
    ]
    gradients = clipped(module, *batch(module, 1))
    assert whole(gradients, names[:2]) == pytest.approx(1e-3, rel=1e-5)
    assert whole(gradients, names[2:]) == pytest.approx(2e-3, rel=1e-5)


@pytest.mark.parametrize("value", [math.nan, math.inf, 3e38])
@pytest.mark.parametrize("name", ["vectors", "tokens", "images", "pointwise", "recurrent"])
def test_an_example_without_a_finite_gradient_changes_nothing(name: str, value: float, tmp_path: Path) -> None:
    module = model(NETWORKS[name].replace("tanh", "relu"), tmp_path)
    x, y = batch(module)
    alone = clipped(module, x[1:], y[1:])
    x[0] = value
    found = clipped(module, x, y)
    if value == 3e38:  # it may have a finite gradient, and adds C at most
        assert whole({n: found[n] - alone[n] for n in found}) <= 1 + 1e-6
        return
    assert all(torch.allclose(found[n], alone[n], rtol=1e-5, atol=1e-7) for n in found)


def test_large_and_small_operands_do_not_overflow(tmp_path: Path) -> None:
    """x of 1e30 and weights of 1e-30: the product of both overflows in no order of multiplication."""
    module = model("input x: tensor[5]; dense(4); dense(3)", tmp_path)
    with torch.no_grad():
        module.dense.weight.mul_(1e-30)
    x, y = batch(module, 4, 1e30)
    found, wanted = clipped(module, x, y), expected(module, x, y)
    assert whole(found) == pytest.approx(whole(wanted), rel=1e-4)
    assert whole({n: found[n].double() - wanted[n] for n in found}) <= 1e-4 * whole(wanted)


def test_batches_may_be_empty_and_arrive_in_pieces(tmp_path: Path) -> None:
    module = model(NETWORKS["images"], tmp_path)
    x, y = batch(module)
    at_once = clipped(module, x, y)
    module.zero_grad()
    for part in (slice(0, 0), slice(0, 2), slice(2, B)):
        module.criterion(module(x[part]), y[part]).backward()
    assert all(torch.allclose(p.grad, at_once[n], rtol=1e-4, atol=1e-6) for n, p in module.named_parameters())


def test_what_flows_back_again_counts_once(tmp_path: Path) -> None:
    """After a backward pass that kept its graph, and zero_grad, uses are noted afresh."""
    module = model(NETWORKS["shared"], tmp_path)
    x, y = batch(module)
    at_once = clipped(module, x, y)
    module.zero_grad()
    loss = module.criterion(module(x), y)
    loss.backward(retain_graph=True)
    module.zero_grad()
    loss.backward()
    assert all(torch.allclose(p.grad, at_once[n], rtol=1e-6, atol=1e-7) for n, p in module.named_parameters())


def test_a_backward_pass_that_ends_early_leaves_no_uses_behind(tmp_path: Path) -> None:
    """One that ends before the parameters, and is forgotten with the batch."""
    module = model(NETWORKS["vectors"], tmp_path)
    x, y = batch(module)
    at_once = clipped(module, x, y)
    module.zero_grad()
    x.requires_grad_()
    torch.autograd.grad(module.criterion(module(10 * x), y), x)
    module.gate.reset()
    module.criterion(module(x), y).backward()
    assert all(torch.allclose(p.grad, at_once[n], rtol=1e-6, atol=1e-7) for n, p in module.named_parameters())


SIZES = [0.0, -1.0, 1e-45, 1e-38, 1e-20, 1e19, 1e30, -3e38, math.inf, math.nan]


@pytest.mark.parametrize("regulariser", [None, 1e-2])
@pytest.mark.parametrize("name", ["vectors", "tokens", "images", "pointwise", "shared", "recurrent"])
def test_no_operands_let_an_example_add_more_than_its_length(
    name: str, regulariser: float | None, tmp_path: Path
) -> None:
    """Weights and inputs of all sizes: one example alone, and beside three others.

    An example that is not a number counts as zero, and takes the place of the one that is left out. So the others
    are computed in the same places of a batch of the same size: their last bits may depend on those, and weights
    of 1e50 magnify them (docs/clipping.md).
    """
    module = model(NETWORKS[name].replace("tanh", "relu"), tmp_path)
    type(module).clips = [ClipGroup("all", module.clips[0].parameters, 0.3, regulariser)]
    initial = {n: p.detach().clone() for n, p in module.named_parameters()}
    generator = torch.Generator().manual_seed(0)
    for case, size in itertools.product(range(6), SIZES):
        scales = 10.0 ** torch.randint(-1, 2, (len(initial),), generator=generator).mul(10 * case).double()
        with torch.no_grad():
            for (n, p), scale in zip(module.named_parameters(), scales.tolist(), strict=True):
                p.copy_((initial[n].double() * scale).clamp(-3e38, 3e38))
        x, y = batch(module, 4, 10.0 ** (5 * case - 15))
        x[0].view(-1)[case % x[0].numel()] = size
        without = torch.cat([torch.full_like(x[:1], math.nan), x[1:]])
        alone, rest, all_ = (clipped(module, *given) for given in ((x[:1], y[:1]), (without, y), (x, y)))
        assert whole(alone) <= 0.3 * (1 + 1e-6)
        assert whole({n: all_[n].double() - rest[n].double() for n in rest}) <= 0.3 * (1 + 1e-5)


def test_two_forward_passes_may_flow_back_at_once(tmp_path: Path) -> None:
    module = model(NETWORKS["shared"], tmp_path)
    x, y = batch(module)
    at_once = clipped(module, x, y)
    module.zero_grad()
    first = module.criterion(module(x[:2]), y[:2])
    (first + module.criterion(module(x[2:]), y[2:])).backward()
    assert not module.gate.aliases.foreign
    assert all(torch.allclose(p.grad, at_once[n], rtol=1e-4, atol=1e-6) for n, p in module.named_parameters())


class AtTanh(TorchFunctionMode):
    """Does something else before the first tanh of a forward pass."""

    def __init__(self, action: Callable[[], object]) -> None:
        super().__init__()
        self._action: Callable[[], object] | None = action

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        action = self._action if func is torch.tanh else None
        if action is not None:
            self._action = None
            action()
        return func(*args, **(kwargs or {}))


def test_a_forward_pass_without_gradients_may_run_within_another_one(tmp_path: Path) -> None:
    """As in a thread that evaluates meanwhile: both layers of an example stay in one norm, √2·C otherwise."""
    module = model(NETWORKS["vectors"], tmp_path)
    x, y = batch(module)
    at_once = clipped(module, x, y)
    module.zero_grad()
    with AtTanh(torch.no_grad()(lambda: module(x))):
        output = module(x)
    module.criterion(output, y).backward()
    assert all(torch.equal(p.grad, at_once[n]) for n, p in module.named_parameters())


def test_forward_passes_that_build_gradients_do_not_overlap(tmp_path: Path) -> None:
    """Uses of one would pass for the other's, by derivation an example could add 3·C."""
    module = model(NETWORKS["vectors"], tmp_path)
    x, y = batch(module)
    clipped(module, x, y)
    with pytest.raises(RuntimeError, match="two threads run forward passes"), AtTanh(lambda: module(x)):
        module(x)
    aliases = module.gate.aliases  # and where both threads began before either of them saw the other
    with (
        pytest.raises(RuntimeError, match="two threads run forward passes"),
        aliases.entered([]),
        aliases.entered([]),
    ):
        pass
    module(x)


class BeforeTanhBackward(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Waits before the backward pass of tanh."""

    def __init__(self, reached: Event, go_on: Event) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._reached, self._go_on = reached, go_on

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.tanh_backward.default:
            self._reached.set()
            assert self._go_on.wait(60)
        return func(*args, **(kwargs or {}))


def test_backward_passes_in_threads_are_kept_apart(tmp_path: Path) -> None:
    """One waits between its layers while another one runs: an example of the first is still clipped once."""
    module = model(NETWORKS["vectors"], tmp_path)
    x, y = batch(module)
    at_once = clipped(module, x, y)
    module.zero_grad()
    first, second = (module.criterion(module(x[part]), y[part]) for part in (slice(0, 3), slice(3, B)))
    reached, go_on = Event(), Event()

    def backward() -> None:
        with BeforeTanhBackward(reached, go_on):
            first.backward()

    thread = Thread(target=backward)
    thread.start()
    assert reached.wait(60)
    second.backward()
    go_on.set()
    thread.join()
    assert not module.gate.aliases.foreign
    assert all(torch.allclose(p.grad, at_once[n], rtol=1e-4, atol=1e-6) for n, p in module.named_parameters())


def engine(module: Any, **options: Any) -> Any:
    x, y = batch(module, 40)
    loader = DataLoader(TensorDataset(x, y), batch_size=10)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    return PrivacyEngine().make_private(
        module=module, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, **options
    )


@pytest.mark.parametrize("name", ["images", "tokens of a table", "recurrent"])
@pytest.mark.parametrize("options", [{}, {"max_physical_batch": 3}, {"noise": "per_layer"}, {"loss_clip": 0.1}])
def test_an_engine_trains_clipped_modules(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    module, optimizer, loader = engine(model(NETWORKS[name], tmp_path), **options)
    before = {n: p.detach().clone() for n, p in module.named_parameters()}
    for x, y in loader:
        optimizer.zero_grad()
        module.criterion(module(x), y).backward()
        optimizer.step()
    assert all(not torch.equal(before[n], p) for n, p in module.named_parameters())


def test_noise_is_that_of_one_group(tmp_path: Path) -> None:
    """σ·C on every parameter: three of them are clipped together, to C = 1."""
    _, optimizer, _ = engine(model(NETWORKS["vectors"], tmp_path))
    stds = optimizer._gradients.constant_stds(2.0)
    assert stds == pytest.approx(dict.fromkeys(("dense.weight", "dense.bias", "dense_2.weight"), 2.0))


def test_an_engine_refuses_gradients_that_no_layer_noted(tmp_path: Path) -> None:
    """A weight that is read by other means than the layers' functions, here by a patched layer."""
    module, optimizer, loader = engine(model(NETWORKS["vectors"], tmp_path))
    x, y = next(iter(loader))
    loss = module.criterion(module(x), y)
    alias = module.gate.aliases._aliases[id(module.dense.weight)]
    (loss + alias.square().sum()).backward()
    with pytest.raises(PrivacyError, match=r"dense\.weight"):
        optimizer.step()


def test_clips_cannot_be_changed_once_a_module_is_private(tmp_path: Path) -> None:
    module, optimizer, loader = engine(model(NETWORKS["vectors"], tmp_path))
    x, y = next(iter(loader))
    module.criterion(module(x), y).backward()
    type(module).clips = [ClipGroup("all", module.clips[0].parameters, 10.0)]
    with pytest.raises(PrivacyError, match="changed"):
        optimizer.step()


def test_a_wider_clip_than_the_certified_one_is_refused(tmp_path: Path) -> None:
    module = model(NETWORKS["vectors"], tmp_path)
    type(module).clips = [ClipGroup("all", module.clips[0].parameters, 1.01, 0.01)]
    with pytest.raises(PrivacyError, match=r"length 1\.01"):
        engine(module)


NAMES = ("dense.weight", "dense.bias", "dense_2.weight")


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ([ClipGroup("all", NAMES, 1.01)], r"length 1\.01"),
        (
            [ClipGroup("all", NAMES, 1.0), ClipGroup("more", NAMES[:1], 1.0)],
            r"dense\.weight: a clip group may contain only trained parameters",
        ),
        (
            [ClipGroup("all", (*NAMES, "head.weight"), 1.0)],
            r"head\.weight: a clip group may contain only trained parameters",
        ),
    ],
)
def test_groups_that_the_bounds_do_not_cover_are_refused(groups: Any, said: str, tmp_path: Path) -> None:
    """Of a module without a certificate: noise would be of length 1 where examples move the sum by more."""
    module = model(NETWORKS["vectors"], tmp_path)
    type(module).clips, type(module).certificate = groups, {}
    assert dict(module.bounds) == dict.fromkeys(NAMES, 1.0)
    with pytest.warns(UserWarning, match="certificate"), pytest.raises(PrivacyError, match=said):
        engine(module)


def test_a_clip_of_cotangents_bounds_what_stands_before_a_clipped_layer(tmp_path: Path) -> None:
    """Its bound without clips inside is infinite, and leaves no share of it to a clip of the loss."""
    body = "input x: tensor[5], norm <= 1; dense(4); clip_gradient(0.1); dense(4, clip=1); dense(3, clip=1)"
    module, optimizer, loader = engine(model(body, tmp_path, "theorem"), loss_clip=0.01)
    assert module.gradient_bounds()["dense.weight"] == pytest.approx(0.1)
    x, y = next(iter(loader))
    module.criterion(module(x), y).backward()
    optimizer.step()


@pytest.mark.parametrize(("length", "regulariser"), [(0.0, None), (-1.0, None), (math.inf, None), (1.0, 0.0)])
def test_lengths_that_clip_nothing_are_refused(length: float, regulariser: float | None) -> None:
    with pytest.raises(ValueError, match="positive"):
        ClipGroup("all", ("w",), length, regulariser)


# --- noise -------------------------------------------------------------------------------------------------------


def test_a_group_counts_once_however_noise_is_shared() -> None:
    """Two groups of C = 3 and 4 have sensitivity 5, by hand; three parameters of 3, 3, 4 would have √34."""
    bounds, sizes = {"a": 3.0, "b": 3.0, "c": 4.0}, {"a": 10, "b": 6, "c": 4}
    stds = allocate("global", bounds, sizes, 2.0, [("a", "b")])
    assert stds == pytest.approx(dict.fromkeys(bounds, 10.0))
    stds = allocate("per_layer", bounds, sizes, 2.0, [("a", "b")])
    root = math.sqrt(2)
    assert stds == pytest.approx({"a": 6 * root, "b": 6 * root, "c": 8 * root})
    stds = allocate("optimal", bounds, sizes, 1.0, [("a", "b")])
    total = 3 * 4 + 4 * 2  # Σ K·√n, with 16 and 4 entries
    assert stds == pytest.approx(
        {"a": math.sqrt(3 / 4 * total), "b": math.sqrt(3 / 4 * total), "c": math.sqrt(2 * total)}
    )


def test_noise_within_a_group_is_the_same() -> None:
    with pytest.raises(ValueError, match="as one group"):
        allocate({"a": 1.0, "b": 2.0}, {"a": 1.0, "b": 1.0}, {"a": 1, "b": 1}, 1.0, [("a", "b")])
    with pytest.raises(ValueError, match="their bounds differ"):
        allocate("global", {"a": 1.0, "b": 2.0}, {"a": 1, "b": 1}, 1.0, [("a", "b")])

"""What the tests of several processes run in each of them: one rank, all scenarios, results in a file.

`python distributed_program.py FOLDER RANK SIZE`; a scenario is a function of the folder below, in order. What it
returns, or the exception it ends with, is saved under its name.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from runpy import run_path
from typing import Any, ClassVar
from unittest.mock import patch

import torch
from lipcompile_privacy.factorisation import BandedToeplitz, Cyclic, planned_strategy
from lipcompile_torch import ClipGroup, PrivacyEngine, layers
from lipcompile_torch.distributed import Processes
from lipcompile_torch.noise.processor import KEY_BYTES
from lipcompile_torch.sharding import add_sum_, is_shard
from lipcompile_torch.train.checkpoint import read_checkpoint, restore, save_checkpoint
from lipcompile_torch.train.gradient_watch import GradientWatch
from lipcompile_torch.train.loss_clipping import AdaptiveClip
from lipcompile_torch.train.module import LipschitzModule
from lipcompile_torch.train.reduction import Reduction
from lipcompile_torch.train.sampler import PrivateLoader
from lipcompile_torch.train.sums import release_sum
from torch import Tensor
from torch import distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Adam
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

HERE = run_path(str(Path(__file__).with_name("distributed_training.py")))
Net, Wide, Training, Recording, make_loader, sharded, three_views, weights, whole, SIZE, BATCH = (
    HERE[name]
    for name in (
        *("Net", "Wide", "Training", "Recording"),
        *("make_loader", "sharded", "three_views", "weights", "whole", "SIZE", "BATCH"),
    )
)
two_inputs, two_texts = HERE["two_inputs"], HERE["two_texts"]
KINDS = ("ours", "ddp", "fsdp")


# --- scenarios ---


def summed(kind: str, net: Any = Net, **options: Any) -> Any:
    """Hardly any noise: what is released is the sum over the batch.

    Without slack, as shards are: they are certified in full at every step.
    """
    options |= {"noise_multiplier": 1e-9, "seed": 7, "max_physical_batch": 1, "slack": 0.0}
    training = Training(kind, net=net, by_layer=net is not Tied, **options)
    training.train()
    return training.result()


def noisy(kind: str, **options: Any) -> Any:
    """Noise that drowns the gradient."""
    training = Training(kind, net=Wide, noise_multiplier=1e4, **{"seed": 4, **options})
    training.train()
    return training.result()


class Vast(Wide):  # type: ignore[misc, valid-type]
    """Three million entries in six steps."""

    hidden = 2**16 + 7  # in uneven shards


class Squares(SGD):
    """Adds up the squares of the gradients it is given, whole, and keeps the weights."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.0)
        self.squares: list[float] = []

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        gradients = [whole(p.grad).double() for g in self.param_groups for p in g["params"]]
        self.squares.append(float(sum(gradient.square().sum() for gradient in gradients)))
        super().step(closure)


def squares(kind: str) -> tuple[float, int]:
    """Return the sum of squares of noise that drowns the gradient, and of how many entries."""
    training = Training(kind, net=Vast, build=Squares, noise_multiplier=1e4, seed=4, slack=0.0)
    training.train()
    found = training.optimizer.optimizer.squares
    return sum(found), len(found) * sum(weight.numel() for weight in weights(training.inner).values())


def correlated(kind: str) -> dict[str, Any]:
    """Noise that is correlated from step to step, and what turns independent normals into it."""
    strategy = planned_strategy({"kind": "correlated", "bands": 3}, epochs=1, steps_per_epoch=SIZE // BATCH)
    stream = strategy.stream()
    rows = [stream.next("unit", row) for row in torch.eye(strategy.steps, dtype=torch.float64)]
    return {**noisy(kind, correlation=strategy, max_steps=strategy.steps), "mixing": torch.stack(rows)}


class Following(Net):  # type: ignore[misc, valid-type]
    """Bounds that follow the weights: ‖δ‖ ≤ √2·‖outer‖ at the inner layer."""

    def gradient_bounds(self) -> dict[str, float]:
        norms, bounds = self.certified_norms(), self.bounds
        return {**bounds, **{name: bounds[name] * norms["outer.weight"] for name in bounds if "inner" in name}}


def following(kind: str) -> Any:
    training = Training(kind, net=Following, noise_multiplier=1e-9, seed=7, slack=0.0)
    training.train()
    return training.result()


class Clipped(Net):  # type: ignore[misc, valid-type]
    """Bounds by clip: the inner layer's length keeps most gradients as they are, the outer's none."""

    clips: ClassVar = [
        ClipGroup("inner", ("inner.weight", "inner.bias"), 0.4),
        ClipGroup("outer", ("outer.weight",), 0.1, 0.01),
    ]
    bounds: ClassVar = {"inner.weight": 0.4, "inner.bias": 0.4, "outer.weight": 0.1}


class Flat(Net):  # type: ignore[misc, valid-type]
    """One clip for all parameters, of which one is used twice."""

    names: ClassVar = ("inner.weight", "inner.bias", "middle.weight", "outer.weight")
    clips: ClassVar = [ClipGroup("all", names, 0.8)]
    bounds: ClassVar = dict.fromkeys(names, 0.8)

    def __init__(self) -> None:
        LipschitzModule.__init__(self)
        self.inner = layers.Dense(4, self.hidden, bias=0.1)
        self.middle = layers.Dense(self.hidden, self.hidden)
        self.back = layers.TiedDense(transposed=True)
        self.outer = layers.Dense(self.hidden, 3)
        self.project_()

    def forward(self, x: Tensor) -> Tensor:
        x = self.middle(torch.relu(self.middle(torch.relu(self.inner(self.clip_input(x))))))
        output: Tensor = self.release(self.outer(x))
        return output


class Tied(Flat):
    """The matrix that is used twice is used plain and transposed."""

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.middle(torch.relu(self.inner(self.clip_input(x)))))
        output: Tensor = self.release(self.outer(self.back(x, self.middle.weight)))
        return output


class Mixed(Net):  # type: ignore[misc, valid-type]
    """A clip of one layer, a theorem for the other."""

    clips: ClassVar = Clipped.clips[:1]
    bounds: ClassVar = {**Net.bounds, **dict.fromkeys(Clipped.clips[0].parameters, 0.4)}


CLIPPED = {"clipped": Clipped, "flat": Flat, "tied": Tied, "mixed": Mixed}
VIEWED = {"clipped": Clipped, "flat": Flat, "mixed": Mixed, "proved": Net}  # with several views of an example


class Two(Flat):
    """Called with two inputs."""

    input_parts: ClassVar = {"first": (3,), "last": ()}


class TwoProved(Net):  # type: ignore[misc, valid-type]
    """Called with two inputs, under theorems."""

    input_parts: ClassVar = Two.input_parts


class Texts(Net):  # type: ignore[misc, valid-type]
    """Words with a mask, which share a table."""

    input_tokens, input_norm = True, float("inf")
    input_parts: ClassVar = {"ids": (2,), "mask": (2,)}
    names: ClassVar = ("inner.table", "outer.weight")
    clips: ClassVar = [ClipGroup("all", names, 0.3)]
    bounds: ClassVar = dict.fromkeys(names, 0.3)

    def __init__(self) -> None:
        LipschitzModule.__init__(self)
        self.inner = layers.Embedding(2, self.hidden, 1.0)
        self.outer = layers.Dense(self.hidden, 3)
        self.project_()

    def forward(self, x: Tensor) -> Tensor:
        x = self.clip_input(x)
        words, mask = self.inner(x[:, :2]), x[:, 2:, None].to(self.outer.weight.dtype)
        output: Tensor = self.release(self.outer((words * mask + self.inner(x[:, 2:])).sum(1)))
        return output


# Networks of several inputs, and how the examples become these.
SEVERAL: dict[str, tuple[Any, Any]] = {
    "numbers": (Two, two_inputs),
    "proved": (TwoProved, two_inputs),
    "texts": (Texts, two_texts),
}


def tied_by_layer() -> str:
    """A matrix that two layers use, sharded with one of them."""
    training = Training("fsdp", net=Tied)
    x, y = next(iter(training.loader))
    return message(partial(training.backward, x, y))


def recomputed(kind: str, net: Any) -> Any:
    """Activations are computed again in the backward pass."""
    training = Training(kind, net=net, noise_multiplier=1e-9, seed=7, slack=0.0)
    training.outer = partial(checkpoint, training.outer, use_reentrant=False)
    with set_checkpoint_early_stop(False):  # else a forward pass that is run again does not end
        training.train()
    return training.result()


def compiled(net: Any) -> Any:
    training = Training("fsdp", net=net, noise_multiplier=1e-9, seed=7, slack=0.0)
    training.inner.compile(backend="aot_eager")
    training.train()
    return training.result()


def sums_of_half_precision() -> tuple[Tensor, float]:
    """Return a sum over all ranks in bfloat16, and what is added in exact arithmetic."""
    layer = torch.nn.Linear(3, 3, bias=False, dtype=torch.bfloat16)
    sharded(layer)
    parts = [256.75, *[0.75] * (dist.get_world_size() - 1)]  # in bfloat16, 256 + 0.75 is 256
    add_sum_(layer.weight, torch.full((3, 3), parts[dist.get_rank()], dtype=torch.float64))  # type: ignore[arg-type]
    return whole(layer.weight.grad), sum(parts)


def clipped_at_quantiles(kind: str) -> Any:
    """The thresholds of batches in pieces: each rank counts its examples, and one draws the noise of the sum."""
    clip = AdaptiveClip(0.2, learning_rate=1.0, count_noise=1e-6)
    options = {"noise_multiplier": 1e-9, "seed": 7, "max_physical_batch": 1, "slack": 0.0}
    training, lengths = Training(kind, net=Clipped, clip_length=clip, **options), []
    for x, y in training.loader:
        if training.loader.current.complete:
            lengths.append(training.inner.clip_lengths["inner"])
        training.backward(x, y)
        training.optimizer.step()
    return {**training.result(), "lengths": lengths}


def clipped_one_by_one(views: Any = None, clipping: Any = 0.1) -> dict[str, Any]:
    torch.manual_seed(0)
    module, engine = Net(), PrivacyEngine()
    plain = Recording(module.parameters())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options = {"data_loader": make_loader(SIZE, BATCH), "noise_multiplier": 1e-9, "seed": 7}
        private: tuple[Any, Any, Any] = engine.make_private_by_clipping(
            module=module, optimizer=plain, clipping=clipping, **options
        )
        clipped, optimizer, loader = private
    clipped.takes_views = views is not None
    for x, y in loader:
        clipped.backward(views(x) if views else x, y)
        optimizer.step()
    return {"weights": weights(module), "seen": plain.seen}


def learned(kind: str, folder: Path, net: Any = Net) -> dict[str, Any]:
    """Real noise, a ledger, and a checkpoint that another process group goes on from."""
    path, saved = folder / f"{kind} {net.__name__}.jsonl", folder / f"{kind} {net.__name__}.pt"
    first = Training(kind, net, build=lambda ps: Adam(ps, lr=0.1), ledger=path, loss_clip=AdaptiveClip(0.5))
    first.train()
    assert first.engine.ledger is not None
    save_checkpoint(saved, first.inner, first.optimizer, first.engine.ledger)
    moments = [whole(first.optimizer.state[p]["exp_avg"]).clone() for p in first.inner.parameters()]
    clip = first.optimizer.state_dict()["loss_clip"]
    before = {**first.result(), "norms": first.inner.certified_norms(), "moments": moments, "clip": clip}
    first.engine.close()
    again = Training(kind, net, build=lambda ps: Adam(ps, lr=0.1), ledger=path, loss_clip=AdaptiveClip(0.5))
    assert again.engine.ledger is not None
    restore(read_checkpoint(saved), again.inner, again.optimizer, again.engine.ledger)
    before["restored"] = weights(again.inner)
    states = [again.optimizer.state[p] for p in again.inner.parameters()]
    before["restored_moments"] = [whole(state["exp_avg"]).clone() for state in states]
    again.train()
    before["after"], before["steps"] = weights(again.inner), again.engine.ledger.record.total_steps
    before["head"] = again.engine.ledger.head
    return before


def message(act: Callable[[], Any]) -> str:
    try:
        act()
    except Exception as error:  # what it is, the test says
        return f"{type(error).__name__}: {error}"
    return "nothing"


def after_backward(**options: Any) -> Any:
    """Take a batch that is not empty: one batch in nine is, and their gradients are zero whoever sums them."""
    training = Training(seed=7, **options)
    x, y = next(iter(training.loader))
    training.backward(x, y)
    return training


def attempt(training: Any) -> dict[str, Any]:
    before, error = weights(training.inner), message(training.optimizer.step)
    return {"error": error, "moved": not same(before, weights(training.inner))}


def one_rank_scales_its_loss() -> dict[str, Any]:
    training = Training()
    x, y = next(iter(training.loader))
    training.backward(x, y, scale=2.0 if dist.get_rank() == 1 else 1.0)
    found = attempt(training)
    assert training.engine.ledger is not None
    found["counted"] = training.engine.ledger.record.total_steps
    training.optimizer.abandon_batch()  # and training goes on
    training.train()
    return {**found, "steps": training.engine.ledger.record.total_steps}


def all_of(weight: Tensor) -> Tensor:
    """Return a weight as a penalty reads it; gradients flow back into the shard."""
    return weight.full_tensor() if is_shard(weight) else weight


def a_penalty_on_all_ranks(kind: str) -> str:
    training = after_backward(kind=kind)
    torch.autograd.backward(1e-3 * all_of(training.inner.outer.weight).square().sum())
    return message(training.optimizer.step)


def a_penalty_within_the_loss(kind: str, net: Any) -> str:
    training = Training(kind, net, seed=7)
    x, y = next(iter(training.loader))
    loss = training.inner.criterion(training.outer(x), y)
    (loss + 1e-3 * all_of(training.inner.outer.weight).square().sum()).backward()
    return message(training.optimizer.step)


def a_penalty_on_gathered_parameters() -> str:
    training = Training("fsdp", Clipped, seed=7)
    x, y = next(iter(training.loader))
    loss = training.inner.criterion(training.outer(x), y)
    training.inner.unshard()
    (loss + 1e-3 * training.inner.outer.weight.square().sum()).backward()
    return message(training.optimizer.step)


def hooks_on_shards(net: Any) -> str:
    training = Training("fsdp", net, seed=7)
    training.inner.outer.weight.register_post_accumulate_grad_hook(lambda p: p.grad.mul_(2))
    x, y = next(iter(training.loader))
    training.backward(x, y)
    return message(training.optimizer.step)


def many_pieces(net: Any) -> str:
    training = Training("fsdp", net, seed=7)
    x, y = next(iter(training.loader))
    for _ in range(16):
        training.backward(x[:0], y[:0])
    training.backward(x, y)
    return message(training.optimizer.step)


def shards_of_others() -> str:
    module = Clipped()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    shard = distribute_tensor(module.inner.weight.detach(), mesh, [Shard(0)])
    module.inner.weight = torch.nn.Parameter(shard)
    return message(module.guard_layers)


def a_gradient_written_on_all_ranks() -> list[str]:
    training = after_backward(kind="fsdp")
    training.inner.outer.weight.grad.add_(1e3)
    with patch.object(GradientWatch, "check"):  # which would refuse it before it is summed
        return [message(training.optimizer.step), message(training.optimizer.step)]


def one_rank_changes_its_shards(net: Any, when: str) -> str:
    """By less than any bound forbids, before the last backward pass over a batch or behind it."""
    training = Training("fsdp", net, seed=7)
    x, y = next(iter(training.loader))
    own = [p for p in training.inner.parameters() if dist.get_rank() == 1]
    training.backward(x, y)
    change(own, "before" in when)
    training.backward(x[:0], y[:0])
    change(own, "behind" in when)
    return message(training.optimizer.step)


def change(parameters: list[Any], now: bool) -> None:
    for parameter in parameters if now else ():
        parameter.grad.mul_(0.5)


def a_second_sum_over_ranks(kind: str) -> str:
    training = after_backward(kind=kind)
    for parameter in training.inner.parameters():
        dist.all_reduce(parameter.grad)
    return message(training.optimizer.step)


def one_rank_clips_the_sum(kind: str) -> str:
    training = after_backward(kind=kind)
    if dist.get_rank() == 1:
        torch.nn.utils.clip_grad_norm_(training.inner.parameters(), 1e-3)
    return message(training.optimizer.step)


def one_rank_gives_up_its_batch() -> str:
    training = after_backward()
    return message(training.optimizer.step if dist.get_rank() else training.optimizer.abandon_batch)


def one_rank_loads_weights() -> str:
    training = Training()
    if dist.get_rank() == 1:
        with torch.no_grad():
            training.inner.inner.bias.fill_(0.01)
    return message(training.train)


def one_rank_asks_for_less_noise() -> str:
    return message(lambda: Training(noise_multiplier=1.0 + dist.get_rank()))


def one_rank_clips_less(clip: Callable[[int], Any]) -> str:
    return message(lambda: clipped_one_by_one(clipping=clip(dist.get_rank())))


def one_for_each_parameter(rank: int) -> Any:
    """Return the same length for all of a gradient, or for the part of each parameter."""
    return dict.fromkeys(("inner.weight", "inner.bias", "outer.weight"), 0.1) if rank else 0.1


class Apart(Flat):
    """As `Flat`, with a clip of the same length for each parameter."""

    clips: ClassVar = [ClipGroup(name, (name,), 0.8) for name in Flat.names]


def one_rank_has_more_groups() -> str:
    return message(lambda: summed("ours", Apart if dist.get_rank() else Flat))


def one_rank_correlates_its_noise_differently() -> str:
    """Each parameter alone would be covered, but not two at once: their worst steps are others."""
    strategy = BandedToeplitz((1.0, 0.9, 0.8)[: max(3 - dist.get_rank(), 1)], SIZE // BATCH, Cyclic(3))
    return message(lambda: Training(correlation=strategy, max_steps=strategy.steps))


def the_disk_is_full(folder: Path) -> dict[str, Any]:
    training = after_backward(ledger=folder / "full.jsonl")
    with patch("os.fsync", side_effect=OSError(28, "No space left on device")):
        return attempt(training)


def refused_wrappers() -> dict[str, str]:
    def hooked() -> None:
        module = DistributedDataParallel(Net())
        module.register_comm_hook(None, default_hooks.fp16_compress_hook)
        private(module)

    def private(module: Any) -> None:
        options = {"data_loader": make_loader(SIZE, BATCH), "noise_multiplier": 1.0}
        PrivacyEngine().make_private(module=module, optimizer=SGD(module.parameters(), lr=0.1), **options)

    def half() -> None:
        from torch.distributed.fsdp import MixedPrecisionPolicy

        private(sharded(Net(), mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16)))

    def narrow() -> None:
        private(sharded(Net().bfloat16()))

    return {"hooked": message(hooked), "half": message(half), "narrow": message(narrow)}


def shards_that_are_not_summed() -> dict[str, str]:
    """Torch has the first two, and from 2.15 on `set_manual_backward_finalization`."""
    found = {}
    for setting, value in (("set_requires_gradient_sync", False), ("set_gradient_divide_factor", 1.0)):
        training = Training("fsdp")
        x, y = next(iter(training.loader))
        if setting == "set_requires_gradient_sync":
            getattr(training.inner, setting)(value)
        training.backward(x, y)
        if setting != "set_requires_gradient_sync":
            getattr(training.inner, setting)(value)
        found[setting] = message(training.optimizer.step)
    training = Training("fsdp")
    x, y = next(iter(training.loader))
    if hasattr(training.inner, "set_manual_backward_finalization"):
        training.inner.set_manual_backward_finalization(True)
        training.backward(x, y)
        training.inner.finalize_backward()
        found["set_manual_backward_finalization"] = message(training.optimizer.step)
    return found


def shards_with_gradients_in_half_precision() -> str:
    def narrowed() -> None:
        module = Net()
        for parameter in module.parameters():
            parameter.grad_dtype = torch.bfloat16
        sharded(module)
        for parameter in module.parameters():
            parameter.grad_dtype = torch.bfloat16  # torch before 2.15 forgets it
        options = {"data_loader": make_loader(SIZE, BATCH), "noise_multiplier": 1.0}
        PrivacyEngine().make_private(module=module, optimizer=SGD(module.parameters(), lr=0.1), **options)

    return message(narrowed)


def evaluated_between() -> Any:
    """A forward pass alone leaves FSDP's parameters whole."""
    training = Training("fsdp")
    for x, y in training.loader:
        with torch.no_grad():
            training.outer(torch.eye(4))
        training.backward(x, y)
        with torch.no_grad():
            training.outer(torch.eye(4))
        training.optimizer.step()
    return training.result()


# --- planted faults ---


fault = partial(patch.object, create=True)


def every_rank_adds_noise() -> Any:
    """Each rank draws for all parameters, and the results are averaged: too little noise."""

    def average(self: Reduction) -> None:
        for parameter in self._parameters.values():
            dist.all_reduce(parameter.grad)
            assert parameter.grad is not None
            parameter.grad /= self.world.size

    everything = property(lambda self: self._parameters, lambda *_: None)
    with fault(Reduction, "mine", everything), fault(Reduction, "spread_", average):
        return noisy("ours")


def the_same_noise_for_all_shards() -> Any:
    from lipcompile_torch.noise.normals import PlainNormals

    true: Any = PlainNormals.__init__

    def alike(self: Any, seed: int | None = None) -> None:  # noqa: ARG001
        true(self, 4)

    with fault(PlainNormals, "__init__", alike):
        return noisy("fsdp")


def a_mean_for_a_sum(kind: str) -> Any:
    if kind == "fsdp":
        with fault(Reduction, "sum_", lambda self: None):  # noqa: ARG005
            return summed(kind)
    plain = Processes.reduce_

    def mean(self: Processes, tensor: Tensor, owner: int) -> None:
        plain(self, tensor, owner)
        tensor /= self.size

    with fault(Processes, "reduce_", mean):
        return summed(kind)


def every_rank_samples_for_itself() -> str:
    plain = Processes.first

    def own(self: Processes, doing: str, compute: Callable[[], Any]) -> Any:
        if doing == "begin sampling":
            return bytes([self.rank]) * KEY_BYTES
        return plain(self, doing, compute)

    with fault(Processes, "first", own):
        return message(lambda: summed("ours"))


def every_rank_takes_the_whole_batch() -> str:
    with fault(PrivateLoader, "_share", lambda self, indices: [(indices, None)]):  # noqa: ARG005
        return message(Training().train)


def released_sums() -> dict[str, Any]:
    """A sum that all have, and shares of a sum."""
    engine, total = PrivacyEngine(), torch.arange(5, dtype=torch.float64)
    found = release_sum(engine, total, 1.0, 2.0, 100)
    refused = message(lambda: release_sum(engine, total / (1 + dist.get_rank()), 1.0, 2.0, 100))
    assert engine.ledger is not None
    return {"sum": found, "refused": refused, "charges": engine.ledger.record.charges}


def one_rank_dies(folder: Path, keep: Callable[[], None]) -> dict[str, Any]:
    training = after_backward(ledger=folder / "death.jsonl")
    if dist.get_rank() == dist.get_world_size() - 1:
        keep()
        os._exit(0)
    return attempt(training)


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def scenarios(folder: Path) -> dict[str, Callable[[], Any]]:
    return {
        **{f"summed {kind}": partial(summed, kind) for kind in KINDS},
        **{f"noisy {kind}": partial(noisy, kind) for kind in KINDS},
        **{f"squares {kind}": partial(squares, kind) for kind in KINDS},
        **{f"learned {kind} Net": partial(learned, kind, folder) for kind in ("ours", "fsdp")},
        "learned fsdp Clipped": partial(learned, "fsdp", folder, Clipped),
        **{f"correlated {kind}": partial(correlated, kind) for kind in ("ours", "fsdp")},
        **{f"fault mean {kind}": partial(a_mean_for_a_sum, kind) for kind in ("ours", "fsdp")},
        **{f"{name} {kind}": partial(summed, kind, net) for name, net in CLIPPED.items() for kind in KINDS},
        **{
            f"views {name} {kind}": partial(summed, kind, net, views=three_views)
            for name, net in VIEWED.items()
            for kind in KINDS
        },
        **{
            f"several {name} {kind}": partial(summed, kind, net, inputs=inputs)
            for name, (net, inputs) in SEVERAL.items()
            for kind in KINDS
        },
        **{
            f"several views {kind}": partial(summed, kind, Two, inputs=two_inputs, views=three_views)
            for kind in KINDS
        },
        "tied by layer": tied_by_layer,
        **{f"quantiles {kind}": partial(clipped_at_quantiles, kind) for kind in KINDS},
        **{f"recomputed {net.__name__}": partial(recomputed, "fsdp", net) for net in (Net, Clipped, Flat)},
        "compiled": partial(compiled, Flat),
        "half": sums_of_half_precision,
        "evaluated": evaluated_between,
        "following": partial(following, "fsdp"),
        "unseeded": partial(noisy, "fsdp", seed=None),
        "secure": partial(noisy, "fsdp", seed=None, secure=True),
        "one by one": clipped_one_by_one,
        "views one by one": partial(clipped_one_by_one, three_views),
        "scaled": one_rank_scales_its_loss,
        **{f"penalty {kind}": partial(a_penalty_on_all_ranks, kind) for kind in ("ours", "ddp", "fsdp")},
        **{
            f"penalty within {kind} {net.__name__}": partial(a_penalty_within_the_loss, kind, net)
            for kind in ("ours", "fsdp")
            for net in (Net, Clipped)
        },
        "penalty gathered": a_penalty_on_gathered_parameters,
        **{f"hooks {net.__name__}": partial(hooks_on_shards, net) for net in (Net, Clipped)},
        **{f"pieces {net.__name__}": partial(many_pieces, net) for net in (Net, Clipped)},
        "shards of others": shards_of_others,
        **{
            f"changed {when} {net.__name__}": partial(one_rank_changes_its_shards, net, when)
            for net in (Net, Clipped)
            for when in ("never", "before", "behind")
        },
        "written": a_gradient_written_on_all_ranks,
        **{f"doubled {kind}": partial(a_second_sum_over_ranks, kind) for kind in ("ours", "ddp")},
        **{f"clipped sum {kind}": partial(one_rank_clips_the_sum, kind) for kind in ("ours", "ddp")},
        "given up": one_rank_gives_up_its_batch,
        "loaded": one_rank_loads_weights,
        "unequal": one_rank_asks_for_less_noise,
        "clips": partial(one_rank_clips_less, lambda rank: 0.1 + rank),
        "kinds of clips": partial(one_rank_clips_less, one_for_each_parameter),
        "groups": one_rank_has_more_groups,
        "strategies": one_rank_correlates_its_noise_differently,
        "full": partial(the_disk_is_full, folder),
        "released sums": released_sums,
        "wrappers": refused_wrappers,
        "unsummed": shards_that_are_not_summed,
        "narrow gradients": shards_with_gradients_in_half_precision,
        "fault noise": every_rank_adds_noise,
        "fault shards": the_same_noise_for_all_shards,
        "fault sampling": every_rank_samples_for_itself,
        "fault share": every_rank_takes_the_whole_batch,
    }


def main(folder: Path, rank: int, size: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    results: dict[str, Any] = {}

    def keep() -> None:
        torch.save(results, folder / f"{rank}.pt")

    for name, act in scenarios(folder).items():
        try:
            results[name] = act()
        except Exception as error:
            results[name] = error
    results["death"] = one_rank_dies(folder, keep)
    keep()
    os._exit(0)  # without farewell to a group that lacks a member


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))

"""Lengths of clip groups that follow private quantiles: what is released, what it costs, what is refused."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from lipcompile_privacy.accounting import BudgetError
from lipcompile_torch import ClipGroup, PrivacyEngine
from lipcompile_torch.noise.mechanism import NoiseSource
from lipcompile_torch.train.checkpoint import read_checkpoint, restore, save_checkpoint
from lipcompile_torch.train.checks import PrivacyError
from lipcompile_torch.train.gradients import LipschitzGradients
from lipcompile_torch.train.loss_clipping import AdaptiveClip, Threshold, Thresholds, count_within
from lipcompile_torch.train.module import LipschitzModule
from torch import Tensor
from torch.optim import SGD, Adam
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader, TensorDataset

from tests.torch.clip.test_clip_mechanisms import BATCH, SIZE, private
from tests.torch.clip_nets import NETWORKS, batch, expected, model, per_example

RAMP = 2.0**-6


def with_lengths(module: Any, *regularisers: float | None) -> Any:
    """Clip the parameters of the first two names to 0.2, the others to 0.7; the certificate must not be asked."""
    names = [name for name, _ in module.named_parameters()]
    parts = (tuple(names[:2]), 0.2), (tuple(names[2:]), 0.7)
    rules = regularisers or (None, None)
    pairs = zip("ab", parts, rules, strict=True)
    type(module).clips = [ClipGroup(name, *part, rule) for name, part, rule in pairs]
    type(module).bounds = {name: length for own, length in parts for name in own}
    type(module).certificate = {}
    return module


def norms_by_group(module: Any, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    gradients = per_example(module, x, y)
    return {
        group.name: torch.cat([gradients[name].flatten(1) for name in group.parameters], dim=1).norm(dim=1)
        for group in module.clips
    }


# --- the thresholds ----------------------------------------------------------------------------------------------


def test_counts_fall_from_one_to_zero_just_above_the_bound() -> None:
    """By hand: 1 up to C, 1/2 in the middle of the ramp, a part of 2⁻²⁰ as 0, and 0 for what is not finite."""
    cases = {0.0: 1, 5.0: 1, 5 * (1 + RAMP / 2): 0.5, 5 * (1 + RAMP * 0.75): 0.25, 5 * (1 + RAMP): 0, 9.0: 0}
    cases |= {5 * (1 + RAMP * (1 - 2.0**-21)): 0, math.inf: 0, math.nan: 0}
    for norm, count in cases.items():
        found = float(count_within(torch.tensor([norm], dtype=torch.float64), 5.0))
        assert found == pytest.approx(count, abs=2e-6 if count in (0.25, 0.5) else 0)


def test_counts_are_summed_exactly_and_move_little_with_the_last_bits() -> None:
    norms = 1 + RAMP * torch.rand(5000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    whole, alone = float(count_within(norms, 1.0)), [float(count_within(one[None], 1.0)) for one in norms]
    assert whole == math.fsum(alone) == float(count_within(norms.flip(0), 1.0))
    assert abs(whole - float(count_within(norms * (1 + 1e-9), 1.0))) < 5000 * (1.02e-9 / RAMP + 2.0**-20)


@pytest.mark.parametrize("name", ["images", "shared", "recurrent", "tokens of a table"])
def test_thresholds_follow_the_counts_by_hand(name: str, tmp_path: Path) -> None:
    """With hardly any noise: C ← C·exp(-η·(b̃ - γ)), of norms by `torch.func`; each group has its own γ."""
    own = {"a": AdaptiveClip(0.5, 0.3, 0.7, count_noise=1e-8), "b": AdaptiveClip(1.5, 0.8, 0.4, count_noise=1e-8)}
    module, optimizer, loader = private(with_lengths(model(NETWORKS[name], tmp_path)), clip_length=own)
    lengths, partial = {"a": 0.5, "b": 1.5}, False
    for x, y in loader:
        assert module.clip_lengths == pytest.approx(lengths, rel=1e-4)
        assert module.gradient_bounds() == {
            n: module.clip_lengths[g.name] for g in module.clips for n in g.parameters
        }
        norms = norms_by_group(module, x, y) if len(x) else {"a": torch.zeros(0), "b": torch.zeros(0)}
        for group, clip in own.items():
            within = float(((1 + RAMP - norms[group] / lengths[group]) / RAMP).clamp(0, 1).sum())
            fraction = (within - len(x) / 2) / BATCH + 0.5
            lengths[group] *= math.exp(-clip.learning_rate * (fraction - clip.quantile))
            partial |= 0 < within < len(x)
        module.criterion(module(x), y).backward()
        optimizer.step()
    assert partial
    assert [clip.value for clip in own.values()] == [0.5, 1.5]  # copies moved


def test_each_threshold_finds_the_quantile_of_its_group(tmp_path: Path) -> None:
    """The weights stay, so norms do: of 48 examples 70 % are within C, to two of them, and the ramp of 1.6 %."""
    clip = AdaptiveClip(5.0, 0.7, 0.2, count_noise=0.1)
    module = with_lengths(model(NETWORKS["images"], tmp_path))
    module, optimizer, loader = private(module, clip_length=clip, seed=1)
    late: dict[str, list[float]] = {"a": [], "b": []}
    for epoch in range(60):
        for x, y in loader:
            if epoch >= 20:
                for name, length in module.clip_lengths.items():
                    late[name].append(math.log(length))
            module.criterion(module(x), y).backward()
            optimizer.step()
    norms = norms_by_group(module, *loader.dataset.tensors)
    for name, found in late.items():
        middle = math.exp(sum(found) / len(found))
        low, high = (float(norms[name].sort().values[round(0.7 * SIZE) + off]) for off in (-4, 3))
        assert low < middle * (1 + RAMP)
        assert middle < high


# --- what is released is one Gaussian mechanism ------------------------------------------------------------------


SIGMA, COUNT_NOISE = 2.0, {"a": 2.0, "b": 3.0}  # σ_g^-2 = 1/4 - 1/16 - 1/36: all three parts matter


def reports(module: Any, monkeypatch: pytest.MonkeyPatch, without: int | None) -> Tensor:
    """Return all that gets noise in a step, in units of its noise; perhaps as if one example were not drawn."""
    seen: list[Tensor] = []
    module = copy.deepcopy(module)
    clips = {name: AdaptiveClip(0.1, count_noise=noise) for name, noise in COUNT_NOISE.items()}
    options = {"noise_multiplier": SIGMA, "seed": 5, "clip_length": clips}
    module, optimizer, loader = private(module, **options)

    def perturb(_: NoiseSource, parameters: Any, stds: Any, normaliser: float) -> None:
        seen.extend((p.grad.double() * normaliser / stds[n]).flatten() for n, p in parameters.items())

    def added(_: NoiseSource, __: str, scaled: Tensor) -> Tensor:
        seen.append(scaled.flatten())
        return scaled

    monkeypatch.setattr(NoiseSource, "perturb_", perturb)
    monkeypatch.setattr(NoiseSource, "added", added)
    x, y = next(iter(loader))
    assert len(x) > 3
    if without is not None:
        rest = [i for i in range(len(x)) if i != without]
        x, y, loader.current.examples, loader.current.total = x[rest], y[rest], len(rest), len(rest)
    module.criterion(module(x), y).backward()
    optimizer.step()
    return torch.cat(seen)


def farthest(module: Any, monkeypatch: pytest.MonkeyPatch) -> float:
    """Return the largest distance that an example of the batch is worth, times σ."""
    whole = reports(module, monkeypatch, None)
    return max(float((whole - reports(module, monkeypatch, i)).norm()) for i in range(4)) * SIGMA


def test_neighbouring_batches_are_apart_by_one_over_sigma(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients and counts together; at C = 0.1 all examples are clipped in both groups, which attains it."""
    module = with_lengths(model(NETWORKS["images"], tmp_path))
    assert 1 - 1e-3 < farthest(module, monkeypatch) <= 1


def half(kind: Any, name: str, share: float) -> Any:
    """Return a method whose result is that much of the true one."""
    true = getattr(kind, name)

    def faulty(self: Any, *args: Any) -> Any:
        return share * true(self, *args)

    return faulty


def shorter_bounds(self: Any) -> Any:
    return {n: 0.95 * self.clip_lengths.get(g.name, 1.0) for g in self.clips for n in g.parameters}


def less_noise_on_counts(self: Threshold, *args: Any) -> None:
    self._count_std *= 0.95
    true_advance(self, *args)


true_advance = Threshold.advance
FAULTS = {
    "bounds of thresholds": (LipschitzModule, "moved_bounds", property(shorter_bounds)),
    "noise of counts": (Threshold, "advance", less_noise_on_counts),
    "multiplier of the gradient": (
        Thresholds,
        "gradient_multiplier",
        half(Thresholds, "gradient_multiplier", 0.95),
    ),
    "counts are for nothing": (Thresholds, "gradient_multiplier", lambda _, sigma: sigma),
    "bounds of another batch": (
        LipschitzGradients,
        "_bounds",
        lambda self: dict.fromkeys(self.module.bounds, 0.095),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_five_per_cent_too_little_noise_would_show(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*FAULTS[fault])
    assert farthest(with_lengths(model(NETWORKS["images"], tmp_path)), monkeypatch) > 1.004


def test_the_split_of_the_noise_multiplier_by_hand(tmp_path: Path) -> None:
    """σ = 2, s = 2√2 twice: σ_g^-2 = 1/4 - 2/32 = 3/16, and noise σ_g·√(0.3² + 0.4²) everywhere; ledgers say σ."""
    clips = {"a": AdaptiveClip(0.3, count_noise=math.sqrt(8)), "b": AdaptiveClip(0.4, count_noise=math.sqrt(8))}
    epsilons = []
    for options in ({"clip_length": clips}, {}):
        engine = PrivacyEngine("rdp")
        module = with_lengths(model(NETWORKS["images"], tmp_path))
        module, optimizer, loader = private(module, engine=engine, noise_multiplier=2.0, **options)
        x, y = next(iter(loader))
        module.criterion(module(x), y).backward()
        stds = optimizer._gradients.stds(loader.current, 2.0, optimizer._noise)
        optimizer.step()
        epsilons.append(engine.get_epsilon(1e-5))
        wanted = 4 / math.sqrt(3) * 0.5 if options else 2 * math.hypot(0.2, 0.7)
        assert list(stds.values()) == pytest.approx([wanted] * len(stds), rel=1e-3)
    assert epsilons[0] == epsilons[1] > 0


def test_an_automatic_group_and_one_that_is_left_out_keep_their_rule(tmp_path: Path) -> None:
    for rules, given in (((None, 0.01), AdaptiveClip(0.3)), ((None, None), {"a": AdaptiveClip(0.3)})):
        module = with_lengths(model(NETWORKS["images"], tmp_path), *rules)
        module, optimizer, loader = private(module, clip_length=given)
        for x, y in loader:
            wanted = expected(module, x, y) if len(x) else {}
            module.criterion(module(x), y).backward()
            for name, parameter in module.named_parameters() if len(x) else ():
                assert torch.allclose(parameter.grad.double(), wanted[name], rtol=1e-4, atol=1e-6)
            optimizer.step()
        assert module.clip_lengths.keys() == {"a"}
        assert module.clip_lengths["a"] != 0.3
        assert {module.gradient_bounds()[name] for name in module.clips[1].parameters} == {0.7}


def test_bounds_that_follow_weights_know_the_lengths_too(tmp_path: Path) -> None:
    """Emitted code has the lengths as they were compiled; the noise is that of the thresholds all the same."""
    module = with_lengths(model(NETWORKS["images"], tmp_path))
    type(module).gradient_bounds = lambda self: dict(self.bounds)
    module, optimizer, loader = private(module, clip_length=AdaptiveClip(3.0), noise_multiplier=1.0)
    x, y = next(iter(loader))
    module.criterion(module(x), y).backward()
    stds = optimizer._gradients.stds(loader.current, 1.0, optimizer._noise)
    assert list(stds.values()) == pytest.approx([3 * math.sqrt(2) / math.sqrt(0.99)] * len(stds), rel=1e-3)


# --- a run -------------------------------------------------------------------------------------------------------


def test_a_run_goes_on_from_a_checkpoint_at_its_thresholds(tmp_path: Path) -> None:
    module, ledger = with_lengths(model(NETWORKS["images"], tmp_path)), tmp_path / "ledger.jsonl"

    def session(**clips: Any) -> Any:
        engine = PrivacyEngine("rdp", ledger=ledger)
        options = {"noise_multiplier": 1.0, **(clips or {"clip_length": AdaptiveClip(0.5)})}
        return engine, *private(copy.deepcopy(module), lambda ps: Adam(ps, lr=0.1), engine, **options)

    engine, first, optimizer, loader = session()
    for x, y in loader:
        first.criterion(first(x), y).backward()
        optimizer.step()
    next(iter(loader))
    left = dict(first.clip_lengths)
    save_checkpoint(tmp_path / "saved.pt", first, optimizer, engine.ledger)
    engine.close()
    assert 0.5 not in left.values()

    engine, again, optimizer, loader = session()
    restore(read_checkpoint(tmp_path / "saved.pt"), again, optimizer, engine.ledger)
    x, y = next(iter(loader))
    assert again.clip_lengths == left
    assert optimizer.state_dict()["clip_length"]["a"] == {"steps": SIZE // BATCH, "value": left["a"]}
    again.criterion(again(x), y).backward()
    optimizer.step()
    engine.close()
    for other in ({"clip_length": 0.5}, {"loss_clip": AdaptiveClip(1.0)}):
        engine, again, optimizer, loader = session(**other)
        with pytest.raises(Exception, match="another kind of clip"):
            restore(read_checkpoint(tmp_path / "saved.pt"), again, optimizer, engine.ledger)
        engine.close()


def test_thresholds_end_with_the_engine_that_moved_them(tmp_path: Path) -> None:
    module, *_ = private(with_lengths(model(NETWORKS["images"], tmp_path)), clip_length=AdaptiveClip(0.5))
    assert set(module.gradient_bounds().values()) == {0.5}
    module, *_ = private(module)
    assert set(module.gradient_bounds().values()) == {0.2, 0.7}


# --- what is refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "given", "said"),
    [
        ((0.01, 0.01), AdaptiveClip(1.0), r"are none, of all groups a, b; the automatic rule has no length"),
        (
            (None, 0.01),
            {"b": AdaptiveClip(1.0)},
            r"clip_length of b: the clip groups .* are a, of all groups a, b",
        ),
        ((None, None), {"c": 0.5, "a": 0.1}, r"clip_length of c: the clip groups .* are a, b, of all groups a, b"),
        ((None, None), {}, r"clip_length: the clip groups"),
    ],
)
def test_groups_without_a_threshold_are_refused(rules: Any, given: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(PrivacyError, match=said):
        private(with_lengths(model(NETWORKS["images"], tmp_path), *rules), clip_length=given)


def test_a_module_with_theorems_alone_has_no_threshold(tmp_path: Path) -> None:
    module = model("input x: tensor[5], norm <= 1; dense(4); relu; dense(3)", tmp_path, "theorem")
    with pytest.raises(PrivacyError, match="are none, of all groups none"):
        private(module, clip_length=AdaptiveClip(1.0))


def test_groups_of_one_name_are_refused(tmp_path: Path) -> None:
    """Their counts would be one, which an example would add 2 to."""
    module = with_lengths(model(NETWORKS["images"], tmp_path))
    type(module).clips = [ClipGroup("a", group.parameters, group.length) for group in module.clips]
    with pytest.raises(PrivacyError, match="several clip groups have one name"):
        private(module, clip_length=AdaptiveClip(1.0))


@pytest.mark.parametrize("given", [AdaptiveClip(1.0), {"a": AdaptiveClip(1.0)}])
def test_correlated_noise_is_refused(given: Any, tmp_path: Path) -> None:
    module, how = with_lengths(model(NETWORKS["images"], tmp_path)), {"kind": "correlated", "bands": 3}
    with pytest.raises(BudgetError, match="fixed or scheduled clip_length"):
        private(module, clip_length=given, correlation=how, max_steps=6)


def test_noise_on_counts_that_leaves_none_for_the_gradient_is_refused(tmp_path: Path) -> None:
    """Of two counts: σ^-2 = 2·(2s)^-2 at s = σ/√2."""
    module = with_lengths(model(NETWORKS["images"], tmp_path))
    with pytest.raises(ValueError, match=r"count_noise above 1\.41421"):
        private(module, clip_length=AdaptiveClip(1.0, count_noise=1.4), noise_multiplier=2.0)


def test_a_group_that_is_longer_than_the_least_bound_of_its_parameters_is_refused(tmp_path: Path) -> None:
    module = with_lengths(model(NETWORKS["images"], tmp_path))
    type(module).bounds |= {module.clips[0].parameters[1]: 0.1}
    with pytest.raises(PrivacyError, match=r"'a' has length 0\.2, but the bound 0\.1"):
        private(module)


class LastTanh(TorchFunctionMode):
    """Takes the result of tanh out of a forward pass."""

    taken: Tensor

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.tanh:
            self.taken = result
        return result


@pytest.mark.parametrize("given", [None, AdaptiveClip(1.0)])
@pytest.mark.parametrize("looked_at", [True, False])
def test_losses_on_inner_values_are_refused(given: Any, looked_at: bool, tmp_path: Path) -> None:
    """Each was clipped by itself, 2·C in all; and looking at its gradient alone counted the examples once more."""
    module, optimizer, loader = private(with_lengths(model(NETWORKS["images"], tmp_path)), clip_length=given)
    x, y = next(iter(loader))
    with LastTanh() as mode:
        output = module(x)
    inner = mode.taken.square().sum()
    if looked_at:
        torch.autograd.grad(inner, list(module.parameters())[:2], retain_graph=True)
    else:
        inner.backward(retain_graph=True)
    module.criterion(output, y).backward()
    with pytest.raises(PrivacyError, match=f"brought {2 * len(x)} examples to the clip"):
        optimizer.step()


def test_other_misuse_is_refused(tmp_path: Path) -> None:
    module = with_lengths(model(NETWORKS["images"], tmp_path))
    for wrong in (0.0, AdaptiveClip(1.0, count_noise=1e-12), lambda step: -1.0 + step):
        with pytest.raises(ValueError, match=r"positive, finite|already exceeds the budget"):
            private(module, clip_length=wrong)
    with pytest.raises(PrivacyError, match="leave clip_length out"):
        PrivacyEngine().make_private_by_clipping(
            module=module,
            optimizer=SGD(module.parameters(), 0.1),
            data_loader=DataLoader(TensorDataset(*batch(module, SIZE)), batch_size=BATCH),
            noise_multiplier=1.0,
            clipping=1.0,
            clip_length=AdaptiveClip(1.0),
        )
    module, optimizer, loader = private(module, clip_length=AdaptiveClip(1.0))
    x, y = next(iter(loader))
    module.clip_lengths["a"] = 9.0
    module.criterion(module(x), y).backward()
    with pytest.raises(PrivacyError, match="clip_lengths was changed"):
        optimizer.step()

"""Bounds under a clip of the loss's gradient: no input, label and weights of a random module exceed them.

`pytest -m nightly tests/attacks/test_loss_clip.py` runs the deep attack.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lipcompile.analysis.bounds import derive, linear_in_loss
from lipcompile.core.graph import Graph
from lipcompile.numbers.certified import Certified

from .modules import random_model
from .test_modules import Subject, ascend, inputs, over, reweigh, subject, targets

SMALL, DEEP = 16, 1_000
SHARES = (1e-3, 0.3, 0.9, 2.0)  # of L
NORMALISER = 5.0


def clipped_gradients(found: Subject, x: Tensor, y: Tensor) -> dict[str, float]:
    """Return the norms of what one example adds to the gradient of the criterion, times the normaliser."""
    model = found.model
    model.zero_grad()
    model.gate.reset()
    model.normaliser = NORMALISER
    total = model.criterion(model(x), y)
    if total.requires_grad:
        total.backward()
    grads = {name: p.grad for name, p in model.named_parameters() if p.requires_grad}
    return {name: 0.0 if g is None else NORMALISER * float(g.norm()) for name, g in grads.items()}


def static_bounds(found: Subject) -> Mapping[str, float]:
    """Return the bounds of a module whose bounds do not follow the weights."""
    bounds: Mapping[str, float] = super(type(found.model), found.model).gradient_bounds()
    return bounds


def example_faults(found: Subject, x: Tensor, y: Tensor) -> Iterator[str]:
    """Attack one example at its weights, under every clip."""
    model = found.model
    for share in SHARES:
        limit = model.loss_clip = share * model.loss_lipschitz
        static, follow = static_bounds(found), model.gradient_bounds()
        sizes = clipped_gradients(found, x, y)
        if model.gate.largest is not None:
            yield from over("cotangent", float(model.gate.largest), min(limit, model.loss_lipschitz))
        for name, size in sizes.items():
            yield from over(f"K({name}) at {share}·L", size, static[name])
            yield from over(f"K({name}) at {share}·L that follows", size, follow[name])
            if linear_in_loss(found.graph):
                yield from over(f"what follows of {name} at {share}·L", follow[name], static[name], 1e-9)
    model.loss_clip = None


def derivation_faults(graph: Graph, found: Subject) -> Iterator[str]:
    """Without clips inside, static bounds are those of the derivation at min(L, C), and nowhere below.

    With one they may be below: behind it the derivation no longer knows which cotangents are parts of one.
    """
    for share in SHARES if linear_in_loss(graph) else ():
        found.model.loss_clip = share * found.model.loss_lipschitz
        num = Certified()
        exact = derive(graph, num, clip=num.of(Fraction(found.model.loss_clip))).gradient
        for name, bound in static_bounds(found).items():
            yield from over(f"the derivation of {name} at {share}·L", exact[name].upper, bound, 0.0)
            yield from over(f"K({name}) at {share}·L", bound, exact[name].upper, 1e-11)
    found.model.loss_clip = None


def faults(found: Subject) -> Iterator[str]:
    """Yield every broken claim of one module."""
    if not 0 < found.model.loss_lipschitz < math.inf:
        return
    yield from derivation_faults(found.graph, found)
    xs = inputs(found)[:4]
    ys = targets(found, len(xs))
    for kind in (1, 2):
        reweigh(found, kind)
        for i in range(len(xs)):
            yield from example_faults(found, xs[i : i + 1], ys[i : i + 1])
    reweigh(found, 1)
    for x in ascend(found, xs[:1], ys[:1]):
        yield from example_faults(found, x.detach(), ys[:1])


def run(seeds: range, folder: Path) -> None:
    broken, accepted, inner = {}, 0, 0
    for seed in seeds:
        found = subject(random_model(seed), folder, seed)
        if found is None:
            continue
        accepted, inner = accepted + 1, inner + (found.model.unclipped_bounds != found.model.bounds)
        if some := list(faults(found))[:4]:
            broken[seed] = some
    assert not broken, broken
    assert accepted > len(seeds) // 2
    assert 0 < inner < accepted  # both kinds of modules were there


@pytest.mark.slow
def test_no_module_exceeds_its_bounds_under_a_clip(tmp_path: Path) -> None:
    run(range(SMALL), tmp_path)


@pytest.mark.nightly
def test_no_module_exceeds_its_bounds_under_a_clip_nightly(tmp_path: Path) -> None:
    run(range(SMALL, DEEP), tmp_path)


LINEAR = "input x: tensor[4], norm <= 2\n dense(4) groupsort(2) dense(3)\n loss multiclass_kr"
INNER = "input x: tensor[4], norm <= 2\n dense(4) groupsort(2) clip_gradient(0.1) dense(3)\n loss multiclass_kr"


@pytest.mark.parametrize("model", [LINEAR, INNER])
def test_the_attack_comes_near_the_bounds(tmp_path: Path, model: str) -> None:
    found = subject(model.split("\n"), tmp_path, 0)
    assert found is not None
    xs, y = torch.eye(4, dtype=torch.float64) * 2, torch.tensor([1])
    found.model.loss_clip = 0.5 * found.model.loss_lipschitz
    bounds = found.model.gradient_bounds()
    sizes = [clipped_gradients(found, x[None], y) for x in xs]
    assert all(max(size[name] for size in sizes) > 0.7 * bound for name, bound in bounds.items())
    assert not list(faults(found))


def test_a_bound_scaled_in_spite_of_an_inner_clip_is_exceeded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = subject(INNER.split("\n"), tmp_path, 0)
    assert found is not None
    assert found.model.unclipped_bounds != found.model.bounds
    monkeypatch.setattr(type(found.model), "unclipped_bounds", found.model.bounds)
    assert any(fault.startswith("K(") for fault in faults(found))


def test_clips_of_rows_instead_of_examples_are_exceeded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = subject(["input x: tensor[5, 4], norm <= 2", "dense(3)", "loss token_cross_entropy"], tmp_path, 0)
    assert found is not None
    assert not list(faults(found))

    def by_rows(cotangent: Tensor, bound: float) -> tuple[Tensor, Tensor]:
        norms = cotangent.norm(dim=-1, keepdim=True)
        return cotangent * (bound / norms).clamp(max=1), (norms <= bound).sum()

    monkeypatch.setattr("lipcompile_torch.train.module.clip_cotangents", by_rows)
    seen = list(faults(found))
    assert any(fault.startswith("cotangent") for fault in seen)
    assert any(fault.startswith("K(") for fault in seen)

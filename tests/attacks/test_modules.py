"""Emitted modules of random models, against every claim that the compiler makes of them and against the oracles.

`pytest -m nightly tests/attacks/test_modules.py` runs the deep attack.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from lipcompile.core.derivation import Analysis, Derivation
from lipcompile.core.graph import Graph
from lipcompile.diagnostics import InputError
from lipcompile.emitters.torch.emit import emit
from lipcompile.ops.attention.dot_product import DotProduct
from lipcompile.ops.attention.rules import Attention
from lipcompile.ops.shape.rules import Dropout
from lipcompile.pipeline import check

from .catalogue import LOSS_ATTACKS
from .graphs import interpret
from .harness import LossCase
from .modules import random_model

SMALL, DEEP = 12, 2_000
SLACK, AGREE, STEPS = 1e-6, 1e-8, 3
# Where a second derivative does not exist, ascents end.
_NO_SECOND_DERIVATIVE = (RuntimeError,)


@dataclass(frozen=True)
class Subject:
    """A module in float64 whose `gradient_bounds` follow its weights, and what is claimed of it."""

    analysis: Analysis
    model: Any
    generator: torch.Generator

    @property
    def graph(self) -> Graph:
        return self.analysis.graph

    def gradient(self, x: Tensor, y: Tensor, *, differentiable: bool = False) -> dict[str, Tensor]:
        """Return the gradient of one example's loss, [1, ...], in every trained parameter."""
        self.model.gate.reset()
        trained = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        if not trained:
            return {}
        loss = self.model.per_example_loss(self.model(x), y).sum()
        if not loss.requires_grad:
            return {name: torch.zeros_like(p) for name, p in trained.items()}
        found = torch.autograd.grad(
            loss, list(trained.values()), create_graph=differentiable, allow_unused=True, materialize_grads=True
        )
        return dict(zip(trained, found, strict=True))


def compiled(lines: Sequence[str], folder: Path) -> Derivation:
    path = folder / "model.lip"
    path.write_text("model net {\n" + "\n".join(lines) + "\n}\n")
    return check(str(path))


def load(text: str) -> Any:
    module = ModuleType("emitted")
    exec(compile(text, "emitted.py", "exec"), module.__dict__)
    return module.Model().double()


def subject(lines: Sequence[str], folder: Path, seed: int) -> Subject | None:
    """Return the subject of a model; None if the compiler refuses it, with a diagnostic."""
    try:
        derivation = compiled(lines, folder)
        if derivation.analysis is None:
            return None
        text = emit(derivation, follow_weights=True)
    except InputError:
        return None
    torch.manual_seed(seed)
    return Subject(derivation.analysis, load(text), torch.Generator().manual_seed(seed))


# Choices


def inputs(found: Subject) -> Tensor:
    """Inputs of all kinds: long ones are clipped, by the module."""
    source, generator = found.graph.input, found.generator
    if source.tokens:
        (table,) = [node for node in found.graph.nodes if source.name in node.inputs][:1]
        drawn = torch.randint(table.attributes.entries, (6, *source.shape), generator=generator)
        drawn[-1] = drawn[-1].flatten()[0]
        return drawn
    assert isinstance(source.norm, Fraction)
    noise = torch.randn((4, *source.shape), generator=generator, dtype=torch.float64)
    sparse = torch.zeros(noise[0].numel(), dtype=torch.float64)
    sparse[int(torch.randint(len(sparse), (), generator=generator))] = -1
    noise[1] *= 1e3
    noise[2] *= 1e-7
    noise[3] = noise[3].clamp(0, 1).round()
    others = [torch.zeros(source.shape), torch.ones(source.shape), sparse.reshape(source.shape)]
    return float(source.norm) * torch.cat((noise, torch.stack([x.double() for x in others])))


def targets(found: Subject, count: int) -> Tensor:
    use = found.graph.loss
    assert use is not None
    case = LossCase(use.loss, use.attributes, found.graph.shape(found.graph.output), Fraction(1))
    drawn = [LOSS_ATTACKS[use.loss.name].target(case, found.generator) for _ in range(count)]
    return torch.stack([y if isinstance(y, Tensor) else torch.tensor(y) for y in drawn])


# Weights from noise. The first stay inside of boxes, so that no two values are equal where they are compared.
WEIGHTS: Sequence[Callable[[Tensor], Tensor]] = (
    lambda noise: 0.3 * torch.sigmoid(noise) - 0.1,
    lambda noise: 3 * noise,
    lambda noise: torch.full_like(noise, 5),
    lambda noise: 1e-6 * noise,
    lambda noise: 9 * torch.eye(prod(noise.shape[:1]), prod(noise.shape[1:])).to(noise).reshape(noise.shape),
    lambda noise: 30 * noise.sign(),
    torch.zeros_like,
)


def reweigh(found: Subject, kind: int) -> None:
    """Draw weights, and project them."""
    with torch.no_grad():
        for p in found.model.parameters():
            p.copy_(WEIGHTS[kind](torch.randn(p.shape, generator=found.generator, dtype=p.dtype)))
    found.model.project_()


# Claims


def over(what: str, attained: float, claimed: float | None, slack: float = SLACK) -> Iterator[str]:
    """Say that a claim is exceeded; None is no claim."""
    limit = math.inf if claimed is None else claimed
    if not attained <= limit * (1 + slack) + 1e-12:  # NaN is a fault as well
        yield f"{what}: attained {attained!r}, claimed {claimed!r}, factor {attained / (claimed or math.nan):.6g}"


def gradient_faults(found: Subject, x: Tensor, y: Tensor, follow: Mapping[str, float]) -> Iterator[str]:
    static = found.model.bounds
    sizes = {name: float(g.norm()) for name, g in found.gradient(x, y).items()}
    for name, size in sizes.items():
        yield from over(f"K({name})", size, static[name])
        yield from over(f"K({name}) that follows", size, follow[name])
    yield from over("K", math.hypot(*sizes.values()), found.analysis.total.value)


def following_faults(found: Subject, follow: Mapping[str, float]) -> Iterator[str]:
    for name, bound in found.model.bounds.items():
        yield from over(f"the bound of {name} that follows the weights", follow[name], bound, 1e-9)


def ascend(found: Subject, x: Tensor, y: Tensor) -> Iterator[Tensor]:
    """Go uphill in input and weights; yield inputs, with the weights of the module changed and projected."""
    x = x.clone()
    for _ in range(STEPS):
        trained = [p for p in found.model.parameters() if p.requires_grad]
        wanted = [x.requires_grad_(), *trained] if x.is_floating_point() else trained
        try:
            squares = [(g**2).sum() for g in found.gradient(x, y, differentiable=True).values()]
            objective = torch.stack(squares).sum()
            slopes = torch.autograd.grad(objective, wanted, allow_unused=True, materialize_grads=True)
        except _NO_SECOND_DERIVATIVE:
            return
        slopes = tuple(slope.nan_to_num(0, 0, 0) for slope in slopes)
        if x.is_floating_point():
            x = x.detach()
            x = x + 3 * x.norm().clamp_min(0.1) * _unit(slopes[0])
            slopes = slopes[1:]
        with torch.no_grad():
            for p, slope in zip(trained, slopes, strict=True):
                p.add_(4 * p.norm().clamp_min(0.1) * _unit(slope))
        found.model.project_()
        yield x


def _unit(x: Tensor) -> Tensor:
    length = float(x.norm())
    return x / length if length > 0 else x


def without_dropout(graph: Graph) -> Graph:
    """The graph that an evaluated module computes."""
    nodes = []
    for node in graph.nodes:
        attributes = node.attributes
        if isinstance(attributes, Dropout):
            attributes = replace(attributes, probability=Fraction(0))
        elif isinstance(attributes, Attention | DotProduct):
            attributes = replace(attributes, dropout=Fraction(0))
        nodes.append(replace(node, attributes=attributes, site=replace(node.site, attributes=attributes)))
    return replace(graph, nodes=tuple(nodes))


def oracle_faults(found: Subject, xs: Tensor, ys: Tensor, *, backward: bool) -> Iterator[str]:
    """Compare outputs, losses and gradients with the definitions, and norms on the way with their bounds."""
    graph = without_dropout(found.graph)
    model, use = found.model.eval(), graph.loss
    assert use is not None
    outputs = model(xs).detach()
    losses = model.per_example_loss(outputs, ys)
    theta = {name: p.detach().requires_grad_() for name, p in model.named_parameters()}
    norms = {layer.name: layer.output_norm.value for layer in found.analysis.layers}
    for i, (x, y) in enumerate(zip(model.clip_input(xs), ys, strict=True)):
        values = interpret(graph, x, theta)
        for name, value in values.items():
            if name in norms:
                yield from over(f"X({name})", float(value.detach().norm()), norms[name])
        last = values[graph.output]
        if not close(outputs[i], last.detach()):
            yield f"example {i}: the module computes {outputs[i]}, the oracles {last.detach()}"
        loss = LOSS_ATTACKS[use.loss.name].oracle(use.attributes, last, y.item() if y.dim() == 0 else y)
        if not close(losses[i], loss.detach()):
            yield f"example {i}: the module's loss is {losses[i]}, the oracle's {loss}"
        if backward and loss.requires_grad:
            own = found.gradient(xs[i : i + 1], ys[i : i + 1])
            wanted = [theta[name] for name in own]
            theirs = torch.autograd.grad(loss, wanted, allow_unused=True, materialize_grads=True) if wanted else ()
            for (name, mine), other in zip(own.items(), theirs, strict=True):
                if not close(mine, other, 1e-6):
                    yield f"example {i}: gradients of {name} differ: {mine.norm()} and {other.norm()}"


def close(a: Tensor, b: Tensor, tolerance: float = AGREE) -> bool:
    if a.shape != b.shape:
        return False
    return float((a - b).abs().max()) <= tolerance * (1 + float(b.abs().max())) if a.numel() else True


def slope_faults(found: Subject, xs: Tensor) -> Iterator[str]:
    if not xs.is_floating_point() or found.model.lipschitz == math.inf:
        return
    clipped = found.model.clip_input(xs)
    near = clipped * 0.999 + 1e-3 * clipped.roll(1, 0)
    with torch.no_grad():
        one, two, three = (found.model(x).flatten(1) for x in (clipped, clipped.roll(1, 0), near))
    for other, output in ((clipped.roll(1, 0), two), (near, three)):
        distances = (clipped - other).flatten(1).norm(dim=1)
        for moved, distance in zip((one - output).norm(dim=1), distances, strict=True):
            yield from over("lipschitz", float(moved), found.model.lipschitz * float(distance) + 1e-11)


def batch_faults(found: Subject, xs: Tensor, ys: Tensor) -> Iterator[str]:
    """Neither output nor gradient of an example depends on the other examples, nor on training mode."""
    model = found.model.eval()
    together = model(xs).detach()
    for i in range(len(xs)):
        alone = model(xs[i : i + 1]).detach()[0]
        if not close(together[i], alone):
            yield f"output {i} depends on the batch"
    trained = [p for p in model.parameters() if p.requires_grad]
    clips = any(node.op.name == "clip_gradient" for node in found.graph.nodes)
    weights = torch.ones(len(xs)) if clips else torch.arange(1, len(xs) + 1)
    loss = (model.per_example_loss(model(xs), ys) * weights).sum()
    if trained and loss.requires_grad:
        all_ = torch.autograd.grad(loss, trained, allow_unused=True, materialize_grads=True)
        each = [list(found.gradient(xs[i : i + 1], ys[i : i + 1]).values()) for i in range(len(xs))]
        for index, whole in enumerate(all_):
            parts = sum(w * g[index] for w, g in zip(weights, each, strict=True))
            if not close(whole, parts, 1e-7):
                yield f"gradient {index} of a batch is not the sum of those of its examples"
    if model(xs[:0]).shape != (0, *together.shape[1:]):
        yield "an empty batch has another shape"
    if not any(node.draws for node in found.graph.nodes) and not close(model.train()(xs).detach(), together):
        yield "training mode changes the output"


def faults(found: Subject, seed: int) -> Iterator[str]:
    """Yield every broken claim of one module."""
    xs = inputs(found)
    ys = targets(found, len(xs))
    for kind in dict.fromkeys((0, 1, 2 + seed % (len(WEIGHTS) - 2))):
        reweigh(found, kind)
        yield from oracle_faults(found, xs[:2], ys[:2], backward=kind == 0)
        if len(xs) > 4:
            yield from oracle_faults(found, xs[2:], ys[2:], backward=False)
        yield from slope_faults(found, xs)
        yield from batch_faults(found, xs[:3], ys[:3])
        follow = found.model.gradient_bounds()
        yield from following_faults(found, follow)
        for train in (False, True):
            found.model.train(train)
            for i in range(len(xs)):
                yield from gradient_faults(found, xs[i : i + 1], ys[i : i + 1], follow)
    reweigh(found, 1)
    found.model.train(seed % 2 == 0)
    for i in (0, 1):
        for x in ascend(found, xs[i : i + 1], ys[i : i + 1]):
            follow = found.model.gradient_bounds()
            yield from following_faults(found, follow)
            yield from gradient_faults(found, x.detach(), ys[i : i + 1], follow)


def attack(lines: Sequence[str], folder: Path, seed: int) -> list[str] | None:
    """Return what is wrong with a model, an exception included; None if it is refused."""
    try:
        found = subject(lines, folder, seed)
        return None if found is None else list(itertools.islice(faults(found, seed), 4))
    except Exception as error:  # what fails in any way is a fault of the compiler
        return [f"{type(error).__name__}: {error}"]


def run(seeds: range, folder: Path) -> None:
    broken, accepted = {}, 0
    for seed in seeds:
        lines = random_model(seed)
        found = attack(lines, folder, seed)
        accepted += found is not None
        if found:
            broken[seed] = ("\n".join(lines), found)
    assert not broken, broken
    assert accepted > len(seeds) // 2


def test_no_module_breaks_a_claim(tmp_path: Path) -> None:
    run(range(SMALL), tmp_path)


@pytest.mark.nightly
def test_no_module_breaks_a_claim_nightly(tmp_path: Path) -> None:
    run(range(SMALL, DEEP), tmp_path)

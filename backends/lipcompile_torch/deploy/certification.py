"""Certified accuracy of a module on data, beside what an attack leaves of it."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..certify.sums import example_norms, per_example
from ..train.certificate import certificate_of, graph_hash
from ..train.checkpoint import SCHEMA, Checkpoint, CheckpointError, checkpoint_of, load_intact
from ..train.data import DataError, load_test_npz
from ..train.module import LipschitzModule
from .robustness import (
    BATCH,
    Constants,
    certified_constants,
    certified_radii,
    evaluating,
    logit_count,
    margins,
    outputs_of,
    signs,
)

__all__ = [
    "AttackConfig",
    "Certification",
    "CheckpointError",
    "DataError",
    "LipschitzModule",
    "certify",
    "load_examples",
    "load_weights",
    "outputs_of",
]

_STEP = 2.5  # all steps together reach this many radii


@dataclass(frozen=True)
class AttackConfig:
    """How hard the adversary tries.

    Args:
        steps: of each descent.
        restarts: descents of each example at each radius, the first one from the example itself.
        seed: of the other starts.
    """

    steps: int = 10
    restarts: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse an attack that would try nothing."""
        if self.steps < 1 or self.restarts < 1:
            raise ValueError("an attack needs at least one restart of one step")


def attack(
    module: LipschitzModule,
    inputs: Tensor,
    targets: Tensor,
    radius: Tensor,
    config: AttackConfig,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Look for wrongly predicted inputs near each example; return the distance of the nearest that was found.

    By projected gradient descent on the margin (Madry et al., ICLR 2018): steps along the normalised gradient,
    each followed by projection on the ball, from the example and from random points. Every example that it finds
    is a true adversarial example; a failure to find one proves nothing.

    Args:
        module: a classifier, see `robustness.certified_radii`; it runs as it is, in its own dtype.
        inputs, targets: [B, *input_shape] in the module's dtype, [B].
        radius: [B], float64: how far each example may be moved; within the module's ball if it trusts its input.

    Returns:
        distances [B], float64, at most the radius; infinite where nothing was found, 0 where the prediction is
        wrong.
    """
    generator = generator or torch.Generator().manual_seed(config.seed)
    search = _Search(module, inputs, targets, radius)
    with evaluating(module):
        for restart in range(config.restarts):
            moved = search.shifted(_random(inputs, generator)) if restart else inputs
            for _ in range(config.steps):
                slopes = search.look(moved)
                if bool((search.nearest < torch.inf).all()):
                    return search.nearest
                away = moved.double() - inputs - _unit(slopes) * per_example(_STEP / config.steps * radius, inputs)
                moved = search.shifted(away)
            search.look(moved)
    return search.nearest


class _Search:
    """What is known of a batch so far."""

    def __init__(self, module: LipschitzModule, inputs: Tensor, targets: Tensor, radius: Tensor) -> None:
        self.module, self.inputs, self.targets, self.radius = module, inputs, targets, radius
        self.nearest = torch.full_like(radius, torch.inf)
        # Rounding of the sum of an example and its change must not lead out of the ball.
        unit = torch.finfo(inputs.dtype).eps
        self.room = (radius * (1 - 2 * unit) - unit * example_norms(inputs)).clamp_min(0)

    def look(self, moved: Tensor) -> Tensor:
        """Return the gradients of the margins; note what is wrong and within the radius."""
        moved = moved.detach().requires_grad_()
        found = margins(self.module(moved), self.targets)
        (slopes,) = torch.autograd.grad(found.sum(), moved)
        distances = example_norms(moved.detach().double() - self.inputs.double())
        wrong = ~(found > 0) & (distances <= self.radius) & self._allowed(moved)
        self.nearest = torch.where(wrong, torch.minimum(self.nearest, distances), self.nearest)
        return slopes.double()

    def shifted(self, change: Tensor) -> Tensor:
        """Return the examples moved by `change`, projected on their balls, in their dtype."""
        moved = self.inputs.double() + _shortened(change, self.room)
        if self.module.input_trusted:
            moved = _shortened(moved, self._limit())
        return moved.to(self.inputs.dtype)

    def _limit(self) -> float:
        return self.module.input_norm * (1 - 2 * torch.finfo(self.inputs.dtype).eps)

    def _allowed(self, moved: Tensor) -> Tensor:
        """Whether the promise of a trusted input is kept."""
        norms = example_norms(moved.detach())
        return norms <= self.module.input_norm if self.module.input_trusted else norms >= 0


def _shortened(x: Tensor, limit: Tensor | float) -> Tensor:
    """Return examples scaled to a norm of at most the limit."""
    return x * per_example((limit / example_norms(x).clamp_min(1e-300)).clamp_max(1), x)


def _unit(x: Tensor) -> Tensor:
    return x / per_example(example_norms(x).clamp_min(1e-300), x)


def _random(inputs: Tensor, generator: torch.Generator) -> Tensor:
    """Return random directions, longer than any radius."""
    return (1e9 * torch.randn(inputs.shape, generator=generator, dtype=torch.float64)).to(inputs.device)


Progress = Callable[[str, int, int], None]
"""Is told what is being done, how much of it is done, and how much there is."""


@dataclass(frozen=True)
class AtRadius:
    """Numbers of examples that are right within a radius.

    Args:
        radius: in the units of the module's input, 2-norm.
        certified: proved to be right at every input within the radius.
        attacked: right, and no attack found a wrong input within the radius; None if nothing was attacked.
    """

    radius: float
    certified: int
    attacked: int | None


@dataclass(frozen=True)
class Certification:
    """The certified robustness of a module on data.

    Args:
        examples: how many there are.
        right: how many are predicted right as they are.
        constants: that the certificates rest on.
        radii: by radius, ascending.
        broken: examples for which a wrong input was found nearer than their certified radius.
    """

    examples: int
    right: int
    constants: Constants
    radii: tuple[AtRadius, ...]
    broken: int

    @property
    def sound(self) -> bool:
        """Whether no certificate was broken."""
        return self.broken == 0


def certify(
    module: LipschitzModule,
    inputs: Tensor,
    targets: Tensor,
    radii: Sequence[float],
    config: AttackConfig | None = None,
    report: Progress | None = None,
) -> Certification:
    """Count what is certified at each radius; attack the others there, and every certificate at its own radius.

    Args:
        module, inputs, targets: see `robustness.certified_radii`.
        radii: positive, in the units of the inputs.
        config: how to attack; None: not at all.

    Raises:
        ValueError: see `robustness.certified_radii`.
    """
    certified = certified_radii(module, inputs, targets)
    right = margins(outputs_of(module, inputs), targets) > 0
    nearest = torch.where(right, torch.inf, 0.0).to(certified)
    if config is not None:
        campaign = _Campaign(module, inputs, targets, config, report or (lambda *_: None), len(radii) + 1)
        for r in sorted(radii):
            nearest = campaign.attacked(nearest, torch.where(certified > r, 0.0, r))
        nearest = campaign.attacked(nearest, certified)
    rows = (
        AtRadius(r, int((certified > r).sum()), None if config is None else int((nearest > r).sum()))
        for r in sorted(radii)
    )
    broken = int((nearest < certified).sum())
    return Certification(len(inputs), int(right.sum()), certified_constants(module), tuple(rows), broken)


class _Campaign:
    """All attacks on one module."""

    def __init__(
        self,
        module: LipschitzModule,
        inputs: Tensor,
        targets: Tensor,
        config: AttackConfig,
        report: Progress,
        rounds: int,
    ) -> None:
        self.module, self.inputs, self.targets, self.config, self.report = module, inputs, targets, config, report
        self.generator = torch.Generator().manual_seed(config.seed)
        self.done, self.planned = 0, rounds * len(inputs)

    def attacked(self, nearest: Tensor, radius: Tensor) -> Tensor:
        """Attack what was not found wrong within its radius so far; return distances to wrong inputs."""
        found = nearest.clone()
        standing = ((nearest > radius) & (radius > 0)).nonzero().flatten()
        self._tell(len(nearest) - len(standing))
        for part in torch.split(standing, BATCH):
            distances = attack(
                self.module, self.inputs[part], self.targets[part], radius[part], self.config, self.generator
            )
            found[part] = torch.minimum(found[part], distances)
            self._tell(len(part))
        return found

    def _tell(self, examples: int) -> None:
        self.done += examples
        self.report("", self.done, self.planned)


def load_examples(module: LipschitzModule, path: str | os.PathLike[str]) -> tuple[Tensor, Tensor]:
    """Read the test part of a data file for a classifier; returns inputs and targets as `certify` takes them.

    Raises:
        DataError, OSError: see `data.load_test_npz`; or labels of one logit that are not two classes.
        ValueError: the module is no classifier.
    """
    count = logit_count(module)
    x, y = load_test_npz(path, module.input_shape, None if count == 1 else count, [*module.input_parts.items()])
    targets = torch.from_numpy(y)
    if count == 1:
        if targets.numel() != len(x):
            raise DataError(f"the test labels have shape {tuple(y.shape)}: each example needs one label")
        try:
            targets = signs(targets)
        except ValueError as error:
            raise DataError(f"the test labels are not two classes: {error}") from None
    dtype = next((parameter.dtype for parameter in module.parameters()), torch.float32)
    return torch.from_numpy(x).to(dtype), targets


def load_weights(module: LipschitzModule, path: str | os.PathLike[str]) -> Checkpoint | None:
    """Load weights from a checkpoint of `train`, or from a state dict of `torch.save`, and project them.

    Runs no code from the file. Returns the checkpoint, and None for a state dict, which knows of no ledger.

    Raises:
        CheckpointError: the file holds neither, or weights of another module, or none that are finite.
        OSError: it cannot be read.
    """
    stored = io.BytesIO(Path(path).read_bytes())
    try:
        content: Any = load_intact(stored)
        saved = checkpoint_of(content) if content.get("schema") == SCHEMA else None
        state = dict(content if saved is None else saved.states["module"])
    except (pickle.UnpicklingError, RuntimeError, OSError, EOFError, LookupError, *_NO_MAPPING) as error:
        raise CheckpointError(f"{path} is not a checkpoint or a state dict, or it is damaged") from error
    if saved is not None and graph_hash(saved.certificate) != graph_hash(certificate_of(module)):
        raise CheckpointError(f"{path} belongs to another model: the graph in its certificate is different")
    try:
        module.load_state_dict(state)
    except (RuntimeError, *_NO_MAPPING) as error:
        raise CheckpointError(f"{path} does not fit this module: {' '.join(str(error).split())}") from error
    return saved


_NO_MAPPING = (AttributeError, TypeError, ValueError)

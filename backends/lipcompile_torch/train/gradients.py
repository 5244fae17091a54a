"""Where the gradient of a step comes from, what bounds the part of one example, and how much noise that takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor, dtype, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ..certify.constraints import Free
from ..certify.precision import long_sum_slack, sum_slack, warn_of_sums
from ..certify.sums import DEPTH
from ..clip.clipping import sum_depth
from ..distributed import ALONE, RankError, World, check_same
from ..nn.constrained import constraints_of
from ..noise.masks import Masks
from ..noise.mechanism import Allocation, NoiseSource, allocate
from ..sharding import is_shard, settle
from . import checks
from .checks import PrivacyError
from .clipped import ClippedGradients
from .gradient_watch import GradientWatch
from .loss_clipping import Thresholds
from .module import LipschitzModule
from .reduction import Reduction, without_ddp
from .sampler import LogicalBatch, Rows


class Gradients(Protocol):
    """The sum of the gradients of a batch in `.grad`, divided by the fixed normaliser.

    Attributes:
        total: the sum over all processes.
    """

    total: Reduction

    @property
    def module(self) -> nn.Module:
        """The trained module."""

    def draw_masks_by(self, masks: Masks) -> None:
        """Let each forward pass of a step check that masks are secret."""

    def check(self, noise_multiplier: float) -> None:
        """Raise ValueError if noise of this σ cannot be shared among the parameters; changes nothing."""

    def start(self) -> None:
        """Prepare the module for training."""

    def begin(self) -> None:
        """Prepare for a batch, with the weights as they are."""

    def reset(self) -> None:
        """Forget what has flowed back."""

    def stds(self, batch: LogicalBatch, noise_multiplier: float, noise: NoiseSource) -> dict[str, float]:
        """Sum over all processes; return s_p, the noise on that sum, for every parameter with a positive bound.

        Raises:
            PrivacyError: what is in `.grad` is not the bounded sum over this batch.
            RankError: that is so on another process, or it does not do the same as this one.
        """

    def constant_stds(self, noise_multiplier: float) -> dict[str, float] | None:  # noqa: ARG002
        """Return the least s_p of any step, by parameter; None if it follows weights, or is of no bound."""
        return None

    def settle(self, batch: LogicalBatch, noise: NoiseSource) -> None:
        """Release what else belongs to the step, and put the weights back into their sets."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run goes on from, beside weights and the optimizer's state; all of it released."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: ARG002
        """Go on from a state, among other entries; raise ValueError if it is that of another clip."""
        return


_FIXES = {
    "batches": "their samplers draw different batches; give every rank the same data set, loader and version of "
    "torch",
    "weights": "load, average or change weights on every rank alike",
    "bounds": "bounds depend on the weights, so all replicas need the same weights and the same arithmetic",
    "settings": "do not change the module's settings, or change them on every rank",
    "clips": "give every rank the same module, and clip alike",
}


_PIECES = 16  # backward passes over parts of a batch, or of a piece of it, that nobody announced


def _check_agreement(views: Sequence[Mapping[str, Any]], batch: LogicalBatch) -> None:
    check_same(views, {name: help_line for name, help_line in _FIXES.items() if name in views[0]})
    shared = sum(view["examples"] for view in views)
    if shared != batch.total:
        raise RankError(f"{batch.total} examples were drawn, but all ranks together received {shared} of them")


_METHODS = (
    "forward",
    "per_example_loss",
    "gradient_bounds",
    "clip_input",
    "clip_features",
    "frozen_features",
    "clip_gradient",
    "clip_loss_gradient",
    "criterion",
    "project_",
)


def _stated(module: LipschitzModule) -> tuple[object, ...]:
    """Return what a module says of itself, and the functions that it consists of: what was certified."""
    functions = [getattr(getattr(module, name), "__func__", None) for name in _METHODS]
    domain = module.input_norm, module.input_trusted, module.input_tokens, module.features_norm
    bounds = dict(module.bounds), dict(module.unclipped_bounds or {}), tuple(module.clips)
    return *bounds, module.loss_lipschitz, domain, functions


class LipschitzGradients:
    """Gradients of a compiled module's criterion, bounded by its formulas, or by clips.

    Args:
        module: emitted; DDP may be around it.
        optimizer: that holds its parameters.
        allocation: how noise is shared among them.
        normaliser: b.
        thresholds: of clips that are chosen in training; None: none.
        fixed_norm: scale weights to the bounds of their constraints, not only down to them.
        world: the processes that train the module together.
        pieces: how many parts a batch arrives in at most, whose gradients are added one after the other.
        drawn_rows: see `aliases.ParameterAliases`.
    """

    def __init__(
        self,
        module: LipschitzModule | DistributedDataParallel,
        optimizer: Optimizer,
        allocation: Allocation,
        normaliser: float,
        thresholds: Thresholds | None = None,
        fixed_norm: bool = False,
        world: World = ALONE,
        pieces: int = 1,
        drawn_rows: Callable[[], Rows | None] = lambda: None,
    ) -> None:
        self.module: LipschitzModule = without_ddp(module, world)
        self._fixed_norm = fixed_norm
        self._optimizer, self._allocation = optimizer, allocation
        self._normaliser, self.thresholds = normaliser, thresholds or Thresholds({}, 1.0, normaliser)
        self._clips: tuple[float | None, dict[str, float]] = None, {}
        self._parameters = checks.trainable(self.module)
        self._pieces, self._drawn_rows = max(pieces, _PIECES), drawn_rows
        self._depth = DEPTH + self._pieces + world.size
        self._gate_slack = 0.0
        self._long_slacks: dict[dtype, float] = {}
        self._watch = GradientWatch(self._parameters, late=self.module is not module)
        self._batch: object = None
        self._contents = checks.UNREAD
        self._groups = [group.parameters for group in self.module.clips]
        self._proved = self._parameters.keys() - self.module.clipped_parameters
        # Then no bound follows weights, and there is nothing to project.
        constraints = constraints_of(self.module)
        self._is_free = not self._proved and all(isinstance(constraints[p][0], Free) for p in self._parameters)
        self._stated = _stated(self.module)
        self.total = Reduction(self.module, world, self.module.clipped_parameters)

    def draw_masks_by(self, masks: Masks) -> None:
        """Let the module check them."""
        self.module.gate.aliases.masks = masks

    def check(self, noise_multiplier: float) -> None:
        """Share the noise by way of trial."""
        self.total.check()
        self._share(self._bounds(), noise_multiplier)

    def start(self) -> None:
        """Set the module's normaliser, share and project its weights, guard its layers."""
        self.module.normaliser = self._normaliser
        self._set_clips()
        warn_of_sums(max(self._sum_slacks(self._bounds()).values(), default=0.0), self._normaliser)
        self.total.share_weights_()
        self.module.guard_layers()
        self.module.forget_certificates()  # they may differ from rank to rank
        self._project()

    def begin(self) -> None:
        """Put weights that were changed since the last step (loaded, averaged) back into their constraint sets."""
        settle(self.module)
        changed = self.total.world.each("draw a batch", lambda: not self._is_free and self._weights_changed())
        if self._is_free:  # and nobody has to wait for what was changed
            self._contents = self._current_contents()
        elif any(changed):
            self._project()
        self._set_clips()
        self._batch = self.module.gate.batch = object()
        aliases = self.module.gate.aliases
        aliases.begin_backward, aliases.drawn_rows = self._watch.begin_backward, self._drawn_rows

    def _set_clips(self) -> None:
        """Give the module the thresholds of the next batch."""
        current = {name: threshold.current for name, threshold in self.thresholds.items()}
        lengths = {name: length for name, length in current.items() if name is not None}
        self._clips = current.get(None), lengths
        self.module.loss_clip, self.module.clip_lengths = self._clips[0], dict(lengths)

    def _bounds(self) -> dict[str, float]:
        """Return K_p; a method that follows weights knows nothing of lengths that move."""
        return self.module.gradient_bounds() | self.module.moved_bounds

    def _weights_changed(self) -> bool:
        return not self._current_contents().same(self._contents)

    def reset(self) -> None:
        """Empty the gate."""
        self.module.gate.reset()
        self._watch.reset()
        self.total.reset()

    def stds(self, batch: LogicalBatch, noise_multiplier: float, noise: NoiseSource) -> dict[str, float]:
        """Check everything that the accounting assumes of this step; return s_p."""
        settle(self.module)
        bounds = self._bounds()
        views = self.total.world.each("take a step", lambda: self._view(batch, bounds, noise_multiplier))
        _check_agreement(views, batch)
        # The lowest precision so far: nothing flows back from an empty batch, which noise must not give away.
        self._gate_slack = max(self._gate_slack, *(view["slack"] for view in views))
        if self._proved:
            checks.check_precision_known(self._gate_slack)
        slack = max(checks.slack(self._parameters), self._gate_slack) + self._long_sums()
        self.total.sum_()
        norms = self._norms if self.total.world is ALONE else self.total.norms()
        checks.check_gradients(norms, bounds, batch.total / self._normaliser, slack, self._depth)
        if self.total.world is ALONE:
            self._watch.check(self._altered)
        return self._widened(bounds, noise_multiplier, noise)

    def _view(self, batch: LogicalBatch, bounds: Mapping[str, float], sigma: float) -> dict[str, Any]:
        """Check what flowed back here; return what the other processes must find too."""
        module = self.module
        own_slack = max(checks.slack(self._parameters), module.gate.slack) + self._long_sums()
        self.total.check()
        arrived = self._watch.norms
        weights = self._parameters if self._is_free else {}  # others were projected, which looks at them
        own = dict(module.named_parameters())
        measured = checks.measure(own, self._parameters, self._contents, module.gate, arrived, weights)
        self._norms, self._altered = measured.norms, measured.altered
        checks.check_hooks(module)
        checks.check_unchanged(own, self._optimizer, self._parameters, measured.unchanged)
        checks.check_weights(self._parameters, measured.weights)
        self._check_settings()
        self._watch.check_hooks()
        checks.check_bounds(self._parameters, bounds)
        checks.check_pieces(self._parameters, max(self._watch.passes, batch.position + 1), self._pieces)
        limit = min(module.loss_lipschitz, module.loss_limit) * (1 + own_slack)
        checks.check_flow(measured.flow, batch, limit if self._proved else None)
        checks.check_clipped(module.gate.aliases.most_clipped, batch)
        checks.check_origin(module.gate.aliases.foreign)
        shared: Mapping[str, float] = {}
        if self.total.world is not ALONE:  # there, the sum is what must be left alone
            self._watch.check(self._altered)
            shared = self._share(bounds, sigma)  # which groups decide
        return {
            "slack": module.gate.slack,
            "examples": batch.examples,
            "batches": (batch.step, batch.round, batch.total, batch.digest),
            "weights": self.total.weights(),
            "bounds": dict(bounds),
            "settings": (module.normaliser, *self._clips, self.thresholds.gradient_multiplier(sigma)),
            "clips": shared,
        }

    def _check_settings(self) -> None:
        module = self.module
        if _stated(module) != self._stated:
            raise PrivacyError(
                "the module's bounds, domain or methods were changed after make_private: compile the "
                "changed model again"
            )
        if module.gate.batch is not self._batch:
            raise PrivacyError(
                "the loader of another optimizer drew a batch for this module in the meantime: do not "
                "interleave the steps of two optimizers; call abandon_batch() and continue"
            )
        if module.normaliser != self._normaliser:
            raise PrivacyError(
                f"the module's normaliser is {module.normaliser}, not the expected batch size {self._normaliser}: "
                "do not change it"
            )
        for name, own in zip(("loss_clip", "clip_lengths"), self._clips, strict=True):
            if getattr(module, name) != own:
                raise PrivacyError(f"the module's {name} was changed after the batch was drawn: do not change it")

    def _widened(self, bounds: Mapping[str, float], sigma: float, noise: NoiseSource) -> dict[str, float]:
        stds, left = self._share(bounds, sigma), self.thresholds.gradient_multiplier(sigma)
        entries = self.thresholds.counts + sum(self._parameters[name].numel() for name in stds)
        # The noise carries the slack of each parameter's dtype by itself; that of the computation comes on top.
        self._factor = noise.widening(left, entries)
        # What is added of a clipped gradient is no longer than C, as it is in floating point.
        one = dict.fromkeys(stds, 1.0) | dict.fromkeys(self._proved, 1 + self._gate_slack + self._long_sums())
        summed = self._sum_slacks(bounds)
        return {name: std * one[name] * (1 + summed[name]) * self._factor for name, std in stds.items()}

    def _sum_slacks(self, bounds: Mapping[str, float]) -> dict[str, float]:
        """Return what rounding the sums takes, by parameter with a positive bound."""
        positive = {name: self._parameters[name] for name, bound in bounds.items() if bound > 0}
        entries = {name: parameter.numel() for name, parameter in positive.items()}
        for group in self._groups:  # whose parts are one sum
            entries.update(dict.fromkeys(group, sum(self._parameters[name].numel() for name in group)))
        depths = {name: sum_depth(p) if name not in self._proved else DEPTH for name, p in positive.items()}
        added = self._pieces + self.total.world.size
        return {
            name: sum_slack(
                p.dtype,
                self._normaliser,
                entries[name],
                bounds[name],
                depths[name] + added,
                self.total.roundings(p),
            )
            for name, p in positive.items()
        }

    def _long_sums(self) -> float:
        """Return what the roundings of a pass add, in the dtypes that the parameters have now."""
        graph = type(self.module).certificate.get("graph") if self._proved else None
        for kind in {parameter.dtype for parameter in self._parameters.values()} - self._long_slacks.keys():
            self._long_slacks[kind] = long_sum_slack(graph, kind)
        return max(self._long_slacks[parameter.dtype] for parameter in self._parameters.values())

    def _share(self, bounds: Mapping[str, float], sigma: float) -> dict[str, float]:
        sizes = {name: parameter.numel() for name, parameter in self._parameters.items()}
        return allocate(self._allocation, bounds, sizes, self.thresholds.gradient_multiplier(sigma), self._groups)

    def constant_stds(self, noise_multiplier: float) -> dict[str, float] | None:
        """Return s_p of the module's own bounds, before slack is added; None if they follow weights or a clip."""
        bounds = dict(self.module.bounds)
        follow = type(self.module).gradient_bounds is not LipschitzModule.gradient_bounds
        if follow or self.thresholds or not all(bounds.values()):
            return None
        return self._share(bounds, noise_multiplier)

    def settle(self, batch: LogicalBatch, noise: NoiseSource) -> None:
        """Move the thresholds, if there are any, and project."""
        self._watch.reset()  # it holds what arrived; projection needs the memory
        if self.thresholds:
            self._advance(batch, noise)
        if not self._is_free:
            self._project()

    def _advance(self, batch: LogicalBatch, noise: NoiseSource) -> None:
        """Release how many examples of all processes were within the thresholds that adapt, and move on."""
        gate = self.module.gate
        own: list[tuple[str | None, float]] = [(name, float(count)) for name, count in gate.aliases.within]
        own.append((None, 0.0 if gate.within_clip is None else float(gate.within_clip)))
        counts = self.total.world.each("count examples", lambda: own)
        for name, threshold in self.thresholds.items():
            within = sum(count for found in counts for group, count in found if group == name)
            threshold.advance(within, batch.total, lambda u: self._released(u, noise), self._factor)

    def _released(self, count: Tensor, noise: NoiseSource) -> Tensor:
        """Return a count with noise that one process draws for all."""
        return self.total.world.first("release a count", lambda: noise.added("count", count))

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the thresholds, if there are any."""
        return self.thresholds.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set the thresholds to where they were; a run without them has no use for a state."""
        self.thresholds.load_state_dict(state)

    def _project(self) -> None:
        self.module.project_()
        if self._fixed_norm:
            self.module.fill_()
        self._contents = self._current_contents()

    def _current_contents(self) -> checks.Contents:
        return checks.current_contents(dict(self.module.named_parameters()), self._contents)


class PerExampleGradients(Gradients):
    """Clipped per-example gradients: what `ClippedGradients` added up, whatever stands in `.grad`."""

    def __init__(
        self, clipped: ClippedGradients, optimizer: Optimizer, allocation: Allocation, world: World = ALONE
    ) -> None:
        self.clipped, self._optimizer, self._allocation = clipped, optimizer, allocation
        self._parameters = checks.trainable(clipped.module)
        self.total = Reduction(clipped.module, world)

    @property
    def module(self) -> nn.Module:
        """The trained module."""
        return self.clipped.module

    def draw_masks_by(self, masks: Masks) -> None:
        """Let `ClippedGradients.backward` check them."""
        self.clipped.masks = masks

    def check(self, noise_multiplier: float) -> None:
        """Share the noise by way of trial."""
        if any(map(is_shard, self._parameters.values())):
            raise PrivacyError(
                "per-example gradients need whole parameters: replicate the module instead of sharding it"
            )
        self.clipped.stds(noise_multiplier, self._allocation)

    def start(self) -> None:
        """Share the weights, and prepare a compiled module; any other stays as it is."""
        warn_of_sums(max(self._sum_slacks().values()), self.clipped.normaliser)
        self.total.share_weights_()
        if isinstance(self.module, LipschitzModule):
            self.module.normaliser = self.clipped.normaliser
            self.module.forget_certificates()
            self.module.project_()

    def begin(self) -> None:
        """Nothing depends on the weights."""
        self.total.world.each("draw a batch", lambda: None)

    def reset(self) -> None:
        """Begin a new sum."""
        self.clipped.reset()
        self.total.reset()
        if isinstance(self.module, LipschitzModule):
            self.module.gate.reset()

    def stds(self, batch: LogicalBatch, noise_multiplier: float, noise: NoiseSource) -> dict[str, float]:
        """Check that the whole batch went in; return s_p."""
        stds = self.clipped.stds(noise_multiplier, self._allocation)
        views = self.total.world.each("take a step", lambda: {**self._view(batch), "clips": stds})
        _check_agreement(views, batch)
        self.total.sum_()
        factor = noise.widening(noise_multiplier, sum(self._parameters[name].numel() for name in stds))
        summed = self._sum_slacks()
        return {name: std * (1 + summed[name]) * factor for name, std in stds.items()}

    def _sum_slacks(self) -> dict[str, float]:
        """Return what rounding the sums, which are in float64 before, takes by parameter."""
        lengths, depth = self.clipped.bounds(), self.total.world.size
        # Of a flat clip all parts are one: the entries of all of them count for each.
        entries = sum(self._parameters[name].numel() for name in lengths)
        chosen = {name: self._parameters[name] for name in lengths}
        return {
            name: sum_slack(
                p.dtype, self.clipped.normaliser, entries, lengths[name], depth, self.total.roundings(p)
            )
            for name, p in chosen.items()
        }

    def _view(self, batch: LogicalBatch) -> dict[str, Any]:
        """Put the sum of this process in place; return what the others must find too."""
        self.total.check()
        if self.clipped.examples != batch.examples:
            raise PrivacyError(
                f"{batch.examples} examples were drawn for this step but {self.clipped.examples} were "
                "passed to clipped.backward(x, y): call it once for each batch of the loader, with the "
                "whole batch"
            )
        checks.check_optimizer(self._optimizer, dict(self.module.named_parameters()))
        self.clipped.deposit_()
        batches = (batch.step, batch.round, batch.total, batch.digest)
        return {"examples": batch.examples, "batches": batches, "weights": self.total.weights()}

    def settle(self, batch: LogicalBatch, noise: NoiseSource) -> None:  # noqa: ARG002  # nothing else is released
        """Project a compiled module."""
        if isinstance(self.module, LipschitzModule):
            self.module.project_()

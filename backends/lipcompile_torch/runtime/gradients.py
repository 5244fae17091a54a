"""Where the gradient of a step comes from, what bounds the part of one example, and how much noise that takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import nn
from torch.optim import Optimizer

from . import checks
from .checks import PrivacyError
from .clipped import ClippedGradients
from .loss_clipping import LossClipping
from .module import LipschitzModule
from .noise import Allocation, NoiseSource, allocate
from .sampler import LogicalBatch


class Gradients(Protocol):
    """The sum of the gradients of a batch in `.grad`, divided by the fixed normaliser."""

    @property
    def module(self) -> nn.Module:
        """What is trained."""
        ...  # pragma: no cover

    def check(self, noise_multiplier: float) -> None:
        """Raise ValueError if noise of this σ cannot be shared among the parameters; changes nothing."""

    def start(self) -> None:
        """Prepare the module for training."""

    def begin(self) -> None:
        """Prepare for a batch, with the weights as they are."""

    def reset(self) -> None:
        """Forget what has flowed back."""

    def stds(self, batch: LogicalBatch, noise_multiplier: float, noise: NoiseSource) -> dict[str, float]:
        """Return s_p, the noise on the sum of gradients, by the names of the parameters whose bound is positive.

        Raises:
            PrivacyError: what is in `.grad` is not the bounded sum over this batch.
        """
        ...  # pragma: no cover

    def settle(self, batch: LogicalBatch, noise: NoiseSource) -> None:
        """Release what else belongs to the step, and put the weights back into their sets."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run goes on from, beside weights and the optimizer's state; all of it released."""
        ...  # pragma: no cover

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, among other entries; raise ValueError if it is that of another clip."""


class LipschitzGradients:
    """Gradients of a compiled module's criterion, bounded by its formulas, at the logits perhaps by a clip.

    Args:
        module: emitted.
        optimizer: that holds its parameters.
        allocation: how noise is shared among them.
        normaliser: b.
        clipping: of the loss's gradient; None: L bounds it.
        fixed_norm: scale weights to the bounds of their constraints, not only down to them.
    """

    def __init__(
        self,
        module: LipschitzModule,
        optimizer: Optimizer,
        allocation: Allocation,
        normaliser: float,
        clipping: LossClipping | None = None,
        fixed_norm: bool = False,
    ) -> None:
        self.module = module
        self._fixed_norm = fixed_norm
        self._optimizer, self._allocation = optimizer, allocation
        self._normaliser, self.clipping = normaliser, clipping
        self._clip: float | None = None
        self._parameters = checks.trainable(module)

    def check(self, noise_multiplier: float) -> None:
        """Share the noise by way of trial."""
        self._share(self.module.gradient_bounds(), noise_multiplier)

    def start(self) -> None:
        """Set the module's normaliser, project its weights, guard its layers."""
        self.module.normaliser = self._normaliser
        self.module.guard_layers()
        self._project()

    def begin(self) -> None:
        """Put weights that were changed since the last step (loaded, averaged) back into their constraint sets."""
        if checks.current_contents(self._parameters) != self._contents:
            self._project()
        self._clip = None if self.clipping is None else self.clipping.current
        self.module.loss_clip = self._clip

    def reset(self) -> None:
        """Empty the gate."""
        self.module.gate.reset()

    def stds(self, batch: LogicalBatch, noise_multiplier: float, noise: NoiseSource) -> dict[str, float]:
        """Check everything that the accounting assumes of this step; return s_p."""
        module = self.module
        checks.check_unchanged(module, self._optimizer, self._parameters, self._contents)
        self._check_settings()
        bounds = module.gradient_bounds()
        checks.check_bounds(self._parameters, bounds)
        slack = max(checks.slack(self._parameters), module.gate.slack)
        checks.check_flow(module.gate, batch, min(module.loss_lipschitz, module.loss_limit) * (1 + slack))
        checks.check_gradients(self._parameters, bounds, batch.examples / self._normaliser, slack)
        return self._widened(bounds, noise_multiplier, noise)

    def _check_settings(self) -> None:
        module = self.module
        if module.normaliser != self._normaliser:
            raise PrivacyError(
                f"the module's normaliser is {module.normaliser}, not the expected batch size {self._normaliser}: "
                "do not change it"
            )
        if module.loss_clip != self._clip:
            raise PrivacyError("the module's loss_clip was changed since the batch was drawn: leave it alone")

    def _widened(self, bounds: Mapping[str, float], sigma: float, noise: NoiseSource) -> dict[str, float]:
        stds = self._share(bounds, sigma)
        entries = 1 + sum(self._parameters[name].numel() for name in stds)  # one for the count of an adaptive clip
        # The noise carries the slack of each parameter's dtype by itself; that of the computation comes on top.
        self._factor = noise.widening(self._multiplier(sigma), entries)
        return {name: std * (1 + self.module.gate.slack) * self._factor for name, std in stds.items()}

    def _share(self, bounds: Mapping[str, float], sigma: float) -> dict[str, float]:
        sizes = {name: parameter.numel() for name, parameter in self._parameters.items()}
        return allocate(self._allocation, bounds, sizes, self._multiplier(sigma))

    def _multiplier(self, sigma: float) -> float:
        """Return what is left of σ for the gradient."""
        return sigma if self.clipping is None else self.clipping.gradient_multiplier

    def settle(self, batch: LogicalBatch, noise: NoiseSource) -> None:  # noqa: ARG002  # the gate counted it
        """Move the clip, if there is one, and project."""
        if self.clipping is not None:
            self.clipping.advance(self.module.gate, lambda u: noise.added("loss clip", u), self._factor)
        self._project()

    def state_dict(self) -> dict[str, Any]:
        """Return the clip's state, if there is one."""
        return {} if self.clipping is None else {"loss_clip": self.clipping.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set the clip to where it was; a run without one has no use for a state."""
        if self.clipping is not None:
            self.clipping.load_state_dict(state.get("loss_clip", {}))

    def _project(self) -> None:
        self.module.project_()
        if self._fixed_norm:
            self.module.fill_()
        self._contents = checks.current_contents(self._parameters)


class PerExampleGradients:
    """Clipped per-example gradients: what `ClippedGradients` added up, whatever stands in `.grad`."""

    def __init__(self, clipped: ClippedGradients, optimizer: Optimizer, allocation: Allocation) -> None:
        self.clipped, self._optimizer, self._allocation = clipped, optimizer, allocation
        self._parameters = checks.trainable(clipped.module)

    @property
    def module(self) -> nn.Module:
        """What is trained."""
        return self.clipped.module

    def check(self, noise_multiplier: float) -> None:
        """Share the noise by way of trial."""
        self.clipped.stds(noise_multiplier, self._allocation)

    def start(self) -> None:
        """Prepare a compiled module; any other stays as it is."""
        if isinstance(self.module, LipschitzModule):
            self.module.normaliser = self.clipped.normaliser
            self.module.project_()

    def begin(self) -> None:
        """Nothing depends on the weights."""

    def reset(self) -> None:
        """Begin a new sum."""
        self.clipped.reset()
        if isinstance(self.module, LipschitzModule):
            self.module.gate.reset()

    def stds(self, batch: LogicalBatch, noise_multiplier: float, noise: NoiseSource) -> dict[str, float]:
        """Check that the whole batch went in; return s_p."""
        if self.clipped.examples != batch.examples:
            raise PrivacyError(
                f"{batch.examples} examples were drawn for this step but {self.clipped.examples} went into "
                "clipped.backward(x, y): call it once for each batch that the loader yields, with all of it"
            )
        checks.check_optimizer(self._optimizer, self.module)
        self.clipped.deposit_()
        stds = self.clipped.stds(noise_multiplier, self._allocation)
        entries = sum(self._parameters[name].numel() for name in stds)
        factor = noise.widening(noise_multiplier, entries)
        return {name: std * factor for name, std in stds.items()}

    def settle(self, batch: LogicalBatch, noise: NoiseSource) -> None:  # noqa: ARG002  # nothing else is released
        """Project a compiled module."""
        if isinstance(self.module, LipschitzModule):
            self.module.project_()

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: every batch begins anew."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """There is nothing to load."""

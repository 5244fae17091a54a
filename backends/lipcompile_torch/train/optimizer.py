"""The optimizer that releases gradients only with noise, and only once they are what was accounted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import torch
from lipcompile_privacy.accounting import BudgetError, Release, Run
from lipcompile_privacy.ledger import warn_of
from torch import nn
from torch.optim import Optimizer

from ..noise.masks import Masks
from ..noise.mechanism import NoiseSource, zero_gradient_
from . import checks
from .checks import PrivacyError
from .gradient_watch import Singular
from .gradients import Gradients
from .ledger import Ledger
from .sampler import LogicalBatch, PrivateLoader

ledgers: WeakKeyDictionary[nn.Module, Ledger] = WeakKeyDictionary()
"""The ledger of the last step of each module that was trained in this process."""


class PrivateOptimizer(Singular, Optimizer):
    """Wraps an optimizer: `step` checks the gradient, counts it, adds noise, lets the optimizer step, projects.

    Everything else (`param_groups`, `state`, `state_dict`, hooks) is the wrapped optimizer's, so learning rate
    schedulers work on either. Built by `PrivacyEngine.make_private`.

    Formal guarantees: each `step` that changes a parameter is a step of the recorded release, with at least the
    recorded noise multiplier, given that the module's gradient bounds hold; its ledger line, and that of the
    charge that covers it, are durable before any parameter changes, and stay if anything fails afterwards. A
    batch is released at most once.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        gradients: Gradients,
        loader: PrivateLoader,
        ledger: Ledger,
        release: Release,
        noise: NoiseSource,
        max_steps: int | None = None,
        statement: Mapping[str, Any] | None = None,
    ) -> None:
        # Not super().__init__(): groups and state live in the wrapped optimizer alone, see the properties.
        self.optimizer = optimizer
        self._gradients = gradients
        self._loader = loader
        self._ledger = ledger
        self._release_kind = release
        self._noise = noise
        self._statement = dict(statement or {})
        self._steps_left = max_steps
        self._charges_left = None if max_steps is None else loader.scheme.drawing.charges(max_steps)
        self._round: int | None = None
        self._parameters = checks.trainable(gradients.module)
        self._masks = Masks(wanted=not noise.is_seeded)
        gradients.draw_masks_by(self._masks)
        self._generators: list[str] = []
        self._declare()
        self._accumulating = False
        self._releasing = False
        self._under_way = Lock()
        optimizer.register_step_pre_hook(self._refuse_raw_step)

    def _declare(self) -> None:
        """Have the ledger say where noise comes from: before the first step, and once parameters lie elsewhere."""
        generators = self._noise.generators(self._parameters.values())
        if generators != self._generators:
            self._ledger.declare(self._release_kind, self._noise.is_seeded, generators)
            self._generators = generators
            if not self._noise.is_seeded:
                warn_of(generators, 5)  # where make_private was called, or step

    def _refuse_raw_step(self, *_: Any) -> None:
        if not self._releasing:
            raise PrivacyError(
                "step() was called on the wrapped optimizer, which would release a gradient without "
                "noise: call step() on the optimizer that make_private returned"
            )

    # --- the wrapped optimizer ---

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The wrapped optimizer's groups."""
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The wrapped optimizer's state."""
        return self.optimizer.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The wrapped optimizer's defaults."""
        return self.optimizer.defaults

    def __getattr__(self, name: str) -> Any:
        if name == "optimizer":  # not yet set: do not look for it in itself
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def __repr__(self) -> str:
        return f"PrivateOptimizer({self._release_kind}, {self.optimizer!r})"

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the wrapped optimizer and of a clip; both are computed from what was released."""
        return {**self.optimizer.state_dict(), **self._gradients.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the wrapped optimizer's state and the clip's.

        Raises:
            ValueError: the state of other parameters, or of another clip.
        """
        self._gradients.load_state_dict(state_dict)
        self.optimizer.load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:  # noqa: ARG002
        """Refuse: a parameter added later has no proved bound."""
        raise PrivacyError("parameters cannot be added after make_private: compile the changed model again")

    # --- a training step ---

    @property
    def noise_multiplier(self) -> float:
        """σ of every step."""
        return self._release_kind.noise_multiplier

    @property
    def training(self) -> dict[str, Any]:
        """The training so far, as certificates record it: the inputs of the accountant, and noise; no data."""
        return {**self._statement, "steps": self._ledger.record.total_steps or None}

    @property
    def charges_left(self) -> Run | None:
        """The release and how many more uses of it the budget allows; None if no budget was set."""
        return None if self._charges_left is None else (self._release_kind, self._charges_left)

    @property
    def steps_left(self) -> int | None:
        """How many more steps the budget allows; None if no budget was set."""
        return self._steps_left

    def begin_batch(self) -> None:
        """Prepare for a new logical batch; the loader calls this just before yielding it.

        Earlier cotangents belong to no batch and are dropped; weights that were changed since the last step
        (loaded, averaged) are projected onto their constraint sets.

        Raises:
            PrivacyError: the batch before was drawn but not stepped.
        """
        if self._loader.current is not None:
            raise PrivacyError(
                "a batch was drawn but not used: every batch needs one step(), even an empty one, or "
                "the accounting does not match the sampling; after an interruption that did not depend "
                "on the data, call optimizer.abandon_batch() and continue. To add up the gradients of several "
                "batches, give the loader a larger one, and make_private max_physical_batch="
            )
        self._clear()
        self._gradients.begin()
        self._masks.begin()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients; does nothing while the pieces of one logical batch are being added up."""
        current = self._loader.current
        if not self._accumulating and (current is None or current.position == 0):
            self._clear(set_to_none)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one private step, or, if more pieces of the logical batch are to come, do nothing.

        A closure is called exactly once, before anything else, and what it returns is returned: it stands for the
        forward and backward pass over the batch that was drawn. The wrapped optimizer never sees it.

        Raises:
            PrivacyError: what flowed back is not what was drawn, or not bounded as analysed; nothing was released.
            RankError: another process refuses the step, or does not take it; nothing was released.
            BudgetError: the steps of the budget are used up.
            OSError: the ledger could not be written.
        """
        loss = None if closure is None else torch.enable_grad()(closure)()
        if not self._under_way.acquire(blocking=False):
            raise PrivacyError(
                "a step of this optimizer is under way, in another thread or around a hook: take one step "
                "for each batch"
            )
        try:
            self._step()
        finally:
            self._under_way.release()
        return loss

    def _step(self) -> None:
        batch = self._loader.current
        if batch is None:
            raise PrivacyError(
                "no batch was drawn from the private loader since the last step: iterate over the "
                "loader that make_private returned, and call step() once for each batch"
            )
        if not batch.complete:
            self._accumulating = True
            return
        self._masks.check()
        stds = self._gradients.stds(batch, self.noise_multiplier, self._noise)
        self._count(batch)
        self._release(stds, batch)

    def abandon_batch(self) -> None:
        """Give up the current batch without a step, after an interruption. It is counted as a step all the same.

        The decision must not depend on the data: never abandon a batch for what is in it.
        """
        if self._loader.current is not None:
            self._count(self._loader.current)
            self._clear()

    def _count(self, batch: LogicalBatch) -> None:
        """Write the ledger line; from here on the batch counts as released, whatever happens."""
        self._declare()
        if self._steps_left is not None and self._steps_left <= 0:
            raise BudgetError(
                "the privacy budget is used up: all steps of its calibration have been taken; start a "
                "new run with a larger epsilon, or with more epochs and more noise"
            )
        if self._noise.steps is not None and batch.step >= self._noise.steps:
            raise BudgetError(
                f"the noise is correlated over {self._noise.steps} steps, and this step comes after "
                "them: batches that workers drew ahead count too, even if they were not used; iterate "
                "to the end of the loader"
            )
        if self._loader.scheme.drawing.round_steps == 1:
            self._ledger.record_step(self._release_kind)
            self._spend_charge()
        else:
            self._count_in_round(batch.round)
        ledgers[self._gradients.module] = self._ledger
        self._loader.close()
        if self._steps_left is not None:
            self._steps_left -= 1

    def _count_in_round(self, number: int) -> None:
        if number != self._round:
            if self._charges_left is not None and self._charges_left <= 0:
                raise BudgetError(
                    "the privacy budget is used up: an interrupted round (an epoch, or a cycle of all "
                    "groups) is charged in full; iterate to the end of the loader"
                )
            self._ledger.open_round(self._release_kind)
            self._round = number
            self._spend_charge()
        self._ledger.record_inner_step(self._release_kind)

    def _spend_charge(self) -> None:
        if self._charges_left is not None:
            self._charges_left -= 1

    def _release(self, stds: dict[str, float], batch: LogicalBatch) -> None:
        mine = self._gradients.total.mine
        self._noise.begin_step(batch.step)
        noisy = {name: parameter for name, parameter in mine.items() if name in stds}
        self._noise.perturb_(noisy, stds, self._loader.expected_batch_size)
        for name in mine.keys() - noisy.keys():
            zero_gradient_(mine[name])
        self._gradients.total.spread_()
        self._forget_others()
        self._releasing = True
        try:
            self.optimizer.step()
        finally:
            self._releasing = False
        for parameter in self._parameters.values():
            parameter.grad = None  # projection needs the memory
        self._gradients.settle(batch, self._noise)
        self._clear()

    def _forget_others(self) -> None:
        """Drop gradients that the optimizer would apply and that have no noise: of what was frozen since."""
        trained = set(map(id, self._parameters.values()))
        for group in self.param_groups:
            for parameter in group["params"]:
                if id(parameter) not in trained:
                    parameter.grad = None

    def _clear(self, set_to_none: bool = True) -> None:
        """Forget gradients and what is known of them together, so that the two always agree."""
        self._accumulating = False
        for parameter in self._parameters.values():
            if set_to_none or parameter.grad is None:
                parameter.grad = None
            else:
                zero_gradient_(parameter)
        self._gradients.reset()

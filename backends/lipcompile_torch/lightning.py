"""Private training with PyTorch Lightning: one callback, and the LightningModule stays as it is.

    trainer = Trainer(max_epochs=20, callbacks=[PrivacyCallback(engine, target_epsilon=3.0, target_delta=1e-5)])
    trainer.fit(LitModel(), DataLoader(train_set, batch_size=512))

Needs the package `lightning` (the extra `lipcompile[lightning]`).
"""

from __future__ import annotations

from typing import Any, Unpack

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as error:
    raise ImportError("PrivacyCallback needs PyTorch Lightning: pip install 'lipcompile[lightning]'") from error

from lipcompile_privacy.accounting import BudgetError
from lipcompile_privacy.planning import Budget, course
from torch.utils.data import DataLoader

from .train.checks import PrivacyError
from .train.engine import EngineOptions, PrivacyEngine
from .train.ledger import LedgerError
from .train.module import LipschitzModule
from .train.optimizer import PrivateOptimizer


class PrivacyCallback(Callback):  # type: ignore[misc]  # typed where lightning is installed
    """Makes a `Trainer.fit` private: its optimizer, and the order of its training data.

    The LightningModule holds one emitted module; `training_step` returns its `criterion`, or steps by hand. When
    training starts, the optimizer of `configure_optimizers` and the training data loader are made private; the
    loader's batch size becomes the EXPECTED one. ε spent is logged as `epsilon` after every epoch, and training
    stops when the budget is used up. Checkpoints know their place in the ledger: a run that is resumed from one
    takes the steps that are left.

    Formal guarantees: those of `PrivateOptimizer` and of the engine.

    Args:
        engine: with its ledger.
        target_epsilon: ε of the whole training.
        target_delta: δ.
        epochs: passes over the data that the budget is for; the trainer's `max_epochs` by default.
        options: noise and sampling, see `engine.EngineOptions`.

    Raises:
        PrivacyError, BudgetError, SamplingError, LedgerError: when training starts; see `make_private`.
    """

    def __init__(
        self,
        engine: PrivacyEngine,
        *,
        target_epsilon: float,
        target_delta: float,
        epochs: int | None = None,
        **options: Unpack[EngineOptions],
    ) -> None:
        if options.get("max_physical_batch") is not None:
            raise PrivacyError(
                "Lightning ends an epoch after a fixed number of batches, but the number of physical "
                "batches varies: remove max_physical_batch"
            )
        self.engine = engine
        self.budget = Budget(target_epsilon, target_delta, engine.relation, engine.accountant)
        self.epochs, self.options = epochs, options
        self.optimizer: PrivateOptimizer | None = None
        self._saved: dict[str, Any] = {}

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the private optimizer and loader in the places of the ordinary ones."""
        _check_trainer(trainer)
        source = trainer.fit_loop._data_source
        loader = source.dataloader()
        if not isinstance(loader, DataLoader):
            raise PrivacyError(f"training needs exactly one DataLoader; got {type(loader).__name__}")
        private, batches = self._make_private(trainer, _compiled(pl_module), loader)
        self.optimizer = private
        trainer.strategy.optimizers = [private]
        trainer.fit_loop._data_source = type(source)(batches, "")
        trainer.fit_loop._combined_loader = None  # it may have been made to count the batches
        trainer.should_stop = private.steps_left == 0

    def _make_private(
        self, trainer: Trainer, module: LipschitzModule, loader: DataLoader[Any]
    ) -> tuple[PrivateOptimizer, Any]:
        epochs = self.epochs or trainer.max_epochs
        if epochs is None or epochs < 1:
            raise BudgetError(
                "a privacy budget needs a number of epochs: pass max_epochs to the trainer, or epochs to "
                "PrivacyCallback"
            )
        given = {"module": module, "optimizer": trainer.optimizers[0], "data_loader": loader, **self.options}
        if not self._saved:
            _, private, batches = self.engine.make_private_with_epsilon(
                target_epsilon=self.budget.epsilon, target_delta=self.budget.delta, epochs=epochs, **given
            )
            return private, batches
        return self._resumed(loader, epochs, given)

    def _resumed(
        self, loader: DataLoader[Any], epochs: int, given: dict[str, Any]
    ) -> tuple[PrivateOptimizer, Any]:
        size = len(loader.dataset)  # type: ignore[arg-type]  # checked by the engine
        relation, sampling = self.engine.relation, self.options.get("sampling")
        correlation: Any = self.options.get("correlation", given["module"].noise_strategy)  # as it was begun
        way = course(size, loader.batch_size or 1, epochs, relation, sampling, correlation, self.budget)
        record = self.engine.open_ledger(size).record
        if self._saved["ledger_head"] not in record.hashes:
            raise LedgerError(
                "the ledger does not contain the steps of this checkpoint, and would under-count the "
                "privacy spent: use the ledger that belongs to the checkpoint"
            )
        plan = way.plan(self._saved["noise_multiplier"], record)
        given["correlation"] = way.strategy
        _, private, batches = self.engine.make_private(
            noise_multiplier=plan.noise_multiplier, max_steps=plan.steps_left, **given
        )
        way.check_resumed(plan, record, self.budget)
        return private, batches

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Stop when the budget is used up."""
        if self.optimizer is not None and self.optimizer.steps_left == 0:
            trainer.should_stop = True

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Log ε spent."""
        pl_module.log("epsilon", self.engine.get_epsilon(self.budget.delta))

    def state_dict(self) -> dict[str, Any]:
        """Return the place in the ledger, for Lightning's checkpoint."""
        if self.engine.ledger is None or self.optimizer is None:
            return {}
        return {"ledger_head": self.engine.ledger.head, "noise_multiplier": self.optimizer.noise_multiplier}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the place in the ledger that a checkpoint was saved at."""
        self._saved = dict(state_dict)


def _check_trainer(trainer: Trainer) -> None:
    """Refuse settings that change gradients or batches after they were accounted for."""
    refused = {
        "accumulate_grad_batches": trainer.accumulate_grad_batches != 1,
        "gradient_clip_val": bool(trainer.gradient_clip_val),
        "overfit_batches": bool(trainer.overfit_batches),
        "devices": trainer.world_size != 1,
    }
    if named := [name for name, wrong in refused.items() if wrong]:
        raise PrivacyError(
            f"the trainer's {', '.join(named)} would change the released gradient: leave it at its "
            "default, and devices at 1"
        )
    if len(trainer.optimizers) != 1:
        raise PrivacyError(
            f"{len(trainer.optimizers)} optimizers are configured: private training needs exactly one"
        )


def _compiled(pl_module: LightningModule) -> LipschitzModule:
    """Return the one emitted module in a LightningModule, which has no other parameters to train."""
    found = [module for module in pl_module.modules() if isinstance(module, LipschitzModule)]
    if len(found) != 1:
        raise PrivacyError(
            f"the LightningModule has {len(found)} emitted modules, but exactly one is needed: compile "
            "the network, and keep it as one attribute"
        )
    known = {id(parameter) for parameter in found[0].parameters()}
    others = [
        name for name, value in pl_module.named_parameters() if value.requires_grad and id(value) not in known
    ]
    if others:
        raise PrivacyError(
            f"parameters {', '.join(others)} are outside the emitted module, so their gradients have no bound"
        )
    return found[0]

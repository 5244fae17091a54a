"""Private training in the manner of Opacus: three objects in, three private ones out."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from operator import index
from pathlib import Path
from typing import Any, TypedDict, TypeVar, Unpack

from lipcompile_privacy.accounting import (
    Accountant,
    BudgetError,
    Drawing,
    NeighbouringRelation,
    Release,
    Run,
    Sampling,
    calibrate_noise_multiplier,
    check_supported,
)
from lipcompile_privacy.accounting.releases import check_target
from lipcompile_privacy.errors import check_number
from lipcompile_privacy.factorisation import Strategy
from lipcompile_privacy.planning import (
    Budget,
    Correlation,
    check_participation,
    chosen_strategy,
    sampling_for,
    warn_of_delta,
    with_bands,
)
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from ..distributed import check_same, current_world
from ..noise.mechanism import Allocation, NoiseSource
from ..noise.normals import Normals, SecureNormals
from . import checks
from .certificate import check_certificate
from .checks import PrivacyError, Source
from .clipped import ClippedGradients, PerExampleLoss
from .gradients import Gradients, LipschitzGradients, PerExampleGradients
from .ledger import Ledger, LedgerError, read_ledger
from .loss_clipping import AdaptiveClip, ClipLength, Thresholds
from .module import LipschitzModule
from .optimizer import PrivateOptimizer, ledgers
from .reduction import without_ddp
from .sampler import PrivateLoader, drawing_of

Module = TypeVar("Module", bound=nn.Module)


class SeededWarning(UserWarning):
    """A fixed seed was given: the run is repeatable, and not private."""


class OtherLedgerWarning(UserWarning):
    """Steps that trained the module are in another ledger, so ε of this one leaves them out."""


class EngineOptions(TypedDict, total=False):
    """How noise and batches are made: the options that `make_private` and `make_private_with_epsilon` share.

    Args:
        noise: how the noise is shared among parameters, see `noise.mechanism.allocate`; "global" by default.
        sampling: how batches are drawn and accounted, see `sampling`; "poisson" by default.
        max_physical_batch: most examples at once; larger batches arrive in pieces whose gradients add up.
        fixed_shape: compute every batch in the shape of the largest that is counted on, or of
            `max_physical_batch`: examples take random rows of it, the others are zeros. Then no example changes
            how torch rounds the numbers of others. A step takes longer, and its time says less of its batch.
        seed: makes the run repeatable and NOT private.
        correlation: what correlates the noise from step to step, see `planning.Correlation`; it chooses the
            sampling that it is proved for. By default what the module was compiled with, its `noise_strategy`;
            None: noise is independent.
        loss_clip: clips the gradient of each example's loss with respect to its output to C, instead of the bound
            L: a number, a function of the step, or `loss_clipping.AdaptiveClip`.
        clip_length: C of clip groups, instead of the compiled length: of the same kinds, for every group that is
            clipped to a length; or by name of the group.
        fixed_norm: after every step scale weights to the bounds of their constraints, up as well as down.
        secure: noise from a cryptographic generator, exact on a grid, see `normals.SecureNormals`: slower.
    """

    noise: Allocation
    sampling: Sampling | None
    max_physical_batch: int | None
    fixed_shape: bool
    seed: int | None
    correlation: Correlation | None
    loss_clip: ClipLength | None
    clip_length: ClipLength | Mapping[str, ClipLength] | None
    fixed_norm: bool
    secure: bool


class PrivacyEngine:
    """Makes training private, and knows what it has cost.

    The gradient of a step is the sum over a random sample divided by the FIXED expected batch size b, plus noise
    in proportion to the module's proved bounds. Under add/remove this treats N, the
    number of examples, as public.

    `module(x)` must receive the examples as they were drawn, each by itself. The engine checks the backward pass,
    not the inputs: statistics of the batch in preprocessing, mixup, and a replaced example mix examples, and the
    engine cannot notice that. Random changes to inputs may draw from the generators of torch, Python and numpy,
    which the engine seeds secretly for each batch, and not from others with a known seed.

    With several processes, each makes an engine after `init_process_group` and calls it in the same way.

    Args:
        accountant: "pld" (tighter) or "rdp".
        ledger: file that every step is written to before it is taken; an existing one is continued, and its steps
            count. None: the record lives in memory and dies with the process.
        neighbours: "add_remove" one example, or "replace_one".

    Raises:
        ValueError: an unknown accountant or relation.
    """

    def __init__(
        self,
        accountant: Accountant = "pld",
        ledger: str | os.PathLike[str] | None = None,
        neighbours: str = "add_remove",
    ) -> None:
        self.accountant: Accountant = accountant
        self._relation = _relation(neighbours)
        check_supported({}, 0.5, self.relation, accountant)
        self.world = current_world()
        self.ledger: Ledger | None = None
        self._path = ledger
        self._planned: list[PrivateOptimizer] = []

    @property
    def relation(self) -> NeighbouringRelation:
        """The neighbouring relation, which the ledger is kept under."""
        return self._relation

    def make_private(
        self,
        *,
        module: Module,
        optimizer: Optimizer,
        data_loader: DataLoader[Any],
        noise_multiplier: float,
        max_steps: int | None = None,
        bounds: Source = "auto",
        **options: Unpack[EngineOptions],
    ) -> tuple[Module, PrivateOptimizer, PrivateLoader]:
        """Return the module and a private optimizer and loader to train it with.

        The module is the same object, with its normaliser set to b and its weights projected.

        Args:
            module: an emitted module, such as `lipcompile.private` makes of an `nn.Module`.
            optimizer: any optimizer of one gradient a step, over the module's parameters.
            data_loader: its batch size is the EXPECTED batch size b; its order is replaced by the sampling.
            noise_multiplier: σ > 0, noise standard deviation over the per-example bound of the whole gradient.
            max_steps: refuse further steps with `BudgetError`; correlated noise is planned for so many.
            bounds: refuse a module with a gradient bound of another source, which is chosen when it is compiled:
                "theorem" or "clip"; "auto" takes any.
            options: noise and sampling, see `EngineOptions`.

        Raises:
            PrivacyError: the module, or the optimizer for it, cannot be trained privately; `CertificateError` if
                the module's certificate does not verify, or does not cover its bounds.
            SamplingError: the loader cannot be sampled.
            BudgetError: σ is no noise multiplier, or this accountant cannot count such steps.
            TypeError: what should be a number is none.
            LedgerError: the ledger is damaged, in use, or belongs to other data.
        """
        emitted = _lipschitz(without_ddp(module, self.world), optimizer, bounds)
        options = _correlated(emitted, options)
        clips = _clips(emitted, options)

        def gradients(loader: PrivateLoader) -> Gradients:
            normaliser = float(loader.expected_batch_size)
            return LipschitzGradients(
                module,  # type: ignore[arg-type]  # just checked
                optimizer,
                options.get("noise", "global"),
                normaliser,
                Thresholds(clips, float(noise_multiplier), normaliser),
                options.get("fixed_norm", False),
                self.world,
                loader.pieces,
                loader.drawn_rows,
            )

        private, loader = self._assemble(optimizer, data_loader, gradients, noise_multiplier, max_steps, options)
        return module, private, loader

    def make_private_by_clipping(
        self,
        *,
        module: nn.Module,
        optimizer: Optimizer,
        data_loader: DataLoader[Any],
        noise_multiplier: float,
        clipping: float | Mapping[str, float],
        per_example_loss: PerExampleLoss | None = None,
        chunk_size: int | None = None,
        max_steps: int | None = None,
        **options: Unpack[EngineOptions],
    ) -> tuple[ClippedGradients, PrivateOptimizer, PrivateLoader]:
        """As `make_private`, by clipping the gradient of every example: slower, and for any module.

        In the loop, `clipped.backward(x, y)` stands in the place of the criterion's `backward()`.

        Args:
            clipping, per_example_loss, chunk_size: see `clipped.ClippedGradients`.

        Raises:
            PrivacyError, ValueError: see there, and `make_private`.
        """
        normaliser = float(data_loader.batch_size or 1)
        checks.check_optimizer(optimizer, dict(module.named_parameters()))
        for name in ("loss_clip", "clip_length"):
            if options.get(name) is not None:
                raise PrivacyError(f"per-example gradients are clipped already: leave {name} out")
        if options.get("fixed_shape"):
            raise PrivacyError("fixed_shape is for modules that are compiled: leave it out, or use make_private")
        clipped = ClippedGradients(
            without_ddp(module, self.world),
            clipping,
            normaliser=normaliser,
            per_example_loss=per_example_loss,
            chunk_size=chunk_size,
        )

        def gradients(_: PrivateLoader) -> Gradients:
            return PerExampleGradients(clipped, optimizer, options.get("noise", "global"), self.world)

        private, loader = self._assemble(optimizer, data_loader, gradients, noise_multiplier, max_steps, options)
        return clipped, private, loader

    def _assemble(
        self,
        optimizer: Optimizer,
        data_loader: DataLoader[Any],
        make_gradients: Callable[[PrivateLoader], Gradients],
        noise_multiplier: float,
        max_steps: int | None,
        options: EngineOptions,
    ) -> tuple[PrivateOptimizer, PrivateLoader]:
        _check_numbers(options, max_steps=max_steps)
        check_number("noise_multiplier", noise_multiplier)
        noise_multiplier, seed = float(noise_multiplier), options.get("seed")
        if seed is not None:  # of numpy, too
            options = options | {"seed": (seed := index(seed))}
        strategy, loader = self._prepare(data_loader, max_steps, options)
        self._agree(loader, noise_multiplier, max_steps, options)
        release = self._release(loader, noise_multiplier)
        gradients = make_gradients(loader)
        own_seed = None if seed is None else seed + 2 * self.world.rank  # the sampler's is one more than rank 0's
        source = NoiseSource(own_seed, _normals(options), None if strategy is None else strategy.stream())
        gradients.check(noise_multiplier)
        ledger = self.open_ledger(loader.size)
        if seed is not None:
            warnings.warn("a fixed seed makes the noise predictable: this run is NOT private", SeededWarning, 3)
        _tell_of_other_steps(gradients.module, ledger)
        gradients.start()
        statement = self._statement(loader, gradients, noise_multiplier, strategy, options)
        private = PrivateOptimizer(optimizer, gradients, loader, ledger, release, source, max_steps, statement)
        loader.before_batch = private.begin_batch
        self._planned.append(private)
        return private, loader

    def _statement(
        self,
        loader: PrivateLoader,
        gradients: Gradients,
        sigma: float,
        strategy: Strategy | None,
        options: EngineOptions,
    ) -> dict[str, Any]:
        """Return what checkpoints say of the training: the accountant's inputs, and s_p if it never changes."""
        noise = options.get("noise", "global")
        stds = None if strategy else gradients.constant_stds(sigma)
        return {
            "neighbours": self.relation.value,
            "sampling": loader.scheme.drawing.sampling,
            "batch": loader.expected_batch_size,
            "dataset": loader.size,
            "noise": noise if isinstance(noise, str) else "weights",
            "epsilon": None,
            "delta": None,
            "accountant": self.accountant,
            "noise_multiplier": float(sigma).hex(),
            **({} if strategy is None else {"correlation": {"kind": strategy.to_dict()["kind"]}}),
            **({} if stds is None else {"std": {name: std.hex() for name, std in stds.items()}}),
        }

    def make_private_with_epsilon(
        self,
        *,
        module: Module,
        optimizer: Optimizer,
        data_loader: DataLoader[Any],
        target_epsilon: float,
        target_delta: float,
        epochs: int,
        bounds: Source = "auto",
        **options: Unpack[EngineOptions],
    ) -> tuple[Module, PrivateOptimizer, PrivateLoader]:
        """As `make_private`, with σ calibrated so that `epochs` epochs cost at most (ε, δ).

        The steps in the ledger count against the target, and so do the steps that earlier calls planned. Steps
        beyond these epochs are refused. Calibration takes seconds with "pld" and a fraction of one with "rdp".

        Raises:
            BudgetError: a budget that cannot be met; see also `make_private`.
        """
        _check_numbers(options, epochs=epochs)
        check_target(target_epsilon, target_delta)
        options = _correlated(_lipschitz(without_ddp(module, self.world), optimizer, bounds), options)
        drawing = drawing_of(data_loader)
        steps = epochs * drawing.steps_per_epoch
        options = self._with_bands(options, drawing, steps, target_epsilon, target_delta)
        strategy, _ = self._prepare(data_loader, steps, options)
        chosen = options if strategy is None else options | {"correlation": strategy}
        sigma = self.calibrate(
            data_loader=data_loader,
            target_epsilon=target_epsilon,
            target_delta=target_delta,
            epochs=epochs,
            **chosen,
        )
        return self.make_private(
            module=module,
            optimizer=optimizer,
            data_loader=data_loader,
            noise_multiplier=sigma,
            max_steps=steps,
            **chosen,
        )

    def calibrate(
        self,
        *,
        data_loader: DataLoader[Any],
        target_epsilon: float,
        target_delta: float,
        epochs: int | None = None,
        steps: int | None = None,
        **options: Unpack[EngineOptions],
    ) -> float:
        """Return the σ with which so many epochs, or steps, cost at most (ε, δ); see `make_private_with_epsilon`.

        Raises:
            TypeError: both `epochs` and `steps` are given, or neither.
        """
        if (epochs is None) == (steps is None):
            raise TypeError("calibrate takes exactly one of epochs and steps")
        _check_numbers(options, epochs=epochs, steps=steps)
        check_target(target_epsilon, target_delta)
        drawing = drawing_of(data_loader)
        if steps is None:
            assert epochs is not None
            steps = epochs * drawing.steps_per_epoch
        options = self._with_bands(options, drawing, steps, target_epsilon, target_delta)
        _, loader = self._prepare(data_loader, steps, options)
        warn_of_delta(target_delta, loader.size, 2)
        ledger = self.open_ledger(loader.size)
        spent = [*ledger.record.runs, *self._pending()]
        sigma = self.world.first(
            "calibrate the noise",
            lambda: calibrate_noise_multiplier(
                target_epsilon,
                target_delta,
                loader.scheme.drawing.release,
                loader.scheme.drawing.charges(steps),
                self.relation,
                self.accountant,
                spent,
            ),
        )
        ledger.delta = float(target_delta)
        return sigma

    def _agree(self, loader: PrivateLoader, sigma: float, max_steps: int | None, options: EngineOptions) -> None:
        """Refuse, with RankError, another plan on another process."""
        pieces = loader.max_physical_batch, loader.fixed_shape
        plan = {
            "noise": (sigma, *map(options.get, ("noise", "secure", "seed", "correlation"))),
            "batches": (loader.size, loader.batch_size, pieces, loader.scheme.drawing),
            "accounting": (self.relation, self.accountant, max_steps),
        }
        views = self.world.each("make a module private", lambda: plan)
        check_same(views, dict.fromkeys(plan, "call make_private alike on every rank"))

    def get_epsilon(self, delta: float) -> float:
        """Return ε at δ of every step in the ledger, this engine's and earlier ones; 0 before any step."""
        if self.ledger is not None:
            return self.ledger.epsilon(delta, self.accountant)
        if self._path is None or not Path(self._path).exists():
            return 0.0
        record = read_ledger(self._path)
        if record.relation is not self.relation:
            raise LedgerError(
                f"the ledger {self._path} uses the relation {record.relation.value}, not {self.relation.value}"
            )
        return record.epsilon(delta, self.accountant)

    def _pending(self) -> list[Run]:
        """Return the charges that earlier calls may still make; raises BudgetError if their number is open."""
        left = [optimizer.charges_left for optimizer in self._planned]
        if None in left:
            raise BudgetError(
                "an earlier make_private of this engine has no limit of steps, so no budget can be "
                "guaranteed: give it max_steps, or use another engine"
            )
        return [run for run in left if run is not None and run[1]]

    def close(self) -> None:
        """Release the ledger file for other processes."""
        if self.ledger is not None:
            self.ledger.close()

    def _with_bands(
        self, options: EngineOptions, drawing: Drawing, steps: int, epsilon: float, delta: float
    ) -> EngineOptions:
        """Return the options, with the bands of correlated noise that suit the budget if they leave them open."""
        wanted = options.get("correlation")
        if wanted is None or isinstance(wanted, Strategy):
            return options
        budget = Budget(epsilon, delta, self.relation, self.accountant)
        chosen: EngineOptions = {**options, "correlation": with_bands(wanted, drawing, steps, budget)}
        return chosen

    def _prepare(
        self, data_loader: DataLoader[Any], steps: int | None, options: EngineOptions
    ) -> tuple[Strategy | None, PrivateLoader]:
        """Return what correlates the noise, if anything, and the loader; raises TypeError for unknown options."""
        _check_names(options)
        seed, limit, wanted = options.get("seed"), options.get("max_physical_batch"), options.get("correlation")
        per_epoch = drawing_of(data_loader).steps_per_epoch
        strategy = None
        if wanted is not None:  # one for all: no theorem covers parameters whose noise is correlated differently
            strategy = self.world.first("correlate the noise", lambda: chosen_strategy(wanted, steps, per_epoch))
        sampling, groups = sampling_for(strategy, options.get("sampling"))
        drawing = drawing_of(data_loader, sampling, groups)
        seed = None if seed is None else seed + 1
        fixed = bool(options.get("fixed_shape"))
        loader = PrivateLoader(data_loader, limit, seed, drawing, self.relation, self.world, fixed)
        if strategy is not None:
            check_participation(strategy, per_epoch)
            for name in ("loss_clip", "clip_length"):
                clip: Any = options.get(name)
                clips = clip.values() if isinstance(clip, Mapping) else [clip]
                if any(isinstance(one, AdaptiveClip) for one in clips):
                    raise BudgetError(
                        "an adaptive clip releases a noisy count at every step, and correlated noise "
                        f"does not cover that count: use a fixed or scheduled {name}"
                    )
        return strategy, loader

    def _release(self, loader: PrivateLoader, noise_multiplier: float) -> Release:
        if noise_multiplier == 0:
            raise BudgetError(
                "the noise multiplier must be positive; got 0: to train without privacy, use the plain optimizer"
            )
        release = loader.scheme.drawing.release(noise_multiplier)
        check_supported({release: 1}, 0.5, self.relation, self.accountant)
        return release

    def open_ledger(self, dataset_size: int) -> Ledger:
        """Return the ledger, opened and locked on first use; `make_private` does this by itself.

        Raises:
            LedgerError: it is damaged, in use, or was kept for other data.
        """
        if self.ledger is None:
            self.ledger = Ledger(self._path, self.relation, dataset_size, self.world)
        return self.ledger


def _check_names(options: EngineOptions) -> None:
    """An option that nothing reads would be believed to hold: `secure_mode` of Opacus, say."""
    for name in sorted(options.keys() - EngineOptions.__optional_keys__):
        help_line = f"there are {', '.join(sorted(EngineOptions.__optional_keys__))}"
        if name == "max_grad_norm":
            help_line = "a module has its bounds: clip_length= of lipcompile.private, or make_private_by_clipping"
        raise TypeError(f"unexpected keyword argument {name!r}: {help_line}")


def _check_numbers(options: EngineOptions, **counts: Any) -> None:
    """Raise TypeError if a count, of which there may be parts, or an option, is no number; None is not given."""
    for name, value in (counts | {key: options.get(key) for key in ("seed", "max_physical_batch")}).items():
        if value is not None:
            check_number(name, value, whole=name not in counts)


def _correlated(module: LipschitzModule, options: EngineOptions) -> EngineOptions:
    """Return the options, with the correlation that the module was compiled with unless they have their own."""
    return options if "correlation" in options else options | {"correlation": module.noise_strategy}


def _clips(module: LipschitzModule, options: EngineOptions) -> dict[str | None, ClipLength]:
    """Return what the thresholds of training are to be: with None for the loss, and by name of the clip group."""
    loss, given = options.get("loss_clip"), options.get("clip_length")
    clips: dict[str | None, ClipLength] = {} if loss is None else {None: loss}
    if given is None:
        return clips
    groups = {group.name: group for group in module.clips}
    if len(groups) < len(module.clips):
        raise PrivacyError("several clip groups have one name: clip_length needs names of their own")
    lengths = [name for name, group in groups.items() if group.has_length]
    wanted = given if isinstance(given, Mapping) else dict.fromkeys(lengths, given)
    wrong = sorted(wanted.keys() - set(lengths))
    if wrong or not wanted:
        raise PrivacyError(
            f"clip_length{' of ' + ', '.join(wrong) if wrong else ''}: the clip groups with a length are "
            f"{', '.join(lengths) or 'none'}, of all groups {', '.join(groups) or 'none'}; the automatic "
            "rule has no length: compile with bounds by clip and a clip_length, e.g. --clip-length 1"
        )
    return clips | dict(wanted)


def _tell_of_other_steps(module: nn.Module, ledger: Ledger) -> None:
    """Warn of steps of this module in this process that the ledger does not have."""
    before = ledgers.get(module)
    if before is not None and before.head not in ledger.record.hashes:
        warnings.warn(
            "this module was trained before, by steps that another ledger counts: ε of this engine leaves them "
            "out. If the examples are the same, use the first engine again, or give both one file as their ledger",
            OtherLedgerWarning,
            4,
        )


def _normals(options: EngineOptions) -> Normals | None:
    if not options.get("secure"):
        return None
    if options.get("seed") is not None:
        raise BudgetError("secure noise comes from the operating system's entropy: leave the seed out")
    if options.get("correlation") is not None:
        raise BudgetError("secure noise lies on a grid, but correlated noise does not: use one of the two")
    return SecureNormals()


def _lipschitz(module: object, optimizer: Optimizer, bounds: Source) -> LipschitzModule:
    checks.check_module(module, bounds)
    assert isinstance(module, LipschitzModule)
    check_certificate(module)
    checks.check_clips(module)
    checks.check_optimizer(optimizer, dict(module.named_parameters()))
    return module


def _relation(neighbours: str) -> NeighbouringRelation:
    try:
        return NeighbouringRelation(neighbours)
    except ValueError:
        raise BudgetError(
            f"unknown neighbouring relation {neighbours!r}: use 'add_remove' or 'replace_one'"
        ) from None

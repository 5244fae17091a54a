"""Clipping DP-SGD: per-example gradients, each clipped to a chosen length, and their sum.

The method that bounds by theorem replace: for comparison on the same network, and for networks that are not
Lipschitz. DP-SGD of Abadi et al. (2016); algorithm 3 of Barczewski and Ramon, "DP-SGD with weight clipping"
(2024), algorithm 4 of Béthune et al., "DP-SGD without clipping" (2024); but divided by the FIXED expected batch
size, not by the size of the batch, which is private.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from ..certify.precision import rounding_slack, working_slack
from ..clip.example_passes import Checked, explaining, forgetting, plain_tensors
from ..clip.factors import Factors
from ..devices import at_once
from ..nn.functional import clip_scale, example_norms
from ..nn.inputs import Given
from ..noise.masks import Masks
from ..noise.mechanism import Allocation, allocate, values_by_name
from . import checks
from .checks import PrivacyError
from .gate import during
from .module import LipschitzModule

PerExampleLoss = Callable[[Tensor, Tensor], Tensor]
"""From outputs [B, …] and targets [B, …] to the loss of each example, [B]."""

_CHUNK_ENTRIES = 2**22, 2**27  # of per-example gradients at once: what caches and memory like
_MOST_EXAMPLES = 512
_COARSEST = 0.25  # share of the largest output or gradient by which half precision may move others
_FLIPPED, _CANCELLED = 0.05, 1e-3  # shares of a sum of absolute gradients, and of the largest one


class ClippedGradients:
    """Sums of clipped per-example gradients of a module, divided by a fixed normaliser.

    Call `backward(x, y)` instead of `criterion(module(x), y).backward()`, for every physical batch. An example
    whose gradient is not finite counts as zero. Frozen parameters get no gradient; one parameter under two names
    counts once, with the sum of what arrives by either.

    Each example passes the module in a batch of its own (`torch.func.vmap`), so no gradient depends on two.

    Formal guarantees: adding or removing one example moves the sum over examples by at most C, in the Euclidean
    norm over all parameters (flat), or the part of each parameter by at most C_p (per parameter); replacing one,
    by twice that. Each clipped gradient obeys this exactly, as the floating point numbers that it is (see
    `functional.clip_norm`). They are added in float64, and the sum is rounded to the parameter's dtype: what
    that moves is covered by `precision.sum_slack`.

    Args:
        module: emitted, with its own loss; or any torch module from tensors to one, with `per_example_loss`.
        clipping: C, one length for the whole gradient; or C_p by parameter name or pattern, as for weights of
            noise (`noise.mechanism.allocate`): `{"*": 0.1}` clips every parameter's part to 0.1.
        normaliser: b, the expected batch size.
        per_example_loss: of a module that has none; called with one example at a time.
        chunk_size: examples whose gradients are held at once; of several views each counts. None: as many as make
            some million numbers.

    Attributes:
        takes_views: `backward` is given views of examples; see `on_views`.
        examples: how many examples have gone in since `reset`.
        masks: the secret seeds of the training, see there.

    Raises:
        PrivacyError: batch normalisation in training mode, hooks, nothing to train; no loss, or one too many.
        ValueError: lengths or normaliser not positive and finite, names that fit no parameter, no chunk size.
    """

    def __init__(
        self,
        module: nn.Module,
        clipping: float | Mapping[str, float],
        *,
        normaliser: float,
        per_example_loss: PerExampleLoss | None = None,
        chunk_size: int | None = None,
    ) -> None:
        if not 0 < normaliser < math.inf:
            raise ValueError(
                f"the normaliser must be the expected batch size, positive and finite; got {normaliser}"
            )
        if chunk_size is not None and chunk_size < 1:
            raise ValueError(f"chunk_size must be at least 1, or None; got {chunk_size}")
        if isinstance(module, LipschitzModule) != (per_example_loss is None):
            raise PrivacyError(
                "a compiled module has its own loss, so per_example_loss must be left out; any other "
                "module needs per_example_loss, a function from outputs [B, …] and targets to losses [B]"
            )
        self.module = module
        self._normaliser = float(normaliser)
        self.examples = 0
        self._loss = per_example_loss
        self._parameters = checks.trainable(module)
        if not self._parameters:
            raise PrivacyError("the module has no trainable parameters: there is nothing to train privately")
        self._flat, self._lengths = _lengths(clipping, self._parameters)
        self._chunk_size = chunk_size or self._fitting_chunk()
        self._sums: dict[str, Tensor] = {}
        # Whether the checks of a first batch are done: of several examples at once, and of one at a time.
        self._compared = self._compared_one = False
        self.takes_views = False
        self.masks = Masks(wanted=False)
        self._check_module()
        if isinstance(module, LipschitzModule):
            module.guard_layers()  # which tells them of the gate

    @property
    def normaliser(self) -> float:
        """b, which sums and noise are divided by alike."""
        return self._normaliser

    def bounds(self) -> dict[str, float]:
        """Return how long the part of one example's clipped gradient may be, by parameter name.

        With flat clipping this is C for each of them, though C bounds all together: use `stds`, which knows.
        """
        return dict(self._lengths)

    def stds(self, noise_multiplier: float, allocation: Allocation = "global") -> dict[str, float]:
        """Return s_p, the noise on the SUM of gradients, for ONE Gaussian mechanism of multiplier σ.

        Flat: the whole gradient has sensitivity C, whatever its direction, so s_p = σ·C for every parameter and no
        other sharing is better: √Σ(‖g_p‖/s_p)² may reach C over the least s_p. Per parameter: see
        `noise.mechanism.allocate`.

        Raises:
            ValueError: flat clipping with another allocation than "global"; see also `noise.mechanism.allocate`.
        """
        if not self._flat:
            sizes = {name: parameter.numel() for name, parameter in self._parameters.items()}
            return allocate(allocation, self._lengths, sizes, noise_multiplier)
        if allocation != "global":
            raise ValueError(
                f"noise={allocation!r} does not fit a gradient that is clipped as a whole: any parameter "
                "may receive all of it, so the noise must be equal everywhere; use noise='global', or "
                "clip per parameter: clipping={'*': C}"
            )
        return {name: noise_multiplier * length for name, length in self._lengths.items()}

    def on_views(self) -> AbstractContextManager[None]:
        """Within this context each example is several views, as of an image that was changed at random: `backward`
        takes [B, V, …] and clips the gradient of the mean of their losses, once for each example.

        Formal guarantees: the bounds are those of one view, and views cost no privacy, provided that those of an
        example are made of this example alone.
        """
        return during(self, "takes_views", True)

    def backward(self, inputs: Tensor | Sequence[Tensor] | Mapping[str, Tensor], targets: Tensor) -> Tensor:
        """Add the clipped gradients of these examples to those since `reset`, and put the sum over b into `.grad`.

        Args:
            inputs: [B, …], B may be 0; views [B, V, …] within `on_views`. Several inputs by position, or by name.
            targets: [B, …].

        Returns:
            The sum of the examples' losses over b, 0-dim, detached, not private.

        Raises:
            PrivacyError: the module mixes examples, its parameters or its mode have changed, or `vmap` cannot run
                it.
            ValueError: inputs and targets of different numbers, or no views where they are expected.
        """
        views = Given.of(inputs, views=self.takes_views)
        if len(views) != len(targets):
            raise ValueError(f"{len(views)} inputs and {len(targets)} targets: each example needs one target")
        self._check_module()
        self.masks.check()
        total, sums = torch.zeros((), device=targets.device), self._sums
        size = max(self._chunk_size // views.views, 1)
        for start in range(0, len(views), size):
            chunk = slice(start, start + size)
            loss, gradients = self._per_example_gradients(views[chunk], targets[chunk])
            sums = self._added(sums, gradients)
            total = total + loss
        # All at once: a piece that fails on its way and is tried again must not count twice.
        self._sums, self.examples = sums, self.examples + len(views)
        self.deposit_()
        return total

    def deposit_(self) -> None:
        """Set `.grad` of every trainable parameter to the sum over b, whatever is there now."""
        for name, parameter in self._parameters.items():
            total = self._sums.get(name)
            parameter.grad = torch.zeros_like(parameter) if total is None else total.to(parameter.dtype, copy=True)

    def reset(self) -> None:
        """Forget the sums, for the next batch."""
        self.examples = 0
        self._sums = {}

    # --- per-example gradients ---

    def _per_example_gradients(self, inputs: Given, targets: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the sum of losses over b, and the gradient of each one's loss over b, [B, *parameter].

        Args:
            inputs: views [B, V, …]; V is 1 of what has none.
            targets: [B, …].
        """
        with torch.enable_grad():
            copies = {
                name: parameter.detach().expand(len(inputs), *parameter.shape).requires_grad_()
                for name, parameter in self._parameters.items()
            }
            total = self._total(self._outputs(copies, inputs), targets)
            originals = list(self._parameters.values())
            with explaining():
                found = torch.autograd.grad(total, [*copies.values(), *originals], allow_unused=True)
        self._check_ways(found[len(copies) :])
        gradients = {
            name: torch.zeros_like(rows) if one is None else one.to_dense() if one.is_sparse else one
            for (name, rows), one in zip(copies.items(), found, strict=False)
        }
        self._check_first(inputs, targets, gradients)
        return total.detach(), gradients

    def _outputs(self, copies: dict[str, Tensor], inputs: Given) -> Tensor:
        """Return the outputs of examples alone, each from parameters of its own: a row for each view [B·V, …]; of
        a compiled module as its criterion takes them.
        """
        rows = inputs.rows()
        if isinstance(self.module, LipschitzModule):
            if self.module.input_tokens:
                self._run_together(rows)
            with self.module.given_rows(inputs.views if self.takes_views else None):
                with self.module.gate.bypassed():
                    outputs = self._alone(copies, inputs)
                return self.module.release(outputs)
        together = self._run_together(rows)
        outputs = self._alone(copies, inputs)
        if len(inputs) == 1 and not (self._compared or self._compared_one):
            self._check_beside_zeros(copies, inputs)
        self._check_alone(rows, together, outputs.detach())
        return outputs

    def _alone(self, copies: dict[str, Tensor], inputs: Given) -> Tensor:
        def run(parameters: dict[str, Tensor], args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> Tensor:
            output: Tensor = functional_call(self.module, parameters, args, kwargs)
            return output

        with explaining(), forgetting(self.module), Checked("the module") as checked:
            rows = vmap(run, randomness="different")(copies, inputs.args, inputs.kwargs).flatten(0, 1)
        _refuse_shared(checked, "the module")
        return rows

    def _total(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the sum of losses over b, 0-dim; of an example the mean over its views."""
        if isinstance(self.module, LipschitzModule):
            if self.module.normaliser != self.normaliser:
                raise PrivacyError(f"the module's normaliser is {self.module.normaliser}, not {self.normaliser}")
            return self.module.criterion(outputs, targets)
        loss: Any = self._loss
        views = len(outputs) // len(targets)
        with Checked("the loss") as checked:
            losses: Tensor = vmap(lambda output, target: loss(output[None], target[None]), randomness="different")(
                outputs, targets.repeat_interleave(views, 0)
            )
        _refuse_shared(checked, "the loss")
        if losses.numel() != len(outputs):
            raise PrivacyError(
                f"the loss of one example has shape {tuple(losses.shape[1:])}: per_example_loss returns one "
                "number for each example, [B], e.g. cross_entropy with reduction='none'"
            )
        return losses.sum() / (self.normaliser * views)

    # --- clipping ---

    def _added(self, sums: dict[str, Tensor], gradients: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return sums with gradients [B, *parameter] added, clipped."""
        # Converted once: torch's norm in float64 of float32 entries takes thrice the time of both.
        rows = {name: gradient.reshape(len(gradient), -1).double() for name, gradient in gradients.items()}
        scales = self._scales({name: example_norms(row, gradients[name].dtype) for name, row in rows.items()})
        totals = {
            name: Factors.of(scales[name]).sum(row).view_as(self._parameters[name]) for name, row in rows.items()
        }
        return {name: sums[name] + total if name in sums else total for name, total in totals.items()}

    def _scales(self, norms: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return what to multiply each example's part by, [B], float64; 0 if its gradient is not finite."""
        entries = {name: parameter.numel() for name, parameter in self._parameters.items()}
        if self._flat:  # one norm for all parts, off by what each is, and by their number
            norms = dict.fromkeys(norms, example_norms(torch.stack(list(norms.values()), dim=1)))
            entries = dict.fromkeys(norms, sum(entries.values()) + len(norms))
        scales = {}
        for name, parameter in self._parameters.items():
            radius = self._lengths[name] / self.normaliser  # the gradients are of losses over b
            scale = clip_scale(norms[name], entries[name], parameter.dtype, radius)
            scales[name] = scale.where(norms[name].isfinite(), 0.0)
        return scales

    # --- what is refused ---

    def _check_module(self) -> None:
        """Refuse what has changed since, and layers that see the whole batch."""
        checks.check_hooks(self.module)
        changed = checks.replaced(dict(self.module.named_parameters()), self._parameters)
        if changed:
            raise PrivacyError(
                f"parameters {', '.join(changed)} were added, replaced, frozen or unfrozen after "
                "clipping was set up: call make_private again"
            )
        for name, part in self.module.named_modules():
            if isinstance(part, _BatchNorm) and (part.training or part.running_mean is None):
                raise PrivacyError(
                    f"{name or 'the module'} normalises by statistics of the batch, which mixes "
                    "examples: use group or layer normalisation, or call eval() on this layer"
                )

    def _run_together(self, inputs: Given) -> Tensor:
        """Return the outputs [B, …] of one batch, without gradients; refuse what writes to buffers or parameters.

        It checks what indexes a table, too: torch's rule for an embedding under `vmap` takes an index beyond the
        table for a row of another example's.
        """
        held = {**dict(self.module.named_buffers()), **dict(self.module.named_parameters())}
        copies = {name: tensor.detach().clone() for name, tensor in held.items()}
        before = held | plain_tensors(self.module)
        with torch.no_grad(), forgetting(self.module):
            after = copies | plain_tensors(self.module)
            outputs: object = functional_call(self.module, copies, inputs.args, inputs.kwargs)
        changed = [name for name, tensor in before.items() if not _same(tensor.detach(), after[name], 0.0)]
        if changed:
            raise PrivacyError(
                f"the forward pass writes statistics of private examples into {', '.join(changed)}, and "
                "these would be released without noise: call eval() on those layers, or set "
                "track_running_stats=False, max_norm=None"
            )
        if not isinstance(outputs, Tensor) or outputs.shape[:1] != (len(inputs),):
            found = f"shape {list(outputs.shape)}" if isinstance(outputs, Tensor) else type(outputs).__name__
            raise PrivacyError(
                f"the module maps a batch of {len(inputs)} examples to {found}: it must return one tensor [B, …]; "
                "wrap it in a module that returns the tensor that the loss reads"
            )
        return outputs

    def _check_alone(self, inputs: Given, together: Tensor, alone: Tensor) -> None:
        """Refuse a module whose output for one example depends on another, as far as a first batch shows it."""
        if self._compared or len(inputs) < 2:
            return
        tolerance = self._tolerance(together)
        same = together.shape == alone.shape and _same(together, alone, tolerance)
        moved = self._run_together(inputs.rolled())
        in_place = same and _same(together.roll(1, 0), moved, tolerance)
        # Dropout differs from one pass to the next: then nothing can be said.
        if in_place or not _same(together, self._run_together(inputs), 0.0):
            return
        if same:
            raise PrivacyError(
                "the output of the module for one example depends on its place in the batch, which the examples "
                "before it decide on: do not seed generators in forward(), as within torch.random.fork_rng()"
            )
        raise PrivacyError(
            "the output of the module for one example depends on the other examples of the batch, "
            "so per-example gradients are undefined: normalise, centre or attend within one example"
        )

    def _check_beside_zeros(self, copies: dict[str, Tensor], inputs: Given) -> None:
        """Refuse a module whose output for an example that comes alone would depend on another one: of zeros."""
        both = inputs.each(lambda x: torch.cat([x, torch.zeros_like(x)]))
        twice = {name: copy.detach().expand(2, *copy.shape[1:]) for name, copy in copies.items()}
        with torch.no_grad():
            rows = both.rows()
            self._check_alone(rows, self._run_together(rows), self._alone(twice, both))

    def _check_first(self, inputs: Given, targets: Tensor, gradients: dict[str, Tensor]) -> None:
        """Refuse a module whose gradient of one example depends on another, as the first one of a batch shows it:
        own autograd functions may have rules for `vmap` that mix them.
        """
        if self._compared or not len(inputs) or isinstance(self.module, LipschitzModule):
            return
        if len(inputs) == 1:
            # Half precision turns over kinks, of which one example has few: each is a good part of its gradient.
            if not self._compared_one and self._tolerance(next(iter(gradients.values()))) < _COARSEST:
                self._check_sum(inputs, targets, gradients)
            self._compared_one = True
            return
        self._compared = True  # or `alone` would not end
        try:
            self._check_several(inputs, targets, gradients)
        except BaseException:
            self._compared = False  # what is refused once is refused again
            raise

    def _check_several(self, inputs: Given, targets: Tensor, gradients: dict[str, Tensor]) -> None:
        """Compare gradients of examples with that of the first one alone, and with those of the whole batch."""

        def alone() -> Tensor:
            return _flat(self._per_example_gradients(inputs[slice(1)], targets[:1])[1])

        first, one = _flat({name: rows[:1] for name, rows in gradients.items()}), alone()
        if not _same(first, one, self._tolerance(first)) and _same(one, alone(), 0.0):
            raise PrivacyError(
                "the gradient of one example depends on the other examples of the batch: an autograd function of "
                "the module mixes them in its backward pass or in its rule for vmap"
            )
        self._check_sum(inputs, targets, gradients)

    def _check_ways(self, others: Iterable[Tensor | None]) -> None:
        """Refuse a loss that depends on the parameters themselves, beside the copies of each example.

        Args:
            others: its gradients with respect to the parameters; None if there is no way to one.
        """
        found = [name for name, one in zip(self._parameters, others, strict=True) if one is not None]
        if found:
            raise PrivacyError(
                f"the loss reads {', '.join(found)} by another way than as attributes of the module and its "
                "parts, and the gradient that comes this way would be missing: read no parameters from lists, "
                "dicts, objects, functions or traced code (nn.ParameterList and nn.ParameterDict are parts), and "
                "put a penalty on weights into the optimizer (weight_decay)"
            )

    def _check_sum(self, inputs: Given, targets: Tensor, gradients: dict[str, Tensor]) -> None:
        """Refuse a module whose examples have other gradients than torch's own backward pass adds up, as a first
        batch shows it. Roundings may turn over a few kinks, and parts of a gradient may cancel.
        """

        def summed() -> list[Tensor]:
            with torch.enable_grad(), forgetting(self.module):
                rows = inputs.rows()
                total = self._total(self.module(*rows.args, **rows.kwargs), targets)
                sums = torch.autograd.grad(
                    total, list(self._parameters.values()), allow_unused=True, materialize_grads=True
                )
            return [one.to_dense() if one.is_sparse else one for one in sums]

        plain = summed()
        pairs = {
            name: (rows.double(), one.double()) for (name, rows), one in zip(gradients.items(), plain, strict=True)
        }
        sizes = {name: _largest(rows.abs().sum(0).maximum(one.abs())) for name, (rows, one) in pairs.items()}
        apart = {name: _largest(rows.sum(0) - one) for name, (rows, one) in pairs.items()}
        share, largest = max(_FLIPPED, self._tolerance(plain[0])), max(sizes.values())
        wrong = [name for name in pairs if apart[name] > share * sizes[name] + _CANCELLED * largest]
        if wrong and math.isfinite(largest) and all(map(torch.equal, plain, summed())):
            raise PrivacyError(
                f"torch.func.vmap computes other gradients of {', '.join(wrong)} than a backward pass of the "
                "whole batch: remove hooks on tensors and parameters, scale_grad_by_freq, and functions that "
                "torch computes otherwise under vmap"
            )

    def _tolerance(self, found: Tensor) -> float:
        """Return the share of the largest entry by which numbers may be apart that the module computes twice."""
        kinds = {parameter.dtype for parameter in self._parameters.values()}
        return min(100 * max(working_slack(found), *map(rounding_slack, kinds)), _COARSEST)

    def _fitting_chunk(self) -> int:
        numbers = sum(parameter.numel() for parameter in self._parameters.values())
        device = next(iter(self._parameters.values())).device
        return max(1, min(_MOST_EXAMPLES, at_once(device, *_CHUNK_ENTRIES) // numbers))


def _refuse_shared(checked: Checked, what: str) -> None:
    """Refuse what lets one example decide on the others, under `vmap`."""
    if checked.is_watched:
        raise PrivacyError(
            f"{what} sets up saved_tensors_hooks or a TorchDispatchMode, which are given the numbers of all "
            "examples of a batch: leave them out, or compile the module with lipcompile.private(module, example, "
            "bounds='clip')"
        )
    if checked.is_seeded:
        raise PrivacyError(
            f"{what} seeds torch's generator: then everyone knows the numbers of an example, and its place in the "
            "batch chooses them, which the examples before it decide on: do not seed generators in forward() and "
            "in the loss, as within torch.random.fork_rng()"
        )
    if checked.caught:
        raise PrivacyError(
            f"{what} goes on after an error of torch ({checked.caught}), which one example would cause for all "
            "that are computed with it: use a function that does not fail, such as torch.linalg.cholesky_ex and "
            "torch.where, or compile the module with lipcompile.private(module, example, bounds='clip')"
        )


def _largest(tensor: Tensor) -> float:
    return float(tensor.abs().amax()) if tensor.numel() else 0.0


def _flat(gradients: dict[str, Tensor]) -> Tensor:
    """Return the gradients [1, *parameter] of one example as one vector."""
    return torch.cat([gradient.flatten() for gradient in gradients.values()])


def _lengths(clipping: float | Mapping[str, float], names: Iterable[str]) -> tuple[bool, dict[str, float]]:
    """Return whether C is for the whole gradient, and C or C_p by parameter name."""
    given = clipping if isinstance(clipping, Mapping) else {"*": clipping}
    return not isinstance(clipping, Mapping), values_by_name(given, names, "clipping length")


def _same(one: Tensor, other: Tensor, tolerance: float) -> bool:
    """Whether two tensors agree up to a share of their largest entry."""
    if not one.is_floating_point():
        return torch.equal(one, other)
    if one.dtype != other.dtype:  # under autocast vmap leaves some results in float32
        one, other = one.double(), other.double()
    largest = float(one.abs().nan_to_num(0.0, 0.0, 0.0).amax()) if one.numel() else 0.0
    return torch.allclose(one, other, rtol=0.0, atol=tolerance * largest, equal_nan=True)

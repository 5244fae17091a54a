"""The base class of emitted modules: a network that knows its domain, its bounds and its constraints."""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Self, cast

import torch
from numpy import floating
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ..certify.intervals import Interval, Number
from ..certify.precision import working_slack
from ..certify.projection import Amortised, project_
from ..certify.rounding import UP_MANY
from ..clip.clipping import ClipGroup
from ..clip.example_gradients import by_example
from ..nn import functional
from ..nn.constrained import ConstrainedLayer, OutsideWarning, constraints_of, outside
from ..nn.inputs import joined
from ..nn.own_losses import warn_of_mixing
from ..nn.own_networks import OwnNetwork
from ..sharding import gathered, hooked, plain_type, settle
from .aliases import OVERLAP
from .gate import GateRecord, Passage, check_saving, during, enter_criterion, leave_criterion, pass_gate
from .loss_clipping import clip_cotangents

_MODES = (None, "default", "max-autotune-no-cudagraphs")


class _Maker:
    """Makes empty instances of a class that no file has; a pickle holds its program."""

    def __init__(self, kind: type[LipschitzModule]) -> None:
        self.kind = kind

    def __call__(self) -> LipschitzModule:
        return self.kind.__new__(self.kind)

    def __reduce__(self) -> Any:
        return _made, (*self.kind._program, self.kind.own_network)


def _made(name: str, text: str, network: OwnNetwork | None) -> _Maker:
    module = ModuleType(Path(name).stem)
    exec(compile(text, name, "exec"), module.__dict__)
    del module.__name__  # as the compiler does
    module.Model._program, module.Model.own_network = (name, text), network
    return _Maker(module.Model)


class LipschitzModule(nn.Module):
    """A network whose per-example gradients are bounded, for all inputs and labels, while weights are projected.

    Subclasses set the class attributes, build :class:`~..nn.layers.ConstrainedLayer` parts in ``__init__`` and
    end it with ``self.project_()``; ``forward`` begins with :meth:`clip_input` and ends with :meth:`release`.

    Attributes:
        input_shape: shape of one example.
        input_norm: X_0, bound of the norm of one example; infinite for tokens.
        input_tokens: examples are whole numbers, which an embedding takes.
        input_parts: names and shapes of the inputs that the module is called with, by position or by name; the one
            that ``forward`` takes has their entries one after another. Empty if it is called with one.
        input_trusted: the caller vouches for ``input_norm``: inputs are not clipped.
        lipschitz: certified Lipschitz constant of the output in the input.
        last_dense: name of the dense layer that makes the logits, up to constants, if one does.
        loss_lipschitz: L, Lipschitz constant of the loss in the output.
        certificate: the derivation this module was emitted from.
        bounds: K_p, bound of ‖∂ loss of one example / ∂p‖, by parameter name; exactly the trainable
            parameters.
        clips: the groups of parameters whose gradients the backward pass clips, under an engine: `bounds` of these
            is C of the group, and all of the group together have that bound.
        unclipped_bounds: the same if gradient clips inside are not counted on, and so proportional to L; None if
            nobody derived them.
        features_shape, features_norm: shape and bound of the norm of what :meth:`frozen_features` makes of an
            example; None, if nothing worth keeping is computed before the first trained parameter.
        takes_features: what ``forward`` is given are features; see :meth:`on_features`.
        takes_views: the module is given views of examples; see :meth:`on_views`.
        noise_strategy: how noise is correlated from step to step, as `factorisation.strategy_from` reads it, if
            the model's `train` block says so: the engine follows it unless it is told otherwise.
        normaliser: b, what :meth:`criterion` divides the sum over the batch by; set by the engine.
        own_loss: the function that the loss `own` applies to each example, see :func:`..nn.losses.own`.
        own_network: the module that stands where no rule covers an operation, see
            :func:`..nn.own_networks.own_network`; `lipcompile.private` sets it.
        split_output: takes an output [B, K] apart into the several tensors that the original module returns.
        loss_clip: C, what the gradient of each example's loss in its output is clipped to on its way back, or
            None; set by the engine before each batch, and not to be changed within one.
        clip_lengths: C of clip groups whose length moves in training, by name, in the place of their own; set by
            the engine before each batch, as `loss_clip` is.
        projection_slack: by how much, relatively, projection may scale a weight down to spare a certificate of it,
            see :mod:`..certify.projection`; 0 to certify every weight in full that has moved out of what is known.
        gate: what flowed back; read and reset by the engine at every step.

    Formal guarantees: after :meth:`project_` and for inputs of ``input_shape``, ‖∂ per_example_loss[i]/∂p‖ ≤
    ``gradient_bounds()[p]`` in real arithmetic, given that the subclass is what its certificate describes;
    rounding adds what :mod:`~..certify.precision` states.
    """

    input_shape: ClassVar[tuple[int, ...]]
    input_norm: ClassVar[float]
    input_tokens: ClassVar[bool] = False
    input_parts: ClassVar[Mapping[str, tuple[int, ...]]] = {}
    input_trusted: ClassVar[bool] = False
    lipschitz: ClassVar[float]
    loss_lipschitz: ClassVar[float]
    certificate: ClassVar[Mapping[str, Any]]
    bounds: ClassVar[Mapping[str, float]]
    clips: ClassVar[Sequence[ClipGroup]] = ()
    unclipped_bounds: ClassVar[Mapping[str, float] | None] = None
    noise_strategy: ClassVar[Mapping[str, Any] | None] = None
    last_dense: ClassVar[str | None] = None
    features_shape: ClassVar[tuple[int, ...] | None] = None
    features_norm: ClassVar[float] = math.inf
    own_network: ClassVar[OwnNetwork | None] = None
    _program: ClassVar[tuple[str, str]]  # name and text of what was run to make the class, if no file has it

    def __init__(self) -> None:
        super().__init__()
        self.normaliser: float = 1.0
        self.own_loss: Callable[[Tensor, Any], Tensor] | None = None
        self.split_output: Callable[[Tensor], Any] | None = None
        self.loss_clip: float | None = None
        self.clip_lengths: Mapping[str, float] = {}
        self.takes_features = False
        self.takes_views = False
        self._views: int | None = None  # of an example in the forward pass under way
        self.projection_slack = 0.1
        self.gate = GateRecord()
        self._blueprint: dict[str, Any] = {}
        self.register_load_state_dict_post_hook(_project_after_loading)  # type: ignore[no-untyped-call]

    def __reduce_ex__(self, protocol: Any) -> Any:
        reduced: Any = super().__reduce_ex__(protocol)
        return (_Maker(type(self)), (), *reduced[2:]) if "_program" in vars(type(self)) else reduced

    @abstractmethod
    def per_example_loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the loss of each example, [B]."""

    def criterion(self, output: Tensor, target: Any) -> Tensor:
        """Return the sum of the losses over the batch, divided by the fixed normaliser; 0-dim. Give it what
        ``forward`` returned, untouched, and call ``backward()`` on it, unscaled, or the engine refuses the step.

        The loss of an example that came as views is the mean of theirs.
        """
        passage, views = getattr(output, "passage", None), getattr(output, "views", None)
        if passage is not None and passage.version == output._version and torch.is_grad_enabled():
            output = enter_criterion(output, self, passage)
        if views is not None:
            output = output.flatten(0, 1)
            target = tree_map(lambda part: part.repeat_interleave(views, 0), target)
        losses = self.per_example_loss(output, target)
        if self.own_loss is not None and not self.gate.is_loss_tried and len(output) > 1:
            self.gate.is_loss_tried = True
            warn_of_mixing(self.own_loss, output, target, losses)
        total = losses.sum() / (self.normaliser * (views or 1))
        return leave_criterion(total, self) if total.requires_grad else total

    def clip_input(self, x: Tensor) -> Tensor:
        """Return inputs [B, *input_shape], each clipped to ``input_norm`` unless they are trusted, or tokens.

        Raises:
            ValueError: another shape, or not floating point; for tokens, not whole numbers.
        """
        if x.dim() == 0 or tuple(x.shape[1:]) != tuple(self.input_shape):
            raise ValueError(
                f"expected inputs of shape [B, {', '.join(map(str, self.input_shape))}], got {tuple(x.shape)}"
            )
        if self.input_tokens:
            if x.is_floating_point() or x.is_complex() or x.dtype == torch.bool:
                raise ValueError(f"expected tokens of an integer dtype, got {x.dtype}")
            return x
        if not x.is_floating_point():
            raise ValueError(
                f"expected floating point inputs, got {x.dtype}: convert and scale them, e.g. x.float() / 255"
            )
        return x if self.input_trusted else functional.clip_norm(x, self.input_norm)

    def frozen_features(self, x: Tensor) -> Tensor:
        """Return the features [B, *features_shape] of examples: all that is computed of them before the first
        trained parameter, which no cotangent crosses. Emitted modules with a frozen part define it.
        """
        raise NotImplementedError("this module has no frozen layers before the first trained parameter")

    def on_features(self) -> AbstractContextManager[None]:
        """Within this context, ``forward`` takes features instead of examples, :attr:`features_shape` each.

        Formal guarantees: the gradient bounds are those of the norm of features alone, and ``forward`` clips what
        it is given to it: they hold for whatever it is given.

        Raises:
            ValueError: this module has no features.
        """
        if self.features_shape is None:
            raise ValueError("this module has no frozen part, so it takes no features: give it examples")
        return during(self, "takes_features", True)

    def on_views(self) -> AbstractContextManager[None]:
        """Within this context each example is several views, as of an image that was changed at random: the
        module takes [B, V, *input_shape] and returns [B, V, …]; :meth:`criterion` takes the mean over the views.

        Formal guarantees: an example's gradient is the mean of V gradients, each of which a theorem bounds by K_p,
        and a clip bounds it as one. So the bounds are those of one view, and views cost no privacy, provided that
        those of an example are made of this example alone.
        """
        return during(self, "takes_views", True)

    def given_rows(self, views: int | None) -> AbstractContextManager[None]:
        """Within this context the passes that leave the gate aside take a row for each of so many views of an
        example, and :meth:`release` their outputs; None: rows are examples.
        """
        return during(self, "_views", views)

    def clip_features(self, x: Tensor) -> Tensor:
        """Return features [B, *features_shape], in the parameters' dtype, each clipped to ``features_norm``.

        Raises:
            ValueError: another shape, or not floating point.
        """
        if x.dim() == 0 or tuple(x.shape[1:]) != self.features_shape or not x.is_floating_point():
            raise ValueError(f"expected features [B, *{self.features_shape}], got {tuple(x.shape)} of {x.dtype}")
        return functional.clip_norm(x.to(next(self.parameters()).dtype), self.features_norm)

    def clip_gradient(self, x: Tensor, bound: float) -> Tensor:
        """Return ``x``; on the way back clip the cotangent of each example's own loss to ``bound``.

        The criterion divides by the normaliser, and by the number of views, so what is clipped here is
        ``bound`` over both (docs/theory.md, trap 12).
        """
        return functional.clip_gradient(x, bound / (self.normaliser * (self._views or 1)))

    def release(self, output: Tensor) -> Tensor:
        """Return ``output`` through the gate, which notes what flows back; `__call__` sees to it that it does."""
        if self.gate.aside or not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return output
        rows = self.gate.aliases.rows
        output = _by_view(output, self._views)
        output = output if rows is None else rows.picked(output)
        passage = Passage(working_slack(output), output._version, self.gate.batch, self._views)
        released: Any = pass_gate(output, self, passage)
        # No operation hands these on: the criterion knows the output itself by them.
        released.passage, released.views = passage, self._views
        return cast(Tensor, released)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run ``forward``; the layers know meanwhile that they are called from there.

        Where `Module.compile` has put compiled code in the place of ``forward``, the gate is left out of it, and
        comes after it.

        Raises:
            ValueError, TypeError: the inputs are not those of ``input_parts``.
        """
        if self.input_parts and (kwargs or len(args) != 1 or not isinstance(args[0], Tensor)):
            how = {"tokens": self.input_tokens, "views": self.takes_views and not self.gate.aside}
            args, kwargs = (joined(self.input_parts, args, kwargs, **how),), {}
        views = self._views_of((*args, *kwargs.values()))
        if not torch.is_grad_enabled():  # nothing flows back: it may run beside a pass that is trained on
            args, kwargs = _in_rows(args, kwargs, views)
            return _by_view(super().__call__(*args, **kwargs), views)
        watched = not (self.gate.aside or torch.compiler.is_compiling())
        if watched and self.gate.running:
            raise RuntimeError(OVERLAP)
        entered = self.gate.aliases.entered(self._checked(), views or 1) if watched else nullcontext()
        self.gate.running += 1
        before, self._views = self._views, self._views if self.gate.aside else views
        try:
            with entered as rows, self._without_grad_warning():
                if rows is not None:
                    args, kwargs = tuple(map(rows.spread, args)), {k: rows.spread(x) for k, x in kwargs.items()}
                args, kwargs = _in_rows(args, kwargs, views)
                output = super().__call__(*args, **kwargs)
            if not watched:
                return _by_view(output, views)
            settle(self)  # or a term of the loss on whole parameters would reach them unseen
            return output if hasattr(output, "passage") else self.release(output)
        finally:
            self.gate.running -= 1
            self._views = before

    def _views_of(self, inputs: Iterable[Any]) -> int | None:
        """Return V of views [B, V, *example], or None if the module takes examples.

        Raises:
            ValueError: another shape.
        """
        if not self.takes_views or self.gate.aside:
            return None
        shape = self.features_shape if self.takes_features else self.input_shape
        for x in inputs:
            if x.dim() < 2 or tuple(x.shape[2:]) != shape or not x.shape[1]:
                raise ValueError(
                    f"expected views [B, V, {', '.join(map(str, shape or ()))}], got {tuple(x.shape)}"
                )
            return int(x.shape[1])
        return None

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile the forward pass in place, as `torch.nn.Module.compile` does; layers that clip run as they are.

        Raises:
            ValueError: options that do not go with clips: one graph for everything; graphs of CUDA, which use the
            memory again that clips read in the end.
        """
        clipped = self._clipped()
        asked = kwargs.get("fullgraph") or kwargs.get("options") or kwargs.get("backend") == "cudagraphs"
        if clipped and (asked or kwargs.get("mode") not in _MODES):
            raise ValueError(
                "layers that clip gradients run between compiled parts and keep the tensors of those "
                "parts: remove fullgraph, options and cudagraphs, and choose mode from "
                f"{', '.join(map(str, _MODES))}"
            )
        for layer in clipped:
            layer.keep_apart()
        super().compile(*args, **kwargs)

    @contextmanager
    def _without_grad_warning(self) -> Iterator[None]:
        """Silence Dynamo, which asks an alias of a parameter for a ``.grad`` that only the parameter has."""
        if self._compiled_call_impl is None:
            yield
            return
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf", UserWarning)
            yield

    def guard_layers(self) -> None:
        """Let every layer refuse calls that build gradients outside ``forward``: these would pass no gate. Watch
        the parameters for gradients that come from elsewhere, and clip those of :attr:`clips`.
        """
        for _, layer in self._constrained():
            layer.gate = self.gate
        trained = {name: p for name, p in self.named_parameters() if p.requires_grad}
        self.gate.aliases.belong_to(self)
        self.gate.aliases.watch(trained)
        whole = gathered(self) if self.clips else {}
        self.gate.aliases.clip(self.clips, trained, lambda: self.normaliser, lambda: self.clip_lengths, whole)

    @property
    def loss_limit(self) -> float:
        """C, or infinity if the loss's gradient is not clipped."""
        return math.inf if self.loss_clip is None else self.loss_clip

    def clip_loss_gradient(self, cotangent: Tensor, views: int | None = None) -> tuple[Tensor, Tensor | None]:
        """Return what the criterion sends back, [B, …], with each example clipped to C/normaliser over all its
        entries, a non-finite one set to zero, and how many were within; untouched and None if there is no clip.
        Of [B, views, …] each view is clipped to a share of that.
        """
        if self.loss_clip is None:
            return cotangent, None
        if views is None:
            return clip_cotangents(cotangent, self.loss_clip / self.normaliser)
        rows, bound = cotangent.flatten(0, 1), self.loss_clip / (self.normaliser * views)
        clipped, within = clip_cotangents(rows, bound, views)
        return clipped.view_as(cotangent), within

    def gradient_bounds(self) -> dict[str, float]:
        """Return K_p by parameter name, for weights in their constraint sets, of the loss as :attr:`loss_clip`
        leaves it, and with :attr:`clip_lengths`.

        Formal guarantees: for C < L the least of K_p at L and C/L times the unclipped bound, rounded outward. The
        first is a bound since every rule is monotone in what arrives at the output; the second since without clips
        inside every rule is positively homogeneous, and clips lower cotangents only.
        """
        if self.unclipped_bounds is None or self.loss_limit >= self.loss_lipschitz:
            return dict(self.bounds) | self.moved_bounds
        exactly, unclipped = Interval.exactly, self.unclipped_bounds
        # Outward for the rounding of L and of the unclipped bounds, which are certified to more digits.
        share = exactly(self.loss_limit) / exactly(self.loss_lipschitz) * exactly(UP_MANY)
        clipped = self.clipped_parameters
        return {
            name: bound if name in clipped else min(bound, (share * exactly(unclipped[name])).high)
            for name, bound in self.bounds.items()
        } | self.moved_bounds

    @property
    def moved_bounds(self) -> dict[str, float]:
        """K_p of the parameters of the groups of :attr:`clip_lengths`, by name."""
        moved = (group for group in self.clips if group.name in self.clip_lengths)
        return {name: self.clip_lengths[group.name] for group in moved for name in group.parameters}

    @property
    def clipped_parameters(self) -> frozenset[str]:
        """Names of the parameters that a clip bounds, not a theorem."""
        return frozenset(name for group in self.clips for name in group.parameters)

    def certified_norms(self) -> dict[str, float]:
        """Return a certified norm of each parameter as it is now, by name."""
        return {
            f"{prefix}.{name}" if prefix else name: norm
            for prefix, layer in self._constrained()
            for name, norm in layer.certified_norms().items()
        }

    def slope(self, u: dict[str, Number]) -> Number:  # noqa: ARG002
        """Return a Lipschitz constant in the input, given norms ``u`` of the parameters by name, in their sets: of
        what the layer :attr:`last_dense` reads, if there is one, otherwise of the output.
        """
        return self.lipschitz

    def project_(self) -> None:
        """Put every parameter back into its constraint set, certified; check that none escapes.

        Raises:
            ValueError: a parameter is not finite.
            RuntimeError: see :meth:`check_parameters`.
        """
        self.check_parameters()
        project_(self._amortised(), self.projection_slack)

    def fill_(self) -> None:
        """Scale every trained weight to the bound of its constraint, certified, as "fixed norm" in Barczewski and
        Ramon (2024) has it; like any map into Θ, post-processing. Call it on projected weights.
        """
        for _, layer in self._constrained():
            layer.fill_()

    def forget_certificates(self) -> None:
        """Let the next :meth:`project_` certify every weight in full, on all processes alike."""
        for _, known in self._amortised():
            known.forget()

    def _amortised(self) -> list[tuple[nn.Parameter, Amortised]]:
        return [pair for _, layer in self._constrained() for pair in layer.amortised()]

    def _constrained(self) -> list[tuple[str, ConstrainedLayer]]:
        return [(name, part) for name, part in self.named_modules() if isinstance(part, ConstrainedLayer)]

    def check_parameters(self) -> None:
        """Check that every parameter is governed by one constraint and, if trainable, has a gradient bound.

        Raises:
            RuntimeError: a parameter is foreign, under several names, missing, or trained without a bound.
        """
        present = dict(self.named_parameters(remove_duplicate=False))
        governed = constraints_of(self).keys()
        uses = Counter(map(id, present.values()))
        _refuse(sorted(name for name in present if uses[id(present[name])] > 1), "shared under several names")
        _refuse(
            sorted(present.keys() - governed),
            "without a constraint, because they were added or wrapped after compilation",
        )
        _refuse(
            sorted(governed - present.keys()),
            "missing, because they were removed or reparametrised after compilation",
        )
        self._check_layers(dict(self.named_modules()))
        trained = {name for name, parameter in present.items() if parameter.requires_grad}
        _refuse(
            sorted(trained - self.bounds.keys()),
            "trainable, but compiled as frozen, so they have no gradient bound",
        )

    def _checked(self) -> list[ConstrainedLayer]:
        """Return the layers with constraints. In training refuse a forward pass that is not the certified one: its
        gradient would be released.
        """
        parts = dict(self.named_modules())
        if self.gate.batch is not None:
            if self.clips:
                self._check_compiled(parts.values())
            self._check_layers(parts)
            self.gate.aliases.check_owner(self)
            check_saving()
            found = hooked(parts.items())
            if found:
                raise RuntimeError(f"{found} has hooks, which the bounds do not cover: remove them")
        return [part for part in parts.values() if isinstance(part, ConstrainedLayer)]

    def _check_compiled(self, parts: Iterable[nn.Module]) -> None:
        """Refuse compiled code in the place of what clips gradients."""
        traced: Any = [part for part in parts if part._compiled_call_impl is not None]
        if not all(part is self for part in traced) or (traced and not all(p.is_apart for p in self._clipped())):
            raise RuntimeError(
                "a layer that clips gradients was replaced by compiled code: compile the whole module "
                "with module.compile(), or do not compile it"
            )

    def _clipped(self) -> list[ConstrainedLayer]:
        names = self.clipped_parameters
        return [
            layer
            for prefix, layer in self._constrained()
            if (names and layer.takes_matrix)
            or any((f"{prefix}.{role}" if prefix else role) in names for role in layer.constraints)
        ]

    def _check_layers(self, parts: Mapping[str, nn.Module]) -> None:
        """Refuse other layers, or settings of layers, than were there first, at the end of ``__init__``."""
        layers = {
            name: (plain_type(layer), dict(getattr(layer, "constraints", {})), _settings(layer))
            for name, layer in parts.items()
            if layer is not self
        }
        self._blueprint = self._blueprint or layers
        # What was added and has no weights under constraints is none that the certified `forward` calls.
        constrained = {name for name, layer in parts.items() if isinstance(layer, ConstrainedLayer)}
        names = constrained | self._blueprint.keys()
        changed = sorted(name for name in names if layers.get(name) != self._blueprint.get(name))
        if changed:
            raise RuntimeError(
                f"layers {', '.join(changed)} were replaced after compilation, and the bounds do not "
                "hold for them; change the model and compile it again"
            )

    def load_initial_weights(self, arrays: Mapping[str, NDArray[floating]], drawn: Collection[str] = ()) -> None:
        """Copy arrays into the parameters of the same names, all but those that stay as they were drawn; project.

        Raises:
            ValueError: names or shapes differ, or an entry is not finite.
        """
        parameters = dict(self.named_parameters())
        if arrays.keys() ^ parameters.keys() != set(drawn):
            raise ValueError(
                f"initial weights do not match the parameters: {sorted(arrays.keys() ^ parameters.keys())}"
            )
        with torch.no_grad():
            for name, array in arrays.items():
                if array.shape != tuple(parameters[name].shape):
                    raise ValueError(
                        f"initial {name}: shape {array.shape}, expected {tuple(parameters[name].shape)}"
                    )
                parameters[name].copy_(torch.from_numpy(array))
        self.project_()

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        """Convert dtype or device; project, since another dtype rounds weights out of their sets."""
        before = {parameter.dtype for parameter in self.parameters()}
        self.forget_certificates()  # copies of weights would stay where and what they are
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if {parameter.dtype for parameter in self.parameters()} != before:
            self.project_()
        return self


def _in_rows(
    args: tuple[Any, ...], kwargs: dict[str, Any], views: int | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return inputs with a row for each view."""
    if views is None:
        return args, kwargs
    return tuple(x.flatten(0, 1) for x in args), {name: x.flatten(0, 1) for name, x in kwargs.items()}


def _by_view(output: Any, views: int | None) -> Any:
    """Return an output with an axis for the views, which the criterion knows it by."""
    if views is not None:
        output = by_example(output, views)
        output.views = views
    return output


def _settings(layer: nn.Module) -> dict[str, Any]:
    """Return what a layer computes with, beside its weights, and what hides its methods."""
    return {
        name: value
        for name, value in vars(layer).items()
        if name not in ("training", "gate", "_compiled_call_impl")
        and (name[0] != "_" or (callable(value) and hasattr(type(layer), name)))
    }


def _project_after_loading(module: LipschitzModule, _: object) -> None:
    """Loaded weights must lie in their constraint sets like any others; say so where they did not."""
    found = outside(module, dict(module.named_parameters()))
    if found:
        warnings.warn(
            f"loaded weights violate their constraints: {', '.join(found)}; they were projected, so the "
            "module no longer computes the function of the original model",
            OutsideWarning,
            stacklevel=4,
        )
    module.forget_certificates()
    module.project_()


def _refuse(names: list[str], reason: str) -> None:
    if names:
        raise RuntimeError(f"parameters {', '.join(names)}: {reason}; the privacy analysis does not hold for them")

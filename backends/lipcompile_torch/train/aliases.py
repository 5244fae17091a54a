"""Where parameters enter a forward pass: a gradient that reaches a parameter by any other way is seen.

A bound K_p holds for the gradient that the layers of the module make. A term of the loss on the parameter itself
(a penalty, a target or an input made from weights) crosses neither a layer nor the gate. So a forward pass reads
every parameter through an alias. The sum of all that flows back through the alias is noted, and the gradient that
arrives at the parameter must be that very tensor.

The aliases of a clip group are made by one function. Autograd runs its backward pass when all that read any of
them has run: there the gradients of the group are clipped and summed (:mod:`..clip.clipping`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from ..autograd import apply
from ..clip.clipping import FEW, ClipGroup, ForwardPass, Noted, NoteOfPass, group_gradients
from ..clip.example_gradients import Clip
from ..noise.masks import Masks
from ..sharding import add_sum_, is_shard
from .loss_clipping import count_within
from .sampler import Rows

OVERLAP = (
    "two threads run forward passes of this module at once: run forward passes that record gradients "
    "one after the other; forward passes under torch.no_grad() may overlap"
)


class OwnHook:
    """A hook of ours on the gradient of a parameter; in a copy of the parameter it does nothing."""

    def __init__(self, note: Callable[[Tensor], None] | None) -> None:
        self._note = note

    def __call__(self, tensor: Tensor) -> None:
        """Note a gradient that arrives, or a parameter whose `.grad` has changed."""
        if self._note is not None:
            self._note(tensor)

    def __deepcopy__(self, memo: Any) -> OwnHook:
        return OwnHook(None)

    def __reduce__(self) -> Any:
        return OwnHook, (None,)


def has_own_hooks_only(parameter: nn.Parameter) -> bool:
    """Whether nobody else has a hook on the gradient of a parameter, before or after it is added to `.grad`."""
    after: Any = getattr(parameter, "_post_accumulate_grad_hooks", None) or {}
    before: Any = parameter._backward_hooks or {}
    return all(isinstance(hook, OwnHook) for hook in (*before.values(), *after.values()))


class _Alias(torch.autograd.Function):
    """An alias of a parameter, which notes the sum of all that flows back through it."""

    @staticmethod
    def forward(ctx: Any, parameter: Tensor, aliases: ParameterAliases) -> Tensor:
        ctx.aliases, ctx.place = aliases, id(parameter)
        return parameter.view_as(parameter)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, None]:
        ctx.aliases.under_way[ctx.place] = cotangents[0]
        return cotangents[0], None


class _GroupAliases(torch.autograd.Function):
    """Aliases of the parameters of a group, whose gradients are clipped where they leave."""

    @staticmethod
    def forward(ctx: Any, group: _Group, aliases: ParameterAliases, *parameters: Tensor) -> tuple[Tensor, ...]:
        ctx.group, ctx.aliases = group, aliases
        ctx.set_materialize_grads(False)
        return tuple(parameter.view_as(parameter) for parameter in parameters)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        group, aliases = ctx.group, ctx.aliases
        for name, noted, cotangent in zip(group.names, group.noted, cotangents, strict=True):
            if noted.is_foreign(cotangent):
                aliases.foreign.add(name)
        found = zip(group.parameters, _rounded(aliases.gradients(group), group.parameters), strict=True)
        return None, None, *(aliases.handed_on(parameter, gradient) for parameter, gradient in found)


def _rounded(gradients: Iterator[Tensor], parameters: Iterable[Tensor]) -> list[Tensor]:
    """Return gradients rounded to the dtypes of their parameters, but those of shards, which are summed before.

    None is a part of a larger tensor: torch counts the changes of all parts together.
    """
    found: list[Tensor] = []
    small: list[tuple[Tensor, Tensor]] = []
    for parameter, gradient in zip(parameters, gradients, strict=True):
        is_part = gradient._base is not None and gradient._base.numel() > gradient.numel()
        if is_shard(parameter) or (gradient.dtype == parameter.dtype and not is_part):
            found.append(gradient)
        elif gradient.numel() > FEW:
            found.append(gradient.to(parameter.dtype, copy=True))
        else:
            found.append(torch.empty_like(gradient, dtype=parameter.dtype))
            small.append((found[-1], gradient))
    if small:
        torch._foreach_copy_([own for own, _ in small], [gradient for _, gradient in small])
    return found


@dataclass(eq=False)
class _Group:
    """A clip group of a module, and the uses of its parameters.

    Args:
        parameters: of the module.
        read: the same, but whole where FSDP has sharded them.
    """

    clips: ClipGroup
    parameters: tuple[nn.Parameter, ...]
    read: tuple[nn.Parameter, ...]
    under_way: ForwardPass

    def __post_init__(self) -> None:
        self.noted = [Noted(parameter, self.under_way) for parameter in self.read]

    @property
    def names(self) -> tuple[str, ...]:
        return self.clips.parameters

    def gradients(self, clip: Clip, note: NoteOfPass | None = None) -> Iterator[Tensor]:
        """Return the clipped gradients, summed over the examples here, in the shapes of whole parameters."""
        return group_gradients(self.noted, self.read, clip, note)

    def aliases(self, aliases: ParameterAliases) -> dict[int, Tensor]:
        """Return aliases by the identity of the parameter; what reads them in a layer finds where to note uses."""
        made: tuple[Tensor, ...] = apply(_GroupAliases, self, aliases, *self.read)
        for alias, noted in zip(made, self.noted, strict=True):
            alias.noted = noted  # type: ignore[attr-defined]
        return {id(parameter): alias for parameter, alias in zip(self.read, made, strict=True)}


class ParameterAliases:
    """The aliases of the parameters of a module, and the names of parameters that something else reached.

    Formal guarantees: after `watch`, a gradient reaches a watched parameter unnoticed only through the alias that
    a forward pass of the module read. Autograd adds up everything that flows to a parameter before it runs the
    parameter's hook. A second contribution makes the sum another tensor than the noted one: the noted tensor is
    alive until then, so autograd does not add to it in place. Of a parameter that FSDP has sharded, every gradient
    that autograd brings is foreign: FSDP reduces the gradients of whole parameters, and sets the shard's itself.
    Of one that is clipped every gradient of the whole parameter is foreign as well: its group reduces by itself.

    A gradient that was put into `.grad` by hand is the business of `gradient_watch.GradientWatch`.

    Attributes:
        under_way: cotangents that passed an alias and have not arrived yet, by the identity of the parameter.
        foreign: names of parameters that a gradient reached by another way since `reset`.
        within: names of groups whose length moves, with how many examples of a backward pass were within it, since
            `reset`. Backward passes in threads append to it.
        clipped: clip groups, with how many examples a backward pass brought there, since `reset`, in the same way.
        begin_backward: called when a backward pass comes to the module, before it reaches any parameter.
        masks: the secret seeds of the training.
        drawn_rows: returns the rows of the examples that were drawn, if the batch is to have others too.
    """

    def __init__(self) -> None:
        self.under_way: dict[int, Tensor] = {}
        self.foreign: set[str] = set()
        self.within: list[tuple[str, Tensor]] = []
        self.clipped: list[tuple[_Group, int]] = []
        self._aliases: dict[int, Tensor] = {}
        self._watched: dict[int, tuple[str, nn.Parameter]] = {}
        self._whole: dict[int, nn.Parameter] = {}
        self._groups: dict[int, _Group] = {}
        self.normaliser: Callable[[], float] = lambda: 1.0
        self.lengths: Callable[[], Mapping[str, float]] = dict
        self.begin_backward: Callable[[], None] = lambda: None
        self.drawn_rows: Callable[[], Rows | None] = lambda: None
        self._numbers = count()
        self._pass = ForwardPass()
        self._rows: dict[int, Rows] = {}
        self.masks = Masks(wanted=False)
        self._owner: nn.Module | None = None
        self._held: dict[str, nn.Parameter] = {}

    def belong_to(self, module: nn.Module) -> None:
        """Remember the module that is trained, and its parameters as they are now."""
        self._owner, self._held = module, dict(module.named_parameters())

    def check_owner(self, module: nn.Module) -> None:
        """Refuse a forward pass of a copy that shares layers with the trained module, or with other weights than
        its own, as `torch.func.functional_call` puts them in. FSDP exchanges its shards by itself.

        Raises:
            RuntimeError: gradients of that pass would reach the trained parameters, without their bounds.
            PrivacyError: masks of dropout are not secret.
        """
        if self._owner is None:
            return
        self.masks.check()
        if self._owner is not module:
            raise RuntimeError(
                "this is a shallow copy of the module that is trained, with settings of its own: train the module "
                "itself, or use copy.deepcopy"
            )
        held = self._held
        others = [n for n, p in module.named_parameters() if p is not held.get(n) and not is_shard(held.get(n))]
        if others:
            raise RuntimeError(
                f"a forward pass would use other weights in the place of {', '.join(others)}, as functional_call "
                "does, and the gradients of the rest are not bounded at these: call the module, or a deep copy"
            )

    def clip(
        self,
        groups: Iterable[ClipGroup],
        parameters: Mapping[str, nn.Parameter],
        normaliser: Callable[[], float],
        lengths: Callable[[], Mapping[str, float]],
        whole: Mapping[int, nn.Parameter],
    ) -> None:
        """Clip the gradients of these groups from now on, and of no others.

        Args:
            groups: with names of trainable parameters.
            parameters: by name.
            normaliser: gives b, which the criterion divides by.
            lengths: gives C of groups whose length moves, by name, in the place of their own.
            whole: what FSDP gathers, see `distributed.gathered`.

        Raises:
            ValueError: a parameter of a group is sharded, and not by FSDP: its layer has but a part of it.
        """
        self.normaliser, self.lengths, self._whole = normaliser, lengths, {}
        self._groups.clear()
        self._aliases.clear()  # of the groups before
        for clips in groups:
            own = tuple(parameters[name] for name in clips.parameters)
            shards = {name: p for name, p in zip(clips.parameters, own, strict=True) if is_shard(p)}
            if any(id(shard) not in whole for shard in shards.values()):
                raise ValueError(
                    f"parameters of the clip group {clips.name!r} are sharded, but the norm of a "
                    "per-example gradient needs whole parameters: shard by fully_shard(module), or "
                    "replicate the module"
                )
            self._whole.update((id(shard), whole[id(shard)]) for shard in shards.values())
            self.watch({name: whole[id(shard)] for name, shard in shards.items()})
            group = _Group(clips, own, tuple(whole.get(id(p), p) for p in own), self._pass)
            self._groups.update((id(parameter), group) for parameter in group.read)

    def __deepcopy__(self, memo: Any) -> ParameterAliases:
        return ParameterAliases()

    def __reduce__(self) -> Any:
        return ParameterAliases, ()

    def watch(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Watch trainable parameters, given by name; those that are watched already stay so."""
        for name, parameter in parameters.items():
            if id(parameter) not in self._watched:
                self._watched[id(parameter)] = name, parameter
                hook = OwnHook(partial(self._arrive, id(parameter)))
                parameter.register_hook(hook)  # type: ignore[no-untyped-call]

    def reset(self) -> None:
        """Forget what flowed back, and the aliases."""
        self.under_way.clear()
        self.foreign.clear()
        self.within.clear()
        self.clipped.clear()
        self._aliases.clear()
        self._rows.clear()
        for group in set(self._groups.values()):
            for noted in group.noted:
                noted.forget()

    @contextmanager
    def entered(self, layers: Iterable[nn.Module], views: int = 1) -> Iterator[Rows | None]:
        """Let these layers read aliases of their watched parameters meanwhile; return the rows of the examples.

        Args:
            views: of which each example is one row; see `module.LipschitzModule.on_views`.

        Raises:
            RuntimeError: another forward pass began meanwhile, in a thread: their uses could be confused.
        """
        own = self._pass.number = next(self._numbers)
        self._pass.views = views
        rows = self.drawn_rows()
        if rows is not None:
            self._rows[own] = rows
        placed = [
            (layer, role, self._alias(parameter))
            for layer in layers
            for role, held in layer._parameters.items()
            for parameter in (self._whole.get(id(held), held),)
            if parameter is not None and id(parameter) in self._watched and not is_shard(parameter)
        ]
        for layer, role, alias in placed:
            vars(layer)[role] = alias  # found before `_parameters`, which still hold the parameter itself
        try:
            yield rows
        finally:
            for layer, role, _ in placed:
                vars(layer).pop(role, None)
        if self._pass.number != own:
            raise RuntimeError(OVERLAP)

    @property
    def rows(self) -> Rows | None:
        """The rows of the examples in the forward pass that began last, if it has others too."""
        return self._rows.get(self._pass.number)

    def _alias(self, parameter: nn.Parameter) -> Tensor:
        """Return the alias of a parameter: one for all forward passes until the next `reset`, so that what flows
        back into several of them at once arrives as one tensor.
        """
        group = self._groups.get(id(parameter))
        if id(parameter) not in self._aliases:
            made = {id(parameter): apply(_Alias, parameter, self)} if group is None else group.aliases(self)
            self._aliases.update(made)
        return self._aliases[id(parameter)]

    def handed_on(self, parameter: nn.Parameter, gradient: Tensor) -> Tensor | None:
        """Return the clipped gradient of a parameter, which is on its way to it; that of a shard is there then.

        FSDP is done with a layer before its group is, and has cut its parameters into shards again.
        """
        if is_shard(parameter):
            add_sum_(parameter, gradient)
            return None
        self.under_way[id(parameter)] = gradient
        return gradient

    def gradients(self, group: _Group) -> Iterator[Tensor]:
        """Return the clipped gradients of a group; count the examples, and if its length moves those within it."""
        clips = group.clips
        moved = self.lengths().get(clips.name)
        clip = (clips if moved is None else replace(clips, length=moved)).clip(self.normaliser())

        def note(number: int, norms: Tensor) -> None:
            rows = self._rows.get(number)
            norms = norms if rows is None else rows.picked(norms)  # the others are no examples
            self.clipped.append((group, len(norms)))
            if moved is not None:
                self.within.append((clips.name, count_within(norms, clip.length)))

        return group.gradients(clip, note)

    @property
    def most_clipped(self) -> int:
        """How many examples flowed back into a clip group since `reset`: of that which most did."""
        examples: Counter[_Group] = Counter()
        for group, number in self.clipped:
            examples[group] += number
        return max(examples.values(), default=0)

    def _arrive(self, parameter: int, gradient: Tensor) -> None:
        """Note where a gradient that arrives came from."""
        if self.under_way.pop(parameter, None) is not gradient:
            self.foreign.add(self._watched[parameter][0])

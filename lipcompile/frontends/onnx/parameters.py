"""Stored tensors -> parameters: their constraints, their certified norms, and which of them are one."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from fractions import Fraction
from functools import cached_property
from math import isqrt
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from lipcompile.core.graph import GraphBuilder, ParameterChoice, Value
from lipcompile.core.names import identifier
from lipcompile.core.record import AnyOp, Constraint, Shape, Site
from lipcompile.diagnostics import Diagnostic, Refusal, Severity
from lipcompile.frontends.onnx.copies import KEEP
from lipcompile.frontends.onnx.entries import repeats
from lipcompile.frontends.onnx.node import module_of
from lipcompile.frontends.onnx.values import Known, accepted, floats, toggled
from lipcompile.frontends.options import ModelOptions
from lipcompile.numbers import text
from lipcompile.numbers.rounding import round_up
from lipcompile.ops import norms
from lipcompile.ops.conv.rules import WINDOWS, gathered

if TYPE_CHECKING:
    from lipcompile.ops.counting import Window

Array = NDArray[Any]
# A name that people give; exporters end theirs in numbers.
_GIVEN = re.compile(r"(?!.*(?:^|_)\d+$)[A-Za-z]\w*(?:\.\w+)*", re.ASCII)

Key = tuple[frozenset[str], tuple[Hashable, ...]]

T = TypeVar("T")

ZERO, ONE = Fraction(0), Fraction(1)
# `keep` leaves room for the projection, which certifies by other means, to find the imported weight inside.
HEADROOM = 1 + Fraction(1, 2**20)
# Norms above the bound by less than this are rounding, not news.
TOLERANCE = 1 + Fraction(1, 10**6)


@dataclass(frozen=True)  # no slots: what is asked for several times is computed once
class Use:
    """A tensor in one role of one node."""

    op: AnyOp
    attributes: Any
    example: Shape
    role: str
    known: Known

    @property
    def key(self) -> Key:
        """What makes two tensors the same parameter."""
        return self.known.sources, self.known.moves

    @cached_property
    def site(self) -> Site[Any]:
        """The node around it; raises `Refusal` where the op does not apply."""
        inputs = (self.example,)
        return Site(self.attributes, inputs, self.op.shape(self.attributes, inputs))

    @cached_property
    def length(self) -> Fraction:
        """The root of the sum of squares of the tensor, rounded up; raises ValueError if it is not finite."""
        return norms.euclidean_norm(self.known.array)

    @cached_property
    def room(self) -> Fraction:
        """1/√P, rounded up, for a bias that is added at P positions; 1 for tokens, which are added at one."""
        positions = self.site.entries // self.known.array.size if self.role == "bias" else 1
        return round_up(1 / Fraction(isqrt(positions)), 7) if positions else Fraction(1)

    @property
    def shifts(self) -> bool:
        """Whether the tensor is added or put beside others: a bias, or tokens, in a ball."""
        return self.op.parameter(self.role).constraints == ("ball",)


@dataclass(frozen=True, slots=True)
class Owner:
    """The parameter that a stored tensor is, and what it was made of."""

    use: Use
    parameter: str
    array: Array


@dataclass(slots=True)
class Parameters:
    """The parameters of a model so far. `stored` are the names of its initializers.

    frozen: the constants that are not trained, where that is known of all; these have no sources.
    several: stored tensors that were refused, as they are used in several ways, or in one that no op has.
    computed: stored tensors of which others are computed that are trained, and the operator that does so first.
    copied: stored tensors of which a weight has an entry several times.
    """

    builder: GraphBuilder
    options: ModelOptions
    stored: frozenset[str]
    frozen: frozenset[str] | None = None
    several: set[str] = field(default_factory=set)
    computed: dict[str, str] = field(default_factory=dict)
    copied: set[str] = field(default_factory=set)
    _owners: dict[str, Owner] = field(default_factory=dict)
    _cut: dict[str, Hashable] = field(default_factory=dict)
    _wholes: dict[str, str] = field(default_factory=dict)
    _held: set[str] = field(default_factory=set)
    _met: set[str] = field(default_factory=set)
    _keys: set[Key] = field(default_factory=set)
    _numbers: set[str] = field(default_factory=set)
    _alike: dict[Hashable, list[str]] = field(default_factory=dict)

    def sources(self, names: Iterable[str]) -> frozenset[str]:
        """Return those of some constants that may be trained: what makes a weight of what is computed of them."""
        return frozenset(names) - (self.frozen or frozenset())

    def part(self, known: Known, array: Array, label: str, cut: Hashable, origin: str) -> Known:
        """Return a part of a constant as a parameter; raises Refusal if the constant has another use as well.

        `cut` tells how the constant is cut: its parts do not overlap, and equal cuts mean equal parts. `origin`
        names a constant that is computed from no stored tensor.
        """
        for source in sorted(known.sources):
            if source in self._owners or self._cut.setdefault(source, (cut, known.moves)) != (cut, known.moves):
                raise self._used_in_another_way(source)
        own = {source: f"{source}[{label}]" for source in known.sources or (origin,)}
        self._wholes |= {name: source for source, name in own.items() if source in self.stored}
        self.stored |= {name for source, name in own.items() if source in self.stored}
        if self.frozen is not None and not known.sources:
            self.frozen |= {*own.values()}
        return replace(known, array=array, sources=frozenset(own.values()))

    def is_trained(self, known: Known) -> bool:
        """Whether a constant is made of what is trained, where that is known."""
        return self.frozen is not None and bool(known.sources - self.frozen)

    def will_train(self, known: Known) -> bool:
        """Whether a constant is trained, in whatever way the model uses it: where all is clipped."""
        return self.options.bounds == "clip" and self.is_trained(known)

    def is_fixed(self, known: Known) -> bool:
        """Whether a constant is known to be made of nothing that is trained."""
        return self.frozen is not None and not known.sources - self.frozen

    def constants(self) -> list[str]:
        """Return the stored tensors that the model trains, where that is known, and that became constants here."""
        trained = frozenset() if self.frozen is None else self.stored - self.frozen
        return sorted(self._whole(trained - (self._met - self._numbers) - self._cut.keys()))

    def _whole(self, sources: Iterable[str]) -> set[str]:
        """Return what the file stores of some sources: of a part, what it was cut from."""
        return {self._wholes.get(source, source) for source in sources}

    def held(self) -> list[str]:
        """Return those of `constants` that are used as they are; others are parts of what is trained."""
        return [name for name in self.constants() if name in self._held]

    def hold(self, known: Known) -> None:
        """Note that a constant is used as it is, and not trained; raises Refusal if it is trained elsewhere.

        Single numbers are exempt: exporters store the ones and halves of unrelated formulas once.
        """
        if known.array.size < 2:
            self._numbers |= known.sources
            return
        for source in sorted(known.sources & (self._owners.keys() | self._cut.keys())):
            raise self._used_in_another_way(source)
        self._held |= known.sources

    def join(self, known: Known) -> None:
        """Note a constant that became a part of a parameter, as the factors of a normalisation are folded."""
        self._met |= known.sources
        self._keys.add((known.sources, known.moves))

    def account(self, known: Known) -> None:
        """Note a constant that a tensor of the example met, after all nodes: is it a parameter, or none?"""
        if self._cut.keys().isdisjoint(known.sources) and not self._has(known):
            self._numbers |= known.sources
            self._held |= known.sources

    def _has(self, known: Known) -> bool:
        """Whether a constant, turned and cut and scaled perhaps, is a parameter that is trained."""
        begun = (known.moves, toggled(known))
        return any(
            sources == known.sources and any(moves[: len(one)] == one for one in begun)
            for sources, moves in self._keys
        )

    def add(
        self,
        op: AnyOp,
        attributes: Any,
        operand: Value,
        tensors: Sequence[tuple[str, Known]],
        name: str,
        *,
        frozen: bool = False,
    ) -> Value:
        """Add a node with parameters; a tensor that another node has already is the same parameter.

        Raises PoisonedError.
        """
        name = self._own_name(tensors) or name
        uses = [Use(op, attributes, operand.shape or (), role, known) for role, known in tensors]
        choices = {
            use.role: self._choice(use, name, trainable=not frozen and self._is_trainable(use)) for use in uses
        }
        value = accepted(self.builder.add(op, attributes, [operand], name=name, parameters=choices))
        for use in uses:
            self._register(use, choices[use.role], f"{value.name}.{use.role}")
        return value

    def level(self) -> None:
        """Give biases of one shape, at equally many positions, one bound: the largest of theirs.

        So blocks that are repeated in a file stay copies of each other, whatever their weights are.
        """
        for names in self._alike.values():
            found = [self.builder.parameter(name).constraint for name in names]
            largest = max(found, key=lambda one: one.bound if isinstance(one.bound, Fraction) else ONE)
            for name in names:
                self.builder.constrain(name, largest)

    def _own_name(self, tensors: Sequence[tuple[str, Known]]) -> str:
        """Return what a stored tensor is called that is no layer's: positions, a class token. Empty for others."""
        (role, known), *others = tensors
        source = next(iter(known.sources), "")
        alone = len(known.sources) == 1 and not others and role != "weight"
        given = source in self.stored and _GIVEN.fullmatch(source) and not module_of(source)
        return source if alone and given else ""

    @property
    def _clips(self) -> bool:
        """Whether gradients may be clipped, where nothing constrains weights."""
        return self.options.bounds in ("clip", "auto")

    def _is_kept(self, parameter: str) -> bool:
        """Whether --freeze names a parameter, where clips leave weights unconstrained: it keeps its norm."""
        return self._clips and any(fnmatchcase(parameter, glob) for glob in self.options.freeze)

    def _choice(self, use: Use, name: str, *, trainable: bool) -> ParameterChoice:
        if use.known.copies is not None:
            raise Refusal("LIP108", f"the {use.role} is made of copies for each example", KEEP)
        array = floats(use.known.array, f"the {use.role}")
        shared = self._shared_or_untied(use, array, name) if trainable else None
        kept = self._is_kept(f"{identifier(name)}.{use.role}")
        constraint = self._constraint(use, array, trainable and not kept)
        return ParameterChoice(constraint, trainable, array, shared)

    def _shared_or_untied(self, use: Use, array: Array, name: str) -> str | None:
        """As `_shared`; `fix` makes a weight of its own of what is used in a second way.

        Where such a tensor may be read otherwise, it is told, and all that follows keeps its shape.
        """
        repairs = self.options.repairs
        try:
            return self._shared(use, array)
        except Refusal as refusal:
            if (repairs is None or not repairs.unties) and self._clips and self.frozen is not None:
                self.builder.diagnostics.append(Diagnostic(refusal.code, refusal.message, refusal.help))
                return None
            if repairs is None or not repairs.unties:
                raise
            tied = ", ".join(f"`{source}`" for source in sorted(use.known.sources))
            repairs.note(name, f"{tied}, which is used in another way -> a weight of its own")
            return None

    def _shared(self, use: Use, array: Array) -> str | None:
        """Return the parameter that the tensor is already; refuse a tensor that is used in different ways."""
        for source in sorted(use.known.sources & self._owners.keys()):
            owner = self._owners[source]
            is_same = owner.use.key == use.key and np.array_equal(array, owner.array)
            if is_same and self._may_share(owner, use):
                return owner.parameter
            raise self._used_in_another_way(source)
        for source in sorted(use.known.sources & (self._cut.keys() | self._held)):
            raise self._used_in_another_way(source)
        return None

    def _may_share(self, owner: Owner, use: Use) -> bool:
        """Whether a use is one of a parameter, in its way or another. Clips need no constraint for both."""
        first = owner.use
        if (first.op, first.role) == (use.op, use.role):
            return True
        kind = "free" if self._clips else self.builder.parameter(owner.parameter).constraint.kind
        return first.op.parameter(first.role).may_share(use.op.parameter(use.role), kind)

    def has_transpose(self, known: Known) -> bool:
        """Whether a parameter is the transpose of a constant matrix, made of the same stored tensor."""
        moved = (known.sources, toggled(known))
        return any(source in self._owners and self._owners[source].use.key == moved for source in known.sources)

    def computed_with(self, known: Known, refusal: Refusal) -> Refusal:
        """Return a refusal of trained tensors that no op has as a parameter; by clips they may be tensors."""
        self.several |= self._whole(known.sources)
        return refusal

    def _used_in_another_way(self, source: str) -> Refusal:
        self.several |= self._whole([source])
        elsewhere = f"than as `{self._owners[source].parameter}`" if source in self._owners else "than elsewhere"
        message = f"the stored tensor `{source}` is used here in another way {elsewhere}"
        help_line = "give each layer a tensor of its own"
        if not self._clips:
            help_line += ", or use --bounds clip, under which a parameter may be used in several ways"
        return Refusal("LIP308", message, help_line)

    def _register(self, use: Use, choice: ParameterChoice, parameter: str) -> None:
        self._met |= use.known.sources
        self._keys.add(use.key)
        if choice.trainable:
            stored = {source: op for source, op in use.known.computed.items() if source in self.stored}
            self.computed |= {source: op for source, op in stored.items() if source not in self.computed}
        if choice.shared is not None or choice.initial is None or not choice.trainable:
            return
        self._owners |= dict.fromkeys(use.known.sources, Owner(use, parameter, choice.initial))
        if use.shifts and self.options.bias_bound is None and self.options.constraint != "keep":
            alike = (use.op.name, use.role, choice.initial.shape, use.room)
            self._alike.setdefault(alike, []).append(parameter)
        self._warn(use, choice, parameter)
        self._warn_of_copies(use.known, parameter)

    def _is_trainable(self, use: Use) -> bool:
        """A single number written into the graph, and not stored among the weights, is no parameter."""
        if self.frozen is not None:
            return bool(use.known.sources - self.frozen)
        return use.known.array.size > 1 or bool(use.known.sources & self.stored)

    def _constraint(self, use: Use, array: Array, trainable: bool) -> Constraint:
        wanted = self.options.constraint
        if use.shifts:
            return Constraint("ball", self._ball(use, array, trainable))
        (first, *_) = use.op.parameter(use.role).constraints
        if first in ("box", "rows"):
            keep = (wanted == "keep" or not trainable) and _is_finite(array)
            return Constraint(first, _roomy(_stored_norm(first, array)) if keep else Fraction(1))
        if isinstance(wanted, Constraint) and trainable:
            return wanted
        measured = _norm(use, array) if wanted == "keep" or not trainable else None
        if measured is None:
            return Constraint("spectral", Fraction(1))
        return Constraint("spectral", _roomy(measured.bound), measured.method)

    def _ball(self, use: Use, array: Array, trainable: bool) -> Fraction:
        """Return the bound of a bias or of tokens: by default room for the stored values, up to 1; see `level`.

        A bias is added at P positions, with the norm √P·B in all. It always has room for a total of 1.
        """
        if trainable and self.options.bias_bound is not None:
            return self.options.bias_bound
        stored = _roomy(use.length) if _is_finite(array) else Fraction(1)
        if not trainable or self.options.constraint == "keep":
            return stored
        return min(ONE, max(stored, use.room))

    def _warn(self, use: Use, choice: ParameterChoice, parameter: str) -> None:
        """Say so if the first projection will change what was imported; with clips there is none."""
        bound = choice.constraint.bound
        if choice.initial is None or not isinstance(bound, Fraction) or self.options.bounds == "clip":
            return
        excess = _excess(use, choice.initial, choice.constraint.kind, bound)
        if excess:
            help_line = "--constraint keep or a larger --bias-bound" if use.shifts else "--constraint keep"
            message, help_line = f"`{parameter}` {excess}", f"{help_line} keeps the imported values"
            self.builder.diagnostics.append(Diagnostic("LIP305", message, help_line, Severity.WARNING))

    def _warn_of_copies(self, known: Known, parameter: str) -> None:
        """Say so if entries that are one number in the model are trained apart from each other."""
        if repeats(known):
            self.copied |= known.sources
            sources = ", ".join(f"`{source}`" for source in sorted(known.sources))
            message = f"`{parameter}` has entries of {sources} several times: each copy is trained by itself"
            help_line = "write the copies into the model as a parameter, if that is meant"
            self.builder.diagnostics.append(Diagnostic("LIP122", message, help_line, Severity.WARNING))


def _roomy(norm: Fraction) -> Fraction:
    return round_up(norm * HEADROOM, 7)


def _excess(use: Use, array: Array, kind: str, bound: Fraction) -> str:
    """Return why the tensor is outside its constraint, or the empty string.

    A warning needs no proof: operator norms are estimated, as a certificate of each takes longer than the import.
    """
    stored, shown = use.length, _shown
    if kind in ("box", "rows"):
        norm = _stored_norm(kind, array)
    elif kind in ("frobenius", "ball"):
        norm = stored
    elif stored * gathered(use.op.name, use.site) <= bound:
        norm = ZERO
    else:
        norm = _of_map(use, array, norms.spectral_estimate, norms.convolution_estimate) or ZERO
        shown = _roughly
    if norm > bound * TOLERANCE:
        return f"has norm {shown(norm)}, outside its constraint of {text(bound)}: it will be scaled down"
    if kind == "orthogonal":
        groups = use.attributes.groups if use.op.name in WINDOWS else 1
        wanted = (groups * min(array.shape[0] // groups, array[0].size)) ** 0.5
        if abs(float(stored) - wanted) > 1e-3 * wanted:
            return "is not orthogonal: its singular values will be moved towards 1"
    return ""


def _norm(use: Use, array: Array) -> norms.Measured | None:
    """Return the certified norm of the weight as the map it is; None where the builder will refuse it."""
    return _of_map(use, array, norms.spectral_norm, norms.convolution_norm)


def _of_map(
    use: Use, array: Array, matrix: Callable[[Array], T], convolution: Callable[[Array, Sequence[Window], int], T]
) -> T | None:
    """Return what is asked of the weight as the map it is; None where the builder will refuse it."""
    if not _is_finite(array) or array.size == 0:
        return None
    if use.op.name not in WINDOWS:
        return matrix(array) if array.ndim == 2 else None
    try:
        site = use.site
    except Refusal:
        return None
    if array.shape != use.op.parameter("weight").shape(use.attributes, (use.example,)):
        return None
    return convolution(array, WINDOWS[use.op.name](site), use.attributes.groups)


def _stored_norm(kind: str, array: Array) -> Fraction:
    """Return the largest entry, or the largest norm of a row: the last axis."""
    if kind == "box":
        return _largest(array)
    return max((norms.euclidean_norm(row) for row in array.reshape(-1, array.shape[-1])), default=Fraction(0))


def _largest(array: Array) -> Fraction:
    """Return the largest absolute value of finite numbers."""
    return max((Fraction(abs(float(entry))) for entry in array.reshape(-1)), default=Fraction(0))


def _is_finite(array: Array) -> bool:
    return bool(np.isfinite(array).all())


def _roughly(norm: Fraction) -> str:
    """Write an estimate with the digits that are right as a rule."""
    return f"about {float(norm):.3g}" if norm < 10**300 else "above 1e300"


def _shown(norm: Fraction) -> str:
    """Write a norm with a few digits, rounded up."""
    return f"{math.ceil(float(norm) * 10**6) / 10**6:.7g}" if norm < 10**9 else f"{float(norm):.3e}"

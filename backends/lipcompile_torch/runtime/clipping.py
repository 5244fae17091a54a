"""Bounds by a clip within the backward pass: the gradient of one example, over a group of parameters, is scaled.

The gradient of an example in a parameter is a function P_i of what the layer read and of the cotangent of what it
made. Both are there, example by example, in an ordinary backward pass. So a layer whose parameter belongs to a
group does not compute its gradient. It notes the *use*: all that makes P_i. When the cotangents of all uses of all
parameters of the group are known, the norm n_i of the example over the group is known too, and with it the factor
s_i = min(1, C/n_i), or C/(n_i + γ). Then the gradients Σ_i s_i·P_i are computed, once (book-keeping, Bu et al.
2023).

What is handed on to the layer before is not scaled, so groups do not disturb one another. One group of all
parameters gives the gradients of Abadi et al. (2016), and one for each layer those of He et al. (2023).

Formal guarantees: let b be the normaliser. For every example, whatever the weights, the inputs and the loss are,
‖s_i·P̃_i‖ ≤ C/b over the group, where P̃_i is P_i as it is computed and added. An example whose norm is not finite
has s_i = 0, and changes nothing. P̃_i depends on the example alone if the numbers that a layer reads and gets back
for an example do not depend on the batch.

The sum over examples is added in float64, where the rounding of B examples stays below a unit of float32, and is
rounded to the dtype of the parameter in the end. Two kinds are rounded as :mod:`.sums` says: large matrices, and
all on other devices than processors, since P̃_i of a kernel is in float32 there, and its bits may depend on the
batch. `sum_depth` tells them apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import groupby
from operator import add
from typing import Protocol

import torch
from torch import Tensor

from .example_gradients import Clip, ExampleGradients
from .example_norms import example_norms
from .native_gradients import HeldGradients
from .precision import single_is_kept
from .sums import DEPTH, sum_of_each, sum_of_products

_INWARD = 1 - 2.0**-51
"""Covers the division of C by b."""

_AT_ONCE = 2**22
"""Entries of gradients of examples that are held at once where a parameter has several uses."""

Note = Callable[[Tensor], None]


@dataclass(frozen=True, slots=True)
class ClipGroup:
    """Parameters whose gradients one clip bounds together.

    Args:
        name: of the group.
        parameters: names, as `named_parameters` has them.
        length: C, which the gradient of one example's loss over the group is clipped to.
        regulariser: None for min(1, C/n) of a gradient of norm n; γ for C/(n + γ), "automatic" (Bu et al. 2022).

    Raises:
        ValueError: no parameters; C or γ is not positive and finite.
    """

    name: str
    parameters: tuple[str, ...]
    length: float
    regulariser: float | None = None

    def __post_init__(self) -> None:
        Clip(self.length, self.regulariser)  # which checks them
        if not self.parameters:
            raise ValueError(f"the group {self.name!r} of clips has no parameters")

    def clip(self, normaliser: float) -> Clip:
        """Return the clip of gradients that are divided by the normaliser, as those of the criterion are."""
        regulariser = None if self.regulariser is None else self.regulariser / normaliser
        return Clip(self.length / normaliser * _INWARD, regulariser)


def as_clipped(gradients: Mapping[str, Tensor], groups: Sequence[ClipGroup]) -> dict[str, Tensor]:
    """Return the gradient of one example's loss, by parameter, as the groups scale it.

    A group whose gradient is not finite counts as zero. Differentiable.
    """
    found = dict(gradients)
    for group in groups:
        parts = [found[name].double() for name in group.parameters]
        norm = torch.stack([part.norm() for part in parts]).norm()
        factor = group.clip(1.0).scaling(1, None).factors(norm)
        for name, part in zip(group.parameters, parts, strict=True):
            scaled = torch.zeros_like(part) if float(factor.detach()) == 0 else part * factor
            found[name] = scaled.to(gradients[name].dtype)
    return found


class Use(Protocol):
    """One use of a parameter by a batch: the gradients P_i in it, example by example.

    Attributes:
        examples: B.
    """

    @property
    def examples(self) -> int:
        """B."""
        ...  # pragma: no cover

    def squares(self) -> Tensor:
        """Return ‖P_i‖², [B] in float64; not finite where P_i is not."""
        ...  # pragma: no cover

    def total(self, factors: Tensor) -> Tensor:
        """Return Σ factor_i·P_i, flat; an example with factor 0 adds nothing, not even NaN."""
        ...  # pragma: no cover

    def rows(self, some: slice) -> Tensor:
        """Return P_i of some examples, [c, entries] in float64."""
        ...  # pragma: no cover


@dataclass(frozen=True, slots=True)
class Summed:
    """A use whose gradients are held: of a parameter that is added or multiplied at every position.

    Args:
        gradients: [B, *parameter] in float64.
    """

    gradients: Tensor

    @staticmethod
    def of_spread(cotangent: Tensor, shape: Sequence[int]) -> Summed:
        """Return the use of a parameter of this shape, broadcast to the examples of a cotangent [B, *example]."""
        lead = cotangent.dim() - len(shape)
        wide = [lead + axis for axis, own in enumerate(shape) if own == 1 != cotangent.shape[lead + axis]]
        axes = [*range(1, lead), *wide]
        return Summed(sum_of_each(cotangent, tuple(axes)).reshape(len(cotangent), *shape))

    @property
    def examples(self) -> int:
        """B."""
        return len(self.gradients)

    def squares(self) -> Tensor:
        """Return ‖P_i‖², [B]."""
        return self.gradients.flatten(1).square().sum(1)

    def total(self, factors: Tensor) -> Tensor:
        """Return Σ factor_i·P_i, flat."""
        return factors @ _without(self.gradients.flatten(1), factors)

    def rows(self, some: slice) -> Tensor:
        """Return P_i of some examples, [c, entries]."""
        return self.gradients[some].flatten(1)


@dataclass(frozen=True)
class Outer:
    """The use of a matrix by vectors: P_i = g_i·x_iᵀ, whose norm is ‖g_i‖·‖x_i‖.

    Formal guarantees: a matrix of at most :data:`_SMALL` entries is added in float64, if the vectors are in less.
    Of another one products are rounded to float32 and added as :mod:`.sums` says, which is faster. There g_i is
    scaled by s_i where ‖x_i‖ is between 2⁻⁴⁰ and 2⁴⁰. Elsewhere g_i is scaled by s_i·‖x_i‖ and x_i to 1, so that
    no entry overflows, and where s_i is below the normal numbers of float32; which of the two depends on the
    example alone. First s_i is rounded to float32, by 2⁻²⁴ of it; elsewhere vectors are scaled in float64.
    Each entry is rounded to float32, by 2⁻²⁴ of it or by 2⁻¹⁵⁰, and products of entries are rounded again.
    :data:`_ROUNDED` pays for that, as C/b is at least :data:`_LEAST`. :data:`_COARSE` pays for devices that round
    operands of float32 to TF32 or bfloat16.

    Args:
        read: x, [B, d].
        made: g, [B, p].
    """

    read: Tensor
    made: Tensor

    @property
    def examples(self) -> int:
        """B."""
        return len(self.read)

    @cached_property
    def _length(self) -> Tensor:
        """‖x_i‖, [B]."""
        return example_norms(self.read)

    def squares(self) -> Tensor:
        """Return ‖P_i‖², [B]."""
        return (self._length * example_norms(self.made)).square()

    def total(self, factors: Tensor) -> Tensor:
        """Return Σ factor_i·P_i, flat."""
        small = self.made.shape[1] * self.read.shape[1] <= _SMALL
        narrow = torch.float64 not in (self.made.dtype, self.read.dtype)
        return (self._in_double(factors) if small and narrow else self._by_runs(factors)).flatten()

    def _in_double(self, factors: Tensor) -> Tensor:
        made, read = (_without(rows, factors).double() for rows in (self.made, self.read))
        return (made * factors[:, None]).mT @ read

    def _by_runs(self, factors: Tensor) -> Tensor:
        dtype = torch.promote_types(torch.promote_types(self.read.dtype, self.made.dtype), torch.float32)
        length = self._length
        is_plain = (length >= 1 / _LONG) & (length <= _LONG)
        unit = torch.where(is_plain, 1.0, length)
        room = _ROUNDED if dtype == torch.float64 or single_is_kept(self.read.device) else _COARSE
        scale = factors * unit * room
        narrow, range_ = scale.to(dtype), torch.finfo(dtype)
        made, read = self.made * narrow[:, None], self.read
        rest = torch.nonzero(~(is_plain & (narrow >= range_.tiny) & (narrow <= range_.max)))[:, 0]
        if len(rest):
            scale, unit = scale[rest, None], unit[rest, None]
            used = torch.minimum(scale, unit) >= _VANISHED
            made[rest] = torch.where(used, self.made[rest].double() * scale, 0.0).to(dtype)
            others = torch.where(used, read[rest].double() / unit, 0.0).to(dtype)
            read = read.to(dtype, copy=True).index_copy_(0, rest, others)
        return sum_of_products(made, read)

    def rows(self, some: slice) -> Tensor:
        """Return P_i of some examples, [c, entries]."""
        return (self.made[some].double()[:, :, None] * self.read[some].double()[:, None, :]).flatten(1)


_SMALL = 2**16

_ROUNDED = 1 - 2.0**-21
"""Covers the rounding of scales, of scaled vectors and of their products, four times by 2⁻²⁴ of an entry."""

_COARSE = 1 - 2.0**-7
"""Covers the rounding of both operands to bfloat16, by 2⁻⁹ of an entry each, or to TF32."""

_VANISHED = 2.0**-1000
"""What is scaled or divided by less adds nothing: a subnormal scale or length would not be exact to 2⁻²¹."""

_LONG = 2.0**40
_LEAST = 2.0**-60
"""Least C/b: a subnormal entry of a scaled vector is off by 2⁻¹⁵⁰, which times √n·2⁴⁰ is far below C/b·2⁻²². Least
γ/b as well: gradients in float64 of 10⁻¹⁷⁰ have a norm that is computed as 0."""


@dataclass(frozen=True, slots=True)
class Products:
    """The use of a kernel, or of a matrix by tokens.

    Args:
        gradients: of examples, or what they are made of.
    """

    gradients: ExampleGradients | HeldGradients

    @staticmethod
    def of(gradients: ExampleGradients) -> Products:
        """Return the use of gradients, which are computed now, and once, where they are small: then what the layer
        read need not be kept.
        """
        return Products(gradients.held() or gradients)

    @property
    def examples(self) -> int:
        """B."""
        return self.gradients.examples

    def squares(self) -> Tensor:
        """Return ‖P_i‖², [B]."""
        return self.gradients.norms().square()

    def total(self, factors: Tensor) -> Tensor:
        """Return Σ factor_i·P_i, flat."""
        return self.gradients.scaled(factors).flatten()

    def rows(self, some: slice) -> Tensor:
        """Return P_i of some examples, [c, entries]."""
        return self.gradients.rows(some)


@dataclass(frozen=True, slots=True)
class Selected:
    """The use of a table of which each token selects a row: P_i is the sum of cotangents by row.

    Args:
        tokens: [B, n], whole numbers.
        made: [B, n, width].
        entries: of the table.
    """

    tokens: Tensor
    made: Tensor
    entries: int

    @property
    def examples(self) -> int:
        """B."""
        return len(self.tokens)

    def _by_row(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the rows that examples use: the example and the place of each, and the sum of its cotangents."""
        examples = torch.arange(len(self.tokens), device=self.tokens.device)[:, None]
        keys, place = torch.unique(self.tokens + examples * self.entries, return_inverse=True)
        width = self.made.shape[-1]
        sums = torch.zeros(len(keys), width, dtype=torch.float64, device=self.made.device)
        sums.index_add_(0, place.flatten(), self.made.reshape(-1, width).double())
        return keys // self.entries, keys % self.entries, sums

    def squares(self) -> Tensor:
        """Return ‖P_i‖², [B]."""
        examples, _, sums = self._by_row()
        found = torch.zeros(len(self.tokens), dtype=torch.float64, device=self.made.device)
        return found.index_add_(0, examples, sums.square().sum(1))

    def total(self, factors: Tensor) -> Tensor:
        """Return Σ factor_i·P_i, flat."""
        examples, rows, sums = self._by_row()
        found = torch.zeros(self.entries, self.made.shape[-1], dtype=torch.float64, device=self.made.device)
        scaled = _without(sums, factors[examples]) * factors[examples][:, None]
        return found.index_add_(0, rows, scaled).flatten()

    def rows(self, some: slice) -> Tensor:
        """Return P_i of some examples, [c, entries]."""
        part = Selected(self.tokens[some], self.made[some], self.entries)
        examples, rows, sums = part._by_row()
        found = torch.zeros(part.examples, self.entries, self.made.shape[-1], dtype=torch.float64)
        found = found.to(self.made.device)
        found[examples, rows] = sums
        return found.flatten(1)


@dataclass(frozen=True, slots=True)
class Several:
    """Several uses of one parameter, whose gradients of an example add up: shared weights, recurrent cells.

    Args:
        uses: of the same examples and the same entries.
        entries: of the parameter.
    """

    uses: tuple[Use, ...]
    entries: int

    @property
    def examples(self) -> int:
        """B."""
        return self.uses[0].examples

    def rows(self, some: slice) -> Tensor:
        """Return P_i of some examples, [c, entries]."""
        return reduce(add, (use.rows(some) for use in self.uses))

    def _chunks(self) -> list[slice]:
        step = max(_AT_ONCE // max(self.entries, 1), 1)
        return [slice(start, start + step) for start in range(0, self.examples, step)]

    def squares(self) -> Tensor:
        """Return ‖P_i‖², [B]."""
        parts = [self.rows(some).square().sum(1) for some in self._chunks()]
        return torch.cat(parts) if parts else self.uses[0].squares()

    def total(self, factors: Tensor) -> Tensor:
        """Return Σ factor_i·P_i, flat."""
        parts = (factors[some] @ _without(self.rows(some), factors[some]) for some in self._chunks())
        return reduce(add, parts, torch.zeros(self.entries, dtype=torch.float64, device=factors.device))


def clipped(
    uses: Sequence[Sequence[Use]], entries: Sequence[int], clip: Clip, note: Note | None = None
) -> Iterator[Tensor]:
    """Yield Σ_i s_i·P_i of each parameter of a group, flat.

    Args:
        uses: of each parameter, by the same B examples.
        entries: of each parameter.
        clip: of the gradient of one example over the group.
        note: is given the norms n_i, [B] in float64.
    """
    whole = [_joined(found, size) for found, size in zip(uses, entries, strict=True)]
    present = [use for use in whole if use is not None]
    if not present:
        yield from (torch.zeros(size, dtype=torch.float64) for size in entries)
        return
    kernels = [
        (use, use.gradients)
        for use in present
        if isinstance(use, Products) and isinstance(use.gradients, ExampleGradients)
    ]
    known: dict[int, Tensor] = {}
    if len(kernels) == 1:  # its norms and its sum in one pass
        ((kernel, gradients),) = kernels
        others = [use.squares() for use in present if use is not kernel]
        found = gradients.clipped(_narrowed(clip, sum(entries)), reduce(add, others) if others else None)
        norms, factors, known[id(kernel)] = found.norms, found.factors, found.total.flatten()
    else:
        norms = reduce(add, (use.squares() for use in present)).sqrt()
        factors = clip.scaling(sum(entries) + len(present), None).factors(norms)
    if note is not None:
        note(norms)
    for use, size in zip(whole, entries, strict=True):
        if use is None:
            yield torch.zeros(size, dtype=torch.float64, device=factors.device)
        else:
            yield known[id(use)] if id(use) in known else use.total(factors)


def _narrowed(clip: Clip, entries: int) -> Clip:
    """Return a clip that leaves room for the rounding of the squares of that many entries beside a kernel's."""
    return Clip(clip.length * (1 - (entries + 8) * 2.0**-52), clip.regulariser)


def _joined(uses: Sequence[Use], entries: int) -> Use | None:
    """Return all uses of a parameter as one; None if there are none."""
    if len(uses) < 2:
        return uses[0] if uses else None
    if all(isinstance(use, Summed) for use in uses):
        return Summed(reduce(add, (use.gradients for use in uses if isinstance(use, Summed))))
    return Several(tuple(uses), entries)


def _without(rows: Tensor, factors: Tensor) -> Tensor:
    """Return [B, n] with the rows of factor 0 set to 0: they need not be finite."""
    return rows if bool((factors > 0).all()) else rows.masked_fill((factors == 0)[:, None], 0.0)


# --- what a forward pass notes -----------------------------------------------------------------------------------


@dataclass(slots=True)
class ForwardPass:
    """The number of the forward pass of a module that is under way: one place, so that threads see it change."""

    number: int = -1


class Noted:
    """The uses of one parameter of a group that a backward pass has met, by forward pass.

    Backward passes that are under way at the same time, in threads, are kept apart.

    Args:
        parameter: that is used.
        under_way: the forward pass that uses it now.

    Attributes:
        placeholder: what layers send back in the place of the gradient, 0-dim.
    """

    def __init__(self, parameter: Tensor, under_way: ForwardPass) -> None:
        self._under_way = under_way
        self.placeholder = parameter.detach().new_zeros(())
        self._shape = parameter.shape
        self._uses: dict[int, list[tuple[int, Use]]] = {}

    def ticket(self) -> Ticket:
        """Return what a use in the forward pass that is under way is noted by."""
        return Ticket(self, self._under_way.number)

    def note(self, forward_pass: int, use: Use) -> Tensor:
        """Note a use; return what takes the place of the gradient."""
        self._uses.setdefault(_backward_pass(), []).append((forward_pass, use))
        return self.placeholder.expand(self._shape)

    def is_foreign(self, cotangent: Tensor | None) -> bool:
        """Whether what arrives for the parameter is more than placeholders."""
        if cotangent is None or cotangent.data_ptr() == self.placeholder.data_ptr():
            return False
        return bool((cotangent != 0).any())  # several placeholders were added up

    def taken(self) -> dict[int, list[Use]]:
        """Return the uses of the backward pass that is under way by forward pass, and forget them."""
        uses = sorted(self._uses.pop(_backward_pass(), []), key=lambda pair: pair[0])
        return {number: [use for _, use in found] for number, found in groupby(uses, lambda pair: pair[0])}

    def forget(self) -> None:
        """Forget all uses: those of a backward pass that did not end."""
        self._uses.clear()


def _backward_pass() -> int:
    """Return the number of the backward pass that is under way in this thread; -1 if there is none."""
    number: int = torch._C._current_graph_task_id()
    return number


@dataclass(frozen=True, slots=True)
class Ticket:
    """One use of a parameter in a forward pass, to be noted in the backward pass."""

    noted: Noted
    forward_pass: int

    def note(self, use: Use) -> Tensor:
        """Note what makes the gradients of the examples; return what takes the place of their sum."""
        return self.noted.note(self.forward_pass, use)


def sum_depth(parameter: Tensor) -> int:
    """Return the depth of the sum that is the gradient of a clipped parameter, see `precision.sum_slack`."""
    is_small = parameter.numel() <= _SMALL and parameter.dtype != torch.float64
    return 1 if is_small and parameter.device.type == "cpu" else DEPTH


def ticket_of(parameter: Tensor | None) -> Ticket | None:
    """Return the ticket of a parameter that the backward pass clips; None of any other tensor."""
    noted: Noted | None = getattr(parameter, "noted", None)
    return None if noted is None else noted.ticket()


def group_gradients(
    noted: Sequence[Noted], parameters: Sequence[Tensor], clip: Clip, note: Note | None = None
) -> Iterator[Tensor]:
    """Return the clipped gradients of a group, summed over the examples of all forward passes, in the shapes of
    the parameters. They are not rounded to their dtypes, and each is computed when it is asked for.

    Args:
        noted: uses of each parameter.
        parameters: of the group.
        clip: of the gradient of one example over the group.
        note: is given the norms n_i of each forward pass, [B] in float64.

    Raises:
        ValueError: uses by different numbers of examples in one forward pass, which would mix them; or a clip
            whose numbers are too small for the arithmetic.
    """
    for number in (clip.length, 1.0 if clip.regulariser is None else clip.regulariser):
        if number < _LEAST:
            raise ValueError(
                f"a clip with {number:.3g} for each example: C and γ over the batch size are 2⁻⁶⁰ at least"
            )
    taken = [one.taken() for one in noted]
    passes = sorted({number for found in taken for number in found})
    sums = [_of_pass([found.get(number, []) for found in taken], parameters, clip, note) for number in passes]
    if len(sums) == 1:
        return sums[0]
    totals = [torch.zeros_like(parameter, dtype=torch.float64) for parameter in parameters]
    for found in sums:
        totals = [total + one for total, one in zip(totals, found, strict=True)]
    return iter(totals)


def _of_pass(
    uses: Sequence[Sequence[Use]], parameters: Sequence[Tensor], clip: Clip, note: Note | None
) -> Iterator[Tensor]:
    """Return the sums of one forward pass, in the shapes of the parameters."""
    sizes = {use.examples for found in uses for use in found}
    if len(sizes) > 1:
        raise ValueError(
            f"layers of one group saw {' and '.join(map(str, sorted(sizes)))} examples in one forward pass: "
            "the first axis of all that they read must be the batch"
        )
    found = clipped(uses, [parameter.numel() for parameter in parameters], clip, note)
    return (total.reshape(parameter.shape) for total, parameter in zip(found, parameters, strict=True))

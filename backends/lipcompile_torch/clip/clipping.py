"""Bounds by a clip within the backward pass: the gradient of one example, over a group of parameters, is scaled.

The gradient of an example in a parameter is a function P_i of what the layer read and of the cotangent of what it
made. Both are there, example by example, in an ordinary backward pass. So a layer whose parameter belongs to a
group does not compute its gradient. It notes the *use*: all that makes P_i. When the cotangents of all uses of all
parameters of the group are known, the norm n_i of the example over the group is known too, and with it the factor
s_i = min(1, C/n_i), or C/(n_i + γ). Then the gradients Σ_i s_i·P_i are computed, once (book-keeping, Bu et al.
2023).

The cotangent that goes to the previous layer is not scaled, so groups do not affect one another. One group of all
parameters gives the gradients of Abadi et al. (2016), and one for each layer those of He et al. (2023).

Formal guarantees: let b be the normaliser. For every example, whatever the weights, the inputs and the loss are,
‖s_i·P̃_i‖ ≤ C/b over the group, where P̃_i is P_i as it is computed and added. An example whose norm is not finite
has s_i = 0, and changes nothing. P̃_i depends on the example alone if the numbers that a layer reads and gets back
for an example do not depend on the batch.

The sum over examples is added in float64, where the rounding of B examples stays below a unit of float32, and is
rounded to the dtype of the parameter in the end. Two kinds are rounded as :mod:`..certify.sums` says: large
matrices, and all on other devices than processors, since P̃_i of a kernel is in float32 there, and its bits may
depend on the batch. `sum_depth` tells them apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import torch
from torch import Tensor

from ..certify.sums import DEPTH
from ..devices import is_processor
from .bookkeeping import SMALL, LayerUse, Products, Summed, Use, joined
from .example_gradients import Clip, ExampleGradients
from .factors import Factors

_INWARD = 1 - 2.0**-51
"""Covers the division of C by b."""

_LEAST = 2.0**-60
"""Least C/b: a subnormal entry of a scaled vector is off by 2⁻¹⁵⁰, which times √n·2⁴⁰ is far below C/b·2⁻²². Least
γ/b as well: gradients in float64 of 10⁻¹⁷⁰ have a norm that is computed as 0."""

Note = Callable[[Tensor], None]
NoteOfPass = Callable[[int, Tensor], None]


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

    @property
    def has_length(self) -> bool:
        """Whether gradients are clipped to a length, which training may move; the automatic rule has none."""
        return self.regulariser is None

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
    whole = _at_once([joined(found, size) for found, size in zip(uses, entries, strict=True)])
    small = [use for use in whole if isinstance(use, Summed) and use.entries <= FEW]
    together = [Summed(torch.cat([use.wide() for use in small], 1))] if small else []
    apart = set(map(id, small))
    present: list[Use] = [use for use in whole if use is not None and id(use) not in apart] + [*together]
    if not present:
        yield from (torch.zeros(size, dtype=torch.float64) for size in entries)
        return
    kernels = _not_held(present)
    known: dict[int, Tensor] = {}
    if len(kernels) == 1:  # its norms and its sum in one pass
        ((kernel, gradients),) = kernels
        others = [use.norms() for use in present if use is not kernel]
        found = gradients.clipped(_narrowed(clip, sum(entries)), _length(others).square() if others else None)
        norms, factors, known[id(kernel)] = found.norms, found.factors, found.total.flatten()
    else:
        norms = _length([use.norms() for use in present])
        factors = clip.scaling(sum(entries) + len(present), None).factors(norms)
    if note is not None:
        note(norms)
    scaling = Factors.of(factors)
    for one in together:
        sums = torch.split(one.total(scaling), [use.entries for use in small])
        known.update((id(use), total) for use, total in zip(small, sums, strict=True))
    for use, size in zip(whole, entries, strict=True):
        if use is None:
            yield torch.zeros(size, dtype=torch.float64, device=factors.device)
        else:
            yield known[id(use)] if id(use) in known else use.total(scaling)


FEW = 2**12
"""Entries of a parameter whose gradients are put beside those of others: to begin an operation takes longer."""


def _not_held(uses: Sequence[Use | None]) -> list[tuple[Products, ExampleGradients]]:
    """Return the uses of kernels whose gradients are computed again wherever they are asked for."""
    kernels = [use for use in uses if isinstance(use, Products)]
    return [(use, use.gradients) for use in kernels if isinstance(use.gradients, ExampleGradients)]


def _at_once(uses: list[Use | None]) -> list[Use | None]:
    """Return the uses, of which a single kernel is held now if it can be: its norms and its sum are next."""
    kernels = _not_held(uses)
    rows = kernels[0][1].at_once() if len(kernels) == 1 else None
    return uses if rows is None else [Summed(rows) if use is kernels[0][0] else use for use in uses]


def _length(norms: list[Tensor]) -> Tensor:
    """Return the norm [B] of parts with norms [B] in float64."""
    length: Tensor = torch.linalg.vector_norm(torch.stack(norms), dim=0) if len(norms) > 1 else norms[0]
    return length


def _narrowed(clip: Clip, entries: int) -> Clip:
    """Return a clip that leaves room for the rounding of the squares of that many entries beside a kernel's."""
    return Clip(clip.length * (1 - (entries + 8) * 2.0**-52), clip.regulariser)


# --- what a forward pass notes -----------------------------------------------------------------------------------


@dataclass(slots=True)
class ForwardPass:
    """The forward pass of a module that is under way: one place, so that threads see it change.

    Attributes:
        number: of the pass.
        views: rows of an example.
    """

    number: int = -1
    views: int = 1


class Noted:
    """The uses of one parameter of a group that a backward pass has met, by forward pass.

    Backward passes that are under way at the same time, in threads, are kept apart.

    Args:
        parameter: that is used.
        under_way: the forward pass that uses it now.

    Attributes:
        placeholder: what layers send back in the place of the gradient: zeros without memory of their own.
    """

    def __init__(self, parameter: Tensor, under_way: ForwardPass) -> None:
        self._under_way = under_way
        self.placeholder = parameter.detach().new_zeros(()).expand(parameter.shape)
        self._uses: dict[int, list[tuple[int, Use]]] = {}

    def ticket(self) -> Ticket:
        """Return what a use in the forward pass that is under way is noted by."""
        return Ticket(self, self._under_way.number, self._under_way.views)

    def note(self, forward_pass: int, use: Use) -> Tensor:
        """Note a use; return what takes the place of the gradient."""
        self._uses.setdefault(_backward_pass(), []).append((forward_pass, use))
        return self.placeholder

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
    views: int

    def note(self, use: LayerUse) -> Tensor:
        """Note what makes the gradients of the rows; return what takes the place of their sum."""
        return self.noted.note(self.forward_pass, use.kept(self.views))


def sum_depth(parameter: Tensor) -> int:
    """Return the depth of the sum that is the gradient of a clipped parameter, see `precision.sum_slack`."""
    is_small = parameter.numel() <= SMALL and parameter.dtype != torch.float64
    return 1 if is_small and is_processor(parameter.device) else DEPTH


def ticket_of(parameter: Tensor | None) -> Ticket | None:
    """Return the ticket of a parameter that the backward pass clips; None of any other tensor."""
    noted: Noted | None = getattr(parameter, "noted", None)
    return None if noted is None else noted.ticket()


def group_gradients(
    noted: Sequence[Noted], parameters: Sequence[Tensor], clip: Clip, note: NoteOfPass | None = None
) -> Iterator[Tensor]:
    """Return the clipped gradients of a group, summed over the examples of all forward passes, in the shapes of
    the parameters. They are not rounded to their dtypes, and each is computed when it is asked for.

    Args:
        noted: uses of each parameter.
        parameters: of the group.
        clip: of the gradient of one example over the group.
        note: is given the number of each forward pass, and its norms n_i, [B] in float64.

    Raises:
        ValueError: uses by different numbers of examples in one forward pass, which would mix them; or a clip
            whose numbers are too small for the arithmetic.
    """
    for number in (clip.length, 1.0 if clip.regulariser is None else clip.regulariser):
        if number < _LEAST:
            raise ValueError(
                f"a clip with {number:.3g} for each example is too small: C and γ divided by the batch "
                "size must be at least 2⁻⁶⁰"
            )
    taken = [one.taken() for one in noted]
    passes = sorted({number for found in taken for number in found})
    sums = [
        _of_pass([found.get(number, []) for found in taken], parameters, clip, note and partial(note, number))
        for number in passes
    ]
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
            f"layers of one clip group saw {' and '.join(map(str, sorted(sizes)))} examples in one "
            "forward pass: the first axis of every input must be the batch"
        )
    totals = clipped(uses, [parameter.numel() for parameter in parameters], clip, note)
    found = zip(totals, parameters, strict=True)
    return (total.to(parameter.device).reshape(parameter.shape) for total, parameter in found)

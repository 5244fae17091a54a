"""Functions of Python that are given one example at a time: losses and networks of the user."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from ..clip.example_passes import Checked, line_of


class OneByOneWarning(UserWarning):
    """A function is computed of one example after the other."""


_OWN = "it calls a torch.autograd.Function, or another operator, whose rule for vmap may be its author's"
_HIDDEN = "nobody sees what torch.jit.script compiled"
_SEEDED = "it seeds torch's generator, whose numbers would be those of a place in the batch"
_WATCHED = (
    "it sets up saved_tensors_hooks or a TorchDispatchMode, which would be given the numbers of all examples"
)
_OTHER = "its result, or its gradient, is another one than that of one example"
_LOOPS: WeakKeyDictionary[Any, dict[bool, str]] = WeakKeyDictionary()
"""Why functions of these owners are computed of one example after the other, by mode; empty if `torch.vmap` is."""


def each_alone(
    function: Callable[..., Tensor],
    *given: Any,
    what: str,
    owner: Any,
    calm: Callable[..., Tensor] | None = None,
    is_training: bool = False,
    public: int = 0,
) -> Tensor:
    """Return [B, …], what a function makes of each example: it is given what stands at this place of each tensor.

    `torch.vmap` runs it. Some of torch's rules for that are wrong, so the first time its results and gradients are
    compared with those of two examples one after the other: of random ones, so that the first two do not decide
    how all others are computed, and of these as well. What `vmap` cannot run, or computes otherwise, is given
    copies of one example after another, which is slower, and warned of. Dropout or noise within the function draws
    for each example.

    Args:
        function: from what belongs to one example to a tensor of a fixed shape.
        given: tensors [B, …] with B ≥ 1, or tuples and mappings of some.
        what: the function, in warnings.
        owner: what stands for the function from call to call.
        calm: the function without random numbers, which is compared as well; None: there is none.
        is_training: the mode of the owner, in each of which the comparison is made.
        public: so many of the last that are given hold no data, but parameters.

    Formal guarantees: no row of the result depends on another example, if the function depends on its arguments
    alone, calls nothing that reads outside of its tensors, and nothing of which `torch.vmap` mixes examples unseen
    by the comparison.
    """
    known = _LOOPS.setdefault(owner, {})
    is_known = is_training in known or len(tree_leaves(given)[0]) < 2
    pairs = [] if is_known else _pairs(given, public)
    with Checked(what) as checked:
        if pairs:
            with torch.random.fork_rng([*{part.device for part in tree_leaves(given) if part.is_cuda}]):
                functions = [one for one in (calm, function) if one is not None]
                alike = all(_is_batched(one, pair) for pair in pairs for one in functions)
                known[is_training] = _unseen(function, pairs[-1], checked) if alike else _OTHER
        cause, place = known.get(is_training, ""), ""
        if not cause:
            checked.begin()
            try:
                found = torch.vmap(function, randomness="different")(*given)
                cause = _together(checked)
                if not cause:
                    return found
            except RuntimeError as error:
                place, cause = line_of(error), str(error).partition("\n")[0]
        found = _one_by_one(function, *given)
    warnings.warn(
        f"torch.vmap cannot run {what}{place}, so it is computed of one example after the other, which is "
        f"slower: use torch.where in the place of `if`, and no .item() "
        f"({cause})",
        OneByOneWarning,
        stacklevel=5,
    )
    return found


def _pairs(given: tuple[Any, ...], public: int) -> list[tuple[Any, ...]]:
    """Return pairs of random examples, normal ones and some within [0, 1], and the first two examples.

    Random ones are the same in each run, and zeros in the place of whole numbers. public: see `each_alone`.
    """
    first: tuple[Any, ...] = tree_map(lambda part: part[:2].detach(), given)
    data = len(first) - public

    def random(draw: Callable[..., Tensor], part: Tensor) -> Tensor:
        if not part.is_floating_point():
            return torch.zeros_like(part)
        return draw(part.shape, generator=torch.Generator().manual_seed(0)).to(part)

    drawn = [tree_map(partial(random, draw), first[:data]) for draw in (torch.randn, torch.rand)]
    return [*((*one, *first[data:]) for one in drawn), first]


def _together(checked: Checked) -> str:
    """Return why examples may have been computed together; nothing if they were not."""
    if checked.caught:
        return f"it goes on after an error: {checked.caught}"
    if checked.is_watched:
        return _WATCHED
    return _SEEDED if checked.is_seeded else _OWN if checked.is_own else ""


def _one_by_one(function: Callable[..., Tensor], *given: Any) -> Tensor:
    """Return the rows that a function makes of copies: in their memory are no numbers of other examples."""
    count = len(tree_leaves(given)[0])
    rows = (tree_map(lambda part, i=i: part[i].clone(), given) for i in range(count))
    return torch.stack([function(*row) for row in rows])


def _is_batched(function: Callable[..., Tensor], first: Any) -> bool:
    """Whether two examples have the results and the gradients under `vmap` that they have one after the other.

    So it is where random numbers forbid a comparison, and where the caller will meet an error.
    """
    try:
        alone = [_with_gradients(partial(_one_by_one, function), first) for _ in range(2)]
    except Exception:
        return True
    if not _alike(*alone):
        return True
    batched = torch.vmap(function, randomness="different")
    try:
        return _alike(alone[0], _with_gradients(batched, first))
    except RuntimeError:
        return not _runs(batched, first)  # only its backward pass fails, where nobody would catch it
    except Exception:
        return False


def _runs(batched: Callable[..., Tensor], first: Any) -> bool:
    try:
        batched(*first)
    except RuntimeError:
        return False
    return True


def _unseen(function: Callable[..., Tensor], first: Any, checked: Checked) -> str:
    """Return what `Checked` does not see of two examples, or would see in vain; nothing if it sees all."""
    with suppress(Exception), _Unseen(checked) as unseen:
        checked.begin()
        torch.vmap(function, randomness="different")(*first)
        return _together(checked) or (_HIDDEN if unseen.is_any else "")
    return ""  # it fails, and will where it is called


def _with_gradients(run: Callable[..., Tensor], given: Any) -> list[Tensor]:
    """Return the results of examples, and the gradients that what is given has of sums of them."""
    with torch.enable_grad():
        own = tree_map(lambda part: part.clone().requires_grad_(part.is_floating_point()), given)
        results = run(*own)
        weights = torch.linspace(0.5, 1.5, max(results.numel(), 1), dtype=results.dtype, device=results.device)
        total = (results.reshape(-1) * weights[: results.numel()]).sum()
        moving = [part for part in tree_leaves(own) if part.requires_grad]
        if not total.requires_grad:
            return [results]
        return [results, *torch.autograd.grad(total, moving, allow_unused=True, materialize_grads=True)]


def _alike(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    """Whether tensors agree: each up to a share of its largest number, or to the rounding of the others."""
    if [x.shape for x in one] != [x.shape for x in other]:
        return False
    sizes = [_largest(x) for x in one]
    return all(
        torch.allclose(x, y, rtol=0.0, atol=_ROUNDED * max(size, _ROUNDED * max(sizes)), equal_nan=True)
        for x, y, size in zip(one, other, sizes, strict=True)
    )


def _largest(x: Tensor) -> float:
    return float(x.detach().abs().nan_to_num(0.0, 0.0, 0.0).amax()) if x.numel() else 0.0


_ROUNDED = 1e-2  # by which half precision may move numbers


class _Unseen(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes operations that no function of torch has called which `Checked` sees: those that `torch.jit.script`
    compiled.
    """

    def __init__(self, checked: Checked) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._checked, self.is_any = checked, False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.is_any |= not self._checked.depth
        return func(*args, **(kwargs or {}))

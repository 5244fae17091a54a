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
from torch.nn import functional as F  # noqa: N812  (its name everywhere in this field)
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from ..clip.example_passes import line_of


class OneByOneWarning(UserWarning):
    """A function is computed of one example after the other."""


_IS_BATCHED: WeakKeyDictionary[Any, dict[bool, bool]] = WeakKeyDictionary()
"""Whether `torch.vmap` computes what functions of these owners compute of one example after the other, by mode."""


def each_alone(
    function: Callable[..., Tensor],
    *given: Any,
    what: str,
    owner: Any,
    calm: Callable[..., Tensor] | None = None,
    is_training: bool = False,
) -> Tensor:
    """Return [B, …], what a function makes of each example: it is given what stands at this place of each tensor.

    `torch.vmap` runs it. Some of torch's rules for that are wrong, so the first time its results and gradients are
    compared with those of two examples one after the other. What `vmap` cannot run, or computes otherwise, is
    given copies of one example after another, which is slower, and warned of. Dropout or noise within the function
    draws for each example.

    Args:
        function: from what belongs to one example to a tensor of a fixed shape.
        given: tensors [B, …] with B ≥ 1, or tuples and mappings of some.
        what: the function, in warnings.
        owner: what stands for the function from call to call.
        calm: the function without random numbers, which is compared; None: itself.
        is_training: the mode of the owner, in each of which the comparison is made.

    Formal guarantees: no row of the result depends on another example, if the function depends on its arguments
    alone, calls nothing that reads outside of its tensors, and nothing of which `torch.vmap` mixes examples unseen
    by the comparison.
    """
    known = _IS_BATCHED.setdefault(owner, {})
    with _Checked(what) as checked:
        cause, place = "", ""
        if is_training not in known and len(tree_leaves(given)[0]) > 1:
            first = tree_map(lambda part: part[:2].detach(), given)
            known[is_training] = _is_batched(calm or function, first) and _is_seen(function, first, checked)
        if known.get(is_training, True):
            try:
                return torch.vmap(function, randomness="different")(*given)
            except RuntimeError as error:
                place, cause = line_of(error), str(error).partition("\n")[0]
        found = _one_by_one(function, given)
    warnings.warn(
        f"torch.vmap cannot run {what}{place}, so it is computed of one example after the other, which is "
        f"slower: use torch.where in the place of `if`, and no .item() "
        f"({cause or 'its result, or its gradient, is another one than that of one example'})",
        OneByOneWarning,
        stacklevel=5,
    )
    return found


def _one_by_one(function: Callable[..., Tensor], given: Any) -> Tensor:
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
        return _alike(alone[0], _with_gradients(batched, first, spread=True))
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


def _is_seen(function: Callable[..., Tensor], first: Any, checked: _Checked) -> bool:
    """Whether `_Checked` sees all that it has to see, of two examples in both directions."""
    devices = {part.device for part in tree_leaves(first) if part.is_cuda}
    with torch.random.fork_rng(list(devices)), suppress(Exception), _Unseen(checked) as unseen:
        _with_gradients(torch.vmap(function, randomness="different"), first, spread=True)
    return not unseen.is_any


def _with_gradients(run: Callable[..., Tensor], given: Any, *, spread: bool = False) -> list[Tensor]:
    """Return the results of examples, and the gradients that what is given has of sums of them."""
    with torch.enable_grad():
        own = tree_map(lambda part: part.clone().requires_grad_(part.is_floating_point()), given)
        results = run(*own) if spread else run(own)
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


class _Checked(TorchFunctionMode):
    """Keeps functions of torch within one example whose rules under `vmap` do not look at the places they get.

    An embedding takes a place beyond the end of one example's table as a row of the next example's, and
    `index_fill` one beyond the end, or before the start, as an entry of another's. `ctc_loss` reads the scores of
    a label that there is not wherever they would be: it is given the label 0 there. `grid_sample` writes gradients
    of places that are no numbers outside of its tensors.
    """

    def __init__(self, what: str) -> None:
        super().__init__()
        self._what = what
        self.is_inside = False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given, name = dict(kwargs or {}), getattr(func, "__name__", "").partition(".")[0]
        if name in _REACHING:
            raise ValueError(f"{self._what} calls {name}, which would reach the numbers of other examples")
        if func is F.embedding:
            return _rows(**{**dict(zip(_OF_EMBEDDING, args, strict=False)), **given})
        if name == "embedding":  # of torch, and of its library of operators, where -1 is no padding
            named = {**dict(zip(_OF_OPERATOR, args, strict=False)), **given}
            padding = named.get("padding_idx", -1)
            return _rows(named["indices"], named["weight"], padding if padding >= 0 else None)
        if name in ("index_fill", "index_fill_"):
            self.is_inside = True
            try:
                return (_filled if name == "index_fill" else func)(*args, **given)
            finally:
                self.is_inside = False
        if name.startswith("grid_sample"):
            named = {**dict(zip(("input", "grid"), args, strict=False)), **given}
            grid = named.pop("grid").nan_to_num(-1.0).clamp(-_FAR, _FAR)
            return func(named.pop("input"), grid, *args[2:], **named)
        if name in ("ctc_loss", "_ctc_loss"):
            named = {**dict(zip(("log_probs", "targets"), args, strict=False)), **given}
            scores, labels = named.pop("log_probs"), named.pop("targets")
            known = (labels >= 0) & (labels < scores.shape[-1])
            return func(scores, labels.where(known, 0), *args[2:], **named)
        return func(*args, **given)


_REACHING = (
    *("resize_", "resize_as_", "set_", "_reshape_alias", "_reshape_alias_copy"),
    *("embedding_backward", "embedding_dense_backward"),
)
_OF_EMBEDDING = ("input", "weight", "padding_idx", "max_norm")
_OF_OPERATOR = ("weight", "indices", "padding_idx")


_FAR = 1e4  # in the place of infinity, where the edges of an image are at -1 and 1


class _Unseen(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes calls that `_Checked` never lets through, on the numbers of all examples: of functions that
    `torch.jit.script` made, and in backward passes of `torch.autograd.Function`.
    """

    def __init__(self, checked: _Checked) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._checked, self.is_any = checked, False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        if name in _NEVER_CALLED or (name == "index_fill_" and not self._checked.is_inside):
            self.is_any = True
        return func(*args, **(kwargs or {}))


_NEVER_CALLED = ("embedding", "embedding_dense_backward", "embedding_renorm_")


def _rows(
    input: Tensor,  # noqa: A002  (torch's name)
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    **_: Any,
) -> Tensor:
    """Return the rows of a table at some places, which are checked; those of padding get no gradient."""
    if max_norm is not None:
        raise ValueError("an embedding with max_norm changes its table in the forward pass: leave max_norm out")
    rows = weight[input]
    if padding_idx is None:
        return rows
    padding = padding_idx + len(weight) if padding_idx < 0 else padding_idx
    return torch.where((input == padding)[..., None], rows.detach(), rows)


def _filled(input: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:  # noqa: A002  (torch's names)
    return input.clone().index_fill_(dim, index, value)

"""Passes of single examples: what a module leaves behind in them, and what `vmap` would read of others."""

from __future__ import annotations

import copy
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from lipcompile_privacy.errors import PrivacyError
from torch import Tensor, nn
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch.nn import functional as F  # noqa: N812  (its name everywhere in this field)
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode


@contextmanager
def forgetting(module: nn.Module) -> Iterator[None]:
    """Let a module have copies of its attributes meanwhile: what a forward pass leaves behind in them, in lists,
    dicts and objects too, of all examples, is where no other pass reads it. Parameters and buffers are no copies.

    A tensor that was computed from parameters stays so in its copy: a gradient that takes this way is told from
    one that is not there. Of parametrizations nothing is cached, or a pass would read the weights of another.

    Raises:
        PrivacyError: an attribute cannot be copied.
    """
    parts = list(module.modules())
    before = [dict(vars(part)) for part in parts]
    plain = {id(value): value.clone() for value in plain_tensors(module).values()}
    memo = {id(one): one for one in (*parts, *module.parameters(), *module.buffers())} | plain
    try:
        copies = copy.deepcopy(before, memo)
    except (TypeError, RuntimeError) as error:
        raise PrivacyError(
            "an attribute of the module cannot be copied, but each pass has copies, so that nothing is left for "
            "other examples: keep open files, locks, generators and tensors that need gradients out of it"
        ) from error
    cached: Any = parametrize
    enabled, cached._cache_enabled = cached._cache_enabled, 0
    try:
        _set(parts, copies)
        yield
    finally:
        _set(parts, before)
        cached._cache_enabled = enabled


def _set(parts: Iterable[nn.Module], attributes: Iterable[dict[str, Any]]) -> None:
    for part, own in zip(parts, attributes, strict=True):
        vars(part).clear()
        vars(part).update(own)


def plain_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return the tensors among the attributes of a module that are no buffers and no parameters, by name."""
    return {
        f"{prefix}.{name}" if prefix else name: value
        for prefix, part in module.named_modules()
        for name, value in vars(part).items()
        if isinstance(value, Tensor)
    }


class Checked(TorchFunctionMode):
    """Keeps functions of torch within one example whose rules under `vmap` do not look at the places they get.

    An embedding takes a place beyond the end of one example's table as a row of the next example's, and
    `index_fill` one beyond the end, or before the start, as an entry of another's. `ctc_loss` reads the scores of
    a label that there is not wherever they would be: it is given the label 0 there. `grid_sample` writes gradients
    of places that are no numbers outside of its tensors. The gradient of `prod` is computed by another formula for
    all examples if one has a zero. `torch.linalg.lstsq` by pivots reads a memory of pivots that it has not set, as
    of the system before: the singular values, which give the same solution, take their place.

    Attributes:
        depth: how many calls of functions of torch are under way, each within the one before it.
        caught: the error of a function of torch, or empty. Under `vmap` a function that fails for one example
            fails for all: what catches the error and goes on lets that example decide on the others.
        is_own: whether code that nobody sees may have been given all examples: autograd functions, operators that
            are not of torch, operators that call functions of Python, and classes of tensors.
        is_seeded: whether torch's generator had another seed in between: then the draws of an example are known,
            and under `vmap` they are those of its place, which the examples before it decide on.
        is_watched: whether functions ran within hooks of saved tensors, or modes of dispatch, that the code set up
            itself: these work below `vmap`, where they are given the numbers of all examples.
    """

    def __init__(self, what: str) -> None:
        super().__init__()
        self._what = what
        self.depth = 0
        self.is_own = self.is_seeded = self.is_watched = False
        self._seed = torch.default_generator.initial_seed()
        self.begin()

    def begin(self) -> None:
        """Forget the error of before; hooks and modes that are at work now are not the code's own."""
        self.caught, self._saving, self._modes = "", saving_hooks(), torch._C._len_torch_dispatch_stack()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = getattr(func, "__name__", "").partition(".")[0]
        of_library = isinstance(func, _OF_LIBRARIES) and not str(func).startswith("aten.")
        of_class = any(not kind.__module__.startswith("torch") for kind in types)
        self.is_own |= of_library or of_class
        self.is_seeded |= torch.default_generator.initial_seed() != self._seed
        hooks, modes = saving_hooks(), torch._C._len_torch_dispatch_stack()
        self.is_watched |= modes > self._modes or hooks not in (None, self._saving)
        self.depth += 1
        try:
            return self._within(func, name, args, dict(kwargs or {}))
        except Exception as error:
            self.caught = str(error).partition("\n")[0] or type(error).__name__
            raise
        finally:
            self.depth -= 1

    def _within(self, func: Callable[..., Any], name: str, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
        if name in _REACHING:
            raise ValueError(f"{self._what} calls {name}, which would reach the numbers of other examples")
        if given.get("generator") is not None:
            raise ValueError(
                f"{self._what} draws from a generator of its own: somebody may know the numbers of an example, "
                "and the examples before it decide on them; leave the generator out, or draw constants in __init__"
            )
        if func is F.embedding:
            return _rows(**{**dict(zip(_OF_EMBEDDING, args, strict=False)), **given})
        if name == "embedding":  # of torch, and of its library of operators, where -1 is no padding
            named = {**dict(zip(_OF_OPERATOR, args, strict=False)), **given}
            padding = named.get("padding_idx", -1)
            return _rows(named["indices"], named["weight"], padding if padding >= 0 else None)
        if name == "index_fill":
            return _filled(*args, **given)
        if name == "prod":
            return _product(*args, **given)
        if name == "linalg_lstsq":
            on_device = any(isinstance(one, Tensor) and not one.is_cpu for one in (*args, *given.values()))
            is_pivoted = given.get("driver") in (None, "gelsy") and not on_device
            return func(*args, **given | ({"driver": "gelsd"} if is_pivoted else {}))
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
    *("embedding_backward", "embedding_dense_backward", "segment_reduce"),
)
_OF_LIBRARIES = (OpOverload, OpOverloadPacket, HigherOrderOperator)
_OF_EMBEDDING = ("input", "weight", "padding_idx", "max_norm")
_OF_OPERATOR = ("weight", "indices", "padding_idx")
_FAR = 1e4  # in the place of infinity, where the edges of an image are at -1 and 1


def saving_hooks() -> Any:
    """Return the pair of `torch.autograd.graph.saved_tensors_hooks` that is at work; None if there is none, or one
    of torch's own, as of `torch.utils.checkpoint`.
    """
    hooks: Any = torch._C._autograd._top_saved_tensors_default_hooks(True)
    is_own = hooks is None or str(getattr(hooks[0], "__module__", "")).startswith("torch.")
    return None if is_own else hooks


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


def _product(
    input: Tensor,  # noqa: A002  (torch's name)
    dim: int | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Return the product along an axis, or of all entries, as products of two factors."""
    rows = input if dtype is None else input.to(dtype)
    if not (rows.is_floating_point() or rows.is_complex()):
        return rows.prod() if dim is None else rows.prod(dim, keepdim)
    rows = rows.reshape(-1) if dim is None or not rows.dim() else rows.movedim(dim, -1)
    while rows.shape[-1] > 1:
        half = rows.shape[-1] // 2
        rows = torch.cat([rows[..., :half] * rows[..., half : 2 * half], rows[..., 2 * half :]], -1)
    found = rows[..., 0] if rows.shape[-1] else rows.new_ones(rows.shape[:-1])
    return found.unsqueeze(dim) if keepdim and dim is not None and input.dim() else found


# --- what vmap cannot do ---

_COMPILE = "lipcompile.private(module, example, bounds='clip')"
_CAUSES = (
    (
        r"Batching rule not implemented for aten::(?:lstm|gru|rnn)",
        "torch.func.vmap has no rule for LSTM, GRU and RNN layers",
        f"compile the module with {_COMPILE}, which has rules for them, or loop over nn.GRUCell or nn.RNNCell",
    ),
    (
        r"Batching rule not implemented for (aten::\w+)",
        r"torch.func.vmap has no rule for \1",
        f"compute the same by other operations, or compile the module with {_COMPILE}",
    ),
    (
        r"must override the setup_context|may have escaped from inside a function being vmapped",
        "torch.func.vmap runs no torch.utils.checkpoint, and no autograd function without setup_context",
        "leave them out: chunk_size limits the memory that gradients take",
    ),
)


@contextmanager
def explaining() -> Iterator[None]:
    """Say which line of a module `vmap` cannot run, or cannot run backwards.

    Raises:
        PrivacyError: in the place of such an error of torch.
    """
    try:
        yield
    except RuntimeError as error:
        for pattern, cause, help_line in _CAUSES:
            found = re.search(pattern, str(error))
            if found is not None:
                message = f"each example passes the module by itself, but {found.expand(cause)}{line_of(error)}"
                raise PrivacyError(f"{message}: {help_line}") from error
        raise


_LIBRARIES = tuple(str(Path(file).parent) for file in (torch.__file__, Path(__file__).parent))


def line_of(error: RuntimeError) -> str:
    """Return the line of the user's that an error comes from, in brackets; nothing if none is known."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_LIBRARIES)]
    own = [frame for frame in own if Path(frame.filename).is_file()]
    return f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""

"""Passes of single examples: what a module leaves behind in them, and tables that `vmap` reads otherwise."""

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


class Tables(TorchFunctionMode):
    """Gives rows of padding no gradient under `vmap`, and dense ones to tables: torch's rules for `F.embedding`
    leave out `padding_idx`, and sparse gradients have no norms.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        if func is not F.embedding:
            return func(*args, **given)
        given |= dict(zip(_EMBEDDING, args, strict=False)) | {"sparse": False}
        found, padding = func(**given), given.get("padding_idx")
        if padding is None:
            return found
        row = padding + len(given["weight"]) if padding < 0 else padding
        return torch.where((given["input"] == row)[..., None], found.detach(), found)


_EMBEDDING = ("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")


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

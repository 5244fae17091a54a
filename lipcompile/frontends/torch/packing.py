"""Sequences packed into one row: transformers looks for them in the positions of tokens, but not in a trace.

Causal models without an attention mask ask whether positions begin anew within a row. In a trace the numbers are
not known, and they go on as if that were so, with masks made anew for each batch. So it is asked beforehand, of
positions that no input reaches: those are the same in every batch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import Module
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lipcompile.frontends.silence import silence

_HOME, _NAME = "transformers.masking_utils", "find_packed_sequence_indices"


@contextmanager
def without_packing(module: Module, args: Sequence[Tensor], kwargs: Mapping[str, Tensor]) -> Iterator[None]:
    """Let models of transformers find no packed sequences meanwhile, if they find none on any input."""
    home = sys.modules.get(_HOME)
    if home is None or not hasattr(home, _NAME) or not _is_never_packed(home, module, args, kwargs):
        yield
        return
    with patch.object(home, _NAME, lambda *_, **__: None):
        yield


def _is_never_packed(home: Any, module: Module, args: Sequence[Tensor], kwargs: Mapping[str, Tensor]) -> bool:
    """Whether no input of a module reaches positions in which it looks for packed sequences, and it finds none."""
    find, answers, reached = getattr(home, _NAME), list[bool](), _Reached([*args, *kwargs.values()])

    def noted(*given: Any, **named: Any) -> Any:
        found = find(*given, **named)
        answers.append(found is None and not reached.any([*given, *named.values()]))
        return found

    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    watched = patch.object(home, _NAME, noted)
    try:
        with silence(), torch.no_grad(), torch.random.fork_rng(devices=[]), watched, reached.followed():
            torch.func.functional_call(module, buffers, tuple(args), dict(kwargs))
    except Exception:  # the trace will say why
        return False
    return bool(answers) and all(answers)


class _Reached:
    """The memory that the numbers of some tensors reached, through whatever operations."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._storages: set[Any] = set()
        self._is_read = False  # a number of theirs became one of Python, which may go anywhere
        self._add(tensors)

    def any(self, values: Any) -> bool:
        """Whether one of the tensors among some arguments holds such numbers."""
        return self._is_read or any(_storage(tensor) in self._storages for tensor in _tensors(values))

    def _add(self, values: Any) -> None:
        self._storages |= {_storage(tensor) for tensor in _tensors(values)}

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Note what operations of torch reach meanwhile."""
        reached = self

        class Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
            def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
                found = func(*args, **(kwargs or {}))
                if reached.any([args, kwargs]):
                    reached._add([found, args if func._schema.is_mutable else (), kwargs])
                    reached._is_read |= not any(True for _ in _tensors(found)) and not func._schema.is_mutable
                return found

        with Mode():  # type: ignore[no-untyped-call]
            yield


def _tensors(values: Any) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor))


def _storage(tensor: Tensor) -> Any:
    """Return what stands for the memory of a tensor, and for that of no later one."""
    from torch.multiprocessing.reductions import StorageWeakRef

    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]

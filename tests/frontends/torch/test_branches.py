"""Code that looks at the size of the batch: refused, unless it comes to the same for every size."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lipcompile.diagnostics import Severity
from lipcompile.pipeline import from_module

Then = Callable[[Tensor], Any]


class Looking(nn.Module):
    """A linear layer [B, 4] -> [B, 4], then what a function makes of it."""

    def __init__(self, then: Then) -> None:
        super().__init__()
        self.layer, self.then = nn.Linear(4, 4), then

    def forward(self, x: Tensor) -> Any:
        return self.then(self.layer(x))


def parity(h: Tensor) -> Tensor:
    return h.relu() if h.shape[0] % 2 else h.tanh()


def remainder(h: Tensor) -> Tensor:
    if h.shape[0] % 2 == 0:
        h = 1 * h
    return h.relu()


def by_a_number(h: Tensor) -> Tensor:
    n = int(h.shape[0])
    return h.relu() if n == 64 else h.tanh()


def by_a_real_number(h: Tensor) -> Tensor:
    return h.relu() if float(h.shape[0]) > 100 else h.tanh()


def by_constants(h: Tensor) -> Tensor:
    return h * torch.tensor([1.0, 2.0, 3.0, 4.0 if h.shape[0] == 64 else 5.0])


def squeezed(h: Tensor) -> Tensor:
    """Only a batch of one loses its axis, and no batch of one is traced."""
    return h.squeeze(0) if h.shape[0] == 1 else h


def caught(h: Tensor) -> Tensor:
    try:
        assert h.shape[0] != 64
    except AssertionError:
        return h.tanh()
    return h.relu()


def second(h: Tensor) -> Tensor:
    """64·4 is no multiple of 3, which a trace of all sizes does not see: the trace of one example is read."""
    if h.shape[0] == 64 and h.shape[1] * h.shape[0] % 3 == 0:
        return h.tanh()
    return h.relu()


def many(h: Tensor) -> Tensor:
    """More comparisons than are followed, all the same."""
    assert all(h.shape[0] != 50 + i for i in range(20))
    return h


def written(h: Tensor) -> Tensor:
    """What only one way computes is read nowhere, but it is written into what is."""
    h = h.relu()
    if h.shape[0] != 1:
        h.mul_(2)
    return h


DIFFERENT: dict[str, Then] = {
    "more than one": lambda h: h.relu() if h.shape[0] > 1 else h.tanh(),
    "one": lambda h: h.tanh() if h.shape[0] == 1 else h.relu(),
    "many": lambda h: h.tanh() if h.shape[0] > 7 else h.relu(),
    "entries": lambda h: h.tanh() if h.numel() > 400 else h.relu(),
    "length": lambda h: h.tanh() if len(h) == 64 else h.relu(),
    "among": lambda h: h.tanh() if h.shape[0] in (64, 128) else h.relu(),
    "shape": lambda h: h.tanh() if h.shape == (64, 4) else h.relu(),
    "parity": parity,
    "int": by_a_number,
    "float": by_a_real_number,
    "constants": by_constants,
    "squeezed": squeezed,
    "caught": caught,
    "written": written,
    "too many": many,
    "capacity": lambda h: h * (h.cumsum(1) <= int(1.25 * h.shape[0])),
    "largest": lambda h: h.topk(min(4, int(0.7 * h.shape[0])), 1)[0],
    "floor": lambda h: functional.layer_norm(h, (4,), eps=0.1 * h.shape[0]),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_another_way_for_batches_of_another_size_is_refused(name: str) -> None:
    then = DIFFERENT[name]
    (found,) = (one for one in from_module(Looking(then), (4,)).diagnostics if one.severity == Severity.ERROR)
    assert (found.code, "batch size" in found.message) == ("LIP108", True)
    lines, first = inspect.getsourcelines(then)
    assert found.location is not None
    assert found.location.file == __file__
    assert first <= (found.location.line or 0) < first + len(lines)


def test_a_trace_of_one_size_with_numbers_of_its_own_is_of_one_size() -> None:
    """The numbers in the list are unknown in a trace, as the size of a batch is."""
    found = from_module(Looking(lambda h: h * len(torch.zeros(h.shape[0]).tolist())), (4,)).diagnostics
    assert [one.code for one in found if one.severity == Severity.ERROR] == ["LIP108"]


def asserted(h: Tensor) -> Tensor:
    assert h.shape[0] != 64
    if h.shape[0] <= 0:
        raise ValueError("no examples")
    if h.shape[0] == 65:
        raise ValueError("too many examples")
    return h.relu()


def named(h: Tensor) -> Tensor:
    name = "one" if h.shape[0] == 1 else "more"
    return h.relu() if name else h.tanh()


def expanded(h: Tensor) -> Tensor:
    """What only one way computes is read nowhere, as where transformers expands positions that it does not use."""
    shift = torch.arange(4.0)[None]
    if h.shape[0] != 1:
        shift = shift.expand(h.shape[0], -1)
    return h.relu()


SAME: dict[str, Then] = {
    "remainder": remainder,
    "second": second,
    "expanded": expanded,
    "asserted": asserted,
    "named": named,
    "length": lambda h: h.view(len(h), 2, 2).flatten(1).relu(),
    "both ways": lambda h: h.relu() if h.shape[0] > 1 else torch.relu(h),
}


@pytest.mark.parametrize("name", SAME)
def test_what_comes_to_the_same_for_every_size_is_imported(name: str) -> None:
    found = from_module(Looking(SAME[name]), (4,))
    assert found.ok, found.diagnostics
    assert found.analysis is not None
    assert [node.op.name for node in found.analysis.graph.nodes if node.op.name == "relu"] == ["relu"]
    assert not any(node.op.name == "tanh" for node in found.analysis.graph.nodes)


def test_python_is_as_before_afterwards() -> None:
    before = (torch.SymBool.__bool__, torch.SymInt.__index__, torch.SymInt.__int__, len)
    from_module(Looking(DIFFERENT["length"]), (4,))
    assert (torch.SymBool.__bool__, torch.SymInt.__index__, torch.SymInt.__int__, len) == before


class Gathering(nn.Module):
    """Takes all of its arguments as `*args` and `**kwargs`."""

    def __init__(self, then: Then) -> None:
        super().__init__()
        self.layer, self.then = nn.Linear(4, 4), then

    def forward(self, *args: Tensor, **kwargs: Tensor) -> Any:
        return self.then(self.layer(sum((*args, *kwargs.values()))))


@pytest.mark.parametrize("example", [[4], {"a": torch.zeros(2, 4), "b": torch.zeros(2, 4)}])
def test_a_module_that_gathers_its_arguments_is_seen_to_look_at_the_size(example: Any) -> None:
    # It was traced with two fixed sizes, 3 or more: what it does with a batch of one was not seen.
    looking = from_module(
        Gathering(lambda h: h.tanh() if h.shape[0] == 1 else h), example, loss="cross_entropy", bounds="clip"
    )
    assert [found.code for found in looking.diagnostics if found.severity == Severity.ERROR] == ["LIP108"]
    plain = Gathering(torch.tanh)
    found = from_module(plain, example, loss="cross_entropy", bounds="clip").diagnostics
    assert not [one for one in found if one.severity == Severity.ERROR]
    assert "forward" not in vars(plain)

"""What the code of a module decides by the size of the batch: each other decision must give the same graph."""

from __future__ import annotations

import builtins
import dis
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from torch import SymBool, SymInt, Tensor, equal
from torch.export import ExportedProgram
from torch.fx.experimental.sym_node import SymNode
from torch.fx.node import map_arg

from lipcompile.diagnostics import Location

_MOST_TRACES = 16
_RAISES = dis.opmap["RAISE_VARARGS"]


@dataclass(slots=True)
class Branches:
    """One trace with an open size of the batch.

    forced: answers that comparisons of that size give in place of the true ones.
    answers: the others that the code asked for, with their places. fixed: where it took the size as a number.
    kept: where torch took what is computed from it as a number: of real ones it keeps that one for all sizes.
    """

    forced: Mapping[str, bool] = field(default_factory=dict)
    answers: dict[str, tuple[bool, Location]] = field(default_factory=dict)
    fixed: list[Location] = field(default_factory=list)
    kept: list[Location] = field(default_factory=list)

    @property
    def places(self) -> list[Location]:
        """Where the code used the size as what it is not in a trace: a number of Python."""
        return [*self.fixed, *(place for _, place in self.answers.values())]

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Answer and note what code outside torch asks meanwhile; `len` of a tensor keeps the size open."""
        truth: Callable[[SymBool], bool] = SymBool.__bool__
        index: Callable[[SymInt], int] = SymInt.__index__
        length = builtins.len
        numbers = {"guard_int": SymNode.guard_int, "guard_float": SymNode.guard_float}

        def answered(symbol: SymBool) -> bool:
            place = _asking(sys._getframe(1)) if symbol.node._expr.free_symbols else None
            question = str(symbol.node._expr)
            if place is None:
                return truth(symbol)
            if question in self.forced:
                return self.forced[question]
            return self.answers.setdefault(question, (truth(symbol), place))[0]

        def converted(symbol: SymInt) -> int:
            place = _asking(sys._getframe(1))
            self.fixed += [place] if place else []
            return index(symbol)

        def keeping(name: str) -> Callable[..., Any]:
            def kept(node: Any, *place: Any) -> Any:
                self.kept += [_outside(sys._getframe(1))] if node._expr.free_symbols else []
                return numbers[name](node, *place)

            return kept

        def measured(sized: Any) -> int:
            size: int = sized.shape[0] if isinstance(sized, Tensor) and sized.dim() else length(sized)
            return size

        try:
            SymBool.__bool__ = answered  # type: ignore[method-assign]
            SymInt.__index__ = SymInt.__int__ = converted  # type: ignore[method-assign]
            builtins.len = measured
            for name in numbers:
                setattr(SymNode, name, keeping(name))
            yield
        finally:
            SymBool.__bool__ = truth  # type: ignore[method-assign]
            SymInt.__index__ = SymInt.__int__ = index  # type: ignore[method-assign]
            builtins.len = length
            for name, taken in numbers.items():
                setattr(SymNode, name, taken)

    def others(self) -> Iterator[tuple[Mapping[str, bool], Location]]:
        """Yield what to force for the other answer to each comparison, and where that stands."""
        for question, (answer, place) in self.answers.items():
            yield {**self.forced, question: not answer}, place


def differing(first: Branches, program: ExportedProgram, trace: Callable[[], ExportedProgram]) -> Location | None:
    """Return where the code takes another way for batches of other sizes, None if all ways give this program.

    A way that ends in a `raise` of the code is none: the module takes no such batch.
    """
    if first.kept:
        return first.kept[0]
    waiting, traces = list(first.others()), 0
    while waiting:
        forced, place = waiting.pop()
        traces += 1
        if traces > _MOST_TRACES:
            return place
        branches = Branches(forced)
        try:
            with branches.watched():
                other = trace()
        except Exception as error:
            if not _is_raised_by_code(error):
                return place
            continue
        if not _is_same(program, other):
            return place
        waiting += branches.others()
    return None


def _asking(frame: FrameType | None) -> Location | None:
    """Return the line of code that asks; None if that is torch, which computes the same for every size."""
    while frame is not None and frame.f_globals.get("__name__") == "torch":
        frame = frame.f_back
    return None if frame is None or _is_torchs(frame) else Location(frame.f_code.co_filename, frame.f_lineno)


def _outside(frame: FrameType) -> Location:
    """Return the line of code outside torch that calls."""
    while frame.f_back is not None and (_is_torchs(frame) or frame.f_globals is globals()):
        frame = frame.f_back
    return Location(frame.f_code.co_filename, frame.f_lineno)


def _is_torchs(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] in ("torch", "sympy")


def _is_raised_by_code(error: Exception) -> bool:
    """Whether a `raise` or an `assert` outside torch ended a trace."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return (
        trace is not None
        and not _is_torchs(trace.tb_frame)
        and trace.tb_frame.f_code.co_code[trace.tb_lasti] == _RAISES
    )


def _is_same(program: ExportedProgram, other: ExportedProgram) -> bool:
    """Whether two programs do the same operations with the same constants."""
    return _operations(program) == _operations(other) and _has_same_constants(program.constants, other.constants)


def _operations(program: ExportedProgram) -> list[tuple[str, ...]]:
    """Return what is done in order, operands by their places, without what nobody reads and writes nothing."""
    nodes, read = list(program.graph.nodes), set[Any]()
    for node in reversed(nodes):
        if node in read or not _is_pure(node):
            read.update((node, *node.all_input_nodes))
    places = {node: f"%{place}" for place, node in enumerate(node for node in nodes if node in read)}
    return [
        (node.op, str(node.target), repr(map_arg((node.args, node.kwargs), places.__getitem__))) for node in places
    ]


def _is_pure(node: Any) -> bool:
    """Whether a traced step only returns a result: an operator of Python, or one that writes nothing."""
    schema = getattr(node.target, "_schema", None)
    known = schema is not None or getattr(node.target, "__module__", "") == "_operator"
    return node.op == "call_function" and known and not (node.is_impure() or getattr(schema, "is_mutable", False))


def _has_same_constants(made: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return made.keys() == other.keys() and all(
        equal(one, other[name]) if isinstance(one, Tensor) else one is other[name] for name, one in made.items()
    )

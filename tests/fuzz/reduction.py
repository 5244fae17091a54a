"""A smaller file with the same fault: parts are taken out as long as it stays."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx

from tests.fuzz.cases import Case
from tests.fuzz.lip_changes import TOKEN
from tests.fuzz.runs import execute

MOST_RUNS = 400


def reduced(case: Case, fault: str) -> Case:
    """Return a case with that fault; the given one if it does not show it again."""
    with tempfile.TemporaryDirectory() as folder:
        runs = 0

        def fails(candidate: Case) -> bool:
            nonlocal runs
            runs += 1
            return runs <= MOST_RUNS and execute(candidate, Path(folder)).fault == fault

        if not fails(case):
            return case
        case = replace(
            case,
            options=tuple(_fewer(_pairs(case.options), lambda pairs: fails(replace(case, options=_flat(pairs))))),
        )
        return _smaller(case, fails)


def _pairs(options: Sequence[str]) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    words = list(options)
    while words:
        count = 1 if words[0] == "-v" else 2
        found.append(tuple(words[:count]))
        del words[:count]
    return found


def _flat(pairs: Sequence[Any]) -> tuple[str, ...]:
    return tuple(word for pair in pairs for word in pair)


def _fewer(parts: Sequence[Any], fails: Callable[[list[Any]], bool]) -> tuple[str, ...]:
    return _flat(_without(list(parts), fails))


def _without(parts: list[Any], fails: Callable[[list[Any]], bool]) -> list[Any]:
    """Take out parts, halves first."""
    size = max(len(parts) // 2, 1)
    while parts:
        at = 0
        while at < len(parts):
            fewer = parts[:at] + parts[at + size :]
            if fails(fewer):
                parts = fewer
            else:
                at += size
        if size == 1:
            break
        size //= 2
    return parts


def _smaller(case: Case, fails: Callable[[Case], bool]) -> Case:
    if case.suffix == ".lip":
        tokens = TOKEN.findall(case.content.decode("utf-8", "surrogateescape"))
        kept = _without(tokens, lambda few: fails(replace(case, content=_text(few))))
        return replace(case, content=_text(kept))
    try:
        model = onnx.load_model_from_string(case.content)
    except Exception:  # bytes that are no message stay as they are
        return case
    for graph in [model.graph]:
        for entries in (graph.node, graph.initializer, graph.value_info, model.metadata_props, model.functions):
            _shorten(entries, lambda: fails(replace(case, content=model.SerializeToString())))
        for node in graph.node:
            _shorten(node.attribute, lambda: fails(replace(case, content=model.SerializeToString())))
    return replace(case, content=model.SerializeToString())


def _shorten(entries: Any, fails: Callable[[], bool]) -> None:
    """Take out entries of a repeated field."""

    def put(parts: Sequence[Any]) -> None:
        del entries[:]
        entries.extend(parts)

    def still(parts: list[Any]) -> bool:
        put(parts)
        return fails()

    copies = []
    for entry in entries:
        copy = type(entry)()
        copy.CopyFrom(entry)
        copies.append(copy)
    put(_without(copies, still))


def _text(tokens: Sequence[str]) -> bytes:
    return "".join(tokens).encode("utf-8", "surrogateescape")

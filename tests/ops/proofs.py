"""Which code a proof is about: the tokens of the rules and of all they call, hashed beside the proof's text."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import inspect
import io
import json
import re
import textwrap
import tokenize
from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from lipcompile.core.record import AnyLoss, AnyOp
from lipcompile.ops.table import LOSSES, OPS

OPS_FOLDER = Path(__file__).parents[2] / "lipcompile" / "ops"
LOCK = OPS_FOLDER / "proofs.lock"
HOME = "lipcompile.ops"
_LAYOUT = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
# A string behind these alone is a docstring: one behind a break within brackets is an argument.
_BEFORE_STATEMENTS = (tokenize.ENCODING, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)


@dataclasses.dataclass(frozen=True)
class Entry:
    """One proof: the hash of its text, that of the rules it is about, and why one changed without the other."""

    proof: str
    rules: str
    note: str = ""


@cache
def sections(file: str) -> dict[str, str]:
    """Text of each second-level section, by its anchor."""
    (page,) = OPS_FOLDER.glob(f"*/{file}")
    text = page.read_text(encoding="utf-8")
    pieces = re.split(r"^## (.+)$", text, flags=re.MULTILINE)[1:]
    titles, bodies = pieces[::2], pieces[1::2]
    return {title.lower().replace(" ", "-"): body for title, body in zip(titles, bodies, strict=True)}


def subjects() -> dict[str, list[AnyOp | AnyLoss]]:
    """Ops and losses by the proof that they name."""
    found: dict[str, list[AnyOp | AnyLoss]] = {}
    records: tuple[AnyOp | AnyLoss, ...] = (*OPS, *LOSSES)
    for record in records:
        found.setdefault(record.proof, []).append(record)
    return found


def current() -> dict[str, Entry]:
    """The state of the code, by proof."""
    return {proof: _entry(proof, records) for proof, records in sorted(subjects().items())}


def locked() -> dict[str, Entry]:
    """The state that was last agreed on."""
    return {proof: Entry(**entry) for proof, entry in json.loads(LOCK.read_text(encoding="utf-8")).items()}


def one_sided(before: dict[str, Entry], after: dict[str, Entry]) -> list[str]:
    """Proofs whose text or whose rules changed, but not both."""
    common = before.keys() & after.keys()
    return sorted(p for p in common if (before[p].proof != after[p].proof) != (before[p].rules != after[p].rules))


def write(note: str) -> None:
    """Agree on the code as it is; `note` says why a proof still holds for rules that changed without it."""
    before, after = locked() if LOCK.exists() else {}, current()
    alone = one_sided(before, after)
    if alone and not note:
        raise ValueError(f"{', '.join(alone)}: proof or rules changed alone; say why with UPDATE_PROOFS='reason'")
    kept = {proof: entry.note for proof, entry in before.items() if after.get(proof, entry).rules == entry.rules}
    notes = {proof: note if proof in alone else kept.get(proof, "") for proof in after}
    entries = {proof: dataclasses.asdict(dataclasses.replace(e, note=notes[proof])) for proof, e in after.items()}
    LOCK.write_text(json.dumps(entries, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _entry(proof: str, records: list[AnyOp | AnyLoss]) -> Entry:
    file, _, anchor = proof.partition("#")
    text = " ".join(sections(file)[anchor].split())
    seen: dict[str, str] = {}
    for record in records:
        _collect(record, seen)
    rules = "\n".join(f"{name} {tokens}" for name, tokens in sorted(seen.items()))
    return Entry(_digest(text), _digest(rules))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _collect(value: Any, seen: dict[str, str]) -> None:
    """Add the tokens of all functions and classes of the rules, and constants, that `value` leads to."""
    if isinstance(value, FunctionType):
        _collect_function(value, seen)
    elif isinstance(value, type):
        _collect_source(value, f"{value.__module__}.{value.__qualname__}", seen)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            if field.name not in ("proof", "dsl", "conditions", "draws"):  # no rule reads these
                _collect(getattr(value, field.name), seen)
    elif isinstance(value, tuple | list | frozenset):
        for item in value:
            _collect(item, seen)
    elif isinstance(value, dict):
        for key, item in value.items():
            seen[f"key {key}"] = ""
            _collect(item, seen)


def _collect_function(function: Any, seen: dict[str, str]) -> None:
    function = inspect.unwrap(function)
    name = f"{function.__module__}.{function.__qualname__}"
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    fresh = _collect_source(function, name, seen)
    for cell in cells:
        _collect(cell, seen)
        if isinstance(cell, Fraction | int | str):
            seen[f"{name} with {cell}"] = ""
    if fresh:
        for used in _used(function):
            _collect(used, seen)


def _collect_source(value: Any, name: str, seen: dict[str, str]) -> bool:
    """Add the tokens of a function or class of the rules; False if it is none, or is there already."""
    if not str(value.__module__).startswith(HOME) or name in seen:
        return False
    # Without blanks, because Python 3.12 splits f-strings into tokens and 3.11 does not.
    seen[name] = "".join("".join(_tokens(inspect.getsource(value))).split())
    return True


def _tokens(source: str) -> Iterator[str]:
    """Tokens without layout, comments and docstrings."""
    previous = tokenize.NEWLINE
    for token in _tokenized(textwrap.dedent(source)):
        documents = token.type == tokenize.STRING and previous in _BEFORE_STATEMENTS
        if token.type not in _LAYOUT and not documents:
            yield token.string
        previous = token.type


def _tokenized(source: str) -> Iterator[tokenize.TokenInfo]:
    """Tokens up to where the source of a lambda, which is whole lines of what surrounds it, breaks off."""
    with contextlib.suppress(tokenize.TokenError, IndentationError):
        yield from tokenize.generate_tokens(io.StringIO(source).readline)


def _used(function: Any) -> Iterator[Any]:
    """What a function of the rules refers to by name, directly or through a module of the rules."""
    names = list(_names(function.__code__))
    for name in names:
        found = function.__globals__.get(name)
        if isinstance(found, ModuleType) and found.__name__.startswith(HOME):
            yield from (vars(found)[attribute] for attribute in names if attribute in vars(found))
        elif isinstance(found, Fraction):
            yield found
        elif found is not None:
            yield inspect.unwrap(found) if callable(found) else found


def _names(code: CodeType) -> Iterator[str]:
    yield from sorted(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)

"""What may be written at a place of a text, which need not parse: it is read as tokens up to the cursor."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from lipcompile.editor import words
from lipcompile.editor.words import Callable

_TOKEN = re.compile(r'#[^\n]*|"[^"\n]*"?|[A-Za-z_]\w*|\d[\w.]*|<=|->|[^\s]', re.ASCII)
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Completion:
    """A word to write. kind: "layer", "loss", "argument", "value", "keyword" or "block"."""

    word: str
    kind: str
    detail: str = ""
    text: str = ""


@dataclass(slots=True)
class _Opened:
    """Brackets that are open: which, the word before them, and the tokens since."""

    bracket: str
    head: str
    tokens: list[str]


def completions(text: str, blocks: Iterable[Callable], names: Sequence[str]) -> list[Completion]:
    """Return what may follow a text; a name at its end is one that is being written.

    `blocks` may be used as layers, `names` are of values and parameters that are defined.
    """
    stack = _opened(text)
    if stack is None:
        return []
    last = stack[-1].tokens
    if last and _NAME.fullmatch(last[-1]) and text[-1:] == last[-1][-1]:
        last.pop()
    return list(_fitting(stack, list(blocks), names))


def _opened(text: str) -> list[_Opened] | None:
    """Return the open brackets, outermost first; None in a comment or a string."""
    stack = [_Opened("", "", [])]
    for found in _TOKEN.finditer(text):
        token, tokens = found[0], stack[-1].tokens
        if token[0] == "#" or (token[0] == '"' and (len(token) == 1 or token[-1] != '"')):
            if found.end() == len(text):
                return None
        elif token in ("(", "[", "{"):
            stack.append(_Opened(token, _head(tokens) if token == "{" else (tokens or [""])[-1], []))
        elif token in (")", "]", "}"):
            closed = stack.pop() if len(stack) > 1 else stack[0]
            stack[-1].tokens += [f"{closed.bracket}{token}"]
        else:
            tokens.append(token)
    return stack


def _head(tokens: Sequence[str]) -> str:
    """Return the word that a body belongs to: `train`, `model`, `block` or a statement."""
    known = (*words.OF_FILES, *words.STATEMENTS)
    return next((token for token in reversed(tokens) if token in known), "")


def _fitting(stack: Sequence[_Opened], blocks: list[Callable], names: Sequence[str]) -> Iterator[Completion]:
    here = stack[-1]
    if here.bracket == "":
        yield from _keywords(words.OF_FILES)
    elif here.bracket == "(":
        yield from _in_call(here, stack[-2], blocks, names)
    elif here.bracket == "[" or here.tokens[-1:] == ["<="]:
        yield from _values(names)
    elif here.head == "train":
        yield from _in_train(here.tokens)
    else:
        yield from _in_body(here, blocks)


def _in_body(here: _Opened, blocks: list[Callable]) -> Iterator[Completion]:
    before = here.tokens[-1] if here.tokens else ""
    if before == "loss":
        yield from _calls(words.losses().values(), "loss")
    elif before == "->":
        yield from _values(words.MERGES)
    elif before == ":":
        yield from _values(words.KINDS if "input" in here.tokens[-3:] else words.NUMBERS)
    else:
        yield from _calls(words.known_layers().values(), "layer")
        yield from _calls(blocks, "block")
        yield from _keywords((*words.STATEMENTS, *(words.OF_MODELS if here.head == "model" else ())))


def _in_call(here: _Opened, around: _Opened, blocks: list[Callable], names: Sequence[str]) -> Iterator[Completion]:
    call = _called(here.head, around, blocks)
    if here.tokens[-1:] == ["="]:
        given = {argument.name: argument for argument in call.arguments}.get(here.tokens[-2])
        yield from _values((given.words if given else None) or names)
        return
    if here.tokens[-1:] not in ([], [","]):
        yield from _values(names)
        return
    if here.head == "residual":
        yield from _values(words.RESIDUALS)
        return
    written = {one for one, two in zip(here.tokens, here.tokens[1:], strict=False) if two == "="}
    for argument in call.arguments:
        if argument.name not in written:
            yield Completion(argument.name, "argument", str(argument), call.text)
    yield from _values(names)


def _called(name: str, around: _Opened, blocks: list[Callable]) -> Callable:
    known = {call.name: call for call in blocks}
    if around.head == "train" and around.bracket == "{":
        known = dict(words.calls_of_settings())
    elif around.tokens[-2:-1] == ["loss"]:
        known = dict(words.losses())
    else:
        known |= words.known_layers()
    return known.get(name, Callable(name, ()))


def _in_train(tokens: Sequence[str]) -> Iterator[Completion]:
    """Yield settings, and what may stand behind the last one."""
    if tokens[-1:] == ["="]:
        yield from _values(words.words_of_setting(tokens[-2]))
        return
    if not tokens or tokens[-1] not in (*words.SETTINGS, ","):
        yield from _keywords(words.SETTINGS)
        return
    setting = next((token for token in reversed(tokens) if token in words.SETTINGS), "")
    yield from _values(words.SETTINGS.get(setting, ()))


def _keywords(names: Iterable[str]) -> Iterator[Completion]:
    return (Completion(name, "keyword") for name in names)


def _values(names: Iterable[str]) -> Iterator[Completion]:
    return (Completion(name, "value") for name in names)


def _calls(calls: Iterable[Callable], kind: str) -> Iterator[Completion]:
    return (Completion(call.name, kind, str(call), call.text) for call in calls)

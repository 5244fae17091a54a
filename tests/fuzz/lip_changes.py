"""Changes of .lip texts: of tokens, numbers, statements, nesting and characters."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from random import Random

from lipcompile.frontends.lip.layers import SUGAR
from lipcompile.ops.registry import layers
from lipcompile.ops.table import LOSS_BY_NAME

TOKEN = re.compile(r"\#[^\n]*|\"[^\"\n]*\"|[A-Za-z_]\w*|\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|<=|->|\s+|.", re.DOTALL)
NUMBERS = (
    *(
        "0",
        "1",
        "2",
        "3",
        "7",
        "16",
        "64",
        "300",
        "1000",
        "4000",
        "65536",
        "10000000",
        "9" * 20,
        "0.5",
        "1.0",
        "2.5",
    ),
    *("1e-300", "1e300", "1e400", "1e-400", "1e999999999", "-1", "1/3", "0.1", "1e10", "(2, 2)", "(1, 0)", "(3,)"),
    *("depth", "n * n", "1 / 0", "-(-1)", "2 * depth + 1", "9" * 500, "0." + "0" * 300 + "1"),
)
WORDS = (
    *("model", "block", "train", "import", "param", "input", "loss", "residual", "branch", "repeat", "frozen"),
    *("norm", "trusted", "tensor", "tokens", "int", "real", "true", "false", "same", "add", "mean", "convex"),
    *("split", "constraint", "spectral", "orthogonal", "frobenius", "fixed", "bias", "share", "axis", "kernel"),
    *("stride", "padding", "groups", "size", "bound", "circular", "reflect", "zeros", "x", "depth", "X_0", "L"),
)
SIGNS = (*"{}()[],;=+-*/:#.", "<=", "->", '"', "\n", " ")
ODD = ("\x00", "\x1b[31m", "\u202e", "é", "𝔁", "\ufeff", "\r", "\t", "\x7f", "\x85", "\u2028", "\\", "%", "`")

# The share of changes that the grammar mostly forbids.
ROUGH = 0.3

Tokens = list[str]
Change = Callable[[Random, Tokens, Sequence[str]], Tokens]


def changed(random: Random, text: str, others: Sequence[str]) -> str:
    """Return the text after one to six changes; `others` are texts to take parts of."""
    tokens = TOKEN.findall(text)
    for _ in range(random.choice((1, 1, 1, 2, 2, 3, 4, 6))):
        pool = _CHANGES if random.random() < ROUGH else _SOFT
        tokens = [token for token in random.choice(pool)(random, tokens, others) if token]
    return "".join(tokens)


def _place(random: Random, tokens: Tokens) -> int:
    """Return the place of a token that says something, if there is one."""
    said = [index for index, token in enumerate(tokens) if not token.isspace() and not token.startswith("#")]
    return random.choice(said) if said else 0


def _delete(random: Random, tokens: Tokens, _others: Sequence[str]) -> Tokens:
    at = _place(random, tokens)
    return tokens[:at] + tokens[at + random.choice((1, 1, 1, 2, 5)) :]


def _repeat(random: Random, tokens: Tokens, _others: Sequence[str]) -> Tokens:
    start = _place(random, tokens)
    part = tokens[start : start + random.randint(1, 12)]
    return tokens[:start] + part * random.choice((2, 2, 2, 3, 50)) + tokens[start + len(part) :]


def _swap(random: Random, tokens: Tokens, _others: Sequence[str]) -> Tokens:
    if not tokens:
        return tokens
    first, second = _place(random, tokens), _place(random, tokens)
    tokens = list(tokens)
    tokens[first], tokens[second] = tokens[second], tokens[first]
    return tokens


def _replace(random: Random, tokens: Tokens, _others: Sequence[str]) -> Tokens:
    """Put another token of the same kind in the place of one."""
    if not tokens:
        return tokens
    at = _place(random, tokens)
    return [*tokens[:at], _alike(random, tokens[at]), *tokens[at + 1 :]]


def _alike(random: Random, token: str) -> str:
    if token[0].isdigit():
        return random.choice(NUMBERS)
    if token[0].isalpha():
        words: tuple[str, ...] = (*layers(), *SUGAR, *LOSS_BY_NAME, *WORDS)
        return random.choice(words)
    sign: str = random.choice(SIGNS)
    return sign


def _number(random: Random, tokens: Tokens, _others: Sequence[str]) -> Tokens:
    places = [index for index, token in enumerate(tokens) if token[0].isdigit()]
    if not places:
        return tokens
    at = random.choice(places)
    return [*tokens[:at], random.choice(NUMBERS), *tokens[at + 1 :]]


def _word(random: Random, tokens: Tokens, _others: Sequence[str]) -> Tokens:
    """Call another layer with the same arguments."""
    known = [index for index, token in enumerate(tokens) if token in layers()]
    if not known:
        return tokens
    at = random.choice(known)
    return [*tokens[:at], random.choice((*layers(), *SUGAR)), *tokens[at + 1 :]]


def _insert(random: Random, tokens: Tokens, _others: Sequence[str]) -> Tokens:
    at, pools = _place(random, tokens), (NUMBERS, WORDS, SIGNS, ODD)
    return [*tokens[:at], " ", random.choice(random.choice(pools)), " ", *tokens[at:]]


def _statement(random: Random, tokens: Tokens, others: Sequence[str]) -> Tokens:
    """Insert a line of another text behind a line of this one, a statement if there is one."""
    lines = random.choice(others).split("\n")
    whole = [line for line in lines if "(" in line and line.count("{") == line.count("}") and "input" not in line]
    return _inside(random, tokens, random.choice(whole or lines))


def _inside(random: Random, tokens: Tokens, line: str) -> Tokens:
    """Insert a line where statements may stand, mostly: behind the input, before the last brace."""
    lines = "".join(tokens).split("\n")
    first = next((index + 1 for index, each in enumerate(lines) if "input" in each), 0)
    last = max((index for index, each in enumerate(lines) if "}" in each), default=len(lines))
    at = random.randint(min(first, last), max(first, last))
    return TOKEN.findall("\n".join([*lines[:at], line, *lines[at:]]))


def _layer(random: Random, tokens: Tokens, _others: Sequence[str]) -> Tokens:
    """Insert a layer with plausible arguments behind a line."""
    name = random.choice((*layers(), *SUGAR))
    values = [
        random.choice((*NUMBERS[:8], "x", "stem", "true", "axis=0", "bias=0.5", "2"))
        for _ in range(random.randint(0, 3))
    ]
    return _inside(random, tokens, f"{name}({', '.join(values)})")


def _wrap(random: Random, tokens: Tokens, _others: Sequence[str]) -> Tokens:
    """Put a part into braces, often."""
    heads = (
        "residual(add) {",
        "residual(mean) {",
        "repeat 3 {",
        "repeat depth {",
        "frozen {",
        "branch { relu } {",
        "repeat 100000 {",
    )
    start = _place(random, tokens)
    stop = start + random.randint(0, 20)
    depth = random.choice((1, 1, 1, 2, 5, 70, 400))
    head = random.choice(heads)
    tail = "} -> add" if head.startswith("branch") else "}"
    return [*tokens[:start], *[f" {head} "] * depth, *tokens[start:stop], *[f" {tail} "] * depth, *tokens[stop:]]


def _nest(random: Random, tokens: Tokens, _others: Sequence[str]) -> Tokens:
    """Put a number into parentheses, or behind signs, often."""
    at, depth = _place(random, tokens), random.choice((1, 3, 60, 3000))
    before, behind = random.choice((("(", ")"), ("-", ""), ("1+", ""), ("relu(", ")"), ("2*", "")))
    return [*tokens[:at], before * depth, tokens[at] if tokens else "1", behind * depth, *tokens[at + 1 :]]


def _cut(random: Random, tokens: Tokens, _others: Sequence[str]) -> Tokens:
    return tokens[: _place(random, tokens)]


_SOFT: tuple[Change, ...] = (_number, _number, _word, _word, _layer, _layer, _layer, _statement, _statement)
_CHANGES: tuple[Change, ...] = (_delete, _repeat, _swap, _replace, _replace, _insert, _wrap, _wrap, _nest, _cut)

"""Texts as tokens, by a tokenizer that the user names: a public file, which the library `tokenizers` reads."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lipcompile.diagnostics import input_error
from lipcompile.tables.schema import schema_error

FILE = "tokenizer.json"
_PIECE = 1000  # texts; what the library says of each token takes a hundred bytes


def content(tokenizer: str | os.PathLike[str]) -> str:
    """Return the content of a `tokenizer.json`, or of the one in a folder; content stays as it is.

    Raises InputError (LIP412) if it cannot be read.
    """
    text = os.fspath(tokenizer)
    if is_content(text):
        return text
    path = Path(text) / FILE if Path(text).is_dir() else Path(text)
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise schema_error(f"the tokenizer `{path}` cannot be read: {error.strerror}", _HELP) from None
    except UnicodeDecodeError:
        raise schema_error(f"the tokenizer `{path}` is not UTF-8 text", _HELP) from None


_HELP = f"give the {FILE} that the library tokenizers or transformers saved, or its folder"


def is_content(tokenizer: str) -> bool:
    """Return whether this is what stands in a file, not its path."""
    return tokenizer.lstrip().startswith("{")


@lru_cache(maxsize=8)
def _loaded(text: str) -> Any:
    """Return a tokenizer that neither pads nor cuts; raises InputError (LIP410, LIP412)."""
    try:
        library = import_module("tokenizers")
    except ModuleNotFoundError:
        raise input_error("LIP410", "texts need tokenizers", "pip install 'lipcompile[text]'") from None
    try:
        found = library.Tokenizer.from_str(text)
    except Exception:  # the library raises no other class
        raise schema_error("the file of the tokenizer is of another format", _HELP) from None
    found.no_padding()
    found.no_truncation()
    return found


def _encoded(texts: Iterable[str | None], tokenizer: str, *, special: bool) -> list[NDArray[np.int64]]:
    """Return the tokens of each text; of none there are none."""
    known, rows, found = _loaded(tokenizer), [text or "" for text in texts], []
    for start in range(0, len(rows), _PIECE):
        piece = known.encode_batch(rows[start : start + _PIECE], add_special_tokens=special)
        found += [np.array(encoding.ids, np.int64) for encoding in piece]
    return found


def token_buckets(
    texts: Iterable[str | None], tokenizer: str, bucket_of: Sequence[int]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return rows and buckets, [n] each, of the tokens that occur in texts; special tokens are left out.

    Args:
        tokenizer: its content.
        bucket_of: the bucket of each token, by its number.
    """
    found = _encoded(texts, tokenizer, special=False)
    rows = np.repeat(np.arange(len(found)), [len(ids) for ids in found])
    return rows, np.asarray(bucket_of, np.int64)[np.concatenate([*found, np.empty(0, np.int64)])]


def vocabulary(tokenizer: str) -> list[str]:
    """Return the tokens by their numbers, "" where a number has none; `tokenizer` is its content."""
    numbers: dict[str, int] = _loaded(tokenizer).get_vocab()
    found = [""] * (1 + max(numbers.values(), default=-1))
    for token, number in numbers.items():
        found[number] = token
    return found


def token_ids(
    texts: Iterable[str], tokenizer: str | os.PathLike[str], length: int, *, padding: int = 0
) -> NDArray[np.int64]:
    """Return the tokens of texts as inputs of a network with an embedding, int64 [N, length].

    Each text is encoded by itself, with its special tokens; longer ones are cut, shorter ones padded.

    Args:
        texts: N texts.
        tokenizer: the path of a `tokenizer.json`, or of its folder. It must be public.
        length: tokens of each text.
        padding: the token behind the end of a text.

    Raises:
        InputError: LIP410, the library `tokenizers` is not installed; LIP412, the file is no tokenizer.
    """
    found = _encoded(texts, content(tokenizer), special=True)
    ids = np.full((len(found), length), padding, np.int64)
    for row, tokens in zip(ids, found, strict=True):
        row[: len(tokens)] = tokens[:length]
    return ids

"""The grammar that editors of TextMate's kind colour .lip by: `editors/vscode/syntaxes/lip.tmLanguage.json`.

A test holds the file to what is written here, and so to the layers and losses of the compiler.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lipcompile.editor import words

_NAME = "[A-Za-z_][A-Za-z0-9_]*"


def grammar() -> dict[str, Any]:
    """Return the grammar as it is written to JSON."""
    return {
        "$schema": "https://raw.githubusercontent.com/martinring/tmlanguage/master/tmlanguage.json",
        "name": "lipcompile",
        "scopeName": "source.lip",
        "fileTypes": ["lip"],
        "patterns": [
            _declared(),
            {"include": "#common"},
            _match("variable.other.lip", f"{_NAME}(?=\\s*(,\\s*{_NAME}\\s*)*=)"),
            _match("keyword.control.lip", _any(words.KEYWORDS)),
            _match("support.function.lip", _any((*words.known_layers(), *words.losses()))),
            _match("entity.name.function.lip", f"{_NAME}(?=\\s*\\()"),
        ],
        "repository": {"common": {"patterns": _common()}, "call": _call()},
    }


def _declared() -> dict[str, Any]:
    captures = {"1": {"name": "storage.type.lip"}, "2": {"name": "entity.name.type.lip"}}
    return {"match": f"\\b(model|block)\\s+({_NAME})", "captures": captures}


def _common() -> list[dict[str, Any]]:
    return [
        _match("comment.line.number-sign.lip", "#.*$"),
        _match("string.quoted.double.lip", '"[^"\\n]*"'),
        _match("constant.numeric.lip", "\\b\\d+(\\.\\d*)?([eE][+-]?\\d+)?|\\.\\d+([eE][+-]?\\d+)?"),
        _match("constant.language.lip", _any(("true", "false", "trusted"))),
        _match("storage.type.lip", _any((*words.KINDS, *words.NUMBERS))),
        _match("keyword.operator.lip", "<=|->|[-+*/=]"),
        {"include": "#call"},
    ]


def _call() -> dict[str, Any]:
    inside = [{"include": "#common"}, _match("variable.parameter.lip", f"{_NAME}(?=\\s*=)")]
    return {"begin": "\\(", "end": "\\)", "patterns": inside}


def _match(scope: str, pattern: str) -> dict[str, str]:
    return {"name": scope, "match": pattern}


def _any(names: Iterable[str]) -> str:
    return f"\\b({'|'.join(sorted(set(names)))})\\b"

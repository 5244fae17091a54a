"""Colours for .lip in documentation and terminals: a lexer of Pygments, which finds it by an entry point."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pygments.lexer import RegexLexer, bygroups, include, words
from pygments.token import Comment, Keyword, Name, Number, Operator, Punctuation, String, Whitespace

from lipcompile.editor import words as known

_NAME = r"[A-Za-z_]\w*"


def _any(names: Any) -> words:
    return words(tuple(names), prefix=r"\b", suffix=r"\b")


class LipLexer(RegexLexer):
    """Tokens of the .lip language. Its layers and losses are those of the compiler, with registered ops."""

    name = "lipcompile"
    aliases: ClassVar[list[str]] = ["lip"]
    filenames: ClassVar[list[str]] = ["*.lip"]
    mimetypes: ClassVar[list[str]] = ["text/x-lip"]
    url = "https://pypi.org/project/lipcompile/"
    tokens: ClassVar[Mapping[str, list[Any]]] = {
        "common": [
            (r"\s+", Whitespace),
            (r"#[^\n]*", Comment.Single),
            (r'"[^"\n]*"', String),
            (r"(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", Number),
            (_any(("true", "false", "trusted")), Keyword.Constant),
            (_any(known.KINDS + known.NUMBERS), Keyword.Type),
            (r"<=|->|[-+*/=]", Operator),
            (r"\(", Punctuation, "call"),
            (r"[\[\]{},:;]", Punctuation),
        ],
        "root": [
            (rf"\b(model|block)(\s+)({_NAME})", bygroups(Keyword.Declaration, Whitespace, Name.Class)),
            include("common"),
            (rf"{_NAME}(?=\s*(,\s*{_NAME}\s*)*=)", Name.Variable),
            (_any(known.KEYWORDS), Keyword),
            (_any((*known.known_layers(), *known.losses())), Name.Builtin),
            (_NAME, Name),
        ],
        "call": [
            (r"\)", Punctuation, "#pop"),
            include("common"),
            (rf"{_NAME}(?=\s*=)", Name.Attribute),
            (_NAME, Name),
        ],
    }

"""Text -> syntax tree. The only module that runs lark."""

from __future__ import annotations

import functools
import re
from fractions import Fraction
from importlib.resources import files
from typing import Any

from lark import Lark, Token, Transformer, Tree, v_args
from lark.exceptions import UnexpectedCharacters, UnexpectedEOF, UnexpectedInput, UnexpectedToken, VisitError

from lipcompile import limits
from lipcompile.diagnostics import Diagnostic, InputError, Location
from lipcompile.frontends.lip import syntax as ast
from lipcompile.ops.schema import suggest

# What the parser calls its tokens, in a reader's words.
_WORDS = {
    "NAME": "a name",
    "NUMBER": "a number",
    "STRING": "a string",
    "LBRACE": "`{`",
    "RBRACE": "`}`",
    "LPAR": "`(`",
    "RPAR": "`)`",
    "LSQB": "`[`",
    "RSQB": "`]`",
    "COMMA": "`,`",
    "COLON": "`:`",
    "EQUAL": "`=`",
    "PLUS": "`+`",
    "MINUS": "`-`",
    "TIMES": "`*`",
    "OVER": "`/`",
    "SETTING": "a setting",
    "SEMICOLON": "`;`",
    "$END": "the end of the file",
    "__ANON_0": "`<=`",
    "__ANON_1": "`->`",
}
# Tokens that may follow nearly everything: listing them says nothing.
_NOISE = {"SEMICOLON", "PLUS", "MINUS", "TIMES", "OVER"}
# Words that a line may begin with.
_BEGINNINGS = (
    *("model", "block", "train", "import", "param", "input", "loss"),
    *("residual", "branch", "repeat", "frozen"),
)
_OUTER = ("model", "block", "train", "import")
# What is meant by a character that the language does not have.
_MEANT = {
    **dict.fromkeys("<≤⩽", "write <="),
    **dict.fromkeys("“”„‟«»'‘’", 'a text stands in "straight quotes", a word in none'),
    **dict.fromkeys("−–—", "write -"),
    **dict.fromkeys("×·", "write *"),
    "→": "write ->",
    "%": "write a number: 0.05 for 5 %",
}
# Levels of the syntax tree that one pair of braces takes.
_LEVELS = 3


def parse(text: str, file: str) -> ast.File:
    """Parse a source; raises InputError at the first syntax error (LIP010) or what exceeds a limit (LIP018)."""
    tree = _parsed(text, file, all_tokens=False)
    try:
        result: ast.File = _Builder(file).transform(tree)
    except VisitError as error:
        raise error.orig_exc from None
    return result


def concrete(text: str, file: str) -> Tree[Token]:
    """Parse a source and keep all its tokens, by the rules of the grammar; raises InputError as `parse` does."""
    return _parsed(text, file, all_tokens=True)


def _parsed(text: str, file: str, *, all_tokens: bool) -> Tree[Token]:
    try:
        tree = _lark(all_tokens).parse(text)
    except UnexpectedInput as error:
        raise InputError((_syntax_error(error, text, file),), text) from None
    _check_depth(tree, file)
    return tree


def _check_depth(tree: Tree[Token], file: str) -> None:
    """Raise InputError where parts of the text stand too deep inside one another: what follows is recursive."""
    most = _LEVELS * (limits.current().depth + 2)  # with those of a model and a call
    pending: list[tuple[Tree[Token], int]] = [(tree, 0)]
    while pending:
        parent, depth = pending.pop()
        if depth > most:
            at = Location(file, parent.meta.line, parent.meta.column)
            raise limits.exceeded("depth", "this is nested", at)
        pending += ((child, depth + 1) for child in parent.children if isinstance(child, Tree))


@functools.cache
def _lark(all_tokens: bool) -> Lark:
    return Lark(
        _grammar(), parser="lalr", propagate_positions=True, maybe_placeholders=False, keep_all_tokens=all_tokens
    )


def _grammar() -> str:
    """Read the grammar: inside the package where that is installed, beside it in a checkout."""
    package = files("lipcompile")
    installed = package.joinpath("grammar", "lip.lark")
    return (installed if installed.is_file() else package.joinpath("..", "grammar", "lip.lark")).read_text("utf-8")


def _syntax_error(error: UnexpectedInput, text: str, file: str) -> Diagnostic:
    if isinstance(error, UnexpectedCharacters):
        where, found = Location(file, error.line, error.column), text[error.pos_in_stream or 0]
        return Diagnostic("LIP010", f"unexpected character `{found}`", _meant(found), location=where)
    expected = _expected(error)
    at_end = isinstance(error, UnexpectedEOF) or (
        isinstance(error, UnexpectedToken) and error.token.type == "$END"
    )
    if at_end:
        lines = text.rstrip().splitlines() or [""]
        where = Location(file, len(lines), len(lines[-1]) + 1)
        return Diagnostic("LIP010", "the file ends in the middle of a statement", expected, location=where)
    assert isinstance(error, UnexpectedToken)
    where = Location(file, error.line, error.column, len(error.token))
    near = suggest(str(error.token), [name.lower() for name in error.expected if name.isalpha()])
    help_line = near or _of_line(error, text) or expected
    return Diagnostic("LIP010", f"unexpected `{error.token}`", help_line, location=where)


def _meant(character: str) -> str:
    if character.isspace():
        return "write an ordinary space"
    return _MEANT.get(character) or ("names have the letters A to Z, digits and _" if character.isalpha() else "")


def _of_line(error: UnexpectedToken, text: str) -> str:
    """Say what may be wrong with the line that an unexpected token stands in, empty if nothing is known."""
    line = text.splitlines()[error.line - 1]
    if line[error.column - 1 :].startswith(("//", "/*")):
        return "a comment begins with #"
    first = re.match(r"\s*(\w*)", line)
    if first is None or first.end() >= error.column:
        return ""
    if first[1] in _OUTER and "RBRACE" in error.expected:
        return f"`{first[1]}` stands outside of models: is a `}}` missing before it?"
    return "" if first[1] in _BEGINNINGS else suggest(first[1], _BEGINNINGS)


def _expected(error: UnexpectedInput) -> str:
    names: set[str] = set(getattr(error, "accepts", None) or getattr(error, "expected", None) or ())
    shown = sorted(_WORDS.get(name, f"`{name.lower()}`") for name in names - _NOISE)
    return f"expected {', '.join(shown[:-1])} or {shown[-1]}" if len(shown) > 1 else f"expected {''.join(shown)}"


@v_args(inline=True)
class _Builder(Transformer[Token, Any]):
    """One method per rule of the grammar."""

    def __init__(self, file: str) -> None:
        super().__init__()
        self._file = file

    def _at(self, token: Token) -> Location:
        return Location(self._file, token.line, token.column, len(token))

    def NAME(self, token: Token) -> ast.Name:  # noqa: N802
        return ast.Name(str(token), self._at(token))

    SETTING = NAME

    def NUMBER(self, token: Token) -> ast.Constant:  # noqa: N802
        at = self._at(token)
        return ast.Constant(limits.exact(str(token), "this number", at), at)

    def STRING(self, token: Token) -> ast.Constant:  # noqa: N802
        return ast.Constant(str(token)[1:-1], self._at(token))

    def number(self, constant: ast.Constant) -> ast.Constant:
        return constant

    text = number

    @v_args(meta=True)
    def true(self, meta: Any, _children: Any) -> ast.Constant:
        return ast.Constant(True, Location(self._file, meta.line, meta.column, 4))

    @v_args(meta=True)
    def false(self, meta: Any, _children: Any) -> ast.Constant:
        return ast.Constant(False, Location(self._file, meta.line, meta.column, 5))

    def bare(self, name: ast.Name) -> ast.Name:
        return name

    def binary_sum(self, left: ast.Expression, operator: Token, right: ast.Expression) -> ast.Binary:
        return ast.Binary(_operator(operator), left, right, self._at(operator))

    binary_product = binary_sum

    def negated(self, operator: Token, value: ast.Expression) -> ast.Expression:
        if isinstance(value, ast.Constant) and isinstance(value.value, Fraction):
            return ast.Constant(-value.value, self._at(operator))
        zero = ast.Constant(Fraction(0), self._at(operator))
        return ast.Binary("-", zero, value, self._at(operator))

    def several(self, *items: ast.Expression) -> ast.Tuple:
        return ast.Tuple(items, items[0].at)

    def named(self, name: ast.Name, value: ast.Expression) -> ast.Argument:
        return ast.Argument(name, value)

    def arguments(self, *items: ast.Argument | ast.Expression) -> tuple[ast.Argument, ...]:
        return tuple(item if isinstance(item, ast.Argument) else ast.Argument(None, item) for item in items)

    def call(self, name: ast.Name, arguments: tuple[ast.Argument, ...] = ()) -> ast.Call:
        return ast.Call(name, arguments)

    def body(self, *statements: ast.Statement) -> tuple[ast.Statement, ...]:
        return statements

    @v_args(meta=True, inline=False)
    def residual(self, meta: Any, children: list[Any]) -> ast.Residual:
        return ast.Residual(_as_call(children[0]), children[1], self._keyword(meta, "residual"))

    @v_args(meta=True, inline=False)
    def branch(self, meta: Any, children: list[Any]) -> ast.Branch:
        *bodies, merge = children
        return ast.Branch(tuple(bodies), _as_call(merge), self._keyword(meta, "branch"))

    @v_args(meta=True, inline=False)
    def repeat(self, meta: Any, children: list[Any]) -> ast.Repeat:
        return ast.Repeat(children[0], children[1], self._keyword(meta, "repeat"))

    @v_args(meta=True, inline=False)
    def frozen(self, meta: Any, children: list[Any]) -> ast.Frozen:
        return ast.Frozen(children[0], self._keyword(meta, "frozen"))

    def _keyword(self, meta: Any, word: str) -> Location:
        return Location(self._file, meta.line, meta.column, len(word))

    def targets(self, *names: ast.Name) -> tuple[ast.Name, ...]:
        return names

    def statement(self, *parts: Any) -> ast.Statement:
        *targets, layer = parts
        return ast.Statement(targets[0] if targets else (), _as_call(layer))

    def param(self, name: ast.Name, kind: ast.Name, value: ast.Expression | None = None) -> ast.Param:
        return ast.Param(name, kind, value)

    def norm(self, value: ast.Expression) -> ast.Argument:
        return ast.Argument(None, value)

    def trusted(self) -> str:
        return "trusted"

    def input(self, name: ast.Name, kind: ast.Name, *parts: Any) -> ast.InputLine:
        norms = [part.value for part in parts if isinstance(part, ast.Argument)]
        shape = tuple(part for part in parts if not isinstance(part, ast.Argument | str))
        return ast.InputLine(name, kind, shape, norms[-1] if norms else None, "trusted" in parts)

    def loss(self, use: ast.Call | ast.Name) -> ast.LossLine:
        return ast.LossLine(_as_call(use))

    def parameter(self, name: ast.Name, default: ast.Expression | None = None) -> Any:
        return (name, default)

    def block(self, name: ast.Name, *parts: Any) -> ast.Block:
        *parameters, body = parts
        return ast.Block(name, tuple(parameters), body)

    def model(self, name: ast.Name, *items: ast.Item) -> ast.Model:
        return ast.Model(name, items)

    def setting(self, key: ast.Name, values: tuple[ast.Argument, ...]) -> ast.TrainLine:
        return ast.TrainLine(key, values)

    def train(self, *lines: ast.TrainLine) -> tuple[ast.TrainLine, ...]:
        return lines

    def import_(self, path: ast.Constant) -> ast.Constant:
        return path

    def start(self, *items: Any) -> ast.File:
        training = [line for item in items if isinstance(item, tuple) for line in item]
        return ast.File(
            models=tuple(item for item in items if isinstance(item, ast.Model)),
            blocks=tuple(item for item in items if isinstance(item, ast.Block)),
            training=tuple(training),
            imports=tuple(item for item in items if isinstance(item, ast.Constant)),
        )


def _as_call(layer: Any) -> Any:
    return ast.Call(layer, ()) if isinstance(layer, ast.Name) else layer


def _operator(token: Token) -> Any:
    return str(token)

"""The layout of a .lip file: the same tokens and comments, on lines and at indents that follow from the grammar.

A body that was written on one line stays there if it fits; all else is decided here. So the layout of a text that
has been laid out is that text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import chain, pairwise

from lark import Token, Tree

from lipcompile.frontends.lip.parser import concrete
from lipcompile.frontends.lip.printer import INDENT, WIDTH

# Rules whose bodies are never written on one line.
_LONG = ("model", "train")
# Rules whose parentheses belong to the name before them.
_CALLS = ("call", "block", "residual")


def formatted(text: str, file: str) -> str:
    """Return the text in the standard layout, with every comment; raises InputError as `parse` does."""
    reader = _Reader(text.removeprefix("\ufeff").replace("\r\n", "\n"))
    layout = _Layout()
    layout.add(reader.file(file), 0)
    return "".join(layout.written())


# What is laid out


@dataclass(frozen=True, slots=True)
class Leaf:
    """A token and the rule of the grammar that it belongs to."""

    text: str
    rule: str


@dataclass(frozen=True, slots=True)
class Comment:
    """A comment. alone: on a line of its own, and not behind a token. spaced: with an empty line above it."""

    text: str
    alone: bool
    spaced: bool


@dataclass(frozen=True, slots=True)
class Body:
    """What stands in braces; `flat` if that was one line."""

    items: tuple[Item, ...]
    flat: bool


@dataclass(frozen=True, slots=True)
class Statement:
    """A declaration, a layer or a setting. spaced: with an empty line above it."""

    rule: str
    parts: tuple[Leaf | Comment | Body, ...]
    spaced: bool

    @property
    def flat(self) -> bool:
        """Whether it may be written on one line."""
        return all(
            part.flat and (self.rule not in _LONG or not part.items)
            if isinstance(part, Body)
            else isinstance(part, Leaf)
            for part in self.parts
        )


Item = Statement | Comment


class _Reader:
    """Takes the tokens of a syntax tree in order, and the comments out of the gaps between them."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._end = 0

    def file(self, name: str) -> tuple[Item, ...]:
        """Return the declarations of the whole text."""
        tree = concrete(self._text, name)
        return (*self._items(tree.children), *self._gap(len(self._text))[0])

    def _gap(self, start: int) -> tuple[list[Comment], bool]:
        """Return the comments up to a place, and whether an empty line stands directly before the place."""
        found, spaced = list[Comment](), False
        first, lines = self._end == 0, self._text[self._end : start].split("\n")
        for index, line in enumerate(lines):
            if comment := line.strip():
                found.append(Comment(comment, index > 0 or first, spaced))
            spaced = not comment and (spaced or 0 < index < len(lines) - 1)
        self._end = start
        return found, spaced

    def _token(self, token: Token) -> list[Comment]:
        """Return the comments before a token, and go behind it."""
        found, _ = self._gap(_start(token))
        self._end += len(token)
        return found

    def _items(self, children: Iterable[Token | Tree[Token]]) -> Iterator[Item]:
        for child in children:
            if isinstance(child, Token):  # a semicolon
                yield from self._token(child)
                continue
            comments, spaced = self._gap(_start(child))
            yield from comments
            yield Statement(child.data, tuple(self._parts(child)), spaced)

    def _parts(self, tree: Tree[Token]) -> Iterator[Leaf | Comment | Body]:
        children = iter(tree.children)
        for child in children:
            if isinstance(child, Tree):
                yield from self._parts(child)
                continue
            yield from self._token(child)
            if child == "{":
                *inside, close = children
                start = self._end
                items = (*self._items(inside), *self._token(close))  # type: ignore[arg-type]
                yield Body(_aligned(items), not items or "\n" not in self._text[start : self._end])
            else:
                of_numbers = all(isinstance(part, Token) or part.data == "number" for part in tree.children)
                yield Leaf(str(child), "fraction" if child == "/" and of_numbers else tree.data)


def _start(tree: Token | Tree[Token]) -> int:
    while isinstance(tree, Tree):
        tree = tree.children[0]
    assert tree.start_pos is not None
    return tree.start_pos


def _aligned(items: tuple[Item, ...]) -> tuple[Item, ...]:
    """Return the settings of `train` with their keys as wide as the widest; all else as it is."""
    keys = [item.parts[0] for item in items if isinstance(item, Statement) and item.rule == "setting"]
    width = max((len(key.text) for key in keys if isinstance(key, Leaf)), default=0)
    return tuple(_widened(item, width) for item in items)


def _widened(item: Item, width: int) -> Item:
    if isinstance(item, Comment) or item.rule != "setting":
        return item
    key, *rest = item.parts
    assert isinstance(key, Leaf)
    return replace(item, parts=(replace(key, text=key.text.ljust(width + 1)), *rest))


# How it is laid out


@dataclass(slots=True)
class _Line:
    indent: int
    text: str
    comment: str = ""
    spaced: bool = False


@dataclass(slots=True)
class _Layout:
    """Lines, written one after the other."""

    lines: list[_Line] = field(default_factory=list)

    def add(self, items: Sequence[Item], indent: int) -> None:
        """Write the items of the file, at indent 0, or of a body."""
        before: Item | None = None
        for item in items:
            first = len(self.lines)
            if isinstance(item, Comment):
                self._comment(item, indent)
            elif item.flat and len(short := _joined(list(_leaves(item)))) <= WIDTH:
                self.lines.append(_Line(indent, short))
            else:
                self._long(item, indent)
            if first < len(self.lines):
                self.lines[first].spaced = before is not None and (
                    item.spaced or (indent == 0 and _needs_empty_line(before, item))
                )
            if isinstance(item, Statement) or item.alone:
                before = item

    def _comment(self, comment: Comment, indent: int) -> None:
        """Write a comment behind the line above, where it stood and is the only one, or on its own line."""
        last = self.lines[-1] if self.lines else None
        if comment.alone or last is None or last.comment or last.text.startswith("#"):
            self.lines.append(_Line(indent, comment.text))
        else:
            self.lines[-1].comment = comment.text

    def _long(self, statement: Statement, indent: int) -> None:
        """Write a statement on several lines: its bodies, or its arguments, or as comments in it part it."""
        row, level = list[Leaf](), indent
        for part in _parted(statement):
            if isinstance(part, Leaf):
                row.append(part)
                continue
            if isinstance(part, Body):
                self._row([*row, Leaf("{", "")], level)
                self.add(part.items, indent + 1)
                row, level = [Leaf("}", "")], indent
                continue
            self._row(row, level)
            if isinstance(part, Comment):
                self._comment(part, indent + 1)
            row, level = [], indent if part is Break.CLOSING else indent + 1
        self._row(row, level)

    def _row(self, leaves: Sequence[Leaf], indent: int) -> None:
        if leaves:
            self.lines.append(_Line(indent, _joined(leaves)))

    def written(self) -> Iterator[str]:
        """Yield the lines of the text."""
        for line, column in zip(self.lines, _columns(self.lines), strict=True):
            text = INDENT * line.indent + line.text
            yield "\n" * line.spaced
            yield f"{text.ljust(column)}  {line.comment}\n" if line.comment else f"{text}\n"


class Break(Enum):
    """Where a line ends inside of a statement."""

    INNER = "the next line is indented"
    CLOSING = "the next line closes the brackets"


def _parted(statement: Statement) -> Iterator[Leaf | Comment | Body | Break]:
    """Yield the parts of a statement; one that is leaves alone has a break at each of its arguments."""
    leaves = [part for part in statement.parts if isinstance(part, Leaf)]
    if len(leaves) < len(statement.parts):
        yield from statement.parts
        return
    depth, closed = 0, False
    for leaf in leaves:
        closing = leaf.text == ")" and depth == 1 and not closed
        if closing:
            yield Break.CLOSING
        yield leaf
        depth += (leaf.text == "(") - (leaf.text == ")")
        closed = closed or closing
        if depth == 1 and not closed and leaf.text in ("(", ","):
            yield Break.INNER


def _needs_empty_line(before: Item, item: Item) -> bool:
    """Whether declarations of a file stand apart: all do, but imports, and comments stand above one."""
    if isinstance(before, Comment):
        return False
    if isinstance(item, Comment):
        return item.alone
    return not before.rule == item.rule == "import_"


def _leaves(statement: Statement) -> Iterator[Leaf]:
    for part in statement.parts:
        if isinstance(part, Leaf):
            yield part
        elif isinstance(part, Body):
            yield Leaf("{", "")
            for index, item in enumerate(part.items):
                assert isinstance(item, Statement)
                yield from [Leaf(";", "")] * (index > 0)
                yield from _leaves(item)
            yield Leaf("}", "")


def _joined(leaves: Sequence[Leaf]) -> str:
    spaces = ("" if _touch(left, right) else " " for left, right in pairwise(leaves))
    return "".join(chain.from_iterable(zip((leaf.text for leaf in leaves), (*spaces, ""), strict=True))).rstrip()


def _touch(left: Leaf, right: Leaf) -> bool:
    """Whether no space stands between two tokens."""
    return (
        left.text in ("(", "[")
        or right.text in (")", "]", "[", ",", ":", ";")
        or (right.text == "(" and right.rule in _CALLS)
        or any(leaf.text == "=" and leaf.rule in ("named", "parameter") for leaf in (left, right))
        or "fraction" in (left.rule, right.rule)
        or (left.text == "-" and left.rule == "negated")
    )


def _columns(lines: Sequence[_Line]) -> Iterator[int]:
    """Yield where the comment of each line is set off: in one column for lines that follow one another."""
    rows = list[_Line]()
    for before, line in pairwise((None, *lines)):
        assert line is not None
        follows = before is not None and before.comment and line.comment and line.indent == before.indent
        if rows and (line.spaced or not follows):
            yield from _column(rows)
            rows = []
        rows.append(line)
    yield from _column(rows)


def _column(rows: Sequence[_Line]) -> list[int]:
    return [max((len(INDENT) * row.indent + len(row.text) for row in rows), default=0)] * len(rows)

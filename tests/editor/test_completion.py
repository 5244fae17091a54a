"""What may be written where: of texts that end at the cursor."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from lipcompile.editor import words
from lipcompile.editor.completion import completions
from lipcompile.editor.document import checked, definition
from lipcompile.editor.hovering import hover
from lipcompile.editor.words import Argument, Callable
from lipcompile.frontends.lip.parser import concrete
from lipcompile.frontends.lip.printer import _KEYWORDS
from lipcompile.frontends.lip.training import _READERS
from lipcompile.ops.registry import layers
from lipcompile.ops.table import LOSS_BY_NAME

BLOCKS = [Callable("wide", (Argument("width"),))]


def offered(text: str) -> set[str]:
    return {found.word for found in completions(text, BLOCKS, ["stem"])}


IN_MODEL = "model m { input x: tensor[4], norm <= 1 "


@pytest.mark.parametrize(
    ("text", "some", "none"),
    [
        ("", {"model", "block", "train", "import"}, {"dense"}),
        (IN_MODEL, {"dense", "lstm", "wide", "residual", "loss"}, {"bce", "model", "poisson"}),
        (IN_MODEL + "den", {"dense"}, {"bce"}),
        (IN_MODEL + "a = ", {"dense"}, {"bce"}),
        ("block b() { ", {"dense", "repeat"}, {"input", "loss"}),
        (IN_MODEL + "repeat 2 { ", {"dense"}, {"input"}),
        (IN_MODEL + "loss ", set(LOSS_BY_NAME), {"dense"}),
        (IN_MODEL + "loss cross_entropy(", {"temperature", "normalise"}, {"features"}),
        (IN_MODEL + "loss cross_entropy(normalise=", {"true", "false"}, {"stem"}),
        (IN_MODEL + "loss huber(reduce=", {"mean", "sum"}, {"true"}),
        (IN_MODEL + "dense(", {"features", "bias", "constraint", "share", "clip", "start", "stem"}, {"kernel"}),
        (IN_MODEL + "dense(8, bias=1, ", {"constraint"}, {"bias"}),
        (IN_MODEL + "dense(8, constraint=", {"spectral", "orthogonal", "frobenius", "fixed"}, {"stem"}),
        (IN_MODEL + "conv2d(8, kernel=3, padding_mode=", {"zeros", "circular", "reflect"}, set()),
        (IN_MODEL + "relu6(", {"stem"}, {"low"}),
        (IN_MODEL + "wide(", {"width"}, {"features"}),
        (IN_MODEL + "gru(", {"width", "sequence", "bias"}, {"start"}),
        (IN_MODEL + "residual(", {"add", "mean", "convex"}, {"features"}),
        (IN_MODEL + "branch { dense(8) } { } -> ", {"concat", "multiply"}, {"dense"}),
        ("model m { param n: ", {"int", "real"}, {"tensor"}),
        ("model m { input x: ", {"tensor", "tokens"}, {"int"}),
        ("train { ", set(words.SETTINGS), {"dense"}),
        ("train { noise ", {"optimal", "correlated"}, {"poisson"}),
        ("train { noise optimal, ", {"blt"}, {"poisson"}),
        ("train { noise optimal sam", {"sampling"}, {"blt"}),
        ("train { sampling poisson(", {"batch", "dataset"}, {"features"}),
        ("train { bounds clip, groups=", {"flat", "layers", "blocks"}, {"theorem"}),
    ],
)
def test_what_fits(text: str, some: set[str], none: set[str]) -> None:
    assert some <= offered(text)
    assert not none & offered(text)


@pytest.mark.parametrize("text", ["# den", 'import "', IN_MODEL + "dense(8) # co"])
def test_nothing_in_comments_and_strings(text: str) -> None:
    assert offered(text) == set()


def test_every_record_is_known() -> None:
    """Each layer with the fields of its record, less those that its spelling fills in."""
    known = words.known_layers()
    for name, (op, spelling) in layers().items():
        fields = {field.name for field in dataclasses.fields(op.attributes)} - dict(spelling.preset).keys()
        assert fields <= {argument.name for argument in known[name].arguments}


def test_keywords_are_those_of_the_grammar() -> None:
    """The parser tells them: each is refused as the name of a model, and no other word is."""
    assert set(words.KEYWORDS) == _KEYWORDS
    assert set(words.SETTINGS) == set(_READERS)
    for name in words.known_layers():
        concrete(f"model m {{ {name} }}", "x.lip")


TEXT = """block wide(n) { dense(n) }
model m {
    param depth: int = 4
    input x: tensor[4], norm <= 1
    a = wide(depth)
    residual(mean) { a2 = dense(8); add(a2, a) }
    loss bce
}
"""


@pytest.mark.parametrize(
    ("line", "column", "defined"),
    [(5, 10, (1, 7)), (5, 14, (3, 11)), (6, 45, (5, 5)), (6, 41, (6, 22)), (1, 23, (1, 12)), (7, 11, None)],
)
def test_definitions(line: int, column: int, defined: tuple[int, int] | None) -> None:
    at = definition(checked(TEXT, Path("m.lip")), line, column)
    assert (at and (at.line, at.column)) == defined


EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.lip"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_place_has_an_answer(path: Path) -> None:
    """Completion of each beginning of a text, and hover and definition at each word of it."""
    text = path.read_text()
    for end in range(0, len(text), 11):
        completions(text[:end], BLOCKS, [])
    document = checked(text, path)
    for line, words_of in enumerate(document.lines, start=1):
        for column in range(1, len(words_of) + 2, 5):
            hover(document, line, column)
            definition(document, line, column)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_a_cut_text_has_diagnostics_of_its_own_place(path: Path) -> None:
    text = path.read_text()
    for end in range(0, len(text), 211):
        found = checked(text[:end], path)
        places = [(one.location.file, one.location.line) for one in found.diagnostics if one.location]
        assert len(places) == len(found.diagnostics)
        assert all(file == str(path) and line is not None and line <= len(found.lines) for file, line in places)

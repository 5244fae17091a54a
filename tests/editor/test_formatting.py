"""The formatter: the same tokens and comments, and a layout that does not change when it is made again."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lark import Token, Tree

from lipcompile.__main__ import run
from lipcompile.codes import codes
from lipcompile.core.graph import Graph
from lipcompile.diagnostics import InputError
from lipcompile.editor.formatting import formatted
from lipcompile.frontends.lip.lowering import lower
from lipcompile.frontends.lip.parser import concrete, parse
from lipcompile.frontends.lip.printer import WIDTH, print_model
from lipcompile.frontends.options import ModelOptions
from lipcompile.pipeline import load
from tests.attacks.modules import random_model

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted([*(ROOT / "examples").glob("*.lip"), ROOT / "lipcompile" / "data" / "digits.lip"])
WRITTEN = [path.read_text() for folder in ("examples", "tests/golden") for path in (ROOT / folder).glob("*.lip")]
WRITTEN += [text for entry in codes().values() if entry.language == "lip" for text in (entry.wrong, entry.right)]


def parses(text: str) -> bool:
    try:
        concrete(text, "x.lip")
    except InputError:
        return False
    return True


SOURCES = [text for text in WRITTEN if parses(text)]


def meaning(text: str) -> Tree[Token]:
    """Return the syntax tree without semicolons: equal for texts that say the same."""

    def pruned(tree: Tree[Token]) -> Tree[Token]:
        kept = [child for child in tree.children if child != ";"]
        return Tree(tree.data, [pruned(child) if isinstance(child, Tree) else child for child in kept])

    return pruned(concrete(text, "x.lip"))


def comments(text: str) -> list[str]:
    """Return the comments in order; a `#` in a string is none."""
    found = re.findall(r'"[^"\n]*"|(#[^\n]*)', text)
    return [comment.rstrip() for comment in found if comment]


def check(text: str) -> str:
    made = formatted(text, "x.lip")
    assert meaning(made) == meaning(text)
    assert comments(made) == comments(text)
    assert formatted(made, "x.lip") == made
    return made


# Every text


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_are_formatted_and_stay_the_same_graph(path: Path) -> None:
    text = path.read_text()
    assert formatted(text, str(path)) == text


@pytest.mark.parametrize("text", SOURCES)
def test_tokens_and_comments_stay(text: str) -> None:
    check(text)


GAPS = [" ", "\n", "\n\n\n", "\t", "  # a\n", "\n# b\n", '\n\n    # c, "quoted"\n\n', "\r\n", " ; "]


def tokens(tree: Tree[Token]) -> list[str]:
    return [str(token) for token in tree.scan_values(lambda value: isinstance(value, Token))]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_spaces_and_comments(data: st.DataObject) -> None:
    """Spaces, ends of lines and comments between any two tokens."""
    found = tokens(concrete(data.draw(st.sampled_from(SOURCES)), "x.lip"))
    gaps = data.draw(st.lists(st.sampled_from(GAPS), min_size=len(found) + 1, max_size=len(found) + 1))
    text = "".join(gap + token for gap, token in zip(gaps, [*found, ""], strict=True))
    if parses(text):
        check(text.replace("\r\n", "\n"))
        assert formatted(text, "x.lip") == formatted(text.replace("\r\n", "\n"), "x.lip")


def test_a_comment_behind_a_token_without_a_line_stays_one() -> None:
    """A `;` has no line: the one above it is a comment."""
    for gap in ("; # a\n", "\n;  # a\n", ";\n# b\n;  # a\n"):
        check(f"model m {{ input x: tensor[4], norm <= 1; relu\n# b\n{gap} dense(2); loss cross_entropy }}")


def graph(text: str) -> Graph:
    found, problems = lower(parse(text, "x.lip").models[0], {}, ModelOptions())
    assert found is not None, problems
    return found


def test_random_models_keep_their_graph() -> None:
    """What `print_model` writes is in the standard layout, but for arguments that do not fit in a line."""
    for seed in range(40):
        text = f"model m {{ {' ; '.join(random_model(seed))} }}"
        printed = print_model(graph(text))
        assert print_model(graph(check(text))) == printed
        fits = all(len(line.strip()) <= WIDTH for line in printed.splitlines())
        assert (check(printed) == printed) is fits


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_a_text_on_one_line_is_the_same_graph(path: Path, tmp_path: Path) -> None:
    squeezed = " ".join(tokens(concrete(path.read_text(), "x.lip")))
    copy = tmp_path / path.name
    copy.write_text(formatted(squeezed, "x.lip"))
    one, two = (load(str(file), ModelOptions()).graph for file in (path, copy))
    assert (one is None) is (two is None)
    assert one is None or two is None or print_model(one) == print_model(two)


# How it looks


def test_the_standard_layout() -> None:
    written = """# of the file
block  wide( n,factor =2 ){residual(mean){dense( n*factor );groupsort(2)  # sorts
dense(n)} }
import  "blocks.lip"
import "more.lip"   # more
model m{param depth :int=4 # a count

# of the input

  input x:tensor[ 1,28, 28 ] , norm<=1.0
  a,b=split(2) ;  c = dense(a,-(depth+1) , weights=(2,)) # c
  longer = identity  # l
  repeat 2*depth{ wide(64); frozen{dense(3)} } branch{dense(8)}{ }->concat(axis=-1)

  reshape(-100000000000, 200000000000, 3000000000, 4000000000, 50000000000, 60000000000, 7000000000, 8) # long
  loss cross_entropy
  # the end
}
train{budget epsilon=3,delta=1e-5
neighbours add_remove}"""
    assert (
        formatted(written, "x.lip")
        == """# of the file
block wide(n, factor=2) {
    residual(mean) {
        dense(n * factor)
        groupsort(2)  # sorts
        dense(n)
    }
}

import "blocks.lip"
import "more.lip"  # more

model m {
    param depth: int = 4  # a count

    # of the input

    input x: tensor[1, 28, 28], norm <= 1.0
    a, b = split(2)
    c = dense(a, -(depth + 1), weights=(2,))  # c
    longer = identity                         # l
    repeat 2 * depth { wide(64); frozen { dense(3) } }
    branch { dense(8) } { } -> concat(axis=-1)

    reshape(
        -100000000000,
        200000000000,
        3000000000,
        4000000000,
        50000000000,
        60000000000,
        7000000000,
        8
    )  # long
    loss cross_entropy
    # the end
}

train {
    budget      epsilon=3, delta=1e-5
    neighbours  add_remove
}
"""
    )


def test_comments_inside_of_a_statement_end_its_lines() -> None:
    made = formatted("block b() { dense(8,# out\n # its bias\n bias=1) }", "x.lip")
    assert (
        made
        == """block b() {
    dense(8,  # out
        # its bias
        bias=1)
}
"""
    )


# The command


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("model.lip").write_text(UGLY)
    return tmp_path


UGLY = "model m{input x:tensor[4],norm<=1\ndense(2) # two\nloss cross_entropy}"
NICE = """model m {
    input x: tensor[4], norm <= 1
    dense(2)  # two
    loss cross_entropy
}
"""


@pytest.mark.usefixtures("place")
def test_files_are_formatted_in_place(capsys: pytest.CaptureFixture[str]) -> None:
    Path("nice.lip").write_text(NICE)
    assert run(["format", "--check", "nice.lip", "model.lip"]) == 1
    assert Path("model.lip").read_text() == UGLY
    assert capsys.readouterr().err == "would change model.lip\n"
    assert run(["format", "nice.lip", "model.lip"]) == 0
    assert capsys.readouterr().err == "changed model.lip\n"
    assert Path("model.lip").read_text() == NICE
    assert run(["format", "--check", "nice.lip", "model.lip"]) == 0


@pytest.mark.usefixtures("place")
def test_other_ends_of_lines_are_a_change() -> None:
    Path("dos.lip").write_bytes(b"\xef\xbb\xbf" + NICE.replace("\n", "\r\n").encode())
    assert run(["format", "--check", "dos.lip"]) == 1
    assert run(["format", "dos.lip"]) == 0
    assert Path("dos.lip").read_bytes() == NICE.encode()


def test_stdin_is_written_to_stdout(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(UGLY))
    assert run(["format", "-"]) == 0
    assert capsys.readouterr().out == NICE


@pytest.mark.usefixtures("place")
def test_what_does_not_parse_is_left_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    Path("cut.lip").write_text("model m {")
    assert run(["format", "cut.lip", "missing.lip", "model.onnx", "model.lip"]) == 2
    err = capsys.readouterr().err
    assert [err.count(f"error[{code}]") for code in ("LIP010", "LIP001")] == [1, 2]
    assert Path("cut.lip").read_text() == "model m {"
    assert Path("model.lip").read_text() == NICE

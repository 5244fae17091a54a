"""Reports as Markdown and as LaTeX: what they say, hostile names, bounded size, and that TeX accepts them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcompile.analysis.changes import Change
from lipcompile.core.derivation import Derivation
from lipcompile.diagnostics import Diagnostic, Location
from lipcompile.pipeline import check
from lipcompile.reports import latex, markdown
from lipcompile.reports.document import Curve, Document, Privacy, document
from tests.nights import by_day
from tests.reports.html_pages import OPEN, full

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"

SMALL = """
model small {
    input x: tensor[4], norm <= 0.5
    first_layer = dense(4, bias=0.25)
    frozen { dense(4) }
    dense(1)
    loss hinge
}
"""
SYMBOLIC = "model symbolic { input x: tensor[4]\n dense(2) }"
REJECTED = "model rejected { input x: tensor[4], norm <= 1\n dnse(2)\n batch_norm\n loss hinge }"
# All that Markdown, TeX or a terminal takes for something else, and letters of many scripts.
HOSTILE = (
    r"\input{/etc/passwd} $x$ a_b^c~d #1 &co; 100% {un[bal* `code` <b>|cell| -- ,, ?` \\ !["
    "\x1b[31m\n\ttab \u202e größe Ωμέγα модель 模型 مرحبا 😀 ‖x‖ ≤ √2 → ∞ ε δ σ Σ … – — “quoted” ĸŉſ"
)
TALL = "x" * 300


def derivation(folder: Path, program: str) -> Derivation:
    path = folder / "m.lip"
    path.write_text(program)
    found = check(str(path))
    return replace(found, source=replace(found.source, path="m.lip"))


def hostile(folder: Path) -> Document:
    """A document in which every text that comes from outside is hostile."""
    found = derivation(folder, SMALL)
    noted = Diagnostic(
        "LIP201",
        f"{HOSTILE} `{HOSTILE}`",
        HOSTILE,
        node=HOSTILE,
        op=TALL,
        location=Location(HOSTILE),
        path=(TALL,),
    )
    source = replace(found.source, name=HOSTILE, path=f"{HOSTILE}/{TALL}")
    privacy = Privacy(1.0, 0.1, 9, 1e-5, "add_remove", (Curve(HOSTILE, ((1, 0.5),), HOSTILE),))
    suggestion = Change("scale", HOSTILE, TALL, 1.0, 0.5)
    return document(replace(found, source=source, diagnostics=(noted,)), suggestions=[suggestion], privacy=privacy)


def row(text: str, start: str) -> str:
    (found,) = (line for line in text.splitlines() if line.startswith(start))
    return found


# Markdown


def test_markdown_of_a_small_model(tmp_path: Path) -> None:
    text = markdown.render(full(derivation(tmp_path, SMALL)))
    assert text.startswith("# small: accepted\n")
    # √(0.25 + 1 + 0.5625) = 1.34629…
    assert row(text, "- gradient of one example") == (
        "- gradient of one example: at most **1.3462913**, "
        r"$`\sqrt{X_{0}^{2} + \left(X_{0} + \frac{1}{4}\right)^{2} + 1}`$"
    )
    assert row(text, "- parameters") == "- parameters: 40, of which 24 are trained"
    assert row(text, "| R1") == "| R1 | Lipschitz loss | holds | hinge is Lipschitz in the output |"
    assert row(text, "| `first_layer.weight` | 4") == (
        r"| `first_layer.weight` | 4×4 | spectral\<=1 | 0.5000000 | 14% | $`X_{0}`$ |"
    )
    assert row(text, "| `dense.weight` | 4") == r"| `dense.weight` | 4×4 | spectral\<=1 | 0 | | not trained |"
    assert row(text, "| `first_layer` |") == (
        r"| `first_layer` | `dense` | 4 | $`X_{0} + \frac{1}{4}`$ ≤ 0.7500000 | $`1`$ | $`1`$ |"
    )
    assert row(text, "| $`X_{0}`$ |") == r"| $`X_{0}`$ | 0.5000000 | bound of the input norm | 0.5 |"


def test_markdown_of_a_model_without_norm_and_loss(tmp_path: Path) -> None:
    text = markdown.render(full(derivation(tmp_path, SYMBOLIC)))
    assert row(text, "- gradient of one example") == "- gradient of one example: $`L X_{0}`$"
    assert row(text, "- loss") == "- loss: not given"
    bounds = text[text.index("## Bounds by parameter") : text.index("## Noise against signal")]
    assert row(bounds, "| `dense.weight`") == r"| `dense.weight` | 2×4 | spectral\<=1 | – | – | $`L X_{0}`$ |"


def test_markdown_of_a_rejected_model(tmp_path: Path) -> None:
    text = markdown.render(document(derivation(tmp_path, REJECTED)))
    assert text.startswith("# rejected: rejected\n")
    assert re.search(r"- \*\*error LIP011\*\*: unknown layer `dnse`\n  - place: \S+:2:2, node dnse\n", text)
    assert "## Layers" not in text


def test_long_formulas_stand_at_the_end() -> None:
    text = markdown.render(full(check(str(EXAMPLES / "vit.lip"))))
    numbers = set(re.findall(r"\[F(\d+)\]\(#f\1\)", text))
    headings = re.findall(r"^### F(\d+)$", text, re.MULTILINE)
    assert headings == [str(i + 1) for i in range(len(headings))]
    assert numbers == set(headings)
    assert text.count("```math\n\\begin{aligned}\n") == len(headings) == text.count("\\end{aligned}\n```")


def test_tables_of_markdown_keep_their_columns(tmp_path: Path) -> None:
    documents = [hostile(tmp_path), full(check(str(EXAMPLES / "vit.lip"))), full(derivation(tmp_path, OPEN))]
    for shown in documents:
        columns = None
        for line in markdown.render(shown).splitlines():
            cells = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else None
            assert None in (cells, columns) or cells == columns, line
            columns = cells


def test_nothing_hostile_becomes_markup_of_markdown(tmp_path: Path) -> None:
    text = markdown.render(hostile(tmp_path))
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert r"\\input\{/etc/passwd\} \$x\$ a\_b^c\~d \#1 \&co;" in text
    # Outside code and mathematics, every character that could be markup has a backslash.
    plain = re.sub(r"```.*?```|\$`[^`]*`\$|`[^`\n]*`|\[F\d+\]\(#f\d+\)", "", text, flags=re.DOTALL)
    assert not re.search(r"(?<!\\)[<\[$~]", re.sub(r"\\\\", "", plain))


@given(st.text())
def test_escaped_text_is_what_markdown_reads(text: str) -> None:
    # CommonMark: a backslash before ASCII punctuation is dropped, and what follows is no markup.
    assert re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", markdown.escape(text)) == text


# LaTeX


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("plain text", "plain text"),
        (r"\end{document}", r"\textbackslash{}end\{document\}"),
        ("a_b", r"a\_\B{}b"),
        ("100% & $5 #1", r"100\% \& \$5 \#1"),
        ("x^2~", r"x\textasciicircum{}2\textasciitilde{}"),
        ("[1pt]*", "{[}1pt{]}{*}"),
        ("--,,", "-{}-{},{},"),
        ("größe", "größe"),
        ("模", r"\texttt{U+6A21}"),
        ("0.25", "0.25"),
        ("", ""),
    ],
)
def test_escapes_of_latex(text: str, written: str) -> None:
    assert latex.escape(text) == written


@given(st.text())
def test_nothing_of_a_text_is_a_command_of_latex(text: str) -> None:
    left = re.sub(
        r"\\(?:[{}$&#%_]|text[a-z]+\{\}|dots\{\}|B\{\}|texttt\{U\+[0-9A-F]{4,6}\}|\((?:\\\||\\[a-z]+)\\\))",
        "",
        latex.escape(text),
    )
    assert not re.search(r"[\\$&#%_^~]", left)
    assert left.count("{") == left.count("}")


def compiled(text: str, folder: Path) -> str:
    """Return the log of pdflatex; fails if it finds an error."""
    program = shutil.which("pdflatex")
    if program is None and "CI" not in os.environ:
        pytest.skip("there is no pdflatex: scripts/install-test-tools installs it")
    assert program, "there is no pdflatex"
    (folder / "report.tex").write_text(text, encoding="utf-8")
    command = [program, "-interaction=nonstopmode", "-halt-on-error", "report.tex"]
    done = subprocess.run(command, cwd=folder, capture_output=True, check=False)
    log = (folder / "report.log").read_text(encoding="utf-8", errors="replace")
    assert done.returncode == 0, log[-2000:]
    return log


@pytest.mark.parametrize(
    "program", [SMALL, SYMBOLIC, REJECTED, OPEN], ids=["small", "symbolic", "rejected", "open"]
)
def test_latex_compiles(program: str, tmp_path: Path) -> None:
    compiled(latex.render(full(derivation(tmp_path, program))), tmp_path)


@pytest.mark.parametrize("name", ["vit", "squeeze_excite"])
def test_long_formulas_stay_on_the_page(name: str, tmp_path: Path) -> None:
    log = compiled(latex.render(full(check(str(EXAMPLES / f"{name}.lip")))), tmp_path)
    wide = [float(width) for width in re.findall(r"Overfull \\hbox \(([\d.]+)pt", log)]
    assert max(wide, default=0.0) < 40  # of the 57 points of the margin
    assert "Missing character" not in log


def test_hostile_texts_compile(tmp_path: Path) -> None:
    text = latex.render(hostile(tmp_path))
    assert r"\input" not in text
    log = compiled(text, tmp_path)
    assert "Missing character" not in log
    assert "passwd" not in re.findall(r"\(([^\s()]+)", log)


def test_every_letter_compiles(tmp_path: Path) -> None:
    # All of Latin, Greek and Cyrillic, signs, and a sample of the rest.
    codes = [*range(0x20, 0x500), *range(0x2000, 0x2300), *range(0x500, 0x11000, 97)]
    letters = [chr(code) for code in codes if chr(code).isprintable()]
    body = "\n\n".join(" ".join(map(latex.escape, letters[i : i + 40])) for i in range(0, len(letters), 40))
    frame = latex.render(document(derivation(tmp_path, REJECTED)))
    log = compiled(frame.replace(r"\section{Requirements}", body, 1), tmp_path)
    assert "Missing character" not in log


# Size


def test_the_size_of_a_report_does_not_depend_on_the_depth(tmp_path: Path) -> None:
    def program(count: int) -> str:
        block = "residual(mean) { dense(4, bias=0.01) groupsort(2) }"
        return (
            f"model m {{ input x: tensor[4], norm <= 1 repeat {count} {{ {block} }} dense(2) loss cross_entropy }}"
        )

    small, large = (document(derivation(tmp_path, program(count))) for count in (50, 1700))
    for rendering in (markdown, latex):
        few, many = rendering.render(small), rendering.render(large)
        assert len(many) < 1.2 * len(few)
        assert "1,700" in many
        assert "row with × stands for" in many.replace(r"\(\times\)", "×")


@pytest.mark.parametrize("count", by_day({2000}, [2000, 5000]))
def test_thousands_of_layers_that_do_not_repeat(count: int, tmp_path: Path) -> None:
    layers = " ".join(f"dense(2, bias=0.0{i % 71:02}{i % 89:02}1)" for i in range(count))
    shown = document(
        derivation(tmp_path, f"model m {{ input x: tensor[2], norm <= 1 {layers} dense(1) loss hinge }}")
    )
    for rendering in (markdown, latex):
        text = rendering.render(shown)
        assert len(text) < 150_000
        assert "more layers are not shown; the JSON report has all." in text

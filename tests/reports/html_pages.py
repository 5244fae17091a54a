"""Reports as HTML for tests, and what a page consists of, as a parser sees it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from pathlib import Path

from lipcompile.analysis.changes import changes
from lipcompile.analysis.depth.regimes import curves
from lipcompile.core.derivation import Analysis, Derivation
from lipcompile.frontends.options import ModelOptions
from lipcompile.pipeline import check
from lipcompile.reports.document import Curve, Document, Privacy, document
from lipcompile.reports.html import render
from lipcompile.reports.rows import Measured, SignalRow
from tests.frontends.onnx.onnx_models import floats, model, node, save
from tests.frontends.onnx.resnet_onnx import resnet

# Elements of HTML that have no end tag.
_VOID = frozenset(["meta", "link", "br", "wbr", "hr", "img", "input"])

DEEP = """
model deep {
    input x: tensor[32], norm <= 1
    stem = dense(16, bias=0.5)
    repeat 6 { residual(mean) { dense(16, bias=0.5); groupsort(2) } }
    dense(4)
    loss cross_entropy(temperature=2)
}
"""
OPEN = """
model open {
    param depth: int
    param alpha: real
    input x: tensor[32]
    dense(16, constraint=spectral(alpha))
    repeat depth { residual(add) { dense(16, constraint=spectral(alpha), bias=1); relu } }
    dense(4)
}
"""
HOSTILE = """
# <script>alert("source")</script> <!-- & ]]> </pre></code>
model hostile {
    input x: tensor[8, 8], norm <= 1
    conv2d(4, kernel=3, paddding="<script>alert(1)</script>")
    loss nothing
}
"""
HOSTILE_NAME = "<script>alert('file')<%2fscript>\n\"&.lip"


@dataclass(frozen=True, slots=True)
class Element:
    """A start tag, and the tags around it, the innermost last."""

    tag: str
    attributes: dict[str, str | None]
    around: tuple[str, ...]


@dataclass
class Parsed(HTMLParser):
    """The elements of a page, and its text; raises AssertionError where tags do not nest."""

    elements: list[Element] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    _open: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(Element(tag, dict(attrs), tuple(self._open)))
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(Element(tag, dict(attrs), tuple(self._open)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> closes nothing"
        assert self._open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        if "style" not in self._open:
            self.words.append(data)

    def all(self, *tags: str) -> Iterator[Element]:
        return (element for element in self.elements if element.tag in tags)

    @property
    def text(self) -> str:
        """What is read, with single blanks."""
        return " ".join("".join(self.words).split())


def parsed(page: str) -> Parsed:
    found = Parsed()
    found.feed(page)
    found.close()
    return found


def full(derivation: Derivation, privacy: Privacy | None = None) -> Document:
    """The document with all that there is of an accepted model."""
    analysis = derivation.analysis
    if analysis is None:
        return document(derivation)
    deeper = replace(analysis, depth=curves(analysis.graph, analysis.depth))
    return document(
        replace(derivation, analysis=deeper),
        suggestions=changes(analysis.graph, measure=lambda _: 1.0),
        privacy=privacy or PRIVACY,
        signal=_measured(analysis),
    )


@dataclass(frozen=True)
class Measures:
    """What a backend returns."""

    parameters: dict[str, SignalRow]
    total: SignalRow


def _measured(analysis: Analysis) -> Measured:
    """A typical gradient of a hundredth of the bound; the last parameter has none."""
    *names, last = analysis.parameters
    rows = {name: SignalRow(name, analysis.parameters[name].value or 1.0, 0.01, 0.001, 2.0) for name in names}
    rows[last] = SignalRow(last, 1.0, 0.0, 0.0, float("inf"))
    return Measured(Measures(rows, SignalRow("", 1234.5, 0.01, 0.001, 2.0)), 1.5, 1024)


def _curve(accountant: str, scale: float) -> Curve:
    return Curve(accountant, tuple((steps, scale * steps**0.5) for steps in range(50, 1001, 50)))


PRIVACY = Privacy(1.5, 0.01, 1000, 1e-5, "add_remove", (_curve("rdp", 0.1), _curve("pld", 0.08)), target=2.5)


def page(path: Path, options: ModelOptions | None = None) -> str:
    return render(full(check(str(path), options)))


def lip_page(folder: Path, text: str, name: str = "model.lip") -> str:
    path = folder / name
    path.write_text(text)
    return page(path)


def resnet_page(folder: Path) -> str:
    return page(save(resnet(), folder, "resnet18.onnx"))


def rejected_page(folder: Path) -> str:
    """Batch normalisation of a batch, behind a node with a hostile name, and an operator that nobody knows."""
    nodes = [
        node("Conv", "x w", "c"),
        node("Unheard", "c", "<img_src=x_onerror=alert(1)>", domain="com.example"),
        node("Softplus", "<img_src=x_onerror=alert(1)>", "y"),
    ]
    nodes[1].name = "</text><script>alert(2)</script>"
    made = model(nodes, ("n", 1, 6, 6), {"w": floats(2, 1, 3, 3)})
    return page(save(made, folder, "rejected.onnx"))

"""The HTML report as a file: it needs nothing else, escapes everything, and says what the derivation says."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from lipcompile.reports.html.plots import Plot, Series, plot
from tests.reports.html_pages import (
    DEEP,
    HOSTILE,
    HOSTILE_NAME,
    OPEN,
    Parsed,
    lip_page,
    parsed,
    rejected_page,
    resnet_page,
)

PAGES: dict[str, Callable[[Path], str]] = {
    "resnet": resnet_page,
    "rejected": rejected_page,
    "deep": lambda folder: lip_page(folder, DEEP),
    "open": lambda folder: lip_page(folder, OPEN),
    "hostile": lambda folder: lip_page(folder, HOSTILE, HOSTILE_NAME),
}


@pytest.fixture(scope="module", params=list(PAGES))
def page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    return PAGES[request.param](tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Parsed:
    return parsed(lip_page(tmp_path_factory.mktemp("deep"), DEEP))


def test_the_page_needs_nothing_else(page: str) -> None:
    found = parsed(page)
    assert not list(found.all("script", "link", "img", "iframe", "object", "embed", "base", "form"))
    links = [element.attributes.get("href") or "#" for element in found.elements]
    assert all(link.startswith("#") for link in links)
    assert not any("src" in element.attributes or "srcset" in element.attributes for element in found.elements)
    assert "@import" not in page
    assert set(re.findall(r"url\((.)", page)) <= {"#"}
    assert set(re.findall(r"https?://[^\s\"<]*", page)) <= {"http://www.w3.org/2000/svg"}
    policies = [e.attributes["content"] for e in found.all("meta") if "http-equiv" in e.attributes]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'"]


def test_names_within_the_page_are_unique_and_lead_somewhere(page: str) -> None:
    found = parsed(page)
    names = [element.attributes["id"] for element in found.elements if "id" in element.attributes]
    assert len(set(names)) == len(names)
    referred = {(e.attributes.get("href") or "#")[1:] for e in found.elements} - {""}
    referred |= {name for e in found.elements for name in (e.attributes.get("aria-labelledby") or "").split()}
    referred |= set(re.findall(r"url\(#([^)]*)\)", page))
    assert referred <= set(names)


def test_the_page_can_be_read_without_seeing_it(page: str) -> None:
    found = parsed(page)
    assert [e.attributes.get("lang") for e in found.all("html")] == ["en"]
    assert len(list(found.all("h1"))) == 1
    levels = [int(e.tag[1]) for e in found.all("h1", "h2", "h3", "h4")]
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert all(e.attributes.get("scope") in ("row", "col") for e in found.all("th"))
    assert all({"role", "aria-labelledby"} <= set(e.attributes) for e in found.all("svg"))
    assert all({"tabindex", "aria-label"} <= set(e.attributes) for e in found.elements if _is_region(e.attributes))


def _is_region(attributes: dict[str, str | None]) -> bool:
    return attributes.get("role") == "region"


def test_whatever_is_wide_stands_in_a_container_that_scrolls(page: str) -> None:
    found = parsed(page)
    assert all({"div", "figure"} & set(e.around) for e in found.all("table", "svg"))
    assert all(e.attributes.get("tabindex") == "0" for e in found.all("pre") if "div" not in e.around)


def test_the_same_model_gives_the_same_bytes(tmp_path: Path) -> None:
    assert lip_page(tmp_path, DEEP) == lip_page(tmp_path, DEEP)


def test_hostile_names_and_texts_are_text(tmp_path: Path) -> None:
    page = lip_page(tmp_path, HOSTILE, HOSTILE_NAME)
    assert "<script" not in page
    assert '\n"&.lip' not in page
    found = parsed(page)
    assert '# <script>alert("source")</script> <!-- & ]]> </pre></code>' in found.text
    assert "<script>alert('file')<%2fscript>\\n\"&.lip" in found.text


def test_a_hostile_onnx_file_is_text(tmp_path: Path) -> None:
    page = rejected_page(tmp_path)
    assert not list(parsed(page).all("script", "img"))
    assert "alert(2)" in parsed(page).text


def test_a_rejected_model_has_reasons_and_no_bounds(tmp_path: Path) -> None:
    found = parsed(rejected_page(tmp_path))
    assert "✗ rejected" in found.text
    assert "error LIP109 unsupported op Unheard of the domain com.example" in found.text
    assert "com.example" in [word for word in found.words if word.strip()]  # code within a sentence
    assert not list(found.all("svg", "table"))


def test_bounds_are_printed_rounded_up(tmp_path: Path) -> None:
    """K = L·X_0 = 1/3, of which no decimal is exact, and a share of all."""
    text = "model m { input x: tensor[3], norm <= 1/3\n fc = dense(1)\n loss hinge }"
    found = parsed(lip_page(tmp_path, text)).text
    assert "fc.weight 0.3333334 100%" in found
    assert "0.3333333" not in found


def test_a_repetition_has_its_closed_forms_and_its_curve(deep: Parsed) -> None:
    """Of six copies one is drawn; the curve is over their number."""
    assert "× 6" in deep.text
    assert "dense_2.weight" in deep.text
    [curve] = [e for e in deep.all("svg") if (e.attributes.get("aria-labelledby") or "").startswith("depth-0")]
    assert curve.attributes["role"] == "img"
    assert "Bound of the whole gradient over the number of copies" in deep.text
    drawn = [e for e in deep.all("circle") if e.attributes.get("class") == "mark"]
    assert len(drawn) == 1 + 1 + 3 + 1  # the input, the stem, three layers of a copy, the last layer


def test_an_open_model_says_what_is_not_given(tmp_path: Path) -> None:
    found = parsed(lip_page(tmp_path, OPEN)).text
    assert "× depth" in found
    assert "not given" in found
    assert "norm not given" in found


def test_a_very_deep_model_is_a_page_of_bounded_size(tmp_path: Path) -> None:
    pages = [lip_page(tmp_path, DEEP.replace("6", str(depth))) for depth in (30, 120)]
    assert len(pages[1]) < 1.1 * len(pages[0])


def test_a_very_long_line_and_a_very_long_source_are_cut(tmp_path: Path) -> None:
    text = f"# {'x' * 100_000}\n{DEEP}" + "\n#" * 3000
    page = lip_page(tmp_path, text)
    assert len(page) < len(lip_page(tmp_path, DEEP)) + 60_000
    assert "more lines are not shown" in parsed(page).text


def test_a_block_of_many_parameters_is_a_table_of_bounded_length(tmp_path: Path) -> None:
    """Thirteen layers of a weight and a bias are 26 parameters."""
    layers = "; ".join(f"dense({width}, bias=1)" for width in (*range(5, 17), 4))
    text = f"model m {{ input x: tensor[4], norm <= 1\n repeat 3 {{ {layers}; relu }}\n dense(2) }}"
    assert "2 more parameters" in parsed(lip_page(tmp_path, text)).text


# Colours


def _palettes() -> dict[str, dict[str, str]]:
    """The colours of light and dark, by name."""
    style = Path(__file__).parents[2].joinpath("lipcompile/reports/templates/style.css.jinja").read_text()
    light, dark, printed = re.findall(r":root \{(.*?)\}", style, re.DOTALL)[:3]
    found = [dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6})", block)) for block in (light, dark, printed)]
    return dict(zip(("light", "dark", "print"), found, strict=True))


def _luminance(colour: str) -> float:
    """Relative luminance as WCAG 2.2 defines it."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark", "print"])
@pytest.mark.parametrize("ground", ["paper", "soft"])
@pytest.mark.parametrize("colour", ["ink", "muted", "accent", "good", "bad", "warn"])
def test_text_has_the_contrast_of_level_aa(scheme: str, ground: str, colour: str) -> None:
    palette = _palettes()[scheme]
    lighter, darker = sorted((_luminance(palette[colour]), _luminance(palette[ground])), reverse=True)
    assert (lighter + 0.05) / (darker + 0.05) >= 4.5


# Plots


def _plot(**changed: object) -> str:
    wanted = {
        "key": "p",
        "title": "a title",
        "description": "a <description>",
        "x": "steps",
        "y": "ε",
        "series": [Series("one", [(1, 0.5), (2, 1.5)]), Series("two", [(1, 0.25), (2, 2.0)])],
    }
    return str(plot(Plot(**{**wanted, **changed})))  # type: ignore[arg-type]


def test_a_plot_has_the_colours_of_the_page_and_none_of_its_own() -> None:
    found = _plot()
    assert set(re.findall(r"#[0-9a-fA-F]{6}", found)) == set()
    assert {"var(--series-1)", "var(--series-2)", "var(--muted)", "var(--line)"} <= set(
        re.findall(r"var\([^)]*\)", found)
    )


def test_curves_differ_in_more_than_colour() -> None:
    first, second = (re.search(rf"style=\"([^\"]*var\(--series-{i}\)[^\"]*)\"", _plot()) for i in (1, 2))
    assert first is not None
    assert second is not None
    assert "stroke-dasharray" in second[1]
    assert "stroke-dasharray" not in first[1]


def test_a_plot_styles_nothing_but_itself() -> None:
    assert not list(parsed(_plot()).all("style", "metadata"))


def test_plots_share_no_names() -> None:
    names = [
        {e.attributes["id"] for e in parsed(_plot(key=key)).elements if "id" in e.attributes} for key in ("a", "b")
    ]
    assert names[0]
    assert not names[0] & names[1]


def test_a_plot_says_what_it_shows() -> None:
    assert "<title" in _plot()
    assert "a &lt;description&gt;" in _plot()


@pytest.mark.parametrize(
    ("points", "ticks"),
    [
        ([(1, 1.2), (2, 30.0)], ["2", "5", "10", "20"]),
        ([(1, 1.0), (2, 1e6)], ["1", "10", "100", "1,000", "10,000", "100,000", "10⁶"]),
        ([(1, 1e-9), (2, 1e30)], ["10⁻⁹", "0.01", "100,000", "10¹²", "10¹⁹", "10²⁶"]),
        ([(1, 2.0), (2, 2.0 + 1e-12)], ["2"]),
    ],
)
def test_a_logarithmic_axis_has_ticks_at_round_numbers(
    points: list[tuple[float, float]], ticks: list[str]
) -> None:
    words = [word for word in parsed(_plot(series=[Series("one", points)], log_y=True)).words if word.strip()]
    assert [word for word in words if word[0].isdigit()][2:] == ticks  # behind the two of the other axis


@pytest.mark.parametrize(
    "points",
    [
        [(1, 0.0)],
        [(1, 2.0), (2, 2.0)],
        [(1, 0.0), (2, 1e300)],
        [(1, 1e-300), (2, 1e300)],
        [(1, 1.0), (2, 1.0 + 1e-12)],
        [(1, 5e-324), (2, 1.7e308)],
        [(1, 1.7e308), (2, 1.7e308)],
    ],
)
def test_curves_of_any_size_are_drawn(points: list[tuple[float, float]]) -> None:
    """No warning of matplotlib, which would fail the test, and some mark of the curve."""
    assert "var(--series-1)" in _plot(series=[Series("one", points)], log_y=True, marked=1)


def test_noise_is_shown_against_signal(deep: Parsed) -> None:
    """A bound of 1234.5 is 123,450 times a gradient of 0.01, and noise of 2 is 2,000 times a mean of 0.001."""
    assert "Whole gradient 1,234 0.01 123,450 0.001 2 2,000" in deep.text
    assert "of a batch of 1,024 at noise multiplier 1.5" in deep.text
    assert "signal over noise of the changed model" in deep.text
    assert "1.000" in deep.text

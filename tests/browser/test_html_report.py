"""The HTML report as a browser shows it: quiet, offline, on phones and wide screens, light, dark and printed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Chromium
from tests.reports.html_pages import DEEP, HOSTILE, HOSTILE_NAME, OPEN, lip_page, rejected_page, resnet_page

pytestmark = pytest.mark.slow

WIDTHS = (400, 1280)
PAGES: dict[str, Callable[[Path], str]] = {
    "resnet": resnet_page,
    "rejected": rejected_page,
    "symbolic": lambda folder: lip_page(folder, OPEN),
    "deep": lambda folder: lip_page(folder, DEEP),
    "hostile": lambda folder: lip_page(folder, HOSTILE, HOSTILE_NAME),
}
ACCEPTED = ("resnet", "symbolic", "deep")


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The pages as files."""
    folder = tmp_path_factory.mktemp("reports")
    for name, make in PAGES.items():
        (folder / f"{name}.html").write_text(make(folder), encoding="utf-8")
    return {name: folder / f"{name}.html" for name in PAGES}


@pytest.mark.parametrize("name", PAGES)
def test_it_is_quiet_and_asks_for_nothing_but_itself(
    chromium: Chromium, reports: dict[str, Path], name: str
) -> None:
    with chromium.open(reports[name]) as opened:
        expect(opened.page.locator("h1")).to_be_visible()
        assert opened.messages == []
        assert opened.requests == [reports[name].as_uri()]


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_wider_than_the_window(
    chromium: Chromium, reports: dict[str, Path], name: str, width: int
) -> None:
    """With everything unfolded; what is wider scrolls in its own container."""
    with chromium.open(reports[name], width) as opened:
        opened.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
        assert opened.evaluate("document.documentElement.scrollWidth") == width
        assert opened.evaluate(OUTSIDE) == []


@pytest.mark.parametrize("name", ACCEPTED)
@pytest.mark.parametrize("width", [390, 1280])
def test_no_column_of_a_table_is_cut(chromium: Chromium, reports: dict[str, Path], name: str, width: int) -> None:
    """On a wide screen all columns are seen, and on a phone a row is a card: tables scroll on neither."""
    with chromium.open(reports[name], width) as opened:
        opened.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
        assert opened.evaluate("document.querySelectorAll('table.cards').length") != 0
        assert opened.evaluate(CUT) == []
        labels = opened.evaluate(LABELS)
        assert labels == (["Gradient bound", "Share", "Formula", "Constraint", "Shape"] if width == 390 else [])


# Tables that are wider than what is seen of them.
CUT = """
[...document.querySelectorAll('.scroll:has(table.cards)')].filter(one => one.scrollWidth > one.clientWidth + 1)
    .map(one => [one.ariaLabel, one.scrollWidth, one.clientWidth])
"""
# What stands before the cells of the first row of bounds.
LABELS = """
[...document.querySelector('#bounds tbody tr').querySelectorAll('td')]
    .map(one => getComputedStyle(one, '::before').content).filter(one => one !== 'none')
    .map(one => one.replaceAll('"', ''))
"""


@pytest.mark.parametrize("name", ACCEPTED)
def test_long_sums_are_broken_into_lines(chromium: Chromium, reports: dict[str, Path], name: str) -> None:
    """The formula of the whole gradient stands within a wide screen."""
    with chromium.open(reports[name]) as opened:
        wide = "[...document.querySelectorAll('.display')].map(one => one.scrollWidth - one.clientWidth)"
        assert all(pixels <= 1 for pixels in opened.evaluate(wide))  # type: ignore[attr-defined]


# Elements that reach beyond the window though no container of theirs scrolls.
OUTSIDE = """
[...document.querySelectorAll('main *')].filter(one => one.getBoundingClientRect().right > innerWidth + 0.5
    && !one.closest('.scroll, pre, .formula, svg, .unseen')).map(one => one.outerHTML.slice(0, 200))
"""


@pytest.mark.parametrize("name", ACCEPTED)
@pytest.mark.parametrize("width", WIDTHS)
def test_drawings_and_formulas_have_a_size(
    chromium: Chromium, reports: dict[str, Path], name: str, width: int
) -> None:
    with chromium.open(reports[name], width) as opened:
        opened.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
        for tag, least in (("svg", 100), ("math", 4)):
            sizes = opened.evaluate(
                f"[...document.querySelectorAll('{tag}')].map(one => one.getBoundingClientRect())"
                ".map(box => [box.width, box.height])"
            )
            assert isinstance(sizes, list)
            assert sizes
            assert all(wide >= least and high >= least for wide, high in sizes)


@pytest.mark.parametrize("name", ACCEPTED)
def test_formulas_are_laid_out_as_mathematics(chromium: Chromium, reports: dict[str, Path], name: str) -> None:
    """A subscript stands lower than what it belongs to, and is smaller: X_0 occurs in every model."""
    measure = """[...document.querySelectorAll('msub')].map(one => [...one.children].map(part => {
        const box = part.getBoundingClientRect(); return [box.bottom, box.height]; }))"""
    with chromium.open(reports[name]) as opened:
        pairs = opened.evaluate(measure)
        assert isinstance(pairs, list)
        assert pairs
        visible = [(base, below) for base, below in pairs if base[1]]
        assert all(below[0] > base[0] for base, below in visible)


@pytest.mark.parametrize("name", PAGES)
def test_light_and_dark_differ(chromium: Chromium, reports: dict[str, Path], name: str) -> None:
    grounds, pictures = set(), set()
    for scheme in ("light", "dark"):
        with chromium.open(reports[name], scheme=scheme) as opened:
            grounds.add(str(opened.evaluate("getComputedStyle(document.body).backgroundColor")))
            pictures.add(opened.page.screenshot())
    assert grounds == {"rgb(255, 255, 255)", "rgb(20, 24, 29)"}
    assert len(pictures) == 2


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_is_drawn_has_the_colours_of_the_page(
    chromium: Chromium, reports: dict[str, Path], name: str
) -> None:
    colour = "getComputedStyle(document.querySelector('.graph .loss .name')).fill"
    for scheme, ink in (("light", "rgb(27, 31, 36)"), ("dark", "rgb(227, 231, 235)")):
        with chromium.open(reports[name], scheme=scheme) as opened:
            assert opened.evaluate(colour) == ink


@pytest.mark.parametrize("name", PAGES)
def test_it_prints(chromium: Chromium, reports: dict[str, Path], name: str, tmp_path: Path) -> None:
    with chromium.open(reports[name], scheme="dark") as opened:
        printed = opened.page.pdf(path=tmp_path / "report.pdf", format="A4")
        assert printed.startswith(b"%PDF")
        opened.page.emulate_media(media="print")
        assert opened.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        folded = "[...document.querySelectorAll('details > :not(summary)')].filter(one => !one.checkVisibility())"
        assert opened.evaluate(f"{folded}.length") == 0
        assert opened.messages == []


def test_a_link_unfolds_what_it_leads_to(chromium: Chromium, reports: dict[str, Path]) -> None:
    """The layers of the large model are folded; the drawing leads to their rows."""
    with chromium.open(reports["resnet"]) as opened:
        row = opened.page.locator("#layer-fc")
        expect(row).not_to_be_visible()
        opened.page.locator("svg.graph a[href='#layer-fc']").click()
        expect(row).to_be_visible()


@pytest.mark.parametrize("name", ["hostile", "rejected"])
def test_hostile_names_make_no_elements(chromium: Chromium, reports: dict[str, Path], name: str) -> None:
    with chromium.open(reports[name]) as opened:
        expect(opened.page.locator("script, img")).to_have_count(0)
        expect(opened.page.get_by_text("alert(").first).to_be_visible()

"""A headless Chromium that tells of everything that a page asks for or complains about."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Dialog, Page, sync_playwright

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_OFFLINE = ("--disable-background-networking", "--disable-component-update", "--disable-sync")


@dataclass
class Opened:
    """A page, and what it said and asked for: nothing but itself is to be asked for."""

    page: Page
    messages: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def refuse(self, dialog: Dialog) -> None:
        """Close what a script shows."""
        self.messages.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def evaluate(self, expression: str) -> object:
        """The value of an expression in the page."""
        return self.page.evaluate(expression)


@dataclass(frozen=True)
class Chromium:
    """Opens files as pages."""

    browser: Browser

    @contextmanager
    def open(self, path: Path, width: int = 1280, scheme: str = "light") -> Iterator[Opened]:
        viewport = {"width": width, "height": 900}
        context = self.browser.new_context(viewport=viewport, color_scheme=scheme)  # type: ignore[arg-type]
        opened = Opened(context.new_page())
        opened.page.on("console", lambda message: opened.messages.append(message.text))
        opened.page.on("pageerror", lambda error: opened.messages.append(str(error)))
        opened.page.on("requestfailed", lambda request: opened.messages.append(f"failed: {request.url}"))
        opened.page.on("request", lambda request: opened.requests.append(request.url))
        opened.page.on("dialog", opened.refuse)
        opened.page.goto(path.as_uri())
        yield opened
        context.close()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Chromium]:
    """One browser for a file of tests; without one they are skipped, except where CI is set.

    It runs an event loop in this thread while it is open, so no test of another file may see it open.
    """
    path = next(filter(None, map(shutil.which, _NAMES)), None)
    if path is None and not os.environ.get("CI"):
        pytest.skip("chromium is not installed: scripts/install-test-tools installs it")
    assert path is not None, "chromium is not installed: scripts/install-test-tools installs it"
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", *_OFFLINE]
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        yield Chromium(browser)
        browser.close()

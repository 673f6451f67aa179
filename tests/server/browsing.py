"""A real browser: Debian's Chromium, driven; tests that need one say clearly when there is none."""

from __future__ import annotations

import os
import re
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
MISSING = "there is no Chromium: apt-get install chromium, and the tests with a browser run"
SHOTS = Path(os.environ.get("ONCEWARD_SHOTS", Path(__file__).parents[2] / "test-output" / "pages"))
"""Where what was seen is kept, for people to look at."""


@contextmanager
def browsers():
    if CHROMIUM is None:
        pytest.skip(MISSING)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Tab:
    """One tab of one person's browser, and all that went wrong in it."""

    def __init__(self, browser, running, theme="light", width=1280):
        self.running = running
        self.context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=theme
        )
        self.page = self.context.new_page()
        self.name = f"{theme}-{width}"
        self.wrong, self.foreign, self.dialogs = [], [], []
        self.page.on(
            "console", lambda said: self.wrong.append(said.text) if said.type == "error" else None
        )
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on(
            "request",
            lambda asked: None if asked.url.startswith(running.url) else self._foreign(asked.url),
        )
        self.page.on(
            "dialog", lambda dialog: (self.dialogs.append(dialog.message), dialog.dismiss())
        )

    def _foreign(self, url):
        if not url.startswith(("data:", "about:")):
            self.foreign.append(url)

    def sign_in(self, link=None):
        self.page.goto(link or self.running.client.new_code()["url"])
        self.page.wait_for_url(f"{self.running.url}/")
        return self

    def sign_in_as(self, name):
        """With a token of somebody's own."""
        said = self.running.cli("--as", name, "tokens", "new", "--json", check=0).stdout
        self.page.goto(self.running.url + "/signin")
        self.page.fill("input[name=token]", re.search(r"owt_\w+", said)[0])
        self.page.click("button")
        self.page.wait_for_url(f"{self.running.url}/")
        return self

    def visit(self, path):
        self.page.goto(self.running.url + path)
        self.page.wait_for_selector("#line[data-tone=good]")
        return self.page

    def shot(self, name):
        SHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SHOTS / f"{name}-{self.name}.png", full_page=True)

    def close(self):
        self.context.close()

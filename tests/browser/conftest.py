"""A real browser on a real server: started once, on loopback, and stopped by their ids."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

expect.set_options(timeout=30_000)  # like everything else here: a busy machine is slow, not wrong
ROOT = Path(__file__).parents[2]
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WINDOW: dict[str, Any] = {"viewport": {"width": 1400, "height": 1000}}
_QUIET = '[data-testid="stApp"][data-test-script-state="notRunning"]'
_COUNT = """() => [...document.querySelectorAll('.js-plotly-plot')].filter((one) => one._fullData)
    .map((one) => one._fullData.filter((trace) => trace.meta === 'points'))
    .map((traces) => traces.reduce((sum, trace) => sum + (trace.x?.length ?? 0), 0))"""


@dataclass
class App:
    """A page of the app in the browser. complaints: errors of its console, and requests that left this machine."""

    page: Page
    address: str
    complaints: list[str] = field(default_factory=list)

    def open(self, query: str = "") -> None:
        """Go to the app with this query, and wait until it stands still."""
        self.page.goto(f"{self.address}/{query}")
        self.settle()

    def settle(self) -> None:
        """Wait until the server has drawn everything and the browser has the result."""
        self.page.wait_for_selector(".of-head, [data-testid=stAlert]")
        self.page.wait_for_selector(_QUIET, state="attached")

    def query(self) -> dict[str, str]:
        """The parameters of the address."""
        return dict(self.page.evaluate("() => [...new URLSearchParams(location.search)]"))

    def wait_for_query(self, **expected: str) -> None:
        """Wait until the address says so."""
        self.page.wait_for_function(
            "(expected) => Object.entries(expected).every("
            "([name, value]) => (new URLSearchParams(location.search).get(name) ?? '') === value)",
            arg=expected,
        )
        self.settle()

    def wait_for_points(self, count: int) -> None:
        """Wait until the first chart has drawn that many points."""
        self.page.wait_for_function(f"(count) => ({_COUNT})()[0] === count", arg=count)

    def text(self, selector: str) -> str:
        return self.page.locator(selector).first.inner_text()

    def tree_item(self, name: str) -> Any:
        """The row of a module in the tree; name: the full path."""
        return self.page.locator(f'[role="treeitem"][title^="{name}\\a "]').first


def chromium() -> str:
    """The path of an installed Chromium."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    assert found, "Chromium is missing: .ci/system.sh browser"
    return found


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium(), args=list(FLAGS))
        yield started
        started.close()


@contextmanager
def serving(*paths: Path) -> Iterator[str]:
    """`overflight view` of these paths in a child; gives its address once it answers."""
    command = [sys.executable, "-m", "viewer.cli", "view", *map(str, paths), "--no-browser", "--port", "0"]
    with subprocess.Popen(command, cwd=ROOT, env=_environment(), stdout=subprocess.PIPE, text=True) as child:
        try:
            yield _address(child)
        finally:
            child.terminate()
            child.wait()


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}


def _address(child: subprocess.Popen[str]) -> str:
    for line in child.stdout or ():
        found = re.search(r"http://127\.0\.0\.1:\d+", line)
        if found:
            return found[0]
    raise AssertionError(f"the viewer ended with {child.wait()} before it answered")


@contextmanager
def app_at(window: BrowserContext, address: str) -> Iterator[App]:
    """A fresh page on that server; afterwards nothing may have gone wrong in its console."""
    app = App(window.new_page(), address)
    app.page.on("console", lambda said: app.complaints.append(said.text) if said.type == "error" else None)
    app.page.on("pageerror", lambda error: app.complaints.append(str(error)))
    app.page.on("request", lambda sent: _note_foreign(app, sent.url))
    yield app
    app.page.close()
    assert app.complaints == []


def _note_foreign(app: App, url: str) -> None:
    if not url.startswith((app.address, app.address.replace("http", "ws"), "data:", "blob:")):
        app.complaints.append(f"a request left this machine: {url}")

# pyright: standard
"""A real browser on the pages of a cluster."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, FloatRect, Locator, Page, expect, sync_playwright
from tests.chromium import steady_chromium
from tests.conftest import Cluster

WAIT_MS = 60_000
"""It only ends a test that fails: a busy machine takes seconds to place a gang."""
expect.set_options(timeout=WAIT_MS)


@contextmanager
def started_browser() -> Generator[Browser]:
    with TemporaryDirectory() as folder, sync_playwright() as playwright:
        program = steady_chromium(Path(folder))
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@contextmanager
def logged_in(browser: Browser, cluster: Cluster) -> Generator[Page]:
    """A page of a browser that is logged in. It must load nothing from other hosts and raise no error."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda message: faults.append(message.text) if "Content Security" in message.text else None)
    page.on("request", lambda request: None if request.url.startswith(cluster.url) else faults.append(request.url))
    log_in(page, cluster, cluster.token)
    yield page
    context.close()
    assert not faults, faults


def log_in(page: Page, cluster: Cluster, token: str) -> None:
    page.goto(f"{cluster.url}/")
    page.get_by_label("Token").fill(token)
    with page.expect_navigation():  # A load of the next page would abort the request before it sets the cookie.
        page.get_by_role("button", name="Log in").click()


def check_accessibility(page: Page) -> None:
    found = Axe().run(page).response["violations"]
    serious = [one for one in found if one["impact"] in {"serious", "critical"}]
    assert not serious, [(one["id"], [node["html"] for node in one["nodes"]]) for one in serious]


def measure(locator: Locator, expression: str) -> Any:
    """The value of an expression of `one`, the only element that a locator finds.

    The page replaces its parts, maybe between Playwright's search and the measurement: elements that are no longer
    in the page have no size and no style, so the search begins again.
    """
    deadline = monotonic() + WAIT_MS / 1000
    while monotonic() < deadline:
        measured = locator.evaluate(f"one => one.isConnected ? [{expression}] : null")
        if measured is not None:
            return measured[0]
    raise AssertionError(f"The page replaces {locator} faster than it can be measured.")


def box_of(locator: Locator) -> FloatRect:
    """The rectangle of a visible element in pixels of the viewport."""
    expect(locator).to_be_visible()
    return measure(locator, "one.getBoundingClientRect().toJSON()")

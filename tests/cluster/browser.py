# pyright: standard
"""A real browser on the pages of a cluster."""

from collections.abc import Generator
from contextlib import contextmanager

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Error, Page, Request, expect, sync_playwright
from tests.conftest import Cluster
from tests.security.test_docs_page import find_browser

WAIT_MS = 30_000
"""It only ends a test that fails: a busy machine takes seconds to place a gang."""
expect.set_options(timeout=WAIT_MS)
_NETWORK_CHANGED = "ERR_NETWORK_CHANGED"


@contextmanager
def started_browser() -> Generator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_browser(), args=["--no-sandbox", "--disable-gpu"])
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


def visit(page: Page, url: str) -> None:
    """Load `url` with its scripts, again if a container of another test changed the machine's networks meanwhile."""
    for _ in range(10):
        failures = list[str]()

        def note(request: Request, failures: list[str] = failures) -> None:
            failures.append(f"{request.resource_type} {request.url}: {request.failure}")

        page.on("requestfailed", note)
        try:
            page.goto(url)
        except Error as error:
            if not any(_NETWORK_CHANGED in one for one in (error.message, *failures)):
                raise
            continue
        finally:
            page.remove_listener("requestfailed", note)
        if not any(_NETWORK_CHANGED in one for one in failures):
            # A script that is missing would only be seen by what it doesn't do.
            assert not [one for one in failures if one.startswith(("script", "stylesheet"))]
            return
    pytest.fail(f"the machine's networks changed whenever {url} was being loaded")


def log_in(page: Page, cluster: Cluster, token: str) -> None:
    visit(page, f"{cluster.url}/")
    page.get_by_label("Token").fill(token)
    with page.expect_navigation():  # A load of the next page would abort the request before it sets the cookie.
        page.get_by_role("button", name="Log in").click()


def check_accessibility(page: Page) -> None:
    found = Axe().run(page).response["violations"]
    serious = [one for one in found if one["impact"] in {"serious", "critical"}]
    assert not serious, [(one["id"], [node["html"] for node in one["nodes"]]) for one in serious]

"""The web page in a real browser: submit, watch, read a failure, cancel, be refused."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright
from tests.cluster.jobs import long_job, past_step, short_job
from tests.conftest import Cluster
from tests.security.test_docs_page import find_browser

pytestmark = pytest.mark.slow
WAIT_MS = 30_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_browser(), args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser, cluster: Cluster) -> Iterator[Page]:
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
    assert not faults


def log_in(page: Page, cluster: Cluster, token: str) -> None:
    page.goto(f"{cluster.url}/")
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Log in").click()


def check_accessibility(page: Page) -> None:
    found = Axe().run(page).response["violations"]
    serious = [one for one in found if one["impact"] in {"serious", "critical"}]
    assert not serious, [(one["id"], [node["html"] for node in one["nodes"]]) for one in serious]


def fill(page: Page, params: dict[str, Any]) -> None:
    """Fill the form's plain fields by their labels."""
    for name, value in params.items():
        page.locator("#params").get_by_label(name, exact=True).fill(str(value))


def test_a_job_is_submitted_watched_and_cancelled(page: Page, cluster: Cluster, rows: Path) -> None:
    page.get_by_role("link", name="Submit", exact=True).click()
    page.get_by_label("Workload").select_option("embedding-ddp")
    page.locator("#request").get_by_label("name", exact=True).fill("from the page")
    page.locator("#params > div > .field").get_by_label(re.compile("^data")).select_option(index=1)
    page.locator("#params > div > details > summary").click()
    fill(page, {"epochs": 0})
    page.get_by_role("button", name="Submit").click()
    expect(page.locator("#params .field[data-wrong]").first).to_be_visible()
    expect(page.locator("#params .wrong:visible").first).to_contain_text("missing")
    check_accessibility(page)

    # A job's parameters can be cloned, which fills every kind of field.
    job = cluster.submit(long_job(rows) | {"name": "original"})
    cluster.until(job, past_step(20))
    # The curves continue after a call without an answer, as while the master restarts.
    page.route(re.compile(f"[0-9]/jobs/{job}$"), lambda route: route.fulfill(status=503), times=1)
    page.goto(f"{cluster.url}/ui/jobs/{job}")
    curve = page.locator(".curves")
    expect(curve).to_have_attribute("data-points", re.compile("[0-9]"))
    before = int(curve.get_attribute("data-points") or 0)
    expect(page.locator(".log .lines")).to_contain_text("[trainer-0]")
    expect(page.locator(".gang")).to_contain_text("parameter-server-0")
    check_accessibility(page)
    page.wait_for_function("before => Number(document.querySelector('.curves').dataset.points) > before", arg=before)

    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("h1 .state")).to_have_text("cancelled")
    assert cluster.job(job)["reason"] == "cancelled by admin"

    page.get_by_role("link", name="Clone").click()
    expect(page.locator("#curl")).to_contain_text('"embedding_dim": 8')
    page.get_by_role("button", name="Check only").click()
    expect(page.locator("#plan")).to_contain_text("trainer-0 on ")
    page.get_by_role("button", name="Submit").click()
    page.wait_for_url(re.compile("/ui/jobs/embedding-ddp-"))
    clone = page.url.rpartition("/")[2]
    assert clone != job
    assert cluster.job(clone)["params"] == cluster.job(job)["params"]
    cluster.client.post(f"/jobs/{clone}/cancel").raise_for_status()

    page.goto(f"{cluster.url}/ui/compare?job={job}&job={clone}")
    expect(page.locator(".u-legend")).to_contain_text(job)
    check_accessibility(page)


def test_the_cause_of_a_failure_is_read_and_a_reader_is_refused(page: Page, cluster: Cluster, rows: Path) -> None:
    body = short_job(rows) | {"max_restarts": 0, "name": "broken"}
    body["params"]["data"] |= {"train": str(rows.parent / "missing.csv")}
    job = cluster.submit(body)
    cluster.wait_for(job, "failed", 60)
    page.get_by_role("link", name="broken").click()
    expect(page.locator("h1 .state")).to_have_text("failed")
    expect(page.locator(".error").first).to_contain_text("missing.csv")
    check_accessibility(page)

    token = cluster.client.post("/tokens", json={"name": "reader", "scopes": ["read"]}).json()["secret"]
    page.get_by_role("button", name="Log out").click()
    page.get_by_label("Token").fill("no-such-token")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert").filter(has_text="not valid")).to_be_visible()
    check_accessibility(page)
    log_in(page, cluster, token)
    page.goto(f"{cluster.url}/ui/jobs/{job}")
    expect(page.locator("h1 .state")).to_have_text("failed")
    expect(page.get_by_role("button", name="Retry")).to_have_count(0)
    page.get_by_role("link", name="Submit", exact=True).click()
    expect(page.get_by_role("button", name="Submit")).to_be_disabled()


def test_the_pages_fit_a_phone_and_the_dark(page: Page, cluster: Cluster) -> None:
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": 380, "height": 760})
    for path in ("/", "/ui/submit", "/ui/compare"):
        page.goto(f"{cluster.url}{path}")
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= 380, (path, width)
        check_accessibility(page)
    page.goto(f"{cluster.url}/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"

# pyright: standard
"""The web page in a real browser: submit, watch, read a failure, cancel, be refused."""

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, expect
from tests.cluster.browser import box_of, check_accessibility, log_in, logged_in, measure, started_browser
from tests.cluster.jobs import long_job, past_step, short_job
from tests.conftest import Cluster

pytestmark = pytest.mark.slow

RECORD = (
    '{"time": "2026-01-01T10:00:00.000+00:00", "level": "ERROR", "logger": "a.b", "message": "in JSON", "rank": 0, '
    '"traceback": "Traceback\\n  of it"}'
)

ODD_BEGIN = '{"time": "now", "level": "INFO", "logger": "odd", "message": "m", '
ODD_RECORDS = [
    ODD_BEGIN.replace('"m"', r'"a\u202eb"') + r'"x": {"toString": 1}, "y": null, "z": "a\nb"}',
    ODD_BEGIN + '"traceback": {"toString": 1}}',
    '"odd" \x1b[2J\u202e',
]
"""Records that a job's code can print: values that are no strings, and control characters."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started_browser() as started:
        yield started


@pytest.fixture
def page(browser: Browser, cluster: Cluster) -> Iterator[Page]:
    with logged_in(browser, cluster) as opened:
        yield opened


def fill(page: Page, params: dict[str, Any]) -> None:
    """Fill the form's plain fields by their labels."""
    for name, value in params.items():
        page.locator("#params").get_by_label(name, exact=True).fill(str(value))


def shown_request(page: Page) -> dict[str, Any]:
    """The body of the curl command that the page shows, as a shell reads it."""
    return json.loads(shlex.split(page.locator("#curl").text_content() or "")[-1])


def test_a_job_is_submitted_watched_and_cancelled(page: Page, cluster: Cluster, rows: Path) -> None:
    page.get_by_role("link", name="Submit", exact=True).click()
    # By keyboard: an example fills the form, and another workload empties it.
    page.get_by_label("Start from").focus()
    page.keyboard.type("rnn-lm")
    expect(page.locator("#curl")).to_contain_text("sense-and-sensibility")
    check_accessibility(page)
    check_form_layout(page)
    check_examples(page, cluster)
    page.get_by_label("Workload").select_option("embedding-ddp")
    expect(page.locator("#curl")).not_to_contain_text("sense-and-sensibility")
    expect(page.get_by_label("Start from")).to_have_value("")
    page.locator("#request").get_by_label("name", exact=True).fill("from the page")
    page.locator("#params > div > .field").get_by_label(re.compile("^data")).select_option(index=1)
    page.locator("#params > div > details > summary").click()
    fill(page, {"epochs": 0})
    page.get_by_role("button", name="Submit").click()
    expect(page.locator("#params .field[data-wrong]").first).to_be_visible()
    expect(page.locator("#params .wrong:visible").first).to_contain_text("missing")
    check_accessibility(page)

    # A job's parameters can be cloned, which fills every kind of field.
    resources = {"trainer": {"count": 2, "gpus": 0, "threads": 1}}
    original: dict[str, Any] = long_job(rows) | {"name": "it's the original"}
    original["roles"] |= resources
    job = cluster.submit(original)
    cluster.until(job, past_step(20))
    # The curves continue after a call without an answer, as while the master restarts.
    page.route(re.compile(f"[0-9]/jobs/{job}$"), lambda route: route.fulfill(status=503), times=1)
    page.add_init_script(COUNT_DASHED_LINES)
    page.goto(f"{cluster.url}/ui/jobs/{job}")
    curve = page.locator(".curves")
    expect(curve).to_have_attribute("data-points", re.compile("[0-9]"))
    before = int(curve.get_attribute("data-points") or 0)
    lines = page.locator(".log .lines")
    expect(lines).to_contain_text("[trainer-1]")
    page.locator(".log").get_by_label("Text").fill("EPOCH")
    expect(lines).not_to_contain_text("[trainer-1]")
    expect(lines).to_contain_text("[trainer-0]")
    first_lines = lines.text_content() or ""
    expect(page.locator(".gang")).to_contain_text("parameter-server-0")
    expect(curve.locator(".about").first).to_contain_text("lower is better")
    expect(curve.locator(".u-legend .u-value").nth(1)).to_contain_text(re.compile("[0-9]"))  # Nothing is pointed at.
    expect(page.locator(".timeline h2")).to_have_text("Recent steps")
    expect(page.locator(".timeline svg")).to_contain_text("look-up, step")
    check_accessibility(page)
    page.wait_for_function("before => Number(document.querySelector('.curves').dataset.points) > before", arg=before)
    assert page.evaluate("dashedLines") == 0, "a mark of the first attempt"
    expect(lines).not_to_have_text(first_lines)
    expect(lines).not_to_contain_text("[trainer-1]")
    page.goto(f"{cluster.url}/")
    # A tile's value is below its name, also in a card that is as high as others in its row.
    expect(page.locator(".roles .tiles > div")).to_have_css("align-content", "start")
    check_phone_width(page, f"{cluster.url}/", ".roles .seat")
    score = page.locator("[data-label=Score]", has_text="validation").first
    assert box_of(score)["height"] < 30, "the name of a score is next to its value"
    expect(page.locator(".roles .seat", has_text="trainer-1")).to_contain_text("it's the original")
    check_phone_width(page, f"{cluster.url}/ui/submit", "#params .field")
    check_phone_width(page, f"{cluster.url}/ui/compare?job={job}", ".u-legend")
    check_phone_width(page, f"{cluster.url}/ui/jobs/{job}", ".u-legend", ".timeline svg", ".gang", ".log .lines")
    expect(page.locator(".timeline .if-cut")).to_have_text(re.compile(r"[^.]\. The picture scrolls sideways\.$"))
    page.set_viewport_size({"width": 1280, "height": 900})

    state = page.locator("h1 .state")
    page.route("**/pause", lambda route: route.fulfill(status=503), times=1)
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("#message")).to_contain_text("503")
    expect(page.get_by_role("button", name="Pause")).to_be_focused()
    page.get_by_role("button", name="Pause").click()
    expect(state).to_have_text("paused")
    with page.expect_download() as download:
        page.get_by_role("link", name="checkpoint of step").first.click()
    assert download.value.suggested_filename.endswith(".zip")
    expect(page.locator(".log [name=attempt]")).to_be_hidden()
    page.get_by_role("button", name="Resume").click()
    expect(state).to_have_text("running")
    page.wait_for_function("() => dashedLines > 0")

    page.on("dialog", lambda dialog: dialog.accept())
    check_press_shows_at_once(page)
    expect(state).to_have_text("cancelled")
    assert cluster.job(job)["reason"] == "cancelled by admin"
    straw = [f"straw {number}" for number in range(3000)]
    add_to_log(cluster, job, ["a needle", RECORD, *ODD_RECORDS, *straw])
    workers = cluster.job(job)["attempts"][0]["workers"]
    rank = next(one["rank"] for one in workers if one["node"] == "trainer-1")
    expect(page.locator(".gang")).to_contain_text(f"rank {rank} · trainer-1")
    check_log_of_ended_job(page, rank)
    check_curve_controls(page)

    # The cluster of the tests sends no webhooks.
    document = cluster.job(job) | {"notify": "https://chat.example/***"}
    page.route(f"{cluster.url}/jobs/{job}", lambda route: route.fulfill(json=document), times=1)
    page.get_by_role("link", name="Clone").click()
    expect(page.locator("#curl")).to_contain_text('"embedding_dim": 8')
    expect(page.locator("#lost")).to_contain_text("https://chat.example/***. The rest of the address is hidden")
    expect(page.locator("#request").get_by_label("notify")).to_have_value("")
    page.get_by_role("button", name="Check only").click()
    expect(page.locator("#plan")).to_contain_text("trainer-0 on ")
    commanded = run_command(page, cluster)
    page.get_by_role("button", name="Submit").click()
    page.wait_for_url(re.compile("/ui/jobs/embedding-ddp-"))
    clone = page.url.rpartition("/")[2]
    assert clone != job
    for name in ("name", "params", "roles", "resources"):
        assert cluster.job(commanded)[name] == cluster.job(clone)[name] == cluster.job(job)[name], name
    assert cluster.job(clone)["resources"]["trainer"] == {"gpus": 0, "threads": 1, "busy": False}
    cluster.client.post(f"/jobs/{clone}/cancel").raise_for_status()

    page.goto(f"{cluster.url}/ui/compare?job={job}&job={clone}")
    # Both jobs have one name.
    expect(page.locator(".u-legend").first).to_contain_text(f"it's the original ({job})")
    check_accessibility(page)

    page.goto(f"{cluster.url}/ui/jobs/{job}")
    log_note = page.locator(".log [role=status]")
    expect(log_note).to_contain_text("The job has ended: cancelled")
    page.get_by_role("button", name="Retry").click()
    expect(state).to_have_text("running")
    expect(log_note).not_to_contain_text("has ended")
    page.get_by_role("button", name="Cancel").click()
    expect(state).to_have_text("cancelled")
    page.get_by_role("button", name="Delete").click()
    page.wait_for_url(f"{cluster.url}/")
    assert cluster.client.get(f"/jobs/{job}").status_code == 404


COUNT_DASHED_LINES = """
    window.dashedLines = 0;
    const stroke = CanvasRenderingContext2D.prototype.stroke;
    CanvasRenderingContext2D.prototype.stroke = function (...path) {
        if (this.getLineDash().length) dashedLines += 1;
        stroke.apply(this, path);
    };
"""
"""Only the starts of attempts are marked with dashed lines."""


def check_examples(page: Page, cluster: Cluster) -> None:
    """Each workload's example fills the form that its schema makes, and the form makes the same request of it."""
    workloads = cluster.client.get("/workloads").raise_for_status().json()["workloads"]
    examples = {one["name"]: one["example"] for one in workloads if one["example"]}
    assert len(examples) >= 5
    for name, example in examples.items():
        page.get_by_label("Start from").select_option(f"example:{name}")
        expect(page.locator("#curl")).to_contain_text(f'"workload": "{name}"')
        assert shown_request(page) == example, name


def run_command(page: Page, cluster: Cluster) -> str:
    """Submit by the curl command that the page shows, and cancel. Returns the job's id."""
    command = ["bash", "-c", page.locator("#curl").text_content() or ""]
    done = subprocess.run(command, env=cluster.environment, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 0, done.stderr
    job = json.loads(done.stdout)["id"]
    cluster.client.post(f"/jobs/{job}/cancel").raise_for_status()
    return job


def check_press_shows_at_once(page: Page) -> None:
    """A cancel without an answer yet is shown and announced, also after the part with the button was read again."""
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    page.route("**/cancel", hold, times=1)
    page.get_by_role("button", name="Cancel").click()
    pressed = page.get_by_role("button", name="Cancelling…")
    expect(pressed).to_be_disabled()
    expect(page.locator("#status")).to_have_text("Cancelling…")
    with page.expect_response(re.compile("/ui/jobs/.*/status")):
        pass
    page.wait_for_timeout(100)
    expect(pressed).to_be_disabled()
    held[0].continue_()


def test_a_clone_names_the_values_whose_credentials_are_hidden(page: Page, cluster: Cluster, rows: Path) -> None:
    job = cluster.submit(short_job(rows))
    document, params = cluster.job(job), cluster.job(job)["params"]

    def clone(train: list[str], notify: str | None = None) -> None:
        changed = document | {"params": params | {"data": params["data"] | {"train": train}}, "notify": notify}
        page.route(f"{cluster.url}/jobs/{job}", lambda route: route.fulfill(json=changed), times=1)
        page.goto(f"{cluster.url}/ui/submit?clone={job}")
        expect(page.locator("#curl")).to_contain_text('"train"')

    clone(["s3://bucket/a.csv", "s3://***@bucket/a.csv", "https://host/a.csv?token=***"], "https://chat.example/***")
    lost = page.locator("#lost")
    expect(lost).to_contain_text("https://chat.example/***. The rest of the address is hidden")
    expect(lost).to_contain_text("What can be credentials in params.data.train.1, params.data.train.2 is")
    clone([f"s3://***@bucket/{number}.csv" for number in range(9)])
    hidden = "params.data.train.0, params.data.train.1, params.data.train.2 and 6 more"
    expect(lost).to_have_text(
        f"What can be credentials in {hidden} is hidden: replace each *** before you submit the job."
    )
    clone(["s3://bucket/a.csv", "x password=***", "***"])
    expect(lost).to_contain_text("What can be credentials in params.data.train.1, params.data.train.2 is")
    clone(["s3://bucket/year=2024/a.csv", "local/**/*.csv"])
    expect(page.locator("#curl")).to_contain_text("year=2024")
    expect(lost).to_have_text("")


def test_labels_are_rows_whose_errors_show_at_them(page: Page, cluster: Cluster) -> None:
    page.goto(f"{cluster.url}/ui/submit")
    data = page.locator("#params > div > .field").get_by_label(re.compile("^data"))
    expect(data.locator("option")).to_have_text(["choose", "data", "synthetic data"])
    data.select_option(index=1)
    train = page.locator("#params .field").filter(has=page.locator("> label", has_text=re.compile("^train")))
    expect(train.locator("> div > select option")).to_have_text(["choose", "text", "list"])
    train.locator("> div > select").select_option("text")
    assert box_of(train.locator("input"))["width"] == 460
    labels = page.locator("#request fieldset").filter(has=page.locator("legend", has_text=re.compile("^labels$")))
    rows, wrong = labels.locator(".pair"), labels.locator(".wrong:visible")
    for text in ("team", "team"):
        labels.get_by_role("button", name="Add").press("Enter")
        page.keyboard.type(text)
        page.keyboard.press("Tab")
        page.keyboard.type("ads")
    page.get_by_role("button", name="Check only").click()
    expect(wrong).to_have_text("another row has the name 'team'")
    rows.last.get_by_label("labels 2 name").fill("-")
    page.get_by_role("button", name="Check only").click()
    expect(rows.last.locator(".wrong")).to_contain_text("with a letter or digit first and last")
    expect(wrong).to_have_count(1)
    check_accessibility(page)
    labels.get_by_label("Remove labels 2").press("Enter")
    assert shown_request(page)["labels"] == {"team": "ads"}


def test_a_valid_job_shows_no_error_of_an_earlier_check(page: Page, cluster: Cluster) -> None:
    page.goto(f"{cluster.url}/ui/submit")
    page.get_by_label("Start from").select_option("example:reinforce")
    optional = box_of(page.locator("#request > div > details").first)
    name = box_of(page.locator("#request .field").first)
    assert optional["y"] >= name["y"] + name["height"]
    page.locator("#params > div > details > summary").click()
    fill(page, {"env steps": 0})
    page.get_by_role("button", name="Check only").click()
    expect(page.locator(".wrong:visible")).to_have_count(1)
    fill(page, {"env steps": 1000})
    page.get_by_role("button", name="Check only").click()
    expect(page.locator("#plan")).to_contain_text("The job is valid")
    expect(page.locator(".wrong:visible, [data-wrong]")).to_have_count(0)


def test_an_error_without_a_field_in_the_form_names_its_own(page: Page, cluster: Cluster) -> None:
    errors = [
        {"field": "workload", "message": "workloads must be installed", "given": '"x"'},
        {"field": "workload", "message": "workload: it is missing", "given": "null"},
    ]
    problem = {"status": 422, "content_type": "application/problem+json", "body": json.dumps({"errors": errors})}
    page.route("**/jobs?dry_run=true", lambda route: route.fulfill(**problem))
    page.goto(f"{cluster.url}/ui/submit")
    page.get_by_label("Start from").select_option("example:reinforce")
    page.get_by_role("button", name="Check only").click()
    said = "workload: workloads must be installed\nworkload: it is missing"
    expect(page.locator("#problems")).to_have_text(said, use_inner_text=True)


def test_an_error_shows_at_its_item_after_items_before_it_were_removed_or_left_empty(
    page: Page, cluster: Cluster
) -> None:
    page.goto(f"{cluster.url}/ui/submit")
    page.get_by_label("Workload").select_option("embedding-ddp")
    page.locator("#params > div > details > summary").click()
    hidden = page.locator("#params fieldset").filter(has=page.locator("legend", has_text=re.compile("^hidden$")))
    items, add = hidden.locator(".item"), hidden.get_by_role("button", name="Add")
    for value in ("8", "0"):
        add.click()
        items.last.locator("input").fill(value)
    items.first.get_by_role("button").click()
    expect(items).to_have_count(1)
    page.get_by_role("button", name="Check only").click()
    expect(items.nth(0).locator(".wrong")).to_be_visible()
    expect(items.locator("input")).to_have_attribute("aria-label", "params.hidden 1")
    add.click()
    add.click()
    items.last.locator("input").fill("-1")
    page.get_by_role("button", name="Check only").click()
    expect(items.nth(2).locator(".wrong")).to_be_visible()
    expect(items.nth(0).locator(".wrong")).to_be_visible()
    expect(items.nth(1).locator(".wrong")).to_have_count(0)


def check_form_layout(page: Page) -> None:
    """The form of an example is long: the button is visible without scrolling, and no field touches its frame."""
    page.evaluate("scrollTo(0, 0)")
    expect(page.get_by_role("button", name="Submit")).to_be_in_viewport()
    gaps = page.evaluate(
        "[...document.querySelectorAll('fieldset.field')].flatMap(frame => [...frame.querySelectorAll('label')]"
        ".map(label => label.getBoundingClientRect().x - frame.getBoundingClientRect().x))"
    )
    assert gaps
    assert min(gaps) > 8
    heights = page.evaluate("[...document.querySelectorAll('#request input')].map(input => input.offsetHeight)")
    assert len({height for height in heights if height}) == 1, heights


def add_to_log(cluster: Cluster, job: str, lines: list[str]) -> None:
    """Append lines to the log of the first trainer, as its node does."""
    attempt = cluster.job(job)["attempts"][-1]
    rank = next(one["rank"] for one in attempt["workers"] if one["role"] == "trainer" and one["role_rank"] == 0)
    token = cluster.client.post("/tokens", json={"name": "shipper", "scopes": ["node"]}).raise_for_status().json()
    path = f"/internal/jobs/{job}/attempts/{attempt['number']}/ranks/{rank}/streams/log"
    headers = {"Authorization": f"Bearer {token['secret']}"}
    size = cluster.client.put(path, params={"offset": 0}, headers=headers).raise_for_status().json()["size"]
    content = "".join(f"{line}\n" for line in lines)
    cluster.client.put(path, params={"offset": size}, headers=headers, content=content).raise_for_status()
    cluster.client.delete("/tokens/shipper").raise_for_status()


def check_log_of_ended_job(page: Page, rank: int) -> None:
    """The log of the newest attempt and of the first, filtered by text, role and the rank of trainer-1."""
    log = page.locator(".log")
    lines, status = log.locator(".lines"), log.get_by_role("status")
    expect(status).to_contain_text("The job has ended: cancelled")
    # The master searches the whole log, of which the page has loaded the last lines.
    log.get_by_label("Role").select_option("trainer")
    expect(lines).to_contain_text("[trainer-0] straw 2999")
    expect(lines).not_to_contain_text("needle")
    log.get_by_label("Text").fill("NEEDLE")
    expect(lines).to_have_text("[trainer-0] a needle")
    expect(status).to_contain_text("These are the last lines with this text.")
    with page.expect_download() as download:
        log.get_by_role("link", name="Download").click()
    assert download.value.path().read_text() == "[trainer-0] a needle\n"
    log.get_by_label("Text").fill("in JSON")
    expect(lines).to_have_text(
        "[trainer-0] 2026-01-01 10:00:00.000+00:00 ERROR a.b in JSON [rank=0]\n[trainer-0]     Traceback\n"
        "[trainer-0]       of it",
        use_inner_text=True,
    )
    log.get_by_label("Text").fill('"odd"')
    expect(lines).to_have_text(
        '[trainer-0] now INFO odd a\\u202eb [x={"toString":1} y=null z=a\\nb]\n'
        '[trainer-0] now INFO odd m\n[trainer-0]     {"toString":1}\n'
        '[trainer-0] "odd" \\x1b[2J\\u202e',
        use_inner_text=True,
    )
    log.get_by_label("Text").fill("no such text")
    expect(status).to_contain_text("No line contains this text.")
    expect(lines).to_be_empty()
    log.get_by_label("Text").fill("")
    log.get_by_label("Role").select_option("")
    with page.expect_request(re.compile("attempt=1")):
        log.get_by_label("Attempt").select_option("1")
    expect(status).to_contain_text("Attempt 1 has ended")
    expect(lines).to_contain_text("[trainer-1]")
    log.get_by_label("Text").fill("[TRAINER-0]")
    expect(lines).not_to_contain_text("[trainer-1]")
    expect(lines).to_contain_text("[trainer-0]")
    log.get_by_label("Text").fill("")
    expect(lines).to_contain_text("[trainer-1]")
    log.get_by_label("Rank").fill("99")
    expect(status).to_contain_text("has no worker with rank 99")
    expect(lines).to_be_empty()
    log.get_by_label("Rank").fill("")
    expect(lines).to_contain_text("[trainer-1]")
    log.get_by_label("Rank in the gang").fill(str(rank))
    log.get_by_label("Rank in the gang").press("Enter")
    expect(lines).not_to_contain_text("[trainer-0]")
    expect(lines).to_contain_text("[trainer-1]")
    log.get_by_label("Rank in the gang").fill("")
    log.get_by_label("Role").select_option("parameter-server")
    expect(lines).not_to_contain_text("[trainer-1]")


def check_curve_controls(page: Page) -> None:
    """Log scale, smoothing and zoom change the picture of an ended job's curve, and can be undone."""
    canvas = "document.querySelector('.curves canvas').toDataURL()"
    # A page that is opened after the job's end reads the curve once; one that followed the job reads it again.
    page.reload()
    expect(page.locator(".curves")).to_have_attribute("data-points", re.compile("[0-9]"))
    whole = settled(page, canvas)

    def wait(*, changed: bool) -> None:
        page.wait_for_function(f"([whole, changed]) => ({canvas} !== whole) === changed", arg=[whole, changed])

    page.get_by_label("Log scale").check()
    wait(changed=True)
    page.get_by_label("Log scale").uncheck()
    wait(changed=False)
    page.get_by_label("Smoothing").fill("0.9")
    wait(changed=True)
    page.get_by_label("Smoothing").fill("0")
    wait(changed=False)
    plot = page.locator(".curves .u-over").first
    plot.scroll_into_view_if_needed()
    box = box_of(plot)
    page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 60, steps=5)
    page.mouse.up()
    wait(changed=True)
    plot.dblclick()
    wait(changed=False)
    check_keyboard_zoom(page)


def check_keyboard_zoom(page: Page) -> None:
    """The buttons change the steps that all charts show, and the keyboard reaches and keeps them."""
    charts = page.locator(".curves [role=img]")
    labels = "charts => charts.map(chart => chart.ariaLabel.split(' by ')[1])"
    (whole,) = set(charts.evaluate_all(labels))
    page.get_by_label("Smoothing").focus()
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Zoom in")).to_be_focused()
    page.keyboard.press("Enter")
    expect(charts.first).not_to_have_attribute("aria-label", re.compile(whole))
    (half,) = set(charts.evaluate_all(labels))
    page.get_by_role("button", name="Later steps").press("Enter")
    expect(charts.first).not_to_have_attribute("aria-label", re.compile(half))
    page.get_by_role("button", name="All", exact=True).press("Enter")
    expect(charts.first).to_have_attribute("aria-label", re.compile(f"{whole}$"))
    page.get_by_role("button", name="Zoom in").press("Enter")
    expect(charts.first).to_have_attribute("aria-label", re.compile(f"{half}$"))
    page.get_by_role("button", name="Zoom out").press("Enter")
    expect(charts.first).to_have_attribute("aria-label", re.compile(f"{whole}$"))


def settled(page: Page, expression: str) -> object:
    """The value of an expression that has stayed the same for half a second."""
    previous, value = None, page.evaluate(expression)
    while value != previous:
        page.wait_for_timeout(500)
        previous, value = value, page.evaluate(expression)
    return value


def test_the_cause_of_a_failure_is_read_and_a_reader_is_refused(page: Page, cluster: Cluster, rows: Path) -> None:
    body = short_job(rows) | {"max_restarts": 0, "name": "broken"}
    body["params"]["data"] |= {"train": str(rows.parent / "missing.csv")}
    job = cluster.submit(body)
    cluster.wait_for(job, "failed")
    page.get_by_role("link", name="broken").first.click()  # It may be in the queue, too.
    expect(page.locator("h1 .state")).to_have_text("failed")
    expect(page.locator(".error").first).to_contain_text("missing.csv")
    expect(page.locator(".gang")).not_to_contain_text("missing.csv")  # The error is above it.
    check_accessibility(page)
    check_phone_width(page, page.url)
    page.set_viewport_size({"width": 1280, "height": 900})

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


RECORD_TEXTS = """
    window.drawn = [];
    const draw = CanvasRenderingContext2D.prototype.fillText;
    CanvasRenderingContext2D.prototype.fillText = function (text, ...at) {
        drawn.push(text);
        draw.call(this, text, ...at);
    };
"""


def check_phone_width(page: Page, url: str, *contents: str) -> None:
    """The page fits with these contents, some of which it loads later."""
    page.set_viewport_size({"width": 380, "height": 760})
    page.goto(url)
    for content in contents:
        expect(page.locator(content).first).to_be_visible()
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= 380, (url, width)
    check_accessibility(page)


WAITING: dict[str, Any] = {
    "workload": "embedding-ddp",
    "roles": {"trainer": 64},
    "params": {"data": {"train": "none.csv", "label": "y", "categorical": ["a"]}},
}


def test_a_queued_job_is_readable_on_a_phone_and_asks_for_nothing_that_it_lacks(page: Page, cluster: Cluster) -> None:
    page.set_viewport_size({"width": 380, "height": 760})
    job = cluster.submit(WAITING)
    cluster.until(job, lambda document: document["waiting_for"])
    page.goto(f"{cluster.url}/")
    why = box_of(page.locator("section[aria-labelledby=queue] .why").first)
    assert why["width"] > 150, why
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{cluster.url}/ui/jobs/{job}")
    expect(page.locator("#job .info")).to_contain_text("trainer")
    assert [url for url in asked if url.endswith("/logs?tail=1000&follow=true")], asked
    assert not [url for url in asked if f"/jobs/{job}/picture" in url]
    lines = page.locator(".log .lines")
    assert measure(lines, "getComputedStyle(one, '::before').content") == '"No lines."'
    page.goto(f"{cluster.url}/ui/submit")
    page.get_by_label("Workload").select_option("transformer-pipeline")
    expect(page.locator("#request").get_by_label("deadline (s)", exact=True)).to_be_attached()
    expect(page.locator("#params .help code").first).to_be_attached()
    page.goto(f"{cluster.url}/ui/jobs/{job}")
    cluster.client.delete(f"/jobs/{job}?force=true").raise_for_status()
    expect(page.locator("#main .error")).to_contain_text(job)
    expect(page.get_by_role("button", name="Cancel")).to_have_count(0)


def test_an_attempt_has_one_color_in_all_charts(page: Page, cluster: Cluster) -> None:
    """Also in the chart of a value that the first attempt did not report."""
    job = cluster.submit(WAITING)
    worker = {"rank": 0, "role": "trainer", "role_rank": 0}
    first = [{"step": 1, "loss": 3}, {"step": 2, "loss": 2}]
    second = [{"step": 2, "loss": 2}, {"step": 3, "loss": 1, "validation_auc": 0.5}]
    series = [worker | {"attempt": 1, "points": first}, worker | {"attempt": 2, "points": second}]
    page.route(f"**/jobs/{job}/metrics?*", lambda route: route.fulfill(json={"series": series}))
    page.goto(f"{cluster.url}/ui/jobs/{job}")
    expect(page.locator(".charts h3")).to_have_text(["loss", "validation_auc"])
    curves = page.locator(".u-legend .u-series").filter(has_text="attempt 2")
    expect(curves).to_have_count(2)
    markers = [measure(one.locator(".u-marker"), "one.style.border") for one in curves.all()]
    assert markers[0]
    assert markers[0] == markers[1]
    cluster.client.post(f"/jobs/{job}/cancel").raise_for_status()


def test_values_of_one_declaration_are_a_group_with_the_names_that_are_reported(page: Page, cluster: Cluster) -> None:
    job = cluster.submit({"workload": "reinforce", "roles": {"observer": 64}, "params": {"environment": "CartPole-v1"}})
    points = [{"step": 1, "loss": 3, "observer_2_return": 1, "observer_10_return": 2}]
    series = [{"attempt": 1, "rank": 0, "role": "trainer", "role_rank": 0, "points": points}]
    page.route(f"**/jobs/{job}/metrics?*", lambda route: route.fulfill(json={"series": series}))
    page.goto(f"{cluster.url}/ui/jobs/{job}")
    group = page.get_by_label("Value").locator("optgroup")
    expect(group).to_have_attribute("label", "observer_2_return … observer_10_return")
    cluster.client.post(f"/jobs/{job}/cancel").raise_for_status()


def test_curves_name_the_attempts_of_compared_jobs_at_whole_steps(page: Page, cluster: Cluster) -> None:
    """The axes are pixels, so the test reads the texts that the page draws."""
    sizes = {"first": 128, "": 256}
    params = WAITING["params"]
    jobs = [cluster.submit(WAITING | {"name": name, "params": params | {"batch_size": sizes[name]}}) for name in sizes]
    attempts = [
        {"attempt": attempt, "rank": 0, "role": "trainer", "role_rank": 0, "points": points}
        for attempt, points in (
            (1, [{"step": 1, "loss": 300}, {"step": 2, "loss": 200}]),
            (2, [{"step": 3, "loss": 100}]),
        )
    ]
    attempts[0]["points"][-1] |= {"validation_auc": 500, "validation_loss": 500, "samples_per_s": 500, "epoch": 1}
    page.route(f"**/jobs/{jobs[0]}/metrics?*", lambda route: route.fulfill(json={"series": attempts}))
    page.add_init_script(RECORD_TEXTS)
    page.goto(f"{cluster.url}/ui/compare?job={jobs[0]}&job={jobs[1]}")
    expect(page.locator(".charts h3")).to_have_text(["loss", "validation_auc", "samples_per_s"])
    expect(page.locator(".u-legend").first).to_contain_text("first, attempt 2")
    expect(page.locator(".u-series").nth(1)).to_have_attribute("title", jobs[0])
    expect(page.locator(".about").first).to_contain_text("(first, attempt 2, step 3;")
    page.wait_for_function("() => drawn.includes('3')")
    steps = [text for text in page.evaluate("drawn") if re.fullmatch(r"[0-9.]+", text) and float(text) < 50]
    assert {"1", "2", "3"} <= set(steps)
    assert not [text for text in steps if "." in text], steps
    page.get_by_label("Value").select_option("validation_loss")
    expect(page.locator(".charts h3")).to_have_text(["validation_loss"])
    check_phone_width(page, page.url)
    expect(page.locator(".differences th[scope]")).to_have_text(["params.batch_size"])
    # A field is above its values, which need the width.
    name, value = (box_of(page.locator(f".differences {one}").first) for one in ("th[scope]", "td"))
    assert value["y"] >= name["y"] + name["height"]
    for job in jobs:
        cluster.client.post(f"/jobs/{job}/cancel").raise_for_status()


def test_curves_leave_out_steps_and_values_for_which_the_marks_of_an_axis_would_never_end(
    page: Page, cluster: Cluster
) -> None:
    """From 2^53, adding 1 to a step does not change it. On a log scale, the library rounds tiny values to 0."""
    job = cluster.submit(WAITING)
    points = [{"step": 7, "loss": 0.5}, {"step": 2**53, "loss": 0.4}, {"step": 2**53 + 2, "loss": 0.3}]
    series: list[dict[str, Any]] = [{"attempt": 1, "rank": 0, "role": "trainer", "role_rank": 0, "points": points[1:]}]
    page.route(f"**/jobs/{job}/metrics?*", lambda route: route.fulfill(json={"series": series}))
    for path in (f"/ui/jobs/{job}", f"/ui/compare?job={job}"):
        series[0]["points"] = points[1:]
        page.goto(f"{cluster.url}{path}")
        expect(page.locator(".curves .empty")).to_be_visible()
        series[0]["points"] = points
        expect(page.locator(".curves [role=img]")).to_have_attribute(
            "aria-label", "loss by step, from step 7 to step 7"
        )
    series[0]["points"] = [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1e-23}, {"step": 3, "loss": 1e-300}]
    expect(page.locator(".curves [role=img]")).to_have_attribute("aria-label", "loss by step, from step 1 to step 3")
    page.get_by_label("Log scale").check()
    expect(page.locator(".curves canvas")).to_be_visible()
    cluster.client.post(f"/jobs/{job}/cancel").raise_for_status()


def test_a_curve_without_changes_has_a_scale_around_its_value(page: Page, cluster: Cluster) -> None:
    job = cluster.submit(WAITING)
    points = [{"step": 700, "loss": 579.0}]
    series = {"attempt": 1, "rank": 0, "role": "trainer", "role_rank": 0, "points": points}
    page.route(f"**/jobs/{job}/metrics?*", lambda route: route.fulfill(json={"series": [series]}))
    page.add_init_script(RECORD_TEXTS)
    page.goto(f"{cluster.url}/ui/jobs/{job}")
    page.wait_for_function("() => drawn.includes('700') && drawn.includes('580')")
    assert not {"0", "200", "1000", "1,000", "1200", "1,200"} & set(page.evaluate("drawn"))
    page.get_by_label("Smoothing").fill("0.9")
    points[:] = [{"step": step, "loss": 0.7} for step in range(800, 803)]  # Means of them differ in the last digits.
    page.wait_for_function("() => drawn.includes('801') && drawn.includes('0.7')")
    points[:] = [{"step": 5, "loss": 0.0}]
    page.wait_for_function("() => drawn.includes('5') && drawn.includes('-0.5')")
    assert not {"0.2", "0.4", "1.2", "1.5", "-100", "100"} & set(page.evaluate("drawn"))
    cluster.client.post(f"/jobs/{job}/cancel").raise_for_status()


def test_curves_of_one_chart_look_alike_and_fill_a_log_scale(page: Page, cluster: Cluster) -> None:
    jobs = [cluster.submit(WAITING | {"name": name}) for name in ("long", "short")]
    points = [
        {"step": step, "loss": 10 ** (step % 7), "validation_auc": 0.9 + step / 1000, "gain": -1} for step in range(50)
    ]

    def answer(route: Route) -> None:
        own = points if jobs[0] in route.request.url else points[:3]
        series = {"attempt": 1, "rank": 0, "role": "trainer", "role_rank": 0, "points": own}
        route.fulfill(json={"series": [series]})

    page.route("**/metrics?*", answer)
    page.add_init_script(
        RECORD_TEXTS + "window.markers = 0; const arc = Path2D.prototype.arc;"
        "Path2D.prototype.arc = function (...at) { markers += 1; arc.apply(this, at); }"
    )
    page.goto(f"{cluster.url}/ui/compare?job={jobs[0]}&job={jobs[1]}")
    expect(page.locator(".charts canvas")).to_have_count(2)
    assert page.evaluate("markers") == 0, "only one curve has few points"
    page.evaluate("drawn.length = 0")
    page.get_by_label("Log scale").check()
    page.wait_for_function("() => drawn.includes('0.92')")
    assert {"1", "10", "100", "1000", "10000", "100000", "1000000", "0.9", "0.94"} <= set(page.evaluate("drawn"))
    assert not {"0.1", "0.5"} & set(page.evaluate("drawn"))
    page.get_by_label("Value").select_option("gain")
    expect(page.locator(".charts h3")).to_have_text(["gain"])
    expect(page.locator(".charts canvas")).to_be_visible()
    page.goto(f"{cluster.url}/ui/compare?job={jobs[1]}")
    page.wait_for_function("() => markers > 0")
    for job in jobs:
        cluster.client.post(f"/jobs/{job}/cancel").raise_for_status()


def test_jobs_to_compare_must_be_chosen(page: Page, cluster: Cluster) -> None:
    job = cluster.submit(WAITING)
    page.goto(f"{cluster.url}/ui/compare")
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("#message")).to_have_text("Choose two or more jobs.")
    page.locator(f"[value={job}]").check()
    expect(page.locator("#message")).to_be_hidden()
    page.get_by_role("button", name="Compare").click()
    expect(page).to_have_url(f"{cluster.url}/ui/compare?job={job}")
    cluster.client.post(f"/jobs/{job}/cancel").raise_for_status()


def test_long_values_are_cut_but_not_clipped(page: Page, cluster: Cluster) -> None:
    params = WAITING["params"]
    files = [[f"{name}-{number}.csv" for number in range(40)] for name in ("a", "b")]
    jobs = [
        cluster.submit(WAITING | {"params": params | {"data": params["data"] | {"train": train}}}) for train in files
    ]
    for width in (1280, 380):
        page.set_viewport_size({"width": width, "height": 800})
        page.goto(f"{cluster.url}/ui/compare?job={jobs[0]}&job={jobs[1]}")
        cell = page.locator(".differences td > div").first
        expect(cell).to_contain_text("…")
        assert measure(cell, "one.clientHeight >= one.scrollHeight && one.clientWidth >= one.scrollWidth")
    for job in jobs:
        cluster.client.post(f"/jobs/{job}/cancel").raise_for_status()


def test_the_page_says_why_curves_are_refused(page: Page, cluster: Cluster) -> None:
    job = cluster.submit(WAITING)
    series = {"attempt": 1, "rank": 0, "role": "trainer", "role_rank": 0, "points": [{"step": 1, "loss": 0.5}]}
    refusal = {"status": 422, "json": {"detail": "too <large>"}, "content_type": "application/problem+json"}
    answers: list[dict[str, Any]] = [refusal]
    page.route(f"**/jobs/{job}/metrics?*", lambda route: route.fulfill(**answers[0]))
    page.goto(f"{cluster.url}/ui/jobs/{job}")
    note = page.locator(".curves .empty")
    expect(note).to_have_text("The values can't be read: too <large>")
    answers[0] = {"json": {"series": [series]}}
    expect(page.locator(".curves canvas")).to_be_visible()
    expect(note).to_be_hidden()
    answers[0] = refusal
    expect(note).to_be_visible()
    expect(page.locator(".curves canvas")).to_be_visible()
    answers[0] = {"json": {"series": []}}
    expect(note).to_have_text("No curves yet.")
    expect(page.locator(".curves .bar")).to_be_hidden()
    cluster.client.post(f"/jobs/{job}/cancel").raise_for_status()
    expect(note).to_have_text("No values have been reported.")


def test_the_log_panel_keeps_a_bounded_number_of_characters(page: Page, cluster: Cluster) -> None:
    """A job's lines can be long: 5,000 of them would be 320 MB."""
    job = cluster.submit(WAITING)
    sent = [f"{number:03} " + "x" * 60_000 for number in range(100)]
    answers = ["retry: 100\n\n" + "".join(f"event: log\ndata: {line}\n\n" for line in sent)]

    def answer(route: Route) -> None:
        if answers:
            route.fulfill(content_type="text/event-stream", body=answers.pop())
        else:
            route.abort()

    page.route(f"**/jobs/{job}/logs?*", answer)
    page.goto(f"{cluster.url}/ui/jobs/{job}")
    lines = page.locator(".log .lines")
    expect(lines).to_contain_text("099 x")
    shown = (lines.text_content() or "").splitlines()
    assert 3_900_000 < sum(map(len, shown)) <= 4_000_000
    assert shown == sent[-len(shown) :]
    # The browser reconnects and continues. Only the oldest lines make way for the new one.
    newest = lines.locator("> *").last.element_handle()
    answers.append(f"event: log\ndata: {'last' * 10_000}\n\n")
    expect(lines).to_contain_text("last")
    assert newest.evaluate("line => line.isConnected")
    after = (lines.text_content() or "").splitlines()
    assert after == [*shown, "last" * 10_000][-len(after) :]
    assert 3_900_000 < sum(map(len, after)) <= 4_000_000
    cluster.client.post(f"/jobs/{job}/cancel").raise_for_status()


def test_the_pages_fit_a_phone_and_the_dark(page: Page, cluster: Cluster) -> None:
    page.emulate_media(color_scheme="dark")
    for path in ("/", "/ui/submit", "/ui/compare"):
        check_phone_width(page, f"{cluster.url}{path}")
    page.goto(f"{cluster.url}/")
    brand, log_out = (box_of(page.locator(f".top {one}")) for one in (".brand", ".who"))
    assert log_out["y"] < brand["y"] + brand["height"], "the menu has two rows"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    page.goto(f"{cluster.url}/docs")
    expect(page.locator(".swagger-ui .info")).to_be_visible()
    background = "parseInt(getComputedStyle(document.querySelector('.swagger-ui')).backgroundColor.slice(4))"
    assert page.evaluate(background) < 64
    page.get_by_text("Submit a job", exact=True).first.click()
    expect(page.locator(".examples-select__section-label").first).to_have_css("color", "rgb(228, 230, 230)")
    expect(page.locator(".responses-table").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 380
    page.get_by_role("link", name="Rolecall").first.click()
    expect(page).to_have_url(f"{cluster.url}/")

# pyright: reportPrivateUsage=false
"""The web page over HTTP: log-in, sessions, what is shown to whom, and that nothing else is served."""

import asyncio
import re
import ssl
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from tests.cpu_time import is_within
from tests.security.certificates import make_ca, sign

from rolecall.master.sessions import cookie_name
from rolecall.master.storage_errors import LeadershipLost, StoreUnavailable
from rolecall.master.web import pages, render
from rolecall.spec.access import Scope
from rolecall.spec.report import TimeSpent
from rolecall.spec.role import Role
from rolecall.spec.state import WorkerState

from .harness import (
    ONE_TRAINER,
    TOKEN,
    Client,
    Node,
    line,
    make_node,
    make_settings,
    make_token,
    one_trainer,
    serving,
    submit_as,
)
from .test_inspection import WINDOW

PAGES = ("/", "/ui/overview", "/ui/submit", "/ui/compare")
SAME = {"Sec-Fetch-Site": "same-origin"}


async def log_in(client: Client, token: str = TOKEN, **headers: str) -> httpx.Response:
    form = {"token": token, "next": "/ui/submit"}
    response = await client.http.post("/ui/login", data=form, headers=SAME | headers)
    client.http.cookies.clear()  # Each request of a test says itself who it is.
    return response


async def session_of(client: Client, token: str = TOKEN) -> dict[str, str]:
    response = await log_in(client, token)
    assert (response.status_code, response.headers["location"]) == (303, "/ui/submit")
    cookie = response.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert token not in cookie
    return {"Cookie": cookie.partition(";")[0]}


@pytest.mark.slow
async def test_browsers_without_a_session_are_sent_to_the_log_in_and_back(client: Client) -> None:
    for path in PAGES:
        answer = await client.http.get(path)
        assert (answer.status_code, answer.headers["location"]) == (303, f"/ui/login?next={path}")
    part = await client.http.get(
        "/ui/overview", headers={"HX-Request": "true", "HX-Current-URL": "http://m/?state=queued"}
    )
    assert part.headers["hx-redirect"] == "/ui/login?next=/%3Fstate%3Dqueued"
    linked = await client.http.get("/ui/compare?job=a&job=b")
    assert linked.headers["location"] == "/ui/login?next=/ui/compare%3Fjob%3Da%26job%3Db"
    long = await client.http.get(f"/ui/compare?job={'a' * 3000}")
    assert long.headers["location"] == "/ui/login?next=/ui/compare"
    for page, back in ((f"/ui/compare?job={'a' * 3000}", "/ui/compare"), (f"/ui/jobs/{'a' * 3000}", "/")):
        headers = {"HX-Request": "true", "HX-Current-URL": f"http://m{page}"}
        part = await client.http.get("/ui/overview", headers=headers)
        assert part.headers["hx-redirect"] == f"/ui/login?next={back}"
    assert (await client.user("GET", "/ui/nope")).headers["content-type"] == "application/problem+json"
    form = (await client.http.get("/ui/login?next=/ui/compare")).text
    assert 'name="next" value="/ui/compare"' in form
    for hostile in ("//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)"):
        assert 'name="next" value="/"' in (await client.http.get("/ui/login", params={"next": hostile})).text


async def test_malformed_headers_of_browsers_are_no_defects(client: Client) -> None:
    part = await client.http.get("/ui/overview", headers={"HX-Request": "true", "HX-Current-URL": "http://["})
    assert part.headers["hx-redirect"] == "/ui/login?next=/ui/overview"
    refused = await client.http.post("/ui/login", data={"token": TOKEN}, headers={"Origin": "http://["})
    assert refused.status_code == 403


async def test_a_program_that_logs_in_learns_to_use_the_api(client: Client) -> None:
    refused = await client.http.post("/ui/login", data={"token": TOKEN})
    assert (refused.status_code, "set-cookie" in refused.headers) == (403, False)
    assert "Programs use the API instead, with the header Authorization: Bearer TOKEN." in refused.text


async def test_a_session_opens_pages_and_the_api_until_the_log_out(client: Client) -> None:
    session = await session_of(client)
    for path in (*PAGES, "/docs"):
        assert (await client.http.get(path, headers=session)).status_code == 200
    assert (await client.http.get("/jobs", headers=session)).json()["jobs"] == []
    out = await client.http.post("/ui/logout", headers=session | SAME)
    assert f'{cookie_name("http")}=""' in out.headers["set-cookie"]
    forged = {"Cookie": f"{cookie_name('http')}={session['Cookie'].partition('=')[2][:-1]}x"}
    assert (await client.http.get("/jobs", headers=forged)).status_code == 401
    # A wrong token is refused even if the browser has a session.
    assert (await client.http.get("/jobs", headers=session | {"Authorization": "Bearer no"})).status_code == 401
    wrong = await log_in(client, "no-such-token")
    assert wrong.status_code == 401
    assert "not valid" in wrong.text
    assert (await client.http.post("/ui/login", content=b"token=" + b"x" * 10_000, headers=SAME)).status_code == 401


@pytest.mark.slow
async def test_with_https_only_this_host_can_set_the_cookie_of_a_session(tmp_path: Path) -> None:
    ca = make_ca(tmp_path)
    pair = sign(ca)
    settings = make_settings(tmp_path / "data", tls_cert=pair.certificate, tls_key=pair.key)
    async with serving(settings, ssl.create_default_context(cafile=ca.certificate)) as client:
        response = await log_in(client)
        cookie = response.headers["set-cookie"]
        # What browsers demand of this prefix.
        assert cookie.startswith("__Host-")
        assert {"Path=/", "Secure"} < set(cookie.split("; "))
        assert "Domain" not in cookie
        name, value = cookie.partition(";")[0].split("=")
        for path in PAGES:
            assert (await client.http.get(path, headers={"Cookie": f"{name}={value}"})).status_code == 200
            assert (await client.http.get(path, headers={"Cookie": f"{cookie_name('http')}={value}"})).is_redirect
        out = await client.http.post("/ui/logout", headers=SAME | {"Cookie": f"{name}={value}"})
        assert {"Path=/", "Secure", "Max-Age=0"} < set(out.headers["set-cookie"].split("; "))


@pytest.mark.slow
async def test_no_cache_keeps_what_depends_on_the_token(client: Client) -> None:
    node, job = await one_trainer(client), (await client.submit(roles=ONE_TRAINER))["id"]
    (worker,) = await node.workers()
    await node.say(worker, WorkerState.RUNNING)
    assert (await client.checkpoint(job, 1, 1)).status_code == 201
    private = (*PAGES, "/ui/login", "/jobs", f"/jobs/{job}", f"/jobs/{job}/logs", f"/jobs/{job}/events", "/jobs/nope")
    for path in private:
        assert (await client.user("GET", path)).headers.get_list("cache-control") == ["no-store"], path
    assert (await client.http.get("/jobs")).headers["cache-control"] == "no-store"  # 401
    checkpoint = await client.user("GET", f"/jobs/{job}/checkpoints/1")
    assert checkpoint.headers["etag"]
    assert checkpoint.headers["cache-control"] == "private, no-cache"
    assert (await client.http.get("/ui/static/style.css")).headers["cache-control"] == "public, max-age=3600"


async def test_other_sites_change_nothing_with_a_session(client: Client) -> None:
    session = await session_of(client)
    body = {"workload": "toy", "roles": ONE_TRAINER}
    own = f"http://{client.http.base_url.netloc.decode()}"
    refused: list[dict[str, str]] = [
        {},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},  # Another port of the same host.
        {"Sec-Fetch-Site": "none"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site", "Origin": own},
    ]
    for headers in refused:
        answer = await client.http.post("/jobs", json=body, headers=session | headers)
        assert answer.status_code == 403, headers
        assert "only from the master's own page" in answer.json()["detail"]
    assert (await log_in(client, **{"Sec-Fetch-Site": "cross-site"})).status_code == 403
    for headers in (SAME, {"Origin": own}):
        assert (await client.http.post("/jobs", json=body, headers=session | headers)).status_code == 201
    entries = (await client.user("GET", "/audit")).json()["entries"]
    assert [entry["token"] for entry in entries if entry["action"] == "POST /jobs"] == ["admin", "admin"]


@pytest.mark.slow
async def test_pages_show_what_the_token_may_see(client: Client) -> None:
    alice, bob = [await make_token(client, name, Scope.SUBMIT) for name in ("alice", "bob")]
    metrics = await make_token(client, "prom", Scope.METRICS)
    hostile = "<script>alert(1)</script>"
    node = await one_trainer(client)
    job = (await submit_as(client, alice, name=hostile, roles=ONE_TRAINER)).json()["id"]
    (worker,) = await node.workers()
    await node.say(worker, WorkerState.RUNNING)
    losses = {"trainer_0_loss": 1, "trainer_1_loss": 2}
    await node.progress(worker, line("step", step=1, metrics=losses, spent=TimeSpent(steps=1e6, data=61)))
    await client.until(job, "running")
    for token, count in ((alice, 1), (bob, 0), (TOKEN, 1)):
        session = await session_of(client, token)
        page = (await client.http.get("/", headers=session)).text
        assert page.count(f"/ui/jobs/{job}") == 2 * count, page  # Its row, and its worker's slot.
        assert hostile not in page
        assert ("<b>&lt;script&gt;alert(1)&lt;/scrip…</b> trainer-0</a>" in page) == bool(count), "its worker's slot"
        for address in ("/", "/?state=running", "/?state=failed"):
            listed = (await client.http.get(address, headers=session)).text
            assert ("<dt>goodput</dt><dd>100 %</dd>" in listed) == bool(count), listed
        shown = await client.http.get(f"/ui/jobs/{job}", headers=session)
        assert shown.status_code == (200 if count else 404)
        assert hostile not in shown.text
        assert ("<dd>100 %</dd>" in shown.text, ">100 %</td>" in page) == (bool(count), bool(count)), "the goodput"
        assert ("<dt>data</dt><dd>1 min 1 s</dd>" in shown.text, "<dt>wait</dt>" in shown.text) == (bool(count), False)
        assert ("<summary>trainer_0_loss … trainer_1_loss (2): 1 to 2</summary>" in shown.text) == bool(count)
        assert "a job of another owner" in page or count
    refused = await log_in(client, metrics)
    assert refused.status_code == 403
    assert "has only the scope metrics" in refused.text


@pytest.mark.parametrize(("verb", "pressed", "others"), [("cancel", "Cancelling…", 0), ("pause", "Pausing…", 2)])
async def test_a_job_that_is_being_stopped_shows_which_button_was_pressed(
    client: Client, verb: str, pressed: str, others: int
) -> None:
    node = await one_trainer(client)
    job = (await client.submit(roles=ONE_TRAINER))["id"]
    (worker,) = await node.workers()
    await node.say(worker, WorkerState.RUNNING)
    assert (await client.user("POST", f"/jobs/{job}/{verb}")).json()["state"] == "stopping"
    page = (await client.http.get(f"/ui/jobs/{job}", headers=await session_of(client))).text
    assert re.search(rf"<button[^>]* disabled>{pressed}</button>", page)
    assert page.count("hx-post=") == others


@pytest.mark.parametrize(("step", "shown"), [(10, "10 of at most 496"), (496, "496 of 496")])
async def test_a_job_that_ended_early_shows_its_true_share(client: Client, step: int, shown: str) -> None:
    node = await one_trainer(client)
    job = (await client.submit(roles=ONE_TRAINER))["id"]
    (worker,) = await node.workers()
    await node.say(worker, WorkerState.RUNNING)
    await node.progress(
        worker, line("step", step=step, steps=496), line("event", message="reached target_return 60 at update 10")
    )
    await node.say(worker, WorkerState.SUCCEEDED)
    await client.until(job, "succeeded")
    session = await session_of(client)
    for path in ("/", f"/ui/jobs/{job}"):
        page = (await client.http.get(path, headers=session)).text
        assert f'<progress max="496" value="{step}"' in page
        assert f">{shown}</span>" in page
    assert "<b>worker</b> reached target_return 60" in page


async def test_who_can_only_read_a_job_can_compare_it_but_not_control_it(client: Client) -> None:
    job = (await client.submit(roles=ONE_TRAINER))["id"]
    reader = await make_token(client, "reader", Scope.READ)
    page = (await client.http.get(f"/ui/jobs/{job}", headers=await session_of(client, reader))).text
    assert f'href="/ui/compare?job={job}"' in page
    assert not [one for one in ("hx-post", "hx-delete", "?clone=") if one in page]


async def test_the_picture_has_the_format_that_the_job_has(client: Client) -> None:
    """Asking for another one is no error in the browser's console."""
    node, session = await one_trainer(client), await session_of(client)
    job = (await client.submit(roles=ONE_TRAINER))["id"]
    path = f"/ui/jobs/{job}/picture?pipeline=true"
    assert (await client.http.get("/ui/jobs/nope/picture", headers=session)).status_code == 404
    (worker,) = await node.workers()
    await node.say(worker, WorkerState.RUNNING)
    await node.say(worker, WorkerState.SUCCEEDED)
    await client.until(job, "succeeded")
    nothing = await client.http.get(path, headers=session)
    assert (nothing.status_code, nothing.json()) == (200, None)
    await node.ship(worker, "timeline", WINDOW.model_dump_json().encode())
    picture = (await client.http.get(path, headers=session)).json()
    assert picture["format"] == "svg"
    assert "forward, step 1" in picture["svg"]


async def test_the_queue_is_shown_in_the_order_of_placement_with_reasons(client: Client) -> None:
    made = [(await client.submit(priority=priority))["id"] for priority in (0, 10)]
    async with asyncio.timeout(5):
        while not all([(await client.job(job))["waiting_for"] for job in made]):
            await asyncio.sleep(0.02)
    page = (await client.http.get("/", headers=await session_of(client))).text
    queue = page.partition('id="queue"')[2].partition("</section>")[0]
    assert queue.index(made[1]) < queue.index(made[0])
    assert queue.count("waiting for 2 trainer slots") == 2, queue


async def test_the_list_of_jobs_shows_the_workload_of_a_named_job_in_its_id_only(client: Client) -> None:
    job = (await client.submit(name="named"))["id"]
    page = (await client.http.get("/", headers=await session_of(client))).text
    jobs = page.partition('id="jobs"')[2]
    assert f'<span class="note">{job}</span>' in jobs


async def test_only_the_package_s_files_are_served(client: Client, tmp_path: Path) -> None:
    page = (await client.http.get("/ui/login")).text
    assert "://" not in page
    assert "<script>" not in page
    assert " style=" not in page
    for path in ("style.css", "page.js", "vendor/htmx.min.js", "vendor/uPlot.iife.min.js", "vendor/uPlot.min.css"):
        assert (await client.http.get(f"/ui/static/{path}")).is_success, path
    (tmp_path / "secret").write_text("secret")
    for path in (
        "..",
        "../pages.py",
        "%2e%2e/pages.py",
        "vendor",
        "vendor/../../pages.py",
        "vendor/package-lock.json",
        "x",
    ):
        assert (await client.http.get(f"/ui/static/{path}")).status_code in {303, 401, 404}, path


async def test_a_checkout_without_the_libraries_of_the_page_says_how_to_get_them(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "static").mkdir()
    (tmp_path / "static/style.css").write_text("a {}")
    for module in (pages, render):
        monkeypatch.setattr(module, "STATIC", tmp_path / "static")
    for cached in (pages._static_files, render.lacks_libraries):
        cached.cache_clear()
    try:
        missing = await client.http.get("/ui/static/vendor/htmx.min.js")
        style = await client.http.get("/ui/static/style.css")
        form = await client.http.get("/ui/login")
    finally:
        for cached in (pages._static_files, render.lacks_libraries):
            cached.cache_clear()
    assert (missing.status_code, "Run `make setup`" in missing.text) == (404, True)
    assert (style.status_code, "Run `make setup`" in form.text) == (200, True)


async def test_a_comparison_shows_a_bounded_number_of_differences(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "_MAX_DIFFERENCES", 1)
    jobs = [await client.submit(params={"steps": steps, "learning_rate": 1 / steps}) for steps in (1, 2)]
    page = (await client.user("GET", f"/ui/compare?job={jobs[0]['id']}&job={jobs[1]['id']}")).text
    assert page.count('role="rowheader"') == 1
    assert "Differences that are not shown: 1." in page


@pytest.mark.parametrize("query", ["", "?job=toy-none", "?" + "&".join(["job=toy-none"] * 9)])
async def test_jobs_that_do_not_exist_are_not_compared(client: Client, query: str) -> None:
    answer = await client.http.get(f"/ui/compare{query}", headers=await session_of(client))
    assert answer.status_code == {0: 200, 1: 404}.get(query.count("job="), 422)


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/?state=lost", 422, "Parameter &#39;state&#39;: &#39;lost&#39; is not a valid value; valid: queued, "),
        ("/ui/jobs/toy-none", 404, "toy-none"),
        ("/ui/nope", 404, "/ui/nope"),
        ("/ui/compare?id=toy-1", 422, ">There is no query parameter &#39;id&#39;; valid: job.<"),
        (
            "/ui/compare?jobs=a&id=b",
            422,
            "did you mean &#39;job&#39;? Valid: job. There is no query parameter &#39;id&#39;; ",
        ),
        ("/ui/submit/", 404, "did you mean /ui/submit?"),
    ],
)
async def test_errors_of_pages_are_pages_with_the_menu(client: Client, path: str, status: int, said: str) -> None:
    answer = await client.http.get(path, headers=await session_of(client))
    assert answer.status_code == status
    assert answer.headers["content-type"].startswith("text/html")
    assert said in answer.text
    assert '<nav aria-label="Pages">' in answer.text


BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}


async def test_a_browser_gets_errors_of_pages_and_unknown_addresses_in_its_own_words(client: Client) -> None:
    session = await session_of(client)
    for path, said in (("/nope", "There is nothing at /nope."), ("/ui/jobs/toy-none", "There is no job &#39;toy-none")):
        shown = await client.http.get(path, headers=session | BROWSER)
        assert (shown.status_code, said in shown.text) == (404, True), shown.text
        assert "rolecall " not in shown.text
        assert "GET" not in shown.text
    assert (await client.user("GET", "/nope")).headers["content-type"] == "application/problem+json"
    for headers in (session, session | BROWSER | {"HX-Request": "true"}):
        answer = await client.http.get("/nope", headers=headers)
        assert answer.headers["content-type"] == "application/problem+json"
    answer = await client.http.get("/jobs/toy-none", headers=session | BROWSER)
    assert answer.headers["content-type"] == "application/problem+json", "the API answers as it is documented"
    led = await client.http.get("/nope", headers=BROWSER)
    assert (led.status_code, led.headers["location"]) == (303, "/ui/login?next=/nope")
    docs = await client.http.get("/docs", headers=BROWSER)
    assert (docs.status_code, docs.headers["www-authenticate"][:5]) == (401, "Basic")


@pytest.mark.parametrize("path", ["/ui", "/ui/jobs"])
async def test_addresses_that_users_guess_lead_to_the_overview(client: Client, path: str) -> None:
    answer = await client.http.get(path, headers=await session_of(client))
    assert (answer.status_code, answer.headers["location"]) == (303, "/")


async def test_a_form_that_is_sent_without_a_session_leads_to_the_log_in(client: Client) -> None:
    for path in ("/", "/ui/logout", "/ui/submit"):
        answer = await client.http.post(path, data={"a": "b"})
        assert (answer.status_code, answer.headers["location"]) == (303, "/ui/login?next=/")
        assert answer.headers["connection"] == "close", "the body is not read"
    assert (await client.http.post("/jobs", json={}, headers=BROWSER)).status_code == 401


@pytest.mark.parametrize("host", ["evil.example", "evil.example/x", "evil.example?"])
async def test_no_answer_leads_to_the_host_that_the_client_names(client: Client, host: str) -> None:
    session = await session_of(client)
    for path in ("/jobs/", "/ui/submit/", "/%2Fevil.example/", "/ui/", "/nodes/"):
        answer = await client.http.get(path, headers=session | {"Host": host})
        assert answer.status_code == 404, path
        assert "evil.example" not in answer.headers.get("location", "")
    led = await client.http.get("/ui/compare?job=a", headers={"Host": host})
    assert led.headers["location"] == "/ui/login?next=/ui/compare%3Fjob%3Da"


async def test_an_address_with_a_slash_too_many_is_corrected(client: Client) -> None:
    answer = await client.user("GET", "/jobs/")
    assert answer.json()["detail"] == "there is nothing at /jobs/; did you mean /jobs? GET /docs lists the routes"
    answer = await client.user("GET", "/nope/")
    assert answer.json()["detail"] == "there is nothing at /nope/; GET /docs lists the routes"


def raising(error: Exception) -> Callable[..., None]:
    """A function that raises the error."""

    def fail(*_: object) -> None:
        raise error

    return fail


async def test_a_page_without_its_database_is_a_page_with_the_reason(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "cluster_view", raising(StoreUnavailable("the database does not answer")))
    answer = await client.http.get("/", headers=await session_of(client))
    assert (answer.status_code, "Retry-After" in answer.headers) == (503, True)
    assert '<nav aria-label="Pages">' in answer.text


async def test_a_page_with_a_defect_is_a_page_that_no_one_may_store(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "cluster_view", raising(RuntimeError("a defect")))
    answer = await client.http.get("/", headers=await session_of(client))
    assert (answer.status_code, answer.headers.get("Cache-Control")) == (500, "no-store")
    assert "The master has a defect" in answer.text


async def test_a_page_of_a_master_that_loses_its_leadership_is_a_page_without_a_menu(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = client.server.program

    def lose(*_: object) -> None:
        monkeypatch.setattr(program, "master", None)
        raise LeadershipLost("another master leads")

    monkeypatch.setattr(pages, "cluster_view", lose)
    answer = await client.http.get("/", headers=await session_of(client))
    monkeypatch.undo()
    assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (503, "text/html")
    assert "Another master leads" in answer.text
    assert '<nav aria-label="Pages">' not in answer.text


async def test_addresses_of_pages_reach_no_other_routes(client: Client) -> None:
    session = await session_of(client)
    job = (await client.submit(roles=ONE_TRAINER))["id"]
    # A page keeps the whole answer in memory: a followed log never ends, and an artifact can be larger than the memory.
    others = (f"{job}/logs?follow=true", f"{job}/artifacts/model.pt", f"{job}?", f"{job}#x", f"./{job}", "../nodes")
    for given in (*others, "..", ".", "%2e%2e", "\n", "\x7f", "@host:99999/"):
        answer = await client.http.get("/ui/compare", params={"job": given}, headers=session)
        assert answer.status_code == 404, given
    for path in ("/ui/jobs/%2e%2e", "/ui/jobs/%2e%2e/status", f"/ui/jobs/{job}%3F", f"/ui/jobs/{job}%23/status"):
        assert (await client.http.get(path, headers=session)).status_code == 404, path
    assert (await client.http.get("/ui/compare?job=", headers=session)).status_code == 404
    assert (await client.http.get(f"/ui/compare?job={job}", headers=session)).status_code == 200


@pytest.mark.slow
async def test_the_pages_of_200_workers_take_less_than_300_ms(client: Client) -> None:
    node = Node(client, make_node("trainer-0", Role.TRAINER, 200, cores=200))
    await node.register()
    await node.beat()
    job = (await client.submit(roles={"parameter-server": 0, "trainer": 200}))["id"]
    await node.workers(200)
    session = await session_of(client)
    for path in ("/", f"/ui/jobs/{job}", f"/ui/jobs/{job}/status", "/ui/submit", f"/ui/compare?job={job}"):
        times_s: list[float] = []
        for _ in range(3):
            begin = time.process_time()
            page = await client.http.get(path, headers=session)
            times_s.append(time.process_time() - begin)
            assert page.status_code == 200
            assert "trainer-199" in page.text or "submit" in path or "compare" in path
        assert is_within(min(times_s), 0.3), (path, times_s)

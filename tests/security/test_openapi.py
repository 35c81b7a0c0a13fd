# pyright: standard
"""Calls that the OpenAPI document allows, or nearly: none is answered with a server error or against the document."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from copy import deepcopy
from typing import Any, NamedTuple

import pytest
import requests
import schemathesis
from hypothesis import given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from tests.master.harness import (
    NODE_TOKEN,
    ONE_TRAINER,
    TOKEN,
    Client,
    bearer,
    line,
    make_settings,
    make_token,
    one_trainer,
    openapi_document,
    serving,
)

from rolecall.spec.access import Scope
from rolecall.spec.state import WorkerState
from rolecall.spec.token import attempt_token

from .documents import SAME_EACH_TIME

pytestmark = pytest.mark.slow
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
CHECKS.append(response_headers_conformance)
SCHEMA = schemathesis.openapi.from_dict(deepcopy(openapi_document()))
OPERATIONS: dict[str, APIOperation] = {}
for found in SCHEMA.get_all_operations():
    assert isinstance(found, Ok), found
    OPERATIONS[found.ok().label] = found.ok()
# Not "..": the client itself would make another path of it.
ODD = st.sampled_from(["%00", "a%00b", "%ff%fe", "...", "%2e%2e%2fetc", "é" * 100, "x" * 3000, "a b", "'; --", "\\"])


NODE, DONE, RUNNING, STRAY = "trainer-0", 0, 1, 4
ORDER = ("GET", "HEAD", "PUT", "POST", "PATCH", "DELETE")
"""Calls that end or delete jobs come after those that need them."""
LABELS = sorted(OPERATIONS, key=lambda label: (ORDER.index(label.split()[0]), label))
KNOWN: dict[str, dict[str, Any]] = {
    "DELETE /tokens/{name}": {"name": "left"},
    "GET /internal/jobs/{job}/blobs/{number}/{name}": {"name": "step-7/part"},
    "GET /internal/nodes/{name}/surroundings": {"name": NODE},
    "GET /jobs/{job}/artifacts/{name}": {"name": "model.zip"},
    "HEAD /jobs/{job}/artifacts/{name}": {"name": "model.zip"},
    "GET /workloads/{name}": {"name": "toy"},
    "POST /internal/nodes/{name}/heartbeat": {"name": NODE},
    "PATCH /tokens/{name}": {"name": "changed"},
    "POST /tokens/{name}/rotate": {"name": "changed"},
    "PUT /internal/jobs/{job}/attempts/{attempt}/blobs/{name}": {"name": "step-9/part"},
}
"""Names of what `populate` makes."""
BODIES: dict[str, dict[str, Any]] = {
    "POST /internal/jobs/{job}/attempts/{attempt}/artifacts": {"blob": "1/step-7/part", "size": len(b"weights at 7")},
    "POST /internal/jobs/{job}/attempts/{attempt}/checkpoints": {"attempt": 1},
    "POST /internal/nodes/{name}/heartbeat": {"started": f"{NODE}-first"},
}
"""Fields that agree with them, for bodies that have these fields."""


class Served(NamedTuple):
    """A master, and what its callers know of it."""

    url: str
    jobs: list[str]
    signing_key: str


async def populate(client: Client) -> list[str]:
    """Jobs in several states, and one node; returns the jobs' ids."""
    node = await one_trainer(client, slots=1)
    done = (await client.submit(roles=ONE_TRAINER))["id"]
    (worker,) = await node.workers()
    await node.say(worker, WorkerState.RUNNING)
    await node.ship(worker, "log", b"hello\n")
    await node.progress(worker, line("step", step=1, metrics={"loss": 0.5}), line("result", metrics={"auc": 0.9}))
    await client.checkpoint(done, 1, 7)
    sent = (await client.worker("PUT", done, 1, "/attempts/1/blobs/model", content=b"model")).json()
    notice = {**sent, "name": "model.zip"}
    await client.worker("POST", done, 1, "/attempts/1/artifacts", json=notice)
    await node.say(worker, WorkerState.SUCCEEDED)
    await client.until(done, "succeeded")
    running = (await client.submit(roles=ONE_TRAINER))["id"]
    (worker,) = await node.workers()
    await node.say(worker, WorkerState.RUNNING)
    await client.until(running, "running")
    await client.checkpoint(running, 1, 7)
    for name in ("left", "changed"):
        await make_token(client, name, Scope.SUBMIT)
    waiting, paused, cancelled = [(await client.submit(roles=ONE_TRAINER))["id"] for _ in range(3)]
    await client.user("POST", f"/jobs/{paused}/pause")
    await client.user("POST", f"/jobs/{cancelled}/cancel")
    return [done, running, waiting, paused, cancelled]


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A master that serves in a thread."""
    ready: Future[tuple[Served, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        over = asyncio.Event()
        async with serving(make_settings(tmp_path_factory.mktemp("master"), heartbeat_s=0.01)) as client:
            jobs = await populate(client)
            served = Served(str(client.http.base_url), jobs, client.master.signing_key)
            ready.set_result((served, asyncio.get_running_loop(), over))
            await over.wait()

    def run() -> None:
        try:
            # Schemathesis calls synchronously, so the master's loop can't be the one of the test's thread.
            asyncio.run(serve())
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        served, loop, over = ready.result(60)
        yield served
        loop.call_soon_threadsafe(over.set)
    finally:
        thread.join(60)


def token_for(case: schemathesis.Case, signing_key: str) -> str:
    """The token that the call needs."""
    names = case.path_parameters
    if not case.path.startswith("/internal/"):
        return TOKEN
    if case.path.endswith(("/streams/{kind}", "/inspections/{number}", "/nodes")) or "/nodes/" in case.path:
        return NODE_TOKEN
    attempt = names.get("attempt", 1)
    return attempt_token(signing_key, str(names.get("job")), attempt if isinstance(attempt, int) else 1)


def aim(case: schemathesis.Case, jobs: list[str]) -> None:
    """Let the call be about what there is, so that it comes as far as the code behind all lookups."""
    names, known = case.path_parameters, KNOWN.get(case.operation.label, {})
    given = {"attempt": 1, "number": 1, "node": NODE, "step": 7, **known}
    names |= {name: value for name, value in given.items() if name in names}
    if case.path.startswith("/internal/jobs/"):
        names["job"] = jobs[RUNNING]
    elif "job" in names and ("name" in names or "step" in names):
        names["job"] = jobs[DONE]
    if isinstance(case.body, dict):
        wanted = BODIES.get(case.operation.label, {})
        case.body |= {name: value for name, value in wanted.items() if name in case.body}


@pytest.mark.parametrize("label", LABELS)
def test_no_call_is_answered_with_a_server_error(label: str, master: Served) -> None:
    outcomes: set[int] = set()
    operation = OPERATIONS[label]
    modes = [operation.as_strategy(mode) for mode in schemathesis.GenerationMode]

    @settings(SAME_EACH_TIME, max_examples=15)
    @given(case=st.one_of(modes), job=st.sampled_from(master.jobs), odd=ODD, roll=st.integers(0, 9))
    def examine(case: schemathesis.Case, job: str, odd: str, roll: int) -> None:
        if "job" in case.path_parameters:
            case.path_parameters["job"] = job
        if roll >= STRAY:
            aim(case, master.jobs)
        if case.path_parameters and roll == 0:
            name = sorted(case.path_parameters)[0]
            case.path_parameters[name] = odd
        if label.endswith(("/logs", "/events")):
            case.query = {key: value for key, value in (case.query or {}).items() if key != "follow"}
        try:
            response = case.call(base_url=master.url, headers=bearer(token_for(case, master.signing_key)), timeout=20)
        except (requests.exceptions.InvalidHeader, requests.exceptions.InvalidURL, UnicodeError):
            return  # what the client can't send, the master can't get
        outcomes.add(response.status_code)
        if b"has no role" in response.content:
            return  # A newer node than the master gets 503: it waits for the master's upgrade.
        case.validate_response(response, checks=CHECKS)

    examine()
    assert outcomes - {401, 403, 404, 422}, f"no call came as far as the route's own code: {outcomes}"

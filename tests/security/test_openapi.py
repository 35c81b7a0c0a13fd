"""Calls that the OpenAPI document allows, or nearly: none is answered with a server error or against the document."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from tests.master.harness import (
    CATALOGUE,
    NODE_TOKEN,
    ONE_TRAINER,
    TOKEN,
    Client,
    bearer,
    line,
    make_settings,
    one_trainer,
    serving,
)

from rolecall.master.app import create_app
from rolecall.spec.state import WorkerState
from rolecall.spec.token import attempt_token

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
SCHEMA = schemathesis.openapi.from_dict(create_app(make_settings(Path("/nowhere")), CATALOGUE).openapi())
OPERATIONS = {operation.ok().label: operation.ok() for operation in SCHEMA.get_all_operations()}
ODD = st.sampled_from(["%00", "a%00b", "%ff%fe", "..", "%2e%2e%2fetc", "é" * 100, "x" * 3000, "a b", "'; --", "\\"])


async def populate(client: Client) -> list[str]:
    """Jobs in several states, and one node; returns the jobs' ids."""
    node = await one_trainer(client, slots=1)
    done = (await client.submit(roles=ONE_TRAINER))["id"]
    (worker,) = await node.workers()
    await node.say(worker, WorkerState.RUNNING)
    await node.ship(worker, "log", b"hello\n")
    await node.progress(worker, line("step", step=1, metrics={"loss": 0.5}), line("result", metrics={"auc": 0.9}))
    await client.checkpoint(done, 1, 7)
    await node.say(worker, WorkerState.SUCCEEDED)
    await client.until(done, "succeeded")
    running = (await client.submit(roles=ONE_TRAINER))["id"]
    (worker,) = await node.workers()
    await node.say(worker, WorkerState.RUNNING)
    await client.until(running, "running")
    waiting, paused, cancelled = [(await client.submit(roles=ONE_TRAINER))["id"] for _ in range(3)]
    await client.user("POST", f"/jobs/{paused}/pause")
    await client.user("POST", f"/jobs/{cancelled}/cancel")
    return [done, running, waiting, paused, cancelled]


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[str]]]:
    """The URL of a master that serves in a thread, and its jobs."""
    ready: Future[tuple[str, list[str], asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        over = asyncio.Event()
        async with serving(make_settings(tmp_path_factory.mktemp("master"), heartbeat_s=0.01)) as client:
            ready.set_result((str(client.http.base_url), await populate(client), asyncio.get_running_loop(), over))
            await over.wait()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        url, jobs, loop, over = ready.result(60)
        yield url, jobs
        loop.call_soon_threadsafe(over.set)
    finally:
        thread.join(60)


def token_for(case: schemathesis.Case) -> str:
    """The token that the call needs."""
    names = case.path_parameters
    if not case.path.startswith("/internal/"):
        return TOKEN
    if case.path.endswith(("/streams/{kind}", "/nodes")) or "/nodes/" in case.path:
        return NODE_TOKEN
    attempt = names.get("attempt", 1)
    return attempt_token(NODE_TOKEN, str(names.get("job")), attempt if isinstance(attempt, int) else 1)


@pytest.mark.parametrize("label", sorted(OPERATIONS))
def test_no_call_is_answered_with_a_server_error(label: str, master: tuple[str, list[str]]) -> None:
    url, jobs = master
    operation = OPERATIONS[label]
    modes = [operation.as_strategy(mode) for mode in schemathesis.GenerationMode]

    @settings(max_examples=15, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(case=st.one_of(modes), job=st.sampled_from(jobs), odd=ODD, roll=st.integers(0, 9))
    def examine(case: schemathesis.Case, job: str, odd: str, roll: int) -> None:
        if "job" in case.path_parameters:
            case.path_parameters["job"] = job
        if case.path_parameters and roll == 0:
            name = sorted(case.path_parameters)[0]
            case.path_parameters[name] = odd
        if label.endswith("/logs"):
            case.query = {key: value for key, value in (case.query or {}).items() if key != "follow"}
        try:
            response = case.call(base_url=url, headers=bearer(token_for(case)), timeout=20)
        except (requests.exceptions.InvalidHeader, requests.exceptions.InvalidURL, UnicodeError):
            return  # what the client can't send, the master can't get
        case.validate_response(response, checks=CHECKS)

    examine()

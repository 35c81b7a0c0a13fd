"""Timelines, stacks and profiles through the master: a node answers for workers, with what workers may write."""

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rolecall.master.api.openapi import EXAMPLES
from rolecall.master.catalogue import Catalogue
from rolecall.master.inspections import Inspections
from rolecall.master.store.records import WorkerRecord
from rolecall.spec.access import Scope
from rolecall.spec.errors import LimitReached
from rolecall.spec.inspection import Answer, Inspection, ThreadStack, TraceDocument
from rolecall.spec.role import Role
from rolecall.spec.state import WorkerState
from rolecall.spec.timeline import Span, Step, Window
from rolecall.spec.wire import DesiredWorker
from rolecall.spec.workload import RoleCount

from .harness import (
    ONE_TRAINER,
    TOY,
    Client,
    Node,
    make_node,
    make_settings,
    make_token,
    one_trainer,
    serving,
    submit_as,
)

WINDOW = Window(
    at=datetime.now(UTC),
    clock_s=100.0,
    steps=(Step(1, 90.0, 1.0), Step(2, 91.0, 1.0)),
    spans=(
        Span("forward", "compute", 90.1, 0.2, 1, None, None, "main"),
        Span("F", "compute", 91.1, 0.2, 2, 0, 3, "main"),
    ),
)


async def running(client: Client, token: str | None = None) -> tuple[str, Node, DesiredWorker]:
    """A job with one running trainer."""
    node = await one_trainer(client)
    job = (await submit_as(client, token)).json()["id"] if token else (await client.submit(roles=ONE_TRAINER))["id"]
    (worker,) = await node.workers()
    await node.say(worker, WorkerState.RUNNING)
    return job, node, worker


async def answered(
    client: Client,
    node: Node,
    method: str,
    path: str,
    body: bytes,
    *,
    token: str | None = None,
    request: dict[str, Any] | None = None,
    **about: Any,
) -> tuple[Inspection, Any]:
    """Call a route, and answer the inspection of which the node learns."""
    given = {"json": EXAMPLES["start_profile"] | (request or {})} if path.endswith("/profile") else {}
    call = asyncio.create_task(
        client.call(token, method, path, **given) if token else client.user(method, path, **given)
    )
    async with asyncio.timeout(10):
        while not (found := [one for one in await node.beat(1.0) if one.inspection]):
            pass
    inspection, launch = found[0].inspection, found[0].launch
    assert inspection is not None
    where = f"/jobs/{launch.job}/attempts/{launch.attempt}/ranks/{launch.worker.rank}/inspections/{inspection.id}"
    sent = await client.internal("PUT", where, content=body, params=about)
    assert sent.status_code == 204, sent.text
    return inspection, await call


async def test_a_timeline_in_three_forms(client: Client) -> None:
    job, node, _ = await running(client)
    body = Answer(window=WINDOW).model_dump_json().encode()
    path = f"/jobs/{job}/timeline"
    inspection, answer = await answered(client, node, "GET", path, body, offset_s=3.0, uncertainty_s=0.001)
    assert inspection.kind == "timeline"
    document = answer.json()
    assert (document["live"], document["silent"]) == (True, [])
    (worker,) = document["workers"]
    assert worker["clock_uncertainty_s"] == 0.0
    assert [step[:2] for step in worker["steps"]] == [[1, 0.0], [2, 1.0]]
    _, answer = await answered(client, node, "GET", f"{path}?format=trace&steps=1", body)
    assert len(TraceDocument.model_validate(answer.json(), strict=False).events) == len(answer.json()["traceEvents"])
    events = [event for event in answer.json()["traceEvents"] if event["ph"] == "X"]
    assert [(event["name"], event["ts"], event["dur"]) for event in events] == [("step 2", 0.0, 1e6), ("F 3", 1e5, 2e5)]
    assert events[1]["args"] == {"step": 2, "stage": 0, "micro_batch": 3}
    _, answer = await answered(client, node, "GET", f"{path}?format=svg", body)
    assert answer.headers["content-type"] == "image/svg+xml"
    assert "forward, step 1: 200.000 ms" in answer.text
    _, answer = await answered(client, node, "GET", f"{path}?format=schedule", body)
    assert answer.status_code == 409
    assert answer.json()["detail"] == f"job {job} has no pipeline; the format svg shows every workload"


@pytest.mark.slow
async def test_what_a_worker_may_write_is_an_error_of_it_alone(client: Client) -> None:
    job, node, _ = await running(client)
    window = json.loads(WINDOW.model_dump_json())
    for change in (
        b"\xff",
        b"{}",
        b'{"window": 7}',
        json.dumps({"window": window | {"clock_s": 1e300}}).encode(),
        json.dumps({"window": window | {"spans": [["<script>\x00", "compute", 0, 0, 1, None, None, "main"]]}}).encode(),
        json.dumps({"window": window | {"spans": [["F", "compute", 0, -1, 1, None, None, "main"]]}}).encode(),
        json.dumps({"window": window | {"steps": [[1, 0, 1]] * 65}}).encode(),
        b"[" * 100_000,
    ):
        _, answer = await answered(client, node, "GET", f"/jobs/{job}/timeline", change)
        assert answer.status_code == 200, answer.text
        assert [one["role"] for one in answer.json()["silent"]] == ["trainer"]
    extreme = WINDOW.model_copy(update={"clock_s": -1e12, "steps": (Step(1, 1e12, 1e12),)})
    for form in ("json", "trace", "svg"):
        body = Answer(window=extreme).model_dump_json().encode()
        _, answer = await answered(client, node, "GET", f"/jobs/{job}/timeline?format={form}", body)
        assert answer.status_code == 200


async def test_who_may_look_and_who_may_act(client: Client) -> None:
    alice, bob = [await make_token(client, name, Scope.SUBMIT) for name in ("alice", "bob")]
    eve = await make_token(client, "eve", Scope.READ)
    job, node, _ = await running(client, alice)
    assert (await client.call(bob, "GET", f"/jobs/{job}/timeline")).status_code == 404
    for path in ("stacks", "profile"):
        assert (await client.call(bob, "POST", f"/jobs/{job}/{path}", json={})).status_code == 404
        assert (await client.call(eve, "POST", f"/jobs/{job}/{path}", json={})).status_code == 403
    body = Answer(window=WINDOW).model_dump_json().encode()
    _, answer = await answered(client, node, "GET", f"/jobs/{job}/timeline", body, token=eve)
    assert answer.status_code == 200
    body = Answer(stacks=(ThreadStack(thread="main", frames=("a\nb.py:1 f",)),)).model_dump_json().encode()
    _, answer = await answered(client, node, "POST", f"/jobs/{job}/stacks", body, token=alice)
    assert answer.json()["workers"][0]["threads"] == [{"thread": "main", "frames": ["a\\nb.py:1 f"]}]
    inspection, answer = await answered(
        client, node, "POST", f"/jobs/{job}/profile", b'{"artifact": "profile-trainer-0.json.gz"}', token=alice
    )
    assert (inspection.kind, inspection.steps, answer.status_code) == ("profile", 20, 202)
    actions = [entry["action"] for entry in (await client.user("GET", "/audit")).json()["entries"]]
    assert {"POST /jobs/{job}/stacks", "POST /jobs/{job}/profile"} <= set(actions)


async def test_a_driver_runs_no_steps_and_is_not_asked_for_a_profile(tmp_path: Path) -> None:
    roles = {Role.MASTER: RoleCount(default=1), Role.TRAINER: RoleCount(default=1)}
    driven = Catalogue({"toy": replace(TOY, roles=roles, expendable=frozenset(), cpu_only=frozenset())}, {})
    async with serving(make_settings(tmp_path), catalogue=driven) as client:
        driver = Node(client, make_node("master-0", Role.MASTER))
        await driver.enter()
        node = await one_trainer(client)
        job = (await client.submit())["id"]
        for one in (driver, node):
            (worker,) = await one.workers()
            await one.say(worker, WorkerState.RUNNING)
        object.__setattr__(client.master.inspections, "_timeout_s", 2.0)
        body = b'{"artifact": "profile.json.gz"}'
        _, answer = await answered(client, node, "POST", f"/jobs/{job}/profile", body, request={"role": None})
        assert [one["role"] for one in answer.json()["workers"]] == ["trainer"]
        assert answer.json()["silent"] == []


async def test_a_worker_without_an_answer_is_listed(client: Client) -> None:
    job, node, worker = await running(client)
    _, answer = await answered(client, node, "POST", f"/jobs/{job}/stacks", b"", silent="its process is stopped")
    assert [one["reason"] for one in answer.json()["silent"]] == ["its process is stopped"]
    object.__setattr__(client.master.inspections, "_timeout_s", 0.2)
    answer = await client.user("POST", f"/jobs/{job}/stacks")
    assert "no answer from its node" in answer.json()["silent"][0]["reason"]
    assert not client.master.inspections.pending
    where = f"/jobs/{job}/attempts/1/ranks/{worker.launch.worker.rank}/inspections/77"
    assert (await client.internal("PUT", where, content=b"late")).status_code == 204


async def test_jobs_of_one_owner_leave_inspections_to_others() -> None:
    inspections = Inspections(lambda *_: None, timeout_s=0.2)
    times: dict[str, Any] = dict.fromkeys(("pid", "exit_code", "failure", "spawned_at", "joined_at"))

    async def ask(owner: str, number: int) -> Any:
        job, state = f"{owner}-{number}", WorkerState.RUNNING
        member = WorkerRecord(
            job=job, attempt=1, rank=0, role=Role.TRAINER, role_rank=0, node="n", state=state, **times
        )
        return await inspections.ask("stacks", owner, [member])

    calls = [ask("mallory", number) for number in range(6)] + [ask("alice", 0)]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    refused = [isinstance(one, LimitReached) for one in outcomes]
    assert refused == [False] * 4 + [True] * 2 + [False]


async def test_an_ended_worker_leaves_its_last_window(client: Client) -> None:
    job, node, worker = await running(client)
    await node.ship(worker, "timeline", WINDOW.model_dump_json().encode())
    await node.say(worker, WorkerState.SUCCEEDED)
    await client.until(job, "succeeded")
    document = (await client.user("GET", f"/jobs/{job}/timeline")).json()
    assert not document["live"]
    assert len(document["workers"][0]["spans"]) == 2
    for path in ("stacks", "profile"):
        assert (await client.user("POST", f"/jobs/{job}/{path}", json={})).status_code == 409


async def test_the_workers_of_a_large_gang_share_the_spans_of_a_timeline(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rolecall.master.api.inspection._MAX_SPANS", 3)
    node = Node(client, make_node("trainer-0", Role.TRAINER, 2, cores=2))
    await node.enter()
    job = (await client.submit(roles={"parameter-server": 0, "trainer": 2}))["id"]
    for worker in await node.workers(2):
        await node.ship(worker, "timeline", WINDOW.model_dump_json().encode())
        await node.say(worker, WorkerState.RUNNING)
        await node.say(worker, WorkerState.SUCCEEDED)
    await client.until(job, "succeeded")
    document = (await client.user("GET", f"/jobs/{job}/timeline")).json()
    assert [(one["cut"], [span[0] for span in one["spans"]]) for one in document["workers"]] == [(True, ["F"])] * 2
    assert document["silent"] == []


async def test_an_answer_with_more_spans_than_a_worker_can_show_is_cut(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rolecall.master.api.inspection._MAX_SPANS", 1)
    job, node, _ = await running(client)
    body = Answer(window=WINDOW).model_dump_json().encode()
    _, answer = await answered(client, node, "GET", f"/jobs/{job}/timeline", body)
    (worker,) = answer.json()["workers"]
    assert (worker["cut"], [span[0] for span in worker["spans"]]) == (True, ["F"])


async def test_a_job_that_never_ran_has_no_timeline(client: Client) -> None:
    job = (await client.submit(roles=ONE_TRAINER))["id"]
    assert (await client.user("GET", f"/jobs/{job}/timeline")).status_code == 409
    assert (await client.user("POST", f"/jobs/{job}/profile", json={"step": 3})).status_code == 422

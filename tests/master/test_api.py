"""The HTTP surface: who may call, and the answers to wrong calls."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.volumes import filled, mounted

from rolecall.spec.role import Role
from rolecall.spec.state import WorkerState

from .harness import (
    CATALOGUE,
    NODE_TOKEN,
    ONE_TRAINER,
    TOKEN,
    TOY,
    Client,
    ManualClock,
    bearer,
    failure,
    on_master,
    one_trainer,
)

REFUSED: list[tuple[dict[str, Any], str, str, str]] = [
    ({"workload": "tpy"}, "workload", "did you mean 'toy'", "toy"),
    ({"workload": "sad"}, "workload", "no module named sad", "toy"),
    ({"params": {"lerning_rate": 1}}, "params.lerning_rate", "did you mean 'learning_rate'", "learning_rate, steps"),
    ({"params": {"steps": "many"}}, "params.steps", "an integer", "integer ≥ 1"),
    ({"params": {"steps": 0}}, "params.steps", "greater than or equal to 1", "integer ≥ 1"),
    ({"roles": {"trainr": 2}}, "roles.trainr", "there is no role 'trainr'; did you mean 'trainer'", "trainer"),
    ({"roles": {"stage": 2}}, "roles.stage", "there is no role 'stage'", "observer, parameter-server, trainer"),
    ({"roles": {"trainer": -1}}, "roles.trainer", "can't run with -1", "1 to 256"),
    (
        {"roles": {"trainer": "2"}},
        "roles.trainer",
        "an integer or an object",
        "an integer from 0 to 1,000,000 or an object",
    ),
    ({"roles": {"trainer": 100_000}}, "roles.trainer", "can't run with 100,000 trainer workers", "1 to 256"),
    ({"roles": {"trainer": {"cuont": 2}}}, "roles.trainer.cuont", "did you mean 'count'", "count, gpus, threads"),
    ({"roles": {"trainer": {"count": 257}}}, "roles.trainer", "can't run with 257", "1 to 256"),
    ({"roles": {"trainer": {"gpus": "1"}}}, "roles.trainer.gpus", "an integer", "an integer from 0 to 1"),
    (
        {"roles": {"trainer": {"threads": 0}}},
        "roles.trainer.threads",
        "greater than or equal to 1",
        "an integer from 1 to 1,000,000 or null",
    ),
    ({"roles": {"trainer": {"gpus": 2}}}, "roles.trainer.gpus", "for 2 GPUs request 2 workers with one each", "0 or 1"),
    (
        {"roles": {"trainer": {"gpus": -1}}},
        "roles.trainer.gpus",
        "greater than or equal to 0",
        "an integer from 0 to 1 or null",
    ),
    (
        {"roles": {"observer": {"gpus": 1}}},
        "roles.observer.gpus",
        "observer workers of toy can't use a GPU",
        "0, or omit it",
    ),
    ({"max_restarts": True}, "max_restarts", "an integer", "an integer from 0 to 1,000"),
    ({"roles": {"trainer": 13}}, "roles", "bad luck", "counts that fit"),
    ({"priority": 1000}, "priority", "less than or equal to 100", "an integer from -100 to 100"),
    ({"prioritty": 1}, "prioritty", "did you mean 'priority'", "deadline_s"),
    ({"steps": 3}, "steps", "no field 'steps'; the workload's parameters belong in 'params'", "priority"),
    ({"deadline_s": -1}, "deadline_s", "greater than 0", "a number > 0 and ≤ 10^9 or null"),
    ({"name": "a\0b"}, "name", "can't be printed", "printable"),
    ({"name": "\u3164"}, "name", "can't be printed", "printable"),
    ({"name": "a\u200db"}, "name", "can't be printed", "without invisible characters"),
    ({"name": "a" + "\u0301" * 5}, "name", "more than 4 combining marks in a row", "at most 4 marks on a letter"),
    ({"name": "   "}, "name", "it shows nothing", "or no name"),
]


def check_problem(response: httpx.Response, status: int) -> dict[str, Any]:
    """The problem document of an error."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    document = response.json()
    assert document["status"] == status
    assert document["detail"]
    return document


async def test_a_wrong_request_gets_field_value_and_what_is_legal(client: Client) -> None:
    for body, field, message, legal in REFUSED:
        response = await client.user("POST", "/jobs", json={"workload": "toy"} | body)
        (error,) = check_problem(response, 422)["errors"]
        assert error["field"] == field
        assert message in error["message"]
        assert legal in error["legal"], error
        assert error["given"]
    assert (await client.user("GET", "/jobs")).json() == {"jobs": [], "next_cursor": None}


async def test_all_wrong_roles_are_named_at_once_with_wrong_parameters(client: Client) -> None:
    body = {"workload": "toy", "roles": {"trainr": 1, "trainer": -1, "stage": 1}, "params": {"steps": 0}}
    errors = check_problem(await client.user("POST", "/jobs", json=body), 422)["errors"]
    assert [one["field"] for one in errors] == ["roles.trainr", "roles.stage", "roles.trainer", "params.steps"]


@pytest.mark.parametrize(
    ("body", "field"),
    [([1], "body"), ("toy", "body"), ({"workload": "toy", "params": []}, "params"), ({"labels": 1}, "labels")],
)
async def test_what_is_no_object_is_refused_in_the_words_of_json(client: Client, body: Any, field: str) -> None:
    errors = check_problem(await client.user("POST", "/jobs", json=body), 422)["errors"]
    (error,) = [one for one in errors if one["field"] == field]
    assert (error["message"], error["legal"].startswith("an object")) == ("it must be an object", True)


async def test_resources_that_no_live_node_has_are_refused_and_others_shown(client: Client) -> None:
    asked = {"trainer": {"count": 1, "gpus": 1, "threads": 4}, "parameter-server": {"count": 0, "threads": 99}}
    job = await client.submit(roles=asked)
    assert (job["roles"], job["resources"]) == ({"trainer": 1}, {"trainer": {"gpus": 1, "threads": 4, "busy": False}})
    waits = await client.until(job["id"], "queued", also=lambda job: job["waiting_for"])
    assert waits["waiting_for"].startswith("waiting for 1 trainer slot with a GPU and 4 threads: the cluster has 0")
    await one_trainer(client)
    response = await client.user("POST", "/jobs", json={"workload": "toy", "roles": asked})
    (error,) = check_problem(response, 422)["errors"]
    assert (error["field"], error["message"]) == ("roles.trainer.gpus", "no live trainer node has a GPU")
    node = await one_trainer(client, "trainer-1", gpus=1, boot="m1")
    (worker,) = await node.workers()
    assert (worker.launch.worker.gpu, worker.launch.worker.threads) == ("GPU-m1-0", 4)


async def test_broken_and_oversized_bodies(client: Client) -> None:
    broken = check_problem(await client.user("POST", "/jobs", content=b'{"workload": '), 400)
    why = "it ends too early; add what is missing, such as a closing } or ]"
    assert broken["detail"] == f"the body is not JSON: {why} (at character 13)"
    lone = await client.user("POST", "/jobs", content=b'{"workload": "toy", "params": {"\\ud800": 1}}')
    assert "half of a surrogate pair" in check_problem(lone, 422)["detail"]
    check_problem(await client.user("POST", "/jobs", content=b'{"workload": "\\ud800"}'), 422)

    async def endless() -> Any:
        for _ in range(1000):
            yield b"x" * 10_000

    try:
        large = await client.user("POST", "/jobs", content=endless())
    except (httpx.WriteError, httpx.ReadError):
        pass  # The server hung up in the middle of the body, which is as good an answer.
    else:
        check_problem(large, 413)
    check_problem(await client.user("POST", "/jobs", content=b"x" * (1 << 21)), 413)


async def test_a_browser_presents_a_token_as_a_password(client: Client) -> None:
    for path in ("/docs", "/openapi.json"):
        refused = await client.http.get(path, auth=("me", "another-token-for-sure"))
        check_problem(refused, 401)
        assert refused.headers["www-authenticate"].startswith("Basic")
        check_problem(await client.http.get(path, auth=("me", NODE_TOKEN)), 403)
        check_problem(await client.http.get(path), 401)
    assert "openapi.json" in (await client.http.get("/docs/start.js", auth=("me", TOKEN))).text


async def test_the_frameworks_own_errors_are_problems_too(client: Client) -> None:
    check_problem(await client.user("GET", "/nowhere"), 404)
    check_problem(await client.user("DELETE", "/jobs"), 405)
    check_problem(await client.user("GET", "/jobs/none"), 404)
    check_problem(await client.user("GET", "/jobs/%00"), 404)
    check_problem(await client.user("GET", "/jobs", params={"state": "odd"}), 422)
    for wrong in ("12", "1e9", "-1.5"):
        problem = check_problem(await client.user("GET", "/jobs", params={"created_before": wrong}), 422)
        assert "2026-01-31T18:00:00Z" in problem["detail"]
    problem = check_problem(await client.user("GET", "/jobs", params={"created_after": "odd"}), 422)
    assert problem["errors"][0]["message"] == "it must be a time with its zone"
    assert problem["errors"][0]["legal"] == "a time with its zone, such as 2026-01-31T18:00:00Z", "not: or null"
    for path, cursors in {"/jobs": ("", "7", "1:2:3", "a:1", f"0:{10**30}", "0:²"), "/audit": ("", "1:2", "-")}.items():
        for cursor in cursors:
            problem = check_problem(await client.user("GET", path, params={"cursor": cursor}), 422)
            assert problem["errors"] == [
                {
                    "field": "cursor",
                    "message": "it is not a cursor of this list",
                    "given": json.dumps(cursor),
                    "legal": "the next_cursor of the previous page, unchanged",
                }
            ]
    check_problem(await client.user("GET", "/workloads/tpy"), 404)


@pytest.mark.slow
async def test_the_same_key_makes_one_job(client: Client) -> None:
    key = {"Idempotency-Key": "k1"}
    sent = [client.user("POST", "/jobs", json={"workload": "toy"}, headers=key) for _ in range(4)]
    responses = await asyncio.gather(*sent)
    assert {response.status_code for response in responses} == {201}
    assert len({response.headers["location"] for response in responses}) == 1
    other = await client.user("POST", "/jobs", json={"workload": "toy", "priority": 1}, headers=key)
    assert check_problem(other, 422)["errors"][0]["field"] == "Idempotency-Key"


async def test_a_repeated_request_finds_its_job_whatever_nodes_and_workloads_are_now(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = {"Idempotency-Key": "k1"}

    async def send(**trainer: int) -> httpx.Response:
        roles = {"trainer": {"count": 1} | trainer, "observer": 1}
        return await client.user("POST", "/jobs", json={"workload": "toy", "roles": roles}, headers=key)

    first = await send(gpus=1)
    await one_trainer(client)
    monkeypatch.setitem(CATALOGUE.workloads, "toy", replace(TOY, cpu_only=frozenset(), busy=frozenset({Role.OBSERVER})))
    again = await send(gpus=1)
    assert (again.status_code, again.json()["id"]) == (201, first.json()["id"])
    for other in (await send(), await send(gpus=1, threads=1)):
        assert check_problem(other, 422)["errors"][0]["field"] == "Idempotency-Key"


async def test_jobs_are_listed_page_by_page(client: Client) -> None:
    made = [(await client.submit(name=f"job {i}"))["id"] for i in range(5)]
    seen: list[str] = []
    params: dict[str, Any] = {"limit": 2, "state": "queued"}
    while True:
        page = (await client.user("GET", "/jobs", params=params)).json()
        seen += [job["id"] for job in page["jobs"]]
        if page["next_cursor"] is None:
            break
        params["cursor"] = page["next_cursor"]
    assert seen == made[::-1]


async def test_the_queue_is_listed_in_the_order_of_placement(client: Client) -> None:
    made = [(await client.submit(priority=priority))["id"] for priority in (0, -5, 10, 0, 10)]
    seen: list[str] = []
    params: dict[str, Any] = {"limit": 2, "state": "queued", "order": "queue"}
    while "cursor" not in params or params["cursor"]:
        page = (await client.user("GET", "/jobs", params=params)).json()
        seen += [job["id"] for job in page["jobs"]]
        params["cursor"] = page["next_cursor"]
    assert seen == [made[place] for place in (2, 4, 0, 3, 1)]


async def test_steering_in_every_state_without_a_gang(client: Client) -> None:
    job = (await client.submit())["id"]
    for verb, state in (("pause", "paused"), ("pause", "paused"), ("resume", "queued"), ("cancel", "cancelled")):
        assert (await client.user("POST", f"/jobs/{job}/{verb}")).json()["state"] == state
    for verb in ("cancel", "pause", "resume"):
        problem = check_problem(await client.user("POST", f"/jobs/{job}/{verb}"), 409)
        assert "cancelled" in problem["detail"]
    again = (await client.user("POST", f"/jobs/{job}/retry")).json()
    assert (again["state"], again["ended_at"]) == ("queued", None)
    check_problem(await client.user("POST", f"/jobs/{job}/retry"), 409)
    check_problem(await client.user("POST", "/jobs/none/cancel"), 404)


async def test_what_can_be_read_of_the_cluster(client: Client) -> None:
    await one_trainer(client)
    await client.submit(roles={"trainer": 9})
    workloads = (await client.user("GET", "/workloads")).json()
    assert workloads["workloads"][0]["params"]["properties"]["steps"]["minimum"] == 1
    assert "sad" in workloads["broken"]
    assert workloads["workloads"][0]["metrics"][1] == {
        "name": "auc",
        "help": "Its score.",
        "unit": "ratio",
        "direction": "higher",
        "reported": {"validation": "validation_auc", "test": "test_auc"},
    }
    (node,) = (await client.user("GET", "/nodes")).json()["nodes"]
    assert node["alive"]
    ready = (await client.user("GET", "/readyz")).json()
    assert ready["status"] == "ready"
    assert ready["volume"]["total"] >= ready["volume"]["free"] > 0
    text = (await client.user("GET", "/metrics")).text
    for line in (
        'rolecall_jobs{state="queued"} 1.0',
        "rolecall_queue_depth 1.0",
        'rolecall_slots{role="trainer"} 2.0',
        'rolecall_slots_free{role="trainer"} 2.0',
        'rolecall_nodes{role="trainer"} 1.0',
        "rolecall_placement_seconds_count 0.0",
    ):
        assert line in text.splitlines()
    schema = (await client.user("GET", "/openapi.json")).json()
    assert schema["components"]["securitySchemes"]


async def test_the_error_about_an_attempt_names_those_that_a_job_has(client: Client) -> None:
    node = await one_trainer(client)
    job = (await client.submit(roles=ONE_TRAINER))["id"]

    async def refusals(job: str) -> set[str]:
        calls = [client.user("GET", f"/jobs/{job}/{what}?attempt=7") for what in ("metrics", "logs")]
        return {check_problem(await call, 404)["detail"] for call in calls}

    (worker,) = await node.workers()
    assert await refusals(job) == {f"job {job} has no attempt 7; its only attempt is 1"}
    await node.say(worker, WorkerState.FAILED, failure=failure())
    await client.until(job, "placed", also=lambda one: one["attempt"] == 2)
    assert await refusals(job) == {f"job {job} has no attempt 7; valid: 1 to 2"}
    waiting = (await client.submit(roles={"parameter-server": 0, "trainer": 4}))["id"]
    assert await refusals(waiting) == {f"job {waiting} has no attempt 7; it has none yet"}


async def test_logs_are_read_and_followed(client: Client) -> None:
    node = await one_trainer(client)
    job = (await client.submit(roles=ONE_TRAINER))["id"]
    (worker,) = await node.workers()
    await node.say(worker, WorkerState.RUNNING)
    assert await node.ship(worker, "log", b"one\ntw") == 6
    assert await node.ship(worker, "log", b"lost", offset=100) == 6
    assert await node.ship(worker, "log", b"two\nthree", offset=4) == 13
    assert (await client.user("GET", f"/jobs/{job}/logs")).text == (
        "[trainer-0] one\n[trainer-0] two\n[trainer-0] three\n"
    )
    check_problem(await client.user("GET", f"/jobs/{job}/logs", params={"attempt": 7}), 404)
    followed: list[str] = []
    url = f"/jobs/{job}/logs?follow=true&role=trainer"
    async with client.http.stream("GET", url, headers=bearer(TOKEN)) as stream:
        async for text in stream.aiter_lines():
            followed.append(text)
            if text == "data: [trainer-0] two":
                await node.ship(worker, "log", b"!\nend", offset=13)
                await node.say(worker, WorkerState.SUCCEEDED, exit_code=0)
    data = [text.removeprefix("data: ") for text in followed if text.startswith("data")]
    assert data == [f"[trainer-0] {word}" for word in ("one", "two", "three!", "end")] + ["succeeded"]


@pytest.mark.slow
@pytest.mark.parametrize("count", [5])
async def test_old_checkpoints_go_and_kept_ones_stay(client: Client, tmp_path: Path, count: int) -> None:
    node = await one_trainer(client)
    job = (await client.submit(roles=ONE_TRAINER))["id"]
    await node.workers()
    for step in range(1, count + 1):
        assert (await client.checkpoint(job, 1, step, keep=step == 1)).status_code == 201
    assert (await client.checkpoint(job, 1, count)).json() == {"recorded": False}
    async with asyncio.timeout(10):
        while True:
            found = (await client.user("GET", f"/jobs/{job}/checkpoints")).json()["checkpoints"]
            if len(found) == 3:
                break
            await asyncio.sleep(0.05)
    assert [checkpoint["manifest"]["step"] for checkpoint in found] == [5, 4, 1]
    assert {path.parent.name for path in tmp_path.rglob("part")} == {"step-1", "step-4", "step-5"}


async def test_a_full_volume_is_reported_and_survived(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with mounted(tmp_path / "data"):
        clock = ManualClock()
        async with on_master(tmp_path / "data", clock=clock) as client:
            node = await one_trainer(client)
            job = (await client.submit(roles=ONE_TRAINER))["id"]
            await node.workers()
            late = (await client.submit(deadline_s=0.5))["id"]
            with filled(tmp_path / "data"):
                clock.advance(2)  # the deadline passes, and what the master knows of the volume grows old
                detail = check_problem(await client.user("POST", "/jobs", json={"workload": "toy"}), 507)["detail"]
                assert "ROLECALL_DATA" in detail
                check_problem(await client.user("POST", f"/jobs/{late}/cancel"), 507)  # The database itself is full.
                upload = "/attempts/1/blobs/model.bin"
                check_problem(await client.worker("PUT", job, 1, upload, content=bytes(1 << 16)), 507)
                assert (await client.user("GET", f"/jobs/{job}")).json()["state"] == "placed"
                await node.beat()
                for _ in range(3):
                    await client.master.reconciler.reconcile()
                assert (await client.job(late))["state"] == "queued"
            clock.advance(2)
            await client.until(late, "failed")
            assert (await client.submit())["state"] == "queued"
            assert (await client.worker("PUT", job, 1, upload, content=b"abc")).status_code == 201
    warnings = [line for line in caplog.messages if "failed, retrying" in line]
    assert len(warnings) == len(set(warnings)) > 0, "each of them once"
    assert all("free some space" in line for line in warnings)
    assert "Traceback" not in caplog.text

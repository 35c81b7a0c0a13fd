"""Lists of jobs, their labels and changes, and dry runs."""

import json
from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from rolecall.spec.access import Scope
from rolecall.spec.role import Role

from .harness import ONE_TRAINER, TOKEN, Client, Node, make_node, make_token, on_master, one_trainer
from .test_api import check_problem

LABELS = {"team": "vision", "example.com/stage": "a"}


async def ids(client: Client, query: str, token: str | None = None) -> list[str]:
    """The names of the jobs that this query lists."""
    answer = await (client.call(token, "GET", f"/jobs?{query}") if token else client.user("GET", f"/jobs?{query}"))
    assert answer.status_code == 200, answer.text
    return [job["name"] for job in answer.json()["jobs"]]


async def test_lists_have_the_jobs_that_meet_all_conditions(client: Client) -> None:
    alice = await make_token(client, "alice", Scope.SUBMIT)
    await client.submit(name="First run", labels=LABELS)
    await client.submit(name="second_run", labels={"team": "text"})
    body = {"workload": "toy", "name": "hers", "labels": {"team": "vision"}}
    third = (await client.call(alice, "POST", "/jobs", json=body)).json()
    await client.user("POST", f"/jobs/{third['id']}/cancel")
    before = (datetime.now(UTC) - timedelta(hours=1)).isoformat().replace("+00:00", "Z")
    for query, names in {
        "": ["hers", "second_run", "First run"],
        "state=cancelled": ["hers"],
        "state=cancelled&state=queued&limit=2": ["hers", "second_run"],
        "workload=toy&name=RUN": ["second_run", "First run"],
        "name=d_r": ["second_run"],
        "name=%25": [],
        "owner=alice": ["hers"],
        "label=team": ["hers", "second_run", "First run"],
        "label=team=vision": ["hers", "First run"],
        "label=team=vision&label=example.com/stage=a": ["First run"],
        "label=team=vision&label=team=text": [],
        "label=team=": [],
        f"created_after={before}": ["hers", "second_run", "First run"],
        f"created_before={before}": [],
    }.items():
        assert await ids(client, query) == names, query
    assert await ids(client, "label=team", alice) == ["hers"]
    assert await ids(client, "owner=admin", alice) == []
    (shown,) = (await client.user("GET", "/jobs?owner=alice")).json()["jobs"]
    assert shown["labels"] == {"team": "vision"}
    assert {"attempts", "params", "result"}.isdisjoint(shown)


async def test_lists_have_short_reasons(client: Client) -> None:
    node = await one_trainer(client)
    job = (await client.submit(roles=ONE_TRAINER, max_restarts=0))["id"]
    await node.workers()
    reason = "the first line\n" + "x" * 100_000
    async with client.master.database.write() as connection:
        await connection.exec_driver_sql("UPDATE jobs SET reason = ?", (reason,))
    (shown,) = (await client.user("GET", "/jobs")).json()["jobs"]
    assert shown["reason"] == "the first line"
    assert (await client.job(job))["reason"] == reason


LEGAL_LABELS: list[dict[str, str]] = [LABELS, {"a" * 63: "b" * 63}, {"A.b_c-d": ""}, {f"{'a.' * 100}b/c": "1"}]
ILLEGAL_LABELS: list[tuple[dict[str, Any], str]] = [
    ({"-a": "b"}, "labels.-a"),
    ({"a/b/c": "d"}, "labels.a/b/c"),
    ({"A.b/c": "d"}, "labels.A.b/c"),
    ({"a" * 64: "b"}, "labels." + "a" * 64),
    ({"a": "b c"}, "labels.a"),
    ({"a": "b" * 64}, "labels.a"),
    ({"a": 1}, "labels.a"),
    ({"a\n": "b"}, "labels.a\n"),
    ({f"l{i}": "" for i in range(33)}, "labels"),
]


async def test_labels_follow_the_rules_of_kubernetes(client: Client) -> None:
    for given in LEGAL_LABELS:
        assert (await client.submit(labels=given))["labels"] == given
    job = (await client.submit())["id"]
    for given, field in ILLEGAL_LABELS:
        for method, path in (("POST", "/jobs"), ("PATCH", f"/jobs/{job}")):
            body = {"labels": given} | ({"workload": "toy"} if method == "POST" else {})
            (error,) = check_problem(await client.user(method, path, json=body), 422)["errors"]
            assert error["field"] == field


async def test_changes_do_not_exceed_the_number_of_labels_of_a_job(client: Client) -> None:
    full = {f"l{number}": "" for number in range(32)}
    job = (await client.submit(labels=full))["id"]
    (error,) = check_problem(await client.user("PATCH", f"/jobs/{job}", json={"labels": {"one-more": ""}}), 422)[
        "errors"
    ]
    assert (error["field"], error["message"]) == ("labels", "the job would have 33 labels; at most 32 are allowed")
    assert (await client.job(job))["labels"] == full
    for possible in ({"l0": "other"}, {"l0": None, "one-more": ""}, {"one-more": None}):
        assert (await client.user("PATCH", f"/jobs/{job}", json={"labels": possible})).status_code == 200
    assert len((await client.job(job))["labels"]) == 31


async def test_a_job_is_changed_by_its_owner_or_an_admin(client: Client) -> None:
    alice, bob = await make_token(client, "alice", Scope.SUBMIT), await make_token(client, "bob", Scope.SUBMIT)
    made = await client.call(alice, "POST", "/jobs", json={"workload": "toy", "name": "old", "labels": LABELS})
    job = made.json()["id"]
    merge = {"Content-Type": "application/merge-patch+json"}
    patch: dict[str, Any] = {"priority": 7, "labels": {"team": None, "run": "2", "none": None}}
    changed = (await client.call(alice, "PATCH", f"/jobs/{job}", json=patch, headers=merge)).json()
    assert (changed["name"], changed["priority"]) == ("old", 7)
    assert changed["labels"] == {"example.com/stage": "a", "run": "2"}
    again = await client.user("PATCH", f"/jobs/{job}", json={"name": None, "labels": {"run": "2"}, "priority": 7})
    assert again.json()["name"] == ""
    unchanged = await client.user("PATCH", f"/jobs/{job}", json={"priority": 7, "labels": {}})
    assert unchanged.json() == again.json()
    cleared = await client.call(alice, "PATCH", f"/jobs/{job}", json={"labels": None, "priority": None})
    assert (cleared.json()["labels"], cleared.json()["priority"]) == ({}, 0)
    check_problem(await client.call(bob, "PATCH", f"/jobs/{job}", json={}), 404)
    refused: list[dict[str, Any]] = [
        {"priority": 101},
        {"priority": True},
        {"name": "a\0b"},
        {"name": "x" * 121},
        {"params": {}},
    ]
    for wrong in refused:
        check_problem(await client.user("PATCH", f"/jobs/{job}", json=wrong), 422)
    events = (await client.user("GET", f"/jobs/{job}/events")).json()["events"]
    assert [one["message"] for one in events if one["kind"] == "change"] == [
        "priority changed from 0 to 7 by alice",
        "label run set to '2' by alice",
        "label team removed by alice",
        "name changed from 'old' to '' by admin",
        "priority changed from 7 to 0 by alice",
        "label example.com/stage removed by alice",
        "label run removed by alice",
    ]
    entries = (await client.user("GET", "/audit")).json()["entries"]
    assert ("alice", "PATCH /jobs/{job}", job, 200) in {
        (one["token"], one["action"], one["target"], one["outcome"]) for one in entries
    }


async def test_a_job_with_a_new_priority_goes_first(client: Client) -> None:
    first, second = [(await client.submit(roles=ONE_TRAINER))["id"] for _ in range(2)]
    assert (await client.user("PATCH", f"/jobs/{second}", json={"priority": 1})).is_success
    node = Node(client, make_node("trainer-0", Role.TRAINER, slots=1))
    await node.register()
    (worker,) = await node.workers()
    assert worker.launch.job == second != first


async def test_a_dry_run_says_who_would_sit_where_and_creates_nothing(client: Client) -> None:
    body: dict[str, Any] = {"workload": "toy", "roles": ONE_TRAINER, "labels": LABELS}

    async def plan(**values: Any) -> dict[str, Any]:
        answer = await client.user("POST", "/jobs?dry_run=true", json=body | values)
        assert answer.status_code == 200, answer.text
        return answer.json()

    waits = await plan()
    assert (waits["workers"], waits["labels"]) == ([], LABELS)
    assert waits["waiting_for"].startswith("waiting for 1 trainer slot: the cluster has 0")
    node = await one_trainer(client, slots=1)
    placed = await plan()
    assert placed["waiting_for"] is None
    assert placed["params"] == {"steps": 10, "learning_rate": 0.1}
    (worker,) = placed["workers"]
    assert (worker["node"], worker["role"], worker["rank"], worker["gpu"]) == ("trainer-0", "trainer", 0, None)
    assert (await client.user("GET", "/jobs")).json()["jobs"] == []
    await client.submit(roles=ONE_TRAINER)
    await node.workers()
    assert (await plan())["waiting_for"] == "waiting for 1 trainer slot: 0 of 1 are free"
    wrong = await client.user("POST", "/jobs?dry_run=true", json=body | {"params": {"steps": 0}})
    assert check_problem(wrong, 422)["errors"][0]["field"] == "params.steps"


async def test_a_dry_run_waits_behind_jobs_that_go_first_and_for_the_limits_of_its_token(tmp_path: Path) -> None:
    async with on_master(tmp_path, backfill_window_s=0.0) as client:
        await one_trainer(client, slots=2)
        small, large = {"parameter-server": 0, "trainer": 1}, {"parameter-server": 0, "trainer": 2}
        body = {"workload": "toy", "roles": small}
        blocker = (await client.submit(roles=small))["id"]
        await client.until(blocker, "placed")
        big = (await client.submit(roles=large))["id"]
        await client.until(big, "queued", also=lambda job: job["waiting_for"])
        behind = (await client.user("POST", "/jobs?dry_run=true", json=body)).json()
        assert behind["waiting_for"].startswith(f"held back for job {big}")
        before = (await client.user("POST", "/jobs?dry_run=true", json=body | {"priority": 1})).json()
        assert len(before["workers"]) == 1
        token = await make_token(client, "alice", Scope.SUBMIT, max_queued=0)
        check_problem(await client.call(token, "POST", "/jobs?dry_run=true", json=body), 429)
        reader = await make_token(client, "reader", Scope.READ)
        check_problem(await client.call(reader, "POST", "/jobs?dry_run=true", json=body), 403)


@pytest.mark.parametrize("given", [{}, {"labels": {}}])
async def test_a_key_finds_a_job_without_labels_however_it_was_sent(client: Client, given: dict[str, Any]) -> None:
    key = {"Idempotency-Key": "k"}
    first = await client.user("POST", "/jobs", json={"workload": "toy"}, headers=key)
    again = await client.user("POST", "/jobs", json={"workload": "toy"} | given, headers=key)
    assert again.json()["id"] == first.json()["id"]
    other = await client.user("POST", "/jobs", json={"workload": "toy", "labels": LABELS}, headers=key)
    check_problem(other, 422)


async def test_unknown_query_parameters_are_refused_with_the_legal_ones(client: Client) -> None:
    for method, path, name, near in (
        ("POST", "/jobs?dryrun=true", "dryrun", "dry_run"),
        ("GET", "/jobs?stat=queued", "stat", "state"),
        ("GET", "/workloads?x=1", "x", "none"),
    ):
        problem = check_problem(await client.user(method, path, json={"workload": "toy"}), 422)
        assert (problem["errors"][0]["field"], problem["type"]) == (name, "urn:rolecall:problem:invalid-request")
        assert near in problem["errors"][0]["legal"]
    assert (await client.user("GET", "/jobs")).json()["jobs"] == []
    (error,) = check_problem(await client.user("GET", "/jobs?state=odd"), 422)["errors"]
    assert (error["field"], "queued" in error["legal"]) == ("state", True)
    (error,) = check_problem(await client.user("GET", "/jobs?limit=0"), 422)["errors"]
    assert (error["field"], error["legal"]) == ("limit", "an integer from 1 to 200")


async def test_events_are_followed_and_continued(client: Client) -> None:
    job = (await client.submit())["id"]

    async def follow(**headers: str) -> list[str]:
        lines: list[str] = []
        given = {"Authorization": f"Bearer {TOKEN}"} | headers
        async with client.http.stream("GET", f"/jobs/{job}/events?follow=true", headers=given) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            async for line in answer.aiter_lines():
                lines.append(line)
                if "submitted" in line:
                    await client.user("POST", f"/jobs/{job}/cancel")
        return [line for line in lines if line]

    whole = await follow()
    ids = [line.removeprefix("id: ") for line in whole if line.startswith("id: ")]
    assert len(ids) >= 2
    assert whole[-2:] == ["event: end", "data: cancelled"]
    assert await follow(**{"Last-Event-ID": ids[-2]}) == whole[-4:]
    wrong = await client.user("GET", f"/jobs/{job}/events?follow=true", headers={"Last-Event-ID": "x"})
    check_problem(wrong, 422)


async def test_artifacts_have_ranges_and_checkpoints_are_archives(client: Client) -> None:
    node = await one_trainer(client)
    job = (await client.submit(roles=ONE_TRAINER))["id"]
    await node.workers()
    stored = (await client.worker("PUT", job, 1, "/attempts/1/blobs/model", content=b"0123456789")).json()
    await client.worker("POST", job, 1, "/attempts/1/artifacts", json={**stored, "name": "model"})
    assert (await client.checkpoint(job, 1, 7)).is_success
    etag = f'"{stored["sha256"]}"'

    async def get(**headers: str) -> tuple[int, bytes, str | None]:
        answer = await client.user("GET", f"/jobs/{job}/artifacts/model", headers=headers)
        assert answer.headers.get("etag", etag) == etag
        return answer.status_code, answer.content, answer.headers.get("content-range")

    whole = await client.user("GET", f"/jobs/{job}/artifacts/model")
    assert whole.status_code == 200, whole.text
    assert await get() == (200, b"0123456789", None)
    assert await get(Range="bytes=2-4") == (206, b"234", "bytes 2-4/10")
    assert await get(Range="bytes=-3") == (206, b"789", "bytes 7-9/10")
    assert await get(Range="bytes=8-99") == (206, b"89", "bytes 8-9/10")
    assert await get(Range="bytes=0-1,3-4") == (200, b"0123456789", None)
    assert await get(**{"Range": "bytes=2-4", "If-Range": '"another"'}) == (200, b"0123456789", None)
    assert await get(**{"If-None-Match": etag}) == (304, b"", None)
    assert (await get(Range="bytes=10-"))[::2] == (416, "bytes */10")
    for path in ("artifacts/model", "checkpoints/7"):
        full, head = [await client.user(method, f"/jobs/{job}/{path}") for method in ("GET", "HEAD")]
        assert (head.status_code, head.content) == (200, b"")
        names = ("content-length", "content-type", "content-disposition", "etag", "accept-ranges", "x-content-sha256")
        assert [head.headers.get(name) for name in names] == [full.headers.get(name) for name in names]
    head = await client.user("HEAD", f"/jobs/{job}/artifacts/model", headers={"Range": "bytes=20-"})
    assert (head.status_code, head.headers["content-length"]) == (200, "10"), "ranges are only for GET"
    head = await client.user("HEAD", f"/jobs/{job}/artifacts/model", headers={"If-None-Match": etag})
    assert (head.status_code, head.headers["etag"]) == (304, etag)
    assert (await client.user("HEAD", f"/jobs/{job}/artifacts/other")).status_code == 404
    archive = await client.user("GET", f"/jobs/{job}/checkpoints/7")
    with ZipFile(BytesIO(archive.content)) as opened:
        assert opened.testzip() is None
        manifest = json.loads(opened.read("manifest.json"))
        assert (manifest["step"], opened.read(manifest["parts"][0]["blob"])) == (7, b"weights at 7")
    problem = check_problem(await client.user("GET", f"/jobs/{job}/checkpoints/8"), 404)
    assert problem["detail"].endswith("there are: 7")

"""Tokens: which scope opens which route, and how they are made, rotated, revoked and derived."""

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from rolecall.master.access import Access, Known, Principal, Scrapes, built_in
from rolecall.master.access_sync import AccessSync
from rolecall.master.clock import Clock, utc_now
from rolecall.master.program import Program
from rolecall.master.server import create_app
from rolecall.master.store import tokens
from rolecall.master.store.database import Database, sqlite_url
from rolecall.master.weak_settings import weaknesses
from rolecall.spec.access import Scope, TokenRequest, TokenUpdate
from rolecall.spec.finding import Level
from rolecall.spec.state import WorkerState
from rolecall.spec.token import attempt_token, digest_of

from .harness import (
    CATALOGUE,
    METRICS_TOKEN,
    NODE_TOKEN,
    ONE_TRAINER,
    TOKEN,
    Client,
    bearer,
    files,
    make_settings,
    make_token,
    on_master,
    one_trainer,
)

R, S, A, M, N = Scope
USERS = {R, S, A}
NOBODY: set[Scope] = set()  # open to the attempt's own token, or to all
OPEN = {("GET", "/healthz"), ("GET", "/ui/login"), ("POST", "/ui/login"), ("GET", "/ui/static/{path:path}")}
ROUTES: dict[tuple[str, str], set[Scope]] = {
    ("GET", "/"): USERS,
    ("GET", "/ui"): USERS,
    ("GET", "/ui/jobs"): USERS,
    ("GET", "/ui/overview"): USERS,
    ("GET", "/ui/submit"): USERS,
    ("GET", "/ui/compare"): USERS,
    ("GET", "/ui/jobs/{job}"): USERS,
    ("GET", "/ui/jobs/{job}/picture"): USERS,
    ("GET", "/ui/jobs/{job}/status"): USERS,
    ("POST", "/ui/logout"): USERS,
    ("GET", "/docs"): USERS,
    ("GET", "/docs/own.css"): USERS,
    ("GET", "/docs/start.js"): USERS,
    ("GET", "/docs/swagger-ui.css"): USERS,
    ("GET", "/docs/swagger-ui-bundle.js"): USERS,
    ("GET", "/openapi.json"): USERS,
    ("GET", "/internal/openapi.json"): {N},
    ("GET", "/workloads"): USERS,
    ("GET", "/workloads/{name}"): USERS,
    ("GET", "/nodes"): USERS,
    ("GET", "/nodes/{node}/preflight"): USERS,
    ("GET", "/readyz"): USERS,
    ("GET", "/metrics"): {M, R, A},
    ("GET", "/findings"): {A},
    ("GET", "/jobs"): USERS,
    ("POST", "/jobs"): {S, A},
    ("GET", "/jobs/{job}"): USERS,
    ("PATCH", "/jobs/{job}"): {S, A},
    ("GET", "/jobs/{job}/logs"): USERS,
    ("GET", "/jobs/{job}/events"): USERS,
    ("GET", "/jobs/{job}/metrics"): USERS,
    ("GET", "/jobs/{job}/checkpoints"): USERS,
    ("GET", "/jobs/{job}/checkpoints/{step}"): USERS,
    ("HEAD", "/jobs/{job}/checkpoints/{step}"): USERS,
    ("GET", "/jobs/{job}/artifacts"): USERS,
    ("GET", "/jobs/{job}/artifacts/{name}"): USERS,
    ("HEAD", "/jobs/{job}/artifacts/{name}"): USERS,
    ("POST", "/jobs/{job}/cancel"): {S, A},
    ("GET", "/jobs/{job}/timeline"): USERS,
    ("POST", "/jobs/{job}/stacks"): {S, A},
    ("POST", "/jobs/{job}/profile"): {S, A},
    ("POST", "/jobs/{job}/pause"): {S, A},
    ("POST", "/jobs/{job}/resume"): {S, A},
    ("POST", "/jobs/{job}/retry"): {S, A},
    ("DELETE", "/jobs/{job}"): {S, A},
    ("POST", "/jobs/prune"): {S, A},
    ("GET", "/tokens"): {A},
    ("POST", "/tokens"): {A},
    ("PATCH", "/tokens/{name}"): {A},
    ("POST", "/tokens/{name}/rotate"): {A},
    ("DELETE", "/tokens/{name}"): {A},
    ("GET", "/audit"): {A},
    ("GET", "/webhook-secret"): {S, A},
    ("POST", "/internal/nodes"): {N},
    ("POST", "/internal/nodes/{name}/heartbeat"): {N},
    ("GET", "/internal/nodes/{name}/surroundings"): {N},
    ("DELETE", "/internal/nodes/{name}"): {N},
    ("PUT", "/internal/jobs/{job}/attempts/{attempt}/ranks/{rank}/streams/{kind}"): {N},
    ("PUT", "/internal/jobs/{job}/attempts/{attempt}/ranks/{rank}/inspections/{number}"): {N},
    ("PUT", "/internal/jobs/{job}/attempts/{attempt}/blobs/{name:path}"): NOBODY,
    ("GET", "/internal/jobs/{job}/blobs/{number}/{name:path}"): NOBODY,
    ("POST", "/internal/jobs/{job}/attempts/{attempt}/checkpoints"): NOBODY,
    ("POST", "/internal/jobs/{job}/attempts/{attempt}/artifacts"): NOBODY,
}


def routes(served: Iterable[Any]) -> set[tuple[str, str]]:
    """Every method and path that is served; newer versions of FastAPI keep the routers that an application includes."""
    found: set[tuple[str, str]] = set()
    for route in served:
        if hasattr(route, "original_router"):
            found |= routes(route.original_router.routes)
        else:
            found |= {(method, route.path) for method in getattr(route, "methods", None) or {"ANY"}}
    return found


def test_the_table_has_every_route(tmp_path: Path) -> None:
    assert routes(create_app(Program(make_settings(tmp_path), CATALOGUE)).routes) == ROUTES.keys() | OPEN


async def test_metrics_that_were_read_with_an_admin_token_are_a_finding(tmp_path: Path) -> None:
    async with on_master(tmp_path, metrics_token=METRICS_TOKEN) as client:

        async def found() -> dict[str, Any]:
            findings = (await client.user("GET", "/findings")).json()["findings"]
            return next(one for one in findings if one["check"] == "metrics token")

        assert (await client.call(METRICS_TOKEN, "GET", "/metrics")).is_success
        assert (await found())["level"] == "ok"
        boss = await make_token(client, "boss", Scope.ADMIN)
        for token in (TOKEN, boss, boss):
            assert (await client.call(token, "GET", "/metrics")).is_success
        said = await found()
        assert said["level"] == "warning"
        assert "since this master's start, 3 calls of /metrics used an admin token" in said["message"]
        assert "boss from 127.0.0.1" in said["message"]
        assert said["remedy"] == "give Prometheus the token of ROLECALL_METRICS_TOKEN, and nothing else"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "none was given"),
        ({"Authorization": TOKEN}, "write it as 'Authorization: Bearer TOKEN'"),
        ({"Authorization": "Bearer unknown"}, "the one given is not valid"),
    ],
)
async def test_a_refused_caller_learns_what_is_wrong_with_the_token(
    client: Client, given: dict[str, str], said: str
) -> None:
    answer = await client.http.get("/jobs", headers=given)
    assert (answer.status_code, answer.json()["detail"].endswith(f"; {said}")) == (401, True), answer.text


@pytest.mark.slow
async def test_every_route_takes_the_scopes_of_the_table_and_no_other(client: Client) -> None:
    job = (await client.submit())["id"]
    filled = {"job": job, "attempt": 1, "rank": 0, "kind": "log", "number": 1, "name": "x", "node": "x", "step": 1}
    secrets = {scope: await make_token(client, f"only-{scope}", scope) for scope in Scope}
    for (method, path), allowed in ROUTES.items():
        where = path.replace(":path", "").format_map(filled)
        for scope, secret in secrets.items():
            answer = await client.call(secret, method, where)
            # What no scope opens takes the token of an attempt; users are barred from it as from all of /internal.
            expected = 403 if allowed or scope is not Scope.NODE else 401
            assert (answer.status_code not in {401, 403}) == (scope in allowed), (scope, method, path, answer.text)
            if scope not in allowed:
                assert answer.status_code == expected, (scope, method, path)
                assert answer.headers["content-type"] == "application/problem+json"
            if answer.status_code == 403 and method != "HEAD":
                assert all(name in answer.json()["detail"] for name in allowed), answer.text
            if scope is S and "{job}" in path and allowed & USERS:
                assert answer.status_code == 404, "the job is another's"
        for wrong in (None, "rc_wrong"):
            answer = await client.call(wrong, method, where)
            if wrong is None and (path == "/" or path.startswith("/ui")):
                assert answer.headers["location"].startswith("/ui/login"), "browsers log in"
                continue
            assert answer.status_code == 401, (wrong, method, path, answer.text)
            assert answer.headers["www-authenticate"].startswith(("Bearer", "Basic"))
    for wrong in (TOKEN[:-1].encode(), f"{TOKEN}\N{LATIN SMALL LETTER E WITH ACUTE}".encode(), b"\xff"):
        answer = await client.http.get("/jobs", headers={b"Authorization": b"Bearer " + wrong})
        assert answer.status_code == 401, wrong
    assert (await client.http.get("/healthz")).json() == {"status": "ok"}


async def test_a_token_that_is_refused_is_named_with_all_its_scopes(client: Client) -> None:
    secret = await make_token(client, "several", Scope.READ, Scope.METRICS)
    refused = await client.call(secret, "GET", "/audit")
    detail = "this call needs the scope admin; the token several has metrics and read"
    assert (refused.status_code, refused.json()["detail"]) == (403, detail)


async def test_built_in_tokens_open_what_their_names_say(tmp_path: Path) -> None:
    async with on_master(tmp_path, metrics_token=METRICS_TOKEN) as client:
        assert (await client.call(METRICS_TOKEN, "GET", "/metrics")).status_code == 200
        assert (await client.call(METRICS_TOKEN, "GET", "/nodes")).status_code == 403
        assert (await client.call(NODE_TOKEN, "GET", "/metrics")).status_code == 403
        listed = (await client.user("GET", "/tokens")).json()["tokens"]
        assert [(one["name"], one["scopes"], one["built_in"]) for one in listed] == [
            ("admin", ["admin"], True),
            ("node", ["node"], True),
            ("metrics", ["metrics"], True),
        ]
        for method, path in (("DELETE", ""), ("PATCH", ""), ("POST", "/rotate")):
            assert (await client.user(method, f"/tokens/admin{path}", json={})).status_code == 409
        refused = await client.user("POST", "/tokens", json={"name": "node", "scopes": ["node"]})
        assert refused.status_code == 409
        nodes = await client.call(TOKEN, "GET", "/nodes")
        assert "started" not in nodes.text


async def test_users_do_not_see_the_id_of_a_nodes_process(client: Client) -> None:
    await one_trainer(client)
    (node,) = (await client.user("GET", "/nodes")).json()["nodes"]
    assert node["alive"]
    assert "started" not in node["spec"]
    assert "trainer-0-first" not in (await client.user("GET", "/nodes")).text


async def test_a_token_is_rotated_and_revoked_without_a_restart(client: Client, tmp_path: Path) -> None:
    async def valid(secrets: list[str]) -> list[bool]:
        return [(await client.call(one, "GET", "/jobs")).is_success for one in secrets]

    first = await make_token(client, "alice", Scope.SUBMIT)
    assert first.startswith("rc_")
    assert len(first) >= 40
    second, third = [
        (await client.user("POST", "/tokens/alice/rotate", json={"overlap_s": 3600})).json()["secret"] for _ in range(2)
    ]
    assert await valid([first, second, third]) == [False, True, True], "two at once, not more"
    listed = (await client.user("GET", "/tokens")).json()["tokens"]
    assert [one["secrets"] for one in listed if one["name"] == "alice"] == [2]
    assert not any(secret in str(listed) for secret in (first, second, third))
    fourth = (await client.user("POST", "/tokens/alice/rotate", json={})).json()["secret"]
    assert await valid([second, third, fourth]) == [False, False, True]
    fifth = (await client.user("POST", "/tokens/alice/rotate", json={"overlap_s": 0.2})).json()["secret"]
    async with asyncio.timeout(5):
        while (await valid([fourth]))[0]:
            await asyncio.sleep(0.05)
    assert (await client.user("DELETE", "/tokens/alice")).status_code == 204
    assert await valid([fifth]) == [False]
    assert (await client.user("DELETE", "/tokens/alice")).status_code == 404
    assert (await client.user("POST", "/tokens/alice/rotate", json={})).status_code == 404
    stored = b"".join(path.read_bytes() for path in files(tmp_path, "rolecall.db*"))
    assert digest_of(fifth).encode() in stored
    assert not any(secret.encode() in stored for secret in (first, second, third, fourth, fifth))


async def test_tokens_and_the_signing_key_outlive_a_restart(tmp_path: Path) -> None:
    kept: list[str] = []

    async with on_master(tmp_path) as client:
        kept.extend([await make_token(client, "alice", Scope.READ), client.master.signing_key])
    async with on_master(tmp_path) as client:
        assert (await client.call(kept[0], "GET", "/jobs")).status_code == 200
        assert client.master.signing_key == kept[1]
        assert len(bytes.fromhex(kept[1])) == 32


async def test_wrong_requests_for_tokens_are_refused(client: Client) -> None:
    await make_token(client, "alice", Scope.READ)
    refused: list[tuple[dict[str, Any], int]] = [
        ({"name": "alice", "scopes": ["read"]}, 409),
        ({"name": "Alice!", "scopes": ["read"]}, 422),
        ({"name": "bob", "scopes": []}, 422),
        ({"name": "bob", "scopes": ["root"]}, 422),
        ({"name": "bob", "scopes": ["read"], "max_queue": 1}, 422),
        ({"name": "bob", "scopes": ["read"], "expires_at": "2030-01-01T00:00:00"}, 422),
        ({"name": "bob", "scopes": ["read"], "max_slots": -1}, 422),
    ]
    for body, status in refused:
        assert (await client.user("POST", "/tokens", json=body)).status_code == status, body
    late = await client.user("POST", "/tokens/alice/rotate", json={"overlap_s": 1e9})
    assert late.status_code == 422


def test_an_expired_token_opens_nothing() -> None:
    secret, now = "rc_secret", datetime.now(UTC)
    principal = Principal("alice", frozenset({Scope.READ}))
    access = Access(built_in("a" * 16, "n" * 16, None), utc_now)
    access.replace([Known(digest_of(secret), principal, now + timedelta(hours=1))])
    assert access.principal(secret) == principal
    assert access.principal("a" * 16) is not None
    access.replace([Known(digest_of(secret), principal, now)])
    assert access.principal(secret) is None
    with pytest.raises(ValidationError, match="forbidden"):
        TokenUpdate.model_validate({"max_queue": 1})


@pytest.mark.slow
async def test_another_master_on_the_database_learns_of_a_change(tmp_path: Path) -> None:
    database = Database(sqlite_url(tmp_path / "one.db"))
    await database.migrate()
    access = Access([], utc_now)
    sync = AccessSync(database, access, Clock())
    loop = asyncio.create_task(sync.run())
    secret = "rc_secret"
    request = TokenRequest(name="alice", scopes=frozenset({Scope.READ}))
    try:
        async with database.write() as connection:
            await tokens.add(connection, request, digest_of(secret), "admin", datetime.now(UTC))
        async with asyncio.timeout(10):
            while access.principal(secret) is None:
                await asyncio.sleep(0.05)
            async with database.write() as connection:
                await tokens.remove(connection, "alice")
            while access.principal(secret) is not None:
                await asyncio.sleep(0.05)
    finally:
        loop.cancel()
        await asyncio.wait([loop])
        await database.close()


async def test_the_time_of_use_is_written_once_a_minute(client: Client) -> None:
    async def used() -> str | None:
        await client.master.sync.refresh()
        await client.master.sync.write()
        found = (await client.user("GET", "/tokens")).json()["tokens"]
        return next(one["last_used_at"] for one in found if one["name"] == "alice")

    secret = await make_token(client, "alice", Scope.READ)
    assert await used() is None
    await client.call(secret, "GET", "/jobs")
    first = await used()
    assert first is not None
    for _ in range(3):
        await client.call(secret, "GET", "/jobs")
        assert await used() == first


async def test_an_attempts_token_opens_its_blobs_while_it_holds_slots(client: Client) -> None:
    node = await one_trainer(client)
    job = (await client.submit(roles=ONE_TRAINER))["id"]
    (worker,) = await node.workers()
    key = client.master.signing_key
    assert worker.launch.token == attempt_token(key, job, 1) != attempt_token(NODE_TOKEN, job, 1)
    assert worker.launch.token not in repr(worker)
    await client.worker("PUT", job, 1, "/attempts/1/blobs/part", content=b"x")
    blob = f"/internal/jobs/{job}/blobs/1/part"
    assert (await client.call(worker.launch.token, "GET", blob)).content == b"x"
    for wrong in (attempt_token(NODE_TOKEN, job, 1), attempt_token(key, "other", 1), NODE_TOKEN):
        assert (await client.call(wrong, "GET", blob)).status_code == 401
    # No attempt gets the token of another one; of those that are over its answer says so.
    assert (await client.call(attempt_token(key, job, 2), "GET", blob)).status_code == 409
    assert (await client.call(TOKEN, "GET", blob)).status_code == 403
    await node.say(worker, WorkerState.RUNNING)
    await node.say(worker, WorkerState.SUCCEEDED)
    await client.until(job, "succeeded")
    assert (await client.call(worker.launch.token, "GET", blob)).status_code == 409
    unknown = await client.call(worker.launch.token, "GET", "/internal/jobs/none/blobs/1/part")
    assert unknown.status_code == 401


async def test_the_nodes_token_is_rotated_node_by_node(client: Client) -> None:
    node = await one_trainer(client)
    job = (await client.submit(roles=ONE_TRAINER))["id"]
    (worker,) = await node.workers()
    fresh = await make_token(client, "node-2", Scope.NODE)
    beat: dict[str, Any] = {"started": node.spec.started, "workers": []}
    answer = await client.call(fresh, "POST", "/internal/nodes/trainer-0/heartbeat", json=beat)
    assert answer.json()["workers"][0]["launch"]["token"] == worker.launch.token, "nothing hangs on a node's token"
    assert (await client.job(job))["state"] == "placed"
    await client.user("DELETE", "/tokens/node-2")
    assert (await client.call(fresh, "POST", "/internal/nodes/trainer-0/heartbeat", json=beat)).status_code == 401


def test_weak_settings_are_found(tmp_path: Path) -> None:
    weak = list(weaknesses(make_settings(tmp_path), [Path("/run/token")], Scrapes()))
    assert [finding.level for finding in weak] == [Level.WARNING] * 5
    assert ["ROLECALL_TOKEN" in weak[0].message, "ROLECALL_NODE_TOKEN" in weak[1].message] == [True, True]
    assert "ROLECALL_METRICS_TOKEN is not set" in weak[2].message
    assert "/run/token" in weak[3].message
    assert "ROLECALL_KEEP_DAYS" in weak[4].remedy
    assert "the disk of the master's data folder can fill up" in weak[4].message
    strong = make_settings(tmp_path, keep_days=30).model_copy(
        update={
            name: type(make_settings(tmp_path).token)(name * 8) for name in ("token", "node_token", "metrics_token")
        }
    )
    assert {finding.level for finding in weaknesses(strong, [], Scrapes())} == {Level.OK}


async def test_bearer_is_all_that_is_asked_of_a_call(client: Client) -> None:
    basic = await client.http.get("/jobs", headers={"Authorization": f"Basic {TOKEN}"})
    assert basic.status_code == 401
    secret = await make_token(client, "alice", Scope.READ)
    assert "swagger-ui" in (await client.http.get("/docs", auth=("me", secret))).text
    assert (await client.http.get("/jobs", headers=bearer(secret))).status_code == 200

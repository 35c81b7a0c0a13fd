# pyright: standard
"""The statuses with which each call can be refused: those in the OpenAPI document, and no others.

The answers of all other tests with a master of the harness are compared with the document, too, see `harness.serving`.
"""

import sqlite3
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from pprint import pformat
from typing import Any, NamedTuple

import pytest
from sqlalchemy.exc import DataError, OperationalError
from tests.master.harness import (
    NODE_TOKEN,
    ONE_TRAINER,
    TOKEN,
    Client,
    Node,
    bearer,
    line,
    make_node,
    make_settings,
    make_token,
    one_trainer,
    openapi_document,
    serving,
)

from rolecall.edge.connection_table import LimitExceeded
from rolecall.master.api import gate
from rolecall.master.api.parameters import refuse_unknown_parameters
from rolecall.spec.access import Scope
from rolecall.spec.role import Role
from rolecall.spec.state import WorkerState
from rolecall.spec.token import attempt_token

Operation = tuple[str, str]
OPERATIONS: dict[Operation, dict[str, Any]] = {
    (method, path): one for path, item in openapi_document()["paths"].items() for method, one in item.items()
}
DIGEST = "0" * 64


def statuses(operation: dict[str, Any]) -> set[int]:
    """The errors that the document lists."""
    return {int(status) for status in operation["responses"] if int(status) >= 400}


class Place(NamedTuple):
    """The targets of calls: jobs, a node and a token that exist."""

    done: str
    running: str
    node: Node


@dataclass
class Prober:
    """Makes calls, and remembers how each operation was refused."""

    client: Client
    place: Place
    seen: dict[Operation, set[int]] = field(default_factory=lambda: defaultdict(set))

    async def call(self, operation: Operation, token: str | None = "", path: str = "", **values: Any) -> int:
        """Call an operation at `path`, by default at what exists, with its right token by default; returns the status.

        The body is valid by default, if there is one.
        """
        method, template = operation
        path = path or self.path(template)
        token = self.token(operation) if token == "" else token
        if "requestBody" in OPERATIONS[operation] and not values.keys() & {"content", "json"}:
            values["json"] = BODIES.get(operation, {})
        headers = (bearer(token) if token else {}) | values.pop("headers", {})
        answer = await self.client.http.request(method.upper(), path, headers=headers, **values)
        if answer.status_code >= 400:
            self.seen[operation].add(answer.status_code)
        return answer.status_code

    def path(self, template: str, **given: Any) -> str:
        """The path with names of what exists, or with these."""
        job = self.place.running if template.startswith("/internal/") else self.place.done
        name = "changed" if template.startswith("/tokens") else "toy" if template.startswith("/workloads") else ""
        name = name or ("trainer-0" if "/nodes/" in template else "model.zip")
        known = {"job": job, "name": name, "node": "trainer-0", "step": 7, "attempt": 1, "number": 1, "rank": 0}
        return template.format(**known | {"kind": "log"} | given)

    def token(self, operation: Operation, job: str = "") -> str:
        """The token with which the call is allowed."""
        _, template = operation
        if not template.startswith("/internal/"):
            return TOKEN
        of_node = "/internal/nodes" in template or "/ranks/" in template
        return NODE_TOKEN if of_node else attempt_token(self.client.master.signing_key, job or self.place.running, 1)


BODIES: dict[Operation, Any] = {
    ("post", "/jobs"): {"workload": "toy"},
    ("post", "/jobs/prune"): {"ended_before": "2020-01-01T00:00:00Z", "dry_run": True},
    ("patch", "/jobs/{job}"): {"name": "other"},
    ("post", "/jobs/{job}/profile"): {"steps": 1},
    ("post", "/tokens"): {"name": "another", "scopes": ["read"]},
    ("patch", "/tokens/{name}"): {"scopes": ["read"]},
    ("post", "/tokens/{name}/rotate"): {"overlap_s": 0},
    ("post", "/internal/nodes"): make_node("trainer-9", Role.TRAINER).model_dump(mode="json"),
    ("post", "/internal/nodes/{name}/heartbeat"): {"started": "trainer-0-first", "seen": -1, "wait_s": 0},
    ("post", "/internal/jobs/{job}/attempts/{attempt}/checkpoints"): {
        "attempt": 1,
        "step": 7,
        "parts": [{"name": "part", "blob": "1/step-7/part", "size": 12, "sha256": DIGEST}],
        "position": {"step": 7},
    },
    ("post", "/internal/jobs/{job}/attempts/{attempt}/artifacts"): {
        "name": "model.zip",
        "blob": "1/step-7/part",
        "size": 12,
        "sha256": DIGEST,
    },
}


async def populated(client: Client) -> Place:
    """A job that has succeeded, one that runs, and what they have stored."""
    node = await one_trainer(client)
    jobs: list[str] = []
    for ends in (True, False):
        job = (await client.submit(roles=ONE_TRAINER))["id"]
        (worker,) = await node.workers()
        await node.say(worker, WorkerState.RUNNING)
        await node.progress(worker, line("step", step=1, metrics={"loss": 0.5}))
        await client.checkpoint(job, 1, 7)
        sent = (await client.worker("PUT", job, 1, "/attempts/1/blobs/model.zip", content=b"model")).json()
        await client.worker("POST", job, 1, "/attempts/1/artifacts", json={**sent, "name": "model.zip"})
        if ends:
            await node.say(worker, WorkerState.SUCCEEDED, exit_code=0)
        await client.until(job, "succeeded" if ends else "running")
        jobs.append(job)
    await make_token(client, "changed", Scope.READ)
    done, running = jobs
    return Place(done, running, node)


@pytest.fixture
async def prober(tmp_path: Path) -> AsyncIterator[Prober]:
    """A master with jobs, and whoever calls it."""
    async with serving(make_settings(tmp_path, max_job_bytes=1000), own_routes=True) as client:
        yield Prober(client, await populated(client))


@pytest.mark.slow
async def test_each_status_in_the_document_is_possible_and_no_other(
    prober: Prober, monkeypatch: pytest.MonkeyPatch
) -> None:
    for operation in OPERATIONS:
        await call_with_wrong_tokens(prober, operation)
        await call_with_unknown_names(prober, operation)
        await call_with_wrong_parameters(prober, operation)
        await call_with_wrong_bodies(prober, operation)
    await contradict_what_is_stored(prober)
    for operation in OPERATIONS:
        await call_a_crowded_or_broken_master(prober, operation, monkeypatch)
        await call_with_a_broken_store(prober, operation, monkeypatch)
    wrong = {
        operation: {"not documented": sorted(seen - listed), "not possible": sorted(listed - seen)}
        for operation, one in OPERATIONS.items()
        if (seen := prober.seen[operation]) != (listed := statuses(one))
    }
    assert not wrong, pformat(wrong)


async def call_with_wrong_tokens(prober: Prober, operation: Operation) -> None:
    await prober.call(operation, token=None)
    await prober.call(operation, token=TOKEN if "/internal/" in operation[1] else NODE_TOKEN)


async def call_with_unknown_names(prober: Prober, operation: Operation) -> None:
    _, template = operation
    unknown = {"job": "toy-none", "name": "none", "node": "none", "step": 99, "number": 99}
    for name, value in unknown.items():
        if f"{{{name}" not in template:
            continue
        token = prober.token(operation, "toy-none" if name == "job" else "")
        values: dict[str, Any] = {"params": {"offset": 0}} if "/streams/" in template else {}
        if template.endswith("/checkpoints") and name == "job":
            values["json"] = BODIES.get(operation, {}) | {"parts": []}
        if template.endswith("/artifacts") and operation[0] == "post":
            # The blob of a job that is deleted meanwhile.
            await prober.client.master.blobs.put("toy-none", "1/step-7/part", None, _one(b"x" * 12))
        if template == "/internal/nodes/{name}" or (name in {"name", "number"} and operation[0] == "put"):
            continue
        await prober.call(operation, token, prober.path(template, **{name: value}), **values)


async def _one(chunk: bytes) -> AsyncIterator[bytes]:
    yield chunk


async def call_with_wrong_parameters(prober: Prober, operation: Operation) -> None:
    _, template = operation
    if not template.startswith("/internal/"):
        await prober.call(operation, params={"strange": 1})
    elif "{rank}" in template:
        await prober.call(operation, path=prober.path(template, rank="x"))
    elif "{number}" in template:
        await prober.call(operation, path=prober.path(template, number="x"))
    elif template.endswith("/blobs/{name}"):
        await prober.call(operation, headers={"X-Content-SHA256": "x"})
    if template.endswith("/logs"):
        await prober.call(operation, params={"follow": True}, headers={"Last-Event-ID": "x"})
    if template.endswith("/artifacts/{name}"):
        await prober.call(operation, headers={"Range": "bytes=999-"})


async def call_with_wrong_bodies(prober: Prober, operation: Operation) -> None:
    if "requestBody" in OPERATIONS[operation]:
        size = (17 if "/internal/nodes" in operation[1] else 5 if "/internal/" in operation[1] else 2) << 20
        json = {"Content-Type": "application/json"}
        for content in (b"{", b'{"strange": 1, "steps": "x"}', b"[]", b" " * size):
            await prober.call(operation, content=content, headers=json)
    elif operation[1].endswith("/blobs/{name}") and operation[0] == "put":
        await prober.call(operation, content=b"other", headers={"X-Content-SHA256": DIGEST})
        await prober.call(operation, content=b"x" * 2000)


async def contradict_what_is_stored(prober: Prober) -> None:
    """Ask for what the states of jobs, nodes and tokens forbid."""
    client, (done, running, _) = prober.client, prober.place
    waiting = (await client.submit(roles={"parameter-server": 0, "trainer": 100}))["id"]
    old = attempt_token(client.master.signing_key, done, 1)
    rival = make_node("trainer-0", Role.TRAINER, boot="m9").model_dump(mode="json") | {"started": "another"}
    beat = BODIES["post", "/internal/nodes/{name}/heartbeat"] | {"started": "earlier"}
    job = "/internal/jobs/{job}/attempts/{attempt}"
    manifest, notice = BODIES["post", f"{job}/checkpoints"], BODIES["post", f"{job}/artifacts"]
    stream = f"{job}/ranks/{{rank}}/streams/{{kind}}"
    for action in ("cancel", "pause", "resume", "stacks", "profile"):
        await prober.call(("post", f"/jobs/{{job}}/{action}"), path=f"/jobs/{done}/{action}")
    await prober.call(("post", "/jobs/{job}/retry"), path=f"/jobs/{running}/retry")
    await prober.call(("delete", "/jobs/{job}"), path=f"/jobs/{running}")
    await prober.call(("get", "/jobs/{job}/timeline"), path=f"/jobs/{waiting}/timeline")
    await prober.call(("post", "/tokens"), json={"name": "admin", "scopes": ["read"]})
    for method, path in (("patch", "/tokens/{name}"), ("post", "/tokens/{name}/rotate"), ("delete", "/tokens/{name}")):
        await prober.call((method, path), path=path.format(name="admin"))
    await prober.call(("post", "/internal/nodes"), json=rival)
    await prober.call(("post", "/internal/nodes/{name}/heartbeat"), json=beat)
    await prober.call(("put", stream), path=prober.path(stream, attempt=9), params={"offset": 0})
    for operation in (("put", f"{job}/blobs/{{name}}"), ("get", "/internal/jobs/{job}/blobs/{number}/{name}")):
        await prober.call(operation, old, prober.path(operation[1], job=done))
    await prober.call(("post", f"{job}/checkpoints"), json=manifest | {"attempt": 2})
    await prober.call(("post", f"{job}/artifacts"), json=notice | {"size": 99})
    await client.user("POST", f"/jobs/{waiting}/cancel")


async def call_a_crowded_or_broken_master(
    prober: Prober, operation: Operation, monkeypatch: pytest.MonkeyPatch
) -> None:
    for by_owner in (True, False):
        with monkeypatch.context() as patch:
            excess = LimitExceeded("too many connections", by_owner)
            patch.setattr(gate, "claim", lambda *_, excess=excess: excess)
            # The tokens of attempts have no name. A node's token passes the gate as well, and is refused later.
            await prober.call(operation, NODE_TOKEN if "/internal/" in operation[1] else TOKEN)

    def fail() -> None:
        raise RuntimeError("a defect")

    app = prober.client.server.config.app
    while not hasattr(app, "dependency_overrides"):
        app = app.app  # type: ignore[union-attr]
    app.dependency_overrides[refuse_unknown_parameters] = fail  # type: ignore[union-attr]
    try:
        await prober.call(operation)
    finally:
        app.dependency_overrides.clear()  # type: ignore[union-attr]


async def call_with_a_broken_store(prober: Prober, operation: Operation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Call while the database is full, and while it refuses a value, as PostgreSQL does."""
    master, template = prober.client.master, operation[1]
    full = OperationalError("INSERT", {}, sqlite3.OperationalError("database or disk is full"))
    refused = DataError("SELECT", {}, ValueError("a value with NUL"))

    async def no_room(*_: Any, **__: Any) -> None:
        raise full

    def broken(error: Exception) -> Any:
        @asynccontextmanager
        async def connect(*_: Any) -> AsyncGenerator[None]:
            raise error
            yield

        return connect

    values: dict[str, Any] = {}
    if "/streams/" in template or "/blobs/" in template:
        values = {"params": {"offset": 10**6}} if "/streams/" in template else {}
        values |= {"content": b"new"} if operation[0] == "put" else {}
    elif template == "/jobs/prune":
        values = {"json": {"ended_before": "2999-01-01T00:00:00Z"}}
    elif template.endswith("/heartbeat"):
        values = {"json": BODIES[operation] | {"draining": True}}
    with monkeypatch.context() as patch:
        patch.setattr(master.database, "write", broken(full))
        patch.setattr(master.reserve, "check", no_room)
        await prober.call(operation, **values)
    if template in {"/internal/nodes/{name}", "/internal/nodes/{name}/surroundings"}:
        with monkeypatch.context() as patch:
            for name in ("read", "write"):
                patch.setattr(master.database, name, broken(refused))
            await prober.call(operation)

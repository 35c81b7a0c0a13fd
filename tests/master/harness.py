# pyright: standard
"""A real master on a real socket, and nodes that a test plays itself."""

import asyncio
import hashlib
import re
import sqlite3
import ssl
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, cast

import httpx
import uvicorn.server
from fastapi import FastAPI
from pydantic import Field, SecretStr
from sqlalchemy import Connection, Dialect, Engine, event
from starlette.routing import BaseRoute, compile_path
from tests.running import accepted

from rolecall import __version__
from rolecall.master.api.headers import HEADERS
from rolecall.master.catalogue import Catalogue
from rolecall.master.clock import Clock
from rolecall.master.leadership import Leadership
from rolecall.master.program import Master, Program, open_master
from rolecall.master.server import MasterServer, create_app, listen, read_certificate
from rolecall.master.store.database import Database, sqlite_url
from rolecall.settings.master import MasterSettings
from rolecall.spec.access import Scope
from rolecall.spec.finding import Finding
from rolecall.spec.metric import EVALUATED, Metric
from rolecall.spec.node import Gpu, Machine, NodeSpec, NodeState
from rolecall.spec.report import Failure, ProgressLine, WorkerReport
from rolecall.spec.role import Role
from rolecall.spec.state import StopMode, WorkerState
from rolecall.spec.token import attempt_token
from rolecall.spec.wire import Desired, DesiredWorker
from rolecall.spec.workload import Params, RoleCount, Workload

_ROUTES: dict[str, list[BaseRoute]] = {}
_STATEMENTS: dict[str, "_Statements"] = {}
NO_AUTHORITIES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For plain HTTP, which needs none: a new client reads the system's in 0.04 s."""
# uvicorn looks for its end every 0.1 s, and then waits 0.1 s for connections to close: half of the time of such a test.
cast(Any, uvicorn.server).asyncio = SimpleNamespace(
    **vars(asyncio) | {"sleep": lambda seconds: asyncio.sleep(seconds / 10)}
)
TOKEN, NODE_TOKEN, METRICS_TOKEN = "user-token-of-the-tests", "node-token-of-the-tests", "metrics-token-of-the-tests"


class ToyParams(Params):
    """Parameters with bounds."""

    steps: int = Field(default=10, ge=1)
    learning_rate: float = Field(default=0.1, gt=0)


def _even(params: Params, counts: dict[Role, int]) -> None:
    if counts[Role.TRAINER] == 13:
        raise ValueError("13 trainers bring bad luck; take another number")


TOY = Workload(
    name="toy",
    summary="A workload of the tests.",
    package="toy",
    params=ToyParams,
    roles={
        Role.PARAMETER_SERVER: RoleCount(default=1, least=0),
        Role.TRAINER: RoleCount(default=2),
        Role.OBSERVER: RoleCount(default=0, least=0),
    },
    metrics=(
        Metric("loss", "Its loss.", direction="lower"),
        Metric("auc", "Its score.", "ratio", "higher", EVALUATED),
        Metric("trainer_{index}_loss", "A trainer's loss."),
    ),
    expendable=frozenset({Role.OBSERVER}),
    cpu_only=frozenset({Role.OBSERVER}),
    check_counts=_even,
)
CATALOGUE = Catalogue({"toy": TOY}, {"sad": "ImportError: no module named sad"})


def make_node(
    name: str,
    role: Role,
    slots: int = 2,
    *,
    boot: str = "m0",
    gpus: int = 0,
    cores: int = 4,
    cpu_slots: int | None = None,
    workers_per_gpu: int = 1,
) -> NodeSpec:
    """A node on machine `boot`, which has one CPU slot per core unless `cpu_slots` is given."""
    inventory = tuple(Gpu(uuid=f"GPU-{boot}-{i}", name="card", memory_bytes=1) for i in range(gpus))
    machine = Machine(
        boot_id=boot,
        hostname=boot,
        cores=cores,
        cpu_slots=cpu_slots or cores,
        memory_bytes=1,
        gpus=inventory,
        workers_per_gpu=workers_per_gpu,
    )
    return NodeSpec(
        name=name,
        role=role,
        slots=slots,
        address=f"10.0.0.{len(name)}",
        interface="eth0",
        metrics_port=0,
        machine=machine,
        version=__version__,
        started=f"{name}-first",
    )


def alive(spec: NodeSpec, **values: Any) -> NodeState:
    """The node as a placement sees it."""
    given: dict[str, Any] = {"spec": spec, "alive": True, "heartbeat_age_s": 0.0}
    return NodeState(**(given | values))


def make_settings(data: Path, **values: Any) -> MasterSettings:
    """Settings of a master that is quick to notice."""
    quick: dict[str, Any] = {"heartbeat_s": 5.0, "node_timeout_s": 30.0, "host": "127.0.0.1", "port": 0}
    if "database_url" not in values and data.is_dir() and not (database := data / "rolecall.db").exists():
        database.touch(0o600)
        database.write_bytes(_empty_database())
    return MasterSettings(data=data, token=SecretStr(TOKEN), node_token=SecretStr(NODE_TOKEN), **(quick | values))


@cache
def _empty_database() -> bytes:
    """The tables without a row. A master migrates an empty file in eight times the time."""

    async def migrate(file: Path) -> None:
        database = Database(sqlite_url(file))
        await database.migrate()
        await database.close()

    with TemporaryDirectory() as folder, ThreadPoolExecutor(1) as thread:
        file = Path(folder) / "rolecall.db"
        thread.submit(asyncio.run, migrate(file)).result()  # The caller's thread may have an event loop of its own.
        return file.read_bytes()


@asynccontextmanager
async def turns_of_loop() -> AsyncGenerator[list[float]]:
    """The seconds that the event loop's turns take in the block, complete after it."""
    turns_s: list[float] = []
    loop, over = asyncio.get_running_loop(), asyncio.Event()

    async def watch() -> None:
        while not over.is_set():
            before = loop.time()
            await asyncio.sleep(0.001)
            turns_s.append(loop.time() - before)

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0)  # It has begun.
    try:
        yield turns_s
    finally:
        over.set()
        await watching


class ManualClock(Clock):
    """A clock that stands still but for what a test adds."""

    def __init__(self) -> None:
        self._began, self._passed_s = datetime.now(UTC), 0.0
        super().__init__(lambda: self._began + timedelta(seconds=self._passed_s), lambda: self._passed_s)

    def advance(self, seconds: float) -> None:
        """Let time pass, without spending any."""
        self._passed_s += seconds


@asynccontextmanager
async def serving(
    settings: MasterSettings,
    verify: ssl.SSLContext = NO_AUTHORITIES,
    clock: Clock | None = None,
    catalogue: Catalogue | None = None,
    *,
    own_routes: bool = False,
) -> AsyncGenerator["Client"]:
    """A master that serves until the block ends; its whole state is in `settings.data`.

    With a certificate in the settings it serves HTTPS, and `verify` is what the client verifies that with. A test that
    overrides dependencies needs `own_routes`.
    """
    with listen("127.0.0.1", 0) as listener:
        server = MasterServer(Program(settings, catalogue or CATALOGUE, clock or Clock()), read_certificate(settings))
        if not own_routes:
            _share_routes(server)
        if catalogue is None:
            cast(FastAPI, server.config.app).openapi_schema = openapi_document()
        task = asyncio.create_task(server.serve(sockets=[listener]))
        url = f"{'https' if settings.tls_cert else 'http'}://127.0.0.1:{listener.getsockname()[1]}"
        hooks = {"response": [_check_documented]}
        async with httpx.AsyncClient(base_url=url, timeout=30, verify=verify, event_hooks=hooks) as http:
            try:
                while not (await http.get("/healthz")).is_success:
                    assert not task.done()
                yield Client(http, server)
            finally:
                server.should_exit = True
                await task


class _Statements(dict[Any, Any]):
    """Compiled statements of all engines of a dialect. The first part of a key is the dialect object of one engine."""

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get(key[1:], default)

    def __setitem__(self, key: Any, value: Any) -> None:
        assert isinstance(key[0], Dialect), "SQLAlchemy's keys have another form now"
        super().__setitem__(key[1:], value)


@event.listens_for(Engine, "engine_connect")
def share_statements(connection: Connection) -> None:
    """Have the masters of all tests use the same compiled statements, which take as long as their execution."""
    connection.execution_options(compiled_cache=_STATEMENTS.setdefault(connection.dialect.name, _Statements()))


def _share_routes(server: MasterServer) -> None:
    """Have the masters of all tests use the same route objects, which are the same for every program.

    With the first call of an app, FastAPI derives what each route depends on, in a third of the time of a master.
    """
    routes = cast(FastAPI, server.config.app).router.routes
    routes[:] = _ROUTES.setdefault("first", routes[:])


@cache
def openapi_document() -> dict[str, Any]:
    """The OpenAPI document of a master with `CATALOGUE`.

    A master needs it to name the route of the first call that it refuses early, and derives it in ten times the time
    of such a call.
    """
    return create_app(Program(make_settings(Path("/nowhere")), CATALOGUE)).openapi()


@cache
def _responses() -> list[tuple[re.Pattern[str], dict[str, Any]]]:
    """The documented responses of each path by method, those of the most specific paths first."""
    paths = openapi_document()["paths"]
    ordered = sorted(paths, key=lambda path: path.count("{"))
    return [(compile_path(path)[0], {name: one["responses"] for name, one in paths[path].items()}) for path in ordered]


async def _check_documented(answer: httpx.Response) -> None:
    """Assert that the OpenAPI document has the status, the media type and the headers of an answer."""
    path, method = answer.request.url.path, answer.request.method.lower()
    responses = next((one[method] for at, one in _responses() if method in one and at.match(path)), None)
    if responses is None:
        return  # There is no such call, or it is a page.
    what = f"{method} {path}: {answer.status_code}"
    assert str(answer.status_code) in responses, f"{what} is not documented"
    media = responses[str(answer.status_code)].get("content")
    kind = answer.headers.get("content-type", "").partition(";")[0]
    assert not media or kind in media, f"{what} has the media type {kind}"
    described = set(responses[str(answer.status_code)].get("headers", ()))
    sent = {name for name in HEADERS if name in answer.headers}
    assert sent - described <= {"Content-Length"}, f"{what} has the headers {sent - described}, which it should not"
    assert described <= sent, f"{what} lacks the headers {described - sent}"


def still_master(data: Path, clock: Clock | None = None, **values: Any) -> AbstractAsyncContextManager[Master]:
    """The parts of a master of which no loop runs."""
    settings, clock = make_settings(data, **values), clock or Clock()
    return open_master(settings, CATALOGUE, Leadership(settings, clock), clock)


async def verify_all(master: Master) -> None:
    """Verify every checkpoint that is due, unless its verification fails."""
    while any(await asyncio.gather(*await master.verifier.begin())):
        pass


@asynccontextmanager
async def on_master(data: Path, *, clock: Clock | None = None, **values: Any) -> AsyncGenerator["Client"]:
    """A master whose settings are these `values`."""
    async with serving(make_settings(data, **values), clock=clock) as client:
        yield client


@dataclass
class Client:
    """The users', nodes' and workers' calls."""

    http: httpx.AsyncClient
    server: MasterServer

    @property
    def master(self) -> Master:
        """The master itself, for what no call tells."""
        assert self.server.program.master is not None
        return self.server.program.master

    async def call(self, token: str | None, method: str, path: str, **values: Any) -> httpx.Response:
        """A call with any token, or with none."""
        headers = (bearer(token) if token else {}) | values.pop("headers", {})
        return await self.http.request(method, path, headers=headers, **values)

    async def user(self, method: str, path: str, **values: Any) -> httpx.Response:
        """A call with the user's token."""
        return await self.http.request(method, path, headers=bearer(TOKEN) | values.pop("headers", {}), **values)

    async def internal(self, method: str, path: str, **values: Any) -> httpx.Response:
        """A call with the nodes' token."""
        return await self.http.request(method, f"/internal{path}", headers=bearer(NODE_TOKEN), **values)

    async def worker(self, method: str, job: str, attempt: int, path: str, **values: Any) -> httpx.Response:
        """A call with the token of an attempt."""
        headers = bearer(attempt_token(self.master.signing_key, job, attempt)) | values.pop("headers", {})
        return await self.http.request(method, f"/internal/jobs/{job}{path}", headers=headers, **values)

    async def submit(self, **values: Any) -> dict[str, Any]:
        """Submit a toy job and return its document."""
        return accepted(await self.user("POST", "/jobs", json={"workload": "toy"} | values))

    async def job(self, job: str) -> dict[str, Any]:
        """The job's document."""
        return (await self.user("GET", f"/jobs/{job}")).json()

    async def until(
        self, job: str, *states: str, also: Callable[[dict[str, Any]], Any] = lambda _: True
    ) -> dict[str, Any]:
        """The job's document once it is in one of `states`."""
        async with asyncio.timeout(20):
            while True:
                document = await self.job(job)
                if document["state"] in states and also(document):
                    return document
                await asyncio.sleep(0.02)

    async def checkpoint(self, job: str, attempt: int, step: int, *, keep: bool = False) -> httpx.Response:
        """Upload and record a checkpoint of one part."""
        body = f"weights at {step}".encode()
        digest = hashlib.sha256(body).hexdigest()
        sent = await self.worker(
            "PUT",
            job,
            attempt,
            f"/attempts/{attempt}/blobs/step-{step}/part",
            content=body,
            headers={"X-Content-SHA256": digest},
        )
        assert sent.status_code == 201, sent.text
        part = {"name": "part", **sent.json()}
        manifest = {"attempt": attempt, "step": step, "parts": [part], "position": {"step": step}, "keep": keep}
        return await self.worker("POST", job, attempt, f"/attempts/{attempt}/checkpoints", json=manifest)


@dataclass
class Node:
    """A node that does what the test says."""

    client: Client
    spec: NodeSpec
    reports: dict[tuple[str, int, int], WorkerReport] = field(default_factory=dict[tuple[str, int, int], WorkerReport])
    desired: Desired | None = None
    draining: bool = False
    findings: tuple[Finding, ...] = ()

    async def register(self) -> httpx.Response:
        """Enter the cluster."""
        return await self.client.internal("POST", "/nodes", json=self.spec.model_dump(mode="json"))

    async def enter(self) -> None:
        """Register, trying again as long as a node does that is refused."""
        async with asyncio.timeout(5):
            while not (await self.register()).is_success:
                await asyncio.sleep(0.1)

    async def beat(self, wait_s: float = 0.0) -> list[DesiredWorker]:
        """Send a heartbeat; return the workers that the node should run."""
        seen = self.desired.version if self.desired else -1
        body = {
            "started": self.spec.started,
            "seen": seen,
            "wait_s": wait_s,
            "workers": [report.model_dump(mode="json") for report in self.reports.values()],
            "draining": self.draining,
            "findings": [finding.model_dump(mode="json") for finding in self.findings],
        }
        response = await self.client.internal("POST", f"/nodes/{self.spec.name}/heartbeat", json=body)
        assert response.status_code == 200, response.text
        self.desired = Desired.model_validate(response.json())
        return list(self.desired.workers)

    async def workers(self, count: int = 1, stop: StopMode | None = None) -> list[DesiredWorker]:
        """Beat until the node should run `count` workers that are stopped like this."""
        async with asyncio.timeout(20):
            while True:
                found = await self.beat(5.0)
                if len(found) == count and all(worker.stop is stop for worker in found):
                    return found

    async def say(self, worker: DesiredWorker, state: WorkerState, **values: Any) -> list[DesiredWorker]:
        """Report a worker's state."""
        launch = worker.launch
        now = datetime.now(UTC)
        times: dict[str, Any] = {"spawned_at": now} | ({"joined_at": now} if state is WorkerState.RUNNING else {})
        key = (launch.job, launch.attempt, launch.worker.rank)
        report: dict[str, Any] = {"job": key[0], "attempt": key[1], "rank": key[2], "state": state, "pid": 100 + key[2]}
        self.reports[key] = WorkerReport(**(report | times | values))
        return await self.beat()

    async def progress(self, worker: DesiredWorker, *lines: ProgressLine, offset: int = 0) -> int:
        """Ship lines of a worker's progress; return the stream's size."""
        body = "".join(line.model_dump_json() + "\n" for line in lines).encode()
        return await self.ship(worker, "progress", body, offset)

    async def ship(self, worker: DesiredWorker, kind: str, body: bytes, offset: int = 0) -> int:
        """Ship a chunk of a worker's stream; return the stream's size."""
        launch = worker.launch
        path = f"/jobs/{launch.job}/attempts/{launch.attempt}/ranks/{launch.worker.rank}/streams/{kind}"
        response = await self.client.internal("PUT", path, params={"offset": offset}, content=body)
        assert response.status_code == 200, response.text
        return response.json()["size"]


async def one_trainer(client: Client, name: str = "trainer-0", **values: Any) -> Node:
    """A registered node for trainers."""
    node = Node(client, make_node(name, Role.TRAINER, **values))
    assert (await node.register()).status_code == 200
    await node.beat()
    return node


ONE_TRAINER = {"parameter-server": 0, "trainer": 1}


async def running(client: Client) -> tuple[Node, str, DesiredWorker]:
    """A job of one trainer that runs: its node, its id and its worker."""
    node = await one_trainer(client)
    job = (await client.submit(roles=ONE_TRAINER))["id"]
    (worker,) = await node.workers()
    await node.say(worker, WorkerState.RUNNING)
    return node, job, worker


def line(kind: str, **values: Any) -> ProgressLine:
    """A line of a worker's progress."""
    given: dict[str, Any] = {"kind": kind, "at": datetime.now(UTC)}
    return ProgressLine(**(given | values))


def failure(message: str = "ValueError: broken", **values: Any) -> Failure:
    """The failure of a worker."""
    given: dict[str, Any] = {"message": message, "at": datetime.now(UTC)}
    return Failure(**(given | values))


def bearer(token: str) -> dict[str, str]:
    """The header with a token."""
    return {"Authorization": f"Bearer {token}"}


def signing_key(data: Path) -> str:
    """The key from which a master in another process derives its attempts' tokens."""
    with closing(sqlite3.connect(data / "rolecall.db")) as database:
        return database.execute("SELECT value FROM signing_key").fetchone()[0]


async def make_token(client: Client, name: str, *scopes: Scope, **values: Any) -> str:
    """A new token's secret."""
    made = await client.user("POST", "/tokens", json={"name": name, "scopes": list(scopes)} | values)
    assert made.status_code == 201, made.text
    return made.json()["secret"]


async def submit_as(client: Client, token: str, **values: Any) -> httpx.Response:
    """Submit a job for one trainer, which the master may refuse."""
    body = {"workload": "toy", "roles": ONE_TRAINER, **values}
    return await client.call(token, "POST", "/jobs", json=body)


def files(folder: Path, pattern: str) -> list[Path]:
    """The files and folders of that name below the master's data folder."""
    return list(folder.glob(pattern))

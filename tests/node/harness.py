"""A scripted master that speaks the internal protocol over a real socket, and a node's daemon as a real process."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import psutil
import uvicorn
from pydantic import SecretStr
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from tests.ports import free_port

from rolecall import __version__
from rolecall.node.reconcile import Key
from rolecall.node.vitals import process_state
from rolecall.settings.node import NodeSettings
from rolecall.spec.errors import PROBLEM_PREFIX
from rolecall.spec.node import NodeSpec
from rolecall.spec.plan import GangPlan, WorkerLaunch, WorkerPlan
from rolecall.spec.report import WorkerReport
from rolecall.spec.role import Role
from rolecall.spec.state import StopMode
from rolecall.spec.wire import ClusterInfo, Desired, DesiredWorker, Heartbeat, Registered

ROOT = Path(__file__).parents[2]
PLAYS = ("--play", "tests.node.plays:play", "--preload")
"""Arguments of a fork server whose workers act as in `plays`, which needs none of the modules that training does."""
TOKEN, METRICS_TOKEN = "a-token-for-nodes", "a-token-for-metrics"
_T = TypeVar("_T")


def launch(job: str, act: str, rank: int = 0, attempt: int = 1) -> WorkerLaunch:
    """A plan for one worker that does `act` (see `plays`)."""
    plan = WorkerPlan(rank=rank, role=Role.TRAINER, role_rank=rank, node="n", threads=1)
    return WorkerLaunch(
        job=job, attempt=attempt, workload="none", params={"act": act}, worker=plan,
        gang=GangPlan(workers=(plan,)), master_addr="127.0.0.1",
    )  # fmt: skip


class ScriptedMaster:
    """Answers with the desired workers of the test, and records all calls."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.host = host
        self.changed = threading.Condition()
        self.desired: dict[Key, DesiredWorker] = {}
        self.version = 0
        self.specs: list[NodeSpec] = []
        self.beats: list[Heartbeat] = []
        self.reports: dict[Key, WorkerReport] = {}
        self.streams: dict[tuple[Key, str], bytes] = {}
        self.left: list[tuple[str, str]] = []
        """The name and incarnation of each node that left."""
        self.at_end: dict[Key, bytes] = {}
        self.repeat_chunks = False
        self.ahead_s = 0.0
        self.check_delay_s = 0.0
        self.has_forgotten = False
        self.taken = {"taken"}
        """Names that other nodes have taken."""
        self.heartbeat_s = 0.3
        self.refusal: int | None = None
        self.refused_by_proxy = True
        """False if `refusal` has the master's own problem document."""
        self.refused = 0
        """The number of refused heartbeats."""
        self.garbled = False
        self.max_bytes: int | None = None
        """Of a heartbeat."""
        self.reported_size: int | None = None
        self.slow_log_s = 0.0
        self.full = False
        self.refused_logs: list[Key] = []
        """The worker of each chunk of a log that found no room."""
        self.reported_version = __version__
        self.boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self.port = free_port()

    def want(self, worker_launch: WorkerLaunch, stop: StopMode | None = None) -> Key:
        with self.changed:
            self.desired[Key.of(worker_launch)] = DesiredWorker(launch=worker_launch, stop=stop)
            self.version += 1
        return Key.of(worker_launch)

    def drop(self, key: Key) -> None:
        with self.changed:
            del self.desired[key]
            self.version += 1

    def wait(self, what: Callable[[], _T], timeout_s: float = 20.0) -> _T:
        """Wait until `what` returns a true value, and return it."""
        with self.changed:
            assert self.changed.wait_for(what, timeout_s), f"not within {timeout_s} s; last told: {self.reports}"
            return what()

    def ended(self, key: Key, timeout_s: float = 20.0) -> WorkerReport:
        self.wait(lambda: key in self.reports and self.reports[key].state.ended, timeout_s)
        return self.reports[key]

    def joined(self, key: Key) -> WorkerReport:
        self.wait(lambda: key in self.reports and self.reports[key].joined_at)
        return self.reports[key]

    def text(self, key: Key) -> str:
        return self.streams.get((key, "log"), b"").decode()

    @contextmanager
    def serving(self) -> Generator[None]:
        config = uvicorn.Config(self._app(), host=self.host, port=self.port, log_config=None, lifespan="off")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            deadline = time.monotonic() + 10
            while not server.started:
                assert time.monotonic() < deadline, "the scripted master did not start"
                time.sleep(0.01)
            yield
        finally:
            server.should_exit = server.force_exit = True
            thread.join()

    def _app(self) -> ASGIApp:
        stream = "/internal/jobs/{job}/attempts/{attempt:int}/ranks/{rank:int}/streams/{stream}"
        routes = [
            Route("/internal/nodes", self._register, methods=["POST"]),
            Route("/internal/nodes/{name}", self._leave, methods=["DELETE"]),
            Route("/internal/nodes/{name}/surroundings", self._cluster_info),
            Route("/internal/nodes/{name}/heartbeat", self._heartbeat, methods=["POST"]),
            Route(stream, self._stream, methods=["PUT"]),
        ]
        routed = Starlette(routes=routes)

        async def admit(scope: Scope, receive: Receive, send: Send) -> None:
            answer = self._refuse(scope["path"]) or routed
            await answer(scope, receive, send)

        return admit

    def _refuse(self, path: str) -> Response | None:
        """The answer of a proxy that refuses everybody or garbles answers, if the test says so; else None."""
        if self.garbled:
            return Response("no gzip", headers={"Content-Encoding": "gzip"})
        if self.refusal is None:
            return None
        if path.endswith("/heartbeat"):
            with self.changed:
                self.refused += 1
                self.changed.notify_all()
        kind = {} if self.refused_by_proxy else {"type": f"{PROBLEM_PREFIX}unauthorized"}
        return JSONResponse({"detail": "not now"} | kind, self.refusal)

    async def _register(self, request: Request) -> Response:
        if request.headers["authorization"] != f"Bearer {TOKEN}":
            return JSONResponse({"detail": "wrong token"}, 401)
        spec = NodeSpec.model_validate_json(await request.body())
        if spec.name in self.taken:
            return JSONResponse({"detail": f"the name {spec.name} is taken: give another ROLECALL_NODE_NAME"}, 409)
        with self.changed:
            self.specs.append(spec)
            self.has_forgotten = False
            self.changed.notify_all()
        return JSONResponse(Registered(heartbeat_s=self.heartbeat_s, master_version=self.reported_version).model_dump())

    async def _cluster_info(self, _: Request) -> Response:
        await asyncio.sleep(self.check_delay_s)
        return JSONResponse(
            ClusterInfo(
                time_s=time.time() + self.ahead_s, version=self.reported_version, boot_id=self.boot_id, remote_nodes=0
            ).model_dump()
        )

    async def _heartbeat(self, request: Request) -> Response:
        body = await request.body()
        if self.max_bytes is not None and len(body) > self.max_bytes:
            return JSONResponse({"detail": f"the body is larger than {self.max_bytes} bytes"}, 413)
        beat = Heartbeat.model_validate_json(body)
        if self.has_forgotten:
            return JSONResponse({"detail": "node n has not registered; register it again"}, 404)
        self._take(beat)
        deadline = time.monotonic() + beat.wait_s
        while self.version == beat.seen and time.monotonic() < deadline and not await request.is_disconnected():
            await asyncio.sleep(0.01)
        answer = Desired(version=self.version, workers=tuple(self.desired.values()))
        return Response(answer.model_dump_json(), media_type="application/json")

    def _take(self, beat: Heartbeat) -> None:
        with self.changed:
            self.beats.append(beat)
            self.reports = {Key(report.job, report.attempt, report.rank): report for report in beat.workers}
            for key, report in self.reports.items():
                if report.state.ended:
                    self.at_end.setdefault(key, self.streams.get((key, "log"), b""))
            if beat.draining:
                for key, worker in self.desired.items():
                    self.desired[key] = worker.model_copy(update={"stop": worker.stop or StopMode.DRAIN})
                self.desired = {k: v for k, v in self.desired.items() if not self._over(k)}
                self.version += 1
            self.changed.notify_all()

    def _over(self, key: Key) -> bool:
        return key in self.reports and self.reports[key].state.ended

    async def _stream(self, request: Request) -> Response:
        path: dict[str, Any] = request.path_params
        name = (Key(path["job"], path["attempt"], path["rank"]), path["stream"])
        chunk, offset = await request.body(), int(request.query_params["offset"])
        await asyncio.sleep(self.slow_log_s if path["stream"] == "log" else 0.0)
        if self.full and path["stream"] == "log":
            with self.changed:
                self.refused_logs.append(name[0])
            return JSONResponse({"detail": "no room"}, 507)
        with self.changed:
            have = self.streams.get(name, b"")
            self.streams[name] = have + chunk[len(have) - offset :] if offset <= len(have) else have
            self.changed.notify_all()
            size = self.reported_size or (offset if self.repeat_chunks else len(self.streams[name]))
            self.repeat_chunks = False
        return JSONResponse({"size": size})

    async def _leave(self, request: Request) -> Response:
        with self.changed:
            self.left.append((request.path_params["name"], request.headers["x-rolecall-incarnation"]))
            self.changed.notify_all()
        return Response(status_code=204)


def make_settings(master: ScriptedMaster, data: Path, **values: Any) -> NodeSettings:
    """Settings of a node of this master."""
    own: dict[str, Any] = {"role": Role.TRAINER, "name": "n", "master_addr": "127.0.0.1", "port": master.port}
    own |= {"data": data, "node_token": SecretStr(TOKEN)}
    return NodeSettings(**(own | values))


def start_node(
    master: ScriptedMaster, data: Path, before: tuple[str, ...] = (), prelude: str = "", **settings: str
) -> subprocess.Popen[str]:
    """A node's daemon whose workers act as in `plays`. `before` precedes its command line, `prelude` its code."""
    environment = os.environ | {
        "PYTHONPATH": f"{ROOT / 'services'}:{ROOT}",
        "ROLE": "trainer",
        "MASTER_ADDR": "127.0.0.1",
        "ROLECALL_PORT": str(master.port),
        "ROLECALL_NODE_NAME": "n",
        "ROLECALL_NODE_TOKEN": TOKEN,
        "ROLECALL_METRICS_TOKEN": METRICS_TOKEN,
        "ROLECALL_DATA": str(data),
        "ROLECALL_METRICS_PORT": "0",
        "ROLECALL_STOP_GRACE_S": "1",
        "ROLECALL_HOST": "127.0.0.1",
        "GLIBC_TUNABLES": "",  # The node must set it, even if this process has it.
    }
    program = (
        "import sys; from rolecall.node.server import run; from rolecall.settings.node import read_node;"
        f"sys.exit(run(read_node(), {[*PLAYS]}))"
    )
    command = [*before, sys.executable, "-c", f"{prelude}\n{program}"]
    return subprocess.Popen(command, env=environment | settings, text=True)


def end(node: subprocess.Popen[str]) -> None:
    """Kill a daemon that a test is done with."""
    node.send_signal(signal.SIGKILL)
    node.wait()


def descendants(pid: int) -> set[int]:
    return {child.pid for child in psutil.Process(pid).children(recursive=True)}


def await_true(is_true: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Return when the condition is true; fail after the time."""
    deadline = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < deadline, f"not within {timeout_s} s"
        time.sleep(0.01)


def gone(pids: set[int], timeout_s: float) -> bool:
    """True if all processes end within the time. Zombies that another process must reap count as ended."""
    deadline = time.monotonic() + timeout_s
    while any(process_state(pid) not in {None, "Z"} for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@contextmanager
def working_node(data: Path, **settings: Any) -> Generator[ScriptedMaster]:
    """A master with one node that has registered; the node ends with the block, and not before."""
    master = ScriptedMaster()
    with master.serving():
        node = start_node(master, data, **settings)
        try:
            master.wait(lambda: master.beats, 60)
            yield master
            assert node.poll() is None, "the daemon ended"
        finally:
            end(node)


@contextmanager
def running_node(
    master: ScriptedMaster, data: Path, before: tuple[str, ...] = (), prelude: str = "", **settings: str
) -> Generator[subprocess.Popen[str]]:
    """A node for the duration of the context."""
    node = start_node(master, data, before, prelude, **settings)
    try:
        yield node
    finally:
        end(node)

"""The world of `test_job_life`: masters on a real store, nodes that rules play, and what must be true of jobs."""

import asyncio
import hashlib
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from sqlalchemy import select
from starlette.requests import Request

from rolecall.master.access import Principal
from rolecall.master.api import attempts, nodes
from rolecall.master.leadership import Leadership
from rolecall.master.program import Master, open_master
from rolecall.master.store import checkpoints, schema
from rolecall.master.store.records import CheckpointRecord
from rolecall.master.streams import StreamKey
from rolecall.settings.master import MasterSettings
from rolecall.spec.access import Scope
from rolecall.spec.node import NodeSpec
from rolecall.spec.plan import CheckpointManifest, CheckpointPart
from rolecall.spec.report import WorkerReport
from rolecall.spec.role import Role
from rolecall.spec.state import WorkerState
from rolecall.spec.wire import Desired, Heartbeat

from .harness import CATALOGUE, ManualClock, failure, make_node, verify_all

SPECS = [
    make_node("trainer-0", Role.TRAINER, 2),
    make_node("trainer-1", Role.TRAINER, 1, boot="m1"),
    make_node("observer-0", Role.OBSERVER, 1, boot="m1"),
    make_node("parameter-server-0", Role.PARAMETER_SERVER, 1, boot="m1"),
]
USER = Principal("admin", frozenset({Scope.ADMIN}))
Worker = tuple[str, int, int, str]
"""Job, attempt, rank and node of a worker."""
Rows = dict[str, list[tuple[Any, ...]]]


class World:
    """A master that leads, one that led before and still runs, and four nodes. Time passes only when a rule says so."""

    def __init__(self, settings: MasterSettings) -> None:
        self.settings = settings
        self.clock = ManualClock()
        self.runner = asyncio.Runner()
        self.starts = [0] * len(SPECS)
        self.launched: set[Worker] = set()
        """Every worker that a node was ever asked to run."""
        self._leading, self._deposed = AsyncExitStack(), AsyncExitStack()
        self.master: Master
        self.former: Master | None = None
        """A master whose term is over, and which has not noticed."""

    def run(self, coroutine: Any) -> Any:
        return self.runner.run(coroutine)

    async def open(self) -> None:
        """Start a master, at which all nodes register."""
        self.master = await self._leading.enter_async_context(self._term())
        for place in range(len(SPECS)):
            await self.enter(place)

    async def reopen(self) -> None:
        """Restart the master."""
        await self.close()
        await self.open()

    async def take_over(self) -> None:
        """Let another master lead. The nodes call that one, without a registration, and the former continues."""
        await self._deposed.aclose()
        self._deposed, self.former = self._leading, self.master
        self._leading = AsyncExitStack()
        self.master = await self._leading.enter_async_context(self._term())
        for place in range(len(SPECS)):
            await self.beat(place)

    async def close(self) -> None:
        await self._deposed.aclose()
        await self._leading.aclose()
        self.former = None

    def _term(self) -> Any:
        return open_master(self.settings, CATALOGUE, Leadership(self.settings, self.clock), self.clock)

    async def enter(self, place: int) -> None:
        await nodes.register_node(self.spec(place), self.master)
        await self.beat(place)

    async def leave(self, place: int) -> None:
        await nodes.remove_node(self.spec(place).name, self.master)
        self.starts[place] += 1

    async def beat(
        self, place: int, *reports: WorkerReport, draining: bool = False, master: Master | None = None
    ) -> None:
        spec = self.spec(place)
        call = Heartbeat(started=spec.started, workers=reports, draining=draining)
        answer = (await nodes.send_heartbeat(spec.name, call, master or self.master)).body
        launches = [worker.launch for worker in Desired.model_validate_json(bytes(answer)).workers]
        self.launched |= {(one.job, one.attempt, one.worker.rank, one.worker.node) for one in launches}

    async def pass_time(self, seconds: float) -> None:
        """Let time pass in which no node is silent for long, and verify what is due."""
        while seconds > 0:
            self.clock.advance(min(seconds, 10.0))
            seconds -= 10.0
            for place in range(len(SPECS)):
                await self.beat(place)
            await verify_all(self.master)

    def spec(self, place: int) -> NodeSpec:
        return SPECS[place].model_copy(update={"started": f"{SPECS[place].name}-{self.starts[place]}"})

    def report(
        self, worker: Worker, state: WorkerState, *, curable: bool = True, accuses: bool = False
    ) -> WorkerReport:
        job, attempt, rank, _ = worker
        now = self.clock.now()
        values: dict[str, Any] = {"spawned_at": now, "pid": 1 + rank}
        values |= {"joined_at": now} if state in {WorkerState.RUNNING, WorkerState.SUCCEEDED} else {}
        if state is WorkerState.FAILED:
            values["failure"] = failure(at=now, retryable=curable, condemns_checkpoint=accuses)
        return WorkerReport(job=job, attempt=attempt, rank=rank, state=state, **values)

    async def upload(self, job: str, attempt: int, step: int, master: Master) -> CheckpointManifest:
        """Store the parts of a checkpoint, as workers do, and return its manifest."""
        parts: list[CheckpointPart] = []
        for name in ("trainer-0", "trainer-1"):
            body = f"{name} of {job} at {step}".encode()
            digest = hashlib.sha256(body).hexdigest()
            stored = await attempts.put_blob(job, attempt, f"{step}/{name}", sending(body), master, digest)
            parts.append(CheckpointPart(name=name, blob=stored.blob, size=stored.size, sha256=stored.sha256))
        return CheckpointManifest(attempt=attempt, step=step, parts=tuple(parts), position={})

    async def print(self, job: str, attempt: int, rank: int, master: Master) -> None:
        """Append a line to the log of a worker, as its node does."""
        offset = master.streams.size(StreamKey(job, attempt, rank, "log"))
        await attempts.append_to_stream(job, attempt, rank, "log", offset, sending(b"a line\n"), master)

    async def recorded(self, job: str) -> list[CheckpointRecord]:
        """The checkpoints that the store has, newest first."""
        async with self.master.database.read() as connection:
            return await checkpoints.of_job(connection, job)

    def files(self, job: str, manifest: CheckpointManifest) -> list[Path]:
        return [self.settings.data / "blobs" / job / part.blob for part in manifest.parts]

    def is_whole(self, job: str, manifest: CheckpointManifest) -> bool:
        """True if all parts of a checkpoint are in the blob store, unchanged."""
        files = zip(self.files(job, manifest), manifest.parts, strict=True)
        return all(file.exists() and hashlib.sha256(file.read_bytes()).hexdigest() == p.sha256 for file, p in files)

    async def rows(self, job: str | None = None) -> Rows:
        """Every row of each table that is not empty, or those of a job alone."""
        found: Rows = {}
        async with self.master.database.read() as connection:
            for table in schema.metadata.sorted_tables:
                query = select(table)
                if job is not None:
                    owner = table.c.id if table is schema.jobs else table.c.get("job")
                    if owner is None:
                        continue
                    query = query.where(owner == job)
                rows = [tuple(row) for row in await connection.execute(query)]
                found |= {table.name: sorted(rows, key=repr)} if rows else {}
        return found

    def all_files(self) -> set[Path]:
        """The files of the jobs on the master's volume."""
        return {path for name in ("streams", "blobs") for path in (self.settings.data / name).rglob("*")}

    def traces(self, job: str) -> list[Path]:
        """The folders of a job on the master's volume."""
        return [path for name in ("streams", "blobs") if (path := self.settings.data / name / job).exists()]


def sending(body: bytes) -> Request:
    """A request with this body."""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    headers = [(b"content-length", str(len(body)).encode())]
    return Request({"type": "http", "method": "PUT", "headers": headers}, receive)

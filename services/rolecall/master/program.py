"""The control program: its parts, put together once for each term of leadership, and the loops that run them.

`Program` lives as long as the process, `Master` as long as it leads.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NoReturn

from prometheus_client import CollectorRegistry, Gauge, Histogram

from rolecall.master.access import Access, built_in
from rolecall.master.access_sync import AccessSync
from rolecall.master.answers import Answers
from rolecall.master.blobs import Blobs
from rolecall.master.catalogue import Catalogue
from rolecall.master.cleaner import Cleaner
from rolecall.master.clock import Clock
from rolecall.master.leadership import Leadership
from rolecall.master.placer import Placer
from rolecall.master.presence import Presence
from rolecall.master.progress import ProgressBook
from rolecall.master.reconciler import Reconciler
from rolecall.master.request_checks import RequestChecks
from rolecall.master.retention import Policy
from rolecall.master.signals import Signal, Signals
from rolecall.master.space import JobQuota, Reserve
from rolecall.master.storage_errors import LeadershipLost
from rolecall.master.store import signing
from rolecall.master.store.database import Database, sqlite_url
from rolecall.master.streams import Streams
from rolecall.master.verification import Verifier
from rolecall.master.view import View
from rolecall.master.waking import Waking
from rolecall.settings import MasterSettings

_WAIT_BUCKETS_S = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000, 10000)


@dataclass(frozen=True, slots=True)
class Master:
    """What the HTTP routes and the loops share while this process leads."""

    clock: Clock
    settings: MasterSettings
    catalogue: Catalogue
    request_checks: RequestChecks
    database: Database
    access: Access
    sync: AccessSync
    """Keeps `access` up to date."""
    signing_key: str
    """From which the tokens of attempts are derived."""
    presence: Presence
    streams: Streams
    blobs: Blobs
    progress: ProgressBook
    reserve: Reserve
    job_quota: JobQuota
    view: View
    reconciler: Reconciler
    placer: Placer
    cleaner: Cleaner
    verifier: Verifier
    answers: Answers
    """What each node was answered last, and the signal that it may be different."""
    news: Signals
    """A signal for each job: there may be more for those who follow it."""
    waking: Waking
    """To be called after each commit, by whoever changed something."""
    garbage: Signal
    """Notified when there may be something to delete or to verify."""
    metrics_registry: CollectorRegistry
    term: int
    """The number of its term of leadership."""

    @property
    def loops(self) -> dict[str, Reconciler | Placer | Cleaner | Verifier | AccessSync]:
        """Everything that runs as long as it leads, by name."""
        return {
            "reconciler": self.reconciler,
            "placer": self.placer,
            "cleaner": self.cleaner,
            "verifier": self.verifier,
            "tokens": self.sync,
        }

    def release(self) -> None:
        """Answer all calls that are held back, now and from now on: the master is about to end."""
        self.answers.close()
        self.news.close()


@dataclass(slots=True, eq=False)
class Program:
    """The state of the process: the master while it leads, and why it has to end."""

    settings: MasterSettings
    catalogue: Catalogue
    clock: Clock = field(default_factory=Clock)
    master: Master | None = None
    """None while another one leads."""
    fault: BaseException | None = None
    """Why the program ends by itself."""
    stop: Callable[[], None] = lambda: None
    """Called when it has to."""
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    """Set as soon as it is known whether this master leads."""

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Serve as soon as it is known whether this master leads; one that has to wait serves `/healthz` alone."""
        self.settings.data.mkdir(parents=True, exist_ok=True)
        term = asyncio.create_task(self._lead(), name="leadership")
        term.add_done_callback(self._end)
        await self.settled.wait()
        try:
            yield
        finally:
            term.cancel()
            await asyncio.wait({term})

    async def _lead(self) -> None:
        """Wait until no other master leads, then be the master until another one is."""
        leadership = Leadership(self.settings, self.clock)
        try:
            await leadership.take(waits=self.settled.set)
            async with open_master(self.settings, self.catalogue, leadership, self.clock) as master:
                self.master = master
                loops = [asyncio.create_task(loop.run(), name=name) for name, loop in master.loops.items()]
                loops.append(asyncio.create_task(leadership.watch(master.database, master.term), name="leadership"))
                self.settled.set()
                try:
                    await _await_fault(loops)
                finally:
                    self.master = None
                    master.release()
                    for loop in loops:
                        loop.cancel()
                    await asyncio.wait(loops)
        finally:
            await leadership.release()

    def _end(self, term: asyncio.Task[None]) -> None:
        """The term is over: because the program ends, or else that is why it has to end."""
        if not term.cancelled():
            self.fault = term.exception()
            self.stop()
        self.settled.set()


def program_of(app: Any) -> Program:
    """The program that an ASGI application serves."""
    return app.state.program


def master_of(app: Any) -> Master:
    """Its master. Raises `LeadershipLost` while it doesn't lead."""
    master = program_of(app).master
    if master is None:
        raise LeadershipLost("this master does not lead (any more)")
    return master


async def _await_fault(loops: Collection[asyncio.Task[None]]) -> NoReturn:
    """Wait for the first of the loops that ends, none of which ever should, and raise what ended it."""
    ended, _ = await asyncio.wait(loops, return_when=asyncio.FIRST_COMPLETED)
    for loop in ended:
        if not loop.cancelled() and (error := loop.exception()) is not None:
            raise error
    names = ", ".join(loop.get_name() for loop in ended)
    raise RuntimeError(f"the master ends because a loop of it has ended without an error: {names}")


@asynccontextmanager
async def open_master(
    settings: MasterSettings, catalogue: Catalogue, leadership: Leadership, clock: Clock
) -> AsyncGenerator[Master]:
    """A master on its migrated database, in a new term of its own; closes what it opened at the end."""
    database = Database(_database_url(settings))
    blobs = Blobs(settings.data / "blobs", settings.blob_url, settings.blob_timeout_s, clock.monotonic)
    try:
        await database.migrate()
        term = await leadership.begin(database)
        signing_key = await signing.load_key(database)
        master = _assemble(settings, catalogue, database, blobs, clock, term=term, signing_key=signing_key)
        await master.sync.refresh()
        yield master
    finally:
        blobs.close()
        await database.close()


def _assemble(
    settings: MasterSettings,
    catalogue: Catalogue,
    database: Database,
    blobs: Blobs,
    clock: Clock,
    *,
    term: int,
    signing_key: str,
) -> Master:
    answers, news = Answers(clock.monotonic), Signals()
    access = _access(settings, clock)
    registry = CollectorRegistry()
    _hung_calls(registry).set_function(lambda: blobs.hung)
    presence = Presence(settings.node_timeout_s, clock.monotonic)
    streams = Streams(settings.data / "streams", settings.log_bytes, clock.monotonic)
    progress = ProgressBook(streams)
    view = View(database, catalogue, clock.monotonic)
    waking = Waking(view, answers, news)
    garbage = Signal()
    reconciler = Reconciler(
        clock=clock,
        database=database,
        catalogue=catalogue,
        presence=presence,
        progress=progress,
        view=view,
        waking=waking,
        garbage=garbage,
    )
    placer = Placer(
        clock=clock,
        database=database,
        access=access,
        catalogue=catalogue,
        presence=presence,
        view=view,
        waking=waking,
        placement_seconds=_placement_seconds(registry),
        backfill_window=timedelta(seconds=settings.backfill_window_s),
    )
    waking.connect(reconciler.wake, placer.wake)
    cleaner = Cleaner(
        database=database,
        blobs=blobs,
        streams=streams,
        policy=Policy.of(settings),
        garbage=garbage,
        clock=clock,
    )
    verifier = Verifier(database=database, blobs=blobs, garbage=garbage, settled=waking.jobs, clock=clock)
    return Master(
        clock=clock,
        settings=settings,
        catalogue=catalogue,
        request_checks=RequestChecks(catalogue),
        database=database,
        access=access,
        sync=AccessSync(database, access, clock),
        signing_key=signing_key,
        presence=presence,
        streams=streams,
        blobs=blobs,
        progress=progress,
        reserve=Reserve(settings.data, settings.reserve_bytes, clock.monotonic),
        job_quota=JobQuota(settings.max_job_bytes),
        view=view,
        reconciler=reconciler,
        placer=placer,
        cleaner=cleaner,
        verifier=verifier,
        answers=answers,
        news=news,
        waking=waking,
        garbage=garbage,
        metrics_registry=registry,
        term=term,
    )


def _access(settings: MasterSettings, clock: Clock) -> Access:
    admin, node, metrics = settings.token, settings.node_token, settings.metrics_token
    return Access(
        built_in(admin.get_secret_value(), node.get_secret_value(), metrics.get_secret_value() if metrics else None),
        clock.now,
    )


def _hung_calls(registry: CollectorRegistry) -> Gauge:
    about = "Calls to the blob store that take longer than ROLECALL_BLOB_TIMEOUT_S."
    return Gauge("rolecall_blob_store_hung_calls", about, registry=registry)


def _placement_seconds(registry: CollectorRegistry) -> Histogram:
    about = "Seconds from a job's entering the queue to the plan for its gang."
    return Histogram("rolecall_placement_seconds", about, registry=registry, buckets=_WAIT_BUCKETS_S)


def _database_url(settings: MasterSettings) -> str:
    if settings.database_url is not None:
        return settings.database_url.get_secret_value()
    return sqlite_url(settings.data / "rolecall.db")

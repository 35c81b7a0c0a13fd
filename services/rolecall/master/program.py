"""The control program: `Program` exists as long as the process, and a `Master`, with all parts, as long as it leads."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NoReturn

from fastapi import FastAPI

from rolecall.master.access import Access, built_in
from rolecall.master.access_sync import AccessSync
from rolecall.master.answers import Answers
from rolecall.master.blobs import Blobs
from rolecall.master.catalogue import Catalogue
from rolecall.master.cleaner import Cleaner
from rolecall.master.clock import Clock
from rolecall.master.exporter import Exporter, Target
from rolecall.master.history import History
from rolecall.master.inspections import Inspections
from rolecall.master.instruments import Instruments
from rolecall.master.lag import Lag
from rolecall.master.leadership import Leadership
from rolecall.master.notifier import Notifier
from rolecall.master.placer import Placer
from rolecall.master.presence import Presence, longest_silence_s
from rolecall.master.progress import ProgressBook
from rolecall.master.reconciler import Reconciler
from rolecall.master.request_checks import RequestChecks
from rolecall.master.retention import RetentionPolicy
from rolecall.master.series import SeriesBook
from rolecall.master.sessions import Sessions
from rolecall.master.signals import Signal, Signals
from rolecall.master.space import JobQuota, Reserve
from rolecall.master.storage_errors import LeadershipLost
from rolecall.master.store import signing
from rolecall.master.store.database import Database, sqlite_url
from rolecall.master.streams import Streams
from rolecall.master.tracer import TraceCollector
from rolecall.master.tracking import TrackerPlace, TrackerTarget, mlflow_server, tensorboard_folder
from rolecall.master.user_threads import UserThreads
from rolecall.master.verification import Verifier
from rolecall.master.view import View
from rolecall.master.waking import Waking
from rolecall.settings.master import MasterSettings


@dataclass(frozen=True, slots=True)
class Master:
    """The parts that the HTTP routes and the loops share while this process leads."""

    clock: Clock
    settings: MasterSettings
    catalogue: Catalogue
    request_checks: RequestChecks
    database: Database
    access: Access
    sync: AccessSync
    """Keeps `access` up to date."""
    signing_key: str
    """The key from which the tokens of attempts are derived."""
    sessions: Sessions
    """The sessions of browsers."""
    presence: Presence
    lag: Lag
    """The delays of the event loop, which `presence` takes into account."""
    streams: Streams
    blobs: Blobs
    progress: ProgressBook
    series: SeriesBook
    log_threads: UserThreads
    chart_threads: UserThreads
    """For series and timelines, which can take seconds."""
    reserve: Reserve
    job_quota: JobQuota
    view: View
    history: History
    """The times of jobs, for the metrics."""
    reconciler: Reconciler
    placer: Placer
    cleaner: Cleaner
    verifier: Verifier
    answers: Answers
    """The last answer to each node, and the signal that it may have changed."""
    inspections: Inspections
    news: Signals
    """A signal for each job that its followers can read more."""
    waking: Waking
    """Called after each commit by the code that changed something."""
    notifier: Notifier
    exporters: dict[str, Exporter]
    """The exporters that are set up, by name."""
    garbage: Signal
    """The signal that there may be something to delete or to verify."""
    instruments: Instruments
    term: int

    @property
    def loops(self) -> dict[str, Reconciler | Placer | Cleaner | Verifier | AccessSync | Notifier | Exporter]:
        """The loops that run while it leads, by name."""
        return {
            "reconciler": self.reconciler,
            "placer": self.placer,
            "cleaner": self.cleaner,
            "verifier": self.verifier,
            "tokens": self.sync,
            "notifier": self.notifier,
            **self.exporters,
        }

    def release(self) -> None:
        """Answer all delayed calls immediately, now and in the future, because the master exits."""
        self.answers.close()
        self.news.close()


@asynccontextmanager
async def open_master(
    settings: MasterSettings, catalogue: Catalogue, leadership: Leadership, clock: Clock
) -> AsyncGenerator[Master]:
    """A master with a migrated database, in a new term. Closes its resources at the end."""
    url = settings.database_url
    instruments = Instruments()
    address = url.get_secret_value() if url else sqlite_url(settings.sqlite_file)
    database = Database(address, observe=instruments.transaction)
    folder, observe = settings.data / "blobs", instruments.blob_store_call
    blobs = Blobs(folder, settings.blob_url, settings.blob_timeout_s, clock.monotonic, observe)
    instruments.hung_calls.set_function(lambda: blobs.hung)
    try:
        await database.migrate()
        term = await leadership.begin(database)
        signing_key = await signing.load_key(database)
        access = _access(settings, clock)
        lag = Lag(longest_silence_s(settings.node_timeout_s))  # Of the event loop, whose clock is not `clock`.
        presence = Presence(settings.node_timeout_s, clock.monotonic, lag.recent_s)
        streams = Streams(settings.data / "streams", settings.log_bytes, clock)
        progress = ProgressBook(streams)
        charts = UserThreads("charts", each=1)
        answers, news, garbage = Answers(clock.monotonic), Signals(), Signal()
        view = View(database, catalogue, clock.monotonic)
        waking = Waking(view, answers, news)
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
            instruments=instruments,
            backfill_window=timedelta(seconds=settings.backfill_window_s),
        )
        waking.connect(reconciler.wake, placer.wake)
        master = Master(
            clock=clock,
            settings=settings,
            catalogue=catalogue,
            request_checks=RequestChecks(catalogue),
            database=database,
            access=access,
            sync=AccessSync(database, access, clock),
            signing_key=signing_key,
            sessions=Sessions(access, signing_key, clock.now),
            presence=presence,
            lag=lag,
            streams=streams,
            blobs=blobs,
            progress=progress,
            series=SeriesBook(streams, charts),
            log_threads=UserThreads("logs"),
            chart_threads=charts,
            reserve=Reserve(settings.data, settings.reserve_bytes, clock.monotonic),
            job_quota=JobQuota(settings.max_job_bytes),
            view=view,
            history=History(),
            reconciler=reconciler,
            placer=placer,
            cleaner=Cleaner(
                database=database,
                blobs=blobs,
                streams=streams,
                policy=RetentionPolicy.of(settings),
                garbage=garbage,
                clock=clock,
            ),
            verifier=Verifier(database=database, blobs=blobs, garbage=garbage, settled=waking.jobs, clock=clock),
            answers=answers,
            inspections=Inspections(answers.notify),
            news=news,
            waking=waking,
            notifier=Notifier(
                database=database,
                signing_key=signing_key,
                hosts=settings.webhook_hosts,
                networks=tuple(map(str, settings.webhook_networks)),
                clock=clock,
            ),
            exporters=_exporters(settings, database, streams, instruments, clock),
            garbage=garbage,
            instruments=instruments,
            term=term,
        )
        await master.sync.refresh()
        with closing(master.log_threads), closing(master.chart_threads):
            yield master
    finally:
        blobs.close()
        await database.close()


def _exporters(
    settings: MasterSettings, database: Database, streams: Streams, instruments: Instruments, clock: Clock
) -> dict[str, Exporter]:
    def exporter(target: Target, *, pause_s: float) -> Exporter:
        return Exporter(target=target, pause_s=pause_s, database=database, instruments=instruments, clock=clock)

    def tracking(place: TrackerPlace) -> Exporter:
        return exporter(TrackerTarget(place, database=database, streams=streams, clock=clock), pause_s=5.0)

    found: dict[str, Exporter] = {}
    if settings.otlp_endpoint is not None:
        found["traces"] = exporter(TraceCollector(settings.otlp_endpoint, database), pause_s=2.0)
    if settings.mlflow_uri is not None:
        uri = settings.mlflow_uri.get_secret_value()
        found["mlflow"] = tracking(mlflow_server(uri, settings.mlflow_experiment))
    if settings.tensorboard_dir is not None:
        found["tensorboard"] = tracking(tensorboard_folder(settings.tensorboard_dir))
    return found


def _access(settings: MasterSettings, clock: Clock) -> Access:
    admin, node, metrics = settings.token, settings.node_token, settings.metrics_token
    return Access(
        built_in(admin.get_secret_value(), node.get_secret_value(), metrics.get_secret_value() if metrics else None),
        clock.now,
    )


@dataclass(slots=True, eq=False)
class Program:
    """The state of the process: the master while it leads, and the reason for its end."""

    settings: MasterSettings
    catalogue: Catalogue
    clock: Clock = field(default_factory=Clock)
    master: Master | None = None
    """None while another master leads."""
    fault: BaseException | None = None
    """The reason why the program ends without a signal."""
    stop: Callable[[], None] = lambda: None
    """Called when the program has to end."""
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it is known whether this master leads."""

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Start, and wait until it is known whether this master leads. A standby serves only `/healthz`."""
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
        """Wait until no other master leads, then lead until another one takes over."""
        leadership = Leadership(self.settings, self.clock)
        try:
            await leadership.take(waits=self.settled.set)
            async with open_master(self.settings, self.catalogue, leadership, self.clock) as master:
                self.master = master
                loops = [asyncio.create_task(loop.run(), name=name) for name, loop in master.loops.items()]
                loops.append(asyncio.create_task(leadership.watch(master.database, master.term), name="leadership"))
                loops.append(asyncio.create_task(master.lag.run(), name="lag"))
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
        """End the program when the term is over, unless the program's end is the reason."""
        if not term.cancelled():
            self.fault = term.exception()
            self.stop()
        self.settled.set()


class Application(FastAPI):
    """The ASGI application of a program."""

    program: Program


def program_of(app: Any) -> Program:
    """The program of an ASGI application, which Starlette passes without its type."""
    assert isinstance(app, Application)
    return app.program


def master_of(app: Any) -> Master:
    """The master of an ASGI application. Raises `LeadershipLost` while it doesn't lead."""
    master = program_of(app).master
    if master is None:
        raise LeadershipLost("this master does not lead (any more)")
    return master


async def _await_fault(loops: Collection[asyncio.Task[None]]) -> NoReturn:
    """Wait for the first loop to end, which none should, and raise its error."""
    ended, _ = await asyncio.wait(loops, return_when=asyncio.FIRST_COMPLETED)
    for loop in ended:
        if not loop.cancelled() and (error := loop.exception()) is not None:
            raise error
    names = ", ".join(loop.get_name() for loop in ended)
    raise RuntimeError(f"a loop of the master has ended without an error, so the master exits: {names}")

"""The parts of a master, assembled for one term of leadership. `Master` exists as long as the process leads."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from datetime import timedelta
from typing import Self

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
        parts = _Parts.of(settings, catalogue, database, blobs, clock, instruments)
        master = _assemble(parts, term, signing_key)
        await master.sync.refresh()
        with closing(master.log_threads), closing(master.chart_threads):
            yield master
    finally:
        blobs.close()
        await database.close()


@dataclass(frozen=True, slots=True)
class _Parts:
    """The loops, and the parts that they share."""

    clock: Clock
    settings: MasterSettings
    catalogue: Catalogue
    database: Database
    blobs: Blobs
    instruments: Instruments
    access: Access
    presence: Presence
    lag: Lag
    streams: Streams
    progress: ProgressBook
    answers: Answers
    news: Signals
    view: View
    waking: Waking
    garbage: Signal

    @classmethod
    def of(  # noqa: PLR0917 - in the order of the fields
        cls,
        settings: MasterSettings,
        catalogue: Catalogue,
        database: Database,
        blobs: Blobs,
        clock: Clock,
        instruments: Instruments,
    ) -> Self:
        answers, news = Answers(clock.monotonic), Signals()
        lag = Lag(longest_silence_s(settings.node_timeout_s))  # Of the event loop, whose clock is not `clock`.
        streams = Streams(settings.data / "streams", settings.log_bytes, clock)
        view = View(database, catalogue, clock.monotonic)
        return cls(
            clock=clock,
            settings=settings,
            catalogue=catalogue,
            database=database,
            blobs=blobs,
            instruments=instruments,
            access=_access(settings, clock),
            presence=Presence(settings.node_timeout_s, clock.monotonic, lag.recent_s),
            lag=lag,
            streams=streams,
            progress=ProgressBook(streams),
            answers=answers,
            news=news,
            view=view,
            waking=Waking(view, answers, news),
            garbage=Signal(),
        )

    def reconciler(self) -> Reconciler:
        return Reconciler(
            clock=self.clock,
            database=self.database,
            catalogue=self.catalogue,
            presence=self.presence,
            progress=self.progress,
            view=self.view,
            waking=self.waking,
            garbage=self.garbage,
        )

    def placer(self) -> Placer:
        return Placer(
            clock=self.clock,
            database=self.database,
            access=self.access,
            catalogue=self.catalogue,
            presence=self.presence,
            view=self.view,
            waking=self.waking,
            instruments=self.instruments,
            backfill_window=timedelta(seconds=self.settings.backfill_window_s),
        )

    def cleaner(self) -> Cleaner:
        return Cleaner(
            database=self.database,
            blobs=self.blobs,
            streams=self.streams,
            policy=RetentionPolicy.of(self.settings),
            garbage=self.garbage,
            clock=self.clock,
        )

    def verifier(self) -> Verifier:
        return Verifier(
            database=self.database,
            blobs=self.blobs,
            garbage=self.garbage,
            settled=self.waking.jobs,
            clock=self.clock,
        )

    def notifier(self, signing_key: str) -> Notifier:
        return Notifier(
            database=self.database,
            signing_key=signing_key,
            hosts=self.settings.webhook_hosts,
            networks=tuple(map(str, self.settings.webhook_networks)),
            clock=self.clock,
        )

    def exporters(self) -> dict[str, Exporter]:
        settings = self.settings
        found: dict[str, Exporter] = {}
        if settings.otlp_endpoint is not None:
            found["traces"] = self._exporter(TraceCollector(settings.otlp_endpoint, self.database), pause_s=2.0)
        if settings.mlflow_uri is not None:
            uri = settings.mlflow_uri.get_secret_value()
            found["mlflow"] = self._tracking(mlflow_server(uri, settings.mlflow_experiment))
        if settings.tensorboard_dir is not None:
            found["tensorboard"] = self._tracking(tensorboard_folder(settings.tensorboard_dir))
        return found

    def _tracking(self, place: TrackerPlace) -> Exporter:
        target = TrackerTarget(place, database=self.database, streams=self.streams, clock=self.clock)
        return self._exporter(target, pause_s=5.0)

    def _exporter(self, target: Target, *, pause_s: float) -> Exporter:
        return Exporter(
            target=target, pause_s=pause_s, database=self.database, instruments=self.instruments, clock=self.clock
        )


def _assemble(parts: _Parts, term: int, signing_key: str) -> Master:
    settings, clock = parts.settings, parts.clock
    reconciler, placer = parts.reconciler(), parts.placer()
    parts.waking.connect(reconciler.wake, placer.wake)
    charts = UserThreads("charts", each=1)
    return Master(
        clock=clock,
        settings=settings,
        catalogue=parts.catalogue,
        request_checks=RequestChecks(parts.catalogue),
        database=parts.database,
        access=parts.access,
        sync=AccessSync(parts.database, parts.access, clock),
        signing_key=signing_key,
        sessions=Sessions(parts.access, signing_key, clock.now),
        presence=parts.presence,
        lag=parts.lag,
        streams=parts.streams,
        blobs=parts.blobs,
        progress=parts.progress,
        series=SeriesBook(parts.streams, charts),
        log_threads=UserThreads("logs"),
        chart_threads=charts,
        reserve=Reserve(settings.data, settings.reserve_bytes, clock.monotonic),
        job_quota=JobQuota(settings.max_job_bytes),
        view=parts.view,
        history=History(),
        reconciler=reconciler,
        placer=placer,
        cleaner=parts.cleaner(),
        verifier=parts.verifier(),
        answers=parts.answers,
        inspections=Inspections(parts.answers.notify),
        news=parts.news,
        waking=parts.waking,
        notifier=parts.notifier(signing_key),
        exporters=parts.exporters(),
        garbage=parts.garbage,
        instruments=parts.instruments,
        term=term,
    )


def _access(settings: MasterSettings, clock: Clock) -> Access:
    admin, node, metrics = settings.token, settings.node_token, settings.metrics_token
    return Access(
        built_in(admin.get_secret_value(), node.get_secret_value(), metrics.get_secret_value() if metrics else None),
        clock.now,
    )

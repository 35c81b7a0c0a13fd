"""The parts of one running master, put together once."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from prometheus_client import CollectorRegistry, Gauge, Histogram

from rolecall.master.access import Access, built_in
from rolecall.master.access_sync import AccessSync
from rolecall.master.answers import Answers
from rolecall.master.blobs import Blobs
from rolecall.master.catalogue import Catalogue
from rolecall.master.checks import Checks
from rolecall.master.cleaner import Cleaner
from rolecall.master.leadership import Leadership
from rolecall.master.placer import Placer
from rolecall.master.presence import Presence
from rolecall.master.progress import ProgressBook
from rolecall.master.reconciler import Reconciler
from rolecall.master.retention import Policy
from rolecall.master.signals import Signal, Signals
from rolecall.master.space import Quota, Reserve
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
    """What the HTTP routes and the loops share."""

    settings: MasterSettings
    catalogue: Catalogue
    checks: Checks
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
    quota: Quota
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
    registry: CollectorRegistry
    term: int
    """The number of its term of leadership."""


@asynccontextmanager
async def open_master(
    settings: MasterSettings, catalogue: Catalogue, answers: Answers, news: Signals, leadership: Leadership
) -> AsyncGenerator[Master]:
    """A master on its migrated database, in a new term of its own; closes what it opened at the end."""
    database = Database(_database_url(settings))
    blobs = Blobs(settings.data / "blobs", settings.blob_url, settings.blob_timeout_s)
    try:
        await database.migrate()
        term = await leadership.begin(database)
        signing_key = await signing.load_key(database)
        master = _assemble(
            settings, catalogue, database, blobs, answers=answers, news=news, term=term, signing_key=signing_key
        )
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
    *,
    answers: Answers,
    news: Signals,
    term: int,
    signing_key: str,
) -> Master:
    access = _access(settings)
    registry = CollectorRegistry()
    _hung_calls(registry).set_function(lambda: blobs.hung)
    presence = Presence(settings.node_timeout_s)
    streams = Streams(settings.data / "streams", settings.log_bytes)
    progress = ProgressBook(streams)
    view = View(database, catalogue)
    waking = Waking(view, answers, news)
    garbage = Signal()
    reconciler = Reconciler(
        database=database,
        catalogue=catalogue,
        presence=presence,
        progress=progress,
        view=view,
        waking=waking,
        garbage=garbage,
    )
    placer = Placer(
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
        clock=_now,
    )
    verifier = Verifier(database=database, blobs=blobs, garbage=garbage, settled=waking.jobs, clock=_now)
    return Master(
        settings=settings,
        catalogue=catalogue,
        checks=Checks(catalogue),
        database=database,
        access=access,
        sync=AccessSync(database, access),
        signing_key=signing_key,
        presence=presence,
        streams=streams,
        blobs=blobs,
        progress=progress,
        reserve=Reserve(settings.data, settings.reserve_bytes),
        quota=Quota(settings.max_job_bytes),
        view=view,
        reconciler=reconciler,
        placer=placer,
        cleaner=cleaner,
        verifier=verifier,
        answers=answers,
        news=news,
        waking=waking,
        garbage=garbage,
        registry=registry,
        term=term,
    )


def _access(settings: MasterSettings) -> Access:
    admin, node, metrics = settings.token, settings.node_token, settings.metrics_token
    return Access(
        built_in(admin.get_secret_value(), node.get_secret_value(), metrics.get_secret_value() if metrics else None)
    )


def _hung_calls(registry: CollectorRegistry) -> Gauge:
    about = "Calls to the blob store that take longer than ROLECALL_BLOB_TIMEOUT_S."
    return Gauge("rolecall_blob_store_hung_calls", about, registry=registry)


def _now() -> datetime:
    return datetime.now(UTC)


def _placement_seconds(registry: CollectorRegistry) -> Histogram:
    about = "Seconds from a job's entering the queue to the plan for its gang."
    return Histogram("rolecall_placement_seconds", about, registry=registry, buckets=_WAIT_BUCKETS_S)


def _database_url(settings: MasterSettings) -> str:
    if settings.database_url is not None:
        return settings.database_url.get_secret_value()
    return sqlite_url(settings.data / "rolecall.db")

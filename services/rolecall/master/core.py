"""The parts of one running master, put together once."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

from prometheus_client import CollectorRegistry, Histogram

from rolecall.master.answers import Answers
from rolecall.master.blobs import Blobs
from rolecall.master.catalogue import Catalogue
from rolecall.master.placer import Placer
from rolecall.master.presence import Presence
from rolecall.master.progress import ProgressBook
from rolecall.master.reconciler import Reconciler
from rolecall.master.signals import Signals
from rolecall.master.store.database import Database, sqlite_url
from rolecall.master.streams import Streams
from rolecall.master.view import View
from rolecall.master.waking import Waking
from rolecall.settings import MasterSettings

_WAIT_BUCKETS_S = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000, 10000)


@dataclass(frozen=True, slots=True)
class Master:
    """What the HTTP routes and the reconciler share."""

    settings: MasterSettings
    catalogue: Catalogue
    database: Database
    presence: Presence
    streams: Streams
    blobs: Blobs
    progress: ProgressBook
    view: View
    reconciler: Reconciler
    placer: Placer
    answers: Answers
    """What each node was answered last, and the signal that it may be different."""
    news: Signals
    """A signal for each job: there may be more for those who follow it."""
    waking: Waking
    """To be called after each commit, by whoever changed something."""
    registry: CollectorRegistry


@asynccontextmanager
async def open_master(
    settings: MasterSettings, catalogue: Catalogue, answers: Answers, news: Signals
) -> AsyncGenerator[Master]:
    """A master on its migrated database; closes the database at the end."""
    settings.data.mkdir(parents=True, exist_ok=True)
    database = Database(_database_url(settings))
    try:
        await database.migrate()
        yield _assemble(settings, catalogue, database, answers=answers, news=news)
    finally:
        await database.close()


def _assemble(
    settings: MasterSettings, catalogue: Catalogue, database: Database, *, answers: Answers, news: Signals
) -> Master:
    registry = CollectorRegistry()
    presence = Presence(settings.node_timeout_s)
    streams = Streams(settings.data / "streams")
    blobs = Blobs(settings.data / "blobs", settings.blob_url)
    progress = ProgressBook(streams)
    view = View(database, catalogue)
    waking = Waking(view, answers, news)
    reconciler = Reconciler(
        database=database,
        catalogue=catalogue,
        presence=presence,
        progress=progress,
        blobs=blobs,
        view=view,
        waking=waking,
    )
    placer = Placer(
        database=database,
        catalogue=catalogue,
        presence=presence,
        view=view,
        waking=waking,
        placement_seconds=_placement_seconds(registry),
        backfill_window=timedelta(seconds=settings.backfill_window_s),
    )
    waking.add(reconciler.wake)
    waking.add(placer.wake)
    return Master(
        settings=settings,
        catalogue=catalogue,
        database=database,
        presence=presence,
        streams=streams,
        blobs=blobs,
        progress=progress,
        view=view,
        reconciler=reconciler,
        placer=placer,
        answers=answers,
        news=news,
        waking=waking,
        registry=registry,
    )


def _placement_seconds(registry: CollectorRegistry) -> Histogram:
    about = "Seconds from a job's entering the queue to the plan for its gang."
    return Histogram("rolecall_placement_seconds", about, registry=registry, buckets=_WAIT_BUCKETS_S)


def _database_url(settings: MasterSettings) -> str:
    if settings.database_url is not None:
        return settings.database_url.get_secret_value()
    return sqlite_url(settings.data / "rolecall.db")

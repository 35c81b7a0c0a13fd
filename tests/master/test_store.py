# pyright: standard
"""The store on SQLite and on PostgreSQL: its guards, and that its migrations make its tables."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import Connection, Engine, create_engine, event, insert, inspect, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from rolecall.master.store import (
    artifacts,
    attempts,
    checkpoints,
    deletion,
    events,
    idempotency,
    jobs,
    labels,
    listing,
    nodes,
    notifications,
    schema,
    signing,
    tokens,
    workers,
)
from rolecall.master.store.database import Database, sqlite_url
from rolecall.master.store.listing import Selection
from rolecall.master.store.schema import jobs as jobs_table
from rolecall.master.store.schema import metadata
from rolecall.spec.access import Limits, Scope, TokenRequest
from rolecall.spec.api import RETENTION
from rolecall.spec.errors import Conflict, IllegalTransition, NotFound, StaleAttempt
from rolecall.spec.job import JobSpec, Progress
from rolecall.spec.plan import CheckpointManifest, CheckpointPart, GangPlan, WorkerPlan
from rolecall.spec.resources import Resources
from rolecall.spec.role import Role
from rolecall.spec.state import JobState, WorkerState
from rolecall.spec.wire import ArtifactNotice

from .harness import make_node

MIGRATIONS = Path(jobs.__file__).parent / "migrations"
NOW = datetime(2030, 1, 1, tzinfo=UTC)
PLAN = GangPlan(workers=(WorkerPlan(rank=0, role=Role.TRAINER, role_rank=0, node="trainer-0", threads=1),))
Use = Callable[[Callable[[Database], Awaitable[None]]], None]


@pytest.fixture(scope="session")
def plain_postgres_url(postgres_url: str) -> Iterator[str]:
    """The URL of a database without an encoding, as `initdb` makes them where the locale is C."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE plain ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0")
        yield f"{postgres_url.rpartition('/')[0]}/plain"
        connection.execute("DROP DATABASE plain")


@pytest.fixture(params=["sqlite", "postgresql", "postgresql without an encoding"])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    """An empty, migrated database."""
    servers = {"postgresql": "postgres_url", "postgresql without an encoding": "plain_postgres_url"}
    server = servers.get(request.param)
    url = request.getfixturevalue(server) if server else sqlite_url(tmp_path / "test.db")
    database = Database(url)
    try:
        await database.migrate()
        yield database
        async with database.write() as connection:
            for table in reversed(metadata.sorted_tables):
                await connection.execute(table.delete())
    finally:
        await database.close()


def spec(name: str = "toy-1") -> JobSpec:
    """A job for one trainer."""
    resources = {Role.TRAINER: Resources(gpus=1, threads=2)}
    own = {"params": {"a": [1, "ü\0"]}, "deadline_s": 5, "resources": resources}
    return JobSpec(id=name, workload="toy", roles={Role.TRAINER: 1}, **own)


async def place_and_fail(database: Database) -> None:
    """A transaction that ends badly."""
    async with database.write() as connection:
        await _placed(connection)
        raise RuntimeError


async def _placed(connection: AsyncConnection) -> None:
    job = await jobs.add(connection, spec(), NOW)
    await attempts.begin(connection, job, PLAN, None, NOW)


async def test_a_job_keeps_a_bounded_number_of_events(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    # Users cause them: each change of a label is one, and all of them are part of a document.
    monkeypatch.setattr(events, "MAX_EVENTS", 100)
    async with database.write() as connection:
        await jobs.add(connection, spec(), NOW, "admin")
        await events.add_once(connection, "toy-1", 1, [events.WorkerEvent("1/0:0", NOW, "of a worker")])
        for number in range(events.MAX_EVENTS + 200):
            await events.add(connection, "toy-1", NOW, "change", f"change {number}")
        kept = await events.of_job(connection, "toy-1")
    assert events.MAX_EVENTS < len(kept) < events.MAX_EVENTS + 100
    assert (kept[0].message, kept[-1].message) == ("of a worker", f"change {events.MAX_EVENTS + 199}")


async def test_events_about_old_checkpoints_displace_no_others(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "MAX_EVENTS", 30)
    async with database.write() as connection:
        await jobs.add(connection, spec(), NOW, "admin")
        for number in range(events.MAX_EVENTS + 20):
            await events.add(connection, "toy-1", NOW, RETENTION, f"deletion {number}")
            *_, newest = await events.of_job(connection, "toy-1")
            assert newest.message == f"deletion {number}"
        kept = await events.of_job(connection, "toy-1")
    newest = f"deletion {events.MAX_EVENTS + 19}"
    assert [event.message for event in kept] == ["submitted by admin", newest], "one for each checkpoint is too many"


async def test_many_events_about_old_checkpoints_from_earlier_releases_expire(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "MAX_EVENTS", 100)
    rows = [{"job": "toy-1", "at": NOW, "kind": RETENTION, "message": f"deletion {number}"} for number in range(90)]
    async with database.write() as connection:
        await jobs.add(connection, spec(), NOW, "admin")
        await connection.execute(insert(schema.events), rows)
        await events.trim_all(connection)
        kept = await events.of_job(connection, "toy-1")
    assert [event.message for event in kept] == ["submitted by admin", "deletion 89"]


async def test_migrations_make_the_tables_of_the_schema(database: Database) -> None:
    def differences(connection: object) -> list[object]:
        return compare_metadata(MigrationContext.configure(connection), metadata)  # type: ignore[arg-type]

    await database.migrate()
    async with database.read() as connection:
        assert await connection.run_sync(differences) == []


async def test_a_job_comes_back_as_it_went_in(database: Database) -> None:
    async with database.write() as connection:
        stored = await jobs.add(connection, spec(), NOW)
    async with database.read() as connection:
        assert await jobs.get(connection, "toy-1") == stored
        assert stored.params == {"a": [1, "ü\0"]}
        assert stored.resources == {Role.TRAINER: Resources(gpus=1, threads=2)}
        assert stored.created_at == NOW
        assert stored.deadline_at is not None
        assert (stored.deadline_at - NOW).total_seconds() == 5
        with pytest.raises(NotFound, match="toy-2"):
            await jobs.get(connection, "toy-2")


async def test_a_transition_from_a_state_that_was_left_is_an_error(database: Database) -> None:
    async with database.write() as connection:
        job = await jobs.add(connection, spec(), NOW)
    async with database.write() as connection:
        await attempts.begin(connection, job, PLAN, None, NOW)
    for change in (
        lambda c: attempts.begin(c, job, PLAN, None, NOW),
        lambda c: jobs.move(c, job, JobState.CANCELLED, NOW, "too late"),
    ):
        with pytest.raises(StaleAttempt):
            async with database.write() as connection:
                await change(connection)
    with pytest.raises(IllegalTransition):
        async with database.write() as connection:
            await jobs.move(connection, job, JobState.SUCCEEDED, NOW, "not possible")
    async with database.read() as connection:
        assert (await jobs.get(connection, job.id)).state is JobState.PLACED


async def test_what_fails_in_a_transaction_leaves_no_trace(database: Database) -> None:
    with pytest.raises(RuntimeError):
        await place_and_fail(database)
    async with database.read() as connection:
        assert await jobs.in_states(connection, JobState) == []


async def test_workers_and_ports_are_guarded(database: Database) -> None:
    async with database.write() as connection:
        await _placed(connection)
        assert await attempts.set_port(connection, "toy-1", 1, 4711)
        assert not await attempts.set_port(connection, "toy-1", 1, 4712)
        (worker,) = await workers.on_node(connection, "trainer-0")
        await workers.end_all(connection, [worker], WorkerState.LOST)
        assert await workers.on_node(connection, "trainer-0") == []
        with pytest.raises(StaleAttempt):
            await workers.end_all(connection, [worker], WorkerState.STOPPED)


async def test_checkpoints_count_once_and_the_newest_comes_first(database: Database) -> None:
    async with database.write() as connection:
        await _placed(connection)
        for attempt, step in ((1, 10), (1, 20), (2, 15)):
            manifest = CheckpointManifest(attempt=attempt, step=step, parts=(), position={"step": step})
            assert await checkpoints.add(connection, "toy-1", manifest, NOW)
            assert not await checkpoints.add(connection, "toy-1", manifest, NOW)
        assert await checkpoints.newest(connection, "toy-1") == manifest
        assert await checkpoints.crowded_jobs(connection, 2) == ["toy-1"]
        with pytest.raises(Conflict, match="another checkpoint"):
            await checkpoints.add(connection, "toy-1", manifest.model_copy(update={"keep": True}), NOW)


async def test_two_kept_checkpoints_are_no_crowd(database: Database) -> None:
    async with database.write() as connection:
        await _placed(connection)
        for step in (1, 2, 3):
            assert await checkpoints.crowded_jobs(connection, 2) == []
            manifest = CheckpointManifest(attempt=1, step=step, parts=(), position={}, keep=step != 3)
            await checkpoints.add(connection, "toy-1", manifest, NOW)
        assert await checkpoints.crowded_jobs(connection, 2) == []


async def test_a_node_registers_over_its_earlier_incarnation(database: Database) -> None:
    node = make_node("trainer-0", Role.TRAINER)
    async with database.write() as connection:
        await nodes.put(connection, node, NOW)
        await nodes.put(connection, node.model_copy(update={"started": "second"}), NOW)
        assert [one.started for one in await nodes.list_all(connection)] == ["second"]


async def test_writers_wait_for_one_another(database: Database) -> None:
    """A reader that turns into a writer would fail on SQLite; ours take the lock first."""

    async def add(number: int) -> None:
        async with database.write() as connection:
            await jobs.count_by_state(connection)
            await jobs.add(connection, spec(f"toy-{number}"), NOW)

    await asyncio.gather(*(add(number) for number in range(12)))
    async with database.read() as connection:
        assert (await jobs.count_by_state(connection))[JobState.QUEUED] == 12


async def test_tokens_have_two_secrets_at_most_and_names_are_taken_once(database: Database) -> None:
    request = TokenRequest(name="alice", scopes=frozenset({Scope.SUBMIT, Scope.READ}), max_stored_bytes=1 << 40)
    later = NOW + timedelta(hours=1)

    async with database.write() as connection:
        await tokens.add(connection, request, "1", "admin", NOW)
    with pytest.raises(Conflict, match="alice"):
        async with database.write() as connection:
            await tokens.add(connection, request, "2", "admin", NOW)
    async with database.write() as connection:
        await tokens.lock(connection, "alice")
        await tokens.rotate(connection, "alice", "3", NOW + timedelta(seconds=1), later)
        await tokens.rotate(connection, "alice", "4", NOW + timedelta(seconds=2), later)
        await tokens.change(connection, "alice", {"max_slots": 3})
        await tokens.set_used(connection, {"alice": later})
    async with database.read() as connection:
        secrets = {one.digest: one.expires_at for one in await tokens.secrets(connection)}
        assert secrets == {"3": later, "4": None}
        (token,) = await tokens.list_all(connection)
        assert token.limits == Limits(max_slots=3, max_stored_bytes=1 << 40)
        assert (token.scopes, token.last_used_at, token.created_by) == (request.scopes, later, "admin")
    async with database.write() as connection:
        await tokens.remove(connection, "alice")
        assert await tokens.secrets(connection) == []
        with pytest.raises(NotFound, match="alice"):
            await tokens.remove(connection, "alice")


async def test_jobs_keys_and_bytes_belong_to_owners(database: Database) -> None:
    part = CheckpointPart(name="a", blob="1/a", size=3 << 40, sha256="0" * 64)
    manifest = CheckpointManifest(attempt=1, step=1, parts=(part, part), position={})

    async with database.write() as connection:
        for name, owner in (("toy-1", "alice"), ("toy-2", "bob"), ("toy-3", "alice")):
            assert (await jobs.add(connection, spec(name), NOW, owner)).owner == owner
            await idempotency.remember(connection, owner, f"key {name[-1] == '3'}", "digest", name, NOW)
        await checkpoints.add(connection, "toy-1", manifest, NOW)
        notice = ArtifactNotice(name="model", blob="1/model", size=5, sha256="0" * 64)
        await artifacts.put(connection, "toy-3", 1, notice, NOW)
    async with database.read() as connection:
        page, following = await listing.page(connection, Selection(owner="alice"), 9, None)
        assert ([job.id for job in page], following) == (["toy-3", "toy-1"], None)
        assert await jobs.count_waiting(connection, "alice") == 2
        request = len(spec("toy-1").model_dump_json())
        assert await jobs.stored_bytes(connection, "alice") == (6 << 40) + 5 + 2 * request
        assert await jobs.stored_bytes(connection, "alice", exclude=["toy-1"]) == 5 + request
        assert await jobs.stored_bytes(connection, "bob") == request
        assert await idempotency.job_of(connection, "alice", "key False", "digest") == "toy-1"
        assert await idempotency.job_of(connection, "bob", "key False", "digest") == "toy-2"
        assert await idempotency.job_of(connection, "bob", "key True", "digest") is None


async def test_jobs_are_found_by_their_labels_in_the_same_case(database: Database) -> None:
    async with database.write() as connection:
        for name, value in (("toy-1", "Vision"), ("toy-2", "vision")):
            labeled = spec(name).model_copy(update={"labels": {"team": value}, "name": f"{value}_%"})
            await jobs.add(connection, labeled, NOW)
    async with database.read() as connection:
        for selection, found in (
            (Selection(labels=(("team", "vision"),)), ["toy-2"]),
            (Selection(labels=(("team", None),), created_after=NOW - timedelta(seconds=1)), ["toy-2", "toy-1"]),
            (Selection(name="VISION_%", states=(JobState.QUEUED,), workload="toy"), ["toy-2", "toy-1"]),
            (Selection(name="_n"), []),
            (Selection(created_before=NOW), []),
        ):
            assert [job.id for job in (await listing.page(connection, selection, 9, None))[0]] == found


@pytest.mark.slow
@pytest.mark.parametrize("order", ["newest", "queue"])
async def test_a_page_of_large_jobs_is_shorter_and_one_that_is_too_large_is_alone(
    database: Database, order: listing.Order
) -> None:
    async with database.write() as connection:
        for name, millions in (("toy-1", 1.5), ("toy-2", 1.5), ("toy-3", 5.0), ("toy-4", 1.5), ("toy-5", 1.5)):
            await jobs.add(connection, spec(name), NOW)
            await jobs.set_progress(connection, name, Progress(metrics={"x" * int(millions * 1e6): 1.0}))
    pages = [["toy-1", "toy-2"], ["toy-3"], ["toy-4", "toy-5"]]
    expected = pages if order == "queue" else [page[::-1] for page in reversed(pages)]
    seen: list[list[str]] = []
    following: listing.ListPlace | None = None
    async with database.read() as connection:
        while not seen or following:
            page, following = await listing.page(connection, Selection(), 9, following, order)
            seen.append([job.id for job in page])
    assert seen == expected


async def test_labels_count_for_the_size_of_a_page(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "PAGE_BYTES", 100_000)
    many = {f"{'x' * 300}{number}": "y" * 63 for number in range(60)}
    async with database.write() as connection:
        for number in range(6):
            await jobs.add(connection, spec(f"toy-{number}"), NOW)
            await labels.put(connection, f"toy-{number}", many)
    async with database.read() as connection:
        page, following = await listing.page(connection, Selection(), 60, None)
    assert following == listing.ListPlace.of(page[-1])
    assert 1 < len(page) < 6
    assert sum(len(name) + len(value) for name, value in many.items()) * len(page) < 100_000


async def test_large_values_of_ended_jobs_are_not_read_for_metrics(database: Database) -> None:
    large = "x" * 100_000
    progress = Progress(step=3, metrics={"auc": 0.5})
    async with database.write() as connection:
        for name, its_progress, result in (
            ("toy-1", progress, {"auc": 0.75}),
            ("toy-2", progress, {"auc": 0.75, "findings": [large]}),
            ("toy-3", Progress(step=3, metrics={large: 0.5}), {"auc": 0.75}),
        ):
            job = await jobs.add(connection, spec(name), NOW)
            await jobs.move(connection, job, JobState.CANCELLED, NOW, "", progress=its_progress, result=result)
    async with database.read() as connection:
        found = await jobs.recently_ended(connection, NOW, limit=9, among=9)
    assert {job.id: (job.progress, job.result) for job in found} == {
        "toy-1": (progress, {"auc": 0.75}),
        "toy-2": (progress, None),
        "toy-3": (Progress(), {"auc": 0.75}),
    }


async def test_large_progress_is_not_read_with_live_jobs(database: Database) -> None:
    async with database.write() as connection:
        for name, metric in (("toy-1", "auc"), ("toy-2", "x" * 100_000)):
            await jobs.add(connection, spec(name), NOW)
            await jobs.set_progress(connection, name, Progress(metrics={metric: 0.5}))
        await connection.execute(text("UPDATE jobs SET progress = progress || '}'"))
    async with database.read() as connection:
        found = await jobs.live(connection)
        assert await jobs.progress_of(connection, ["toy-1", "toy-2"]) == {}
    assert (list(found.unreadable), list(found.live)) == (["toy-1"], ["toy-2"])


async def test_the_row_of_a_deleted_job_stays_until_its_webhook_is_sent(database: Database) -> None:
    async with database.write() as connection:
        for name, notify in (("toy-1", "https://h.example/x"), ("toy-2", None)):
            own = spec(name).model_copy(update={"notify": notify})
            await attempts.begin(connection, await jobs.add(connection, own, NOW), PLAN, None, NOW)
            await jobs.fail_unreadable(connection, name, "a bug", NOW)
            await deletion.mark(connection, name, NOW)
        assert set(await deletion.marked(connection, 9)) == {"toy-1", "toy-2"}
        await deletion.remove(connection, ["toy-1", "toy-2"])
        assert await deletion.marked(connection, 9) == [], "the files of the first one are deleted again and again"
        for name, exists in (("toy-1", True), ("toy-2", False)):
            assert await deletion.is_marked(connection, name) is exists
            assert await attempts.of_jobs(connection, [name]) == []
        (one,) = await notifications.due(connection, NOW, 9)
        assert (await jobs.get(connection, one.job, hidden=True)).reason == "a bug"
        await notifications.remove(connection, one.id)
        assert await deletion.marked(connection, 9) == ["toy-1"]
        await deletion.remove(connection, ["toy-1"])
        assert not await deletion.is_marked(connection, "toy-1")


@pytest.mark.parametrize(
    ("read", "indexes"),
    [
        (lambda connection: jobs.live(connection, limit=100), ["INDEX ix_jobs_live (sequence>?)"]),
        (
            lambda connection: jobs.live(connection, ["toy-1", "toy-2"]),
            ["INDEX sqlite_autoindex_jobs_1 (id=? AND rowid>?)"],
        ),
        (
            lambda connection: jobs.count_waiting(connection, "alice"),
            ["COVERING INDEX ix_jobs_live_owner (owner=? AND state=?)"],
        ),
        (
            lambda connection: jobs.holding_slots(connection, "alice"),
            ["INDEX ix_jobs_live_owner (owner=? AND state=?)"],
        ),
        (
            lambda connection: jobs.stored_bytes(connection, "alice", exclude=["toy-1"]),
            [
                "COVERING INDEX ix_jobs_owner_id_bytes (owner=?)",
                "COVERING INDEX ix_jobs_owner_id_bytes (owner=?)",
                "COVERING INDEX ix_checkpoints_job_bytes (job=?)",
                "COVERING INDEX ix_jobs_owner_id_bytes (owner=?)",
                "INDEX sqlite_autoindex_artifacts_1 (job=?)",
            ],
        ),
        (jobs.count_by_state, ["COVERING INDEX ix_jobs_deleted_at_ended_at_state"]),
        (
            lambda connection: deletion.marked(connection, 10),
            [
                "INDEX ix_jobs_deleted_at_ended_at_state (deleted_at>?)",
                "INDEX sqlite_autoindex_attempts_1 (job=?)",
                "",  # The notifications, which are few.
            ],
        ),
    ],
    ids=["live", "live among", "waiting", "holding slots", "stored bytes", "count by state", "marked"],
)
async def test_statements_that_run_often_fetch_no_ended_jobs(
    read: Callable[[AsyncConnection], Awaitable[object]], indexes: list[str], tmp_path: Path
) -> None:
    """SQLite reads a row with large parameters to fetch one state, and an owner can have any number of ended jobs."""
    database = Database(sqlite_url(tmp_path / "test.db"))
    await database.migrate()
    async with database.read() as connection:
        statements: list[tuple[str, Any]] = []

        @event.listens_for(connection.sync_connection, "before_cursor_execute")
        def note(_connection: object, _cursor: object, statement: str, parameters: Any, *_others: object) -> None:
            statements.append((statement, parameters))

        await read(connection)
        plans = [
            await connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
            for statement, parameters in list(statements)
        ]
    await database.close()
    steps = [row.detail for plan in plans for row in plan]
    assert [step.partition(" USING ")[2] for step in steps if step.startswith(("SEARCH", "SCAN"))] == indexes


async def test_the_signing_key_is_made_once(database: Database) -> None:
    keys = await asyncio.gather(*(signing.load_key(database) for _ in range(4)))
    assert len(set(keys)) == 1


@pytest.mark.parametrize("server", ["sqlite", "postgresql"])
def test_what_was_stored_before_owners_is_the_admins(
    server: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Of the first release's rows nothing is lost, and the second is left again the same way."""
    with _empty_database(server, tmp_path, request) as engine:
        with engine.begin() as connection:
            _migrate(connection, "r0001")
            _insert(connection, "jobs", _ROW)
            _insert(connection, "idempotency", {"key": "k", "digest": "d", "job": "toy-1", "created_at": NOW})
            manifest = json.dumps({"attempt": 1, "step": 1, "parts": [{"size": 4}, {"size": 5}], "position": {}})
            row = {"job": "toy-1", "attempt": 1, "step": 1, "keep": False, "manifest": manifest, "created_at": NOW}
            _insert(connection, "checkpoints", row)
        with engine.begin() as connection:
            _migrate(connection, "r0002")
            assert connection.execute(text("SELECT owner FROM jobs")).scalar_one() == "admin"
            assert connection.execute(text("SELECT bytes FROM checkpoints")).scalar_one() == 9
            for owner in ("alice", "bob"):
                values = {"owner": owner, "key": "k", "digest": "d", "job": "toy-1", "created_at": NOW}
                _insert(connection, "idempotency", values)
            assert inspect(connection).get_pk_constraint("idempotency")["constrained_columns"] == ["owner", "key"]
        with engine.begin() as connection:
            command.downgrade(_alembic(connection), "r0001")
            assert connection.execute(text("SELECT key FROM idempotency")).scalars().all() == ["k"]
            assert "owner" not in {column["name"] for column in inspect(connection).get_columns("jobs")}


@pytest.mark.parametrize("server", ["sqlite", "postgresql"])
def test_jobs_from_before_resources_have_none_and_those_with_some_lose_nothing_else(
    server: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The earlier release's master reads the rows again, and its placement decides about the workers."""
    with _empty_database(server, tmp_path, request) as engine:
        with engine.begin() as connection:
            _migrate(connection, "r0004")
            _insert(connection, "jobs", _ROW)
            before = connection.execute(text("SELECT * FROM jobs")).one()._asdict()
        with engine.begin() as connection:
            _migrate(connection, "head")
            found = connection.execute(select(jobs_table.c.resources)).scalar_one()
            assert found == {}
            newer = {"id": "toy-2", "resources": '{"trainer":{"gpus":1,"threads":null,"busy":false}}'}
            _insert(connection, "jobs", _ROW | newer)
            found = connection.execute(select(jobs_table.c.resources).where(jobs_table.c.id == "toy-2")).scalar_one()
            assert found == {Role.TRAINER: Resources(gpus=1)}
        with engine.begin() as connection:
            command.downgrade(_alembic(connection), "r0004")
            first, second = connection.execute(text("SELECT * FROM jobs ORDER BY sequence")).all()
            assert first._asdict() == before
            assert second._asdict() == before | {"id": "toy-2", "sequence": before["sequence"] + 1}
            _migrate(connection, "head")


_ROW = {"id": "toy-1", "name": "", "workload": "toy", "params": "{}", "roles": "{}", "state": "queued"} | {
    **dict.fromkeys(("priority", "max_restarts", "attempt", "restarts", "crashes"), 0),
    **{"progress": "{}", "created_at": NOW, "queued_at": NOW},
}


@contextmanager
def _empty_database(server: str, folder: Path, request: pytest.FixtureRequest) -> Generator[Engine]:
    if server == "sqlite":
        engine = create_engine(f"sqlite:///{folder / 'old.db'}")
        yield engine
        engine.dispose()
        return
    url = request.getfixturevalue("postgres_url")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE old")
        engine = create_engine(f"{url.rpartition('/')[0]}/old".replace("postgresql:", "postgresql+psycopg:"))
        try:
            yield engine
        finally:
            engine.dispose()
            connection.execute("DROP DATABASE old")


def _insert(connection: Connection, table: str, values: dict[str, Any]) -> None:
    names = ", ".join(f'"{name}"' for name in values)
    marks = ", ".join(f":{name}" for name in values)
    shown = {name: value.isoformat() if isinstance(value, datetime) else value for name, value in values.items()}
    connection.execute(text(f"INSERT INTO {table} ({names}) VALUES ({marks})"), shown)


def _migrate(connection: Connection, revision: str) -> None:
    command.upgrade(_alembic(connection), revision)


def _alembic(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["connection"] = connection
    return config

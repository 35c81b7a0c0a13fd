# pyright: standard
"""A faulty blob store: it delays no call indefinitely, and no call that does not need it."""

import asyncio
import errno
import hashlib
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from threading import Event, Thread
from typing import Any

import fsspec
import httpx
import pytest
from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem
from tests.nesting import few_descriptors, nested

from rolecall.master.blobs import BlobError, Blobs
from rolecall.master.storage_errors import StoreUnavailable
from rolecall.master.store_threads import StoreFile, StoreThreads
from rolecall.spec.errors import NotFound
from rolecall.spec.state import WorkerState

from .harness import ONE_TRAINER, Client, Node, make_settings, one_trainer, serving

BODY = os.urandom(3 << 20)


class Fault:
    """The fault in the store of these tests."""

    def __init__(self) -> None:
        self.may_continue = Event()
        self.may_continue.set()
        self.met = Event()
        """Set by every call to the store."""
        self.error: Exception | None = None
        self.stalls = False
        """If true, only the first chunk of a file arrives."""

    def meet(self) -> None:
        """Called by whoever calls the store."""
        self.met.set()
        self.may_continue.wait()
        if self.error is not None:
            raise self.error


FAULT = Fault()


class FaultyFileSystem(AbstractFileSystem):
    """A folder whose calls can hang or fail."""

    protocol = "faulty"

    def ls(self, path: str, detail: bool = True, **_: Any) -> Any:
        return LocalFileSystem().ls(path, detail)

    def rm(self, path: str, recursive: bool = False, maxdepth: int | None = None) -> None:
        LocalFileSystem().rm(path, recursive, maxdepth)

    def open(self, path: str, mode: str = "rb", **_: Any) -> Any:  # type: ignore[override]
        FAULT.meet()
        return FaultyFile(LocalFileSystem().open(path, mode))

    def size(self, path: str) -> Any:
        FAULT.meet()
        return LocalFileSystem().size(path)


class FaultyFile:
    """A file there."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.close = file.close

    def read(self, size: int) -> bytes:
        """Read, unless the store hangs or fails."""
        FAULT.meet()
        if FAULT.stalls:
            FAULT.may_continue.clear()
        return self._file.read(size)


class BucketError(Exception):
    """Neither an OSError nor one of ours, like those of botocore."""


@pytest.fixture
def fault() -> Iterator[Fault]:
    """The fault of the store; none after the test."""
    fsspec.register_implementation("faulty", FaultyFileSystem, clobber=True)
    try:
        yield FAULT
    finally:
        FAULT.error, FAULT.stalls = None, False
        FAULT.may_continue.set()


@asynccontextmanager
async def with_artifact(data: Path, **settings: Any) -> AsyncGenerator[tuple[Client, Node, str]]:
    """A master whose blobs are below a URL, and a running job with an artifact `model.bin` there."""
    url = f"faulty://{data / 'shared'}"
    async with serving(make_settings(data, blob_url=url, **settings)) as client:
        node, job = await running_job(client)
        path = data / "shared" / job / "1" / "model.bin"
        path.parent.mkdir(parents=True)
        path.write_bytes(BODY)
        digest = hashlib.sha256(BODY).hexdigest()
        notice = {"name": "model.bin", "blob": "1/model.bin", "size": len(BODY), "sha256": digest}
        (await client.worker("POST", job, 1, "/attempts/1/artifacts", json=notice)).raise_for_status()
        yield client, node, job


async def running_job(client: Client) -> tuple[Node, str]:
    """A job whose one worker runs."""
    node = await one_trainer(client)
    job = (await client.submit(roles=ONE_TRAINER))["id"]
    (worker,) = await node.workers()
    await node.say(worker, WorkerState.RUNNING)
    await client.until(job, "running")
    return node, job


def unable(_: Thread) -> None:
    raise RuntimeError("can't start new thread")


async def chunks(*bodies: bytes) -> AsyncIterator[bytes]:
    """An upload's body."""
    for body in bodies:
        yield body


@pytest.fixture(params=["a folder", "a URL"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Blobs]:
    """The blobs of a master, which are below its data folder or below a URL of the same folder."""
    blobs = Blobs(tmp_path, None if request.param == "a folder" else tmp_path.as_uri(), 10.0)
    yield blobs
    blobs.close()


async def test_a_blob_is_whole_or_not_there(tmp_path: Path, blobs: Blobs) -> None:
    digest = hashlib.sha256(BODY).hexdigest()
    assert await blobs.size("toy-1", "1/part") is None
    assert await blobs.digest("toy-1", "1/part") is None
    with pytest.raises(NotFound, match="job toy-1 has no blob '1/part'"):
        await blobs.read("toy-1", "1/part")
    with pytest.raises(BlobError, match="send it again"):
        await blobs.put("toy-1", "1/part", digest, chunks(BODY, b"and more"))
    assert await blobs.size("toy-1", "1/part") is None
    assert await blobs.put("toy-1", "1/part", digest.upper(), chunks(BODY[:10], BODY[10:])) == (len(BODY), digest)
    assert await blobs.size("toy-1", "1/part") == len(BODY)
    assert await blobs.digest("toy-1", "1/part") == (len(BODY), digest)
    assert b"".join([chunk async for chunk in await blobs.read("toy-1", "1/part")]) == BODY
    await blobs.delete("toy-1", "1/part")
    await blobs.delete("toy-1", "1/part")
    assert await blobs.size("toy-1", "1/part") is None
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


async def test_the_names_of_new_folders_are_durable_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, durable = tmp_path / "blobs", set[int]()
    root.mkdir()
    fsync = os.fsync

    def note(descriptor: int) -> None:
        durable.add(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    blobs = Blobs(root, None, 10.0)
    await blobs.put("toy-1", "1/part", None, chunks(BODY))
    blobs.close()
    assert {path.stat().st_ino for path in (root, *root.rglob("*"))} <= durable


@pytest.mark.parametrize("name", ["", "../other", "1/../2", "/etc/passwd", ".hidden", "a//b", "a b", "x" * 256])
async def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    blobs = Blobs(tmp_path, None, 10.0)
    with pytest.raises(BlobError, match="is not a blob name"):
        await blobs.put("toy-1", name, None, chunks(b"body"))
    blobs.close()


async def test_a_deleted_job_leaves_no_files_that_it_stored_before_there_was_a_url(tmp_path: Path) -> None:
    root, job = tmp_path / "blobs", "toy-1"
    with closing(Blobs(root, None, 10.0)) as before:
        await before.put(job, "1/part", None, chunks(b"body"))
    with closing(Blobs(root, (tmp_path / "shared").as_uri(), 10.0)) as after:
        await after.remove_job(job)
    assert not (root / job).exists()


async def test_a_sweep_deletes_what_nobody_knows_of_earlier_attempts(blobs: Blobs) -> None:
    for blob in ("1/known", "1/left", "2/left", "3/running"):
        await blobs.put("toy-1", blob, None, chunks(b"body"))
    await blobs.put("toy-2", "1/left", None, chunks(b"body"))
    assert await blobs.used("toy-1", exclude={"1/known"}) == 12
    assert await blobs.sweep("toy-1", 2, {"1/known"}) == 2
    sizes = [await blobs.size("toy-1", blob) for blob in ("1/known", "1/left", "2/left", "3/running")]
    assert sizes == [4, None, None, 4]
    assert await blobs.is_populated()
    await blobs.remove_job("toy-1")
    assert await blobs.size("toy-1", "1/known") is None
    assert await blobs.size("toy-2", "1/left") == 4, "another job's"


@pytest.mark.parametrize("depth", [300, 3000])
async def test_a_job_that_nests_folders_deeper_than_python_follows_is_deleted(tmp_path: Path, depth: int) -> None:
    """In a store that is a folder, its workers create folders themselves."""
    blobs = Blobs(tmp_path / "unused", tmp_path.as_uri(), timeout_s=30)
    with closing(blobs), nested(tmp_path / "toy-1", depth):
        with few_descriptors(16):
            await blobs.remove_job("toy-1")
        assert not (tmp_path / "toy-1").exists()


async def test_a_job_whose_files_stay_is_not_taken_for_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    blobs = Blobs(tmp_path, None, 10.0)
    try:
        await blobs.put("toy-1", "1/part", None, chunks(b"body"))
        with monkeypatch.context() as patch:
            patch.setattr(os, "unlink", refuse)
            with pytest.raises(StoreUnavailable, match="Read-only file system"):
                await blobs.remove_job("toy-1")
        await blobs.remove_job("toy-1")
        await blobs.remove_job("toy-1")
        assert not (tmp_path / "toy-1").exists()
    finally:
        blobs.close()


async def test_what_a_killed_master_left_of_uploads_is_cleared_and_newer_ones_stay(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path, None, 10.0)
    for name, written_at in ((".upload-old", 100), (".upload-new", 300)):
        path = tmp_path / "toy-1" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"half")
        os.utime(path, (written_at, written_at))
    assert await blobs.clear_uploads(200) == 1
    assert [path.name for path in (tmp_path / "toy-1").iterdir()] == [".upload-new"]
    blobs.close()


@pytest.mark.slow
async def test_a_store_that_hangs_delays_only_those_who_need_it(tmp_path: Path, fault: Fault) -> None:
    async with with_artifact(tmp_path, blob_timeout_s=4.0) as (client, node, job):
        fault.may_continue.clear()
        fault.met.clear()
        downloading = asyncio.create_task(client.user("GET", f"/jobs/{job}/artifacts/model.bin"))
        begun = time.monotonic()
        assert await asyncio.to_thread(fault.met.wait, 10)
        for path in ("/healthz", "/jobs", f"/jobs/{job}/logs"):
            assert (await client.user("GET", path)).is_success
        other = await client.submit(roles=ONE_TRAINER)
        await client.until(other["id"], "placed")
        assert len(await node.beat()) == 2
        assert time.monotonic() - begun < 3.5
        assert not downloading.done()
        refused = await downloading
        assert refused.status_code == 503
        assert refused.headers["Retry-After"]
        assert "the blob store (ROLECALL_BLOB_URL) does not answer" in refused.json()["detail"]
        fault.may_continue.set()
        assert (await client.user("GET", f"/jobs/{job}/artifacts/model.bin")).content == BODY


@pytest.mark.slow
async def test_a_download_that_gets_stuck_breaks_off(
    tmp_path: Path, fault: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    async with with_artifact(tmp_path, blob_timeout_s=0.5) as (client, _, job):
        fault.stalls = True
        with pytest.raises(httpx.RemoteProtocolError):
            await client.user("GET", f"/jobs/{job}/artifacts/model.bin")
        fault.stalls = False
        fault.may_continue.set()
        assert (await client.user("GET", f"/jobs/{job}/artifacts/model.bin")).content == BODY
    assert "failed: the blob store (ROLECALL_BLOB_URL) does not answer" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("error", [BucketError("SlowDown"), PermissionError(13, "Permission denied"), TimeoutError()])
async def test_every_error_of_a_store_is_its_failure(tmp_path: Path, fault: Fault, error: Exception) -> None:
    async with with_artifact(tmp_path) as (client, _, job):
        fault.error = error
        refused = await client.user("GET", f"/jobs/{job}/artifacts/model.bin")
        assert refused.status_code == 503
        assert "the blob store (ROLECALL_BLOB_URL) " in refused.json()["detail"]
        assert str(error) in refused.json()["detail"]
        notice = {"name": "other", "blob": "1/model.bin", "size": 1, "sha256": "0" * 64}
        assert (await client.worker("POST", job, 1, "/attempts/1/artifacts", json=notice)).status_code == 503


async def test_while_all_threads_hang_further_calls_fail_at_once() -> None:
    threads, may_continue = StoreThreads("the store", timeout_s=0.3, threads=2), Event()
    hung = [asyncio.create_task(threads.run(may_continue.wait)) for _ in range(2)]
    queued = asyncio.create_task(threads.run(lambda: "too late"))
    for one in (*hung, queued):
        with pytest.raises(StoreUnavailable, match="the store does not answer"):
            await one
    async with asyncio.timeout(10):
        while threads.hung < 2:  # A thread may have begun its call after the caller began to wait.
            await asyncio.sleep(0.01)
    with pytest.raises(StoreUnavailable, match="2 calls take longer"):
        threads.submit(lambda: "never called")
    may_continue.set()
    async with asyncio.timeout(10):
        while threads.hung:
            await asyncio.sleep(0.01)
    assert await threads.run(lambda: "well again") == "well again"
    threads.close()


async def test_other_programs_threads_are_free_while_the_stores_hang() -> None:
    threads, may_continue = StoreThreads("the store", timeout_s=0.2), Event()
    hung = [asyncio.create_task(threads.run(may_continue.wait)) for _ in range(40)]
    async with asyncio.timeout(10):
        assert await asyncio.to_thread(lambda: "free") == "free"
    await asyncio.gather(*hung, return_exceptions=True)
    may_continue.set()
    threads.close()


async def test_threads_that_can_not_start_count_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither their number is used up, nor does a call wait that another thread can take."""
    threads = StoreThreads("the store", timeout_s=10.0)
    with monkeypatch.context() as patched:
        patched.setattr(Thread, "start", unable)
        for _ in range(40):
            with pytest.raises(StoreUnavailable, match="the store can't be called: can't start new thread; try again"):
                await threads.run(lambda: None)
    assert await threads.run(lambda: "done") == "done"
    with monkeypatch.context() as patched:
        patched.setattr(Thread, "start", unable)
        assert await threads.run(lambda: "done") == "done"
    threads.close()


async def test_a_file_that_opens_too_late_is_closed(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"data")

    threads, may_continue, closed = StoreThreads("the store", timeout_s=0.2), Event(), Event()

    def open_late() -> Any:
        may_continue.wait()
        return (tmp_path / "file").open("rb")

    def close(file: Any) -> None:
        file.close()
        closed.set()

    file = StoreFile(threads, open_late)
    with pytest.raises(StoreUnavailable):
        await file.opened()
    file.close(close)
    assert not closed.is_set()
    may_continue.set()
    assert await asyncio.to_thread(closed.wait, 10)
    threads.close()

# pyright: standard
"""Blobs on a file system outlive a power failure: what is synced, and in which order."""

import os
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from rolecall.runtime import blobs as blobs_module
from rolecall.runtime.blobs import SharedBlobs
from rolecall.spec.errors import BlobsUnavailable, NoSuchBlob


@pytest.mark.parametrize("scheme", ["file://", "local://", ""])
def test_a_part_is_durable_before_its_name_and_the_name_before_the_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    synced: list[tuple[str, int]] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        synced.append((os.readlink(f"/proc/self/fd/{descriptor}"), os.fstat(descriptor).st_size))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    (tmp_path / "part").write_bytes(b"weights")
    store = tmp_path / "store"
    store.mkdir()
    blobs = SharedBlobs(f"{scheme}{store}", "job", 1)
    assert [folder for folder, _ in synced] == [str(store)], "the name of the job's folder"
    synced.clear()
    blobs.put("step-10/part", tmp_path / "part", "")
    final = store / "job/1/step-10/part"
    assert final.read_bytes() == b"weights"
    (first, size), *folders = synced
    assert first.startswith(f"{final}.")
    assert first.endswith(".partial")
    assert size == len(b"weights")
    assert [folder for folder, _ in folders] == [str(final.parents[depth]) for depth in range(3)]
    assert str(store / "job") == folders[-1][0]


def test_a_store_that_fails_is_unavailable(tmp_path: Path) -> None:
    """The checkpoint is skipped then, and the attempt continues."""
    (tmp_path / "part").write_bytes(b"weights")
    blobs = SharedBlobs(str(tmp_path / "store"), "job", 1)
    shutil.rmtree(tmp_path / "store")
    (tmp_path / "store").write_text("no longer mounted")
    with pytest.raises(BlobsUnavailable, match="ROLECALL_BLOB_URL"):
        blobs.put("part", tmp_path / "part", "")


def test_a_store_that_is_no_file_system_is_not_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: pytest.fail("there is nothing to sync"))
    (tmp_path / "part").write_bytes(b"weights")
    blobs = SharedBlobs("memory://rolecall", "job", 1)
    blobs.put("part", tmp_path / "part", "")
    blobs.get("1/part", tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == b"weights"


class BucketError(Exception):
    """Neither an `OSError` nor one of Rolecall's, like those of botocore."""


class Bucket(MemoryFileSystem):
    """A store that fails with errors of its own library, or hangs, while a test says so."""

    protocol = "bucket"
    error: Exception | None = None
    answers = threading.Event()
    calls = threading.Semaphore(0)

    def _meet(self) -> None:
        self.calls.release()
        self.answers.wait()
        if self.error is not None:
            raise self.error

    def put_file(self, lpath: Any, rpath: Any, **options: Any) -> None:  # type: ignore[override]
        self._meet()
        super().put_file(lpath, rpath, **options)

    def get_file(self, rpath: Any, lpath: Any, **options: Any) -> None:  # type: ignore[override]
        self._meet()
        super().get_file(rpath, lpath, **options)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Bucket]]:
    """A store that works until the test changes that, and no longer hangs after the test."""
    fsspec.register_implementation("bucket", Bucket, clobber=True)
    Bucket.answers.set()
    monkeypatch.setattr(Bucket, "error", None)
    monkeypatch.setattr(Bucket, "store", {})
    monkeypatch.setattr(Bucket, "calls", threading.Semaphore(0))
    yield Bucket
    Bucket.answers.set()


def test_every_error_of_a_store_s_library_is_its_unavailability(tmp_path: Path, bucket: type[Bucket]) -> None:
    (tmp_path / "part").write_bytes(b"weights")
    blobs = SharedBlobs("bucket://rolecall", "job", 1)
    blobs.put("part", tmp_path / "part", "")
    bucket.error = BucketError("SlowDown")
    with pytest.raises(BlobsUnavailable, match=r"ROLECALL_BLOB_URL.* did not store part: BucketError: SlowDown"):
        blobs.put("part", tmp_path / "part", "")
    with pytest.raises(BlobsUnavailable, match=r"ROLECALL_BLOB_URL.* did not send 1/part: BucketError: SlowDown"):
        blobs.get("1/part", tmp_path / "again")
    bucket.error = None
    with pytest.raises(NoSuchBlob, match=r"has no .*rolecall/job/1/other"):
        blobs.get("1/other", tmp_path / "again")
    blobs.get("1/part", tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == b"weights"


def test_a_store_that_hangs_is_waited_for_once(
    tmp_path: Path, bucket: type[Bucket], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "part").write_bytes(b"weights")
    blobs = SharedBlobs("bucket://rolecall", "job", 1)
    blobs.put("part", tmp_path / "part", "")
    monkeypatch.setattr(blobs_module, "_DEADLINE_S", 0.05)
    bucket.answers.clear()
    before = threading.enumerate()
    with pytest.raises(BlobsUnavailable, match="did not send 1/part: it gave no answer for 0 s"):
        blobs.get("1/part", tmp_path / "again")
    (hung,) = set(threading.enumerate()) - set(before)
    threads = threading.active_count()
    for _ in range(3):
        with pytest.raises(BlobsUnavailable, match="did not store part: an earlier call to it still hangs"):
            blobs.put("part", tmp_path / "part", "")
    assert threading.active_count() == threads, "a store that hangs occupies one thread"
    monkeypatch.setattr(blobs_module, "_DEADLINE_S", 5.0)
    bucket.answers.set()
    hung.join(5)
    blobs.put("part", tmp_path / "part", "")


def test_concurrent_calls_do_not_count_as_hanging(tmp_path: Path, bucket: type[Bucket]) -> None:
    (tmp_path / "part").write_bytes(b"weights")
    blobs = SharedBlobs("bucket://rolecall", "job", 1)
    bucket.answers.clear()
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(blobs.put, name, tmp_path / "part", "") for name in ("one", "two")]
        for _ in calls:
            assert bucket.calls.acquire(timeout=5)
        bucket.answers.set()
        for call in calls:
            call.result()


def test_a_large_file_has_more_time(tmp_path: Path, bucket: type[Bucket], monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "part").write_bytes(b"weights")
    monkeypatch.setattr(blobs_module, "_DEADLINE_S", 0.0)
    monkeypatch.setattr(blobs_module, "_BYTES_PER_S", 1.0)
    blobs = SharedBlobs("bucket://rolecall", "job", 1)
    bucket.answers.clear()
    threading.Timer(0.1, bucket.answers.set).start()
    blobs.put("part", tmp_path / "part", "")

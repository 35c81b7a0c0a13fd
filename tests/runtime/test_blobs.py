"""Blobs on a file system outlive a power failure: what is synced, and in which order."""

import os
import shutil
from pathlib import Path

import pytest

from rolecall.runtime.blobs import SharedBlobs
from rolecall.spec.errors import BlobsUnavailable


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
    """The checkpoint is skipped then, and the attempt goes on."""
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

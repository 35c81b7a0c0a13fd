"""A blob store that is a folder: workers write to it, and lead the master to no other file by what they put there."""

import os
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.master.harness import ONE_TRAINER, on_master, one_trainer

from rolecall.master.blob_stores import FolderStore
from rolecall.master.blobs import Blobs
from rolecall.spec.errors import NotFound

SECRET = b"the master's token"


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A folder of the master's, with a secret."""
    folder = tmp_path / "master"
    folder.mkdir()
    (folder / "secret").write_bytes(SECRET)
    return folder


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """The folder in the store that one job's workers write to."""
    folder = tmp_path / "store" / "mine"
    folder.mkdir(parents=True)
    return folder


@asynccontextmanager
async def opened(url: str) -> AsyncGenerator[Blobs]:
    blobs = Blobs(Path("/nonexistent"), url, 2.0)
    try:
        yield blobs
    finally:
        blobs.close()


def link(job: Path, victim: Path) -> None:
    (job / "1").mkdir()
    (job / "1" / "secret").symlink_to(victim / "secret")


def linked_folder(job: Path, victim: Path) -> None:
    (job / "1").symlink_to(victim)


def pipe(job: Path, _victim: Path) -> None:
    (job / "1").mkdir()
    os.mkfifo(job / "1" / "secret")


def listening(job: Path, _victim: Path) -> None:
    (job / "1").mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        here = os.open(job / "1", os.O_PATH)
        server.bind(f"/proc/self/fd/{here}/secret")  # The path itself may be too long for a socket.
        os.close(here)


def folder(job: Path, _victim: Path) -> None:
    (job / "1" / "secret").mkdir(parents=True)


@pytest.mark.parametrize("plant", [link, linked_folder, pipe, listening, folder])
@pytest.mark.parametrize("scheme", ["file", "local"])
async def test_what_is_no_regular_file_is_no_blob(
    scheme: str, plant: Callable[[Path, Path], None], job: Path, victim: Path
) -> None:
    plant(job, victim)
    async with opened(f"{scheme}://{job.parent}/") as blobs:
        assert await blobs.size("mine", "1/secret") is None
        assert await blobs.digest("mine", "1/secret") is None
        with pytest.raises(NotFound):
            await blobs.read("mine", "1/secret")
        await blobs.delete("mine", "1/secret")
        await blobs.sweep("mine", 1, set())
        await blobs.remove_job("mine")
    assert (victim / "secret").read_bytes() == SECRET
    assert not job.exists()


def test_a_folder_that_becomes_a_link_after_the_look_is_not_followed(job: Path, victim: Path) -> None:
    (job / "1").mkdir()
    (job / "1" / "secret").write_bytes(b"a blob")
    store = FolderStore(job.parent)
    (found,) = store.find("mine")
    (job / "1" / "secret").unlink()
    (job / "1").rmdir()
    linked_folder(job, victim)
    store.delete(found)
    assert (victim / "secret").read_bytes() == SECRET


async def test_what_a_sweep_finds_is_the_jobs_own(job: Path, victim: Path) -> None:
    (job / "1" / "step-1").mkdir(parents=True)
    (job / "1" / "step-1" / "part").write_bytes(b"kept")
    (job / "1" / "step-1" / "part.1.partial").write_bytes(b"left over")
    (job / "1" / "step-1" / "away").symlink_to(victim)

    async with opened(job.parent.as_uri()) as blobs:
        assert await blobs.sweep("mine", 1, {"1/step-1/part"}) == 2
    assert sorted(os.listdir(job / "1" / "step-1")) == ["part"]
    assert (victim / "secret").read_bytes() == SECRET


async def test_a_link_is_not_recorded_as_an_artifact(tmp_path: Path, victim: Path) -> None:
    async with on_master(tmp_path / "data", blob_url=(tmp_path / "store").as_uri()) as client:
        node = await one_trainer(client)
        job = (await client.submit(roles=ONE_TRAINER))["id"]
        await node.workers()
        (tmp_path / "store" / job).mkdir(parents=True)
        link(tmp_path / "store" / job, victim)
        for size in (1, len(SECRET)):
            notice = {"name": "loot", "blob": "1/secret", "size": size, "sha256": "0" * 64}
            refused = await client.worker("POST", job, 1, "/attempts/1/artifacts", json=notice)
            assert refused.status_code == 409
            assert f"should have {size} bytes, but there is no such blob" in refused.json()["detail"]
        assert (await client.user("GET", f"/jobs/{job}/artifacts/loot")).status_code == 404

"""The time that a worker's end waits for its output."""

from pathlib import Path

import pytest
from tests.clock import ManualClock

from rolecall.node import shipping
from rolecall.node.client import MasterFailed, MasterFull, MasterUnreachable
from rolecall.node.contact import Contact
from rolecall.node.folder import Folder
from rolecall.node.logs import CHUNK_BYTES, MAX_LINE_BYTES, ProgressReader, Stream
from rolecall.node.reconcile import Key


class FakeMaster:
    """A master that fails at every chunk, or at the first `failures` ones."""

    def __init__(self, error: MasterUnreachable | None, failures: int = 10**6) -> None:
        self.error = error
        self.failures = failures
        self.sent = 0

    async def ship(self, key: Key, stream: str, offset: int, chunk: bytes, *, cut: bool = False) -> int:
        if self.error is not None and self.failures:
            self.failures -= 1
            raise self.error
        self.sent = offset + len(chunk)
        return self.sent


@pytest.fixture
def progress(tmp_path: Path) -> Stream:
    folder = Folder(tmp_path / "job/1/0")
    folder.make()
    (folder.path / "progress.jsonl").write_text("a line\n")
    return Stream(Key("job", 1, 0), "progress", folder, "progress.jsonl")


def in_contact() -> Contact:
    contact = Contact(fence_s=30.0)
    contact.answered(0.0)
    return contact


async def seconds_to_ship(master: FakeMaster, progress: Stream, contact: Contact) -> float:
    """The time that the worker's end waits for its progress."""
    clock = ManualClock()
    shipper = shipping.Shipper(master, contact, clock, clock.sleep_async)  # type: ignore[arg-type]
    await shipper.ship_all(progress)
    return clock.now


@pytest.mark.parametrize(
    ("error", "timeout_s"), [(MasterFailed("500"), 15), (MasterUnreachable("503"), 600), (MasterFull("507"), 600)]
)
async def test_a_chunk_that_a_master_in_contact_does_not_take_is_given_up(
    progress: Stream, error: MasterUnreachable, timeout_s: float
) -> None:
    """After some seconds if the master fails at it; a master that is busy or full gets more time."""
    master = FakeMaster(error)
    assert timeout_s < await seconds_to_ship(master, progress, in_contact()) <= timeout_s + 2
    assert master.sent == 0


async def test_progress_beyond_its_bound_is_not_sent(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "job/1/0")
    folder.make()
    (folder.path / "progress.jsonl").write_bytes(b"x" * (3 * CHUNK_BYTES))
    master = FakeMaster(None)
    progress = Stream(Key("job", 1, 0), "progress", folder, "progress.jsonl", max_bytes=CHUNK_BYTES + 10)
    await seconds_to_ship(master, progress, in_contact())
    assert master.sent == CHUNK_BYTES + 10


def test_a_line_that_is_too_long_is_skipped(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "job/1/0")
    folder.make()
    reader = ProgressReader(Key("job", 1, 0), folder, "progress.jsonl")
    line = '{"kind": "step", "at": "2026-01-01T00:00:00Z", "step": %d, "message": "%s"}\n'
    with (folder.path / "progress.jsonl").open("w") as file:
        file.write(
            line % (1, "x" * MAX_LINE_BYTES) + line % (2, "x") + line % (3, "x" * (3 * CHUNK_BYTES)) + line % (4, "x")
        )
    assert [read.step for _ in range(8) for read in reader.read()] == [2, 4]


async def test_an_unavailable_master_is_waited_for_until_it_is_back(progress: Stream) -> None:
    contact, master = in_contact(), FakeMaster(MasterUnreachable("away"), failures=1000)
    contact.failed(MasterUnreachable("away"), 1.0)
    assert await seconds_to_ship(master, progress, contact) > 900
    assert master.sent == len("a line\n")

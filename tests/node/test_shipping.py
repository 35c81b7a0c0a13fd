"""How long a worker's end waits for what the worker wrote."""

from pathlib import Path

import pytest
from tests.clock import ManualClock

from rolecall.node import shipping
from rolecall.node.client import MasterFailed, MasterFull, MasterUnreachable
from rolecall.node.contact import Contact
from rolecall.node.folder import Folder
from rolecall.node.logs import LINE_BYTES, PIECE_BYTES, ProgressReader, Stream
from rolecall.node.reconcile import Key


class Shelf:
    """A master that fails at every piece, or at the first `failures` ones."""

    def __init__(self, error: MasterUnreachable | None, failures: int = 10**6) -> None:
        self.error = error
        self.failures = failures
        self.sent = 0

    async def ship(self, key: Key, stream: str, offset: int, piece: bytes, *, cut: bool = False) -> int:
        if self.error is not None and self.failures:
            self.failures -= 1
            raise self.error
        self.sent = offset + len(piece)
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


async def seconds_to_ship(shelf: Shelf, progress: Stream, contact: Contact) -> float:
    """How long the worker's end waits for its progress."""
    clock = ManualClock()
    shipper = shipping.Shipper(shelf, contact, clock, clock.sleep_async)  # type: ignore[arg-type]
    await shipper.ship_all(progress)
    return clock.now


@pytest.mark.parametrize(
    ("error", "patience_s"), [(MasterFailed("500"), 15), (MasterUnreachable("503"), 600), (MasterFull("507"), 600)]
)
async def test_a_piece_that_a_master_in_contact_does_not_take_is_given_up(
    progress: Stream, error: MasterUnreachable, patience_s: float
) -> None:
    """After some seconds if the master fails at it; a master that is busy or full gets more time."""
    shelf = Shelf(error)
    assert patience_s < await seconds_to_ship(shelf, progress, in_contact()) <= patience_s + 2
    assert shelf.sent == 0


async def test_progress_beyond_its_bound_is_not_sent(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "job/1/0")
    folder.make()
    (folder.path / "progress.jsonl").write_bytes(b"x" * (3 * PIECE_BYTES))
    shelf = Shelf(None)
    progress = Stream(Key("job", 1, 0), "progress", folder, "progress.jsonl", most_bytes=PIECE_BYTES + 10)
    await seconds_to_ship(shelf, progress, in_contact())
    assert shelf.sent == PIECE_BYTES + 10


def test_a_line_that_is_too_long_is_skipped(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "job/1/0")
    folder.make()
    reader = ProgressReader(Key("job", 1, 0), folder, "progress.jsonl")
    line = '{"kind": "step", "at": "2026-01-01T00:00:00Z", "step": %d, "message": "%s"}\n'
    with (folder.path / "progress.jsonl").open("w") as file:
        file.write(
            line % (1, "x" * LINE_BYTES) + line % (2, "x") + line % (3, "x" * (3 * PIECE_BYTES)) + line % (4, "x")
        )
    assert [read.step for _ in range(8) for read in reader.read()] == [2, 4]


async def test_a_master_that_is_away_is_waited_for_until_it_is_back(progress: Stream) -> None:
    contact, shelf = in_contact(), Shelf(MasterUnreachable("away"), failures=1000)
    contact.failed(MasterUnreachable("away"), 1.0)
    assert await seconds_to_ship(shelf, progress, contact) > 900
    assert shelf.sent == len("a line\n")

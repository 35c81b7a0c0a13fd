"""How long a worker's end waits for what the worker wrote."""

import asyncio
import time
from pathlib import Path

import pytest

from rolecall.node import shipping
from rolecall.node.client import MasterFailed, MasterFull, MasterUnreachable
from rolecall.node.contact import Contact
from rolecall.node.folder import Folder
from rolecall.node.logs import LINE_BYTES, PIECE_BYTES, ProgressReader, Stream
from rolecall.node.reconcile import Key


class Shelf:
    """A master that fails at every piece, until it is mended."""

    def __init__(self, error: MasterUnreachable | None) -> None:
        self.error = error
        self.sent = 0

    async def ship(self, key: Key, stream: str, offset: int, piece: bytes, *, cut: bool = False) -> int:
        if self.error is not None:
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
    contact.answered(time.monotonic())
    return contact


async def is_over(shelf: Shelf, progress: Stream, contact: Contact, within_s: float) -> bool:
    """Whether the worker's end waits no longer for its progress."""
    try:
        async with asyncio.timeout(within_s):
            await shipping.Shipper(shelf, contact).ship_all(progress)  # type: ignore[arg-type]
    except TimeoutError:
        return False
    return True


def test_a_piece_that_a_master_in_contact_fails_at_is_given_up(
    progress: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipping, "_FAILED_S", 0.1)
    assert asyncio.run(is_over(Shelf(MasterFailed("500")), progress, in_contact(), 5.0))


@pytest.mark.parametrize("error", [MasterUnreachable("503"), MasterFull("507")])
def test_a_master_that_is_busy_is_waited_for_longer(
    progress: Stream, monkeypatch: pytest.MonkeyPatch, error: MasterUnreachable
) -> None:
    monkeypatch.setattr(shipping, "_FAILED_S", 0.1)
    assert not asyncio.run(is_over(Shelf(error), progress, in_contact(), 0.6))
    monkeypatch.setattr(shipping, "_BUSY_S", 0.1)
    assert asyncio.run(is_over(Shelf(error), progress, in_contact(), 5.0))


def test_progress_beyond_its_bound_is_not_sent(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "job/1/0")
    folder.make()
    (folder.path / "progress.jsonl").write_bytes(b"x" * (3 * PIECE_BYTES))
    shelf = Shelf(None)
    progress = Stream(Key("job", 1, 0), "progress", folder, "progress.jsonl", most_bytes=PIECE_BYTES + 10)
    assert asyncio.run(is_over(shelf, progress, in_contact(), 5.0))
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


def test_a_master_that_is_away_is_waited_for_until_it_is_back(
    progress: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipping, "_FAILED_S", 0.1)
    monkeypatch.setattr(shipping, "_BUSY_S", 0.1)
    contact, shelf = in_contact(), Shelf(MasterUnreachable("away"))
    contact.failed(MasterUnreachable("away"), time.monotonic())
    assert not asyncio.run(is_over(shelf, progress, contact, 0.6))
    shelf.error = None
    assert asyncio.run(is_over(shelf, progress, contact, 5.0))

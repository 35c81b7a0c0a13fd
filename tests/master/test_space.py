# pyright: standard
"""The master's volume is watched, and its streams are measured, outside the event loop."""

import asyncio
import os
import shutil
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from rolecall.master import segments
from rolecall.master.clock import Clock
from rolecall.master.space import REPORTS_FLOOR, NoRoom, Reserve, bytes_below, within_reserve
from rolecall.master.streams import StreamKey, Streams

LOG = StreamKey("toy-1", 1, 0, "log")


async def chunks(count: int, size: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield bytes(size)


def threads_of(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[threading.Thread]:
    """The threads on which a function is called from now on."""
    found: list[threading.Thread] = []
    function: Callable[..., Any] = getattr(module, name)

    def noted(*arguments: Any) -> Any:
        found.append(threading.current_thread())
        return function(*arguments)

    monkeypatch.setattr(module, name, noted)
    return found


async def test_an_upload_asks_for_free_space_outside_the_event_loop_and_not_for_each_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = threads_of(monkeypatch, os, "statvfs")

    reserve = Reserve(tmp_path, 0, time.monotonic)
    async for _ in within_reserve(chunks(1000, 1), reserve):
        pass
    await asyncio.gather(*(reserve.volume() for _ in range(100)))
    assert 1 <= len(asked) < 10
    assert threading.main_thread() not in asked


async def test_what_was_let_in_since_the_last_look_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = os.statvfs(tmp_path)
    free = found.f_bavail * found.f_frsize
    monkeypatch.setattr(os, "statvfs", lambda _: found)

    reserve = Reserve(tmp_path, free - 100, time.monotonic)
    await reserve.check(100)
    await reserve.check(100)
    upload = within_reserve(chunks(20, 30), reserve)
    for _ in range(3):
        await anext(upload)
    with pytest.raises(NoRoom, match=f"has {free - 90} bytes free"):
        await anext(upload)


async def test_progress_may_use_the_reserve_but_for_its_floor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = os.statvfs(tmp_path)
    free = found.f_bavail * found.f_frsize
    monkeypatch.setattr(os, "statvfs", lambda _: found)

    reserve = Reserve(tmp_path, 4 * (free - 100), time.monotonic)
    with pytest.raises(NoRoom):
        await anext(within_reserve(chunks(1, 1), reserve))
    await anext(within_reserve(chunks(1, 60), reserve, share=REPORTS_FLOOR))
    with pytest.raises(NoRoom):
        await anext(within_reserve(chunks(1, 60), reserve, share=REPORTS_FLOOR))


def test_files_that_vanish_while_they_are_counted_count_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    for name in ("1/0/log.txt", "1/0/progress.jsonl", "1/1/log.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("12345")
    (folder / "link").symlink_to("1/0/log.txt")
    assert bytes_below(folder) == 15
    assert bytes_below(folder, lambda path: path.name == "log.txt") == 10

    def counts(_: Path) -> bool:
        shutil.rmtree(folder, ignore_errors=True)
        return True

    assert bytes_below(folder, counts) == 0
    assert bytes_below(folder) == 0
    assert Streams(tmp_path, 1 << 20, Clock()).used("job") == 0


async def test_streams_are_measured_outside_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = threads_of(monkeypatch, segments, "segments")

    streams = Streams(tmp_path, 1 << 20, Clock())
    assert await streams.append(LOG, 0, chunks(0, 0)) == 0
    assert await streams.append(LOG, 0, chunks(3, 10)) == 30
    assert await streams.append(LOG, 20, chunks(1, 5)) == 30
    assert await streams.append(LOG, 40, chunks(1, 5)) == 30
    assert await streams.append(LOG, 40, chunks(1, 5), cut=True) == 45
    streams.expect(LOG, 50)
    assert not await streams.is_complete(LOG)
    assert await streams.append(LOG, 45, chunks(1, 5)) == 50
    assert await streams.is_complete(LOG)
    assert looked
    assert threading.main_thread() not in looked

"""One term of leadership, from the lock to the release of everything that it took."""

import asyncio
from pathlib import Path

import psutil
import pytest
from sqlalchemy.exc import DatabaseError

from rolecall.master.clock import utc_now
from rolecall.master.leadership import FolderLock
from rolecall.master.program import Program
from rolecall.master.signals import wait

from .harness import CATALOGUE, make_settings, still_master


@pytest.fixture
def stops() -> list[str]:
    """The calls by which the program says that it has to end."""
    return []


@pytest.fixture
def program(tmp_path: Path, stops: list[str]) -> Program:
    return Program(make_settings(tmp_path), CATALOGUE, stop=lambda: stops.append("stop"))


def tasks() -> set[str]:
    return {task.get_name() for task in asyncio.all_tasks()}


def is_free(folder: Path) -> bool:
    """Try to lead in the folder, as another master would."""
    lock = FolderLock(folder / "master.lock")
    taken = lock.take("the next master", utc_now())
    lock.release()
    return taken


async def test_every_loop_runs_while_it_leads_and_nothing_is_left_afterwards(
    tmp_path: Path, program: Program, stops: list[str]
) -> None:
    async with program.running():
        master = program.master
        assert master is not None
        assert {"reconciler", "placer", "cleaner", "verifier", "tokens", "leadership"} <= tasks()
        held = asyncio.create_task(wait(master.answers.ticket("trainer-0"), 60))
        follows = asyncio.create_task(wait(master.news.ticket("toy-1"), 60))
    async with asyncio.timeout(5):
        await asyncio.gather(held, follows)
    assert program.master is None
    assert not tasks() & {*master.loops, "leadership"}
    assert is_free(tmp_path)
    assert (program.fault, stops) == (None, []), "it was told to end"


async def test_a_loop_that_ends_takes_the_others_with_it_and_nobody_waits_for_an_answer(
    tmp_path: Path, program: Program, stops: list[str]
) -> None:
    async with program.running():
        assert program.master is not None
        held = program.master.answers.ticket("trainer-0")
        (placer,) = [task for task in asyncio.all_tasks() if task.get_name() == "placer"]
        placer.cancel()
        await wait(held, 60)
        async with asyncio.timeout(5):
            while not stops:
                await asyncio.sleep(0.01)
        assert program.master is None
        assert "reconciler" not in tasks()
        assert "a loop of the master has ended without an error, so the master exits: placer" in str(program.fault)
        assert is_free(tmp_path)
    assert stops == ["stop"]


async def test_a_master_that_can_not_begin_says_why_and_lets_another_one_lead(
    tmp_path: Path, program: Program, stops: list[str]
) -> None:
    (tmp_path / "rolecall.db").write_text("this is no database")
    async with program.running():
        assert program.master is None
        assert isinstance(program.fault, DatabaseError)
        assert stops == ["stop"]
        assert is_free(tmp_path)


async def test_a_master_closes_its_database_however_its_term_ends(tmp_path: Path) -> None:
    def open_files() -> list[str]:
        return [file.path for file in psutil.Process().open_files() if Path(file.path).is_relative_to(tmp_path)]

    async def fail() -> None:
        async with still_master(tmp_path) as master:
            await master.view.refresh()
            assert str(tmp_path / "rolecall.db") in open_files()
            raise KeyError("a defect")

    with pytest.raises(KeyError, match="a defect"):
        await fail()
    assert not open_files()

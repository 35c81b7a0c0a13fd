# pyright: standard
"""The deletion of a worker's folder, in which a job can leave any number of files."""

import errno
import threading
import time
from pathlib import Path

import pytest
from tests.node.harness import ScriptedMaster, make_settings
from tests.unprivileged import run_unprivileged

from rolecall.node import folder as folder_module
from rolecall.node import server
from rolecall.node.folder import Folder, delete_work
from rolecall.spec import shared_memory
from rolecall.untrusted_files import delete_tree


class SlowDeletion:
    """A `delete_tree` that waits until the test lets it delete."""

    def __init__(self) -> None:
        self.may_delete, self.deleted, self.awaited = threading.Event(), threading.Event(), list[Path]()

    def __call__(self, path: Path) -> bool:
        if not self.may_delete.wait(5):
            self.awaited.append(path)
        gone = delete_tree(path)
        self.deleted.set()
        return gone


def test_the_node_does_not_wait_until_a_workers_files_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deletion = SlowDeletion()
    folder = Folder(tmp_path / "job/1/0")
    folder.make()
    (folder.path / "scratch").mkdir()
    monkeypatch.setattr(folder_module, "delete_tree", deletion)
    folder.delete()
    assert not (tmp_path / "job").exists(), "the names of worker, attempt and job are free at once"
    folder.make()
    (folder.path / "log.txt").write_text("of the next worker\n")
    deletion.may_delete.set()
    assert deletion.deleted.wait(5)
    assert not deletion.awaited, "the node waited for a deletion"
    assert [path.name for path in tmp_path.iterdir()] == ["job"]
    assert (folder.path / "log.txt").read_text() == "of the next worker\n"


def test_a_node_that_starts_removes_what_earlier_workers_left_in_shared_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, work = tmp_path / "shm", tmp_path / "work"
    for path in (memory, work / "a/2/10/scratch", work / "a/2/11/scratch/x/b/1/0"):
        path.mkdir(parents=True)
    monkeypatch.setattr(shared_memory, "SHARED_MEMORY", memory)
    left, others = ("rolecall-a-2-10-1", "rolecall-a-2-11-2"), ("rolecall-a-2-1-3", "rolecall-b-1-0-4", "nccl-1")
    for name in (*left, *others):
        (memory / name).touch()
    delete_work(work)
    deadline = time.monotonic() + 10
    while {path.name for path in memory.iterdir()} != set(others):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_node_does_not_wait_at_its_start_until_the_files_of_earlier_workers_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deletion = SlowDeletion()

    async def serve(*_: object) -> None:
        assert not (home / "work").exists(), "its name is free at once"
        Folder(home / "work/job/1/0").make()

    settings = make_settings(ScriptedMaster(), tmp_path)
    home = settings.home
    for module, name in ((server, "log_to_stderr"), (server.gc, "freeze")):
        monkeypatch.setattr(module, name, lambda *_: None)
    monkeypatch.setattr(server, "_run", serve)
    monkeypatch.setattr(folder_module, "delete_tree", lambda path: None)  # interrupted by the end of the daemon
    for _ in range(2):
        server.run(settings)
    monkeypatch.setattr(folder_module, "delete_tree", deletion)
    server.run(settings)
    deletion.may_delete.set()
    assert deletion.deleted.wait(5)
    assert not deletion.awaited, "the node waited for a deletion"
    assert {path.name for path in home.iterdir()} == {"work", "node.lock"}
    assert (home / "work/job/1/0").exists()


def test_a_mode_of_the_folder_makes_nobody_wait(tmp_path: Path) -> None:
    """A folder that may not be written may not be moved either."""
    code = """
waited, release, deleted = [], threading.Event(), threading.Event()
def delete_slowly(path):
    if not release.wait(5):
        waited.append(path)
    gone = delete_tree(path)
    deleted.set()
    return gone
module.delete_tree = delete_slowly
folder = Folder(Path("work/job/1/0"))
folder.make()
(folder.path / "pkg").mkdir()
for mode in (folder.path / "pkg", folder.path):
    mode.chmod(0o500)
folder.delete()
release.set()
print(deleted.wait(5), waited, os.listdir("work"))
"""
    imports = """
import os, threading
from pathlib import Path
from rolecall.node import folder as module
from rolecall.node.folder import Folder
from rolecall.untrusted_files import delete_tree
"""
    assert run_unprivileged(tmp_path, imports, code) == "True [] []\n"


def test_a_folder_is_deleted_when_no_thread_can_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job can use up the threads of the machine."""

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    folder = Folder(tmp_path / "job/1/0")
    folder.make()
    monkeypatch.setattr(threading.Thread, "start", start)
    folder.delete()
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_moved_is_deleted_nevertheless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rename(path: Path, target: Path) -> Path:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    folder = Folder(tmp_path / "job/1/0")
    folder.make()
    monkeypatch.setattr(Path, "rename", rename)
    folder.make()
    folder.delete()
    assert not (tmp_path / "job").exists()

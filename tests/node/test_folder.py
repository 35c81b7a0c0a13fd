"""The deletion of a worker's folder, in which a job can leave any number of files."""

import errno
import threading
from pathlib import Path

import pytest

from rolecall.node import folder as folder_module
from rolecall.node.folder import Folder
from rolecall.untrusted_files import delete_tree


def test_the_node_does_not_wait_until_a_workers_files_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_delete, deleted, awaited = threading.Event(), threading.Event(), list[Path]()

    def delete_slowly(path: Path) -> None:
        if not may_delete.wait(5):
            awaited.append(path)
        delete_tree(path)
        deleted.set()

    folder = Folder(tmp_path / "job/1/0")
    folder.make()
    (folder.path / "scratch").mkdir()
    monkeypatch.setattr(folder_module, "delete_tree", delete_slowly)
    folder.delete()
    assert not (tmp_path / "job").exists(), "the names of worker, attempt and job are free at once"
    folder.make()
    (folder.path / "log.txt").write_text("of the next worker\n")
    may_delete.set()
    assert deleted.wait(5)
    assert not awaited, "the node waited for a deletion"
    assert [path.name for path in tmp_path.iterdir()] == ["job"]
    assert (folder.path / "log.txt").read_text() == "of the next worker\n"


def test_a_folder_that_cannot_be_moved_is_deleted_nevertheless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deleted = threading.Event()

    def rename(path: Path, target: Path) -> Path:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    def delete(path: Path) -> None:
        delete_tree(path)
        deleted.set()

    folder = Folder(tmp_path / "job/1/0")
    folder.make()
    monkeypatch.setattr(Path, "rename", rename)
    monkeypatch.setattr(folder_module, "delete_tree", delete)
    folder.delete()
    assert deleted.wait(5)
    assert not folder.path.exists()

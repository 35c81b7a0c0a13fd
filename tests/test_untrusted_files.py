"""The deletion of folders in which a job can leave anything."""

import os
import stat
from pathlib import Path

import pytest
from tests.nesting import few_descriptors, nested
from tests.prerequisites import require_root
from tests.unprivileged import run_unprivileged

from rolecall import untrusted_files
from rolecall.untrusted_files import delete_tree, walk

IMPORTS = """
import os
from pathlib import Path
from rolecall.untrusted_files import delete_tree
"""


def test_modes_of_folders_keep_nothing_from_their_owner(tmp_path: Path) -> None:
    code = """
for mode in (0o555, 0o300, 0o000):
    os.makedirs("job/pkg/inner")
    Path("job/pkg/inner/file").touch()
    os.chmod("job/pkg/inner", mode)
    os.chmod("job/pkg", mode)
    print(delete_tree(Path("job")), os.path.lexists("job"))
"""
    assert run_unprivileged(tmp_path, IMPORTS, code) == "True False\n" * 3


def test_what_can_not_be_deleted_is_reported(tmp_path: Path) -> None:
    require_root("only root can leave a folder to another user")
    (tmp_path / "foreign/kept").mkdir(parents=True)
    (tmp_path / "foreign").chmod(0o755)
    code = "print(delete_tree(Path('foreign/kept')), delete_tree(Path('foreign')), delete_tree(Path('missing')))"
    assert run_unprivileged(tmp_path, IMPORTS, code) == "False False True\n"
    assert (tmp_path / "foreign/kept").exists()


def test_links_are_deleted_and_what_they_lead_to_keeps_its_mode(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    outside.chmod(0o000)
    (tmp_path / "job/inner").mkdir(parents=True)
    for name, target in (("job/inner/link", outside), ("job/dangling", "/nowhere"), ("link", outside)):
        (tmp_path / name).symlink_to(target)
    (tmp_path / "dangling").symlink_to("/nowhere")
    assert all(delete_tree(tmp_path / name) for name in ("job", "link", "dangling"))
    assert os.listdir(tmp_path) == ["outside"]
    assert stat.S_IMODE(outside.stat().st_mode) == 0


@pytest.mark.parametrize("replace", ["itself", "a parent"])
def test_a_link_that_replaces_a_folder_during_the_deletion_leads_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replace: str
) -> None:
    """A process of the job can be alive."""
    outside, parent = tmp_path / "outside", tmp_path / "job/parent"
    (outside / "inner").mkdir(parents=True)
    (parent / "inner").mkdir(parents=True)
    for folder in (outside / "inner", parent / "inner"):
        folder.chmod(0o500)
    inspect = os.stat

    def swap(path: object, **options: object) -> os.stat_result:
        found = inspect(path, **options)  # type: ignore[arg-type]
        swapped, target = (parent / "inner", outside / "inner") if replace == "itself" else (parent, outside)
        if path == "inner" and not swapped.is_symlink():
            swapped.rename(tmp_path / "job/moved")
            swapped.symlink_to(target)
        return found

    monkeypatch.setattr(untrusted_files.os, "stat", swap)
    delete_tree(tmp_path / "job")
    monkeypatch.undo()
    assert stat.S_IMODE((outside / "inner").stat().st_mode) == 0o500


def test_a_folder_that_moves_ends_the_walk(tmp_path: Path) -> None:
    """Its parent is then another folder, whose entries are not the walk's business."""
    (tmp_path / "job/parent/inner").mkdir(parents=True)
    (tmp_path / "job/parent/inner/file").touch()
    (tmp_path / "outside/inner").mkdir(parents=True)
    steps = walk(tmp_path / "job", 0o700)
    assert next(steps)[0] == "file"
    (tmp_path / "job/parent/inner").rename(tmp_path / "outside/moved")
    with pytest.raises(OSError, match="moved"):
        list(steps)


@pytest.mark.parametrize("depth", [300, 3000])
def test_a_depth_beyond_all_limits_keeps_nothing(tmp_path: Path, depth: int) -> None:
    """Neither descriptors, nor frames of Python, nor the length of a path suffice for it."""
    with nested(tmp_path / "job", depth):
        with few_descriptors(8):
            assert delete_tree(tmp_path / "job")
        assert not os.listdir(tmp_path)

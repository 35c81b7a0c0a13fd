# pyright: standard
"""Cache entries are complete or missing."""

import os
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.unprivileged import run_unprivileged

from rolecall.kit import cache
from rolecall.kit.cache import build_once, delete_shared_cache, evict, evict_all, make_owner_folder


def test_it_is_built_once(tmp_path: Path) -> None:
    drafts: list[Path] = []

    def build(draft: Path) -> None:
        drafts.append(draft)
        (draft / "numbers").write_text("1 2 3")

    first = build_once(tmp_path / "mine", "key", build)
    assert build_once(tmp_path / "mine", "key", build) == first
    assert (first / "numbers").read_text() == "1 2 3"
    assert len(drafts) == 1
    assert not drafts[0].exists()


def test_a_build_that_fails_leaves_nothing_to_be_taken_for_whole(tmp_path: Path) -> None:
    def fail(draft: Path) -> None:
        (draft / "half").write_text("1")
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        build_once(tmp_path, "key", fail)
    assert not (tmp_path / "key").exists()
    whole = build_once(tmp_path, "key", lambda draft: None)
    assert list(whole.iterdir()) == []


ENTRY = (1 << 16) + 2 * 4096
"""Size of an entry with a file of 64 KiB: its folder and its lock count as well."""

USE = """
import sys, time
from pathlib import Path
from rolecall.kit.cache import build_once
build_once(Path(sys.argv[1]), sys.argv[2], lambda draft: (draft / "numbers").write_bytes(bytes(1 << 16)))
print("built", flush=True)
sys.stdin.read()
"""


@contextmanager
def user(folder: Path, key: str) -> Generator[subprocess.Popen[str]]:
    """A process that uses an entry until the block ends."""
    command = [sys.executable, "-c", USE, str(folder), key]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "built\n"
            yield process
        finally:
            process.kill()


@pytest.mark.slow
def test_the_least_recently_used_go_and_what_a_worker_uses_stays(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    with user(folder, "used") as worker:
        for key, at in (("old", 1), ("newer", 2)):
            with user(folder, key):
                pass
            os.utime(folder / f"{key}.lock", (at, at))
        os.utime(folder / "used.lock", (0, 0))
        assert evict(tmp_path, 3 * ENTRY) == 0
        assert evict(tmp_path, 2 * ENTRY) == ENTRY
        assert {path.name for path in folder.iterdir()} == {"used", "used.lock", "newer", "newer.lock"}
        assert evict(tmp_path, 1) == ENTRY
        assert {path.name for path in folder.iterdir()} == {"used", "used.lock"}
        worker.kill()
        worker.wait()
    assert evict(tmp_path, 0) == 0, "no limit"
    assert evict(tmp_path, 1) == ENTRY
    assert not list(folder.iterdir())


def leave(folder: Path, key: str, at: float, blocks: int = 1) -> Path:
    """An entry of `blocks` times 64 KiB that nobody uses."""
    (folder / key).mkdir(parents=True)
    (folder / key / "numbers").write_bytes(bytes(blocks << 16))
    (folder / f"{key}.lock").touch()
    os.utime(folder / f"{key}.lock", (at, at))
    return folder / key


def test_the_entries_of_all_owners_count_for_the_node(tmp_path: Path) -> None:
    """The owner with the most bytes loses the oldest entries, and no owner loses any below its share."""
    alice, bob = (make_owner_folder(tmp_path, name, "job") for name in ("alice", "bob"))
    old = leave(alice / "text", "old", 1)
    ours = [leave(bob / "text", f"key{number}", 2 + number) for number in range(4)]
    assert evict(alice, 5 * ENTRY) == 0
    assert evict_all(tmp_path, 5 * ENTRY) == 0
    assert evict_all(tmp_path, 3 * ENTRY) == 2 * ENTRY
    assert [one.exists() for one in (old, *ours)] == [True, False, False, True, True]
    assert evict_all(tmp_path, 0) == 0, "no limit"


@pytest.mark.slow
def test_an_owner_displaces_nobody_by_links_or_times_or_entries_in_use(tmp_path: Path) -> None:
    alice, mallory = (make_owner_folder(tmp_path, name, "job") for name in ("alice", "mallory"))
    kept = leave(alice / "text", "kept", 1)
    evil = leave(mallory / "text", "evil", 4e9, blocks=16)
    for number in range(100):
        os.link(evil / "numbers", evil / str(number))
    assert evict_all(tmp_path, (16 << 16) + 2 * ENTRY) == 0, "a file counts once, whatever its links"
    with user(mallory / "text", "used"), user(mallory / "text", "used2"):
        assert evict_all(tmp_path, 2 * ENTRY) > 15 << 16
        assert not evil.exists()
        assert evict_all(tmp_path, 2 * ENTRY) == 0, "mallory's entries in use exceed the limit"
    assert kept.exists()


def test_the_job_of_an_unknown_owner_has_a_cache_of_its_own(tmp_path: Path) -> None:
    assert make_owner_folder(tmp_path, "", "job-1") == tmp_path / "_job-1"


def test_a_link_is_no_cache(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "caches").mkdir()
    (tmp_path / "caches/alice").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotADirectoryError, match="caches/alice is a link"):
        make_owner_folder(tmp_path / "caches", "alice", "job")
    leave(tmp_path / "elsewhere/text", "key", 1)
    assert evict_all(tmp_path / "caches", 1) == 0


@pytest.mark.slow
def test_what_was_evicted_is_built_again(tmp_path: Path) -> None:
    for _ in range(2):
        with user(tmp_path / "mine", "key"):
            pass
        assert evict(tmp_path, 1) == ENTRY


def test_a_draft_of_a_killed_builder_goes_too(tmp_path: Path) -> None:
    (tmp_path / "mine" / "key.draft").mkdir(parents=True)
    (tmp_path / "mine" / "key.draft" / "half").write_bytes(bytes(1 << 16))
    (tmp_path / "mine" / "key.lock").touch()
    assert evict(tmp_path, 1) == ENTRY
    assert not list((tmp_path / "mine").iterdir())


@pytest.mark.parametrize("name", ["key", "key.draft"])
@pytest.mark.parametrize("is_file", [False, True])
def test_what_has_no_lock_file_is_evicted_in_its_turn(tmp_path: Path, name: str, is_file: bool) -> None:
    """A crash can leave it, and a job can put it there."""
    kept = leave(tmp_path / "mine", "kept", 4e9)
    placed = tmp_path / "mine" / name
    if not is_file:
        placed.mkdir()
    (placed if is_file else placed / "numbers").write_bytes(bytes(1 << 16))
    assert evict(tmp_path, ENTRY) == (1 << 16) + 4096 * (not is_file)
    assert kept.exists()
    assert {path.name for path in (tmp_path / "mine").iterdir()} == {"kept", "kept.lock"}


@pytest.mark.parametrize(
    ("name", "is_file"),
    [("file", True), (".hidden", True)]
    + [(f"kind/{name}", is_file) for name in ("a.b", ".hidden", "key.txt", "a" * 250) for is_file in (False, True)],
)
def test_what_is_no_entry_is_evicted_in_its_turn(tmp_path: Path, name: str, is_file: bool) -> None:
    """A job can write anything in its owner's cache, where it stays after the job."""
    kept = leave(tmp_path / "mine", "kept", 4e9)
    placed = tmp_path / name
    (placed.parent if is_file else placed).mkdir(parents=True, exist_ok=True)
    (placed if is_file else placed / "numbers").write_bytes(bytes(1 << 16))
    assert evict(tmp_path, ENTRY) == (1 << 16) + 4096 * (not is_file)
    assert kept.exists()
    assert not placed.exists()


@pytest.mark.parametrize("place", [".", "kind", "kind/key", "kind/key.draft", "kind/a.b", "kind/key/sub"])
@pytest.mark.parametrize("ending", ["", ".txt"])
@pytest.mark.parametrize("make", [Path.touch, Path.mkdir])
def test_empty_files_and_folders_are_evicted(
    tmp_path: Path, place: str, ending: str, make: Callable[[Path], object]
) -> None:
    """They take no block, but inodes, and the time of each eviction."""
    (tmp_path / place).mkdir(parents=True, exist_ok=True)
    names = [tmp_path / place / f"{number}{ending}" for number in range(20)]
    for name in names:
        make(name)
    assert evict(tmp_path, 20 * 4096 - 1, lambda: 4e9) >= 4096
    assert not all(name.exists() for name in names)


def test_an_empty_folder_in_which_a_build_can_start_stays(tmp_path: Path) -> None:
    (tmp_path / "kind").mkdir()
    assert evict(tmp_path, 1) == 0
    assert (tmp_path / "kind").exists()
    assert evict(tmp_path, 1, lambda: time.time() + 3600) == 4096
    assert not (tmp_path / "kind").exists()


@pytest.mark.parametrize("place", ["kind/key", "kind/a.b", "kind/key/sub"])
@pytest.mark.parametrize("max_bytes", [1, 1 << 30])
def test_the_files_of_an_entry_take_no_memory(tmp_path: Path, place: str, max_bytes: int) -> None:
    """The node's daemon evicts: a job must not inflate it."""
    (tmp_path / place).mkdir(parents=True)
    for number in range(2000):
        (tmp_path / place / f"{number:0200}").touch()
    tracemalloc.start()
    try:
        evict(tmp_path, max_bytes)
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()
    assert (tmp_path / place).exists() == (max_bytes > 1)


def test_of_the_cache_of_earlier_releases_only_the_entries_are_deleted(tmp_path: Path) -> None:
    leave(tmp_path / "loader", "key", 1)
    mine = [tmp_path / name for name in ("readme.txt", "huggingface/token", "huggingface/hub/model", "loader/notes")]
    for path in mine:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    delete_shared_cache(tmp_path)
    assert all(path.exists() for path in mine)
    assert not list((tmp_path / "loader").glob("key*"))


@pytest.mark.timeout(20)
@pytest.mark.parametrize("plant", [os.mkfifo, os.mkdir, lambda lock: lock.symlink_to(lock.parents[2] / "victim")])
def test_what_is_no_lock_file_holds_up_no_eviction(tmp_path: Path, plant: Callable[[Path], object]) -> None:
    """A job can write in the cache; the node, which evicts, follows no link there and waits for no pipe."""
    (tmp_path / "victim").write_text("precious")
    for folder in ("cache/loader/planted", "cache/loader/real", "elsewhere/key"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "numbers").write_bytes(bytes(1 << 16))
    cache = tmp_path / "cache"
    plant(cache / "loader/planted.lock")
    (cache / "loader/real.lock").touch()
    (cache / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere/key.lock").touch()
    evict(cache, 1)
    assert (tmp_path / "victim").read_text() == "precious"
    assert (tmp_path / "elsewhere/key/numbers").exists()
    assert not (cache / "loader/real").exists()
    assert not (cache / "loader/planted").exists()


@pytest.mark.parametrize("name", ["", ".", "..", "a" * 250])
def test_a_planted_lock_with_another_name_fails_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The lock files are of no entry that the cache itself can make."""
    monkeypatch.setenv("ROLECALL_CACHE_BYTES", "1")
    folder = tmp_path / "cache/loader"
    for kept in (folder / name, folder / "real", tmp_path / "outside"):
        kept.mkdir(parents=True, exist_ok=True)
        (kept / ".numbers").write_bytes(bytes(1 << 16))
    for lock in (folder / f"{name}.lock", folder / "real.lock"):
        lock.touch()
        os.utime(lock, (1, 1))
    assert build_once(folder, "key", lambda draft: None).exists()
    assert not (folder / "real").exists()
    assert not (folder / name / ".numbers").exists(), "it fills the disk like an entry"
    assert (tmp_path / "outside/.numbers").exists()


def test_an_entry_that_can_not_be_deleted_keeps_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for key in ("good", "stuck", "stuck-too"):
        (tmp_path / "mine" / key).mkdir(parents=True)
        (tmp_path / "mine" / key / "numbers").write_bytes(bytes(1 << 16))
        (tmp_path / "mine" / f"{key}.lock").touch()
        os.utime(tmp_path / "mine" / f"{key}.lock", (0, key == "good"))
    delete = cache.delete_tree

    def fail(path: Path, **options: bool) -> bool:
        if path.name.startswith("stuck"):
            raise OSError("stale file handle")
        return delete(path, **options)

    monkeypatch.setattr(cache, "delete_tree", fail)
    assert evict(tmp_path, 1) == ENTRY
    assert not (tmp_path / "mine/good").exists()
    (warning,) = caplog.messages
    assert warning == f"the eviction from the cache {tmp_path} had errors (2), first: stale file handle"


@pytest.mark.slow
def test_modes_of_folders_keep_nothing_from_the_eviction(tmp_path: Path) -> None:
    """A job can choose them, and nodes don't run as root."""
    code = """
places = ["kind", "kind/evil", "kind/evil/sub", "kind/evil.txt", "kind/evil.txt/sub"]
for number, (place, mode) in enumerate(itertools.product(places, [0o500, 0o000])):
    cache = Path(f"cache-{number}")
    for name in ("evil/sub", "evil.txt/sub", "old"):
        (cache / "alice/kind" / name).mkdir(parents=True)
        (cache / "alice/kind" / name / "numbers").write_bytes(bytes(1 << 20))
    (cache / "alice" / place).chmod(mode)
    print(place, oct(mode), evict_all(cache, 1) >= 3 << 20, os.listdir(cache / "alice/kind"))
"""
    imports = "import itertools, os\nfrom pathlib import Path\nfrom rolecall.kit.cache import evict_all"
    outcomes = run_unprivileged(tmp_path, imports, code).splitlines()
    assert len(outcomes) == 10
    assert [one for one in outcomes if not one.endswith(" True []")] == []


@pytest.mark.parametrize("step", ["walk", "delete_tree"])
def test_a_link_that_replaces_a_folder_during_the_eviction_leads_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """A job of the owner can be alive."""
    cached, moved, outside = (tmp_path / name for name in ("cache/kind", "cache/moved", "outside"))
    for entry in (leave(cached, "key", 1), leave(outside, "key", 1)):
        entry.rename(entry.with_suffix(".draft"))
    (outside / "key.draft").chmod(0)
    do = getattr(cache, step)

    def swap_first(*arguments: object, **options: object) -> object:
        if not moved.exists():
            cached.rename(moved)
            cached.symlink_to(outside)
        return do(*arguments, **options)

    monkeypatch.setattr(cache, step, swap_first)
    evict(tmp_path / "cache", 1)
    assert moved.exists()
    assert (outside / "key.draft").stat().st_mode & 0o777 == 0
    assert (outside / "key.draft/numbers").exists()


def test_what_stays_is_not_counted_as_evicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stuck = [leave(tmp_path / "kind", "stuck", 1), tmp_path / "kind/stuck.txt"]
    stuck[1].write_bytes(bytes(1 << 16))
    os.utime(stuck[1], (1, 1))
    newer = leave(tmp_path / "kind", "newer", 2)
    delete = cache.delete_tree
    monkeypatch.setattr(cache, "delete_tree", lambda path, **_: not path.name.startswith("stuck") and delete(path))
    assert evict(tmp_path, 2 * ENTRY) == ENTRY
    assert not newer.exists()
    assert "had errors (2), first: " in caplog.text
    assert "can't be deleted" in caplog.text
    assert "evicted stuck" not in caplog.text


@pytest.mark.parametrize("name", ["key", "key.draft"])
def test_a_link_to_nothing_blocks_no_key(tmp_path: Path, name: str) -> None:
    (tmp_path / "kind").mkdir()
    (tmp_path / "kind" / name).symlink_to("/nowhere")
    assert build_once(tmp_path / "kind", "key", lambda draft: None).is_dir()


@pytest.mark.parametrize("name", ["key", "key.draft", "key.lock", "key.txt"])
def test_a_link_to_nothing_is_evicted(tmp_path: Path, name: str) -> None:
    leave(tmp_path / "kind", "newer", 4e9)
    (tmp_path / "kind" / name).symlink_to("/nowhere")
    assert evict(tmp_path, 1) == ENTRY + 4096
    assert not os.listdir(tmp_path / "kind")


def test_a_cache_that_can_not_be_listed_fails_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(found: Path, *_: object) -> Iterator[cache.Entry]:
        raise OSError("stale file handle")

    monkeypatch.setattr(cache, "_entries", fail)
    assert build_once(tmp_path / "mine", "key", lambda draft: None).exists()
    assert f"the eviction from the cache {tmp_path} had errors (1), first: stale file handle" in caplog.text


@pytest.mark.slow
def test_entries_however_deep_are_evicted(tmp_path: Path) -> None:
    with user(tmp_path / "mine", "key"):
        pass
    descriptor = os.open(tmp_path / "mine/key", os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=descriptor)
        below = os.open("d", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
    os.close(descriptor)
    evict(tmp_path, 1)
    assert not list((tmp_path / "mine").iterdir())


@pytest.mark.timeout(30)
def test_an_entry_that_another_builds_and_keeps_in_the_meantime_is_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other holds its lock until it ends, and it may wait for this process: so this one must not wait for that."""
    with ExitStack() as others:
        alone = cache._exclusive

        def too_late(lock: Path) -> AbstractContextManager[bool]:
            others.enter_context(user(tmp_path / "mine", "key"))
            return alone(lock)

        monkeypatch.setattr(cache, "_exclusive", too_late)
        found = build_once(tmp_path / "mine", "key", lambda draft: pytest.fail("it is there"))
        assert (found / "numbers").stat().st_size == 1 << 16


def test_a_key_with_a_dot_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"the key 'a\.lock' of a cache entry has a dot"):
        build_once(tmp_path / "cache" / "kind", "a.lock", lambda draft: None)
    assert not (tmp_path / "cache").exists()

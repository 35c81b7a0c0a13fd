# pyright: standard
"""The promises of both kinds of blob stores, and of each of them alone. `test_shared_folder` attacks a folder."""

import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec import AbstractFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from rolecall.master.blob_stores import BlobStore, FolderStore, FsspecStore, open_store

Write = Callable[[str, bytes], None]


class ListingFileSystem(MemoryFileSystem):
    """Caches its listings, as those of object stores do."""

    protocol = "listing"
    store: dict[str, Any] = {}  # noqa: RUF012 - as the class that it extends has it
    pseudo_dirs = [""]  # noqa: RUF012 - the same

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.replace("listing://", "memory://"))

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        known = self._strip_protocol(path)
        if known not in self.dircache:
            self.dircache[known] = super().ls(path, detail=True, **options)
        found = self.dircache[known]
        return found if detail else [one["name"] for one in found]

    def info(self, path: str, **options: Any) -> Any:
        path = self._strip_protocol(path)
        known = self._ls_from_cache(path) or []
        return next((one for one in known if one["name"] == path), None) or super().info(path, **options)

    def open(self, path: str, mode: str = "rb", **options: Any) -> Any:  # type: ignore[override]
        file: Any = super().open(path, mode, **options)
        # As a buffered file does, which reads as many bytes as its entry says.
        return io.BytesIO(file.getvalue()[: self.info(path)["size"]]) if mode == "rb" else file

    # By the listings, which `MemoryFileSystem` does not need.
    find, exists = AbstractFileSystem.find, AbstractFileSystem.exists

    def invalidate_cache(self, path: str | None = None) -> None:
        self.dircache.clear()


@pytest.fixture
def object_store() -> Iterator[BlobStore]:
    """A store in a bucket that has nothing yet."""
    fsspec.register_implementation("listing", ListingFileSystem, clobber=True)
    yield open_store(Path("/nonexistent"), "listing://bucket/below/")
    ListingFileSystem.store.clear()
    ListingFileSystem.pseudo_dirs[:] = [""]


@pytest.fixture(params=["a folder", "an object store"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[BlobStore, Write]:
    """A store, and a function by which another program writes to it."""
    if request.param == "a folder":
        return open_store(tmp_path, None), lambda path, body: _write(tmp_path / path, body)
    return request.getfixturevalue("object_store"), _put


def _write(path: Path, body: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(body)


def _put(path: str, body: bytes) -> None:
    """With a file system of its own, whose cache is not the one of the store."""
    ListingFileSystem(skip_instance_cache=True).pipe_file(f"/bucket/below/{path}", body)


def test_files_are_found_by_their_paths(opened: tuple[BlobStore, Write]) -> None:
    store, write = opened
    for path in ("toy-1/1/part", "toy-1/2/step-5/part", "toy-10/1/part"):
        write(path, path.encode())
    assert store.find("toy-1") == ["toy-1/1/part", "toy-1/2/step-5/part"]
    assert store.size("toy-1/1/part") == len("toy-1/1/part")
    with store.open("toy-1/2/step-5/part") as file:
        assert file.read() == b"toy-1/2/step-5/part"
    store.delete("toy-1/1/part")
    assert store.find("toy-1") == ["toy-1/2/step-5/part"]
    store.remove("toy-1")
    assert store.find("toy-1") == []
    assert store.find("toy-10") == ["toy-10/1/part"]


def test_a_store_is_populated_once_it_has_anything(opened: tuple[BlobStore, Write]) -> None:
    store, write = opened
    assert not store.is_populated()
    write("toy-1/1/part", b"x")
    assert store.is_populated()


def test_a_bucket_without_anything_that_others_fill_is_populated(object_store: BlobStore) -> None:
    ListingFileSystem(skip_instance_cache=True).makedirs("/bucket/below")
    assert not object_store.is_populated()
    _put("toy-1/1/part", b"x")
    assert object_store.is_populated()


def test_what_is_missing_is_an_error_but_not_to_delete(opened: tuple[BlobStore, Write]) -> None:
    store, write = opened
    write("toy-1/1/part", b"x")
    for path in ("toy-1/1/other", "toy-2/1/part"):
        with pytest.raises(FileNotFoundError):
            store.size(path)
        with pytest.raises(FileNotFoundError):
            store.open(path)
        store.delete(path)
    store.remove("toy-2")
    assert store.find("toy-2") == []
    assert store.find("toy-1") == ["toy-1/1/part"]


def test_what_other_programs_write_is_found_whatever_listings_are_cached(opened: tuple[BlobStore, Write]) -> None:
    store, write = opened
    write("toy-1/1/first", b"x")
    assert store.find("toy-1") == ["toy-1/1/first"]
    write("toy-1/1/second", b"x")
    assert store.find("toy-1") == ["toy-1/1/first", "toy-1/1/second"]
    write("toy-1/1/second", b"longer")
    write("toy-1/1/third", b"x")
    assert store.size("toy-1/1/second") == len(b"longer")
    assert store.find("toy-1") == ["toy-1/1/first", "toy-1/1/second", "toy-1/1/third"]
    write("toy-1/1/third", b"longer")
    write("toy-1/1/fourth", b"x")
    for name, body in (("third", b"longer"), ("fourth", b"x")):
        with store.open(f"toy-1/1/{name}") as file:
            assert file.read() == body
    assert "toy-1/1/fourth" in store.find("toy-1")
    write("toy-1/1/late", b"x")
    store.remove("toy-1")
    assert store.find("toy-1") == []
    with pytest.raises(FileNotFoundError):
        store.open("toy-1/1/late")


@pytest.mark.parametrize(
    ("url", "kind"),
    [(None, FolderStore), ("file:///a", FolderStore), ("local:///a", FolderStore), ("memory://a", FsspecStore)],
)
def test_a_folder_is_opened_as_one_whatever_its_url_is(tmp_path: Path, url: str | None, kind: type) -> None:
    """Only the store for folders follows no links."""
    assert type(open_store(tmp_path, url)) is kind


def test_a_folder_that_does_not_exist_has_nothing(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "missing")
    assert not store.is_populated()
    assert store.find("toy-1") == []
    store.remove("toy-1")
    store.delete("toy-1/1/part")
    with pytest.raises(FileNotFoundError):
        store.size("toy-1/1/part")


def test_a_blob_below_too_many_folders_is_not_searched_for(tmp_path: Path) -> None:
    """A search that follows a worker's folders to any depth would take as long as the worker likes."""
    folder = tmp_path / "toy-1"
    for number in range(140):
        folder /= "d"
        _write(folder / f"f{number:03}", b"x")
    found = FolderStore(tmp_path).find("toy-1")
    assert {path.rpartition("/")[2] for path in found} == {f"f{number:03}" for number in range(128)}


def test_no_call_keeps_a_folder_open(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    _write(tmp_path / "toy-1/1/deep/part", b"x")
    (tmp_path / "toy-1/1/folder").mkdir()
    before = sorted(os.listdir("/proc/self/fd"))
    store.size("toy-1/1/deep/part")
    store.find("toy-1")
    store.open("toy-1/1/deep/part").close()
    for look in (store.size, store.open):
        for path in ("toy-1/1/folder", "toy-1/1/deep/part/below", "toy-1/1/other"):
            with pytest.raises(FileNotFoundError):
                look(path)
    store.delete("toy-1/1/deep/part")
    assert sorted(os.listdir("/proc/self/fd")) == before

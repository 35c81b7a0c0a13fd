"""Archives have the files that they are given."""

from pathlib import Path
from zipfile import ZipFile

from rolecall.kit.export import write_archive


def test_an_archive_has_texts_bytes_and_copies_of_files(tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(b"\x00\x01")
    files = {"README.md": "text", "data": b"bytes", "model/weights": tmp_path / "weights"}
    path = write_archive(tmp_path, "model.zip", files)
    assert path == tmp_path / "model.zip"
    with ZipFile(path) as archive:
        found = {name: archive.read(name) for name in archive.namelist()}
    assert found == {"README.md": b"text", "data": b"bytes", "model/weights": b"\x00\x01"}

"""Exported archives: plain PyTorch code, safetensors and JSON, usable without a cluster."""

import zipfile
from collections.abc import Mapping
from pathlib import Path


def write_archive(folder: Path, name: str, files: Mapping[str, str | bytes | Path]) -> Path:
    """Writes the zip file `name` to `folder` and returns its path; a `Path` among `files` is copied from disk."""
    path = folder / name
    with zipfile.ZipFile(path, "w") as archive:
        for file_name, content in files.items():
            if isinstance(content, Path):
                archive.write(content, file_name)
            else:
                archive.writestr(file_name, content)
    return path

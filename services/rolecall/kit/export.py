"""What a job leaves to its user: one archive that needs no cluster, plain PyTorch code beside safetensors and JSON."""

import zipfile
from collections.abc import Mapping
from pathlib import Path


def write_archive(folder: Path, name: str, files: Mapping[str, str | bytes | Path]) -> Path:
    """Writes the zip file `name` into `folder` and gives its path; a `Path` among `files` is copied from there."""
    path = folder / name
    with zipfile.ZipFile(path, "w") as archive:
        for file_name, content in files.items():
            if isinstance(content, Path):
                archive.write(content, file_name)
            else:
                archive.writestr(file_name, content)
    return path

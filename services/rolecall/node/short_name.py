"""A short path to a folder that can be deeply nested."""

import contextlib
import hashlib
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def short_name(folder: Path) -> Generator[Path]:
    """A temporary link to `folder` for the duration of the context, or `folder` itself if no link can be created.

    The workers' temporary files are below it, such as the Unix sockets of `multiprocessing`, whose names are limited to
    107 bytes.
    """
    digest = hashlib.sha256(str(folder.absolute()).encode()).hexdigest()
    link = Path(tempfile.gettempdir(), f"rolecall-{digest[:8]}")
    try:
        link.unlink(missing_ok=True)
        link.symlink_to(folder.absolute())
    except OSError:  # The link belongs to another user, or the folder is not writable.
        yield folder
        return
    try:
        yield link
    finally:
        with contextlib.suppress(OSError):
            link.unlink()

"""A short path to a folder that may lie deep."""

import contextlib
import hashlib
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def short_name(folder: Path) -> Generator[Path]:
    """A link to `folder` among the temporary files while the context lasts; `folder` itself if none can be made.

    Workers have their temporary files below it, and Python's `multiprocessing` its sockets there: the name of a Unix
    socket has 107 bytes at most.
    """
    digest = hashlib.sha256(str(folder.absolute()).encode()).hexdigest()
    link = Path(tempfile.gettempdir(), f"rolecall-{digest[:8]}")
    try:
        link.unlink(missing_ok=True)
        link.symlink_to(folder.absolute())
    except OSError:  # Somebody else's, or nothing can be made there.
        yield folder
        return
    try:
        yield link
    finally:
        with contextlib.suppress(OSError):
            link.unlink()

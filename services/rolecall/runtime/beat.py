"""A worker's sign of life, from a thread of its own: it stops when the process is stopped, and not when a call
blocks.
"""

import threading
from pathlib import Path

_EVERY_S = 0.5


def start_beating(path: Path) -> None:
    """Touch `path` every half second for as long as the process lives."""
    path.touch()
    threading.Thread(target=_beat, args=(path,), name="beat", daemon=True).start()


def _beat(path: Path) -> None:
    pause = threading.Event()
    while not pause.wait(_EVERY_S):
        path.touch()

"""Training rows that are parsed anew in every epoch and mixed in a buffer, for data too large for the disk.

The order is decided by the seed, the epoch, the files and the buffer alone: every trainer computes the same global
batches and takes its share. To begin at a later step is to read and drop what comes before.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from rolecall.kit.data_order import derive_seed

Records = NDArray[np.void]


def shuffled(pieces: Iterator[Records], buffer_rows: int, seed: int, epoch: int) -> Iterator[Records]:
    """The records of `pieces` in pieces of other sizes; each waits in a buffer until chance throws it out."""
    random = np.random.Generator(np.random.Philox(key=derive_seed(seed, epoch)))
    buffer: Records | None = None
    for piece in pieces:
        held = piece[:0].copy() if buffer is None else buffer
        room = buffer_rows - len(held)
        buffer = np.concatenate([held, piece[:room]])
        for start in range(room, len(piece), buffer_rows):
            newcomers = piece[start : start + buffer_rows]
            places = random.choice(len(buffer), len(newcomers), replace=False)
            leaving = buffer[places]
            buffer[places] = newcomers
            yield leaving
    if buffer is not None:
        yield random.permutation(buffer)


def batched(pieces: Iterator[Records], batch_size: int) -> Iterator[Records]:
    """The same records in batches of `batch_size`; the last may be short."""
    waiting: list[Records] = []
    rows = 0
    for piece in pieces:
        waiting.append(piece)
        rows += len(piece)
        if rows < batch_size:
            continue
        together = np.concatenate(waiting)
        whole = rows - rows % batch_size
        yield from np.split(together[:whole], whole // batch_size)
        waiting, rows = [together[whole:]], rows - whole
    if rows:
        yield np.concatenate(waiting)

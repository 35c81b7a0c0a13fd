"""A shuffle buffer for training rows that are parsed in every epoch, for data too large for the disk.

The order depends only on the seed, the epoch, the files and the buffer: every trainer computes the same global batches
and takes its share. Starting at a later step reads and drops the preceding rows.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from rolecall.kit.data_order import derive_seed

Records = NDArray[np.void]


def shuffle(chunks: Iterator[Records], buffer_rows: int, seed: int, epoch: int) -> Iterator[Records]:
    """The records of `chunks` in random order: each new record replaces a random one of `buffer_rows` in the buffer."""
    random = np.random.Generator(np.random.Philox(key=derive_seed(seed, epoch)))
    buffer: Records | None = None
    for chunk in chunks:
        held = chunk[:0].copy() if buffer is None else buffer
        room = buffer_rows - len(held)
        buffer = np.concatenate([held, chunk[:room]])
        for start in range(room, len(chunk), buffer_rows):
            incoming = chunk[start : start + buffer_rows]
            indices = random.choice(len(buffer), len(incoming), replace=False)
            outgoing = buffer[indices]
            buffer[indices] = incoming
            yield outgoing
    if buffer is not None:
        yield random.permutation(buffer)


def rebatch(chunks: Iterator[Records], batch_size: int) -> Iterator[Records]:
    """The same records in batches of `batch_size`; the last may be short."""
    waiting: list[Records] = []
    rows = 0
    for chunk in chunks:
        waiting.append(chunk)
        rows += len(chunk)
        if rows < batch_size:
            continue
        together = np.concatenate(waiting)
        whole = rows - rows % batch_size
        yield from np.split(together[:whole], whole // batch_size)
        waiting, rows = [together[whole:]], rows - whole
    if rows:
        yield np.concatenate(waiting)

"""A text's tokens as sequences of one length, packed without gaps, and their order in each epoch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from rolecall.kit.data_order import DataOrder
from rolecall.spec.errors import InputError

IGNORED = -100
"""A target that does not count, as `torch.nn.functional.cross_entropy` has it."""


@dataclass(frozen=True, slots=True)
class Sequences:
    """Sequence `i` predicts tokens `i · context + 1` to `(i + 1) · context` of the text, each from those before it."""

    tokens: torch.Tensor
    """[n] int32."""
    context: int

    def __len__(self) -> int:
        """How many whole sequences there are; the rest of the text is left out."""
        return max(0, (len(self.tokens) - 1) // self.context)

    def take(self, rows: Sequence[int] | NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        """The inputs and the targets [rows, context] int64 of some sequences."""
        starts = torch.as_tensor(rows, dtype=torch.int64)[:, None] * self.context
        whole = self.tokens[starts + torch.arange(self.context + 1)].to(torch.int64)
        return whole[:, :-1].contiguous(), whole[:, 1:].contiguous()

    def padded(self, first: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """As `take`, sequences `first` to `first + rows`; those past the end have no targets that count."""
        places = range(first, first + rows)
        inputs, targets = self.take([place if place < len(self) else 0 for place in places])
        targets[max(0, len(self) - first) :] = IGNORED
        return inputs, targets


@dataclass(frozen=True, slots=True)
class Epochs:
    """The training sequences in global batches, each epoch in its own order; the position is one integer."""

    sequences: Sequences
    batch_size: int
    seed: int

    def __post_init__(self) -> None:
        """Raises `InputError` if there is not one whole batch."""
        if self.steps_per_epoch == 0:
            raise InputError(
                f"the training text has {len(self.sequences.tokens)} tokens, {len(self.sequences)} sequences of "
                f"{self.sequences.context}, and a step takes {self.batch_size}; give more text, or lower batch_size "
                "or context"
            )

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches in one pass; which sequences are left over differs from epoch to epoch."""
        return len(self.sequences) // self.batch_size

    def share(self, epoch: int, step: int, replica: int, replicas: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What `replica` takes of global batch `step` of `epoch`: inputs and targets [batch / replicas, context]."""
        order = DataOrder(len(self.sequences), self.batch_size, self.seed)
        return self.sequences.take(order.share(epoch, step, replica, replicas))

    def shares(self, epoch: int, done: int, replica: int, replicas: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The shares of the epoch's batches from step `done` on."""
        return (self.share(epoch, step, replica, replicas) for step in range(done, self.steps_per_epoch))

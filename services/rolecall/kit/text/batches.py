"""A text's tokens in batches: as parallel streams, or as shuffled sequences of equal length.

Streams are the columns of a global batch. They are read together, `bptt` tokens per step. Each trainer has a share of
the columns, so that the global batches don't depend on the number of trainers, and a stream's recurrent state stays in
its trainer.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from rolecall.kit.data_order import DataOrder
from rolecall.spec.errors import InputError

IGNORED = -100
"""The `ignore_index` of `torch.nn.functional.cross_entropy`."""


@dataclass(frozen=True, slots=True)
class Segment:
    """The next tokens of some streams."""

    inputs: torch.Tensor
    """[t, b] int64 tokens."""
    targets: torch.Tensor
    """[t, b] int64: the target of each of them, usually the next token."""
    global_tokens: int
    """Tokens of all streams, including those of other trainers."""
    first: bool
    """True at the start of the streams."""


@dataclass(frozen=True, slots=True)
class TokenStreams:
    """`count` streams of a text [n] int32, `bptt` tokens a step; drops up to `count` tokens at its end."""

    text: torch.Tensor
    count: int
    bptt: int
    targets: torch.Tensor | None = None
    """[n - 1] int32; None if the next tokens are the targets."""

    @property
    def length(self) -> int:
        """Target tokens in each stream."""
        return (len(self.text) - 1) // self.count

    @property
    def steps(self) -> int:
        """Segments in each stream; the last may be short."""
        return -(-self.length // self.bptt)

    def segments(self, columns: slice, start: int = 0) -> Iterator[Segment]:
        """The segments of the streams `columns`, starting at segment `start`."""
        size = self.count * self.length
        inputs = self.text[:size].view(self.count, self.length)[columns]
        following = self.text[1:] if self.targets is None else self.targets
        targets = following[:size].view(self.count, self.length)[columns]
        for begin in range(start * self.bptt, self.length, self.bptt):
            here = slice(begin, min(begin + self.bptt, self.length))
            tokens = self.count * (here.stop - begin)
            yield Segment(inputs[:, here].t().long(), targets[:, here].t().long(), tokens, begin == 0)


def open_streams(
    text: torch.Tensor, count: int, bptt: int, split: str, *, targets: torch.Tensor | None = None
) -> TokenStreams:
    """The text as streams; raises `InputError` if it is too short for `count` of them."""
    if len(text) <= count:
        raise InputError(
            f"the {split} text has {len(text)} tokens, too few for {count} streams; "
            f"lower batch_size below {len(text)}, or provide more text"
        )
    return TokenStreams(text, count, bptt, targets)


@dataclass(frozen=True, slots=True)
class Sequences:
    """Sequence `i` has the targets `i · context + 1` to `(i + 1) · context` of the text."""

    tokens: torch.Tensor
    """[n] int32."""
    context: int
    targets: torch.Tensor | None = None
    """[n - 1] int32; None if the next tokens are the targets."""

    def __len__(self) -> int:
        """The number of full sequences; the rest of the text is dropped."""
        return max(0, (len(self.tokens) - 1) // self.context)

    def take(self, rows: Sequence[int] | NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets [rows, context] int64 of the given sequences."""
        starts = torch.as_tensor(rows, dtype=torch.int64)[:, None] * self.context
        whole = self.tokens[starts + torch.arange(self.context + 1)].to(torch.int64)
        if self.targets is not None:
            return whole[:, :-1].contiguous(), self.targets[starts + torch.arange(self.context)].to(torch.int64)
        return whole[:, :-1].contiguous(), whole[:, 1:].contiguous()

    def padded(self, first: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """As `take` for sequences [first, first + rows); targets past the end are `IGNORED`."""
        indices = range(first, first + rows)
        inputs, targets = self.take([index if index < len(self) else 0 for index in indices])
        targets[max(0, len(self) - first) :] = IGNORED
        return inputs, targets


@dataclass(frozen=True, slots=True)
class SequenceBatches:
    """The training sequences in shuffled global batches; a position is one integer."""

    sequences: Sequences
    batch_size: int
    seed: int

    def __post_init__(self) -> None:
        """Raises `InputError` if there is no full batch."""
        if self.steps_per_epoch == 0:
            raise InputError(
                f"the training text has {len(self.sequences.tokens)} tokens, {len(self.sequences)} sequences of "
                f"{self.sequences.context}, but a step needs {self.batch_size}; provide more text, or lower batch_size "
                "or context"
            )

    @property
    def steps_per_epoch(self) -> int:
        """Full batches in one pass; each epoch drops other sequences."""
        return len(self.sequences) // self.batch_size

    def share(self, epoch: int, step: int, replica: int, replicas: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets [batch / replicas, context] of `replica` in global batch `step` of `epoch`."""
        order = DataOrder(len(self.sequences), self.batch_size, self.seed)
        return self.sequences.take(order.share(epoch, step, replica, replicas))

    def shares(self, epoch: int, done: int, replica: int, replicas: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The shares of the epoch's batches, starting at step `done`."""
        return (self.share(epoch, step, replica, replicas) for step in range(done, self.steps_per_epoch))

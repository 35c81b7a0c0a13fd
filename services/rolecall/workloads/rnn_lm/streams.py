"""A text as parallel streams: cut into equal parts that are read side by side, so many tokens at a time.

The streams are the columns of a global batch. Trainers share the columns, so that together they see the same batches
however many they are, and a stream's hidden state stays with its trainer.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from rolecall.spec.errors import InputError


@dataclass(frozen=True, slots=True)
class Segment:
    """The next tokens of some streams."""

    inputs: torch.Tensor
    """[t, b] int64 tokens."""
    targets: torch.Tensor
    """[t, b] int64: the token after each of them."""
    global_tokens: int
    """Tokens of all streams together, also those of other trainers."""
    first: bool
    """Whether the streams begin here."""


@dataclass(frozen=True, slots=True)
class Streams:
    """`count` streams of a text [n] int32, `bptt` tokens a step; the up to `count` tokens at its end are left out."""

    text: torch.Tensor
    count: int
    bptt: int

    @property
    def length(self) -> int:
        """Tokens that each stream predicts."""
        return (len(self.text) - 1) // self.count

    @property
    def steps(self) -> int:
        """Segments from beginning to end; the last may be short."""
        return -(-self.length // self.bptt)

    def segments(self, columns: slice, start: int = 0) -> Iterator[Segment]:
        """The segments of some of the streams, from segment `start` on."""
        size = self.count * self.length
        inputs = self.text[:size].view(self.count, self.length)[columns]
        targets = self.text[1 : size + 1].view(self.count, self.length)[columns]
        for begin in range(start * self.bptt, self.length, self.bptt):
            here = slice(begin, min(begin + self.bptt, self.length))
            tokens = self.count * (here.stop - begin)
            yield Segment(inputs[:, here].t().long(), targets[:, here].t().long(), tokens, begin == 0)


def open_streams(text: torch.Tensor, count: int, bptt: int, split: str) -> Streams:
    """Raises `InputError` if the text is too short for so many streams."""
    if len(text) <= count:
        raise InputError(
            f"the {split} text has {len(text)} tokens, too few for {count} streams; "
            f"lower batch_size below {len(text)}, or give more text"
        )
    return Streams(text, count, bptt)

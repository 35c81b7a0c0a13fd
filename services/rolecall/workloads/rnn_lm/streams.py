"""A text as parallel streams: cut into parts of equal length that are read together, `bptt` tokens per step.

The streams are the columns of a global batch. Each trainer has a share of the columns, so that the global batches don't
depend on the number of trainers, and a stream's hidden state stays in its trainer.
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
    """Tokens of all streams, including those of other trainers."""
    first: bool
    """Whether the segment is at the start of the streams."""


@dataclass(frozen=True, slots=True)
class TokenStreams:
    """`count` streams of a text [n] int32, `bptt` tokens a step; drops up to `count` tokens at its end."""

    text: torch.Tensor
    count: int
    bptt: int

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
        targets = self.text[1 : size + 1].view(self.count, self.length)[columns]
        for begin in range(start * self.bptt, self.length, self.bptt):
            here = slice(begin, min(begin + self.bptt, self.length))
            tokens = self.count * (here.stop - begin)
            yield Segment(inputs[:, here].t().long(), targets[:, here].t().long(), tokens, begin == 0)


def open_streams(text: torch.Tensor, count: int, bptt: int, split: str) -> TokenStreams:
    """Raises `InputError` if the text is too short for `count` streams."""
    if len(text) <= count:
        raise InputError(
            f"the {split} text has {len(text)} tokens, too few for {count} streams; "
            f"lower batch_size below {len(text)}, or provide more text"
        )
    return TokenStreams(text, count, bptt)

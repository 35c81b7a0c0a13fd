"""In which order a stage works on the micro-batches of one step. Torch-free."""

from collections.abc import Iterator
from typing import Literal

Action = tuple[Literal["forward", "backward"], int]
"""What to do, and with which micro-batch."""


def one_forward_one_backward(place: int, stages: int, micro_batches: int) -> Iterator[Action]:
    """The actions of stage `place` of `stages`: 1F1B with a flush at the end of the step (Narayanan et al., 2021).

    A stage runs ahead by as many forward passes as there are stages behind it, then alternates, so that it holds the
    activations of at most `stages - place` micro-batches. Both kinds of passes take the micro-batches in order.
    """
    ahead = min(stages - place - 1, micro_batches)
    for micro_batch in range(ahead):
        yield "forward", micro_batch
    for micro_batch in range(ahead, micro_batches):
        yield "forward", micro_batch
        yield "backward", micro_batch - ahead
    for micro_batch in range(micro_batches - ahead, micro_batches):
        yield "backward", micro_batch

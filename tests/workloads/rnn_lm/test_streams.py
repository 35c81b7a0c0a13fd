"""A text becomes streams: equal parts, side by side, shared by the trainers."""

import pytest
import torch

from rolecall.kit.data_order import share_of
from rolecall.spec.errors import InputError
from rolecall.workloads.rnn_lm.streams import open_streams


def text(tokens: int) -> torch.Tensor:
    return torch.arange(tokens, dtype=torch.int32)


@pytest.mark.parametrize(
    ("tokens", "count", "bptt"), [(101, 4, 7), (101, 4, 25), (90, 4, 7), (5, 4, 7), (1000, 1, 999)]
)
def test_every_stream_is_read_once_in_order(tokens: int, count: int, bptt: int) -> None:
    streams = open_streams(text(tokens), count, bptt, "train")
    segments = list(streams.segments(slice(None)))
    assert len(segments) == streams.steps
    assert sum(segment.global_tokens for segment in segments) == count * streams.length
    columns = torch.cat([segment.inputs for segment in segments]).t()
    assert torch.equal(columns.flatten(), torch.arange(count * streams.length))
    for segment in segments:
        assert torch.equal(segment.targets, segment.inputs + 1)
        assert segment.inputs.numel() == segment.global_tokens
    assert [segment.first for segment in segments] == [True] + [False] * (len(segments) - 1)
    assert tokens - 1 - count * streams.length < count


@pytest.mark.parametrize("world", [1, 2, 3])
def test_trainers_share_the_columns_of_the_same_batches(world: int) -> None:
    streams = open_streams(text(200), 5, 8, "train")
    shares = zip(*(streams.segments(share_of(5, rank, world)) for rank in range(world)), strict=True)
    for whole, parts in zip(streams.segments(slice(None)), shares, strict=True):
        assert torch.equal(torch.cat([part.inputs for part in parts], 1), whole.inputs)
        assert {part.global_tokens for part in parts} == {whole.global_tokens}


def test_reading_can_go_on_in_the_middle() -> None:
    streams = open_streams(text(200), 5, 8, "train")
    whole = list(streams.segments(slice(1, 3)))
    for left, right in zip(streams.segments(slice(1, 3), 2), whole[2:], strict=True):
        assert torch.equal(left.inputs, right.inputs)
        assert not left.first


def test_a_text_that_is_too_short_is_an_error() -> None:
    with pytest.raises(
        InputError, match=r"the test text has 8 tokens, too few for 8 streams; lower batch_size below 8"
    ):
        open_streams(text(8), 8, 5, "test")

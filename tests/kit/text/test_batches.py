# pyright: standard
"""A text in batches: streams are read once and in order, sequences are packed and shuffled."""

import pytest
import torch

from rolecall.kit.data_order import share_of
from rolecall.kit.text.batches import IGNORED, SequenceBatches, Sequences, open_streams
from rolecall.spec.errors import InputError


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


def test_targets_of_their_own_replace_the_next_tokens() -> None:
    targets = 1000 + torch.arange(199, dtype=torch.int32)
    streams = open_streams(text(200), 5, 8, "train", targets=targets)
    for segment in streams.segments(slice(1, 3), 2):
        assert torch.equal(segment.targets, segment.inputs + 1000)
    inputs, found = Sequences(text(200), 3, targets).take([2, 0])
    assert (inputs.tolist(), found.tolist()) == ([[6, 7, 8], [0, 1, 2]], [[1006, 1007, 1008], [1000, 1001, 1002]])


def test_a_text_that_is_too_short_is_an_error() -> None:
    with pytest.raises(
        InputError, match=r"the test text has 8 tokens, too few for 8 streams; lower batch_size below 8"
    ):
        open_streams(text(8), 8, 5, "test")


def test_sequences_are_packed_and_predict_the_next_token() -> None:
    sequences = Sequences(torch.arange(11, dtype=torch.int32), 3)
    assert len(sequences) == 3
    inputs, targets = sequences.take([2, 0])
    assert inputs.tolist() == [[6, 7, 8], [0, 1, 2]]
    assert targets.tolist() == [[7, 8, 9], [1, 2, 3]]


def test_what_fills_a_batch_up_does_not_count() -> None:
    _, targets = Sequences(torch.arange(11, dtype=torch.int32), 3).padded(2, 3)
    assert targets.tolist() == [[7, 8, 9], [IGNORED] * 3, [IGNORED] * 3]


def test_replicas_share_the_batches_that_one_would_take() -> None:
    batches = SequenceBatches(Sequences(torch.arange(1001, dtype=torch.int32), 10), batch_size=8, seed=1)
    assert batches.steps_per_epoch == 12
    for step, (inputs, _) in enumerate(batches.shares(epoch=2, done=0, replica=0, replicas=1)):
        halves = [batches.share(2, step, replica, 2)[0] for replica in range(2)]
        assert torch.equal(torch.cat(halves), inputs)


def test_an_epoch_sees_no_sequence_twice_and_goes_on_where_it_was() -> None:
    batches = SequenceBatches(Sequences(torch.arange(1001, dtype=torch.int32), 10), batch_size=8, seed=1)
    whole = [inputs for inputs, _ in batches.shares(0, 0, 0, 1)]
    firsts = torch.cat(whole)[:, 0].tolist()
    assert len(set(firsts)) == len(firsts) == 96
    rest = [inputs for inputs, _ in batches.shares(0, 7, 0, 1)]
    assert all(torch.equal(one, other) for one, other in zip(rest, whole[7:], strict=True))


def test_a_text_of_less_than_a_batch_is_refused() -> None:
    with pytest.raises(InputError, match="5 sequences of 2, but a step needs 8"):
        SequenceBatches(Sequences(torch.arange(11, dtype=torch.int32), 2), batch_size=8, seed=0)

"""How a text becomes batches."""

import pytest
import torch

from rolecall.spec.errors import InputError
from rolecall.workloads.transformer_pipeline.sequences import IGNORED, Epochs, Sequences


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
    epochs = Epochs(Sequences(torch.arange(1001, dtype=torch.int32), 10), batch_size=8, seed=1)
    assert epochs.steps_per_epoch == 12
    for step, (inputs, _) in enumerate(epochs.shares(epoch=2, done=0, replica=0, replicas=1)):
        halves = [epochs.share(2, step, replica, 2)[0] for replica in range(2)]
        assert torch.equal(torch.cat(halves), inputs)


def test_an_epoch_sees_no_sequence_twice_and_goes_on_where_it_was() -> None:
    epochs = Epochs(Sequences(torch.arange(1001, dtype=torch.int32), 10), batch_size=8, seed=1)
    whole = [inputs for inputs, _ in epochs.shares(0, 0, 0, 1)]
    firsts = torch.cat(whole)[:, 0].tolist()
    assert len(set(firsts)) == len(firsts) == 96
    rest = [inputs for inputs, _ in epochs.shares(0, 7, 0, 1)]
    assert all(torch.equal(one, other) for one, other in zip(rest, whole[7:], strict=True))


def test_a_text_of_less_than_a_batch_is_refused() -> None:
    with pytest.raises(InputError, match="5 sequences of 2, but a step needs 8"):
        Epochs(Sequences(torch.arange(11, dtype=torch.int32), 2), batch_size=8, seed=0)

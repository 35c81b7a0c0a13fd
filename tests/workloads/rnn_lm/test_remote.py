"""Embedding and decoder are the same, whole or cut into shards over servers."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from rolecall.kit.parameter_server import ShardSpec
from rolecall.workloads.rnn_lm.build import sharded_vocabulary
from rolecall.workloads.rnn_lm.params import Params
from rolecall.workloads.rnn_lm.remote import DecoderShard, combine_loss_terms


def params() -> Params:
    return Params.model_validate(
        {"text": {"train": "text"}, "embedding_dim": 3, "hidden_dim": 4, "precision": "float64", "init_range": 0.5}
    )


def decoders(count: int, rows: int = 11) -> list[DecoderShard]:
    return [DecoderShard(params(), ShardSpec(index, count, rows)) for index in range(count)]


@pytest.mark.parametrize("count", [1, 2, 3, 11])
def test_loss_and_gradient_by_shards_are_those_of_the_whole_decoder(count: int) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(20, 4, generator=generator, dtype=torch.float64) * 9
    targets = torch.randint(11, (20,), generator=generator)
    whole, shards = decoders(1)[0], decoders(count)
    expected = F.cross_entropy(whole(hidden), targets, reduction="none")
    losses = combine_loss_terms([shard.loss_terms(hidden, targets) for shard in shards])
    torch.testing.assert_close(losses, expected, rtol=0, atol=1e-12)
    expected.sum().backward()
    losses.sum().backward()
    for index, shard in enumerate(shards):
        assert whole.weight.grad is not None
        torch.testing.assert_close(shard.weight.grad, whole.weight.grad[index::count], rtol=0, atol=1e-12)


def test_a_decoder_takes_hidden_states_of_lower_precision() -> None:
    hidden = torch.randn(20, 4, dtype=torch.bfloat16, requires_grad=True)
    targets = torch.arange(20) % 11
    losses = combine_loss_terms([shard.loss_terms(hidden, targets) for shard in decoders(2)])
    expected = F.cross_entropy(decoders(1)[0](hidden.double()), targets, reduction="none")
    torch.testing.assert_close(losses, expected)
    losses.sum().backward()
    assert hidden.grad is not None


@pytest.mark.parametrize(
    ("servers", "embedding", "decoder"), [(1, [0], [0]), (2, [0], [1]), (3, [0], [1, 2]), (6, [0, 1], [2, 3, 4, 5])]
)
def test_servers_share_embedding_and_decoder(servers: int, embedding: list[int], decoder: list[int]) -> None:
    held = {module.name: list(module.servers) for module in sharded_vocabulary(params(), 100, servers)}
    assert held == {"embedding": embedding, "decoder": decoder}

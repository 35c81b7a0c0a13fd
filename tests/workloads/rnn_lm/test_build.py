"""The servers of embedding and decoder."""

import pytest

from rolecall.workloads.rnn_lm.build import sharded_vocabulary
from rolecall.workloads.rnn_lm.params import Params


def params() -> Params:
    return Params.model_validate(
        {"text": {"train": "text"}, "embedding_dim": 3, "hidden_dim": 4, "precision": "float64", "init_range": 0.5}
    )


@pytest.mark.parametrize(
    ("servers", "embedding", "decoder"), [(1, [0], [0]), (2, [0], [1]), (3, [0], [1, 2]), (6, [0, 1], [2, 3, 4, 5])]
)
def test_servers_share_embedding_and_decoder(servers: int, embedding: list[int], decoder: list[int]) -> None:
    held = {module.name: list(module.servers) for module in sharded_vocabulary(params(), 100, servers)}
    assert held == {"embedding": embedding, "decoder": decoder}

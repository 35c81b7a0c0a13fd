"""The servers of embedding and decoder, and custom recurrent parts."""

import sys
from pathlib import Path

import pytest

from rolecall.spec.errors import InputError
from rolecall.workloads.rnn_lm.build import make_recurrent, sharded_vocabulary
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


def test_a_custom_part_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "their_parts.py").write_text("from torch import nn\ndef narrow(i, h): return nn.Linear(2, h)\n")
    monkeypatch.setenv("ROLECALL_PLUGINS", str(tmp_path))
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.delitem(sys.modules, "their_parts", raising=False)
    given = Params.model_validate({"text": {"train": "text"}, "model": {"builder": "their_parts:narrow"}})
    with pytest.raises(InputError, match=r"^their_parts:narrow fails for vectors \[1, 1, \d+\]: TypeError: .*forward"):
        make_recurrent(given)

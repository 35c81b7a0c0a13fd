# pyright: standard, reportPrivateImportUsage=false
"""The tutorial's modules: dropout by a seed, and an `RNNModel` that trains as in the tutorial's own loop."""

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed.autograd as dist_autograd
import torch.nn.functional as F  # noqa: N812
from tests.own_process import own_rpc
from torch import Tensor, nn
from torch.distributed import rpc
from torch.distributed.optim import DistributedOptimizer
from torch.optim import SGD

from rolecall.kit.parameter_server import ShardSpec
from rolecall.kit.text.batches import Segment
from rolecall.workloads.rnn_lm.build import make_recurrent
from rolecall.workloads.rnn_lm.model import Recurrent, State
from rolecall.workloads.rnn_lm.params import Params
from rolecall.workloads.rnn_lm.remote import (
    Decoder,
    EmbeddingTable,
    RNNModel,
    SeededDropout,
    TutorialModel,
    remote_method,
)

NTOKEN, NINP, NHID, NLAYERS, BATCH, NINDICES = 10, 2, 3, 4, 5, 3
LR = 0.05
# Torch warns of the Gloo groups that it creates itself.
pytestmark = pytest.mark.filterwarnings("ignore:You are using a Backend:UserWarning")


@pytest.fixture(scope="module")
def ps(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name of a parameter server, which is this process."""
    with own_rpc(tmp_path_factory.mktemp("gang")) as name:
        yield name


def params(**given: Any) -> Params:
    tutorial = {"protocol": "tutorial", "max_grad_norm": None, "text": {"synthetic": {"tokens": 91}}}
    sizes = {"embedding_dim": NINP, "hidden_dim": NHID, "layers": NLAYERS, "batch_size": 3, "precision": "float64"}
    return Params.model_validate({**tutorial, **sizes, "dropout": 0.0, **given})


def model_on(ps: str, kind: type[RNNModel] = RNNModel, servers: int = 1, **given: Any) -> RNNModel:
    """As the tutorial's constructor builds it; `servers` shards of table and decoder."""
    torch.manual_seed(0)
    shards = [ShardSpec(index, servers, NTOKEN) for index in range(servers)]
    tables = [rpc.remote(ps, EmbeddingTable, args=(params(**given), shard)) for shard in shards]
    decoders = [rpc.remote(ps, Decoder, args=(params(**given), shard)) for shard in shards]
    return kind(tables, nn.LSTM(NINP, NHID, NLAYERS, dtype=torch.float64), decoders)


def batches(count: int = 6) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        data, target = torch.randint(NTOKEN, (2, BATCH, NINDICES), generator=generator)
        yield data, target


class WithoutState(RNNModel):
    """A model of a user's own."""

    def forward(self, tokens: Tensor, hidden: State | None) -> tuple[Tensor, State]:
        return super().forward(tokens, None)


def train(model: RNNModel) -> list[float]:
    """The tutorial's loop."""
    with warnings.catch_warnings(record=True):  # Some versions of torch warn of TorchScript, whatever the filters.
        optimizer = DistributedOptimizer(SGD, model.parameter_rrefs(), lr=LR)
    hidden, losses = None, list[float]()
    for data, target in batches():
        with dist_autograd.context() as context_id:
            hidden = hidden and tuple(one.detach() for one in hidden)
            output, hidden = model(data, hidden)
            loss = F.cross_entropy(output.flatten(0, 1), target.flatten())
            dist_autograd.backward(context_id, [loss])
            optimizer.step(context_id)
            losses.append(float(loss.detach()))
    return losses


def train_alone(*, keep_state: bool) -> list[float]:
    """The same model in plain PyTorch."""
    torch.manual_seed(0)
    whole = ShardSpec(0, 1, NTOKEN)
    table, lstm = EmbeddingTable(params(), whole), nn.LSTM(NINP, NHID, NLAYERS, dtype=torch.float64)
    decoder = Decoder(params(), whole)
    optimizer = SGD([*table.parameters(), *lstm.parameters(), *decoder.parameters()], lr=LR)
    state, losses = None, list[float]()
    for data, target in batches():
        hidden, state = lstm(F.embedding(data, table.weight), state if keep_state else None)
        loss = F.cross_entropy(F.linear(hidden, decoder.weight, decoder.bias).flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        state = tuple(one.detach() for one in state)
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(
    ("servers", "kind", "keep_state"), [(1, RNNModel, True), (3, RNNModel, True), (1, WithoutState, False)]
)
def test_the_tutorials_loop_trains_as_one_process_does(
    ps: str, servers: int, kind: type[RNNModel], keep_state: bool
) -> None:
    expected = train_alone(keep_state=keep_state)
    assert train(model_on(ps, kind, servers)) == pytest.approx(expected, rel=0, abs=1e-10)
    assert expected[-1] != expected[0]


def test_evaluation_has_no_dropout_and_no_gradients(ps: str) -> None:
    model, exact = (model_on(ps, servers=2, dropout=rate) for rate in (0.5, 0.0))
    data, _ = next(batches())
    expected, _ = exact(data, None)
    assert not torch.equal(model(data, None)[0], expected)
    with torch.no_grad():
        logits, _ = model.eval()(data, None)
    assert not logits.requires_grad
    torch.testing.assert_close(logits, expected.detach(), rtol=0, atol=0)


class Projection(nn.Module):
    """A recurrent part without the LSTM, which some CPUs can't compute in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(NINP, NHID)

    def forward(self, vectors: Tensor, state: State | None) -> tuple[Tensor, State]:
        return self.linear(vectors), ()


def test_bfloat16_follows_float32_and_keeps_its_losses(ps: str) -> None:
    losses: list[Tensor] = []
    for precision in ("float32", "bfloat16"):
        given = params(precision=precision, dropout=0.4, init_range=1.0)
        whole = ShardSpec(0, 1, NTOKEN)
        table, decoder = (rpc.remote(ps, kind, args=(given, whole)) for kind in (EmbeddingTable, Decoder))
        model = TutorialModel(given, RNNModel([table], Projection(), [decoder]))
        data, target = next(batches())
        losses.append(model(Segment(data, target, data.numel(), first=True), None)[0])
    exact, rounded = losses
    assert exact.dtype == rounded.dtype == torch.float32
    assert 0 < (exact - rounded).abs().max() < 0.05


def test_a_remote_method_takes_the_seed_of_its_mask(ps: str) -> None:
    table = rpc.remote(ps, EmbeddingTable, args=(params(dropout=0.5), ShardSpec(0, 1, NTOKEN)))
    rows = torch.arange(NTOKEN)
    first, same, other = (remote_method(EmbeddingTable.forward, table, rows, seed=seed) for seed in (7, 7, 8))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_a_seeds_mask_drops_its_share_and_keeps_the_mean() -> None:
    values = torch.rand(1000, 1000) + 1
    torch.manual_seed(0)
    before = torch.get_rng_state()
    dropped = SeededDropout(0.3)(values, 5)
    assert torch.equal(torch.get_rng_state(), before)  # other threads of the server draw from it
    assert float((dropped == 0).float().mean()) == pytest.approx(0.3, abs=0.003)
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], values[kept] / 0.7)
    assert SeededDropout(0.3)(values, None) is values


def test_the_trainers_only_drop_values_between_the_layers() -> None:
    part = make_recurrent(params(dropout=0.4))
    assert isinstance(part, Recurrent)
    assert (part.dropout.p, part.lstm.dropout) == (0.0, 0.4)
    assert EmbeddingTable(params(dropout=0.4), ShardSpec(0, 1, NTOKEN)).drop.rate == 0.4


def test_a_custom_recurrent_part_replaces_all_dropout() -> None:
    custom = {"model": {"builder": "mine:gru"}, "layers": 2, "dropout": 0.2}
    assert Decoder(params(**custom), ShardSpec(0, 1, NTOKEN)).drop.rate == 0.0

# pyright: standard, reportPrivateImportUsage=false
"""A shard averages the gradients of all trainers and steps its optimizer; trainers are threads here."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
import torch.distributed.autograd as dist_autograd
from tests.measured import increases, measured
from torch import Tensor
from torch.optim import SGD, Adagrad, Optimizer

from rolecall.kit import Stopped
from rolecall.kit.optimizers import OptimizerChoice
from rolecall.kit.parameter_server import (
    ShardedEmbedding,
    Shards,
    Uniform,
    Update,
    make_shards,
    serve,
    sharded_embedding,
)
from rolecall.kit.parameter_server import shard as shard_module
from rolecall.spec.metric import SERVED_CALLS, SERVED_ROWS, SERVED_SECONDS, TABLE_BYTES, UPDATE_SECONDS, UPDATES

from .conftest import WorkerContextOfTest, manifest_of

# Torch warns of the Gloo groups that it creates itself.
pytestmark = pytest.mark.filterwarnings("ignore:You are using a Backend:UserWarning")
LR, ROWS, DIM = 0.5, 5, 3
IDS = [torch.tensor([0, 1, 1]), torch.tensor([1, 4])]


def shards_of(trainers: int, *, synchronous: bool = True, kind: type[Optimizer] = SGD) -> Shards:
    optimizer, initializer = OptimizerChoice(kind, {"lr": LR}), Uniform(0, 1.0)
    table = sharded_embedding("table", ROWS, dim=DIM, initializer=initializer, optimizer=optimizer, servers=[0])
    return make_shards([table], trainers, synchronous=synchronous)


def rows(shards: Shards) -> Tensor:
    return torch.cat(list(shards.blocks("table", "weight")))


def gradient(ids: Tensor) -> Tensor:
    """The gradient of the sum of the looked-up vectors: how often each row is used."""
    return torch.bincount(ids, minlength=ROWS).float().unsqueeze(1).expand(ROWS, DIM)


def train(shards: Shards, ids: Tensor, apply: Callable[[int], object]) -> None:
    with dist_autograd.context() as context_id:
        vectors = ShardedEmbedding(shards.of("table"))(ids)
        dist_autograd.backward(context_id, [vectors.sum()])
        apply(context_id)


@pytest.mark.usefixtures("gang", "context")
def test_a_synchronous_step_is_that_of_the_mean_gradient() -> None:
    (size,) = measured(TABLE_BYTES)
    shards = shards_of(2)
    before = rows(shards)
    assert measured(TABLE_BYTES) == [size + 4 * ROWS * DIM]
    counted, timed = (SERVED_CALLS, SERVED_ROWS, UPDATES), (SERVED_SECONDS, UPDATE_SECONDS)
    counts, times = measured(*counted), measured(*timed)

    def one(trainer: int) -> None:
        # Each trainer has references of its own, as after a transfer to another process: they keep its gradients.
        own = Shards([replace(shard, gradients=[]) for shard in shards.of("table")])
        train(own, IDS[trainer], lambda at: torch.futures.wait_all(own.apply(at, 0, trainer, 0.1)))

    with ThreadPoolExecutor(2) as trainers:
        list(trainers.map(one, range(2)))
    mean = (gradient(IDS[0]) + gradient(IDS[1])) / 2
    torch.testing.assert_close(rows(shards), before - LR * 0.1 * mean)
    assert increases(counts, *counted) == [2, 4, 1], "each trainer looks up two distinct rows"
    assert min(increases(times, *timed)) > 0


@pytest.mark.usefixtures("gang", "context")
def test_a_synchronous_step_of_adagrad_is_on_all_trainers_rows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without memory for their mean."""

    def fail(*_: object) -> None:
        raise AssertionError("the mean of the gradients was computed")

    monkeypatch.setattr(shard_module, "mean_rows", fail)
    shards = shards_of(2, kind=Adagrad)
    before, updates = rows(shards), measured(UPDATES)

    def one(trainer: int) -> None:
        own = Shards([replace(shard, gradients=[]) for shard in shards.of("table")])
        train(own, IDS[trainer], lambda at: torch.futures.wait_all(own.apply(at, 0, trainer, 0.1)))

    with ThreadPoolExecutor(2) as trainers:
        list(trainers.map(one, range(2)))
    used = gradient(torch.cat(IDS)).sign()  # The first step of Adagrad has the length of the rate.
    torch.testing.assert_close(rows(shards), before - LR * 0.1 * used)
    assert increases(updates, UPDATES) == [1]


@pytest.mark.usefixtures("gang", "context")
def test_an_asynchronous_shard_waits_for_nobody() -> None:
    shards = shards_of(2, synchronous=False)
    before = rows(shards)
    train(shards, IDS[0], lambda context_id: torch.futures.wait_all(shards.apply(context_id, 0, 0, 1.0)))
    torch.testing.assert_close(rows(shards), before - LR * gradient(IDS[0]) / 2)
    (table,) = shards.modules("table")
    assert table.local_value().weight.grad is None, "its memory is not released"


@pytest.mark.usefixtures("gang", "context")
@pytest.mark.parametrize("synchronous", [True, False])
def test_rows_after_an_update_are_those_that_it_leaves(synchronous: bool) -> None:
    shards = shards_of(2 if synchronous else 1, synchronous=synchronous)
    table, before = ShardedEmbedding(shards.of("table")), rows(shards)
    with dist_autograd.context() as context_id:
        dist_autograd.backward(context_id, [table(IDS[0]).sum()])
        with torch.no_grad():
            early = table.request(table.prepare(IDS[0]), after=Update(3, 0))
        applied = shards.apply(context_id, 3, 0, 1.0)
        if synchronous:
            assert not any(one.done() for one in (*applied, *(cast(Any, reply).vectors for reply in early.replies)))
            others = Shards([replace(shard, gradients=[]) for shard in shards.of("table")])
            applied += others.apply(None, 3, 1, 1.0)
        torch.futures.wait_all(applied)
    expected = before - LR * gradient(IDS[0]) / len(applied)
    torch.testing.assert_close(early.expand(), expected[IDS[0]])
    with torch.no_grad():
        late = table.request(table.prepare(IDS[1]), after=Update(3, 0))
    torch.testing.assert_close(late.expand(), expected[IDS[1]])


@pytest.mark.usefixtures("gang", "context")
def test_rows_after_a_failed_update_are_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    shards = shards_of(1)
    monkeypatch.setattr(shard_module.Shard, "_step", lambda *_: {}["no such row"])
    table = ShardedEmbedding(shards.of("table"))
    with dist_autograd.context() as context_id:
        dist_autograd.backward(context_id, [table(IDS[0]).sum()])
        shards.apply(context_id, 0, 0, 1.0)
        with torch.no_grad(), pytest.raises(Exception, match="no such row"):
            table.request(table.prepare(IDS[0]), after=Update(0, 0)).expand()


@pytest.mark.usefixtures("gang", "context")
def test_gathered_gradients_are_scaled_and_applied_once() -> None:
    shards = shards_of(1)
    before = rows(shards)
    counts, times = measured(UPDATES), measured(UPDATE_SECONDS)

    def clip(context_id: int) -> None:
        (squared,) = torch.futures.wait_all(shards.gather(context_id, 7, 0))
        assert squared == pytest.approx(float(gradient(IDS[0]).square().sum()))
        (gathered_s,) = increases(times, UPDATE_SECONDS)
        assert gathered_s > 0
        for _ in range(2):  # Each trainer of a gang sends the same request.
            torch.futures.wait_all(shards.update(7, 0.25, 1.0))
        assert increases(counts, UPDATES) == [1]
        assert increases(times, UPDATE_SECONDS) > [gathered_s]

    train(shards, IDS[0], clip)
    torch.testing.assert_close(rows(shards), before - LR * 0.25 * gradient(IDS[0]))
    (table,) = shards.modules("table")
    assert table.local_value().weight.grad is None, "its memory is not released"


@pytest.mark.usefixtures("gang", "context", "without_loops")
def test_missing_loops_are_logged_by_shards_that_update_rows(caplog: pytest.LogCaptureFixture) -> None:
    """With `protocol: tutorial`, they do not: torch's own optimizers do."""
    shards = shards_of(1)
    assert not caplog.records
    train(shards, IDS[0], lambda context_id: torch.futures.wait_all(shards.apply(context_id, 0, 0, 1.0)))
    assert "the package was built without a C compiler" in caplog.text


@pytest.mark.usefixtures("gang")
def test_a_checkpoint_restores_the_rows(context: WorkerContextOfTest) -> None:
    shards = shards_of(1)
    saved = rows(shards)
    parts = torch.futures.wait_all(shards.save(3))
    assert [part.name for part in parts] == ["table-0"]
    train(shards, IDS[0], lambda context_id: torch.futures.wait_all(shards.apply(context_id, 0, 0, 1.0)))
    assert not torch.equal(rows(shards), saved)
    shards.load(manifest_of(context, 3, parts))
    assert torch.equal(rows(shards), saved)


def test_serving_returns_at_once(context: WorkerContextOfTest) -> None:
    assert serve(context) is None


def test_serving_stops_if_the_job_must_stop(context: WorkerContextOfTest) -> None:
    context.workdir.stop.write_text("pause")
    with pytest.raises(Stopped, match="stopped before the training started"):
        serve(context)

# pyright: standard
"""The loop of trainers: steps on the mean loss, checkpoints of trainer and servers."""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from rolecall.kit.loop import EvalSplit
from rolecall.kit.optimizers import OptimizerChoice
from rolecall.kit.parameter_server import (
    ServerOptimizers,
    Shard,
    ShardedEmbedding,
    ShardedTrainingLoop,
    Uniform,
    Update,
    make_local,
    make_shards,
    sharded_embedding,
)
from rolecall.kit.parameter_server.lookup import RequestedRows
from rolecall.kit.params import TrainingParams
from rolecall.runtime.agreement import Decision
from rolecall.spec.plan import CheckpointPart

from .conftest import WorkerContextOfTest, manifest_of

# Torch warns of the Gloo groups that it creates itself.
pytestmark = pytest.mark.filterwarnings("ignore:You are using a Backend:UserWarning")
CHOICE = OptimizerChoice(SGD, {"lr": 0.5, "momentum": 0.9})
BATCH = torch.tensor([0, 2, 2, 3])


class Model(ShardedTrainingLoop[Tensor, TrainingParams]):
    """A table on the server and a linear layer here; drops some outputs, to show that random states are restored."""

    def __init__(self, context: WorkerContextOfTest, *, uses_stale_rows: bool = False) -> None:
        table = sharded_embedding(
            "table", 4, dim=3, initializer=Uniform(0, 1.0), optimizer=CHOICE, servers=[0], sparse=False
        )
        shards = make_shards([table], 1)
        self.linear = make_local(context, lambda: nn.Linear(3, 1), torch.float32)
        super().__init__(
            context,
            shards,
            ServerOptimizers(shards, 0, CHOICE.build(self.linear.parameters())),
            self.linear,
            uses_stale_rows=uses_stale_rows,
        )
        self.table = ShardedEmbedding(shards.of("table"))
        self.seen = 0

    def losses(self, batch: Tensor) -> Tensor:
        self.seen += 1
        return nn.functional.dropout(
            self.linear(self.table(batch)).square().flatten(), training=torch.is_grad_enabled()
        )

    def trainer_state(self) -> dict[str, Tensor]:
        return {"seen": torch.tensor(self.seen)}

    def restore_trainer_state(self, tensors: dict[str, Tensor]) -> None:
        self.seen = int(tensors["seen"])

    @property
    def steps_per_epoch(self) -> int:
        return 2

    def batches(self, epoch: int, done: int) -> Iterator[Tensor]:
        yield from [BATCH] * (self.steps_per_epoch - done)

    def samples(self, batch: Tensor) -> int:
        return len(batch)

    def evaluate(self, split: EvalSplit) -> dict[str, float] | None:
        return {f"{split}_loss": self.mean_loss([BATCH, BATCH[:0], BATCH[:1]])}

    def export(self) -> None:
        pass


@pytest.mark.usefixtures("gang")
def test_an_epoch_ends_with_metrics_over_all_samples(context: WorkerContextOfTest) -> None:
    loop = Model(context)
    before = loop.evaluate("test")
    result = loop.run()
    assert before is not None
    assert result is not None
    assert result["steps"] == 2
    rows = torch.cat(list(loop.shards.blocks("table", "weight")))
    losses = loop.linear(rows[torch.cat([BATCH, BATCH[:1]])]).square()
    assert result["test_loss"] == pytest.approx(float(losses.detach().mean()), rel=1e-6)


@pytest.mark.usefixtures("gang")
def test_a_batch_without_samples_for_this_trainer_has_no_loss(context: WorkerContextOfTest) -> None:
    loop = Model(context)
    loop.samples = lambda batch: 4  # The other trainers have them.
    assert loop.train_step(BATCH[:0]) is None


@pytest.mark.usefixtures("gang")
def test_a_checkpoint_restores_trainer_and_servers(context: WorkerContextOfTest) -> None:
    loop = Model(context)
    loop.train_step(BATCH)
    saved = manifest_of(context, 1, loop.save_parts(1))
    assert {part.name for part in saved.parts} == {"trainer-0", "table-0"}

    def next_step() -> list[Tensor]:
        loop.train_step(BATCH)
        return [*loop.shards.blocks("table", "weight"), *(one.clone() for one in loop.linear.state_dict().values())]

    expected = next_step()
    loop.train_step(BATCH)
    loop.load(saved)
    assert loop.seen == 1
    assert all(torch.equal(one, other) for one, other in zip(next_step(), expected, strict=True))


class Gated(Model):
    """Looks rows up ahead. Its server applies no gradients before the trainer waits for that."""

    def __init__(self, context: WorkerContextOfTest, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(context, uses_stale_rows=True)
        self.happened: list[str] = []
        self.requested: RequestedRows | None = None
        self.opened = threading.Event()
        apply = Shard._step

        def step(shard: Shard) -> None:
            assert self.opened.wait(30)
            apply(shard)
            self.happened.append("applied")

        monkeypatch.setattr(Shard, "_step", step)

    def look_ahead(self, after: Update | None) -> None:
        self.happened.append(f"look ahead after {after.step}" if after else "look ahead")
        self.requested = self.requested or self.table.request(self.table.prepare(BATCH), after=after)

    def losses(self, batch: Tensor) -> Tensor:
        if self.requested is None or not torch.is_grad_enabled():
            return super().losses(batch)
        rows, self.requested = self.requested.expand(), None
        return self.linear(rows).square().flatten()

    def settle(self) -> None:
        self.opened.set()
        super().settle()
        self.opened.clear()

    def evaluate(self, split: EvalSplit) -> dict[str, float] | None:
        self.happened.append("evaluate")
        return super().evaluate(split)

    def save_parts(self, step: int) -> Sequence[CheckpointPart]:
        self.happened.append("save")
        return super().save_parts(step)


@pytest.mark.usefixtures("gang")
def test_rows_are_requested_ahead_when_all_earlier_steps_are_applied(
    context: WorkerContextOfTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Gated(context, monkeypatch)
    loop.train_step(BATCH)
    assert loop.happened == ["look ahead", "look ahead", "look ahead after 0"], "its gradients are still on their way"
    loop.happened.clear()
    loop.train_step(BATCH)
    assert loop.happened == ["applied", "look ahead", "look ahead after 0"]
    loop.settle()
    assert loop.happened == ["applied", "look ahead", "look ahead after 0", "applied"]


@pytest.mark.usefixtures("gang")
@pytest.mark.parametrize(
    ("every", "expected"),
    [
        (None, ["applied", "applied", "evaluate"]),
        # The checkpoint at the end of an epoch contains its evaluation.
        (1, ["applied", "save", "applied", "evaluate", "save"]),
    ],
)
def test_no_step_is_on_its_way_in_a_checkpoint_or_an_evaluation(
    context: WorkerContextOfTest, monkeypatch: pytest.MonkeyPatch, every: int | None, expected: list[str]
) -> None:
    params = context.params.model_copy(update={"checkpoint_every_steps": every})
    loop = Gated(replace(context, params=params), monkeypatch)
    loop.run()
    assert [one for one in loop.happened if not one.startswith("look ahead")] == [*expected, "evaluate"]


@pytest.mark.usefixtures("gang")
def test_no_step_is_on_its_way_after_a_stop(context: WorkerContextOfTest, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Gated(context, monkeypatch)
    monkeypatch.setattr(loop, "_local_decision", lambda: Decision(stop=True, checkpoint=False))
    assert loop.run() is None
    assert loop.happened[-1] == "applied"


@pytest.mark.usefixtures("gang")
def test_the_next_step_raises_the_error_of_an_update(
    context: WorkerContextOfTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Gated(context, monkeypatch)
    monkeypatch.setattr(Shard, "_step", lambda *_: {}["no row"])
    loop.train_step(BATCH)
    with pytest.raises(Exception, match="no row"):
        loop.train_step(BATCH)


@pytest.mark.usefixtures("gang")
def test_overlapping_updates_need_no_distributed_autograd(
    context: WorkerContextOfTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A context could end before a server has used it."""
    loop = Gated(context, monkeypatch)
    monkeypatch.setattr("torch.distributed.autograd.context", lambda: pytest.fail("a context begins"))
    loop.train_step(BATCH)
    loop.settle()
    assert loop.happened[-1] == "applied"


@pytest.mark.usefixtures("gang")
def test_a_bad_weight_is_found_here_and_on_the_server(context: WorkerContextOfTest) -> None:
    model = Model(context)
    bias = model.linear.get_parameter("bias")
    assert model.has_finite_weights()
    with torch.no_grad():
        bias.fill_(torch.nan)
        assert not model.has_finite_weights()
        bias.zero_()
        assert model.has_finite_weights()
        (table,) = model.shards.modules("table")
        table.local_value().weight[2, 1] = torch.inf
    assert not model.has_finite_weights()

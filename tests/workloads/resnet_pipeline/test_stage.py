# pyright: standard
"""The stages of a pipeline, called as the driver calls them. tests/numerics compares whole gangs with one process."""

import math
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from tests.measured import measured
from tests.numerics.resnet_pipeline_reference import scores, train_alone
from tests.own_process import own_rpc, worker_context

from rolecall.kit.builders import Builder
from rolecall.kit.worker import WorkerContext
from rolecall.runtime.timeline import Timeline
from rolecall.spec.errors import InputError, Stopped
from rolecall.spec.metric import IN_FLIGHT
from rolecall.spec.plan import GangPlan, WorkerPlan
from rolecall.spec.role import Role
from rolecall.workloads.resnet_pipeline import stage as stages
from rolecall.workloads.resnet_pipeline.params import Params, block_names
from rolecall.workloads.resnet_pipeline.stage import PipelineStage, StageStep, execute, run

# Of the Gloo groups that torch creates.
pytestmark = pytest.mark.filterwarnings("ignore:You are using a Backend:UserWarning")
NAMES = block_names("resnet18")
CLASSES = 3
# RPC and both stages have threads here, whose locks a forked process would inherit.
IN_THIS_PROCESS = {"loader_processes": 0}
PARAMS = Params.model_validate(
    {
        "data": {"synthetic": {"images": 20, "classes": CLASSES}, "size": 32, "validation": 0.3, **IN_THIS_PROCESS},
        "batch_size": 4,
        "micro_batches": 2,
        "norm": "group",
        "precision": "float64",
        "max_steps": 2,
        "seed": 3,
    }
)


def cut(at: int) -> list[tuple[str, ...]]:
    """The blocks of two stages: of the first one `at`, of the second one the rest."""
    return [NAMES[:at], NAMES[at:]]


@pytest.fixture
def contexts(tmp_path: Path) -> Iterator[list[WorkerContext[Params]]]:
    """Those of the two stages of a gang."""
    plans = [WorkerPlan(rank=rank, role=Role.STAGE, role_rank=rank, node="here", threads=1) for rank in range(2)]
    with worker_context(tmp_path, PARAMS, Role.STAGE) as alone:
        launches = [
            alone.launch.model_copy(update={"worker": plan, "gang": GangPlan(workers=tuple(plans))}) for plan in plans
        ]
        yield [replace(alone, launch=launch, timeline=Timeline()) for launch in launches]


@pytest.fixture
def both(contexts: list[WorkerContext[Params]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Calls a method of both stages at once, which are two threads of this process and send each other tensors by RPC.

    One inbox is enough for both: the second stage gets activations and labels, the first one gradients.
    """
    with own_rpc(tmp_path) as name, ThreadPoolExecutor(2) as threads:
        monkeypatch.setattr(stages, "worker_name", lambda *_: name)
        pipeline = [PipelineStage(context) for context in contexts]

        def call(method: Callable[..., Any], *arguments: Any) -> list[Any]:
            futures = [threads.submit(method, one, *arguments) for one in pipeline]
            return [future.result(60) for future in futures]

        info = pipeline[0].open()
        assert info.images == {"train": 13, "validation": 7}
        for one in pipeline:  # One by one, because the first weights come from the generator of all threads.
            one.build(cut(5), CLASSES)
            assert measured(IN_FLIGHT) == [2]
        yield call


@pytest.mark.slow
def test_two_stages_do_what_one_process_does(both: Any, contexts: list[WorkerContext[Params]]) -> None:
    reference = train_alone(PARAMS)
    for step in range(2):
        first, last = both(PipelineStage.train, step + 1, 0, step, 1.0)
        assert isinstance(first, StageStep)
        assert first.loss == 0.0
        assert last.loss == pytest.approx(reference.losses[step], abs=1e-10)
        assert min(first.compute_s, last.compute_s) > 0
    whole = {name: value for part in both(PipelineStage.weights) for name, value in part.items()}
    torch.testing.assert_close(whole, reference.state, rtol=0, atol=1e-10)
    for index, context in enumerate(contexts):
        window = context.timeline.window(1 << 20)
        assert [step.number for step in window.steps] == [1, 2]
        assert {span.stage for span in window.spans} == {index}
        computed = [span.name for span in window.spans if span.category == "compute" and span.step == 2]
        assert sorted(computed) == ["F", "F", "I", "I", "W", "W", "optimizer"]
    # The 7 images do not fill the last batch of 2.
    first, last = both(PipelineStage.evaluate, "validation", 7)
    assert first is None
    assert last.samples == 7
    assert last.named("validation") == pytest.approx(scores(PARAMS, reference.state))


def test_random_numbers_of_a_step_depend_only_on_its_position_and_the_stage(
    contexts: list[WorkerContext[Params]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resumed attempt drops the same activations, although checkpoints have no state of generators."""
    monkeypatch.setattr(PipelineStage, "_train_step", lambda *_: float(torch.rand(())))
    first, last = map(PipelineStage, contexts)
    drawn = [
        one.train(1, epoch, batch, 1.0).loss for one, epoch, batch in ((first, 0, 0), (first, 0, 1), (first, 1, 0))
    ]
    drawn.append(last.train(1, 0, 0, 1.0).loss)
    assert len(set(drawn)) == 4
    assert first.train(1, 0, 0, 1.0).loss == drawn[0]


def test_a_rate_of_zero_moves_nothing(both: Any) -> None:
    before = [{name: value.clone() for name, value in part.items()} for part in both(PipelineStage.weights)]
    both(PipelineStage.train, 1, 0, 0, 0.0)
    torch.testing.assert_close(both(PipelineStage.weights), before, rtol=0, atol=0)


def test_replicas_of_a_frozen_stage_have_nothing_to_average(
    contexts: list[WorkerContext[Params]], monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, all_reduce = PipelineStage(contexts[0]), Mock()
    monkeypatch.setattr(stages.dist, "all_reduce", all_reduce)
    monkeypatch.setattr(stage, "_part", Mock(replicated_tensors=list), raising=False)
    monkeypatch.setattr(stage, "_replica_group", Mock())
    stage._average_replicas()
    all_reduce.assert_not_called()


def test_a_stage_finds_a_weight_that_is_not_finite(both: Any) -> None:
    assert both(PipelineStage.has_finite_weights) == [True, True]
    both(PipelineStage.train, 1, 0, 0, math.inf)
    assert both(PipelineStage.has_finite_weights) == [False, False]


def test_a_stage_names_the_blocks_only_of_a_model_that_fits_the_images(
    contexts: list[WorkerContext[Params]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With and without cuts, before anything else computes with the model."""
    (tmp_path / "their_flat_net.py").write_text(
        "from torch import nn\n"
        "def flat(classes, size):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(3 * size**2, 8), nn.Linear(8, classes))\n"
    )
    monkeypatch.setenv("ROLECALL_PLUGINS", str(tmp_path))
    monkeypatch.setattr(sys, "path", sys.path[:])

    def blocks(size: int) -> dict[str, bool]:
        model = Builder(builder="their_flat_net:flat", arguments={"size": size})
        return PipelineStage(replace(contexts[0], params=PARAMS.model_copy(update={"model": model}))).blocks(CLASSES)

    assert blocks(32) == {"0": False, "1": True, "2": True}
    with pytest.raises(InputError, match=r"^their_flat_net:flat: block 1 \(Linear\) fails on images of 32 x 32: "):
        blocks(28)


@pytest.mark.parametrize("reason", ["done", "stopped"])
def test_a_stage_serves_calls_until_its_shutdown(contexts: list[WorkerContext[Params]], reason: str) -> None:
    """In its main thread. The master must not take an end after a request to stop for a success."""
    answer = execute(PipelineStage.blocks, CLASSES)
    execute(PipelineStage.shutdown, reason)
    if reason == "stopped":
        with pytest.raises(Stopped, match="between two steps"):
            run(contexts[0])
    else:
        run(contexts[0])
    assert answer.value() == dict.fromkeys(NAMES, True)

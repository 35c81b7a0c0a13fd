"""The driver's decisions between its calls of the stages, which are scripted; tests/numerics runs whole gangs."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from tests.own_process import worker_context

from rolecall.kit import InputError
from rolecall.kit.metrics import ClassMetrics
from rolecall.kit.worker import WorkerContext
from rolecall.spec.plan import GangPlan, WorkerPlan
from rolecall.spec.role import Role
from rolecall.workloads.resnet_pipeline import training
from rolecall.workloads.resnet_pipeline.build import DatasetInfo
from rolecall.workloads.resnet_pipeline.params import Params, block_names
from rolecall.workloads.resnet_pipeline.stage import PipelineStage, StageStep
from rolecall.workloads.resnet_pipeline.training import PipelineTraining, TutorialTraining

NAMES = block_names("resnet18")
PIPELINES = [["stage-0", "stage-1"], ["stage-2", "stage-3"]]
STAGES = [*PIPELINES[0], *PIPELINES[1]]


class Script:
    """Four stages, two for each of two replicas, which answer as the test says."""

    def __init__(self) -> None:
        self.images = {name: {"train": 20, "validation": 7} for name in STAGES}
        self.blocks: dict[str, bool] = {}
        self.fingerprints = {name: {"train": "f", "validation": "f"} for name in STAGES}
        self.costs = {name: [1.0] * len(NAMES) for name in STAGES}
        self.steps = dict.fromkeys(STAGES, StageStep(0.0, 0.0))
        self.metrics: dict[str, ClassMetrics | None] = dict.fromkeys(STAGES)
        self.finite = dict.fromkeys(STAGES, True)
        self.calls: list[tuple[list[str], str, tuple[Any, ...]]] = []

    def call(self, names: Sequence[str], method: Callable[..., Any], *arguments: Any) -> list[Any]:
        self.calls.append((list(names), method.__name__, arguments))
        return [self._answer(name, method) for name in names]

    def _answer(self, name: str, method: Callable[..., Any]) -> Any:
        answers: dict[Callable[..., Any], Any] = {
            PipelineStage.open: DatasetInfo(("a", "b", "c"), self.images[name], self.fingerprints[name]),
            PipelineStage.blocks: self.blocks,
            PipelineStage.measure: self.costs[name],
            PipelineStage.train: self.steps[name],
            PipelineStage.evaluate: self.metrics[name],
            PipelineStage.has_finite_weights: self.finite[name],
        }
        return answers.get(method)

    def last(self, method: str) -> tuple[list[str], tuple[Any, ...]]:
        """The stages and the arguments of the last call of a method."""
        return next((names, given) for names, called, given in reversed(self.calls) if called == method)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    made = Script()
    monkeypatch.setattr(training, "call", made.call)
    return made


@pytest.fixture
def start(tmp_path: Path, script: Script) -> Iterator[Callable[..., PipelineTraining]]:
    """Makes the loop of a driver with these stages."""
    given: dict[str, Any] = {"data": {"train": "images", "size": 32}, "batch_size": 8, "replicas": 2, "norm": "group"}
    plans = [WorkerPlan(rank=0, role=Role.MASTER, role_rank=0, node="here", threads=1)]
    plans += [WorkerPlan(rank=n + 1, role=Role.STAGE, role_rank=n, node="here", threads=1) for n in range(len(STAGES))]
    with worker_context(tmp_path, Params.model_validate(given), Role.MASTER) as alone:
        launch = alone.launch.model_copy(update={"gang": GangPlan(workers=tuple(plans))})

        def make(kind: type[PipelineTraining] = PipelineTraining, **changes: Any) -> PipelineTraining:
            params = Params.model_validate(given | changes)
            context: WorkerContext[Params] = replace(alone, launch=launch, params=params)
            return kind(context)

        yield make


def parts(script: Script) -> list[int]:
    """The number of blocks of each part that the stages have built."""
    names, (partition, classes) = script.last("build")
    assert (names, classes) == (STAGES, 3)
    assert [block for part in partition for block in part] == list(NAMES)
    return [len(part) for part in partition]


def test_each_first_stage_opens_the_images_and_all_stages_build_the_same_parts(
    start: Callable[..., PipelineTraining], script: Script
) -> None:
    loop = start(cuts=[NAMES[3]])
    assert script.last("open")[0] == ["stage-0", "stage-2"]
    assert parts(script) == [3, len(NAMES) - 3]
    assert "measure" not in {method for _, method, _ in script.calls}, "the cuts are given"
    assert loop.steps_per_epoch == 2, "the last incomplete batch is dropped"


def test_the_slowest_replica_decides_where_the_model_is_cut(
    start: Callable[..., PipelineTraining], script: Script
) -> None:
    start()
    half = parts(script)[0]
    script.costs["stage-2"][0] = 100.0  # In the first part of the second replica alone.
    start()
    assert parts(script)[0] == 1 < half


CUSTOM = {"model": {"builder": "their_nets:small"}, "norm": "batch"}


def built(script: Script) -> list[tuple[str, ...]]:
    """The block names of each part that the stages have built."""
    return script.last("build")[1][0]


def test_every_stage_of_a_custom_model_gets_weights(start: Callable[..., PipelineTraining], script: Script) -> None:
    script.blocks = {"norm": False, "conv": True, "relu": False, "pool": False, "flatten": False, "head": True}
    script.costs = {name: [9.0, 1.0, 9.0, 1.0, 1.0, 1.0] for name in STAGES}
    start(**CUSTOM)
    assert built(script) == [("norm", "conv", "relu", "pool", "flatten"), ("head",)]
    start(**CUSTOM, cuts=["pool"])
    assert built(script) == [("norm", "conv", "relu"), ("pool", "flatten", "head")]
    with pytest.raises(InputError, match="a stage would have only norm, without weights"):
        start(**CUSTOM, cuts=["conv"])


@pytest.mark.parametrize("changes", [{}, {"cuts": ["head"]}])
def test_stages_need_as_many_blocks_with_weights(
    start: Callable[..., PipelineTraining], script: Script, changes: dict[str, Any]
) -> None:
    script.blocks = {"norm": False, "flatten": False, "head": True}
    expected = "2 stages need as many blocks with weights, but the model has 1: head"
    with pytest.raises(InputError, match=expected):
        start(**CUSTOM, **changes)
    assert "build" not in {method for _, method, _ in script.calls}


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_the_tutorials_optimizer_gets_no_argument_that_torch_2_11_refuses(
    start: Callable[..., PipelineTraining], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    optimizer = Mock()
    monkeypatch.setattr(training, "DistributedOptimizer", optimizer)
    monkeypatch.setattr(training, "RemotePipeline", Mock())
    monkeypatch.setattr(training.rpc, "remote", Mock())
    data = {"synthetic": {"images": 12, "classes": 3}, "size": 32, "validation": 0.0}
    start(TutorialTraining, data=data, protocol="tutorial", replicas=1, optimizer={"name": name})
    assert optimizer.call_args.kwargs.keys() == {"lr", "betas", "eps", "weight_decay"}


def test_replicas_that_read_other_images_end_the_job(start: Callable[..., PipelineTraining], script: Script) -> None:
    script.fingerprints["stage-2"] = {"train": "f", "validation": "g"}  # As many images.
    with pytest.raises(InputError, match="stage-2 and stage-0 read different images"):
        start()
    assert "build" not in {method for _, method, _ in script.calls}


def test_a_batch_needs_as_many_images(start: Callable[..., PipelineTraining], script: Script) -> None:
    script.images |= {name: {"train": 7} for name in STAGES}
    with pytest.raises(InputError, match="there are only 7 training images; set batch_size to at most that number"):
        start()


def test_the_loss_of_a_step_is_the_mean_of_the_replicas(start: Callable[..., PipelineTraining], script: Script) -> None:
    """Only the last stage of each has a loss."""
    loop = start()
    script.steps |= {"stage-1": StageStep(1.0, 0.1), "stage-3": StageStep(2.0, 0.1)}
    assert loop.train_step(1) == 1.5
    assert script.last("train") == (STAGES, (1, 0, 1, 1.0))


def test_the_scores_of_a_split_are_those_of_the_last_stages_together(
    start: Callable[..., PipelineTraining], script: Script
) -> None:
    loop = start()
    script.metrics |= {"stage-1": ClassMetrics(4, 1.0, 0.5), "stage-3": ClassMetrics(3, 8.0, 1.0)}
    assert loop.evaluate("validation") == pytest.approx({"validation_loss": 4.0, "validation_accuracy": 5 / 7})
    assert script.last("evaluate") == (STAGES, ("validation", 7))
    assert loop.evaluate("test") is None, "the data has no such split"


def test_one_replica_saves_and_all_load(start: Callable[..., PipelineTraining], script: Script) -> None:
    loop = start()
    loop.save_parts(3)
    assert script.last("save") == (PIPELINES[0], (3,))
    manifest: Any = object()
    loop.load(manifest)
    assert script.last("load") == (STAGES, (manifest,))


def test_one_bad_stage_makes_the_weights_bad(start: Callable[..., PipelineTraining], script: Script) -> None:
    loop = start()
    assert loop.has_finite_weights()
    script.finite["stage-1"] = False
    assert not loop.has_finite_weights()
    assert script.last("has_finite_weights") == (PIPELINES[0], ())

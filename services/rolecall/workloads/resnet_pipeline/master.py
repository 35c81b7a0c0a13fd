"""The master drives the stages, from choosing the cuts to the job's result."""

from rolecall.kit.worker import WorkerContext
from rolecall.workloads.resnet_pipeline.params import Params
from rolecall.workloads.resnet_pipeline.training import PipelineTraining


def run(context: WorkerContext[Params]) -> None:
    PipelineTraining(context).play()

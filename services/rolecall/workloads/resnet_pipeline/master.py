"""The driver, a worker of the role `master`, calls the stages, from choosing the cuts to the job's result."""

from rolecall.kit.worker import WorkerContext, call_limit
from rolecall.workloads.resnet_pipeline.params import Params
from rolecall.workloads.resnet_pipeline.training import PipelineTraining, TutorialTraining


def run(context: WorkerContext[Params]) -> None:
    kind = TutorialTraining if context.params.protocol == "tutorial" else PipelineTraining
    with call_limit(context.params.rpc.timeout_s):
        kind(context).play()

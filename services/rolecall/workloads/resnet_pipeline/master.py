"""The master drives the stages from the choice of the cuts to the job's result."""

from rolecall.runtime.context import WorkerContext
from rolecall.spec.errors import Stopped
from rolecall.workloads.resnet_pipeline.training import PipelineTraining


def run(context: WorkerContext) -> None:
    """Drive one attempt."""
    training = PipelineTraining(context)
    result = training.run()
    training.dismiss("done" if result is not None else "stopped")
    if result is None:
        raise Stopped("the stages left between two steps, as asked")
    context.report.result(**result)

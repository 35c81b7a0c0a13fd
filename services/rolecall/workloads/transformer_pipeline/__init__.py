"""`transformer-pipeline`: a GPT-style language model cut into stages by `torch.distributed.pipelining`.

After the PyTorch tutorial "Introduction to Distributed Pipeline Parallelism". Micro-batches of text pass the
stages by a schedule. The pipeline can be replicated; each replica gets its share of a batch.

`params`: the parameters. `check`: checks before the gang starts. `model`: the decoder, shared with exports. `build`:
the decoder or a job's whole model, cut into virtual stages. `remote`: a rank's stages, and the schedule over all
stages. `training`: the loop. `export`: the exported archive and a sample of text. This file, `params` and `check` never
import torch.
"""

from rolecall.kit import Metric, Role, RoleCount, Workload
from rolecall.kit.declarations import BUBBLE, EVALUATED_LOSS, PERPLEXITY, TRAINING
from rolecall.workloads.transformer_pipeline.check import check_counts, check_node
from rolecall.workloads.transformer_pipeline.params import Params

__all__ = ["WORKLOAD", "Params"]

WORKLOAD = Workload(
    name="transformer-pipeline",
    summary="A GPT-style language model whose layers are a pipeline of stages",
    package=__name__,
    params=Params,
    roles={Role.STAGE: RoleCount(default=2, least=2, most=256)},
    metrics=(
        *TRAINING,
        EVALUATED_LOSS,
        PERPLEXITY,
        BUBBLE,
        Metric("micro_batch_loss_min", "The lowest loss of a micro-batch of the step."),
        Metric("micro_batch_loss_max", "The highest loss of a micro-batch of the step."),
        Metric("micro_batch_{index}_loss", "Loss of one of up to 16 micro-batches."),
        Metric("bubble_measured", "Share of the pipeline ranks' time without computation.", "ratio", "lower"),
        Metric("bubble_theory", "The same for equal stages and instant communication.", "ratio", "lower"),
        Metric(
            "bubble_simulated",
            "Bubble of a simulation in which each pass takes the mean time of its stage, and communication none.",
            "ratio",
            "lower",
        ),
        Metric("stage_{index}_compute_s", "Time in which a pipeline rank computed.", "seconds"),
        Metric("stage_{index}_wait_s", "Time in which it waited for its neighbors.", "seconds", "lower"),
        Metric(
            "stage_{index}_idle_s",
            "Time before its first and after its last computation.",
            "seconds",
            "lower",
        ),
    ),
    rpc=False,
    process_group=(Role.STAGE,),
    check_counts=check_counts,
    check_node=check_node,
)

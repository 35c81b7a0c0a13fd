"""`transformer-pipeline`: a GPT-style language model cut into stages by `torch.distributed.pipelining`.

After the PyTorch tutorial "Introduction to Distributed Pipeline Parallelism". Text comes in; micro-batches pass the
stages in the order of a schedule; the whole pipeline may stand several times, each replica with its share of a batch.

Rules: `params` says what is asked, `schedules` which combinations are legal, `check` compares them with the counts.
Model: `model` (also what users get), `split` cuts it. Running: `grid` (ranks and replicas), `pipeline` (stages and
schedule), `meter` (where the time goes) against `kit.pipelining` (where it should), `sequences` (the text in batches),
`training`, `sample`, `export`. This file, `params`, `schedules` and `check` never import torch.
"""

from rolecall.spec.role import Role
from rolecall.spec.workload import RoleCount, Workload
from rolecall.workloads.transformer_pipeline.check import check_counts, check_node
from rolecall.workloads.transformer_pipeline.params import Params

__all__ = ["WORKLOAD", "Params"]

WORKLOAD = Workload(
    name="transformer-pipeline",
    summary="A GPT-style language model whose layers are a pipeline of stages",
    package=__name__,
    params=Params,
    roles={Role.STAGE: RoleCount(default=2, least=2, most=256)},
    rpc=False,
    process_group=(Role.STAGE,),
    check_counts=check_counts,
    check_node=check_node,
)

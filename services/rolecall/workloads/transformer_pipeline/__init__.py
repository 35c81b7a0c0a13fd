"""`transformer-pipeline`: a GPT-style language model cut into stages by `torch.distributed.pipelining`.

After the PyTorch tutorial "Introduction to Distributed Pipeline Parallelism". Micro-batches of text pass the
stages by a schedule. The pipeline can be replicated; each replica gets its share of a batch.

`params`: the parameters. `check`: checks before the gang starts. `model`: the decoder, shared with exports. `build`:
parts of the decoder, and torch's stages. `split`: cuts into virtual stages. `custom_model`: whole models of jobs, and
how they are cut. `pipeline`: the schedule over the stages. `training`: the loop. `export`: the exported archive and a
sample of text. This file, `params` and `check` never import torch.
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

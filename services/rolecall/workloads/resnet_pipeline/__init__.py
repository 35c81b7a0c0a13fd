"""`resnet-pipeline`: an image classifier whose layers are spread over stages that work on micro-batches in turn.

After the PyTorch tutorial "Distributed Pipeline Parallelism Using RPC". The master drives; the first stage of each
replica reads the images; activations and gradients go from stage to stage; the loss is computed on the last.

`model` is what users get too, `costs` measures what decides the cuts, `shard` is one stage's part of the model, `wire`
how tensors reach a neighbour, `pipeline` the stage that joins them,
`tutorial_protocol` the tutorial's own way; `training` is the master's loop. This file, `params`
and `check` never import torch.
"""

from rolecall.spec.role import Role
from rolecall.spec.workload import RoleCount, Workload
from rolecall.workloads.resnet_pipeline.check import check_counts, check_node, rpc_threads
from rolecall.workloads.resnet_pipeline.params import Params

__all__ = ["WORKLOAD", "Params"]

WORKLOAD = Workload(
    name="resnet-pipeline",
    summary="An image classifier: a ResNet cut into stages, trained on micro-batches in a pipeline over RPC",
    package=__name__,
    params=Params,
    roles={
        Role.MASTER: RoleCount(default=1, least=1, most=1),
        Role.STAGE: RoleCount(default=2, least=2, most=256),
    },
    rpc=True,
    process_group=(Role.STAGE,),
    check_counts=check_counts,
    check_node=check_node,
    rpc_threads=rpc_threads,
)

"""`resnet-pipeline`: an image classifier in pipeline stages that process micro-batches over RPC.

After the PyTorch tutorial "Distributed Pipeline Parallelism Using RPC". The driver calls the stages. The
first stage of each replica reads images, stages exchange activations and gradients, the last computes the loss. In
protocol `tutorial`, the driver reads the images and computes the loss.

`params`: the parameters. `check`: checks before the gang starts. `model`: the model, shared with exports. `build`: the
model, its blocks' costs for the cuts, a stage's layers and optimizer, and the images. `stage`: the stage. `remote`:
tensors between stages, and the shards of protocol `tutorial`. `training`: the driver's loops. `export`: the exported
archive. This file, `params` and `check` never import torch.
"""

from rolecall.kit import Role, RoleCount, Workload
from rolecall.kit.declarations import BUBBLE, CLASSIFIER, TRAINING
from rolecall.workloads.resnet_pipeline.check import check_counts, check_node, rpc_threads, rpc_timeout_s
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
    metrics=(*TRAINING, *CLASSIFIER, BUBBLE),
    rpc=True,
    process_group=(Role.STAGE,),
    check_counts=check_counts,
    check_node=check_node,
    rpc_threads=rpc_threads,
    rpc_timeout_s=rpc_timeout_s,
)

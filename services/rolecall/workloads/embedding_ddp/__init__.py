"""`embedding-ddp`: a classifier with its embeddings on parameter servers and its dense layers in DDP.

After the PyTorch tutorial "Combining Distributed DataParallel with Distributed RPC Framework". Rows are tables of
categorical and numeric columns, the label is yes or no.

`params` says what a job may ask for, `check` looks at its input before the gang meets, `batches` makes tensors of the
rows that `kit.tables` reads. Model: `embedding` (on the servers), `dense` (in the trainers), `model` (also what users
get). `training` goes through the rows, `evaluation` scores, `export` writes the model. This file, `params` and `check`
never import torch.
"""

from rolecall.spec.role import Role
from rolecall.spec.workload import RoleCount, Workload
from rolecall.workloads.embedding_ddp.check import check_counts, check_node
from rolecall.workloads.embedding_ddp.params import Params

__all__ = ["WORKLOAD", "Params"]

WORKLOAD = Workload(
    name="embedding-ddp",
    summary="A recommender-style classifier: embeddings on parameter servers, dense layers in DDP trainers",
    package=__name__,
    params=Params,
    roles={
        Role.MASTER: RoleCount(default=1, least=1, most=1),
        Role.PARAMETER_SERVER: RoleCount(default=1, least=1, most=64),
        Role.TRAINER: RoleCount(default=2, least=1, most=256),
    },
    rpc=True,
    process_group=(Role.TRAINER,),
    check_counts=check_counts,
    check_node=check_node,
)

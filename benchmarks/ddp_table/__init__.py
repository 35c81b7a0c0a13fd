"""The peer of `embedding-ddp`: DDP alone, with the whole table in each trainer. Torch-free."""

from rolecall.kit import Role, RoleCount, Workload
from rolecall.kit.declarations import LOSS
from rolecall.workloads.embedding_ddp import Params

WORKLOAD = Workload(
    name="ddp-table",
    summary="An embedding table in each trainer; DDP reduces the gradients of its rows",
    package=__name__,
    params=Params,
    roles={Role.TRAINER: RoleCount(default=2)},
    metrics=(LOSS,),
    rpc=False,
    process_group=(Role.TRAINER,),
)

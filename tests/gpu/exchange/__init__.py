"""A workload whose two trainers send each other tensors in every way that workloads do. Torch-free."""

from rolecall.kit import Params as BaseParams
from rolecall.kit import Role, RoleCount, Workload


class Params(BaseParams):
    """The parameters of an exchange."""

    sizes: tuple[int, ...] = (1, 1000, 1 << 20)
    """The numbers of elements of the tensors that are sent by RPC."""


WORKLOAD = Workload(
    name="exchange",
    summary="Two trainers exchange tensors",
    package=__name__,
    params=Params,
    roles={Role.TRAINER: RoleCount(default=2, least=2, most=2)},
    process_group=(Role.TRAINER,),
)

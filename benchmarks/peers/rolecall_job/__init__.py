"""The training as a Rolecall workload. Torch-free, because the master imports this file."""

from rolecall.kit import Role, RoleCount, Workload
from rolecall.kit.declarations import TRAINING
from rolecall.kit.params import TrainingParams


class Params(TrainingParams):
    """The parameters of a `peers` job."""


WORKLOAD = Workload(
    name="peers",
    summary="data-parallel training of a small network, for comparisons with other systems",
    package=__name__,
    params=Params,
    roles={Role.TRAINER: RoleCount(default=2)},
    metrics=TRAINING,
    rpc=False,
    process_group=(Role.TRAINER,),
)

"""The program of the PyTorch tutorial "Distributed Pipeline Parallelism Using RPC", as a workload. Torch-free.

It has what the tutorial has and no more: ResNet-50 is cut after `layer2`, images and outputs pass through the driver,
and torch's memory format is the default one. `protocol: tutorial` of `resnet-pipeline` has the same protocol, but
Rolecall's cuts and blocks.
"""

from typing import Annotated

from pydantic import Field

from rolecall.kit import Params, Role, RoleCount, Workload
from rolecall.kit.declarations import LOSS

STAGES = 2
THREADS = 128


class TutorialParams(Params):
    """The numbers of the program."""

    batch_size: Annotated[int, Field(ge=1)] = 120
    micro_batches: Annotated[int, Field(ge=1)] = 8
    size: Annotated[int, Field(ge=32)] = 128
    """Height and width of an image."""
    classes: Annotated[int, Field(ge=2)] = 1000
    steps: Annotated[int, Field(ge=1)] = 3


def rpc_threads(params: TutorialParams, counts: dict[Role, int]) -> int:
    """Enough threads for the calls, which block."""
    return THREADS


WORKLOAD = Workload(
    name="tutorial-resnet",
    summary="The tutorial's pipeline of two parts of ResNet-50 over RPC",
    package=__name__,
    params=TutorialParams,
    roles={Role.MASTER: RoleCount(default=1, most=1), Role.STAGE: RoleCount(default=STAGES, least=STAGES, most=STAGES)},
    metrics=(LOSS,),
    rpc_threads=rpc_threads,
)

"""Checks of `resnet-pipeline` jobs before the gang starts. Torch-free."""

from rolecall.kit import Role, counted
from rolecall.kit.builders import Builder, check_builder
from rolecall.kit.images.sources import check_images
from rolecall.kit.params import check_precision
from rolecall.workloads.resnet_pipeline.params import Params, block_names

_MAX_STAGES = 256


def check_counts(params: Params, counts: dict[Role, int]) -> None:
    """Raises `ValueError` unless the stages are divisible by the replicas, and the model has a block for each stage."""
    stages, replicas, max_stages = counts[Role.STAGE], params.replicas, _MAX_STAGES
    if isinstance(params.model, str):  # A custom model is checked when it is built.
        max_stages = len(block_names(params.model))
    if stages % replicas or not 2 <= stages // replicas <= max_stages:
        raise ValueError(
            f"{counted(stages, 'stage')} for {counted(replicas, 'replica')}: roles.stage is the total of all "
            "replicas, which each have at least 2 stages and at most one per block of the model; "
            f"valid: {replicas} times 2 to {max_stages}"
        )
    if params.cuts is not None and len(params.cuts) != stages // replicas - 1:
        raise ValueError(
            f"cuts has {counted(len(params.cuts), 'block')} for {stages // replicas} stages per replica; it needs "
            f"{stages // replicas - 1}, one for each stage but the first"
        )


def check_node(params: Params, role: Role) -> None:
    """Raises `InputError` if a stage's node lacks the model or precision, if a custom model has other blocks than the
    cuts name, or if the node that reads the images lacks them.

    In protocol `tutorial` that is the driver's; otherwise any stage can become a first one.
    """
    if role is Role.STAGE:
        check_precision(params.precision)
        if isinstance(params.model, Builder):
            check_builder(params.model)
            if params.cuts is not None:
                # The master imports this file, and must not import torch.
                from rolecall.workloads.resnet_pipeline.build import check_cuts  # noqa: PLC0415

                check_cuts(params, params.model)
    if role is (Role.MASTER if params.protocol == "tutorial" else Role.STAGE):
        check_images(params.data)


def rpc_threads(params: Params, counts: dict[Role, int]) -> int:
    """The threads that the job sets, or enough for either protocol."""
    return params.rpc.threads or params.least_rpc_threads


def rpc_timeout_s(params: Params) -> float:
    """The limit of calls without a timeout of their own, which are those of training steps."""
    return params.rpc.timeout_s

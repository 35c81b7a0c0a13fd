"""Checks of `resnet-pipeline` jobs before the gang starts. Torch-free."""

from rolecall.kit.builders import Builder, check_builder
from rolecall.kit.images.sources import check_images
from rolecall.kit.params import check_precision
from rolecall.spec.role import Role
from rolecall.workloads.resnet_pipeline.params import Params, block_names

_MAX_STAGES = 256


def check_counts(params: Params, counts: dict[Role, int]) -> None:
    """Raises `ValueError` unless the stages are divisible by the replicas, and the model has a block for each stage."""
    stages, replicas, max_stages = counts[Role.STAGE], params.replicas, _MAX_STAGES
    if isinstance(params.model, str):  # A custom model is checked when it is built.
        max_stages = len(block_names(params.model))
    if stages % replicas or not 2 <= stages // replicas <= max_stages:
        raise ValueError(
            f"{stages} stages for {replicas} replica(s): roles.stage is the total of all replicas, which each have at "
            f"least 2 stages and at most one per block of the model; valid: {replicas} times 2 to {max_stages}"
        )
    if params.cuts is not None and len(params.cuts) != stages // replicas - 1:
        raise ValueError(
            f"cuts has {len(params.cuts)} block(s) for {stages // replicas} stages per replica; it needs "
            f"{stages // replicas - 1}, one for each stage but the first"
        )


def check_node(params: Params, role: Role) -> None:
    """Raises `InputError` if a stage's node lacks the images (any stage may be a first one), the model or precision."""
    if role is not Role.STAGE:
        return
    check_precision(params.precision)
    if isinstance(params.model, Builder):
        check_builder(params.model)
    check_images(params.data)


def rpc_threads(params: Params, counts: dict[Role, int]) -> int:
    """In protocol `tutorial` every micro-batch may block one thread of a stage; two more serve other calls."""
    return params.micro_batches + 2

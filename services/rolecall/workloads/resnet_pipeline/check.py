"""What can be decided about a `resnet-pipeline` job before its gang meets. Torch-free."""

from rolecall.spec import workload
from rolecall.spec.role import Role
from rolecall.workloads.images.check import check_images
from rolecall.workloads.resnet_pipeline.params import Params, block_names


def check_counts(params: workload.Params, counts: dict[Role, int]) -> None:
    """Raises `ValueError` unless the stages divide by the replicas, and the blocks suffice for a pipeline's stages."""
    assert isinstance(params, Params)
    stages, replicas, blocks = counts[Role.STAGE], params.replicas, len(block_names(params.model))
    if stages % replicas or not 2 <= stages // replicas <= blocks:
        raise ValueError(
            f"{stages} stages for {replicas} replica(s): roles.stage counts the stages of all replicas, and each has "
            f"2 to {blocks} ({params.model} has {blocks} blocks); legal: {replicas} times 2 to {blocks}"
        )
    if params.cuts is not None and len(params.cuts) != stages // replicas - 1:
        raise ValueError(
            f"cuts has {len(params.cuts)} block(s) for {stages // replicas} stages per replica; it needs "
            f"{stages // replicas - 1}, one for every stage but the first"
        )


def check_node(params: workload.Params, role: Role) -> None:
    """On a stage's node, raises `InputError` unless the images are there: any of them may play the first stage."""
    assert isinstance(params, Params)
    if role is Role.STAGE:
        check_images(params.data)


def rpc_threads(params: workload.Params, counts: dict[Role, int]) -> int:
    """In protocol `seed` every micro-batch may hold one thread of a stage, and others must still be answered."""
    assert isinstance(params, Params)
    return params.micro_batches + 2
